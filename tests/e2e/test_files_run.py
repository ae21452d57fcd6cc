"""Runs on files of rows: keys of the file, records in the manifest, new files, verification, resumption, and refusals."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from facade import StopSignalError
from fragments import parquet_table, write_hdf5, write_npy, write_parquet
from stores import Command, make_values, picture

import streampca as sp
from scripts import SCRIPTS, module

CUTS = (0, 3000, 3100, 6000, 9000)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Write the same rows as .npy, Parquet and HDF5 files into a new working directory, and return them."""
    monkeypatch.chdir(tmp_path)
    rows = (make_values(9000, 6) * [9, 7, 5, 3, 2, 1]).astype(np.float32)
    write_npy(Path("npy"), rows, CUTS)
    for index, (start, stop) in enumerate(pairwise(CUTS)):
        ids = [f"r{row}" for row in range(start, stop)]
        write_parquet(Path(f"parquet/p-{index}.parquet"), parquet_table(rows[start:stop], "list", ids), 1000)
    Path("hdf5").mkdir()
    for index, (start, stop) in enumerate(pairwise(CUTS)):
        write_hdf5(
            Path(f"hdf5/p-{index}.h5"), rows[start:stop].reshape(-1, 2, 3), chunks=(500, 2, 2) if index > 1 else None
        )
    return rows


SOURCES: dict[str, dict[str, Any]] = {
    "npy": {"path": [f"npy/part-{index}.npy" for index in range(4)]},
    "parquet": {"path": "parquet", "columns": "v", "id_column": "id"},
    "hdf5": {"path": "hdf5/*.h5", "array": "x", "samples": "dim_0"},
}


def configure(source: dict[str, Any], **more: Any) -> Path:
    """Write a configuration and return its path."""
    document = {
        "source": source,
        "model": {"n_components": 3},
        "output": {"directory": "runs/job", "report": False},
        **more,
    }
    Path("c.yaml").write_text(yaml.safe_dump(document))
    return Path("c.yaml")


@pytest.mark.parametrize("kind", SOURCES)
def test_a_run_has_the_records_of_files_and_is_verified(kind: str, values: np.ndarray, call: Command) -> None:
    config = configure(SOURCES[kind])
    assert call("check", config).status == call("plan", config).status == call("inspect", config).status == 0
    assert call.quietly("run", config).status == 0
    manifest = json.loads(Path("runs/job/manifest.json").read_text())
    records = manifest["source"]["fragments"]
    assert [record["n_rows"] for record in records] == list(np.diff(CUTS))
    assert all(os.stat(record["name"]).st_size == record["n_bytes"] for record in records)
    expected = np.linalg.eigvalsh(np.cov(values.T.astype("f8")))[::-1][:3]
    model = sp.load("runs/job")
    np.testing.assert_allclose(model.explained_variance_, expected, rtol=1e-5)
    scores = zarr.open_group("runs/job/scores.zarr", mode="r")
    np.testing.assert_allclose(scores["scores"][:], (values - model.mean_) @ model.components_.T, atol=1e-3)
    if kind == "parquet":
        assert list(scores["id"][[0, 5999]]) == ["r0", "r5999"]
    assert call.quietly("verify", "runs/job").status == 0
    place = records[2]["name"]
    assert call.quietly("transform", "runs/job", place, "new.zarr").status == 0
    new = zarr.open_group("new.zarr", mode="r")["scores"][:]
    np.testing.assert_allclose(new, scores["scores"][3100:6000], atol=1e-6)


def test_a_directory_is_described_by_its_files(values: np.ndarray, call: Command) -> None:
    out = call("inspect", "npy").out
    assert "part-1.npy: 100 rows" in out
    described = json.loads(call("inspect", "parquet", "--columns", "v", "--id-column", "id", "--json").out)
    assert [record["n_rows"] for record in described["fragments"]] == list(np.diff(CUTS))
    assert described["shape"] == [9000, 6]
    assert json.loads(call("inspect", "npy/part-*.npy", "--json").out)["n_files"] == 4


def test_a_directory_behind_a_url_is_described_run_verified_and_updated(values: np.ndarray, call: Command) -> None:
    pytest.importorskip("obstore", reason="the extra remote is not installed")
    with module(SCRIPTS / "bench/object_server.py") as script:
        server = script.ObjectServer(Path())
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    place = {"endpoint": f"http://127.0.0.1:{server.server_address[1]}", "region": "eu-north-1", "skip_signature": True}
    last = Path("parquet/p-3.parquet").rename("p-3.parquet")
    source = {"path": "s3://parquet", "columns": "v", "id_column": "id", "storage_options": place}
    config = configure(source, output={"directory": "runs/job", "state": True, "report": False})
    described = json.loads(call("inspect", config, "--json").out)
    assert described["source"] == "s3://parquet"
    assert call.quietly("run", config).status == 0
    manifest = json.loads(Path("runs/job/manifest.json").read_text())
    assert [record["name"] for record in manifest["source"]["fragments"]] == [
        f"s3://parquet/p-{i}.parquet" for i in range(3)
    ]
    assert call.quietly("verify", "runs/job").status == 0
    last.rename("parquet/p-3.parquet")
    assert call.quietly("update", "runs/job").status == 0
    url = f"{place['endpoint']}/parquet/p-3.parquet"
    assert json.loads(call("inspect", url, "--columns", "v", "--json").out)["shape"] == [3000, 6]
    server.shutdown()
    server.server_close()
    expected = np.linalg.eigvalsh(np.cov(values.T.astype("f8")))[::-1][:3]
    np.testing.assert_allclose(sp.load("runs/job").explained_variance_, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOURCES)
def test_a_run_that_was_stopped_goes_on_and_refuses_files_that_changed(
    kind: str, values: np.ndarray, call: Command, stop_at_scores: Callable[[Any], None]
) -> None:
    config = configure(SOURCES[kind], checkpoint={"every": "1ms"})
    whole = sp.run(config, overrides=["output.directory=whole"])

    with pytest.raises(StopSignalError):
        sp.run(config, progress=stop_at_scores)
    resumed = sp.run(config, resume=True)
    assert resumed.manifest["resumed"] is not None
    np.testing.assert_array_equal(resumed.model.components_, whole.model.components_)
    assert sum(record["n_rows"] for record in resumed.manifest["source"]["fragments"]) == resumed.model.n_samples_seen_
    with pytest.raises(StopSignalError):
        sp.run(config, overrides=["output.directory=other"], progress=stop_at_scores)
    changed = Path(resumed.manifest["source"]["fragments"][1]["name"])
    os.utime(changed, ns=(1, 1))
    call.quietly("run", config, "--set", "output.directory=other", "--resume").refused(6, "other.checkpoint")


@pytest.mark.parametrize(
    ("source", "status", "word"),
    [
        ({"path": ["npy/part-0.npy", "npy/part-0.npy"]}, 2, "named twice"),
        ({"path": ["npy/part-0.npy", "broken.npy"]}, 5, "broken.npy"),
        ({"path": "none-*.npy"}, 5, "none-*.npy"),
        ({"path": "table.csv"}, 2, "convert it once"),
        ({"path": "parquet"}, 5, "id (string)"),
        ({"path": "parquet", "columns": "V"}, 2, "no column 'V'"),
        ({"path": "cut.parquet"}, 5, "cut short"),
        ({"path": "hdf5", "array": "y"}, 5, "no dataset 'y'"),
        ({"path": "hdf5"}, 5, "say which of them are samples"),
        ({"path": ["npy", "parquet"]}, 5, "several kinds"),
    ],
)
def test_what_cannot_be_read_ends_in_one_line_and_leaves_nothing(
    source: dict[str, Any], status: int, word: str, values: np.ndarray, call: Command
) -> None:
    Path("table.csv").write_text("a,b\n1,2\n")
    Path("broken.npy").write_bytes(b"\x93NUMPY")
    Path("cut.parquet").write_bytes(Path("parquet/p-0.parquet").read_bytes()[:-30])
    config = configure(source)
    before = picture(Path())
    call.quietly("run", config).refused(status, word)
    assert picture(Path()) == before
