"""The record of a table in zarr arrays, made during reading, and its comparison with the current store."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from streampca.errors import ChangedInputError, DamagedChunkError, NotAvailableError
from streampca.labels import Dimension, Labels
from streampca.sources.base import ReadCount, Source
from streampca.sources.table import TableSource
from streampca.sources.where import whole_of
from streampca.sources.zarr.digests import DIGEST_BYTES, ChunkDigests, Digests, StoreRecord, place_of_key
from streampca.sources.zarr.reader import ZarrSource
from streampca.sources.zarr.strictness import is_document
from streampca.storage.zarr_interface import default_buffer_prototype, sync
from streampca.typing import Array, BoolArray, IntArray

MOST_RECORDED = 2**20
"""Largest number of chunks of a store of which a record is made; it takes 32 bytes for each."""
_MOST_NAMED = 5
_AT_ONCE, _BATCH = 16, 256  # chunks


@dataclass(frozen=True)
class Comparison:
    """The chunks of a store that are others than recorded."""

    changed: tuple[str, ...]
    """Keys of chunks whose recorded rows are others, or cannot be the same."""
    n_compared: int
    """Number of recorded chunks."""
    count: ReadCount
    """What was read to compare them."""


def arrays_of(source: Source) -> tuple[ZarrSource, ...]:
    """Return the zarr arrays of a table whose rows can grow; none for other sources, and where chunks are too many for a record."""
    source = whole_of(source)
    if not isinstance(
        source, ZarrSource | TableSource
    ):  # such as AnnData, whose masks and names may change with its rows
        return ()
    arrays = tuple(each for each in source.stored_arrays if isinstance(each, ZarrSource) and each.layout.rows)
    n_chunks = sum(math.prod(each.layout.chunk_counts) for each in arrays)
    return arrays if len(arrays) == len(source.stored_arrays) and n_chunks <= MOST_RECORDED else ()


def note_digests(source: Source) -> None:
    """Have the digests of chunks noted that this process reads, for `record_of_store`."""
    for array in arrays_of(source):
        array.note_digests()


def record_of_store(source: Source) -> tuple[StoreRecord | None, ReadCount]:
    """Return the record of a table and what was read for it; None where none can be made.

    Read are chunks whose digests are not known (see `ZarrSource.note_digests`), as they are stored, and those that are not full
    along the axis of rows, which are decoded.
    """
    arrays, count, records = arrays_of(source), ReadCount(), []
    if not arrays:
        return None, count
    with source.reading():
        for array in arrays:
            record, read = _record_of(array)
            records.append(record)
            count += read
    return StoreRecord(tuple(records), _coordinates(whole_of(source).labels)), count


def compare_with_record(source: Source, record: StoreRecord) -> tuple[int, Comparison]:
    """Return the number of rows that were recorded, and the chunks that are others now; what is read is compared as it is stored.

    Raises
    ------
    ChangedInputError, NotAvailableError
        If an array is not as it was but for rows that were appended, or a coordinate of recorded samples is another.
    """
    arrays = arrays_of(source)
    if len(arrays) != len(record.arrays):
        raise NotAvailableError(
            f"{source.description} is made of {len(arrays)} zarr arrays, and the run of {len(record.arrays)}: run again in full"
        )
    count, n_compared, changed = ReadCount(), 0, list[str]()
    with source.reading():
        for array, before in zip(arrays, record.arrays, strict=True):
            result = _compare(array, before)
            names = [f"{array.name}/{key}" if array.name else key for key in result.changed]
            changed, n_compared, count = changed + names, n_compared + result.n_compared, count + result.count
    first, shape = arrays[0].layout.rows, record.arrays[0].shape
    if source.labels is not None:
        _require_same_coordinates(source, source.labels, record, shape[first[0]])
    return math.prod(shape[axis] for axis in first), Comparison(tuple(changed), n_compared, count)


def require_same_chunks(source: Source, comparison: Comparison) -> None:
    """Raise `ChangedInputError`, naming them, if recorded chunks were changed."""
    changed = comparison.changed
    if changed:
        more = f" and {len(changed) - _MOST_NAMED:,} more" if len(changed) > _MOST_NAMED else ""
        raise ChangedInputError(
            f"{source.description}: {len(changed):,} of {comparison.n_compared:,} chunks have changed since the run read them: "
            f"{', '.join(changed[:_MOST_NAMED])}{more}; put them back as they were, or run again in full"
        )


def keys_where(source: ZarrSource, places: BoolArray) -> tuple[str, ...]:
    """Return the keys of the chunks at `places`, a truth value for each in the grid."""
    return tuple(source.array.metadata.encode_chunk_key(tuple(place)) for place in np.argwhere(places).tolist())


def read_digests(
    source: ZarrSource, numbers: Sequence[int] | IntArray, table: Digests, most_bytes: int = 2**25
) -> Iterator[tuple[int, ReadCount]]:
    """Read chunks, given by their numbers in the C order of the grid, as they are stored, and write their digests to `table`.

    The number of chunks in each batch, and what they cost, are yielded. Of a chunk that does not exist, and may be missing, the digest is zeros. At most one chunk,
    or `most_bytes` of them as decoded, are in memory at once.
    """
    at_once = max(1, min(_AT_ONCE, most_bytes // max(1, source.grid.chunk_bytes)))
    for first in range(0, len(numbers), _BATCH):
        places = np.stack(np.unravel_index(numbers[first : first + _BATCH], source.layout.chunk_counts), axis=1)
        keys = [source.array.metadata.encode_chunk_key(tuple(place)) for place in places.tolist()]
        read = sync(_read(source, keys, at_once))
        digests = np.frombuffer(b"".join(digest for digest, _ in read), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        table[tuple(places.T)] = digests
        yield len(places), ReadCount(int(digests.any(axis=-1).sum()), 0, sum(size for _, size in read))


async def _read(source: ZarrSource, keys: list[str], at_once: int) -> list[tuple[bytes, int]]:
    """Return digest and size of each chunk, zeros where there is none, reading a few at a time."""
    turn, prototype = asyncio.Semaphore(at_once), default_buffer_prototype()

    async def one(key: str) -> tuple[bytes, int]:
        async with turn:
            try:
                value = await source.store.get(f"{source.key_prefix}{key}", prototype)
            except DamagedChunkError as error:
                raise DamagedChunkError(f"{source.label}: chunk {key}: {error}") from error
            if value is None:
                return bytes(DIGEST_BYTES), 0
            stored = value.as_numpy_array()
            return await asyncio.to_thread(lambda: xxhash.xxh3_128(stored.data).digest()), len(value)

    return await asyncio.gather(*(one(key) for key in keys))


def _record_of(source: ZarrSource) -> tuple[ChunkDigests, ReadCount]:
    """Return the record of one array, and what was read for it."""
    digests = source.note_digests()
    (versions, listed), count = _versions(source), ReadCount()
    if source.digests is None:
        there = versions.any(axis=-1) if listed else np.ones(digests.shape[:-1], dtype=bool)
        count = _read_where(source, np.logical_and(there, ~digests.any(axis=-1)), digests)
    edge, read = _value_digests(source, _partial_chunks(source, source.layout.shape), source.layout.shape)
    metadata, snapshot = source.deciding_metadata(), source.snapshot or ""
    return ChunkDigests(source.label, source.layout.shape, metadata, digests, versions, edge, snapshot), count + read


def _compare(source: ZarrSource, record: ChunkDigests) -> Comparison:
    """Compare the chunks of an array with their record, and note the digests of those that are as they were.

    Chunks whose size and time of modification, or tag, are as recorded are not read, nor are those that were not written between
    two snapshots of an icechunk repository. The others are read as they are stored. Those
    that were not full along the axis of rows, and whose bytes are others now, are decoded, and the values of the recorded rows
    compared.
    """
    _require_grown(source, record)
    region = tuple(slice(n) for n in record.digests.shape[:-1])
    versions, listed = _versions(source)
    now = versions[region]
    same = (now == record.versions).all(axis=-1) & now.any(axis=-1)
    if (written := source.written_since(record.snapshot)) is not None:
        same[:] = True
        for place in written:
            if all(index < n for index, n in zip(place, same.shape, strict=True)):
                same[place] = False
    elif listed:
        same |= ~now.any(axis=-1) & ~record.digests.any(axis=-1)  # never written, neither then nor now
    others: BoolArray = ~same
    digests = np.zeros((*source.layout.chunk_counts, DIGEST_BYTES), dtype=np.uint8)
    count = _read_where(source, others, digests)
    same[others] = (digests[region] == record.digests).all(axis=-1)[others]
    source.note_digests()[region][same] = record.digests[same]
    partial = _partial_chunks(source, record.shape)
    rewritten = np.flatnonzero(~same[tuple(partial.T)])
    values, read = _value_digests(source, partial[rewritten], record.shape)
    same[tuple(partial[rewritten].T)] = (values == record.edge[rewritten]).all(axis=-1)
    return Comparison(keys_where(source, ~same), same.size, count + read)


def _read_where(source: ZarrSource, places: BoolArray, table: Digests) -> ReadCount:
    """Write the digests of the chunks at `places`, a truth value for each in the first part of the grid, to `table`."""
    numbers = np.ravel_multi_index(np.nonzero(places), source.layout.chunk_counts)
    return sum((count for _, count in read_digests(source, numbers, table)), ReadCount())


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
    table, n_values, read = np.zeros((len(places), DIGEST_BYTES), dtype=np.uint8), 0, 0
    for row, place in zip(table, places.tolist(), strict=True):
        spans = [
            range(index * size, min((index + 1) * size, n))
            for index, size, n in zip(place, layout.grid, shape, strict=True)
        ]
        digest = xxhash.xxh3_128()
        for start in range(spans[axis].start, spans[axis].stop, inner[axis]):  # the chunks of a shard one after another
            spans[axis] = range(start, min(start + inner[axis], (place[axis] + 1) * layout.grid[axis], shape[axis]))
            values, count = source.values_in(tuple(spans))
            read += count.stored_bytes
            values = values.astype(values.dtype.newbyteorder("<"), copy=False)
            digest.update(values.reshape(-1).view(np.uint8).data)
            n_values += values.size
        row[:] = np.frombuffer(digest.digest(), dtype=np.uint8)
    return table, ReadCount(len(places), n_values * source.dtype.itemsize, read)


def _require_grown(source: ZarrSource, record: ChunkDigests) -> None:
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
    for name, one, other in record.differences(source.deciding_metadata()):
        raise ChangedInputError(
            f"{source.label}: its {name} was {one} and is {other}: stored rows no longer mean what the run read; "
            "run again in full"
        )


def _coordinates(labels: Labels | None) -> dict[str, str]:
    samples = () if labels is None else labels.samples
    return {each.name: _digest(each.coordinate) for each in samples if each.coordinate is not None}


def _digest(values: Array) -> str:
    """Return a digest of the values of a coordinate, the same for the same values in a longer one."""
    if values.dtype.kind in "iufb":
        values = values.astype(np.float64) if values.dtype.kind == "f" else values.astype(np.int64)
    elif values.dtype.kind in "mM":
        values = values.view(np.int64)
    else:
        return xxhash.xxh3_128("\0".join(map(str, values.tolist())).encode("utf-8", "surrogatepass")).hexdigest()
    return xxhash.xxh3_128(np.ascontiguousarray(values).view(np.uint8).data).hexdigest()


def _require_same_coordinates(source: Source, labels: Labels, record: StoreRecord, n_before: int) -> None:
    """Raise `ChangedInputError` if a coordinate of samples is another, that of the first dimension in its first `n_before` places."""
    for axis, dimension in enumerate(labels.samples):
        before, values = record.coordinates.get(dimension.name), _first(dimension, n_before if axis == 0 else None)
        if before is not None and (values is None or _digest(values) != before):
            rows = f"of the {n_before:,} that were there" if axis == 0 else "of the samples"
            raise ChangedInputError(
                f"{source.description}: the coordinate {dimension.name} {rows} was changed since the run: put it back as it was, or run "
                "again in full"
            )


def _first(dimension: Dimension, n: int | None) -> Array | None:
    return None if dimension.coordinate is None else dimension.coordinate[:n]
