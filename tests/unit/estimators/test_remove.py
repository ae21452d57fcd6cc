"""The parameter `remove` against explicit residuals: numpy's least squares, then a PCA of what it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from facade import fit_source
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import examples

import streampca as sp
from streampca.errors import MergeError, NotAvailableError, ParameterError
from streampca.sources import open_source

pytestmark = pytest.mark.numerical

EXACT = ("covariance", "gram", "qr", "sketch", "adaptive")


@dataclass(frozen=True)
class Oracle:
    """Explicit residuals and their PCA."""

    rows: NDArray[np.float64]
    residuals: NDArray[np.float64]
    values: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def of(cls, rows: NDArray[Any], design: NDArray[np.float64], weights: Any = None, scale: bool = False) -> Oracle:
        w = np.ones(len(rows)) if weights is None else weights
        root, rows = np.sqrt(w)[:, None], rows.astype(np.float64)
        residuals = rows - design @ np.linalg.lstsq(root * design, root * rows, rcond=None)[0]
        covariance = (residuals * w[:, None]).T @ residuals / (w.sum() - 1)
        deviation = np.sqrt(covariance.diagonal()) if scale else np.ones(rows.shape[1])
        values = np.linalg.eigvalsh(covariance / np.outer(deviation, deviation))[::-1]
        return cls(rows, residuals, values, deviation)

    def check(self, pca: sp.PCA, scores: Any, back: Any, tolerance: float = 1e-10) -> None:
        k, size = pca.n_components_, np.abs(self.residuals).max()
        assert np.abs(pca.explained_variance_ - self.values[:k]).max() <= tolerance * self.values[0]
        assert abs(pca.total_variance_ / self.values.sum() - 1) <= tolerance
        axes, scaled = pca.components_, self.residuals / self.scale
        assert np.abs(scores - scaled @ axes.T).max() <= tolerance * np.abs(scaled).max() * len(self.scale)
        expected = self.rows - self.residuals + scaled @ axes.T @ axes * self.scale
        assert np.abs(back - expected).max() <= tolerance * max(size, np.abs(self.rows).max())


def make_case(n: int = 300, d: int = 24, cycle: float = 100.0) -> tuple[Any, dict[str, Any], NDArray[np.float64]]:
    """Return rows, the parameter, and the columns of the regression."""
    rng = np.random.default_rng(n)
    groups, covariates = np.arange(n) % 12, rng.standard_normal((n, 2))
    rows = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + cycle * rng.standard_normal((12, d))[groups]
    slopes = rng.standard_normal((4, d))
    places = np.linspace(-1, 1, n)
    rows += np.c_[places, places**2, covariates] @ (3 * slopes) + 50
    design = np.c_[np.eye(12)[groups], places, places**2, covariates]
    return rows, {"groups": groups, "trend": 2, "covariates": covariates}, design


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("solver", EXACT)
def test_fit_transform_and_inverse_are_those_of_explicit_residuals(solver: str, scale: bool, weighted: bool) -> None:
    rows, remove, design = make_case()
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.1, 2, len(rows)) * (rng.random(len(rows)) > 0.1) if weighted else None
    pca = sp.PCA(24, solver=solver, scale=scale, remove=remove)
    pca.fit(rows, sample_weight=weights)
    scores = pca.transform(rows)
    Oracle.of(rows, design, weights, scale).check(pca, scores, pca.inverse_transform(scores))
    assert np.abs(pca.mean_ - np.average(rows, axis=0, weights=weights)).max() <= 1e-11
    assert pca.n_samples_seen_ == (len(rows) if weights is None else np.count_nonzero(weights))
    assert pca.n_passes_ == (2 if solver == "gram" else 1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_intervals_of_one_pass_hold_the_eigenvalues_of_explicit_residuals(solver: str, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    _, remove, design = make_case(n=901)
    rows = rng.standard_normal((901, 40)) * 2.0 ** -np.arange(40) + design @ rng.standard_normal((16, 40))
    weights = rng.uniform(0.1, 5, len(rows)) if weighted else None
    blocks = da.from_array(rows, chunks=(64, -1))
    pca = sp.PCA(4, solver=solver, remove=remove, max_passes=1).fit(blocks, sample_weight=weights)
    expected, rounding = Oracle.of(rows, design, weights).values, 1e-13
    lower, upper = np.array(pca.error_["eigenvalue_intervals"]).T
    assert (lower <= expected[:4] + rounding * expected[0]).all()
    assert (expected[:4] <= upper + rounding * expected[0]).all()


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch", "adaptive"])
def test_a_removed_part_that_is_a_million_times_larger_costs_no_more_digits_than_the_rows_have(solver: str) -> None:
    rows, remove, design = make_case(d=8, cycle=1e6)
    pca = sp.PCA(8, solver=solver, remove=remove).fit(rows)
    assert np.abs(pca.explained_variance_ / Oracle.of(rows, design).values - 1).max() <= 1e-9


@pytest.mark.parametrize("solver", ["covariance", "gram", "sketch", "adaptive"])
def test_float32_rows_with_a_large_cycle_have_the_accuracy_of_float32(solver: str) -> None:
    rows, remove, design = make_case(n=3000, d=8)
    rows = rows.astype(np.float32)
    pca = sp.PCA(4, solver=solver, remove=remove).fit(rows)
    scores = pca.transform(rows)
    assert scores.dtype == np.float32
    Oracle.of(rows, design).check(pca, scores, pca.inverse_transform(scores), 1e-6)


@pytest.mark.parametrize("solver", EXACT)
def test_a_far_mean_costs_scores_and_distances_of_float32_rows_no_digits(solver: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    groups = np.arange(300) % 4
    rows = rng.standard_normal((300, 20)) * np.linspace(1, 3, 20) + 2 * rng.standard_normal((4, 20))[groups]
    rows = (rows + 2e5).astype("f4")
    own = rows - np.stack([rows[groups == g].mean(axis=0, dtype=np.float64) for g in range(4)])[groups]
    pca = sp.PCA(5, solver=solver, remove={"groups": groups}).fit(rows)
    expected = own @ pca.components_.T
    slack, size = 64 * np.finfo("f4").eps, np.abs(expected).max()
    lazy = da.from_array(rows, chunks=(100, 20))
    for scores in (pca.transform(rows), pca.transform(lazy, remove={"groups": groups})):
        assert scores.dtype == np.float32
        assert np.abs(np.asarray(scores) - expected).max() <= slack * size
    stored = zarr.open_group(pca.transform_to(rows, tmp_path / "scores", diagnostics=True))
    t2 = (expected**2 / pca.explained_variance_).sum(axis=1)
    q = np.square(own - expected @ pca.components_).sum(axis=1)
    for name, value, unit in (
        ("scores", expected, size),
        ("t2", t2, t2.max()),
        ("q", q, np.square(own).sum(axis=1).max()),
    ):
        assert np.abs(stored[name][:] - value).max() <= slack * unit
    back = expected @ pca.components_ + (rows - own)
    for found in (
        pca.inverse_transform(pca.transform(rows)),
        pca.inverse_transform(pca.transform(lazy, remove={"groups": groups}), remove={"groups": groups}),
    ):
        assert np.abs(np.asarray(found) - back).max() <= 0.6 * np.spacing(np.float32(2e5))  # rounded once


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16"])
def test_rows_of_small_types_are_not_rounded_to_them_after_subtraction(dtype: str) -> None:
    rng = np.random.default_rng(0)
    groups = np.arange(400) % 4
    rows = np.rint(60 + 20 * rng.standard_normal((4, 6))[groups] + 5 * rng.standard_normal((400, 6))).astype(dtype)
    pca = sp.PCA(6, solver="covariance", remove={"groups": groups}).fit(rows)
    scores = pca.transform(rows)
    tolerance = 1e-10 if dtype == "int16" else 1e-6
    Oracle.of(rows, np.eye(4)[groups]).check(pca, scores, pca.inverse_transform(scores), tolerance)


def test_several_leaves_and_blocks_smaller_than_the_number_of_regressors_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, remove, design = make_case()
    for solver in ("covariance", "sketch", "qr"):
        for n_rows in (1, 5, 40):
            source, parameters = open_source(rows), sp.PCA(24, solver=solver, remove=remove)._parameters()
            plan = sp.PCA(24, solver=solver, remove=remove).plan(rows)
            plan = plan.replace(rows_per_block=n_rows, n_blocks=-(-300 // n_rows), n_leaves=6)
            model = fit_source(source, parameters, plan).model
            expected = Oracle.of(rows, design).values
            assert np.abs(model.explained_variance - expected).max() <= 1e-10 * expected[0]


def test_features_that_nothing_is_left_of_count_as_constant() -> None:
    rows, remove, design = make_case()
    rows[:, 3] = design @ np.arange(16.0)
    rows[:, 4] = 7.1
    for solver in EXACT:
        pca = sp.PCA(20, solver=solver, scale=True, remove=remove).fit(rows)
        assert pca.constant_features_.tolist() == [3, 4]
        assert abs(pca.total_variance_ - 22) <= 1e-10


def test_covariates_that_are_combinations_of_others_are_counted_once() -> None:
    rows, remove, design = make_case()
    twice = np.c_[remove["covariates"], remove["covariates"] @ [1.0, -2.0], np.full(300, 3.0), remove["groups"] == 2]
    pca = sp.PCA(24, remove=remove | {"covariates": twice}).fit(rows)
    scores = pca.transform(rows)
    Oracle.of(rows, design).check(pca, scores, pca.inverse_transform(scores))
    given = {"groups": remove["groups"][:9], "trend": np.arange(9), "covariates": twice[:9]}
    assert np.abs(pca.transform(rows[:9], remove=given) - scores[:9]).max() <= 1e-9


@settings(max_examples=examples(60), deadline=None)
@given(
    n=st.integers(20, 120),
    d=st.integers(1, 40),
    n_groups=st.integers(0, 6),
    trend=st.integers(0, 4),
    q=st.integers(0, 3),
    weighted=st.booleans(),
    solver=st.sampled_from(["covariance", "gram", "qr"]),
    seed=st.integers(0, 2**16),
)
def test_any_subset_of_regressors_of_any_shape_is_removed(
    n: int, d: int, n_groups: int, trend: int, q: int, weighted: bool, solver: str, seed: int
) -> None:
    if not n_groups + trend + q:
        return
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-2, 3, d) + 100 * rng.standard_normal(d)
    weights = rng.uniform(0.1, 3, n) if weighted else None
    remove: dict[str, Any] = {}
    design = np.ones((n, 1))
    if n_groups:
        remove["groups"] = rng.permutation(np.arange(n) % n_groups)
        design = np.eye(n_groups)[remove["groups"]]
    if trend:
        remove["trend"] = trend
        design = np.c_[design, np.polynomial.legendre.legvander(np.linspace(-1, 1, n), trend)[:, 1:]]
    if q:
        remove["covariates"] = rng.standard_normal((n, q))
        design = np.c_[design, remove["covariates"]]
    pca = sp.PCA(min(d, 3), solver=solver, remove=remove).fit(rows, sample_weight=weights)
    scores = pca.transform(rows)
    Oracle.of(rows, design, weights).check(pca, scores, pca.inverse_transform(scores))


# Rows with labels


def with_times(rows: Any, coordinate: Any = None, name: str = "time") -> Any:
    """Return a source of `rows` whose samples lie along a dimension."""
    times = (np.datetime64("1999-11-03T06") + np.arange(len(rows)) * np.timedelta64(15, "h")).astype("M8[ns]")
    along = times if coordinate is None else coordinate
    return sp.open(xr.DataArray(rows, dims=(name, "x"), coords={name: along}), samples=name)


def unread(n: int, d: int) -> Any:
    """Return a lazy array that must not be computed."""
    return da.zeros((n, d)).map_blocks(lambda _: pytest.fail("data was read"), dtype="f8", meta=np.empty((0, 0)))


PARTS = {
    "month": lambda t: t.astype("M8[M]").astype(int) % 12 + 1,
    "year": lambda t: t.astype("M8[Y]").astype(int),
    "hour": lambda t: t.astype("M8[h]").astype(int) % 24,
    "dayofyear": lambda t: (t.astype("M8[D]") - t.astype("M8[Y]")).astype(int),
    "season": lambda t: (t.astype("M8[M]").astype(int) + 1) % 12 // 3,
}


@pytest.mark.parametrize("part", PARTS)
def test_groups_are_parts_of_the_times_of_a_sample_coordinate(part: str) -> None:
    rows = np.random.default_rng(0).standard_normal((1500, 5))
    source = with_times(rows)
    labels = PARTS[part](source.labels.sample_values("time"))
    named = sp.PCA(2, solver="covariance", remove={"groups": f"time.{part}"}).fit(source)
    given = sp.PCA(2, solver="covariance", remove={"groups": labels}).fit(rows)
    assert np.abs(named.explained_variance_ / given.explained_variance_ - 1).max() <= 1e-12


def test_the_table_of_other_rows_tells_groups_and_positions_by_its_labels() -> None:
    rows = np.random.default_rng(0).standard_normal((3000, 5)) + np.arange(3000)[:, None] / 100
    source = with_times(rows)
    pca = sp.PCA(2, solver="covariance", remove={"groups": "time.month", "trend": 1}).fit(source)
    scores = np.asarray(pca.transform(source))
    times = source.labels.sample_values("time")
    part = with_times(rows[2000:2100], times[2000:2100])
    assert np.abs(np.asarray(pca.transform(part)) - scores[2000:2100]).max() <= 1e-12
    given = {"groups": times[:50].astype("M8[M]").astype(int) % 12 + 1, "trend": times[:50]}
    assert np.abs(pca.transform(rows[:50], remove=given) - scores[:50]).max() <= 1e-12
    other = with_times(rows[:100], np.arange(100.0), "depth")
    with pytest.raises(
        ParameterError, match=r"no sample coordinate or column 'time'; sample coordinates and columns: depth"
    ):
        pca.transform(other)


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        ({"groups": "time.week"}, "expected time. followed by one of month, season, year, dayofyear, hour"),
        ({"groups": "lat.month"}, "has no sample coordinate or column 'lat'; sample coordinates and columns: time"),
        ({"groups": "month"}, "has no sample coordinate or column 'month'; sample coordinates and columns: time"),
        ({"groups": np.arange(7)}, "groups has 7 values: expected one for each of the 40 rows"),
        ({"groups": np.full(40, np.nan)}, "groups hold missing labels"),
        ({"groups": ["a", np.nan] * 20}, "groups hold missing labels"),
        ({"groups": np.arange(40)}, "nothing would be left"),
        ({"covariates": np.zeros((39, 1))}, "covariates has 39 values"),
        ({"covariates": np.full(40, np.inf)}, "hold NaN or infinity in row 0"),
        ({"covariates": ["a"] * 40}, "not an array of numbers"),
        ({"trend": 0}, "an integer from 1 to 20"),
        ({"trend": True}, "an integer from 1 to 20"),
        ({"cycle": 1}, "the key 'cycle'"),
        ({}, "names nothing"),
        ("time.month", "expected a mapping"),
    ],
)
def test_what_has_no_meaning_is_refused_before_anything_is_read(remove: Any, message: str) -> None:
    source = with_times(unread(40, 3))
    with pytest.raises(ParameterError, match=message):
        sp.PCA(2, remove=remove).fit(source)


@pytest.mark.parametrize(
    "parameters",
    [{"missing": "mean"}, {"missing": "drop_rows"}, {"missing": "pairwise"}, {"forgetting": 0.9}, {"center": False}],
)
def test_what_does_not_go_together_is_refused_before_anything_is_read(parameters: dict[str, Any]) -> None:
    source = sp.open(unread(40, 3))
    with pytest.raises((ParameterError, NotAvailableError), match="remove "):
        sp.PCA(2, remove={"trend": 1}, **parameters).fit(source)


def test_sparse_rows_more_rows_and_merging_are_refused() -> None:
    from scipy.sparse import random_array

    with pytest.raises(NotAvailableError, match="sparse rows"):
        sp.PCA(2, remove={"trend": 1}).fit(random_array((40, 5), density=0.3, format="csr"))
    rows, remove, _ = make_case()
    with pytest.raises(NotAvailableError, match="keeps no state"):
        sp.PCA(2, remove=remove).partial_fit(rows)
    pca = sp.PCA(2, remove=remove).fit(rows)
    with pytest.raises(MergeError):
        sp.merge([pca, pca])
    with pytest.raises((MergeError, NotAvailableError)):
        pca.partial_fit(rows)


def test_rows_that_are_not_those_of_the_fit_have_to_be_described() -> None:
    rows, remove, _ = make_case()
    pca = sp.PCA(2, remove=remove).fit(rows)
    scores = pca.transform(rows)
    for other in (rows[:200], rows + 1):
        with pytest.raises(
            ParameterError, match=r"groups and trend and covariates of the .* rows of array are not known"
        ):
            pca.transform(other)
    with pytest.raises(ParameterError, match="not known"):
        pca.inverse_transform(scores[:5])
    given = {"groups": remove["groups"][:5], "trend": np.arange(5), "covariates": remove["covariates"][:5]}
    assert np.array_equal(pca.transform(rows[:5], remove=given), scores[:5])
    with pytest.raises(ParameterError, match="the fit saw no row of the group 12"):
        pca.transform(rows[:5], remove=given | {"groups": np.arange(8, 13)})
    with pytest.raises(ParameterError, match="covariates of the 5 rows"):
        pca.transform(rows[:5], remove={"groups": given["groups"], "trend": given["trend"]})
    with pytest.raises(ParameterError, match="trend has 4 values"):
        pca.transform(rows[:5], remove=given | {"trend": np.arange(4)})
    with pytest.raises(ParameterError, match="fitted without it"):
        sp.PCA(2).fit(rows).transform(rows, remove=given)
    with pytest.raises(ParameterError, match="all rows of the group 3 have weight 0"):
        sp.PCA(2, remove=remove).fit(rows, sample_weight=(remove["groups"] != 3).astype(float))


def test_saved_models_subtract_and_add_the_same(tmp_path: Any) -> None:
    import dask.array as da
    import zarr

    rows, remove, _ = make_case()
    times = np.datetime64("2001-01-01") + np.arange(300)
    for name, groups in (
        ("whole", remove["groups"]),
        ("text", np.array([*"abc"])[np.arange(300) % 3]),
        ("times", times.astype("M8[M]")),
    ):
        pca = sp.PCA(3, remove=remove | {"groups": groups}).fit(rows)
        scores = pca.transform(rows)
        pca.save(tmp_path / name)
        loaded = sp.load(tmp_path / name)
        assert np.array_equal(loaded.transform(rows), scores)
        assert np.array_equal(loaded.inverse_transform(scores), pca.inverse_transform(scores))
        assert set(loaded.remove) == {"groups", "trend", "covariates"}
        again = loaded.fit(rows)
        assert np.abs(again.explained_variance_ / pca.explained_variance_ - 1).max() <= 1e-12
    lazy = da.from_array(rows, chunks=(70, 10))
    given = {"groups": times.astype("M8[M]"), "trend": np.arange(300), "covariates": remove["covariates"]}
    assert np.array_equal(pca.transform(lazy, remove=given).compute(), scores)
    back = pca.inverse_transform(da.from_array(scores, chunks=(90, -1)))
    assert np.abs(back.compute() - pca.inverse_transform(scores)).max() <= 1e-12
    pca.transform_to(rows, tmp_path / "scores")
    assert np.array_equal(zarr.open_group(tmp_path / "scores", mode="r")["scores"][:], scores)


class _PowerCutError(Exception):
    pass


@pytest.mark.deep(keep=1)
@pytest.mark.slow
@pytest.mark.parametrize("solver", ["covariance", "sketch"])
def test_a_fit_that_was_stopped_goes_on_to_the_same_bits(
    solver: str, tmp_path: Any, all_checkpoints: None, blocks_of: Any
) -> None:
    blocks_of(100)
    n = 60_000
    groups = np.arange(n) % 12
    rows = np.random.default_rng(0).standard_normal((n, 16)) + 10.0 * groups[:, None]
    made: dict[str, Any] = {"n_components": 3, "solver": solver, "remove": {"groups": groups, "trend": 1}}
    expected, seen = sp.PCA(**made).fit(rows), []

    def stop_late(step: Any) -> None:
        if step.phase == "fit" and step.rows > 40_000:
            raise _PowerCutError

    with pytest.raises(_PowerCutError):
        sp.PCA(**made, checkpoint=tmp_path / "kept", progress=stop_late).fit(rows)
    again = sp.PCA(**made, checkpoint=tmp_path / "kept", progress=lambda step: seen.append(step.rows)).fit(rows)
    assert np.array_equal(again.components_, expected.components_)
    assert np.array_equal(again.explained_variance_, expected.explained_variance_)
    assert np.array_equal(again.transform(rows), expected.transform(rows))


def test_rows_of_a_report_are_residuals_about_the_mean() -> None:
    rows, remove, design = make_case()
    for solver in ("covariance", "gram", "sketch"):
        pca = sp.PCA(3, solver=solver, remove=remove)
        samples = fit_source(open_source(rows), pca._parameters(), pca.plan(rows), keep_rows=40).samples
        assert samples is not None
        expected = Oracle.of(rows, design).residuals[samples.index] + rows.mean(axis=0)
        assert np.abs(samples.values - expected).max() <= 1e-10


@pytest.mark.parametrize("lazy", [False, True])
def test_data_arrays_carry_what_is_removed_in_their_coordinates(lazy: bool) -> None:
    xr = pytest.importorskip("xarray")
    times = np.datetime64("2000-01-01", "ns") + np.arange(400) * np.timedelta64(2, "D")
    values = np.random.default_rng(0).standard_normal((400, 4, 3))
    values += 9.0 * (times.astype("M8[M]").astype(int) % 12)[:, None, None] + np.linspace(0, 3, 400)[:, None, None]
    field = xr.DataArray(values, dims=("time", "y", "x"), coords={"time": times}, name="field")
    pca = sp.PCA(12, solver="covariance", remove={"groups": "time.month", "trend": 1}).fit(
        sp.open(field, samples="time")
    )
    design = np.c_[np.eye(12)[times.astype("M8[M]").astype(int) % 12], times.astype(float) / 1e18]
    flat = values.reshape(400, 12)
    residuals = flat - design @ np.linalg.lstsq(design, flat, rcond=None)[0]
    part = field.isel(time=slice(100, 190))
    scores = pca.transform(part.chunk({"time": 50}) if lazy else part)
    assert np.abs(np.asarray(scores) - (residuals @ pca.components_.T)[100:190]).max() <= 1e-10
    back = pca.inverse_transform(scores)
    assert np.abs(np.asarray(back) - values[100:190]).max() <= 1e-10


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("solver", ["covariance", "qr"])
def test_hundreds_of_groups_over_several_blocks_leave_explicit_residuals(
    blocks_of: Any, solver: str, weighted: bool
) -> None:
    blocks_of(700)
    rng = np.random.default_rng(7)
    groups = rng.integers(0, 366, 3000)
    groups[:366] = np.arange(366)
    weights = rng.integers(0, 3, 3000).astype(float) if weighted else None
    if weights is not None:
        weights[:366] = 1.0
    rows = (
        rng.standard_normal((3000, 12)) @ rng.standard_normal((12, 12)) + 1e3 * rng.standard_normal((366, 12))[groups]
    )
    pca = sp.PCA(4, solver=solver, remove={"groups": groups}).fit(rows, sample_weight=weights)  # type: ignore[arg-type]
    oracle = Oracle.of(rows, (groups[:, None] == np.arange(366)).astype(float), weights)
    scores = pca.transform(rows)
    oracle.check(pca, scores, pca.inverse_transform(scores))


def test_features_that_are_constant_within_large_groups_count_as_constant() -> None:
    rng = np.random.default_rng(8)
    groups = np.maximum(rng.integers(-400, 40, 20000), 0)
    rows = rng.standard_normal((20000, 6))
    rows[:, 2] = np.array([0.1, 1e5 / 3, *np.linspace(-np.pi, 7e4, 38)])[groups]
    rows[:, 4] = np.array([1e8 / 7, 1e8 / 7, *np.full(38, 0.3)])[groups]
    pca = sp.PCA(2, solver="covariance", remove={"groups": groups}).fit(rows)
    assert pca.constant_features_.tolist() == [2, 4]


def test_a_column_of_a_data_frame_is_named_after_the_features_are_chosen() -> None:
    frame = pd.DataFrame(np.random.default_rng(5).standard_normal((40, 3)), columns=list("abc"))
    frame["g"] = np.arange(40) % 4
    with pytest.raises(
        ParameterError, match=r"name a column of a data frame after sp\.open\(frame, columns=FEATURES\)"
    ):
        sp.PCA(2, remove={"groups": "g"}).fit(frame)
    fitted = sp.PCA(2, remove={"groups": "g"}).fit(sp.open(frame, columns=["a", "b", "c"]))
    rows = frame[["a", "b", "c"]]
    rows = (rows - rows.groupby(frame["g"]).transform("mean")).to_numpy()
    np.testing.assert_allclose(fitted.singular_values_, np.linalg.svd(rows, compute_uv=False)[:2], rtol=1e-12)


def float32_rows_of_many_scales(n: int = 120, d: int = 10) -> tuple[NDArray[np.float32], NDArray[np.int64], Oracle]:
    """Return rows along rotated axes with deviations from 1 to 1e-9, groups, and the oracle."""
    rng = np.random.default_rng(3)
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
    labels = np.arange(n) % 3
    rows = (
        (rng.standard_normal((n, d)) * np.geomspace(1, 1e-9, d)) @ axes + rng.standard_normal((3, d))[labels]
    ).astype("f4")
    return rows, labels, Oracle.of(rows, (labels[:, None] == np.arange(3)).astype(float))


def test_qr_of_residuals_of_float32_rows_has_the_precision_that_it_states() -> None:
    """Residuals were rounded to float32 before they were factored: errors of 1e-8 beside a stated precision of 1e-29."""
    rows, labels, oracle = float32_rows_of_many_scales()
    pca = sp.PCA(solver="qr", remove={"groups": labels}).fit(rows)
    exact = np.linalg.svd(oracle.residuals, compute_uv=False)
    computed = np.sqrt(pca.explained_variance_ * (len(rows) - 1))
    np.testing.assert_allclose(computed, exact, rtol=0, atol=1e-14 * exact[0])


@pytest.mark.parametrize("passes", [1, 2])
def test_bounds_of_sketches_hold_for_float32_rows_of_many_scales(passes: int) -> None:
    """Products of few features are float64, but residuals were rounded before: proven bounds were wrong by 1e-8."""
    rows, labels, oracle = float32_rows_of_many_scales()
    pca = sp.PCA(
        5, solver="sketch", remove={"groups": labels}, sketch_size=10, pilot=0, max_passes=passes, tolerance=0
    ).fit(rows)
    lower, upper = np.array(pca.error_["eigenvalue_intervals"]).T
    assert (lower <= oracle.values[:5]).all()
    assert (oracle.values[:5] <= upper).all()


@pytest.mark.parametrize("solver", ["sketch", "adaptive", "covariance", "gram", "qr"])
def test_a_large_mean_takes_no_digits_from_residuals(solver: str) -> None:
    """Later readings subtract the mean before what differs between rows: their sum has only the digits of 1e8."""
    rng, n = np.random.default_rng(0), 300
    groups, trend = np.arange(n) % 5, np.linspace(-1, 1, n)
    rows = rng.standard_normal((n, 8)) * 2.0 ** -np.arange(8) + rng.standard_normal((5, 8))[groups] + 1e8
    rows += np.outer(trend, rng.standard_normal(8))
    approximate = {"max_passes": 6, "tolerance": 0, "sketch_size": 8} if solver in ("sketch", "adaptive") else {}
    remove = {"groups": groups, "trend": 1}
    pca = sp.PCA(3, solver=solver, remove=remove, random_state=0, **approximate).fit(rows)
    design = np.linalg.qr(np.column_stack([np.eye(5)[groups], trend]))[0]
    left = rows - 1e8
    for _ in range(2):
        left -= design @ (design.T @ left)
    expected = np.linalg.svd(left, compute_uv=False)[:3] ** 2 / (n - 1)
    stated = max(pca.error_["trusted_above"], 1e-14)
    assert np.abs(pca.explained_variance_ - expected).max() <= stated * expected[0]


def test_later_readings_subtract_a_mean_that_float64_does_not_hold() -> None:
    """Six residuals of rank four at means of 1e11 deviations: the rest of the mean was a fifth eigenvalue, 1e-11 of the first."""
    rng = np.random.default_rng(1)
    column = rng.standard_normal(6)
    offsets = (
        np.rint(rng.standard_normal((6, 40)) * 1000) / 1024
    )  # whole multiples of what float64 resolves about the mean
    rows = offsets + np.ldexp(1.0, 36)
    pca = sp.PCA(
        5, solver="sketch", remove={"covariates": column[:, None]}, scale=True, pilot=0, max_passes=4, tolerance=0
    )
    pca.fit(rows)
    design = np.linalg.qr(np.column_stack([np.ones(6), column]))[0]
    left = rows - np.ldexp(1.0, 36)
    for _ in range(2):
        left -= design @ (design.T @ left)
    expected = np.linalg.svd(left / left.std(axis=0, ddof=1), compute_uv=False)[:5] ** 2 / 5
    lower = np.array(pca.error_["eigenvalue_intervals"])[:, 0]
    assert (lower <= expected + 1e-13 * expected[0]).all()
    assert np.abs(pca.explained_variance_ - expected).max() <= 1e-13 * expected[0]
