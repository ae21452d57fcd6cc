"""The command ``streampca export``: one line on stdout, a file by the end of its name, exit status."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import xarray as xr
from stores import Command, config_text, write_store

import streampca as sp


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a configuration; return the directory of the run."""
    base = tmp_path_factory.mktemp("export")
    config = base / "config.yaml"
    config.write_text(config_text(write_store(base / "x.zarr"), base / "run", "model: {n_components: 3, whiten: true}"))
    return sp.run(config).directory


@pytest.mark.parametrize(
    ("suffix", "words"),
    [
        ("onnx", "ONNX model, opset 17, input X, output scores, 8 features to 3 components, float32, "),
        ("faiss", "faiss LinearTransform, 8 features to 3 components, float32, "),
        ("npz", "numpy arrays, 8 features to 3 components, float64, "),
        ("nc", "NetCDF 3, Dataset of pca.to_xarray(), 8 features to 3 components, float64, "),
    ],
)
def test_a_run_is_exported_with_one_line_that_has_the_measured_error(
    command: Command, directory: Path, tmp_path: Path, suffix: str, words: str
) -> None:
    out = tmp_path / f"model.{suffix}"
    called = command("export", directory, out)
    assert (called.status, called.err) == (0, "")
    assert called.out.startswith(f"{out}: {words}")
    assert len(called.out.splitlines()) == 1
    assert ("of the largest" in called.out) == (suffix in ("onnx", "faiss"))
    before = out.read_bytes()
    command("export", directory, out).refused(6, "exists already")
    assert out.read_bytes() == before
    described = json.loads(command("export", directory, out, "--overwrite", "--json").out)
    assert described["n_bytes"] == out.stat().st_size
    assert (described["score_error"] is None) == (suffix in ("npz", "nc"))


def test_contents_are_those_of_the_model_of_the_run(command: Command, directory: Path, tmp_path: Path) -> None:
    pca = sp.load(directory)
    for suffix in ("onnx", "npz", "nc"):
        assert command("export", directory / "model.zarr", tmp_path / f"m.{suffix}").status == 0
    (values,) = [p.value for p in onnx.load(tmp_path / "m.onnx").metadata_props if p.key == "explained_variance"]
    np.testing.assert_array_equal(json.loads(values), pca.explained_variance_)
    with np.load(tmp_path / "m.npz") as arrays, xr.open_dataset(tmp_path / "m.nc", engine="scipy") as dataset:
        np.testing.assert_array_equal(arrays["components"], pca.components_)
        np.testing.assert_array_equal(dataset["components"].values, pca.components_)


def test_errors_are_one_line_and_have_their_status(command: Command, directory: Path, tmp_path: Path) -> None:
    command("export", directory, tmp_path / "model.pkl").refused(2, "names no format", ".onnx")
    command("export", tmp_path / "absent", tmp_path / "m.onnx").refused(5, "no such model")
    command("export", directory, tmp_path / "m.onnx", "--memory", "1MiB").refused(7, "the exported model: projected")
    assert list(tmp_path.iterdir()) == []
