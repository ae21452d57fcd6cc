"""A few rows from all over a source, read before the pass, to tell where its variance lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from streampca.accumulators.centring import (
    refuse_infinite,
    refuse_not_finite,
    work_dtype,
)
from streampca.accumulators.shifting import sampled_origin
from streampca.accumulators.sparse import refuse_stored
from streampca.execution.distributed.retries import read_with_retries
from streampca.random import generator
from streampca.sources.base import ReadCount, Source
from streampca.sources.schedule import Schedule
from streampca.typing import Array, BoolArray, FloatArray, IntArray

_LEAST_ROWS = 500
_MOST_SHARE = 0.1  # of the source that the pilot may decode unless its size is given
_LEAST_BANDS = 2
_ORIGIN_ROWS, _ORIGIN_BYTES = 128, 2**26


@dataclass(frozen=True)
class Pilot:
    """Which rows are read beforehand."""

    n_rows: int
    """How many; 0 = none."""
    n_bands: int
    """From how many bands of chunks, spread over the source; 0 where single rows can be read."""
    bytes: int
    """Decoded bytes that this takes."""


def plan_pilot(source: Source, wanted: int | str, n_columns: int, room: int) -> Pilot:
    """Return which rows inform a test matrix of `n_columns` columns.

    Ten for each column and at least 500, but no more than a tenth of the source is decoded for them: where stores only give
    whole chunks, they come from a tenth of the bands. A number in `wanted` is taken as it is. `room` is in bytes.
    """
    n = source.shape[0]
    if wanted == 0 or n < 4:
        return Pilot(0, 0, 0)
    automatic = isinstance(wanted, str)
    rows = min(n, max(_LEAST_ROWS, 10 * n_columns)) if automatic else min(n, int(wanted))
    if automatic:
        rows = min(rows, room // max(1, 12 * source.shape[1]), max(n_columns, n // 4))
        if rows < n_columns // 2:
            return Pilot(0, 0, 0)
    if source.reads_of(0, 1) == source.row_bytes:
        return Pilot(rows, 0, rows * source.row_bytes)
    n_bands = -(-n // source.chunk_rows)
    bands = min(n_bands, rows)
    if automatic:
        bands = min(bands, int(_MOST_SHARE * n_bands))
        if bands < _LEAST_BANDS:
            return Pilot(0, 0, 0)
    rows = min(rows, bands * source.chunk_rows)
    return Pilot(rows, bands, bands * min(n, source.chunk_rows) * source.row_bytes)


def rows_of(pilot: Pilot, source: Source, seed: int) -> IntArray:
    """Return the row numbers, ascending: one at random in each of equal stretches, of the source or of its bands."""
    n = source.shape[0]
    draw = generator(seed, "pilot")
    if not pilot.n_bands:
        return _one_in_each(n, pilot.n_rows, draw)
    n_bands = -(-n // source.chunk_rows)
    bands = _one_in_each(n_bands, pilot.n_bands, draw)
    chosen = []
    for i, band in enumerate(bands):
        start = int(band) * source.chunk_rows
        length = min(source.chunk_rows, n - start)
        share = pilot.n_rows * (i + 1) // pilot.n_bands - pilot.n_rows * i // pilot.n_bands
        chosen.append(start + _one_in_each(length, min(share, length), draw))
    return np.concatenate(chosen)


def _one_in_each(length: int, n_chosen: int, draw: np.random.Generator) -> IntArray:
    edges = np.arange(n_chosen + 1, dtype=np.int64) * length // max(1, n_chosen)
    return np.asarray(draw.integers(edges[:-1], edges[1:]), dtype=np.int64)


def read_pilot(
    pilot: Pilot,
    source: Source,
    seed: int,
    missing: str = "error",
    on_rows: Callable[[int, int], None] | None = None,
    ahead_bytes: int = 0,
) -> tuple[IntArray, Array, ReadCount]:
    """Return row numbers, the rows in the type of products, ``(n_rows, n_features)``, and what reading them cost.

    NaN is let through where `missing` gives it a meaning. `on_rows` is told of rows and bytes as they are read. `ahead_bytes` of
    memory are for reading ahead.

    Raises
    ------
    NotFiniteError
        If the rows hold infinity, or NaN that has no meaning.
    """
    source.require_unchanged()
    chosen = rows_of(pilot, source, seed)
    out = np.empty((len(chosen), source.shape[1]), dtype=work_dtype(source.dtype))
    count, at, groups = ReadCount(), 0, _runs(chosen, source)
    spans = [(int(group[0]), int(group[-1]) + 1) for group in groups]
    with source.ahead(Schedule.in_order(spans, ahead_bytes)):
        for group in groups:
            first, last = int(group[0]), int(group[-1]) + 1
            values, cost = read_with_retries(source, first, last)  # csr where the source is sparse
            count += cost
            if issparse(values):
                refuse_stored(values, first)
                rows: Any = values[group - first]
                picked = rows.toarray()
            else:
                picked = values[group - first]
                if missing == "error":
                    refuse_not_finite(values, first)
                elif picked.dtype.kind == "f":
                    refuse_infinite(picked, first)
            out[at : at + len(group)] = picked
            at += len(group)
            if on_rows is not None:
                on_rows(len(group), cost.bytes)
    return chosen, out, count


def observed_origin(
    source: Source, origin: FloatArray, seen: BoolArray, weights: FloatArray | None
) -> tuple[FloatArray, ReadCount]:
    """Return `origin` with a number near the mean of every feature that is not among those `seen`, and what reading cost.

    Products of rows with holes cannot be moved to another origin afterwards, and with an origin of zero a far mean costs digits.
    Rows are read from the first one on until every feature was observed.
    """
    origin, seen, count, start = origin.copy(), seen.copy(), ReadCount(), 0
    dtype, n = work_dtype(source.dtype), source.shape[0]
    while not seen.all() and start < n:
        stop = min(n, start + _origin_rows(source))
        values, cost = read_with_retries(source, start, stop)
        count += cost
        rows = np.where(np.isfinite(values), values, np.nan).astype(dtype)
        if weights is not None:
            rows = rows[weights[start:stop] > 0]
        for first in range(0, len(rows), _ORIGIN_ROWS):
            part = rows[first : first + _ORIGIN_ROWS]
            new = ~seen & ~np.isnan(part).all(axis=0)
            origin[new], seen = sampled_origin(part, dtype)[new], seen | new
        start = stop
    return origin, count


def origin_bytes(source: Source) -> int:
    """Return the decoded bytes that `observed_origin` takes where the first rows tell of every feature."""
    return source.reads_of(0, min(source.shape[0], _origin_rows(source)))


def _origin_rows(source: Source) -> int:
    """Return how many rows are read at once for an origin: those of a chunk, unless a chunk is of so many rows that they take much memory."""
    rows = max(_ORIGIN_ROWS, source.chunk_rows)
    return rows if rows * source.row_bytes <= _ORIGIN_BYTES else _ORIGIN_ROWS


def _runs(chosen: IntArray, source: Source) -> list[IntArray]:
    """Return the row numbers in groups that are read together: those of one band of chunks, or each alone."""
    if source.reads_of(0, 1) == source.row_bytes:
        return [chosen[i : i + 1] for i in range(len(chosen))]
    edges = np.flatnonzero(np.diff(chosen // source.chunk_rows)) + 1
    return list(np.split(chosen, edges))
