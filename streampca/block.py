"""A block: rows in flight, and where they stand in the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a source."""

    values: NDArray[Any]
    """The rows, shape ``(n_rows, n_features)``, in the data type of the source; never written to."""
    start: int = 0
    """Index of the first row within the source."""

    def __len__(self) -> int:
        return len(self.values)


def as_block(rows: Block | NDArray[Any]) -> Block:
    """Return `rows` as a block; a bare array is taken to start at row 0."""
    return rows if isinstance(rows, Block) else Block(rows)
