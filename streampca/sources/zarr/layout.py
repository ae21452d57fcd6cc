"""Which axes of a stored array are rows of the table and which are its columns, and where chunks lie in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import lt, sub

import numpy as np

from streampca.typing import Array

Spans = tuple[range, ...]
"""A box of an array: the indices along each axis."""


@dataclass(eq=False)
class Layout:
    """A stored array as a table: rows in C order over the row axes, columns in C order over the column axes."""

    shape: tuple[int, ...]
    """Shape of the stored array."""
    grid: tuple[int, ...]
    """Shape of its stored objects (chunks, or shards)."""
    rows: tuple[int, ...]
    """Axes whose indices make a row, the slowest first."""
    columns: tuple[int, ...]
    """Axes whose indices make a column, the slowest first."""

    table_shape: tuple[int, int] = field(init=False)
    """Number of rows, and of columns."""
    chunk_rows: int = field(init=False)
    """Number of consecutive rows that whole chunks hold: a chunk along the first row axis, all of the others."""
    column_major: bool = field(init=False)
    """Whether consecutive stored values are of consecutive rows."""

    def __post_init__(self) -> None:
        shape, rows, columns = self.shape, self.rows, self.columns
        self.table_shape = math.prod(shape[axis] for axis in rows), math.prod(shape[axis] for axis in columns)
        self.chunk_rows = self.grid[rows[0]] * math.prod(shape[axis] for axis in rows[1:]) if rows else 1
        self.column_major = bool(rows and columns) and rows[-1] > max(columns)

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """Return the number of stored objects along each axis."""
        return tuple(-(-n // size) for n, size in zip(self.shape, self.grid, strict=True))

    def holds_whole_chunks(self, n_rows: int) -> bool:
        """Return whether blocks of `n_rows` rows, counted from the first one, consist of whole chunks that consist of whole rows."""
        in_order = (*self.rows, *self.columns) == tuple(range(len(self.shape)))
        whole_rows = in_order and self.grid[1:] == self.shape[1:] and self.shape[0] % self.grid[0] == 0
        return whole_rows and (n_rows % self.chunk_rows == 0 or n_rows >= self.table_shape[0])

    def turned(self) -> Layout:
        """Return the layout of the transposed table."""
        return Layout(self.shape, self.grid, self.columns, self.rows)

    def n_rows(self, box: Spans) -> int:
        """Return the number of rows in `box`."""
        return math.prod(len(box[axis]) for axis in self.rows)

    def boxes(self, start: int, stop: int) -> Iterator[tuple[int, Spans]]:
        """Yield boxes of the array that together hold rows `start` to `stop`, each with the index of its first row.

        One box where there is one row axis, or where the rows fill all but the first; else at most two for each row axis.
        """
        box = [range(n) for n in self.shape]
        if not self.rows:
            yield start, tuple(box)
            return
        sizes = [self.shape[axis] for axis in self.rows]
        inner = [math.prod(sizes[level + 1 :]) for level in range(len(sizes))]
        at = start
        while at < stop:
            # Whole places of the slowest axis of which one begins here and ends before `stop`; the last axis always has some.
            level = next(level for level, n in enumerate(inner) if at % n == 0 and at + n <= stop)
            places = [at // n % size for n, size in zip(inner, sizes, strict=True)]
            count = min((stop - at) // inner[level], sizes[level] - places[level])
            spans = [range(place, place + 1) for place in places[:level]]
            spans += [range(places[level], places[level] + count), *map(range, sizes[level + 1 :])]
            for axis, span in zip(self.rows, spans, strict=True):
                box[axis] = span
            yield at, tuple(box)
            at += count * inner[level]

    def readings(self, start: int, stop: int) -> Iterator[tuple[Spans, list[tuple[int, Spans]]]]:
        """Yield boxes to read for rows `start` to `stop`, each with the boxes of rows in it and the index of their first row.

        The boxes of the rows are read as one, so that no chunk is read for two of them, unless that is three times as much.
        """
        boxes = list(self.boxes(start, stop))
        spans = zip(*(box for _, box in boxes), strict=True)
        whole = tuple(range(min(span.start for span in each), max(span.stop for span in each)) for each in spans)
        if self.n_rows(whole) <= self.most_rows_read(stop - start):
            yield whole, boxes
        else:
            yield from ((box, [(row, box)]) for row, box in boxes)

    def most_rows_read(self, n_rows: int) -> int:
        """Return how many rows the largest box of `readings` has for blocks of `n_rows` rows, at most."""
        inner = math.prod(self.shape[axis] for axis in self.rows[1:])
        return n_rows if inner == 1 else min(3 * n_rows, n_rows + 2 * inner, self.table_shape[0])

    def most_chunks_read(self, n_rows: int) -> int:
        """Return how many chunks hold values of blocks of `n_rows` rows, at most."""
        n_read, counts = self.most_rows_read(n_rows), self.chunk_counts
        if not self.rows:
            return math.prod(counts)
        first = counts[self.rows[0]]
        n_bands = -(-n_read // self.chunk_rows) + (n_read % self.chunk_rows > 0)
        return min(n_bands, first) * math.prod(counts) // first

    def view(self, table: Array, box: Spans) -> Array:
        """Return a view of the first rows of `table`, those of `box`, with the axes of the stored array."""
        order = (*self.rows, *self.columns)
        sizes = [len(box[axis]) for axis in order]
        split = table[: math.prod(sizes[: len(self.rows)])].reshape(sizes)
        return split.transpose([order.index(axis) for axis in range(len(order))])

    def chunks(self, box: Spans) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """Yield the chunks that hold values of `box`: coordinates, where the values lie in the box, and where in the chunk."""
        for place in product(*self.spanned(box)):
            inside, within = [], []
            for span, index, size in zip(box, place, self.grid, strict=True):
                low, high = max(span.start, index * size), min(span.stop, (index + 1) * size)
                inside.append(slice(low - span.start, high - span.start))
                within.append(slice(low - index * size, high - index * size))
            yield place, tuple(inside), tuple(within)

    def places(self, boxes: Iterable[Spans]) -> list[tuple[int, ...]]:
        """Return the coordinates of the chunks that hold values of `boxes`, in the order in which they are decoded."""
        return list(dict.fromkeys(place for box in boxes for place in product(*self.spanned(box))))

    def spanned(self, box: Spans) -> Spans:
        """Return the coordinates of the chunks that hold values of `box`, along each axis."""
        return tuple(range(s.start // size, -(-s.stop // size)) for s, size in zip(box, self.grid, strict=True))

    def n_values(self, places: Sequence[Sequence[int]]) -> int:
        """Return how many values of the array the chunks at `places` hold, see `stored_values`."""
        if len(places) < 2:
            return sum(map(self.stored_values, places))
        grid = np.array(self.grid)
        return int(np.minimum(grid, np.array(self.shape) - np.array(places) * grid).prod(axis=1).sum())

    def stored_values(self, place: Sequence[int]) -> int:
        """Return how many values of the array the chunk at `place` holds; chunks at its edges hold less than their shape."""
        return math.prod(
            min(size, n - index * size) for n, size, index in zip(self.shape, self.grid, place, strict=True)
        )


@dataclass(frozen=True)
class Target:
    """A box of an array in memory, into which chunks are decoded."""

    box: Spans
    """The indices along each axis."""
    values: Array
    """Its values, with the axes of the array."""
    grid: tuple[int, ...]
    """Shape of the chunks."""
    first: tuple[int, ...]
    """Coordinates of the first chunk of which all values are in the box."""
    whole: Array
    """The values of those chunks, by their number along each axis and the place in the chunk."""

    @classmethod
    def of(cls, layout: Layout, values: Array, box: Spans) -> Target:
        """Return the target whose `values` are those of `box`."""
        first = tuple(-(-s.start // size) for s, size in zip(box, layout.grid, strict=True))
        counts = [max(0, s.stop // size - i) for s, size, i in zip(box, layout.grid, first, strict=True)]
        if not all(counts):
            return cls(box, values, layout.grid, first, np.empty((0,) * (2 * len(box)), values.dtype))
        starts = [i * size - s.start for i, size, s in zip(first, layout.grid, box, strict=True)]
        parts = zip(starts, counts, layout.grid, strict=True)
        inner = values[tuple(slice(start, start + n * size) for start, n, size in parts)]
        split = inner.reshape([n for pair in zip(counts, layout.grid, strict=True) for n in pair])
        axes = range(len(box))
        return cls(box, values, layout.grid, first, split.transpose([2 * i for i in axes] + [2 * i + 1 for i in axes]))

    def of_chunk(self, place: Sequence[int]) -> tuple[Array, tuple[slice, ...] | None] | None:
        """Return the values of a chunk that are in the box, and where they lie in the chunk, None for all of it; None for no values."""
        number = tuple(map(sub, place, self.first))
        if min(number) >= 0 and all(map(lt, number, self.whole.shape)):
            return self.whole[number], None
        inside, within = [], []
        for span, index, size in zip(self.box, place, self.grid, strict=True):
            low, high = max(span.start, index * size), min(span.stop, (index + 1) * size)
            if low >= high:
                return None
            inside.append(slice(low - span.start, high - span.start))
            within.append(slice(low - index * size, high - index * size))
        return self.values[tuple(inside)], tuple(within)


def inside_of(box: Spans, whole: Spans) -> tuple[slice, ...]:
    """Return where `box` lies in the box `whole`."""
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(box, whole, strict=True))


def copy_values(values: Array, out: Array) -> None:
    """Write `values` to `out`; a few that are adjacent along the last axis of both, such as the alleles of a genotype, are copied as one."""
    size, dtype = values.shape[-1] * values.itemsize, values.dtype
    adjacent = size in (2, 4, 8) and values.shape[-1] > 1 and dtype == out.dtype
    if adjacent and all(
        each.strides[-1] == dtype.itemsize and not any(n % size for n in each.strides[:-1]) for each in (values, out)
    ):
        values, out = values.view(f"u{size}"), out.view(f"u{size}")
    out[...] = values
