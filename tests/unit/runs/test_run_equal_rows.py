"""Runs whose scores are exactly zero in whole chunks: rows that are all the same, and chunks that were never written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from streampca.models.stored_components import StoredComponents
from streampca.runs.config import parse_config
from streampca.runs.many import run as carry_out
from streampca.runs.verify import verify_run


@pytest.mark.parametrize("quality", ["true", "false"])
def test_run_on_rows_that_are_all_the_same_is_finished_and_verified(tmp_path: Path, quality: str) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=np.ones((300, 5)), chunks=(100, 5))
    text = f"source: {{path: {tmp_path / 'x.zarr'}}}\nmodel: {{n_components: 1}}\nquality: {quality}\n"
    carry_out(parse_config(f"{text}output: {{directory: {tmp_path / 'run'}, report: false}}", name="run.yaml"))
    assert not zarr.open_array(tmp_path / "run/scores.zarr/scores", mode="r")[:].any()
    assert (tmp_path / "run/scores.zarr/scores/c/0/0").exists()
    assert not [check for check in verify_run(tmp_path / "run").checks if check.holds is False]


def test_features_that_hardly_vary_are_verified_whatever_blocks_both_readings_have(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((40_000, 20)).astype("f4")
    rows[:, 1] = 1e8 + 8 * random.integers(-2, 3, len(rows))
    rows[:, 2] *= random.random(len(rows)) < 0.003
    zarr.create_array(str(tmp_path / "x.zarr"), data=rows, chunks=(700, 20))
    text = f"source: {{path: {tmp_path / 'x.zarr'}}}\nmodel: {{n_components: 2}}\nresources: {{threads: 2}}\n"
    run = carry_out(parse_config(f"{text}output: {{directory: {tmp_path / 'run'}, report: false}}", name="run.yaml"))
    listed = run.manifest["quality"]["nearly_constant"]["features"]
    assert [entry["feature"] for entry in listed] == [1, 2]
    assert listed[0]["share"] is None
    assert listed[1]["share"] > 0.99
    checks = verify_run(tmp_path / "run", overrides=["resources.threads=1"]).checks
    assert not [check for check in checks if check.holds is False]


def test_components_on_disk_that_are_zero_are_written(tmp_path: Path) -> None:
    components = StoredComponents.create(tmp_path / "components", (2, 6), 3)
    components.write(0, np.zeros((2, 3)))
    components.write(3, np.ones((2, 3)))
    np.testing.assert_array_equal(components.slab(0, 6), np.repeat([[0.0, 1.0]], 3, axis=1).repeat(2, axis=0))
