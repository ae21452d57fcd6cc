"""A run with `preprocess.remove`: scores and rows of a report are those of explicit residuals, and the run verifies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from facade import verify_run

import streampca as sp
from streampca.errors import ConfigError

pytestmark = pytest.mark.numerical

CONFIG = """
version: 1
source: {{path: {place}/field.zarr, array: field, samples: [time]}}
preprocess: {{remove: {{groups: time.month, trend: 1, covariates: {place}/z.npy}}}}
model: {{solver: {solver}, n_components: 3}}
output: {{directory: {place}/run, report: false}}
"""


@pytest.mark.parametrize("solver", ["covariance", "gram"])
def test_a_run_writes_the_scores_of_residuals_and_verifies(solver: str, tmp_path: Path) -> None:
    rng, days = np.random.default_rng(0), np.arange(400) * 2
    months = (np.datetime64("2000-01-01") + days).astype("M8[M]").astype(int) % 12
    covariates = rng.standard_normal((400, 2))
    values = rng.standard_normal((400, 5, 4)) + 30.0 * months[:, None, None] + covariates[:, :1, None]
    group = zarr.open_group(tmp_path / "field.zarr", mode="w")
    field = group.create_array(
        "field", shape=values.shape, chunks=(50, 5, 2), dtype="f8", dimension_names=("time", "y", "x")
    )
    field[:] = values
    time = group.create_array("time", shape=(400,), dtype="i8", dimension_names=("time",))
    time[:] = days
    time.attrs["units"] = "days since 2000-01-01"
    np.save(tmp_path / "z.npy", covariates)
    (tmp_path / "c.yaml").write_text(CONFIG.format(place=tmp_path, solver=solver))
    sp.run(tmp_path / "c.yaml")
    design = np.c_[np.eye(12)[months], days / 800, covariates]
    rows = values.reshape(400, 20)
    residuals = rows - design @ np.linalg.lstsq(design, rows, rcond=None)[0]
    pca = sp.load(tmp_path / "run")
    scores = zarr.open_group(tmp_path / "run/scores.zarr", mode="r")["scores"][:]
    assert np.abs(scores - residuals @ pca.components_.T).max() <= 1e-10
    values_of = np.linalg.eigvalsh(residuals.T @ residuals / 399)[::-1]
    assert np.abs(pca.explained_variance_ / values_of[:3] - 1).max() <= 1e-10
    assert verify_run(tmp_path / "run").failed == []


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        ("{}", "names nothing"),
        ("{trend: 0}", "a whole number from 1 to 20"),
        ("{group: time.month}", "groups"),
        ("time.month", "preprocess.remove"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(remove: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"version: 1\nsource: {{path: x.zarr}}\npreprocess: {{remove: {remove}}}\n")
    with pytest.raises(ConfigError, match=message) as caught:
        sp.run(path)
    assert "\n" not in str(caught.value)
