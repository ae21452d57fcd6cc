"""T² and Q in runs: arrays, manifest, samples of the report, and their verification."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pages import checks_of, failed_of
from stores import Command

import streampca as sp
from streampca.errors import ConfigError

N, D, K = 400, 12, 3
ODD = (17, 301)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a run on rows of which two do not fit: one far in the space of the components, one outside of it."""
    place = tmp_path_factory.mktemp("diagnostics")
    random = np.random.default_rng(0)
    axes = np.linalg.qr(random.standard_normal((D, D)))[0]
    rows = random.standard_normal((N, D)) * np.concatenate([[9, 7, 5], np.linspace(2, 1, D - K)]) @ axes
    rows[ODD[0]] += 80 * axes[0]
    rows[ODD[1]] += 15 * axes[-1]
    zarr.create_array(str(place / "x.zarr"), data=rows, chunks=(64, D))
    return carried_out(place / "x.zarr", place / "run")


def carried_out(source: Path, directory: Path, **changes: str) -> Any:
    """Return a run with diagnostics, of whose configuration some keys are changed."""
    output = {"directory": str(directory), "diagnostics": True}
    config = {"source": {"path": str(source)}, "model": {"n_components": K}, "output": output}
    return sp.run(config, overrides=[f"{key}={value}" for key, value in changes.items()])


@pytest.mark.slow
def test_run_writes_the_values_that_transform_to_writes(finished: Any, tmp_path: Path) -> None:
    source = finished.directory.parent / "x.zarr"
    again = finished.model.transform_to(source, tmp_path / "again.zarr", diagnostics=True)
    for name in ("scores", "t2", "q"):
        stored = zarr.open_array(finished.directory / "scores.zarr" / name, mode="r")[:]
        np.testing.assert_allclose(stored, zarr.open_array(again / name, mode="r")[:], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_manifest_lists_limits_counts_and_the_rows_that_fit_least(finished: Any) -> None:
    summary, model = finished.manifest["diagnostics"], finished.model
    assert summary is not None
    t2, q = (zarr.open_array(finished.directory / "scores.zarr" / name, mode="r")[:] for name in ("t2", "q"))
    assert summary["t2_limit"] == model.t2_limit(0.99, distribution="beta")
    assert summary["q_limit"] == model.q_limit(0.99)
    assert summary["q_method"] == "jackson-mudholkar"
    over = t2 > summary["t2_limit"], q > summary["q_limit"]
    counts = [summary[f"n_beyond_{name}"] for name in ("t2", "q", "both")]
    assert counts == [over[0].sum(), over[1].sum(), (over[0] & over[1]).sum()]
    order = np.argsort(-(t2 / summary["t2_limit"] + q / summary["q_limit"]))[:20]
    assert [row["row"] for row in summary["unusual_rows"]] == order.tolist()
    assert set(order[:2]) == set(ODD)
    assert [(row["t2"], row["q"]) for row in summary["unusual_rows"]] == [(t2[i], q[i]) for i in order]


def test_verification_measures_t2_and_q_again(finished: Any) -> None:
    checks = checks_of(finished.directory)
    assert False not in checks.values()
    assert {"t2", "q", "unusual rows"} <= checks.keys()


def change(directory: Path, array: str, row: int) -> None:
    """Change a stored value in its ninth digit."""
    stored = zarr.open_array(directory / array, mode="r+")
    stored[row] = stored[row] * (1 + 1e-8)


def change_manifest(directory: Path) -> None:
    """Change a limit in the manifest."""
    document = json.loads((directory / "manifest.json").read_text())
    document["diagnostics"]["q_limit"] *= 1.01
    (directory / "manifest.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda d: change(d, "scores.zarr/t2", 5), "t2"),
        (lambda d: change(d, "scores.zarr/q", 5), "q"),
        (lambda d: change(d, "samples.zarr/unusual_rows", 2), "unusual rows"),
        (lambda d: shutil.rmtree(d / "scores.zarr/q"), "q"),
        (lambda d: shutil.rmtree(d / "samples.zarr/unusual_rows"), "unusual rows"),
        (change_manifest, "manifest diagnostics.q_limit"),
    ],
    ids=["t2", "q", "copied row", "no q", "no copied rows", "limit"],
)
def test_changes_in_any_file_are_noticed(
    damage: Callable[[Path], None], named: str, finished: Any, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished.directory, copy)
    damage(copy)
    assert named in failed_of(copy)


def test_a_changed_limit_in_the_model_is_refused(
    finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished.directory, copy)
    place = copy / "model.zarr" / "zarr.json"
    text = place.read_text()
    document = json.loads(text)
    document["attributes"]["residual_moments"][0] *= 1.01
    place.write_text(json.dumps(document))
    assert "SHA-256" in Command(capsys)("verify", copy, "--quiet").err


def test_wide_data_are_read_once_more_for_diagnostics(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((40, 600))
    zarr.create_array(str(tmp_path / "x.zarr"), data=rows, chunks=(40, 100))
    run = carried_out(tmp_path / "x.zarr", tmp_path / "run", **{"output.report": "false"})
    assert run.model.solver_ == "gram"
    assert run.manifest["reads"]["scores"] is not None
    assert not failed_of(run.directory)


def test_components_that_carry_everything_have_no_limit_of_q(finished: Any, tmp_path: Path) -> None:
    source = finished.directory.parent / "x.zarr"
    changes = {"model.n_components": str(D), "output.report": "false"}
    run = carried_out(source, tmp_path / "run", **changes)
    summary = run.manifest["diagnostics"]
    assert summary is not None
    assert summary["q_limit"] is None
    assert summary["n_beyond_q"] == 0
    assert "carry all variance" in summary["without_limit"][0]
    assert summary["unusual_rows"][0]["row"] in ODD


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"output.scores": "false"}, "diagnostics takes the scores"),
        ({"model": "{kind: kernel_pca}"}, "has no T² and Q"),
    ],
)
def test_diagnostics_that_cannot_be_are_refused_in_a_line(
    changes: dict[str, str], says: str, finished: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        carried_out(finished.directory.parent / "x.zarr", tmp_path / "run", **changes)
