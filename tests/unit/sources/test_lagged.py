"""Lagged copies: rows of consecutive samples against numpy, across edges of blocks and chunks and at gaps, and extended EOFs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import DataError, NotAvailableError, ParameterError
from tests.facade import blocks_of


def windows(rows: NDArray[Any], lags: Any, starts: Any = None) -> NDArray[Any]:
    """Return rows of samples at `lags` side by side."""
    lags = list(range(lags)) if isinstance(lags, int) else sorted(lags)
    starts = np.arange(len(rows) - lags[-1]) if starts is None else starts
    made: NDArray[Any] = np.hstack([rows[starts + lag] for lag in lags])
    return made


@pytest.mark.parametrize("lags", [1, 5, [0, 3, 7], [2]])
def test_rows_hold_consecutive_samples(lags: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4))
    table, expected = sp.open(rows, lags=lags), windows(rows, lags)
    assert table.shape == expected.shape
    assert np.array_equal(table.read(0, len(expected))[0], expected)
    assert np.array_equal(table.read(7, 19)[0], expected[7:19])
    assert np.array_equal(table.to_dask(rows_per_block=9).compute(), expected)


@pytest.mark.parametrize("n_rows", [1, 7, 30])
def test_blocks_and_chunks_of_any_size_give_the_same_fit(n_rows: int, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3)).cumsum(axis=0)
    zarr.create_array(tmp_path / "x.zarr", shape=rows.shape, chunks=(17, 3), dtype="f8")[:] = rows
    values = np.linalg.eigvalsh(np.cov(windows(rows, 6).T))[::-1][:3]
    with blocks_of(n_rows):
        pca = sp.PCA(3).fit(sp.open(tmp_path / "x.zarr", lags=6))
    assert np.abs(pca.explained_variance_ - values).max() <= 1e-10 * values[0]
    scores = np.asarray(pca.transform(tmp_path / "x.zarr"))  # opened as the data of the fit were
    centred = windows(rows, 6) - windows(rows, 6).mean(0)
    assert np.abs(scores - centred @ pca.components_.T).max() <= 1e-9


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch"])
def test_every_solver_takes_them(solver: Any, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(120, 8)).cumsum(axis=0)
    zarr.create_array(tmp_path / "x.zarr", shape=rows.shape, chunks=(25, 5), dtype="f8")[:] = rows
    values = np.linalg.svd(windows(rows, 20) - windows(rows, 20).mean(0))[1][:2] ** 2 / 100
    pca = sp.PCA(2, solver=solver, max_passes=4).fit(sp.open(tmp_path / "x.zarr", lags=20))
    assert np.abs(pca.explained_variance_ / values - 1).max() <= (1e-2 if solver == "sketch" else 1e-9)


def _series(times: NDArray[Any], path: Path, dtype: str = "f8") -> NDArray[Any]:
    rows = np.random.default_rng(0).normal(size=(len(times), 6)).astype(dtype)
    group = zarr.open_group(path, mode="w", zarr_format=3)
    group.create_array(
        "sst", shape=(len(times), 2, 3), chunks=(7, 2, 3), dtype=dtype, dimension_names=("time", "lat", "lon")
    )[:] = rows.reshape(-1, 2, 3)
    stored = group.create_array("time", shape=times.shape, chunks=times.shape, dtype="i8", dimension_names=("time",))
    stored[:] = times
    stored.attrs["units"] = "days since 2000-01-01"
    return rows


def test_windows_across_gaps_of_the_time_axis_are_left_out_and_counted(tmp_path: Path) -> None:
    months = np.cumsum([0, *[31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] * 3])
    times = np.concatenate([months[:20], months[20:] + 400])  # of which one month is a gap
    rows = _series(times, tmp_path / "x.zarr")
    table = sp.open(tmp_path / "x.zarr", array="sst", samples="time", lags=4)
    starts = np.array([s for s in range(len(times) - 3) if not s <= 19 < s + 3])
    assert np.array_equal(table.read(0, len(starts))[0], windows(rows, 4, starts))
    assert np.array_equal(table.read(15, 22)[0], windows(rows, 4, starts)[15:22])
    assert any("3 windows of 4 samples cross a gap" in note for note in sp.PCA(2).plan(table).notes)
    backwards = np.concatenate([months[:20], months[:19]])  # two records one after the other
    rows = _series(backwards, tmp_path / "y.zarr")
    table = sp.open(tmp_path / "y.zarr", array="sst", samples="time", lags=4)
    starts = np.array([s for s in range(len(backwards) - 3) if not s <= 19 < s + 3])
    assert np.array_equal(table.read(0, table.shape[0])[0], windows(rows, 4, starts))


def test_components_have_the_dimension_of_the_lags_and_scores_the_first_times(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    rows = _series(np.arange(60), tmp_path / "x.zarr")
    table = sp.open(tmp_path / "x.zarr", array="sst", samples="time", lags=[0, 2])
    pca = sp.PCA(2).fit(table)
    dataset = pca.to_xarray()
    assert dataset["components"].dims == ("mode", "lag", "lat", "lon")
    assert dataset["lag"].values.tolist() == [0, 2]
    expected = np.linalg.svd(windows(rows, [0, 2]) - windows(rows, [0, 2]).mean(0))[2][0]
    assert abs(abs(dataset["components"].values[0].ravel() @ expected) - 1) <= 1e-10
    scores: Any = pca.transform(table)
    assert scores["time"].values[0] == np.datetime64("2000-01-01")
    assert scores.shape == (58, 2)


def test_several_variables_and_a_mask_keep_their_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=3)
    parts = {}
    for name, d in {"a": 3, "b": 2}.items():
        parts[name] = rng.normal(size=(30, d))
        array = group.create_array(
            name, shape=(30, d), chunks=(8, d), dtype="f8", dimension_names=("time", f"x_{name}")
        )
        array[:] = parts[name]
    used = np.array([True, False, True, True, True])
    table = sp.open(tmp_path / "x.zarr", variables=["a", "b"], mask=used, lags=3)
    expected = np.hstack([windows(parts["a"][:, [0, 2]], 3), windows(parts["b"], 3)])
    assert np.array_equal(table.read(0, 28)[0], expected)
    fields = table.labels.spread(expected)
    assert [each.shape for each in fields] == [(28, 3, 3), (28, 3, 2)]
    assert np.array_equal(fields[0][:, 1, 2], parts["a"][1:29, 2])
    assert np.isnan(fields[0][:, :, 1]).all()


def test_singular_spectrum_analysis_finds_the_period_of_a_noisy_oscillation() -> None:
    time = np.arange(2000)
    rng = np.random.default_rng(0)
    series = np.sin(2 * np.pi * time / 25) + rng.normal(size=len(time)) / 2
    pca = sp.PCA(4).fit(sp.open(series[:, None], lags=50))
    # A period of the signal is a pair of equal eigenvalues, of patterns a quarter of a period apart (Vautard & Ghil 1989).
    assert pca.explained_variance_[1] / pca.explained_variance_[0] > 0.95
    assert pca.explained_variance_[2] < 0.1 * pca.explained_variance_[1]
    spectrum = np.abs(np.fft.rfft(pca.components_[0], 1000))
    assert abs(spectrum.argmax() / 1000 - 1 / 25) <= 2e-3


def test_what_are_no_lags_is_refused(tmp_path: Path) -> None:
    rows = np.zeros((20, 3))
    for lags in (0, -1, True, [1, 1], [], "3", 2.5, [0.5]):
        with pytest.raises(ParameterError, match="lags="):
            sp.open(rows, lags=lags)
    with pytest.raises(ParameterError, match="without a gap"):
        sp.open(rows, lags=21)
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(NotAvailableError, match="sparse"):
        sp.open(sparse.csr_array(rows), lags=2)
    xr = pytest.importorskip("xarray")
    field = xr.DataArray(np.zeros((4, 5, 3)), dims=("member", "time", "x"))
    with pytest.raises(NotAvailableError, match="one dimension of samples"):
        sp.open(field, samples=["member", "time"], lags=2)
    with pytest.raises(DataError, match="rename"):
        sp.open(xr.DataArray(np.zeros((4, 5)), dims=("time", "lag")), lags=2)


def test_a_run_and_an_analysis_of_two_variables_take_lags(tmp_path: Path) -> None:
    rows = _series(np.arange(80), tmp_path / "x.zarr")
    config = tmp_path / "c.yaml"
    config.write_text(
        f"source: {{path: {tmp_path / 'x.zarr'}, array: sst, samples: time, lags: 5}}\n"
        f"model: {{n_components: 2}}\noutput: {{directory: {tmp_path / 'out'}, report: false}}\n"
    )
    finished = sp.run(config)
    assert finished.manifest["source"]["lags"] == [0, 1, 2, 3, 4]
    scores: Any = zarr.open_group(finished.directory / "scores.zarr", mode="r")["scores"]
    model: Any = finished.model
    centred = windows(rows, 5) - windows(rows, 5).mean(0)
    assert np.abs(scores[:] - centred @ model.components_.T).max() <= 1e-9
    lagged = sp.open(tmp_path / "x.zarr", array="sst", samples="time", lags=[3])
    mca = sp.MCA(2).fit(sp.open(rows[:77]), lagged)
    cross = np.cov(rows[:77].T, rows[3:].T)[:6, 6:]
    assert np.abs(mca.singular_values_ - np.linalg.svd(cross)[1][:2]).max() <= 1e-12
