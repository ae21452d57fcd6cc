"""Digests of the stored chunks of zarr arrays: one record of a store, its file, and the comparison of a chunk that is read with it.

`streampca fingerprint` writes the record of an array to a file, and a state holds that of the arrays that its run has read.
Both hold the same arrays of numbers (`arrays_of_record`), in an .npz file and in a zarr group, and have one reader.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TypeAlias
from urllib.parse import urlsplit

import numpy as np
import xxhash
import zarr
from numpy.typing import NDArray
from zarr.storage import LocalStore

from streampca.errors import AlteredChunkError, DataError, StreamPCAError
from streampca.formatting import shortened
from streampca.storage.files import read_regular, write_atomically
from streampca.typing import Array, Json

Digests: TypeAlias = NDArray[np.uint8]
"""Digests by the place of a chunk in the grid, ``(*chunk_counts, 16)``; zeros where there is none."""
DIGEST, DIGEST_BYTES = "xxh3-128", 16
DOCUMENT = "stored_arrays"
"""Name of the array with the JSON that describes the others."""
_FORMAT, _VERSION = "streampca-digests", 1
_TABLES = ("digests", "versions", "edge")
_NO_CHUNK = bytes(DIGEST_BYTES)
_NUMBER = re.compile(r"\d+")
_DECIDING = (
    "zarr_format",
    "data_type",
    "dtype",
    "chunk_grid",
    "chunks",
    "chunk_key_encoding",
    "dimension_separator",
    "fill_value",
    "codecs",
    "compressor",
    "filters",
    "order",
)
"""Entries of stored metadata that decide what the bytes of a chunk mean."""


def _no_digests() -> Digests:
    return np.zeros((0, DIGEST_BYTES), dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class ChunkDigests:
    """What is known of the stored chunks of one array."""

    name: str
    """Path and name of the array, for messages."""
    shape: tuple[int, ...]
    """Shape of the array."""
    metadata: str
    """Metadata that decide what the bytes of a chunk mean, as JSON (see `deciding_metadata`)."""
    digests: Digests
    """The xxh3-128 of the stored bytes of each chunk, ``(*chunk_counts, 16)``; zeros where there is none."""
    versions: Digests = field(default_factory=_no_digests)
    """Digests of size and time of modification, or tag, of each chunk, shaped as `digests`; zeros, or none at all, where not known."""
    edge: Digests = field(default_factory=_no_digests)
    """Digests of the values of chunks that are not full along the axis of rows, ``(n, 16)`` in C order; none if not asked for."""
    snapshot: str = ""
    """Identifier of the snapshot of an icechunk repository that was read; empty for other stores."""
    place: Path | None = None
    """File or directory that they were read from; None for those of this process."""

    def __reduce__(self) -> tuple[object, ...]:
        if self.place is None:
            return ChunkDigests, tuple(getattr(self, each) for each in self.__dataclass_fields__)
        return _loaded, (self.place, self.name, self.whole)

    @property
    def whole(self) -> str:
        """Return one digest for the array: of its metadata and the digests of all chunks, in the order of the grid."""
        digest = xxhash.xxh3_128(f"{self.shape}{self.metadata}".encode("utf-8", "surrogatepass"))
        digest.update(np.ascontiguousarray(self.digests).data)
        return digest.hexdigest()

    def differences(self, metadata: str) -> Iterator[tuple[str, str, str]]:
        """Yield the entries of `metadata` that are others than recorded: name, what it was, and what it is."""
        then, now = json.loads(self.metadata), json.loads(metadata)
        for name in sorted({*now, *then}):
            one, other = (json.dumps(each.get(name), sort_keys=True) for each in (then, now))
            if one != other:
                yield name, shortened(one), shortened(other)

    def require_form(self, shape: tuple[int, ...], metadata: str, counts: tuple[int, ...], label: str) -> None:
        """Raise `DataError` unless shape, metadata and the number of chunks along each axis are as recorded."""
        different = [("shape", str(self.shape), str(shape))] if shape != self.shape else []
        different += self.differences(metadata)
        if different:
            what = "; ".join(f"its {name} was {one} and is {other}" for name, one, other in different[:2])
            raise DataError(
                f"{label}: its metadata is not what was fingerprinted ({what}; {self.place}): name the fingerprint of this array, "
                "or make a new one with streampca fingerprint if the change was on purpose"
            )
        if self.digests.shape[:-1] != counts:
            raise DataError(f"{self.place} is damaged: its digests are not those of {label}; make it again")

    def require(self, key: str, stored: memoryview | None) -> None:
        """Raise `AlteredChunkError` unless `stored`, the bytes of chunk `key`, None where there are none, are what they were."""
        actual = _NO_CHUNK if stored is None else xxhash.xxh3_128(stored).digest()
        expected = self.digests[place_of_key(key, self.digests.ndim - 1)].tobytes()
        if actual != expected:
            raise AlteredChunkError(
                f"chunk {key} is not what was fingerprinted: found {_as_text(actual)}, expected {_as_text(expected)} "
                f"({self.place}): restore it, or make a new fingerprint if the change was on purpose"
            )


@dataclass(frozen=True, eq=False)
class StoreRecord:
    """What is known of the arrays of a table and of the coordinates of its samples."""

    arrays: tuple[ChunkDigests, ...]
    """The digests of each array."""
    coordinates: Mapping[str, str] = field(default_factory=dict)
    """Digests of the coordinates of sample dimensions, by their names."""

    def of_array(self, name: str | None) -> ChunkDigests | None:
        """Return the digests of the array `name` of a group, None if there are none; the only ones are those of any array."""
        if len(self.arrays) == 1:
            return self.arrays[0]
        named = [each for each in self.arrays if each.name.endswith(f"/{name}")]
        return min(named, key=lambda each: len(each.name), default=None)  # of x and a/x, the one that is called x


def note(digests: Digests, key: str, stored: memoryview) -> None:
    """Set the digest of chunk `key` to that of `stored`, its bytes; the last reading counts, because damaged bytes are read again."""
    digests[place_of_key(key, digests.ndim - 1)] = np.frombuffer(xxhash.xxh3_128(stored).digest(), dtype=np.uint8)


def place_of_key(key: str, n_axes: int) -> tuple[int, ...]:
    """Return the place in the grid of the chunk `key` of an array with `n_axes` axes."""
    return tuple(int(number) for number in _NUMBER.findall(key)[-n_axes:])


def _as_text(digest: bytes) -> str:
    return "no such chunk" if digest == _NO_CHUNK else f"{DIGEST} {digest.hex()}"


def deciding_metadata(stored: bytes, packing: Mapping[str, object]) -> str:
    """Return what decides what the bytes of a chunk mean, as JSON: entries of the stored metadata of an array, and its `packing`.

    Raises
    ------
    DataError
        If the metadata are not a JSON object.
    """
    try:
        document = json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise DataError("the metadata of the array is not JSON") from error
    if not isinstance(document, dict):
        raise DataError("the metadata of the array is not a JSON object")
    known = {name: document[name] for name in _DECIDING if name in document}
    return json.dumps(known | {"packing": packing}, sort_keys=True, default=str)


def arrays_of_record(record: StoreRecord | None) -> dict[str, Array]:
    """Return a record as arrays of numbers: a document, as the bytes of JSON, and the digests; none without a record."""
    if record is None:
        return {}
    entries = [
        {"name": each.name, "metadata": each.metadata, "shape": each.shape, "whole": each.whole}
        | ({"snapshot": each.snapshot} if each.snapshot else {})
        for each in record.arrays
    ]
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "digest": DIGEST,
        "arrays": entries,
        "coordinates": dict(record.coordinates),
    }
    arrays: dict[str, Array] = {DOCUMENT: np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)}
    for index, each in enumerate(record.arrays):
        arrays |= {f"stored_{index}_{name}": getattr(each, name) for name in _TABLES}
    return arrays


def record_from(array: Callable[[str], Array]) -> StoreRecord:
    """Return the record that `arrays_of_record` made of the arrays that `array` returns by name.

    Raises
    ------
    DataError
        If it contradicts itself. Whatever else cannot be read raises the error of `array`, `json` or numpy.
    """
    document = json.loads(array(DOCUMENT).tobytes())
    if document.get("version", _VERSION) != _VERSION:
        raise DataError(f"its version is {document['version']!r}, expected {_VERSION}")
    arrays = tuple(_digests_from(array, index, entry) for index, entry in enumerate(document["arrays"]))
    if not arrays:
        raise DataError("it has no arrays")
    return StoreRecord(arrays, {str(name): str(digest) for name, digest in document["coordinates"].items()})


def _digests_from(array: Callable[[str], Array], index: int, entry: Json) -> ChunkDigests:
    digests, versions, edge = (array(f"stored_{index}_{name}") for name in _TABLES)
    shape = entry["shape"]
    name, metadata, snapshot = (str(entry.get(key, "")) for key in ("name", "metadata", "snapshot"))
    made = ChunkDigests(name, tuple(map(int, shape)), metadata, digests, versions, edge, snapshot)
    if (
        any(each.dtype != np.uint8 or each.shape[-1:] != (DIGEST_BYTES,) for each in (digests, versions, edge))
        or digests.ndim != len(shape) + 1
        or versions.shape not in (digests.shape, (0, DIGEST_BYTES))
        or edge.ndim != 2
        or not isinstance(json.loads(made.metadata), dict)
        or entry.get("whole", made.whole) != made.whole  # those of version 0.2 have none
    ):
        raise DataError("its digests contradict each other")
    return made


def default_place(source: str, array: str | None) -> Path:
    """Return the default path of a fingerprint: beside a local store, or in the working directory for a URL."""
    name = source.removeprefix("file://").rstrip("/")
    if "://" in name:
        name = PurePosixPath(urlsplit(name).path).name or "store"
    inner = f".{array.replace('/', '.')}" if array else ""
    return Path(f"{name}{inner}.fingerprint.npz")


def save_record(record: StoreRecord, place: Path) -> None:
    """Write a record to the file `place`, whole or not at all."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays_of_record(record))
    write_atomically(place, [buffer.getbuffer()])


def load_record(place: Path) -> StoreRecord:
    """Read the record in a file that `save_record` wrote, or that of the state of a run or a model, a directory.

    Raises
    ------
    DataError
        If there is none, or it is damaged.
    """
    place = place.absolute()
    try:
        if place.is_dir():
            record = _record_of_state(place)
        elif (data := read_regular(place)).startswith(b"{"):
            raise DataError("it is of version 0.2 or earlier, which wrote JSON")
        else:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                record = record_from(arrays.__getitem__)
    except FileNotFoundError as error:
        earlier = place.with_suffix(".json")
        hint = f" ({earlier.name} is of version 0.2 or earlier)" if earlier.exists() else ""
        raise DataError(
            f"{place}: no such fingerprint{hint}: make it with streampca fingerprint SOURCE, while the data are known to be whole"
        ) from error
    except OSError as error:
        raise DataError(f"{place} cannot be read: {error.strerror or error}") from error
    except StreamPCAError as error:
        raise DataError(f"{place} is damaged, or no fingerprint: {error}; make it again") from error
    except MemoryError:
        raise
    except Exception as error:  # zip files, arrays and JSON have no class of errors in common
        raise DataError(f"{place} is not a fingerprint: expected what streampca fingerprint writes") from error
    return StoreRecord(tuple(replace(each, place=place) for each in record.arrays), record.coordinates)


def _record_of_state(place: Path) -> StoreRecord:
    """Return the record in the state of the run or model at `place`, whose arrays have the SHA-256 that was saved with them."""
    state = (place / "model.zarr" if (place / "model.zarr").is_dir() else place) / "state"
    if not (state / DOCUMENT / "zarr.json").is_file():
        raise DataError("it is a directory without a state that has digests (output.state: true)")
    store = LocalStore(state, read_only=True)
    attributes: Json = dict(zarr.open_group(store, mode="r", use_consolidated=False).attrs)
    saved = attributes["sha256"]

    def array(name: str) -> Array:
        values: Array = np.ascontiguousarray(zarr.open_array(store, path=name, mode="r")[...])
        if hashlib.sha256(values.data).hexdigest() != saved[name]:
            raise DataError(f"array {name} does not have the SHA-256 that was saved with it")
        return values

    return record_from(array)


def verified_by(verify: str | Path, path: str, array: str | None) -> ChunkDigests:
    """Return the digests that `verify` names: a file, a run with a state, ``manifest`` for the default place."""
    place = default_place(path, array) if str(verify) == "manifest" else Path(verify).expanduser()
    digests = load_record(place).of_array(array)
    if digests is None:
        raise DataError(f"{place} has no digests of {array or path}: name the fingerprint of this array")
    return digests


@lru_cache(maxsize=4)
def _loaded(place: Path, name: str, whole: str) -> ChunkDigests:
    """Return the digests at `place` in another process, which reads them once."""
    for each in load_record(place).arrays:
        if (each.name, each.whole) == (name, whole):
            return each
    raise DataError(f"{place} has changed since the run began: start again")
