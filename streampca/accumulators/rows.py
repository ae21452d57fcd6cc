"""Evenly spaced sample of rows, copied in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streampca.accumulators.base import Accumulator, Forwarding
from streampca.block import Block, as_block
from streampca.storage.state_file import storable
from streampca.typing import Array, IntArray, override


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

    Memory: the sampled rows. No random numbers are used, so every division into blocks gives the same rows.

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
        """Return the rows of both in ascending order."""
        return self.merge([state, other])

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a full state in bytes."""
        return self.n_sampled * (8 + n_features * np.dtype(self.dtype).itemsize)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the memory in bytes of the copies that a merge makes."""
        return 2 * self.state_bytes(n_features)


@dataclass(frozen=True)
class RowTotals(Forwarding):
    """The sum of each row, dense or sparse, in the order of the rows: a `RowSample` of all of them with one value each.

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
        """Return what keeps the sums."""
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
