"""Rows with missing values (NaN): telling them from the others, and leaving them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.centring import Centred, FloatArray
from streampca.accumulators.covariance import Covariance, CovarianceState
from streampca.block import Block, as_block
from streampca.errors import NotFiniteError
from streampca.linalg.eigen import SymmetricOperator
from streampca.linalg.tiles import TileGrid
from streampca.linalg.underflow import mark_underflow
from streampca.storage.state_file import storable

_SLAB_ROWS = 256


def incomplete(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell for each row whether it holds NaN, ``(n_rows,)``."""
    found = np.zeros(len(rows), dtype=bool)
    if rows.dtype.kind == "f":
        for start in range(0, len(rows), _SLAB_ROWS):
            part = slice(start, start + _SLAB_ROWS)
            np.isnan(rows[part]).any(axis=1, out=found[part])
    return found


def refuse_infinite(rows: NDArray[Any], start: int, first_column: int = 0) -> None:
    """Raise `NotFiniteError` if `rows`, which begin at (`start`, `first_column`) of the source, hold infinity; NaN is let through."""
    bad = np.isinf(rows)
    if bad.any():
        row, column = (int(index) for index in np.argwhere(bad)[0])
        raise NotFiniteError(
            f"Input contains infinity: first at row {start + row}, column {first_column + column} ({int(bad.sum())} such value(s) in rows "
            f"{start} to {start + len(rows) - 1}; reading stopped there): only NaN counts as missing; clean these values first"
        )


def centre_observed(
    values: NDArray[Any], missing: NDArray[np.bool_], n_observed: NDArray[np.int64], out: NDArray[Any]
) -> Centred:
    """Write the observed values minus their means, rounded to the type of `out`, to `out`, and 0 for the others."""
    seen = n_observed > 0
    with np.errstate(over="ignore", invalid="ignore"):
        low = np.where(seen, np.fmin.reduce(values, axis=0), 0).astype(np.float64)
        np.subtract(values, low, out=out, dtype=out.dtype, casting="same_kind")
        out[missing] = 0
        # A column that never varies is centred to exact zeros: its smallest value is its mean.
        above = out.sum(axis=0, dtype=np.float64)
        middle = (low + np.divide(above, n_observed, out=np.zeros_like(low), where=seen)).astype(out.dtype)
        np.subtract(values, middle, out=out, dtype=out.dtype, casting="same_kind")
        out[missing] = 0
        squares = np.einsum("ij,ij->j", out, out).astype(np.float64)
        mark_underflow(out, squares)
    return Centred(middle.astype(np.float64), np.where(np.isfinite(squares), 0.0, np.inf), squares)


def left_out(missing: str, block: Block, scores: NDArray[Any]) -> bool:
    """Tell whether all `scores` that are not finite are those of rows with NaN, which `missing` says are left out.

    Raises `NotFiniteError` if NaN has a meaning and infinity is found, which has none.
    """
    if missing == "error" or block.values.dtype.kind != "f" or not isinstance(block.values, np.ndarray):
        return False
    refuse_infinite(block.values, block.start)
    return missing == "drop_rows" and bool(np.isfinite(scores[~incomplete(block.values)]).all())


@storable
@dataclass(frozen=True)
class CompleteRowsState:
    """What has been seen of the rows so far."""

    n_left_out: int
    """Number of rows of positive weight that were left out, because they hold NaN."""
    rows: CovarianceState
    """State of the others."""

    @property
    def n_samples(self) -> int:
        """Return the number of rows that were not left out."""
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
class CompleteRows:
    """Covariance of the rows that hold no NaN; the others are left out and counted."""

    covariance: Covariance = field(default_factory=Covariance)
    """What the rows that are left are accumulated with."""
    n_threads: int = field(default=1, compare=False)
    """Threads that share the tiles of one update; changes the time, never the bits."""

    @property
    def _inner(self) -> Covariance:
        return replace(self.covariance, n_threads=self.n_threads)

    def grid(self, n_features: int) -> TileGrid:
        """Return how the scatter is stored."""
        return self.covariance.grid(n_features)

    def init(self, n_features: int) -> CompleteRowsState:
        """Return the state of no rows, the identity of `merge`."""
        return CompleteRowsState(0, self.covariance.init(n_features))

    def update(self, state: CompleteRowsState, block: Block | NDArray[Any]) -> CompleteRowsState:
        """Return `state` with the rows of `block` that hold no NaN added to it in place.

        Raises
        ------
        NotFiniteError
            If the rows hold infinity, or overflow when squared.
        """
        block = as_block(block)
        inner, rows, left_out = self._inner, state.rows, state.n_left_out
        # A slab at a time, so that the copies of what is kept stay small.
        for start in range(0, len(block), _COPIED_ROWS):
            part = block.part(start, start + _COPIED_ROWS).counted()
            holes = incomplete(part.values)
            if holes.any():
                refuse_infinite(part.values, part.start)
                left_out += int(holes.sum())
                weights = None if part.weights is None else part.weights[~holes]
                part = Block(part.values[~holes], part.start, weights)
            rows = inner.update(rows, part)
        return CompleteRowsState(left_out, rows)

    def merge(self, states: Sequence[CompleteRowsState]) -> CompleteRowsState:
        """Return the state of all rows behind `states`, merged from left to right; none of them is changed."""
        return CompleteRowsState(
            sum(state.n_left_out for state in states), self._inner.merge([state.rows for state in states])
        )

    def absorb(self, state: CompleteRowsState, other: CompleteRowsState) -> CompleteRowsState:
        """Return the state of the rows behind both, in the memory of `state`."""
        return CompleteRowsState(state.n_left_out + other.n_left_out, self._inner.absorb(state.rows, other.rows))

    def divisor(self, state: CompleteRowsState) -> float:
        """Return what the scatter is divided by."""
        return self.covariance.divisor(state.rows)

    def finalize(self, state: CompleteRowsState) -> SymmetricOperator:
        """Return the symmetric matrix whose eigenpairs are the principal components; shares memory with `state`."""
        return self._inner.finalize(state.rows)

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        return self.covariance.state_bytes(n_features)

    def finalize_bytes(self, n_features: int) -> int:
        """Return the memory in bytes that `finalize` takes beside the state."""
        return 0

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: that of `covariance`, and copies of the rows that are kept."""
        copied = min(n_rows, _COPIED_ROWS) * n_features * (itemsize + 1)
        return self._inner.scratch_bytes(n_features, n_rows, itemsize) + copied


_COPIED_ROWS = 8192
