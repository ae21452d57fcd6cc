"""Layout of the chunks of a table, cost of reading rows, and order of reading blocks: arithmetic without a source."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

_MOST_EDGES = 2**18
"""Blocks beyond which their edges are not listed: a plan lists them for each size of blocks that it tries."""
Span = tuple[int, int]
"""First row of a block, and the row behind its last."""
requests_since: dict[object, float] = {}
"""When those requests to stores were first sent, by any thread of this process, that have no answer yet; of `time.monotonic`."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=requests_since.clear)


@dataclass(frozen=True)
class Grid:
    """The chunks of a table: all of as many rows, or with the `edges` of their bands."""

    chunk_rows: int = 1
    """Rows of one chunk, the largest, of which a table may have fewer: blocks that are multiples of it read no chunk twice."""
    chunk_columns: int = 0
    """Columns of one chunk; 0 where chunks hold whole rows, or are not known."""
    chunk_bytes: int = 0
    """Size in bytes of the largest decoded chunk; 0 where rows are not stored in chunks."""
    unit_rows: int = 0
    """Rows of what is decoded at once, less than `chunk_rows` in shards; 0 = those of a chunk."""
    whole: bool = False
    """Whether a unit is decoded as a whole wherever some of its rows are read; if not, rows are read alone or what is left is kept."""
    edges: tuple[int, ...] | None = None
    """First rows of the bands of chunks and the end of the last, where these are not all of `chunk_rows` rows."""
    skipped: int = 0
    """Rows of the first chunk that are before the first of the table."""

    @classmethod
    def of_edges(cls, edges: Sequence[int], band_bytes: int = 0, *, whole: bool = False) -> Grid:
        """Return the grid of bands with these edges, of which the largest is decoded to `band_bytes`."""
        return cls(int(np.diff(edges).max()), 0, band_bytes, whole=whole, edges=tuple(edges))

    @classmethod
    def joined(cls, grids: Sequence[Grid]) -> Grid:
        """Return the grid of tables side by side."""
        if len(grids) == 1:
            return replace(grids[0], chunk_columns=0)
        rows, units = math.lcm(*(grid.chunk_rows for grid in grids)), math.lcm(*(grid.decoded_rows for grid in grids))
        return cls(rows, 0, max(grid.chunk_bytes for grid in grids), units)

    @property
    def decoded_rows(self) -> int:
        """Return the rows of what is decoded at once: blocks that are multiples of it decode nothing twice."""
        return self.unit_rows or self.chunk_rows

    def decoded(self, start: int, stop: int, n_rows: int) -> int:
        """Return how many of `n_rows` rows are decoded where rows `start` to `stop` are read."""
        if not self.whole:
            return stop - start
        if self.edges is not None:
            first = self.edges[int(np.searchsorted(self.edges, start, "right")) - 1]
            return self.edges[int(np.searchsorted(self.edges, stop, "left"))] - first
        size = self.decoded_rows
        return min(-(-stop // size) * size, n_rows) - start // size * size

    def block_edges(self, most_rows: int, n_rows: int) -> tuple[int, ...] | None:
        """Return the edges of blocks of at most `most_rows` rows that read nothing twice, None where equal blocks do not.

        Bands of more rows are divided into equal parts where a unit is decoded as a whole; if not, equal blocks do as well, and so
        they do where edges would be too many to be kept.
        """
        edges: Sequence[int] | None = self.edges
        if n_rows > most_rows * _MOST_EDGES:
            return None
        if self.skipped:
            step = most_rows // self.chunk_rows * self.chunk_rows or self.chunk_rows
            edges = [0, *range(step - self.skipped, n_rows, step), n_rows]
        if edges is None:
            return None
        if self.whole or self.skipped:
            divided = [0]
            for start, stop in pairwise(edges):
                n_parts = -(-(stop - start) // most_rows)
                divided += [start + (stop - start) * (i + 1) // n_parts for i in range(n_parts)]
            edges = divided
        return merged_edges(edges, most_rows)

    def joined_rows(self, n: int) -> Grid:
        """Return the grid of a table each row of which is made of `n` consecutive rows of this one."""
        if n == 1:
            return self
        rows, units = (math.lcm(size, n) // n if size else 0 for size in (self.chunk_rows, self.unit_rows))
        edges = None if self.edges is None else tuple(dict.fromkeys(-(-edge // n) for edge in self.edges))
        return replace(self, chunk_rows=rows, unit_rows=units, edges=edges)


def merged_edges(edges: Sequence[int], n_rows: int) -> tuple[int, ...] | None:
    """Return those of the `edges` of bands that make blocks of at most `n_rows` rows, None if a band or equal blocks do.

    None where all bands but the last have the same size, of which `n_rows` is a multiple or all rows, so that equal blocks
    hold whole bands, and where one band is larger than a block.
    """
    sizes = np.diff(edges)
    whole = n_rows >= edges[-1] or n_rows % int(sizes[0]) == 0
    equal = whole and bool((sizes[:-1] == sizes[0]).all()) and sizes[-1] <= sizes[0]
    if sizes.max() > n_rows or equal:
        return None
    merged = [0]
    for edge, following in zip(edges[1:], [*edges[2:], None], strict=True):
        if following is None or following - merged[-1] > n_rows:
            merged.append(int(edge))
    return tuple(merged)


def stacked_edges(parts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the edges of bands of tables one after another, of those of each, from 0 to its number of rows."""
    edges = [0]
    for each in parts:
        edges += [edges[-1] + edge for edge in each[1:] if edge > 0]
    return tuple(dict.fromkeys(edges))


def parts_between(edges: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the parts between `edges` that hold rows `start` to `stop`: position, first row in the part, and row behind the last."""
    index = int(np.searchsorted(edges, start, "right")) - 1
    while start < stop:
        first, last = edges[index], min(stop, edges[index + 1])
        if start < last:
            yield index, start - first, last - first
        start, index = last, index + 1


@dataclass(frozen=True)
class Schedule:
    """Blocks that will be read, leaf by leaf, and the memory for what is read ahead."""

    n_leaves: int
    """Number of leaves."""
    spans_of: Callable[[int], Sequence[Span]]
    """The blocks of a leaf in the order of reading, by its index."""
    at_once: int
    """Leaves that are read at once, the first ones first."""
    n_bytes: int
    """Bytes of stored data that may be in memory ahead of their use."""

    @classmethod
    def in_order(cls, spans: Sequence[Span], n_bytes: int) -> Schedule:
        """Return the schedule of one thread that reads `spans`."""
        return cls(1, lambda _: spans, 1, n_bytes)

    def mapped(self, change: Callable[[Span], Span | None], n_shares: int = 1) -> Schedule:
        """Return the schedule of one of `n_shares` arrays, whose rows are those that `change` returns; None for no rows."""

        def spans_of(index: int) -> list[Span]:
            return [span for each in self.spans_of(index) if (span := change(each)) is not None]

        return replace(self, spans_of=spans_of, n_bytes=self.n_bytes // n_shares)
