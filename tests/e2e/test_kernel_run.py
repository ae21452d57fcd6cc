"""Runs of kernel PCA: what the directory holds, what the commands make of it, reads and memory as promised."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from stores import Command
from test_memory import assert_kept, make_store, measure

import streampca as sp
from streampca.errors import ConfigError, NotAvailableError, ParameterError, PlanError

CONFIG = """\
source: {path: "builtin:digits"}
model:
  kind: kernel_pca
  method: nystrom
  n_components: 6
  n_landmarks: 80
  kernel: [{name: rbf, gamma: 1.0e-3}, {name: poly, degree: 2, gamma: 1.0e-4, weight: 0.5}]
  fit_inverse_transform: true
resources: {memory: 4GiB}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.yaml"
    path.write_text(CONFIG + f"output: {{directory: {tmp_path / 'out'}}}\n")
    return path


@pytest.mark.slow
def test_the_directory_holds_a_kernel_run(config: Path, tmp_path: Path, capsys: Any) -> None:
    finished = sp.run(config)
    names = {"config.yaml", "manifest.json", "model.zarr", "plan.json", "report.html", "samples.zarr", "scores.zarr"}
    assert {path.name for path in finished.directory.iterdir()} == {*names, "streampca.json"}
    model: Any = finished.model
    assert isinstance(model, sp.KernelPCA)
    assert model.kernel_.to_dict() == finished.manifest["result"]["kernel"]
    assert [term["name"] for term in model.kernel_.to_dict()["terms"]] == ["rbf", "scaled"]
    np.testing.assert_allclose(finished.manifest["result"]["eigenvalues"], model.eigenvalues_)
    assert finished.manifest["passes"] == 2
    assert finished.manifest["memory"]["peak_bytes"] > 0
    assert finished.manifest["certificate"]["kind"] == "statistical"
    assert json.loads((finished.directory / "plan.json").read_text())["sampling"] == "rpcholesky"
    scores: Any = zarr.open_group(finished.directory / "scores.zarr", mode="r")["scores"]
    np.testing.assert_allclose(scores[:], np.asarray(model.transform("builtin:digits")), atol=1e-10)
    back = model.inverse_transform(scores[:5])
    assert back.shape == (5, 64)
    assert not list(tmp_path.glob("*.part-*"))
    page = (finished.directory / "report.html").read_text()
    for said in ("Kernel principal component analysis", "The landmarks", "rpcholesky", "80"):
        assert said in page
    assert page.count("Landmark: row") >= 40  # digits are pictures, and so are their landmarks
    command = Command(capsys)
    told = command("inspect", finished.directory / "model.zarr")
    assert told.status == 0
    assert re.search(r"kind\s+kernel model", told.out)
    assert command("inspect", finished.directory).status == 0
    done = command("transform", finished.directory, "builtin:digits", tmp_path / "again.zarr", "--quiet")
    assert done.status == 0
    again: Any = zarr.open_group(tmp_path / "again.zarr", mode="r")["scores"]
    np.testing.assert_allclose(again[:], scores[:], atol=1e-12)
    before = (finished.directory / "report.html").read_bytes()
    assert command("report", finished.directory).status == 0
    assert (finished.directory / "report.html").read_bytes() == before


def test_a_run_equals_the_estimator(config: Path) -> None:
    overrides = ["model.kernel=tanh", "model.gamma=1e-4", "model.n_components=3", "output.report=false", "seed=4"]
    finished: Any = sp.run(config, overrides=overrides)
    rows = sp.sources.open_source("builtin:digits").read(0, 1797)[0]
    expected = sp.KernelPCA(3, kernel="tanh", gamma=1e-4, method="nystrom", n_landmarks=80, random_state=4).fit(rows)
    np.testing.assert_allclose(finished.model.eigenvalues_, expected.eigenvalues_, rtol=1e-12)
    np.testing.assert_array_equal(finished.model.landmark_indices_, expected.landmark_indices_)
    assert any("not positive semi-definite" in warning for warning in finished.manifest["warnings"])


@pytest.mark.deep(keep=1)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "nystrom_extension", "empirical_map"])
def test_every_method_runs(config: Path, method: str) -> None:
    finished: Any = sp.run(config, overrides=[f"model.method={method}", "model.sketch_size=40"])
    assert finished.model.method_ == method
    scores: Any = zarr.open_group(finished.directory / "scores.zarr", mode="r")["scores"]
    assert scores.shape == (1797, 6)


@pytest.mark.deep
def test_a_run_whose_rows_are_on_disk(tmp_path: Path, capsys: Any) -> None:
    path = make_store(tmp_path / "x.zarr", (4000, 1500), "float32", 500, kinds=3)
    lines = [
        "name: disk",
        f"source: {{path: {path}}}",
        "model: {kind: kernel_pca, n_components: 3, method: empirical_map, sketch_size: 20, kernel: {name: rbf, gamma: 1.0e-5}}",
        f"output: {{directory: {tmp_path / 'run'}, report: false}}",
        "resources: {threads: 2}",
    ]
    (tmp_path / "disk.yaml").write_text("\n".join(lines))
    whole: Any = sp.run(tmp_path / "disk.yaml")
    assert not whole.model.plan_.rows_on_disk
    plan = whole.model.plan_
    memory = (
        sp.PCA(2).plan(np.zeros((9, 3))).budget.bytes_for("process")
        + plan.projected_bytes
        - plan.memory["process"]
        - 25 * 2**20
    )
    narrow = [f"resources.memory={memory}", f"output.directory={tmp_path / 'narrow'}"]
    command = Command(capsys)
    planned = command("plan", tmp_path / "disk.yaml", *(part for each in narrow for part in ("--set", each)))
    assert "rows: copied to a temporary directory, 23 MiB" in planned.out
    finished: Any = sp.run(tmp_path / "disk.yaml", overrides=narrow)
    assert finished.model.plan_.rows_on_disk
    np.testing.assert_array_equal(finished.model.eigenvalues_, whole.model.eigenvalues_)
    scores = [np.asarray(zarr.open_array(each.directory / "scores.zarr/scores")[:]) for each in (finished, whole)]
    # Products of float32 kernel values are added by bands, or at once.
    allowed = float(np.finfo(np.float32).eps) * 4000**0.5 * np.abs(scores[1]).max()
    np.testing.assert_allclose(*scores, rtol=0, atol=allowed)
    loaded = sp.load(finished.directory / "model.zarr")
    np.testing.assert_allclose(loaded.transform(path)[:9], scores[0][:9], rtol=0, atol=allowed)
    assert command("verify", finished.directory, "--set", "resources.memory=2GiB").status == 0


def test_a_plan_and_its_refusal(config: Path, capsys: Any) -> None:
    command = Command(capsys)
    told = command("plan", config)
    assert told.status == 0
    assert "nystrom" in told.out
    assert "landmarks    80, rpcholesky" in told.out
    refused = command("run", config, "--set", "model.method=exact", "--set", "resources.memory=64MiB", "--quiet")
    assert refused.status == 7
    assert "1,797 x 1,797 kernel matrix takes" in refused.err
    with pytest.raises(PlanError):
        sp.run(config, overrides=["model.method=exact", "resources.memory=64MiB"])


def test_what_kernel_runs_do_not_take(config: Path) -> None:
    with pytest.raises(ParameterError, match="scale='block' is for PCA only"):
        sp.run(config, overrides=["preprocess.scale=block"])
    with pytest.raises(NotAvailableError, match="kernel_pca"):
        sp.run(config, overrides=["preprocess.missing=mean"])
    with pytest.raises(ConfigError, match="keeps no state"):
        sp.run(config, overrides=["output.state=true"])


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize(
    ("shape", "dtype", "chunk", "parameters"),
    [
        ((300_000, 16), "float32", 30_000, {"n_landmarks": 300, "gamma": 1e-3}),
        ((120_000, 40), "uint8", 8000, {"n_landmarks": 200, "kernel": "poly", "degree": 2, "gamma": 1e-5}),
        ((3000, 30), "float32", 1000, {"method": "exact", "gamma": 1e-3}),
        ((6000, 30), "float64", 1000, {"method": "empirical_map", "gamma": 1e-3, "sketch_size": 100}),
    ],
)
def test_memory_stays_below_the_projection(
    tmp_path: Path, shape: tuple[int, int], dtype: str, chunk: int, parameters: dict[str, Any]
) -> None:
    path = make_store(tmp_path / "x.zarr", shape, dtype, chunk, kinds=3)
    result = measure({"do": "kernel", "path": str(path), "k": 10, "memory": "1GiB", "parameters": parameters})
    assert_kept(f"kernel {parameters}", result)
    assert result["passes"] == (1 if "method" in parameters else 2)


@pytest.mark.deep
def test_memory_stays_below_the_projection_where_rows_are_on_disk(tmp_path: Path) -> None:
    path = make_store(tmp_path / "x.zarr", (6000, 1200), "float32", 1000, kinds=3)
    parameters = {"method": "empirical_map", "gamma": 1e-4, "sketch_size": 40}
    job = {"do": "kernel", "path": str(path), "k": 5, "memory": "least", "parameters": parameters}
    result = measure(job | {"out": str(tmp_path / "scores")})
    assert result["on_disk"]
    assert_kept("kernel, rows on disk", result)


def test_the_source_is_read_twice(tmp_path: Path) -> None:
    path = make_store(tmp_path / "x.zarr", (20_000, 8), "float32", 1000, kinds=4)
    fitted = sp.KernelPCA(3, method="nystrom", n_landmarks=50, gamma=1e-3).fit(path)
    assert fitted.bytes_read_ == 2 * 20_000 * 8 * 4
    assert fitted.plan_.bytes_to_read == fitted.bytes_read_
