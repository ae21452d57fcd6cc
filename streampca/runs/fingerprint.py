"""A file with a digest of every stored chunk of an array, with which later reads are compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DataError, OutputError
from streampca.execution.progress import Meter, ProgressCallback
from streampca.redaction import shown
from streampca.runs.config import load_config
from streampca.runs.from_config import source_of
from streampca.sources import open_source
from streampca.sources.base import Source
from streampca.sources.files.paths import is_files_path
from streampca.sources.zarr.digests import (
    DIGEST,
    DIGEST_BYTES,
    FORMAT,
    FORMAT_VERSION,
    default_place,
    load_digests,
    whole_digest,
)
from streampca.sources.zarr.listing import list_store
from streampca.sources.zarr.reader import ZarrSource
from streampca.sources.zarr.stored_digests import stored_digests
from streampca.storage.files import write_atomically

_BYTES_AT_ONCE = 256 * 2**20


@dataclass(frozen=True)
class Fingerprint:
    """Summary of a written fingerprint."""

    place: Path
    """The file."""
    whole: str
    """One digest for all: that of the metadata and of all chunks in the order of the grid."""
    n_chunks: int
    """Chunks that exist."""
    n_missing: int
    """Chunks that do not."""
    stored_bytes: int
    """Size of the chunks as stored."""

    def to_dict(self) -> dict[str, str | int]:
        """Return plain data for JSON."""
        return {
            "path": str(self.place),
            "digest": self.whole,
            "chunks": self.n_chunks,
            "missing_chunks": self.n_missing,
            "stored_bytes": self.stored_bytes,
        }


def arrays_of(path: str, names: Sequence[str], missing_chunks: str) -> tuple[Source, ...]:
    """Open the arrays at a path or URL, or those of the source of a configuration, to digest their chunks as they are stored.

    `names` are those of arrays in a group; empty for the array at `path`, or the only one in the group there. Arrays beside
    the data, such as coordinates, have no digests, so that their missing chunks do not matter.
    """
    missing_chunks = "fill_labels" if missing_chunks == "error" else missing_chunks
    if path.endswith((".yaml", ".yml")):
        changes = {"verify": "null", "decode": "raw", "mask": "null", "missing_chunks": missing_chunks}
        changes |= {"variables": json.dumps(list(names)), "array": "null"} if names else {}
        overrides = [f"source.{key}={value}" for key, value in changes.items()]
        config = load_config(path, overrides)
        _require_no_files(config.source.path)
        return source_of(config).stored_arrays
    _require_no_files(path)
    opened = [_opened(path, name, missing_chunks) for name in names or (None,)]
    return tuple(stored for source in opened for stored in source.stored_arrays)


def _require_no_files(path: str | Sequence[str]) -> None:
    """Raise `DataError` if `path` names files of rows, which have no chunks with digests."""
    for each in [path] if isinstance(path, str) else path:
        if is_files_path(each):
            raise DataError(
                f"{each}: fingerprints are of zarr arrays, and these are files of rows, of which every run keeps a record in its manifest"
            )


def _opened(path: str, name: str | None, missing_chunks: str) -> Source:
    """Open an array, whichever of its dimensions are samples."""
    try:
        return open_source(path, array=name, missing_chunks=missing_chunks, decode="raw")
    except DataError:
        if path.startswith("builtin:") or is_files_path(path):
            raise
        known = [entry for entry in list_store(path).arrays if entry.get("name") == name]
        if not known or len(known[0]["shape"]) <= 2:
            raise
        first = known[0].get("dims", ["dim_0"])[0]
        return open_source(path, array=name, samples=first, missing_chunks=missing_chunks, decode="raw")


def write_fingerprint(
    source: Source, place: Path | None = None, *, overwrite: bool = False, progress: ProgressCallback | None = None
) -> Fingerprint:
    """Read all chunks of `source` as they are stored and write the xxh3-128 of each to `place`.

    By default that is ``<store>.fingerprint.json`` beside a local store, and in the working directory for a URL. Nothing is
    decoded. xxh3 finds accidents; it is no signature.

    Raises
    ------
    OutputError
        If `place` is another file, or a fingerprint and `overwrite` is not set.
    DataError
        If `source` is not a zarr array, or chunks are missing and were not to be filled.
    """
    if not isinstance(source, ZarrSource):
        raise DataError(f"{source.description}: fingerprints are of zarr arrays, found {type(source).__name__}")
    place = default_place(source.description, source.name) if place is None else place
    _require_free(place, overwrite)
    with source.reading():
        metadata = source.metadata_digest()
        table, stored_bytes = _digests_of(source, progress)
    n_chunks = int(table.any(axis=-1).sum())
    n_missing = table.size // DIGEST_BYTES - n_chunks
    whole = whole_digest(metadata, table)
    head = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": shown(source.description),
        "array": source.name,
        "shape": list(source.array.shape),
        "dtype": str(source.dtype),
        "chunk_shape": list(source.layout.grid),
        "n_chunks": n_chunks,
        "n_missing": n_missing,
        "stored_bytes": stored_bytes,
        "digest": DIGEST,
        "metadata": metadata,
        "whole": whole,
    }
    write_atomically(place, _json_pieces(head, table))
    return Fingerprint(place, whole, n_chunks, n_missing, stored_bytes)


def _json_pieces(head: Mapping[str, object], table: NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield a JSON object of `head` and ``chunks``, which has one text for each index along the first axis of the grid of chunks."""
    yield json.dumps(head, indent=2).removesuffix("\n}").encode() + b',\n  "chunks": [\n'
    for index, row in enumerate(table):
        yield (",\n" if index else "").encode() + json.dumps("".join(digest.tobytes().hex() for digest in row)).encode()
    yield b"\n  ]\n}\n"


def _require_free(place: Path, overwrite: bool) -> None:
    if not place.exists() and not place.is_symlink():
        return
    try:
        load_digests(place)
    except DataError as error:
        raise OutputError(
            f"{place} exists and is not a fingerprint: it is left untouched; name another place"
        ) from error
    if not overwrite:
        raise OutputError(
            f"{place} holds a fingerprint already: --overwrite makes a new one, which forgets what the data were; "
            "source.verify: manifest compares them with it"
        )


def _digests_of(source: ZarrSource, progress: ProgressCallback | None) -> tuple[NDArray[np.uint8], int]:
    """Return the digests of all chunks, ``(*chunk_counts, 16)``, zeros where there is none, and their size in all."""
    counts = source.layout.chunk_counts
    n_chunks = math.prod(counts)
    table = np.zeros((n_chunks, DIGEST_BYTES), dtype=np.uint8)
    meter, total = Meter("fingerprint", n_chunks, progress, "chunks"), 0
    for batch, digests, n_bytes in stored_digests(source, range(n_chunks), _BYTES_AT_ONCE):
        table[batch] = digests
        total += n_bytes
        meter.add(len(digests), n_bytes)
    return table.reshape(*counts, DIGEST_BYTES), total
