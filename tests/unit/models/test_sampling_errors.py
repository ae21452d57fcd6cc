"""Sampling errors: against refits without each group, against formulas in numpy, and the ways in which they are computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import blocks_of, fit
from numpy.typing import NDArray
from stores import Command, config_text, resealed, write_store

import streampca as sp
from streampca.errors import DataError, ModelError, NotAvailableError, ParameterError

pytestmark = pytest.mark.numerical

Rows = NDArray[np.float64]
N_GROUPS = 20


@pytest.fixture(scope="module")
def rows() -> Rows:
    rng = np.random.default_rng(3)
    turn = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    return rng.standard_normal((2007, 6)) * np.sqrt([32.0, 12.0, 4.0, 1.0, 0.3, 0.1]) @ turn + 5.0


def without_each_group(n: int) -> list[NDArray[np.bool_]]:
    edges = np.arange(N_GROUPS + 1) * n // N_GROUPS
    return [(np.arange(n) < edges[g]) | (np.arange(n) >= edges[g + 1]) for g in range(N_GROUPS)]


def jackknife_variance(without: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variance of a statistic by those without each of m groups of one size: (m - 1) / m times a sum of squares."""
    squares: NDArray[np.float64] = np.square(without - without.mean(axis=0)).sum(axis=0)
    return squares * (N_GROUPS - 1) / N_GROUPS


@pytest.mark.parametrize("changes", [{}, {"scale": True}, {"center": False}, {"solver": "qr"}, {"whiten": True}])
def test_errors_are_those_of_a_jackknife_that_fits_again_without_each_group(rows: Rows, changes: Any) -> None:
    pca = sp.PCA(6, sampling_errors=N_GROUPS, **changes).fit(rows)
    fits = [sp.PCA(6, **changes).fit(rows[kept]) for kept in without_each_group(len(rows))]
    errors = pca.sampling_error_
    for name, found in (("explained_variance_", errors.eigenvalues), ("explained_variance_ratio_", errors.shares)):
        without = np.array([getattr(each, name) for each in fits])
        assert np.allclose(found, np.sqrt(jackknife_variance(without)), rtol=0.08), name
    turned = np.array(
        [each.components_ * np.sign(np.sum(each.components_ * pca.components_, 1))[:, None] for each in fits]
    )
    variance = jackknife_variance(turned).sum(axis=1)
    assert np.allclose(errors.angles, np.sqrt(variance), rtol=0.1)


@pytest.mark.parametrize("scale", ["poisson", "patterson"])
def test_errors_where_means_tell_the_scales_are_those_of_rows_divided_before(scale: Any) -> None:
    rng = np.random.default_rng(8)
    share = rng.uniform(0.1, 0.9, 8) * np.exp(0.3 * np.outer(rng.standard_normal(3000), rng.standard_normal(8))).clip(
        0.5, 1.1
    )
    counts = rng.poisson(30 * share) if scale == "poisson" else rng.binomial(2, share)
    mean = counts.mean(axis=0)
    divided = counts / np.sqrt(mean if scale == "poisson" else mean * (1 - mean / 2))
    found = sp.PCA(4, scale=scale, sampling_errors=N_GROUPS).fit(counts.astype("f8")).sampling_error_
    expected = sp.PCA(4, sampling_errors=N_GROUPS).fit(divided).sampling_error_
    for name in ("eigenvalues", "shares", "angles"):
        assert np.allclose(getattr(found, name), getattr(expected, name), rtol=1e-6), name


def test_rows_of_weight_zero_and_their_groups_do_not_count(rows: Rows) -> None:
    rows = rows[:2000]
    weights = np.full(len(rows), 2.0)
    weights[:100] = 0.0
    rows = rows.copy()
    rows[:100:7] = np.nan
    weighted = sp.PCA(3, sampling_errors=20, ddof=0).fit(rows, sample_weight=weights).sampling_error_
    without = sp.PCA(3, sampling_errors=19, ddof=0).fit(rows[100:]).sampling_error_
    assert weighted.n_blocks == 19
    for name in ("eigenvalues", "shares", "north", "angles"):
        assert np.allclose(getattr(weighted, name), getattr(without, name), rtol=1e-8), name


def test_weights_in_one_group_alone_have_no_jackknife(rows: Rows) -> None:
    with pytest.raises(DataError, match="expected at least two"):
        sp.PCA(3, sampling_errors=20).fit(rows, sample_weight=np.arange(len(rows)) < 50)


def test_components_outside_of_the_model_enter_the_angles(rows: Rows) -> None:
    all_of_them = sp.PCA(6, sampling_errors=200).fit(rows).sampling_error_.angles[:2]
    few = sp.PCA(2, sampling_errors=200).fit(rows).sampling_error_.angles
    assert np.allclose(few, all_of_them, rtol=0.25)


@pytest.mark.parametrize("spectrum", ["two values", "geometric"])
def test_power_sums_of_the_eigenvalues_left_out_stand_for_them_in_the_angles(spectrum: str) -> None:
    """The solver gram knows all eigenvalues; covariance knows power sums of those that it leaves out, which decide two values."""
    rng, n, d = np.random.default_rng(5), 300, 13
    outside = 2.8 * (np.repeat([1.0, 0.0], [3, 7]) if spectrum == "two values" else 0.6 ** np.arange(10))
    left = rng.standard_normal((n, d))
    left = np.linalg.qr(left - left.mean(axis=0))[0]
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    rows = left * np.sqrt((n - 1) * np.r_[32.0, 12.0, 4.0, outside]) @ turn
    known, by_sums = (
        sp.PCA(3, solver=solver, sampling_errors=N_GROUPS).fit(rows).sampling_error_.angles
        for solver in ("gram", "covariance")
    )
    assert (by_sums <= known * (1 + 1e-9)).all()
    assert np.allclose(by_sums, known, rtol=1e-9 if spectrum == "two values" else 0.2)


def test_gram_has_the_errors_of_covariance() -> None:
    rows = np.random.default_rng(0).standard_normal((60, 700)) * np.geomspace(9, 0.1, 700)
    gram = sp.PCA(3, solver="gram", sampling_errors=10).fit(rows)
    covariance = sp.PCA(3, solver="covariance", sampling_errors=10).fit(rows)
    one, other = gram.sampling_error_, covariance.sampling_error_
    assert (one.method, other.method) == ("reading", "reading")
    assert (gram.n_passes_, covariance.n_passes_) == (3, 2)
    assert covariance.plan_.passes == 2
    assert "one more reading" in covariance.plan_.notes[-1]
    for name in ("eigenvalues", "shares", "north", "effective_n_samples"):
        assert np.allclose(getattr(one, name), getattr(other, name), rtol=1e-8), name
    assert (one.angles >= other.angles * (1 - 1e-8)).all()  # gram knows the eigenvalues that are left out


def test_gram_with_scale_reads_once_more_for_the_variances_of_features() -> None:
    rows = np.random.default_rng(0).standard_normal((60, 700)) * np.geomspace(9, 0.1, 700)
    gram = sp.PCA(3, solver="gram", scale=True, sampling_errors=10).fit(rows)
    covariance = sp.PCA(3, solver="covariance", scale=True, sampling_errors=10).fit(rows)
    assert gram.n_passes_ == 3
    assert np.allclose(gram.sampling_error_.eigenvalues, covariance.sampling_error_.eigenvalues, rtol=1e-8)


@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_approximate_solvers_have_the_errors_of_the_exact_one(rows: Rows, solver: Any) -> None:
    exact = sp.PCA(2, sampling_errors=N_GROUPS).fit(rows).sampling_error_
    pca = sp.PCA(2, solver=solver, sampling_errors=N_GROUPS).fit(rows)
    assert np.allclose(pca.sampling_error_.eigenvalues, exact.eigenvalues, rtol=1e-3)
    assert pca.n_passes_ == pca.error_["n_passes"] + 1


@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_the_reading_for_sampling_errors_is_no_pass_of_the_certificate(rows: Rows, solver: Any) -> None:
    pca = sp.PCA(3, solver=solver, scale=True, max_passes=1, sampling_errors=10).fit(rows)
    assert (pca.error_["n_passes"], pca.n_passes_) == (1, 2)


def test_kernel_pca_with_a_linear_kernel_has_the_relative_errors_of_pca(rows: Rows) -> None:
    rows = rows[:400]
    linear = sp.PCA(3, solver="qr", sampling_errors=N_GROUPS, ddof=0).fit(rows).sampling_error_
    for method, passes in (("exact", 2), ("nystrom", 3), ("empirical_map", 2)):
        kernel: Any = sp.KernelPCA(3, kernel="linear", method=method, n_landmarks=50, sampling_errors=N_GROUPS).fit(
            rows
        )
        errors = kernel.sampling_error_
        assert kernel.n_passes_ == passes
        assert np.allclose(errors.eigenvalues, len(rows) * linear.eigenvalues, rtol=1e-6), method
        assert np.allclose(errors.north, len(rows) * linear.north, rtol=1e-6), method


def test_effective_number_of_samples_follows_the_lag_one_autocorrelation() -> None:
    rng, n, phi = np.random.default_rng(0), 4000, 0.8
    rows = rng.standard_normal((n, 3))
    for i in range(1, n):
        rows[i, 0] = phi * rows[i - 1, 0] + np.sqrt(1 - phi**2) * rows[i, 0]
    rows *= [3.0, 1.0, 0.1]
    pca = sp.PCA(2, solver="qr", sampling_errors=20).fit(rows)
    scores = pca.transform(rows)
    r = (scores[:-1] * scores[1:]).sum(axis=0) / np.square(scores).sum(axis=0)
    found = pca.sampling_error_.effective_n_samples
    assert np.allclose(found, n * (1 - r**2) / (1 + r**2), rtol=1e-9)
    assert 0.15 * n < found[0] < 0.3 * n
    assert found[1] > 0.99 * n


@pytest.mark.parametrize("solver", ["covariance", "gram"])
@pytest.mark.parametrize("exponent", [-490, 490])
def test_errors_do_not_depend_on_the_units_of_the_rows(exponent: int, solver: Any, rows: Rows) -> None:
    table, unit = rows[:200], 2.0**exponent
    one, other = (
        sp.PCA(2, solver=solver, sampling_errors=5).fit(each).sampling_error_ for each in (table, table * unit)
    )
    for name in ("estimates", "eigenvalues", "north"):
        np.testing.assert_allclose(getattr(other, name) / unit / unit, getattr(one, name), rtol=1e-9)
    for name in ("shares", "angles", "effective_n_samples"):
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-9)


@pytest.mark.parametrize(
    ("solver", "size", "centre"),
    [
        ("covariance", 1e20, 0.0),
        ("covariance", 1e-20, 0.0),
        ("covariance", 1.0, 1e4),
        ("sketch", 1e20, 0.0),
        ("sketch", 1e18, 0.0),
        ("sketch", 1e-20, 0.0),
        ("sketch", 1.0, 1e4),
    ],
)
def test_errors_of_float32_rows_are_those_of_the_same_numbers_in_float64(
    size: float, centre: float, solver: Any, rows: Rows
) -> None:
    table = (rows * size + centre * size).astype(np.float32)
    pca = sp.PCA(2, solver=solver, scale=True, sampling_errors=3)
    short, wide = (pca.fit(each).sampling_error_ for each in (table, table.astype(np.float64)))
    for name in ("eigenvalues", "shares", "north", "angles", "effective_n_samples"):
        np.testing.assert_allclose(getattr(short, name), getattr(wide, name), rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("solver", ["covariance", "qr"])
def test_blocks_change_nothing_but_rounding(rows: Rows, solver: Any) -> None:
    found = []
    for size in (len(rows), 1111, 97):
        with blocks_of(size):
            found.append(sp.PCA(3, solver=solver, scale=True, sampling_errors=7).fit(rows).sampling_error_)
    for other in found[1:]:
        for name in ("eigenvalues", "shares", "north", "angles", "effective_n_samples"):
            np.testing.assert_allclose(getattr(other, name), getattr(found[0], name), rtol=1e-9, err_msg=name)


def test_degenerate_groups_are_runs_of_overlapping_error_bars_and_intervals_hold_the_estimates() -> None:
    left = np.random.default_rng(0).standard_normal((600, 5))
    left = np.linalg.qr(left - left.mean(axis=0))[0] * np.sqrt(599)
    errors = sp.PCA(5, sampling_errors=20).fit(left * np.sqrt([10.0, 5.0, 4.6, 4.3, 1.0])).sampling_error_
    assert errors.degenerate_groups == ((1, 3),)
    low, high = errors.interval(0.95).T
    np.testing.assert_allclose(np.sqrt(low * high), errors.estimates)
    t = 2.093024  # 97.5 % of Student's distribution with 19 degrees of freedom
    np.testing.assert_allclose(np.log(high / low) / 2, t * errors.eigenvalues / errors.estimates, rtol=1e-6)
    with pytest.raises(ParameterError, match="between 0 and 1"):
        errors.interval(95)


def test_saved_models_have_their_sampling_errors_and_damaged_ones_are_refused(rows: Rows, tmp_path: Path) -> None:
    pca = sp.PCA(3, sampling_errors=N_GROUPS).fit(rows)
    pca.save(tmp_path / "model")
    loaded = sp.load(tmp_path / "model")
    assert loaded.sampling_error_.to_dict() == pca.sampling_error_.to_dict()
    assert loaded.get_params()["sampling_errors"] == N_GROUPS
    for angles in ("none", [0.1, 0.2]):
        resealed(tmp_path / "model", lambda stored, angles=angles: stored["sampling_errors"].update(angles=angles))
        with pytest.raises(ModelError, match="sampling errors are damaged"):
            sp.load(tmp_path / "model")


def test_models_without_sampling_errors_say_how_to_have_them(rows: Rows) -> None:
    pca = sp.PCA(3).fit(rows)
    with pytest.raises(NotAvailableError, match="sampling_errors=20"):
        _ = pca.sampling_error_
    continued = sp.PCA(3, sampling_errors=N_GROUPS).partial_fit(rows)
    with pytest.raises(NotAvailableError, match="partial_fit"):
        _ = continued.sampling_error_


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"sampling_errors": 1}, ParameterError, "expected 0 for none, or from 2 to 1003 groups"),
        ({"sampling_errors": 1500}, ParameterError, "from 2 to 1003 groups"),
        ({"sampling_errors": -1}, ParameterError, "at least 0"),
        ({"sampling_errors": 20, "missing": "mean"}, NotAvailableError, "missing='mean'"),
        ({"sampling_errors": 20, "forgetting": 0.9}, NotAvailableError, "forgetting=0.9"),
    ],
)
def test_numbers_of_groups_and_fits_without_sampling_errors_are_refused(
    rows: Rows, changes: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        sp.PCA(3, **changes).fit(rows)


def configured(directory: Path, rows: Rows, *lines: str) -> Path:
    if not (directory / "x.zarr").exists():
        write_store(directory / "x.zarr", rows, chunks=(200, rows.shape[1]))
    text = config_text(directory / "x.zarr", directory / "run", "statistics: {sampling_errors: 20}", *lines)
    (directory / "c.yaml").write_text(text.replace("report: false", "report: false, overwrite: true"))
    return sp.run(directory / "c.yaml").directory


@pytest.mark.deep(keep=3)
@pytest.mark.parametrize(
    "model",
    [
        "model: {n_components: 3}",
        "model: {n_components: 3, solver: sketch}",
        "model: {n_components: 3, solver: gram, whiten: true}",
        "model: {n_components: 3, kind: kernel_pca, kernel: {name: rbf, gamma: 0.01}}",
        "model: {n_components: 3, kind: kernel_pca, kernel: {name: rbf, gamma: 0.01}, method: nystrom, n_landmarks: 30}",
        "preprocess: {scale: true}",
    ],
)
def test_runs_record_sampling_errors_and_verify_compares_their_digest(
    rows: Rows, tmp_path: Path, model: str, capsys: Any
) -> None:
    run = configured(tmp_path, rows[:600], model)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["result"]["sampling_errors"] == sp.load(run).sampling_error_.to_dict()
    checks = verified(capsys, run)
    assert [name for name, holds in checks.items() if holds is False] == []
    assert checks["sampling errors"] is None
    assert checks["manifest"]


def verified(capsys: Any, run: Path) -> dict[str, Any]:
    """Return what the command `verify` says of each figure by its name: whether it holds, None if nothing can be said."""
    return {
        check["name"]: check["holds"] for check in json.loads(Command(capsys)("verify", run, "--json").out)["checks"]
    }


def test_verify_names_figures_that_were_changed_in_the_manifest_or_in_the_model(
    rows: Rows, tmp_path: Path, capsys: Any
) -> None:
    run = configured(tmp_path, rows[:600], "model: {n_components: 3}")
    path = run / "manifest.json"
    written = path.read_text()
    manifest = json.loads(written)
    manifest["result"]["sampling_errors"]["angles"][1] *= 1.01
    path.write_text(json.dumps(manifest))
    changed = {name for name, holds in verified(capsys, run).items() if holds is False}
    assert changed == {"manifest result.sampling_errors"}
    path.write_text(written)
    place = run / "model.zarr" / "zarr.json"
    model = json.loads(place.read_text())
    model["attributes"]["sampling_errors"]["north"][0] *= 1.01
    place.write_text(json.dumps(model))
    Command(capsys)("verify", run, "--quiet").refused(5, "model.zarr")


@pytest.mark.parametrize("solver", ["covariance", "qr"])
def test_threads_change_no_bit(rows: Rows, solver: Any) -> None:
    with blocks_of(500):
        found = [fit(rows, k=3, solver=solver, sampling_errors=N_GROUPS, threads=threads) for threads in (1, 2)]
    one, two = (each.model.sampling_errors.to_dict() for each in found)
    assert one == two


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_reports_draw_error_bars_and_name_components_that_are_not_told_apart(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((300, 8)) * np.sqrt([20.0, 5.0, 5.0, 1, 1, 1, 1, 1])
    write_store(tmp_path / "x.zarr", rows, chunks=(100, 8))
    lines = ("statistics: {sampling_errors: 20}", "model: {n_components: 3, solver: sketch}")
    (tmp_path / "c.yaml").write_text(config_text(tmp_path / "x.zarr", tmp_path / "run", *lines, output="report: true"))
    page = (sp.run(tmp_path / "c.yaml").directory / "report.html").read_text()
    assert "Standard errors by leaving out each of 20 groups" in page
    assert "overlap for components 2 to 3" in page
    assert "numerical error" in page


@pytest.mark.parametrize(("solver", "passes"), [("covariance", 1), ("qr", 2)])
def test_models_from_one_reading_have_the_sampling_errors_of_single_fits(rows: Rows, solver: Any, passes: int) -> None:
    makers: dict[str, Any] = {"raw": {"solver": solver}, "z": {"solver": solver, "scale": True}}
    many = sp.fit_many({name: sp.PCA(3, sampling_errors=20, **made) for name, made in makers.items()}, rows)
    assert many.n_passes_ == passes
    for name, made in makers.items():
        single = sp.PCA(3, sampling_errors=20, **made).fit(rows)
        assert many[name].sampling_error_.to_dict() == single.sampling_error_.to_dict()


def test_groups_of_rows_are_refused(rows: Rows) -> None:
    with pytest.raises(NotAvailableError, match="sampling_errors=20"):
        sp.PCA(3, sampling_errors=20).fit_groups(rows, np.arange(len(rows)) % 2)


def test_a_fit_that_was_stopped_while_it_read_again_ends_with_the_same_bits(rows: Rows, tmp_path: Path) -> None:
    write_store(tmp_path / "x.zarr", rows, chunks=(50, 6))
    made: dict[str, Any] = {"n_components": 3, "solver": "qr", "sampling_errors": 20}
    expected = sp.PCA(**made).fit(str(tmp_path / "x.zarr")).sampling_error_

    def stop(progress: Any) -> None:
        if progress.phase == "sampling errors" and progress.rows > 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sp.PCA(**made, checkpoint=tmp_path / "c", progress=stop).fit(str(tmp_path / "x.zarr"))
    resumed = sp.PCA(**made, checkpoint=tmp_path / "c").fit(str(tmp_path / "x.zarr"))
    assert resumed.sampling_error_.to_dict() == expected.to_dict()


@pytest.mark.distributed
@pytest.mark.parametrize("solver", ["covariance", "qr"])
def test_workers_of_a_cluster_give_the_bits_of_threads(rows: Rows, client: Any, tmp_path: Path, solver: Any) -> None:
    write_store(tmp_path / "x.zarr", rows, chunks=(50, 6))
    pca = sp.PCA(3, solver=solver, scale=True, sampling_errors=20)
    expected = pca.fit(str(tmp_path / "x.zarr")).sampling_error_.to_dict()
    with client.as_current():
        assert pca.fit(str(tmp_path / "x.zarr")).sampling_error_.to_dict() == expected
