"""Rows from scores, streamed to a zarr store: the arrays of the variables, in the units of the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import zarr

from streampca.block import Block
from streampca.errors import NotAvailableError, NotFiniteError, ParameterError
from streampca.execution.progress import ProgressCallback
from streampca.execution.score_task import NAME, Arrays, Writer, new_array, sample_axis, write_coordinates
from streampca.execution.write import write_by_rows
from streampca.labels import Dimension, Labels, Variable
from streampca.models.pca import Model
from streampca.models.rows import Given, removed_by, rows_from_scores, rows_of
from streampca.planning.plan import Plan
from streampca.regressors import FittedRegression, RowRegressors
from streampca.sources.base import ReadCount, Source
from streampca.sources.grid import Grid
from streampca.sources.naming import naming_places
from streampca.sources.residuals import subtract_fitted
from streampca.sources.steps import Step, SteppedSource
from streampca.sources.zarr.metadata import quietly
from streampca.storage.directories import ARRAYS_BESIDE_SCORES, require_space
from streampca.typing import Array, DType

_PIECE_BYTES = 2**24
"""Rows in float64 that are made at once of components in memory, of which a copy is made each time."""


class _Reconstruction(Step):
    """Scores as the rows that have them, in the units of the data and in the type that is written."""

    def __init__(
        self,
        model: Model,
        removed: tuple[RowRegressors, FittedRegression] | None,
        dtype: DType,
        clip: bool,
    ):
        self.model, self.removed, self._dtype, self.clip = model, removed, dtype, clip
        self.n_made = model.n_features
        self.by_place = removed is not None

    @property
    def digest(self) -> bytes:
        """Return the type that is written."""
        return f"{self._dtype} {self.clip}".encode()

    def dtype(self, dtype: DType) -> DType:
        """Return the type that is written."""
        return self._dtype

    def slice(self, start: int, stop: int) -> _Reconstruction:
        """Return the step with the regressors of rows `start` to `stop` alone."""
        removed = None if self.removed is None else (self.removed[0].slice(start, stop), self.removed[1])
        return _Reconstruction(self.model, removed, self._dtype, self.clip)

    def _rows_at_once(self, n_rows: int) -> int:
        """Return how many rows are made at once: all of them of components on disk, which are read each time."""
        if self.model.on_disk:
            return n_rows
        return min(n_rows, max(1, _PIECE_BYTES // (8 * self.model.n_features)))

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory of the rows that are made at once, of their product, and of their rounding."""
        return 4 * 8 * self._rows_at_once(n_rows) * self.model.n_features

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the rows that have the scores `values` to `out`."""
        step = self._rows_at_once(len(values))
        for first in range(0, len(values), step):
            part = slice(first, first + step)
            rows = rows_from_scores(self.model, values[part], start + first)
            if self.removed is not None:
                regressors, fitted = self.removed
                subtract_fitted(rows, regressors.slice(start + first, start + first + len(rows)), fitted, rows, 1)
            self._convert(rows, start + first, out[part])

    def _convert(self, rows: Array, start: int, out: Array) -> None:
        """Write `rows`, of which the first is row `start`, to `out` in its type; integers are the nearest ones."""
        dtype = out.dtype
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                out[...] = rows
            if dtype.itemsize < rows.dtype.itemsize and (lost := np.isinf(out).any(axis=1)).any():
                row = start + int(np.flatnonzero(lost)[0])
                raise NotFiniteError(f"row {row} overflows {dtype}: give another dtype, or none for {rows.dtype}")
            return
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        np.rint(rows, out=rows)
        under, over = rows < float(low), rows >= float(high) + 1  # of 64 bits, the largest is no float
        refused = np.isnan(rows) if self.clip else np.isnan(rows) | under | over
        if refused.any():
            row, column = (int(index) for index in np.argwhere(refused)[0])
            found = f"dtype={dtype.name!r}: row {start + row}, feature {column} is {rows[row, column]:.6g}"
            if np.isnan(rows[row, column]):
                raise ParameterError(f"{found}, which no integer says: give a floating point dtype")
            raise ParameterError(
                f"{found}: expected {low} to {high}; give another dtype, or clip=True of inverse_transform_to, which writes the nearest of "
                "these"
            )
        rows[under | over] = 0
        out[...] = rows
        out[under], out[over] = low, high


def reconstruction(
    scores: Source,
    model: Model,
    given: Given | None = None,
    dtype: object = None,
    *,
    clip: bool = False,
    regressors: RowRegressors | None = None,
) -> Source:
    """Return the rows that have `scores`, which are read, as a source of rows in the type that is written.

    `regressors` are those of the rows, where they are known, of what the model removes; None looks for them as `rows_of` does.

    Raises
    ------
    ParameterError
        If the type is none of real numbers, or what the model removes is not known of these rows.
    NotAvailableError
        If scores are sparse, or integers are to be written of features that a mask leaves out.
    """
    if scores.sparse:
        raise NotAvailableError(f"{scores.description}: sparse scores: expected dense ones")
    try:
        wanted = model.score_dtype(scores.dtype) if dtype is None else np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        wanted = np.dtype(object)
    if wanted.kind not in "iuf" or wanted.itemsize > 8:
        raise ParameterError(f"dtype={dtype!r}: expected integers, or floating point numbers of at most 64 bits")
    if clip and wanted.kind == "f":
        raise ParameterError(
            f"clip=True is for integers, and dtype is {wanted}: leave it out, or give an integer dtype"
        )
    if wanted.kind != "f" and model.labels is not None and model.labels.mask is not None:
        raise NotAvailableError(
            f"dtype={wanted.name!r}: the fit left out features by a mask, which are NaN in its rows: give a floating point dtype"
        )
    removed, fitted = None, removed_by(model, given)
    if fitted is not None and regressors is not None:
        removed = regressors, fitted
    elif fitted is not None:
        known = scores.labels is not None and any(each.coordinate is not None for each in scores.labels.samples)
        labels, columns = (scores.labels, scores.sample_columns) if known else (None, None)
        removed = rows_of(fitted, given, scores.shape[0], labels=labels, columns=columns, same=True), fitted
    model.require_decoder()
    rows = SteppedSource(scores, [_Reconstruction(model, removed, wanted.newbyteorder("="), clip)])
    rows.grid = Grid()  # scores are small beside their rows
    return rows


@dataclass(frozen=True)
class _RowsTask(Writer):
    """Write the rows of a leaf, each block as one chunk of the array of each variable."""

    common: ClassVar[str] = "model"
    source: Source
    """Rows that are written."""
    model: Model
    """Model that makes them."""
    path: Path
    """Path of the zarr group."""
    samples: Labels | None = field(default=None)
    """Labels of the scores."""

    @property
    def fields(self) -> tuple[tuple[str, Variable], ...]:
        """Return the variables of the rows, each with the name of its array: ``rows`` without one."""
        variables = self._labels.variables
        names = [str(each.name).rpartition("/")[2] for each in variables]
        usable = len({*names}) == len(names) and all(
            each.name and NAME.fullmatch(n) for each, n in zip(variables, names, strict=True)
        )
        others = ["rows"] if len(names) == 1 else [f"rows_{index}" for index in range(len(names))]
        return tuple(zip(names if usable else others, variables, strict=True))

    @property
    def _labels(self) -> Labels:
        d = self.source.shape[1]
        return self.model.labels or Labels((), (Dimension("feature", d),), (Variable(None, ("feature",), (d,)),))

    @property
    def by_row(self) -> tuple[str, ...]:
        """Return the names of the arrays."""
        return tuple(name for name, _ in self.fields)

    def create(self, rows_per_chunk: int) -> None:
        """Make the group: the arrays, and the coordinates of samples and features that have one."""
        n, dtype, axis = self.source.shape[0], self.source.dtype, sample_axis(self.samples)
        require_space(self.path, n * sum(variable.size for _, variable in self.fields) * dtype.itemsize)
        group = zarr.open_group(self.path, mode="a", zarr_format=3)
        group.attrs.update({"format": "streampca-reconstruction", "version": 1, "source": self.model.source})
        samples = () if self.samples is None else self.samples.samples
        beside = write_coordinates(group, [*samples, *self._labels.features], self.by_row)
        group.attrs.update({ARRAYS_BESIDE_SCORES: [*self.by_row, *beside]})
        for name, variable in self.fields:
            shape, dims = (n, *variable.shape), (axis, *variable.dims)
            array = new_array(group, name, shape, (min(n, rows_per_chunk), *variable.shape), dtype, dims)
            array.attrs.update(dict(variable.attributes))
        with quietly():
            zarr.consolidate_metadata(self.path)  # so that xarray opens it without listing the files

    def update(self, state: Arrays, block: Block) -> Arrays:
        """Write the rows of `block`; `OutputError` if the directory was removed."""
        arrays = self.opened(state)
        for array, values in zip(arrays, self._labels.spread(block.values), strict=True):
            array[block.start : block.start + len(block)] = values
        return arrays


@naming_places
def write_rows(
    rows: Source,
    model: Model,
    plan: Plan,
    path: Path,
    *,
    samples: Labels | None,
    progress: ProgressCallback | None = None,
) -> ReadCount:
    """Write rows that `reconstruction` returns to the arrays of a new zarr group at `path`; return what reading the scores cost.

    A chunk holds the rows of one block, so every chunk has one writer. The caller commits the directory (`AtomicDirectory`).

    Raises
    ------
    NoSpaceError
        If the file system has less room than the rows take and 5 %.
    NotFiniteError, ParameterError
        If rows overflow, or are outside of the range of an integer type.
    """
    with rows.reading():
        task = _RowsTask(rows, model, path.absolute(), samples)
        return write_by_rows(task, (task,), plan, progress, "reconstruction")
