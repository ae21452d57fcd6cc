"""`streampca verify`: sound runs agree with their data, and whatever was changed since is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from facade import sketches_of_samples, verify_run
from stores import chunk_files, config_text, make_values, picture, write_store

import streampca as sp

pytestmark = pytest.mark.numerical


def correlated(n: int = 900, d: int = 12, seed: int = 4) -> np.ndarray:
    """Return rows with a decaying spectrum and means far from zero."""
    rng = np.random.default_rng(seed)
    return make_values(n, d, seed) * 0.7 ** np.arange(d) @ rng.standard_normal((d, d)) + 20 * rng.standard_normal(d)


def run_of(directory: Path, values: np.ndarray, *lines: str, output: str = "report: false") -> Path:
    """Return the directory of a run on `values`, which lie in x.zarr."""
    if not (directory / "x.zarr").exists():
        write_store(directory / "x.zarr", values, chunks=(200, values.shape[1]))
    config = directory / "c.yaml"
    config.write_text(config_text(directory / "x.zarr", directory / "run", *lines, output=f"{output}, overwrite: true"))
    return sp.run(config).directory


def verdicts(run: Path, *overrides: str) -> dict[str, str]:
    """Return the outcome of every check."""
    return {check.name: check.verdict for check in verify_run(run, overrides=overrides).checks}


EXACT = ("manifest", "samples", "mean", "total variance", "variances of components", "relative residual")
KINDS = {
    "plain": [],
    "few components": ["model: {n_components: 3}"],
    "z-scores": ["preprocess: {scale: true}", "model: {n_components: 0.9, ddof: 0}"],
    "not centred": ["preprocess: {center: false}", "model: {n_components: 4}"],
    "not centred z-scores": ["preprocess: {center: false, scale: true}", "model: {n_components: 4}"],
    "whitened": ["model: {n_components: 4, whiten: true}"],
    "weighted": ["preprocess: {sample_weight: WEIGHTS, feature_weight: FEATURES}", "model: {n_components: 4}"],
    "rule": ["model: {n_components: tracy_widom}"],
    "cross-validation": ["preprocess: {scale: true}", "model: {n_components: cross_validation}"],
    "gram": ["model: {solver: gram, n_components: 5}"],
    "qr": ["model: {solver: qr, n_components: 5}"],
    "sketch": ["model: {solver: sketch, n_components: 3}"],
    "sketch until certain": ["model: {solver: sketch, n_components: 3, tolerance: 0.01, max_passes: 4}"],
    "conversion": ["model: {solver: sketch, n_components: 3, recovery: conversion}"],
    "adaptive": ["model: {solver: adaptive, n_components: 3}"],
}


@pytest.mark.deep(keep=4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_sound_run_agrees_with_its_data(tmp_path, kind, dtype):
    values = correlated().astype(dtype)
    np.save(tmp_path / "w.npy", np.random.default_rng(1).integers(0, 4, len(values)).astype(float))
    np.save(tmp_path / "f.npy", np.linspace(0.5, 2.0, values.shape[1]))
    lines = [
        line.replace("WEIGHTS", f"'{tmp_path}/w.npy'").replace("FEATURES", f"'{tmp_path}/f.npy'")
        for line in KINDS[kind]
    ]
    run = run_of(tmp_path, values, *lines)
    before = picture(tmp_path)
    found = verify_run(run)
    assert not found.failed, [check for check in found.checks if check.holds is False]
    told = {check.name: check for check in found.checks}
    assert told["scores"].holds
    assert told["orthonormality"].measured < 1e-8
    assert told["relative residual"].holds
    assert told["total variance"].holds
    assert picture(tmp_path) == before
    assert found.count.bytes == values.nbytes


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize("dtype", ["uint8", ">f8", "int16", "float16", "bool"])
def test_data_types(tmp_path, dtype):
    values = np.round(np.clip(correlated() * 3 + 60, 0, 200)).astype(np.uint8)
    values = (values > 60) if dtype == "bool" else values.astype(dtype)
    assert not verify_run(run_of(tmp_path, values, "model: {n_components: 4}")).failed


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_sketch_of_samples(tmp_path, dtype):
    values = (correlated(120, 40) @ np.random.default_rng(2).standard_normal((40, 900))).astype(dtype)
    model = "model: {solver: sketch, n_components: 3, tolerance: 0.01}"
    with sketches_of_samples():
        run = run_of(tmp_path, values, "preprocess: {missing: mean}", model, output="report: true")
    found = verify_run(run)
    assert not found.failed, [check for check in found.checks if check.holds is False]
    scores = np.asarray(zarr.open_array(run / "scores.zarr/scores", mode="r")[:])
    loaded = sp.load(run)
    np.testing.assert_allclose(scores, loaded.transform(values), atol=3e-5 * np.abs(scores).max())
    np.testing.assert_allclose(scores.var(axis=0, ddof=1), loaded.explained_variance_, rtol=1e-5)
    assert "matrix of samples" in (run / "report.html").read_text()


def test_rows_that_were_left_out(tmp_path):
    values = correlated()
    values[::50, 3] = np.nan
    run = run_of(tmp_path, values, "preprocess: {missing: drop_rows}", "model: {n_components: 4}")
    found = verify_run(run)
    assert not found.failed, found.failed
    assert {check.name: check for check in found.checks}["samples"].measured == 882


def test_one_thread_measures_the_same(tmp_path):
    run = run_of(tmp_path, correlated(6000, 40), "model: {n_components: 4, whiten: true}")
    assert not verify_run(run, overrides=["resources.threads=1"]).failed


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize("method", ["exact", "empirical_map", "nystrom", "nystrom_extension"])
def test_kernel_runs_say_what_was_not_verified(tmp_path, method):
    lines = f"model: {{kind: kernel_pca, n_components: 3, method: {method}, n_landmarks: 60, kernel: {{name: rbf, gamma: 0.01}}}}"
    run = run_of(tmp_path, correlated(500, 6), lines)
    found = verify_run(run)
    assert not found.failed, [check for check in found.checks if check.holds is False]
    told = {check.name: check for check in found.checks}
    assert told["scores"].holds
    assert told["trace"].holds is None
    assert told["trace"].note
    if method in ("exact", "nystrom"):
        assert told["eigenvalues"].holds
    array = zarr.open_array(run / "scores.zarr/scores", mode="r+")
    array[7, 1] += 0.5
    assert verify_run(run).failed == ["scores"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a directory with a store, its configuration and a finished run."""
    directory = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        run_of(Path(), correlated(), "model: {n_components: 4}")
    return directory


@pytest.fixture
def sound(finished, tmp_path, monkeypatch):
    """Return a copy of the finished run with its store, which is where commands are called."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_and_the_status(sound, call):
    called = call("verify", "run")
    assert called.status == 0, called.err
    lines = called.out.splitlines()
    assert lines[0].split() == ["recorded", "measured", "difference", "allowed"]
    assert lines[-1].startswith("run: 900 x 12 read again in ")
    assert lines[-1].endswith("everything measured agrees")
    assert any(line.startswith("mean ") and " ok " in line for line in lines)
    assert any(
        line.startswith("chunks ") and "not verified" in line and "streampca fingerprint" in line for line in lines
    )
    assert "reading again: 900 of 900 rows" in called.err
    told = json.loads(call("verify", "run", "--quiet", "--json").out)
    assert told["holds"] is True
    assert told["reads"]["bytes"] == 900 * 12 * 8


def _other_value(values):
    values[417, 5] += 3.0


def _other_mean(values):
    values += 0.5


def _other_scale(values):
    values *= 1.01


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (_other_value, {"mean", "total variance", "eigenvectors", "all eigenvalues", "edge of noise", "scores"}),
        (_other_mean, {"mean", "scores"}),
        (_other_scale, {"total variance", "variances of components", "scores"}),
    ],
)
def test_changed_values_are_named(sound, call, change, names):
    values = correlated()
    change(values)
    zarr.open_array("x.zarr", mode="r+")[...] = values
    called = call("verify", "run", "--quiet")
    assert called.status == 5
    assert len(called.err.splitlines()) == 1
    differing = set(called.err.partition("differ: ")[2].split(":")[0].split(", "))
    assert names <= differing, called.err
    assert "orthonormality" not in differing
    assert json.loads(call("verify", "run", "--quiet", "--json").out)["holds"] is False


def test_changed_results_are_named(sound, call):
    scores = zarr.open_array("run/scores.zarr/scores", mode="r+")
    kept = scores[...]
    scores[899, 3] += 1e-6
    assert verify_run(Path("run")).failed == ["scores"]
    scores[...] = kept
    assert not verify_run(Path("run")).failed
    manifest = json.loads(Path("run/manifest.json").read_text())
    manifest["result"]["explained_variance"][2] *= 1.0001
    Path("run/manifest.json").write_text(json.dumps(manifest))
    name = "manifest result.explained_variance"
    assert verify_run(Path("run")).failed == [name]
    shutil.rmtree("run/scores.zarr")
    assert verify_run(Path("run")).failed == [name, "scores"]
    chunk = chunk_files(Path("run/model.zarr/components"))[0]
    chunk.write_bytes(chunk.read_bytes()[:-1])
    call("verify", "run", "--quiet").refused(5, "model.zarr")


FIGURES = {
    "manifest result.total_variance": True,
    "manifest result.explained_variance_ratio": True,
    "manifest result.components_for": True,
    "manifest result.component_rules": True,
    "manifest certificate.captured_variance": True,
    "manifest certificate.numerical_rank": True,
    "manifest source.missing_chunks_filled": False,
    "manifest passes": False,
    "manifest memory.peak_bytes": False,
    "manifest seconds.fit": False,
    "manifest reads.fit": False,
    "manifest versions.numpy": False,
    "plan flops": False,
    "plan memory.states": False,
}
"""Figures, and whether they follow from the model, so that changes are noticed in runs of version 0.1, which have no digests."""


def test_changed_figures_are_noticed_by_name(sound, call):
    for place in (Path("run/manifest.json"), Path("run/plan.json")):
        document = json.loads(place.read_text())
        for name in FIGURES:
            file, _, path = name.partition(" ")
            *outer, last = path.split(".")
            if file == place.stem:
                inner = document[outer[0]] if outer else document
                inner[last] = _another(inner[last])
        place.write_text(json.dumps(document, indent=2))
    assert verify_run(Path("run")).failed == sorted(FIGURES)
    called = call("verify", "run", "--quiet")
    assert called.status == 5
    assert "manifest certificate.captured_variance, manifest certificate.numerical_rank" in called.err
    record = json.loads(Path("run/streampca.json").read_text())
    del record["figures"]
    Path("run/streampca.json").write_text(json.dumps(record))
    assert verify_run(Path("run")).failed == sorted(name for name, follows in FIGURES.items() if follows)


def _another(value):
    if isinstance(value, dict):
        return {key: _another(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_another(entry) for entry in value]
    return f"{value}9" if isinstance(value, str) else None if value is None else value + 1


def test_a_changed_configuration_is_noticed(sound):
    place = Path("run/config.yaml")
    place.write_text(place.read_text() + "# later\n")
    assert verify_run(Path("run")).failed == ["config"]


def test_a_file_that_is_not_of_the_run_is_no_difference(sound):
    Path("run/notes.txt").write_text("mine\n")
    assert not verify_run(Path("run")).failed
    Path("run/plan.json").unlink()
    assert any(name.startswith("plan ") for name in verify_run(Path("run")).failed)


VARIANTS = ("{}", "{scale: true}", "{sample_weight: WEIGHTS}", "{center: false}")


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8", "int8", "int16"])
@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch", "adaptive"])
def test_no_untouched_run_is_rejected(tmp_path, solver, dtype):
    """Shapes, preprocessing and seeds vary with the case; every solver and data type has two runs."""
    case = 6 * ("covariance", "gram", "qr", "sketch", "adaptive").index(solver)
    case += ("float64", "float32", "float16", "uint8", "int8", "int16").index(dtype)
    for turn, (n, d, k) in enumerate([(700, 12, 5) if case % 2 else (300, 30, 30), (60, 200, 8)]):
        values = correlated(n, d, seed=case + turn)
        if dtype.endswith(("int8", "int16")):
            values = np.round(np.clip(30 * (values - values.mean(axis=0)) / values.std(), -127, 127))
            values += 128 if dtype == "uint8" else 0
        directory = tmp_path / str(turn)
        directory.mkdir()
        np.save(directory / "w.npy", np.random.default_rng(case).random(n) + 0.01)
        variant = VARIANTS[(case + turn) % len(VARIANTS)].replace("WEIGHTS", f"'{directory}/w.npy'")
        whiten = "true" if (case + turn) % 3 == 0 else "false"
        model = f"model: {{solver: {solver}, n_components: {min(k, n - 1)}, whiten: {whiten}}}"
        found = verify_run(run_of(directory, values.astype(dtype), f"preprocess: {variant}", model))
        assert not found.failed, (variant, [check for check in found.checks if check.holds is False])


def test_changed_metadata_and_other_data_are_named(sound, call):
    place = Path("x.zarr/zarr.json")
    metadata = json.loads(place.read_text())
    place.write_text(json.dumps(metadata | {"attributes": {"since": "then"}}))
    assert verify_run(Path("run")).failed == ["input"]
    shutil.rmtree("x.zarr")
    call("verify", "run", "--quiet").refused(5, "x.zarr", "no such file")
    write_store(Path("x.zarr"), correlated(901))
    call("verify", "run", "--quiet").refused(5, "(901, 12)", "other data")
    write_store(Path("y.zarr"), correlated(), chunks=(100, 12))
    assert verdicts(Path("run"), "source.path=y.zarr")["input"] == "ok"
    assert not verify_run(Path("run"), overrides=["source.path=y.zarr"]).failed


def test_a_fingerprint_beside_the_store_is_used(sound, call):
    assert call("fingerprint", "x.zarr", "--quiet").status == 0
    assert verdicts(Path("run"))["chunks"] == "ok"
    chunk = chunk_files(Path("x.zarr"))[1]
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(bytes(data))
    call("verify", "run", "--quiet").refused(5, "c/1/0", "is not what was fingerprinted")


def test_npy_files_of_another_time_are_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", correlated())
    Path("c.yaml").write_text(config_text("x.npy", "run"))
    sp.run("c.yaml")
    assert verdicts(Path("run"))["input"] == "ok"
    np.save("x.npy", correlated())
    told = verdicts(Path("run"))
    assert told["input"] == "not verified"
    assert "differs" not in told.values()


def test_what_cannot_be_measured_is_refused(sound, call):
    call("verify", "run", "--set", "seed=3").refused(2, "seed", "source and resources")
    call("verify", "nowhere").refused(5, "nowhere is not a finished run")
    call("verify", "x.zarr").refused(5, "x.zarr is not a finished run")
    call("verify", "run", "--set", "resources.memory=64MiB").refused(7, "verifying")
    run_of(sound, correlated(), "model: {forgetting: 0.99}")
    call("verify", sound / "run", "--quiet").refused(2, "model.forgetting: 0.99", "does not measure")


def test_runs_without_scores(sound):
    run_of(sound, correlated(), "model: {n_components: 2}", output="report: false, scores: false")
    told = verdicts(sound / "run")
    assert told["scores"] == "not verified"
    assert "differs" not in told.values()


def test_statistics_are_compared_with_their_digests_alone(tmp_path):
    run = run_of(tmp_path, correlated(), "model: {n_components: cross_validation}")
    told = {check.name: check for check in verify_run(run).checks}
    assert told["manifest"].holds
    for name in ("quality", "prediction errors"):
        assert (told[name].verdict, told[name].recorded) == ("not verified", None)
        assert "a new run measures them again" in told[name].note
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["quality"]["constant"]["count"] += 1
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert verify_run(run).failed == ["manifest quality.constant"]


def with_holes(dtype: str = "float64") -> np.ndarray:
    """Return rows of which a tenth of the values are missing."""
    values = correlated().astype(dtype)
    values[np.random.default_rng(0).random(values.shape) < 0.1] = np.nan
    return values


@pytest.mark.deep(keep=4)
@pytest.mark.parametrize("missing", ["mean", "pairwise"])
@pytest.mark.parametrize("settings", ["missing_scores: conditional", "missing_scores: mean", "scale: true"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_runs_with_missing_values_are_measured_with_scores_t2_and_q(tmp_path, missing, settings, dtype):
    lines = [f"preprocess: {{missing: {missing}, {settings}}}", "model: {n_components: 3, whiten: true}"]
    found = verify_run(run_of(tmp_path, with_holes(dtype), *lines, output="report: false, diagnostics: true"))
    assert not found.failed, [check for check in found.checks if check.holds is False]
    told = {check.name: check for check in found.checks}
    expected = ("missing values", "scores", "t2", "q", "total variance", "variances of components", "orthonormality")
    assert all(told[name].holds for name in expected)
    assert told["missing values"].measured == np.isnan(with_holes()).sum()


@pytest.mark.parametrize("missing", ["mean", "pairwise"])
def test_what_was_changed_in_a_run_with_missing_values_is_named(tmp_path, missing):
    values = with_holes()
    lines = [f"preprocess: {{missing: {missing}}}", "model: {n_components: 3}"]
    run = run_of(tmp_path, values, *lines, output="report: false, diagnostics: true")
    row = int(np.flatnonzero(np.isnan(values).any(axis=1))[0])
    for name, place in (("q", row), ("t2", row), ("scores", (row, 1))):
        array = zarr.open_array(run / "scores.zarr" / name, mode="r+")
        before = array[place]
        array[place] = 1.001 * before + 0.01
        assert name in verify_run(run).failed
        array[place] = before
    assert not verify_run(run).failed
    changed = values.copy()
    changed[row, np.isnan(values[row])] = 0.0
    zarr.open_array(str(tmp_path / "x.zarr"), mode="r+")[...] = changed
    assert {"missing values", "mean", "variances of components"} <= set(verify_run(run).failed)
