"""Approximate answers as the user of the command meets them: in text, as JSON, in plans, and while they run."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from stores import config_text, write_store

import streampca as sp

MODEL = "model: {n_components: 4, solver: sketch, sketch_size: 14, max_passes: 3, tolerance: 1e-4}"


@pytest.fixture
def slow(call, tmp_path):
    """Return a configuration of a store whose spectrum decays slowly."""
    rows = np.random.default_rng(3).standard_normal((4000, 50)) * np.arange(1, 51) ** -0.5
    write_store(tmp_path / "slow.zarr", rows, chain="zstd", chunks=(100, 50))
    path = tmp_path / "slow.yaml"
    path.write_text(config_text("slow.zarr", "runs/slow", MODEL, output="overwrite: true, report: false"))
    return path


@pytest.mark.slow
def test_the_result_says_how_sure_it_is(call, slow, tmp_path):
    called = call("run", slow, "--set", "model.tolerance=null", "--set", "output.report=true")
    assert called.status == 0
    lines = called.out.splitlines()
    assert lines[0].startswith("job: 4 components of 4,000 x 50 carry ")
    assert " to " in lines[0]
    assert lines[1].startswith("approximate: eigenvalues certified to within ")
    assert lines[1].endswith("after one pass and a sample of 400 rows")
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert any("set tolerance" in line and "sketch_size (it was 14)" in line for line in warnings)
    assert any("not separated" in line for line in warnings)
    manifest = json.loads((tmp_path / "runs/slow/manifest.json").read_text())
    assert manifest["passes"] == 1
    assert manifest["approximation"]["columns"] == 14
    assert manifest["approximation"]["pilot_rows"] == 400
    assert [f"warning: {warning}" for warning in manifest["warnings"]] == warnings
    page = (tmp_path / "runs/slow/report.html").read_text()
    assert "Accuracy of the approximation" in page


def test_an_exact_result_says_nothing_of_the_kind(call, job, tmp_path):
    called = call.quietly("run", job)
    assert "approximate" not in called.out
    assert json.loads((tmp_path / "runs/job/manifest.json").read_text())["approximation"] is None
    assert "accuracy" not in json.loads(call("inspect", "runs/job", "--json").out)


@pytest.mark.slow
def test_passes_are_told_apart_and_stop_at_the_tolerance(call, slow):
    called = call("run", slow, "--json", "--set", "output.scores=false")
    manifest = json.loads(called.out)
    reads = [line.partition(":")[0] for line in called.err.splitlines()]
    assert manifest["passes"] in (2, 3)
    assert reads == ["reading a sample", "reading", *(f"reading, pass {i + 2}" for i in range(manifest["passes"] - 1))]
    certificate = manifest["certificate"]
    assert certificate["n_passes"] == manifest["passes"]
    met = certificate["largest_relative_width"] <= 1e-4
    assert met != any("reading stopped after 3 passes" in warning for warning in manifest["warnings"])
    text = call.quietly("run", slow, "--set", "model.tolerance=0.3", "--set", "model.max_passes=9").out
    assert "(30% asked)" in text
    assert "reading stopped" not in text


def test_a_tolerance_of_0_reads_as_often_as_allowed(call, slow):
    options = ("--set", "model.tolerance=0", "--set", "output.scores=false")
    manifest = json.loads(call.quietly("run", slow, "--json", *options).out)
    assert manifest["passes"] == 3
    assert not any("reading stopped" in warning for warning in manifest["warnings"])
    assert "reads 3 times" in call("plan", slow, *options).out


def test_phases_of_python(slow, tmp_path):
    seen: list[Any] = []
    pca = sp.PCA(4, solver="adaptive", sketch_size=14, max_passes=2, tolerance=0, progress=seen.append)
    pca.fit(str(tmp_path / "slow.zarr"))
    phases = list(dict.fromkeys(progress.phase for progress in seen))
    assert phases == ["fit", "pass 2"]
    for phase in phases:
        last = [progress for progress in seen if progress.phase == phase][-1]
        assert last.rows == last.n_samples == 4000
    scaled = sp.PCA(4, solver="sketch", pilot=200, scale=True, progress=seen.append).fit(str(tmp_path / "slow.zarr"))
    pilot = [progress for progress in seen if progress.phase == "pilot"]
    assert pilot[-1].rows == pilot[-1].n_samples == scaled.plan_.sketch["pilot_rows"] == 200
    assert pilot[-1].bytes == scaled.plan_.sketch["pilot_bytes"]


def test_plans_name_the_approximate_solvers(call, slow, job):
    planned = json.loads(call("plan", job, "--json", "--set", "model.n_components=3").out)
    assert [other["solver"] for other in planned["alternatives"]] == ["gram", "qr", "adaptive", "sketch"]
    assert planned["sketch"] == {}
    text = call("plan", slow).out
    assert "at most 3 passes" in text
    assert "stops once every eigenvalue is certified to 0.0001" in text
    assert "before the first pass 400 rows" in text
    assert "\nor           adaptive (approximate): at most 3 passes, " in text
    assert "\nor           covariance: 1 pass, " in text


@pytest.mark.slow
def test_a_plan_is_wrapped_on_a_terminal_and_not_in_a_pipe(call, slow, monkeypatch):
    piped = call("plan", slow).out
    assert max(map(len, piped.splitlines())) > 120
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = call("plan", slow).out
    assert max(map(len, shown.splitlines())) <= 80
    keys = {"solver", "data", "reading", "work", "memory", "merging", "time", "note", "or"}
    assert all(line[:13].strip() in {*keys, ""} for line in shown.splitlines())
    ran = call.quietly("run", slow)
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.slow
def test_inspect_says_how_sure_an_approximate_answer_is(call, slow):
    assert call.quietly("run", slow).status == 0
    for path in ("runs/slow", "runs/slow/model.zarr"):
        found = json.loads(call("inspect", path, "--json").out)
        assert found["accuracy"].startswith("eigenvalues certified to within ")
        assert len(found["eigenvalue_intervals"]) == 4
        text = call("inspect", path).out
        assert "all of them hold together with a probability of at least 99.99%" in text
        assert "\naccuracy " in text
    assert json.loads(call("inspect", "runs/slow", "--json").out)["certificate"]["kind"] == "approximate"


@pytest.mark.slow
def test_missing_values_leave_no_certificate_and_that_is_said(call, tmp_path):
    rows = np.random.default_rng(3).standard_normal((800, 20)) * np.arange(1, 21) ** -1.0
    rows[::7, 3] = np.nan
    write_store(tmp_path / "holes.zarr", rows, chunks=(100, 20))
    text = config_text(
        "holes.zarr", "holes", "model: {n_components: 3, solver: sketch}", "preprocess: {missing: pairwise}"
    )
    (tmp_path / "holes.yaml").write_text(text)
    called = call.quietly("run", "holes.yaml")
    assert (called.status, called.err) == (0, "")
    assert "(as estimated) of the variance" in called.out
    assert "no bound of the error" in called.out
    assert call("report", "holes").status == 0
    assert call("inspect", "holes").status == 0


def test_check_knows_the_keys_of_sketches(call, slow):
    call("check", slow, "--set", "model.tolerance=-1").refused(2, "model.tolerance", "at least 0")
    call("check", slow, "--set", "model.max_passes=0").refused(2, "model.max_passes")
    call("check", slow, "--set", "model.pilot=some").refused(2, "model.pilot")
    assert call("check", slow, "--set", "model.pilot=0", "--set", "model.sketch=sparse_sign").status == 0


@pytest.mark.deep
def test_the_state_of_a_sketch_needs_room_for_its_columns_alone(call, tmp_path):
    """Four times the square of 1,000,000 features would be 16 TB, which no disk of a test has."""
    array = tmp_path / "wide.npy"
    np.lib.format.open_memmap(array, mode="w+", dtype="float32", shape=(8, 1_000_000)).flush()
    text = config_text(
        array,
        "out",
        "model: {n_components: 2, solver: sketch, sketch_size: 4, pilot: 0}",
        output="state: true, scores: false, report: false",
    )
    (tmp_path / "c.yaml").write_text(text)
    assert call.quietly("run", "c.yaml").status == 0
