"""`streampca update`: only new files are read, the run is that of a full reading, and everything else is refused by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from facade import Lock, StopSignalError
from fragments import parquet_table, write_hdf5, write_npy, write_parquet
from stores import Command, picture

import streampca as sp
from streampca import update
from streampca.errors import NotAvailableError
from streampca.sources.files.npy import NpyReader

ROWS = np.random.default_rng(5).standard_normal((6000, 8)) * np.arange(9, 1, -1) + 3
CUTS = (0, 1000, 1100, 2500, 4000, 6000)
LATER = (1, 4)
"""Numbers of the files that come after the run: one between the others, one behind them."""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def write(kind: str, index: int) -> None:
    """Write file `index` of the rows as ``data/p-<index>``."""
    rows, stop = ROWS[CUTS[index] : CUTS[index + 1]], CUTS[index + 1]
    if kind == "npy":
        np.save(f"data/p-{index}.npy", rows)
    elif kind == "hdf5":
        write_hdf5(Path(f"data/p-{index}.h5"), rows)
    else:
        ids = [f"r{row}" for row in range(CUTS[index], stop)]
        write_parquet(Path(f"data/p-{index}.parquet"), parquet_table(rows, "fixed", ids), 700)


def configure(**sections: Any) -> Path:
    """Write a configuration and return its path; `sections` are merged into it."""
    document: dict[str, Any] = {
        "source": {"path": "data"},
        "model": {"n_components": 3},
        "output": {"directory": "runs/job", "report": False, "scores": False, "state": True},
    }
    for name, section in sections.items():
        document[name] = document.get(name, {}) | section
    Path("c.yaml").write_text(yaml.safe_dump(document))
    return Path("c.yaml")


def make(kind: str, **sections: Any) -> None:
    """Make a run of all files but the later ones in the working directory, and write these."""
    Path("data").mkdir()
    for index in {*range(5)} - {*LATER}:
        write(kind, index)
    sp.run(configure(**sections))
    for index in LATER:
        write(kind, index)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a run without scores and report, which tests copy."""
    place = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        make("npy")
    return place


@pytest.fixture
def finished(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that has a run in the working directory, to which files were added."""

    def made(kind: str = "npy", **sections: Any) -> None:
        monkeypatch.chdir(tmp_path)
        if kind == "npy" and not sections:
            shutil.copytree(plain, tmp_path, dirs_exist_ok=True)
        else:
            make(kind, **sections)

    return made


OF_KIND: dict[str, dict[str, Any]] = {
    "npy": {},
    "hdf5": {},
    "parquet": {"source": {"columns": "v", "id_column": "id"}},
}


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("kind", OF_KIND)
def test_an_update_makes_the_run_of_all_rows_and_reads_the_new_ones(kind, finished, call):
    finished(kind, **OF_KIND[kind], output={"report": kind == "npy", "scores": True})
    said = call.quietly("update", "runs/job").out
    assert "2,100 new rows of 2 files added, 6,000 in all" in said.replace("\n ", "")
    full = sp.run("c.yaml", overrides=["output.directory=runs/full", "output.report=false"])
    model, expected = sp.load("runs/job"), full.model
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-10)
    assert model.n_samples_seen_ == 6000
    manifest = json.loads(Path("runs/job/manifest.json").read_text())
    assert manifest["updates"] == [
        {
            "n_samples_before": 3900,
            "n_samples_added": 2100,
            "files": [
                fragment.name
                for fragment in sp.open("data", **OF_KIND[kind].get("source", {})).fragments
                if fragment.n_rows in (100, 2000)
            ],
            "bytes": 2100 * 64,
            "stored_bytes": manifest["reads"]["fit"]["stored_bytes"],
        }
    ]
    assert manifest["reads"]["fit"]["bytes"] == 2100 * 64
    assert manifest["source"] == full.manifest["source"]
    assert json.loads(Path("runs/job/plan.json").read_text())["n_samples"] == 6000
    scores, whole = (zarr.open_group(f"runs/{name}/scores.zarr", mode="r") for name in ("job", "full"))
    np.testing.assert_allclose(scores["scores"][:], whole["scores"][:], atol=1e-9)
    if kind == "npy":
        samples = zarr.open_group("runs/job/samples.zarr", mode="r")
        np.testing.assert_array_equal(samples["rows"][:], ROWS[samples["index"][:]])
        assert len(np.unique(samples["index"][:])) == 2000
        assert {int(np.searchsorted(CUTS, i, "right")) for i in samples["index"][:]} == {1, 2, 3, 4, 5}
    assert call.quietly("verify", "runs/job").status == 0
    assert sp.run("c.yaml", resume=True).manifest == manifest
    before = picture(Path())
    assert "is up to date: it has all 6,000 rows" in call.quietly("update", "runs/job").out.replace("\n ", "")
    assert picture(Path()) == before


def test_rows_of_files_that_were_read_before_are_not_read(finished, monkeypatch):
    finished()
    read, own = [], NpyReader.read
    monkeypatch.setattr(NpyReader, "read", lambda self, *a: (read.append(self.place.path.name), own(self, *a))[1])
    assert update("runs/job").n_rows == 2100
    assert sorted(set(read)) == ["p-1.npy", "p-4.npy"]


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"solver": "qr"}},
        {"preprocess": {"scale": True}},
        {"preprocess": {"missing": "pairwise"}},
        {"model": {"n_components": 0.7}},
        {"source": {"mask": "mask.npy"}, "preprocess": {"feature_weight": "weight.npy"}},
    ],
    ids=lambda sections: next(iter(sections)),
)
def test_updates_of_other_models_are_those_of_a_full_run(sections, tmp_path, finished):
    np.save(tmp_path / "mask.npy", np.arange(8) != 2)
    np.save(tmp_path / "weight.npy", np.arange(1.0, 8))
    finished(**sections)
    assert update("runs/job").n_rows == 2100
    np.save("data/p-7.npy", ROWS[:40] * 2)
    second = update("runs/job").run
    expected = sp.run("c.yaml", overrides=["output.directory=runs/full"]).model
    np.testing.assert_allclose(second.model.explained_variance_, expected.explained_variance_, rtol=1e-12)
    assert [entry["n_samples_added"] for entry in second.manifest["updates"]] == [2100, 40]
    assert second.model.n_components_ == expected.n_components_


ANALYSES: dict[str, tuple[dict[str, Any], float, tuple[str, ...]]] = {
    "mca": ({"first": 5}, 1e-12, ("singular_values_", "x_components_", "y_components_", "x_patterns_", "y_patterns_")),
    "cca": ({"first": 5}, 1e-12, ("correlations_", "x_components_", "y_components_", "x_patterns_", "y_patterns_")),
    # Factors are where an iteration stops, which amplifies the rounding of a covariance.
    "factor_analysis": ({}, 1e-7, ("components_", "noise_variance_")),
}
"""Parameters, what the results of an update and of a full run may differ by, and their names."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ANALYSES)
def test_updates_of_analyses_are_those_of_a_full_run(kind, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    more, apart, attributes = ANALYSES[kind]
    mixed = np.array([[1, 0.5, 0, 0, 0, 0.4, 0, 0], [0, 0, 1, 0, 0.6, 0, -0.7, 0]])
    rows = ROWS + 9 * np.random.default_rng(8).standard_normal((len(ROWS), 2)) @ mixed
    write_npy(Path("data"), rows[:4000], CUTS[:5])
    model = {"kind": kind, "n_components": 2, **more}
    sp.run(configure(model=model, output={"scores": True}))
    np.save("data/part-4.npy", rows[4000:])
    said = call.quietly("update", "runs/job")
    assert "2,000 new rows of 1 files added, 6,000 in all" in said.out.replace("\n ", ""), said.err
    full = sp.run("c.yaml", overrides=["output.directory=runs/full", "output.report=false"])
    updated: Any = sp.load("runs/job")
    for name in attributes:
        expected = getattr(full.model, name)
        np.testing.assert_allclose(getattr(updated, name), expected, rtol=0, atol=apart * np.abs(expected).max())
    np.testing.assert_allclose(updated.mean_, full.model.mean_, rtol=1e-12)
    scores, whole = (zarr.open_group(f"runs/{name}/scores.zarr", mode="r") for name in ("job", "full"))
    np.testing.assert_allclose(scores["scores"][:], whole["scores"][:], atol=100 * apart)
    assert call.quietly("verify", "runs/job").status == 0
    assert update("runs/job").n_rows == 0


KEPT: dict[str, dict[str, Any]] = {
    "plain": {},
    "qr": {"model": {"solver": "qr"}},
    "sketch": {"model": {"solver": "sketch"}},
    "sketch with holes": {"model": {"solver": "sketch"}, "preprocess": {"missing": "pairwise"}},
    "sketch that leaves rows out": {"model": {"solver": "sketch"}, "preprocess": {"missing": "drop_rows"}},
    "conversion": {"model": {"solver": "sketch", "recovery": "conversion"}},
    "mean": {"preprocess": {"missing": "mean", "scale": True}},
    "sampling errors": {"statistics": {"sampling_errors": 5}},
    "forgetting": {"model": {"forgetting": 0.99}},
    "cca": {"model": {"kind": "cca", "first": 3}},
}
NOT_KEPT: dict[str, tuple[dict[str, Any], str]] = {
    "remove": ({"preprocess": {"remove": {"trend": 1}}}, "remove keeps no state"),
    "mca": ({"model": {"kind": "mca", "first": 3}, "preprocess": {"remove": {"trend": 1}}}, "remove keeps no state"),
    "means first": (
        {"model": {"solver": "sketch"}, "preprocess": {"missing": "mean"}},
        "missing='mean' keeps no state",
    ),
    "scales first": (
        {"model": {"solver": "sketch", "recovery": "conversion"}, "preprocess": {"scale": True}},
        "recovery='conversion' with scale=True",
    ),
    "gram": ({"model": {"solver": "gram"}}, "use one of covariance, qr, sketch"),
    "adaptive": ({"model": {"solver": "adaptive"}}, "solver='adaptive' keeps no state"),
    "cross-validation": ({"model": {"n_components": "cross_validation"}}, "use fit, and then the number"),
    "rotation": ({"model": {"rotation": "varimax"}}, "model.rotation keeps no state"),
    "kernel PCA": ({"model": {"kind": "kernel_pca"}}, "kernel PCA keeps no state"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_a_state_that_is_asked_for_is_written(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", ROWS[:400])
    finished = sp.run(configure(source={"path": "x.npy"}, **KEPT[name]))
    assert (finished.directory / "model.zarr/state/zarr.json").is_file()
    assert update(finished.directory).n_rows == 0


@pytest.mark.parametrize("name", NOT_KEPT)
def test_a_state_that_a_run_would_not_keep_is_refused_before_anything_is_read(name, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    sections, words = NOT_KEPT[name]
    configure(source={"path": "none.npy"}, **sections)
    for command in ("check", "plan", "run"):
        call.quietly(command, "c.yaml").refused(2, "output.state: true, but ", words)
    models = {"one": sections.get("model", {}) | {key: value for key, value in sections.items() if key != "model"}}
    document = {"source": {"path": "none.npy"}, "models": models, "output": {"directory": "several", "state": True}}
    Path("several.yaml").write_text(yaml.safe_dump(document))
    for command in ("check", "plan", "run"):
        call.quietly(command, "several.yaml").refused(2, "models.one: output.state: true, but ", words)
    np.save("none.npy", ROWS[:300])
    sp.run("c.yaml", overrides=["output.state=false"])
    call.quietly("update", "runs/job").refused(2, "runs/job cannot be updated: ", words)


@pytest.mark.parametrize("several", [False, True])
def test_a_plan_says_that_its_solver_keeps_no_state(several, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    np.save("wide.npy", np.random.default_rng(0).normal(size=(20, 1200)))
    configure(source={"path": "wide.npy"})
    if several:
        document = yaml.safe_load(Path("c.yaml").read_text())
        document["models"] = {"one": document.pop("model")}
        Path("c.yaml").write_text(yaml.safe_dump(document))
    assert call.quietly("check", "c.yaml").status == 0
    for command in ("plan", "run"):
        call.quietly(command, "c.yaml").refused(2, "models.one: " if several else "", "solver='gram' keeps no state")


@pytest.mark.slow
def test_a_file_that_was_renamed_or_moved_is_known(finished):
    finished()
    os.rename("data/p-0.npy", "data/p-9.npy")
    assert update("runs/job").n_rows == 2100
    os.rename("data", "elsewhere")
    assert update("runs/job", overrides=["source.path=elsewhere"]).n_rows == 0
    np.save("elsewhere/p-5.npy", ROWS[:7] + 1)
    assert update("runs/job", overrides=["source.path=[elsewhere]"]).files == ("elsewhere/p-5.npy",)
    assert update("runs/job").n_rows == 0  # the new place is that of the run


def _content() -> None:
    status, rows = os.stat("data/p-2.npy"), np.load("data/p-2.npy")
    rows[700] += 1
    np.save("data/p-2.npy", rows)
    assert os.stat("data/p-2.npy").st_size == status.st_size


CHANGES: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "content": (_content, ("data/p-2.npy was changed since the run", "put it back")),
    "time": (lambda: os.utime("data/p-0.npy", ns=(1, 1)), ("data/p-0.npy was changed", "modification time")),
    "rows": (lambda: np.save("data/p-3.npy", ROWS[:9]), ("data/p-3.npy was changed", "1,500 rows", "has 9")),
    "removed": (lambda: os.remove("data/p-3.npy"), ("data/p-3.npy is missing", "1,500 rows")),
    "copied": (lambda: shutil.copy("data/p-3.npy", "data/p-8.npy"), ("p-8.npy has the same content as data/p-3.npy",)),
    "narrow": (lambda: np.save("data/p-8.npy", ROWS[:, :5]), ("p-8.npy has 5 columns",)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_files_that_changed_are_refused_by_name_and_the_run_is_untouched(change, finished, call):
    finished()
    CHANGES[change][0]()
    before = picture(Path())
    call.quietly("update", "runs/job").refused(5, *CHANGES[change][1])
    assert picture(Path()) == before


@pytest.mark.parametrize(
    ("sections", "status", "word"),
    [
        ({"output": {"state": False}}, 2, "run it once more with output.state: true"),
        (
            {"model": {"kind": "kernel_pca"}, "output": {"state": False}, "source": {"path": "data/p-0.npy"}},
            2,
            "kernel PCA keeps no state",
        ),
        ({"preprocess": {"sample_weight": "w.npy"}}, 2, "sample_weight cannot be updated"),
        ({"source": {"mask": "observed"}}, 2, "source.mask: observed cannot be updated"),
        ({"model": {"forgetting": 0.999}}, 2, "model.forgetting cannot be updated"),
    ],
)
def test_runs_that_cannot_be_continued_are_refused(sections, status, word, tmp_path, finished, call):
    np.save(tmp_path / "w.npy", np.ones(3900))
    finished(**sections)
    before = picture(Path())
    call.quietly("update", "runs/job").refused(status, word)
    assert picture(Path()) == before


def test_wrong_usage_is_refused(finished, call):
    finished()
    call.quietly("update", "runs/none").refused(5, "no such run")
    call.quietly("update", "data").refused(5, "not a finished run of one model or of several")
    call.quietly("update", "runs/job", "--set", "model.n_components=4").refused(2, "--set model.n_components")
    with Lock(Path("runs/job"), "0123456789abcdef"):
        call.quietly("update", "runs/job").refused(6, "runs/job")


def test_a_run_with_sampling_errors_is_run_again_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_npy(Path("data"), ROWS[:4000], CUTS[:5])
    sp.run(configure(statistics={"sampling_errors": 20}))
    np.save("data/part-4.npy", ROWS[4000:])
    with pytest.raises(NotAvailableError, match="run again in full"):
        update("runs/job")


def test_forgetting_goes_on_where_new_files_come_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_npy(Path("data"), ROWS[:4000], CUTS[:5])
    sp.run(configure(model={"forgetting": 0.999}))
    np.save("data/part-4.npy", ROWS[4000:])
    updated = update("runs/job").run.model
    expected = sp.run("c.yaml", overrides=["output.directory=runs/full"]).model
    np.testing.assert_allclose(updated.explained_variance_, expected.explained_variance_, rtol=1e-12)


@pytest.mark.parametrize("phase", ["fit", "scores"])
def test_an_update_that_was_stopped_goes_on_and_counts_nothing_twice(phase, finished, stop_at_scores):
    finished(output={"scores": True}, checkpoint={"every": "1ms"}, resources={"threads": 1})
    before = picture(Path("runs/job"))

    def stop(progress: Any) -> None:
        if progress.phase == phase:
            raise StopSignalError(15)

    with pytest.raises(StopSignalError):
        update("runs/job", progress=stop)
    assert picture(Path("runs/job")) == before
    notices: list[str] = []
    result = update("runs/job", notice=notices.append)
    assert (result.n_rows, result.run.model.n_samples_seen_) == (2100, 6000)
    if phase == "scores":
        assert result.run.manifest["resumed"] is not None
        assert "resuming the stopped run" in notices[0]
    assert os.listdir("runs") == ["job"]
    np.testing.assert_allclose(
        result.run.model.explained_variance_, np.linalg.eigvalsh(np.cov(ROWS.T))[::-1][:3], rtol=1e-12
    )


def test_a_stopped_update_whose_files_are_gone_leaves_nothing(finished, stop_at_scores):
    finished(output={"scores": True}, checkpoint={"every": "1ms"})
    before = picture(Path("runs/job"))
    with pytest.raises(StopSignalError):
        update("runs/job", progress=stop_at_scores)
    for index in LATER:
        Path(f"data/p-{index}.npy").unlink()
    notices: list[str] = []
    assert update("runs/job", notice=notices.append).n_rows == 0
    assert ("no longer has new rows" in notices[0], len(notices)) == (True, 1)
    assert (os.listdir("runs"), picture(Path("runs/job"))) == (["job"], before)


def test_outputs_that_are_set_without_new_rows_are_noticed(finished, call):
    finished()
    call.quietly("update", "runs/job")
    again = call.quietly("update", "runs/job", "--set", "output.scores=true", "--set", "output.report=false")
    assert "--set output.scores has no effect: nothing is new" in again.err.replace("\n", " ")
    assert "output.report" not in again.err


def test_a_stopped_update_starts_over_when_more_files_have_come(finished, stop_at_scores, call):
    finished(output={"scores": True}, checkpoint={"every": "1ms"})
    with pytest.raises(StopSignalError):
        update("runs/job", progress=stop_at_scores)
    call.quietly("run", "c.yaml", "--set", "output.overwrite=true").refused(6, "runs/job.checkpoint")
    np.save("data/p-6.npy", ROWS[:50] * 2)
    notices: list[str] = []
    result = update("runs/job", notice=notices.append)
    assert "starting over" in notices[0]
    assert (result.n_rows, result.run.model.n_samples_seen_) == (2150, 6050)
    assert os.listdir("runs") == ["job"]


MODELS = {
    "raw": {"n_components": 3},
    "z": {"n_components": 2, "preprocess": {"scale": True}},
    "some": {"n_components": 2, "source": {"columns": ["b", "d", "e"]}},
    "qr": {"n_components": 3, "solver": "qr"},
}


@pytest.fixture(params=[MODELS])
def several(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of several models in the working directory, to whose table files were added."""
    import pyarrow

    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()

    def write_named(index: int) -> None:
        rows = ROWS[CUTS[index] : CUTS[index + 1]]
        write_parquet(Path(f"data/p-{index}.parquet"), pyarrow.table(dict(zip("abcdefgh", rows.T, strict=True))), 700)

    for index in {*range(5)} - {*LATER}:
        write_named(index)
    configure(output={"scores": True}, checkpoint={"every": "1ms"})
    document = yaml.safe_load(Path("c.yaml").read_text())
    del document["model"]
    Path("c.yaml").write_text(yaml.safe_dump(document | {"models": request.param}))
    sp.run("c.yaml")
    for index in LATER:
        write_named(index)


@pytest.mark.slow
def test_an_update_of_several_models_reads_the_new_rows_once_for_all(several, call):
    said = call.quietly("update", "runs/job", "--set", "output.scores=false").out
    assert "2,100 new rows of 2 files added, 6,000 in all" in said.replace("\n ", "")
    manifest = json.loads(Path("runs/job/manifest.json").read_text())
    assert (manifest["passes"], manifest["reads"]["fit"]["bytes"]) == (1, 2100 * 64)
    assert manifest["updates"][0]["n_samples_added"] == 2100
    full = sp.run("c.yaml", overrides=["output.directory=runs/full", "output.scores=false"])
    for name in MODELS:
        updated, expected = sp.load(f"runs/job/models/{name}"), full.runs[name].model
        np.testing.assert_allclose(updated.explained_variance_, expected.explained_variance_, rtol=1e-12)
        np.testing.assert_allclose(np.abs(updated.components_), np.abs(expected.components_), atol=1e-10)
        assert updated.n_samples_seen_ == 6000
        of_model = json.loads(Path(f"runs/job/models/{name}/manifest.json").read_text())
        assert [entry["n_samples_added"] for entry in of_model["updates"]] == [2100]
    assert call.quietly("verify", "runs/job").status == 0
    before = picture(Path("runs/job"))
    assert "is up to date: it has all 6,000 rows" in call.quietly("update", "runs/job").out.replace("\n ", "")
    assert picture(Path("runs/job")) == before


TWO = {name: MODELS[name] for name in ("raw", "z")}


@pytest.mark.slow
@pytest.mark.parametrize("several", [TWO], indirect=True, ids=["two"])
def test_an_update_of_several_models_that_was_stopped_goes_on(several, stop_at_scores):
    before = picture(Path("runs/job"))
    with pytest.raises(StopSignalError):
        update("runs/job", progress=stop_at_scores)
    assert picture(Path("runs/job")) == before
    notices: list[str] = []
    result = update("runs/job", notice=notices.append)
    assert "resuming the stopped run" in notices[0]
    assert (result.n_rows, result.run.runs["z"].model.n_samples_seen_) == (2100, 6000)
    assert os.listdir("runs") == ["job"]
    scores = zarr.open_group("runs/job/models/raw/scores.zarr", mode="r")["scores"][:]
    np.testing.assert_allclose(scores, result.run.runs["raw"].model.transform("data"), atol=1e-9)


@pytest.mark.parametrize("several", [TWO], indirect=True, ids=["two"])
def test_models_of_one_run_that_were_updated_apart_are_refused(several, call):
    assert call.quietly("update", "runs/job/models/z").status == 0
    before = picture(Path("runs"))
    call.quietly("update", "runs/job").refused(5, "its models have different rows", "models/NAME")
    assert picture(Path("runs")) == before
