"""Several accumulators in one pass over the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streampca.accumulators.base import Accumulator
from streampca.block import Block, as_block
from streampca.typing import Array


@dataclass(frozen=True)
class Joint:
    """Update each of several accumulators with every block; a state is the tuple of their states."""

    parts: tuple[Accumulator[Any, Any], ...]
    """The accumulators."""

    def init(self, n_features: int) -> tuple[Any, ...]:
        """Return the states of no rows."""
        return tuple(accumulator.init(n_features) for accumulator in self.parts)

    def update(self, state: tuple[Any, ...], block: Block | Array) -> tuple[Any, ...]:
        """Return every state with the rows of `block` added."""
        block = as_block(block)
        return tuple(accumulator.update(inner, block) for accumulator, inner in zip(self.parts, state, strict=True))

    def merge(self, states: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Merge the states of each accumulator."""
        return tuple(
            accumulator.merge(inner) for accumulator, inner in zip(self.parts, zip(*states, strict=True), strict=True)
        )

    def absorb(self, state: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        """Absorb the states of each accumulator."""
        return tuple(accumulator.absorb(a, b) for accumulator, a, b in zip(self.parts, state, other, strict=True))

    def finalize(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the result of each accumulator."""
        return tuple(accumulator.finalize(inner) for accumulator, inner in zip(self.parts, state, strict=True))

    def state_bytes(self, n_features: int) -> int:
        """Return the size of all states in bytes."""
        return sum(accumulator.state_bytes(n_features) for accumulator in self.parts)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of all accumulators."""
        return sum(accumulator.scratch_bytes(n_features, n_rows, itemsize) for accumulator in self.parts)
