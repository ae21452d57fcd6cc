"""Normalisation of counts row by row: scaling to a total, and the logarithm of one more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from streampca.errors import DataError, NotFiniteError, ParameterError
from streampca.typing import Array, DType, FloatArray, IntArray, JsonValue

_KEYS = ("target_sum", "log1p")
_PIECE = 2**16  # stored values


@dataclass(frozen=True)
class Normalization:
    """How values of a row become those that are used: multiplied so that they add up to a total, then ``log(1 + x)``.

    Zeros stay zeros. Rows that add up to zero are not scaled. Sums are those of all features, also of those not used.
    """

    target_sum: float | None = None
    """Sum of every row after scaling; None = rows are not scaled."""
    log1p: bool = False
    """Whether the logarithm of one plus each value is taken."""

    @classmethod
    def of(cls, value: object) -> Normalization | None:
        """Return the normalisation that a mapping describes, None where there is nothing to do.

        Raises
        ------
        ParameterError
            If `value` is no mapping, or has other keys or values outside their domain.
        """
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or set(value) - set(_KEYS):
            raise ParameterError(
                f"normalize={str(value)[:60]!r}: expected a mapping with target_sum, log1p, or both, such as "
                '{"target_sum": 1e4, "log1p": True}'
            )
        target, log1p = value.get("target_sum"), value.get("log1p", False)
        number = isinstance(target, int | float | np.number) and not isinstance(target, bool)
        if target is not None and not (number and math.isfinite(target) and target > 0):
            raise ParameterError(f"normalize: target_sum={str(target)[:40]!r}: expected a number above 0, or None")
        if not isinstance(log1p, bool):
            raise ParameterError(f"normalize: log1p={str(log1p)[:40]!r}: expected True or False")
        return cls(None if target is None else float(target), log1p) if target is not None or log1p else None

    def dtype(self, stored: DType) -> DType:
        """Return the type of normalised values: float32 for floats of up to 32 and integers of up to 16 bits, else float64."""
        narrow = stored.itemsize <= 4 if stored.kind == "f" else stored.itemsize <= 2
        return np.dtype(np.float32 if narrow else np.float64)

    def to_dict(self) -> dict[str, JsonValue]:
        """Return plain data that `of` takes."""
        return {"target_sum": self.target_sum, "log1p": self.log1p}

    def dense(self, rows: Array, start: int) -> Array:
        """Return dense `rows`, the first of which is row `start`, normalised."""
        row, column = np.divmod(np.arange(rows.size), rows.shape[1]) if _bad(rows).any() else (None, None)
        _require_counts(rows.reshape(-1), row, column, start)
        values: FloatArray = rows.astype(np.float64)
        totals: FloatArray = np.einsum("ij->i", values)
        values *= self._factors(totals)[:, None]
        finished: Array = (np.log1p(values, out=values) if self.log1p else values).astype(self.dtype(rows.dtype))
        return finished

    def stored(self, data: Array, indices: Array, indptr: Array, start: int) -> Array:
        """Return the stored values `data` of compressed rows, the first of which is row `start`, normalised."""
        if _may_be_bad(data):
            _require_counts(data, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), indices, start)
        finished: Array = np.empty(len(data), dtype=self.dtype(data.dtype))
        first = 0
        while first < len(indptr) - 1:  # some rows at a time, which stay in the cache
            last = int(np.searchsorted(indptr, int(indptr[first]) + _PIECE, "right")) - 1
            edges = indptr[first : max(last, first + 1) + 1]
            piece = slice(int(edges[0]), int(edges[-1]))
            finished[piece] = self._of_rows(data[piece].astype(np.float64), np.diff(edges))
            first += len(edges) - 1
        return finished

    def _of_rows(self, values: FloatArray, counts: IntArray) -> FloatArray:
        """Return consecutive rows with `counts` stored values, normalised in place."""
        if self.target_sum is not None:
            stored = counts[counts > 0]
            totals = np.add.reduceat(values, np.cumsum(stored) - stored) if len(stored) else values
            values *= np.repeat(self._factors(totals), stored)
        return np.log1p(values, out=values) if self.log1p else values

    def _factors(self, totals: FloatArray) -> FloatArray:
        if self.target_sum is None:
            return np.ones_like(totals)
        return self.target_sum / np.where(totals == 0, self.target_sum, totals)


def _may_be_bad(values: Array) -> bool:
    """Return whether a value is not finite or below zero."""
    if not values.size or values.dtype.kind in "ub":
        return False
    return not (values.min() >= 0 and values.max() < np.inf)  # NaN is neither


def _bad(values: Array) -> Array:
    """Return where values are not finite or below zero."""
    negative: Array = values < 0
    return negative | ~np.isfinite(values) if values.dtype.kind == "f" else negative


def _require_counts(values: Array, row: Array | None, column: Array | None, start: int) -> None:
    """Raise an error that names the first value that is not finite or is negative."""
    bad = _bad(values)
    if not bad.any() or row is None or column is None:
        return
    first = int(np.flatnonzero(bad)[0])
    where = f"row {start + int(row[first])}, column {int(column[first])}"
    if not np.isfinite(values[first]):
        raise NotFiniteError(f"Input contains NaN or infinity: first at {where}: expected finite numbers")
    raise DataError(
        f"negative value {values[first]:g} at {where}: normalize is for counts, which are 0 or more; leave normalize out for data "
        "that are normalised or centred already"
    )
