"""Models as ONNX graphs from rows to scores, and as linear transforms of faiss."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from streampca.errors import NotAvailableError, ParameterError
from streampca.export.formats import (
    Exported,
    measured_error,
    normalization_of,
    projection_of,
    require_expressible,
    require_free,
    require_memory,
    require_range,
    write,
)
from streampca.formatting import as_text
from streampca.models.pca import Model, PCAModel
from streampca.sources.cells.normalization import LogarithmOfCounts, Normalization, ScaledCounts
from streampca.system.optional import optional_module
from streampca.typing import DType
from streampca.version import __version__

if TYPE_CHECKING:
    from faiss import LinearTransform
    from onnx import ModelProto, NodeProto, TensorProto


OPSET = 17
"""Version of the operators of the graph; onnxruntime has it from 1.12 on."""
_IR_VERSION = 8
"""Version of the file format that belongs to it."""
INPUT, OUTPUT = "X", "scores"
"""Names of the input, ``(n, n_features)``, and the output, ``(n, k)``, for any number of rows n."""
_DTYPES = ("float32", "float64")
_LARGEST_BYTES = 2**31 - 2**20
"""A file of protobuf holds 2 GiB."""


def write_onnx(
    model: Model,
    path: Path,
    *,
    dtype: str = "float32",
    names: list[str] | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write `model` as an ONNX file; see `streampca.PCA.to_onnx`."""
    if dtype not in _DTYPES:
        raise ParameterError(f"dtype={dtype!r}: expected one of {', '.join(_DTYPES)}")
    onnx = optional_module("onnx", "an ONNX model", "export")
    model = require_expressible(model, "ONNX")
    require_free(path, "ONNX", overwrite=overwrite)
    kind = np.dtype(dtype)
    if kind == np.float32:
        require_range(model, "ONNX", "export with dtype='float64'")
    k, d = model.components.shape
    named = None if names is None else json.dumps(names)
    if (n_bytes := kind.itemsize * (k + 2) * d + len(named or "")) > _LARGEST_BYTES:
        raise NotAvailableError(
            f"{k:,} x {d:,} components in {dtype} with the names of features take {as_text(n_bytes)}, and an ONNX file holds 2 GiB"
        )
    require_memory(model, memory, 6 * kind.itemsize, names)
    built = _model(onnx, model, kind, named)
    onnx.checker.check_model(built, full_check=True)
    data = built.SerializeToString()
    del built
    reference = optional_module("onnx.reference", "an ONNX model", "export")
    session = reference.ReferenceEvaluator(onnx.load_model_from_string(data))
    error = measured_error(model, lambda rows: np.asarray(session.run([OUTPUT], {INPUT: rows})[0]), kind)
    write(path, "ONNX", data, overwrite=overwrite)
    return Exported(path, f"ONNX model, opset {OPSET}, input {INPUT}, output {OUTPUT}", (d, k), dtype, len(data), error)


class _Graph:
    """Nodes and constants of a graph with one value after another."""

    def __init__(self, onnx: ModuleType, dtype: DType):
        self.onnx, self.dtype = onnx, dtype
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.value = INPUT

    def constant(self, name: str, values: ArrayLike, dtype: DTypeLike | None = None) -> str:
        """Add a constant and return its name."""
        array = np.ascontiguousarray(np.asarray(values, dtype=dtype or self.dtype))
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, inputs: list[str], output: str, **attributes: int) -> str:
        """Add a node, the output of which is the value from now on."""
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [output], name=output, **attributes))
        self.value = output
        return output


def _model(onnx: ModuleType, model: PCAModel, dtype: DType, names: str | None) -> ModelProto:
    """Return the ONNX model from rows to scores; `names` of features are JSON."""
    graph, normalization = _Graph(onnx, dtype), normalization_of(model)
    if normalization is not None:
        _normalize(graph, normalization)
    if model.fill is not None:
        absent, before = "is_missing", graph.value
        graph.add("IsNaN", [before], absent)
        graph.add("Where", [absent, graph.constant("fill", model.fill), before], "filled")
    axes, centre, offset = projection_of(model, dtype, centred=True)
    graph.add("Sub", [graph.value, graph.constant("mean", centre)], "centred")
    constants = [graph.constant("axes", axes), graph.constant("offset", offset)]
    graph.add("Gemm", [graph.value, *constants], OUTPUT, transB=1)
    helper, (k, d) = onnx.helper, model.components.shape
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    built = helper.make_graph(
        graph.nodes,
        "scores",
        [helper.make_tensor_value_info(INPUT, kind, ["n", d])],
        [helper.make_tensor_value_info(OUTPUT, kind, ["n", k])],
        graph.constants,
    )
    made: ModelProto = helper.make_model(
        built,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="streampca",
        producer_version=__version__,
        doc_string=f"{k} scores of rows of {d} features.",
    )
    described = {"explained_variance": model.explained_variance.tolist()}
    helper.set_model_props(made, {name: json.dumps(value) for name, value in described.items()})
    if names is not None:
        made.metadata_props.add(key="feature_names", value=names)
    return made


def _normalize(graph: _Graph, normalization: Normalization) -> None:
    """Add the normalisation of counts: rows scaled to a sum, unless that of a row is 0, and the logarithm of one more."""
    for step in normalization.asked:
        if isinstance(step, ScaledCounts):
            rows, target = graph.value, graph.constant("target_sum", step.total)
            axis, zero = graph.constant("axis", [1], np.int64), graph.constant("zero", 0)
            graph.add("ReduceSum", [rows, axis], "sums", keepdims=1)
            graph.add("Equal", ["sums", zero], "is_empty")
            graph.add("Where", ["is_empty", target, "sums"], "divisors")
            graph.add("Div", [target, "divisors"], "factors")
            graph.add("Mul", [rows, "factors"], "scaled")
        elif isinstance(step, LogarithmOfCounts):
            graph.add("Add", [graph.value, graph.constant("one", 1)], "one_more")
            graph.add("Log", ["one_more"], "logarithm")


def write_faiss(model: Model, path: Path, *, memory: int | str | None = None, overwrite: bool = False) -> Exported:
    """Write `model` as a ``LinearTransform``; see `streampca.PCA.to_faiss`."""
    faiss = optional_module("faiss", "a transform of faiss", "export")
    model = require_expressible(model, "faiss")
    require_free(path, "faiss", overwrite=overwrite)
    require_range(model, "faiss", "fit data in other units, or export to .onnx with dtype='float64'")
    require_memory(model, memory, 6 * 4)
    k, d = model.components.shape
    axes, _, offset = projection_of(model, np.dtype(np.float32), centred=False)
    transform: LinearTransform = faiss.LinearTransform(d, k, True)  # y = A x + b
    faiss.copy_array_to_vector(axes.ravel(), transform.A)
    faiss.copy_array_to_vector(offset, transform.b)
    transform.is_trained = True
    del axes, offset
    writer = faiss.VectorIOWriter()
    faiss.write_VectorTransform(transform, writer)
    data = faiss.vector_to_array(writer.data).tobytes()
    del writer
    error = measured_error(model, transform.apply, np.dtype(np.float32))
    write(path, "faiss", data, overwrite=overwrite)
    return Exported(path, "faiss LinearTransform", (d, k), "float32", len(data), error)
