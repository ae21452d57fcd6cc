"""Errors and notes name rows and features by their coordinates where the source has labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import streampca as sp
from streampca.errors import DataError, NotFiniteError, PartlyMissingError
from streampca.sources import Source


def write(path: Path, values: np.ndarray, **others: object) -> Path:
    """Write ``sst(time, lat, lon)`` with coordinates and ``ice(lat, time)``."""
    group = zarr.open_group(path, mode="w")
    group.create_array("sst", data=values, dimension_names=("time", "lat", "lon"), chunks=(4, 2, 3))
    group.create_array("ice", data=values[:, :, 0].T.copy() + 1, dimension_names=("lat", "time"), chunks=(2, 4))
    days = {"units": "days since 1990-01-01"}
    group.create_array("time", data=np.arange(len(values)) * 31, dimension_names=("time",), attributes=days)
    group.create_array("lat", data=np.array([-10.5, 10.5]), dimension_names=("lat",))
    group.create_array("lon", data=np.array([0.0, 20.0, 40.0]), dimension_names=("lon",))
    return path


def field() -> np.ndarray:
    """Return normal values of 20 times on 2 x 3 places."""
    return np.random.default_rng(0).standard_normal((20, 2, 3))


def opened(path: Path, **options: object) -> Source:
    """Open both variables."""
    return sp.open(path, variables=["sst", "ice"], samples="time", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch", "adaptive"])
def test_missing_value_is_named_by_time_and_place(tmp_path: Path, solver: str) -> None:
    values = field()
    values[7, 1, 1] = np.nan
    table = opened(write(tmp_path / "f.zarr", values))
    with pytest.raises(NotFiniteError, match=r"row 7 \[time=1990-08-06\], column 4 \[sst\(lat=10\.5, lon=20\)\] \("):
        sp.PCA(2, solver=solver).fit(table)  # type: ignore[arg-type]


def test_partial_fit_transform_to_and_kernel_pca_name_places(tmp_path: Path) -> None:
    values = field()
    pca = sp.PCA(2).fit(opened(write(tmp_path / "g.zarr", values)))
    values[0, 0, 0] = np.inf
    table = opened(write(tmp_path / "f.zarr", values))
    named = r"row 0 \[time=1990-01-01\], column 0 \[sst\(lat=-10\.5, lon=0\)\]"
    with pytest.raises(NotFiniteError, match=named):
        sp.PCA(2).partial_fit(table)
    with pytest.raises(NotFiniteError, match=named):
        pca.transform_to(table, tmp_path / "scores.zarr")
    with pytest.raises(NotFiniteError, match=named):
        sp.KernelPCA(2, gamma=0.1, method="exact").fit(table)


def test_masked_and_overflowing_features_are_named_by_their_place(tmp_path: Path) -> None:
    values = field()
    values[:, 0, 0] = np.nan
    values[3, 1, 2] = 1e200
    table = opened(write(tmp_path / "f.zarr", values), mask=[False] + 5 * [True] + [False, True])
    with pytest.raises(NotFiniteError, match=r"column 4 \[sst\(lat=10\.5, lon=40\)\] overflows"):
        sp.PCA(2, solver="covariance").fit(table)


def test_feature_observed_later_is_named_by_its_place_among_all_features(tmp_path: Path) -> None:
    values = field()
    values[:12, 1, 0] = np.nan
    table = opened(write(tmp_path / "f.zarr", values), mask="observed")
    words = r"feature 3 \[sst\(lat=10\.5, lon=0\)\] was missing .* in row 12 \[time=1991-01-08\]:"
    with pytest.raises(PartlyMissingError, match=words):
        sp.PCA(2).fit(table)
    group = zarr.open_group(write(tmp_path / "g.zarr", field()))
    group["ice"][1, :12] = np.nan  # type: ignore[index]
    with pytest.raises(PartlyMissingError, match=r"feature 1 \[ice\(lat=10\.5\)\] was missing"):
        sp.PCA(2).fit(opened(tmp_path / "g.zarr", mask="observed"))


def test_constant_features_are_named_in_the_notes(tmp_path: Path) -> None:
    values = field()
    values[:, 1, 2] = 3.0
    pca = sp.PCA(2, scale=True).fit(opened(write(tmp_path / "f.zarr", values)))
    assert any("weight 0: 5 [sst(lat=10.5, lon=40)]" in note for note in pca._model.notes())


def test_numbers_alone_stay_where_there_are_no_names(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((20, 3))
    values[2, 1] = np.nan
    zarr.create_array(str(tmp_path / "x.zarr"), data=values)
    for data in (values, tmp_path / "x.zarr"):
        with pytest.raises(DataError, match=r"NaN") as caught:
            sp.PCA(2).fit(data)
        assert "[" not in str(caught.value)
