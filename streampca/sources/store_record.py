"""The record of a table that is stored in zarr arrays, and the rows that were appended to it since."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import xxhash

from streampca.errors import ChangedInputError, NotAvailableError
from streampca.labels import Dimension, Labels
from streampca.sources.base import ReadCount, Source
from streampca.sources.table import TableSource
from streampca.sources.zarr.chunk_record import MOST_RECORDED, ChunkRecord, Comparison, compare, record_of
from streampca.sources.zarr.reader import ZarrSource
from streampca.typing import Array

_MOST_NAMED = 5


@dataclass(frozen=True, eq=False)
class StoreRecord:
    """What is known of the arrays of a table and of the coordinates of its samples."""

    arrays: tuple[ChunkRecord, ...]
    """The record of each array."""
    coordinates: Mapping[str, str] = field(default_factory=dict)
    """Digests of the coordinates of sample dimensions, by their names."""


def arrays_of(source: Source) -> tuple[ZarrSource, ...]:
    """Return the zarr arrays of a table whose rows can grow; none for other sources, and where chunks are too many for a record."""
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
    """Return the record of a table and what was read for it, see `chunk_record.record_of`; None where none can be made."""
    arrays, count, records = arrays_of(source), ReadCount(), []
    if not arrays:
        return None, count
    with source.reading():
        for array in arrays:
            record, read = record_of(array)
            records.append(record)
            count += read
    return StoreRecord(tuple(records), _coordinates(source.labels)), count


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
            result = compare(array, before)
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
            f"{source.description}: {len(changed):,} of {comparison.n_compared:,} chunks were changed since the run, which has their rows: "
            f"{', '.join(changed[:_MOST_NAMED])}{more}; put them back as they were, or run again in full"
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
