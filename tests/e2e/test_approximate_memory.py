"""The promise about memory for the approximate solvers: measured peak ≤ projected ≤ allowed, in one pass and in several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_memory import assert_kept, make_store, measure

TWO: dict[str, Any] = {"max_passes": 2, "tolerance": 0}
JOBS: dict[str, tuple[tuple[int, int], str, int, dict[str, Any], str]] = {
    "sketch f4": ((20_000, 4000), "float32", 500, {"solver": "sketch"}, "700MiB"),
    "sketch f8, two passes": ((6000, 6000), "float64", 200, {"solver": "sketch", **TWO}, "800MiB"),
    "sketch zstd u1, z-scores": ((60_000, 1500), "uint8", 2000, {"solver": "sketch", "scale": True}, "600MiB"),
    "adaptive f4": ((20_000, 4000), "float32", 500, {"solver": "adaptive"}, "900MiB"),
    "adaptive f8, two passes": ((8000, 3000), "float64", 200, {"solver": "adaptive", **TWO}, "900MiB"),
}


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("name", JOBS)
def test_stores(name: str, tmp_path: Path) -> None:
    shape, dtype, chunk_rows, parameters, memory = JOBS[name]
    codec = "zstd" if "zstd" in name else "none"
    path = make_store(tmp_path / "x.zarr", shape, dtype, chunk_rows, codec=codec)
    result = measure({"do": "fit", "path": str(path), "k": 20, "memory": memory, "parameters": parameters})
    assert result["passes"] == (2 if "two passes" in name else 1)
    assert_kept(name, result)


@pytest.mark.slow
def test_a_sketch_of_samples(tmp_path: Path) -> None:
    path = make_store(tmp_path / "x.zarr", (3000, 40_000), "float32", 1500, chunk_columns=1000)
    parameters = {"solver": "sketch", "missing": "mean", "max_passes": 3, "tolerance": 0}
    result = measure({"do": "fit", "path": str(path), "k": 20, "memory": "320MiB", "parameters": parameters})
    assert result["passes"] == 3
    assert_kept("sketch of samples f4", result)
