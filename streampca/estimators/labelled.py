"""Models, scores and rows as xarray objects, with the dimensions and coordinates of the data, and `mode`, counted from 1."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np

from streampca.calendars import times_in_calendar
from streampca.errors import NotAvailableError, ParameterError
from streampca.estimators.inputs import map_fitted, map_rows
from streampca.labels import Dimension, Labels, Variable
from streampca.models.certificates import ApproximateCertificate
from streampca.models.pca import Model, PCAModel
from streampca.models.rows import Given, rows_from_scores, with_fitted
from streampca.sources import Source
from streampca.sources.dask import as_declared
from streampca.sources.frames import dimension_of, is_xarray
from streampca.sources.named_arrays import ArrayColumns
from streampca.sources.objects import XarrayArrays
from streampca.system.optional import is_installed, optional_module
from streampca.typing import Array, Json
from streampca.version import __version__

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr

MODE = "mode"
"""Name of the dimension of components."""
PAIR = "pair"
"""Name of the dimension of pairs of components of two tables that lie side by side."""


def is_labelled(X: object) -> bool:
    """Return whether scores of `X` are a DataArray: for objects of xarray, and tables with names, where xarray is installed."""
    if is_xarray(X):
        return True
    return isinstance(X, Source) and X.labels is not None and X.labels.named and is_installed("xarray")


def is_data_array(X: object) -> TypeGuard[xr.DataArray]:
    """Return whether `X` is a DataArray."""
    return is_xarray(X) and not hasattr(X, "data_vars")


def scores_array(X: object, labels: Labels, scores: Array | da.Array) -> xr.DataArray:
    """Return the scores of `X`, ``(n_samples, k)``, as a DataArray with the dimensions and coordinates of its samples."""
    dims, sizes = [d.name for d in labels.samples], [d.size for d in labels.samples]
    if MODE in dims:
        raise ParameterError(f"scores add the dimension {MODE!r}, which the samples already have: rename theirs")
    k = scores.shape[1]
    values = scores if len(sizes) == 1 else scores.reshape(*sizes, k)
    array: xr.DataArray = _xarray().DataArray(values, dims=[*dims, MODE], name="scores")
    if is_xarray(X):
        array = array.assign_coords(_coordinates_along(cast("xr.Dataset", X), dims))
    else:
        array = array.assign_coords(_coordinates(labels.samples))
    return array.assign_coords({MODE: np.arange(1, k + 1)})


def _coordinates_along(X: xr.Dataset | xr.DataArray, dims: Sequence[str]) -> Any:
    """Return the coordinates of an object of xarray that have a value for each place of `dims`, or for all together."""
    others = [dim for dim in X.dims if str(dim) not in dims]
    coordinates = X.isel(dict.fromkeys(others, 0), drop=True).coords
    # Coordinates along other dimensions, too, are left with their values at the first place.
    mixed = [name for name in coordinates if set(X.coords[name].dims) & set(others)]
    return coordinates.to_dataset().drop_vars(mixed).coords


def rows_of_scores(model: Model, X: xr.DataArray, remove: Given | None = None) -> xr.DataArray | xr.Dataset:
    """Return the rows that have the scores `X`, whose last dimension is that of the components: a Dataset of several variables.

    What the model removes is added, for the coordinates of `X` or what `remove` tells.
    """
    k, d = model.n_components, model.n_features
    X = of_all_modes(X, k)
    if X.ndim < 2 or X.shape[-1] != k:
        raise ParameterError(f"scores of shape {X.shape}: expected the dimension {MODE!r} of size {k}")
    sizes = X.shape[:-1]
    along = [dimension_of(X, dim, size) for dim, size in zip(X.dims[:-1], sizes, strict=True)]
    samples = Labels(tuple(along), (), ())
    columns = ArrayColumns(XarrayArrays(X), samples.samples)
    rows: Any
    if X.chunks is not None:
        lazy = as_declared(X.data).rechunk({X.ndim - 1: -1}).reshape(math.prod(sizes), k)
        rows = map_rows(partial(rows_from_scores, model), lazy, d, model.score_dtype(X.dtype))
        rows = map_fitted(rows, model, remove, samples, columns)
    else:
        rows = rows_from_scores(model, np.asarray(X.values).reshape(-1, k))
        rows = with_fitted(rows, model, remove, samples, columns)
    labels, dims = _labels_of(model), X.dims[:-1]
    coords = _coordinates_along(X, [str(dim) for dim in dims])
    arrays = [
        _field(part.reshape(*sizes, *variable.shape), dims, labels, variable).assign_coords(coords)
        for part, variable in zip(_spread(labels, rows), labels.variables, strict=True)
    ]
    if len(arrays) == 1:
        return arrays[0]
    names = [variable.name for variable in labels.variables]
    distinct = names if None not in names and len({*names}) == len(names) else _names_of(labels)
    dataset: xr.Dataset = _xarray().Dataset(dict(zip(distinct, arrays, strict=True)))
    return dataset


def of_all_modes(X: xr.DataArray, k: int) -> xr.DataArray:
    """Return scores along all modes 1 to k in this order, the last dimension: 0 for those that `X`, by its coordinate, does not have."""
    if MODE in X.coords:
        X = X if MODE in X.dims else X.expand_dims(MODE)
        modes, all_modes = np.atleast_1d(X.coords[MODE].values), np.arange(1, k + 1)
        if len(set(modes.tolist())) < len(modes) or not np.isin(modes, all_modes).all():
            raise ParameterError(f"scores of the modes {modes.tolist()[:12]}: expected different modes from 1 to {k}")
        X = X if np.array_equal(modes, all_modes) else X.reindex({MODE: all_modes}, fill_value=0)
    return X.transpose(..., MODE) if MODE in X.dims else X


def dataset_of(model: Model) -> xr.Dataset:
    """Return a model as a Dataset that can be written with ``to_zarr`` and ``to_netcdf``."""
    xarray, labels, k = _xarray(), _labels_of(model), model.n_components
    if any(dimension.name == MODE for dimension in labels.features):
        raise ParameterError(
            f"to_xarray: components add the dimension {MODE!r}, which the features already have: rename theirs before the fit"
        )
    if model.on_disk:
        raise NotAvailableError(
            "to_xarray: the components do not fit in memory and stay on disk: save the model, and open it with xarray.open_zarr"
        )
    variables: dict[str, Any] = {}
    names = _names_of(labels)
    for key, values in model.by_feature.items():
        dims = (MODE,) if values.ndim == 2 else ()
        for part, variable, name in zip(labels.spread(values), labels.variables, names, strict=True):
            array = _field(part, dims, labels, variable)
            if key in ("components", "score_weights", "feature_weight"):
                array.attrs = {}
            variables[f"{key}_{name}" if len(names) > 1 else key] = array.rename(None)
    # Singular values and correlations of two tables side by side belong to two modes each: i and k + i of 2 k.
    per_mode = {name: ((MODE,) if len(each) == k else (PAIR,), each) for name, each in _per_mode(model).items()}
    variables |= per_mode
    variables |= {name: ((MODE, f"other_{MODE}"), values) for name, values in model.correlations.items()}
    dataset: xr.Dataset = xarray.Dataset(variables, coords={MODE: np.arange(1, k + 1)}, attrs=_attributes(model))
    return dataset


def labelled_maps(model: PCAModel, labels: Labels) -> xr.DataArray | xr.Dataset:
    """Return the maps of a model whose features have `labels`, ``(mode, …)``, in the units of its variables: a Dataset of several."""
    modes = np.arange(1, model.n_components + 1)
    if any(dimension.name == MODE for dimension in labels.features):
        raise ParameterError(
            f"maps add the dimension {MODE!r}, which the features already have: rename theirs before the fit"
        )
    arrays = {
        name: _field(part, (MODE,), labels, variable).assign_coords({MODE: modes})
        for part, variable, name in zip(labels.spread(model.maps()), labels.variables, _names_of(labels), strict=True)
    }
    return next(iter(arrays.values())) if len(arrays) == 1 else _xarray().Dataset(arrays)


def _per_mode(model: Model) -> dict[str, Array]:
    """Return the values of each component: variances and their errors."""
    values: dict[str, Array] = dict(model.by_component)
    certificate = model.certificate
    if certificate.kind != "none" and "component_errors" in certificate:
        values["component_errors"] = np.array(certificate["component_errors"], dtype=np.float64)  # NaN for None
    if isinstance(certificate, ApproximateCertificate) and certificate.eigenvalue_intervals is not None:
        ends = np.array(certificate.eigenvalue_intervals)
        values |= {"explained_variance_lower": ends[:, 0], "explained_variance_upper": ends[:, 1]}
        values["angle_bounds"] = np.array(certificate.angle_bounds, dtype=np.float64)
    return values


def _attributes(model: Model) -> Json:
    """Return what is known of a model as numbers and texts, which every file format holds."""
    named: Json = {
        "n_samples": model.n_samples,
        "center": int(model.center),
        "source": str(model.source.get("path", "")),
        "certificate": model.statement,
        "written_by": f"streampca {__version__}",
    }
    if model.source.get("normalize") is not None:
        named["normalize"] = json.dumps(model.source["normalize"])
    if model.removal is not None:
        basis = model.removal.basis
        groups = [] if basis.labels is None else [f"groups {basis.groups or ''}".strip() + f" ({basis.n_groups})"]
        trend = [f"trend {basis.degree}"] if basis.degree else []
        covariates = [] if basis.centres is None else [f"covariates ({len(basis.centres)})"]
        named["remove"] = ", ".join([*groups, *trend, *covariates])
    return named | model.attributes


def _labels_of(model: Model) -> Labels:
    """Return the labels of the features of a model, along the dimension ``feature`` where the data had no names."""
    d = model.n_features
    return model.labels or Labels((), (Dimension("feature", d),), (Variable(None, ("feature",), (d,)),))


def _names_of(labels: Labels) -> list[str]:
    """Return a different name for every variable, with which names of a Dataset can end."""
    names = [str(variable.name or index).rpartition("/")[2] for index, variable in enumerate(labels.variables)]
    return names if len(set(names)) == len(names) else [f"{name}_{index}" for index, name in enumerate(names)]


def _field(values: Any, dims: Sequence[Any], labels: Labels, variable: Variable) -> xr.DataArray:
    """Return values ``(*dims, *features)`` with the names and coordinates of the features of one variable."""
    features = [labels.dimension(name) for name in variable.dims]
    array: xr.DataArray = _xarray().DataArray(
        values, dims=[*dims, *variable.dims], name=variable.name, attrs=dict(variable.attributes)
    )
    return array.assign_coords(_coordinates(features))


def _coordinates(dimensions: Sequence[Dimension]) -> dict[str, Any]:
    """Return the coordinates of dimensions as xarray takes them, which itself writes the units and calendar of times."""
    known: dict[str, Any] = {}
    for d in dimensions:
        if d.coordinate is not None:
            times = times_in_calendar(d.coordinate, d.attributes)
            own = ("units", "calendar") if d.coordinate.dtype.kind in "mM" or times is not None else ()
            values = d.coordinate if times is None else times
            known[d.name] = (d.name, values, {k: v for k, v in d.attributes.items() if k not in own})
    return known


def _spread(labels: Labels, rows: Any) -> list[Any]:
    """Return rows, ``(n, n_features)``, numpy or Dask, as the places of each variable, ``(n, size)``, NaN where masked."""
    if isinstance(rows, np.ndarray):
        return [part.reshape(len(rows), -1) for part in labels.spread(rows)]
    parts = []
    for variable, columns, mask in labels.places():
        part = rows[:, columns]
        if mask is not None:
            part = map_rows(_Unmask(mask), part.rechunk({1: -1}), variable.size, rows.dtype)
        parts.append(part)
    return parts


class _Unmask:
    """Puts the mask features of rows at their places among all, with NaN at the others."""

    def __init__(self, mask: Array):
        self.mask = mask

    def __call__(self, rows: Array, start: int) -> Array:
        whole = np.full((len(rows), len(self.mask)), np.nan, dtype=rows.dtype)
        whole[:, self.mask] = rows
        return whole


def _xarray() -> ModuleType:
    """Return xarray; `NotAvailableError` if it is not installed."""
    return optional_module("xarray", "a DataArray or a Dataset", "xarray")
