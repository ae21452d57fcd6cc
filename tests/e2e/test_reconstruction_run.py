"""Runs with `output.reconstruction`: the rows of their scores, against a decomposition by numpy; whole after a stop; refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from facade import inspect_path, limit_room, verify_run
from stores import write_store

import streampca as sp
from streampca.errors import ConfigError, NoSpaceError, ParameterError, PlanError

pytestmark = pytest.mark.numerical
N, D, K = 600, 8, 3


def write_rows(place: Path, dtype: Any = np.float64) -> np.ndarray:
    rows = (np.random.default_rng(0).standard_normal((N, D)) * np.arange(1, D + 1) + 200).astype(dtype)
    write_store(place / "x.zarr", rows, chunks=(50, D))
    return rows.astype(np.float64)


def configure(place: Path, wanted: object = True, *, more: str = "", model: str = "n_components: 3") -> Path:
    text = f"source: {{path: {place}/x.zarr}}\nmodel: {{{model}}}\n{more}\n"
    output = f"output: {{directory: {place}/run, report: false, reconstruction: {json.dumps(wanted)}}}\n"
    (place / "c.yaml").write_text(text + output)
    return place / "c.yaml"


def projected(rows: np.ndarray, k: int = K) -> np.ndarray:
    """Return the best approximation of rank `k` about the mean."""
    mean = rows.mean(axis=0)
    axes = np.linalg.svd(rows - mean, full_matrices=False)[2][:k]
    return (rows - mean) @ axes.T @ axes + mean


def written(run: Path, name: str = "rows") -> np.ndarray:
    return zarr.open_group(run / "reconstruction.zarr", mode="r")[name][:]


@pytest.mark.parametrize("solver", ["covariance", "gram"])
def test_a_run_writes_the_rows_that_its_scores_give_back(solver: str, tmp_path: Path) -> None:
    rows = write_rows(tmp_path)
    run = sp.run(configure(tmp_path, model=f"n_components: 3, solver: {solver}"))
    found = written(run.directory)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, projected(rows), rtol=1e-10)
    reads = run.manifest["reads"]["reconstruction"]
    assert reads["bytes"] == 8 * N * K
    assert run.manifest["seconds"]["reconstruction"] == reads["seconds"] > 0
    described = inspect_path(str(run.directory / "reconstruction.zarr"))
    assert (described["kind"], described["complete"]) == ("reconstruction", True)
    assert "reconstruction.zarr" in inspect_path(str(run.directory))["files"]
    assert verify_run(run.directory).failed == []


@pytest.mark.parametrize(("dtype", "wanted"), [("uint16", "uint16"), ("float32", True), ("float32", "float64")])
def test_rows_have_the_type_that_is_asked_for(dtype: str, wanted: object, tmp_path: Path) -> None:
    rows = write_rows(tmp_path, dtype)
    found = written(sp.run(configure(tmp_path, wanted)).directory)
    assert found.dtype == (wanted if isinstance(wanted, str) else "float32")
    if wanted == "uint16":
        np.testing.assert_array_equal(found, np.rint(projected(rows)))
    else:
        np.testing.assert_allclose(found, projected(rows), rtol=1e-5)


def test_values_out_of_the_range_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    write_rows(tmp_path)
    with pytest.raises(ParameterError, match=r'^output\.reconstruction: "int8": .* expected -128 to 127'):
        sp.run(configure(tmp_path, "int8"))
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_overwritten_and_a_strange_file_in_it_is_not(tmp_path: Path) -> None:
    write_rows(tmp_path)
    path = configure(tmp_path)
    sp.run(path)
    sp.run(path, overrides=["output.overwrite=true", "output.reconstruction=false"])
    assert not (tmp_path / "run/reconstruction.zarr").exists()
    sp.run(path, overrides=["output.overwrite=true"])
    (tmp_path / "run/reconstruction.zarr/mine").mkdir()
    with pytest.raises(sp.errors.OutputError, match=r"reconstruction\.zarr/mine, which streampca did not write"):
        sp.run(path, overrides=["output.overwrite=true"])


class _PowerCutError(Exception):
    pass


@pytest.mark.usefixtures("all_checkpoints")
@pytest.mark.parametrize("then", ["true", "float32", "false"])
def test_a_run_that_stops_while_rows_are_written_is_finished(then: str, tmp_path: Path, blocks_of: Any) -> None:
    write_rows(tmp_path)
    blocks_of(20)
    path, seen = configure(tmp_path), list[int]()
    asked = [f"output.reconstruction={then}"]
    expected = sp.run(path, overrides=[*asked, f"output.directory={tmp_path}/other"]).directory

    def stop_late(step: Any) -> None:
        if step.phase == "reconstruction" and step.rows > N // 2:
            raise _PowerCutError

    with pytest.raises(_PowerCutError):
        sp.run(path, progress=stop_late)
    again = sp.run(
        path, overrides=asked, resume=True, progress=lambda step: seen.append(step.rows * (step.phase[0] == "r"))
    ).directory
    if then == "false":
        assert not (again / "reconstruction.zarr").exists()
        return
    for name in ("scores", "reconstruction"):
        files = sorted(each.relative_to(expected) for each in (expected / f"{name}.zarr").rglob("c/*/*"))
        assert files
        assert all((expected / each).read_bytes() == (again / each).read_bytes() for each in files)
    if then == "true":
        assert next(filter(None, seen)) > N // 4  # counted from where it stopped


def test_what_is_removed_is_added_again_for_the_rows_of_the_fit(tmp_path: Path) -> None:
    rows, groups = write_rows(tmp_path), np.arange(N) % 3
    np.save(tmp_path / "g.npy", groups)
    rows += 50 * groups[:, None]
    zarr.open_array(tmp_path / "x.zarr", mode="r+")[:] = rows
    run = sp.run(configure(tmp_path, more=f"preprocess: {{remove: {{groups: {tmp_path}/g.npy}}}}")).directory
    means = np.array([rows[groups == g].mean(axis=0) for g in range(3)])[groups]
    np.testing.assert_allclose(written(run), means + projected(rows - means), rtol=1e-10)


def test_two_tables_are_given_back_side_by_side(tmp_path: Path) -> None:
    rows = write_rows(tmp_path)
    run = sp.run(configure(tmp_path, model="kind: mca, n_components: 2, first: 3")).directory
    deviations = rows - rows.mean(axis=0)
    u, _, vt = np.linalg.svd(deviations[:, :3].T @ deviations[:, 3:])
    sides = [(deviations[:, :3], u[:, :2]), (deviations[:, 3:], vt[:2].T)]
    expected = np.hstack([side @ axes @ axes.T for side, axes in sides]) + rows.mean(axis=0)
    np.testing.assert_allclose(written(run), expected, rtol=1e-10)


def test_each_of_several_models_has_its_rows(tmp_path: Path) -> None:
    rows = write_rows(tmp_path)
    path = configure(tmp_path)
    path.write_text(
        path.read_text().replace("model: {n_components: 3}", "models: {a: {n_components: 3}, b: {n_components: 8}}")
    )
    run = sp.run(path).directory
    np.testing.assert_allclose(written(run / "models/a"), projected(rows), rtol=1e-10)
    np.testing.assert_allclose(written(run / "models/b"), rows, rtol=1e-10)
    sp.run(path, overrides=["output.overwrite=true"])


def test_kernel_pca_gives_back_rows_with_a_map_that_was_learned(tmp_path: Path) -> None:
    write_rows(tmp_path)
    model = "kind: kernel_pca, n_components: 3, method: nystrom, n_landmarks: 40, kernel: rbf, gamma: 0.01"
    with pytest.raises(ConfigError, match=r"output\.reconstruction: true, .* model\.fit_inverse_transform: true"):
        sp.run(configure(tmp_path, model=model))
    run = sp.run(configure(tmp_path, model=f"{model}, fit_inverse_transform: true")).directory
    scores = zarr.open_group(run / "scores.zarr", mode="r")["scores"][:]
    np.testing.assert_allclose(written(run), sp.load(run).inverse_transform(scores), rtol=1e-12)


@pytest.mark.parametrize(
    ("wanted", "overrides", "message"),
    [
        (
            "complex64",
            [],
            r"output\.reconstruction: found the text 'complex64', allowed: true, false, or the name of a type",
        ),
        (1, [], r"output\.reconstruction: found 1"),
        (True, ["output.scores=false"], "reconstruction takes the scores"),
        (
            True,
            ["model.group_by=g.npy", "output.scores=true"],
            r"output\.reconstruction cannot be combined with model\.group_by",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(wanted: object, overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        sp.run(configure(tmp_path, wanted), overrides=overrides)


def test_what_cannot_be_written_is_found_before_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path)
    np.save(tmp_path / "m.npy", np.arange(D) > 1)
    seen: list[Any] = []
    mask = f"source.mask={tmp_path}/m.npy"
    with pytest.raises(ConfigError, match=r"output\.reconstruction: uint16, but the mask"):
        sp.run(configure(tmp_path, "uint16"), overrides=[mask], progress=seen.append)
    found = written(sp.run(configure(tmp_path), overrides=[mask]).directory)
    assert np.isnan(found[:, :2]).all()
    assert not np.isnan(found[:, 2:]).any()
    with monkeypatch.context() as patch:
        limit_room(patch, process=2**33 - 32 * K * (D - 2) + 1)
        with pytest.raises(PlanError, match="writing rows: 3 components"):
            sp.run(
                configure(tmp_path),
                overrides=[mask, "resources.memory=8GiB", "output.overwrite=true"],
                progress=seen.append,
            )
    limit_room(monkeypatch, free_disk=8 * N * D)
    sp.run(configure(tmp_path, False), overrides=["output.overwrite=true"])
    with pytest.raises(NoSpaceError):
        sp.run(configure(tmp_path), overrides=["output.overwrite=true"], progress=seen.append)
    assert seen == []
