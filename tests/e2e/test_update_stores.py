"""`streampca update` of zarr stores: appended rows are read alone, chunks that were read are known again, and changed ones are named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from cells import write_cells
from facade import StopSignalError
from numpy.typing import NDArray
from stores import Command, chunk_files, picture, write_store
from zarr.codecs import ZstdCodec

import streampca as sp
from streampca import update
from streampca.sources import store_record

N, MORE = 250, 400
ROWS = np.random.default_rng(7).standard_normal((MORE, 8)) * np.arange(9, 1, -1) + 3
STORE = Path("x.zarr")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def configure(**sections: Any) -> Path:
    """Write a configuration and return its path; `sections` are merged into it."""
    document: dict[str, Any] = {
        "source": {"path": str(STORE)},
        "model": {"n_components": 3},
        "output": {"directory": "runs/job", "report": False, "scores": False, "state": True},
    }
    for name, section in sections.items():
        document[name] = document.get(name, {}) | section
    Path("c.yaml").write_text(yaml.safe_dump(document))
    return Path("c.yaml")


def append(rows: NDArray[Any] = ROWS[N:], axis: int = 0) -> None:
    zarr.open_array(STORE).append(rows if axis == 0 else rows.T, axis=axis)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a store of two and a half chunks and a run on it, which tests copy with their times."""
    place = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        write_store(STORE, ROWS[:N], chain="zstd")
        sp.run(configure())
    return place


@pytest.fixture
def job(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the run and its store in the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(plain, tmp_path, dirs_exist_ok=True)


def seal_of(attributes: dict[str, Any]) -> str:
    """Return the seal of the attributes of a state."""
    return hashlib.sha256(json.dumps(attributes, sort_keys=True).encode()).hexdigest()


def require_that_of(rows: NDArray[Any], run: sp.Run) -> None:
    """Check a run against LAPACK."""
    values = np.linalg.eigvalsh(np.cov(rows.T))[::-1]
    np.testing.assert_allclose(run.model.explained_variance_, values[:3], rtol=1e-12)
    assert run.model.n_samples_seen_ == len(rows)


FORMS: dict[str, dict[str, Any]] = {
    "uncompressed, by features": {"chunks": (100, 3)},
    "sharded": {"chunks": (20, 4), "shards": (120, 8), "chain": "zstd"},
    "version 2": {"version": 2, "chain": "gzip"},
}


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("form", [*FORMS, "features first"])
def test_an_update_is_the_run_of_all_rows_for_every_form_of_store(form, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    turned = form == "features first"
    if turned:
        write_store(STORE, np.ascontiguousarray(ROWS[:N].T), chunks=(8, 100), chain="zstd")
    else:
        write_store(STORE, ROWS[:N], **FORMS[form])
    sp.run(configure(source={"orientation": "features_first"} if turned else {}, output={"scores": form == "sharded"}))
    append(axis=int(turned))
    result = update("runs/job")
    assert (result.n_rows, result.files) == (150, ())
    require_that_of(ROWS, result.run)
    full = sp.run("c.yaml", overrides=["output.directory=runs/full"])
    assert result.run.manifest["source"] == full.manifest["source"]
    np.testing.assert_allclose(result.run.model.components_, full.model.components_, atol=1e-10)
    if form == "sharded":
        scores, whole = (zarr.open_group(f"runs/{name}/scores.zarr", mode="r") for name in ("job", "full"))
        np.testing.assert_allclose(scores["scores"][:], whole["scores"][:], atol=1e-9)
        assert call.quietly("verify", "runs/job").status == 0
    before = picture(Path())
    assert update("runs/job").n_rows == 0
    assert picture(Path()) == before


@pytest.mark.slow
def test_only_new_rows_are_read_and_the_rewritten_chunk_is_compared(job, opened, call):
    append()
    assert "150 new rows added, 400 in all" in call.quietly("update", "runs/job").out.replace("\n ", "")
    names = Counter({Path(name).parent.name: n for name, n in opened.items()})
    # The directories of chunks 2/0, of which the recorded rows are decoded to be compared, and then the new ones, and 3/0.
    assert names == {"2": 2, "3": 1}
    manifest = json.loads(Path("runs/job/manifest.json").read_text())
    entry, stored = manifest["updates"][0], chunk_files(STORE)[2].stat().st_size
    assert (entry["n_samples_before"], entry["n_samples_added"], entry["files"]) == (250, 150, [])
    assert manifest["reads"]["fit"]["bytes"] == entry["bytes"] == 200 * 64
    # The half chunk was read once as it is stored, which differs, and once to decode its 50 rows.
    assert entry["compared"] == {"chunks": 2, "bytes": 50 * 64, "stored_bytes": 2 * stored}
    assert manifest["reads"]["record"] == {"chunks": 0, "bytes": 0, "stored_bytes": 0}
    append(ROWS[:100])
    again = update("runs/job").run.manifest["updates"][1]
    assert again["compared"] == {"chunks": 0, "bytes": 0, "stored_bytes": 0}  # all 400 rows were in full chunks
    assert again["bytes"] == 100 * 64


def test_a_run_notes_digests_while_it_reads_and_decodes_only_the_last_chunk_again(plain):
    manifest = json.loads((plain / "runs/job/manifest.json").read_text())
    size = chunk_files(plain / STORE)[2].stat().st_size
    assert manifest["reads"]["record"] == {"chunks": 1, "bytes": 50 * 64, "stored_bytes": size}


@pytest.mark.slow
def test_a_store_that_was_copied_without_its_times_is_known_by_its_bytes(job):
    shutil.copytree(STORE, "y.zarr", copy_function=shutil.copyfile)
    for path in chunk_files(Path("y.zarr")):
        os.utime(path, ns=(1, 1))
    assert update("runs/job", overrides=["source.path=y.zarr"]).n_rows == 0
    zarr.open_array("y.zarr").append(ROWS[N:])
    result = update("runs/job", overrides=["source.path=y.zarr"])
    assert result.run.manifest["updates"][0]["compared"]["chunks"] == 4
    require_that_of(ROWS, result.run)


def _replace(rows: slice, more: bool = True) -> None:
    """Write other values to some rows, with the size and the shape that they had."""
    if more:
        append()
    array = zarr.open_array(STORE)
    array[rows] = array[rows] + 1.0


def _edit(name: str, value: Any) -> None:
    path = STORE / "zarr.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))


def _rewrite(values: NDArray[Any], **options: Any) -> None:
    shutil.rmtree(STORE)
    write_store(STORE, values, **{"chain": "zstd", **options})


CHANGES: dict[str, tuple[Callable[[], object], int, tuple[str, ...]]] = {
    "chunk": (lambda: _replace(slice(20, 21)), 5, ("1 of 3 chunks have changed since the run", ": c/0/0;", "put them back")),
    "chunks": (lambda: _replace(slice(90, 120), more=False), 5, ("2 of 3 chunks", "c/0/0, c/1/0")),
    "old rows of the last chunk": (lambda: _replace(slice(210, 211)), 5, ("1 of 3 chunks", ": c/2/0;")),
    "removed": (lambda: chunk_files(STORE)[1].unlink(), 5, ("c/1/0",)),
    "shrunk": (lambda: zarr.open_array(STORE).resize((240, 8)), 5, ("(240, 8)", "(250, 8)", "rows were removed")),
    "narrow": (lambda: _rewrite(ROWS[:, :5]), 5, ("5 features", "8 of float64", "expected the same")),
    "type": (lambda: _rewrite(ROWS.astype(np.float32)), 5, ("float32", "float64", "expected the same")),
    "fill": (lambda: _edit("fill_value", 1.0), 5, ("its fill_value was 0.0 and is 1.0",)),
    "grid": (lambda: _rewrite(ROWS, chunks=(50, 8)), 5, ("its chunk_grid was", "100", "50")),
    "codec": (lambda: _rewrite(ROWS, chain="gzip"), 5, ("its codecs was", "zstd", "gzip")),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_refused_by_name_and_the_run_is_untouched(change, job, call):
    CHANGES[change][0]()
    before = picture(Path())
    call.quietly("update", "runs/job").refused(CHANGES[change][1], *CHANGES[change][2])
    assert picture(Path()) == before


def test_stores_without_a_record_are_refused(job, call, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store_record, "MOST_RECORDED", 2)
        call.quietly("update", "runs/job").refused(2, "run again in full")
        sp.run("c.yaml", overrides=["output.directory=runs/other"])
    call.quietly("update", "runs/other").refused(2, "states that have a record")


def write_field(n: int, start: int = 0, n_members: int = 2, mode: Any = "w") -> NDArray[np.float64]:
    """Write ``sst(time, member, lat)`` packed, with its coordinates, and return the decoded rows."""
    values = np.random.default_rng(3).integers(-900, 900, (n, 3, 5)).astype(np.int16)[:, :n_members]
    group = zarr.open_group("field.zarr", mode=mode)
    options: dict[str, Any] = {"dimension_names": ("time", "member", "lat"), "chunks": (8, 1, 3)}
    attributes = {"scale_factor": 0.01, "add_offset": 5.0}
    group.create_array("sst", data=values, attributes=attributes, overwrite=True, **options)
    times = {"units": "days since 1990-01-01", "calendar": "standard"}
    group.create_array(
        "time", data=np.arange(start, start + n), dimension_names=("time",), attributes=times, overwrite=True
    )
    group.create_array("lat", data=np.linspace(-4.0, 4, 5), dimension_names=("lat",), overwrite=True)
    return (values * np.float32(0.01) + np.float32(5.0)).reshape(-1, 5).astype(np.float64)


def extend_field(n: int) -> NDArray[np.float64]:
    """Append to the field along time as xarray does, so that it has `n` times; return all rows."""
    group, before = zarr.open_group("field.zarr"), zarr.open_group("field.zarr")["time"].shape[0]
    values = np.random.default_rng(3).integers(-900, 900, (n, 3, 5)).astype(np.int16)[:, :2]
    group["sst"].append(values[before:], axis=0)
    group["time"].append(np.arange(before, n))
    return (values * np.float32(0.01) + np.float32(5.0)).reshape(-1, 5).astype(np.float64)


@pytest.fixture
def field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a labelled store with 21 times and two members, and a run on it, in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_field(21)
    source = {"path": "field.zarr", "array": "sst", "samples": ["time", "member"]}
    sp.run(configure(source=source, preprocess={"feature_weight": "cos(lat)"}))


def test_a_labelled_store_that_grew_along_time_is_updated_with_its_labels(field):
    rows = extend_field(30)
    result = update("runs/job")
    assert result.n_rows == 18
    weight = np.sqrt(np.cos(np.deg2rad(np.linspace(-4.0, 4, 5))))
    values = np.linalg.eigvalsh(np.cov((rows * weight).T))[::-1][:3]
    full = sp.run("c.yaml", overrides=["output.directory=runs/full"])
    np.testing.assert_allclose(result.run.model.explained_variance_, full.model.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(result.run.model.explained_variance_, values, rtol=1e-5)
    assert result.run.manifest["source"]["labels"] == full.manifest["source"]["labels"]
    assert result.run.manifest["source"]["labels"]["samples"][0]["last"] == "1990-01-30"


def test_other_coordinates_of_old_rows_are_refused(field, call):
    extend_field(30)
    zarr.open_group("field.zarr")["time"][3] = 77
    call.quietly("update", "runs/job").refused(5, "coordinate time of the 21 that were there was changed")


def test_another_packing_is_refused(field, call):
    zarr.open_group("field.zarr")["sst"].attrs["scale_factor"] = 0.02
    call.quietly("update", "runs/job").refused(5, "its packing was", "0.02")


def test_rows_that_lie_between_the_others_are_refused(field, call):
    write_field(21, n_members=3)
    call.quietly("update", "runs/job").refused(2, "new rows lie between the others")


def test_values_of_new_rows_that_are_not_finite_are_named_by_their_rows_in_the_table(job, call):
    rows = ROWS[N:].copy()
    rows[7, 2] = np.nan
    append(rows)
    call.quietly("update", "runs/job").refused(5, "row 257", "column 2")


def test_chunks_that_were_never_written_are_known_and_refused_when_they_are_written(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    array = zarr.create_array(STORE, shape=(300, 8), chunks=(100, 8), dtype="f8", compressors=[ZstdCodec()])
    array[:100] = ROWS[:100]
    array[200:] = ROWS[100:200]
    sp.run(configure(source={"missing_chunks": "fill"}))
    array.resize((500, 8))
    array[400:] = ROWS[200:300]
    rows = np.concatenate([ROWS[:100], np.zeros((100, 8)), ROWS[100:200], np.zeros((100, 8)), ROWS[200:300]])
    result = update("runs/job")
    require_that_of(rows, result.run)
    assert result.run.manifest["updates"][0]["compared"]["chunks"] == 0
    array[100:200] = ROWS[300:]
    call.quietly("update", "runs/job").refused(5, "1 of 5 chunks", "c/1/0")


def test_a_fingerprint_must_be_made_anew_before_an_update(job, call):
    assert call.quietly("fingerprint", STORE).status == 0
    options = ["output.directory=runs/v", "source.verify=manifest"]
    sp.run("c.yaml", overrides=options)
    append()
    call.quietly("update", "runs/v").refused(5, "not what was fingerprinted")
    assert call.quietly("fingerprint", STORE, "--overwrite").status == 0
    require_that_of(ROWS, update("runs/v").run)


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("phase", ["fit", "scores"])
def test_an_update_that_was_stopped_goes_on_to_the_same_bits(phase, job, stop_at_scores):
    sp.run(configure(output={"scores": True, "overwrite": True}, checkpoint={"every": "1ms"}, resources={"threads": 1}))
    append()
    shutil.copytree("runs/job", "runs/other")
    before = picture(Path("runs/job"))

    def stop(progress: Any) -> None:
        if progress.phase == phase:
            raise StopSignalError(15)

    with pytest.raises(StopSignalError):
        update("runs/job", progress=stop)
    assert picture(Path("runs/job")) == before
    resumed, other = update("runs/job").run, update("runs/other").run
    np.testing.assert_array_equal(resumed.model.explained_variance_, other.model.explained_variance_)
    np.testing.assert_array_equal(resumed.model.components_, other.model.components_)
    require_that_of(ROWS, resumed)
    states = [picture(Path(f"runs/{name}/model.zarr/state")) for name in ("job", "other")]
    differing = {name for name in states[0] if "/c/" in name and states[0][name] != states[1][name]}
    assert differing == set()


def test_a_store_that_changes_between_a_stop_and_the_next_update_starts_over(job, stop_at_scores):
    sp.run(configure(output={"scores": True, "overwrite": True}, checkpoint={"every": "1ms"}))
    append(ROWS[N:300])
    with pytest.raises(StopSignalError):
        update("runs/job", progress=stop_at_scores)
    append(ROWS[300:])
    notices: list[str] = []
    require_that_of(ROWS, update("runs/job", notice=notices.append).run)
    assert "starting over" in notices[0]


def test_a_damaged_record_is_refused(job, call):
    path = next(path for path in chunk_files(Path("runs/job/model.zarr/state/stored_0_versions")))
    path.write_bytes(path.read_bytes()[::-1])
    call.quietly("update", "runs/job").refused(5, "stored_0_versions")


def test_a_record_as_version_0_2_wrote_it_is_read(job):
    group = zarr.open_group("runs/job/model.zarr/state", mode="r+")
    document = json.loads(np.asarray(group["stored_arrays"]).tobytes())
    entries = [{name: entry[name] for name in ("name", "metadata", "shape")} for entry in document["arrays"]]
    old = json.dumps({"arrays": entries, "coordinates": document["coordinates"]}).encode()
    del group["stored_arrays"]
    group.create_array("stored_arrays", data=np.frombuffer(old, dtype=np.uint8))
    attributes = dict(group.attrs)
    attributes["sha256"] |= {"stored_arrays": hashlib.sha256(old).hexdigest()}
    attributes["seal"] = seal_of({name: value for name, value in attributes.items() if name != "seal"})
    group.attrs.put(attributes)
    assert sp.open("x.zarr", verify="runs/job").read(0, N)[1].chunks == 3
    append()
    require_that_of(ROWS, update("runs/job").run)


def test_models_with_more_rows_by_partial_fit_have_no_record(job):
    pca = sp.load("runs/job")
    assert pca._fitted_state.stored is not None
    pca.partial_fit(ROWS[:20])
    assert pca._fitted_state.stored is None


def test_stores_of_cells_have_no_record(tmp_path):
    assert store_record.arrays_of(sp.open(str(write_cells(tmp_path / "a.zarr", ROWS)))) == ()


def test_verify_compares_the_chunks_with_the_record_of_the_run(job, call):
    said = call.quietly("verify", "runs/job")
    assert said.status == 0
    assert "3 of 3 have the bytes that the run read" in said.out.replace("\n ", "")
    _replace(slice(20, 21), more=False)
    said = call.quietly("verify", "runs/job")
    assert said.status == 5
    assert "1 of 3 differ from those that the run read: c/0/0" in " ".join(said.out.split())
