"""Exported models, run by scikit-learn, onnxruntime, faiss and numpy, against the transform of the fit in float64."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
import xarray as xr
from facade import export
from numpy.typing import NDArray
from sklearn import decomposition
from sklearn.base import clone
from sklearn.pipeline import Pipeline

import streampca as sp
from streampca.errors import PlanError

pytestmark = pytest.mark.numerical

FLOAT32 = 1e-5
"""Promised max |ŝ − s| / max |s| of scores in float32."""
N, D, K = 300, 12, 5


def make_rows(seed: int = 0) -> NDArray[np.float64]:
    """Return rows of separated variances with means of a few standard deviations."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((N, D)) * np.geomspace(1, 0.05, D)) @ rng.standard_normal((D, D)) + rng.uniform(
        -5, 5, D
    )


ROWS = make_rows()
HOLES = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.05, np.nan, ROWS)
AREAS = np.append(np.random.default_rng(2).uniform(0.1, 3, D - 1), 0.0)
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "not centred": {"center": False},
    "whitened": {"whiten": True},
    "scaled": {"scale": True},
    "scaled by block": {"scale": "block"},
    "scaled, not centred": {"scale": True, "center": False},
    "weighted": {"feature_weight": AREAS},
    "scaled, weighted, whitened": {"scale": True, "feature_weight": AREAS, "whiten": True},
    "ddof 0": {"ddof": 0, "scale": True},
    "forgetting": {"forgetting": 0.99},
    "gram": {"solver": "gram", "scale": True},
    "sketch": {"solver": "sketch", "whiten": True},
    "NaN as means": {"missing": "mean", "missing_scores": "mean", "scale": True},
    "NaN by pairs, as means": {"missing": "pairwise", "missing_scores": "mean", "whiten": True},
    "rows with NaN dropped": {"missing": "drop_rows"},
}


def fitted(setting: str) -> tuple[sp.PCA, NDArray[np.float64]]:
    """Return a fit and rows to be transformed, with NaN where the model replaces it."""
    parameters = SETTINGS[setting]
    data = HOLES if "missing" in parameters else ROWS
    pca = sp.PCA(K, **parameters).fit(data)
    return pca, HOLES if parameters.get("missing_scores") == "mean" else ROWS


def difference(scores: Any, expected: Any) -> float:
    """Return the largest difference relative to the largest expected value."""
    return float(np.abs(scores - expected).max() / np.abs(expected).max())


def run_onnx(path: Path, rows: NDArray[Any]) -> Any:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["scores"], {"X": rows})[0]


@pytest.mark.parametrize("setting", SETTINGS)
def test_scikit_learn_has_the_same_transform_and_inverse(setting: str) -> None:
    pca, rows = fitted(setting)
    exported = pca.to_sklearn()
    scores = pca.transform(rows)
    assert difference(exported.transform(rows), scores) <= 1e-12
    assert difference(exported.inverse_transform(scores), pca.inverse_transform(scores)) <= 1e-12
    again = pickle.loads(pickle.dumps(exported))
    np.testing.assert_array_equal(again.transform(rows), exported.transform(rows))
    inner = exported[-1] if isinstance(exported, Pipeline) else exported
    plain = {"scale", "feature_weight", "missing_scores"}.isdisjoint(SETTINGS[setting])
    assert isinstance(exported, decomposition.PCA if plain else Pipeline)
    for name in (
        "explained_variance_",
        "explained_variance_ratio_",
        "singular_values_",
        "noise_variance_",
        "n_components_",
    ):
        np.testing.assert_array_equal(getattr(inner, name), getattr(pca, name))
    assert (inner.n_samples_, inner.n_features_in_) == (pca.n_samples_seen_, D)


def test_attributes_are_those_of_a_fit_of_scikit_learn() -> None:
    pca = sp.PCA(K, whiten=True).fit(ROWS)
    exported, own = pca.to_sklearn(), decomposition.PCA(K, whiten=True, svd_solver="full").fit(ROWS)
    assert isinstance(exported, decomposition.PCA)
    names = [name for name in vars(own) if name.endswith("_") and not name.startswith("_")]
    assert {"components_", "mean_", "n_samples_", "n_features_in_"} <= set(names)
    for name in names:
        values = getattr(own, name)
        signs = (
            np.sign(np.sum(exported.components_ * own.components_, axis=1))[:, None] if name == "components_" else 1.0
        )
        np.testing.assert_allclose(signs * getattr(exported, name), values, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(exported.score_samples(ROWS), own.score_samples(ROWS), rtol=1e-9)
    assert exported.get_params() == decomposition.PCA(K, whiten=True).get_params()
    refitted = clone(exported).fit(ROWS)
    np.testing.assert_allclose(refitted.explained_variance_, pca.explained_variance_, rtol=1e-9)
    exported.components_[:] = 0  # a copy
    assert pca.components_.any()


@pytest.mark.parametrize("scale", [False, True])
def test_names_of_features_are_those_of_the_first_step(scale: bool) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=[f"x{i}" for i in range(D)])
    exported = sp.PCA(K, scale=scale, missing="mean", missing_scores="mean").fit(frame).to_sklearn()
    np.testing.assert_array_equal(exported[0].feature_names_in_, frame.columns)
    for setting in ({}, {"scale": True}):
        pca = sp.PCA(K, **setting).fit(frame)
        exported = pca.to_sklearn()
        np.testing.assert_array_equal(exported.feature_names_in_, frame.columns)
        assert difference(exported.transform(frame), pca.transform(frame)) <= 1e-12
        with pytest.raises(ValueError, match="feature names"):
            exported.transform(frame.rename(columns={"x0": "other"}))


def test_names_that_coordinates_make_are_in_files_and_not_required_by_scikit_learn(tmp_path: Path) -> None:
    field = xr.DataArray(
        ROWS.reshape(N, 3, D // 3),
        dims=("time", "lat", "lon"),
        coords={"lat": [10.5, 20.5, 30.5], "lon": range(D // 3)},
    )
    pca = sp.PCA(K).fit(sp.open(field, samples="time"))
    names = [f"(lat={lat}, lon={lon})" for lat in (10.5, 20.5, 30.5) for lon in range(D // 3)]
    for end in ("npz", "onnx", "csv"):
        export(pca, tmp_path / f"model.{end}")
    with np.load(tmp_path / "model.npz") as arrays:
        assert arrays["feature_names"].tolist() == names
    properties = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert json.loads(properties["feature_names"]) == names
    with (tmp_path / "model.csv").open(newline="") as table:
        assert [line[0] for line in csv.reader(table)][1:] == names
    pca.to_sklearn().transform(ROWS)  # scikit-learn would warn of rows without names


def test_memory_of_names_is_counted(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((20, 40))
    frame = pytest.importorskip("pandas").DataFrame(rows, columns=["x" * 1_000_000 + str(i) for i in range(40)])
    pca = sp.PCA(2).fit(frame)
    pca.set_params(memory=psutil.Process().memory_info().rss + 2**27)
    with pytest.raises(PlanError, match="the exported model: projected"):
        export(pca, tmp_path / "model.npz")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_onnx_models_give_the_same_scores_for_any_number_of_rows(setting: str, dtype: Any, tmp_path: Path) -> None:
    pca, rows = fitted(setting)
    exported = pca.to_onnx(tmp_path / "m.onnx", dtype=dtype)
    rows = rows.astype(dtype)
    expected = pca.transform(rows.astype(np.float64))
    for n in (N, 1):
        scores = run_onnx(exported.path, rows[:n])
        assert scores.dtype == dtype
        assert scores.shape == (n, K)
        assert difference(scores, expected[:n]) <= (FLOAT32 if dtype == "float32" else 1e-12)
    assert exported.error is not None
    assert 0 <= exported.error <= (FLOAT32 if dtype == "float32" else 1e-12)
    (opset,) = onnx.load(exported.path).opset_import
    assert opset.version == 17


def test_rows_with_nan_have_scores_of_nan_in_onnx_and_faiss_where_the_fit_drops_them(tmp_path: Path) -> None:
    pca = sp.PCA(K, missing="drop_rows").fit(HOLES)
    onnx_scores = run_onnx(pca.to_onnx(tmp_path / "m.onnx").path, HOLES.astype(np.float32))
    faiss_scores = faiss.read_VectorTransform(str(pca.to_faiss(tmp_path / "m.faiss").path)).apply(
        HOLES.astype(np.float32)
    )
    incomplete = np.isnan(HOLES).any(axis=1)
    for scores in (pca.transform(HOLES), onnx_scores, faiss_scores):
        np.testing.assert_array_equal(np.isnan(scores).any(axis=1), incomplete)
        np.testing.assert_array_equal(np.isnan(scores).all(axis=1), incomplete)


@pytest.mark.parametrize("setting", [name for name, known in SETTINGS.items() if "missing_scores" not in known])
def test_faiss_transforms_give_the_same_scores_alone_and_in_an_index(setting: str, tmp_path: Path) -> None:
    pca, rows = fitted(setting)
    exported = pca.to_faiss(tmp_path / "m.faiss")
    rows = rows.astype(np.float32)
    transform = faiss.read_VectorTransform(str(exported.path))
    scores, expected = transform.apply(rows), pca.transform(rows.astype(np.float64))
    assert difference(scores, expected) <= FLOAT32
    assert exported.error is not None
    assert 0 <= exported.error <= FLOAT32
    index = faiss.IndexPreTransform(transform, faiss.IndexFlatL2(K))
    index.add(rows)
    _, nearest = index.search(rows[:20], 3)
    distances = ((expected[:20, None] - expected[None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(nearest[:, 0], distances.argmin(axis=1))


@pytest.mark.parametrize(("k", "center"), [(D, True), (K, False)])
def test_the_reverse_transform_of_faiss_is_the_inverse_where_there_is_one(k: int, center: bool, tmp_path: Path) -> None:
    pca = sp.PCA(k, center=center).fit(ROWS)
    transform = faiss.read_VectorTransform(str(pca.to_faiss(tmp_path / "m.faiss").path))
    scores = pca.transform(ROWS)
    assert difference(transform.reverse_transform(scores.astype(np.float32)), pca.inverse_transform(scores)) <= FLOAT32


@pytest.mark.parametrize("setting", SETTINGS)
def test_arrays_of_npz_follow_the_documented_formulas(setting: str, tmp_path: Path) -> None:

    pca, rows = fitted(setting)
    exported = export(pca, tmp_path / "m.npz")
    assert exported.error is None
    with np.load(exported.path) as m:
        filled = np.where(np.isnan(rows), m["fill"], rows) if "fill" in m else rows
        scores = ((filled - m["mean"]) * m["factors"]) @ m["components"].T / m["deviations"]
        assert difference(scores, pca.transform(rows)) <= 1e-12
        roots = np.sqrt(m["explained_variance"]) if m["whiten"] else 1.0
        back = ((scores * roots) @ m["components"]) * m["inverse_factors"] + m["mean"]
        assert difference(back, pca.inverse_transform(scores)) <= 1e-12
        np.testing.assert_array_equal(m["explained_variance_ratio"], pca.explained_variance_ratio_)


ANALYSES: dict[str, Any] = {
    "factors": sp.FactorAnalysis(3),
    "scaled factors, NaN as means": sp.FactorAnalysis(3, scale=True, missing="mean"),
    "weighted factors by varimax": sp.FactorAnalysis(3, feature_weight=1 + AREAS, rotation="varimax"),
    "factors by promax": sp.FactorAnalysis(3, rotation="promax"),
    "maximum covariance": sp.MCA(2, first=5),
    "scaled canonical correlation": sp.CCA(2, first=5, scale=True),
    "varimax": sp.RotatedPCA(sp.PCA(4, scale=True), 3),
    "promax, whitened": sp.RotatedPCA(sp.PCA(4, whiten=True), 3, method="promax"),
}
"""Models whose scores and patterns are not products with the same orthonormal rows."""


def analysed(name: str) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return a fit, rows, their scores and the rows that these give, in the units of the data."""
    data = HOLES if "NaN" in name else ROWS
    fit: Any = clone(ANALYSES[name]).fit(data)
    scores = fit.transform(data)
    factors = (1 if fit.scale_ is None else fit.scale_) / np.sqrt(1 + AREAS if "weighted" in name else 1)
    if isinstance(scores, tuple):
        both = zip(scores, (fit.x_patterns_, fit.y_patterns_), strict=True)
        back = np.hstack([part @ patterns for part, patterns in both]) * factors + fit.mean_
    elif isinstance(fit, sp.FactorAnalysis):
        back = scores @ fit.components_ * factors + fit.mean_
    else:
        back = fit.inverse_transform(scores)
    return fit, data, np.hstack(scores) if isinstance(scores, tuple) else scores, back


@pytest.mark.parametrize("name", ANALYSES)
def test_npz_of_other_models_has_the_weights_of_scores_and_what_scores_give(name: str, tmp_path: Path) -> None:
    fit, data, scores, back = analysed(name)
    with np.load(export(fit, tmp_path / "m.npz").path) as m:
        filled = np.where(np.isnan(data), m["fill"], data) if "fill" in m else data
        assert difference(((filled - m["mean"]) * m["factors"]) @ m["encoder"].T, scores) <= 1e-12
        assert difference(scores @ m["decoder"] * m["inverse_factors"] + m["mean"], back) <= 1e-12
        assert not {"components", "deviations", "noise_variance"} & set(
            m
        )  # with which the formula of PCA would go wrong
        if isinstance(fit, sp.FactorAnalysis):
            np.testing.assert_array_equal(m["uniquenesses"], fit.noise_variance_)
        np.testing.assert_allclose(m["explained_variance"], fit._model.explained_variance)


@pytest.mark.parametrize("name", ANALYSES)
def test_onnx_and_faiss_give_the_scores_of_other_models(name: str, tmp_path: Path) -> None:
    fit, data, scores, _ = analysed(name)
    exported = fit.to_onnx(tmp_path / "m.onnx", dtype="float64")
    assert difference(run_onnx(exported.path, data), scores) <= 1e-12
    assert exported.shape == (D, scores.shape[1])
    if "NaN" not in name:
        written = fit.to_faiss(tmp_path / "m.faiss")
        given = faiss.read_VectorTransform(str(written.path)).apply(data.astype(np.float32))
        assert difference(given, scores) <= FLOAT32
        assert written.error is not None
        assert written.error <= FLOAT32


@pytest.mark.parametrize("name", [name for name in ANALYSES if "factors" in name and "promax" not in name])
def test_factors_are_the_factor_analysis_of_scikit_learn(name: str) -> None:
    fit, data, scores, _ = analysed(name)
    exported = fit.to_sklearn()
    assert difference(exported.transform(data), scores) <= 1e-10  # it divides by uniquenesses of 1e-6 of the variance
    inner = exported[-1] if isinstance(exported, Pipeline) else exported
    assert isinstance(inner, decomposition.FactorAnalysis)
    assert not hasattr(exported, "inverse_transform")
    np.testing.assert_allclose(inner.get_covariance(), fit.get_covariance(), rtol=1e-12)
    np.testing.assert_allclose(exported.score(data), fit.score(data), rtol=1e-10)
    assert set(vars(decomposition.FactorAnalysis(1).fit(ROWS))) <= set(vars(inner)) | {"feature_names_in_"}
    assert clone(inner).get_params()["rotation"] == fit.rotation


@pytest.mark.parametrize("name", ANALYSES)
def test_loadings_of_other_models_are_what_a_standard_deviation_of_scores_gives(name: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    fit, _, scores, _ = analysed(name)
    table = pandas.read_csv(export(fit, tmp_path / "m.csv").path, index_col="feature").to_numpy().T
    if isinstance(
        fit, sp.FactorAnalysis
    ):  # factors have variance 1, of which their scores, conditional means, have a part
        np.testing.assert_allclose(table, fit.components_, rtol=1e-12)
        return
    if not isinstance(fit, sp.RotatedPCA):
        patterns = np.zeros((4, D))
        patterns[:2, :5], patterns[2:, 5:] = fit.x_patterns_, fit.y_patterns_
        np.testing.assert_allclose(table, patterns * scores.std(axis=0, ddof=1)[:, None], atol=1e-12)
        header = (tmp_path / "m.csv").read_text().splitlines()[0]
        kind = type(fit).__name__.lower()
        assert header == f"feature,x_{kind}0,x_{kind}1,y_{kind}0,y_{kind}1"
    if name in ("scaled canonical correlation", "varimax"):
        correlations = np.corrcoef(ROWS.T, scores.T)[:D, D:].T
        np.testing.assert_allclose(table[table != 0], correlations[table != 0], atol=1e-10)


def test_a_dataset_of_factors_has_the_names_of_the_attributes() -> None:
    fit = sp.FactorAnalysis(3, rotation="promax").fit(ROWS)
    dataset: Any = fit.to_xarray()
    np.testing.assert_array_equal(dataset["components"].values, fit.components_)
    np.testing.assert_array_equal(dataset["uniquenesses"].values, fit.noise_variance_)
    np.testing.assert_array_equal(dataset["factor_correlation"].values, fit.correlation_)
    expected = (ROWS - fit.mean_) @ dataset["score_weights"].values.T
    np.testing.assert_allclose(fit.transform(ROWS), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["maximum covariance", "scaled canonical correlation"])
def test_netcdf_of_two_tables_has_the_modes_of_both(name: str, tmp_path: Path) -> None:
    fit, *_ = analysed(name)
    with xr.open_dataset(export(fit, tmp_path / "m.nc").path, engine="scipy") as stored:
        np.testing.assert_array_equal(stored["components"][:2, :5], fit.x_components_)
        np.testing.assert_array_equal(stored["patterns"][2:, 5:], fit.y_patterns_)
        strengths = "singular_values" if name == "maximum covariance" else "correlations"
        assert stored[strengths].dims == ("pair",)
        np.testing.assert_array_equal(stored[strengths], fit._model.strengths)


def test_the_table_of_loadings_has_a_line_for_each_named_feature(tmp_path: Path) -> None:

    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=[f"x, {i}" for i in range(D)])
    pca = sp.PCA(K, scale=True).fit(frame)
    for estimator in (pca, pca.rotate(3)):
        export(estimator, tmp_path / "m.csv", overwrite=True)
        names = list(estimator.get_feature_names_out())
        table = pandas.read_csv(tmp_path / "m.csv", index_col="feature", dtype=dict.fromkeys(names, str)).astype(float)
        assert list(table.index) == list(frame.columns)
        assert list(table.columns) == names
        loadings = estimator.components_ * np.sqrt(estimator.explained_variance_)[:, None]
        np.testing.assert_array_equal(table.to_numpy().T, loadings)
    correlations = np.corrcoef(ROWS.T, pca.transform(frame).T)[:D, D:]
    expected = (pca.components_ * np.sqrt(pca.explained_variance_)[:, None]).T
    np.testing.assert_allclose(correlations, expected, atol=1e-10)
    field = xr.DataArray(ROWS.reshape(N, 3, 4), dims=("time", "lat", "lon"), coords={"lat": [0.0, 1, 2]}, name="t")
    export(sp.PCA(2).fit(sp.open(field, samples="time")), tmp_path / "field.csv")
    assert (tmp_path / "field.csv").read_text().splitlines()[5].startswith('"t(lat=1, lon=0)",')


def test_netcdf_holds_the_dataset_of_the_model(tmp_path: Path) -> None:

    coords = {
        "time": np.arange("2001-01", "2001-03", dtype="datetime64[D]").astype("datetime64[ns]"),
        "lat": [0.0, 30.0],
    }
    values = ROWS[:59, :10].reshape(59, 2, 5).copy()
    values[:, 1, 3] = np.nan
    field = xr.DataArray(values, dims=("time", "lat", "station"), coords=coords, name="t2m", attrs={"units": "K"})
    field = field.assign_coords(station=["a", "b", "c", "d", "é"])
    table = sp.open(field, samples="time", mask="observed")
    pca = sp.PCA(3, scale=True, remove={"groups": "time.month"}).fit(table)
    exported = export(pca, tmp_path / "m.nc")
    with xr.open_dataset(exported.path, engine="scipy") as stored:
        expected = pca.to_xarray()
        xr.testing.assert_equal(stored.load().drop_vars("station"), expected.drop_vars("station"))
        assert stored["station"].values.tolist() == ["a", "b", "c", "d", "é"]
        assert stored["mean"].attrs["units"] == "K"
        assert stored.attrs["remove"] == "groups time.month (2)"
        assert np.isnan(stored["components"].values[:, 1, 3]).all()


def test_a_mean_of_a_million_deviations_costs_onnx_no_digits_and_faiss_says_what_it_costs(tmp_path: Path) -> None:
    rows = (ROWS + 1e6).astype(np.float32)
    pca = sp.PCA(K).fit(rows)
    expected = pca.transform(rows.astype(np.float64))
    by_onnx, by_faiss = pca.to_onnx(tmp_path / "m.onnx"), pca.to_faiss(tmp_path / "m.faiss")
    assert difference(run_onnx(by_onnx.path, rows), expected) <= FLOAT32
    assert by_onnx.error is not None
    assert by_faiss.error is not None
    assert by_onnx.error <= FLOAT32
    assert 1e-4 <= by_faiss.error <= 1
