"""PCA as scikit-learn, Dask and a file system know it."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import facade
import numpy as np
import pytest
import sklearn
import sklearn.decomposition
import spectra
import zarr
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import streampca as sp
from streampca import CCA, MCA, PCA, FactorAnalysis, KernelPCA, RotatedPCA
from streampca.errors import DataError, ModelError, NotAvailableError, OutputError, ParameterError

ROWS = spectra.rows_with_spectrum(300, spectra.eigenvalues("slow", 8), seed=11) + 4


ESTIMATORS = [
    PCA(),
    PCA(1, whiten=True, scale=True),
    PCA(2),
    PCA(0.9, ddof=0),
    PCA(sp.Threshold(1e-3), center=False),
    PCA(2, scale="block", memory="1GiB"),
    PCA(missing="mean"),
    PCA(2, missing="pairwise"),
    PCA(missing="drop_rows"),
    PCA(2, solver="covariance", sampling_errors=5),
    PCA(solver="gram"),
    PCA(2, solver="gram", missing="mean"),
    PCA(solver="qr"),
    PCA(2, solver="qr", whiten=True),
    PCA(2, solver="sketch"),
    PCA(2, solver="sketch", sketch="count_sketch", pilot=0, missing="drop_rows"),
    PCA(2, solver="sketch", scale=True, max_passes=3, tolerance=0),
    PCA(2, solver="adaptive"),
    PCA(2, solver="adaptive", pilot=0, tolerance=1e-6, max_passes=8),
    RotatedPCA(PCA()),
    RotatedPCA(PCA(missing="mean"), 1, method="promax"),
    FactorAnalysis(1),
    FactorAnalysis(1, rotation="varimax", scale=True),
    FactorAnalysis(1, missing="mean"),
    MCA(1),
    CCA(1),
    KernelPCA(),
    KernelPCA(2, kernel="linear", method="exact", fit_inverse_transform=True),
    KernelPCA(2, kernel="cosine", center=False),
    KernelPCA(0.9, kernel="poly", degree=2, sampling_errors=5),
    KernelPCA(2, kernel="laplacian", scale=True),
    KernelPCA(method="nystrom", n_landmarks=8, fit_inverse_transform=True),
    KernelPCA(2, method="nystrom", n_landmarks=8, sampling="rpcholesky", scale=True),
    KernelPCA(2, method="nystrom_extension", n_landmarks=8, sampling="uniform"),
    KernelPCA(method="empirical_map", sketch_size=5),
]


OF_TWO_TABLES = {
    "check_n_features_in": "n_features_in_ counts the features of both tables",
    "check_n_features_in_after_fitting": "n_features_in_ counts the features of both tables",
    "check_sample_weight_equivalence_on_dense_data": "the second table is called Y",
    "check_sample_weight_equivalence_on_sparse_data": "the second table is called Y",
    "check_transformer_general": "the second table is called Y",
    "check_transformer_data_not_an_array": "the second table is called Y",
    "check_estimator_sparse_tag": "both tables are sparse, or none",
}
"""Checks of scikit-learn that do not know two tables, with what differs."""


def exceptions(estimator: Any) -> dict[str, str]:
    """Name the checks of two tables, and that of sparse rows which scikit-learn 1.6 makes of estimators that declare not to take them."""
    if isinstance(estimator, MCA | CCA):
        return OF_TWO_TABLES
    if estimator.__sklearn_tags__().input_tags.sparse:
        return {}
    return {"check_sample_weight_equivalence_on_sparse_data": "this configuration is for dense rows"}


@pytest.mark.parametrize(
    "estimator",
    [
        PCA(2),
        PCA(2, solver="gram"),
        KernelPCA(2),
        FactorAnalysis(2),
        MCA(2, first=4),
        CCA(2, first=4),
        RotatedPCA(PCA(2)),
    ],
    ids=repr,
)
def test_fitted_attributes_are_read_only_and_follow_the_model(estimator: Any) -> None:
    assert not [name for name in facade.fitted_attributes(estimator) if hasattr(estimator, name)]
    estimator.plan(ROWS)  # which is no fit
    with pytest.raises(NotFittedError):
        estimator.transform(ROWS)
    fitted = clone(estimator).fit(ROWS)
    known = facade.fitted_attributes(fitted)
    assert {"n_components_", "n_features_in_", "n_samples_seen_"} <= known.keys()
    for name in [*known, "plan_", "labels_", "feature_names_in_"]:
        with pytest.raises(AttributeError, match=f"{name}.*(is read-only|has no setter)"):
            setattr(fitted, name, None)
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        for name, value in facade.fitted_attributes(other).items():
            np.testing.assert_array_equal(value, known[name])
    with pytest.raises(AttributeError, match=f"'{type(estimator).__name__}' object has no attribute 'n_components_'"):
        _ = clone(fitted).n_components_


@pytest.mark.deep(keep=300)
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=exceptions)
def test_scikit_learn_says_it_is_an_estimator(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"solver": "gram"}, "solver='gram' keeps no state"),
        ({"solver": "adaptive"}, "use one of covariance, qr, sketch"),
        ({"remove": {"trend": 1}}, "remove keeps no state"),
        ({"n_components": "cross_validation"}, "use fit, and then the number"),
    ],
)
def test_where_no_state_is_kept_there_is_no_partial_fit(parameters: dict[str, Any], words: str) -> None:
    pca = PCA(**({"n_components": 2} | parameters))
    for name in ("partial_fit", "partial_unfit"):
        assert not hasattr(pca, name)
        with pytest.raises(NotAvailableError, match=words):
            getattr(pca, name)
    assert hasattr(PCA(2), "partial_fit")
    assert hasattr(PCA, "partial_fit")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", ["covariance", "gram", "qr"])
def test_all_components_of_wide_data_are_the_directions_that_vary(solver: str, dtype: str) -> None:
    rows = np.random.default_rng(3).normal(size=(12, 30)).astype(dtype)
    weights = np.array([1, 2, 0, 1, 3, 1, 1, 0, 2, 1, 1, 1])
    repeated = PCA(solver=solver).fit(rows.repeat(weights, axis=0))
    weighted = PCA(solver=solver).fit(rows, sample_weight=weights)
    for pca in (repeated, weighted):
        assert pca.n_components_ == pca.numerical_rank_ == 9  # ten different rows, less their mean
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(weighted.explained_variance_, repeated.explained_variance_, rtol=tolerance)
    kept = rows[weights > 0]
    np.testing.assert_allclose(weighted.inverse_transform(weighted.transform(kept)), kept, atol=tolerance)
    assert PCA(solver=solver).fit(rows[:, :8]).n_components_ == 8
    assert PCA(10, solver=solver).fit(rows).n_components_ == 10


def test_in_pipelines_and_searches() -> None:
    rows, labels = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), PCA(2), LogisticRegression())
    assert pipeline.fit(rows, labels).score(rows, labels) > 0.9
    search = GridSearchCV(pipeline, {"pca__n_components": [1, 2, 0.9], "pca__whiten": [False, True]}, cv=3).fit(
        rows, labels
    )
    assert search.best_score_ > 0.9
    copy = clone(PCA(3, whiten=True, memory="1GiB"))
    assert (copy.n_components, copy.whiten, copy.memory) == (3, True, "1GiB")
    assert PCA(2).fit(ROWS).get_feature_names_out().tolist() == ["pca0", "pca1"]


def test_pandas_output() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=[f"f{i}" for i in range(8)])
    pca = PCA(2).set_output(transform="pandas").fit(frame)
    assert list(pca.transform(frame).columns) == ["pca0", "pca1"]
    assert list(pca.feature_names_in_) == list(frame.columns)


@pytest.mark.parametrize("k", [2, 5, 7])
@pytest.mark.parametrize("whiten", [False, True])
def test_scikit_learn_gives_the_same(k: int, whiten: bool) -> None:
    ours, theirs = PCA(k, whiten=whiten).fit(ROWS), sklearn.decomposition.PCA(k, whiten=whiten).fit(ROWS)
    signs = np.sign((ours.components_ * theirs.components_).sum(axis=1))
    np.testing.assert_allclose(ours.components_, theirs.components_ * signs[:, None], atol=1e-10)
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "noise_variance_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-10, err_msg=name)
    assert (ours.n_components_, ours.n_features_in_, ours.n_samples_seen_) == (k, 8, 300)
    np.testing.assert_allclose(ours.transform(ROWS), theirs.transform(ROWS) * signs, atol=1e-9)
    np.testing.assert_allclose(
        ours.inverse_transform(ours.transform(ROWS)), theirs.inverse_transform(theirs.transform(ROWS)), atol=1e-9
    )
    if not whiten:
        np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-10)
        np.testing.assert_allclose(ours.get_precision(), theirs.get_precision(), rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(ours.score_samples(ROWS), theirs.score_samples(ROWS), rtol=1e-8)
        assert ours.score(ROWS) == pytest.approx(theirs.score(ROWS), rel=1e-9)


def test_the_kind_that_goes_in_comes_out(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    zarr.create_array(str(path), shape=ROWS.shape, chunks=(70, 3), dtype=ROWS.dtype)[...] = ROWS
    np.save(tmp_path / "x.npy", ROWS)
    lazy = da.from_array(ROWS, chunks=(45, 3))
    pca = PCA(3).fit(path)
    expected = pca.transform(ROWS)
    assert type(expected) is np.ndarray
    assert type(pca.transform(np.load(tmp_path / "x.npy", mmap_mode="r"))) is np.ndarray
    for kind in (lazy, path, str(path), zarr.open_array(path, mode="r"), tmp_path / "x.npy"):
        scores = pca.transform(kind)
        assert isinstance(scores, da.Array), kind
        assert scores.shape == (300, 3)
        assert scores.dtype == expected.dtype
        computed = scores.compute(scheduler="synchronous")
        np.testing.assert_allclose(computed, expected, atol=1e-12)
        back = pca.inverse_transform(scores)
        assert isinstance(back, da.Array)
        assert back.shape == ROWS.shape
        np.testing.assert_allclose(back.compute(scheduler="synchronous"), pca.inverse_transform(expected), atol=1e-12)
    assert pca.transform(lazy).chunks[0] == lazy.chunks[0]
    pca.transform_to(path, tmp_path / "scores.zarr")
    stored = zarr.open_array(tmp_path / "scores.zarr" / "scores", mode="r")
    np.testing.assert_allclose(stored[...], expected, atol=1e-12)
    with pytest.raises(OutputError, match="overwrite"):
        pca.transform_to(path, tmp_path / "scores.zarr")
    with pytest.raises(OutputError, match="contain one another"):
        pca.transform_to(path, path / "scores.zarr")


def test_transform_does_not_change_or_keep_its_input() -> None:
    rows = ROWS.copy()
    rows.flags.writeable = False
    pca = PCA(2).fit(rows)
    scores = pca.transform(rows)
    scores[...] = 0
    np.testing.assert_array_equal(rows, ROWS)
    assert np.abs(pca.transform(rows)).max() > 0


@pytest.mark.parametrize("parameters", [{}, {"scale": True, "whiten": True}, {"center": False, "ddof": 0}])
def test_save_and_load(parameters: dict[str, Any], tmp_path: Path) -> None:
    rows = ROWS.copy()
    rows[:, 3] = 5.0
    pca = PCA(3, **parameters).fit(rows)
    path = pca.save(tmp_path / "model.zarr")
    loaded = sp.load(path)
    assert loaded.transform(rows).tobytes() == pca.transform(rows).tobytes()
    for name in ("components_", "explained_variance_", "mean_", "constant_features_", "explained_variance_ratio_"):
        assert getattr(loaded, name).tobytes() == getattr(pca, name).tobytes()
    assert loaded.get_params()["whiten"] == pca.whiten
    assert (loaded.total_variance_, loaded.n_samples_seen_) == (pca.total_variance_, 300)
    with pytest.raises(OutputError, match="overwrite"):
        pca.save(path)
    pca.save(path, overwrite=True)
    assert not any(b"pickle" in file.read_bytes() for file in path.rglob("*") if file.is_file())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    rows = ROWS.copy()
    rows[:, 3] = 5.0
    return PCA(3, scale=True).fit(rows).save(tmp_path / "model.zarr")


@pytest.mark.deep(keep=10)
@pytest.mark.parametrize("name", ["components", "explained_variance", "mean", "scale", "constant_features"])
@pytest.mark.parametrize("how", ["changed", "removed", "flipped", "not finite", "grown"])
def test_arrays_that_were_tampered_with_are_refused(saved: Path, name: str, how: str) -> None:
    group = zarr.open_group(saved, mode="r+")
    array: Any = group[name]
    values = np.asarray(array[...])
    if how == "removed":
        del group[name]
    elif how == "flipped":
        file = next(file for file in (saved / name / "c").rglob("*") if file.is_file())
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(bytes(data))
    elif how == "grown":
        array.resize((values.shape[0] + 1, *values.shape[1:]))
    else:
        values.flat[0] = 6 if values.dtype.kind == "i" else np.nan if how == "not finite" else values.flat[0] + 1e-9
        array[...] = values
    with pytest.raises(ModelError, match="model") as caught:
        sp.load(saved)
    assert "\n" not in str(caught.value)


ATTRIBUTES = ("total_variance", "n_samples", "ddof", "center", "whiten", "numerical_rank", "certificate", "source")


@pytest.mark.deep(keep=16)
@pytest.mark.parametrize("name", [*ATTRIBUTES, "format", "version", "kind", "sha256"])
@pytest.mark.parametrize("value", ["nonsense", None, [1], "removed", -7.5])
def test_attributes_that_were_tampered_with_are_refused(saved: Path, name: str, value: Any) -> None:
    file = saved / "zarr.json"
    document = json.loads(file.read_text())
    assert name in document["attributes"]
    if value == "removed":
        del document["attributes"][name]
    else:
        document["attributes"][name] = value
    file.write_text(json.dumps(document))
    with pytest.raises(ModelError, match="model"):
        sp.load(saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("numerical_rank", -1),
        ("numerical_rank", True),
        ("n_samples", -5),
        ("ddof", -1),
        ("ddof", 300),
        ("total_variance", -1.0),
        ("total_variance", float("nan")),
    ],
)
def test_numbers_that_cannot_be_are_refused(saved: Path, name: str, value: Any) -> None:
    file = saved / "zarr.json"
    document = json.loads(file.read_text())
    document["attributes"][name] = value
    file.write_text(json.dumps(document))
    with pytest.raises(ModelError, match=name):
        sp.load(saved)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such model"):
        sp.load(tmp_path / "nothing")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("It was a dark and stormy night.")
    with pytest.raises(ModelError, match="not a streampca model"):
        sp.load(tmp_path / "thesis")
    with pytest.raises(OutputError, match="left untouched"):
        PCA(2).fit(ROWS).save(tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter1.txt").exists()


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch", "adaptive"])
def test_every_solver_fits_under_its_name(solver: str) -> None:
    pca = PCA(2, solver=solver).fit(ROWS)
    assert pca.solver_ == solver
    assert pca.error_["kind"] == ("approximate" if solver in ("sketch", "adaptive") else "exact")


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"solver": "svd"}, "expected one of auto, covariance"),
        ({"missing": "ignore"}, "expected one of error"),
        ({"center": "yes"}, "expected True or False"),
        ({"ddof": -1}, "at least 0"),
        ({"ddof": 1.5}, "integer"),
        ({"random_state": None}, "integer"),
        ({"n_components": 9}, "between 1 and"),
        ({"memory": "lots"}, "is not a size"),
    ],
)
def test_parameters_that_make_no_sense(parameters: dict[str, Any], match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        PCA(**parameters).fit(ROWS)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (da.from_array(np.array([["a", "b"]] * 3)), "dtype"),
        (da.ones((3, 2), dtype=complex), "Complex"),
        (da.ones(5), "Expected 2D"),
        (da.ones((3, 3, 3)), "has 3 dimensions"),
        (da.ones((0, 3)), "0 sample"),
        ("nowhere.zarr", "no such file"),
        (object(), "cannot read|Expected 2D|array"),
    ],
)
def test_data_that_cannot_be_decomposed(data: Any, match: str) -> None:
    with pytest.raises((DataError, ValueError, TypeError), match=match):
        PCA().fit(data)


def test_type_that_numpy_does_not_know_is_not_called_text() -> None:
    narrow = pytest.importorskip("ml_dtypes").float8_e4m3fn
    for estimator in (PCA(1), sp.KernelPCA(1)):
        with pytest.raises(DataError, match=r"dtype float8_e4m3fn: expected .*floating point numbers"):
            estimator.fit(ROWS.astype(narrow))


def test_bfloat16_is_read_as_the_float32_that_it_is() -> None:
    rows = ROWS.astype(pytest.importorskip("ml_dtypes").bfloat16)
    for estimator in (PCA(1), sp.KernelPCA(1)):
        scores = estimator.fit(rows).transform(rows)
        np.testing.assert_array_equal(scores, estimator.fit(rows.astype("f4")).transform(rows.astype("f4")))
    lazy = da.from_array(rows, chunks=(7, -1))
    fitted = PCA(1).fit(lazy)
    np.testing.assert_array_equal(fitted.transform(lazy).compute(), fitted.transform(rows))


@pytest.mark.parametrize("by", ["set_output", "set_config"])
@pytest.mark.parametrize("kernel", [False, True])
def test_data_frames_of_scores_of_stores_are_refused_before_anything_is_read(
    tmp_path: Path, by: str, kernel: bool
) -> None:
    store = zarr.create_array(str(tmp_path / "x.zarr"), data=ROWS)
    for data in (str(tmp_path / "x.zarr"), store, da.from_array(ROWS, chunks=(50, 8))):
        pca: Any = sp.KernelPCA(2, gamma=0.1, n_landmarks=20) if kernel else PCA(2)
        pca.fit(ROWS)
        fresh = clone(pca)
        with sklearn.config_context(transform_output="pandas" if by == "set_config" else None):
            for estimator in (pca, fresh) if by == "set_output" else ():
                estimator.set_output(transform="pandas")
            with pytest.raises(ParameterError, match=r"set_output.*pandas.*transform_to"):
                pca.transform(data)
            with pytest.raises(ParameterError, match=r"set_output.*pandas.*transform_to"):
                fresh.fit_transform(data)
        assert not hasattr(fresh, "components_")
        pca.set_output(transform="default")
        assert pca.transform(data).shape == (len(ROWS), 2)


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr"])
def test_standardised_constant_features_come_back_as_they_are(solver: Any) -> None:
    """Random components beyond the rank have entries for them, and their scale is 1, whatever the unit: 1e-15 was added to 1e-40."""
    rows = 1e-40 * np.random.default_rng(0).standard_normal((50, 6))
    rows[:, 2] = 3e-40
    pca = PCA(solver=solver, scale=True).fit(rows)
    back = pca.inverse_transform(pca.transform(rows))
    np.testing.assert_array_equal(back[:, 2], rows[:, 2])
    np.testing.assert_allclose(back, rows, rtol=0, atol=1e-50)
