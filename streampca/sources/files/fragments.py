"""One table of the rows of several files, one after another, and the record of every file."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import xxhash

from streampca.errors import ChangedInputError, DamagedChunkError, DataError, StreamPCAError
from streampca.formatting import one_line
from streampca.labels import note_on_strands
from streampca.sources.base import ReadCount, Source, Transposed, require_table
from streampca.sources.files.records import Fragment, StoredFile
from streampca.sources.grid import Grid, parts_between, stacked_edges
from streampca.sources.versions import InputVersion, InputWatch
from streampca.typing import Array, DType

_SLAB_BYTES = 2**22


@contextmanager
def damage_named(what: str, causes: str) -> Iterator[None]:
    """Raise errors of the library that decodes a file as `DamagedChunkError`: `what` `causes`, and the error."""
    try:
        yield
    except (StreamPCAError, MemoryError):
        raise
    except Exception as error:
        raise DamagedChunkError(f"{what} {causes}: {one_line(error)}") from error


class FragmentReader(ABC):
    """Reads the rows of one file; opens it for every read, so that tables of many files keep none open."""

    place: StoredFile
    """Where the file is, by its absolute path."""
    label: str
    """What messages call it."""
    record: Fragment | None = None
    """What is known of the file; None where it may change in other places than those that are read."""
    shape: tuple[int, int]
    """(n_rows, n_features)."""
    dtype: DType
    """Data type of the rows."""
    edges: tuple[int, ...] | None = None
    """First rows of its chunks and the end of the last; None where any rows can be read alone."""
    column_major: bool = False
    """Whether blocks are read faster into Fortran order."""
    missing_chunks_filled: int = 0
    """Number of chunks that do not exist and are read as the fill value."""

    def require_same(self) -> None:
        """Raise `ChangedInputError` if the file is not the one that was recorded, by its size and time; answers for objects are compared as they come."""
        if self.record is None:
            return
        try:
            status = self.place.status()
        except OSError as error:
            raise ChangedInputError(
                f"{self.label} could be opened but can no longer be read: {error.strerror}"
            ) from error
        if status != (self.record.n_bytes, self.record.modified):
            raise ChangedInputError(
                f"{self.label} was changed after it was opened: a result would belong to neither version; run again when "
                "nothing writes to it"
            )

    @abstractmethod
    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_features)``, with rows `start` to `stop`."""

    def read_features(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_rows)``, with features `start` to `stop`; without it, they are taken from all rows."""
        raise NotImplementedError

    def check(self) -> None:  # noqa: B027
        """Raise `DataError` if stored data are known to be missing; reads none."""

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes that reading `n_rows` rows takes beside the block itself."""
        return 0


class FragmentedRows(Source):
    """The rows of files of one kind, one file after another; every file is opened by its metadata."""

    portable = True
    missing_chunks_filled = 0

    def __init__(
        self, readers: Sequence[FragmentReader], description: str, details: Mapping[str, object] | None = None
    ):
        self.description, self.details = description, dict(details or {})
        self._readers = dict(enumerate(readers))
        first = readers[0]
        self.first_rows = np.cumsum([0, *(reader.shape[0] for reader in readers)]).tolist()
        self.shape, self.dtype = (self.first_rows[-1], first.shape[1]), first.dtype
        for reader in readers[1:]:
            name, other = reader.label, first.label
            if reader.shape[1] != first.shape[1]:
                raise DataError(
                    f"{name} has {reader.shape[1]:,} columns and {other} has {first.shape[1]:,}: expected the same in all files of a table"
                )
            if reader.dtype != first.dtype:
                raise DataError(
                    f"{name} has dtype {reader.dtype} and {other} has {first.dtype}: expected the same in all files of a table; convert "
                    "one of them first"
                )
        require_table(self.shape, self.dtype, description)
        self.fragments = tuple(reader.record for reader in readers if reader.record is not None)
        self.column_major = all(reader.column_major for reader in readers)
        if any(reader.edges is not None for reader in readers):
            edges = stacked_edges(reader.edges or (0, reader.shape[0]) for reader in readers)
            self.grid = Grid.of_edges(edges, int(np.diff(edges).max()) * self.row_bytes, whole=True)
        self.watch = InputWatch()

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"labels": None, "watch": None}

    @property
    def fingerprint(self) -> str:
        """Return a hash of the records of the files."""
        digest = xxhash.xxh3_128(f"{self.shape}{self.dtype}".encode())
        for fragment in self.fragments:
            digest.update(repr(fragment).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """Return the description of the source for a manifest."""
        return super().describe() | {"n_files": len(self.fragments)} | self.details

    def plan_notes(self) -> tuple[str, ...]:
        """Return of how many variants files count the allele that the first one does not, and how many do not tell the strand."""
        notes, exchanged, unclear = [], self.details.get("exchanged_alleles"), self.details.get("palindromic_variants")
        if isinstance(exchanged, Mapping):
            counts = ", ".join(f"{n:,} of {name}" for name, n in exchanged.items())
            notes.append(f"variants with exchanged alleles are counted as in the first file: {counts}")
        if isinstance(unclear, int):
            notes.append(note_on_strands(unclear))
        return tuple(f"{self.description}: {note}" for note in notes)

    def check(self) -> None:
        """Raise `DataError` if chunks of a file are known to be missing."""
        for reader in self._readers.values():
            reader.check()
        self.missing_chunks_filled = sum(reader.missing_chunks_filled for reader in self._readers.values())

    def version(self) -> InputVersion | None:
        """Return sizes and modification times of the files."""
        items = []
        for reader in self._readers.values():
            with suppress(OSError):
                n_bytes, modified = reader.place.status()
                items.append((str(reader.place), n_bytes, str(modified)))
        return InputVersion.of(items)

    def require_unchanged(self) -> None:
        """Raise `ChangedInputError` if a file is not the one that was opened, by its size and time; names the file."""
        for reader in self._readers.values():
            reader.require_same()
        super().require_unchanged()

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory that the largest file needs beside the block."""
        return max(reader.overhead_bytes(n_rows) for reader in self._readers.values())

    def slice(self, start: int, stop: int) -> FragmentedRows:
        """Return a source for a worker with only the files of rows `start` to `stop`."""
        subset = copy.copy(self)
        subset._readers = {index: self._readers[index] for index, _, _ in parts_between(self.first_rows, start, stop)}
        records = (reader.record for reader in subset._readers.values())
        subset.fragments = tuple(record for record in records if record is not None)
        subset.grid = replace(
            self.grid, edges=None, whole=False
        )  # for the planner only, and as many as there are chunks
        return subset

    def subset(self, positions: Sequence[int]) -> FragmentedRows:
        """Return the table of only the files at `positions`, without the coordinates of rows."""
        rows = type(self)([self._readers[position] for position in positions], self.description, self.details)
        rows.labels = None if self.labels is None else self.labels.resized(rows.shape[0])
        rows.feature_names = self.feature_names
        return rows

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows, read file by file."""
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype, order="F" if self.column_major else "C")
        count, at = ReadCount(), 0
        for index, low, high in parts_between(self.first_rows, start, stop):
            self._readers[index].require_same()
            count += self._readers[index].read(low, high, out[at : at + high - low])
            at += high - low
        return out, count

    def by_features(self) -> Source:
        """Return a source whose rows are the features of this one."""
        if any(type(reader).read_features is FragmentReader.read_features for reader in self._readers.values()):
            return Transposed(self, self.grid.edges)
        return _FeaturesOfFiles(self)


class _FeaturesOfFiles(Transposed):
    """The features of the rows of files, of which each reads its own: every block of them needs a pass over all files."""

    source: FragmentedRows
    needs_all_rows = False

    def __init__(self, source: FragmentedRows, bands: None = None):
        super().__init__(source)
        self.grid = Grid()

    def reads_of(self, start: int, stop: int) -> int:
        """Return the number of decoded bytes that reading features `start` to `stop` takes."""
        return Source.reads_of(self, start, stop)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of the rows of one chunk, or of a slab, with all features."""
        rows = self.source.chunk_rows if self.source.grid.edges else max(1, _SLAB_BYTES // self.source.row_bytes)
        return self.source.overhead_bytes(rows) + rows * self.source.row_bytes

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return features `start` to `stop` as rows."""
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        count = ReadCount()
        for index, reader in self.source._readers.items():
            reader.require_same()
            first, last = self.source.first_rows[index : index + 2]
            count += reader.read_features(start, stop, out[:, first:last])
        return out, count
