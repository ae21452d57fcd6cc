"""Rows of a table that were added since it was read before: which these are, and whether the others are what they were."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from streampca.errors import ChangedInputError, NotAvailableError
from streampca.labels import Labels
from streampca.sources.base import ColumnsOfRows, ReadCount, RowsOfSource, Source
from streampca.sources.files.fragments import FragmentedRows
from streampca.sources.files.records import Fragment, require_distinct
from streampca.sources.store_record import compare_with_record, require_same_chunks
from streampca.sources.table import TableSource
from streampca.sources.zarr.digests import StoreRecord
from streampca.typing import Array, IntArray


@dataclass(frozen=True)
class NewRows:
    """The rows of a table that were read before, and those that are new: files of it, or rows that were appended to its zarr arrays."""

    table: Source
    """The whole table."""
    sizes: tuple[int, ...]
    """Numbers of rows of its files; of a store of those that were read before, and of those that are new."""
    before: tuple[int, ...]
    """Positions in `sizes` of what was read before, in the order in which it was recorded."""
    new: tuple[int, ...]
    """Positions of what is new and has rows, ascending."""
    files: tuple[str, ...] = ()
    """The names of new files; none where rows were appended to a store."""
    compared: ReadCount = field(default_factory=ReadCount)
    """What was read to know that the other rows are what they were."""

    @classmethod
    def of_store(cls, table: Source, record: StoreRecord) -> NewRows:
        """Return the rows of `table` that are not in the `record` of its zarr arrays; reads chunks whose size or time is another, and metadata.

        Raises
        ------
        ChangedInputError
            If chunks were changed, which it names, or rows removed, or the arrays have other metadata or coordinates.
        NotAvailableError
            If new rows lie between the others.
        """
        n_before, comparison = compare_with_record(table, record)
        require_same_chunks(table, comparison)
        return cls(table, (n_before, table.shape[0] - n_before), (0,), (1,), compared=comparison.count)

    @classmethod
    def of_files(cls, table: Source, recorded: Sequence[Fragment]) -> NewRows:
        """Return the new files of `table`, of which those `recorded` were read before; reads no rows.

        A file that was renamed is known by its content and time.

        Raises
        ------
        ChangedInputError
            If a file that was read is missing, or has another size, time of modification or content; names it.
        DataError
            If two files have the same content.
        """
        require_distinct(table.fragments)
        names = {_place(fragment.name): position for position, fragment in enumerate(table.fragments)}
        taken = {names.get(_place(old.name)) for old in recorded}
        before = []
        for old in recorded:
            position = names.get(_place(old.name))
            if position is None:
                position = _renamed(old, table.fragments, taken)
                taken.add(position)
            _require_same(old, table.fragments[position])
            before.append(position)
        sizes = tuple(fragment.n_rows for fragment in table.fragments)
        known = set(before)
        added = tuple(position for position, size in enumerate(sizes) if position not in known and size)
        files = tuple(table.fragments[position].name for position in added)
        return cls(table, sizes, tuple(before), added, files)

    @property
    def n_rows(self) -> int:
        """Return the number of new rows."""
        return sum(self.sizes[position] for position in self.new)

    @property
    def appended(self) -> bool:
        """Return whether all new rows come after those that were read before, which are in the same order as they were."""
        order = (*self.before, *self.new)
        return list(order) == sorted(order)

    @property
    def n_shifted(self) -> int:
        """Return by how much the number of a new row in the table is larger than that in `rows`, where it is for all rows."""
        return 0 if self.files else self.sizes[0]

    def rows(self) -> Source:
        """Return a table of the new rows alone; raise `NotAvailableError` if they cannot be read alone."""
        table = self.table
        if not self.files:
            return RowRange(table, self.sizes[0], table.shape[0])
        if isinstance(table, FragmentedRows):
            return table.subset(self.new)
        parts = table.parts if isinstance(table, TableSource) else ()
        inner = [part.source for part in parts if isinstance(part.source, FragmentedRows)]
        if not parts or len(inner) < len(parts):
            raise NotAvailableError(f"{table.description}: only tables of several files can be read in part")
        rows = [source.subset(self.new) for source in inner]
        labels = None if table.labels is None else table.labels.resized(rows[0].shape[0])
        new = [replace(part, source=source) for part, source in zip(parts, rows, strict=True)]
        part = TableSource(new, labels, table.description)
        part.feature_names = table.feature_names
        return part

    def places(self, index: IntArray, *, new: bool) -> IntArray:
        """Return where rows of the table are: rows `index` of `rows`, or of the table as it was recorded."""
        positions, sizes = np.array(self.new if new else self.before, dtype=np.int64), np.array(self.sizes)
        now, then = np.cumsum(sizes) - sizes, np.cumsum(sizes[positions]) - sizes[positions]
        file = np.searchsorted(np.cumsum(sizes[positions]), index, "right")
        found: IntArray = index - then[file] + now[positions][file]
        return found


def _place(name: str) -> str:
    return str(Path(name).absolute())


def _renamed(old: Fragment, fragments: Sequence[Fragment], taken: Container[int | None]) -> int:
    """Return the position of the file, among those that are not `taken`, that has the content and time of `old`."""
    positions = [
        position
        for position, each in enumerate(fragments)
        if position not in taken and (each.fingerprint, each.modified) == (old.fingerprint, old.modified)
    ]
    if not positions:
        raise ChangedInputError(
            f"{old.name} is missing: its {old.n_rows:,} rows are in the run; put it back, or run again in full"
        )
    if len(positions) > 1:
        names = ", ".join(fragments[position].name for position in positions)
        raise ChangedInputError(
            f"{old.name} was renamed, and several files could be it: {names}; give it its name back, or run again in full"
        )
    return positions[0]


def _require_same(old: Fragment, now: Fragment) -> None:
    """Raise `ChangedInputError` unless a file is what it was, by size, fingerprint and time of modification."""
    if (old.n_rows, old.n_bytes, old.fingerprint) != (now.n_rows, now.n_bytes, now.fingerprint):
        what = f"it had {old.n_rows:,} rows in {old.n_bytes:,} bytes and has {now.n_rows:,} in {now.n_bytes:,}"
        what = "its content is another" if (old.n_rows, old.n_bytes) == (now.n_rows, now.n_bytes) else what
    elif old.modified != now.modified:
        what = "its time of modification is another"
    else:
        return
    raise ChangedInputError(
        f"{now.name} was changed since the run, which has its rows ({what}): put it back as it was, or run again in full"
    )


class RowRange(RowsOfSource):
    """Rows `start` to `stop` of a source; blocks begin where its chunks do."""

    def __init__(self, source: Source, start: int, stop: int):
        super().__init__(source, start, stop)
        self.fragments = ()
        self.labels = None if source.labels is None else _labels_of(source.labels, start, stop)
        columns = source.sample_columns
        self.sample_columns = None if columns is None else ColumnsOfRows(columns, slice(start, stop))

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


def _labels_of(labels: Labels, start: int, stop: int) -> Labels:
    """Return the labels of rows `start` to `stop`, with coordinates where these are whole places of the first dimension."""
    first, *others = labels.samples
    inner = math.prod(dimension.size for dimension in others)
    if start % inner or stop % inner:
        return labels.resized(stop - start)
    low, high = start // inner, stop // inner
    coordinate = None if first.coordinate is None else first.coordinate[low:high]
    return replace(labels, samples=(replace(first, size=high - low, coordinate=coordinate), *others))
