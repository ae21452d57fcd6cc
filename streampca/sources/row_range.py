"""Consecutive rows of a source, as a source."""

from __future__ import annotations

import math
from dataclasses import replace

from streampca.labels import Labels, SampleColumns
from streampca.sources.base import ReadCount, RowsOfSource, Source
from streampca.typing import Array


class RowRange(RowsOfSource):
    """Rows `start` to `stop` of a source; blocks begin where its chunks do."""

    def __init__(self, source: Source, start: int, stop: int):
        super().__init__(source, start, stop)
        self.fragments = ()
        self.labels = None if source.labels is None else _labels_of(source.labels, start, stop)
        columns = source.sample_columns
        self.sample_columns = None if columns is None else _ColumnsOfRange(columns, start, stop)

    def __reduce__(self) -> tuple[object, ...]:
        return RowRange, (self.source, self.start, self.stop)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the source with the numbers of the rows."""
        return f"{self.source.fingerprint}-rows-{self.start}-{self.stop}"

    def describe(self) -> dict[str, object]:
        """Return the description of the source with the shape of these rows."""
        return self.source.describe() | {"shape": list(self.shape), "fingerprint": self.fingerprint}

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes that reading `n_rows` rows takes beside the block itself: a chunk more where the range ends in one."""
        n_stored, size = self.source.shape[0], self.source.chunk_rows
        divides = any(edge % size and edge != n_stored for edge in (self.start, self.stop))
        return self.source.overhead_bytes(n_rows) + (self.source.grid.chunk_bytes if divides else 0)

    def slice(self, start: int, stop: int) -> RowRange:
        """Return a source for a worker that can read rows `start` to `stop`."""
        return RowRange(self.source.slice(self.start + start, self.start + stop), self.start, self.stop)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows, read from the source."""
        return self.source.read(self.start + start, self.start + stop, out)


class _ColumnsOfRange(SampleColumns):
    """Rows `start` to `stop` of columns."""

    def __init__(self, columns: SampleColumns, start: int, stop: int):
        self.columns, self.start, self.stop = columns, start, stop

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self.columns.names

    def values(self, name: str) -> Array | None:
        """Return a column of the rows, None if there is none of that name."""
        values = self.columns.values(name)
        return None if values is None else values[self.start : self.stop]


def _labels_of(labels: Labels, start: int, stop: int) -> Labels:
    """Return the labels of rows `start` to `stop`, with coordinates where these are whole places of the first dimension."""
    first, *others = labels.samples
    inner = math.prod(dimension.size for dimension in others)
    if start % inner or stop % inner:
        return labels.resized(stop - start)
    low, high = start // inner, stop // inner
    coordinate = None if first.coordinate is None else first.coordinate[low:high]
    return replace(labels, samples=(replace(first, size=high - low, coordinate=coordinate), *others))
