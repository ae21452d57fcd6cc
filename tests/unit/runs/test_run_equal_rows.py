"""Runs whose scores are exactly zero in whole chunks: rows that are all the same, and chunks that were never written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from pages import failed_of

import streampca as sp


@pytest.mark.parametrize("quality", [True, False])
def test_run_on_rows_that_are_all_the_same_is_finished_and_verified(tmp_path: Path, quality: bool) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=np.ones((300, 5)), chunks=(100, 5))
    output = {"directory": str(tmp_path / "run"), "report": False}
    config = {"source": {"path": str(tmp_path / "x.zarr")}, "model": {"n_components": 1}, "quality": quality}
    sp.run({**config, "output": output})
    assert not zarr.open_array(tmp_path / "run/scores.zarr/scores", mode="r")[:].any()
    assert (tmp_path / "run/scores.zarr/scores/c/0/0").exists()
    assert not failed_of(tmp_path / "run")


def test_features_that_hardly_vary_are_verified_whatever_blocks_both_readings_have(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((40_000, 20)).astype("f4")
    rows[:, 1] = 1e8 + 8 * random.integers(-2, 3, len(rows))
    rows[:, 2] *= random.random(len(rows)) < 0.003
    zarr.create_array(str(tmp_path / "x.zarr"), data=rows, chunks=(700, 20))
    output = {"directory": str(tmp_path / "run"), "report": False}
    config = {"source": {"path": str(tmp_path / "x.zarr")}, "model": {"n_components": 2}, "resources": {"threads": 2}}
    run = sp.run({**config, "output": output})
    listed = run.manifest["quality"]["nearly_constant"]["features"]
    assert [entry["feature"] for entry in listed] == [1, 2]
    assert listed[0]["share"] is None
    assert listed[1]["share"] > 0.99
    assert not failed_of(tmp_path / "run", "resources.threads=1")
