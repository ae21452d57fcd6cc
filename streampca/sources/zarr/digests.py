"""Digests of the chunks of an array at the time of its fingerprint, with which chunks are compared when they are read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import numpy as np
import xxhash
from numpy.typing import NDArray

from streampca.errors import AlteredChunkError, DataError
from streampca.storage.regular_files import read_regular

FORMAT, FORMAT_VERSION = "streampca-fingerprint", 1
DIGEST = "xxh3-128"
DIGEST_BYTES = 16
_NO_CHUNK = bytes(DIGEST_BYTES)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class ChunkDigests:
    """The xxh3-128 of every stored chunk of an array, of its compressed bytes."""

    place: Path
    """File that holds the digests."""
    metadata: str
    """Digest of the array's metadata (see `metadata_digest`)."""
    table: NDArray[np.uint8]
    """Digests by the place of a chunk in the grid, ``(*chunk_counts, 16)``; zeros where there was no chunk."""
    whole: str
    """Digest of all of these."""

    def __reduce__(self) -> tuple[object, ...]:
        return _loaded, (self.place.absolute(), self.whole)

    def require_array(self, metadata: str, grid: tuple[int, ...], label: str) -> None:
        """Raise `DataError` unless the metadata of the array, and the number of its chunks along each axis, are the same."""
        if (metadata, grid) != (self.metadata, self.table.shape[:-1]):
            raise DataError(
                f"{label}: its metadata is not what was fingerprinted (found {DIGEST} {metadata}, {self.place} has {self.metadata}): "
                "name the fingerprint of this array, or make a new one with streampca fingerprint if the change was on purpose"
            )

    def require(self, key: str, stored: memoryview | None) -> None:
        """Raise `AlteredChunkError` unless `stored`, the bytes of chunk `key`, None where there are none, are what they were."""
        actual = _NO_CHUNK if stored is None else xxhash.xxh3_128(stored).digest()
        place = place_of_key(key, self.table.ndim - 1)
        expected = self.table[place].tobytes()
        if actual != expected:
            raise AlteredChunkError(
                f"chunk {key} is not what was fingerprinted: found {_as_text(actual)}, expected {_as_text(expected)} "
                f"({self.place}): restore it, or make a new fingerprint if the change was on purpose"
            )


class KnownDigests:
    """The xxh3-128 of the stored bytes of those chunks of an array that were read, or are known from before."""

    def __init__(self, counts: tuple[int, ...]):
        self.table = np.zeros((*counts, DIGEST_BYTES), dtype=np.uint8)
        """Digests by the place of a chunk in the grid, ``(*counts, 16)``; zeros where it is not known."""

    def note(self, key: str, stored: memoryview) -> None:
        """Set the digest of chunk `key` to that of `stored`, its bytes; the last reading counts, because damaged bytes are read again."""
        self.table[place_of_key(key, self.table.ndim - 1)] = np.frombuffer(
            xxhash.xxh3_128(stored).digest(), dtype=np.uint8
        )


def place_of_key(key: str, n_axes: int) -> tuple[int, ...]:
    """Return the place in the grid of the chunk `key` of an array with `n_axes` axes."""
    return tuple(int(number) for number in _NUMBER.findall(key)[-n_axes:])


def _as_text(digest: bytes) -> str:
    return "no such chunk" if digest == _NO_CHUNK else f"{DIGEST} {digest.hex()}"


def whole_digest(metadata: str, table: NDArray[np.uint8]) -> str:
    """Return one digest for an array: of the digests of its metadata and all its chunks, in the order of the grid."""
    return xxhash.xxh3_128(bytes.fromhex(metadata) + np.ascontiguousarray(table).tobytes()).hexdigest()


def metadata_digest(stored: bytes) -> str:
    """Return the xxh3-128 of an array's stored metadata, without attributes, and independent of white space and the order of keys.

    Raises
    ------
    DataError
        If it is not a JSON object.
    """
    try:
        data = json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise DataError("the metadata of the array is not JSON") from error
    if not isinstance(data, dict):
        raise DataError("the metadata of the array is not a JSON object")
    document = {key: value for key, value in data.items() if key not in ("attributes", "consolidated_metadata")}
    return xxhash.xxh3_128(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def default_place(source: str, array: str | None) -> Path:
    """Return the default path of a fingerprint: beside a local store, or in the working directory for a URL."""
    name = source.removeprefix("file://").rstrip("/")
    if "://" in name:
        name = PurePosixPath(urlsplit(name).path).name or "store"
    inner = f".{array.replace('/', '.')}" if array else ""
    return Path(f"{name}{inner}.fingerprint.json")


def load_digests(place: Path) -> ChunkDigests:
    """Read a fingerprint.

    Raises
    ------
    DataError
        If there is none, or it is damaged.
    """
    place = place.absolute()
    try:
        data = json.loads(read_regular(place))
        if data["format"] != FORMAT or data["version"] != FORMAT_VERSION or data["digest"] != DIGEST:
            raise DataError(f"{place} is a fingerprint of another version: make a new one with streampca fingerprint")
        rows = [bytes.fromhex(row) for row in data["chunks"]]
        counts = [-(-int(n) // int(size)) for n, size in zip(data["shape"], data["chunk_shape"], strict=True)]
        table = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(*counts, DIGEST_BYTES)
        metadata, whole = str(data["metadata"]), str(data["whole"])
        same = len({len(row) for row in rows}) == 1 and whole == whole_digest(metadata, table)
    except FileNotFoundError as error:
        raise DataError(
            f"{place}: no such fingerprint: make it with streampca fingerprint SOURCE, while the data are known to be whole"
        ) from error
    except OSError as error:
        raise DataError(f"{place} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{place} is not a fingerprint: expected what streampca fingerprint writes") from error
    if not same:
        raise DataError(f"{place} is damaged: its digests are not those it was written with; make it again")
    return ChunkDigests(place, metadata, table, whole)


def verified_by(verify: str | Path | None, path: str, array: str | None) -> ChunkDigests | None:
    """Return the digests that `verify` names: a path, ``manifest`` for the default place, None for none."""
    if verify is None:
        return None
    return load_digests(default_place(path, array) if str(verify) == "manifest" else Path(verify).expanduser())


@lru_cache(maxsize=4)
def _loaded(place: Path, whole: str) -> ChunkDigests:
    """Return the digests at `place` in another process, which reads them once."""
    actual = load_digests(place)
    if actual.whole != whole:
        raise DataError(f"{place} has changed since the run began: start again")
    return actual
