"""Rows with missing values (NaN): detection, centring of observed values, and covariance without incomplete rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from streampca.accumulators.base import SequentialMerge
from streampca.accumulators.centring import Centred, squares_of_columns
from streampca.accumulators.covariance import Covariance, CovarianceState
from streampca.block import Block, as_block
from streampca.errors import DataError, NotFiniteError
from streampca.linalg.eigen import SymmetricOperator
from streampca.linalg.tiles import TileGrid
from streampca.linalg.underflow import mark_underflow
from streampca.storage.state_file import storable
from streampca.typing import Array, BoolArray, FloatArray, IntArray

_SLAB_ROWS = 256
_COPIED_ROWS = 8192


def incomplete(rows: Array) -> BoolArray:
    """Return for each row whether it holds NaN, ``(n_rows,)``."""
    result = np.zeros(len(rows), dtype=bool)
    if rows.dtype.kind == "f":
        for start in range(0, len(rows), _SLAB_ROWS):
            slab = slice(start, start + _SLAB_ROWS)
            np.isnan(rows[slab]).any(axis=1, out=result[slab])
    return result


def refuse_infinite(rows: Array, start: int, first_column: int = 0) -> None:
    """Raise `NotFiniteError` if `rows`, with first entry (`start`, `first_column`) of the source, hold infinity; NaN is allowed."""
    bad = np.isinf(rows)
    if bad.any():
        row, column = (int(index) for index in np.argwhere(bad)[0])
        raise NotFiniteError(
            f"Input contains infinity: first at row {start + row}, column {first_column + column} ({int(bad.sum())} such value(s) in rows "
            f"{start} to {start + len(rows) - 1}; reading stopped there): only NaN counts as missing; clean these values first"
        )


def centre_observed(values: Array, missing: BoolArray, n_observed: IntArray, out: Array) -> Centred:
    """Write the observed values minus their means (rounded to the type of `out`) to `out`, and 0 for missing values."""
    observed = n_observed > 0
    with np.errstate(over="ignore", invalid="ignore"):
        low = np.where(observed, np.fmin.reduce(values, axis=0), 0).astype(np.float64)
        np.subtract(values, low, out=out, dtype=out.dtype, casting="same_kind")
        out[missing] = 0
        # A constant column is centred to exact zeros, because its smallest value is its mean.
        above = out.sum(axis=0, dtype=np.float64)
        middle = (low + np.divide(above, n_observed, out=np.zeros_like(low), where=observed)).astype(out.dtype)
        np.subtract(values, middle, out=out, dtype=out.dtype, casting="same_kind")
        out[missing] = 0
        squares = squares_of_columns(out)
        mark_underflow(out, squares)
    return Centred(middle.astype(np.float64), np.where(np.isfinite(squares), 0.0, np.inf), squares)


def require_observed(observed: BoolArray) -> None:
    """Raise `DataError` unless every feature is `observed` in some row."""
    never = np.flatnonzero(~observed)
    if len(never):
        first = ", ".join(map(str, never[:5]))
        raise DataError(
            f"{len(never)} feature(s) were observed in no row, first: {first}: leave them out (sp.open(…, mask='survey') does)"
        )


def left_out(missing: str, rows: Array, start: int, scores: Array) -> bool:
    """Return whether all `scores` that are not finite belong to rows with NaN that `missing` excludes.

    Raises `NotFiniteError` if NaN is allowed and `rows`, with first row `start` of the source, hold infinity.
    """
    if missing == "error" or rows.dtype.kind != "f" or not isinstance(rows, np.ndarray):
        return False
    refuse_infinite(rows, start)
    return missing == "drop_rows" and bool(np.isfinite(scores[~incomplete(rows)]).all())


@storable
@dataclass(frozen=True)
class CompleteRowsState:
    """Covariance state of the complete rows, and the number of incomplete rows."""

    n_left_out: int
    """Number of rows of positive weight that were excluded because they hold NaN."""
    rows: CovarianceState
    """State of the complete rows."""

    @property
    def n_features(self) -> int:
        """Return the length of a row."""
        return self.rows.n_features

    @property
    def n_samples(self) -> int:
        """Return the number of complete rows."""
        return self.rows.n_samples

    @property
    def weight(self) -> float:
        """Return the sum of their weights."""
        return self.rows.weight

    @property
    def mean(self) -> FloatArray:
        """Return the mean of each feature, shape ``(n_features,)``."""
        return self.rows.mean


@dataclass(frozen=True)
class CompleteRows(SequentialMerge[CompleteRowsState]):
    """Covariance of the rows without NaN; the other rows are counted and ignored.

    Cost: that of `Covariance`, and a copy of the complete rows of blocks that have others.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.array([[0.0, 1.0], [2.0, np.nan], [4.0, 3.0]])
    >>> complete = sp.accumulators.CompleteRows()
    >>> state = complete.update(complete.init(2), rows)
    >>> state.n_samples, state.n_left_out
    (2, 1)
    """

    covariance: Covariance = field(default_factory=Covariance)
    """Accumulator of the complete rows."""
    n_threads: int = field(default=1, compare=False)
    """Threads that share the tiles of one update; the bits do not depend on it."""

    def for_reading(self) -> CompleteRows:
        """Return the accumulator without what only `finalize` uses: equal ones make equal states of the same rows."""
        return replace(self, covariance=self.covariance.for_reading())

    @property
    def _inner(self) -> Covariance:
        return replace(self.covariance, n_threads=self.n_threads)

    def grid(self, n_features: int) -> TileGrid:
        """Return the tile layout of the scatter."""
        return self.covariance.grid(n_features)

    def init(self, n_features: int) -> CompleteRowsState:
        """Return the state of no rows, the identity of `merge`."""
        return CompleteRowsState(0, self.covariance.init(n_features))

    def update(self, state: CompleteRowsState, block: Block | Array) -> CompleteRowsState:
        """Return `state` with the rows of `block` without NaN added to it in place.

        Raises
        ------
        NotFiniteError
            If the rows hold infinity, or overflow when squared.
        """
        block = as_block(block)
        inner, rows, n_left_out = self._inner, state.rows, state.n_left_out
        # A slab at a time, to limit the memory of the copies.
        for start in range(0, len(block), _COPIED_ROWS):
            slab = block.slice(start, start + _COPIED_ROWS).counted()
            holes = incomplete(slab.values)
            if holes.any():
                refuse_infinite(slab.values, slab.start)
                n_left_out += int(holes.sum())
                slab = slab.where(~holes)
            rows = inner.update(rows, slab)
        return CompleteRowsState(n_left_out, rows)

    def absorb(self, state: CompleteRowsState, other: CompleteRowsState) -> CompleteRowsState:
        """Return the state of the rows behind both, in the memory of `state`."""
        return CompleteRowsState(state.n_left_out + other.n_left_out, self._inner.absorb(state.rows, other.rows))

    def divisor(self, state: CompleteRowsState) -> float:
        """Return the divisor of the scatter."""
        return self.covariance.divisor(state.rows)

    def finalize(self, state: CompleteRowsState) -> SymmetricOperator:
        """Return the symmetric matrix whose eigenpairs are the principal components; shares memory with `state`."""
        return self._inner.finalize(state.rows)

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        return self.covariance.state_bytes(n_features)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: that of `covariance`, and copies of complete rows."""
        copied = min(n_rows, _COPIED_ROWS) * n_features * (itemsize + 1)
        return self._inner.scratch_bytes(n_features, n_rows, itemsize) + copied
