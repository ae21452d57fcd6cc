"""Several accumulators over one reading of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from streampca.accumulators.base import Accumulator
from streampca.block import Block, as_block


@dataclass(frozen=True)
class Joint:
    """Feed every block to each of `parts`; a state is the tuple of their states."""

    parts: tuple[Accumulator[Any, Any], ...]
    """The accumulators that share the reading."""

    def init(self, n_features: int) -> tuple[Any, ...]:
        """Return the states of no rows."""
        return tuple(part.init(n_features) for part in self.parts)

    def update(self, state: tuple[Any, ...], block: Block | NDArray[Any]) -> tuple[Any, ...]:
        """Return every state with the rows of `block` added."""
        block = as_block(block)
        return tuple(part.update(own, block) for part, own in zip(self.parts, state, strict=True))

    def merge(self, states: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Merge part by part."""
        return tuple(part.merge(own) for part, own in zip(self.parts, zip(*states, strict=True), strict=True))

    def absorb(self, state: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        """Absorb part by part."""
        return tuple(part.absorb(a, b) for part, a, b in zip(self.parts, state, other, strict=True))

    def finalize(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the result of each part."""
        return tuple(part.finalize(own) for part, own in zip(self.parts, state, strict=True))

    def state_bytes(self, n_features: int) -> int:
        """Return the size of all states in bytes."""
        return sum(part.state_bytes(n_features) for part in self.parts)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of all parts."""
        return sum(part.scratch_bytes(n_features, n_rows, itemsize) for part in self.parts)
