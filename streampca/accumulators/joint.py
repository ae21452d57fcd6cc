"""Several accumulators in one pass over the data, and one with smaller blocks than those that are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streampca.accumulators.base import AnyAccumulator, Forwarding
from streampca.block import Block, as_block
from streampca.typing import Array


@dataclass(frozen=True)
class Joint:
    """Update each of several accumulators with every block; a state is the tuple of their states.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> joint = sp.accumulators.Joint((sp.accumulators.Moments(), sp.accumulators.RowSample(1000, 5, "float64")))
    >>> state = joint.update(joint.init(3), np.random.default_rng(0).normal(size=(1000, 3)))
    >>> moments, sample = joint.finalize(state)
    >>> moments.n_samples, sample.index.tolist()
    (1000, [100, 300, 500, 700, 900])
    """

    parts: tuple[AnyAccumulator, ...]
    """The accumulators."""

    def init(self, n_features: int) -> tuple[object, ...]:
        """Return the states of no rows."""
        return tuple(accumulator.init(n_features) for accumulator in self.parts)

    def init_within(self, n_features: int, state: tuple[object, ...]) -> tuple[object, ...]:
        """Return the states of no rows, in the memory of `state` where the accumulators can reuse it."""
        return tuple(
            accumulator.init_within(n_features, inner)
            if hasattr(accumulator, "init_within")
            else accumulator.init(n_features)
            for accumulator, inner in zip(self.parts, state, strict=True)
        )

    def update(self, state: tuple[object, ...], block: Block | Array) -> tuple[object, ...]:
        """Return every state with the rows of `block` added."""
        block = as_block(block)
        # The first accumulator comes last, because it may overwrite the rows.
        others = [part.update(inner, block.read_only()) for part, inner in zip(self.parts[1:], state[1:], strict=True)]
        first = [part.update(inner, block) for part, inner in zip(self.parts[:1], state[:1], strict=True)]
        return (*first, *others)

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


@dataclass(frozen=True)
class InPieces(Forwarding):
    """An accumulator that gets the rows of a block in pieces, so that it takes no more memory than with blocks of that size."""

    accumulator: AnyAccumulator
    """The accumulator, whose states these are."""
    n_rows: int
    """Rows of a piece, counted from the first row of the source."""

    def update(self, state: Any, block: Block | Array) -> Any:
        """Return `state` with the rows of `block` added."""
        block = as_block(block)
        start = 0
        while start < len(block):
            stop = min(len(block), start + self.n_rows - (block.start + start) % self.n_rows)
            state = self.accumulator.update(state, block.slice(start, stop))
            start = stop
        return state

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update with a piece."""
        return self.accumulator.scratch_bytes(n_features, min(n_rows, self.n_rows), itemsize)
