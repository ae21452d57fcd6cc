"""Strict reading of a store: missing and oversized chunks are errors, and metadata are bounded before anything is parsed or allocated."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import warnings
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.storage import LocalStore, StorePath

from streampca.errors import DamagedChunkError, DataError, MissingChunkError, StoreError, StreamPCAError
from streampca.formatting import one_line
from streampca.sources.remote import RemoteStore, retrying
from streampca.sources.zarr.codecs import bounded, most_stored_object, require_codecs
from streampca.storage.files import NotRegularFileError, open_regular, require_regular
from streampca.storage.zarr_interface import (
    Buffer,
    BufferPrototype,
    GetOnlyStore,
    ZarrArray,
    array_of,
    sync,
)
from streampca.typing import Array, JsonValue

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ArrayMetadata


METADATA_NAMES = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
"""Names of the documents of a store; everything else in it is chunks."""
MAX_DOCUMENT_BYTES = 8 * 2**20
_NAME_BYTES, _MOST_NAMES = 128, 400_000
MAX_NAMED_DOCUMENT_BYTES = MAX_DOCUMENT_BYTES + _NAME_BYTES * _MOST_NAMES
"""Largest size in bytes of a document with the names of as many features as allowed."""
MAX_DEPTH = 64
MAX_VALUES = 10**6
MAX_CHUNKS = 10**8
MAX_INNER_CHUNKS = 2**20
MAX_CODED_BYTES = 2**31
MAX_STORED_BYTES = 2**62
_MOST_AXES = 32
_OBJECT_CODECS = frozenset(
    {"pickle", "json", "json2", "msgpack", "msgpack2", "vlen-utf8", "vlen-bytes", "vlen-array", "categorize"}
)
"""Codecs of numcodecs that make Python objects; the first one executes the code that it reads."""
# The inside of a text is passed over as a whole and without going back, so that no text takes long.
_SHAPE = re.compile(rb'"shape"\s*:\s*\[([\d\s,]{1,200})\]')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{},]', re.DOTALL)
_READINGS = 3
"""Requests for metadata that are damaged."""


def is_document(key: str) -> bool:
    """Return whether `key` is a metadata document, not a chunk."""
    return key.rsplit("/", 1)[-1] in METADATA_NAMES


def read_document(path: Path) -> dict[str, JsonValue]:
    """Return the document at `path`; `DataError` as of `require_document`, `OSError` if it cannot be read."""
    with open_regular(path) as file:
        return require_document(file.read(MAX_NAMED_DOCUMENT_BYTES + 1), path.name)


def require_document(data: bytes, key: str) -> dict[str, JsonValue]:
    """Parse a document of metadata.

    Raises
    ------
    DataError
        Unless it is an object of JSON of bounded size and depth, in which no key is given twice.
    """
    n_names = _n_names(data, key)
    limit, most_values = MAX_DOCUMENT_BYTES + _NAME_BYTES * n_names, MAX_VALUES + n_names
    if len(data) > limit:
        raise DataError(f"{key} takes {len(data):,} bytes: expected at most {limit:,} of metadata")
    if bytes(data[:64]).lstrip()[:1] == b"<":
        raise DataError(
            f"{key} is a page of HTML or XML: expected JSON; check the address, and whether its server asks for a login"
        )
    depth = n_values = 0
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        n_values += first in b"[{,"
        if depth > MAX_DEPTH or n_values > most_values:
            what = (
                f"nested deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else f"more than {most_values:,} values"
            )
            raise DataError(f"{key} is not metadata of an array: {what}")
    try:
        document = json.loads(data, object_pairs_hook=_without_doubles)
    except _DoubleError as error:
        raise DataError(f"{key} gives {error} twice: expected every key once; two readers may take one each") from None
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8, and numbers of thousands of digits
        raise DataError(f"{key} is damaged: it is not JSON ({one_line(error)}); restore it") from error
    if not isinstance(document, dict):
        raise DataError(f"{key} holds {type(document).__name__}, expected an object of JSON")
    if document.get("attributes") is not None and not isinstance(document["attributes"], dict):
        raise DataError(
            f"{key} holds attributes that are {type(document['attributes']).__name__}, expected an object of JSON"
        )
    return document


def _n_names(data: bytes, key: str) -> int:
    """Return how many features a document may name: the length of its longest axis, or 0 if it has no names.

    ``.zattrs`` stands beside the document that declares the shape and may name as many as is allowed at all.
    """
    if len(data) <= MAX_DOCUMENT_BYTES // 2 or b'"feature_names"' not in data:
        return 0
    if key.endswith(".zattrs"):
        return _MOST_NAMES
    lengths = (
        int(n.strip()[:18])
        for shape in _SHAPE.finditer(data)
        for n in shape.group(1).split(b",")
        if n.strip().isdigit()
    )
    return min(max(lengths, default=0), _MOST_NAMES)


class _DoubleError(Exception):
    """A key that occurs twice in a JSON object."""


def _without_doubles(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    parsed = dict(pairs)
    if len(parsed) < len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _DoubleError(repr(double[:60]))
    return parsed


def require_readable(metadata: ArrayMetadata, item_bytes: int, label: str, *, most_chunks: int = MAX_CHUNKS) -> None:
    """Raise `DataError` if the shapes and codecs that an array declares cannot be, before anything is sized by them.

    `metadata` are those of zarr for an array whose values take `item_bytes`; it may have `most_chunks`.
    """
    codecs = [*(metadata.filters or ()), metadata.compressor] if metadata.zarr_format == 2 else []
    for codec in codecs:
        name = getattr(codec, "codec_id", "")
        if name in _OBJECT_CODECS:
            raise DataError(f"{label} is stored with codec {name}, which makes objects: expected codecs of numbers")
    if getattr(metadata, "storage_transformers", ()):
        raise DataError(f"{label} is stored with storage transformers, which are not supported: write it without")
    shape, inner = (tuple(int(n) for n in sizes) for sizes in (metadata.shape, metadata.chunks))
    stored = tuple(int(n) for n in metadata.shards or inner)
    if len(inner) != len(shape) or len(stored) != len(shape) or min((1, *inner, *stored)) < 1:
        raise DataError(f"{label} declares chunks of shape {stored}: expected at least 1 along each axis")
    for what, sizes, limit in (
        ("chunks", [-(-n // size) for n, size in zip(shape, stored, strict=True)], most_chunks),
        ("inner chunks in a shard", [n // size for n, size in zip(stored, inner, strict=True)], MAX_INNER_CHUNKS),
    ):
        if math.prod(sizes) > limit:
            raise DataError(
                f"{label} declares {math.prod(sizes):,} {what}: expected at most {limit:,}; write it in larger chunks"
            )
    plain = metadata.zarr_format == 3 and len(metadata.codecs) == 1 and metadata.shards is None
    plain = plain or (metadata.zarr_format == 2 and not metadata.compressor and not metadata.filters)
    for what, n_bytes, limit in (
        ("chunks", math.prod(inner) * item_bytes, MAX_STORED_BYTES if plain else MAX_CODED_BYTES),
        ("shards", math.prod(stored) * item_bytes, MAX_STORED_BYTES),
    ):
        if n_bytes > limit:
            raise DataError(
                f"{label} declares {what} of {n_bytes:,} bytes: expected at most {limit:,}; write it in smaller chunks"
            )


def of_features(
    attributes: Mapping[str, object], n_features: int
) -> tuple[tuple[int, ...] | None, tuple[str, ...] | None]:
    """Return the shape of a row as a picture, and the names of the features, that attributes give; None for what does not fit."""
    sizes, names = attributes.get("feature_shape"), attributes.get("feature_names")
    shape: tuple[int, ...] | None = None
    if isinstance(sizes, list) and 0 < len(sizes) <= _MOST_AXES:
        known = all(type(n) is int and 0 < n <= n_features for n in sizes)
        shape = tuple(sizes) if known and math.prod(sizes) == n_features else None
    fits = isinstance(names, list) and len(names) == n_features
    return shape, tuple(map(str, names)) if isinstance(names, list) and fits else None


class StrictStore(GetOnlyStore):
    """A store in which a missing chunk is an error instead of the fill value.

    Parameters
    ----------
    store : Store
        Store that is read.
    fill : bool
        Whether chunks may be missing.
    most : int, optional
        Largest size in bytes of a stored chunk, if known.
    """

    def __init__(self, store: Store, fill: bool = False, most: int | None = None):
        super().__init__(store)
        self.fill, self.most = fill, most

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._store, self.fill, self.most)

    def _with_store(self, store: Store) -> StrictStore:
        return type(self)(store, self.fill, self.most)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return the bytes behind `key`.

        Raises
        ------
        MissingChunkError
            If it is a chunk and there are none.
        DamagedChunkError
            If it is a chunk that is empty or larger than any can be.
        DataError
            If it is metadata out of bounds (see `require_document`).
        """
        self._check_size(key, byte_range)
        if is_document(key):
            return await self._document(key, prototype, byte_range)
        value = await self._received(key, prototype, byte_range, self.most)
        if value is None and not self.fill:
            raise MissingChunkError(f"chunk {key} does not exist: expected every chunk to be stored")
        if value is not None:
            self._require_size(len(value))
        return value

    async def _document(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None) -> Buffer | None:
        """Return metadata; those that are damaged are requested again from a remote store, which may have sent a part of them."""
        for n_left in reversed(range(_READINGS if isinstance(self._store, RemoteStore) else 1)):
            value = await self._received(key, prototype, byte_range, MAX_NAMED_DOCUMENT_BYTES)
            try:
                if value is not None and byte_range is None:
                    require_document(value.to_bytes(), key)
            except DataError:
                if not n_left:
                    raise
            else:
                return value
        raise AssertionError("the last reading returns or raises")

    async def _received(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None, most: int | None
    ) -> Buffer | None:
        """Return the bytes behind `key`; a remote store receives no more than `most`."""
        if isinstance(self._store, RemoteStore):
            return await self._store.get(key, prototype, byte_range, most)
        return await self._store.get(key, prototype, byte_range)

    def _check_size(self, key: str, byte_range: ByteRequest | None) -> None:
        """Check the requested size, and the file of a local store, before it is read."""
        if isinstance(byte_range, RangeByteRequest):
            self._require_size(byte_range.end - byte_range.start)
        if not isinstance(self._store, LocalStore):
            return
        root = Path(self._store.root)
        try:
            status = require_regular(root / key)
        except NotRegularFileError as error:
            kind = DataError if is_document(key) else DamagedChunkError
            raise kind(f"{root}: {key} cannot be read: {error.strerror}") from error
        except OSError:
            return
        n_bytes = status.st_size if byte_range is None else 1
        if not is_document(key):
            self._require_size(n_bytes)
        elif n_bytes > MAX_NAMED_DOCUMENT_BYTES:  # less where it names no features, which is looked at when it is read
            raise DataError(f"{key} takes {n_bytes:,} bytes: expected at most {MAX_NAMED_DOCUMENT_BYTES:,} of metadata")

    def _require_size(self, n_bytes: int) -> None:
        if n_bytes < 1:  # zarr takes an empty shard for one whose chunks are all left out
            raise DamagedChunkError("the file is empty")
        if self.most is not None and n_bytes > self.most:
            raise DamagedChunkError(f"{n_bytes:,} bytes stored, expected at most {self.most:,}")


def inner_store(store: Store) -> Store:
    """Return the store behind a `StrictStore`, or `store` itself."""
    return store._store if isinstance(store, StrictStore) else store


def is_file(path: str) -> bool:
    """Return whether there is a file at `path`; `DataError` if that cannot be told, which is not the same as that there is none."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def presence_of(store: StrictStore, prefix: str) -> Callable[[str], bool] | None:
    """Return a function that tells whether a key below `prefix` is stored, None if the store cannot list its keys."""
    if isinstance(store._store, LocalStore):  # whose listing passes over directories that are links
        root = f"{store._store.root}/{prefix}"
        return lambda key: is_file(root + key)
    if not store.supports_listing:
        return None
    if isinstance(store._store, RemoteStore) and (listing := store._store.listing(prefix)) is not None:
        return lambda key: prefix + key in listing
    try:
        present = set(sync(_list(store, prefix)))
    except StreamPCAError:
        raise
    except Exception:  # noqa: BLE001 a store of somebody else that says it can list its keys, and cannot
        return None
    return lambda key: prefix + key in present


async def _list(store: Store, prefix: str) -> list[str]:
    return [key async for key in store.list_prefix(prefix)]


def strict(array: ZarrArray, *, fill: bool = False) -> ZarrArray:
    """Return `array` so that chunks that do not exist (unless `fill`), or decode to more than it declares, are errors."""
    inner, is_fixed = inner_store(array.store), np.dtype(array.dtype).kind in "biufcSUMm"
    most = most_stored_object(array.metadata, np.dtype(array.dtype).itemsize) if is_fixed else MAX_CODED_BYTES
    return bounded(array_of(array.metadata, StrictStore(inner, fill, most), array.path), fill)


def strict_group(group: zarr.Group) -> zarr.Group:
    """Return `group` so that metadata out of bounds are errors, also those of its members."""
    if isinstance(group.store, StrictStore):
        return group
    return zarr.Group(zarr.AsyncGroup(group.metadata, StorePath(StrictStore(retrying(group.store)), group.path)))


def read_whole(
    array: ZarrArray, *, fill: bool = False, read: Callable[[ZarrArray], Any] = lambda array: array[...]
) -> Array:
    """Read a whole array strictly (see `strict`), by default as zarr does; its size was checked before.

    The chunks of a local store are checked first: zarr makes a task for each declared chunk before it reports a missing one.
    """
    checked = strict(array, fill=fill)
    inner = inner_store(checked.store)
    if isinstance(inner, LocalStore) and not fill:
        grid = checked.shards or checked.chunks
        root = f"{inner.root}/{checked.path}/" if checked.path else f"{inner.root}/"
        for place in product(*(range(-(-n // size)) for n, size in zip(checked.shape, grid, strict=True))):
            key = checked.metadata.encode_chunk_key(place)
            if not is_file(root + key):
                raise MissingChunkError(f"chunk {key} does not exist: expected every chunk to be stored")
    return np.asarray(read(checked))


def read_labels(
    array: ZarrArray, label: str, *, fill: bool, read: Callable[[ZarrArray], Any] = lambda array: array[...]
) -> Array:
    """Read an array beside the data strictly, such as a coordinate, weights or a mask; `label` names it in messages.

    Raises
    ------
    MissingChunkError
        If a chunk does not exist and not `fill`.
    DataError
        If a chunk is damaged.
    """
    try:
        return read_whole(array, fill=fill, read=read)
    except MissingChunkError as error:
        raise MissingChunkError(
            f"{label}: {error}; if its writer left it out because all its values are the fill value {array.fill_value!s}, set "
            "missing_chunks: fill_labels"
        ) from error
    except StreamPCAError as error:
        raise type(error)(f"{label}: {error}") from error
    except Exception as error:  # codecs have no class of errors in common
        require_codecs(error, label)
        raise DataError(f"{label} cannot be decoded: a chunk is damaged or cut short ({one_line(error)})") from error


def as_stored(array: ZarrArray, label: str) -> ZarrArray:
    """Return `array` with the metadata that stand beside its chunks.

    Raises
    ------
    DataError
        If it was opened with metadata that differ from the stored ones: outdated or wrong consolidated metadata.
    """
    place = StorePath(StrictStore(retrying(inner_store(array.store))), array.path)
    try:
        with warnings.catch_warnings(action="ignore"):
            stored_metadata = sync(zarr.AsyncArray.open(place, zarr_format=array.metadata.zarr_format)).metadata
    except StoreError:
        raise
    except Exception as error:
        raise DataError(
            f"{label}: the metadata of array {array.path or '/'} cannot be read: {one_line(error)}"
        ) from error
    with warnings.catch_warnings(action="ignore"):
        declared, stored = (
            {
                name: json.dumps(value, sort_keys=True, default=str)
                for name, value in each.to_dict().items()
                if name != "attributes"
            }
            for each in (array.metadata, stored_metadata)
        )
    if declared != stored:
        names = ", ".join(sorted(name for name in declared if declared[name] != stored.get(name)))
        raise DataError(
            f"{label}: consolidated metadata says shape {array.shape}, the array itself {tuple(stored_metadata.shape)} ({names} differ): "
            "consolidate the metadata again, or remove it"
        )
    return array_of(stored_metadata, array.store, array.path)
