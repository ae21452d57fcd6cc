"""Parameters that depend on the table: checked against its rows, values in the order of its labels, weights by a coordinate, edges of variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import ParameterError
from streampca.formatting import plural
from streampca.labels import Labels
from streampca.linalg.component_rules import sample_of
from streampca.linalg.selection import Rule
from streampca.parameters import Parameters
from streampca.regressors import Removal, removal_of
from streampca.sources.alignment import column_names, is_placed, of_chosen, of_features, of_rows
from streampca.sources.base import Source
from streampca.suggestions import did_you_mean
from streampca.typing import FloatArray

_LARGE = (2**40, 2**20)
"""Shape of a table that has rows and features enough for every rule."""


def require_rows(source: Source, parameters: Parameters) -> None:
    """Raise `ParameterError` if weights do not fit `source`."""
    n, d = source.shape
    for name, weights, expected in (
        ("sample_weight", parameters.sample_weight, n),
        ("feature_weight", parameters.feature_weight, d),
    ):
        if weights is not None and len(weights) != expected:
            of = "samples" if name == "sample_weight" else "features"
            raise ParameterError(f"{name} has {len(weights)} values: expected one for each of the {expected} {of}")


def require_rule(source: Source | None, parameters: Parameters, n_regressors: int | None = None) -> None:
    """Raise `NotAvailableError` if the number of components is to follow from a rule that does not apply to such rows.

    Without a `source`, that is what rows without weights would not change, however many.
    """
    selection, weights = parameters.selection(source), None if source is None else parameters.sample_weight
    if not isinstance(selection, Rule):
        return
    if selection.name == "cross_validation":
        return
    n, d = _LARGE if source is None else source.shape
    n = n if weights is None else int(np.count_nonzero(weights))
    weight = float(n if weights is None else weights.sum())
    if parameters.forgetting != 1:
        weight = 1 / (1 - parameters.forgetting)
    n_means = int(parameters.center) if n_regressors is None else n_regressors
    selection.require_applicable(
        sample_of(
            (n, d),
            weight,
            parameters.ddof,
            n_means=n_means,
            weighted=parameters.weighted,
            feature_weight=parameters.feature_weight,
            edge=1.0 if parameters.center else None,
        )
    )


def as_weights(name: str, values: ArrayLike | Sequence[float] | None) -> FloatArray | None:
    """Return the checked weights that the parameter `name` stands for, or None.

    Raises
    ------
    ParameterError
        If they are not one list of numbers that are finite and not negative, or if all of them are zero.
    """
    if values is None:
        return None
    if np.ma.is_masked(values):
        raise ParameterError(f"{name} has masked values: expected a number for each; 0 leaves it out")
    try:
        weights = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"{name} is not a list of numbers: {error}") from error
    if weights.ndim != 1:
        raise ParameterError(f"{name} has shape {weights.shape}: expected one dimension, a weight for each")
    bad = ~np.isfinite(weights) | (weights < 0)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise ParameterError(
            f"{name} holds {weights[first]} at {first} ({plural(int(bad.sum()), 'such value')}): expected finite numbers of at least 0"
        )
    if not weights.any():
        raise ParameterError(f"{name} is zero everywhere: expected at least one weight above zero")
    return weights


P = TypeVar("P")

_COORDINATE = re.compile(r"(cos\s*\()?\s*([^\W\d]\w*)\s*(?(1)\))")
_IN_DEGREES = ("lat", "latitude", "lon", "longitude")
_POLE = 1e-4
"""Distance from 90 degrees, as float32 coordinates may have it, in which the cosine is 0."""


def with_sample_weight(parameters: Parameters, weights: Any) -> Parameters:
    """Return `parameters` with weights of rows, checked as far as they can be before the table is known; see `with_columns`."""
    if is_placed(weights):
        return replace(parameters, given={**parameters.given, "sample_weight": weights})
    return replace(parameters, sample_weight=as_weights("sample_weight", weights))


def with_columns(parameters: P, source: Source) -> P:
    """Return `parameters` with the values and the edges of variables that they mean for the rows and features of `source`.

    Raises
    ------
    ParameterError
        If the labels of given values are not those of `source`, or it has no coordinate that the weights are to be.
    """
    if not isinstance(parameters, Parameters):
        return parameters
    known: dict[str, Any] = {}
    for name, value in parameters.given.items():
        if name == "remove":
            value = {key: of_chosen(f"remove: {key}", each, source.chosen) for key, each in value.items()}
        elif name == "sample_weight":
            value = of_chosen(name, value, source.chosen)
        known[name] = _PLACED[name](value, source.labels)
    if source.chosen is not None:
        weights = source.chosen.of(parameters.sample_weight)
        known = {"sample_weight": as_weights("sample_weight", weights)} | known
        if parameters.remove is not None and "remove" not in known:
            groups, covariates = (
                source.chosen.of(each) for each in (parameters.remove.groups, parameters.remove.covariates)
            )
            known["remove"] = replace(parameters.remove, groups=groups, covariates=covariates)
    if parameters.scale == "block":
        known["scale"] = variable_edges(source)
    return replace(parameters, **known, given={}) if known else parameters


def placed_weights(given: Any, labels: Labels | None) -> FloatArray | None:
    """Return weights of features, by a coordinate or with labels or several dimensions, in the order of the features of a table."""
    if isinstance(given, str):
        return weights_by(given, labels)
    return as_weights("feature_weight", of_features("feature_weight", given, labels))


def placed_removal(given: Mapping[str, Any], labels: Labels | None) -> Removal | None:
    """Return the checked parameter `remove` with its values in the order of the rows of a table, and the names of covariates."""
    removal = removal_of({key: of_rows(f"remove: {key}", value, labels) for key, value in given.items()})
    return removal and replace(removal, covariate_names=column_names(given.get("covariates"), labels))


def coordinate_of(text: str) -> tuple[str, bool]:
    """Return the name of the coordinate that weights of features are to be, and whether its cosine; `ParameterError` for another text."""
    match = _COORDINATE.fullmatch(text.strip())
    if match is None:
        raise ParameterError(
            f"feature_weight={text[:60]!r} is not understood: expected the name of a coordinate, or its cosine, such as 'cos(lat)'; give "
            "other weights as numbers, one for each feature, or as a DataArray along dimensions of features"
        )
    return match[2], match[1] is not None


def weights_by(text: str, labels: Labels | None) -> FloatArray:
    """Return the weight of each feature by a coordinate of the feature dimensions, or its cosine.

    The cosine of a coordinate in degrees (by its units, or called lat, latitude, lon or longitude without units of radians) is taken
    in degrees; of a latitude of 90 degrees, as it is rounded, it is 0. Features of variables without the coordinate have weight 1.

    Raises
    ------
    ParameterError
        If there are no labels, no variable has the coordinate, or a weight is negative or not finite.
    """
    (name, cosine), shown = coordinate_of(text), f"feature_weight={text[:60]!r}"
    if labels is None:
        raise ParameterError(
            f"{shown} needs names of dimensions with coordinates, which these data do not have: open them with sp.open, or give "
            "the weights as numbers"
        )
    try:
        along = labels.by_variable(name)
    except KeyError:
        every = (each for dimension in labels.features for each in (dimension, *dimension.others.values()))
        of_dimensions = (d.name for d in every if d.coordinate is not None and d.coordinate.dtype.kind in "iuf")
        beside = (each for variable in labels.variables if variable.beside for each in variable.beside.names)
        known = list(dict.fromkeys((*of_dimensions, *beside)))
        raise ParameterError(
            f"{shown}: there is no coordinate of numbers {name[:60]!r} along the dimensions of features: expected one of "
            f"{', '.join(known) or 'none'}"
            + did_you_mean(name, known)
            + ("" if known else ", or weights as numbers, one for each feature")
        ) from None
    weights = np.ones(labels.n_features)
    for (_, columns, _), found in zip(labels.places(), along, strict=True):
        if found is None:
            continue
        values, attributes = found
        units = str(attributes.get("units", "")).lower()
        if not cosine:
            weights[columns] = values
        elif units.startswith("deg") or (name.lower() in _IN_DEGREES and not units.startswith("rad")):
            weights[columns] = np.where(np.abs(np.abs(values) - 90) < _POLE, 0.0, np.cos(np.deg2rad(values)))
        else:
            weights[columns] = np.cos(values)
    bad = np.flatnonzero(~np.isfinite(weights) | (weights < 0))
    if len(bad):
        raise ParameterError(
            f"{shown} is {weights[bad[0]]:.6g} at {labels.feature_name(int(bad[0]))} ({plural(len(bad), 'such value')}): expected finite "
            "numbers of at least 0"
            + ("; leave features without a coordinate out by a mask" if np.isnan(weights[bad]).any() else "")
        )
    checked = as_weights("feature_weight", weights)
    assert checked is not None  # noqa: S101 for the type checker
    return checked


_PLACED: dict[str, Callable[[Any, Labels | None], Any]] = {
    "sample_weight": lambda given, labels: as_weights("sample_weight", of_rows("sample_weight", given, labels)),
    "feature_weight": placed_weights,
    "remove": placed_removal,
}
"""What gives the parameters of `Parameters.given`."""


def variable_edges(source: Source) -> tuple[int, ...]:
    """Return the first feature of each variable of `source`, and the number of features; a table without labels is one variable."""
    stops = () if source.labels is None else tuple(columns.stop for _, columns, _ in source.labels.places())
    return tuple(sorted({0, *stops, source.shape[1]}))
