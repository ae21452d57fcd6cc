"""Data quality of the rows of a pass: moments by part of the file, common values, missing values.

It is accumulated along with a fit and takes a few percent of its time, because its figures come from evenly spaced rows and
features; only missing values are counted over all of them.

A statistic of the features is a subclass of `Statistic`, such as `Zeros`, with an entry in `STATISTICS`. Then every solver
accumulates it, plans count its memory, checkpoints store it, the manifest has its figures, and the report has a row for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np
from scipy.sparse import issparse

from streampca.accumulators.base import Accumulator
from streampca.block import Block, as_block, dense
from streampca.storage.state_file import storable
from streampca.typing import Array, FloatArray, IntArray, Json, override

_SUMS = 2**16
"""Maximum number of sums by feature and part of the file, if that leaves `_LEAST_PARTS`."""
_MOST_PARTS, _LEAST_PARTS = 64, 16
_ROWS_OF_A_PART, _FEW_ROWS_OF_A_PART, _FEW_PARTS = 128, 16, 8
"""Minimum number of examined rows in a part; fewer if there would be less than eight parts."""
_MOST_EVERY, _LEAST_ROWS, _ROWS_IN_ALL = 64, 2**11, 2**17
"""One in 64 rows is examined; in short tables more, for 2,048 rows in all; in very long tables fewer, for 131,072."""
_EVERY_COMPARED = 4
"""One in so many examined rows is compared with the most common value; all if fewer than 2,048 are examined."""
PANEL_VALUES = 2**17
"""Maximum number of values examined at once, but at least one row."""
_SOME_ROWS = 33
"""Number of rows whose median serves as the most common value."""
_ROUNDING = 1e-13
"""Relative rounding of a sum of squares."""
COUNTED_VALUES, _COUNTED_ROWS = 2**18, 255
"""Maximum number of values in which missing ones are counted at once, but at least one row; maximum number of rows for 8-bit counts."""
Namer: TypeAlias = Callable[[int], str | None]
"""Function that returns the name of a feature by its number, or None if it has no name."""
MOST_LISTED = 20
"""Maximum number of listed features."""
DIGITS = 9
"""Decimal digits of compared figures: ties remain ties if other blocks lead to other rounding."""
MOSTLY = 0.9
"""Minimum share of zeros of a listed feature."""


@storable
@dataclass(frozen=True)
class QualityState:
    """Sums over the rows seen so far; f is the number of features followed by part of the file."""

    n_features: int
    """The argument of `init`: the length of a row of the blocks."""
    missing: IntArray
    """Number of NaN in each feature, ``(n_features,)``; empty if NaN is not allowed."""
    missing_by_part: IntArray
    """Number of NaN in each part of the file, ``(n_parts,)``."""
    unwritten: IntArray
    """Number of rows in each part of the file that lie in chunks that were never written, ``(n_parts,)``."""
    parts: IntArray
    """Numbers of the parts of the file seen so far, ascending, ``(p,)``."""
    counts: IntArray
    """Number of examined values that are not missing, ``(p, f)``."""
    means: FloatArray
    """Their means, ``(p, f)``."""
    scatter: FloatArray
    """Sums of their squared deviations from these means, ``(p, f)``."""
    common: Array
    """A value of each followed feature, shared by most rows if there is such a value, ``(f,)``."""
    n_common: IntArray
    """Number of compared rows with this value, ``(f,)``; a lower bound if blocks have different values."""
    n_compared: IntArray
    """Number of compared rows, ``(f,)``."""


@dataclass(frozen=True)
class Quality(Accumulator[QualityState, QualityState]):
    """Examine the rows of a table; create it with `Quality.of`.

    The numbers of rows and features in the table decide which ones are examined, so the figures do not depend on the
    division into blocks, up to rounding. Their bits depend on the blocks, as in a fit.
    """

    n_samples: int
    """Rows of the table."""
    n_features: int
    """Features of the table."""
    dtype: str
    """Data type of the rows."""
    missing: bool
    """Whether NaN are counted."""
    every: int
    """One in so many rows is examined."""
    every_feature: int
    """One in so many features is followed by part of the file."""
    n_parts: int
    """Number of parts of the file, with equal numbers of rows."""
    by_features: bool = False
    """Whether the rows of blocks are features of the table."""
    shares_states: ClassVar[bool] = True

    @classmethod
    def of(cls, shape: tuple[int, int], dtype: str, *, missing: bool) -> Quality:
        """Return the accumulator for a table of this `shape`."""
        n, d = shape
        every = max(1, min(_MOST_EVERY, n // _LEAST_ROWS), n // _ROWS_IN_ALL)
        every_feature = -(-d * _LEAST_PARTS // _SUMS)
        followed = -(-d // every_feature)
        examined = n // every
        n_parts = max(1, examined // _ROWS_OF_A_PART, min(_FEW_PARTS, examined // _FEW_ROWS_OF_A_PART))
        n_parts = min(n_parts, _MOST_PARTS, _SUMS // followed)
        return cls(n, d, dtype, missing, every, every_feature, n_parts)

    @property
    def followed(self) -> IntArray:
        """Return the features that are followed by part of the file, ascending."""
        return np.arange(0, self.n_features, self.every_feature)

    @property
    def edges(self) -> IntArray:
        """Return the first row of each part of the file, and the number of rows, ``(n_parts + 1,)``."""
        return np.arange(self.n_parts + 1, dtype=np.int64) * self.n_samples // self.n_parts

    @property
    def every_compared(self) -> int:
        """Return k if one in k examined rows is compared with the most common value of each feature."""
        return _EVERY_COMPARED if self.n_samples // self.every >= _LEAST_ROWS else 1

    @override
    def init(self, n_features: int) -> QualityState:
        d, f = self.n_features, len(self.followed)
        return QualityState(
            n_features=n_features,
            missing=np.zeros(d if self.missing else 0, dtype=np.int64),
            missing_by_part=np.zeros(self.n_parts, dtype=np.int64),
            unwritten=np.zeros(self.n_parts, dtype=np.int64),
            parts=np.empty(0, dtype=np.int64),
            counts=np.empty((0, f), dtype=np.int64),
            means=np.empty((0, f)),
            scatter=np.empty((0, f)),
            common=np.zeros(f, self.dtype),
            n_common=np.zeros(f, dtype=np.int64),
            n_compared=np.zeros(f, dtype=np.int64),
        )

    def update(self, state: QualityState, block: Block | Array) -> QualityState:
        """Return `state` with the rows of `block`, or the features in it, added; rows of weight 0 count too."""
        block = as_block(block)
        if not len(block):
            return state
        values, row, column = self._placed(block)
        columns = slice(column, column + values.shape[1])
        if not self.by_features:
            for first, last in block.equal:
                self._add_row_counts(state.unwritten, row + first, row + last)
        if self.missing:
            self._count_missing(state, values, row, columns)
        return self._with_moments(state, block)

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the numbers of the parts of the file that contain rows `start` to `stop`, with the rows of each."""
        edges = self.edges
        first = int(np.searchsorted(edges, start, side="right")) - 1
        for part in range(first, self.n_parts):
            if edges[part] >= stop:
                return
            yield part, max(start, int(edges[part])), min(stop, int(edges[part + 1]))

    def _add_row_counts(self, counts: IntArray, start: int, stop: int) -> None:
        """Add the number of rows from `start` to `stop` in each part of the file to `counts`, ``(n_parts,)``."""
        for part, first, last in self._spans(start, stop):
            counts[part] += last - first

    def _count_missing(self, state: QualityState, values: Array, row: int, columns: slice) -> None:
        """Count the missing values of `values`, whose first row is `row`, by feature and by part of the file."""
        for part, first, last in self._spans(row, row + values.shape[0]):
            holes = count_missing(dense(values[first - row : last - row]))
            state.missing[columns] += holes
            state.missing_by_part[part] += int(holes.sum())

    def panels(self, block: Block) -> Iterator[tuple[Array, slice, range]]:
        """Yield the examined rows and features of `block` in panels: dense values, indices into `followed`, row numbers."""
        values, row, column = self._placed(block)
        every, step = self.every, self.every_feature
        offset = -column % step
        chosen = slice((column + offset) // step, (column + values.shape[1] - 1) // step + 1)
        if chosen.start >= chosen.stop:
            return
        width = values.shape[1] if issparse(values) else chosen.stop - chosen.start
        stop = row + values.shape[0]
        for start in range(row + -row % every, stop, panel_rows(width) * every):
            numbers = range(start, min(stop, start + panel_rows(width) * every), every)
            yield dense(values[start - row : numbers.stop - row : every])[:, offset::step], chosen, numbers

    def _placed(self, block: Block) -> tuple[Array, int, int]:
        """Return the values of `block` as rows of the table, and the numbers of the first row and feature."""
        return (block.values.T, 0, block.start) if self.by_features else (block.values, block.start, 0)

    def _with_moments(self, state: QualityState, block: Block) -> QualityState:
        """Return `state` with the moments of the examined rows and features of `block`."""
        for rows, chosen, numbers in self.panels(block):
            self._note_common(state, rows, chosen, numbers.start // self.every)
            of_rows = np.searchsorted(self.edges, np.array(numbers), side="right") - 1
            parts, starts = np.unique(of_rows, return_index=True)
            state = self._with_sums(state, parts, chosen, sums_of(rows, starts))
        return state

    def _note_common(self, state: QualityState, rows: Array, chosen: slice, first: int) -> None:
        """Compare some of the `rows`, examined rows from number `first`, with the most common value of each feature.

        Row numbers, not blocks, decide which rows are compared; the first rows seen decide the candidate value.
        """
        if not state.n_compared[chosen].any():
            state.common[chosen] = common_values(rows)
        compared = rows[-first % self.every_compared :: self.every_compared]
        state.n_common[chosen] += count_common(compared, state.common[chosen])
        state.n_compared[chosen] += len(compared)

    def _with_sums(self, state: QualityState, parts: IntArray, chosen: slice, sums: Sums) -> QualityState:
        """Return `state` with `sums` of the features `chosen` in some parts of the file added, in place for parts seen before."""
        new = np.setdiff1d(parts, state.parts)
        if len(new):
            places = np.searchsorted(state.parts, new)
            state = replace(
                state,
                parts=np.insert(state.parts, places, new),
                counts=np.insert(state.counts, places, 0, axis=0),
                means=np.insert(state.means, places, 0.0, axis=0),
                scatter=np.insert(state.scatter, places, 0.0, axis=0),
            )
        entry = (np.searchsorted(state.parts, parts), chosen)
        total = Sums(state.counts[entry], state.means[entry], state.scatter[entry]).plus(sums)
        state.counts[entry], state.means[entry], state.scatter[entry] = total.counts, total.means, total.scatter
        return state

    @override
    def absorb(self, state: QualityState, other: QualityState) -> QualityState:
        for name in ("missing", "missing_by_part", "unwritten"):
            total = getattr(state, name)
            total += getattr(other, name)
        self._join_common(state, other)
        return self._with_sums(state, other.parts, slice(None), Sums(other.counts, other.means, other.scatter))

    def _join_common(self, state: QualityState, other: QualityState) -> None:
        """Add the comparisons with the most common values; the more frequent of two different values remains."""
        same = state.common == other.common
        better = ~same & (other.n_common > state.n_common)
        np.add(state.n_common, other.n_common, out=state.n_common, where=same)
        np.copyto(state.n_common, other.n_common, where=better)
        np.copyto(state.common, other.common, where=better)
        np.add(state.n_compared, other.n_compared, out=state.n_compared)

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes: 8 d if NaN are counted, f (24 p + s + 16), 16 p."""
        itemsize, f = np.dtype(self.dtype).itemsize, len(self.followed)
        return 8 * self.n_features * self.missing + f * (24 * self.n_parts + itemsize + 16) + 16 * self.n_parts

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update: panels of examined rows, and sums."""
        followed, values = len(self.followed), max(PANEL_VALUES, self.n_features)
        panel = max(PANEL_VALUES, followed) * (32 if self.missing else 16) + values * itemsize
        holes = max(COUNTED_VALUES, self.n_features) if self.missing else 0
        return panel + holes + 2 * 24 * followed * (1 + self.n_parts)


@dataclass(frozen=True)
class Sums:
    """Count, mean and sum of squared deviations of each feature, of any shape."""

    counts: IntArray
    """Number of values that are not missing."""
    means: FloatArray
    """Their mean; 0 if all are missing."""
    scatter: FloatArray
    """Sum of their squared deviations from the mean."""

    def plus(self, other: Sums) -> Sums:
        """Return the sums of both sets of values (Chan, Golub & LeVeque 1983, eq. 2.1)."""
        counts = self.counts + other.counts
        divisor = np.maximum(counts, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.means - self.means
            means = self.means + step * (other.counts / divisor)
            between = step * step * (self.counts * (other.counts / divisor))
            return Sums(counts, means, self.scatter + other.scatter + between)


def sums_of(rows: Array, starts: IntArray) -> Sums:
    """Return the sums of runs of dense `rows`, ``(n_rows, n_features)``, in float64, ``(n_runs, n_features)``; NaN counts as missing.

    `starts` are the first rows of the runs; no run is empty.
    """
    origin = rows[0].astype(np.float64)
    lengths = np.diff(starts, append=len(rows))[:, None]
    if not rows.strides[0]:
        return _sums_of_equal(origin, lengths)
    with np.errstate(over="ignore", invalid="ignore"):
        centred = rows.astype(np.float64)
        centred -= origin
        means = _run_sums(centred, starts)
        if np.isfinite(means).all():
            means /= lengths
            np.square(centred, out=centred)
            squares = _run_sums(centred, starts)
            scatter = squares - lengths * means * means
            scatter[scatter < _ROUNDING * squares] = 0.0
            return Sums(np.broadcast_to(lengths, means.shape), means + origin, scatter)
        return _sums_with_holes(rows, starts, lengths)


def _run_sums(rows: Array, starts: IntArray) -> FloatArray:
    """Return the sums of runs of rows, ``(n_runs, n_features)``; faster than `numpy.add.reduceat` for long runs."""
    sums = np.empty((len(starts), rows.shape[1]))
    for start, stop, out in zip(starts, (*starts[1:], len(rows)), sums, strict=True):
        np.add.reduce(rows[start:stop], axis=0, out=out)
    return sums


def _sums_with_holes(rows: Array, starts: IntArray, lengths: IntArray) -> Sums:
    """Return the sums of runs of rows, some with NaN, by run."""
    holes = np.isnan(rows)
    counts = lengths - _run_sums(holes, starts).astype(np.int64)
    filled = np.where(holes, 0.0, rows.astype(np.float64))
    means = _run_sums(filled, starts) / np.maximum(counts, 1)
    filled -= np.repeat(means, lengths[:, 0], axis=0)
    filled[holes] = 0.0
    return Sums(counts, means, _run_sums(np.square(filled), starts))


def _sums_of_equal(row: FloatArray, lengths: IntArray) -> Sums:
    """Return the sums of runs of rows that all equal `row`."""
    holes = np.isnan(row)
    means = np.broadcast_to(np.where(holes, 0.0, row), (len(lengths), len(row)))
    return Sums(np.where(holes, 0, lengths), means, np.zeros(means.shape))


def common_values(rows: Array) -> Array:
    """Return the medians of some evenly spaced `rows`: the most common value of each feature if more than half of them share it."""
    few = rows[:: max(1, len(rows) // _SOME_ROWS)][:_SOME_ROWS]
    middle: Array = np.partition(few, len(few) // 2, axis=0)[len(few) // 2]
    return middle


def count_common(rows: Array, common: Array) -> IntArray:
    """Return the number of `rows` with the value `common`, ``(n_features,)``."""
    counts: IntArray = np.count_nonzero(rows == common, axis=0).astype(np.int64)
    return counts


def panel_rows(n_features: int) -> int:
    """Return the number of rows examined at once."""
    return max(1, PANEL_VALUES // max(1, n_features))


def count_missing(values: Array) -> IntArray:
    """Return the number of NaN in each feature of dense `values`, ``(n_rows, n_features)``."""
    if not values.strides[0]:
        return np.where(np.isnan(values[0]), len(values), 0)
    total = np.zeros(values.shape[1], dtype=np.int64)
    rows = max(1, min(_COUNTED_ROWS, COUNTED_VALUES // max(1, values.shape[1])))
    for start in range(0, len(values), rows):
        holes = np.isnan(values[start : start + rows])
        total += np.add.reduce(holes.view(np.uint8), axis=0, dtype=np.uint8)
    return total


def steady(values: FloatArray) -> FloatArray:
    """Return `values` rounded to `DIGITS`, and 0 for nonfinite values, which JSON does not allow."""
    finite: FloatArray = np.where(np.isfinite(values), values, 0.0)
    return np.asarray(np.round(finite, DIGITS))


@storable
@dataclass(frozen=True)
class FeatureSums:
    """Sums over the examined rows seen so far."""

    n_features: int
    """The argument of `init`: the length of a row of the blocks."""
    sums: FloatArray
    """Sums from `Statistic.of_rows` for the followed features, ``(n_sums, f)``."""


@dataclass(frozen=True)
class Statistic(Accumulator[FeatureSums, FloatArray]):
    """A statistic of every followed feature, from sums over rows; a subclass defines the sums, how they merge, and what they mean.

    Sums over no rows are zeros.
    """

    examined: Quality
    """Choice of the examined rows and features."""
    shares_states: ClassVar[bool] = True
    name: ClassVar[str]
    """Key of its figures in the manifest, under ``quality``."""
    title: ClassVar[str]
    """Title of its row in the report, such as ``"features that are mostly zeros"``."""
    is_share: ClassVar[bool] = False
    """Whether the values of listed features are shares, which the report shows in percent."""
    n_sums: ClassVar[int]
    """Number of sums of each feature."""
    scratch_of_value: ClassVar[int] = 48
    """Maximum scratch memory of `of_rows` in bytes per value of a panel of rows: 8 for each float64 copy, 1 for a mask."""

    def of_rows(self, rows: Array, numbers: range) -> FloatArray:
        """Return the sums of some rows, ``(n_sums, m)``.

        `rows` are dense, in the data type of the table, with at least one row and m features; NaN are missing values.
        `numbers` are the row numbers in the table.
        """
        raise NotImplementedError

    def joined(self, sums: FloatArray, other: FloatArray) -> FloatArray:
        """Return the sums over both sets of rows, ``(n_sums, m)``; override it for sums that do not simply add up."""
        return sums + other

    def figures(self, sums: FloatArray, name: Namer) -> Json:
        """Return the figures that follow from the sums, as plain data with finite numbers (`steady`).

        The report shows the entries ``count``, the number of features that stand out, and ``features``, the first of them from
        `listed`. Figures for every feature cover at most 4,096 followed ones.
        """
        raise NotImplementedError

    def findings(self, figures: Json) -> tuple[list[str], list[str]]:
        """Return sentences about the figures, for warnings and for notes of a run."""
        return [], []

    def listed(self, chosen: IntArray, name: Namer, values: FloatArray) -> list[Json]:
        """Return the first of the followed features `chosen`, each with its name and one of `values`, ``(f,)``."""
        features = self.examined.followed[chosen[:MOST_LISTED]].tolist()
        return [
            {"feature": feature, "name": name(feature), "value": float(value)}
            for feature, value in zip(features, values[chosen], strict=False)
        ]

    @override
    def init(self, n_features: int) -> FeatureSums:
        return FeatureSums(n_features, np.zeros((self.n_sums, len(self.examined.followed))))

    def update(self, state: FeatureSums, block: Block | Array) -> FeatureSums:
        """Return `state` with the examined rows of `block` added; rows of weight 0 count too."""
        for rows, chosen, numbers in self.examined.panels(as_block(block)):
            state.sums[:, chosen] = self.joined(state.sums[:, chosen], self.of_rows(rows, numbers))
        return state

    @override
    def absorb(self, state: FeatureSums, other: FeatureSums) -> FeatureSums:
        return replace(state, sums=self.joined(state.sums, other.sums))

    def finalize(self, state: FeatureSums) -> FloatArray:
        """Return the sums, ``(n_sums, f)``."""
        return state.sums

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes: 8 f for each sum."""
        return 8 * self.n_sums * len(self.examined.followed)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update: a panel of examined rows, the memory of `of_rows`, and three times the sums."""
        followed, values = len(self.examined.followed), max(PANEL_VALUES, self.examined.n_features)
        made = max(PANEL_VALUES, followed) * self.scratch_of_value
        return values * itemsize + made + 3 * 8 * self.n_sums * followed


@dataclass(frozen=True)
class Zeros(Statistic):
    """Count values that are not missing, and zeros among them."""

    name: ClassVar[str] = "zeros"
    title: ClassVar[str] = "features that are mostly zeros"
    is_share: ClassVar[bool] = True
    n_sums: ClassVar[int] = 2
    scratch_of_value: ClassVar[int] = 16

    @override
    def of_rows(self, rows: Array, numbers: range) -> FloatArray:
        return np.array([len(rows) - np.isnan(rows).sum(axis=0), (rows == 0).sum(axis=0)], dtype=np.float64)

    @override
    def figures(self, sums: FloatArray, name: Namer) -> Json:
        counts, zeros = sums
        shares = zeros / np.maximum(counts, 1)
        chosen = np.flatnonzero((shares >= MOSTLY) & (shares < 1))
        order = chosen[np.argsort(-shares[chosen], kind="stable")]
        return {
            "share": float(zeros.sum() / max(counts.sum(), 1)),
            "least": MOSTLY,
            "count": len(order),
            "features": self.listed(order, name, shares),
        }


STATISTICS: tuple[type[Statistic], ...] = (Zeros,)
"""Statistics that are accumulated in addition to those of `Quality`."""
