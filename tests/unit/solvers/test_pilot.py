"""The pilot: rows from all over a source, announced, and never more of it than was announced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca as sp
from streampca.errors import NotFiniteError
from streampca.execution.distributed import retries
from streampca.solvers.kernel.matrix import read_all
from streampca.solvers.pilot import Pilot, plan_pilot, read_pilot, rows_of
from streampca.sources import open_source

pytestmark = pytest.mark.numerical


def test_rows_come_from_every_stretch_of_a_source_that_gives_single_rows() -> None:
    source = open_source(np.arange(40_000.0).reshape(10_000, 4))
    pilot = plan_pilot(source, "auto", 40, 2**30)
    assert pilot == Pilot(500, 0, 500 * 32)
    chosen = rows_of(pilot, source, seed=3)
    assert len(chosen) == 500
    np.testing.assert_array_equal(np.unique(chosen * 500 // 10_000), np.arange(500))
    assert not np.array_equal(chosen, rows_of(pilot, source, seed=4))
    index, rows, count = read_pilot(pilot, source, seed=3)
    np.testing.assert_array_equal(index, chosen)
    np.testing.assert_array_equal(rows, np.arange(40_000.0).reshape(10_000, 4)[chosen])
    assert count.bytes == pilot.bytes


def compressed(tmp_path: Path, n: int, chunk: int) -> str:
    array = zarr.create_array(tmp_path / "x.zarr", shape=(n, 6), chunks=(chunk, 6), dtype="float32")
    array[...] = np.random.default_rng(0).standard_normal((n, 6), dtype=np.float32)
    return str(tmp_path / "x.zarr")


def test_of_compressed_chunks_no_more_than_a_tenth_is_decoded(tmp_path: Path) -> None:
    source = open_source(compressed(tmp_path, 10_000, 100))
    pilot = plan_pilot(source, "auto", 20, 2**30)
    assert (pilot.n_rows, pilot.n_bands) == (500, 10)
    chosen, rows, count = read_pilot(pilot, source, seed=0)
    bands = np.unique(chosen // 100)
    assert len(bands) == 10
    assert len(np.unique(bands // 10)) == 10  # one band in each tenth of the store
    assert (count.chunks, count.bytes) == (10, pilot.bytes)
    np.testing.assert_array_equal(rows, zarr.open_array(tmp_path / "x.zarr")[...][chosen])


def test_a_store_of_a_few_chunks_is_not_read_twice_for_a_pilot(tmp_path: Path) -> None:
    source = open_source(compressed(tmp_path, 10_000, 1000))
    assert plan_pilot(source, "auto", 20, 2**30).n_rows == 0
    asked = plan_pilot(source, 200, 20, 2**30)
    assert (asked.n_rows, asked.n_bands) == (200, 10)


def test_pilot_0_reads_nothing_and_memory_limits_it() -> None:
    source = open_source(np.zeros((5000, 1000)))
    assert plan_pilot(source, 0, 20, 2**30) == Pilot(0, 0, 0)
    assert plan_pilot(source, "auto", 20, 12 * 1000 * 100).n_rows == 100


@pytest.mark.parametrize("missing", ["error", "pairwise"])
def test_nan_is_an_error_unless_it_has_a_meaning(missing: str) -> None:
    values = np.ones((100, 3))
    values[7, 1] = np.nan
    source = open_source(values)
    pilot = Pilot(100, 0, 2400)
    if missing == "error":
        with pytest.raises(NotFiniteError, match="row 7, column 1"):
            read_pilot(pilot, source, 0, missing)
    else:
        assert np.isnan(read_pilot(pilot, source, 0, missing)[1]).sum() == 1
    values[7, 1] = np.inf
    with pytest.raises(NotFiniteError, match="infinity"):
        read_pilot(pilot, source, 0, missing)


@pytest.mark.parametrize("reading", ["pilot", "kernel matrix"])
def test_rows_read_before_the_pass_are_read_again_after_a_transient_error(
    reading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "pause_after", lambda _: 0.0)
    rows = np.random.default_rng(0).standard_normal((200, 4))
    source, calls = open_source(rows), list[int]()
    read = source.read

    def flaky(start: int, stop: int, out: Any = None) -> Any:
        calls.append(start)
        if len(calls) == 2:
            raise TimeoutError("slow")
        return read(start, stop, out)

    monkeypatch.setattr(source, "read", flaky)
    if reading == "pilot":
        index, found, _ = read_pilot(Pilot(10, 0, 320), source, seed=0)
        np.testing.assert_array_equal(found, rows[index])
    else:
        found, _ = read_all(source, 50)
        np.testing.assert_array_equal(found, rows)
    assert len(calls) == len(set(calls)) + 1


@pytest.mark.parametrize("scale", [False, True])
def test_rows_of_weight_zero_are_no_rows_of_the_pilot(scale: bool) -> None:
    """Means of 1e6 deviations: rows of weight 0 neither widen the deviations, nor move the origin."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(394, 4)) @ rng.normal(size=(4, 100)) * 3 + rng.normal(size=(394, 100))
    rows = (rows + 1e6 * rows.std(axis=0)).astype(np.float32)
    weights = rng.integers(0, 3, len(rows)).astype(float)
    rows[(weights == 0) & (rng.random(len(rows)) < 0.3)] = 1e20
    found = sp.PCA(3, solver="sketch", scale=scale).fit(rows, sample_weight=weights)
    counted = np.repeat(rows.astype(float), weights.astype(int), axis=0)
    matrix = np.corrcoef(counted.T) if scale else np.cov(counted.T)
    expected = np.linalg.eigvalsh(matrix)[::-1]
    np.testing.assert_allclose(found.explained_variance_, expected[:3], rtol=1e-4)
