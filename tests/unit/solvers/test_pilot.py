"""The pilot: rows from all over a source, announced, and never more of it than was announced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from facade import ReadCount, Source

import streampca as sp
from streampca.errors import NotFiniteError

pytestmark = pytest.mark.numerical


class Recorded(Source):
    """Rows in memory, whose readings are recorded, and one of which may fail, by its number from 1."""

    description = "recorded"
    fingerprint = "recorded"

    def __init__(self, rows: Any, *, fails: int = 0):
        self.rows, self.fails, self.calls = rows, fails, list[tuple[int, int]]()
        self.shape, self.dtype, self.buffered = rows.shape, rows.dtype, False

    def read(self, start: int, stop: int, out: Any = None) -> Any:
        self.calls.append((start, stop))
        if len(self.calls) == self.fails:
            raise TimeoutError("slow")
        values = self.rows[start:stop].copy()
        return values, ReadCount(0, values.nbytes, values.nbytes)


def sketch_of(data: Any, **parameters: Any) -> tuple[int, int, int]:
    """Return the rows, bands and bytes of the pilot in the plan of a sketch."""
    plan = sp.PCA(5, solver="sketch", **parameters).plan(data)
    assert plan.bytes_to_read >= plan.sketch["pilot_bytes"]
    return plan.sketch["pilot_rows"], plan.sketch["pilot_bands"], plan.sketch["pilot_bytes"]


def test_rows_come_from_every_stretch_of_a_source_that_gives_single_rows() -> None:
    assert sketch_of(np.zeros((10_000, 40))) == (500, 0, 500 * 320)
    rows = np.random.default_rng(0).standard_normal((2000, 40))
    source = Recorded(rows)
    pca = sp.PCA(5, solver="sketch", pilot=100, max_passes=1).fit(source)
    assert pca.bytes_read_ == pca.plan_.bytes_to_read
    single = [start for start, stop in source.calls if stop - start == 1]
    assert len(single) == 100
    np.testing.assert_array_equal(np.array(single) * 100 // 2000, np.arange(100))


def compressed(tmp_path: Path, n: int, chunk: int) -> str:
    array = zarr.create_array(tmp_path / "x.zarr", shape=(n, 40), chunks=(chunk, 40), dtype="float32")
    array[...] = np.random.default_rng(0).standard_normal((n, 40), dtype=np.float32)
    return str(tmp_path / "x.zarr")


def test_of_compressed_chunks_no_more_than_a_tenth_is_decoded(tmp_path: Path) -> None:
    path = compressed(tmp_path, 10_000, 100)
    assert sketch_of(path) == (500, 10, 10 * 100 * 160)
    pca = sp.PCA(5, solver="sketch").fit(path)
    assert pca.bytes_read_ == pca.plan_.bytes_to_read


def test_a_store_of_a_few_chunks_is_not_read_twice_for_a_pilot(tmp_path: Path) -> None:
    path = compressed(tmp_path, 10_000, 1000)
    assert sketch_of(path)[0] == 0
    assert sketch_of(path, pilot=200)[:2] == (200, 10)


def test_pilot_0_reads_nothing() -> None:
    assert sketch_of(np.zeros((5000, 100)), pilot=0) == (0, 0, 0)


@pytest.mark.parametrize("pilot", [0, 100])
def test_nan_is_an_error_unless_it_has_a_meaning(pilot: int) -> None:
    values = np.random.default_rng(0).standard_normal((100, 3))
    values[7, 1] = np.nan
    made: dict[str, Any] = {"solver": "sketch", "sketch_size": 3, "pilot": pilot}
    with pytest.raises(NotFiniteError, match="row 7, column 1"):
        sp.PCA(2, **made).fit(values)
    assert sp.PCA(2, missing="pairwise", **made).fit(values).n_components_ == 2
    values[7, 1] = np.inf
    for missing in ("error", "pairwise"):
        with pytest.raises(NotFiniteError, match="infinity"):
            sp.PCA(2, missing=missing, **made).fit(values)


@pytest.mark.parametrize("reading", ["pilot", "kernel matrix"])
def test_rows_read_before_the_pass_are_read_again_after_a_transient_error(reading: str) -> None:
    rows = np.random.default_rng(0).standard_normal((200, 40))
    pca: Any = (
        sp.PCA(3, solver="sketch", pilot=20) if reading == "pilot" else sp.KernelPCA(3, method="exact", gamma=0.1)
    )
    expected = pca.fit(Recorded(rows)).transform(rows)
    source = Recorded(rows, fails=2 if reading == "pilot" else 1)
    np.testing.assert_array_equal(pca.fit(source).transform(rows), expected)
    assert len(source.calls) == len(set(source.calls)) + 1


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


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("exponent", [-140, -120, -70, 60, 66, 115])
def test_a_pilot_knows_deviations_whose_squares_leave_the_range_of_the_rows(dtype: str, exponent: int) -> None:
    exponent = exponent if dtype == "f4" else max(4 * exponent, -480)
    rows = (np.random.default_rng(0).standard_normal((400, 100)) * np.arange(1, 101)).astype(dtype)
    sigmas = [
        sp.PCA(3, solver="sketch", scale=True).fit(each).error_["sigma"] for each in (rows, np.ldexp(rows, exponent))
    ]
    assert sigmas[1] == pytest.approx(sigmas[0], rel=1e-4)


def test_factors_that_float32_does_not_hold_are_applied_to_its_rows() -> None:
    """Standard deviations of 1e-39 are float32 numbers, and what they are divided by is not."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 12)) @ np.diag(np.linspace(3, 1, 12)) + 1e3
    small = (1e-39 * rows).astype(np.float32)
    pca = sp.PCA(3, solver="sketch", sketch_size=12, pilot=16, scale=True, remove={"groups": np.arange(60) % 2}).fit(
        small
    )
    exact = small.astype(np.float64) * 1e39
    exact -= np.stack([exact[i::2].mean(axis=0) for i in (0, 1)])[np.arange(60) % 2]
    values = np.linalg.eigvalsh(np.corrcoef(exact.T))[:-4:-1]
    np.testing.assert_allclose(pca.explained_variance_, values, rtol=1e-5)


@pytest.mark.parametrize("exponent", [-130, -70, 66, 115])
@pytest.mark.filterwarnings("error")
def test_updates_of_float32_rows_of_any_size_have_the_variances_of_rows_of_size_one(exponent: int) -> None:
    rows = (np.random.default_rng(0).standard_normal((400, 100)) * np.arange(1, 101)).astype("f4")
    one, other = (
        sp.PCA(3, solver="adaptive", scale=True, sketch_size=90).fit(each).explained_variance_
        for each in (rows, np.ldexp(rows, exponent))
    )
    np.testing.assert_allclose(other, one, rtol=3e-3)  # rows of float64 come in batches of half as many


def test_means_whose_squares_overflow_are_an_error_with_a_name() -> None:
    rows = np.random.default_rng(0).normal(size=(400, 12)) * 1e155 + 1e156
    with pytest.raises(NotFiniteError, match="overflows float64 when squared"):
        sp.PCA(3, solver="sketch", pilot=16, max_passes=1).fit(rows)
