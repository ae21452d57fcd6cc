"""Rows of a zarr array, version 2 or 3, read strictly: a chunk that is missing or damaged is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zarr
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, Store
from zarr.codecs import BloscCodec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, StorePath, WrapperStore

from streampca.errors import DamagedChunkError, DataError, MissingChunkError, StreamPCAError
from streampca.sources.base import ReadCount, Source, require_table
from streampca.sources.direct import DirectReader, blosc_size

_MAX_CHUNKS = 10**8
_METADATA_NAMES = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


class StrictStore(WrapperStore[Store]):
    """A store in which a chunk that does not exist is an error, not the fill value; counts what it hands out."""

    def __init__(self, store: Store, fill: bool = False, blosc: bool = False):
        super().__init__(store)
        self.fill, self.blosc = fill, blosc  # blosc: every chunk is one Blosc frame
        self.stored_bytes = 0

    def _with_store(self, store: Store) -> StrictStore:
        return type(self)(store, self.fill, self.blosc)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return the bytes behind `key`; raise `MissingChunkError` if it is a chunk and there are none."""
        value = await self._store.get(key, prototype, byte_range)
        if value is None and not self.fill and key.rsplit("/", 1)[-1] not in _METADATA_NAMES:
            raise MissingChunkError(
                f"chunk {key} does not exist: expected every chunk to be stored; missing_chunks: fill reads it as the fill value"
            )
        if value is not None:
            self.stored_bytes += len(value)
            is_chunk = key.rsplit("/", 1)[-1] not in _METADATA_NAMES
            if is_chunk and not len(value):  # zarr takes an empty shard for one whose chunks are all left out
                raise DamagedChunkError("the file is empty")
            if self.blosc and byte_range is None and is_chunk:
                told = blosc_size(value[:16].as_numpy_array().view(np.uint8))
                if told != len(value):  # Blosc itself would read on behind the end
                    raise DamagedChunkError(f"{len(value)} bytes stored, {told} expected by its header")
        return value


def strict(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return `array` so that reading a chunk that does not exist raises `MissingChunkError`."""
    metadata: Any = array.metadata
    return zarr.Array(zarr.AsyncArray(metadata, StorePath(StrictStore(array.store), array.path)))


def open_path(path: str, array: str | None, options: dict[str, str], storage_options: dict[str, Any] | None) -> Source:
    """Open the zarr array at `path`, or the one named `array` in the group there; reads metadata only.

    Raises
    ------
    DataError
        If there is none, or it is not a table of real numbers.
    """
    remote = "://" in path
    if not remote and not Path(path).exists():
        raise DataError(f"{path}: no such file or directory: expected a zarr array or group, or an .npy file")
    try:
        node = zarr.open(path, mode="r", storage_options=storage_options if remote else None)
    except StreamPCAError:
        raise
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is not a zarr store: found no zarr.json, .zarray or .zgroup in it; expected a zarr array or group, or an .npy file"
        ) from error
    except Exception as error:
        raise DataError(
            f"{path} cannot be opened as zarr: {_one_line(error)}; expected a zarr array or group of format 2 or 3"
        ) from error
    if isinstance(node, zarr.Array):
        if array is not None:
            raise DataError(f"{path} is an array, not a group: expected no array name, found array: {array}")
        return open_array(node, description=path, **options)
    return open_group(node, array, options, path)


def open_group(group: zarr.Group, array: str | None, options: dict[str, str], description: str | None = None) -> Source:
    """Open the array called `array` in `group`, or its only two-dimensional one; `DataError` if there is no such array."""
    description = description or str(group.store_path)
    try:
        arrays = {name: node for name, node in group.members(max_depth=4) if isinstance(node, zarr.Array)}
    except Exception as error:
        raise DataError(f"the members of {description} cannot be listed: {_one_line(error)}") from error
    tables = [name for name, node in arrays.items() if node.ndim == 2]
    listing = ", ".join(f"{name} {node.shape}" for name, node in sorted(arrays.items())[:12]) or "none"
    if array is None and len(tables) == 1:
        array = tables[0]
    if array is None:
        raise DataError(f"{description} is a group: name the array to read, one of: {listing}")
    if array not in arrays:
        raise DataError(f"{description} has no array {array!r}: expected one of: {listing}")
    return open_array(arrays[array], description=description, name=array, **options)


def open_array(
    array: zarr.Array[Any],
    *,
    description: str | None = None,
    name: str | None = None,
    orientation: str = "samples_first",
    missing_chunks: str = "error",
) -> ZarrSource:
    """Return the source of an open zarr array; `DataError` if it is not a table of real numbers."""
    return ZarrSource(
        array, description or str(array.store_path), name, orientation == "features_first", missing_chunks == "fill"
    )


class ZarrSource(Source):
    """A two-dimensional zarr array with any chunk grid, sharded or not."""

    portable = True

    def __init__(self, array: zarr.Array[Any], description: str, name: str | None, transposed: bool, fill: bool):
        self.description, self.name, self.transposed, self.fill = description, name, transposed, fill
        label = f"{description}/{name}" if name else description
        require_table(array.shape, np.dtype(array.dtype), label)
        store = array.store._store if isinstance(array.store, StrictStore) else array.store
        self.store = StrictStore(store, fill, _ends_in_blosc(array.metadata))
        metadata: Any = array.metadata
        self.array: zarr.Array[Any] = zarr.Array(zarr.AsyncArray(metadata, StorePath(self.store, array.path)))
        self.dtype = np.dtype(array.dtype)
        self.grid = tuple(int(n) for n in (array.shards or array.chunks))  # the stored objects
        _require_grid(array.shape, self.grid, label)
        rows, columns = array.shape[::-1] if transposed else array.shape
        self.shape = (int(rows), int(columns))
        self.chunk_rows, self.chunk_columns = self.grid[::-1] if transposed else self.grid
        self.chunk_bytes = int(np.prod(self.grid, dtype=object)) * self.dtype.itemsize
        attributes = dict(array.attrs)
        self.feature_shape = _feature_shape(attributes, self.shape[1])
        self.feature_names = _feature_names(attributes, self.shape[1])
        self.portable = "memory" not in type(store).__name__.lower()
        self.column_major = transposed
        self.direct = DirectReader.of(self.array, store, transposed) if type(store) is LocalStore and not fill else None

    def __getstate__(self) -> dict[str, Any]:
        return {
            "array": self.array,
            "description": self.description,
            "name": self.name,
            "transposed": self.transposed,
            "fill": self.fill,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def by_features(self) -> ZarrSource:
        """Return a source whose rows are the features of this one."""
        return ZarrSource(self.array, self.description, self.name, not self.transposed, self.fill)

    @property
    def fingerprint(self) -> str:
        """Return the xxh3 hash of the array's own metadata and its place."""
        metadata = json.dumps(self.array.metadata.to_dict(), sort_keys=True, default=str)
        return xxhash.xxh3_128(f"{metadata}|{self.description}|{self.name}|{self.transposed}".encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says of the source."""
        return super().describe() | {
            "array": self.name,
            "chunks": list(self.grid),
            "orientation": "features_first" if self.transposed else "samples_first",
            "reader": "direct" if self.direct else "zarr",
        }

    def chunk_keys(self) -> list[str]:
        """Return the keys of all stored objects, relative to the array."""
        counts = [-(-n // size) for n, size in zip(self.array.shape, self.grid, strict=True)]
        return [self.array.metadata.encode_chunk_key((i, j)) for i in range(counts[0]) for j in range(counts[1])]

    def check(self) -> None:
        """Raise `MissingChunkError` if chunks do not exist, or count them where they are to be filled."""
        if self.direct is not None:
            missing = [key for key in self.chunk_keys() if not self.direct.exists(key)]
        else:
            prefix = f"{self.array.path}/" if self.array.path else ""
            try:
                present = set(sync(_list(self.store, prefix)))
            except NotImplementedError:
                return  # a store that cannot list, such as plain HTTP: a missing chunk is found when it is read
            missing = [key for key in self.chunk_keys() if prefix + key not in present]
        if missing and not self.fill:
            total = len(self.chunk_keys())
            raise MissingChunkError(
                f"{self.description}: {len(missing)} of {total} chunks do not exist, first: {', '.join(missing[:5])}; "
                "write them, or set missing_chunks: fill to read them as the fill value"
            )
        self.missing_chunks_filled = len(missing)

    def reads_of(self, start: int, stop: int) -> int:
        """Return the number of decoded bytes: whole chunks, even where only some of their rows are wanted."""
        if self.direct is not None and self.direct.chain.plain:
            return (stop - start) * self.row_bytes
        rows = (
            min(-(-stop // self.chunk_rows) * self.chunk_rows, self.shape[0])
            - start // self.chunk_rows * self.chunk_rows
        )
        return rows * self.row_bytes

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes that decoding takes beside the block."""
        if self.direct is not None:
            return self.direct.overhead_bytes
        # zarr decodes up to ten chunks at once, each beside its stored bytes, into an array of its own.
        return (
            n_rows * self.row_bytes + 10 * 2 * self.chunk_bytes
            if 10 * self.chunk_bytes < 2 * n_rows * self.row_bytes
            else 4 * max(n_rows * self.row_bytes, self.chunk_bytes)
        )

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> tuple[NDArray[Any], ReadCount]:
        """Return the rows, read by `DirectReader` where the store allows it, else through zarr."""
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        if self.direct is not None:
            return out, self.direct.read(start, stop, out)
        before = self.store.stored_bytes
        try:
            values = self.array[:, start:stop].T if self.transposed else self.array[start:stop]  # type: ignore[union-attr]
        except MissingChunkError:
            raise
        except Exception as error:
            raise DamagedChunkError(self._damage(start, stop, error)) from error
        out[...] = values
        bands = -(-stop // self.chunk_rows) - start // self.chunk_rows
        columns = -(-self.shape[1] // self.chunk_columns)
        return out, ReadCount(bands * columns, self.reads_of(start, stop), self.store.stored_bytes - before)

    def _damage(self, start: int, stop: int, error: Exception) -> str:
        label = f"{self.description}/{self.name}" if self.name else self.description
        where = f"rows {start} to {stop - 1}"
        n_rows, n_columns = self.grid
        for i in range(-(-self.array.shape[0] // n_rows)):
            for j in range(-(-self.array.shape[1] // n_columns)):
                first, size = (j * n_columns, n_columns) if self.transposed else (i * n_rows, n_rows)
                if first + size <= start or first >= stop:
                    continue
                try:
                    self.array[i * n_rows : (i + 1) * n_rows, j * n_columns : (j + 1) * n_columns]
                except Exception as found:  # noqa: BLE001 every codec has its own
                    where, error = f"chunk {self.array.metadata.encode_chunk_key((i, j))}", found
                    break
        codec = (
            type(self.array.metadata.codecs[-1]).__name__ if self.array.metadata.zarr_format == 3 else "of version 2"
        )
        return (
            f"{label}: {where} (codec {codec}) is damaged or cut short: {_one_line(error)}; "
            "restore it or write the array again"
        )


def _require_grid(shape: tuple[int, ...], grid: tuple[int, ...], label: str) -> None:
    """Raise `DataError` if the chunks that metadata declares cannot be, before anything is sized by them."""
    if min(grid) < 1:
        raise DataError(f"{label} declares chunks of shape {grid}: expected at least 1 along each axis")
    n_chunks = -(-int(shape[0]) // grid[0]) * -(-int(shape[1]) // grid[1])
    if n_chunks > _MAX_CHUNKS:
        raise DataError(
            f"{label} declares {n_chunks:,} chunks: expected at most {_MAX_CHUNKS:,}; write it in larger chunks"
        )


def _ends_in_blosc(metadata: Any) -> bool:
    if metadata.zarr_format == 2:
        return getattr(metadata.compressor, "codec_id", "") == "blosc"
    return bool(metadata.codecs) and isinstance(metadata.codecs[-1], BloscCodec)


async def _list(store: Store, prefix: str) -> list[str]:
    return [key async for key in store.list_prefix(prefix)]


def _feature_shape(attributes: dict[str, Any], n_features: int) -> tuple[int, ...] | None:
    value = attributes.get("feature_shape")
    if isinstance(value, list) and value and all(isinstance(n, int) and n > 0 for n in value):
        return tuple(value) if int(np.prod(value, dtype=object)) == n_features else None
    return None


def _feature_names(attributes: dict[str, Any], n_features: int) -> tuple[str, ...] | None:
    value = attributes.get("feature_names")
    return tuple(str(name) for name in value) if isinstance(value, list) and len(value) == n_features else None


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"
