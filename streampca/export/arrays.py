"""Models as files of arrays: numpy's ``.npz`` and NetCDF."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import NotAvailableError
from streampca.export.formats import Exported, inverse_factors, require_expressible, require_free, require_memory, write
from streampca.formatting import one_line, plain_cell
from streampca.models.pca import Model
from streampca.models.stored import StoredComponents, slabs_of
from streampca.typing import FloatArray

if TYPE_CHECKING:
    import xarray as xr


def write_npz(
    model: Model,
    path: Path,
    *,
    names: list[str] | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write the arrays of `model` to a file of numpy; ``docs/how-to/export.md`` has its keys."""
    model = require_expressible(model, "npz")
    require_free(path, "npz", overwrite=overwrite)
    require_memory(model, memory, 16, names)
    settings = ("total_variance", "n_samples", "ddof", "center", "whiten", "missing", "missing_scores", "mean")
    arrays: dict[str, Any] = {name: np.asarray(getattr(model, name)) for name in settings} | model.by_component
    arrays["factors"] = np.ones(len(model.mean)) if model.weights is None else model.weights
    arrays["inverse_factors"] = inverse_factors(model)
    k, d = model.components.shape
    if model.has_spectrum:
        stored = model.components
        arrays["components"] = stored.in_memory() if isinstance(stored, StoredComponents) else stored
        arrays["deviations"] = model.deviations if model.whiten else np.ones(k)
        arrays["noise_variance"] = np.asarray(model.noise_variance)
    else:
        for name, slabs in (("encoder", model.encoder()), ("decoder", model.decoder())):
            arrays[name] = np.hstack([slab for _, slab in slabs])
    for name in ("uniquenesses", "scale", "feature_weight", "fill"):
        if getattr(model, name) is not None:
            arrays[name] = getattr(model, name)
    if names is not None:
        arrays["feature_names"] = np.array(names, dtype=np.str_)
    file = io.BytesIO()
    np.savez(file, **arrays)
    write(path, "npz", file.getbuffer(), overwrite=overwrite)
    return Exported(path, "numpy arrays", (d, k), "float64", file.getbuffer().nbytes, None)


def write_loadings(
    model: Model,
    path: Path,
    prefix: str,
    *,
    names: Sequence[str] | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write the loadings of `model` as a table with a line for each feature.

    Its header is ``feature,pca0,…``, with the names of the scores, which begin with `prefix`. Numbers have all their digits.
    """
    model = require_expressible(model, "CSV")
    require_free(path, "CSV", overwrite=overwrite)
    require_memory(model, memory, 64, names)
    k, d = model.components.shape
    names = [str(index) for index in range(d)] if names is None else names
    slabs: Iterator[tuple[slice, FloatArray]]
    if isinstance(model.components, StoredComponents):
        deviations = np.sqrt(model.explained_variance)[:, None]
        slabs = ((features, slab * deviations) for features, slab in model.components.slabs())
    else:
        slabs = slabs_of(model.loadings())
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["feature", *model.score_names(prefix)])
    for features, slab in slabs:
        table.writerows([plain_cell(name), *row] for name, row in zip(names[features], slab.T.tolist(), strict=True))
    data = text.getvalue().encode()
    write(path, "CSV", data, overwrite=overwrite)
    return Exported(path, "table of loadings", (d, k), "float64", len(data), None)


def write_netcdf(dataset: xr.Dataset, path: Path, shape: tuple[int, int], *, overwrite: bool = False) -> Exported:
    """Write a model as a Dataset to a NetCDF file, format 3 with offsets of 64 bits, which scipy writes.

    Raises
    ------
    NotAvailableError
        If the format cannot hold a name, an attribute or a number of it.
    """
    require_free(path, "NetCDF", overwrite=overwrite)
    try:
        data = dataset.to_netcdf(engine="scipy", format="NETCDF3_64BIT")
    except (ValueError, TypeError, OverflowError) as error:
        raise NotAvailableError(
            f"NetCDF cannot express this model: {one_line(error)}; write pca.to_xarray() with to_zarr, or save the model"
        ) from error
    write(path, "NetCDF", memoryview(data), overwrite=overwrite)
    return Exported(path, "NetCDF 3, Dataset of pca.to_xarray()", shape, "float64", len(data), None)
