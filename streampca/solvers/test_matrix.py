"""Where an approximate solver starts: the test matrix of the first pass, informed by a pilot where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from streampca.accumulators.centring import product_dtype
from streampca.accumulators.shifting import sampled_origin, shifted_moments
from streampca.execution.checkpoint.progress_log import once
from streampca.execution.progress import Meter, ProgressCallback
from streampca.execution.readings import ReadingAlone, Readings
from streampca.linalg.scaling import EXPECTED, Scaling, reciprocals, root_sums
from streampca.linalg.tall_skinny import orthonormal
from streampca.linalg.tiles import spread
from streampca.parameters import Parameters
from streampca.planning.plan import Plan
from streampca.random import generator
from streampca.solvers.pilot import observed_origin, read_pilot
from streampca.solvers.plan_sketch import pilot_of, sizes_of
from streampca.solvers.removing import Removing
from streampca.sources.base import ReadCount, Source
from streampca.storage.state_file import storable
from streampca.system.workspace import release
from streampca.transforms import CountSketch, GaussianProjection, Grouping, SparseSign
from streampca.typing import Array, BoolArray, FloatArray, IntArray

_FLOOR = 1e-3  # of the median deviation, for features that hardly vary in the pilot
_NEAR = 4.0  # standard deviations; at three, products in float32 lose half a digit
_SLAB_FEATURES = 8192
_ROWS_AT_ONCE = 64
_HEDGE_SHARE, _LEAST_HEDGE = 4, 10  # a quarter of the columns stays Gaussian, for what the pilot has not seen


@storable
@dataclass(frozen=True)
class Start:
    """What the first pass works with."""

    origin: FloatArray | None
    """What rows are shifted by, ``(n_features,)``; None = each leaf finds a number of its own."""
    factors: FloatArray
    """What the pilot expects features to be multiplied by, ``(n_features,)``."""
    test: Array
    """Test matrix for the rows as they are, in the type of products, ``(n_features, columns)``."""
    near: bool = False
    """Whether means are within a few standard deviations of zero, so that rows need not be shifted."""


def start(source: Source, parameters: Parameters, plan: Plan, removing: Removing | None = None) -> Readings[Start]:
    """Read the pilot that `plan` announced, and return the start of the first pass.

    The columns of Ω are the leading directions of the pilot's rows and Gaussian columns made orthonormal; or those of a
    transform, where no pilot is read. They are meant for features times their `factors`, so the rows as they are meet
    factors · Ω (see `Sketched`). The last columns are held out for the certificate.
    """
    sizes, d = sizes_of(plan), source.shape[1]
    weights = np.ones(d) if parameters.feature_weight is None else np.sqrt(parameters.feature_weight)
    origin, basis, near = None, None, False
    seen = np.zeros(d, dtype=bool)
    if sizes.pilot_rows:
        pilot = partial(_pilot, source, parameters, plan)
        ((chosen, rows),) = (yield ReadingAlone(pilot)).take()
        counts = _counts(rows, chosen, parameters)
        counted = bool(counts.any())
        chosen, rows = _that_count(chosen, rows, counts)
        if removing is not None:
            rows = removing.of_pilot(rows, chosen)
        middle = sampled_origin(rows, rows.dtype)
        seen = np.asarray(~np.isnan(rows).all(axis=0)) & counted
        # Sparse rows would be filled by it; and it would be off a feature that is constant in the rows that count.
        origin = None if source.sparse or not counted else middle
        weights, near = _prepare(rows, middle, weights, parameters, plan.threads)
        near = near and counted
        if plan.solver == "sketch" and parameters.recovery == "nystrom" and parameters.sketch in ("auto", "gaussian"):
            hedge = min(sizes.columns, max(_LEAST_HEDGE, sizes.columns // _HEDGE_SHARE))
            basis = _directions(rows, sizes.columns - hedge, plan.threads)
        del rows
        release()  # this thread decodes nothing more
    if parameters.missing == "pairwise":
        known = np.zeros(d) if origin is None else origin
        found = partial(observed_origin, source, known, seen, parameters.sample_weight)
        (origin,) = (yield ReadingAlone(lambda client, progress: found())).take()
    if removing is not None:  # residuals have the mean 0
        origin, near = np.zeros(d), True
    held = held_out_columns(parameters, d, sizes.held_out)
    if plan.solver == "adaptive":
        basis = np.empty((d, 0))
    elif basis is None:
        basis = columns_of(parameters, source, sizes.columns)
    else:
        drawn = generator(parameters.seed, "hedge").standard_normal((d, sizes.columns - basis.shape[1]))
        basis = orthonormal(np.hstack([basis, drawn]), n_threads=plan.threads, overwrite=True)
    test = np.empty((d, basis.shape[1] + sizes.held_out), dtype=product_dtype(source.dtype, d, weights))
    np.multiply(basis, weights[:, None], out=test[:, : basis.shape[1]], casting="same_kind")
    np.multiply(held, weights[:, None], out=test[:, basis.shape[1] :], casting="same_kind")
    return Start(origin, weights, test, near)


def _pilot(
    source: Source, parameters: Parameters, plan: Plan, client: object, progress: ProgressCallback | None
) -> tuple[tuple[IntArray, Array], ReadCount]:
    """Return the numbers of the rows of the pilot, the rows, and what reading them cost; a stopped run has them still."""
    sizes = sizes_of(plan)
    report, ahead_bytes = Meter("pilot", sizes.pilot_rows, progress).add, plan.read_ahead_bytes
    chosen, rows, count = once(
        "pilot",
        lambda: read_pilot(pilot_of(sizes), source, parameters.seed, parameters.missing, report, ahead_bytes),
    )
    return (chosen, rows), count


def held_out_columns(parameters: Parameters, n_features: int, n_columns: int) -> FloatArray:
    """Return the standard normal columns that only the certificate uses, ``(n_features, n_columns)``."""
    return np.asarray(generator(parameters.seed, "held-out columns").standard_normal((n_features, n_columns)))


def columns_of(parameters: Parameters, source: Source, size: int) -> FloatArray:
    """Return the test matrix of the transform that `parameters` name, ``(n_features, size or fewer)``, E Ω Ωᵀ = 1."""
    if parameters.sketch == "grouping":
        return _grouping(source, size).matrix()
    names, d = source.feature_names, source.shape[1]
    unique = names is not None and len(set(names)) == d
    return transform_matrix(
        parameters.sketch, (d, size), parameters.n_hashes, parameters.seed, names if unique else None
    )


def transform_matrix(
    sketch: str, shape: tuple[int, int], n_hashes: int, seed: int, names: tuple[str, ...] | None = None
) -> FloatArray:
    """Return the matrix of the transform `sketch`, of `shape` or with fewer columns, E Ω Ωᵀ = 1."""
    n_rows, size = shape
    if sketch == "count_sketch":
        return CountSketch(n_rows, size, min(n_hashes, size), seed, names).matrix()
    if sketch == "sparse_sign":
        return SparseSign(n_rows, size, min(8, size), seed).matrix()
    if sketch == "grouping":
        return Grouping(n_rows, size).matrix()
    return GaussianProjection(n_rows, size, seed).matrix()


def _grouping(source: Source, size: int) -> Grouping:
    """Return groups of neighbouring features: blocks of pixels where rows are pictures, of the finest size that fits."""
    shape = source.feature_shape
    if shape is not None and len(shape) in (2, 3):
        channels = shape[2] if len(shape) == 3 else 1
        for factor in range(1, max(shape[:2]) + 1):
            if -(-shape[0] // factor) * -(-shape[1] // factor) * channels <= size:
                return Grouping.of_pictures(shape, factor)
    return Grouping(source.shape[1], min(size, source.shape[1]))


def _counts(rows: Array, chosen: IntArray, parameters: Parameters) -> BoolArray:
    """Return which `rows`, of the numbers `chosen`, count: those of positive weight that are not left out for a missing value."""
    counts = np.ones(len(rows), dtype=bool)
    if parameters.sample_weight is not None:
        counts &= parameters.sample_weight[chosen] > 0
    if parameters.missing == "drop_rows":
        counts &= ~np.isnan(rows).any(axis=1)
    return counts


def _that_count(chosen: IntArray, rows: Array, counts: BoolArray) -> tuple[IntArray, Array]:
    """Return the rows that count and their numbers, in the memory of `rows`; all if none does."""
    counted = np.flatnonzero(counts)
    if len(counted) in (0, len(rows)):
        return chosen, rows
    for i, j in enumerate(counted):
        rows[i] = rows[j]
    return chosen[counted], rows[: len(counted)]


def _prepare(
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
    near = means_are_near(middle + mean, deviation**2)
    factors = weights
    if parameters.scaling:
        factors = weights / _expected_divisors(deviation, middle + mean, parameters.scaling)
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


def _expected_divisors(deviation: FloatArray, mean: FloatArray, scale: Scaling) -> FloatArray:
    """Return what features with these standard deviations and means in the pilot are divided by: not 0, and finite."""
    if isinstance(scale, str):  # means of the pilot need not be those of all rows
        deviation = np.where(deviation > 0, np.sqrt(np.maximum(EXPECTED[scale][0](mean), 0.0)), 0.0)
    varying = deviation[np.isfinite(deviation) & (deviation > 0)]
    floor = _FLOOR * float(np.median(varying)) if len(varying) else 1.0
    if not isinstance(scale, tuple):
        return np.maximum(np.nan_to_num(deviation, nan=floor, posinf=floor), floor)
    roots = root_sums(np.nan_to_num(deviation, nan=0.0, posinf=0.0), scale)
    return np.repeat(np.where(roots > 0, roots, floor), np.diff(scale))


def means_are_near(mean: FloatArray, variance: FloatArray) -> bool:
    """Tell whether every mean lies so near to zero, in standard deviations, that products lose no digits by it."""
    varying = variance > 0
    return bool((np.abs(mean[varying]) <= _NEAR * np.sqrt(variance[varying])).all() and not mean[~varying].any())


def _directions(rows: Array, n_wanted: int, n_threads: int) -> FloatArray:
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
