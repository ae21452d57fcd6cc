"""Blocks of consecutive rows, with their position in the source and their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import issparse

from streampca.typing import Array, BoolArray, FloatArray, IntArray, SparseRows


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a source."""

    values: Array
    """The rows, shape ``(n_rows, n_features)``, in the data type of the source, or sparse; may be overwritten only where there is `read_again`."""
    start: int = 0
    """Index of the first row within the source."""

    weights: FloatArray | None = None
    """Weight of each row, not negative, shape ``(n_rows,)``; None = all 1."""
    equal: tuple[tuple[int, int], ...] = ()
    """Runs of rows, relative to the first, that all equal one another: chunks that were never written."""
    read_again: Callable[[], object] | None = None
    """Reads `values`, and those of the block that this one is a slice of, again after they were overwritten; None where they must not be."""

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def slice(self, start: int, stop: int) -> Block:
        """Return rows `start` to `stop` of the block, relative to its first row."""
        weights = None if self.weights is None else self.weights[start:stop]
        equal = [(max(first, start) - start, min(last, stop) - start) for first, last in self.equal]
        runs = tuple((first, last) for first, last in equal if first < last)
        return Block(self.values[start:stop], self.start + start, weights, runs, self.read_again)

    def apart(self) -> tuple[list[Block], EqualRows | None]:
        """Return the runs of other rows, and the equal ones; the block and None if there are none or they are not finite."""
        if not self.equal or not np.isfinite(self.values[self.equal[0][0]]).all():
            return [self], None
        edges = [0, *chain.from_iterable(self.equal), len(self)]
        others = [self.slice(first, last) for first, last in zip(edges[::2], edges[1::2], strict=True) if first < last]
        equal = [self.slice(first, last) for first, last in self.equal]
        row = np.asarray(equal[0].values[0])
        if self.weights is None:
            n_rows = sum(map(len, equal))
            return others, EqualRows(row, n_rows, float(n_rows), float(n_rows))
        weights = np.concatenate([block.weights for block in equal if block.weights is not None])
        squares = float(weights @ weights)
        return others, EqualRows(row, int(np.count_nonzero(weights)), float(weights.sum()), squares)

    def counted(self) -> Block:
        """Return the block without rows of weight 0; a copy if there are any."""
        if self.weights is None or self.weights.all():
            return self
        return self.where(self.weights > 0)

    def where(self, chosen: BoolArray | IntArray) -> Block:
        """Return a copy of the `chosen` rows, by a mask or by their numbers, and their weights."""
        return Block(self.values[chosen], self.start, None if self.weights is None else self.weights[chosen])

    def dense(self) -> Block:
        """Return the block with zeros stored, too; the block itself if its rows are not sparse."""
        return Block(dense(self.values), self.start, self.weights) if issparse(self.values) else self

    def panels(self, most_rows: int) -> Iterator[Block]:
        """Yield the block in panels of at most `most_rows` rows, whose lengths differ by one at most."""
        n_panels = -(-len(self) // most_rows)
        for i in range(n_panels):
            yield self.slice(len(self) * i // n_panels, len(self) * (i + 1) // n_panels)

    def read_only(self) -> Block:
        """Return the block for a user that must not overwrite its rows, because another one reads them later."""
        return self if self.read_again is None else replace(self, read_again=None)

    def halves(self) -> Iterator[Block]:
        """Yield the first half of the rows, which is one longer where the number is odd, and the second unless it is empty."""
        middle = max(1, (len(self) + 1) // 2)
        for start in range(0, len(self), middle):
            yield self.slice(start, start + middle)

    def weight_sums(self) -> tuple[float, float]:
        """Return the sum of the weights of the rows, and that of their squares."""
        if self.weights is None:
            return float(len(self)), float(len(self))
        return float(self.weights.sum()), float(self.weights @ self.weights)


def dense(values: Array | SparseRows) -> Array:
    """Return `values` with zeros stored, too; the same array if they are not sparse."""
    return values.toarray() if issparse(values) else values


@dataclass(frozen=True)
class EqualRows:
    """Rows that all equal one another, which accumulators add in closed form."""

    row: Array
    """One of them, ``(n_features,)``, finite."""
    n_rows: int
    """How many have a positive weight."""
    weight: float
    """Sum of their weights."""
    weight_squares: float
    """Sum of the squares of their weights."""


def as_block(rows: Block | Array) -> Block:
    """Return `rows` as a block; an array, or a tensor of torch, becomes a block that starts at row 0."""
    if isinstance(rows, Block):
        return rows
    return Block(rows_of_tensor(rows) if is_tensor(rows) else rows)


def is_tensor(data: object) -> bool:
    """Return whether `data` is a tensor of torch, which is not imported for this."""
    return type(data).__module__.partition(".")[0] == "torch" and hasattr(data, "detach")


def rows_of_tensor(tensor: Any) -> Array:
    """Return a tensor as an array: the same memory where it is that of this process, else a copy; bfloat16 as float32."""
    values = tensor.detach()
    values = values.float() if "bfloat16" in str(values.dtype) else values
    return np.asarray(values.cpu().numpy())


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
        return replace(block, weights=self.values[start : start + len(block)])


def take_columns(values: Array, columns: IntArray, out: Array) -> Array:
    """Write some `columns` of `values` to `out`, ``(n_rows, n_columns)``, in the order of memory of both."""
    if out.flags.c_contiguous:
        return np.take(values, columns, axis=1, out=out, mode="clip")
    np.take(values.T, columns, axis=0, out=out.T, mode="clip")
    return out
