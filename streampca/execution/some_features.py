"""An accumulator of some features of the rows that are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streampca.accumulators.base import AnyAccumulator, Forwarding
from streampca.block import Block, as_block
from streampca.sources.subsets import columns_of_block
from streampca.typing import Array, IntArray


@dataclass(frozen=True, eq=False)
class OfFeatures(Forwarding):
    """An accumulator that gets some columns of every block; its states are those of the inner one."""

    accumulator: AnyAccumulator
    """The accumulator of these features."""
    columns: IntArray
    """Which features, ascending."""
    column_major: bool = False
    """Whether a block of them is in Fortran order, as that of their own source would be."""

    def init(self, n_features: int) -> Any:
        """Return the state of no rows."""
        return self.accumulator.init(len(self.columns))

    def update(self, state: Any, block: Block | Array) -> Any:
        """Return `state` with the rows of `block` added."""
        rows = columns_of_block(as_block(block), self.columns, column_major=self.column_major)
        return self.accumulator.update(state, rows)

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        return self.accumulator.state_bytes(len(self.columns))

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update: that of the inner accumulator, and a block of the features."""
        own = len(self.columns)
        return self.accumulator.scratch_bytes(own, n_rows, itemsize) + n_rows * own * itemsize
