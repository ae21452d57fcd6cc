"""Rows of a zarr array of any number of axes, version 2 or 3, read strictly: a missing or damaged chunk is an error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from zarr.abc.store import Store
from zarr.storage import LocalStore

from streampca.errors import (
    AlteredChunkError,
    ChangedInputError,
    DamagedChunkError,
    DataError,
    MissingChunkError,
    MissingInnerChunkError,
    OutsideStoreError,
    StoreError,
)
from streampca.formatting import one_line
from streampca.redaction import shown
from streampca.sources.base import ReadCount, Source, require_table
from streampca.sources.conventions import packing
from streampca.sources.dimensions import Axes
from streampca.sources.grid import Grid
from streampca.sources.remote import RemoteStore, StoreOfZarr, retrying
from streampca.sources.schedule import Schedule
from streampca.sources.versions import InputVersion, InputWatch, Item, chunk_files, files, objects
from streampca.sources.zarr.chunks import ChunkReader
from streampca.sources.zarr.codecs import bounded, chain_of, require_codecs
from streampca.sources.zarr.digests import DIGEST_BYTES, ChunkDigests, Digests, deciding_metadata
from streampca.sources.zarr.layout import Layout, Spans, inside_of
from streampca.sources.zarr.metadata import (
    METADATA_NAMES,
    feature_names,
    feature_shape,
    most_stored_object,
    require_readable,
)
from streampca.sources.zarr.strictness import StrictStore, inner_store, presence_of
from streampca.storage.zarr_interface import ZarrArray, array_of, default_buffer_prototype, sync
from streampca.system.process import release_freed_memory
from streampca.typing import Array, BoolArray

_REMOTE_READINGS = 3
_DECODED_BY_ZARR = 10
"""Chunks that zarr decodes at once, at most (`async.concurrency` of its configuration)."""
_LARGE_BYTES = 2**20
_RETURNED_BYTES = 2**25
"""Size from which the C library returns memory to the system after every use."""
_MOST_NAMED = 5
_MOST_COUNTED = 100_000


class ZarrSource(Source):
    """A zarr array with any chunk grid, sharded or not, as a table.

    Parameters
    ----------
    axes : pair of tuples of int
        Axes of the array whose indices make a row, and those whose indices make a column, each the slowest first.
    """

    portable = True

    def __init__(
        self,
        array: ZarrArray,
        description: str,
        name: str | None,
        axes: Axes,
        fill: bool,
        digests: ChunkDigests | None = None,
        follow_symlinks: bool = False,
    ):
        self.description, self.name, self.fill = description, name, fill
        self.digests, self.follow_symlinks = digests, follow_symlinks
        label = self.label
        shape, grid = (tuple(int(n) for n in sizes) for sizes in (array.shape, array.shards or array.chunks))
        if array.ndim == sum(map(len, axes)):
            self.layout = Layout(shape, grid, *axes)
            shape = self.layout.table_shape
        require_table(shape, np.dtype(array.dtype), label)
        store = retrying(_at_its_place(inner_store(array.store)))
        self.dtype, metadata = np.dtype(array.dtype), array.metadata
        require_readable(metadata, self.dtype.itemsize, label)
        most = most_stored_object(metadata, self.dtype.itemsize)
        self.store = StrictStore(store, fill, most, digests, follow_symlinks)
        self.store.n_held = min(_DECODED_BY_ZARR, self.layout.most_chunks_read(1))
        self.array = array_of(metadata, self.store, array.path)
        self._bounded = bounded(self.array, fill)
        self.shape = self.layout.table_shape
        # Inner chunks of shards are decoded by themselves.
        self._decoded = replace(self.layout, grid=tuple(int(n) for n in array.chunks))
        chunk_bytes = math.prod(self.layout.grid) * self.dtype.itemsize
        self.grid = Grid(
            self.layout.chunk_rows, self.layout.turned().chunk_rows, chunk_bytes, self._decoded.chunk_rows, whole=True
        )
        self.feature_shape = feature_shape(metadata.attributes, self.shape[1])
        self.feature_names = feature_names(metadata.attributes, self.shape[1])
        self.remote = isinstance(store, RemoteStore)
        self.portable = (
            store.portable if isinstance(store, RemoteStore) else "memory" not in type(store).__name__.lower()
        )
        self.column_major = self.layout.column_major
        self.watch = InputWatch()
        self._documents = self._stored_documents()
        self.stored: BoolArray | None = None
        self.known: Digests | None = None
        place: Path | RemoteStore | StoreOfZarr = (
            Path(store.root) / array.path
            if type(store) is LocalStore
            else store
            if isinstance(store, RemoteStore)
            else StoreOfZarr(store, label)
        )
        self.direct = ChunkReader.of(self.array, self.layout, place, label, digests, fill, lambda: self.stored)
        if self.direct is not None and self.direct.scatters:
            self.grid = replace(self.grid, whole=False)
        self.reads_ahead = self.direct is not None and self.remote
        self._knows_missing, self._n_missing_values = False, 0

    def _view(self, axes: Axes) -> tuple[ZarrArray, str, str | None, Axes, bool, ChunkDigests | None, bool]:
        """Return the arguments that make a source of the same array."""
        return self.array, self.description, self.name, axes, self.fill, self.digests, self.follow_symlinks

    @property
    def _missing_chunks(self) -> dict[str, object]:
        """Return what is known of missing chunks, for other views of the array."""
        names = ("stored", "_knows_missing", "_n_missing_values", "missing_chunks_filled")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[object, ...]:
        return ZarrSource, self._view((self.layout.rows, self.layout.columns)), self._missing_chunks

    def by_features(self) -> ZarrSource:
        """Return a source whose rows are the features of this one."""
        turned = ZarrSource(*self._view((self.layout.columns, self.layout.rows)))
        turned.watch, turned._documents = self.watch, self._documents
        vars(turned).update(self._missing_chunks)
        return turned

    @property
    def label(self) -> str:
        """Return path and name of the array, for messages."""
        return f"{self.description}/{self.name}" if self.name else self.description

    def stored_metadata(self) -> bytes:
        """Read the stored metadata."""
        name = "zarr.json" if self.array.metadata.zarr_format == 3 else ".zarray"
        stored = sync(self.store.get(f"{self.key_prefix}{name}", default_buffer_prototype()))
        if stored is None:
            raise DataError(f"{self.label}: its {name} is gone")
        return stored.to_bytes()

    def deciding_metadata(self) -> str:
        """Read the stored metadata and return what of them decides what the bytes of a chunk mean, as JSON."""
        return deciding_metadata(self.stored_metadata(), packing(self.array.metadata))

    def require_fingerprinted(self) -> None:
        """Raise `DataError` unless the stored metadata are those of the digests that chunks are compared with, where there are any."""
        if self.digests is not None:
            form = self.layout.shape, self.deciding_metadata(), self.layout.chunk_counts
            self.digests.require_form(*form, self.label)

    def note_digests(self) -> Digests:
        """Return the digests of chunks that are known; from now on, those of chunks that this process reads are added."""
        if self.known is None and self.digests is not None:
            self.known = self.digests.digests.copy()  # of all chunks
        elif self.known is None:
            self.known = np.zeros((*self.layout.chunk_counts, DIGEST_BYTES), dtype=np.uint8)
            self.store.known = self.known
            self.direct = None if self.direct is None else replace(self.direct, known=self.known)
        return self.known

    @property
    def key_prefix(self) -> str:
        """Return the prefix of the keys of chunks in the store."""
        return f"{self.array.path}/" if self.array.path else ""

    @property
    def fingerprint(self) -> str:
        """Return the xxh3 hash of the array's own metadata and its place."""
        metadata = json.dumps(self.array.metadata.to_dict(), sort_keys=True, default=str)
        rows, columns = self.layout.rows, self.layout.columns
        order = rows == (1,) if self.array.ndim == 2 else (rows, columns)
        return xxhash.xxh3_128(f"{metadata}|{self.description}|{self.name}|{order}".encode()).hexdigest()

    def describe(self) -> dict[str, object]:
        """Return the description of the source for a manifest."""
        return super().describe() | {
            "array": self.name,
            "chunks": list(self.layout.grid),
            "orientation": "features_first" if self.column_major else "samples_first",
            "reader": "direct" if self.direct else "zarr",
            "packing": packing(self.array.metadata) or None,
            "verified_by": None
            if self.digests is None
            else {"path": str(self.digests.place), "digest": self.digests.whole},
        }

    def keys(self, start: int, stop: int) -> list[str]:
        """Return the keys of the stored objects that hold rows `start` to `stop`."""
        return list(dict.fromkeys(key for key, _ in self._chunks_of(start, stop)))

    def check(self) -> None:
        """Raise `MissingChunkError` if chunks do not exist, or note which where they are to be filled."""
        self.store.forget_shards()
        exists = presence_of(self.store, self.key_prefix)
        if exists is None:  # such as plain HTTP: a missing chunk is found when it is read
            if self.fill:
                raise DataError(
                    f"{shown(self.description)}: missing_chunks: fill is for stores that can list their keys, so that what was filled "
                    "is counted: set missing_chunks: error, or copy the store"
                )
            return
        n_missing, n_values, first = 0, 0, list[str]()
        stored = np.ones(self.layout.chunk_counts if self.fill else (), dtype=bool)
        for place in product(*map(range, self.layout.chunk_counts)):
            key = self.array.metadata.encode_chunk_key(place)
            if exists(key):
                continue
            n_missing += 1
            if self.fill:
                stored[place] = False
                n_values += self.layout.stored_values(place)
            if n_missing <= _MOST_NAMED:
                first.append(key)
            if n_missing == _MOST_COUNTED and not self.fill:
                break  # metadata may declare many times more chunks than anybody has stored
        if n_missing and not self.fill:
            count = f"{n_missing}" if n_missing < _MOST_COUNTED else f"at least {n_missing}"
            raise MissingChunkError(
                f"{self.description}: {count} of {math.prod(self.layout.chunk_counts)} chunks do not exist, first: {', '.join(first)}; "
                "write them, or set missing_chunks: fill to read them as the fill value"
            )
        if n_missing and self.array.metadata.fill_value is None:
            raise DataError(
                f"{self.label}: {n_missing:,} chunks were never written and the array has no fill value (null in .zarray), so that they have "
                f"no values, first: {', '.join(first)}: write them, or the fill value that they have"
            )
        self.missing_chunks_filled, self._n_missing_values = n_missing, n_values
        # A chunk whose digest is known is missed where it is read.
        self.stored, self._knows_missing = stored if n_missing and self.digests is None else None, True

    def plan_notes(self) -> tuple[str, ...]:
        """Return how many chunks are the fill value because they were never written, where that is allowed."""
        if not self._known_missing():
            return ()
        return (
            f"{self.missing_chunks_filled:,} of {math.prod(self.layout.chunk_counts):,} chunks were never written: they are the fill "
            f"value, {self.array.fill_value}, and are not read",
        )

    def _known_missing(self) -> bool:
        """Look for missing chunks once if they are filled; return whether there are any."""
        if self.fill and not self._knows_missing:
            self.check()
        return self.stored is not None

    def equal_rows(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of rows from `start` to `stop` of which no chunk was ever written."""
        if self.stored is None or not self.layout.rows:
            return ()
        others = tuple(axis for axis in range(self.stored.ndim) if axis != self.layout.rows[0])
        bands = np.asarray(self.stored.any(axis=others))
        size, first = self.chunk_rows, start // self.chunk_rows
        missing = ~bands[first : -(-stop // size)]
        edges = first + np.flatnonzero(np.diff(missing, prepend=False, append=False))
        runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        return tuple((max(start, low * size), min(stop, high * size)) for low, high in runs)

    def _stored_documents(self) -> list[Item]:
        """Return sizes and times of the metadata of a local store."""
        store = self.store._store
        root = Path(store.root) / self.array.path if isinstance(store, LocalStore) else None
        return [] if root is None else list(files(root, METADATA_NAMES))

    def stored_items(self) -> Iterable[Item] | None:
        """Return names, sizes and times of files of metadata and chunks, or sizes and tags of objects; None where they cannot be listed."""
        store = self.store._store
        if isinstance(store, LocalStore):
            if self._stored_documents() != self._documents:
                raise ChangedInputError(f"{self.label}: its metadata was changed after it was opened: open it again")
            root = Path(store.root) / self.array.path
            return chain(files(root, METADATA_NAMES), chunk_files(root, self.array.ndim + 1))
        if isinstance(store, RemoteStore):
            listing = store.listing(self.key_prefix)
            return None if listing is None else objects(listing)
        place = getattr(store, "path", None)  # of a file such as that of ZipStore
        return files(place, [""]) if isinstance(place, Path) else None

    def version(self) -> InputVersion | None:
        """Return the version of the stored files or objects, None where they cannot be listed."""
        items = self.stored_items()
        return None if items is None else InputVersion.of(items)

    def ahead(self, schedule: Schedule) -> AbstractContextManager[None]:
        """Enclose the reading of the blocks of `schedule`, whose chunks are requested ahead from a store behind a URL."""
        return self.direct.ahead(schedule) if self.direct is not None and self.reads_ahead else nullcontext()

    def cancel(self) -> None:
        """End readings that wait for a store behind a URL, with a `StoreError`."""
        if self.direct is not None:
            self.direct.cancel()
        if isinstance(self.store._store, RemoteStore):
            self.store._store.cancel()

    def reads_of(self, start: int, stop: int) -> int:
        """Return the number of decoded bytes: whole chunks, even where only some of their rows are wanted.

        Of all rows without the chunks that are known to be missing.
        """
        if (start, stop) == (0, self.shape[0]) and self._known_missing():
            return max(1, (math.prod(self.shape) - self._n_missing_values) * self.dtype.itemsize)
        return super().reads_of(start, stop)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes that decoding takes beside the block."""
        if self.direct is not None:
            return self.direct.overhead_bytes(n_rows)
        block = self.layout.most_rows_read(n_rows) * self.row_bytes
        # zarr decodes up to ten chunks at once, each beside its stored bytes, into an array of its own, in threads each of which holds
        # on to about as much as one of the (inner) chunks that it has decoded: 6.5 of them were measured with 6 threads.
        n_chunks = min(_DECODED_BY_ZARR, self.layout.most_chunks_read(n_rows))
        inner = math.prod(self.array.chunks) * self.dtype.itemsize
        decoding = block + 2 * n_chunks * self.chunk_bytes + _DECODED_BY_ZARR * min(inner, _RETURNED_BYTES)
        few = _DECODED_BY_ZARR * self.chunk_bytes >= 2 * block
        return max(decoding, 4 * max(block, self.chunk_bytes)) if few else decoding

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows, decoded by `ChunkReader` where the array allows it, else through zarr."""
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        if self.direct is not None:
            return out, self.direct.read(start, stop, out)
        before, n_chunks, n_values = self.store.stored_bytes, 0, 0
        for whole, boxes in self.layout.readings(start, stop):
            values = self.values_in(whole, start, stop)
            for row, box in boxes:
                target = self.layout.view(out[row - start : row - start + self.layout.n_rows(box)], box)
                target[...] = values[inside_of(box, whole)]
            n_chunks += sum(self._is_stored(place) for place, _, _ in self.layout.chunks(whole))
            places = (place for place, _, _ in self._decoded.chunks(whole))
            n_values += sum(
                self._decoded.stored_values(place) for place in places if self._is_stored(self._object_of(place))
            )
        if n_values * self.dtype.itemsize > _LARGE_BYTES:
            release_freed_memory()
        return out, ReadCount(n_chunks, n_values * self.dtype.itemsize, self.store.stored_bytes - before)

    def _is_stored(self, place: tuple[int, ...]) -> bool:
        """Return whether the chunk or shard at `place` was written, as far as is known."""
        return self.stored is None or bool(self.stored[place])

    def _object_of(self, place: tuple[int, ...]) -> tuple[int, ...]:
        """Return the place of the chunk or shard that holds the (inner) chunk at `place`."""
        grids = zip(place, self._decoded.grid, self.layout.grid, strict=True)
        return tuple(i * inner // outer for i, inner, outer in grids)

    def values_in(self, box: Spans, start: int, stop: int) -> Any:
        """Read a box of the array, of rows `start` to `stop`, through zarr; damaged data from a network are requested again."""
        for n_left in reversed(range(_REMOTE_READINGS if self.remote else 1)):
            try:
                return self._bounded[tuple(slice(span.start, span.stop) for span in box)]
            except (StoreError, OutsideStoreError):
                raise
            except Exception as error:
                if isinstance(error, MissingChunkError) and not isinstance(error, MissingInnerChunkError):
                    raise
                require_codecs(error, self.label)
                if n_left:
                    self.store.forget_shards()
                    continue
                if isinstance(error, AlteredChunkError):
                    raise AlteredChunkError(f"{self.label}: {error}") from None
                raise self._damage(start, stop, error) from error
        raise AssertionError("the last reading returns or raises")

    def _damage(self, start: int, stop: int, error: Exception) -> DataError:
        """Return the error that names the first of the chunks of these rows that cannot be read."""
        where = f"rows {start} to {stop - 1}"
        for key, within in self._chunks_of(start, stop):
            try:
                self._bounded[within]
            except Exception as failure:  # noqa: BLE001 every codec has its own
                where, error = f"chunk {key}", failure
                break
        if isinstance(error, MissingInnerChunkError):
            return MissingInnerChunkError(
                f"{self.label}: {where}: {one_line(error)}; write it, or set missing_chunks: fill to read it as the fill value"
            )
        return DamagedChunkError(
            f"{self.label}: {where} (codec {chain_of(self.array.metadata)}) is damaged or cut short: {one_line(error)}; "
            "restore it or write the array again"
        )

    def _chunks_of(self, start: int, stop: int) -> Iterator[tuple[str, tuple[slice, ...]]]:
        """Yield the keys of the stored objects that hold rows `start` to `stop`, and where they lie in the array."""
        for _, box in self.layout.boxes(start, stop):
            for place, _, _ in self.layout.chunks(box):
                within = tuple(slice(i * size, (i + 1) * size) for i, size in zip(place, self.layout.grid, strict=True))
                yield self.array.metadata.encode_chunk_key(place), within


def _at_its_place(store: Store) -> Store:
    """Return a local store by its absolute path: workers may have another working directory, and this process may change its own."""
    if type(store) is not LocalStore or Path(store.root).is_absolute():
        return store
    return LocalStore(Path(store.root).absolute(), read_only=store.read_only)
