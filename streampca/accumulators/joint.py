"""Several accumulators in one pass over the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streampca.accumulators.base import AnyAccumulator
from streampca.block import Block, as_block
from streampca.typing import Array


@dataclass(frozen=True)
class Joint:
    """Update each of several accumulators with every block; a state is the tuple of their states."""

    parts: tuple[AnyAccumulator, ...]
    """The accumulators."""

    def init(self, n_features: int) -> tuple[object, ...]:
        """Return the states of no rows."""
        return tuple(accumulator.init(n_features) for accumulator in self.parts)

    def update(self, state: tuple[object, ...], block: Block | Array) -> tuple[object, ...]:
        """Return every state with the rows of `block` added."""
        block = as_block(block)
        return tuple(accumulator.update(inner, block) for accumulator, inner in zip(self.parts, state, strict=True))

    def merge(self, states: Sequence[tuple[object, ...]]) -> tuple[object, ...]:
        """Merge the states of each accumulator."""
        return tuple(
            accumulator.merge(inner) for accumulator, inner in zip(self.parts, zip(*states, strict=True), strict=True)
        )

    def absorb(self, state: tuple[object, ...], other: tuple[object, ...]) -> tuple[object, ...]:
        """Absorb the states of each accumulator."""
        return tuple(accumulator.absorb(a, b) for accumulator, a, b in zip(self.parts, state, other, strict=True))

    def finalize(self, state: tuple[object, ...]) -> tuple[object, ...]:
        """Return the result of each accumulator."""
        return tuple(accumulator.finalize(inner) for accumulator, inner in zip(self.parts, state, strict=True))

    def state_bytes(self, n_features: int) -> int:
        """Return the size of all states in bytes."""
        return sum(accumulator.state_bytes(n_features) for accumulator in self.parts)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of all accumulators."""
        return sum(accumulator.scratch_bytes(n_features, n_rows, itemsize) for accumulator in self.parts)
