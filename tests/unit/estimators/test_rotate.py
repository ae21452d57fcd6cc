"""Rotated components against a few lines of numpy: R's algorithms for varimax and promax on explicit loadings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import faiss
import numpy as np
import onnxruntime
import pytest
import xarray as xr
import zarr
from numpy.typing import NDArray
from sklearn.base import clone

import streampca as sp
from streampca.errors import ConfigError, DataError, ModelError, NotAvailableError, ParameterError
from streampca.linalg import factors as rotations

pytestmark = pytest.mark.numerical

N, D, K = 500, 12, 4


def make_rows() -> NDArray[np.float64]:
    """Return rows of four groups of three features, with noise of different size."""
    rng = np.random.default_rng(0)
    pattern = np.kron(np.eye(K), np.ones((1, 3))) * rng.uniform(0.6, 1.4, D) + 0.15 * rng.standard_normal((K, D))
    return rng.standard_normal((N, K)) @ pattern + rng.standard_normal((N, D)) * rng.uniform(0.1, 0.4, D) + 3


ROWS = make_rows()
HOLES = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.05, np.nan, ROWS)
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale": True},
    "whitened": {"whiten": True},
    "weighted": {"feature_weight": np.linspace(0.2, 3, D)},
    "all components": {"n_components": None},
    "scaled, whitened": {"scale": True, "whiten": True},
}


def varimax_of_r(loadings: NDArray[np.float64], *, normalize: bool = True) -> NDArray[np.float64]:
    """Return the rotation by the algorithm of R's ``varimax``, of loadings (d, k): singular value decompositions."""
    x = loadings / np.sqrt((loadings**2).sum(axis=1, keepdims=True)) if normalize else loadings
    rotation = np.eye(x.shape[1])
    for _ in range(5000):
        z = x @ rotation
        u, _, vt = np.linalg.svd(x.T @ (z**3 - z * (z**2).mean(axis=0)))
        rotation = u @ vt
    return rotation


def promax_of_r(pattern: NDArray[np.float64], power: float = 4) -> NDArray[np.float64]:
    """Return the matrix of R's ``promax``, of a varimax pattern (d, k)."""
    u = np.linalg.lstsq(pattern, pattern * np.abs(pattern) ** (power - 1), rcond=None)[0]
    return u * np.sqrt(np.diag(np.linalg.inv(u.T @ u)))


def in_order(pattern: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return columns of a pattern, the largest first and their largest entries positive."""
    pattern = pattern[:, np.argsort(-(pattern**2).sum(axis=0))]
    return pattern * np.sign(pattern[np.abs(pattern).argmax(axis=0), np.arange(pattern.shape[1])])


def loadings_of(pca: sp.PCA, k: int = K) -> NDArray[np.float64]:
    return (pca.components_[:k] * np.sqrt(pca.explained_variance_[:k, None])).T


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("scale", [False, True])
def test_varimax_is_that_of_r(scale: bool, normalize: bool) -> None:
    pca = sp.PCA(6, scale=scale).fit(ROWS)
    loadings = loadings_of(pca)
    expected = in_order(loadings @ varimax_of_r(loadings, normalize=normalize))
    rotated = pca.rotate(K, normalize=normalize)
    pattern = (rotated.components_ * np.sqrt(rotated.explained_variance_[:, None])).T
    np.testing.assert_allclose(pattern, expected, atol=1e-7)
    np.testing.assert_allclose(rotated.rotation_.T @ rotated.rotation_, np.eye(K), atol=1e-12)
    assert np.isclose(rotated.explained_variance_.sum(), pca.explained_variance_[:K].sum(), rtol=1e-12)
    assert np.isclose(rotated.explained_variance_ratio_.sum(), pca.explained_variance_ratio_[:K].sum(), rtol=1e-12)
    np.testing.assert_allclose(np.corrcoef(rotated.transform(ROWS).T), np.eye(K), atol=1e-10)


@pytest.mark.parametrize("power", [3, 4, np.int64(4), np.float32(3)])
def test_promax_is_that_of_r_and_its_scores_have_the_stated_correlations(power: float) -> None:
    pca = sp.PCA(6, scale=True).fit(ROWS)
    orthogonal = loadings_of(pca)
    orthogonal = orthogonal @ varimax_of_r(orthogonal)
    expected = in_order(orthogonal @ promax_of_r(orthogonal, power))
    rotated = pca.rotate(K, method="promax", power=power)
    pattern = (rotated.components_ * np.sqrt(rotated.explained_variance_[:, None])).T
    np.testing.assert_allclose(pattern, expected, atol=1e-7)
    scores = rotated.transform(ROWS)
    np.testing.assert_allclose(np.corrcoef(scores.T), rotated.correlation_, atol=1e-10)
    np.testing.assert_allclose(scores.var(axis=0, ddof=1), rotated.explained_variance_, rtol=1e-10)
    assert np.abs(rotated.correlation_ - np.eye(K)).max() > 0.01
    assert np.isclose(rotated.explained_variance_ratio_.sum(), pca.explained_variance_ratio_[:K].sum(), rtol=1e-12)


@pytest.mark.parametrize("method", ["varimax", "promax"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_scores_are_the_pseudo_inverse_and_give_back_the_rows_of_the_unrotated_components(
    setting: str, method: Any
) -> None:
    pca = sp.PCA(**{"n_components": 6, **SETTINGS[setting]}).fit(ROWS)
    rotated = pca.rotate(K, method=method)
    scores = rotated.transform(ROWS)
    centred = ROWS - pca.mean_ if pca._model.weights is None else (ROWS - pca.mean_) * pca._model.weights
    expected = centred @ np.linalg.pinv(rotated.components_)
    expected = expected / np.sqrt(rotated.explained_variance_) if pca.whiten else expected
    np.testing.assert_allclose(scores, expected, atol=1e-11)
    np.testing.assert_allclose(np.linalg.norm(rotated.components_, axis=1), 1, rtol=1e-12)
    assert (np.diff(rotated.explained_variance_) <= 0).all()
    np.testing.assert_array_equal(rotated.components_.max(axis=1), np.abs(rotated.components_).max(axis=1))
    unrotated = pca.transform(ROWS)
    unrotated[:, K:] = 0
    np.testing.assert_allclose(rotated.inverse_transform(scores), pca.inverse_transform(unrotated), atol=1e-11)


def test_varimax_finds_the_groups_of_features() -> None:
    rotated = sp.PCA(K, scale=True).fit(ROWS).rotate(K)
    largest = np.abs(rotated.components_).argmax(axis=0).reshape(K, 3)
    assert (largest == largest[:, :1]).all()
    np.testing.assert_array_equal(np.sort(largest[:, 0]), range(K))


def test_the_rotation_does_not_depend_on_the_units_of_the_data_and_one_component_is_left_as_it_is() -> None:
    loadings = loadings_of(sp.PCA(K).fit(ROWS)).T
    for normalize in (True, False):
        expected = rotations.varimax(loadings, normalize=normalize)
        for factor in (1e-100, 1e100):
            np.testing.assert_allclose(rotations.varimax(factor * loadings, normalize=normalize), expected, atol=1e-9)
    pca = sp.PCA(2).fit(ROWS)
    for method in ("varimax", "promax"):
        one = pca.rotate(1, method=method)
        np.testing.assert_allclose(one.components_, pca.components_[:1], atol=1e-12)
        np.testing.assert_allclose(one.explained_variance_, pca.explained_variance_[:1], rtol=1e-12)


def test_rows_with_nan_have_the_rotation_of_their_conditional_scores() -> None:
    pca = sp.PCA(6, missing="pairwise").fit(HOLES)
    rotated = pca.rotate(K)
    np.testing.assert_allclose(rotated.transform(HOLES), pca.transform(HOLES)[:, :K] @ rotated._model.turn, atol=1e-12)


def test_every_kind_of_input_has_scores_of_its_kind(tmp_path: Path) -> None:
    pca = sp.PCA(6).fit(ROWS)
    rotated = pca.rotate(K, method="promax")
    expected = rotated.transform(ROWS)
    lazy = rotated.transform(da.from_array(ROWS, chunks=(100, D)))
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy.compute(), expected, atol=1e-12)
    assert rotated.transform(ROWS.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(rotated.transform(ROWS.astype(np.float32)), expected, atol=1e-4)
    field = xr.DataArray(ROWS.reshape(N, 3, 4), dims=("time", "lat", "lon"), coords={"lat": [0.0, 1, 2]})
    table = sp.open(field, samples="time")
    by_labels = sp.PCA(6).fit(table).rotate(K, method="promax")
    scores = by_labels.transform(table)
    assert scores.dims == ("time", "mode")
    dataset = by_labels.to_xarray()
    assert dataset["components"].dims == ("mode", "lat", "lon")
    np.testing.assert_allclose(dataset["score_correlation"], rotated.correlation_, atol=1e-10)
    np.testing.assert_allclose(
        by_labels.inverse_transform(scores).values.reshape(N, D), rotated.inverse_transform(expected), atol=1e-9
    )
    store = zarr.create_array(tmp_path / "x.zarr", shape=ROWS.shape, chunks=(100, D), dtype="float64")
    store[:] = ROWS
    rotated.transform_to(tmp_path / "x.zarr", tmp_path / "scores.zarr")
    written = zarr.open_group(tmp_path / "scores.zarr", mode="r")["scores"]
    np.testing.assert_allclose(written[:], expected, atol=1e-12)
    assert written.attrs["explained_variance"] == rotated.explained_variance_.tolist()
    with pytest.raises(NotAvailableError, match="diagnostics"):
        rotated.transform_to(tmp_path / "x.zarr", tmp_path / "others.zarr", diagnostics=True)


@pytest.mark.parametrize("setting", ["plain", "scaled, whitened"])
def test_a_rotated_model_is_saved_loaded_and_exported(setting: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=[f"x{i}" for i in range(D)])
    rotated = sp.PCA(6, **SETTINGS[setting]).fit(frame).rotate(K, method="promax", power=3)
    rotated.save(tmp_path / "m.zarr")
    rotated.save(tmp_path / "m.zarr", overwrite=True)
    loaded = sp.load(tmp_path / "m.zarr")
    assert isinstance(loaded, sp.RotatedPCA)
    assert (loaded.method, loaded.power, loaded.k) == ("promax", 3, K)
    expected = rotated.transform(frame)
    np.testing.assert_array_equal(loaded.transform(frame), expected)
    np.testing.assert_array_equal(loaded.inverse_transform(expected), rotated.inverse_transform(expected))
    np.testing.assert_array_equal(loaded.pca_.transform(frame), rotated.pca_.transform(frame))
    np.testing.assert_array_equal(loaded.feature_names_in_, frame.columns)
    single = ROWS.astype(np.float32)
    largest = np.abs(expected).max()
    path = loaded.to_onnx(tmp_path / "m.onnx").path
    (scores,) = onnxruntime.InferenceSession(path).run(["scores"], {"X": single})
    assert np.abs(scores - expected).max() <= 1e-5 * largest
    loaded.to_faiss(tmp_path / "m.faiss")
    scores = faiss.read_VectorTransform(str(tmp_path / "m.faiss")).apply(single)
    assert np.abs(scores - expected).max() <= 1e-5 * largest
    with pytest.raises(
        NotAvailableError, match="scikit-learn cannot express rotate: components of its PCA are orthogonal; export"
    ):
        loaded.to_sklearn()


@pytest.mark.parametrize(
    "damage",
    [
        lambda group: group["rotation"].__setitem__((0, 0), 5.0),
        lambda group: group.attrs.update({"rotation": None}),
        lambda group: group.attrs.update({"rotation": {"method": "oblimin", "normalize": True, "power": 4.0}}),
    ],
)
def test_a_damaged_rotation_is_refused(damage: Any, tmp_path: Path) -> None:
    path = sp.PCA(3).fit(ROWS).rotate(2).save(tmp_path / "m.zarr")
    damage(zarr.open_group(path, mode="a"))
    with pytest.raises(ModelError):
        sp.load(path)
    shutil.rmtree(path)


def test_the_estimator_is_one_of_scikit_learn() -> None:
    rotated = sp.PCA(6).fit(ROWS).rotate(K, method="promax")
    again = clone(rotated).fit(ROWS)
    np.testing.assert_allclose(again.components_, rotated.components_, atol=1e-12)
    np.testing.assert_allclose(again.fit_transform(ROWS), rotated.transform(ROWS), atol=1e-10)
    assert list(again.get_feature_names_out()) == [f"rotatedpca{i}" for i in range(K)]


@pytest.mark.parametrize(
    ("k", "options", "words"),
    [
        (7, {}, "k=7: expected 1 to 6"),
        (0, {}, "k=0: expected 1 to 6"),
        (2.5, {}, "k=2.5: expected 1 to 6"),
        (2, {"method": "oblimin"}, "method='oblimin': expected one of varimax, promax"),
        (2, {"method": "promax", "power": 1}, "power=1: expected a number above 1"),
    ],
)
def test_values_outside_their_domain_are_refused(k: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        sp.PCA(6).fit(ROWS).rotate(k, **options)


def test_components_of_noise_and_other_estimators_are_refused() -> None:
    pca = sp.PCA(4).fit(ROWS[:, :2] @ np.ones((2, 5)))
    with pytest.raises(ParameterError, match="expected 1 to 1, the number of components with variance above rounding"):
        pca.rotate(2)
    with pytest.raises(ParameterError, match="pca is KernelPCA: expected a PCA"):
        sp.RotatedPCA(sp.KernelPCA(2)).fit(ROWS)


def test_varimax_of_the_census_tracts_of_harman_has_the_figures_that_sas_prints() -> None:
    """Harman (1976), p. 14: principal factors of five variables, PROC FACTOR with ROTATE=VARIMAX (philender.com, multivariate course)."""
    pattern = np.array(
        [[0.62533, 0.76621], [0.71369, -0.55516], [0.71448, 0.67935], [0.87899, -0.15847], [0.74215, -0.57806]]
    )
    rotation = rotations.varimax(pattern.T)
    rotation = rotation * np.sign(rotation[0])
    np.testing.assert_allclose(rotation, [[0.78894, 0.61446], [-0.61446, 0.78894]], atol=2e-5)
    printed = [[0.02254, 0.98874], [0.90419, 0.00055], [0.14625, 0.97499], [0.79085, 0.41509]]
    np.testing.assert_allclose((pattern @ rotation)[:4], printed, atol=3e-5)


def test_a_rotation_that_does_not_converge_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pca = sp.PCA(K).fit(ROWS)
    monkeypatch.setattr(rotations, "_MOST_SWEEPS", 1)
    with pytest.raises(
        DataError, match="varimax does not converge: 1 sweeps over all pairs of 4 components still rotate by"
    ):
        pca.rotate()


@pytest.mark.parametrize("power", [20.0, 100.0])
def test_promax_of_a_large_power_is_that_of_targets_in_units_of_the_largest_loading(power: float) -> None:
    pca = sp.PCA(6, scale=True).fit(ROWS * 1e-3)
    orthogonal = loadings_of(pca)
    orthogonal = orthogonal @ varimax_of_r(orthogonal)
    target = orthogonal / np.abs(orthogonal).max(axis=0)
    u = np.linalg.lstsq(orthogonal, np.sign(target) * np.abs(target) ** power, rcond=None)[0]
    u = u * np.sqrt(np.diag(np.linalg.inv(u.T @ u)))
    rotated = pca.rotate(K, method="promax", power=power)
    pattern = (rotated.components_ * np.sqrt(rotated.explained_variance_[:, None])).T
    np.testing.assert_allclose(pattern, in_order(orthogonal @ u), atol=1e-7)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_promax_of_features_in_mixed_units_is_accurate_or_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(60, 30)) * 10.0 ** rng.uniform(-3, 3, size=30)
    pca = sp.PCA().fit(rows)
    if seed == 0:  # its scores would have correlations of 1 up to rounding
        with pytest.raises(
            ParameterError, match="linearly dependent: expected a smaller power, fewer components, or fea"
        ):
            pca.rotate(20, method="promax")
        return
    rotated = pca.rotate(20, method="promax")
    scores = rotated.transform(rows)
    np.testing.assert_allclose(np.corrcoef(scores.T), rotated.correlation_, atol=1e-7)
    np.testing.assert_allclose(scores.std(axis=0, ddof=1), np.sqrt(rotated.explained_variance_), rtol=1e-7)
    assert abs(rotated.explained_variance_ratio_.sum() - pca.explained_variance_ratio_[:20].sum()) <= 1e-8


def test_a_power_that_leaves_the_same_feature_to_two_components_is_refused() -> None:
    loadings = np.array([[2.0, 1.0, 0.5, 0.0], [2.0, -1.0, 0.0, 0.5]])
    with pytest.raises(ParameterError, match="power=500: the contrasts of the 2 components are linearly dependent"):
        rotations.promax(loadings, np.eye(2), power=500)


@pytest.mark.filterwarnings("error")
def test_components_without_loadings_are_named_by_promax() -> None:
    with pytest.raises(ParameterError, match="1 of 2 components have no loadings: rotate fewer"):
        rotations.promax(np.array([[2.0, 1.0, 0.5], [0.0, 0.0, 0.0]]), np.eye(2))


def test_features_whose_loadings_are_rounding_do_not_count_in_normalised_varimax() -> None:
    loadings = loadings_of(sp.PCA(K).fit(ROWS))
    noise = 1e-17 * np.random.default_rng(3).standard_normal((5, K))
    expected = rotations.varimax(loadings.T)
    scaled = np.vstack([loadings, noise])
    found = rotations.varimax(scaled.T)
    # Features without loadings leave the angles as they are but for their number d in the criterion.
    oracle = varimax_of_r(
        np.vstack([loadings / np.linalg.norm(loadings, axis=1, keepdims=True), 0 * noise]), normalize=False
    )
    np.testing.assert_allclose(in_order(scaled @ found), in_order(scaled @ oracle), atol=1e-7)
    assert np.abs(expected - found).max() < 0.2


def test_diagnostics_of_rows_are_those_of_the_fit_before_the_rotation(tmp_path: Path) -> None:
    with pytest.raises(NotAvailableError, match="those of the fit before the rotation: take them from pca_"):
        sp.PCA(6).fit(ROWS).rotate(K).transform_to(ROWS, tmp_path / "s.zarr", diagnostics=True)


def test_fit_takes_memory_and_progress_of_the_rotation_before_those_of_its_pca() -> None:
    calls: list[Any] = []
    own = sp.RotatedPCA(sp.PCA(6, memory="3GB"), K, memory="2GB", progress=calls.append).fit(ROWS)
    assert (own.pca_.memory, own.pca.memory) == ("2GB", "3GB")  # type: ignore[attr-defined]
    assert calls
    assert sp.RotatedPCA(sp.PCA(6, memory="3GB"), K).fit(ROWS).pca_.memory == "3GB"  # type: ignore[attr-defined]


@pytest.mark.parametrize("solver", ["covariance", "gram", "sketch"])
def test_a_run_rotates_what_its_configuration_says(solver: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    config = {
        "source": {"path": str(tmp_path / "x.npy")},
        "model": {"n_components": K, "solver": solver, "rotation": "promax"},
        "output": {"directory": str(tmp_path / "run")},
    }
    run = sp.run(config)
    expected = sp.PCA(K, solver=solver).fit(ROWS).rotate(method="promax")
    assert isinstance(run.model, sp.RotatedPCA)
    np.testing.assert_allclose(run.model.components_, expected.components_, atol=1e-12)
    stored: Any = zarr.open_group(run.directory / "scores.zarr", mode="r")["scores"]
    np.testing.assert_allclose(stored[:], expected.transform(ROWS), atol=1e-9)
    shares = sum(run.manifest["result"]["explained_variance_ratio"])
    assert run.manifest["certificate"]["captured_variance"] == pytest.approx(shares, rel=0.02)
    assert "rotated by promax" in (run.directory / "report.html").read_text()


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("output", "state", True),
        ("output", "diagnostics", True),
        ("statistics", "sampling_errors", 5),
        ("model", "group_by", "g.npy"),
    ],
)
def test_what_rotated_components_do_not_have_is_refused_by_a_run(
    section: str, key: str, value: Any, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    config: dict[str, Any] = {
        "source": {"path": str(tmp_path / "x.npy")},
        "model": {"n_components": K, "rotation": "varimax"},
        "output": {"directory": str(tmp_path / "run")},
    }
    config.setdefault(section, {})[key] = value
    with pytest.raises(ConfigError, match=rf"{section}.{key}.* model.rotation"):
        sp.run(config)
    assert not (tmp_path / "run").exists()


def test_the_plan_of_a_rotation_is_that_of_its_fit() -> None:
    plan, expected = sp.RotatedPCA(sp.PCA(K)).plan(ROWS), sp.PCA(K).plan(ROWS)
    assert (plan.solver, plan.passes, plan.n_components) == (expected.solver, expected.passes, K)
