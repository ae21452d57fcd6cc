"""The scripts about kernel PCA run on small data; nothing here is about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "x.zarr"
    rows = np.random.default_rng(0).standard_normal((3000, 8)) * np.arange(1, 9) ** -0.5
    zarr.create_array(str(path), data=rows.astype(np.float32), chunks=(1000, 8))
    return path


def test_the_benchmarks_give_every_figure(store: Path) -> None:
    common = ("--repeats", "1", "--components", "5", "--gamma", "0.2")
    printed = run(
        SCRIPTS / "bench" / "kernel.py", "nystrom", store, "--landmarks", "50", "--peers", "sklearn_features", *common
    )
    figures = json.loads(printed.splitlines()[-1])
    assert not [row for row in figures["rows"].values() if "failed" in row]
    assert figures["ratios"]["error of fit"] < 1e-5
    assert figures["ratios"]["reads"] == 2
    assert {"fit over floor", "sklearn_features over fit", "peak over projected"} <= set(figures["ratios"])
    printed = run(
        SCRIPTS / "bench" / "kernel.py", "exact", store, "--rows", "1600", "--peers", "sklearn_randomized", *common
    )
    figures = json.loads(printed.splitlines()[-1])
    assert not [row for row in figures["rows"].values() if "failed" in row]
    assert figures["ratios"]["error of fit"] < 1e-5


def test_the_textbook_example(tmp_path: Path) -> None:
    script = SCRIPTS / "reproduce" / "kernel_pca.py"
    printed = run(script, "textbook", "--quick", "--json", tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())["textbook"]
    values = [figures[name] for name in figures if "eigenvalues" in name or "PCA over" in name or "by hand" in name]
    assert len(values) == 4
    np.testing.assert_allclose(values, np.broadcast_to(values[0], (4, 2)), rtol=1e-12)
    assert figures["largest difference of scores"] < 1e-12
    assert "a linear kernel is PCA" in printed
