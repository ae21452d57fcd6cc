"""New data opened as the data of a fit were: by their dimensions, variables and mask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from streampca.labels import Labels
from streampca.sources.base import Source
from streampca.sources.files.paths import Paths, files_of
from streampca.sources.open import open_source
from streampca.sources.options import SourceKeywords
from streampca.typing import Json

if TYPE_CHECKING:
    import xarray as xr

_WHAT, _AXES = {"array", "variables"}, {"samples", "features", "orientation"}


def open_like(path: Paths, labels: Labels | None, described: Json, given: SourceKeywords | None = None) -> Source:
    """Open the data at `path` as those of a fit were opened, where `given` does not say otherwise.

    Parameters
    ----------
    path : str, Path or list of these
        Path, pattern or URL.
    labels : Labels or None
        Labels of the fit. With their mask, features are those of the fit, whatever is observed in the new data.
    described : dict
        Description of the source of the fit, see `Source.describe`.
    given : dict, optional
        Keywords of `open_source`. Names of arrays replace those of the fit, and names of dimensions all that the fit says of them.
    """
    keywords: SourceKeywords = given or {}
    names = set(keywords)
    replaced = names | (_WHAT if names & _WHAT else set()) | (_AXES if names & _AXES else set())
    known = {name: value for name, value in _of_fit(path, labels, described).items() if name not in replaced}
    return open_source(path, **cast(SourceKeywords, {**known, **keywords}))


def open_xarray_like(data: xr.DataArray | xr.Dataset, labels: Labels | None) -> Source:
    """Open an object of xarray with the dimensions, variables and mask of the labels of a fit, as far as it has their names."""
    keywords: SourceKeywords = {}
    if labels is None:
        return open_source(data)
    samples, features = ([d.name for d in side] for side in (labels.samples, labels.features))
    dims, same = set(map(str, data.dims)), all(v.dims == labels.variables[0].dims for v in labels.variables)
    if dims.issuperset(samples) and dims.issuperset(features):
        keywords["samples"] = samples
        if same and labels.variables[0].dims:
            keywords["features"] = list(labels.variables[0].dims)
    if labels.mask is not None:
        keywords["mask"] = labels.mask
    names = [variable.name for variable in labels.variables]
    if hasattr(data, "data_vars") and all(name in data.data_vars for name in names):
        keywords["variables"] = [str(name) for name in names]
    return open_source(data, **keywords)


def _of_fit(paths: Paths, labels: Labels | None, described: Json) -> SourceKeywords:
    """Return the keywords with which the data of a fit were opened, as far as data at `paths` can have them."""
    path = str(paths) if isinstance(paths, str | Path) else ""
    if labels is None or path.startswith("builtin:") or path.endswith(".npy"):
        return {}
    files = files_of(path or paths)
    if files is not None:
        return _of_files(files.kind, labels, described)
    first, several = labels.variables[0], len(labels.variables) > 1
    keywords: SourceKeywords = {}
    if several:
        keywords["variables"] = [str(variable.name) for variable in labels.variables]
    elif first.name is not None and _is_group(path):
        keywords["array"] = first.name
    if labels.mask is not None:
        keywords["mask"] = labels.mask
    if several or len(labels.samples) + len(first.dims) > 2:
        keywords["samples"] = [dimension.name for dimension in labels.samples]
        if first.dims and all(variable.dims == first.dims for variable in labels.variables):
            keywords["features"] = list(first.dims)
    elif described.get("orientation") == "features_first":
        keywords["orientation"] = "features_first"
    stored = described["variables"] if several and isinstance(described.get("variables"), list) else [described]
    if any(_was_raw(array) for array in stored):
        keywords["decode"] = "raw"
    return keywords


def _of_files(kind: str, labels: Labels, described: Json) -> SourceKeywords:
    """Return the keywords for files of rows: columns by their names, the mask, and the dataset and its dimensions."""
    keywords: SourceKeywords = {} if labels.mask is None else {"mask": labels.mask}
    if kind == "parquet" and isinstance(described.get("columns"), list):
        keywords["columns"] = list(described["columns"])
        keywords["id_column"] = described.get("id_column")
    if kind == "hdf5" and described.get("array"):
        keywords["array"] = str(described["array"])
        if len(labels.samples) + len(labels.variables[0].dims) > 2:
            keywords["samples"] = [dimension.name for dimension in labels.samples]
            keywords["features"] = list(labels.variables[0].dims)
        elif described.get("orientation") == "features_first":
            keywords["orientation"] = "features_first"
        if _was_raw(described):
            keywords["decode"] = "raw"
    return keywords


def _was_raw(array: Mapping[str, object]) -> bool:
    """Return whether packed values of an array were read as they are stored."""
    return bool(array.get("packing")) and not array.get("decoded")


def _is_group(path: str) -> bool:
    """Return whether there is a zarr group at `path`."""
    import zarr

    from streampca.sources.zarr.opening import node_at

    return isinstance(node_at(path)[0], zarr.Group)
