"""`streampca merge` and `output.state`: models of parts become the model of all rows; what does not fit is refused in a line."""

import json

import numpy as np
import pytest
from stores import Command, config_text, make_values, picture, write_store

import streampca as sp

VALUES = make_values(900, 8) + 3
EDGES = (0, 100, 101, 500, 900)


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Command(capsys)


@pytest.fixture
def runs(tmp_path):
    """Make a run of each part, with its state."""
    directories = []
    for i, start in enumerate(EDGES[:-1]):
        rows = VALUES[start : EDGES[i + 1]]
        if len(rows) == 1:
            sp.PCA(5).partial_fit(rows)  # a single row has no model of its own to be saved
            continue
        write_store(tmp_path / f"x{i}.zarr", rows, chunks=(64, 8))
        text = config_text(
            tmp_path / f"x{i}.zarr",
            tmp_path / f"run{i}",
            "model: {n_components: 5, solver: covariance}",
            output="report: false, scores: false, state: true",
        )
        (tmp_path / f"c{i}.yaml").write_text(text)
        sp.run(tmp_path / f"c{i}.yaml")
        directories.append(tmp_path / f"run{i}")
    return directories


@pytest.mark.slow
def test_runs_of_parts_merge_to_the_model_of_all(call, runs, tmp_path):
    before = [picture(run) for run in runs]
    called = call("merge", *runs, "--out", "all.zarr")
    assert (called.status, called.err) == (0, "")
    assert "5 components of 899 x 8 from 3 models" in called.out
    assert [picture(run) for run in runs] == before
    rows = np.delete(VALUES, 100, axis=0)
    whole = sp.PCA(5).fit(rows)
    merged = sp.load(tmp_path / "all.zarr")
    np.testing.assert_allclose(merged.explained_variance_, whole.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(merged.components_, whole.components_, atol=1e-9)
    merged.partial_fit(VALUES[100:101])  # and goes on
    np.testing.assert_allclose(merged.explained_variance_, sp.PCA(5).fit(VALUES).explained_variance_, rtol=1e-12)


@pytest.mark.slow
def test_merged_models_merge_again_as_json(call, runs):
    assert call("merge", *runs[:2], "--out", "some.zarr").status == 0
    called = call("merge", "some.zarr", runs[2], "--out", "all.zarr", "--json")
    assert json.loads(called.out) == {
        "format_version": 1,
        "path": "all.zarr",
        "models": 2,
        "n_samples": 899,
        "components": [5, 8],
    }
    assert call("merge", runs[0], "--out", "one.zarr").status == 0


@pytest.mark.slow
def test_an_existing_model_is_replaced_only_when_asked(call, runs, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("keep")
    call("merge", *runs, "--out", "mine").refused(6, "not a model of streampca", "untouched")
    call("merge", *runs, "--out", "mine", "--overwrite").refused(6, "untouched")
    assert call("merge", *runs[:2], "--out", "all.zarr").status == 0
    before = picture(tmp_path / "all.zarr")
    call("merge", *runs, "--out", "all.zarr").refused(6, "holds a finished model", "overwrite")
    assert picture(tmp_path / "all.zarr") == before
    assert call("merge", *runs, "--out", "all.zarr", "--overwrite").status == 0
    assert sp.load(tmp_path / "all.zarr").n_samples_seen_ == 899


@pytest.mark.slow
def test_what_cannot_be_merged_is_refused_in_a_line(call, runs, tmp_path):
    call("merge", runs[0], runs[0], "--out", "z").refused(2, "given twice")
    call("merge", runs[0], f"{runs[0]}/../{runs[0].name}", "--out", "z").refused(2, "given twice")
    call("merge", runs[0], "missing", "--out", "z").refused(5, "missing", "no such model")
    call("merge", runs[0], "x0.zarr", "--out", "z").refused(5, "not a streampca model")
    call("merge", "--out", "z").refused(2, "MODEL")
    call("merge", *runs).refused(2, "--out")
    sp.PCA(5, scale=True).fit(VALUES).save("scaled.zarr", state=True)
    call("merge", runs[0], "scaled.zarr", "--out", "z").refused(2, "scaled.zarr", "scale", "False", "True")
    sp.PCA(5).fit(VALUES).save("bare.zarr")
    call("merge", runs[0], "bare.zarr", "--out", "z").refused(2, "bare.zarr", "holds no state", "state=True")
    sp.PCA(5).fit(VALUES[:, :7]).save("narrow.zarr", state=True)
    call("merge", runs[0], "narrow.zarr", "--out", "z").refused(2, "narrow.zarr", "n_features", "8", "7")
    assert not (tmp_path / "z").exists()


@pytest.mark.slow
def test_inspect_tells_whether_a_state_is_there(call, runs, tmp_path):
    for path in (runs[0], runs[0] / "model.zarr"):
        assert "Covariance of 100 rows: rows can be added" in json.loads(call("inspect", path, "--json").out)["state"]
    sp.PCA(5).fit(VALUES).save("bare.zarr")
    assert json.loads(call("inspect", "bare.zarr", "--json").out)["state"].startswith("none")


@pytest.mark.slow
def test_a_run_keeps_its_state_only_when_asked(call, runs, tmp_path):
    bare = call.quietly("run", "c0.yaml", "--set", "output.state=false", "--set", "output.directory=bare")
    assert bare.status == 0
    assert not (tmp_path / "bare/model.zarr/state").exists()
    with pytest.raises(sp.errors.MergeError, match=r"output\.state: true"):
        sp.load("bare").partial_fit(VALUES)
    again = call.quietly("run", "c0.yaml", "--set", "output.overwrite=true")
    assert again.status == 0
    assert (tmp_path / "run0/model.zarr/state").is_dir()
    call.quietly("run", "c0.yaml", "--set", "model.solver=gram", "--set", "output.directory=wide").refused(
        2, "output.state: true", "solver='gram' keeps no state", "covariance, qr"
    )
    assert not (tmp_path / "wide").exists()


@pytest.mark.slow
def test_a_run_by_qr_and_one_that_forgets(call, runs, tmp_path):
    for i, change in enumerate(("model.solver=qr", "model.forgetting=0.99")):
        done = call.quietly("run", "c3.yaml", "--set", change, "--set", f"output.directory=other{i}")
        assert done.status == 0
        first = sp.load(tmp_path / f"other{i}")
        expected = sp.PCA(5, **{change[6:].split("=")[0]: ["qr", 0.99][i]}).fit(VALUES[500:])
        np.testing.assert_array_equal(first.explained_variance_, expected.explained_variance_)
        first.partial_fit(VALUES[:500])
        assert first.n_samples_seen_ == 900
    call.quietly("run", "c3.yaml", "--set", "model.forgetting=1.5").refused(2, "model.forgetting", "at most 1")
