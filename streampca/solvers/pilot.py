"""A few rows from all parts of a source, read before the first pass to estimate means and directions of large variance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse

from streampca.accumulators.centring import (
    product_dtype,
    refuse_not_finite,
    require_observed,
    sampled_origin,
    shifted_moments,
    work_dtype,
)
from streampca.accumulators.sketch import Sketch, SketchState
from streampca.execution.checkpoint.progress_log import once
from streampca.execution.leaf import read_with_retries
from streampca.execution.progress import Meter, ProgressCallback
from streampca.execution.readings import Reading, ReadingAlone, Readings
from streampca.linalg.scaling import reciprocals
from streampca.linalg.tiles import spread
from streampca.models.rounding import with_missing
from streampca.parameters import Parameters
from streampca.planning.plan import Plan, SketchDetail
from streampca.planning.shape import bytes_to_read
from streampca.random import generator
from streampca.sources.base import ReadCount, Source
from streampca.sources.grid import Schedule
from streampca.sources.steps import SLAB_BYTES, Step, SteppedSource
from streampca.typing import Array, BoolArray, DType, FloatArray, IntArray

if TYPE_CHECKING:
    from streampca.solvers.result import Fit


_LEAST_ROWS = 500
_MOST_SHARE = 0.1  # of the source that the pilot may decode unless its size is given
_LEAST_BANDS = 2
_ORIGIN_ROWS, _ORIGIN_BYTES = 128, 2**26
_NEAR = 4.0  # standard deviations; at three, products in float32 lose half a digit
_SLAB_FEATURES = 8192
_ROWS_AT_ONCE = 64


def plan_pilot(source: Source, wanted: int | str, n_columns: int, room: int) -> tuple[int, int, int]:
    """Return how many rows inform a test matrix of `n_columns` columns, from how many bands of chunks, and the decoded bytes of these.

    Ten for each column and at least 500, but no more than a tenth of the source is decoded for them: where stores only give
    whole chunks, they come from a tenth of the bands. A number in `wanted` is taken as it is. Bands are 0 where
    single rows can be read. `room` is in bytes.
    """
    n = source.shape[0]
    if wanted == 0 or n < 4:
        return 0, 0, 0
    automatic = isinstance(wanted, str)
    rows = min(n, max(_LEAST_ROWS, 10 * n_columns)) if automatic else min(n, int(wanted))
    if automatic:
        rows = min(rows, room // max(1, 12 * source.shape[1]), max(n_columns, n // 4))
        if rows < n_columns // 2:
            return 0, 0, 0
    if source.reads_of(0, 1) == source.row_bytes:
        return rows, 0, rows * source.row_bytes
    n_bands = -(-n // source.chunk_rows)
    bands = min(n_bands, rows)
    if automatic:
        bands = min(bands, int(_MOST_SHARE * n_bands))
        if bands < _LEAST_BANDS:
            return 0, 0, 0
    rows = min(rows, bands * source.chunk_rows)
    return rows, bands, bands * min(n, source.chunk_rows) * source.row_bytes


def _rows_of(sizes: SketchDetail, source: Source, seed: int) -> IntArray:
    """Return the row numbers, ascending: one at random in each of equal stretches, of the source or of its bands."""
    n = source.shape[0]
    draw = generator(seed, "pilot")
    if not sizes.pilot_bands:
        return _one_in_each(n, sizes.pilot_rows, draw)
    n_bands = -(-n // source.chunk_rows)
    bands = _one_in_each(n_bands, sizes.pilot_bands, draw)
    chosen = []
    for i, band in enumerate(bands):
        start = int(band) * source.chunk_rows
        length = min(source.chunk_rows, n - start)
        share = sizes.pilot_rows * (i + 1) // sizes.pilot_bands - sizes.pilot_rows * i // sizes.pilot_bands
        chosen.append(start + _one_in_each(length, min(share, length), draw))
    return np.concatenate(chosen)


def _one_in_each(length: int, n_chosen: int, draw: np.random.Generator) -> IntArray:
    edges = np.arange(n_chosen + 1, dtype=np.int64) * length // max(1, n_chosen)
    return np.asarray(draw.integers(edges[:-1], edges[1:]), dtype=np.int64)


def read_pilot(
    source: Source,
    parameters: Parameters,
    plan: Plan,
    sizes: SketchDetail,
    client: object,
    progress: ProgressCallback | None,
) -> tuple[tuple[IntArray, Array], ReadCount]:
    """Return row numbers and the rows in the type of products, ``(n_rows, n_features)``, and what reading them cost.

    NaN is let through where ``parameters.missing`` gives it a meaning. A stopped run has the rows still.

    Raises
    ------
    NotFiniteError
        If the rows hold infinity, or NaN that has no meaning.
    """
    meter = Meter("pilot", sizes.pilot_rows, progress)

    def read() -> tuple[IntArray, Array, ReadCount]:
        source.require_unchanged()
        chosen = _rows_of(sizes, source, parameters.seed)
        out = np.empty((len(chosen), source.shape[1]), dtype=work_dtype(source.dtype))
        count, at, groups = ReadCount(), 0, _runs(chosen, source)
        spans = [(int(group[0]), int(group[-1]) + 1) for group in groups]
        with source.ahead(Schedule.in_order(spans, plan.read_ahead_bytes)):
            for group in groups:
                first, last = int(group[0]), int(group[-1]) + 1
                values, cost = read_with_retries(source, first, last)  # csr where the source is sparse
                count += cost
                if issparse(values):
                    refuse_not_finite(values, first)
                    rows: Any = values[group - first]
                    picked = rows.toarray()
                else:
                    picked = values[group - first]
                    if parameters.missing == "error":
                        refuse_not_finite(values, first)
                    else:
                        refuse_not_finite(picked, first, missing=True)
                out[at : at + len(group)] = picked
                at += len(group)
                meter.add(len(group), cost.bytes)
        return chosen, out, count

    chosen, rows, count = once("pilot", read)
    return (chosen, rows), count


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


def counted_rows(chosen: IntArray, rows: Array, parameters: Parameters) -> tuple[IntArray, Array, bool]:
    """Return the rows that count and their numbers, in the memory of `rows`, and whether any does; all rows if none does.

    Those count that have a positive weight and are not left out for a missing value.
    """
    counts = np.ones(len(rows), dtype=bool)
    if parameters.sample_weight is not None:
        counts &= parameters.sample_weight[chosen] > 0
    if parameters.missing == "drop_rows":
        counts &= ~np.isnan(rows).any(axis=1)
    counted = np.flatnonzero(counts)
    if len(counted) in (0, len(rows)):
        return chosen, rows, bool(len(counted))
    for i, j in enumerate(counted):
        rows[i] = rows[j]
    return chosen[counted], rows[: len(counted)], True


def prepare(
    rows: Array, middle: FloatArray, weights: FloatArray, parameters: Parameters, n_threads: int
) -> tuple[FloatArray, bool]:
    """Centre and scale the pilot's rows in place; return the factors of the features, and whether means are near.

    Rows with holes count where only whole rows do, with 0 in the holes: this only informs.
    """
    rows -= middle.astype(rows.dtype)
    if parameters.missing != "error":
        np.nan_to_num(rows, copy=False, nan=0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        sums, squares = shifted_moments(rows, np.zeros(rows.shape[1], dtype=rows.dtype), None, n_threads)
        mean = sums / len(rows)
        deviation = np.sqrt(np.maximum(squares / len(rows) - mean**2, 0.0))
    least = 1e6 * float(np.finfo(rows.dtype).tiny)
    if not np.isfinite(squares).all() or rows[:, squares < least].any():
        mean, deviation = _moments_of_any_size(rows)
    if parameters.center:
        rows -= mean.astype(rows.dtype)
    else:
        rows += middle.astype(rows.dtype)
    near = means_are_near(middle + mean, deviation)
    factors = weights
    if parameters.scaling:
        factors = weights / parameters.scaling.expected(deviation, middle + mean)
    if (factors != 1).any():
        limits = np.finfo(rows.dtype)
        held = ((factors == 0) | ((factors > limits.tiny) & (factors < limits.max))).all()
        with np.errstate(over="ignore"):  # factors may be out of the range of float32, products hardly are
            np.multiply(rows, factors.astype(rows.dtype) if held else factors, out=rows, casting="same_kind")
    return factors, near


def _moments_of_any_size(rows: Array) -> tuple[FloatArray, FloatArray]:
    """Return means and standard deviations of rows whose squares may leave the range of their type."""
    largest = np.maximum(rows.max(axis=0), -rows.min(axis=0)).astype(np.float64)
    unit = reciprocals(largest)
    mean, squares = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE] * unit
        mean += part.sum(axis=0) / len(rows)
        squares += np.square(part).sum(axis=0) / len(rows)
    return mean * largest, np.sqrt(np.maximum(squares - mean**2, 0.0)) * largest


def means_are_near(mean: FloatArray, deviation: FloatArray) -> bool:
    """Tell whether every mean lies so near to zero, in standard deviations, that products lose no digits by it."""
    varying = deviation > 0
    return bool((np.abs(mean[varying]) <= _NEAR * deviation[varying]).all() and not mean[~varying].any())


def directions(rows: Array, n_wanted: int, n_threads: int) -> FloatArray:
    """Return the leading right singular vectors of `rows`, ``(n_features, n_wanted or fewer)``, by the products of rows.

    To a few digits, which is all that a start needs; they are made orthonormal afterwards.
    """
    n_features = rows.shape[1]
    edges = range(0, n_features, _SLAB_FEATURES)
    parts: list[FloatArray] = [np.empty(0)] * len(edges)
    out = np.empty((n_features, min(n_wanted, len(rows))))

    def multiply(start: int) -> None:
        slab = rows[:, start : start + _SLAB_FEATURES]
        with np.errstate(over="ignore", invalid="ignore"):  # then no pilot informs the start
            parts[start // _SLAB_FEATURES] = (slab @ slab.T).astype(np.float64)

    spread(multiply, edges, n_threads)
    products = np.sum(parts, axis=0)
    if not np.isfinite(products).all():
        return out[:, :0]
    values, vectors = np.linalg.eigh(products)
    values, vectors = values[::-1][:n_wanted], vectors[:, ::-1][:, :n_wanted]
    large = values > 1e-7 * max(values.max(initial=0.0), np.finfo(float).tiny)
    axes = np.ascontiguousarray(vectors[:, large] / np.sqrt(values[large])).astype(rows.dtype)

    def convert(start: int) -> None:
        slab = slice(start, start + _SLAB_FEATURES)
        out[slab, : axes.shape[1]] = rows[:, slab].T @ axes

    spread(convert, edges, n_threads)
    return out[:, : axes.shape[1]]


def complete(parameters: Parameters) -> Parameters:
    """Return the parameters of a fit of rows whose missing values have been replaced."""
    return replace(parameters, missing="error")


def unread(source: Source) -> SteppedSource:
    """Return the source that will be fitted, to plan for; its means are not known yet."""
    zeros = np.zeros(source.shape[1])
    return SteppedSource(source, [Filled(zeros, zeros, product_dtype(source.dtype, source.shape[1]))])


def with_means_first(plan: Plan, source: Source) -> Plan:
    """Return `plan`, of a fit of the filled rows, with the reading for means of `source` before it."""
    reading = bytes_to_read(source, plan.rows_per_block) + origin_bytes(source)
    note = "the first reading takes the means of features, which later ones put in place of missing values"
    return replace(
        plan,
        dtype=str(source.dtype),
        passes=plan.passes + 1,
        bytes_to_read=plan.bytes_to_read + reading,
        notes=(*plan.notes, note),
    )


@dataclass(frozen=True)
class Filling:
    """What the reading for means found."""

    source: SteppedSource
    """The rows without missing values."""
    subtracted: FloatArray
    """What they are less than the stored rows, ``(n_features,)``."""
    means: SketchState
    """Means and numbers of observed values."""

    @classmethod
    def read(cls, source: Source, parameters: Parameters, plan: Plan) -> Readings[Filling]:
        """Read `source` once for the means of what was observed.

        Raises
        ------
        DataError
            If a feature was observed in no row.
        """
        d = source.shape[1]
        unseen = partial(observed_origin, source, np.zeros(d), np.zeros(d, dtype=bool), parameters.sample_weight)
        (origin,) = (yield ReadingAlone(lambda client, progress: unseen())).take()
        moments = Sketch(np.empty((d, 0), dtype=plan.work_dtype), missing="pairwise", origin=origin, key="means")
        (state,) = (
            yield Reading(source, (moments,), plan.unshuffled(), parameters.sample_weight, phase="means")
        ).take()
        require_observed(state.observed > 0)
        # Not the mean itself: beside the rows less `origin`, its rounding would be a part of far means, not of the differences.
        subtracted, offset = (
            (state.origin, state.sums / state.observed) if parameters.center else (np.zeros(d), state.mean)
        )
        filled = SteppedSource(source, [Filled(subtracted, offset, product_dtype(source.dtype, d))])
        return cls(filled, subtracted, state)

    def parameters_of(self, parameters: Parameters) -> Parameters:
        """Return the parameters of the fit of the filled rows, whose means do not tell scales: those are weights of features."""
        parameters = complete(parameters)
        if not parameters.scaling.of_means:
            return parameters
        factors = parameters.scaling.weights(*self._moments()) ** 2
        given = parameters.feature_weight
        return replace(parameters, scale=False, feature_weight=factors if given is None else factors * given)

    def _moments(self) -> tuple[FloatArray, FloatArray]:
        """Return the variances, of which only the sign counts, and the means of what was observed."""
        mean = self.means.sums / self.means.observed  # about the origin
        variance = np.maximum(self.means.squares / self.means.observed - mean**2, 0.0)
        return variance, self.means.mean

    def finished(self, fit: Fit, parameters: Parameters) -> Fit:
        """Return the fit of the filled rows as that of the rows with missing values."""
        model = with_missing(fit.model, "mean", self.means, 0, None, parameters.missing_scores)
        if parameters.scaling.of_means:
            divisors = parameters.scaling.divisors(*self._moments())
            model = replace(model, scale=divisors, feature_weight=parameters.feature_weight)
        return replace(fit, model=model)


class Filled(Step):
    """Rows minus a number near the mean of each feature, with a number in place of NaN; dense.

    What is subtracted is exact in the type of the rows, so that means far from zero cost no digits of the rows, nor of the difference
    between them and the means that stand for missing values.

    Parameters
    ----------
    subtracted : array, shape (n_features,)
        What is subtracted from each feature.
    fill : array, shape (n_features,)
        What stands for missing values afterwards.
    dtype : dtype
        The type of the rows then: that of products.
    """

    of_fit = True

    def __init__(self, subtracted: FloatArray, fill: FloatArray, dtype: DType):
        self.subtracted, self.fill, self._dtype = subtracted, fill, dtype

    @property
    def digest(self) -> bytes:
        """Return what is subtracted and filled in."""
        return self.subtracted.tobytes() + self.fill.tobytes()

    def dtype(self, dtype: DType) -> DType:
        """Return the type of products."""
        return self._dtype

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory of the mask of missing values, and of differences in float64."""
        return n_rows * n_features + 2 * SLAB_BYTES

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the rows without missing values to `out`."""
        fill, step = self.fill.astype(self._dtype), max(1, SLAB_BYTES // (8 * values.shape[1]))
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is refused by what reads the rows
            for first in range(0, len(values), step):
                slab = values[first : first + step]
                np.subtract(slab, self.subtracted, out=out[first : first + step], casting="same_kind")
                if values.dtype.kind == "f":
                    np.copyto(out[first : first + step], fill, where=np.isnan(slab))
