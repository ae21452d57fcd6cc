"""Weights of features as a text: an expression over their coordinates, such as ``cos(lat)``."""

from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable, Mapping
from functools import reduce

import numpy as np

from streampca.errors import ParameterError
from streampca.labels import Labels
from streampca.planning.checks import as_weights
from streampca.typing import FloatArray, JsonValue

_MOST_CHARACTERS = 200
_GRAMMAR = "coordinates, numbers, + - * / **, cos, sin, sqrt, abs, log, exp, min and max"
_BINARY: dict[type[ast.operator], Callable[[FloatArray, FloatArray], FloatArray]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "sqrt": np.sqrt,
    "abs": np.abs,
    "log": np.log,
    "exp": np.exp,
    "cos": np.cos,
    "sin": np.sin,
}
_OF_SEVERAL: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {"min": np.minimum, "max": np.maximum}
_ANGLES = ("cos", "sin")
_IN_DEGREES = ("lat", "latitude", "lon", "longitude")
_POLE = 1e-4
"""Distance from 90 degrees, as float32 coordinates may have it, in which the cosine is 0."""


def expression_of(text: str) -> ast.expr:
    """Return the parsed expression; `ParameterError` if it is none of the grammar."""
    shown = f"feature_weight={text[:60]!r}"
    try:
        if len(text) > _MOST_CHARACTERS:
            raise SyntaxError
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ParameterError(f"{shown} is no expression: expected, for example, 'cos(lat)'") from error
    for node in ast.walk(tree):
        if not _accepted(node):
            part = ast.unparse(node)[:60] if isinstance(node, ast.expr) else type(node).__name__
            raise ParameterError(f"{shown}: {part!r} is not accepted: expected {_GRAMMAR}")
    return tree


def _accepted(node: ast.AST) -> bool:
    """Return whether a node by itself is of the grammar."""
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        return not node.keywords and (
            (name in _FUNCTIONS and len(node.args) == 1) or (name in _OF_SEVERAL and len(node.args) > 1)
        )
    return isinstance(node, (ast.Name, ast.BinOp, ast.UnaryOp, ast.Load, ast.USub, ast.UAdd, *_BINARY))


def weights_by(text: str, labels: Labels | None) -> FloatArray:
    """Return the weight of each feature by an expression over the coordinates of the feature dimensions.

    The cosine and sine of a coordinate in degrees (by its units, or called lat, latitude, lon or longitude without units of
    radians) are taken in degrees. Features of variables that lack one of the coordinates have weight 1.

    Raises
    ------
    ParameterError
        If there are no labels, no variable has the coordinates, or a weight is negative or not finite.
    """
    tree, shown = expression_of(text), f"feature_weight={text[:60]!r}"
    if labels is None:
        raise ParameterError(
            f"{shown} needs names of dimensions with coordinates, which these data do not have: open them with sp.open, or give "
            "the weights as numbers"
        )
    functions = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in functions}
    values, degrees, lacking = {}, set(), np.zeros(labels.n_features, dtype=bool)
    for name in sorted(names):
        each = _coordinate(name, labels, shown)
        values[name] = np.full(labels.n_features, np.nan)
        for (_, columns, _), known in zip(labels.places(), each, strict=True):
            if known is None:
                lacking[columns] = True
            else:
                values[name][columns] = known[0]
        if _in_degrees(name, next(attributes for _, attributes in filter(None, each))):
            degrees.add(name)
    with np.errstate(all="ignore"):
        weights = np.broadcast_to(_value(tree, values, degrees, shown), labels.n_features).astype(np.float64)
    if lacking.all():
        raise ParameterError(f"{shown}: no variable has all of the coordinates {', '.join(sorted(names))}")
    weights[lacking] = 1.0
    bad = np.flatnonzero(~np.isfinite(weights) | (weights < 0))
    if len(bad):
        raise ParameterError(
            f"{shown} is {weights[bad[0]]:.6g} at {labels.feature_name(int(bad[0]))} ({len(bad):,} such value(s)): expected finite "
            "numbers of at least 0"
            + ("; leave features without a coordinate out by a mask" if np.isnan(weights[bad]).any() else "")
        )
    checked = as_weights("feature_weight", weights)
    assert checked is not None  # noqa: S101 for the type checker
    return checked


def _coordinate(name: str, labels: Labels, shown: str) -> list[tuple[FloatArray, Mapping[str, JsonValue]] | None]:
    try:
        return labels.along(name)
    except KeyError:
        every = (each for dimension in labels.features for each in (dimension, *dimension.others.values()))
        of_dimensions = (d.name for d in every if d.coordinate is not None and d.coordinate.dtype.kind in "iuf")
        beside = (each for variable in labels.variables if variable.beside for each in variable.beside.names)
        known = list(dict.fromkeys((*of_dimensions, *beside)))
        close = difflib.get_close_matches(name, known, 1, 0.5)
        raise ParameterError(
            f"{shown}: there is no coordinate of numbers {name[:60]!r} along the dimensions of features: expected one of "
            f"{', '.join(known) or 'none'}"
            + (f"; did you mean {close[0]!r}?" if close else "")
            + ("" if known else ", or weights as numbers, one for each feature")
        ) from None


def _in_degrees(name: str, attributes: Mapping[str, JsonValue]) -> bool:
    units = str(attributes.get("units", "")).lower()
    return units.startswith("deg") or (name.lower() in _IN_DEGREES and not units.startswith("rad"))


def _value(node: ast.expr, values: dict[str, FloatArray], degrees: set[str], shown: str) -> FloatArray:
    """Return the value of an expression, for all features or one for all."""
    if isinstance(node, ast.Constant):
        return np.array(node.value, dtype=np.float64)
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, values, degrees, shown)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        one, other = (_value(side, values, degrees, shown) for side in (node.left, node.right))
        return _BINARY[type(node.op)](one, other)
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)  # noqa: S101, PT018 the grammar has nothing else
    arguments = [_value(each, values, degrees, shown) for each in node.args]
    name = node.func.id
    if name in _OF_SEVERAL:
        return reduce(_OF_SEVERAL[name], arguments)
    if name in _ANGLES and any(isinstance(each, ast.Name) and each.id in degrees for each in ast.walk(node.args[0])):
        return _of_degrees(name, node.args[0], arguments[0], shown)
    return _FUNCTIONS[name](arguments[0])


def _of_degrees(name: str, argument: ast.expr, values: FloatArray, shown: str) -> FloatArray:
    """Return the cosine or sine of degrees; of a latitude of 90 degrees, as it is rounded, the cosine is 0."""
    if any(isinstance(node, ast.Mult | ast.Div | ast.Pow | ast.Call) for node in ast.walk(argument)):
        raise ParameterError(
            f"{shown}: {name} takes coordinates in degrees as they are: expected, for example, {name}(lat), not a conversion"
        )
    result = _FUNCTIONS[name](np.deg2rad(values))
    pole = (name == "cos") & (np.abs(np.abs(values) - 90) < _POLE)
    return np.where(pole, 0.0, result)
