"""The number of components by a rule: of every solver, saved, and refused where no law of noise applies."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn import decomposition

import streampca as sp
from streampca import metrics
from streampca.errors import MergeError, ModelError, NotAvailableError, ParameterError, PlanError

N_FACTORS = 4
RULES = ("parallel", "marchenko_pastur", "tracy_widom", "gavish_donoho", "cross_validation", "mle")


def edge_of_variances(variances, n):
    """Return the upper edge of the eigenvalues of `n` rows of noise with these variances (Silverstein & Choi 1995)."""
    most = 1 / variances.max()
    found = minimize_scalar(
        lambda t: 1 / t + np.sum(variances / (1 - variances * t)) / n, bounds=(0, most), options={"xatol": 1e-12}
    )
    return found.fun


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return rng.standard_normal((600, N_FACTORS)) @ rng.standard_normal((N_FACTORS, 30)) + rng.standard_normal((600, 30))


EXACT = [(rule, solver) for rule, solver in product(RULES, ("covariance", "gram", "qr")) if rule != "cross_validation"]


@pytest.mark.parametrize(("rule", "solver"), [*EXACT, ("cross_validation", "covariance"), ("cross_validation", "auto")])
def test_every_rule_finds_the_factors_with_every_exact_solver(rows, rule, solver):
    pca = sp.PCA(rule, solver=solver).fit(rows)
    assert pca.n_components_ == N_FACTORS == pca.component_rules_[rule].n_components
    assert decomposition.PCA("mle").fit(rows).n_components_ == N_FACTORS


@pytest.mark.parametrize("rule", ["parallel", "marchenko_pastur", "tracy_widom"])
def test_rules_of_leading_eigenvalues_apply_to_a_sketch(rows, rule):
    pca = sp.PCA(rule, solver="sketch", sketch_size=24).fit(rows)
    exact = sp.PCA(rule).fit(rows).component_rules_[rule]
    assert pca.n_components_ == N_FACTORS
    assert pca.component_rules_[rule].figures["threshold"] == pytest.approx(exact.figures["threshold"], rel=0.05)


@pytest.mark.parametrize("rule", ["gavish_donoho", "mle"])
def test_rules_of_all_eigenvalues_are_refused_by_a_sketch(rows, rule):
    with pytest.raises(NotAvailableError, match="needs all eigenvalues"):
        sp.PCA(rule, solver="sketch").plan(rows)


def test_unknown_rule_is_refused_with_the_names_of_all(rows):
    with pytest.raises(ParameterError, match="one of " + ", ".join(RULES)):
        sp.PCA("minka").fit(rows)


def test_rule_that_does_not_apply_is_refused_before_reading(rows):
    with pytest.raises(NotAvailableError, match="'mle' does not apply: the likelihood needs at least as many rows"):
        sp.PCA("mle").plan(rows[:20])
    with pytest.raises(NotAvailableError, match="does not apply: rows have weights"):
        sp.PCA("tracy_widom").fit(rows, sample_weight=np.arange(600.0))
    with pytest.raises(NotAvailableError, match="does not apply: features have weights"):
        sp.PCA("tracy_widom", feature_weight=np.arange(30.0)).plan(rows)
    with pytest.raises(NotAvailableError, match="does not apply: rows were not centred"):
        sp.PCA("parallel", center=False).plan(rows)


def test_parallel_analysis_follows_the_variances_after_scaling_and_weights(rows):
    weight = np.linspace(0.5, 2.0, 30)
    pca = sp.PCA("parallel", scale=True, feature_weight=weight).fit(rows)
    edge = edge_of_variances(weight, 599)
    assert pca.component_rules_["parallel"].figures["threshold"] == pytest.approx(edge, rel=1e-5)
    values = np.linalg.eigvalsh(np.corrcoef(rows.T) * np.sqrt(np.outer(weight, weight)))
    assert pca.n_components_ == np.count_nonzero(values > edge)


def test_missing_values_are_counted_after_reading(rows):
    assert sp.PCA("tracy_widom", missing="mean").fit(rows).n_components_ == N_FACTORS
    holes = rows.copy()
    holes[3, 5] = np.nan
    with pytest.raises(NotAvailableError, match="does not apply: 1 values are missing"):
        sp.PCA("tracy_widom", missing="mean").fit(holes)
    assert sp.PCA("tracy_widom", missing="drop_rows").fit(holes).n_components_ == N_FACTORS
    assert not sp.PCA(3, missing="mean").fit(holes).component_rules_["mle"].applies


def test_noise_gives_one_component_and_the_table_none():
    pca = sp.PCA("tracy_widom").fit(np.random.default_rng(2).standard_normal((300, 20)))
    assert (pca.n_components_, pca.component_rules_["tracy_widom"].n_components) == (1, 0)


def test_number_follows_all_rows_after_partial_fits(rows):
    pca = sp.PCA("tracy_widom", solver="covariance")
    for start in range(0, 600, 200):
        pca.partial_fit(rows[start : start + 200])
    assert pca.n_components_ == N_FACTORS
    assert repr(pca.component_rules_) == repr(sp.PCA("tracy_widom").fit(rows).component_rules_)


def test_many_features_have_all_eigenvalues_on_first_access():
    rng = np.random.default_rng(3)
    wide = rng.standard_normal((900, 2)) @ rng.standard_normal((2, 520)) + rng.standard_normal((900, 520))
    pca = sp.PCA(5, solver="covariance").fit(wide)
    assert pca._model.eigenvalues is None
    assert pca.component_rules_["gavish_donoho"].n_components == 2
    expected = np.linalg.eigvalsh(np.cov(wide.T))[::-1]
    assert pca._model.eigenvalues == pytest.approx(expected, abs=1e-10)
    assert sp.PCA("gavish_donoho", solver="covariance").fit(wide).n_components_ == 2


def test_wide_rows_have_all_rules_but_the_likelihood():
    rng = np.random.default_rng(4)
    wide = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 2000)) + rng.standard_normal((40, 2000))
    pca = sp.PCA("gavish_donoho").fit(wide)
    assert (pca.solver_, pca.n_components_) == ("gram", 3)
    assert [rule.n_components for rule in pca.component_rules_.values()] == [3, 3, 3, 3, None, None]


def test_removed_means_take_degrees_of_freedom(rows):
    groups = np.arange(600) % 12
    pca = sp.PCA("tracy_widom", remove={"groups": groups}).fit(rows)
    within = rows - np.stack([rows[groups == g].mean(axis=0) for g in range(12)])[groups]
    values = np.linalg.eigvalsh(within.T @ within / 588)
    figures = pca.component_rules_["tracy_widom"].figures
    assert pca.n_components_ == N_FACTORS
    assert figures["noise_variance"] * 599 / 588 == pytest.approx(values[:-N_FACTORS].mean(), rel=0.02)


def test_saved_model_has_the_same_table(rows, tmp_path):
    pca = sp.PCA("mle").fit(rows)
    pca.save(tmp_path / "model.zarr")
    loaded = sp.load(tmp_path / "model.zarr")
    assert loaded.n_components == "mle"
    assert loaded.component_rules_.to_dict() == pca.component_rules_.to_dict()
    assert json.loads(json.dumps(loaded.component_rules_.to_dict())) == pca.component_rules_.to_dict()


def test_saved_eigenvalues_in_another_order_are_refused(rows, tmp_path):
    from dataclasses import replace

    pca = sp.PCA(2).fit(rows)
    pca._model = replace(pca._model, eigenvalues=pca._model.eigenvalues[::-1].copy())
    with pytest.raises(ModelError, match="eigenvalues are not all in descending order"):
        pca.save(tmp_path / "model.zarr")


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8"])
def test_cross_validation_has_the_components_of_a_plain_fit(rows, dtype):
    rows = (10 * rows).round().clip(-127, 127).astype(dtype)
    pca = sp.PCA("cross_validation").fit(rows)
    plain = sp.PCA(N_FACTORS).fit(rows)
    assert pca.n_components_ == N_FACTORS
    assert pca.explained_variance_ == pytest.approx(plain.explained_variance_, rel=1e-6)
    assert metrics.principal_angles(pca.components_, plain.components_).max() < 1e-5
    figures = pca.component_rules_["cross_validation"].figures
    assert 0 < figures["error"] < 0.5
    assert figures["tried"] == 29
    assert not plain.component_rules_["cross_validation"].applies
    assert (
        "which fits with n_components='cross_validation' compute"
        in plain.component_rules_["cross_validation"].statement
    )


def test_cross_validation_does_not_depend_on_blocks_and_is_saved(rows, tmp_path):
    import dask.array as da

    whole = sp.PCA("cross_validation").fit(rows)
    errors = whole._model.prediction_errors
    in_blocks = sp.PCA("cross_validation").fit(da.from_array(rows, chunks=(77, -1)))
    assert in_blocks._model.prediction_errors == pytest.approx(errors, rel=1e-9)
    whole.save(tmp_path / "model.zarr")
    loaded = sp.load(tmp_path / "model.zarr")
    assert loaded._model.prediction_errors.tobytes() == errors.tobytes()
    loaded.save(tmp_path / "model.zarr", overwrite=True)
    assert loaded.component_rules_.to_dict() == whole.component_rules_.to_dict()


def test_cross_validation_of_weighted_rows_equals_that_of_repeated_ones(rows):
    weights = np.repeat(np.random.default_rng(5).integers(0, 3, 60), 10).astype(float)
    pca = sp.PCA("cross_validation").fit(rows, sample_weight=weights)
    assert pca.component_rules_["cross_validation"].n_components == N_FACTORS
    assert not pca.component_rules_["tracy_widom"].applies
    same = sp.PCA("cross_validation").fit(rows, sample_weight=np.full(600, 2.0))
    plain = sp.PCA("cross_validation").fit(rows)
    assert same._model.prediction_errors == pytest.approx(plain._model.prediction_errors, rel=1e-10)


def test_cross_validation_leaves_out_rows_with_missing_values(rows):
    holes = rows.copy()
    holes[::7, 2] = np.nan
    assert sp.PCA("cross_validation", missing="drop_rows").fit(holes).n_components_ == N_FACTORS


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"solver": "gram"}, "solver='gram' does not take n_components='cross_validation': use solver='covariance'"),
        (
            {"solver": "sketch"},
            "solver='sketch' does not take n_components='cross_validation': use solver='covariance'",
        ),
        ({"missing": "mean"}, "n_components='cross_validation' and missing='mean' cannot be combined: expected"),
        ({"forgetting": 0.9}, "n_components='cross_validation' and forgetting=0.9 cannot be combined: expected"),
        ({"remove": {"trend": 1}}, "n_components='cross_validation' and remove cannot be combined: expected"),
    ],
)
def test_cross_validation_is_refused_before_reading_where_groups_are_not_accumulated(rows, parameters, found):
    with pytest.raises(NotAvailableError, match=re.escape(found)):
        sp.PCA("cross_validation", **parameters).plan(rows)


def test_cross_validation_is_refused_for_wide_rows_batches_and_groups(rows):
    with pytest.raises(
        NotAvailableError, match=r"and more than 1,536 features cannot be combined: expected .*at most 1,536"
    ):
        sp.PCA("cross_validation").plan(np.zeros((4, 1537)))
    with pytest.raises(NotAvailableError, match="keeps no state to add rows to"):
        sp.PCA("cross_validation").partial_fit(rows)
    with pytest.raises(NotAvailableError, match="fits of groups do not take n_components='cross_validation'"):
        sp.PCA("cross_validation").fit_groups(rows, np.arange(600) % 2)


def test_plan_of_cross_validation_counts_the_matrices_of_all_groups(rows):
    plan, plain = sp.PCA("cross_validation").plan(rows), sp.PCA(3, solver="covariance").plan(rows)
    assert "7 matrices of 30 x 30, one for each group of rows" in plan.reason
    assert plan.passes == 1
    assert plan.budget.bytes_for("states") == 7 * plain.budget.bytes_for("states")
    with pytest.raises(
        PlanError, match=r"'cross_validation', with 7 covariance matrices: projected .* exceeds the allowed"
    ):
        sp.PCA("cross_validation", memory="300MiB").plan(np.zeros((3000, 1500), np.float32))


def test_cross_validation_has_no_state_to_save(rows, tmp_path):
    fitted = sp.PCA("cross_validation").fit(rows)
    with pytest.raises(MergeError, match="no n_components='cross_validation'"):
        fitted.save(tmp_path / "model.zarr", state=True)


def test_cross_validation_of_unequal_noise_says_that_it_found_no_minimum():
    """The rule, not its code: the errors are those of conditional means under probabilistic PCA, written out."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1200, 3)) @ rng.standard_normal((3, 15)) + 0.5 * rng.standard_normal((1200, 15))
    assert sp.PCA("cross_validation").fit(rows).n_components_ == 3
    pca = sp.PCA("cross_validation", scale=True).fit(rows)
    z, errors = rows / rows.std(axis=0, ddof=1), np.zeros(15)
    for own in np.array_split(np.arange(1200), 7):
        others = np.delete(z, own, axis=0)
        values, axes = np.linalg.eigh(np.cov(others.T))
        for k in range(15):
            noise = values[: 15 - k].mean()
            top = axes[:, 15 - k :]
            inverse = np.linalg.inv((top * (values[15 - k :] - noise)) @ top.T + noise * np.eye(15))
            errors[k] += np.square((z[own] - others.mean(axis=0)) @ inverse / np.diag(inverse)).sum()
    rule = pca.component_rules_["cross_validation"]
    assert pca.n_components_ == errors.argmin() == 14
    assert abs(rule.figures["error"] / (errors[14] / errors[0]) - 1) < 0.01  # groups of 171 or 172 rows
    assert "no number of factors" in rule.statement


def test_a_single_possible_number_leaves_a_run_whose_documents_can_be_written(tmp_path):
    rows = np.random.default_rng(0).standard_normal((60, 8)) + 1e13  # of which rounding leaves one component
    np.save(tmp_path / "rows.npy", rows)
    found = sp.run(
        {
            "name": "one",
            "source": {"path": str(tmp_path / "rows.npy")},
            "model": {"n_components": 2, "solver": "gram", "ddof": 0},
            "preprocess": {"center": False, "scale": True},
            "output": {"directory": str(tmp_path / "run"), "report": False},
        }
    )
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["name"] == "one"
    assert set(found.model.component_rules_.to_dict()["mle"]["figures"]) == {"log_evidence"}


@pytest.mark.parametrize("rule", ["tracy_widom", "parallel"])
def test_a_refused_rule_names_no_rule_that_is_refused_for_the_same_rows(rule: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 5))
    rows[3, 2] = np.nan
    with pytest.raises(NotAvailableError) as refused:
        sp.PCA(rule, missing="mean").fit(rows)
    assert "expected a count, a share of the variance" in str(refused.value)
    assert not any(other in str(refused.value) for other in ("marchenko_pastur", "gavish_donoho"))
