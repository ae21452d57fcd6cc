"""One PCA for each group of rows: equal to fits of the separate rows, with what is within groups and between their means."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
import zarr
from facade import process_of
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

import streampca as sp
from streampca.errors import DataError, NotAvailableError, NotFiniteError, ParameterError, PlanError

pytestmark = pytest.mark.numerical
N, D, NAMES = 3000, 7, ("early", "late", "middle")


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float64]:
    rng = np.random.default_rng(0)
    scales = np.array([1.0, 2.0, 0.5])[np.arange(N) % 3]
    return rng.standard_normal((N, D)) * np.linspace(1, 3, D) * scales[:, None] + 5.0 * (np.arange(N) % 3)[:, None]


@pytest.fixture(scope="module")
def labels() -> Any:
    return np.array(NAMES)[[0, 2, 1]][np.arange(N) % 3]


def assert_close(found: sp.PCA, expected: sp.PCA) -> None:
    scale = float(expected.explained_variance_[0])
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(found.mean_, expected.mean_, rtol=1e-12)
    assert sp.metrics.principal_angles(found.components_, expected.components_)[-1] <= 1e-10
    assert found.n_samples_seen_ == expected.n_samples_seen_


@pytest.mark.parametrize("scale", [False, True])
def test_groups_equal_fits_of_their_rows(rows: Any, labels: Any, scale: bool) -> None:
    models = sp.PCA(3, scale=scale).fit_groups(rows, labels)
    assert models.groups_ == NAMES
    assert list(models) == [*NAMES, "pooled", "between"]
    assert (models.n_passes_, models.bytes_read_) == (1, rows.nbytes)
    for name in NAMES:
        assert_close(models[name], sp.PCA(3, scale=scale).fit(rows[labels == name]))


def test_a_group_without_weight_is_named(rows: Any, labels: Any) -> None:
    with pytest.raises(DataError, match="group 'late': no row has a positive weight"):
        sp.PCA(2).fit_groups(rows, labels, sample_weight=(labels != "late").astype(float))


@pytest.mark.parametrize(
    ("change", "made", "word"),
    [
        (lambda rows: rows * 1e-160, {}, "underflow"),
        (lambda rows: rows * 1e10, {"feature_weight": np.full(D, 1e290)}, "overflows"),
        (lambda rows: np.rint(rows).astype(np.int64) + 2**60, {}, "integers near"),
    ],
)
def test_a_group_that_cannot_be_solved_is_named_by_the_fit(
    change: Any, made: Any, word: str, rows: Any, labels: Any
) -> None:
    late, changed = labels == "late", change(rows)
    given = np.round(rows).astype(changed.dtype)
    given[late] = changed[late]
    with pytest.raises(DataError, match=word) as alone:
        sp.PCA(2, **made).fit(given[late])
    with pytest.raises(DataError) as raised:
        sp.PCA(2, **made).fit_groups(given, labels)
    assert str(raised.value) == f"group 'late': {alone.value}"


def test_models_that_were_not_asked_for_yet_are_copied_pickled_saved_and_loaded(
    rows: Any, labels: Any, tmp_path: Path
) -> None:
    expected = sp.PCA(3).fit(rows[labels == "late"])
    for change in (
        lambda model: model,
        copy.copy,
        lambda model: pickle.loads(pickle.dumps(model)),
        lambda model: sp.load(model.save(tmp_path / "late.zarr")),
    ):
        model = change(sp.PCA(3).fit_groups(rows, labels)["late"])
        assert check_is_fitted(model) is None
        assert model.n_samples_seen_ == N // 3
        assert_close(model, expected)
        assert model.error_["statement"] == expected.error_["statement"]
        assert (model.solver_, model.n_passes_, model.bytes_read_) == ("covariance", 1, rows.nbytes)


def test_limits_and_rules_within_groups_are_those_of_rows_whose_group_means_were_removed(tmp_path: Path) -> None:
    random, n, n_groups = np.random.default_rng(5), 60, 20
    labels = np.arange(n) % n_groups
    rows = random.standard_normal((n, D)) * np.linspace(1, 3, D) + 50.0 * random.standard_normal((n_groups, D))[labels]
    pooled = sp.PCA(3).fit_groups(rows, labels)["pooled"]
    removed: Any = sp.PCA(3, remove={"groups": labels}, ddof=n_groups).fit(rows)
    np.testing.assert_allclose(pooled.explained_variance_, removed.explained_variance_, rtol=1e-10)
    pooled.save(tmp_path / "pooled.zarr")
    for model in (pooled, sp.load(tmp_path / "pooled.zarr")):
        for distribution in ("f", "beta"):
            limits = [each.t2_limit(distribution=distribution) for each in (model, removed)]
            np.testing.assert_allclose(limits[0], limits[1], rtol=1e-9)
        for name, rule in removed.component_rules_.items():
            found = model.component_rules_[name]
            assert found.n_components == rule.n_components
            for figure, value in rule.figures.items():
                np.testing.assert_allclose(found.figures[figure], value, rtol=1e-5)


@pytest.mark.parametrize("rule", ["parallel", "mle"])
def test_a_rule_counts_the_components_of_each_group_from_its_rows(rule: str, labels: Any) -> None:
    rng = np.random.default_rng(1)
    rows, n_factors = rng.standard_normal((N, 20)), dict(zip(NAMES, (1, 2, 3), strict=True))
    for name, n in n_factors.items():
        mine = labels == name
        rows[mine] += 3 * rng.standard_normal((mine.sum(), n)) @ rng.standard_normal((n, 20))
    models = sp.PCA(rule).fit_groups(rows, labels)
    for name in NAMES:
        assert models[name].n_components_ == sp.PCA(rule).fit(rows[labels == name]).n_components_
    if rule == "mle":
        assert [models[name].n_components_ for name in NAMES] == [1, 2, 3]
    assert models["pooled"].n_components_ < 20
    assert models["between"].n_components_ == len(NAMES) - 1


def test_groups_of_float32_rows_equal_fits_of_their_rows(rows: Any, labels: Any) -> None:
    single = rows.astype(np.float32)
    models = sp.PCA(3).fit_groups(single, labels)
    for name in NAMES:
        assert_close(models[name], sp.PCA(3).fit(single[labels == name]))
        exact = np.linalg.eigvalsh(np.cov(single[labels == name].T.astype(np.float64)))[::-1][:3]
        np.testing.assert_allclose(models[name].explained_variance_, exact, rtol=1e-6)


def test_the_parts_within_and_between_groups_add_up_to_the_covariance(rows: Any, labels: Any) -> None:
    models = sp.PCA().fit_groups(rows, labels)
    means = np.stack([rows[labels == name].mean(axis=0) for name in NAMES])[np.searchsorted(NAMES, labels)]
    within, between = (part.T @ part for part in (rows - means, means - rows.mean(axis=0)))
    np.testing.assert_allclose(
        models["pooled"].explained_variance_, np.linalg.eigvalsh(within)[::-1] / (N - 3), rtol=1e-12
    )
    expected = np.linalg.eigvalsh(between)[::-1][:2] / (N - 1)
    np.testing.assert_allclose(models["between"].explained_variance_[:2], expected, rtol=0, atol=1e-12 * expected[0])
    total = models["pooled"].total_variance_ * (N - 3) + models["between"].total_variance_ * (N - 1)
    assert total == pytest.approx(sp.PCA(1).fit(rows).total_variance_ * (N - 1), rel=1e-12)
    np.testing.assert_allclose(models["pooled"].mean_, rows.mean(axis=0), rtol=1e-12)


def test_weights_holes_integers_and_sparse_rows_are_divided_by_group(rows: Any, labels: Any) -> None:
    weights = np.random.default_rng(1).uniform(size=N) * (np.arange(N) % 5 > 0)
    one = sp.PCA(3).fit_groups(rows, labels, sample_weight=weights)["late"]
    late = labels == "late"
    assert_close(one, sp.PCA(3).fit(rows[late], sample_weight=weights[late]))
    holes = rows.copy()
    holes[::7, 2] = np.nan
    one = sp.PCA(3, missing="drop_rows").fit_groups(holes, labels)["late"]
    assert_close(one, sp.PCA(3, missing="drop_rows").fit(holes[late]))
    small = np.abs(rows * 4).clip(0, 255).astype(np.uint8)
    assert_close(sp.PCA(3).fit_groups(small, labels)["late"], sp.PCA(3).fit(small[late]))
    sparse = scipy.sparse.csr_array(np.where(rows > 6, rows, 0.0))
    assert_close(sp.PCA(3).fit_groups(sparse, labels)["late"], sp.PCA(3).fit(sparse[late]))


def test_groups_of_few_rows_have_as_many_components_as_their_rows_give(rows: Any) -> None:
    models = sp.PCA(5).fit_groups(rows[:100], np.r_[np.zeros(97, int), np.ones(3, int)])
    assert [models[name].n_components_ for name in (0, 1, "pooled", "between")] == [5, 3, 5, 1]


def test_similarity_and_angles_are_those_of_the_subspaces(rows: Any, labels: Any) -> None:
    models = sp.PCA(2).fit_groups(rows, labels)
    one, other = models["early"].components_, models["late"].components_
    cosines = np.linalg.svd(one @ other.T, compute_uv=False)
    assert models.similarity()[0, 1] == pytest.approx((cosines**2).mean(), abs=1e-12)
    assert models.angles()[0, 1] == models.angles()[1, 0] == pytest.approx(np.arccos(cosines[-1]), abs=1e-7)
    assert (np.diag(models.similarity()) == 1).all()


def test_a_group_is_continued_saved_and_loaded(rows: Any, labels: Any, tmp_path: Path) -> None:
    models = sp.PCA(3).fit_groups(rows, labels)
    late = rows[labels == "late"]
    expected = sp.PCA(3).fit(np.vstack([late, rows[:50]]))
    np.testing.assert_allclose(
        models["late"].partial_fit(rows[:50]).explained_variance_, expected.explained_variance_, rtol=1e-12
    )
    for name in ("pooled", "between"):
        loaded = sp.load(models[name].save(tmp_path / f"{name}.zarr"))
        np.testing.assert_array_equal(loaded.transform(rows), models[name].transform(rows))


def test_labels_are_named_in_tables_frames_and_files(rows: Any, labels: Any, tmp_path: Path) -> None:
    times = pd.date_range("2000-01-01", periods=N, freq="D").values
    field = xr.DataArray(rows, dims=("time", "place"), coords={"time": times})
    table = sp.open(field, samples="time")
    models = sp.PCA(2).fit_groups(table, "time.month")
    assert models.groups_ == tuple(range(1, 13))
    march = pd.DatetimeIndex(times).month == 3
    assert_close(models[3], sp.PCA(2).fit(rows[march]))
    assert models[3].labels_ is not None
    frame = pd.DataFrame(rows, columns=[f"f{i}" for i in range(D)]).assign(phase=labels)
    models = sp.PCA(2).fit_groups(frame, "phase")
    assert list(models["late"].feature_names_in_) == [f"f{i}" for i in range(D)]
    assert_close(models["late"], sp.PCA(2).fit(rows[labels == "late"]))
    with pytest.raises(ParameterError, match="labels='stage': the data frame has no such column"):
        sp.PCA(2).fit_groups(frame, "stage")
    frame.to_parquet(tmp_path / "rows.parquet")
    assert_close(sp.PCA(2).fit_groups(tmp_path / "rows.parquet", "phase")["late"], models["late"])
    for name in ("stage", "stage.month"):
        with pytest.raises(ParameterError, match=f"labels='{name}': .*rows.parquet has no column '{name}'"):
            sp.PCA(2).fit_groups(tmp_path / "rows.parquet", name)
    with pytest.raises(ParameterError, match=r"labels='place': .* no sample coordinate or column 'place'"):
        sp.PCA(2).fit_groups(table, "place")


class _PowerCutError(BaseException):
    """Stops a fit as a signal would."""


def test_a_stopped_fit_goes_on_to_the_same_bits(
    rows: Any, labels: Any, tmp_path: Path, all_checkpoints: None, blocks_of: Any
) -> None:
    blocks_of(100)
    path, seen = tmp_path / "x.zarr", []
    zarr.create_array(path, shape=rows.shape, chunks=(100, D), dtype="f8")[:] = rows
    expected = sp.PCA(3).fit_groups(path, labels)

    def stop_late(step: Any) -> None:
        if step.rows > N // 2:
            raise _PowerCutError

    with pytest.raises(_PowerCutError):
        sp.PCA(3, checkpoint=tmp_path / "kept", progress=stop_late).fit_groups(path, labels)
    again = sp.PCA(3, checkpoint=tmp_path / "kept", progress=lambda step: seen.append(step.rows))
    models = again.fit_groups(path, labels)
    assert seen[0] >= N // 4
    for name in expected:
        np.testing.assert_array_equal(models[name].components_, expected[name].components_)
        np.testing.assert_array_equal(models[name].explained_variance_, expected[name].explained_variance_)


def test_groups_that_do_not_fit_are_refused_with_the_number_that_would(rows: Any) -> None:
    wide = np.zeros((4000, 200))
    process = sp.PCA(2).plan(wide).budget.bytes_for("process")
    with pytest.raises(
        PlanError, match=r"^500 groups, with a covariance matrix each: projected .*; at most \d+ groups would fit"
    ):
        sp.PCA(2, memory=process + 100 * 2**20).fit_groups(wide, np.arange(4000) % 500)


def test_a_value_that_is_not_finite_is_named_by_its_row_in_the_data(rows: Any, labels: Any) -> None:
    broken = rows.copy()
    broken[1234, 3] = np.nan
    with pytest.raises(NotFiniteError, match="row 1234, column 3"):
        sp.PCA(2).fit_groups(broken, labels)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"solver": "gram"}, "solver='gram' does not take groups"),
        ({"missing": "pairwise"}, "do not take missing='pairwise'"),
        ({"sampling_errors": 20}, "do not take sampling_errors=20"),
    ],
)
def test_what_does_not_go_together_with_groups_is_refused(made: Any, message: str, rows: Any, labels: Any) -> None:
    with pytest.raises(NotAvailableError, match=message):
        sp.PCA(2, **made).fit_groups(rows, labels)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (np.zeros(5), ParameterError, r"labels has shape \(5,\): expected one label for each of the 3000 rows"),
        (np.full(N, np.nan), ParameterError, "labels hold missing labels"),
        (["a", math.nan] * (N // 2), ParameterError, "labels hold missing labels"),
        (np.array(["a", None] * (N // 2), dtype=object), ParameterError, "labels hold missing labels"),
        (pd.array(["a", None] * (N // 2), dtype="string"), ParameterError, "labels hold missing labels"),
        (pd.array([1, None] * (N // 2), dtype="Int64"), ParameterError, "labels hold missing labels"),
        (np.ma.masked_equal([0, 1] * (N // 2), 1), ParameterError, "labels hold missing labels"),
        (["a", 1] * (N // 2), ParameterError, "type object: expected one label for each row"),
        ([[1], [1, 2]] * (N // 2), ParameterError, "labels are no array"),
        (np.r_[1, np.zeros(N - 1)], DataError, r"group 1.0 has 1 row, but ddof=1 needs at least 2"),
        (np.repeat(["pooled", "b"], N // 2), DataError, "a group is called 'pooled'"),
    ],
)
def test_wrong_labels_are_refused(values: Any, error: Any, message: str, rows: Any) -> None:
    with pytest.raises(error, match=message):
        sp.PCA(2).fit_groups(rows, values)


def test_the_work_for_another_small_group_does_not_depend_on_how_many_there_are() -> None:
    def calls(n_groups: int) -> int:
        rows = np.random.default_rng(0).standard_normal((8 * n_groups, 4))
        count = 0

        def counted(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(counted)
        try:
            sp.PCA(2).fit_groups(rows, np.arange(len(rows)) % n_groups)
        finally:
            sys.setprofile(None)
        return count

    calls(2)  # imports
    few, more, most = calls(50), calls(100), calls(200)
    assert (more - few) / 50 < 200
    assert most - more < 2.5 * (more - few)


def test_rows_of_a_block_are_divided_by_their_groups_without_comparing_each_with_every_group() -> None:
    compared = 0

    class Counted(np.ndarray[Any, Any]):
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
            nonlocal compared
            compared += max(np.size(each) for each in inputs)
            plain = [np.asarray(each) if isinstance(each, Counted) else each for each in inputs]
            return getattr(ufunc, method)(*plain, **keywords)

    n, n_groups = 3000, 1000
    codes = np.random.default_rng(1).permutation(np.arange(n) % n_groups)
    rows = np.random.default_rng(0).standard_normal((n, 2))
    accumulator = sp.accumulators.ByGroup(sp.accumulators.Moments(), codes.view(Counted), n_groups)
    means = [moments.mean for moments in accumulator.finalize(accumulator.update(accumulator.init(2), rows))]
    np.testing.assert_allclose(means, [rows[codes == group].mean(axis=0) for group in range(n_groups)], atol=1e-14)
    assert compared <= 10 * n


def test_the_plan_counts_the_objects_of_many_small_groups() -> None:
    rows = np.random.default_rng(0).standard_normal((1200, 3))
    with process_of(150 * 2**20):  # whatever tests have left in memory, and whenever it is given back
        models = {n: sp.PCA(1).fit_groups(rows, np.arange(1200) % n) for n in (2, 400)}
    tracemalloc.start()
    kept = sp.PCA(1).fit_groups(rows, np.arange(1200) % 400)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(kept) == 402
    assert models[400].plan_.projected_bytes - models[2].plan_.projected_bytes >= held


@pytest.mark.deep
def test_blocks_are_large_enough_for_many_groups_unless_memory_is_short() -> None:
    rows, labels = np.random.default_rng(0).standard_normal((300_000, 1), np.float32), np.arange(300_000) % 9400
    plan = sp.PCA(1).fit_groups(rows, labels).plan_
    assert plan.n_blocks == 1
    assert sp.PCA(1).fit_groups(rows, labels % 2).plan_.n_blocks > 1
    assert sp.PCA(1, memory=plan.projected_bytes - 2**20).fit_groups(rows, labels).plan_.n_blocks > 1


def test_notebooks_show_groups_and_certificates_as_tables() -> None:
    rows = np.random.default_rng(0).standard_normal((60, 4))
    models = sp.PCA(1).fit_groups(rows, np.repeat(["<a>", "b"], 30))
    html = models._repr_html_()
    share = models["b"].explained_variance_ratio_.sum()
    assert f"<tr><th>b</th><td>30 samples, 1 component, {share:.1%} of the variance</td></tr>" in html
    assert "<th>&lt;a&gt;</th>" in html
    certificate = models["b"].error_
    shown = certificate._repr_html_()
    assert all(f"<th>{name}</th>" in shown for name in certificate)
    many = sp.PCA(1).fit_groups(rows, np.arange(60) // 2)._repr_html_()
    assert many.count("<tr>") == 31
    assert "<tr><th>…</th><td>2 more</td></tr>" in many


def _cycle(n: int) -> tuple[Any, Any, Any]:
    """Return rows with a seasonal cycle, trend and groups of different means and scales, their times and their groups."""
    rng, times = np.random.default_rng(7), pd.date_range("1990-01-01", periods=n, freq="MS")
    groups = np.arange(n) // 12 % 3
    rows = rng.standard_normal((n, D)) * np.linspace(1, 3, D) * (1 + groups)[:, None] + 1000 + 5 * groups[:, None]
    rows += 20 * np.sin(2 * np.pi * times.month.to_numpy() / 12)[:, None] + 0.05 * np.arange(n)[:, None]
    return xr.DataArray(rows, dims=("time", "x"), coords={"time": times}), times, groups


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "remove",
    [
        {"groups": "time.month", "trend": 1},
        {"trend": 2},
        {"covariates": np.random.default_rng(1).normal(size=(600, 2))},
    ],
)
def test_groups_without_what_is_removed_are_those_of_the_residuals_of_all_rows(remove: Any, weighted: bool) -> None:
    data, times, groups = _cycle(600)
    rows, weight = data.values, np.random.default_rng(3).random(600) + 0.1 if weighted else np.ones(600)
    indicators = times.month.to_numpy()[:, None] == np.arange(1, 13) if "groups" in remove else np.ones((600, 1))
    seconds = ((times - times[300]) / pd.Timedelta("9000D")).to_numpy()
    powers = [seconds**degree for degree in range(1, remove.get("trend", 0) + 1)]
    design = np.column_stack([indicators, *powers, *np.transpose(remove.get("covariates", np.empty((600, 0))))])
    roots = np.sqrt(weight)[:, None]
    fitted = design @ np.linalg.lstsq(design * roots, rows * roots)[0]
    left, within = rows - fitted, np.zeros((D, D))
    models = sp.PCA(3, remove=remove).fit_groups(
        sp.open(data, samples="time"), groups, sample_weight=weight if weighted else None
    )
    for name in range(3):
        chosen = groups == name
        part, of_part = left[chosen], weight[chosen]
        centred = part - np.average(part, axis=0, weights=of_part)
        scatter = (centred.T * of_part) @ centred
        within += scatter
        model = models[name]
        expected = np.linalg.eigvalsh(scatter)[::-1][:3] / (of_part.sum() - 1)
        np.testing.assert_allclose(model.explained_variance_, expected, rtol=1e-11)
        given = {"covariates": remove["covariates"][chosen]} if "covariates" in remove else None
        scores = np.asarray(model.transform(data[chosen], remove=given))
        np.testing.assert_allclose(scores, centred @ model.components_.T, rtol=0, atol=1e-9)
        back = np.asarray(model.inverse_transform(scores))
        np.testing.assert_allclose(back, rows[chosen] - centred + scores @ model.components_, rtol=0, atol=1e-9)
        with pytest.raises(NotAvailableError, match="remove"):
            model.partial_fit(rows)
    pooled = models["pooled"].explained_variance_
    np.testing.assert_allclose(pooled, np.linalg.eigvalsh(within)[::-1][:3] / (weight.sum() - 3), rtol=1e-11)
    assert (models.n_passes_, models.bytes_read_) == (2, 2 * rows.nbytes)
    assert models.plan_.passes == 2


def test_means_of_groups_that_are_removed_are_those_of_each(tmp_path: Path) -> None:
    data, times, _ = _cycle(240)
    seasons = sp.PCA(2, remove={"groups": "time.month"}).fit_groups(sp.open(data, samples="time"), "time.season")
    winter = times.month.isin([12, 1, 2])
    alone = sp.PCA(2, remove={"groups": "time.month"}).fit(data[winter])
    np.testing.assert_allclose(seasons["DJF"].explained_variance_, alone.explained_variance_, rtol=1e-11)
    assert seasons["DJF"].t2_limit() == pytest.approx(alone.t2_limit(), rel=1e-12)  # of as many degrees of freedom
    loaded = sp.load(seasons["DJF"].save(tmp_path / "m.zarr"))
    scores = loaded.transform(data[winter])
    np.testing.assert_allclose(np.abs(scores), np.abs(alone.transform(data[winter])), atol=1e-9)
    np.testing.assert_allclose(loaded.inverse_transform(scores), seasons["DJF"].inverse_transform(scores), atol=1e-9)
    where = sp.open(data, samples="time", where="time.month in [12, 1, 2]")
    chosen = sp.PCA(2, remove={"trend": 1}).fit_groups(where, "time.month")
    assert [chosen[month].n_samples_seen_ for month in (1, 2, 12)] == [20, 20, 20]


@pytest.mark.usefixtures("all_checkpoints")
def test_a_run_of_groups_removes_resumes_and_is_verified(tmp_path: Path) -> None:
    data, _, groups = _cycle(240)
    data.to_dataset(name="v").chunk({"time": 30}).to_zarr(tmp_path / "v.zarr", zarr_format=2, consolidated=False)
    np.save(tmp_path / "g.npy", groups)
    (tmp_path / "c.yaml").write_text(
        f"name: c\nsource: {{path: {tmp_path}/v.zarr, array: v, samples: time}}\n"
        f"model: {{n_components: 2, group_by: {tmp_path}/g.npy}}\n"
        "preprocess: {remove: {groups: time.month, trend: 1}}\n"
        f"output: {{directory: {tmp_path}/run, scores: false}}\n"
    )

    class _PowerCutError(Exception):
        pass

    def stop_late(step: Any) -> None:
        if step.phase == "pass 2":
            raise _PowerCutError

    with pytest.raises(_PowerCutError):
        sp.run(tmp_path / "c.yaml", progress=stop_late)
    run = sp.run(tmp_path / "c.yaml", resume=True)
    expected = sp.PCA(2, remove={"groups": "time.month", "trend": 1}).fit_groups(sp.open(data, samples="time"), groups)
    for name in (0, 1, 2, "pooled", "between"):
        np.testing.assert_allclose(
            run.model[name].explained_variance_, expected[name].explained_variance_, rtol=1e-9, atol=1e-9
        )
        np.testing.assert_allclose(run.model[name].mean_, expected[name].mean_, rtol=1e-12)
    assert run.manifest["passes"] == 2
    verified = subprocess.run(
        [sys.executable, "-m", "streampca", "verify", str(run.directory)], capture_output=True, text=True, check=False
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
