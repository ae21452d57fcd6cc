"""A file with a digest of every stored chunk of an array, to compare with later reads."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streampca.errors import DataError, OutputError
from streampca.execution.progress import Meter, ProgressCallback
from streampca.redaction import shown
from streampca.runs.config import load_config
from streampca.runs.from_config import source_of
from streampca.sources import open_source
from streampca.sources.base import Source
from streampca.sources.files.paths import is_files_path
from streampca.sources.listing import list_store
from streampca.sources.open import is_store_path
from streampca.sources.store_record import read_digests
from streampca.sources.zarr.digests import (
    DIGEST_BYTES,
    ChunkDigests,
    StoreRecord,
    default_place,
    load_record,
    save_record,
)
from streampca.sources.zarr.reader import ZarrSource

_BYTES_AT_ONCE = 256 * 2**20


@dataclass(frozen=True)
class Fingerprint:
    """Summary of a written fingerprint."""

    place: Path
    """The file."""
    whole: str
    """Single digest of shape, metadata, and all chunks in grid order."""
    n_chunks: int
    """Number of existing chunks."""
    n_missing: int
    """Number of missing chunks."""
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
    """Open the arrays at a path or URL, or in the source of a configuration, to digest their stored chunks.

    `names` are names of arrays in a group; empty for the array at `path`, or the only one in the group there. Arrays beside
    the data, such as coordinates, have no digests, so their missing chunks do not matter.
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
                f"{each}: fingerprints are for zarr arrays, and these are files of rows, which every run records in its manifest"
            )


def _opened(path: str, name: str | None, missing_chunks: str) -> Source:
    """Open an array with any dimensions as samples."""
    try:
        return open_source(path, array=name, missing_chunks=missing_chunks, decode="raw")
    except DataError:
        if not is_store_path(path):
            raise
        known = [entry for entry in list_store(path).arrays if entry.get("name") == name]
        if not known or len(known[0]["shape"]) <= 2:
            raise
        first = known[0].get("dims", ["dim_0"])[0]
        return open_source(path, array=name, samples=first, missing_chunks=missing_chunks, decode="raw")


def write_fingerprint(
    source: Source, place: Path | None = None, *, overwrite: bool = False, progress: ProgressCallback | None = None
) -> Fingerprint:
    """Read all stored chunks of `source` without decoding them, and write the xxh3-128 of each to `place`.

    The default is ``<store>.fingerprint.npz`` beside a local store, or in the working directory for a URL. The file has the
    form of the digests in a state (`streampca.sources.zarr.digests`). xxh3 detects accidental changes; it is not a signature.

    Raises
    ------
    OutputError
        If `place` is another file, or if it is a fingerprint and `overwrite` is not set.
    DataError
        If `source` is not a zarr array, or if chunks are missing and should not be filled.
    """
    if not isinstance(source, ZarrSource):
        raise DataError(f"{source.description}: fingerprints are for zarr arrays, found {type(source).__name__}")
    place = default_place(source.description, source.name) if place is None else place
    _require_free(place, overwrite)
    counts = source.layout.chunk_counts
    n_all, n_chunks, n_bytes = math.prod(counts), 0, 0
    table = np.zeros((*counts, DIGEST_BYTES), dtype=np.uint8)
    meter = Meter("fingerprint", n_all, progress, "chunks")
    with source.reading():
        metadata = source.deciding_metadata()
        for n_read, count in read_digests(source, range(n_all), table, _BYTES_AT_ONCE):
            n_chunks, n_bytes = n_chunks + count.chunks, n_bytes + count.stored_bytes
            meter.add(n_read, count.stored_bytes)
    digests = ChunkDigests(shown(source.label), source.layout.shape, metadata, table)
    save_record(StoreRecord((digests,)), place)
    return Fingerprint(place, digests.whole, n_chunks, n_all - n_chunks, n_bytes)


def _require_free(place: Path, overwrite: bool) -> None:
    if not place.exists() and not place.is_symlink():
        return
    try:
        if place.is_dir():  # such as a run, whose state holds digests
            raise DataError("it is a directory")
        load_record(place)
    except DataError as error:
        raise OutputError(
            f"{place} exists and is not a fingerprint: it is left untouched; name another place"
        ) from error
    if not overwrite:
        raise OutputError(
            f"{place} already holds a fingerprint: source.verify: manifest compares the data with it; --overwrite replaces it by one of "
            "the present data"
        )
