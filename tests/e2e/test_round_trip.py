"""Every estimator closes its circles: what is saved, exported, stopped, moved to workers or run from a file is the fit, and the fit is numpy's.

`ESTIMATORS` has a line for each public estimator; a new one is tested by its line, and a test fails while it has none.
"""

from __future__ import annotations

import inspect
import json
import pickle
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from numpy.typing import NDArray
from strategies import in_depth

import streampca as sp
from streampca.errors import NotAvailableError, OutputError
from tests.facade import charts_drawn, export, fitted_attributes, verify_run

FloatArray = NDArray[np.float64]
pytestmark = pytest.mark.numerical
N, SHAPES = 96, {"sst": (2, 3), "precip": (2, 2)}
D1, D2 = (int(np.prod(shape)) for shape in SHAPES.values())


@dataclass(frozen=True)
class Answer:
    """What numpy makes of two tables, or of one."""

    scores: FloatArray
    """Scores of the rows, ``(n, k)``; of two tables those of both side by side."""
    back: FloatArray | None
    """Rows that the scores give, ``(n, d)``; None where they have no closed form."""
    predicted: FloatArray | None = None
    """Regression of the second table on the scores of the first; None of one table."""
    loadings: FloatArray | None = None
    """Covariances of features and scores of unit variance, or the matrix W of a factor model, ``(d, k)``."""


@dataclass(frozen=True)
class Entry:
    """An estimator in the round trip."""

    make: Callable[..., Any]
    """The estimator with two components, with further arguments of its constructor."""
    answer: Callable[[FloatArray, FloatArray, Any], Answer]
    """The same by numpy; the fit is given for what is no function of the tables alone."""
    model: dict[str, Any]
    """The section ``model`` of a configuration."""
    two: bool = False
    """Whether it is fitted to two tables."""
    lacks: frozenset[str] = frozenset()
    """Formats of export, and methods, that it refuses by `NotAvailableError`."""
    tolerance: float = 1e-9
    """Of scores and rows relative to the largest: rounding, or where its peer stops."""


def _centred(x: FloatArray) -> FloatArray:
    return x - x.mean(axis=0)


def _leading(components: FloatArray) -> FloatArray:
    """Return rows with the sign that makes their entry of largest modulus positive."""
    at = np.abs(components).argmax(axis=1)
    return components * np.sign(components[np.arange(len(components)), at])[:, None]


def _pca(x: FloatArray, y: FloatArray, fitted: Any) -> Answer:
    rows = np.hstack([x, y])
    components = _leading(np.linalg.svd(_centred(rows), full_matrices=False)[2][:2])
    scores = _centred(rows) @ components.T
    return Answer(scores, scores @ components + rows.mean(0), None, components.T * scores.std(axis=0, ddof=1))


def _rotated(x: FloatArray, y: FloatArray, fitted: Any) -> Answer:
    rows = np.hstack([x, y])
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    loadings = vectors[:, :-3:-1] * np.sqrt(values[:-3:-1])
    weight = np.sqrt(np.square(loadings).sum(axis=1, keepdims=True))
    scaled = np.divide(loadings, weight, out=np.zeros_like(loadings), where=weight > 1e-12)

    def criterion(angle: float) -> float:  # varimax of two columns is one angle: Kaiser (1958), equation 3
        turned = scaled @ np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        return -float(np.square(turned).var(axis=0).sum())

    from scipy.optimize import minimize_scalar

    starts = np.linspace(0, np.pi / 2, 91)
    best = starts[int(np.argmin([criterion(angle) for angle in starts]))]
    angle = minimize_scalar(criterion, bounds=(best - 0.02, best + 0.02), method="bounded", options={"xatol": 1e-12}).x
    pattern = loadings @ np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    pattern = pattern[:, np.argsort(-np.square(pattern).sum(axis=0))]
    components = _leading((pattern / np.linalg.norm(pattern, axis=0)).T)
    scores = np.linalg.lstsq(components.T, _centred(rows).T, rcond=None)[0].T
    scores *= 1 / scores.std(axis=0, ddof=1) * np.linalg.norm(pattern, axis=0)
    return Answer(scores, _pca(x, y, fitted).back, None, components.T * np.linalg.norm(pattern, axis=0))


def _kernel(x: FloatArray, y: FloatArray, fitted: Any) -> Answer:
    rows = np.hstack([x, y])
    squares = np.square(rows).sum(axis=1)
    kernel = np.exp(-0.02 * (squares[:, None] + squares - 2 * rows @ rows.T))
    around = kernel - kernel.mean(axis=0) - kernel.mean(axis=1)[:, None] + kernel.mean()
    values, vectors = np.linalg.eigh(around)
    return Answer(vectors[:, :-3:-1] * np.sqrt(values[:-3:-1]), None)


def _regression(on: FloatArray, of: FloatArray) -> FloatArray:
    """Return the fitted values of `of` by its regression on the columns `on`."""
    design = np.column_stack([np.ones(len(on)), on])
    fitted: FloatArray = design @ np.linalg.lstsq(design, of, rcond=None)[0]
    return fitted


def _coupled(x: FloatArray, y: FloatArray, left: FloatArray, right: FloatArray, patterns: bool) -> Answer:
    """Return the answer for weights of both tables, ``(d, 2)`` each, whose patterns are these or regressions."""
    at = np.abs(left).argmax(axis=0)
    signs = np.sign(left[at, [0, 1]])
    left, right = left * signs, right * signs
    one, two = _centred(x) @ left, _centred(y) @ right
    if patterns:
        back = np.hstack([_regression(one, x), _regression(two, y)])
    else:
        back = np.hstack([one @ left.T + x.mean(0), two @ right.T + y.mean(0)])
    return Answer(np.hstack([one, two]), back, _regression(one, y))


def _mca(x: FloatArray, y: FloatArray, fitted: Any) -> Answer:
    left, _, right = np.linalg.svd(_centred(x).T @ _centred(y))
    return _coupled(x, y, left[:, :2], right[:2].T, patterns=False)


def _cca(x: FloatArray, y: FloatArray, fitted: Any) -> Answer:
    bases, back = [], []
    for table in (x, y):
        u, s, vt = np.linalg.svd(_centred(table) / table.std(axis=0), full_matrices=False)
        rank = int((s > 1e-9 * s[0]).sum())
        bases.append(u[:, :rank])
        back.append((vt[:rank].T / s[:rank]) / table.std(axis=0)[:, None] * np.sqrt(len(table) - 1))
    left, _, right = np.linalg.svd(bases[0].T @ bases[1])
    return _coupled(x, y, back[0] @ left[:, :2], back[1] @ right[:2].T, patterns=True)


def _factors(x: FloatArray, y: FloatArray, fitted: Any) -> Answer:
    """Return the posterior means of the factors for the loadings of the fit, whose likelihood is at least that of scikit-learn's."""
    from sklearn.decomposition import FactorAnalysis

    rows = np.hstack([x, y])
    loadings, noise = fitted.components_, fitted.noise_variance_
    covariance = loadings.T @ loadings + np.diag(noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it does not converge where a feature stands twice
        peer = FactorAnalysis(2, max_iter=2_000, svd_method="lapack").fit(rows)
    inverse, determinant = np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1]
    mahalanobis = np.einsum("ij,jk,ik->i", _centred(rows), inverse, _centred(rows)).mean()
    likelihood = -0.5 * (rows.shape[1] * np.log(2 * np.pi) + determinant + mahalanobis)
    assert abs(likelihood - fitted.log_likelihood_) <= 1e-6 * abs(likelihood)
    assert fitted.heywood_features_ or likelihood >= peer.score(rows) - 1e-6
    scores = _centred(rows) @ inverse @ loadings.T
    return Answer(scores, scores @ loadings + rows.mean(0), None, loadings.T)


ESTIMATORS: dict[str, Entry] = {
    "PCA": Entry(lambda **more: sp.PCA(2, **more), _pca, {"kind": "pca", "n_components": 2}),
    "RotatedPCA": Entry(
        lambda **more: sp.RotatedPCA(sp.PCA(2, **more)),
        _rotated,
        {"kind": "pca", "n_components": 2, "rotation": "varimax"},
        lacks=frozenset({"sklearn"}),
        tolerance=1e-6,  # of the angle, which the criterion determines to the root of rounding
    ),
    "KernelPCA": Entry(
        lambda **more: sp.KernelPCA(2, gamma=0.02, method="exact", **more),
        _kernel,
        {"kind": "kernel_pca", "n_components": 2, "method": "exact", "kernel": {"name": "rbf", "gamma": 0.02}},
        lacks=frozenset({"sklearn", ".onnx", ".faiss", ".npz", ".csv", "loadings"}),
        tolerance=1e-8,
    ),
    "MCA": Entry(
        lambda **more: sp.MCA(2, **more),
        _mca,
        {"kind": "mca", "n_components": 2},
        two=True,
        lacks=frozenset({"sklearn"}),
    ),
    "CCA": Entry(
        lambda **more: sp.CCA(2, **more),
        _cca,
        {"kind": "cca", "n_components": 2},
        two=True,
        lacks=frozenset({"sklearn"}),
        tolerance=1e-8,
    ),
    "FactorAnalysis": Entry(
        lambda **more: sp.FactorAnalysis(2, **more),
        _factors,
        {"kind": "factor_analysis", "n_components": 2},
        tolerance=1e-8,
    ),
}


def test_every_public_estimator_is_in_the_round_trip() -> None:
    public = {name for name in sp.__all__ if inspect.isclass(getattr(sp, name)) and hasattr(getattr(sp, name), "fit")}
    assert public == set(ESTIMATORS)


@cache
def _tables(name: str) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(17)
    shared = rng.normal(size=(N, 2)) * [3, 1.5]
    x, y = (shared @ rng.normal(size=(2, d)) + 0.5 * rng.normal(size=(N, d)) + 4 for d in (D1, D2))
    if name == "deficient":  # a feature twice, sums of others, and rank 3 and 2
        x = np.column_stack([x[:, :3], x[:, 0], x[:, 0] + x[:, 1], x[:, 2] - x[:, 1]])
        y = np.column_stack([y[:, :2], y[:, 0], y[:, 0] + y[:, 1]])
    if name == "normalized":  # what is stored becomes rows of norm 1, but for a row of zeros
        joint = _stored(x, y)
        joint /= np.maximum(np.linalg.norm(joint, axis=1, keepdims=True), 1e-300)
        x, y = joint[:, :D1], joint[:, D1:]
    return x, y


def _stored(x: FloatArray, y: FloatArray) -> FloatArray:
    return np.hstack([x, y]) * np.linspace(0.0, 50, N)[:, None]


OPTIONS: dict[str, dict[str, Any]] = {"normalized": {"normalize": {"norm": "l2"}}, "chosen": {"where": "used"}}
"""Options with which the store of a table is opened, where there are some."""
TABLES = ("full", "deficient", "labelled", *OPTIONS)
LABELLED = ("labelled", "chosen")  # the latter with rows between the others that `where` leaves out


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return stores of the tables: plain arrays of both side by side, and two variables with dimensions."""
    place, made = tmp_path_factory.mktemp("round-trip"), {}
    for name in TABLES:
        x, y = _tables(name)
        made[name] = place / f"{name}.zarr"
        if name not in LABELLED:
            joint = _stored(*_tables("full")) if name == "normalized" else np.hstack([x, y])
            zarr.create_array(made[name], shape=joint.shape, chunks=(8, D1 + D2), dtype="f8")[:] = joint
            continue
        group = zarr.open_group(made[name], mode="w", zarr_format=3)
        n = 2 * N if name == "chosen" else N
        used = np.arange(n) % (n // N) == 0
        group.create_array("time", data=np.arange(n), dimension_names=("time",))
        group.create_array("used", data=used, dimension_names=("time",))
        for (variable, shape), values in zip(SHAPES.items(), (x, y), strict=True):
            dims = ("time", f"lat_{variable}", f"lon_{variable}")
            array = group.create_array(
                variable, shape=(n, *shape), chunks=(8, *shape), dtype="f8", dimension_names=dims
            )
            rows = np.random.default_rng(0).normal(size=(n, *shape)) * 100
            rows[used] = values.reshape(N, *shape)
            array[:] = rows
    return made


@dataclass
class Fit:
    """A fit of the round trip, with what it was made of."""

    entry: Entry
    table: str
    path: Path
    estimator: Any = None

    @property
    def options(self) -> dict[str, Any]:
        """Return the options with which the store is opened."""
        return OPTIONS.get(self.table, {})

    def opened(self) -> tuple[Any, ...]:
        """Return the arguments of `fit` that read the store."""
        if self.table in LABELLED:
            return (sp.open(self.path, variables=list(SHAPES), samples="time", **self.options),)
        return (sp.open(self.path, **self.options),) if self.options else (str(self.path),)

    def given(self) -> tuple[Any, ...]:
        """Return the arguments of `fit`: arrays, and stores that are labelled or opened with options."""
        x, y = _tables(self.table)
        if self.table in LABELLED or self.table in OPTIONS:
            return self.opened()
        return (x, y) if self.entry.two else (np.hstack([x, y]),)

    def made(self, **more: Any) -> Any:
        """Return the estimator for what `opened` reads."""
        first = {"first": D1} if self.entry.two and self.table not in LABELLED else {}
        return self.entry.make(**first, **more)

    def unfitted(self) -> Any:
        """Return the estimator for what `given` has."""
        return self.made() if len(self.given()) == 1 else self.entry.make()

    def scores(self, estimator: Any) -> FloatArray:
        """Return the scores of the rows of the fit as numpy has them."""
        scores = estimator.transform(*self.given())
        return np.hstack([self.rows(each) for each in (scores if isinstance(scores, tuple) else (scores,))])

    def rows(self, values: Any) -> FloatArray:
        """Return values of the samples as an array, without those that are left out, which are NaN."""
        found = np.asarray(values).reshape(len(values), -1)
        if self.table == "chosen" and len(found) > N:
            assert np.isnan(found[1::2]).all()
            found = found[::2]
        assert not np.isnan(found).any()
        return found

    def back(self, estimator: Any, scores: FloatArray) -> FloatArray:
        """Return the rows of scores."""
        if not self.entry.two:
            return np.asarray(estimator.inverse_transform(scores))
        half = scores.shape[1] // 2
        return np.hstack([np.asarray(each) for each in estimator.inverse_transform(scores[:, :half], scores[:, half:])])

    def first_table(self) -> Any:
        """Return the first table as `given` has it."""
        named = self.table in LABELLED
        return sp.open(self.path, array="sst", samples="time", **self.options) if named else _tables(self.table)[0]


_fitted: dict[tuple[str, str], Any] = {}


@pytest.fixture(params=[(name, table) for name in ESTIMATORS for table in TABLES], ids="-".join)
def fit(request: pytest.FixtureRequest, stores: dict[str, Path]) -> Fit:
    """Return each estimator fitted to each table that has an answer."""
    name, table = request.param
    entry = ESTIMATORS[name]
    made = Fit(entry, table, stores[table])
    if request.param not in _fitted:
        _fitted[request.param] = made.unfitted().fit(*made.given())
    made.estimator = _fitted[request.param]
    return made


def _close(found: Any, expected: Any, tolerance: float) -> None:
    """Assert that numbers agree relative to the largest, up to the signs of columns where these are free."""
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def _same(fit: Fit, other: Any) -> None:
    """Assert that an estimator is the fit, bit for bit."""
    known = fit.estimator
    assert type(other) is type(known)
    for name, value in fitted_attributes(known).items():
        np.testing.assert_array_equal(getattr(other, name), value, err_msg=name)
    scores = fit.scores(known)
    np.testing.assert_array_equal(fit.scores(other), scores)
    if fit.entry.model["kind"] != "kernel_pca":
        np.testing.assert_array_equal(fit.back(other, scores), fit.back(known, scores))


def _columns(fit: Fit) -> list[str]:
    prefix = type(fit.estimator).__name__.lower()
    return [f"{prefix}{number}" for number in range(2)]


def test_scores_rows_and_predictions_are_those_of_numpy(fit: Fit) -> None:
    expected = fit.entry.answer(*_tables(fit.table), fit.estimator)
    scores = fit.scores(fit.estimator)
    if fit.entry.model["kind"] == "kernel_pca":
        expected = Answer(expected.scores * np.sign((expected.scores * scores).sum(axis=0)), None)
    _close(scores, expected.scores, fit.entry.tolerance)
    if expected.back is not None:
        _close(fit.back(fit.estimator, scores), expected.back, fit.entry.tolerance)
    assert hasattr(fit.estimator, "predict") == (expected.predicted is not None)
    if expected.predicted is not None:
        predicted = fit.estimator.predict(fit.first_table())
        _close(fit.rows(predicted), expected.predicted, fit.entry.tolerance)
    assert list(fit.estimator.get_feature_names_out()) == _columns(fit)


def test_a_saved_fit_is_loaded_overwritten_and_pickled(fit: Fit, tmp_path: Path) -> None:
    place = tmp_path / "m.zarr"
    fit.estimator.save(place)
    _same(fit, sp.load(place))
    with pytest.raises(OutputError):
        fit.estimator.save(place)
    fit.estimator.save(place, overwrite=True)
    loaded = sp.load(place)
    _same(fit, loaded)
    loaded.save(tmp_path / "again.zarr")
    _same(fit, sp.load(tmp_path / "again.zarr"))
    _same(fit, pickle.loads(pickle.dumps(fit.estimator)))


def test_a_fit_saved_with_its_state_predicts_and_continues(fit: Fit, tmp_path: Path) -> None:
    if not hasattr(fit.estimator, "predict"):
        pytest.skip("it predicts nothing")
    fit.estimator.save(tmp_path / "m.zarr", state=True)
    loaded = sp.load(tmp_path / "m.zarr")
    table = fit.first_table()
    np.testing.assert_array_equal(np.asarray(loaded.predict(table)), np.asarray(fit.estimator.predict(table)))


def test_a_plan_says_what_the_fit_does(fit: Fit) -> None:
    plan = fit.unfitted().plan(*fit.given())
    assert str(plan)
    known = json.loads(json.dumps(plan.to_dict()))
    plan_of_fit = getattr(fit.estimator, "plan_", None) or fit.estimator.pca_.plan_
    assert known["solver" if "solver" in known else "method"] == plan_of_fit.to_dict().get(
        "solver", known.get("method")
    )
    assert plan.passes == plan_of_fit.passes


@pytest.mark.parametrize("format", ["sklearn", ".onnx", ".faiss", ".npz", ".nc", ".csv"])
def test_an_export_gives_the_scores_and_rows_of_the_fit(fit: Fit, format: str, tmp_path: Path) -> None:
    if format in fit.entry.lacks or (fit.table == "normalized" and format in (".faiss", ".npz")):
        with pytest.raises(NotAvailableError):
            fit.estimator.to_sklearn() if format == "sklearn" else export(fit.estimator, tmp_path / f"m{format}")
        return
    scores = fit.scores(fit.estimator)
    x, y = _tables(fit.table)
    rows = np.hstack([x, y])
    if format == "sklearn":
        peer = fit.estimator.to_sklearn()
        _close(peer.transform(rows), scores, 1e-10)
        if hasattr(peer, "inverse_transform"):
            _close(peer.inverse_transform(scores), fit.back(fit.estimator, scores), 1e-10)
        return
    path = tmp_path / f"m{format}"
    export(fit.estimator, path)
    export(fit.estimator, path, overwrite=True)
    READERS[format](fit, path, rows, scores)


def _read_onnx(fit: Fit, path: Path, rows: FloatArray, scores: FloatArray) -> None:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    _close(session.run(None, {"X": rows.astype(np.float32)})[0], scores, 1e-4)


def _read_faiss(fit: Fit, path: Path, rows: FloatArray, scores: FloatArray) -> None:
    faiss = pytest.importorskip("faiss")
    transform = faiss.read_VectorTransform(str(path))
    _close(transform.apply(rows.astype(np.float32)), scores, 1e-4)


def _read_npz(fit: Fit, path: Path, rows: FloatArray, scores: FloatArray) -> None:
    file = np.load(path, allow_pickle=False)
    encoder, decoder = (file[name] if name in file else file["components"] for name in ("encoder", "decoder"))
    _close((rows - file["mean"]) * file["factors"] @ encoder.T, scores, 1e-12)
    _close(scores @ decoder * file["inverse_factors"] + file["mean"], fit.back(fit.estimator, scores), 1e-12)


def _read_netcdf(fit: Fit, path: Path, rows: FloatArray, scores: FloatArray) -> None:
    xarray = pytest.importorskip("xarray")
    with xarray.open_dataset(path, engine="scipy") as dataset:
        assert dataset.sizes["mode"] in (2, 4)


def _read_csv(fit: Fit, path: Path, rows: FloatArray, scores: FloatArray) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(path, index_col=0)
    known = fit.estimator.loadings()
    assert list(table.columns) == list(known.columns)
    np.testing.assert_allclose(table.to_numpy(), known.to_numpy(), rtol=1e-12, atol=1e-14)
    expected = fit.entry.answer(*_tables(fit.table), fit.estimator).loadings
    if expected is not None:
        _close(table.to_numpy(), expected, fit.entry.tolerance)


READERS = {".onnx": _read_onnx, ".faiss": _read_faiss, ".npz": _read_npz, ".nc": _read_netcdf, ".csv": _read_csv}


def test_a_dataset_has_components_along_modes_and_dimensions(fit: Fit) -> None:
    pytest.importorskip("xarray")
    found = fit.estimator.to_xarray()
    assert isinstance(found, tuple) == fit.entry.two
    if fit.entry.model["kind"] == "kernel_pca":
        assert found.coords["mode"].values.tolist() == [1, 2]
        return
    for dataset, side, variable in zip(
        found if fit.entry.two else (found,), ("x_", "y_") if fit.entry.two else ("",), SHAPES, strict=False
    ):
        assert dataset.coords["mode"].values.tolist() == [1, 2]
        fields = [name for name in dataset.data_vars if str(name).startswith("components")]
        values = np.hstack([dataset[name].values.reshape(2, -1) for name in fields])
        values = values[:, ~np.isnan(values).all(axis=0)]  # features of the other one of two tables side by side
        model = fit.estimator
        expected = getattr(model, f"{side}components_")
        if type(model) is not sp.FactorAnalysis:  # whose components_ are loadings, as in scikit-learn
            np.testing.assert_array_equal(values, expected)
        if fit.table in LABELLED:
            assert f"lat_{variable}" in dataset.dims


@pytest.mark.slow
@pytest.mark.usefixtures("all_checkpoints")
def test_a_stopped_fit_goes_on_with_the_same_bits(fit: Fit, blocks_of: Any, tmp_path: Path) -> None:
    if fit.table != "full":
        pytest.skip("one table is enough")
    blocks_of(8)
    expected = fit.made().fit(*fit.opened())

    class _PowerCutError(Exception):
        pass

    def stop_late(step: Any) -> None:
        if step.rows > N // 2:
            raise _PowerCutError

    with pytest.raises(_PowerCutError):
        fit.made(checkpoint=tmp_path / "kept", progress=stop_late).fit(*fit.opened())
    again = fit.made(checkpoint=tmp_path / "kept").fit(*fit.opened())
    _same(Fit(fit.entry, fit.table, fit.path, expected), again)
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
@pytest.mark.distributed
def test_two_workers_give_the_bits_of_threads(fit: Fit, client: Any, blocks_of: Any) -> None:
    if fit.table in ("deficient", "normalized"):
        pytest.skip("two tables are enough")
    blocks_of(8)
    expected = fit.made().fit(*fit.opened())
    with client.as_current():
        found = fit.made().fit(*fit.opened())
    _same(Fit(fit.entry, fit.table, fit.path, expected), found)


@pytest.mark.slow
def test_a_run_from_a_file_is_the_fit_with_its_scores_and_page(fit: Fit, tmp_path: Path) -> None:
    source: dict[str, Any] = {"path": str(fit.path), **fit.options}
    first = {}
    if fit.table in LABELLED:
        source |= {"variables": list(SHAPES), "samples": "time"}
    elif fit.entry.two:
        first = {"first": D1}
    config = {"source": source, "model": fit.entry.model | first, "output": {"directory": str(tmp_path / "run")}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    if in_depth(fit.table == "full", True):  # a run that the next one replaces
        sp.run(tmp_path / "c.yaml")
    with charts_drawn() if in_depth(fit.table == "labelled", True) else nullcontext():
        run = sp.run(tmp_path / "c.yaml", overrides=["output.overwrite=true"])
    model = sp.load(run.directory)
    scores = fit.scores(fit.estimator)
    stored: Any = zarr.open_group(run.directory / "scores.zarr", mode="r")["scores"]
    written = fit.rows(stored[:])
    signs = np.sign((written * scores).sum(axis=0)) if "kernel" in fit.entry.model["kind"] else 1
    _close(written, scores * signs, 1e-9)
    _close(fit.scores(model), scores * signs, 1e-9)
    assert "<html" in (run.directory / "report.html").read_text()
    verify_run(run.directory).require()
