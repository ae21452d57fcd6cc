"""Parameters that depend on the columns of a table: weights given by an expression, and the edges of variables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from streampca.parameters import Parameters
from streampca.planning.expressions import weights_by
from streampca.sources.base import Source

P = TypeVar("P")


def with_columns(parameters: P, source: Source) -> P:
    """Return `parameters` with the weights and the edges of variables that they mean for the features of `source`."""
    if not isinstance(parameters, Parameters):
        return parameters
    known: dict[str, Any] = {}
    if parameters.weight_expression is not None:
        weights = weights_by(parameters.weight_expression, source.labels)
        known |= {"feature_weight": weights, "weight_expression": None}
    if isinstance(parameters.scale, str):
        known["scale"] = variable_edges(source)
    return replace(parameters, **known) if known else parameters


def variable_edges(source: Source) -> tuple[int, ...]:
    """Return the first feature of each variable of `source`, and the number of features; a table without labels is one variable."""
    stops = () if source.labels is None else tuple(columns.stop for _, columns, _ in source.labels.places())
    return tuple(sorted({0, *stops, source.shape[1]}))
