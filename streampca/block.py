"""Blocks of consecutive rows, with their position in the source and their weights."""

from __future__ import annotations

from dataclasses import dataclass

from streampca.typing import Array, FloatArray


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a source."""

    values: Array
    """The rows, shape ``(n_rows, n_features)``, in the data type of the source, or sparse; must not be changed."""
    start: int = 0
    """Index of the first row within the source."""

    weights: FloatArray | None = None
    """Weight of each row, not negative, shape ``(n_rows,)``; None = all 1."""

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def slice(self, start: int, stop: int) -> Block:
        """Return rows `start` to `stop` of the block, relative to its first row."""
        weights = None if self.weights is None else self.weights[start:stop]
        return Block(self.values[start:stop], self.start + start, weights)

    def counted(self) -> Block:
        """Return the block without rows of weight 0; a copy if there are any."""
        if self.weights is None or self.weights.all():
            return self
        positive = self.weights > 0
        return Block(self.values[positive], self.start, self.weights[positive])


def as_block(rows: Block | Array) -> Block:
    """Return `rows` as a block; an array becomes a block that starts at row 0."""
    return rows if isinstance(rows, Block) else Block(rows)


@dataclass(frozen=True)
class RowWeights:
    """Weights of consecutive rows of a source."""

    values: FloatArray
    """Not negative, shape ``(n_rows,)``."""
    start: int = 0
    """Index within the source of the first row."""

    def slice(self, start: int, stop: int) -> RowWeights:
        """Return a copy of the weights of rows `start` to `stop` of the source."""
        return RowWeights(self.values[start - self.start : stop - self.start].copy(), start)

    def on(self, block: Block) -> Block:
        """Return `block` with the weights of its rows."""
        start = block.start - self.start
        return Block(block.values, block.start, self.values[start : start + len(block)])
