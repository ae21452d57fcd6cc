"""New data opened as the data of a fit were: by their dimensions, variables and mask."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import NotAvailableError
from streampca.labels import Labels, note_on_strands
from streampca.sources.base import Source
from streampca.sources.cells.objects import is_anndata
from streampca.sources.coordinates import is_xarray
from streampca.sources.files.paths import cells_paths, files_of, is_paths
from streampca.sources.genotypes import counting_others
from streampca.sources.lagged import labels_of_samples
from streampca.sources.open import open_source
from streampca.sources.options import ReadOptions
from streampca.sources.subsets import with_features
from streampca.sources.table import TableSource
from streampca.typing import Json

_TOGETHER = ({"array", "variables"}, {"samples", "features", "orientation"}, {"mask", "mask_var"})
"""Names of keywords of which each replaces all."""


def open_like(data: object, labels: Labels | None, described: Json, given: Mapping[str, Any] | None = None) -> Source:
    """Open the data at a path, or an object of AnnData or xarray, as those of a fit were opened, where `given` does not say otherwise.

    Parameters
    ----------
    data : str, Path, list of these, AnnData, DataArray or Dataset
        Path, pattern, URL or object. One of xarray is read by the dimensions and variables of the fit as far as it has their names.
    labels : Labels or None
        Labels of the fit. With their mask, features are those of the fit, whatever is observed in the new data.
    described : dict
        Description of the source of the fit, see `Source.describe`.
    given : dict, optional
        Keywords of `open_source`. Names of arrays replace those of the fit, and names of dimensions all that the fit says of them.
    """
    keywords = dict(given or {})
    names = set(keywords)
    replaced = names | set().union(*(together for together in _TOGETHER if names & together))
    data = str(data) if isinstance(data, str | Path) else data
    if labels is not None and described.get("lags"):
        labels = labels_of_samples(labels)
    of_fit = {
        "missing_value": described.get("missing_value"),
        "lags": described.get("lags"),
        **_of_fit(data, labels, described),
    }
    known = {name: value for name, value in of_fit.items() if name not in replaced}
    return open_source(data, **{**known, **keywords})


def counting_as(source: Source, labels: Labels | None, described: Json) -> Source:
    """Return genotypes with the alleles counted that the fit counted, whose labels these are; other tables as they are.

    Warns how many variants were exchanged, how many have alleles that do not tell the strand (unless the source is that of the
    fit, see `described`, its description), and where alleles could not be compared, as with models that have none.

    Raises
    ------
    NotAvailableError
        If alleles are exchanged and the rows are not those of one array of genotypes, such as rows with lags.
    """
    known = source.labels
    alleles = None if known is None or len(known.features) != 1 else known.features[0].alleles
    if known is None or labels is None or alleles is None or len(labels.features) != 1:
        return source
    if labels.features[0].alleles is None:
        warnings.warn(
            f"{source.description}: its alleles were not compared with those of the fit, since the model has none: fit again to save them",
            UserWarning,
            stacklevel=2,
        )
        return source
    counted, exchanged = known.counting_as(labels)
    if labels.difference(counted) is not None:  # which is raised where features are compared
        return source
    unclear = labels.palindromic_with(known)
    if exchanged is None:
        if unclear and source.fingerprint != described.get("fingerprint"):
            warnings.warn(f"{source.description}: {note_on_strands(unclear)}", UserWarning, stacklevel=2)
        return source
    if not isinstance(source, TableSource) or len(source.parts) != 1:
        raise NotAvailableError(
            f"{source.description}: {int(exchanged.sum()):,} variants have the alleles of the fit exchanged: only genotypes of a .bed file or "
            "of VCF Zarr by themselves can be counted as in the fit; exchange them first"
        )
    warnings.warn(
        f"{source.description}: {int(exchanged.sum()):,} variants have the alleles of the fit exchanged, and are counted as in the fit"
        + (f"; {note_on_strands(unclear)}" if unclear else ""),
        UserWarning,
        stacklevel=2,
    )
    table = TableSource([counting_others(source.parts[0], exchanged)], counted, source.description)
    table.feature_shape, table.feature_names = source.feature_shape, source.feature_names
    table.sample_columns = source.sample_columns
    return table


def with_features_of(source: Source, labels: Labels | None) -> Source:
    """Return `source` with the features that a fit with a mask used, if it was opened with these and others."""
    known = source.labels
    if labels is None or labels.mask is None or source.sparse:
        return source
    if known is None:
        return with_features(source, labels.mask) if source.shape[1] == len(labels.mask) else source
    if [variable.shape for variable in known.variables] != [variable.shape for variable in labels.variables]:
        return source
    used = np.isin(known.indices(), labels.indices())
    return source if used.all() or used.sum() < labels.n_features else with_features(source, used)


def _of_fit(data: object, labels: Labels | None, described: Json) -> dict[str, Any]:
    """Return the options with which the data of a fit were opened, as far as `data` can have them."""
    path = str(data) if isinstance(data, str | Path) else ""
    mask = {} if labels is None or labels.mask is None else {"mask": labels.mask}
    if labels is not None and "normalize" in described and _is_anndata(data):
        return {"layer": described.get("layer"), "normalize": described["normalize"], **mask}
    if labels is None or path.startswith("builtin:"):
        return {}
    first, several = labels.variables[0], len(labels.variables) > 1
    samples = [dimension.name for dimension in labels.samples]
    if is_xarray(data):
        known: dict[str, Any] = dict(mask)
        dims, of_fit = set(map(str, data.dims)), {*samples, *(dimension.name for dimension in labels.features)}
        if dims >= of_fit:
            known["samples"] = samples
            dosages = "ploidy" in dims - of_fit
            if first.dims and not dosages and all(variable.dims == first.dims for variable in labels.variables):
                known["features"] = list(first.dims)
        variables = [variable.name for variable in labels.variables]
        if hasattr(data, "data_vars") and all(name in data.data_vars for name in variables):
            known["variables"] = [str(name) for name in variables]
        return known
    if not is_paths(data):
        return {}
    flat = len(samples) + len(first.dims) <= 2
    if path.endswith(".npy"):
        return {} if flat else {"samples": samples, "features": list(first.dims)}
    files = files_of(path or data)
    if files is not None and not files.has_arrays:
        names = ("columns", "id_column") if files.has_columns and isinstance(described.get("columns"), list) else ()
        return {name: described.get(name) for name in names} | mask
    named = first.name if files is None else described.get("array")
    if files is not None and not (several or named):
        return mask
    known = dict(mask)
    if several:
        known["variables"] = [str(variable.name) for variable in labels.variables]
    elif named is not None and (files is not None or _is_group(path)):
        known["array"] = named
    dosages = described.get("genotypes") == "dosage"
    if several or dosages or not flat:
        known["samples"] = samples
        if first.dims and not dosages and all(variable.dims == first.dims for variable in labels.variables):
            known["features"] = list(first.dims)
    elif described.get("orientation") == "features_first":
        known["orientation"] = "features_first"
    stored = described["variables"] if several and isinstance(described.get("variables"), list) else [described]
    if any(array.get("packing") and not array.get("decoded") for array in stored):
        known["decode"] = "raw"
    return known


def _is_anndata(data: object) -> bool:
    """Return whether `data` is an AnnData object, or the path of one that is stored, or paths of several."""
    if is_paths(data) and cells_paths(data) is not None:
        return True
    if not isinstance(data, str):
        return is_anndata(data)
    if data.endswith((".h5ad", ".npy")) or data.startswith("builtin:"):
        return data.endswith(".h5ad")
    import zarr

    from streampca.sources.cells.stored import is_anndata_group
    from streampca.sources.zarr.group import node_at

    node = node_at(data, ReadOptions())[0]
    return isinstance(node, zarr.Group) and is_anndata_group(node)


def _is_group(path: str) -> bool:
    """Return whether there is a zarr group at `path`."""
    import zarr

    from streampca.sources.zarr.group import node_at

    return isinstance(node_at(path, ReadOptions())[0], zarr.Group)
