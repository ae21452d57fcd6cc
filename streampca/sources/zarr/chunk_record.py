"""The record of the stored chunks of an array, with which it is compared when it may have grown since."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from streampca.errors import ChangedInputError, NotAvailableError
from streampca.formatting import shortened
from streampca.sources.base import ReadCount
from streampca.sources.conventions import packing
from streampca.sources.zarr.digests import DIGEST_BYTES, place_of_key
from streampca.sources.zarr.metadata import is_document
from streampca.sources.zarr.reader import ZarrSource
from streampca.sources.zarr.stored_digests import stored_digests
from streampca.typing import IntArray

MOST_RECORDED = 2**20
"""Largest number of chunks of a store of which a record is made; it takes 32 bytes for each."""
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
Digests = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ChunkRecord:
    """What is known of the stored chunks of one array."""

    name: str
    """Path and name of the array, for messages."""
    shape: tuple[int, ...]
    """Shape of the array."""
    metadata: str
    """Metadata that decide what the bytes of a chunk mean, as JSON."""
    digests: Digests
    """The xxh3-128 of the stored bytes of each chunk, ``(*chunk_counts, 16)``; zeros where there is none."""
    versions: Digests
    """Digests of size and time of modification, or tag, of each chunk, ``(*chunk_counts, 16)``; zeros where they are not known."""
    edge: Digests
    """Digests of the values of the chunks that are not full along the axis of rows, ``(n, 16)`` in C order; none where all are full."""


@dataclass(frozen=True)
class Comparison:
    """The chunks of an array that are others than recorded."""

    changed: tuple[str, ...]
    """Keys of chunks whose recorded rows are others, or cannot be the same."""
    n_compared: int
    """Number of recorded chunks."""
    count: ReadCount
    """What was read to compare them."""


def record_of(source: ZarrSource) -> tuple[ChunkRecord, ReadCount]:
    """Return the record of an array, and what was read for it.

    Read are chunks whose digests are not known (see `ZarrSource.note_digests`), as they are stored, and those that are not full
    along the axis of rows, which are decoded.
    """
    digests = (source.note_digests() if source.digests is None else source.digests).table
    (versions, listed), count = _versions(source), ReadCount()
    if source.digests is None:
        there = versions.any(axis=-1) if listed else np.ones(digests.shape[:-1], dtype=bool)
        unknown = np.argwhere(there & ~digests.any(axis=-1))
        count = _read_digests(source, unknown, digests)
    edge, read = _value_digests(source, _partial_chunks(source, source.layout.shape), source.layout.shape)
    return ChunkRecord(source.label, source.layout.shape, _metadata_of(source), digests, versions, edge), count + read


def same_form(source: ZarrSource, record: ChunkRecord) -> bool:
    """Return whether an array has the shape and the metadata that were recorded."""
    return (source.layout.shape, _metadata_of(source)) == (record.shape, record.metadata)


def compare(source: ZarrSource, record: ChunkRecord) -> Comparison:
    """Compare the chunks of an array with their record, and note the digests of those that are as they were.

    Chunks whose size and time of modification, or tag, are as recorded are not read. The others are read as they are stored. Those
    that were not full along the axis of rows, and whose bytes are others now, are decoded, and the values of the recorded rows
    compared.

    Raises
    ------
    ChangedInputError, NotAvailableError
        If the array has less rows or other metadata, or grew along another axis than that of rows.
    """
    _require_grown(source, record)
    region = tuple(slice(n) for n in record.digests.shape[:-1])
    versions, listed = _versions(source)
    now = versions[region]
    same = (now == record.versions).all(axis=-1) & now.any(axis=-1)
    if listed:
        same |= ~now.any(axis=-1) & ~record.digests.any(axis=-1)  # never written, neither then nor now
    others, digests = np.argwhere(~same), np.zeros_like(record.digests)
    count = _read_digests(source, others, digests)
    same[tuple(others.T)] = (digests == record.digests).all(axis=-1)[tuple(others.T)]
    source.note_digests().table[region][same] = record.digests[same]
    partial = _partial_chunks(source, record.shape)
    rewritten = np.flatnonzero(~same[tuple(partial.T)])
    values, read = _value_digests(source, partial[rewritten], record.shape)
    same[tuple(partial[rewritten].T)] = (values == record.edge[rewritten]).all(axis=-1)
    keys = tuple(source.array.metadata.encode_chunk_key(tuple(place)) for place in np.argwhere(~same).tolist())
    return Comparison(keys, same.size, count + read)


def _versions(source: ZarrSource) -> tuple[Digests, bool]:
    """Return a digest of size and time, or tag, of each chunk, zeros where there is none, and whether the store lists its chunks."""
    counts = source.layout.chunk_counts
    versions, listed = np.zeros((*counts, DIGEST_BYTES), dtype=np.uint8), False
    for name, size, tag in source.stored_items() or ():
        if is_document(name):
            continue
        place = place_of_key(name, len(counts))
        if len(place) < len(counts) or not all(index < n for index, n in zip(place, counts, strict=True)):
            continue  # the file of a whole store, or a chunk beyond the shape of the array
        listed = True
        version = xxhash.xxh3_128(f"{size}|{tag}".encode("utf-8", "surrogateescape")).digest()
        versions[place] = np.frombuffer(version, dtype=np.uint8)
    return versions, listed


def _read_digests(source: ZarrSource, places: IntArray, table: Digests) -> ReadCount:
    """Read the chunks at `places`, ``(n, n_axes)``, as they are stored, and write their digests to `table`."""
    count = ReadCount()
    numbers = np.ravel_multi_index(tuple(places.T), source.layout.chunk_counts)
    for batch, digests, n_bytes in stored_digests(source, numbers):
        table[tuple(places[batch].T)] = digests
        count += ReadCount(int(digests.any(axis=-1).sum()), 0, n_bytes)
    return count


def _partial_chunks(source: ZarrSource, shape: tuple[int, ...]) -> IntArray:
    """Return the places of the chunks that an array of `shape` fills only in part along the axis of rows, ``(n, n_axes)``."""
    axis, grid = source.layout.rows[0], source.layout.grid
    band, remainder = divmod(shape[axis], grid[axis])
    counts = [-(-n // size) for n, size in zip(shape, grid, strict=True)]
    counts[axis] = 1 if remainder else 0
    places: IntArray = np.argwhere(np.ones(counts, dtype=bool))
    places[:, axis] += band
    return places


def _value_digests(source: ZarrSource, places: IntArray, shape: tuple[int, ...]) -> tuple[Digests, ReadCount]:
    """Return a digest of the values of each chunk at `places` of an array of `shape`, ``(n, 16)``, and what reading them cost."""
    axis, layout, inner = source.layout.rows[0], source.layout, source.array.chunks
    table, before, n_values = np.zeros((len(places), DIGEST_BYTES), dtype=np.uint8), source.store.stored_bytes, 0
    for row, place in zip(table, places.tolist(), strict=True):
        spans = [
            range(index * size, min((index + 1) * size, n))
            for index, size, n in zip(place, layout.grid, shape, strict=True)
        ]
        digest = xxhash.xxh3_128()
        for start in range(spans[axis].start, spans[axis].stop, inner[axis]):  # the chunks of a shard one after another
            spans[axis] = range(start, min(start + inner[axis], (place[axis] + 1) * layout.grid[axis], shape[axis]))
            values = np.ascontiguousarray(source.values_in(tuple(spans), 0, source.shape[0]))
            values = values.astype(values.dtype.newbyteorder("<"), copy=False)
            digest.update(values.reshape(-1).view(np.uint8).data)
            n_values += values.size
        row[:] = np.frombuffer(digest.digest(), dtype=np.uint8)
    read = source.store.stored_bytes - before
    return table, ReadCount(len(places), n_values * source.dtype.itemsize, read)


def _metadata_of(source: ZarrSource) -> str:
    """Return the stored metadata that decide what the bytes of a chunk mean, as JSON."""
    document = json.loads(source.stored_metadata())
    known = {name: document[name] for name in _DECIDING if name in document}
    return json.dumps(known | {"packing": packing(source.array.metadata)}, sort_keys=True, default=str)


def _require_grown(source: ZarrSource, record: ChunkRecord) -> None:
    """Raise an error unless an array is as recorded but for more rows."""
    shape, before, axis = source.layout.shape, record.shape, source.layout.rows[0]
    if len(shape) != len(before):
        raise ChangedInputError(
            f"{source.label} has shape {shape}, and the run was made from {before}: run again in full"
        )
    others = [index for index in range(len(shape)) if index != axis and shape[index] != before[index]]
    if others and others[0] in source.layout.rows:
        raise NotAvailableError(
            f"{source.label} has shape {shape}, and the run was made from {before}: new rows lie between the others; only rows that "
            "were appended along the first dimension of the samples can be added: run again in full"
        )
    if others:
        raise ChangedInputError(
            f"{source.label} has shape {shape}, and the run was made from {before}: expected the same features; run again in full"
        )
    if shape[axis] < before[axis]:
        raise ChangedInputError(
            f"{source.label} has shape {shape}, and the run was made from {before}: rows were removed; put them back, or run again in full"
        )
    now, then = json.loads(_metadata_of(source)), json.loads(record.metadata)
    for name in sorted({*now, *then}):
        one, other = (json.dumps(each.get(name), sort_keys=True) for each in (then, now))
        if one != other:
            raise ChangedInputError(
                f"{source.label}: its {name} was {shortened(one)} and is {shortened(other)}: stored rows have another meaning than those "
                "that the run has read; run again in full"
            )
