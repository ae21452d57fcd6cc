"""Maps in the units of the data against regressions by numpy of the plain data on the standardised scores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import NotAvailableError

pytestmark = pytest.mark.numerical

N, LAT, LON = 80, np.array([-60.0, -20.0, 20.0, 62.5]), np.array([0.0, 90.0, 180.0])
D = len(LAT) * len(LON)
ALIKE = {"rtol": 1e-9, "atol": 1e-9}


def rows_of(seed: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((N, 4)) * [5, 3, 2, 1] @ rng.standard_normal((4, D)) + rng.standard_normal((N, D))
    return np.asarray(mixed * np.linspace(0.1, 10, D) + 50)


def regression(
    rows: NDArray[Any], scores: NDArray[Any], weight: NDArray[Any] | None = None, *, center: bool = True
) -> Any:
    """Return the slopes of `rows` on standardised `scores`, (k, d): of all scores together."""
    weight = np.ones(len(rows)) if weight is None else weight
    if center:
        rows, scores = rows - np.average(rows, 0, weight), scores - np.average(scores, 0, weight)
    deviation = np.sqrt(weight @ scores**2 / (weight.sum() - 1))
    root = np.sqrt(weight)[:, None]
    return np.linalg.lstsq(root * scores / deviation, root * rows, rcond=None)[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": True},
        {"scale": "block"},
        {"feature_weight": np.linspace(0.5, 2, D)},
        {"scale": True, "feature_weight": np.linspace(0.5, 2, D), "whiten": True},
        {"center": False, "feature_weight": np.linspace(0.5, 2, D)},
        {"remove": {"groups": np.arange(N) % 4, "trend": 1}, "scale": True, "feature_weight": np.linspace(0.5, 2, D)},
        {"solver": "gram", "feature_weight": np.linspace(0.5, 2, D)},
        {"solver": "qr", "scale": True},
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_maps_are_regressions_of_the_data_on_the_scores(options: dict[str, Any], weighted: bool) -> None:
    rows, weight = rows_of(), np.random.default_rng(1).random(N) + 0.5 if weighted else None
    pca = sp.PCA(4, **options).fit(rows, sample_weight=weight)
    expected = regression(rows, np.asarray(pca.transform(rows)), weight, center=options.get("center", True))
    np.testing.assert_allclose(pca.maps(), expected, **ALIKE)


@pytest.mark.parametrize("method", ["varimax", "promax"])
def test_maps_of_rotated_components_rebuild_the_rows(method: Any) -> None:
    rows = rows_of()
    pca = sp.PCA(4, scale=True, feature_weight=np.linspace(0.5, 2, D)).fit(rows)
    rotated = pca.rotate(3, method=method)
    scores = np.asarray(rotated.transform(rows))
    np.testing.assert_allclose(rotated.maps(), regression(rows, scores), **ALIKE)
    standardised = scores / np.sqrt(rotated.explained_variance_)
    np.testing.assert_allclose(rows.mean(0) + standardised @ rotated.maps(), rotated.inverse_transform(scores), **ALIKE)


def test_holes_are_means_constant_features_zero_and_features_without_weight_unknown() -> None:
    rows = rows_of()
    rows[:, 3] = 7.0
    rows[np.random.default_rng(2).random(rows.shape) < 0.05] = np.nan
    rows[:, 3] = 7.0
    weight = np.ones(D)
    weight[5] = 0.0
    pca = sp.PCA(4, scale=True, feature_weight=weight, missing="mean", missing_scores="mean").fit(rows)
    filled = np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)
    expected = regression(filled, np.asarray(pca.transform(rows)))
    expected[:, 5] = np.nan
    np.testing.assert_allclose(pca.maps(), expected, **ALIKE)
    assert not pca.maps()[:, 3].any()


def test_maps_of_labelled_data_have_its_dimensions_and_units(tmp_path: Path) -> None:
    xr: Any = pytest.importorskip("xarray")
    values = rows_of().reshape(N, len(LAT), len(LON))
    values[:, 1, 2] = np.nan
    field = xr.DataArray(values, {"time": np.arange(N), "lat": LAT, "lon": LON}, name="sst", attrs={"units": "K"})
    pca: Any = sp.PCA(3, feature_weight="cos(lat)").fit(sp.open(field, samples="time", mask="observed"))
    maps = pca.maps()
    assert maps.dims == ("mode", "lat", "lon")
    assert maps.attrs["units"] == "K"
    assert maps.name == "sst"
    assert maps["mode"].values.tolist() == [1, 2, 3]
    assert np.isnan(maps.values[:, 1, 2]).all()
    observed = ~np.isnan(values[0])
    expected = regression(
        values[:, observed], np.asarray(pca.transform(sp.open(field, samples="time", mask="observed")))
    )
    np.testing.assert_allclose(maps.values[:, observed], expected, **ALIKE)
    loaded: Any = sp.load(pca.save(tmp_path / "model.zarr"))
    assert loaded.maps().identical(maps)
    assert loaded.rotate(2).maps().dims == maps.dims
    both = xr.Dataset({"u": field.isel(lon=slice(0, 2)), "v": field.isel(lon=2, drop=True).fillna(0.0) * 3})
    several = sp.PCA(2, scale="block").fit(sp.open(both, samples="time", mask="observed"))
    assert {name: each.dims for name, each in several.maps().data_vars.items()} == {  # type: ignore[union-attr]
        "u": ("mode", "lat", "lon"),
        "v": ("mode", "lat"),
    }


def test_loadings_are_correlations_of_standardised_features() -> None:
    pd: Any = pytest.importorskip("pandas")
    names = [f"f{i}" for i in range(D)]
    frame = pd.DataFrame(rows_of(), columns=names)
    pca = sp.PCA(3, scale=True).fit(frame)
    loadings = pca.loadings()
    assert loadings.index.tolist() == names
    assert loadings.columns.tolist() == ["pca0", "pca1", "pca2"]
    scores = np.asarray(pca.transform(frame))
    expected = np.corrcoef(frame.to_numpy().T, scores.T)[:D, D:]
    np.testing.assert_allclose(loadings.to_numpy(), expected, atol=1e-10)
    np.testing.assert_allclose(loadings.to_numpy().T * frame.std().to_numpy(), pca.maps(), **ALIKE)
    assert sp.PCA(2).fit(rows_of()).rotate(2).loadings().index.tolist() == list(range(D))
    with patch.dict(sys.modules, {"pandas": None}), pytest.raises(NotAvailableError, match="needs pandas"):
        pca.loadings()
