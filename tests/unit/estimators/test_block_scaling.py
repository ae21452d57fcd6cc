"""`scale="block"` against numpy: each variable is divided by the root of its total variance, then a singular value decomposition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from stores import Command

import streampca as sp
from streampca.errors import MergeError, NotAvailableError

pytestmark = pytest.mark.numerical

EXACT = ("covariance", "qr")
UNITS = {"u": 50.0, "v": 0.02, "w": 3.0}
GRIDS = {"u": ("lat", "lon"), "v": ("lat", "lon"), "w": ("lat",)}
SIZES = {"lat": 5, "lon": 7}


def write_group(path: Path, n: int, seed: int = 0, dtype: str = "float64", land: int = 0) -> dict[str, NDArray[Any]]:
    """Write three variables of a few modes in units of their own; return their features, ``(n, n_features)`` each."""
    rng = np.random.default_rng(seed)
    shared, group, fields = rng.standard_normal((n, 8)) * 2.0 ** -np.arange(8), zarr.open_group(path, mode="w"), {}
    for name, unit in UNITS.items():
        shape = tuple(SIZES[dim] for dim in GRIDS[name])
        field = shared @ rng.standard_normal((8, int(np.prod(shape)))) + 0.01 * rng.standard_normal((n, np.prod(shape)))
        field = (unit * (field + 3)).astype(dtype)
        field[:, :land] = np.nan
        chunks = (max(16, n // 3), *(4,) * len(shape))
        array = group.create_array(
            name, shape=(n, *shape), chunks=chunks, dtype=dtype, dimension_names=("time", *GRIDS[name])
        )
        array[...] = field.reshape(array.shape)
        fields[name] = field[:, land:].astype(np.float64)
    return fields


def scaled(fields: dict[str, NDArray[Any]], weights: Any = None, *, center: bool = True) -> tuple[Any, Any]:
    """Return rows with every variable divided by the root of its total variance, and the divisor of each feature."""
    parts, scales = [], []
    for field in fields.values():
        w = np.ones(len(field)) if weights is None else weights
        mean = np.average(field, axis=0, weights=w)
        scale = np.sqrt(np.sum(w @ (field - mean) ** 2) / (w.sum() - 1))
        parts.append((field - (mean if center else 0)) / scale)
        scales.append(np.full(field.shape[1], scale))
    return np.hstack(parts), np.concatenate(scales)


def check(pca: sp.PCA, rows: Any, scales: Any, weights: Any = None, tolerance: float = 1e-10) -> None:
    """Compare eigenvalues, total variance, scales and the projection with those of the scaled `rows`."""
    w = np.ones(len(rows)) if weights is None else weights
    values, axes = np.linalg.svd(rows * np.sqrt(w)[:, None], full_matrices=False)[1:]
    values, k = values**2 / (w.sum() - 1), pca.n_components_
    assert pca.scale_ is not None
    assert np.abs(pca.scale_ / scales - 1).max() <= tolerance
    assert abs(pca.total_variance_ / values.sum() - 1) <= tolerance
    assert np.abs(pca.explained_variance_ - values[:k]).max() <= tolerance * values[0]
    gap = (values[k - 1] - values[k]) / values[0]
    assert np.abs(pca.components_.T @ pca.components_ - axes[:k].T @ axes[:k]).max() <= 4 * tolerance / gap


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("solver", EXACT)
def test_every_variable_of_a_table_has_the_same_total_variance(
    tmp_path: Path, solver: str, weighted: bool, center: bool
) -> None:
    fields = write_group(tmp_path / "x", 60)
    table = sp.open(tmp_path / "x", variables=list(UNITS), samples="time")
    weights = np.random.default_rng(1).integers(0, 4, 60).astype(float) if weighted else None
    pca = sp.PCA(4, solver=solver, scale="block", center=center).fit(table, sample_weight=weights)  # type: ignore[arg-type]
    rows, scales = scaled(fields, weights, center=center)
    check(pca, rows, scales, weights)
    if center:
        assert pca.total_variance_ == pytest.approx(3, rel=1e-12)
    scores = np.asarray(pca.transform(table))
    assert np.abs(scores - rows @ pca.components_.T).max() <= 1e-10 * np.abs(rows).max() * 8
    mean = np.hstack(list(fields.values())) - rows * scales
    back = np.asarray(pca.inverse_transform(scores))
    assert np.abs(back - (rows @ pca.components_.T @ pca.components_ * scales + mean)).max() <= 1e-9 * UNITS["u"]


@pytest.mark.parametrize("missing", ["error", "drop_rows", "pairwise"])
@pytest.mark.parametrize("pilot", [0, 40])
def test_a_sketch_of_several_passes_meets_its_certificate(tmp_path: Path, missing: str, pilot: int) -> None:
    fields = write_group(tmp_path / "x", 400)
    table = sp.open(tmp_path / "x", variables=list(UNITS), samples="time")
    options: dict[str, Any] = {"missing": missing, "pilot": pilot, "max_passes": 3, "tolerance": 0.0}
    pca = sp.PCA(4, solver="sketch", sketch_size=20, scale="block", **options).fit(table)
    rows, scales = scaled(fields)
    values = np.linalg.svd(rows, compute_uv=False) ** 2 / 399
    assert np.abs(pca.scale_ / scales - 1).max() <= 1e-10  # type: ignore[operator]
    assert pca.total_variance_ == pytest.approx(3, rel=1e-10)
    certificate: Any = pca.certificate_
    for (low, high), value in zip(certificate.eigenvalue_intervals or (), values, strict=False):
        assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
    assert np.abs(pca.explained_variance_ / values[:4] - 1).max() <= 1e-6


def test_the_incremental_solver_scales_variables_as_the_pilot_expects(tmp_path: Path) -> None:
    fields = write_group(tmp_path / "x", 400)
    table = sp.open(tmp_path / "x", variables=list(UNITS), samples="time")
    pca = sp.PCA(4, solver="adaptive", sketch_size=30, scale="block", pilot=60).fit(table)
    rows, scales = scaled(fields)
    values = np.linalg.svd(rows, compute_uv=False) ** 2 / 399
    assert np.abs(pca.scale_ / scales - 1).max() <= 1e-10  # type: ignore[operator]
    assert np.abs(pca.explained_variance_ / values[:4] - 1).max() <= 1e-6


def test_the_conversion_takes_variances_in_a_reading_of_its_own(tmp_path: Path) -> None:
    fields = write_group(tmp_path / "x", 300)
    table = sp.open(tmp_path / "x", variables=list(UNITS), samples="time")
    options: dict[str, Any] = {"recovery": "conversion", "sketch": "count_sketch", "sketch_size": 60}
    pca = sp.PCA(2, solver="sketch", scale="block", **options).fit(table)
    assert np.abs(pca.scale_ / scaled(fields)[1] - 1).max() <= 1e-10  # type: ignore[operator]
    assert pca.n_passes_ == 2


@pytest.mark.parametrize("solver", EXACT)
def test_features_that_a_mask_leaves_out_do_not_count(tmp_path: Path, solver: str) -> None:
    fields = write_group(tmp_path / "x", 50, land=2)
    table = sp.open(tmp_path / "x", variables=list(UNITS), samples="time", mask="observed")
    pca = sp.PCA(3, solver=solver, scale="block").fit(table)  # type: ignore[arg-type]
    check(pca, *scaled(fields))


@pytest.mark.parametrize(("solver", "missing"), [("covariance", "mean"), ("covariance", "pairwise")])
def test_missing_values_leave_the_variances_of_what_was_observed(tmp_path: Path, solver: str, missing: str) -> None:
    fields = write_group(tmp_path / "x", 80)
    rng, group = np.random.default_rng(2), zarr.open_group(tmp_path / "x")
    for name, field in fields.items():
        field[rng.random(field.shape) < 0.1] = np.nan
        array: Any = group[name]
        array[...] = field.reshape(array.shape)
    table = sp.open(tmp_path / "x", variables=list(UNITS), samples="time")
    pca = sp.PCA(3, solver=solver, missing=missing, scale="block").fit(table)  # type: ignore[arg-type]
    if missing == "mean":
        filled = {name: np.where(np.isnan(f), np.nanmean(f, axis=0), f) for name, f in fields.items()}
        check(pca, *scaled(filled))
        return
    expected = [np.sqrt(np.nanvar(f, axis=0, ddof=1).sum()) for f in fields.values()]
    assert np.abs(pca.scale_ / np.repeat(expected, [35, 35, 5]) - 1).max() <= 1e-10  # type: ignore[operator]


@pytest.mark.parametrize("solver", EXACT)
def test_weights_of_features_multiply_scaled_features_and_residuals_have_scales_of_their_own(
    tmp_path: Path, solver: str
) -> None:
    fields = write_group(tmp_path / "x", 60)
    table = sp.open(tmp_path / "x", variables=list(UNITS), samples="time")
    weight, groups = np.random.default_rng(3).random(75) + 0.5, np.arange(60) % 4
    pca = sp.PCA(3, solver=solver, scale="block", feature_weight=weight, remove={"groups": groups}).fit(table)  # type: ignore[arg-type]
    means = np.array([groups == g for g in range(4)], dtype=float)
    residuals = {name: f - (means.T @ (means @ f / 15)) for name, f in fields.items()}
    rows, scales = scaled(residuals)
    check(pca, rows * np.sqrt(weight), scales)


@pytest.mark.parametrize("dtype", ["float32", "int16"])
@pytest.mark.parametrize("solver", EXACT)
def test_rows_of_small_types_have_the_accuracy_of_their_products(tmp_path: Path, solver: str, dtype: str) -> None:
    rng, group = np.random.default_rng(4), zarr.open_group(tmp_path / "x", mode="w")
    fields = {}
    for name, most in (("a", 3000), ("b", 9)):
        values = (
            rng.integers(-most, most, (90, 12)) + most * np.sign(rng.standard_normal((90, 1))) * np.arange(1, 13) // 4
        )
        fields[name] = values.astype(dtype)
        array = group.create_array(name, shape=values.shape, chunks=(20, 5), dtype=dtype, dimension_names=("t", "x"))
        array[...] = fields[name]
    table = sp.open(tmp_path / "x", variables=["a", "b"], samples="t")
    pca = sp.PCA(2, solver=solver, scale="block").fit(table)  # type: ignore[arg-type]
    rows, scales = scaled({name: f.astype(float) for name, f in fields.items()})
    check(pca, rows, scales, tolerance=1e-6)


def test_a_table_without_variables_is_one_variable() -> None:
    rows = np.random.default_rng(5).standard_normal((50, 6)) * np.arange(1, 7)
    pca = sp.PCA(2, scale="block").fit(rows)
    assert pca.total_variance_ == pytest.approx(1, rel=1e-12)
    check(pca, *scaled({"x": rows}))


def test_features_and_variables_that_never_vary_have_weight_zero(tmp_path: Path) -> None:
    fields = write_group(tmp_path / "x", 30)
    group: Any = zarr.open_group(tmp_path / "x")
    group["w"][...] = 7.0
    group["u"][:, 0, 0] = 5.0
    fields["u"][:, 0] = 5.0
    table = sp.open(tmp_path / "x", variables=list(UNITS), samples="time")
    for solver in EXACT:
        pca = sp.PCA(3, solver=solver, scale="block").fit(table)  # type: ignore[arg-type]
        assert pca.total_variance_ == pytest.approx(2, rel=1e-12)
        assert pca.constant_features_.tolist() == [0, 70, 71, 72, 73, 74]
        assert (pca.scale_[70:] == 1).all()  # type: ignore[index]
        assert pca.scale_[0] == pca.scale_[1]  # type: ignore[index]
        assert np.abs(pca.components_[:, pca.constant_features_]).max() <= 1e-14


@pytest.mark.parametrize("solver", ["covariance", "qr"])
def test_batches_and_merged_models_are_those_of_all_rows(tmp_path: Path, solver: str) -> None:
    fields = write_group(tmp_path / "x", 80)
    table = sp.open(tmp_path / "x", variables=list(UNITS), samples="time")
    rows = np.hstack(list(fields.values()))
    options: dict[str, Any] = {"solver": solver, "scale": "block"}
    write_group(tmp_path / "y", 50, seed=1)
    other = sp.open(tmp_path / "y", variables=list(UNITS), samples="time")
    both = np.vstack([rows, np.asarray(other.to_dask())])
    everything = dict(zip(UNITS, np.split(both, [35, 70], axis=1), strict=True))
    continued = sp.PCA(3, **options).partial_fit(table).partial_fit(np.asarray(other.to_dask()))
    check(continued, *scaled(everything))
    one, two = sp.PCA(3, **options).fit(table), sp.PCA(3, **options).fit(other)
    one.save(tmp_path / "m", state=True)
    loaded = sp.load(tmp_path / "m")
    assert isinstance(loaded, sp.PCA)
    assert loaded.scale == "block"
    merged = sp.merge([loaded, two])
    check(merged, *scaled(everything))
    assert np.array_equal(np.asarray(loaded.transform(table)), np.asarray(one.transform(table)))
    with pytest.raises(MergeError, match="scale is"):
        sp.merge([one, sp.PCA(3, **options).fit(rows)])


def test_a_damaged_state_of_scaled_variables_is_refused(tmp_path: Path) -> None:
    write_group(tmp_path / "x", 30)
    table = sp.open(tmp_path / "x", variables=list(UNITS), samples="time")
    sp.PCA(2, scale="block").fit(table).save(tmp_path / "m", state=True)
    group = zarr.open_group(tmp_path / "m" / "state", mode="r+")
    group.attrs["parameters"] = dict(group.attrs["parameters"]) | {"scale": [0, 40, 35, 75]}  # type: ignore[arg-type]
    with pytest.raises(sp.errors.ModelError, match="variables are damaged"):
        sp.load(tmp_path / "m")


def test_gram_is_refused_and_auto_takes_another_solver_for_wide_tables(tmp_path: Path) -> None:
    rng, group, fields = np.random.default_rng(6), zarr.open_group(tmp_path / "x", mode="w"), {}
    for name, unit in (("u", 10.0), ("v", 0.1)):
        fields[name] = unit * rng.standard_normal((20, 260))
        group.create_array(name, data=fields[name], dimension_names=("time", "x"))
    table = sp.open(tmp_path / "x", variables=["u", "v"], samples="time")
    assert sp.PCA(3).plan(table).solver == "gram"
    pca = sp.PCA(3, scale="block").fit(table)
    assert pca.solver_ == "covariance"
    check(pca, *scaled(fields))
    with pytest.raises(NotAvailableError, match=r"solver='gram' does not take scale='block': use solver='covariance'"):
        sp.PCA(3, solver="gram", scale="block").fit(table)
    with pytest.raises(NotAvailableError, match="scale='block'"):
        sp.PCA(3, solver="gram", scale="block").plan(table)


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("units", [{"u": 1e150, "v": 1e-150}, {"u": 1e-150, "w": 1e150}], ids=str)
def test_scales_of_variables_neither_overflow_nor_underflow(tmp_path: Path, solver: str, units: Any) -> None:
    fields = write_group(tmp_path / "x", 40)
    group: Any = zarr.open_group(tmp_path / "x")
    for name, unit in units.items():
        group[name][...] = group[name][...] * unit
    table = sp.open(tmp_path / "x", variables=list(UNITS), samples="time")
    pca = sp.PCA(3, solver=solver, scale="block").fit(table)  # type: ignore[arg-type]
    rows, scales = scaled(fields)
    sizes = [field.shape[1] for field in fields.values()]
    check(pca, rows, scales * np.repeat([units.get(name, 1.0) for name in UNITS], sizes))


@pytest.mark.parametrize("value", ["blocks", 1, None])
def test_other_values_of_scale_are_refused(value: Any) -> None:
    with pytest.raises(sp.errors.ParameterError, match="scale"):
        sp.PCA(2, scale=value).fit(np.eye(5))


@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("solver", ["covariance", "sketch"])
def test_a_run_with_scaled_variables_is_verified(
    tmp_path: Path, solver: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = write_group(tmp_path / "x", 60)
    (tmp_path / "c.yaml").write_text(
        f"name: x\nsource: {{path: {tmp_path / 'x'}, variables: [u, v, w], samples: time}}\n"
        f"preprocess: {{scale: block}}\nmodel: {{n_components: 3, solver: {solver}, max_passes: 3, tolerance: 0}}\n"
        f"output: {{directory: {tmp_path / 'run'}, report: {str(solver == 'sketch').lower()}}}\n"
    )
    run = sp.run(tmp_path / "c.yaml")
    assert np.abs(run.model.scale_ / scaled(fields)[1] - 1).max() <= 1e-10  # type: ignore[union-attr,operator]
    done = Command(capsys)("verify", tmp_path / "run", "--json")
    assert done.status == 0, done.err
    checks = {check["name"]: check["holds"] for check in json.loads(done.out)["checks"]}
    assert checks["scale"]
    assert False not in checks.values()
    assert (tmp_path / "run" / "report.html").is_file() == (solver == "sketch")
