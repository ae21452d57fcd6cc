"""Two tables with the same samples: singular vectors and canonical correlations against numpy, scikit-learn and xeofs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from sklearn.cross_decomposition import CCA, PLSSVD
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import streampca as sp
from streampca.errors import DataError, MergeError, NotAvailableError, NotComputedError, ParameterError, PlanError
from tests.tolerances import EPS

pytestmark = pytest.mark.numerical

N, D1, D2 = 2000, 12, 7


@pytest.fixture(scope="module")
def pair() -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(N, 3))
    first = shared @ rng.normal(size=(3, D1)) + 2 * rng.normal(size=(N, D1)) + 5
    second = shared[:, :2] @ rng.normal(size=(2, D2)) + rng.normal(size=(N, D2))
    return first, second


def _cross(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    return (first - first.mean(0)).T @ (second - second.mean(0)) / (len(first) - 1)


def _correlations(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return the cosines between the spaces of the centred columns (Björck & Golub 1973)."""
    bases = [np.linalg.qr(each - each.mean(0))[0] for each in (first, second)]
    return np.linalg.svd(bases[0].T @ bases[1])[1]


def _apart(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the largest difference of rows that have their signs as they like."""
    return float(np.abs(np.abs(one) - np.abs(other)).max())


def test_pairs_are_the_singular_vectors_of_the_cross_covariance(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    left, values, right = np.linalg.svd(_cross(*pair), full_matrices=False)
    mca = sp.MCA(3).fit(*pair)
    assert np.abs(mca.singular_values_ - values[:3]).max() <= 1e3 * EPS * values[0]
    assert _apart(mca.x_components_, left[:, :3].T) <= 1e-10
    assert _apart(mca.y_components_, right[:3]) <= 1e-10
    share = np.square(values[:3]) / np.square(values).sum()
    assert np.abs(mca.squared_covariance_fraction_ - share).max() <= 1e-12
    assert (mca.n_passes_, mca.error_.kind) == (1, "exact")
    assert (mca.x_components_[np.arange(3), np.abs(mca.x_components_).argmax(axis=1)] > 0).all()


def test_scores_have_the_covariances_that_are_reported(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    mca = sp.MCA(3).fit(*pair)
    one, two = mca.transform(*pair)
    covariance = _cross(one, two)
    assert np.abs(covariance - np.diag(mca.singular_values_)).max() <= 1e-11 * mca.singular_values_[0]
    assert np.abs(mca.x_explained_variance_ - one.var(axis=0, ddof=1)).max() <= 1e-10
    assert np.array_equal(mca.transform(pair[0]), one)
    beside = mca.transform(np.hstack(pair))
    assert np.abs(beside[0] - one).max() <= 1e-10
    assert np.abs(beside[1] - two).max() <= 1e-10
    again = sp.MCA(3).fit_transform(*pair)
    assert np.array_equal(again[1], two)


def test_scaled_tables_have_the_weights_of_plssvd(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    known = PLSSVD(3).fit(*pair)
    mca = sp.MCA(3, scale=True).fit(*pair)
    assert _apart(mca.x_components_, known.x_weights_.T) <= 1e-9
    assert _apart(mca.y_components_, known.y_weights_.T) <= 1e-9
    assert _apart(np.hstack(mca.transform(*pair)), np.hstack(known.transform(*pair))) <= 1e-8


def test_canonical_correlations_are_those_of_scikit_learn_and_of_the_angles_of_the_spaces(
    pair: tuple[NDArray[Any], NDArray[Any]],
) -> None:
    cca = sp.CCA(3).fit(*pair)
    assert np.abs(cca.correlations_ - _correlations(*pair)[:3]).max() <= 1e-11
    one, two = cca.transform(*pair)
    assert np.abs(one.var(axis=0, ddof=1) - 1).max() <= 1e-10
    assert np.abs(_cross(one, two) - np.diag(cca.correlations_)).max() <= 1e-10
    known = CCA(3, scale=False, tol=1e-14, max_iter=10_000).fit(*pair)
    for mine, theirs in zip((one, two), known.transform(*pair), strict=True):
        # Directions of power iterations converge as its tolerance, of their squares.
        assert all(abs(np.corrcoef(mine[:, i], theirs[:, i])[0, 1]) >= 1 - 1e-6 for i in range(3))
    regression = np.linalg.lstsq(np.c_[one, np.ones(N)], pair[0], rcond=None)[0][:3]
    assert np.abs(cca.x_patterns_ - regression).max() <= 1e-9


def test_rows_are_predicted_as_by_regression_on_the_scores(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    for kind in (sp.MCA, sp.CCA):
        fitted = kind(2).fit(*pair)
        scores = np.c_[fitted.transform(pair[0]), np.ones(N)]
        expected = scores @ np.linalg.lstsq(scores, pair[1], rcond=None)[0]
        assert np.abs(fitted.predict(pair[0]) - expected).max() <= 1e-9


def _least_squares(scores: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return the fitted values of the regression on the scores, of which those below rounding add nothing."""
    centred = scores - scores.mean(0)
    return centred @ np.linalg.lstsq(centred, second - second.mean(0), rcond=1e-5)[0] + second.mean(0)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("kind", ["constant", "twice", "sum", "no weight", "units"])
def test_predictions_from_a_table_of_less_than_full_rank_are_those_of_least_squares(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    first, weight = rng.normal(size=(300, 4)), np.ones(9)
    if kind == "constant":
        first[:, 0] = 1.5
    elif kind == "twice":
        first[:, 0] = first[:, 3]
    elif kind == "sum":
        first[:, 0] = first[:, 1] + first[:, 2]
    elif kind == "no weight":
        weight[0] = 0
    second = (first @ rng.normal(size=(4, 5)) + rng.normal(size=(300, 5))).astype(dtype)
    first = (first * np.array([1, 10, 1e-5, 1]) if kind == "units" else first).astype(dtype)
    exact = first[:, weight[:4] > 0].astype("f8")
    known = exact / np.where(exact.std(0) > 0, exact.std(0), 1)
    expected = _least_squares(known, second.astype("f8"))
    mca = sp.MCA(4, feature_weight=weight).fit(first, second)
    assert np.abs(mca.predict(first) - expected).max() <= (1e-8 if dtype == "f8" else 1e-3)


@pytest.mark.parametrize("kind", [sp.MCA, sp.CCA])
def test_predictions_outlive_the_state_and_the_file(
    kind: Any, pair: tuple[NDArray[Any], NDArray[Any]], tmp_path: Path
) -> None:
    for n_pca in (None, 5):
        fitted = kind(2, n_pca=n_pca).fit(*pair)
        known = pair[1]
        if n_pca is not None:  # what its components hold of the second table
            left = known - known.mean(0)
            axes = np.linalg.svd(left, full_matrices=False)[2][:n_pca]
            known = left @ axes.T @ axes + known.mean(0)
        expected = _least_squares(fitted.transform(pair[0]), known)
        loaded: Any = sp.load(fitted.save(tmp_path / f"{n_pca}.zarr"))
        for each in (fitted, loaded):
            assert np.abs(each.predict(pair[0]) - expected).max() <= 1e-9
    groups = np.arange(N) % 5
    seasonal = [each + 10 * groups[:, None] for each in pair]
    fitted = kind(2, remove={"groups": groups}).fit(*seasonal)
    means = [np.stack([each[groups == group].mean(0) for group in range(5)])[groups] for each in seasonal]
    scores = fitted.transform(seasonal[0], remove={"groups": groups})
    expected = _least_squares(scores, seasonal[1] - means[1]) + means[1]
    assert np.abs(fitted.predict(seasonal[0], remove={"groups": groups}) - expected).max() <= 1e-8


def test_predictions_are_of_the_kind_of_the_rows(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    pd, xr, da = (pytest.importorskip(name) for name in ("pandas", "xarray", "dask.array"))
    expected = sp.MCA(2).fit(*pair).predict(pair[0])
    first = pd.DataFrame(pair[0], columns=[f"a{i}" for i in range(D1)], index=np.arange(N) + 7)
    second = pd.DataFrame(pair[1], columns=[f"b{i}" for i in range(D2)])
    mca = sp.MCA(2).fit(first, second)
    assert isinstance(mca.predict(first), np.ndarray)
    frame = mca.set_output(transform="pandas").predict(first)
    assert (list(frame.columns), list(frame.index)) == (list(second.columns), list(first.index))
    assert np.abs(frame.values - expected).max() <= 1e-10
    one, two = mca.transform(first, second)
    assert list(one.columns) == list(two.columns) == ["mca0", "mca1"]
    lazy = sp.MCA(2).fit(*pair).predict(da.from_array(pair[0], chunks=(500, D1)))
    assert isinstance(lazy, da.Array)
    assert lazy.numblocks == (4, 1)
    assert np.abs(lazy.compute() - expected).max() <= 1e-10
    arrays = [
        xr.DataArray(each.reshape(N, -1, 1), dims=("time", name, "lat"), coords={"time": np.arange(N)}, name=name)
        for each, name in zip(pair, ("sst", "rain"), strict=True)
    ]
    labelled = sp.MCA(2).fit(*(sp.open(each, samples="time") for each in arrays))
    predicted = labelled.predict(arrays[0].chunk({"time": 500}))
    assert (predicted.name, predicted.dims, predicted.chunks is None) == ("rain", ("time", "rain", "lat"), False)
    assert np.array_equal(predicted["time"], arrays[0]["time"])
    assert np.abs(predicted.values.reshape(N, -1) - expected).max() <= 1e-10


@pytest.mark.parametrize("wide", [False, True])
def test_pairs_beyond_the_rank_have_no_covariance_and_are_saved(wide: bool, tmp_path: Path) -> None:
    for seed in range(1 if wide else 4):
        rng = np.random.default_rng(seed)
        first, second = rng.normal(size=(60, 1600 if wide else 5)), rng.normal(size=(60, 6))
        first[:, 0] = first[:, 1] + first[:, 2]
        if wide:
            second[:, 3:] = second[:, :3]
        k, rank = (5, 3) if wide else (5, 4)
        mca = sp.MCA(k).fit(first, second)
        expected = np.linalg.svd(_cross(first, second))[1][:k]
        assert np.abs(mca.singular_values_ - expected).max() <= 1e-11 * expected[0]
        assert (mca.x_explained_variance_ >= 0).all()
        for components in (mca.x_components_, mca.y_components_):
            assert np.abs(components @ components.T - np.eye(k)).max() <= 1e-10
        loaded: Any = sp.load(mca.save(tmp_path / f"{seed}.zarr"))
        assert np.array_equal(loaded.singular_values_, mca.singular_values_)
        one, two = mca.transform(first, second)
        assert np.abs(_cross(one, two)[rank:]).max() <= 1e-10 * expected[0]


@pytest.mark.parametrize("kind", [sp.MCA, sp.CCA])
def test_scores_of_each_table_give_its_own_rows(kind: Any, pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    da = pytest.importorskip("dask.array")
    fitted = kind(2).fit(*pair)
    one, two = fitted.transform(*pair)
    rows = [
        one @ fitted.x_patterns_ + pair[0].mean(0),
        two @ fitted.y_patterns_ + pair[1].mean(0),
    ]
    for found, expected in zip(fitted.inverse_transform(one, two), rows, strict=True):
        assert np.abs(found - expected).max() <= 1e-10
    assert np.abs(fitted.inverse_transform(one) - rows[0]).max() <= 1e-10
    assert np.abs(fitted.inverse_transform(None, two) - rows[1]).max() <= 1e-10
    assert np.abs(fitted.inverse_transform(np.hstack([one, two])) - np.hstack(rows)).max() <= 1e-10
    lazy = fitted.inverse_transform(None, da.from_array(two, chunks=(500, 2)))
    assert isinstance(lazy, da.Array)
    assert np.abs(lazy.compute() - rows[1]).max() <= 1e-10
    assert np.array_equal(fitted.transform(None, pair[1]), two)
    for call in (fitted.inverse_transform, lambda: fitted.transform(None)):
        with pytest.raises(ParameterError, match="of the second"):
            call()
    with pytest.raises(ParameterError, match="scores of shape"):
        fitted.inverse_transform(one[:, :1])


@pytest.mark.parametrize("names", [("sst", "rain"), ("tas", "tas"), (None, None)])
def test_labelled_scores_know_their_table_and_equal_names_lose_none(
    names: tuple[str | None, ...], pair: tuple[NDArray[Any], NDArray[Any]], tmp_path: Path
) -> None:
    xr = pytest.importorskip("xarray")
    times = {"time": np.arange(N)}
    fields = [
        xr.DataArray(each.reshape(N, -1, 1), dims=("time", "lat", "lon"), coords=times, name=name)
        for each, name in zip(pair, names, strict=True)
    ]
    tables = [sp.open(each, samples="time") for each in fields]
    fitted: Any = sp.MCA(2).fit(*tables)
    for mca in (fitted, sp.load(fitted.save(tmp_path / "m.zarr"))):
        one, two = mca.transform(*fields)
        rows = [one.values @ mca.x_patterns_ + pair[0].mean(0), two.values @ mca.y_patterns_ + pair[1].mean(0)]
        backs = [*mca.inverse_transform(one, two), mca.inverse_transform(one), mca.inverse_transform(two)]
        for back, at in zip(backs, (0, 1, 0, 1), strict=True):
            assert (back.name, back.dims) == (names[at], ("time", "lat", "lon"))
            assert np.abs(back.values.reshape(N, -1) - rows[at]).max() <= 1e-10
        some = mca.inverse_transform(two.sel(mode=[2]))
        alone = two.values[:, 1:] @ mca.y_patterns_[1:] + pair[1].mean(0)
        assert np.abs(some.values.reshape(N, -1) - alone).max() <= 1e-10
        whole = mca.inverse_transform(xr.concat([one, two.assign_coords(mode=two["mode"] + 2)], "mode"))
        assert len(whole.data_vars) == 2
        for (_, back), expected in zip(whole.data_vars.items(), rows, strict=True):
            assert np.abs(back.values.reshape(N, -1) - expected).max() <= 1e-10
        with pytest.raises(ParameterError, match="X has the scores of table 'y'"):
            mca.inverse_transform(two, one)
    sides = fitted.to_xarray()
    assert [side["patterns"].dims for side in sides] == [("mode", "lat", "lon")] * 2


def test_both_tables_side_by_side_have_the_scores_of_each(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    pd, xr = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    rows = xr.Dataset(
        {
            name: (("year", "month", dim), each.reshape(N // 10, 10, -1))
            for name, dim, each in zip(("sst", "rain"), ("x", "y"), pair, strict=True)
        }
    )
    table = sp.open(rows, samples=["year", "month"])
    mca = sp.MCA(2).fit(table)
    one, two = mca.transform(table)
    assert one.sizes == two.sizes == {"year": N // 10, "month": 10, "mode": 2}
    assert np.array_equal(two["mode"], [1, 2])
    expected = sp.MCA(2).fit(*pair).transform(*pair)
    for found, each in zip((one, two), expected, strict=True):
        assert np.abs(found.values.reshape(N, 2) - each).max() <= 1e-9
    frame = pd.DataFrame(np.hstack(pair), columns=[f"c{i}" for i in range(D1 + D2)])
    frames = sp.MCA(2, first=D1).set_output(transform="pandas").fit(frame).transform(frame)
    for found, each in zip(frames, expected, strict=True):
        assert list(found.columns) == ["mca0", "mca1"]
        assert np.abs(found.values - each).max() <= 1e-9


def test_each_side_has_its_own_source(pair: tuple[NDArray[Any], NDArray[Any]], tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    paths = [tmp_path / "one.npy", tmp_path / "two.npy"]
    for path, each in zip(paths, pair, strict=True):
        np.save(path, each)
    fitted = sp.MCA(2).fit(*paths)
    halves = [np.save(tmp_path / f"more-{path.name}", each) for path, each in zip(paths, pair, strict=True)]
    more = sp.MCA(2).fit(*(tmp_path / f"more-{path.name}" for path in paths))
    assert [str(path) in side.attrs["source"] for path, side in zip(paths, fitted.to_xarray(), strict=True)] == [
        True
    ] * len(halves)
    assert "two.npy" not in fitted.to_xarray()[0].attrs["source"]
    second = sp.merge([fitted, more]).to_xarray()[1].attrs["source"]
    assert str(paths[1]) in second
    assert "more-two.npy" in second
    assert "one.npy" not in second


@pytest.mark.parametrize("kind", [sp.MCA, sp.CCA])
def test_names_of_scores_are_those_of_the_columns_in_a_pipeline(
    kind: Any, pair: tuple[NDArray[Any], NDArray[Any]]
) -> None:
    steps = make_pipeline(StandardScaler(), kind(2)).fit(*pair)
    prefix = kind.__name__.lower()
    assert steps.get_feature_names_out().tolist() == [f"{prefix}0", f"{prefix}1"]
    assert steps.transform(pair[0]).shape == (N, 2)
    assert steps[-1].n_components_ == 2


def test_values_of_one_dimension_are_a_table_of_one_column(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    pd, xr, da = (pytest.importorskip(name) for name in ("pandas", "xarray", "dask.array"))
    first, values = pair[0], pair[1][:, 0]
    expected = sp.CCA(1).fit(first, values[:, None])
    frame = pd.DataFrame(first, columns=[f"a{i}" for i in range(D1)])
    array = xr.DataArray(first, dims=("time", "x"))
    for one, two in (
        (first, values),
        (first, values.tolist()),
        (frame, pd.Series(values)),
        (frame, values),
        (first, da.from_array(values)),
        (array, xr.DataArray(values, dims="time")),
    ):
        cca = sp.CCA(1).fit(one, two)
        assert np.abs(cca.correlations_ - expected.correlations_).max() <= 1e-12
        assert np.abs(np.asarray(cca.transform(one, two)[1]) - expected.transform(first, values)[1]).max() <= 1e-10
        assert np.asarray(cca.predict(one)).shape == (N, 1)
    assert sp.CCA(1).partial_fit(first, values).n_samples_seen_ == N


def test_charts_and_plans_do_not_speak_of_components(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    mca = sp.MCA(2).fit(*pair)
    assert mca.plot.scree().get_ylabel() == "singular value"
    assert mca.plot.scores(pair[0]).get_xlabel() == "pair 1"
    pyplot.close("all")
    assert mca.plan(*pair).alternatives == ()
    assert mca.plan(*pair).reason.endswith("mca is solved from it")


def test_the_plan_of_reduced_tables_is_that_of_the_fit_and_is_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 3000)).astype("f4")
    mca: Any = sp.MCA(2, first=1500, n_pca=5)
    plan = mca.plan(rows)
    fitted = mca.fit(rows)
    assert (plan.solver, plan.n_features, plan.n_components) == ("covariance", 3000, 2)
    assert (plan.passes, plan.bytes_to_read) == (fitted.n_passes_, fitted.bytes_read_)
    assert "components of the second table: gram" in str(plan)
    known = fitted.plan_.to_dict()
    assert {name: known[name] for name in ("passes", "bytes_to_read", "flops")} == {
        name: plan.to_dict()[name] for name in ("passes", "bytes_to_read", "flops")
    }
    assert abs(fitted.plan_.projected_bytes - plan.projected_bytes) < 64 * 2**20
    loaded = sp.load(fitted.save(tmp_path / "m.zarr"))
    assert loaded.plan_.to_dict() == known
    with pytest.raises(PlanError):
        sp.MCA(2, first=1500, n_pca=5, memory="16MiB").plan(rows)


@pytest.mark.parametrize("kind", [sp.MCA, sp.CCA])
def test_a_state_is_merged_continued_saved_and_solved_without_the_rows(
    kind: Any, pair: tuple[NDArray[Any], NDArray[Any]], tmp_path: Path
) -> None:
    whole = kind(2).fit(*pair)
    parts = [kind(2).fit(*(each[rows] for each in pair)) for rows in (slice(0, 700), slice(700, None))]
    merged = sp.merge(parts)
    assert isinstance(merged, kind)
    assert np.abs(merged._model.strengths - whole._model.strengths).max() <= 1e-12 * whole._model.strengths[0]
    continued = kind(2).fit(*(each[:700] for each in pair)).partial_fit(*(each[700:] for each in pair))
    assert np.abs(continued.x_components_ - whole.x_components_).max() <= 1e-11
    taken = kind(2).fit(*pair).partial_unfit(*(each[700:] for each in pair))
    assert np.abs(taken._model.strengths - parts[0]._model.strengths).max() <= 1e-10 * whole._model.strengths[0]
    whole.save(tmp_path / "m.zarr", state=True)
    loaded: Any = sp.load(tmp_path / "m.zarr")
    assert type(loaded) is kind
    assert np.array_equal(loaded.x_components_, whole.x_components_)
    assert np.array_equal(loaded.transform(*pair)[1], whole.transform(*pair)[1])
    assert loaded.partial_fit(*pair).n_samples_seen_ == 2 * N
    joint = sp.PCA(4, solver="covariance").fit(np.hstack(pair))
    joint.save(tmp_path / "p.zarr", state=True)
    for saved in (joint, tmp_path / "p.zarr"):
        solved = kind(2, first=D1).from_state(saved)
        assert np.abs(solved._model.strengths - whole._model.strengths).max() <= 1e-12 * whole._model.strengths[0]
    assert np.array_equal(kind(2).from_state(tmp_path / "m.zarr").x_components_, whole.x_components_)


def test_states_of_other_solvers_and_models_without_one_are_refused(
    pair: tuple[NDArray[Any], NDArray[Any]], tmp_path: Path
) -> None:
    joint = np.hstack(pair)
    for saved in (sp.PCA(2, solver="qr").fit(joint), sp.PCA(2, solver="gram").fit(joint)):
        with pytest.raises(NotAvailableError, match="solver='covariance'"):
            sp.MCA(2, first=D1).from_state(saved)
    sp.PCA(2).fit(joint).save(tmp_path / "p.zarr")
    with pytest.raises(NotAvailableError, match="state=True"):
        sp.MCA(2, first=D1).from_state(tmp_path / "p.zarr")
    with pytest.raises(ParameterError, match="expected two tables"):
        sp.MCA(2).fit(joint)
    with pytest.raises(ParameterError, match="features of the smaller table"):
        sp.CCA(8).fit(*pair)
    with pytest.raises(ParameterError, match="X has 12 features"):
        sp.MCA(2, first=5).fit(*pair)
    with pytest.raises(MergeError):
        sp.merge([sp.MCA(2).fit(*pair), sp.MCA(2, scale=True).fit(*pair)])
    with pytest.raises(NotComputedError, match="sampling_errors=20"):
        _ = sp.MCA(2).fit(*pair).sampling_error_


def test_tables_of_other_samples_are_refused(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    with pytest.raises(DataError, match="same samples"):
        sp.MCA(2).fit(pair[0], pair[1][:-1])
    xr = pytest.importorskip("xarray")
    times = np.arange(N)
    one = xr.DataArray(pair[0], dims=("time", "x"), coords={"time": times})
    two = xr.DataArray(pair[1], dims=("time", "y"), coords={"time": times[::-1]})
    with pytest.raises(DataError, match="differ in time"):
        sp.MCA(2).fit(one, two)


def test_as_many_directions_as_rows_have_correlations_of_one_and_are_refused() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(40, 25)), rng.normal(size=(40, 20))
    with pytest.raises(DataError, match="at least 6 canonical"):
        sp.CCA(2).fit(one, two)
    assert sp.CCA(2).fit(one[:, :10], two[:, :10]).correlations_[0] < 1


def test_weights_scales_and_holes_are_those_of_numpy(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    rng = np.random.default_rng(1)
    sample, feature = rng.uniform(0, 2, N), rng.uniform(0.5, 2, D1 + D2)
    first, second = pair
    mca = sp.MCA(2, feature_weight=feature).fit(first, second, sample_weight=sample)
    means = [np.average(each, axis=0, weights=sample) for each in pair]
    cross = ((first - means[0]).T * sample) @ (second - means[1]) / (sample.sum() - 1)
    cross *= np.sqrt(feature[:D1])[:, None] * np.sqrt(feature[D1:])
    assert np.abs(mca.singular_values_ - np.linalg.svd(cross)[1][:2]).max() <= 1e-10
    holes = first.copy()
    holes[rng.random(first.shape) < 0.05] = np.nan
    filled = np.where(np.isnan(holes), np.nanmean(holes, axis=0), holes)
    expected = np.linalg.svd(_cross(filled, second))[1][:2]
    mca = sp.MCA(2, missing="mean").fit(holes, second)
    assert np.abs(mca.singular_values_ - expected).max() <= 1e-10 * expected[0]
    one, _ = mca.transform(holes, second)
    assert np.abs(one - (filled - filled.mean(0)) @ mca.x_components_.T).max() <= 1e-9


def test_what_is_removed_is_regressed_out_of_both_tables(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    groups = np.arange(N) % 12
    design = np.eye(12)[groups]
    seasonal = [each + 10 * groups[:, None] for each in pair]
    residuals = [each - design @ np.linalg.lstsq(design, each, rcond=None)[0] for each in seasonal]
    expected = np.linalg.svd(_cross(*residuals))[1][:2]
    mca = sp.MCA(2, remove={"groups": groups}).fit(*seasonal)
    assert np.abs(mca.singular_values_ - expected).max() <= 1e-9 * expected[0]
    one, _ = mca.transform(*seasonal, remove={"groups": groups})
    assert np.abs(one - residuals[0] @ mca.x_components_.T).max() <= 1e-8


@pytest.mark.parametrize("kind", [sp.MCA, sp.CCA])
def test_wide_tables_are_reduced_to_their_components_first(kind: Any) -> None:
    rng = np.random.default_rng(0)
    n, d1, d2, q = 120, 900, 700, 8
    shared = rng.normal(size=(n, 2))
    first = shared @ rng.normal(size=(2, d1)) + rng.normal(size=(n, d1))
    second = shared @ rng.normal(size=(2, d2)) + rng.normal(size=(n, d2))
    fitted = kind(2, n_pca=q).fit(first, second)
    scores = []
    for each in (first, second):
        centred = each - each.mean(0)
        scores.append(centred @ np.linalg.svd(centred, full_matrices=False)[2][:q].T)
    expected = (np.linalg.svd(_cross(*scores))[1] if kind is sp.MCA else _correlations(*scores))[:2]
    assert np.abs(fitted._model.strengths - expected).max() <= 1e-9 * expected[0]
    one, two = fitted.transform(first, second)
    assert np.abs(np.diag(_cross(one, two)) - expected).max() <= 1e-8 * expected[0]
    assert (fitted.x_pca_.n_components_, fitted.x_components_.shape) == (q, (2, d1))
    if kind is sp.MCA:
        true = np.linalg.svd(_cross(first, second))[1][:2]
        assert np.abs(fitted.x_components_ @ fitted.x_components_.T - np.eye(2)).max() <= 1e-10
        upper = np.array(fitted._model.figures["upper_singular_values"])
        assert (fitted.singular_values_ <= true * (1 + 1e-10)).all()
        assert (true <= upper).all()
        assert (upper <= 1.5 * true).all()  # a bound that says something
    with pytest.raises(NotAvailableError, match="n_pca"):
        fitted.partial_fit(first, second)


def test_bounds_of_reduced_tables_hold_for_every_number_of_components() -> None:
    rng = np.random.default_rng(3)
    for seed in range(6):
        n, spread = 60, rng.uniform(0.2, 3)
        shared = rng.normal(size=(n, 3))
        first = shared @ rng.normal(size=(3, 30)) + spread * rng.normal(size=(n, 30)) * np.linspace(1, 3, 30)
        second = shared @ rng.normal(size=(3, 20)) + rng.normal(size=(n, 20))
        true = np.linalg.svd(_cross(first, second))[1]
        for q in (2, 5, 12):
            solver: Any = {"n_pca": q}
            fitted = sp.MCA(2, random_state=seed, **solver).fit(first, second)
            upper = np.array(fitted._model.figures["upper_singular_values"])
            assert (fitted.singular_values_ <= true[:2] * (1 + 1e-10)).all()
            assert (true[:2] <= upper * (1 + 1e-10)).all()


def test_labels_of_both_tables_go_to_data_sets_and_weights_by_their_own_coordinates() -> None:
    xr = pytest.importorskip("xarray")
    rng = np.random.default_rng(0)
    n = 200
    shared = rng.normal(size=(n, 2))
    fields = []
    for name, (lats, lons) in {"sst": (6, 8), "precip": (5, 6)}.items():
        values = shared @ rng.normal(size=(2, lats * lons)) + rng.normal(size=(n, lats * lons))
        coordinates = {"time": np.arange(n), "lat": np.linspace(-60, 50, lats), "lon": np.arange(float(lons))}
        array = xr.DataArray(values.reshape(n, lats, lons), dims=("time", "lat", "lon"), coords=coordinates, name=name)
        fields.append(array)
    tables = [sp.open(each, samples="time") for each in fields]
    mca = sp.MCA(2, feature_weight="cos(lat)").fit(*tables)
    weighted = []
    for each in fields:
        root = np.sqrt(np.cos(np.deg2rad(each["lat"])))
        weighted.append(((each - each.mean("time")) * root).values.reshape(n, -1))
    left, values, _ = np.linalg.svd(weighted[0].T @ weighted[1] / (n - 1))
    assert np.abs(mca.singular_values_ - values[:2]).max() <= 1e-11 * values[0]
    one, two = mca.to_xarray()
    assert one["components"].dims == ("mode", "lat", "lon")
    assert two["components"].sizes == {"mode": 2, "lat": 5, "lon": 6}
    assert _apart(one["components"].values.reshape(2, -1), left[:, :2].T) <= 1e-9
    assert np.array_equal(one["singular_values"], mca.singular_values_)
    scores = mca.transform(*tables)
    assert all(each.dims == ("time", "mode") for each in scores)
    assert (
        np.abs(
            scores[0].values
            - weighted[0] @ left[:, :2] * np.sign(np.sum(scores[0].values * (weighted[0] @ left[:, :2]), axis=0))
        ).max()
        <= 1e-9
    )


def test_intervals_hold_the_values_of_the_population_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    loads = [rng.normal(size=(2, 6)) * np.array([[2.0], [1.0]]), rng.normal(size=(2, 5))]
    truth = np.linalg.svd(loads[0].T @ loads[1])[1][:2]
    held, n_fits = np.zeros(2), 100
    for _ in range(n_fits):
        shared = rng.normal(size=(600, 2))
        tables = [shared @ each + rng.normal(size=(600, each.shape[1])) for each in loads]
        ends = sp.MCA(2, sampling_errors=20).fit(*tables).sampling_error_.interval()
        held += (ends[:, 0] <= truth) & (truth <= ends[:, 1])
    assert (held >= 0.88 * n_fits).all()  # 95 % less three deviations of a count of 100
    with pytest.raises(ParameterError, match="level"):
        sp.CCA(1, sampling_errors=5).fit(*tables).sampling_error_.interval(1.5)


def test_a_direction_of_one_group_of_rows_alone_has_a_sampling_error() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(200, 3)), rng.normal(size=(200, 3))
    first[:180, 0] = 0  # so that the tables without the last rows have two directions
    errors = sp.CCA(3, sampling_errors=10).fit(first, second).sampling_error_.errors
    assert errors.shape == (3,)
    assert (errors > 0.01).all()


def test_intervals_of_correlations_stay_below_one(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    ends = sp.CCA(3, sampling_errors=20).fit(*pair).sampling_error_.interval()
    assert ((ends > -1) & (ends < 1)).all()
    assert (ends[:, 0] < ends[:, 1]).all()


@pytest.mark.filterwarnings("ignore")  # of xeofs about functions of xarray
def test_xeofs_has_the_same_squared_covariances() -> None:
    pytest.importorskip("statsmodels")  # which its analyses of two tables need
    cross = pytest.importorskip("xeofs.cross")
    xr = pytest.importorskip("xarray")
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(200, 2))
    fields = [
        xr.DataArray(
            shared @ rng.normal(size=(2, d)) + rng.normal(size=(200, d)),
            dims=("time", f"x{d}"),
            coords={"time": np.arange(200), f"x{d}": np.arange(d)},
        )
        for d in (20, 15)
    ]
    known = cross.MCA(n_modes=2, use_pca=False, solver="full")
    known.fit(*fields, "time")
    mca = sp.MCA(2).fit(*fields)
    assert np.abs(np.square(mca.singular_values_) / known.data["squared_covariance"].values - 1).max() <= 1e-6
    assert np.abs(mca.squared_covariance_fraction_ - known.squared_covariance_fraction().values).max() <= 1e-6
    for mine, theirs in zip((mca.x_components_, mca.y_components_), known.components(), strict=True):
        assert _apart(mine, theirs.transpose("mode", ...).values) <= 1e-6
    known = cross.CCA(n_modes=2, use_pca=False, solver="full")
    known.fit(*fields, "time")
    theirs = [np.corrcoef(*(each.values[mode] for each in known.scores()))[0, 1] for mode in range(2)]
    assert np.abs(sp.CCA(2).fit(*fields).correlations_ - theirs).max() <= 1e-6


def test_sketched_components_have_a_bound_that_is_called_statistical() -> None:
    rng = np.random.default_rng(0)
    n, d = 400, 300
    shared = rng.normal(size=(n, 3)) * np.array([3.0, 2.0, 1.0])
    first, second = (shared @ rng.normal(size=(3, d)) + rng.normal(size=(n, d)) for _ in range(2))
    true = np.linalg.svd(_cross(first, second))[1][:2]
    fitted = sp.MCA(2, n_pca=sp.PCA(10, solver="sketch", max_passes=3)).fit(first, second)
    upper = np.array(fitted._model.figures["upper_singular_values"])
    assert fitted.x_pca_.solver_ == "sketch"
    assert fitted.error_.kind == "statistical"
    assert (fitted.singular_values_ <= true * (1 + 1e-10)).all()
    assert (true <= upper).all()
    assert (upper <= 1.2 * true).all()


def test_names_of_columns_are_remembered_for_each_table() -> None:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    one = pd.DataFrame(rng.normal(size=(60, 3)), columns=list("abc"))
    two = pd.DataFrame(one.values[:, :2] + rng.normal(size=(60, 2)), columns=list("ax"))
    mca = sp.MCA(2).fit(one, two)
    assert mca.feature_names_in_.tolist() == ["a", "b", "c", "a", "x"]
    assert mca.transform(one, two)[1].shape == (60, 2)
    with pytest.raises(ValueError, match="feature names"):
        mca.transform(one[["c", "b", "a"]])


def test_tables_whose_steps_have_to_know_all_rows_are_read_for_these_first() -> None:
    anndata = pytest.importorskip("anndata")
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(0)
    n = 200
    counts = [rng.poisson(mean, (n, d)).astype("f8") for mean, d in ((1.0, 20), (2.0, 15))]
    tables = [sp.open(anndata.AnnData(sparse.csr_matrix(each)), normalize={"residuals": "pearson"}) for each in counts]
    mca = sp.MCA(2).fit(*tables)
    residuals = []
    for each in counts:
        expected = np.outer(each.sum(axis=1), each.sum(axis=0)) / each.sum()
        residuals.append(np.clip((each - expected) / np.sqrt(expected + expected**2 / 100), -np.sqrt(n), np.sqrt(n)))
    values = np.linalg.svd(_cross(*residuals))[1][:2]
    assert np.abs(mca.singular_values_ - values).max() <= 1e-9 * values[0]
    assert mca.n_passes_ == 3


@pytest.mark.parametrize("kind", [sp.MCA, sp.CCA, sp.FactorAnalysis])
@pytest.mark.parametrize("reduced", [False, True])
def test_the_certified_residual_is_that_of_rows_rebuilt_from_their_scores(
    kind: Any, reduced: bool, pair: tuple[NDArray[Any], NDArray[Any]]
) -> None:
    rows = np.hstack(pair)
    if kind is sp.FactorAnalysis:
        fitted = kind(2).fit(rows)
        scores = fitted.transform(rows)
    else:
        fitted = kind(2, n_pca=4 if reduced else None).fit(*pair)
        scores = np.hstack(fitted.transform(*pair))
    left = np.square(rows - fitted.inverse_transform(scores)).sum() / np.square(rows - rows.mean(0)).sum()
    assert abs(fitted.error_.relative_residual - left) <= 1e-10
    assert abs(fitted.error_.captured_variance + left - 1) <= 1e-10


def test_units_of_features_do_not_change_canonical_correlations() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(1000, 3)), rng.normal(size=(1000, 2))
    second[:, 0] += 2 * first[:, 2]
    scaled = (first * np.array([1.0, 10.0, 1e-5])).astype(np.float32)  # a variance below the rounding of the others'
    expected = _correlations(scaled.astype(np.float64), second.astype(np.float32).astype(np.float64))[:2]
    cca = sp.CCA(2).fit(scaled, second.astype(np.float32))
    assert np.abs(cca.correlations_ - expected).max() <= cca._model.error
    assert cca._model.error < 1e-4
    collinear = np.c_[first, first @ np.ones(3)]
    cca = sp.CCA(2).fit(collinear, second)
    assert np.abs(cca.correlations_ - _correlations(first, second)[:2]).max() <= cca._model.error
    assert "without 1 direction of variance below rounding" in cca.error_.statement


@pytest.mark.parametrize("kind", [sp.MCA, sp.CCA])
def test_more_pairs_than_features_are_refused_before_anything_is_read(kind: Any) -> None:
    rows = np.full((20, 5), np.nan)  # which reading would find first
    for call in (kind(3, first=2).fit, kind(3, first=2).plan):
        with pytest.raises(ParameterError, match="expected at most 2, the features of the smaller table"):
            call(rows)


@pytest.mark.parametrize("offset", [1e4, 1e8])
@pytest.mark.parametrize("scale", [True, "block"])
def test_errors_of_packed_tables_that_are_scaled_without_centring_are_bounded(
    offset: float, scale: Any, tmp_path: Path
) -> None:
    stored = np.rint(np.random.default_rng(1).normal(size=(60, 7)) * 1000).astype("i2")
    dims = ("time", "x")
    array = zarr.create_array(tmp_path / "x.zarr", data=stored, dimension_names=dims)
    array.attrs.update(scale_factor=1e-3, add_offset=offset)
    mca = sp.MCA(2, first=4, center=False, scale=scale).fit(sp.open(tmp_path / "x.zarr", samples="time"))
    rows = stored.astype(np.longdouble) * np.longdouble(1e-3) + np.longdouble(offset)
    variance = np.square(rows - rows.mean(axis=0)).sum(axis=0) / 59
    if scale == "block":
        variance = np.full(7, variance.sum())  # of one variable, whose features are on both sides
    rows = rows / np.sqrt(variance)
    cross = rows[:, :4].T @ rows[:, 4:] / 59
    square, vector = cross @ cross.T, np.ones(4, np.longdouble)
    for _ in range(20):  # the first value is far above the others
        vector = square @ vector
        vector /= np.sqrt(vector @ vector)
    true = np.sqrt(vector @ square @ vector)
    assert float(abs(mca.singular_values_[0] - true)) <= mca._model.error


@pytest.mark.parametrize("mean", [1e8, 2e9])
@pytest.mark.parametrize("slope", [0.0, 3e7])
@pytest.mark.parametrize("kind", [sp.MCA, sp.CCA])
def test_errors_of_packed_tables_count_the_mean_and_the_trend_that_are_removed(
    kind: Any, mean: float, slope: float, tmp_path: Path
) -> None:
    time = np.linspace(-1, 1, 60)
    rng = np.random.default_rng(1)
    stored = np.rint(rng.normal(size=(60, 7)) @ rng.normal(size=(7, 7)) * 10 + mean + slope * time[:, None]).astype(
        "i8"
    )
    array = zarr.create_array(tmp_path / "x.zarr", data=stored, dimension_names=("time", "x"))
    array.attrs.update(scale_factor=0.1, add_offset=1.0)
    fitted = kind(1, first=4, remove={"trend": 1}).fit(sp.open(tmp_path / "x.zarr", samples="time"))
    rows = stored.astype(np.longdouble) * np.longdouble(0.1)
    rows = rows - rows.mean(axis=0)
    along = np.arange(60, dtype=np.longdouble) - np.longdouble(29.5)
    along = along / np.sqrt(along @ along)
    rows = rows - np.outer(along, along @ rows)
    found, error = np.longdouble(fitted._model.strengths[0]), fitted._model.error
    if kind is sp.CCA:
        rows = np.hstack([_orthonormal(rows[:, :4]), _orthonormal(rows[:, 4:])])
        divisor = 1
    else:
        divisor = 59
    cross = rows[:, :4].T @ rows[:, 4:] / divisor
    square, vector = cross @ cross.T, np.ones(4, np.longdouble)
    for _ in range(2000):
        vector = square @ vector
        vector /= np.sqrt(vector @ vector)
    assert abs(found - np.sqrt(vector @ square @ vector)) <= error < (0.01 * found if mean < 1e9 else np.inf)


def _orthonormal(table: Any) -> Any:
    """Return an orthonormal basis of the columns of `table` in long double (Gram and Schmidt, twice)."""
    basis = table.copy()
    for j in range(basis.shape[1]):
        for _ in range(2):
            basis[:, j] -= basis[:, :j] @ (basis[:, :j].T @ basis[:, j])
        basis[:, j] /= np.sqrt(basis[:, j] @ basis[:, j])
    return basis


@pytest.mark.parametrize("kind", [sp.MCA, sp.CCA])
@pytest.mark.parametrize("n_pca", [2, np.int64(2), sp.PCA(2)])
def test_fewer_components_than_pairs_are_refused_before_rows_are_read(kind: Any, n_pca: Any) -> None:
    rows, reads = da.zeros((40, 12), chunks=(10, 12)), []
    rows = rows.map_blocks(lambda block: reads.append(len(block)) or block, dtype=float, meta=np.empty((0, 0)))
    with pytest.raises(ParameterError, match="n_pca=2 is less than n_components=4"):
        kind(4, first=6, n_pca=n_pca).fit(rows)
    with pytest.raises(ParameterError, match="n_components=5: expected at most 4, the features of the smaller table"):
        kind(5, first=4, n_pca=6).fit(rows)
    assert reads == []
