"""Data quality in runs: planted faults found, the same figures from every way of reading, verification, the report."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from pages import checks_of, failed_of

import streampca as sp

pytestmark = pytest.mark.numerical

N, D, K = 6000, 12, 4


def planted() -> NDArray[Any]:
    """Return rows with a constant feature, one that hardly varies, a shift, a sensor that stands still, heavy tails and a copy."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((N, D))
    rows[:, 3] = 7.0
    rows[:, 4] = np.arange(N) % 500 == 1
    rows[3000:, 5] += 8
    rows[2000:2600, 8] = rows[2000, 8]
    rows[:, 9] = random.standard_t(2, size=N) * 30
    rows[4000:4500] = rows[1000:1500]
    return rows


def carried_out(source: Path, directory: Path, *sections: dict[str, Any], **changes: str) -> Any:
    """Return a run without report, with further `sections` and some keys changed."""
    config: dict[str, Any] = {"source": {"path": str(source)}, "model": {"n_components": K}}
    config["output"] = {"directory": str(directory), "report": False}
    for section in sections:
        config.update(section)
    return sp.run(config, overrides=[f"{key}={value}" for key, value in changes.items()])


def quality_of(run: Any) -> Any:
    return run.manifest["quality"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("quality")
    zarr.create_array(str(place / "x.zarr"), data=planted(), chunks=(250, D))
    return carried_out(place / "x.zarr", place / "run", **{"output.report": "true"})


@pytest.mark.slow
def test_planted_faults_are_found(finished: Any) -> None:
    figures, rows = quality_of(finished), planted()
    assert figures["constant"] == {"count": 1, "features": [{"feature": 3, "name": None}], "rows": "all"}
    assert [entry["feature"] for entry in figures["nearly_constant"]["features"]] == [4]
    assert figures["drift"]["mean"]["feature"] == 5
    start, stop = figures["drift"]["mean"]["rows"]
    here = np.arange(start, stop)[np.arange(start, stop) % figures["examined"]["every"] == 0]
    examined = rows[:: figures["examined"]["every"], 5]
    parts = np.split(rows[:, 5], figures["examined"]["edges"][1:-1])
    within = np.mean([part[:: figures["examined"]["every"]].var(ddof=1) for part in parts])
    expected = (rows[here, 5].mean() - examined.mean()) / np.sqrt(within)
    assert figures["drift"]["mean"]["shift"] == pytest.approx(expected, rel=0.02)
    assert [entry["feature"] for entry in figures["drift"]["stuck"]["features"]] == [8]
    assert figures["missing"] is None
    assert figures["never_written"] == {"chunks": 0, "rows": 0, "by_part": []}


@pytest.mark.slow
def test_kurtosis_is_that_of_the_stored_scores(finished: Any) -> None:
    scores = zarr.open_array(finished.directory / "scores.zarr" / "scores", mode="r")[:]
    centred = scores - scores.mean(axis=0)
    excess = (centred**4).mean(axis=0) / (centred**2).mean(axis=0) ** 2 - 3
    tails = quality_of(finished)["tails"]
    np.testing.assert_allclose(tails["excess_kurtosis"], excess, rtol=1e-6, atol=1e-6)
    assert tails["largest"] == pytest.approx(excess.max(), rel=1e-6)


def test_what_is_to_be_looked_into_is_said_as_warnings_and_the_rest_as_notes(finished: Any) -> None:
    concerns, notes = finished.manifest["warnings"], finished.manifest["notes"]
    assert any("mean of feature 5" in sentence for sentence in concerns)
    assert any("constant for a stretch" in sentence and "example 8" in sentence for sentence in concerns)
    assert any("heavy tails" in sentence for sentence in notes)


def test_clean_rows_give_no_sentence(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((5000, 8)).astype(np.float32))
    run = carried_out(tmp_path / "x.npy", tmp_path / "run")
    assert (run.manifest["warnings"], run.manifest["notes"]) == ([], [])
    drift = quality_of(run)["drift"]
    assert abs(drift["mean"]["shift"]) < 1.5 * drift["noise"]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("few")
    zarr.create_array(str(place / "x.zarr"), data=planted()[2400:3600], chunks=(100, D))
    return carried_out(place / "x.zarr", place / "run")


def kernel(method: str, **keys: int) -> dict[str, Any]:
    return {"model": {"n_components": 4, "kind": "kernel_pca", "method": method, **keys}}


@pytest.mark.deep(keep=4)
@pytest.mark.parametrize(
    ("keys", "solver"),
    [
        *(({"model": {"n_components": 4, "solver": name}}, name) for name in ("sketch", "adaptive", "qr", "gram")),
        (kernel("exact"), "exact"),
        (kernel("nystrom", n_landmarks=50), "nystrom"),
        (kernel("nystrom_extension", n_landmarks=50), "nystrom_extension"),
        (kernel("empirical_map", sketch_size=60), "empirical_map"),
        ({"preprocess": {"remove": {"trend": 1}}}, "covariance"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_solver_gives_the_same_figures(few: Any, tmp_path: Path, keys: dict[str, Any], solver: str) -> None:
    run = carried_out(few.directory.parent / "x.zarr", tmp_path / "run", keys)
    assert json.loads((run.directory / "plan.json").read_text())["solver"] == solver
    one, other = quality_of(few), quality_of(run)
    for name in ("drift", "missing", "never_written"):
        _assert_close(one[name], other[name])


def _assert_close(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _assert_close(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _assert_close(a, b)
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=1e-7, abs=1e-7)
    else:
        assert one == other


@pytest.mark.slow
def test_missing_values_are_counted_by_feature_and_by_part(tmp_path: Path) -> None:
    rows = np.random.default_rng(2).standard_normal((4000, 6))
    rows[3500:, 2] = np.nan
    rows[::1000, 4] = np.nan
    zarr.create_array(str(tmp_path / "x.zarr"), data=rows, chunks=(500, 6))
    sections = {"preprocess": {"missing": "pairwise"}}
    run = carried_out(tmp_path / "x.zarr", tmp_path / "run", sections, **{"output.report": "true"})
    missing, edges = quality_of(run)["missing"], quality_of(run)["examined"]["edges"]
    assert missing["count"] == 504
    assert [(entry["feature"], entry["share"]) for entry in missing["features"]] == [(2, 500 / 4000), (4, 4 / 4000)]
    holes = np.isnan(rows)
    expected = [holes[a:b].mean() for a, b in pairwise(edges)]
    np.testing.assert_allclose(missing["by_part"], expected)
    assert any("missing values are concentrated" in sentence for sentence in run.manifest["warnings"])
    assert "Missing values along the file" in (run.directory / "report.html").read_text()


@pytest.mark.parametrize("solver", ["covariance", "gram"])
def test_zeros_are_counted_among_values_that_are_not_missing(tmp_path: Path, solver: str) -> None:
    random = np.random.default_rng(4)
    rows = random.poisson([0.02, 0.05, 0.5, 4.0] * 2, (5000, 8)).astype("f4")
    rows[:, 7] = 0
    missing, solved = ("mean", "covariance") if solver == "covariance" else ("error", "gram")
    if missing == "mean":
        rows[random.random(rows.shape) < 0.1] = np.nan
    zarr.create_array(str(tmp_path / "x.zarr"), data=rows, chunks=(500, 8))
    run = carried_out(
        tmp_path / "x.zarr",
        tmp_path / "run",
        {"preprocess": {"missing": missing}, "model": {"n_components": 2, "solver": solved}},
        **{"output.report": "true"},
    )
    examined = rows[:: quality_of(run)["examined"]["every"]]
    counts, zeros = (~np.isnan(examined)).sum(axis=0), (examined == 0).sum(axis=0)
    found, shares = quality_of(run)["zeros"], zeros / counts
    assert found["share"] == pytest.approx(zeros.sum() / counts.sum())
    expected = [feature for feature in np.argsort(-shares, kind="stable") if 0.9 <= shares[feature] < 1]
    assert [entry["feature"] for entry in found["features"]] == expected
    assert found["count"] == len(expected) == 4
    np.testing.assert_allclose([entry["value"] for entry in found["features"]], shares[expected])
    assert "features that are mostly zeros" in (run.directory / "report.html").read_text()


def test_chunks_that_were_never_written_are_counted(tmp_path: Path) -> None:
    rows = np.random.default_rng(3).standard_normal((3000, 8))
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=rows.shape, chunks=(300, 8), dtype="f8", fill_value=0.0)
    for band in (0, 1, 4, 9):
        array[300 * band : 300 * band + 300] = rows[300 * band : 300 * band + 300]
    run = carried_out(tmp_path / "x.zarr", tmp_path / "run", **{"source.missing_chunks": "fill"})
    figures = quality_of(run)
    assert figures["never_written"]["chunks"] == 6
    assert figures["never_written"]["rows"] == sum(figures["never_written"]["by_part"]) == 1800
    assert not failed_of(tmp_path / "run")


@pytest.mark.slow
def test_switched_off_nothing_is_examined_and_the_model_is_the_same(finished: Any, tmp_path: Path) -> None:
    source = finished.directory.parent / "x.zarr"
    run = carried_out(source, tmp_path / "run", {"quality": False}, **{"output.report": "true"})
    assert run.manifest["quality"] is None
    assert "Quality of the data" not in (run.directory / "report.html").read_text()
    np.testing.assert_array_equal(run.model.components_, finished.model.components_)
    assert not [name for name in checks_of(run.directory) if name.startswith("quality")]


def test_several_models_have_the_figures_of_one(finished: Any, tmp_path: Path) -> None:
    source = finished.directory.parent / "x.zarr"
    models = {"raw": {"n_components": K}, "z": {"n_components": 3, "preprocess": {"scale": True}}}
    output = {"directory": str(tmp_path / "run"), "report": False}
    many = sp.run({"source": {"path": str(source)}, "output": output, "models": models})
    for name in ("raw", "z"):
        manifest = json.loads((many.directory / "models" / name / "manifest.json").read_text())
        for figure, value in quality_of(finished).items():
            if figure != "tails":
                assert manifest["quality"][figure] == value


@pytest.mark.slow
@pytest.mark.distributed
def test_workers_of_a_cluster_give_the_figures_of_threads(finished: Any, tmp_path: Path, two_workers: Any) -> None:
    cluster = {"kind": "address", "address": two_workers[0].scheduler_address}
    run = carried_out(finished.directory.parent / "x.zarr", tmp_path / "run", {"cluster": cluster})
    assert quality_of(run) == quality_of(finished)


def test_run_that_was_stopped_goes_on_to_the_same_figures(
    few: Any, tmp_path: Path, blocks_of: Any, all_checkpoints: None
) -> None:
    source = few.directory.parent / "x.zarr"
    blocks_of(100)
    config = {
        "source": {"path": str(source)},
        "model": {"n_components": K},
        "checkpoint": {"every": "1ms"},
        "output": {"directory": str(tmp_path / "run"), "report": False},
    }

    def stop(progress: Any) -> None:
        if progress.rows > 800:
            raise KeyboardInterrupt

    whole = sp.run({**config, "output": {"directory": str(tmp_path / "whole"), "report": False}})
    with pytest.raises(KeyboardInterrupt):
        sp.run(config, progress=stop)
    seen: list[int] = []
    resumed = sp.run(config, resume=True, progress=lambda progress: seen.append(progress.rows))
    assert seen[0] > 100
    assert quality_of(resumed) == quality_of(whole)


def test_verification_compares_the_digests_of_figures(finished: Any) -> None:
    checks = checks_of(finished.directory)
    assert False not in checks.values()
    assert checks["manifest"]
    assert {name: holds for name, holds in checks.items() if name.startswith("quality")} == {"quality": None}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("drift", "mean", "shift"), 0.1),
        (("constant", "count"), 0),
        (("tails", "largest"), 0.0),
        (("nearly_constant", "features"), []),
        (("never_written", "chunks"), 3),
        (("zeros", "share"), 0.5),
    ],
)
def test_changed_figures_are_noticed(finished: Any, tmp_path: Path, path: tuple[str, ...], value: object) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.directory, run)
    manifest = json.loads((run / "manifest.json").read_text())
    place = manifest["quality"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (run / "manifest.json").write_text(json.dumps(manifest))
    failed = failed_of(run)
    assert set(failed) == {f"manifest quality.{path[0]}"}


def test_report_has_the_figures_and_a_chart_of_the_drift(finished: Any) -> None:
    page = (finished.directory / "report.html").read_text()
    for text in (
        "Quality of the data",
        "Drift along the file",
        "constant for a stretch",
        "excess kurtosis",
    ):
        assert text in page
