"""Rows of a zarr array of any number of axes, version 2 or 3, read strictly: a missing or damaged chunk is an error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, product
from pathlib import Path

import numpy as np
import xxhash
from zarr.storage import LocalStore

from streampca.errors import (
    ChangedInputError,
    DataError,
    MissingChunkError,
)
from streampca.redaction import shown
from streampca.sources.base import ReadCount, Source, require_table
from streampca.sources.conventions import packing
from streampca.sources.features import Axes
from streampca.sources.grid import Grid, Schedule
from streampca.sources.remote import RemoteStore, StoreOfZarr, retrying, snapshot_of
from streampca.sources.versions import InputVersion, InputWatch, Item, chunk_files, files, objects
from streampca.sources.zarr.chunks import ChunkReader
from streampca.sources.zarr.codecs import Chain, most_stored_object
from streampca.sources.zarr.digests import DIGEST_BYTES, ChunkDigests, Digests, deciding_metadata
from streampca.sources.zarr.layout import Layout, Spans
from streampca.sources.zarr.strictness import (
    METADATA_NAMES,
    StrictStore,
    inner_store,
    of_features,
    presence_of,
    require_readable,
)
from streampca.storage.zarr_interface import ZarrArray, array_of, default_buffer_prototype, sync
from streampca.typing import Array, BoolArray

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
    missing_chunks_filled = 0

    def __init__(
        self,
        array: ZarrArray,
        description: str,
        name: str | None,
        axes: Axes,
        fill: bool,
        digests: ChunkDigests | None = None,
    ):
        self.description, self.name, self.fill, self.digests = description, name, fill, digests
        self.label = f"{description}/{name}" if name else description
        """Path and name of the array, for messages."""
        self.dtype, metadata = np.dtype(array.dtype), array.metadata
        shape, grid = (tuple(int(n) for n in sizes) for sizes in (array.shape, array.shards or array.chunks))
        if array.ndim == sum(map(len, axes)):
            self.layout = Layout(shape, grid, *axes)
            shape = self.layout.table_shape
        require_table(shape, self.dtype, self.label)
        require_readable(metadata, self.dtype.itemsize, self.label)
        store = retrying(inner_store(array.store))
        if type(store) is LocalStore and not Path(store.root).is_absolute():
            # Workers may have another working directory, and this process may change its own.
            store = LocalStore(Path(store.root).absolute(), read_only=store.read_only)
        self.store = StrictStore(store, fill, most_stored_object(metadata, self.dtype.itemsize))
        self.array = array_of(metadata, self.store, array.path)
        self.key_prefix = f"{array.path}/" if array.path else ""
        """Prefix of the keys of chunks in the store."""
        self.shape, self.column_major = self.layout.table_shape, self.layout.column_major
        self.feature_shape, self.feature_names = of_features(metadata.attributes, self.shape[1])
        self.root = Path(store.root) / array.path if isinstance(store, LocalStore) else None
        """Directory of the array, None where it is in none."""
        place: Path | RemoteStore | StoreOfZarr = StoreOfZarr(store, self.label)
        if isinstance(store, RemoteStore):
            place = store
        elif self.root is not None and type(store) is LocalStore:
            place = self.root
        self.reads_ahead = isinstance(store, RemoteStore)
        in_memory = "memory" in type(store).__name__.lower()
        self.portable = store.portable if isinstance(store, RemoteStore) else not in_memory
        self.watch = InputWatch()
        self._documents = [] if self.root is None else list(files(self.root, METADATA_NAMES))
        self.stored: BoolArray | None = None
        self.known: Digests | None = None
        self._knows_missing, self._n_missing_values = False, 0
        self.direct = ChunkReader(self.array, self.layout, place, self.label, digests, fill, lambda: self.stored)
        turned = Layout(self.layout.shape, grid, self.layout.columns, self.layout.rows)
        n_bytes, is_whole = math.prod(grid) * self.dtype.itemsize, not self.direct.scatters
        rows, features, inner = self.layout.chunk_rows, turned.chunk_rows, self.direct.inner.chunk_rows
        self.grid = Grid(rows, features, n_bytes, inner, whole=is_whole)

    def _view(self, axes: Axes) -> tuple[ZarrArray, str, str | None, Axes, bool, ChunkDigests | None]:
        """Return the arguments that make a source of the same array."""
        return self.array, self.description, self.name, axes, self.fill, self.digests

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

    def deciding_metadata(self) -> str:
        """Read the stored metadata and return what of them decides what the bytes of a chunk mean, as JSON."""
        name = "zarr.json" if self.array.metadata.zarr_format == 3 else ".zarray"
        stored = sync(self.store.get(f"{self.key_prefix}{name}", default_buffer_prototype()))
        if stored is None:
            raise DataError(f"{self.label}: its {name} is gone")
        return deciding_metadata(stored.to_bytes(), packing(self.array.metadata))

    def require_form_of(self, digests: ChunkDigests) -> None:
        """Raise `DataError` unless the stored metadata are those of the `digests` that chunks are compared with."""
        digests.require_form(self.layout.shape, self.deciding_metadata(), self.layout.chunk_counts, self.label)

    def note_digests(self) -> Digests:
        """Return the digests of chunks that are known; from now on, those of chunks that this process reads are added."""
        if self.known is None and self.digests is not None:
            self.known = self.digests.digests.copy()  # of all chunks
        elif self.known is None:
            self.known = np.zeros((*self.layout.chunk_counts, DIGEST_BYTES), dtype=np.uint8)
            self.direct.known = self.known
        return self.known

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
            "reader": "direct" if isinstance(self.direct.chain, Chain) else "zarr",
            "packing": packing(self.array.metadata) or None,
            **({} if self.snapshot is None else {"snapshot": self.snapshot}),
            "verified_by": None
            if self.digests is None
            else {"path": str(self.digests.place), "digest": self.digests.whole},
        }

    def keys(self, start: int, stop: int) -> list[str]:
        """Return the keys of the stored objects that hold rows `start` to `stop`."""
        places = self.layout.places(box for _, box in self.layout.boxes(start, stop))
        return [self.array.metadata.encode_chunk_key(place) for place in places]

    def check(self) -> None:
        """Raise `MissingChunkError` if chunks do not exist, or note which where they are to be filled."""
        self.direct.forget()
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
            f"{self.missing_chunks_filled:,} of {math.prod(self.layout.chunk_counts):,} chunks were never written: they hold the fill "
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

    @property
    def snapshot(self) -> str | None:
        """Return the identifier of the snapshot of an icechunk repository that is read, None for other stores."""
        return snapshot_of(self.store._store)

    def written_since(self, snapshot: str) -> tuple[tuple[int, ...], ...] | None:
        """Return the places in the grid of the chunks that were written since a snapshot; None where that is not known."""
        store = self.store._store
        if not snapshot or self.snapshot is None or not isinstance(store, RemoteStore):
            return None
        from streampca.sources.zarr.snapshots import changed_chunks

        return changed_chunks(store.url, store.options, snapshot, self.array.path)

    def stored_items(self) -> Iterable[Item] | None:
        """Return names, sizes and times of files of metadata and chunks, or sizes and tags of objects; None where they cannot be listed."""
        store = self.store._store
        if self.snapshot is not None:
            return [("snapshot", 0, self.snapshot)]
        if self.root is not None:
            if list(files(self.root, METADATA_NAMES)) != self._documents:
                raise ChangedInputError(f"{self.label}: its metadata was changed after it was opened: open it again")
            return chain(files(self.root, METADATA_NAMES), chunk_files(self.root, self.array.ndim + 1))
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
        return self.direct.requests.ahead(schedule) if self.reads_ahead else nullcontext()

    def cancel(self) -> None:
        """End readings that wait for a store behind a URL, with a `StoreError`."""
        if not isinstance(self.direct.place, Path):
            self.direct.requests.cancel()
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
        return self.direct.overhead_bytes(n_rows)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows, decoded by `ChunkReader`."""
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        return out, self.direct.read(start, stop, out)

    def values_in(self, box: Spans) -> tuple[Array, ReadCount]:
        """Return the values in a box of the array, and what reading them cost."""
        values = np.empty(tuple(map(len, box)), dtype=self.dtype)
        return values, self.direct.read_box(box, values)
