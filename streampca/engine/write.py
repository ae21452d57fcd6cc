"""Scores of every row, streamed to a zarr store: one writer for each chunk, checksums in every chunk."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from streampca.accumulators.centring import refuse_not_finite
from streampca.accumulators.missing import left_out
from streampca.accumulators.sparse import refuse_stored
from streampca.engine.execute import Meter, OnBlock, ProgressCallback, active_client, execute, one_blas_thread
from streampca.engine.fold import LeafResult, StoppedError, read_ahead
from streampca.engine.output import require_room
from streampca.engine.plan import Leaf, Plan
from streampca.engine.scores_by_features import scores_by_features
from streampca.errors import NotFiniteError
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.sources.base import ReadCount, Source
from streampca.workspace import borrow

_CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class ScoreTask:
    """Transform the blocks of a leaf and write each as one chunk."""

    source: Source
    """Where the rows come from."""
    model: PCAModel | KernelModel
    """What they are transformed by."""
    path: Path
    """The zarr group."""

    def for_leaf(self, leaf: Leaf) -> ScoreTask:
        """Return the task with no more of the source than `leaf` needs."""
        return replace(self, source=self.source.part(leaf.edges[0], leaf.edges[-1]))

    def __call__(self, leaf: Leaf, stop: threading.Event | None = None, on_block: OnBlock | None = None) -> LeafResult:
        """Transform and write."""
        array = zarr.open_array(self.path / "scores", mode="r+")
        total = ReadCount()
        for block, count in read_ahead(self.source, leaf):
            n_rows, k = len(block), self.model.n_components
            out = borrow("scores", (n_rows, k), self.model.score_dtype(self.source.dtype))
            with np.errstate(over="ignore", invalid="ignore"):
                scores = self.model.transform(block.values, out)
            if not np.isfinite(scores).all() and not left_out(self.model.missing, block, scores):
                (refuse_stored if self.source.sparse else refuse_not_finite)(block.values, block.start)
                raise NotFiniteError(
                    f"scores of rows {block.start} to {block.start + n_rows - 1} overflow {scores.dtype}: rescale the data first"
                )
            array[block.start : block.start + n_rows] = scores
            total += count
            if on_block is not None:
                on_block(block, count)
            if stop is not None and stop.is_set():
                raise StoppedError
        return LeafResult(None, total)


def write_scores(
    source: Source, model: PCAModel | KernelModel, plan: Plan, path: Path, *, progress: ProgressCallback | None = None
) -> ReadCount:
    """Read `source` once more and write its scores to the array ``scores`` of a new zarr group at `path`.

    The array has shape ``(n_samples, k)``, float32 for float32 input and float64 else; a chunk holds the rows of one
    block, so every chunk has one writer. The caller commits the directory (`output.Aside`).

    Raises
    ------
    NoSpaceError
        If the file system has less room than the scores take and 5 %.
    DataError
        If chunks of the source are missing or damaged.
    """
    source.check()
    if plan.axis == "features" and isinstance(model, PCAModel):
        return _write_by_features(source, model, plan, path, progress)
    _create(path, model, source, plan.rows_per_block)
    count = ReadCount()
    results = execute(
        ScoreTask(source, model, path), plan, Meter("scores", plan.n_samples, progress), active_client(source)
    )
    with (
        one_blas_thread(),
        closing(results),
    ):  # closed, so that no thread writes when the caller cleans up after an error
        for result in results:
            count += result.count
    return count


def _write_by_features(
    source: Source, model: PCAModel, plan: Plan, path: Path, progress: ProgressCallback | None
) -> ReadCount:
    scores, count = scores_by_features(source, model, plan, progress)
    dtype = model.score_dtype(source.dtype)
    lost = ~np.isfinite(scores).all(axis=1)
    over = np.abs(scores) > np.finfo(dtype).max
    if over.any() or (lost.any() and model.missing != "drop_rows"):
        raise NotFiniteError(
            f"scores of row {int(np.flatnonzero(lost | over.any(axis=1))[0])} overflow {dtype}: rescale the data first"
        )
    rows = max(1, _CHUNK_BYTES // (8 * scores.shape[1]))
    array = _create(path, model, source, rows)
    for start in range(0, len(scores), rows):
        part = scores[start : start + rows]
        array[start : start + rows] = part / model.deviations if model.whiten else part
    return count


def write_known_scores(source: Source, model: PCAModel, scores: NDArray[np.float64], path: Path) -> None:
    """Write the scores that a solver has found without another reading, ``(n_samples, k)``, as `write_scores` does."""
    rows = max(1, _CHUNK_BYTES // (8 * scores.shape[1]))
    array = _create(path, model, source, rows)
    for start in range(0, len(scores), rows):
        part = scores[start : start + rows]
        bad = ~np.isfinite(part).all(axis=1)
        if bad.any():  # only rows of weight 0 were never looked at
            raise NotFiniteError(
                f"row {start + int(np.flatnonzero(bad)[0])}, of weight 0, holds NaN or infinity and has no scores: clean it, leave it "
                "out of the data, or ask for no scores"
            )
        array[start : start + rows] = part / model.deviations if model.whiten else part


def _create(path: Path, model: PCAModel | KernelModel, source: Source, rows_per_chunk: int) -> zarr.Array[Any]:
    n, k, dtype = source.shape[0], model.n_components, model.score_dtype(source.dtype)
    require_room(path, n * k * dtype.itemsize)
    group = zarr.open_group(path, mode="a", zarr_format=3)
    group.attrs.update({"format": "streampca-scores", "version": 1, "source": model.source})
    array: zarr.Array[Any] = group.create_array(
        "scores",
        shape=(n, k),
        chunks=(min(n, rows_per_chunk), k),
        dtype=dtype,
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
        dimension_names=("sample", "component"),
        config={"write_empty_chunks": True},
    )
    array.attrs.update(model.score_attributes)
    return array
