"""Fields on a map against two packages of climate science, eofs and xeofs, and against the reference solutions of eofs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import scripts
import streampca as sp

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their own imports
    eofs = pytest.importorskip("eofs.standard")
    xarray = pytest.importorskip("xarray")
    xeofs = pytest.importorskip("xeofs")

K = 4
SHAPE = (240, 24, 48)
REFERENCE = Path(eofs.__file__).parent / "tests" / "data"


class Modes(NamedTuple):
    """What all three programs give."""

    maps: NDArray[np.float64]
    """Components, ``(mode, lat, lon)``, NaN on land."""
    eigenvalues: NDArray[np.float64]
    """Variances of the modes."""
    shares: NDArray[np.float64]
    """Shares of the total variance."""
    series: NDArray[np.float64]
    """Scores, ``(time, mode)``."""

    def require_close(self, other: Modes, tolerance: float) -> None:
        """Check that others are the same up to the sign of a mode and `tolerance`, relative to the largest of all modes."""
        for name, one, another in zip(self._fields, self, other, strict=True):
            np.testing.assert_array_equal(np.isnan(one), np.isnan(another), err_msg=name)
            scale = np.nanmax(np.abs(another)) if name in ("maps", "series") else np.abs(another)
            assert np.nanmax(np.abs(one - another) / scale) <= tolerance, name


def signed(maps: Any, eigenvalues: Any, shares: Any, series: Any) -> Modes:
    """Return modes whose entry of largest modulus is positive."""
    maps, series = np.asarray(maps), np.asarray(series)
    flat = np.nan_to_num(maps.reshape(len(maps), -1))
    signs = np.sign(flat[np.arange(len(flat)), np.abs(flat).argmax(axis=1)])
    return Modes(maps * signs[:, None, None], np.asarray(eigenvalues), np.asarray(shares), series * signs)


def ours(path: Path, **options: Any) -> Modes:
    table = sp.open(path, samples="time", mask="observed")
    assert table.labels is not None
    pca = sp.PCA(K, feature_weight="cos(lat)", **options).fit(table)
    (maps,) = table.labels.spread(pca.components_)
    series = np.asarray(pca.transform(table))
    return signed(maps, pca.explained_variance_, pca.explained_variance_ratio_, series)


def by_eofs(values: Any, lat: NDArray[np.float64]) -> Modes:
    solver = eofs.Eof(values, weights=np.sqrt(np.cos(np.radians(lat)))[:, None])
    return signed(
        solver.eofs(neofs=K), solver.eigenvalues(neigs=K), solver.varianceFraction(neigs=K), solver.pcs(npcs=K)
    )


def by_xeofs(field: Any) -> Modes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses functions that xarray deprecates
        model = xeofs.single.EOF(n_modes=K, use_coslat=True, solver="full").fit(field, dim="time")
    maps = model.components().transpose("mode", "lat", "lon").values
    shares, series = model.explained_variance_ratio().values, model.scores(normalized=False).transpose("time", "mode")
    return signed(maps, model.explained_variance().values, shares, series.values)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store of a packed field with land."""
    path = tmp_path_factory.mktemp("field") / "packed.zarr"
    with scripts.module(scripts.SCRIPTS / "make_data.py") as labelled:
        labelled.write_labelled(labelled.sea_temperature(SHAPE), path)
    return path


@pytest.fixture(scope="module")
def field(packed: Path) -> Any:
    """Return the field as xarray decodes it, in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = xarray.open_zarr(packed, consolidated=False, mask_and_scale=False).load()
    stored = dataset["sst"]
    values = stored.values * stored.attrs["scale_factor"] + stored.attrs["add_offset"]
    return stored.copy(data=np.where(stored.values == stored.attrs["_FillValue"], np.nan, values))


@pytest.fixture(scope="module")
def double(field: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of the same field in float64, its dimensions in another order, with chunks across all of them."""
    path = tmp_path_factory.mktemp("field") / "double.zarr"
    group = zarr.create_group(path)
    turned = field.transpose("lat", "time", "lon")
    group.create_array("sst", data=turned.values, chunks=(10, 100, 25), dimension_names=turned.dims, fill_value=np.nan)
    for name in ("lat", "lon"):
        group.create_array(name, data=field[name].values, chunks=field[name].shape, dimension_names=[name])
    days = (field["time"].values - field["time"].values[0]) / np.timedelta64(1, "D")
    since = str(field["time"].values[0].astype("M8[D]"))
    group.create_array(
        "time", data=days.astype(np.int32), attributes={"units": f"days since {since}"}, dimension_names=["time"]
    )
    return path


OTHERS = {"eofs": lambda field: by_eofs(field.values, field["lat"].values), "xeofs": by_xeofs}


@pytest.fixture(scope="module", params=OTHERS)
def expected(request: pytest.FixtureRequest, field: Any) -> Modes:
    """Return what another program gives for the field in float64."""
    return OTHERS[request.param](field)


@pytest.fixture(scope="module", params=OTHERS)
def expected_of_anomalies(request: pytest.FixtureRequest, field: Any) -> Modes:
    """Return what another program gives for the field in float64 without its seasonal cycle."""
    months = field.groupby("time.month")
    return OTHERS[request.param](months - months.mean("time"))


@pytest.mark.numerical
@pytest.mark.parametrize("solver", ["covariance", "gram"])
def test_modes_of_a_packed_field_are_those_of_other_programs_to_six_digits(
    packed: Path, expected: Modes, solver: str
) -> None:
    # float32 products are rounded by 2**-24 of the first eigenvalue, which turns modes by this over the gap between them.
    turned = 2**-24 * expected.eigenvalues[0] / np.abs(np.diff(expected.eigenvalues)).min()
    modes = ours(packed, solver=solver)
    modes.require_close(expected, max(1e-6, turned))
    np.testing.assert_allclose(modes.eigenvalues, expected.eigenvalues, rtol=1e-6)
    np.testing.assert_allclose(modes.shares, expected.shares, rtol=1e-6)


@pytest.mark.numerical
@pytest.mark.parametrize("solver", ["covariance", "gram"])
def test_modes_of_a_field_in_float64_are_those_of_other_programs_to_ten_digits(
    double: Path, expected: Modes, solver: str
) -> None:
    ours(double, solver=solver).require_close(expected, 1e-10)


@pytest.mark.numerical
@pytest.mark.parametrize("solver", ["covariance", "gram"])
@pytest.mark.parametrize(("store", "tolerance"), [("packed", 1e-6), ("double", 1e-10)])
def test_modes_of_monthly_anomalies_are_those_of_other_programs(
    store: str, tolerance: float, expected_of_anomalies: Modes, solver: str, request: pytest.FixtureRequest
) -> None:
    modes = ours(request.getfixturevalue(store), solver=solver, remove={"groups": "time.month"})
    modes.require_close(expected_of_anomalies, tolerance)


def test_labels_are_the_coordinates_that_xarray_reads(packed: Path, field: Any) -> None:
    table = sp.open(packed, samples="time", mask="observed")
    assert table.labels is not None
    stacked = field.stack(column=("lat", "lon")).dropna("column")
    assert stacked.sizes["column"] == table.shape[1]
    for name in ("lat", "lon"):
        np.testing.assert_array_equal(table.labels.along(name), stacked[name].values)
    np.testing.assert_array_equal(table.labels.sample_values("time"), field["time"].values)


@pytest.mark.numerical
@pytest.mark.parametrize("weights", ["equal", "latitude", "area"])
def test_the_reference_solutions_of_eofs_are_met(weights: str) -> None:
    def stored(name: str) -> NDArray[np.float64]:
        return np.load(REFERENCE / f"{name}.npy")

    if not REFERENCE.is_dir():
        pytest.skip("this version of eofs comes without its reference solutions")
    sst = stored("sst").reshape(len(stored("sst")), -1)
    observed = ~np.isnan(sst).any(axis=0)
    weight = None
    if weights != "equal":
        shape = stored("sst").shape[1:]
        weight = np.broadcast_to(stored(f"weights.{weights}"), shape).ravel()[observed] ** 2
    n_modes = len(stored(f"eigenvalues.{weights}"))
    pca = sp.PCA(n_modes, feature_weight=weight).fit(sst[:, observed])
    expected = stored(f"eofs.{weights}").reshape(n_modes, -1)[:, observed]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    # The last mode of centred data has no variance and no direction of its own.
    for mode in range(n_modes - 1):
        assert abs(pca.components_[mode] @ expected[mode]) == pytest.approx(1, abs=1e-10)
    np.testing.assert_allclose(pca.explained_variance_[:-1], stored(f"eigenvalues.{weights}")[:-1], rtol=1e-10)
