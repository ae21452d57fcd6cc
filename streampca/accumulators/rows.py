"""Evenly spaced sample of rows, copied in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array, issparse

from streampca.accumulators.base import Accumulator, Forwarding, StateAboutOrigin
from streampca.accumulators.centring import centre, refuse_not_finite, require_finite, step_between
from streampca.block import Block, as_block
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow
from streampca.typing import Array, FloatArray, IntArray, override

_FAR = 1e-2  # share of squares about the mean in those about zero, below which a feature is summed about its mean


@storable
@dataclass(frozen=True)
class RowsState:
    """The sampled rows among the accumulated rows."""

    index: IntArray
    """Row indices within the source, ascending, shape ``(n_sampled,)``."""
    values: Array
    """The rows, shape ``(n_sampled, n_features)``, in the data type of the source."""

    def complete(self) -> RowsState | None:
        """Return the rows without NaN, or None if there are none."""
        complete = (
            ~np.isnan(self.values).any(axis=1) if self.values.dtype.kind == "f" else np.ones(len(self.values), bool)
        )
        return RowsState(self.index[complete], self.values[complete]) if complete.any() else None


@dataclass(frozen=True)
class RowSample(Accumulator[RowsState, RowsState]):
    """Copy `n_sampled` rows spread evenly over a source of `n_samples` rows.

    No random numbers are used, so any division into blocks gives the same rows. Memory: the sampled rows.

    Examples
    --------
    >>> import streampca as sp
    >>> sp.accumulators.RowSample(n_samples=1000, n_sampled=4, dtype="float32").chosen.tolist()
    [125, 375, 625, 875]
    """

    n_samples: int
    """Number of rows of the source."""
    n_sampled: int
    """Number of rows to copy."""
    dtype: str
    """Data type of the source."""
    shares_states: ClassVar[bool] = True

    @property
    def chosen(self) -> IntArray:
        """Return the indices of the sampled rows, ascending, shape ``(n_sampled,)``."""
        n_sampled = min(self.n_sampled, self.n_samples)
        return (np.arange(n_sampled, dtype=np.int64) * self.n_samples + self.n_samples // 2) // max(1, n_sampled)

    @override
    def init(self, n_features: int) -> RowsState:
        return RowsState(np.empty(0, dtype=np.int64), np.empty((0, n_features), dtype=self.dtype))

    def update(self, state: RowsState, block: Block | Array) -> RowsState:
        """Return `state` with the sampled rows of `block` added."""
        block = as_block(block)
        chosen = self.chosen
        low, high = np.searchsorted(chosen, [block.start, block.start + len(block)])
        if low == high:
            return state
        index = chosen[low:high]
        rows = Block(block.values[index - block.start]).dense().values
        return self.merge([state, RowsState(index, rows)])

    def merge(self, states: Sequence[RowsState]) -> RowsState:
        """Return the rows of all `states` in ascending order."""
        index = np.concatenate([state.index for state in states])
        order = np.argsort(index, kind="stable")
        return RowsState(index[order], np.concatenate([state.values for state in states])[order])

    def absorb(self, state: RowsState, other: RowsState) -> RowsState:
        """Return the rows of both states in ascending order."""
        return self.merge([state, other])

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a full state in bytes."""
        return self.n_sampled * (8 + n_features * np.dtype(self.dtype).itemsize)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the memory in bytes of the copies that a merge makes."""
        return 2 * self.state_bytes(n_features)


@dataclass(frozen=True)
class RowTotals(Forwarding):
    """The sum of each row, dense or sparse, in row order: a `RowSample` of all rows with one value each.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> totals = sp.accumulators.RowTotals(n_samples=2)
    >>> totals.finalize(totals.update(totals.init(3), np.arange(6.0).reshape(2, 3))).values.ravel()
    array([ 3., 12.])
    """

    n_samples: int
    """Number of rows of the source."""
    shares_states: ClassVar[bool] = True

    @property
    def accumulator(self) -> RowSample:  # type: ignore[override]
        """Return the accumulator of the sums."""
        return RowSample(self.n_samples, self.n_samples, "float64")

    @override
    def init(self, n_features: int) -> RowsState:
        return self.accumulator.init(1)

    def update(self, state: RowsState, block: Block | Array) -> RowsState:
        """Return `state` with the sums of the rows of `block` added."""
        block = as_block(block)
        sums = np.asarray(block.values.sum(axis=1, dtype=np.float64)).reshape(-1, 1)
        return self.accumulator.update(state, Block(sums, block.start))

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a full state in bytes."""
        return self.accumulator.state_bytes(1)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the memory in bytes of the sums of a block, and of the copies that a merge makes."""
        return 8 * n_rows + self.accumulator.scratch_bytes(1, n_rows, 8)


@storable
@dataclass(frozen=True)
class MomentsState(StateAboutOrigin):
    """Mean and sum of squared deviations of the accumulated rows."""

    n_samples: int
    """Number of rows."""
    origin: FloatArray
    """A number near the mean of each feature, shape ``(n_features,)``."""
    offset: FloatArray
    """Mean of each feature minus `origin`, shape ``(n_features,)``."""
    scatter: FloatArray
    """Sum of squared deviations from the mean, shape ``(n_features,)``."""


@dataclass(frozen=True)
class Moments(Accumulator[MomentsState, MomentsState]):
    """Mean and variance of each feature, for dense or sparse rows; weights are ignored.

    Blocks are centred before they are squared, and states are merged by the pairwise update of Chan, Golub & LeVeque
    (1983), eq. 2.1, so a mean of 1e8 standard deviations costs no digits.

    References
    ----------
    Chan, Golub & LeVeque (1983), Algorithms for computing the sample variance: analysis and recommendations.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> moments = sp.accumulators.Moments()
    >>> state = moments.update(moments.init(3), np.arange(12.0).reshape(4, 3))
    >>> state.origin + state.offset
    array([4.5, 5.5, 6.5])
    """

    shares_states: ClassVar[bool] = True

    @override
    def init(self, n_features: int) -> MomentsState:
        return MomentsState(0, np.zeros(n_features), np.zeros(n_features), np.zeros(n_features))

    def update(self, state: MomentsState, block: Block | Array) -> MomentsState:
        """Return `state` with the rows of `block`, shape ``(n_rows, n_features)``, added.

        Raises
        ------
        NotFiniteError
            If the rows hold NaN or infinity.
        """
        block = as_block(block)
        n_rows = len(block)
        if n_rows == 0:
            return state
        if issparse(block.values):
            return self.absorb(state, _of_sparse(block))
        centred = centre(block.values, borrow("centred", block.values.shape, np.float64))
        require_finite(centred.finite, block)
        scatter = centred.squares - n_rows * centred.offset**2
        return self.absorb(state, MomentsState(n_rows, centred.origin, centred.offset, scatter))

    @override
    def absorb(self, state: MomentsState, other: MomentsState) -> MomentsState:
        if other.n_samples == 0 or state.n_samples == 0:
            return state if other.n_samples == 0 else other
        n = state.n_samples + other.n_samples
        step = step_between(state.origin, state.offset, other.origin, other.offset)
        between = step**2 * (state.n_samples * other.n_samples / n)
        offset = state.offset + step * (other.n_samples / n)
        return MomentsState(n, state.origin, offset, state.scatter + other.scatter + between)

    @override
    def state_bytes(self, n_features: int) -> int:
        return 24 * n_features + 8

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes for blocks of `n_rows` rows."""
        return 8 * n_features * n_rows


def _of_sparse(block: Block) -> MomentsState:
    """Return the state of sparse rows in compressed row form.

    Sums are about zero, where rows are sparse. Features that are stored in more than half of the rows, with a mean far
    from zero compared with their deviation, are summed about the mean of their stored values, which keeps their digits.
    """
    rows, (n, d) = csr_array(block.values), block.values.shape
    refuse_not_finite(rows, block.start)
    data, counts, origin = rows.data.astype(np.float64, copy=False), np.bincount(rows.indices, minlength=d), np.zeros(d)
    sums = np.bincount(rows.indices, data, d)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.bincount(rows.indices, data * data, d)
        far = (2 * counts > n) & ~(squares - sums * (sums / n) > _FAR * squares)
        if far.any():
            origin[far] = sums[far] / counts[far]
            data = data - origin[rows.indices]
            sums = np.bincount(rows.indices, data, d) - (n - counts) * origin
            squares = np.bincount(rows.indices, data * data, d) + (n - counts) * origin**2
    offset = sums / n
    require_finite(np.isfinite(offset) & np.isfinite(squares), block)
    return MomentsState(n, origin, offset, np.maximum(squares - n * offset**2, 0.0))
