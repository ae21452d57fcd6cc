"""Which features of a table each of several models has."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import numpy as np

from streampca.errors import NotAvailableError, ParameterError
from streampca.sources import Source
from streampca.sources.alignment import is_placed, of_features
from streampca.sources.subsets import with_features
from streampca.typing import Array, BoolArray


def subset_of(source: Source, chosen: object, name: str) -> Source:
    """Return `source` with the features that `chosen` names for the model `name`; `source` itself where that is all of them.

    Parameters
    ----------
    source : Source
        The table.
    chosen : str, sequence of str, slice, array of bool or of int
        Names of variables or of features, or their places. The order is that of the table.
    name : str
        Name of the model in messages.

    Raises
    ------
    ParameterError
        If there is no such feature, or none is chosen.
    NotAvailableError
        For sparse rows.
    """
    used = _used(source, chosen, f"features: {name}")
    if not used.any():
        raise ParameterError(f"features: {name} has none of the {source.shape[1]} features: expected some")
    if used.all():
        return source
    if source.sparse:
        raise NotAvailableError(
            f"features: {name}: {source.description} has sparse rows, of which some features are not taken: open them with a mask"
        )
    return with_features(source, used)


def require_known(features: Mapping[str, object], models: Mapping[str, object]) -> None:
    """Raise `ParameterError` if `features` name a model that there is not."""
    for name in features:
        if name not in models:
            raise ParameterError(f"features: there is no model {name!r}: expected some of {', '.join(models)}")


def _used(source: Source, chosen: object, what: str) -> BoolArray:
    """Return which features are chosen, ``(n_features,)``."""
    d = source.shape[1]
    used = np.zeros(d, dtype=bool)
    if isinstance(chosen, slice):
        chosen = _places_of(chosen, d, what)
    if isinstance(chosen, str):
        return _named(source, chosen, what)
    if is_placed(chosen) and str(getattr(chosen, "dtype", "")) == "bool":
        chosen = of_features(what, chosen, source.labels, others=False)
    places = _as_array(chosen, what)
    if places.ndim == 1 and all(isinstance(each, str) for each in places):
        for each in places:
            used |= _named(source, str(each), what)
        return used
    if places.dtype.kind == "b" and places.shape == (d,):
        return places.astype(bool)
    if places.dtype.kind not in "iu" or places.ndim != 1 or len(np.unique(places % d)) < len(places):
        raise ParameterError(
            f"{what} are of shape {places.shape} and type {places.dtype}: expected names, {d} truth values or different places"
        )
    if len(places) and not -d <= int(places.min()) <= int(places.max()) < d:
        raise ParameterError(f"{what} have a place outside of the {d} features")
    used[places] = True
    return used


def _places_of(chosen: slice, n_features: int, what: str) -> range:
    """Return the places that a slice means."""
    try:
        return range(n_features)[chosen]
    except (TypeError, ValueError) as error:
        raise ParameterError(f"{what} are {chosen}: expected a slice of places: {error}") from error


def _as_array(chosen: object, what: str) -> Array:
    """Return chosen features as an array; `ParameterError` for lists of different lengths."""
    if isinstance(chosen, list | tuple) and any(isinstance(each, str) for each in chosen):
        return np.array([*chosen], dtype=object)
    try:
        return np.asarray(chosen)
    except ValueError as error:
        raise ParameterError(f"{what} are no array: {error}") from error


def _named(source: Source, name: str, what: str) -> BoolArray:
    """Return which features the name of a variable, or of a feature, means."""
    labels = source.labels
    variables = [] if labels is None else [variable.name or "" for variable in labels.variables]
    if labels is not None and name in variables:
        of_variable = np.repeat(np.arange(len(variables)), [variable.size for variable in labels.variables])
        named: BoolArray = of_variable[labels.indices()] == variables.index(name)
        return named
    names = source.feature_names or ()
    if name in names:
        return np.array([each == name for each in names])
    known = [*filter(None, variables), *names]
    close = difflib.get_close_matches(name, known, 1, 0.5)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "") if known else "no names"
    raise ParameterError(f"{what}: there is no variable or feature {name[:60]!r} (names: {shown}){meant}")
