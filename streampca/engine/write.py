"""Scores of every row, streamed to a zarr store: one writer for each chunk, checksums in every chunk."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from streampca.accumulators.centring import refuse_not_finite
from streampca.engine.execute import Meter, OnBlock, ProgressCallback, active_client, execute, one_blas_thread
from streampca.engine.fold import LeafResult, StoppedError, read_ahead
from streampca.engine.output import require_room
from streampca.engine.plan import Leaf, Plan
from streampca.errors import NotFiniteError
from streampca.models.pca import PCAModel
from streampca.sources.base import ReadCount, Source
from streampca.workspace import borrow


@dataclass(frozen=True)
class ScoreTask:
    """Transform the blocks of a leaf and write each as one chunk."""

    source: Source
    """Where the rows come from."""
    model: PCAModel
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
            n_rows, k = len(block), len(self.model.components)
            out = borrow("scores", (n_rows, k), self.model.score_dtype(self.source.dtype))
            with np.errstate(over="ignore", invalid="ignore"):
                scores = self.model.transform(block.values, out)
            if not np.isfinite(scores).all():
                refuse_not_finite(block.values, block.start)
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
    source: Source, model: PCAModel, plan: Plan, path: Path, *, progress: ProgressCallback | None = None
) -> ReadCount:
    """Read `source` once more and write its scores to the array ``scores`` of a new zarr group at `path`.

    The array has shape ``(n_samples, k)``, float32 for float32 input and float64 else; a chunk holds the rows of one
    block, so every chunk has one writer. The caller commits the directory (`output.Aside`).
    """
    k = len(model.components)
    dtype = model.score_dtype(source.dtype)
    require_room(path, plan.n_samples * k * dtype.itemsize)
    source.check()
    group = zarr.open_group(path, mode="a", zarr_format=3)
    group.attrs.update({"format": "streampca-scores", "version": 1, "source": model.source})
    array: zarr.Array[Any] = group.create_array(
        "scores",
        shape=(plan.n_samples, k),
        chunks=(plan.rows_per_block, k),
        dtype=dtype,
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
        dimension_names=("sample", "component"),
        config={"write_empty_chunks": True},
    )
    array.attrs["explained_variance"] = np.asarray(model.explained_variance).tolist()
    count = ReadCount()
    with one_blas_thread():
        for result in execute(
            ScoreTask(source, model, path), plan, Meter("scores", plan.n_samples, progress), active_client(source)
        ):
            count += result.count
    return count
