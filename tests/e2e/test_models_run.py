"""Runs of several models: each directory is what a run of the model alone leaves, from one reading for all."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from facade import charts_drawn, verify_run
from pages import marks_of
from stores import Command

import streampca as sp
from streampca.errors import ModelError, OutputError

pytestmark = pytest.mark.numerical
N, D = 2000, 10
MODELS = """
models:
  raw: {n_components: 3}
  z: {n_components: 4, preprocess: {scale: true}}
  rbf: {kind: kernel_pca, n_components: 2, method: nystrom, n_landmarks: 40}
"""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("models") / "x.zarr"
    rows = rng.standard_normal((N, D)) * np.arange(1, D + 1)
    zarr.create_array(path, shape=rows.shape, chunks=(100, D), dtype="f8")[:] = rows
    return path


def configuration(store: Path, directory: Path, models: str = MODELS, output: str = "") -> Path:
    path = directory / "config.yaml"
    path.write_text(f"source: {{path: {store}}}\noutput: {{directory: {directory / 'run'}{output}}}\n{models}")
    return path


@pytest.fixture(scope="module")
def finished(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return sp.run(configuration(store, tmp_path_factory.mktemp("finished")))


@pytest.mark.slow
def test_each_model_is_a_run_with_the_bits_of_a_fit_alone(finished: Any, store: Path) -> None:
    assert list(finished.runs) == list(finished.manifest["models"]) == ["raw", "z", "rbf"]
    assert finished.manifest["passes"] == 2
    assert finished.manifest["reads"]["fit"]["bytes"] == 2 * 8 * N * D
    assert finished.manifest["reads"]["scores"]["readings"] == 1
    assert finished.manifest["reads"]["scores"]["bytes"] == 8 * N * D
    for name, made in (("raw", {"n_components": 3}), ("z", {"n_components": 4, "scale": True})):
        run, expected = finished.runs[name], sp.PCA(**made).fit(store)
        np.testing.assert_array_equal(run.model.components_, expected.components_)
        scores = zarr.open_group(run.directory / "scores.zarr", mode="r")["scores"][:]
        np.testing.assert_array_equal(scores, np.asarray(expected.transform(store)))
        assert (run.directory / "report.html").exists()
    assert finished.runs["rbf"].model.n_components_ == 2
    with pytest.raises(ModelError, match="holds several models: use runs"):
        _ = finished.model
    with pytest.raises(ModelError, match=r"holds several models: expected the directory of one of them, .*models/raw"):
        sp.load(finished.directory)


@pytest.mark.slow
def test_commands_take_the_run_and_its_configuration(finished: Any, store: Path, tmp_path: Path, call: Command) -> None:
    config = configuration(store, tmp_path)
    assert "models raw, z, rbf of" in call("check", config).out
    planned = json.loads(call("plan", config, "--json").out)
    assert list(planned["models"]) == ["raw", "z", "rbf"]
    assert planned["together"]["passes"] == 2
    assert "3 models from the same readings" in call("plan", config).out
    assert "run of several models" in call("inspect", finished.directory).out
    assert call("report", finished.directory).out.count("report.html") == 4
    page = (finished.directory / "report.html").read_text()
    assert all(f'href="models/{name}/report.html"' in page for name in ("raw", "z", "rbf"))
    assert call("run", finished.directory / "config.yaml", "--resume", "--quiet").status == 0


@pytest.mark.slow
def test_the_page_compares_the_models(finished: Any, call: Command) -> None:
    with charts_drawn():
        call("report", finished.directory)
    page = (finished.directory / "report.html").read_text(encoding="utf-8")
    rows: dict[str, list[list[str]]] = {name: [] for name in finished.runs}
    for line in re.findall(r"<tr><th scope=\"row\">(.*?)</tr>", page, re.DOTALL):
        name, *cells = re.sub(r"<[^>]*>", "\0", line).replace("\u00a0", " ").replace("\0\0", "\0").split("\0")
        if name or cells:
            cells = [cell for cell in (name, *cells) if cell]
            rows.get(cells[0], []).append(cells[1:])
    (raw, shares), (z, shares_of_z), (rbf, _) = rows.values()
    assert [raw[0], z[0], rbf[0]] == ["PCA", "PCA", "KernelPCA"]
    assert raw[-1] == z[-1] == "exact"
    assert shares[3:] == ["–"]
    ratios = finished.runs["z"].model.explained_variance_ratio_
    assert [float(cell.split()[0]) for cell in shares_of_z] == pytest.approx(100 * ratios, abs=0.06)
    charts = marks_of(page)
    assert len(charts["Share of each component"]) >= 3 + 4 + 2
    assert {"First two components, raw", "First two components, z", "First two components, rbf"} <= set(charts)
    for title in ("Component 1, raw", "Component 1, z", "Certificate of raw", "Certificate of rbf"):
        assert title in page


@pytest.mark.slow
def test_verification_measures_every_model_and_notices_changes(finished: Any, tmp_path: Path, call: Command) -> None:
    done = call("verify", finished.directory, "--quiet", "--json")
    assert done.status == 0
    runs = json.loads(done.out)["runs"]
    assert [Path(run["directory"]).name for run in runs] == ["raw", "z", "rbf"]
    assert all(run["holds"] for run in runs)
    copy = tmp_path / "copy"
    shutil.copytree(finished.directory, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["models"]["z"]["result"]["total_variance"] *= 2
    (copy / "manifest.json").write_text(json.dumps(manifest))
    changed = call("verify", copy, "--quiet")
    assert changed.status == 5
    assert "manifest of all models" in changed.err
    shutil.rmtree(copy)
    shutil.copytree(finished.directory, copy)
    inner = copy / "models" / "z" / "manifest.json"
    inner.write_text(inner.read_text().replace('"n_components": 4', '"n_components": 5'))
    assert verify_run(copy / "models" / "z").failed


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "report", "inspect"])
def test_a_model_outside_of_the_run_is_refused(command: str, finished: Any, tmp_path: Path, call: Command) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished.directory, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["models"]["../../elsewhere"] = manifest["models"].pop("z")
    (copy / "manifest.json").write_text(json.dumps(manifest))
    refused = call(command, copy)
    assert refused.status == 5
    assert "its manifest.json names no models, or wrongly" in refused.err


def test_a_finished_run_is_replaced_only_when_asked(store: Path, tmp_path: Path) -> None:
    models = "models: {raw: {n_components: 2}}\n"
    sp.run(configuration(store, tmp_path, models, ", report: false, scores: false"))
    with pytest.raises(OutputError, match=r"holds a finished run of several models already: set output.overwrite"):
        sp.run(configuration(store, tmp_path, models))
    again = sp.run(configuration(store, tmp_path, models, ", report: false, overwrite: true"))
    assert (again.directory / "models" / "raw" / "scores.zarr").exists()
    (again.directory / "models" / "raw" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"holds models/raw/notes.txt, which streampca did not write"):
        sp.run(configuration(store, tmp_path, models, ", report: false, overwrite: true"))


class _PowerCutError(BaseException):
    """Stops a run as a signal would."""


def test_a_stopped_run_goes_on_to_the_same_bits(
    store: Path, tmp_path: Path, all_checkpoints: None, blocks_of: Any
) -> None:
    blocks_of(100)
    models = "models: {raw: {n_components: 3}, z: {n_components: 4, preprocess: {scale: true}}}\n"
    config, seen = configuration(store, tmp_path, models, ", report: false, scores: false"), []

    def stop_late(step: Any) -> None:
        if step.rows > N // 2:
            raise _PowerCutError

    with pytest.raises(_PowerCutError):
        sp.run(config, progress=stop_late)
    again = sp.run(config, resume=True, progress=lambda step: seen.append(step.rows))
    assert seen[0] > 100
    assert again.manifest["resumed"]["attempts"] == 2
    expected = sp.PCA(4, scale=True).fit(store)
    np.testing.assert_array_equal(again.runs["z"].model.components_, expected.components_)


@pytest.mark.slow
def test_scores_that_were_stopped_go_on_to_the_same_bits(
    store: Path, tmp_path: Path, all_checkpoints: None, blocks_of: Any
) -> None:
    blocks_of(100)
    models = {
        "raw": {"n_components": 3},
        "z": {"n_components": 4, "preprocess": {"scale": True}},
        "trend": {"n_components": 2, "preprocess": {"remove": {"trend": 1}}},
        "wide": {"n_components": 2, "solver": "gram"},
    }
    text = f"models: {json.dumps(models)}\n"
    config, seen = configuration(store, tmp_path, text, ", report: false, diagnostics: false"), []

    def stop_late(step: Any) -> None:
        if step.phase == "scores" and step.rows > N // 2:
            raise _PowerCutError

    with pytest.raises(_PowerCutError):
        sp.run(config, progress=stop_late)
    (kept,) = tmp_path.glob("run.part-*")
    assert {path.parent.name for path in kept.glob("models/*/*")} == {"raw", "z", "trend"}
    again = sp.run(config, resume=True, progress=lambda step: seen.append((step.phase, step.rows)))
    assert next(rows for phase, rows in seen if phase == "scores") > N // 4
    assert again.manifest["reads"]["scores"]["readings"] == 1
    for name, run in again.runs.items():
        own = tmp_path / f"{name}.yaml"
        entry = dict(models[name])
        alone = {"source": {"path": str(store)}, "preprocess": entry.pop("preprocess", {}), "model": entry}
        own.write_text(json.dumps(alone | {"output": {"directory": str(tmp_path / name), "report": False}}))
        found, expected = (
            zarr.open_group(each.directory / "scores.zarr", mode="r")["scores"][:] for each in (run, sp.run(own))
        )
        np.testing.assert_array_equal(found, expected, err_msg=name)
    assert not list(tmp_path.glob("run.part-*"))


def test_the_plan_has_the_memory_of_all_scores(store: Path, tmp_path: Path, call: Command) -> None:
    models = "models: {raw: {n_components: 9}, z: {n_components: 9, preprocess: {scale: true}}}\n"
    planned = json.loads(call("plan", configuration(store, tmp_path, models, ", report: false"), "--json").out)
    assert "scores of all models are written from one more reading" in json.dumps(planned)


@pytest.mark.slow
def test_models_of_some_features_share_the_readings(store: Path, tmp_path: Path, call: Command) -> None:
    rows = np.asarray(zarr.open_array(store, mode="r")[:])
    group = zarr.open_group(tmp_path / "two.zarr", mode="w")
    for name, part in (("t", rows[:, :6]), ("p", rows[:, 6:])):
        names = ("time", f"place_{name}")
        array = group.create_array(
            name, shape=part.shape, chunks=(500, part.shape[1]), dtype="f8", dimension_names=names
        )
        array[:] = part
    np.save(tmp_path / "m.npy", np.arange(D) % 2 == 0)
    models = {
        "all": {"n_components": 3},
        "t": {"n_components": 2, "source": {"variables": ["t"]}, "preprocess": {"scale": True}},
        "even": {
            "n_components": 2,
            "source": {"mask": str(tmp_path / "m.npy")},
            "preprocess": {"remove": {"trend": 1}},
        },
    }
    source = {"path": str(tmp_path / "two.zarr"), "variables": ["t", "p"]}
    output = {"directory": str(tmp_path / "run"), "report": False}
    config = tmp_path / "c.yaml"
    statistics = {"sampling_errors": 8}
    config.write_text(json.dumps({"source": source, "models": models, "output": output, "statistics": statistics}))
    run = sp.run(config)
    assert run.manifest["passes"] == 2  # the second for the sampling errors of the one that removes a trend
    assert run.manifest["reads"]["fit"]["bytes"] == 2 * run.manifest["reads"]["scores"]["bytes"] == 2 * 8 * N * D
    assert run.manifest["source"]["shape"] == [N, D]
    for name, entry in models.items():
        own = {key: value for key, value in entry.items() if key in ("source", "preprocess")}
        alone = {"source": source | own.get("source", {}), "preprocess": own.get("preprocess", {})}
        model = {"n_components": entry["n_components"]}
        document = alone | {"model": model, "output": {"directory": str(tmp_path / name), "report": False}}
        document["statistics"] = statistics
        (tmp_path / "alone.yaml").write_text(json.dumps(document))
        expected, found = sp.run(tmp_path / "alone.yaml"), run.runs[name]
        np.testing.assert_array_equal(found.model.components_, expected.model.components_)
        errors = (each.model.sampling_error_.eigenvalues for each in (found, expected))
        np.testing.assert_allclose(*errors, rtol=1e-9)
        scores = [zarr.open_array(each.directory / "scores.zarr" / "scores", mode="r")[:] for each in (found, expected)]
        np.testing.assert_array_equal(*scores)
        assert found.manifest["source"]["shape"] == expected.manifest["source"]["shape"]
    assert call("verify", run.directory, "--quiet").status == 0
    text = (run.directory / "config.yaml").read_text()
    again = sp.run(run.directory / "config.yaml", overrides=["output.overwrite=true"])
    assert (again.directory / "config.yaml").read_text() == text.replace("overwrite: false", "overwrite: true")
    models["t"]["source"] = {"path": "other.zarr"}
    config.write_text(json.dumps({"source": source, "models": models, "output": output}))
    refused = call("check", config)
    assert refused.status == 2
    assert "models.t.source.path: all models read the same rows: expected some of variables, mask" in refused.err


def test_common_weights_keep_the_reading_common(store: Path, tmp_path: Path) -> None:
    weights = np.random.default_rng(1).uniform(size=N)
    np.save(tmp_path / "w.npy", weights)
    models = f"preprocess: {{sample_weight: {tmp_path / 'w.npy'}}}\nmodels: {{raw: {{n_components: 3}}, z: {{preprocess: {{scale: true}}}}}}\n"
    run = sp.run(configuration(store, tmp_path, models, ", report: false, scores: false"))
    assert run.manifest["passes"] == 1


@pytest.mark.slow
def test_a_configuration_written_by_a_run_means_the_same(store: Path, tmp_path: Path) -> None:
    first = sp.run(configuration(store, tmp_path, output=", report: false"))
    text = (first.directory / "config.yaml").read_text()
    again = sp.run(first.directory / "config.yaml", overrides=[f"output.directory={tmp_path / 'again'}"])
    assert (again.directory / "config.yaml").read_text() == text.replace(str(first.directory), str(again.directory))
    assert list(again.runs) == list(first.runs)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("models: {}", "models: found an empty mapping, allowed: a mapping of names to models"),
        ("models: {a: 3}", "models.a: found 3, allowed: a mapping with the keys of model, and preprocess"),
        (
            "models: {a: {n_componets: 3}}",
            "in models.a: model.n_componets is not a key of model: did you mean n_components?",
        ),
        ("models: {a: {preprocess: {scal: true}}}", "in models.a: preprocess.scal is not a key of preprocess"),
        ('models: {"../a": {}}', "models: found the name the text '../a', allowed: letters, digits, dots, _ and -"),
        ("models: {a: {}}\nmodel: {n_components: 3}", "model and models: give one of them"),
        ("models: {a: {}}\noutput: {anndata: true}", "output.anndata cannot be combined with models"),
    ],
)
def test_wrong_models_are_refused_on_one_line(models: str, message: str, tmp_path: Path, call: Command) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"source: {{path: x.zarr}}\n{models}\n")
    refused = call("check", path)
    assert refused.status == 2
    assert message in refused.err
    assert refused.err.count("\n") == 1
