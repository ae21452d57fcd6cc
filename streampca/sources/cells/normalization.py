"""Normalisation of counts row by row: the steps of the option `normalize`, whose keys are stated in `streampca.counts`.

A new key has a class here, mostly an `ElementwiseCounts`, and an entry there. Counts are float64 between the steps; zeros stay zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.counts import NORMALIZE, CountKey, keys_in_words
from streampca.errors import DataError, NotFiniteError, ParameterError
from streampca.sources.steps import Cast, Elementwise, Step
from streampca.typing import Array, DType, FloatArray, JsonValue


class ScaledCounts(Step):
    """Rows multiplied so that they add up to a total; rows that add up to zero are as they were.

    Sums are those of all features, also of those that a later step leaves out.
    """

    digest = b""  # the mark of the table has all keys of `normalize`

    def __init__(self, total: float):
        self.total = total

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the scaled rows to `out`."""
        np.multiply(values, self._factors(np.einsum("ij->i", values))[:, None], out=out)

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Return the scaled rows."""
        counts = np.diff(indptr)
        stored = counts[counts > 0]
        if not len(stored):
            return data, indices, indptr
        totals = np.add.reduceat(data, np.cumsum(stored) - stored)
        return data * np.repeat(self._factors(totals), stored), indices, indptr

    def _factors(self, totals: FloatArray) -> FloatArray:
        return self.total / np.where(totals == 0, self.total, totals)


class ElementwiseCounts(Elementwise):
    """A step that does the same with every count, where its key of `normalize` is True."""

    digest = b""  # the mark of the table has all keys of `normalize`


class LogarithmOfCounts(ElementwiseCounts):
    """The logarithm of one more."""

    def of_values(self, values: Array, out: Array) -> None:
        """Write the logarithms to `out`."""
        np.log1p(values, out=out)


_SINCE_THE_FIRST = ("target_sum", "log1p")
"""Keys that are in the fingerprint of a table whether they do anything or not."""


@dataclass(frozen=True)
class Normalization:
    """What the option `normalize` asks for: the steps of `streampca.counts`, on float64 between a check and rounding."""

    values: tuple[tuple[CountKey, float | None], ...]
    """The value of every key, in the order in which they are done."""

    @classmethod
    def of(cls, given: object) -> Normalization | None:
        """Return the normalisation that a mapping describes, None where there is nothing to do.

        Raises
        ------
        ParameterError
            If `given` is no mapping, or has other keys or values outside their domain.
        """
        if given is None:
            return None
        if not isinstance(given, Mapping) or set(given) - {key.name for key in NORMALIZE}:
            raise ParameterError(
                f'normalize={str(given)[:60]!r}: expected {keys_in_words()}, such as {{"target_sum": 1e4, "log1p": True}}'
            )
        values = tuple((key, _checked(key, given.get(key.name, key.default))) for key in NORMALIZE)
        return cls(values) if any(value for _, value in values) else None

    @property
    def asked(self) -> tuple[Step, ...]:
        """Return the steps of the keys that do something."""
        return tuple(
            globals()[key.step](*(() if key.takes is bool else (value,))) for key, value in self.values if value
        )

    def steps(self, stored: DType) -> tuple[Step, ...]:
        """Return all steps from rows of the type `stored` to normalised ones."""
        return (Counts(), *self.asked, Cast(normalized_dtype(stored)))

    def to_dict(self) -> dict[str, JsonValue]:
        """Return plain data that `of` takes."""
        return {key.name: value for key, value in self.values}

    def __str__(self) -> str:
        shown = [f"{key.name}={value}" for key, value in self.values if value or key.name in _SINCE_THE_FIRST]
        return f"Normalization({', '.join(shown)})"


def normalized_dtype(stored: DType) -> DType:
    """Return the type of normalised values: float32 for floats of up to 32 and integers of up to 16 bits, else float64."""
    narrow = stored.itemsize <= 4 if stored.kind == "f" else stored.itemsize <= 2
    return np.dtype(np.float32 if narrow else np.float64)


def _checked(key: CountKey, value: Any) -> float | None:
    """Return the value of a key; `ParameterError` if it is outside its domain."""
    if key.takes is bool:
        if not isinstance(value, bool):
            raise ParameterError(f"normalize: {key.name}={str(value)[:40]!r}: expected True or False")
        return value
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if value is not None and not (number and math.isfinite(value) and value > 0):
        raise ParameterError(f"normalize: {key.name}={str(value)[:40]!r}: expected a number above 0, or None")
    return None if value is None else float(value)


class Counts(Step):
    """Counts as float64; the first that is negative or not finite is an error that names its row and column."""

    digest = b""

    def dtype(self, dtype: DType) -> DType:
        """Return float64."""
        return np.dtype(np.float64)

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the counts to `out`."""
        if _may_be_bad(values):
            row, column = np.divmod(np.arange(values.size), values.shape[1])
            _require_counts(values.reshape(-1), row, column, start)
        out[...] = values

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Return the counts."""
        if _may_be_bad(data):
            _require_counts(data, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), indices, start)
        return data.astype(np.float64), indices, indptr


def _may_be_bad(values: Array) -> bool:
    """Return whether a value is not finite or below zero."""
    if not values.size or values.dtype.kind in "ub":
        return False
    return not (values.min() >= 0 and values.max() < np.inf)  # NaN is neither


def _bad(values: Array) -> Array:
    """Return where values are not finite or below zero."""
    negative: Array = values < 0
    return negative | ~np.isfinite(values) if values.dtype.kind == "f" else negative


def _require_counts(values: Array, row: Array, column: Array, start: int) -> None:
    """Raise an error that names the first value that is not finite or is negative."""
    bad = _bad(values)
    if not bad.any():
        return
    first = int(np.flatnonzero(bad)[0])
    where = f"row {start + int(row[first])}, column {int(column[first])}"
    if not np.isfinite(values[first]):
        raise NotFiniteError(f"Input contains NaN or infinity: first at {where}: expected finite numbers")
    raise DataError(
        f"negative value {values[first]:g} at {where}: normalize is for counts, which are 0 or more; leave normalize out for data "
        "that are normalised or centred already"
    )
