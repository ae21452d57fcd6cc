"""Scores written block by block: a chunk has one writer, and none for a run that has ended."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import facade
import numpy as np
import pytest
import zarr

import streampca as sp
from streampca.errors import OutputError

ROWS = np.random.default_rng(0).standard_normal((10_000, 4))


def test_no_chunk_of_scores_has_two_writers_where_chunks_of_the_rows_differ_in_size(
    tmp_path: Path, blocks_of: Any
) -> None:
    blocks_of(300)
    uneven = da.from_array(ROWS, chunks=((2500, 2500, 2000, 3000), (4,)))
    pca = sp.PCA(2, solver="covariance").fit(uneven)
    for attempt in range(3):
        written: Any = zarr.open_group(pca.transform_to(uneven, tmp_path / f"{attempt}.zarr"), mode="r")
        np.testing.assert_allclose(written["scores"][:], ROWS @ pca.components_.T - pca.mean_ @ pca.components_.T)


def test_no_chunk_of_the_scores_of_a_run_has_two_writers_where_files_differ_in_length(
    tmp_path: Path, blocks_of: Any
) -> None:
    blocks_of(300)
    (tmp_path / "rows").mkdir()
    for i, part in enumerate(np.split(ROWS, np.cumsum([2510, 1470, 2020]))):
        np.save(tmp_path / "rows" / f"{i}.npy", part)
    run = sp.run(
        {
            "source": {"path": str(tmp_path / "rows")},
            "model": {"n_components": 2, "solver": "covariance"},
            "resources": {"threads": 4},
            "output": {"directory": str(tmp_path / "run"), "report": False},
        }
    )
    written: Any = zarr.open_array(run.directory / "scores.zarr/scores", mode="r")[:]
    np.testing.assert_allclose(written, (ROWS - run.model.mean_) @ run.model.components_.T, atol=1e-10)
    model = run.model
    for attempt in range(5):
        model.transform_to(tmp_path / "rows", tmp_path / f"{attempt}.zarr")
        scores: Any = zarr.open_group(tmp_path / f"{attempt}.zarr", mode="r")["scores"]
        np.testing.assert_allclose(scores[:], written, atol=1e-10)


class Ending(facade.Source):
    """Rows whose second half is read when the directory of the scores has been removed."""

    description = fingerprint = "ending"
    grid = facade.Grid(256, chunk_bytes=256 * 4 * 8)

    def __init__(self, place: Path):
        self.place, self.shape, self.dtype = place, ROWS.shape, ROWS.dtype

    def read(self, start: int, stop: int, out: Any = None) -> tuple[Any, facade.ReadCount]:
        if stop > 5000:
            for path in self.place.iterdir():
                shutil.rmtree(path, ignore_errors=True)
        return ROWS[start:stop], facade.ReadCount()


def test_scores_are_not_written_for_a_run_that_has_ended(tmp_path: Path, blocks_of: Any) -> None:
    """A worker may be at it for a while after the driver has cleaned up; it must not make the directory again."""
    blocks_of(256)
    pca = sp.PCA(2).fit(ROWS)
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError, match="is gone"):
        pca.transform_to(Ending(tmp_path / "out"), tmp_path / "out" / "scores.zarr")
    assert list((tmp_path / "out").iterdir()) == []
