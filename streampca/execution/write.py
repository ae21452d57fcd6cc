"""Scores of every row, streamed to a zarr store: one writer for each chunk, checksums in every chunk."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import iadd
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import zarr

from streampca.accumulators.centring import refuse_not_finite
from streampca.block import Block, dense
from streampca.errors import NotFiniteError, OutputError
from streampca.execution.checkpoint.progress_log import log_in_use, model_digest
from streampca.execution.checkpoint.resume import next_pass
from streampca.execution.distributed.active_client import active_client
from streampca.execution.drive import drive
from streampca.execution.leaf import Task
from streampca.execution.progress import ProgressCallback
from streampca.execution.score_task import ScoreTask, ScoreTasks, Writer, create_scores
from streampca.models.conditional import add_lost, fill_in_from
from streampca.models.pca import Model, PCAModel
from streampca.models.rows import residuals_step
from streampca.models.stored import StoredComponents
from streampca.planning.plan import Plan
from streampca.planning.scores import slab_width, values_per_sample
from streampca.planning.shape import Leaf
from streampca.planning.work import workers_of
from streampca.sources.base import ReadCount, Source
from streampca.sources.naming import naming_places
from streampca.sources.subsets import part_of
from streampca.sources.zarr.strictness import strict
from streampca.storage.directories import arrays_beside
from streampca.storage.files import flush_one, writing
from streampca.system.process import one_blas_thread
from streampca.typing import DType, FloatArray

if TYPE_CHECKING:
    from streampca.typing import DaskClient


_CHUNK_BYTES = 8 * 2**20
_ANSWER_SECONDS = 10  # for workers to say whether they can write to the output
_LEAF_BLOCKS, _LEAVES = 4, 160
"""Blocks of a leaf at least, and leaves that scores are written in where there are enough blocks: 20 for each of 8 threads."""


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
        For models that have some of the features, these features of `source` (`streampca.sources.subsets`).
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
                f"{directory}: the worker at {address} cannot write there: {reason}; expected a place on a file system that all "
                "machines of the cluster see under the same path: name one, or ask for no scores (output.scores: false)"
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
            for start, stop in plan.leaf(index).spans:
                for array in by_row:
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
            for chunk in range(start // rows, -(-stop // rows)):
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
