"""Weights of samples and of features: what is refused and why, what they do to a model, and how a file names them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from sklearn.base import clone

import streampca as sp
from streampca import PCA
from streampca.errors import ConfigError, DataError, MissingChunkError, NotAvailableError, ParameterError

pytestmark = pytest.mark.numerical

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((200, 5)) @ RNG.standard_normal((5, 5)) + 3


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 199, "sample_weight has 199 values: expected one for each of the 200 samples"),
        ([-1.0] + [1.0] * 199, "sample_weight holds -1.0 at 0 (1 such value)"),
        ([1.0] * 199 + [np.nan], "sample_weight holds nan at 199"),
        ([np.inf] * 200, "sample_weight holds inf at 0 (200 such values)"),
        (np.zeros(200), "sample_weight is zero everywhere"),
        (np.ones((200, 1)), "sample_weight has shape (200, 1): expected one dimension"),
        (["a"] * 200, "sample_weight is not a list of numbers"),
        (2.0, "sample_weight has shape (): expected one dimension"),
    ],
)
def test_sample_weights_that_are_none(weights: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(message)):
        PCA().fit(ROWS, sample_weight=weights)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 4, "feature_weight has 4 values: expected one for each of the 5 features"),
        ([1.0, -2.0, 1, 1, 1], "feature_weight holds -2.0 at 1"),
        (np.zeros(5), "feature_weight is zero everywhere"),
    ],
)
def test_feature_weights_that_are_none(weights: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(message)):
        PCA(feature_weight=weights).fit(ROWS)


def test_weights_that_add_up_to_one_need_ddof_0() -> None:
    with pytest.raises(DataError, match=r"weight 1 gives no variance with ddof=1: .* use ddof=0 if only"):
        PCA().fit(ROWS, sample_weight=np.full(200, 1 / 200))
    one = PCA(ddof=0).fit(ROWS, sample_weight=np.full(200, 1 / 200))
    np.testing.assert_allclose(one.explained_variance_, PCA(ddof=0).fit(ROWS).explained_variance_, rtol=1e-12)


def test_rows_of_weight_0_are_not_looked_at() -> None:
    rows, weights = ROWS.copy(), np.ones(200)
    rows[[3, 77]], weights[[3, 77]] = np.nan, 0
    pca = PCA().fit(rows, sample_weight=weights)
    np.testing.assert_allclose(pca.explained_variance_, PCA().fit(ROWS[weights > 0]).explained_variance_, rtol=1e-12)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("whiten", [False, True])
def test_features_are_multiplied_by_the_root_of_their_weight(tmp_path: Path, scale: bool, whiten: bool) -> None:
    area = np.cos(np.deg2rad([0.0, 30, 45, 60, 90])).round(12)
    pca = PCA(feature_weight=area, scale=scale, whiten=whiten).fit(ROWS)
    taken = (ROWS - ROWS.mean(axis=0)) / (ROWS.std(axis=0, ddof=1) if scale else 1) * np.sqrt(area)
    values = np.linalg.eigvalsh(np.cov(taken.T))[::-1]
    np.testing.assert_allclose(pca.explained_variance_, values, atol=1e-13 * values[0])
    assert pca.total_variance_ == pytest.approx(values.sum())
    scores = taken @ pca.components_[:4].T  # the fifth has no variance
    expected = scores / np.sqrt(pca.explained_variance_[:4]) if whiten else scores
    np.testing.assert_allclose(pca.transform(ROWS)[:, :4], expected, atol=1e-10)
    back = pca.inverse_transform(pca.transform(ROWS))
    np.testing.assert_allclose(back[:, :4], ROWS[:, :4], atol=1e-10)
    np.testing.assert_allclose(back[:, 4], ROWS[:, 4].mean())  # of weight 0: nothing is known but the mean
    pca.save(tmp_path / "model")
    np.testing.assert_array_equal(sp.load(tmp_path / "model").transform(ROWS), pca.transform(ROWS))
    np.testing.assert_allclose(pca.score(ROWS), pca.score(da.from_array(ROWS).compute()))


def test_feature_weights_are_the_same_for_the_gram_solver() -> None:
    wide, area = RNG.standard_normal((30, 700)), RNG.random(700)
    gram, covariance = (PCA(5, solver=name, feature_weight=area).fit(wide) for name in ("gram", "covariance"))
    np.testing.assert_allclose(gram.explained_variance_, covariance.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(np.abs(gram.transform(wide)), np.abs(covariance.transform(wide)), atol=1e-8)


@pytest.mark.parametrize(
    ("solver", "missing"),
    [("gram", "drop_rows"), ("gram", "pairwise"), ("qr", "mean"), ("qr", "drop_rows"), ("qr", "pairwise")],
)
def test_other_solvers_refuse_what_they_do_not_take(solver: str, missing: str) -> None:
    with pytest.raises(NotAvailableError, match="use solver='covariance'"):
        PCA(solver=solver, missing=missing).fit(ROWS)


def test_weights_are_the_same_for_the_qr_solver() -> None:
    samples, area = RNG.integers(0, 4, 200), RNG.random(5)
    for scale in (False, True):
        factor, covariance = (
            PCA(solver=name, scale=scale, feature_weight=area).fit(ROWS, sample_weight=samples)
            for name in ("qr", "covariance")
        )
        np.testing.assert_allclose(factor.explained_variance_, covariance.explained_variance_, rtol=1e-10)
        np.testing.assert_allclose(factor.singular_values_, covariance.singular_values_, rtol=1e-10)
        np.testing.assert_allclose(np.abs(factor.transform(ROWS)), np.abs(covariance.transform(ROWS)), atol=1e-9)


def test_a_sum_of_weights_is_saved(tmp_path: Path) -> None:
    pca = PCA(2).fit(ROWS, sample_weight=np.full(200, 2.5))
    pca.save(tmp_path / "model")
    loaded = sp.load(tmp_path / "model")
    assert pca._model.weight == loaded._model.weight == 500
    np.testing.assert_array_equal(loaded.singular_values_, np.sqrt(pca.explained_variance_ * 499))


def group_with_weights(path: Path) -> NDArray[np.float64]:
    group, weights = zarr.open_group(path / "store.zarr", mode="w"), RNG.integers(0, 3, 200).astype(np.float64)
    for name, values in (("in/x", ROWS), ("in/w", weights), ("area", np.arange(1.0, 6.0)), ("text", np.ones((2, 2)))):
        group.create_array(name, data=values, chunks=(50, *values.shape[1:]) if len(values) > 9 else values.shape)
    return weights


def configured(path: Path, preprocess: str) -> Any:
    (path / "c.yaml").write_text(
        f"source: {{path: '{path}/store.zarr', array: in/x}}\npreprocess: {{{preprocess}}}\nmodel: {{n_components: 2}}\n"
        f"output: {{directory: '{path}/run', report: false, overwrite: true}}\n"
    )
    return sp.run(path / "c.yaml")


def test_weights_named_in_a_file(tmp_path: Path) -> None:
    weights = group_with_weights(tmp_path)
    np.save(tmp_path / "area.npy", np.arange(1.0, 6.0))
    expected = PCA(2, feature_weight=np.arange(1.0, 6.0)).fit(ROWS, sample_weight=weights)
    for area in ("area", f"{tmp_path}/area.npy"):
        model = configured(tmp_path, f"sample_weight: w, feature_weight: '{area}'").model
        np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-12)
        np.testing.assert_array_equal(model._model.feature_weight, np.arange(1.0, 6.0))


@pytest.mark.parametrize(
    ("preprocess", "error", "message"),
    [
        (
            "sample_weight: nothing",
            DataError,
            "preprocess.sample_weight: nothing is neither a path that ends in .npy nor",
        ),
        ("sample_weight: no.npy", DataError, "preprocess.sample_weight: no.npy cannot be read: No such file"),
        ("sample_weight: text", DataError, "text has shape (2, 2) and dtype float64: expected one dimension"),
        ("sample_weight: area", ParameterError, "sample_weight has 5 values: expected one for each of the 200 samples"),
        ("feature_weight: [1, 2]", ConfigError, "preprocess.feature_weight: found a list"),
    ],
)
def test_names_that_are_no_weights(tmp_path: Path, preprocess: str, error: type[Exception], message: str) -> None:
    group_with_weights(tmp_path)
    with pytest.raises(error, match=re.escape(message)):
        configured(tmp_path, preprocess)


def test_a_lost_chunk_of_weights_is_an_error(tmp_path: Path) -> None:
    group_with_weights(tmp_path)
    (tmp_path / "store.zarr" / "in" / "w" / "c" / "1").unlink()
    with pytest.raises(MissingChunkError):
        configured(tmp_path, "sample_weight: w")


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_an_outlier_of_small_weight_costs_no_digits_in_float32(missing: str) -> None:
    """It moves the mean of all rows by eight weighted standard deviations, and products about that lose a factor 64."""
    rng = np.random.default_rng(11)
    rows = rng.standard_normal((120, 6)).astype(np.float32)
    rows[3] *= 1000
    weights = rng.random(120) + 0.5
    weights[3] = 1e-9
    pca = PCA(scale=True, missing=missing).fit(rows, sample_weight=weights)
    wide = rows.astype(np.float64)
    wide -= weights @ wide / weights.sum()
    variance = weights @ wide**2 / (weights.sum() - 1)
    assert pca.scale_ is not None
    np.testing.assert_allclose(pca.scale_, np.sqrt(variance), rtol=32 * np.finfo(np.float32).eps)


_TAKEN = {
    "gram": ("error", "mean"),
    "qr": ("error",),
    "adaptive": ("error",),
    "sketch": (
        "error",
        "drop_rows",
    ),  # pairwise products are taken about an origin near the first rows, which are others
}


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch", "adaptive"])
@pytest.mark.parametrize("missing", ["error", "drop_rows", "mean", "pairwise"])
@pytest.mark.parametrize("scale", [False, True])
def test_integer_weights_equal_repeated_rows_for_every_solver(solver: str, missing: str, scale: bool) -> None:
    if missing not in _TAKEN.get(solver, (missing,)):
        pytest.skip("not taken by this solver")
    rows, weights = ROWS.copy(), np.random.default_rng(4).integers(0, 4, len(ROWS)).astype(float)
    if missing != "error":
        rows[::17, 1] = rows[5::23, 3] = np.nan
    asked = PCA(3, solver=solver, missing=missing, scale=scale, sketch_size=5, pilot=0)
    found = asked.fit(rows, sample_weight=weights)
    expected = clone(asked).fit(np.repeat(rows, weights.astype(int), axis=0))
    for name in ("singular_values_", "explained_variance_", "total_variance_", "noise_variance_", "mean_"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, err_msg=name)
    divisor = weights.sum() - 1
    if missing == "drop_rows":
        divisor = weights[~np.isnan(rows).any(axis=1)].sum() - 1
    np.testing.assert_allclose(found.singular_values_**2, found.explained_variance_ * divisor, rtol=1e-12)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(
    ("solver", "missing"), [("covariance", "pairwise"), ("covariance", "mean"), ("gram", "mean")], ids=str
)
def test_an_outlier_of_small_weight_costs_no_digits_beside_missing_values(
    solver: str, missing: str, holes: bool
) -> None:
    """Products were taken about the mean without weights, 2,500 deviations away: 9 digits were left of 16."""
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((40, 6))
    rows[7] = 1e5
    weights = np.where(np.arange(40) == 7, 1e-9, 1.0)
    seen = np.ones(rows.shape, dtype=bool)
    if holes:
        seen[10:] = draw.random((30, 6)) > 0.2
    values, w = np.where(seen, rows, 0).astype(np.longdouble), weights[:, None] * seen
    mean = (w * values).sum(axis=0) / w.sum(axis=0)
    divisor = (w.sum(axis=0) if missing == "pairwise" else weights.sum()) - 1
    deviation = np.sqrt((w * (values - mean) ** 2).sum(axis=0) / divisor)
    pca = PCA(3, solver=solver, missing=missing, scale=True).fit(np.where(seen, rows, np.nan), sample_weight=weights)
    assert pca.scale_ is not None
    # Rows are first centred about the mean without weights, 1e5 / 40 away, to eps of that.
    np.testing.assert_allclose(pca.scale_, deviation.astype(np.float64), rtol=1e5 / 40 * np.finfo(np.float64).eps)


def test_an_outlier_of_small_weight_costs_no_digits_of_the_gram_matrix() -> None:
    """The matrix of float32 rows was made about the mean without weights: eigenvalues were wrong by 1e-5 of the first and more."""
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((60, 90)).astype(np.float32)
    rows[7] = 1e4
    weights = np.where(np.arange(60) == 7, 1e-5, 1.0)
    pca = PCA(5, solver="gram", scale=True).fit(rows, sample_weight=weights)
    mean = weights @ rows.astype(np.longdouble) / weights.sum()
    centred = rows - mean
    deviation = np.sqrt(weights @ centred**2 / (weights.sum() - 1))
    scaled = np.sqrt(weights / (weights.sum() - 1))[:, None] * centred / deviation
    exact = np.linalg.svd(scaled.astype(np.float64), compute_uv=False)[:5] ** 2
    np.testing.assert_allclose(pca.explained_variance_, exact, rtol=0, atol=1e-6 * exact[0])


@pytest.mark.parametrize(
    "parameters",
    [{"solver": "covariance"}, {"missing": "pairwise"}, {"solver": "gram"}, {"solver": "qr"}, {"solver": "adaptive"}],
)
def test_light_outlier_far_from_heavy_samples_costs_no_digits_in_float32(parameters: dict[str, Any]) -> None:
    """The outlier moves the plain mean, about which float32 rows were rounded: by 2e-5 of heavy samples' deviations."""
    rng = np.random.default_rng(5)
    rows = (rng.standard_normal((34, 4)) * 0.06).astype(np.float32)
    rows[20] = -1131.0 * np.arange(1, 5)
    weight = rng.uniform(1, 2, 34) * 1e4
    weight[20] = 1e-9
    mean = np.average(rows.astype(np.float64), axis=0, weights=weight)
    centred = rows - mean
    expected = np.linalg.eigvalsh((centred * weight[:, None]).T @ centred / (weight.sum() - 1))[::-1]
    pca = PCA(4, **parameters).fit(rows, sample_weight=weight)
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=0, atol=4e-6 * expected[0])
