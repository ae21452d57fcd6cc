"""Parameters that depend on the names of a table: values in the order of its labels, weights by an expression, edges of variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from streampca.labels import Labels
from streampca.parameters import Parameters
from streampca.planning.checks import as_weights
from streampca.planning.expressions import weights_by
from streampca.regressors import Removal, removal_of
from streampca.sources.alignment import column_names, is_placed, of_features, of_rows
from streampca.sources.base import Source
from streampca.typing import FloatArray

P = TypeVar("P")


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
        If the labels of given values are not those of `source`, or an expression does not apply to its features.
    """
    if not isinstance(parameters, Parameters):
        return parameters
    known: dict[str, Any] = {name: _PLACED[name](value, source.labels) for name, value in parameters.given.items()}
    if parameters.scale == "block":
        known["scale"] = variable_edges(source)
    return replace(parameters, **known, given={}) if known else parameters


def placed_weights(given: Any, labels: Labels | None) -> FloatArray | None:
    """Return weights of features, by an expression or with labels or several dimensions, in the order of the features of a table."""
    if isinstance(given, str):
        return weights_by(given, labels)
    return as_weights("feature_weight", of_features("feature_weight", given, labels))


def placed_removal(given: Mapping[str, Any], labels: Labels | None) -> Removal | None:
    """Return the checked parameter `remove` with its values in the order of the rows of a table, and the names of covariates."""
    removal = removal_of({key: of_rows(f"remove: {key}", value, labels) for key, value in given.items()})
    return removal and replace(removal, covariate_names=column_names(given.get("covariates"), labels))


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
