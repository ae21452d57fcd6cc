"""Alignment by the labels of a table: values given beside it are put in its order, and errors name its rows and features.

Values with labels (a Series or DataFrame of pandas, a DataArray) are put in the order of the labels of the table, whatever their own;
if the two have not the same labels, they are refused, never taken by position. Values without labels are in the order of the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from streampca.calendars import microseconds_of
from streampca.errors import DataError, ParameterError
from streampca.labels import Dimension, Labels, equal_values
from streampca.sources.base import Chosen, Source
from streampca.sources.frames import (
    dimension_of,
    dimension_of_index,
    is_default,
    is_frame,
    is_indexed,
    is_xarray,
    wrapped,
)
from streampca.typing import Array, IntArray

if TYPE_CHECKING:
    import xarray as xr


_MOST_SHOWN = 3
P = ParamSpec("P")
R = TypeVar("R")
_PLACE = re.compile(r"\b(row|column|feature) (\d+)\b(?! \[)")


def is_placed(values: object) -> bool:
    """Return whether places of `values` have a meaning that only a table tells: they have labels, or several dimensions."""
    return is_indexed(values) or is_xarray(values) or is_frame(values) or getattr(values, "ndim", 1) > 1


def of_rows(what: str, values: Any, labels: Labels | None) -> Any:
    """Return values of rows, ``(n_samples, …)``, in the order of the rows of a table with these labels.

    Parameters
    ----------
    what : str
        What messages call them.
    values : object
        Along the dimensions of the samples, or one dimension for all rows; others follow. Of a DataArray, dimensions of the samples
        are found by name, and it is repeated along those that it does not have.
    labels : Labels or None
        Labels of the table; None where it has none.

    Raises
    ------
    ParameterError
        If labels are not those of the rows.
    """
    dims = () if labels is None else labels.samples
    if _has_dims(values, dims):
        return _field(what, values, dims, "rows")
    if len(dims) > 1 and isinstance(values, np.ndarray) and values.shape == tuple(dim.size for dim in dims):
        return values.ravel()
    known = dims[0] if len(dims) == 1 else None
    return _along(what, values, known, "rows")


def of_chosen(what: str, values: Any, chosen: Chosen | None) -> Any:
    """Return values along a table, see `of_rows`, at those of its rows that are `chosen`; values of these alone, and names, as they are."""
    if chosen is None or values is None or isinstance(values, str | int | float):
        return values
    values = values if hasattr(values, "shape") else np.asarray(values)
    dims = () if chosen.labels is None else chosen.labels.samples
    sizes, by_name = tuple(dim.size for dim in dims), _has_dims(values, dims)
    if by_name and len(dims) == 1 and values.sizes[dims[0].name] == len(chosen.rows):
        return values
    if by_name or values.shape[: len(sizes)] == sizes or values.shape[:1] == (chosen.n_rows,):
        values = of_rows(what, values, chosen.labels)
    return chosen.of(values)


def column_names(values: Any, labels: Labels | None) -> tuple[str, ...] | None:
    """Return the names of the columns of values of rows, see `of_rows`; None where they have none."""
    place, nameless = _columns(values, labels)
    return None if place is None or nameless else tuple(np.asarray(place.coordinate).astype(str).tolist())


def column_order(what: str, values: Any, labels: Labels | None, names: Sequence[str] | None) -> IntArray | None:
    """Return which columns of values of rows have the names of the columns of the fit, in their order; None for all in their own.

    Raises
    ------
    ParameterError
        If columns have other names, or have names and those of the fit had none.
    """
    place, nameless = _columns(values, labels)
    known = None if names is None else Dimension("columns", len(names), np.array(names))
    return None if place is None else _order(what, place, nameless, known, "columns of the fit", ".to_numpy()")


def _columns(values: Any, labels: Labels | None) -> tuple[Dimension | None, bool]:
    """Return the columns of values of rows, None for one dimension, and whether they are without names."""
    if is_xarray(values):
        rows = set() if labels is None else {dim.name for dim in labels.samples}
        dims = [dim for dim in values.dims if str(dim) not in rows]
        dims = dims if len(dims) < len(values.dims) else dims[1:]
        if len(dims) != 1:
            return None, True
        place = dimension_of(cast("xr.DataArray", values), dims[0], int(values.sizes[dims[0]]))
        return place, place.coordinate is None
    if is_indexed(values) and values.ndim == 2:
        return dimension_of_index(values.columns), is_default(values.columns)
    if is_frame(values):
        names = list(wrapped(values).collect_schema())
        return Dimension("columns", len(names), np.array(names, dtype=str)), False
    return None, True


def of_features(what: str, values: Any, labels: Labels | None, others: float = 1) -> Any:
    """Return values of features, ``(n_features,)``, in the order of the features of a table with these labels.

    Parameters
    ----------
    what, values, labels
        As in `of_rows`. An array of the shape of a variable, and a DataArray with some of its dimensions, are for all variables that
        have these; the index of a Series has the names of the features.
    others : float
        Value of the features of other variables.

    Raises
    ------
    ParameterError
        If labels are not those of the features.
    """
    if labels is None:
        return _along(what, values, None, "features")
    shape = np.shape(values)
    parts, n_found = [], 0
    for variable in labels.variables:
        dims = [labels.dimension(name) for name in variable.dims]
        part = np.full(variable.size, others)
        if _has_dims(values, dims) and len(shape) == sum(str(dim) in variable.dims for dim in values.dims):
            part, n_found = _field(what, values, dims, "features"), n_found + 1
        elif len(shape) > 1 and shape == variable.shape and not is_indexed(values) and not is_xarray(values):
            part, n_found = np.asarray(values).ravel(), n_found + 1
        parts.append(part)
    if n_found:
        whole = np.concatenate(parts)
        return whole if labels.mask is None else whole[labels.mask]
    if len(shape) > 1:
        raise ParameterError(
            f"{what} has {_described(values)}: expected {_expected(labels)}, or one value for each of the {labels.n_features} features"
        )
    names = labels.known_names() if is_indexed(values) or is_xarray(values) else None
    known = None if names is None else Dimension("features", len(names), np.array(names))
    if (
        names is not None and len(labels.variables) == len(labels.features) == 1
    ):  # numbers and times are compared as such
        only = labels.features[0].coordinate
        known = Dimension("features", len(names), None if only is None else only[labels.indices()])
    return _along(what, values, known, "features")


def _described(values: Any) -> str:
    if is_xarray(values):
        return f"the dims ({', '.join(map(str, values.dims))}) and shape {values.shape}"
    return f"shape {np.shape(values)}"


def _expected(labels: Labels) -> str:
    return " or ".join(
        f"{v.shape} [{', '.join(v.dims)}]" + (f" for {v.name}" if v.name else "") for v in labels.variables[:3]
    )


def _has_dims(values: Any, dims: Sequence[Dimension]) -> bool:
    """Return whether a DataArray has one of the dimensions."""
    return is_xarray(values) and not {d.name for d in dims}.isdisjoint(map(str, values.dims))


def _field(what: str, values: Any, dims: Sequence[Dimension], of: str) -> Array:
    """Return a DataArray in the order of `dims`, ``(product of their sizes, …)``, repeated along those that it does not have."""
    names = [str(dim) for dim in values.dims]
    for known in dims:
        if known.name in names:
            dim = values.dims[names.index(known.name)]
            place = dimension_of(values, dim, int(values.sizes[dim]))
            if place.size != known.size:
                raise ParameterError(
                    f"{what} has {place.size:,} places along {known.name}: expected {known.size:,} as the data"
                )
            if place.coordinate is not None and known.coordinate is not None:
                order = _places(what, place, known, f"the coordinate {known.name} of the {of}")
                values = values if order is None else values.isel({dim: order})
    own = [known.name for known in dims if known.name in names]
    rest = [name for name in names if name not in own]
    array = np.asarray(values.values).transpose([names.index(name) for name in (*own, *rest)])
    further = array.shape[len(own) :]
    sizes = [known.size for known in dims]
    array = array.reshape([n if known.name in own else 1 for n, known in zip(sizes, dims, strict=True)] + list(further))
    return np.broadcast_to(array, (*sizes, *further)).reshape(math.prod(sizes), *further)


def _along(what: str, values: Any, known: Dimension | None, of: str) -> Any:
    """Return values along one dimension, the first of theirs, in the order of `known`; None is that of a table without labels."""
    if is_indexed(values):
        place, nameless = dimension_of_index(values.index), is_default(values.index)
    elif is_xarray(values) and values.dims:
        first: Any = next(iter(values.dims))
        place = dimension_of(cast("xr.DataArray", values), first, int(values.sizes[first]))
        nameless = place.coordinate is None
    else:
        return values
    order = _order(what, place, nameless, known, of, ".to_numpy()" if is_indexed(values) else ".values")
    if order is None:
        return values
    return values.iloc[order] if is_indexed(values) else values.isel({next(iter(values.dims)): order})


def _order(
    what: str, place: Dimension, nameless: bool, known: Dimension | None, of: str, plain: str
) -> IntArray | None:
    """Return where the labels of `known` are in `place`, None for values that are taken in their own order."""
    if known is None or known.coordinate is None:
        if nameless:
            return None
        raise ParameterError(
            f"{what} has the labels {_some(place)}, but the {of} have none to match them: give "
            f"{plain} of values in the order of the {of}"
        )
    if place.size != known.size or place.coordinate is None:
        return None  # their number is compared elsewhere
    return _places(what, place, known, f"those of the {of}")


def _places(what: str, place: Dimension, known: Dimension, those: str) -> IntArray | None:
    """Return where the labels of `known` are in `place`, None where both are the same; `ParameterError` if they are others."""
    theirs, wanted = _comparable(place, known)
    if _equal(theirs, wanted):
        return None
    order, own = np.argsort(wanted, kind="stable"), np.argsort(theirs, kind="stable")
    ascending = wanted[order]
    if not _equal(theirs[own], ascending):
        raise ParameterError(
            f"{what} has the labels {_some(place)}, which are not {those}, {_some(known)}: expected a value for each of these, with "
            "the same labels in any order, or an array without labels in their order"
        )
    if bool((ascending[1:] == ascending[:-1]).any()):
        raise ParameterError(
            f"{what} has labels in another order than {those}, and some of them occur twice: expected values in the same order, or "
            "different labels"
        )
    places = np.empty(len(order), dtype=np.int64)
    places[order] = own
    return places


def _some(dimension: Dimension) -> str:
    shown = [dimension.value(index)[:40] for index in range(min(dimension.size, _MOST_SHOWN))]
    return ", ".join(shown) + (", …" if dimension.size > _MOST_SHOWN else "")


def _comparable(one: Dimension, other: Dimension) -> tuple[Array, Array]:
    """Return two coordinates as numbers, times or text, whichever both can be."""
    values = [np.asarray(one.coordinate), np.asarray(other.coordinate)]
    kinds = ["n" if each.dtype.kind in "biuf" else each.dtype.kind for each in values]
    if kinds[0] == kinds[1]:
        return values[0], values[1]
    times = [microseconds_of(each, dimension.attributes) for each, dimension in zip(values, (one, other), strict=True)]
    if times[0] is not None and times[1] is not None:
        return times[0][1].astype("M8[us]"), times[1][1].astype("M8[us]")
    return values[0].astype(str), values[1].astype(str)


def _equal(one: Array, other: Array) -> bool:
    """Return whether two coordinates are equal, floats to six digits and times to a second, as their decoding may differ."""
    if one.dtype.kind == "M" and other.dtype.kind == "M" and not (np.isnat(one) | np.isnat(other)).any():
        return bool((np.abs(one.astype("M8[ms]") - other.astype("M8[ms]")) <= np.timedelta64(1, "s")).all())
    if "f" in one.dtype.kind + other.dtype.kind:
        return bool(np.allclose(one, other, rtol=1e-6, atol=0, equal_nan=True))
    return equal_values(one, other)


@contextmanager
def places_named(source: Source) -> Iterator[None]:
    """Add the names that `source` has for rows and features to the data errors of this block.

    ``row 5, column 7`` becomes ``row 5 [time=1990-06-01], column 7 [sst(lat=10.5, lon=20)]``.
    """
    try:
        yield
    except DataError as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (with_names(error.args[0], source),)
        raise


def naming_places(function: Callable[Concatenate[Source, P], R]) -> Callable[Concatenate[Source, P], R]:
    """Return `function`, whose first argument is a source, with the names of rows and features added to its data errors."""

    @wraps(function)
    def named(source: Source, /, *args: P.args, **options: P.kwargs) -> R:
        with places_named(source):
            return function(source, *args, **options)

    return named


def with_names(message: str, source: Source) -> str:
    """Return a message with the names that `source` has for the numbers of rows, columns and features in it."""

    def name_of(match: re.Match[str]) -> str:
        number = int(match[2])
        name = _row(source, number) if match[1] == "row" else _column(source, number)
        return match[0] if name is None else f"{match[0]} [{name}]"

    return _PLACE.sub(name_of, message)


def with_rows_shifted(message: str, n: int) -> str:
    """Return a message in which the numbers of rows are larger by `n`."""
    return re.sub(r"\b(rows?) (\d+)\b", lambda match: f"{match[1]} {int(match[2]) + n}", message)


def _row(source: Source, number: int) -> str | None:
    if source.labels is None or number >= source.shape[0]:
        return None
    return source.labels.sample_name(number)


def _column(source: Source, number: int) -> str | None:
    if number >= source.shape[1]:
        return None
    if source.labels is not None and (name := source.labels.known_name(number)) is not None:
        return name
    return None if source.feature_names is None else source.feature_names[number]
