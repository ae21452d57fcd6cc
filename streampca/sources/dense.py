"""Sparse rows with their zeros, made dense block by block, for steps that leave no zeros."""

from __future__ import annotations

from typing import Any

from streampca.sources.base import ReadCount, RowsOfSource, Source
from streampca.sources.grid import Grid
from streampca.typing import Array

_BLOCK_BYTES = 4 * 2**20


class DenseRows(RowsOfSource):
    """The rows of a sparse source as dense ones, a block at a time.

    Parameters
    ----------
    source : Source
        The sparse rows.
    """

    def __init__(self, source: Source):
        super().__init__(source)
        self.sparse, self.buffered, self.in_memory = False, True, False
        # Any rows can be read alone, so a block has as many as dense ones should have.
        self.grid = Grid(max(1, min(source.chunk_rows, _BLOCK_BYTES // self.dense_row_bytes)))

    def __reduce__(self) -> tuple[object, ...]:
        return DenseRows, (self.source,)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the sparse rows, whose values these are."""
        return f"{self.source.fingerprint}-dense"

    @property
    def sparse_form(self) -> Source:
        """Return the sparse rows."""
        return self.source

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the sources of the arrays that the rows are stored in."""
        return self.source.stored_arrays

    def describe(self) -> dict[str, object]:
        """Return the description of the sparse rows."""
        return self.source.describe()

    def slice(self, start: int, stop: int) -> DenseRows:
        """Return a source for a worker that can read rows `start` to `stop`."""
        return DenseRows(self.source.slice(start, stop))

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes that reading the sparse rows takes."""
        return self.source.overhead_bytes(n_rows)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return the rows with their zeros."""
        rows: Any
        rows, count = self.source.read(start, stop)
        if out is not None and out.dtype == rows.dtype and (out.flags.c_contiguous or out.flags.f_contiguous):
            return rows.toarray(out=out), count
        dense = rows.toarray()
        if out is None:
            return dense, count
        out[...] = dense
        return out, count
