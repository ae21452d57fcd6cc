"""Scores of every row, streamed to a zarr store: one writer for each chunk, checksums in every chunk."""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import iadd
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import zarr

from streampca.accumulators.centring import refuse_not_finite
from streampca.block import Block, dense
from streampca.errors import NotAvailableError, NotFiniteError, OutputError, ParameterError
from streampca.execution.checkpoint.progress_log import log_in_use, model_digest
from streampca.execution.checkpoint.resume import next_pass
from streampca.execution.distributed.active_client import active_client
from streampca.execution.drive import drive
from streampca.execution.leaf import Task
from streampca.execution.progress import ProgressCallback
from streampca.execution.score_task import (
    NAME,
    Arrays,
    ScoreTask,
    ScoreTasks,
    Writer,
    create_scores,
    new_array,
    sample_axis,
    write_coordinates,
)
from streampca.labels import Dimension, Labels, Variable
from streampca.models.conditional import add_lost, fill_in_from
from streampca.models.pca import Model, PCAModel
from streampca.models.rows import Given, removed_by, residuals_step, rows_from_scores, rows_of_scores
from streampca.models.stored import StoredComponents
from streampca.planning.plan import Plan
from streampca.planning.scores import slab_width, values_per_sample
from streampca.planning.shape import Leaf
from streampca.planning.work import workers_of
from streampca.regressors import FittedRegression, RowRegressors
from streampca.sources.alignment import naming_places
from streampca.sources.base import ReadCount, Source
from streampca.sources.grid import Grid
from streampca.sources.steps import Step, SteppedSource, subtract_fitted
from streampca.sources.table import part_of
from streampca.sources.zarr.strictness import strict
from streampca.storage.directories import ARRAYS_BESIDE_SCORES, arrays_beside, require_space
from streampca.storage.files import flush_one, writing
from streampca.system.process import one_blas_thread
from streampca.typing import Array, DType, FloatArray

if TYPE_CHECKING:
    from streampca.typing import DaskClient


_CHUNK_BYTES = 8 * 2**20
_ANSWER_SECONDS = 10  # for workers to say whether they can write to the output
_LEAF_BLOCKS, _LEAVES = 4, 160
"""Blocks of a leaf at least, and leaves that scores are written in where there are enough blocks: 20 for each of 8 threads."""
_PIECE_BYTES = 2**24
"""Rows in float64 that are made at once of components in memory, of which a copy is made each time."""


@naming_places
def write_scores(
    source: Source,
    model: Model,
    plan: Plan,
    path: Path,
    *,
    progress: ProgressCallback | None = None,
    diagnostics: bool = False,
) -> ReadCount:
    """Read `source` once more, write its scores and return what reading cost.

    They are written to the array ``scores`` of a new zarr group at `path`.

    The array has shape ``(n_samples, k)``, float32 for float32 input and float64 else; a chunk holds the rows of one
    block, so every chunk has one writer. With `diagnostics`, T² and Q of the rows are written to ``t2`` and ``q``,
    ``(n_samples,)``, in the same chunks. The caller commits the directory (`AtomicDirectory`).

    Raises
    ------
    NoSpaceError
        If the file system has less room than the scores take and 5 %.
    DataError
        If chunks of the source are missing or damaged.
    """
    path = path.absolute()  # workers may have another working directory
    with source.reading():
        if plan.axis == "features" and model.linear is not None:
            return _write_by_features(source, model.linear, plan, path, progress)
        task = ScoreTask(source, model, path, diagnostics)
        return write_by_rows(task, (task,), plan, progress)


@naming_places
def write_scores_of_models(
    source: Source,
    models: Mapping[Path, Model],
    plan: Plan,
    *,
    tables: Mapping[Path, Source] | None = None,
    progress: ProgressCallback | None = None,
    diagnostics: bool = False,
) -> ReadCount:
    """Read `source` once more and write the scores of every model to a new zarr group, as `write_scores` does for one.

    Return what reading cost.

    Parameters
    ----------
    source : Source
        The rows; those of a model that removes something are computed from them.
    models : mapping of Path to model
        The path of the group of each model.
    plan : Plan
        Blocks of rows and leaves.
    tables : mapping of Path to Source, optional
        For models that have some of the features, these features of `source` (`streampca.sources.table`).
    progress : callable, optional
        Called with a `Progress` as blocks finish.
    diagnostics : bool
        Whether T² and Q of the rows are written, too; all models are linear then.

    Raises
    ------
    NoSpaceError, DataError
        As `write_scores`.
    """
    paths = tuple(path.absolute() for path in models)  # workers may have another working directory
    own = [source if tables is None else tables.get(path, source) for path in models]
    chosen = [part_of(each)[1] for each in own]
    columns = tuple(None if each is None else each.columns for each in chosen)
    residuals = tuple(residuals_step(each, model) for each, model in zip(own, models.values(), strict=True))
    task = ScoreTasks(source, tuple(models.values()), paths, columns, residuals, diagnostics)
    with source.reading():
        return write_by_rows(task, task.writers, plan, progress)


def write_by_rows(
    task: Task[Any], writers: Sequence[Writer], plan: Plan, progress: ProgressCallback | None, phase: str = "scores"
) -> ReadCount:
    """Run `task`, which writes the arrays of `writers`, from where a stopped run had come; return the cost of reading."""
    # Equal blocks, so that a chunk has one writer. With more leaves a stopped run repeats less, and scores have no large state to be merged.
    # The leaves depend on the blocks alone, so sums over them have the same bits for any number of threads.
    n_blocks = -(-plan.extent // plan.rows_per_block)
    n_leaves = min(plan.n_leaves, n_blocks)
    n_leaves = min(max(n_leaves, n_blocks // _LEAF_BLOCKS), max(n_leaves, _LEAVES))
    source, plan = task.source, replace(plan, n_blocks=n_blocks, edges=None, n_leaves=n_leaves)
    if source.chosen is not None:  # a block has the rows of one chunk of scores, in which there are others
        plan = plan.with_edges(source.chosen.edges(plan.rows_per_block))

    def flush(first: int, last: int) -> None:
        for writer in writers:
            _flush_chunks(writer, plan, first, last)

    digests = " ".join(f"{model_digest(writer.model)} {writer.source.dtype}" for writer in writers)
    record = next_pass(phase, plan, digests, before_saving=flush)
    start = record.begin(None)
    if start.next_leaf and not all(_are_whole(writer, plan, start.next_leaf) for writer in writers):
        start = record.restart(None)
    for writer in writers:
        if start.next_leaf:
            with writing(writer.path):  # zarr writes each chunk aside, under a name of its own
                for file in writer.path.rglob("*.partial"):
                    file.unlink()
            continue
        _remove_unfinished(writer.path)
        writer.create(plan.rows_per_block)
    client = active_client(source)
    require_writable_by_workers(client, writers[0].path)
    with one_blas_thread():
        _, count = drive(task, plan, record, start, lambda nothing, leaf: None, client=client, progress=progress)
    return count


def _remove_unfinished(path: Path) -> None:
    """Remove what a run wrote to `path` before it was killed; nothing where no run is recorded."""
    if log_in_use() is not None:
        shutil.rmtree(path, ignore_errors=True)


def require_writable_by_workers(client: DaskClient | None, directory: Path) -> None:
    """Raise `OutputError` if a machine of the workers of `client` cannot write to `directory`; without a client, do nothing.

    One worker of each machine is asked. Those that do not answer within seconds have other work, or are lost, which is found
    out later.
    """
    if client is None:
        return
    addresses = {info["host"]: address for address, info in workers_of(client).items()}.values()
    place = str(directory.absolute())
    asked = {one: client.submit(_why_not_writable, place, workers=[one], pure=False) for one in addresses}
    end = time.monotonic() + _ANSWER_SECONDS
    for address, future in asked.items():
        try:
            reason = future.result(timeout=max(0.1, end - time.monotonic()))
        except Exception:  # noqa: BLE001 no answer in time, or the worker was lost
            reason = None
        if reason is not None:
            raise OutputError(
                f"{directory}: the worker at {address} cannot write there: {reason}; expected a path on a file system that all "
                "machines of the cluster share: name one, or ask for no scores (output.scores: false)"
            )


def _why_not_writable(directory: str) -> str | None:
    """Return why this process cannot make a file in `directory`, None if it can."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error.strerror or type(error).__name__


def _are_whole(writer: Writer, plan: Plan, n_leaves: int) -> bool:
    """Tell whether the rows of the first leaves can all be read; every chunk has a checksum."""
    try:
        names = {*writer.by_row, *arrays_beside(writer.path)}
        arrays = {name: strict(zarr.open_array(writer.path / name, mode="r")) for name in names}
        by_row = [arrays.pop(name) for name in writer.by_row]
        for array in arrays.values():
            array[:]
        for index in range(n_leaves):
            for span in plan.leaf(index).spans:
                for array in by_row:
                    start, stop = writer.written(*span, int(array.chunks[0]))
                    array[start:stop]
    except Exception:  # noqa: BLE001 every codec has its own
        return False
    return True


def _flush_chunks(writer: Writer, plan: Plan, first: int, last: int) -> None:
    """Force the chunks of the arrays of leaves `first` to before `last` to the disk, before a ledger says that they are there."""
    path = writer.path
    start, stop = plan.leaf(first).edges[0], plan.leaf(last - 1).edges[-1]
    arrays = {path / name: zarr.open_array(path / name, mode="r") for name in writer.by_row}
    with writing(path):
        for place, array in arrays.items():
            rows, others = int(array.chunks[0]), "/0" * (array.ndim - 1)
            low, high = writer.written(start, stop, rows)
            for chunk in range(low // rows, -(-high // rows)):
                flush_one(place / f"c/{chunk}{others}")
        for beside in (path / name for name in arrays_beside(path) if path / name not in arrays):
            for file in (*beside.rglob("*"), beside):
                flush_one(file)
        for place in (*(array / name for array in arrays for name in ("zarr.json", "c", "")), path / "zarr.json", path):
            flush_one(place)
        flush_one(path.parent)


def _write_by_features(
    source: Source, model: PCAModel, plan: Plan, path: Path, progress: ProgressCallback | None
) -> ReadCount:
    """Write the scores that contributions of features add up to; conditional ones of samples with missing values where the model says so."""
    features, dtype = source.by_features(), model.score_dtype(source.dtype)
    record = next_pass("scores", plan, model_digest(model))
    start = record.begin(np.zeros((source.shape[0], values_per_sample(model))))
    task = FeatureBandTask(features, model, plan.rows_per_block, dtype)
    with one_blas_thread():
        scores, count = drive(task, plan, record, start, iadd, client=active_client(source), progress=progress)
    if model.conditional:
        scores, missed = np.ascontiguousarray(scores[:, : model.n_components]), scores[:, model.n_components :]
        fill_in_from(model, missed, scores)
        del missed, start  # views of what both were summed in
    lost = ~np.isfinite(scores).all(axis=1)
    over = np.abs(scores) > np.finfo(dtype).max
    if over.any() or (lost.any() and model.missing != "drop_rows"):
        raise NotFiniteError(
            f"scores of row {int(np.flatnonzero(lost | over.any(axis=1))[0])} overflow {dtype}: rescale the data first"
        )
    _remove_unfinished(path)
    _write_all(source, model, scores, path)
    return count


def write_known_scores(source: Source, model: PCAModel, scores: FloatArray, path: Path) -> None:
    """Write the scores that a solver has found without another reading, ``(n_samples, k)``, as `write_scores` does."""
    lost = ~np.isfinite(scores).all(axis=1)
    if lost.any():  # only rows of weight 0 were never looked at
        raise NotFiniteError(
            f"row {int(np.flatnonzero(lost)[0])}, of weight 0, holds NaN or infinity and has no scores: clean it, leave it out of the "
            "data, or ask for no scores"
        )
    _write_all(source, model, scores, path)


def _write_all(source: Source, model: PCAModel, scores: FloatArray, path: Path) -> None:
    rows = max(1, _CHUNK_BYTES // (8 * scores.shape[1]))
    array = create_scores(path, model, source, rows)
    scores = scores if source.chosen is None else source.chosen.spread(scores)
    for start in range(0, len(scores), rows):
        part = scores[start : start + rows]
        array[start : start + rows] = part / model.deviations if model.whiten else part


@dataclass(frozen=True)
class FeatureBandTask(Task[FloatArray]):
    """Compute the contributions of the features of a leaf to the scores of all samples."""

    common: ClassVar[str] = "model"
    """What is the same for all leaves."""
    source: Source
    """The data by features."""
    model: PCAModel
    """What samples are projected with."""
    columns: int
    """Features of a block."""
    dtype: DType
    """Data type of products and scores."""

    def init(self, leaf: Leaf) -> FloatArray:
        """Return zeros: scores of all samples, and what missing values take from them."""
        return np.zeros((self.source.shape[1], values_per_sample(self.model)))

    def update(self, state: FloatArray, block: Block) -> FloatArray:
        """Return `state` with the contributions of the features of `block` added."""
        k, width = self.model.n_components, slab_width(self.model, self.columns)
        scores, stored = state[:, :k], self.model.components
        start, end = block.start, block.start + len(block)
        for first in range(start // width * width, end, width):  # at the edges of stored slabs
            part = slice(max(start, first), min(end, first + width))
            rows = block.values[part.start - start : part.stop - start].T
            slab = stored.slab(part.start, part.stop) if isinstance(stored, StoredComponents) else stored[:, part]
            with np.errstate(over="ignore", invalid="ignore"):
                self.model.add_scores(part, slab, rows, self.dtype, scores)
            if self.model.conditional and rows.dtype.kind == "f":
                add_lost(np.isnan(rows), slab, state[:, k:])
            if not np.isfinite(scores).all():  # infinity has no meaning, and NaN unless the model says what it means
                refuse_not_finite(dense(rows), 0, part.start, missing=self.model.missing != "error")
        return state


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
                raise ParameterError(f"{found}, which no integer can represent: give a floating point dtype")
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
        raise NotAvailableError(f"{scores.description}: scores are sparse: expected dense ones")
    try:
        wanted = model.score_dtype(scores.dtype) if dtype is None else np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        wanted = np.dtype(object)
    if wanted.kind not in "iuf" or wanted.itemsize > 8:
        raise ParameterError(f"dtype={dtype!r}: expected integers, or floating point numbers of at most 64 bits")
    if clip and wanted.kind == "f":
        raise ParameterError(
            f"clip=True is for integers, but dtype is {wanted}: leave it out, or give an integer dtype"
        )
    if wanted.kind != "f" and model.labels is not None and model.labels.mask is not None:
        raise NotAvailableError(
            f"dtype={wanted.name!r}: features that the mask of the fit left out are NaN in its rows: give a floating point dtype"
        )
    removed, fitted = None, removed_by(model, given)
    if fitted is not None and regressors is not None:
        removed = regressors, fitted
    elif fitted is not None:
        known = scores.labels is not None and any(each.coordinate is not None for each in scores.labels.samples)
        labels, columns = (scores.labels, scores.sample_columns) if known else (None, None)
        step = max(1, _CHUNK_BYTES // (8 * scores.shape[1]))
        blocks = (
            scores.read(first, min(first + step, scores.shape[0]))[0] for first in range(0, scores.shape[0], step)
        )
        present = np.concatenate([~np.isnan(block).all(axis=1) for block in blocks])
        removed = rows_of_scores(fitted, given, present, labels, columns), fitted
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
        group.update_attributes({"format": "streampca-reconstruction", "version": 1, "source": self.model.source})
        samples = () if self.samples is None else self.samples.samples
        beside = write_coordinates(group, [*samples, *self._labels.features], self.by_row)
        group.update_attributes({ARRAYS_BESIDE_SCORES: [*self.by_row, *beside]})
        for name, variable in self.fields:
            shape, dims = (n, *variable.shape), (axis, *variable.dims)
            array = new_array(group, name, shape, (min(n, rows_per_chunk), *variable.shape), dtype, dims)
            array.update_attributes(dict(variable.attributes))
        with warnings.catch_warnings(action="ignore"):
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
