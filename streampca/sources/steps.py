"""Row-wise maps from stored rows to used rows: a source and a list of steps, such as residuals of a regression."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import xxhash
from scipy.sparse import csr_array

from streampca.block import Block, take_columns
from streampca.errors import NotAvailableError, NotFittedError
from streampca.regressors import FittedRegression, RowRegressors
from streampca.sources.arrays import DenseRows
from streampca.sources.base import Features, ReadCount, RowsOfSource, Source, Transposed, as_rows
from streampca.sources.grid import Grid
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, DType, IntArray

SLAB_BYTES = 2**21
"""Values in float64 that pass several steps at once, so that what is between them stays in the cache."""
_CACHE_BYTES = 2**18  # of values that steps map one by one
_PIECE = 2**16  # stored values of sparse rows that pass the steps at once


class Step(ABC):
    """A map of rows to rows, each of which is computed from the same row before; it is picklable and does not change.

    A new step has `digest` and `apply`; the other members where their defaults are not what it does.
    """

    columns: IntArray | None = None
    """Which features it leaves, ``(n_features,)``, ascending where the table before has names; None = all."""
    n_made: int | None = None
    """How many features it makes of those there are, which have other names or none; None = none."""
    joins: int = 1
    """How many consecutive features it makes one of; 1 unless `columns` is None."""
    notes: tuple[str, ...] = ()
    """What a plan says of it."""
    of_fit: bool = False
    """Whether it belongs to a fit, so that manifests describe the table before it."""
    by_place: bool = False
    """Whether equal rows may become different ones, since it matters which row it is."""
    by_features: bool = False
    """Whether `apply_features` does the same with blocks of features; if not, features after the step are read by a reading of all rows."""
    unfitted: bool = False
    """Whether it has to know something of all rows first, which has not been read yet: see `FittedStep`."""

    @property
    @abstractmethod
    def digest(self) -> bytes:
        """Return what tells the step from others, for the fingerprint of the rows after it."""

    @abstractmethod
    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write `values`, of which the first is row `start`, to `out` as they are after the step.

        `values` is ``(n_rows, n_features)`` and must not be changed; `out` has the features and the data type after the step.
        """

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Return sparse rows after the step, in compressed row form as they are given; these must not be changed.

        Raises
        ------
        NotAvailableError
            If the step is for dense rows.
        """
        raise NotAvailableError(
            f"{type(self).__name__} needs dense rows: these rows are sparse, and their zeros are not stored"
        )

    def dtype(self, dtype: DType) -> DType:
        """Return the data type of rows after the step, of those of `dtype`."""
        return dtype

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory in bytes that `apply` takes beside `values`, ``(n_rows, n_features)`` of `dtype`, and `out`."""
        return 0

    def slice(self, start: int, stop: int) -> Step:
        """Return the step for a worker, which applies it to rows `start` to `stop`."""
        return self

    def apply_features(self, values: Array, start: int, out: Array) -> None:
        """Write features ``(n_features, n_samples)``, of which the first is feature `start`, to `out` as they are after the step."""
        raise NotImplementedError


class FittedStep(Step):
    """A step with figures of all rows: those that it is given, as new rows have those of a fit, or those of the rows before it.

    These are read in a reading of its own, before any other, by who reads the rows after the step (`solvers.fitted_steps`).
    """

    statistic: ClassVar[Literal["moments", "row totals"]]
    """What is accumulated of the rows: moments of the features, or the sum of each row."""
    figures: Any = None
    """What is known of all rows; None before it was read."""

    @property
    def unfitted(self) -> bool:  # type: ignore[override]
        """Return whether the figures have to be read."""
        return self.figures is None

    def fitted_to(self, rows: SteppedSource) -> Source:
        """Return the rows whose figures these are, by default those before the step: sparse ones where they are made of these, so that less is added up."""
        stored = rows if rows.steps else rows.source
        return stored.source if isinstance(stored, DenseRows) else stored

    @abstractmethod
    def figures_of(self, found: Any) -> Any:
        """Return the figures that follow from the result of the accumulator."""

    def fit(self, found: Any) -> None:
        """Take the figures that follow from the result of the accumulator; only the first time changes the step."""
        if self.unfitted:
            self.figures = self.figures_of(found)

    @property
    def known(self) -> Any:
        """Return the figures; `NotFittedError` if they have not been read."""
        if self.figures is None:
            raise NotFittedError(
                f"{type(self).__name__} needs figures of all rows, which a fit reads first: expected a table that was fitted; "
                "fit it, or give its path to transform, which uses the figures of the fit"
            )
        return self.figures


class Elementwise(Step):
    """A step that maps every value by itself; zeros stay zeros, so that it is for sparse rows, too."""

    @abstractmethod
    def of_values(self, values: Array, out: Array) -> None:
        """Write `values` to `out`, of the same shape, as they are after the step."""

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the values to `out` as they are after the step."""
        self.of_values(values, out)

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Return sparse rows with the stored values as they are after the step."""
        out = np.empty(data.shape, dtype=self.dtype(data.dtype))
        self.of_values(data, out)
        return out, indices, indptr


class ChosenFeatures(Step):
    """Some of the features, in the order of the table.

    Parameters
    ----------
    used : array, shape (n_features,)
        True for the features that are left.
    """

    columns: IntArray

    def __init__(self, used: BoolArray):
        self.used, self.columns = used, np.flatnonzero(used)
        self._places = (np.cumsum(used) - 1).astype(np.int64)

    def __reduce__(self) -> tuple[object, ...]:
        return ChosenFeatures, (self.used,)

    @property
    def digest(self) -> bytes:
        """Return which features are left, a bit each."""
        return np.packbits(self.used).tobytes()

    def require(self, values: Array, start: int) -> None:
        """Raise an error if `values`, of which the first is row `start`, are not such that the other features can be left out."""

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory that numpy takes for the result where `out` is not contiguous, at most that of all features."""
        return n_rows * n_features * dtype.itemsize

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the features that are left to `out`."""
        self.require(values, start)
        take_columns(values, self.columns, out)

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Return sparse rows with the stored values of the features that are left."""
        kept = np.flatnonzero(self.used[indices])
        edges = np.searchsorted(kept, indptr).astype(indptr.dtype)
        return data.take(kept), self._places.take(indices.take(kept)).astype(indices.dtype), edges


class Cast(Elementwise):
    """Values in another data type."""

    digest = b""

    def __init__(self, dtype: DType):
        self._dtype = dtype

    def dtype(self, dtype: DType) -> DType:
        """Return the data type."""
        return self._dtype

    def of_values(self, values: Array, out: Array) -> None:
        """Write the values to `out`."""
        out[...] = values


class SteppedSource(RowsOfSource):
    """The rows of a source after a list of steps; what is known of stored rows is known of these.

    Parameters
    ----------
    source : Source
        The rows before the steps. Those of a `SteppedSource` have its steps first.
    steps : sequence of Step
        What is done to them, in this order.
    alike : Source, optional
        The same table opened by itself, which this one is described as.
    part_of : Source, optional
        The table of which this one has some features: one reading of it serves several such tables.
    mark : str
        What the fingerprint has beside that of the rows and the steps.
    """

    def __init__(
        self,
        source: Source,
        steps: Sequence[Step],
        *,
        alike: Source | None = None,
        part_of: Source | None = None,
        mark: str = "",
    ):
        inner = source if isinstance(source, SteppedSource) else None
        super().__init__(source if inner is None else inner.source)
        self.steps: tuple[Step, ...] = (*(() if inner is None else inner.steps), *steps)
        self.mark: str = mark if inner is None else inner.mark + mark
        self.alike, self.part_of, self.depth = alike, part_of, 1 + self.source.depth
        self._described = alike or (source if steps and all(step.of_fit for step in steps) else None)
        self._forms = [(self.source.shape[1], self.source.dtype)]
        for step in self.steps:
            n_features, dtype = self._forms[-1]
            n_features = n_features // step.joins if step.columns is None else len(step.columns)
            n_features = n_features if step.n_made is None else step.n_made
            self._forms.append((n_features, step.dtype(dtype)))
        self.shape, self.dtype = (self.source.shape[0], self._forms[-1][0]), self._forms[-1][1]
        self._by_value = _by_value(self.steps)
        self.buffered = not self.sparse and (bool(self.steps) or self.source.buffered)
        self.details: Mapping[str, object] = {}
        self._before: dict[int, SteppedSource] = {}
        self._name_features(alike or source, steps)

    def _name_features(self, source: Source, steps: Sequence[Step]) -> None:
        """Name the features as those of `source`, without those that `steps` leave out."""
        self.feature_shape, self.feature_names, self.labels = source.feature_shape, source.feature_names, source.labels
        if self.alike is not None:
            self.fragments = self.alike.fragments  # whose fingerprints are of the columns that are read
            return
        for step in steps:
            columns = step.columns
            if step.joins > 1 or step.n_made is not None:
                self.feature_shape = self.feature_names = self.labels = None
            if columns is None:
                continue
            self.feature_shape, names = None, self.feature_names
            self.feature_names = None if names is None else tuple(names[column] for column in columns)
            if self.labels is not None:
                mask = np.zeros(sum(variable.size for variable in self.labels.variables), dtype=bool)
                mask[self.labels.indices()[columns]] = True
                self.labels = self.labels.with_mask(mask).with_used_variables()

    def __reduce__(self) -> tuple[object, ...]:
        return partial(SteppedSource, mark=self.mark), (self.source, self.steps)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the fingerprint of the rows and of the digests of the steps."""
        if self.alike is not None:
            return self.alike.fingerprint
        digest = xxhash.xxh3_128(self.source.fingerprint.encode() + self.mark.encode())
        for step in self.steps:
            digest.update(step.digest)
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """Return the description of the table for a manifest: of the stored one, where the steps belong to a fit."""
        if self._described is not None:
            return self._described.describe()
        if self.part_of is not None:  # with the options that new data are opened with
            names = ("shape", "dtype", "fingerprint", "feature_shape", "feature_names")
            own = super().describe()
            return self.part_of.describe() | {name: own[name] for name in names}
        return (self.source.describe() if self.details else {}) | super().describe() | dict(self.details)

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the sources of the arrays that the rows are stored in."""
        return self.source.stored_arrays

    @property
    def unfitted(self) -> tuple[tuple[Source, FittedStep], ...]:
        """Return the steps whose figures have to be read first, each with the rows that it is fitted to."""
        own = [(i, step) for i, step in enumerate(self.steps) if step.unfitted]
        fitted = [(step.fitted_to(self.before(i)), step) for i, step in own if isinstance(step, FittedStep)]
        return (*self.source.unfitted, *fitted)

    def before(self, n_steps: int) -> SteppedSource:
        """Return the rows after the first `n_steps` steps, the same object every time, so that what reads them reads them together."""
        if n_steps not in self._before:
            self._before[n_steps] = SteppedSource(self.source, self.steps[:n_steps])
        return self._before[n_steps]

    @property
    def row_bytes(self) -> int:
        """Return the size of one row in bytes; of sparse rows the mean size as they are stored."""
        return self.source.row_bytes if self.sparse else super().row_bytes

    @property
    def n_features_read(self) -> int:
        """Return the length of the rows in memory while a block is read."""
        return self.shape[1] if self.sparse else self.source.n_features_read

    def equal_rows(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of rows that equal one row, which the steps change in the same way."""
        return () if any(step.by_place for step in self.steps) else super().equal_rows(start, stop)

    def plan_notes(self) -> tuple[str, ...]:
        """Return notes about reading the stored rows, and what the steps say of themselves."""
        return (*super().plan_notes(), *(note for step in self.steps for note in step.notes))

    def slice(self, start: int, stop: int) -> SteppedSource:
        """Return a source for a worker that can read rows `start` to `stop`."""
        steps = [step.slice(start, stop) for step in self.steps]
        return SteppedSource(self.source.slice(start, stop), steps, mark=self.mark)

    def by_features(self) -> Source:
        """Return a source whose rows are the features of this one."""
        if self.sparse:
            return Transposed(self)
        features, steps = self.source.by_features(), self.steps
        while steps:
            others = (i for i, step in enumerate(steps) if not isinstance(step, ChosenFeatures | Elementwise))
            n_values = next(others, len(steps))
            if not n_values and not steps[0].by_features:
                return Transposed(self)
            group, steps = steps[: n_values or 1], steps[n_values or 1 :]
            after = SteppedSource(self.source, self.steps[: len(self.steps) - len(steps)]) if steps else self
            features = _FeaturesAfterSteps(after, features, group)
        return features

    def _rows_at_once(self, n_rows: int) -> int:
        """Return how many of `n_rows` rows pass the steps at once: all where there is one, which divides them by itself."""
        if len(self.steps) == 1:
            return n_rows
        return min(n_rows, max(1, SLAB_BYTES // (8 * self.shape[1])))

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of the stored rows, of rows between two steps, and of what the steps take."""
        reading = self.source.overhead_bytes(n_rows)
        if self.sparse or not self.steps:
            return reading
        if self._by_value is not None:
            return reading + n_rows * self.source.row_bytes + self._by_value.scratch_bytes
        rows = self._rows_at_once(n_rows)
        between = 2 * rows * max((n * dtype.itemsize for n, dtype in self._forms[1:-1]), default=0)
        scratch = sum(step.scratch_bytes(rows, *form) for step, form in zip(self.steps, self._forms, strict=False))
        return reading + n_rows * self.source.row_bytes + between + scratch

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return the rows after all steps."""
        if self.sparse:
            values, count = self.source.read(start, stop)
            return (self._of_sparse(as_rows(values), start) if self.steps else values), count
        if not self.steps:
            return self.source.read(start, stop, out)
        stored = (
            self._scratch(f"rows before steps {self.depth}", stop - start, *self._forms[0])
            if self.source.buffered
            else None
        )
        rows, count = self.source.read(start, stop, stored)
        out = np.empty((stop - start, self.shape[1]), dtype=self.dtype) if out is None else out
        if self._by_value is not None:
            self._by_value.of_rows(rows, start, out, turned=self.column_major)
            return out, count
        step = self._rows_at_once(len(rows))
        for first in range(0, len(rows), max(1, step)):
            part = slice(first, first + step)
            self._apply(rows[part], start + first, out[part])
        return out, count

    def _scratch(self, purpose: str, n_rows: int, n_features: int, dtype: DType) -> Array:
        """Return scratch memory for rows, in the order of memory of blocks."""
        if self.column_major:
            return borrow(purpose, (n_features, n_rows), dtype).T
        return borrow(purpose, (n_rows, n_features), dtype)

    def _apply(self, values: Array, start: int, out: Array) -> None:
        """Write `values`, of which the first is row `start`, to `out` as they are after all steps."""
        for index, step in enumerate(self.steps[:-1]):
            after = self._scratch(f"rows after step {index % 2}", len(values), *self._forms[index + 1])
            step.apply(values, start, after)
            values = after
        self.steps[-1].apply(values, start, out)

    def _of_sparse(self, rows: csr_array, start: int) -> csr_array:
        """Return sparse rows after all steps, which a few of them pass at a time."""
        indices, indptr, shape = rows.indices, rows.indptr, (rows.shape[0], self.shape[1])
        if all(step.columns is None for step in self.steps):
            data = np.empty(len(rows.data), dtype=self.dtype)
            for low, (values, _, _) in self._of_pieces(rows, start):
                data[low : low + len(values)] = values
            return csr_array((data, indices, indptr), shape=shape)
        parts = [part for _, part in self._of_pieces(rows, start)]
        data, indices = (np.concatenate([part[i] for part in parts]) for i in range(2))
        counts = np.concatenate([np.diff(part[2]) for part in parts])
        return csr_array((data, indices, np.concatenate([[0], np.cumsum(counts)]).astype(indptr.dtype)), shape=shape)

    def _of_pieces(self, rows: csr_array, start: int) -> Iterator[tuple[int, tuple[Array, Array, Array]]]:
        """Yield some sparse rows at a time after all steps, which stay in the cache, and where their first value is stored."""
        low, n_rows = 0, rows.shape[0]
        while low < n_rows or not low:
            high = int(np.searchsorted(rows.indptr, int(rows.indptr[low]) + _PIECE, "right")) - 1
            high = min(max(high, low + 1), n_rows)
            edges = rows.indptr[low : high + 1]
            first, last = int(edges[0]), int(edges[-1])
            part = rows.data[first:last], rows.indices[first:last], edges - edges[0]
            for step in self.steps:
                part = step.apply_stored(*part, start + low)
            yield first, part
            low = max(high, low + 1)


@dataclass(frozen=True)
class _ByValue:
    """Steps that choose features and map every value by itself: blocks of any order of memory, and of features, pass them in slabs."""

    chosen: tuple[ChosenFeatures, ...]
    """Those that choose."""
    maps: tuple[Elementwise, ...]
    """The others, in their order."""
    columns: IntArray | None
    """Which stored features are left, ascending; None = all."""

    @property
    def scratch_bytes(self) -> int:
        """Return the memory in bytes of a slab with the chosen features, of what maps it, and of float64 between two maps."""
        return 4 * _CACHE_BYTES + (2 * 8 * _CACHE_BYTES if len(self.maps) > 1 else 0)

    def of_rows(self, stored: Array, start: int, out: Array, *, turned: bool) -> None:
        """Write stored rows, of which the first is row `start`, to `out`; `turned` says that both are in Fortran order."""
        for step in self.chosen:
            step.require(stored, start)
        if turned:
            self.by_rows(stored.T, self.columns, out.T)
        else:
            self.by_columns(stored, self.columns, out)

    def by_columns(self, stored: Array, used: IntArray | None, out: Array) -> None:
        """Write the columns `used` of stored values to `out`, a few rows at a time, which stay in the cache."""
        for rows in slabs(stored):
            values, into = stored[rows], out[rows]
            if used is not None and not self.maps and into.flags.c_contiguous:
                take_columns(values, used, into)
                continue
            if used is not None:
                columns = borrow("used columns", (len(values), len(used)), stored.dtype)
                values = values.take(used, axis=1, out=columns, mode="clip")  # the mode that needs no copy of `columns`
            self._map(values, into)

    def by_rows(self, stored: Array, used: IntArray | None, out: Array) -> None:
        """Write the rows `used` of stored values to `out`, a few at a time."""
        for rows in slabs(out):
            self._map(stored[rows] if used is None else stored[used[rows]], out[rows])

    def _map(self, values: Array, out: Array) -> None:
        """Write values to `out` as they are after the maps."""
        for index, step in enumerate(self.maps[:-1]):
            after = borrow(f"values after step {index % 2}", values.shape, step.dtype(values.dtype))
            step.of_values(values, after)
            values = after
        if self.maps:
            self.maps[-1].of_values(values, out)
        else:
            out[...] = values


def _by_value(steps: Sequence[Step]) -> _ByValue | None:
    """Return steps that only choose features and map every value by itself; None if there are others."""
    chosen = tuple(step for step in steps if isinstance(step, ChosenFeatures))
    maps = tuple(step for step in steps if isinstance(step, Elementwise))
    if len(chosen) + len(maps) < len(steps):
        return None
    columns = None
    for step in chosen:
        columns = step.columns if columns is None else columns[step.columns]
    return _ByValue(chosen, maps, columns)


class _FeaturesAfterSteps(Features):
    """The features of rows after the last of their steps: those that choose features and map every value by itself, or one for features.

    Parameters
    ----------
    source : SteppedSource
        The rows after these steps.
    stored : Source
        The features before them.
    steps : sequence of Step
        The steps.
    """

    source: SteppedSource

    def __init__(self, source: SteppedSource, stored: Source, steps: Sequence[Step]):
        super().__init__(source, stored)
        self._steps, self._step = _by_value(steps), steps[0]
        self._joins = 1 if self._steps is not None else self._step.joins
        self.grid, self._places = stored.grid.joined_rows(self._joins), np.arange(self.shape[0])
        if self._steps is not None and self._steps.columns is not None:
            self._places = self._steps.columns
            edges = np.searchsorted(self._places, np.arange(0, stored.shape[0], stored.chunk_rows))
            self.grid = Grid.of_edges(sorted({*edges.tolist(), 0, self.shape[0]}), source.grid.chunk_bytes, whole=True)

    def spans(self, start: int, stop: int) -> Sequence[tuple[Source, int, int]]:
        """Return the stored features from the first of features `start` to `stop` to the last."""
        return (
            (self._stored, int(self._places[start]) * self._joins, (int(self._places[stop - 1]) + 1) * self._joins),
        )

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of the stored features between the first and the last of a block, at most, and of the steps."""
        n = min(n_rows, self.shape[0])
        span = (int((self._places[n - 1 :] - self._places[: self.shape[0] - n + 1]).max()) + 1) * self._joins
        scratch = (
            self._step.scratch_bytes(self.shape[1], span, self._stored.dtype)
            if self._steps is None
            else self._steps.scratch_bytes
        )
        return self._stored.overhead_bytes(span) + span * self._stored.row_bytes + scratch

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return features `start` to `stop` as rows."""
        ((_, low, high),) = self.spans(start, stop)
        shape, columns = (high - low, self.shape[1]), self._stored.column_major
        scratch = None
        if self._stored.buffered:
            purpose = f"features before step {len(self.source.steps)} of {self.source.depth}"
            scratch = borrow(purpose, shape[::-1] if columns else shape, self._stored.dtype)
        stored, count = self._stored.read(low, high, scratch.T if columns and scratch is not None else scratch)
        out = np.empty((stop - start, self.shape[1]), dtype=self.dtype) if out is None else out
        if self._steps is None:
            self._step.apply_features(stored, start, out)
            return out, count
        used = None if self._steps.columns is None else self._places[start:stop] - low
        if columns:
            self._steps.by_columns(stored.T, used, out.T)
        else:
            self._steps.by_rows(stored, used, out)
        return out, count


def slabs(values: Array) -> Iterator[slice]:
    """Yield slices of rows that fit in the cache of a core while they pass the steps."""
    step = max(1, _CACHE_BYTES // max(1, values[:1].nbytes))
    for first in range(0, len(values), step):
        yield slice(first, min(first + step, len(values)))


def residual_dtype(dtype: DType) -> DType:
    """Return the data type of residuals: float32 for float16 and float32, else float64."""
    return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64)


def subtract_fitted(
    values: Array, rows: RowRegressors, regression: FittedRegression, out: Array, sign: int = -1
) -> Array:
    """Write `values` minus what is fitted to them, the mean included, to `out`, or plus them with `sign` 1; computed in float64.

    The mean is subtracted before, and added after, the part that differs between rows: their sum would be rounded to the
    digits of a mean that may be 1e8 standard deviations.
    """
    step = max(1, SLAB_BYTES // (8 * max(1, values.shape[1])))
    with np.errstate(over="ignore", invalid="ignore"):  # callers check that results are finite
        for start in range(0, len(values), step):
            part = slice(start, min(start + step, len(values)))
            effects = rows.fitted(regression.coefficients, rows.start + part.start, rows.start + part.stop)
            if sign > 0:
                effects += values[part]
                np.add(effects, regression.mean, out=out[part], casting="same_kind")
            else:
                if regression.mean_remainder is not None:
                    effects += regression.mean_remainder
                centred = np.subtract(values[part], regression.mean, dtype=np.float64)
                np.subtract(centred, effects, out=out[part], casting="same_kind")
    return out


class RowResiduals(Step):
    """Rows minus what regression fits to them, so that they have no mean; dense.

    Parameters
    ----------
    rows : RowRegressors
        Regressors of the rows.
    fitted : FittedRegression
        Their coefficients.
    dtype : dtype
        The type of the residuals.
    """

    of_fit = True
    by_place = True
    by_features = True

    def __init__(self, rows: RowRegressors, fitted: FittedRegression, dtype: DType):
        self.rows, self.fitted, self._dtype = rows, replace(fitted, rows=None), dtype

    @property
    def digest(self) -> bytes:
        """Return the regressors and their coefficients."""
        arrays = (self.rows.codes, self.rows.columns, self.fitted.coefficients, self.fitted.mean)
        return b"".join(array.tobytes() for array in arrays)

    def dtype(self, dtype: DType) -> DType:
        """Return the type of the residuals."""
        return self._dtype

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory of what is subtracted from some rows, and of their differences from the mean, in float64."""
        return 2 * SLAB_BYTES

    def slice(self, start: int, stop: int) -> RowResiduals:
        """Return the step with the regressors of rows `start` to `stop` alone."""
        return RowResiduals(self.rows.slice(start, stop), self.fitted, self._dtype)

    def of_block(self, block: Block, *, column_major: bool) -> Block:
        """Return the residuals of rows that have been read, in scratch memory."""
        shape = block.values.shape
        out = borrow("residuals", shape[::-1] if column_major else shape, self._dtype)
        out = out.T if column_major else out
        self.apply(block.values, block.start, out)
        return Block(out, block.start, block.weights)

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the residuals of the rows to `out`."""
        subtract_fitted(values, self.rows.slice(start, start + len(values)), self.fitted, out)

    def apply_features(self, values: Array, start: int, out: Array) -> None:
        """Write the residuals of features from `start` on to `out`."""
        fitted = self.fitted.of_features(start, start + len(values))
        subtract_fitted(values.T, self.rows, fitted, out.T)
