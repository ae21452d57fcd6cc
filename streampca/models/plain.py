"""Dataclasses as plain data for JSON, and back, by the types of their fields."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from streampca.errors import ModelError
from streampca.typing import Json, JsonValue

_Record = TypeVar("_Record")


def without_alias(hint: Any) -> Any:
    """Return a type by its own name where it has that of a ``type`` statement, as `NDArray` has from numpy 2.5 on."""
    alias = getattr(get_origin(hint), "__value__", None)
    return hint if alias is None else without_alias(alias[get_args(hint)])


@cache
def hints_of(kind: type) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def optional_of(kind: type) -> frozenset[str]:
    """Return the names of the fields that have a default."""
    return frozenset(field.name for field in fields(kind) if field.default is not MISSING)


def plain(value: Any) -> JsonValue:
    """Return `value` with tuples and arrays as lists, also within, and NaN of arrays as None."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [None if np.isnan(number) else number for number in value.tolist()]
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def record_of(kind: type[_Record], values: Mapping[str, object], what: str) -> _Record:
    """Return the dataclass `kind` with `values` as `plain` gives them; entries of other names are left out; see `values_of`."""
    key: Any = kind  # of which the type checker does not see that it can be hashed
    return kind(**values_of(hints_of(key), values, what, optional_of(key)))


def values_of(
    hints: Mapping[str, Any], values: Mapping[str, object], what: str, optional: Collection[str] = ()
) -> Json:
    """Return `values`, as `plain` gives them, by the types that `hints` name; those that are `optional` may be missing.

    `what` begins the message, up to its verb: "its certificate is".

    Raises
    ------
    ModelError
        If a value is missing, or is not of its type.
    """
    named: Json = {}
    for name, hint in hints.items():
        if name in values:
            try:
                named[name] = _typed(values[name], hint)
            except (ValueError, OverflowError):
                raise ModelError(f"{what} damaged: {name} is {str(values[name])[:80]!r}") from None
        elif name not in optional:
            raise ModelError(f"{what} damaged: there is no {name}")
    return named


def _typed(value: Any, hint: Any) -> Any:
    """Return a value of JSON as one of the type `hint`, lists as tuples or arrays; `ValueError` if it is none."""
    hint = without_alias(hint)
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is UnionType:
        (other,) = (each for each in inner if each is not NoneType)
        return None if value is None else _typed(value, other)
    if kind is Literal and value in inner:
        return value
    if kind is tuple and isinstance(value, list | tuple):
        each = (inner[0],) * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_typed(item, of) for item, of in zip(value, each, strict=True))
    if kind is np.ndarray and isinstance(value, list):
        return np.array([np.nan if number is None else _typed(number, float) for number in value], dtype=np.float64)
    if kind is Mapping and isinstance(value, Mapping):
        return {str(key): _typed(item, inner[1]) for key, item in value.items()}
    if kind is float and type(value) in (int, float) and np.isfinite(float(value)):
        return float(value)
    if kind in (bool, int, str, dict) and type(value) is kind:
        return value
    raise ValueError
