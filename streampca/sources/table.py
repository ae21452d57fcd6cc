"""A table made of stored arrays: packed values are decoded, features left out by a mask, and variables put side by side."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
import xxhash

from streampca.errors import PartlyMissingError
from streampca.labels import Labels
from streampca.sources.base import ReadCount, Source, TransposedSource, divided_edges, merged_edges, require_table
from streampca.sources.packing import Packing
from streampca.sources.versions import InputVersion
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, DType, IntArray

_SLAB_BYTES = 1 << 18  # decoded while it is in the cache of a core


@dataclass(frozen=True)
class StoredVariable:
    """The array of one variable."""

    source: Source
    """Its rows as they are stored; if the table is turned, its features."""
    packing: Packing | None = None
    """How its values are decoded; None where they are meant as they are stored."""
    mask: BoolArray | None = None
    """Which of its features are in the table, ``(n_features,)``; None where all are."""
    observed_only: bool = False
    """Whether features that are not used must hold no value at all, which is checked whenever they are read."""

    @property
    def n_stored(self) -> int:
        """Return the number of its features, those that are left out included."""
        return self.source.shape[1]

    @property
    def n_features(self) -> int:
        """Return the number of its features in the table."""
        return self.n_stored if self.mask is None else int(self.mask.sum())

    @property
    def dtype(self) -> DType:
        """Return the data type of its values in the table."""
        return self.source.dtype if self.packing is None else self.packing.dtype

    def masked(self, mask: BoolArray | None, observed_only: bool) -> StoredVariable:
        """Return the variable with only the features in `mask`."""
        return replace(self, mask=None if mask is None or mask.all() else mask, observed_only=observed_only)

    def missing(self, stored: Array) -> BoolArray:
        """Return where stored values mean that nothing was observed."""
        if self.packing is not None:
            return self.packing.missing(stored)
        return np.isnan(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, dtype=bool)

    def turned(self) -> StoredVariable:
        """Return the part whose source has features in rows."""
        return replace(self, source=self.source.by_features())

    def overhead_bytes(self, n_rows: int, *, turned: bool = False) -> int:
        """Return the memory in bytes that reading `n_rows` rows of its source takes beside the block."""
        n_rows = self.longest_span(n_rows) if turned else n_rows
        reading = self.source.overhead_bytes(n_rows)
        if self.packing is None and self.mask is None:
            return reading
        return reading + n_rows * self.source.row_bytes + 4 * _SLAB_BYTES

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_features)``, with the used features of rows `start` to `stop`."""
        if self.packing is None and self.mask is None and out.dtype == self.source.dtype:
            return _read_into(self.source, start, stop, out)
        stored, count = self._stored(start, stop)
        if self.observed_only and self.mask is not None:
            self._require_missing(stored, np.flatnonzero(~self.mask), start)
        used = None if self.mask is None else np.flatnonzero(self.mask)
        if self.source.column_major:
            self._decode_rows(stored.T, used, out.T)
        else:
            self._decode_columns(stored, used, out)
        return count

    def read_features(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out` with used features `start` to `stop` as rows; the source is a turned one."""
        if self.packing is None and self.mask is None and out.dtype == self.source.dtype:
            return _read_into(self.source, start, stop, out)
        places = self.places(start, stop)
        stored, count = self._stored(int(places[0]), int(places[-1]) + 1)
        used = None if self.mask is None else places - places[0]
        if self.source.column_major:
            self._decode_columns(stored.T, used, out.T)
        else:
            self._decode_rows(stored, used, out)
        return count

    def places(self, start: int, stop: int) -> IntArray:
        """Return where used features `start` to `stop` are among all features of the array."""
        return np.arange(start, stop) if self.mask is None else np.flatnonzero(self.mask)[start:stop]

    def longest_span(self, n_features: int) -> int:
        """Return how many features of the array lie between the first and the last of `n_features` used ones, at most."""
        n = min(n_features, self.n_features)
        if self.mask is None:
            return n
        places = np.flatnonzero(self.mask)
        return int((places[n - 1 :] - places[: len(places) - n + 1]).max()) + 1

    def _stored(self, start: int, stop: int) -> tuple[Array, ReadCount]:
        """Return rows of the source as they are stored, in scratch memory."""
        shape = (stop - start, self.source.shape[1])
        if self.source.column_major:
            return self.source.read(start, stop, borrow("stored rows", shape[::-1], self.source.dtype).T)
        return self.source.read(start, stop, borrow("stored rows", shape, self.source.dtype))

    def _decode_columns(self, stored: Array, used: IntArray | None, out: Array) -> None:
        """Write the decoded columns `used` of stored values to `out`, a few rows at a time, which stay in the cache."""
        for rows in _slabs(stored):
            values = stored[rows]
            if used is not None:
                columns = borrow("used columns", (len(values), len(used)), stored.dtype)
                values = values.take(used, axis=1, out=columns, mode="clip")  # the mode that needs no copy of `columns`
            self._decode(values, out[rows])

    def _decode_rows(self, stored: Array, used: IntArray | None, out: Array) -> None:
        """Write the decoded rows `used` of stored values to `out`, a few at a time."""
        for rows in _slabs(out):
            self._decode(stored[rows] if used is None else stored[used[rows]], out[rows])

    def _decode(self, stored: Array, out: Array) -> None:
        """Write stored values to `out` as they are meant."""
        if self.packing is None:
            out[...] = stored
        else:
            self.packing.decode(stored, out)

    def _require_missing(self, stored: Array, left_out: IntArray, start: int) -> None:
        """Raise `DataError` if a feature that was left out because it was never observed has a value in rows from `start` on."""
        for rows in _slabs(stored):
            missing = self.missing(stored[rows].take(left_out, axis=1))
            if missing.all():
                continue
            row, column = (int(index) for index in np.argwhere(~missing)[0])
            raise PartlyMissingError(
                f"{self.source.description}: feature {int(left_out[column])} was missing in every row of the first chunk, "
                f"and has a value in row {start + rows.start + row}: mask='observed' leaves out features that are never observed; name "
                "those to use with a mask of your own (mask='survey' reads all rows once more beforehand to find them), and say with "
                "missing= what the remaining missing values mean"
            )


def _slabs(values: Array) -> Iterator[slice]:
    """Yield slices of rows that fit in the cache of a core while they are decoded."""
    step = max(1, _SLAB_BYTES // max(1, values[:1].nbytes))
    for first in range(0, len(values), step):
        yield slice(first, min(first + step, len(values)))


def _read_into(source: Source, start: int, stop: int, out: Array) -> ReadCount:
    """Fill `out` with rows of a source, which may return a view of its own memory instead."""
    values, count = source.read(start, stop, out)
    if values is not out:
        out[...] = values
    return count


class TableSource(Source):
    """Variables side by side as one table: each row holds the used features of the first variable, then of the second, and so on.

    Every variable is read where it is stored, into scratch memory where it is decoded or masked, once in every pass.
    """

    def __init__(self, parts: Sequence[StoredVariable], labels: Labels | None, description: str):
        self.parts, self.labels, self.description = tuple(parts), labels, description
        sources = [part.source for part in self.parts]
        self.dtype = np.result_type(*(part.dtype for part in self.parts))
        self.shape = (sources[0].shape[0], sum(part.n_features for part in self.parts))
        require_table(self.shape, self.dtype, description)
        self.chunk_rows = min(math.lcm(*(source.chunk_rows for source in sources)), self.shape[0])
        self.chunk_bytes = max(source.chunk_bytes for source in sources)
        self.portable = all(source.portable for source in sources)
        self.column_major = all(source.column_major for source in sources)
        self.repeats = max(source.repeats for source in sources)
        self.fragments = sources[0].fragments if len(sources) == 1 else ()
        self._edges = np.cumsum([0, *(part.n_features for part in self.parts)]).tolist()

    def __reduce__(self) -> tuple[object, ...]:
        return TableSource, (self.parts, self.labels, self.description)

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the sources of the variables."""
        return tuple(part.source for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the fingerprints of the arrays, of how they are decoded, and of the mask."""
        digest = xxhash.xxh3_128()
        for part in self.parts:
            mask = b"" if part.mask is None else xxhash.xxh3_128(np.packbits(part.mask).tobytes()).digest()
            digest.update(f"{part.source.fingerprint}|{part.packing}|".encode() + mask)
        return digest.hexdigest()

    @property
    def missing_chunks_filled(self) -> int:  # type: ignore[override]
        """Return the number of missing chunks of all arrays that are read as the fill value."""
        return sum(part.source.missing_chunks_filled for part in self.parts)

    def describe(self) -> dict[str, object]:
        """Return the description of the source for a manifest."""
        arrays = [part.source.describe() | {"decoded": part.packing is not None} for part in self.parts]
        names = [str(array["array"]) for array in arrays if array.get("array")]
        described = super().describe() | {
            "path": arrays[0]["path"],
            "array": ", ".join(names) or None,
            "n_masked": sum(part.n_stored - part.n_features for part in self.parts),
        }
        return arrays[0] | described if len(arrays) == 1 else described | {"variables": arrays}

    def check(self) -> None:
        """Raise `DataError` if anything that will be read is known to be missing."""
        for part in self.parts:
            part.source.check()

    def plan_notes(self) -> tuple[str, ...]:
        """Return notes about reading the arrays; raise an error if no plan is possible."""
        return tuple(note for part in self.parts for note in part.source.plan_notes())

    def block_edges(self, n_rows: int) -> tuple[int, ...] | None:
        """Return the edges of blocks that read nothing of a single array twice."""
        return self.parts[0].source.block_edges(n_rows) if len(self.parts) == 1 else None

    def equal_rows(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of rows of which no chunk of any array was ever written."""
        runs: tuple[tuple[int, int], ...] = ((start, stop),)
        for part in self.parts:
            pairs = product(runs, part.source.equal_rows(start, stop))
            runs = tuple((max(a, b), min(c, d)) for (a, c), (b, d) in pairs if max(a, b) < min(c, d))
        return runs

    def slice(self, start: int, stop: int) -> TableSource:
        """Return a source for a worker with no more of lazy arrays than rows `start` to `stop` need."""
        subset = copy.copy(self)
        subset.parts = tuple(replace(part, source=part.source.slice(start, stop)) for part in self.parts)
        return subset

    def require_unchanged(self) -> None:
        """Raise `ChangedInputError` if an array was changed since it was first read."""
        for part in self.parts:
            part.source.require_unchanged()

    def version(self) -> InputVersion | None:
        """Return the version of all arrays together, None where one is not known."""
        versions = [part.source.version() for part in self.parts]
        known = [version for version in versions if version is not None]
        return (
            None
            if len(known) < len(versions)
            else InputVersion.of((str(index), version.n_bytes, version.digest) for index, version in enumerate(known))
        )

    def cancel(self) -> None:
        """Cancel pending reads with an error."""
        for part in self.parts:
            part.source.cancel()

    def reads_of(self, start: int, stop: int) -> int:
        """Return the number of stored bytes, decoded, that reading rows `start` to `stop` takes."""
        return sum(part.source.reads_of(start, stop) for part in self.parts)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of one array's rows as they are stored, and of what decodes them."""
        return max(part.overhead_bytes(n_rows) for part in self.parts)

    def keys(self, start: int, stop: int) -> list[str]:
        """Return the keys of the stored chunks that hold rows `start` to `stop`."""
        return [key for part in self.parts for key in part.source.keys(start, stop)]

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows, each variable in its columns."""
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        count = ReadCount()
        n_before = 0
        for part, first in zip(self.parts, self._edges, strict=False):
            try:
                count += part.read(start, stop, out[:, first : first + part.n_features])
            except PartlyMissingError as error:
                raise self._named(error, n_before) from None
            n_before += part.n_stored
        return out, count

    def _named(self, error: PartlyMissingError, n_before: int) -> PartlyMissingError:
        """Return the error with the coordinates of the row and of the feature, of a variable after `n_before` features."""
        match = re.search(r"feature (\d+) .* in row (\d+)", str(error))
        if self.labels is None or match is None:
            return error
        feature, row = int(match[1]), int(match[2])
        name, sample = self.labels.with_mask(None).known_name(n_before + feature), self.labels.sample_name(row)
        message = str(error)
        message = message if name is None else message.replace(f"feature {feature} ", f"feature {feature} [{name}] ", 1)
        message = message if sample is None else message.replace(f"in row {row}", f"in row {row} [{sample}]", 1)
        return PartlyMissingError(message)

    def by_features(self) -> Source:
        """Return a source whose rows are the features of this one."""
        return _TransposedTable(self)


class _TransposedTable(TransposedSource):
    """The transpose of a table: its rows are features."""

    source: TableSource

    def __init__(self, table: TableSource):
        super().__init__(table)
        self.parts, edges = [part.turned() for part in table.parts], [0]
        for part, first in zip(self.parts, table._edges, strict=False):
            bands = np.arange(0, part.source.shape[0], part.source.chunk_rows)
            counts = bands if part.mask is None else np.concatenate([[0], np.cumsum(part.mask)])[bands]
            edges += (first + counts).tolist()
        self.edges = sorted({*edges, self.shape[0]})
        self._places = [None if part.mask is None else np.flatnonzero(part.mask) for part in self.parts]
        self.chunk_rows = int(np.diff(self.edges).max())
        self.chunk_bytes, self.column_major = table.chunk_bytes, not table.column_major

    def cancel(self) -> None:
        """Cancel pending reads with an error."""
        for part in self.parts:
            part.source.cancel()

    def block_edges(self, n_rows: int) -> tuple[int, ...] | None:
        """Return the edges of blocks of at most `n_rows` features that hold whole bands of chunks, or equal parts of one band."""
        return merged_edges(divided_edges(self.edges, n_rows), n_rows)

    def reads_of(self, start: int, stop: int) -> int:
        """Return the number of stored bytes, decoded, that reading features `start` to `stop` takes."""
        n_bytes = 0
        for index, low, high in self._parts_of(start, stop):
            places = self._places[index]
            first, last = (low, high - 1) if places is None else places[[low, high - 1]].tolist()
            n_bytes += self.parts[index].source.reads_of(first, last + 1)
        return n_bytes

    def _parts_of(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the index of each part with the first and last of its features that are among features `start` to `stop`."""
        for index, (first, last) in enumerate(pairwise(self.source._edges)):
            low, high = max(start, first), min(stop, last)
            if low < high:
                yield index, low - first, high - first

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of stored rows of one array, of which a block holds those in the mask."""
        return max(part.overhead_bytes(n_rows, turned=True) for part in self.parts)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return features `start` to `stop` as rows."""
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        count, at = ReadCount(), 0
        for index, low, high in self._parts_of(start, stop):
            count += self.parts[index].read_features(low, high, out[at : at + high - low])
            at += high - low
        return out, count
