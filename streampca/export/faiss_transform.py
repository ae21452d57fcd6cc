"""Models as linear transforms of faiss."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from streampca.export.files import Exported, require_free, write
from streampca.export.limits import require_expressible
from streampca.export.projection import Projection, measured_error, projection_of, require_memory, require_range
from streampca.models.pca import Model
from streampca.system.optional import optional_module

if TYPE_CHECKING:
    from faiss import LinearTransform


def write_faiss(model: Model, path: Path, *, memory: int | str | None = None, overwrite: bool = False) -> Exported:
    """Write `model` as a ``LinearTransform``; see `streampca.PCA.to_faiss`."""
    faiss = optional_module("faiss", "a transform of faiss", "export")
    model = require_expressible(model, "faiss")
    require_free(path, "faiss", overwrite=overwrite)
    require_range(model, "faiss", "fit data in other units, or export to .onnx with dtype='float64'")
    require_memory(model, memory, 6 * 4)
    k, d = model.components.shape
    projection = projection_of(model, np.dtype(np.float32), centred=False)
    transform = _transform(faiss, projection)
    del projection
    writer = faiss.VectorIOWriter()
    faiss.write_VectorTransform(transform, writer)
    data = faiss.vector_to_array(writer.data).tobytes()
    del writer
    error = measured_error(model, transform.apply, np.dtype(np.float32))
    write(path, "faiss", data, overwrite=overwrite)
    return Exported(path, "faiss LinearTransform", (d, k), "float32", len(data), error)


def _transform(faiss: ModuleType, projection: Projection) -> LinearTransform:
    """Return the transform y = A x + b."""
    k, d = projection.axes.shape
    transform: LinearTransform = faiss.LinearTransform(d, k, True)
    faiss.copy_array_to_vector(projection.axes.ravel(), transform.A)
    faiss.copy_array_to_vector(projection.offset, transform.b)
    transform.is_trained = True
    return transform
