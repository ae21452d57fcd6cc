"""`source.labels`: classes of samples, which colour the score plots of a report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pages import written
from stores import Command

import streampca as sp

N = 60
KINDS = np.array(["setosa", "virginica", "vérsicolor"])[np.arange(N) % 3]


def write_table(directory: Path) -> Path:
    """Write a group with the table `x(time, band)`, times, and classes of several types; return a configuration."""
    group = zarr.open_group(directory / "x.zarr", mode="w")
    rows = np.random.default_rng(0).standard_normal((N, 8))
    group.create_array("x", data=rows, chunks=(20, 8), dimension_names=("time", "band"))
    times = group.create_array("time", data=np.arange(N) * 31, dimension_names=("time",))
    times.attrs["units"] = "days since 1990-01-01"
    for name, values in {"code": np.arange(N) % 4, "whole": np.arange(N) % 2.0, "real": np.linspace(0, 1, N)}.items():
        group.create_array(name, data=values, dimension_names=("time",))
    group.create_array("square", data=np.zeros((3, 3)), dimension_names=("a", "b"))
    text: Any = group.create_array("species", shape=(N,), chunks=(N,), dtype=str, dimension_names=("time",))
    text[:] = KINDS.astype(object)
    np.save(directory / "kinds.npy", KINDS)
    np.save(directory / "short.npy", KINDS[:-1])
    (directory / "c.yaml").write_text(
        f"name: x\nsource: {{path: {directory / 'x.zarr'}, array: x, samples: time}}\nmodel: {{n_components: 2}}\n"
        f"output: {{directory: {directory / 'run'}}}\n"
    )
    return directory / "c.yaml"


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("{}/kinds.npy", KINDS),
        ("species", KINDS),
        ("code", (np.arange(N) % 4).astype(str)),
        ("whole", (np.arange(N) % 2).astype(str)),
        ("time.year", np.datetime_as_string(np.datetime64("1990-01-01") + np.arange(N) * 31, "Y")),
    ],
)
@pytest.mark.usefixtures("charts")
def test_classes_that_the_configuration_names_colour_the_score_plots(
    tmp_path: Path, labels: str, expected: Any
) -> None:
    config = write_table(tmp_path)
    run = sp.run(config, overrides=[f"source.labels={labels.format(tmp_path)}"])
    html = (run.directory / "report.html").read_text()
    assert "coloured by class" in html
    assert all(str(name) in html for name in np.unique(expected)[:8])
    if labels == "species":
        assert written(run.directory) == html


@pytest.mark.slow
def test_kernel_models_have_coloured_plots_too_and_a_run_can_be_replaced(tmp_path: Path) -> None:
    config = write_table(tmp_path)
    sp.run(config, overrides=["source.labels=species", "output.report=false"])
    run = sp.run(
        config,
        overrides=["source.labels=species", "output.overwrite=true", "model.kind=kernel_pca", "model.kernel=rbf"],
    )
    assert "virginica" in (run.directory / "report.html").read_text()


@pytest.mark.parametrize(
    ("labels", "status", "words"),
    [
        ("{}/short.npy", 5, ("short.npy has shape (59,)", "each of the 60 samples")),
        ("{}/gone.npy", 5, ("gone.npy cannot be read: No such file",)),
        ("speces", 5, ("speces is neither a path that ends in .npy", "sample coordinates and columns: time")),
        ("square", 5, ("square has shape (3, 3)",)),
        ("real", 5, ("real holds values of the type float64: expected text or whole numbers",)),
        ("time", 5, ("datetime64", "such as time.month")),
        ("time.moon", 2, ("time. followed by one of month, season, year",)),
        ("''", 2, ("source.labels",)),
    ],
)
def test_what_names_no_classes_is_one_line_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], labels: str, status: int, words: tuple[str, ...]
) -> None:
    config = write_table(tmp_path)
    for command in ("run", "plan"):
        called = Command(capsys)(command, config, "--set", f"source.labels={labels.format(tmp_path)}")
        called.refused(status, "source.labels", *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_damaged_classes_leave_the_points_without_colours(tmp_path: Path) -> None:
    run = sp.run(write_table(tmp_path), overrides=["source.labels=species"])
    group: Any = zarr.open_group(run.directory / "samples.zarr", mode="r+")
    group["classes_ends"][:] = group["classes_ends"][:][::-1]
    assert "coloured by class" not in written(run.directory)


def test_a_saved_model_that_removes_something_can_be_replaced(tmp_path: Path) -> None:
    rows, groups = np.random.default_rng(1).standard_normal((40, 5)), np.arange(40) % 4
    pca = sp.PCA(2, remove={"groups": groups, "trend": 1}).fit(rows)
    sp.PCA(1).fit(rows).save(tmp_path / "m")
    pca.save(tmp_path / "m", overwrite=True)
    pca.save(tmp_path / "m", overwrite=True)
    np.testing.assert_array_equal(sp.load(tmp_path / "m").components_, pca.components_)


@pytest.mark.slow
@pytest.mark.deep(keep=["pairwise-covariance", "mean-gram"])
@pytest.mark.parametrize(("missing", "solver"), [("mean", "covariance"), ("pairwise", "covariance"), ("mean", "gram")])
def test_rows_of_which_some_values_are_missing_are_drawn_in_the_colours_of_their_classes(
    tmp_path: Path, missing: str, solver: str
) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((N, 400)) + 4 * rng.standard_normal((3, 400))[np.arange(N) % 3]
    holes = rng.random(rows.shape) < 0.01  # hardly a row is complete
    np.save(tmp_path / "x.npy", np.where(holes, np.nan, rows))
    np.save(tmp_path / "kinds.npy", KINDS)
    (tmp_path / "c.yaml").write_text(
        f"source: {{path: {tmp_path}/x.npy, labels: {tmp_path}/kinds.npy}}\npreprocess: {{missing: {missing}}}\n"
        f"model: {{n_components: 2, solver: {solver}}}\noutput: {{directory: {tmp_path}/run}}\n"
    )
    run = sp.run(tmp_path / "c.yaml")
    html = (run.directory / "report.html").read_text()
    assert all(f"{name} at " in html for name in np.unique(KINDS))
    stored = np.asarray(zarr.open_group(run.directory / "scores.zarr", mode="r")["scores"])[:, 0]
    said = re.findall(r"Scores on component 1 range from (\S+) to (\S+),", html)
    ends = [float(end.replace("−", "-")) for end in said[0]]
    np.testing.assert_allclose(ends, [stored.min(), stored.max()], rtol=0.1)  # a hundredth of the values is missing
