"""Highly variable genes, chosen as in scanpy from moments of all genes in one or two passes.

A flavor is a class with `rows`, those whose moments it takes, and `choose`, and an entry in `FLAVORS`.

Trends are locally weighted quadratic regressions on one variable (loess), with the same interpolation as the library dloess, which R's `loess`,
`skmisc.loess` and with them Seurat and scanpy use: local fits at the corners of cells into which a k-d tree divides the data, and cubic
interpolation of their values and slopes between. Fitted values agree with it to rounding.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from streampca.accumulators.rows import Moments, MomentsState
from streampca.accumulators.wrappers import ByGroup
from streampca.errors import DataError, ParameterError
from streampca.execution.distributed.active_client import active_client
from streampca.execution.readings import Reading, Readings, run_together
from streampca.planning.memory import allowed_bytes
from streampca.planning.plan import Plan
from streampca.planning.work import Resources
from streampca.solvers.fitted_steps import fit_steps, plan_reading, plan_statistics
from streampca.sources.base import Source
from streampca.sources.steps import Step, SteppedSource
from streampca.system.process import n_cores, process_bytes
from streampca.typing import Array, BoolArray, FloatArray, IntArray

_KEYS = ("n", "flavor", "batch", "span")
_OF_BATCHES = ("highly_variable_nbatches", "highly_variable_intersection")
_WHOLE = 1e-12  # relative distance from a whole number of a sum of whole numbers
_DIGITS = 11  # after the point of normalised variances, whose mean is about 1
_MARGIN = 0.005  # of the range, by which the outermost cells are wider than the data
_CELL = 0.2  # share of the points of a local fit from which a cell is divided
_ROUNDING = 100 * np.finfo(np.float64).eps  # relative size of singular values that count as zero
_NORMAL_QUARTILE = (
    0.6744897501960817  # of the standard normal distribution, which the median absolute deviation is divided by
)


@dataclass(frozen=True)
class GeneChoice:
    """Which genes are wanted."""

    n: int = 2000
    """How many."""
    flavor: str = "seurat_v3"
    """How they are ranked, a key of `FLAVORS`."""
    batch: str | None = None
    """Column of ``obs``: genes are ranked within each of its values, and the ranks joined."""
    span: float = 0.3
    """Share of the genes in each local fit of ``seurat_v3``."""

    @classmethod
    def of(cls, given: object) -> GeneChoice:
        """Return the choice that a mapping describes; `ParameterError` if it is none."""
        if not isinstance(given, Mapping) or set(given) - set(_KEYS):
            raise ParameterError(
                f'hvg={str(given)[:60]!r}: expected a mapping with {", ".join(_KEYS)}, such as {{"n": 2000, "flavor": "seurat_v3"}}'
            )
        wanted = cls(**given)
        if isinstance(wanted.n, bool) or not isinstance(wanted.n, int | np.integer) or wanted.n < 1:
            raise ParameterError(f"hvg: n={str(wanted.n)[:40]!r}: expected a whole number above 0")
        if wanted.flavor not in FLAVORS:
            raise ParameterError(f"hvg: flavor={str(wanted.flavor)[:40]!r}: expected {' or '.join(FLAVORS)}")
        if wanted.batch is not None and not isinstance(wanted.batch, str):
            raise ParameterError(f"hvg: batch is {type(wanted.batch).__name__}: expected the name of a column of obs")
        if not isinstance(wanted.span, int | float) or not 0 < wanted.span <= 1:
            raise ParameterError(f"hvg: span={str(wanted.span)[:40]!r}: expected a number above 0, at most 1")
        return wanted

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of ``var`` that are written: those of batches only where there are some."""
        names = FLAVORS[self.flavor].columns
        return tuple(name for name in names if self.batch is not None or name not in _OF_BATCHES)

    @property
    def places(self) -> tuple[str, ...]:
        """Return where they go in AnnData, and what they were chosen by."""
        return (*(f"var/{name}" for name in self.columns), "uns/hvg")


@dataclass(frozen=True)
class Batches:
    """Groups of cells in which genes are ranked."""

    names: Array
    """The values of the column, ``(n_batches,)``; one without a column."""
    codes: IntArray
    """Number of the batch of each cell, ``(n_cells,)``."""
    genes: Array | None
    """Names of the genes, by which ties between batches are broken as scanpy does."""

    @classmethod
    def of(cls, table: Source, column: str | None) -> Batches:
        """Return the batches of the cells; `ParameterError` if there is no such column, `DataError` if one has a single cell."""
        names = None if table.feature_names is None else np.array(table.feature_names)
        if column is None:
            return cls(np.array([""]), np.zeros(table.shape[0], dtype=np.int8), names)
        values = None if table.sample_columns is None else table.sample_columns.values(column)
        if values is None:
            known = () if table.sample_columns is None else table.sample_columns.names
            raise ParameterError(
                f"hvg: obs has no column {column[:60]!r}: expected one of {', '.join(known[:12]) or 'none'}"
            )
        found, codes = np.unique(values, return_inverse=True)
        counts = np.bincount(codes, minlength=len(found))
        if counts.min() < 2:
            raise DataError(
                f"hvg: batch {found[counts.argmin()]!s:.40} of obs/{column[:40]} has one cell: expected at least 2"
            )
        return cls(found, codes.astype(np.int32), names)

    @property
    def accumulator(self) -> ByGroup:
        """Return what takes the moments of every batch."""
        return ByGroup(Moments(), self.codes, len(self.names))


class Flavor(ABC):
    """A way of ranking genes."""

    columns: ClassVar[tuple[str, ...]]
    """What it writes into ``var``, under scanpy's names."""

    @abstractmethod
    def rows(self, table: SteppedSource) -> Source:
        """Return the rows whose moments it takes, of a table after the steps of `normalize` that keep zeros."""

    @abstractmethod
    def choose(
        self, moments: tuple[MomentsState, ...], rows: Source, wanted: GeneChoice, batches: Batches, like: Plan
    ) -> Readings[dict[str, Array]]:
        """Return the columns for ``var``, given the moments of each batch; may ask for a further reading."""


class ClippedCounts(Step):
    """Counts of at most a number that each gene has in each batch.

    Parameters
    ----------
    most : array, shape (n_batches, n_genes)
        These numbers.
    codes : array, shape (n_cells,)
        Number of the batch of each cell.
    """

    by_place = True

    def __init__(self, most: FloatArray, codes: IntArray):
        self.most, self.codes = most, codes

    @property
    def digest(self) -> bytes:
        """Return the numbers and the batches."""
        return self.most.tobytes() + self.codes.tobytes()

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the clipped counts to `out`."""
        np.minimum(values, self.most[self.codes[start : start + len(values)]], out=out)

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: Any) -> int:
        """Return the memory of the numbers of each row."""
        return 8 * n_rows * n_features

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Return the clipped counts."""
        if len(self.most) == 1:
            return np.minimum(data, self.most[0][indices]), indices, indptr
        codes = np.repeat(self.codes[start : start + len(indptr) - 1], np.diff(indptr))
        return np.minimum(data, self.most[codes, indices]), indices, indptr


class SeuratV3(Flavor):
    """Variance of counts standardised by the deviation that their mean tells, and clipped (Stuart et al. 2019, Cell 177:1888, Methods).

    The expected deviation is a loess of log10 variance on log10 mean; standardised counts are clipped at √n, which a second reading
    adds up. Genes are ranked by the variance, in each batch; joined by the median rank, then by the number of batches.
    """

    columns = (
        "highly_variable",
        "highly_variable_rank",
        "means",
        "variances",
        "variances_norm",
        "highly_variable_nbatches",
    )

    def rows(self, table: SteppedSource) -> Source:
        """Return the counts."""
        return table.before(1)

    def choose(
        self, moments: tuple[MomentsState, ...], rows: Source, wanted: GeneChoice, batches: Batches, like: Plan
    ) -> Readings[dict[str, Array]]:
        """Read the clipped counts, and return the columns."""
        total = Moments().merge(moments)
        deviation = np.array([_expected_deviation(each, wanted.span) for each in moments])
        means, n = np.array([each.mean for each in moments]), np.array([each.n_samples for each in moments])
        clipped = SteppedSource(rows, [ClippedCounts(deviation * np.sqrt(n)[:, None] + means, batches.codes)])
        accumulator = batches.accumulator
        plan = plan_reading(clipped, (accumulator,), like)
        (state,) = (yield Reading(clipped, (accumulator,), plan, phase="clipped counts of genes")).take()
        squares = [
            each.scatter + each.n_samples * (each.mean - mean) ** 2
            for each, mean in zip(state.groups, means, strict=True)
        ]
        normalised = np.array(squares) / ((n - 1)[:, None] * deviation**2)
        # Genes with the same counts in other cells are equal but for rounding: those are in the order of the table.
        ranks = np.argsort(np.argsort(-np.round(normalised, _DIGITS), axis=1, kind="stable"), axis=1).astype(np.float32)
        chosen = ranks < wanted.n
        rank, n_batches = _over_batches(np.nanmedian, np.where(chosen, ranks, np.nan)), chosen.sum(axis=0)
        # Lowest median rank first, then most batches; genes that are in no batch last.
        order = np.lexsort((-n_batches, np.where(np.isnan(rank), np.inf, rank)))
        return {
            "highly_variable": _first(order, wanted.n),
            "highly_variable_rank": rank,
            "means": total.mean,
            "variances": _variance(total),
            "variances_norm": normalised.mean(axis=0),
            "highly_variable_nbatches": n_batches,
        }


class CellRanger(Flavor):
    """Dispersion less the median of genes of like means, over their median absolute deviation (Zheng et al. 2017, Nature Communications 8:14049).

    Of normalised logarithms; genes of like means are those between every fifth percentile. Joined by the number of batches in which a
    gene is among the first, then by the mean.
    """

    columns = (
        "highly_variable",
        "means",
        "dispersions",
        "dispersions_norm",
        "highly_variable_nbatches",
        "highly_variable_intersection",
    )

    def rows(self, table: SteppedSource) -> Source:
        """Return the normalised counts."""
        return table

    def choose(
        self, moments: tuple[MomentsState, ...], rows: Source, wanted: GeneChoice, batches: Batches, like: Plan
    ) -> Readings[dict[str, Array]]:
        """Return the columns; nothing more is read."""
        yield from ()
        several = wanted.batch is not None
        found = [_dispersions(each, wanted.n, only_expressed=several) for each in moments]
        if not several:
            return found[0]
        joined: dict[str, Array] = {}
        for name in ("means", "dispersions", "dispersions_norm"):
            joined[name] = _over_batches(np.nanmean, np.array([each[name] for each in found]))
        n_batches = np.sum([each["highly_variable"] for each in found], axis=0)
        by_name = (
            np.arange(len(n_batches)) if batches.genes is None else np.argsort(np.argsort(batches.genes, kind="stable"))
        )
        norm = joined["dispersions_norm"]
        order = np.lexsort((by_name, np.where(np.isnan(norm), np.inf, -norm), -n_batches))
        return {
            "highly_variable": _first(order, wanted.n),
            **joined,
            "highly_variable_nbatches": n_batches,
            "highly_variable_intersection": n_batches == len(moments),
        }


FLAVORS: Mapping[str, Flavor] = {"seurat_v3": SeuratV3(), "cell_ranger": CellRanger()}
"""Flavors by scanpy's names."""


def choose_genes(table: SteppedSource, wanted: GeneChoice, memory: int | str | None = None) -> dict[str, Array]:
    """Return the columns for ``var``, ``(n_genes,)`` each, under the names and in the order that scanpy gives them.

    Of `table` after the steps of `normalize` that keep zeros, whose figures are known afterwards. One reading for the moments, which is that of what the steps have to know where both are of the counts, and one for clipped counts
    (``seurat_v3``); on the workers of an active Dask client where there is one.
    """
    flavor, batches = FLAVORS[wanted.flavor], Batches.of(table, wanted.batch)
    resources = Resources(allowed_bytes(memory), process_bytes(), n_cores())
    table.settle(resources.allowed_bytes)
    like = plan_statistics(table, (batches.accumulator,), resources)

    def choosing() -> Readings[dict[str, Array]]:
        rows, accumulator = flavor.rows(table), batches.accumulator
        yield from fit_steps(rows, like)
        plan = plan_reading(rows, (accumulator,), like)
        (state,) = (yield Reading(rows, (accumulator,), plan, phase="moments of genes")).take()
        require_counts(state.groups, rows, wanted)
        return (yield from flavor.choose(state.groups, rows, wanted, batches, like))

    fits: dict[str, Readings[Any]] = {"steps": fit_steps(table, like), "genes": choosing()}
    columns = run_together(fits, like, active_client(table)).results["genes"]
    return {name: columns[name] for name in wanted.columns}


def require_counts(moments: tuple[MomentsState, ...], rows: Source, wanted: GeneChoice) -> None:
    """Raise `DataError` if genes have negative means; warn if ``seurat_v3``, which is for counts, is given sums that are not whole."""
    means = np.array([each.mean for each in moments])
    if (negative := np.flatnonzero((means < 0).any(axis=0))).size:
        raise DataError(
            f"{rows.description}: hvg: {len(negative):,} genes have negative means, first: feature {negative[0]}: expected counts, or "
            "normalised counts for flavor='cell_ranger'; name the array of counts (layer=, or array='layers/counts')"
        )
    totals = means * np.array([each.n_samples for each in moments])[:, None]
    fractional = int((np.abs(totals - np.rint(totals)) > _WHOLE * np.maximum(totals, 1)).any(axis=0).sum())
    if wanted.flavor == "seurat_v3" and fractional:
        warnings.warn(
            f"{rows.description}: hvg: the sums of {fractional:,} genes are not whole numbers, and flavor='seurat_v3' is for counts: name the "
            "array of counts (layer=, or array='layers/counts'), or use flavor='cell_ranger' with normalize",
            UserWarning,
            stacklevel=2,
        )


def _variance(moments: MomentsState) -> FloatArray:
    return moments.scatter / max(1, moments.n_samples - 1)


def _expected_deviation(moments: MomentsState, span: float) -> FloatArray:
    """Return the standard deviation of each gene that its mean tells; 1 for genes that do not vary.

    Loess divides genes where their means differ: those of whole numbers are rounded quotients, so that genes with as many counts
    have equal means.
    """
    totals = moments.mean * moments.n_samples
    whole = np.rint(totals)
    is_whole = np.abs(totals - whole) <= _WHOLE * np.maximum(whole, 1)
    mean, variance = np.where(is_whole, whole, totals) / moments.n_samples, _variance(moments)
    varies = variance > 0
    expected = np.zeros(len(mean))
    expected[varies] = fitted_by_loess(np.log10(mean[varies]), np.log10(variance[varies]), span)
    return np.sqrt(10**expected)


def _dispersions(moments: MomentsState, n: int, *, only_expressed: bool) -> dict[str, Array]:
    """Return means, dispersions, normalised dispersions and the choice for one batch; zeros for genes without counts if `only_expressed`."""
    mean = moments.mean
    kept = mean > 0 if only_expressed else np.ones(len(mean), dtype=bool)
    mean = np.where(mean[kept] == 0, 1e-12, mean[kept])
    dispersion = _variance(moments)[kept] / mean
    edges = np.unique(np.concatenate([[-np.inf], np.percentile(mean, np.arange(10, 105, 5)), [np.inf]]))
    bins = np.searchsorted(edges, mean, side="left")
    centre, spread = np.zeros(len(mean)), np.zeros(len(mean))
    for one in np.unique(bins):
        own = bins == one
        centre[own] = np.median(dispersion[own])
        spread[own] = np.median(np.abs(dispersion[own] - centre[own])) / _NORMAL_QUARTILE
    with np.errstate(divide="ignore", invalid="ignore"):
        normalised = (dispersion - centre) / spread
    known = np.sort(normalised[~np.isnan(normalised)])[::-1]
    least = known[min(n, len(known)) - 1] if len(known) else np.inf
    found = {
        "highly_variable": np.nan_to_num(normalised, nan=-np.inf) >= least,
        "means": mean,
        "dispersions": dispersion,
        "dispersions_norm": normalised,
    }
    if kept.all():
        return found
    spread_out = {name: np.zeros(len(kept), dtype=each.dtype) for name, each in found.items()}
    for name, each in found.items():
        spread_out[name][kept] = each
    return spread_out


def _first(order: IntArray, n: int) -> BoolArray:
    """Return the first `n` of `order` as a mask."""
    chosen = np.zeros(len(order), dtype=bool)
    chosen[order[:n]] = True
    return chosen


def _over_batches(figure: Callable[..., Any], values: FloatArray) -> FloatArray:
    """Return the `figure` of each column without NaN, NaN where it has nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(figure(values, axis=0))


def fitted_by_loess(x: FloatArray, y: FloatArray, span: float = 0.3) -> FloatArray:
    """Return the value that loess of degree 2 fits to each point.

    Parameters
    ----------
    x, y : array, shape (n,)
        The points, in any order; finite.
    span : float
        Share of the points in each local fit, whose weights are tricube of the distance.

    Returns
    -------
    array, shape (n,)
        Fitted values. Cost: n log n, and about 2 / (0.2 span) local fits of span n points.

    Raises
    ------
    DataError
        If a local fit has fewer than four points, or all of them at one place.

    References
    ----------
    Cleveland & Grosse (1991), Computational methods for local regression, sections 2 and 3.
    """
    n_local = min(len(x), math.floor(len(x) * span + 1e-5))
    if n_local < 4:
        raise DataError(f"loess of {len(x)} points with span={span:g}: {n_local} in a local fit: expected at least 4")
    order = np.argsort(x, kind="stable")
    ascending, values = x[order], y[order]
    places = _corners(ascending, math.floor(len(x) * (span * _CELL)))
    heights, slopes = np.array([_local_fit(ascending, values, place, n_local) for place in places]).T
    cell = np.clip(np.searchsorted(places, x, side="left"), 1, len(places) - 1)
    width = places[cell] - places[cell - 1]
    h = (x - places[cell - 1]) / width
    # Cubic Hermite interpolation of values and slopes.
    left = (1 - h) ** 2 * ((1 + 2 * h) * heights[cell - 1] + h * width * slopes[cell - 1])
    right = h**2 * ((3 - 2 * h) * heights[cell] + (h - 1) * width * slopes[cell])
    fitted: FloatArray = left + right
    return fitted


def _corners(x: FloatArray, most: int) -> FloatArray:
    """Return the corners of cells of at most `most` of the ascending points, divided at their medians, ascending."""
    margin = _MARGIN * max(x[-1] - x[0], 1e-10 * max(abs(x[0]), abs(x[-1])) + 1e-30)
    corners = [x[0] - margin, x[-1] + margin]
    cells = deque([(0, len(x) - 1, corners[0], corners[1])])
    while cells:
        first, last, low, high = cells.popleft()
        if last - first + 1 <= most:
            continue
        cut = _cut(x, first, last)
        if x[cut] in (low, high):
            continue
        corners.append(x[cut])
        cells += [(first, cut, low, x[cut]), (cut + 1, last, x[cut], high)]
    return np.unique(corners)


def _cut(x: FloatArray, first: int, last: int) -> int:
    """Return the last point of the left one of two halves: that nearest to the middle whose neighbour on the right is another value."""
    middle, step = (first + last) // 2, 0
    while first <= middle + step < last:
        if x[middle + step] != x[middle + step + 1]:
            return middle + step
        step = -step if step > 0 else 1 - step
    return middle


def _local_fit(x: FloatArray, y: FloatArray, place: float, n_local: int) -> tuple[float, float]:
    """Return value and slope at `place` of the parabola through the `n_local` nearest points, weighted by their distance."""
    distance = np.abs(x - place)
    radius = np.partition(distance, n_local - 1)[n_local - 1]
    near = distance < radius
    if not near.any():
        raise DataError(
            f"loess: {n_local} of {len(x)} points are all at {place:g}: expected different ones; use a larger span"
        )
    weight = (1 - (distance[near] / radius) ** 3) ** 1.5
    powers = weight[:, None] * (x[near] - place)[:, None] ** np.arange(3)
    norms = np.sqrt((powers**2).sum(axis=0))
    norms[norms == 0] = 1.0
    coefficients = np.linalg.lstsq(powers / norms, weight * y[near], rcond=_ROUNDING)[0] / norms
    return float(coefficients[0]), float(coefficients[1])
