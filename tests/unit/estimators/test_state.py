"""Going on after a fit: what is kept, what is refused, and what stands on the disk."""

from __future__ import annotations

import copy
import json
import pickle
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import facade
import joblib
import numpy as np
import pytest
import zarr
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimators_partial_fit_n_features

import streampca as sp
from streampca.errors import DataError, MergeError, ModelError, OutputError, ParameterError

ROWS = np.random.default_rng(0).standard_normal((300, 6)) * np.arange(1, 7) + 100
HALVES = ROWS[:120], ROWS[120:]
SOLVERS = ("covariance", "qr")


def variances(estimator: sp.PCA) -> np.ndarray:
    return np.asarray(estimator.explained_variance_)


def kept_bytes(estimator: sp.PCA) -> list[bytes]:
    state = estimator._fitted_state.state
    return [np.asarray(getattr(state, f.name)).tobytes() for f in fields(state)]


def test_the_first_call_is_a_fit_and_later_ones_go_on() -> None:
    pca = sp.PCA(2)
    assert pca.partial_fit(HALVES[0]) is pca
    np.testing.assert_allclose(variances(pca), variances(sp.PCA(2).fit(HALVES[0])), rtol=1e-12)
    pca.partial_fit(HALVES[1])
    whole = sp.PCA(2).fit(ROWS)
    np.testing.assert_allclose(variances(pca), variances(whole), rtol=1e-12)
    np.testing.assert_allclose(pca.transform(ROWS), whole.transform(ROWS), atol=1e-9)
    assert (pca.n_samples_seen_, pca.n_features_in_, pca.solver_) == (300, 6, "covariance")
    assert pca.bytes_read_ == ROWS.nbytes
    pca.fit(HALVES[0])  # begins again
    assert pca.n_samples_seen_ == 120


def test_a_fit_is_continued() -> None:
    pca = sp.PCA(2).fit(HALVES[0]).partial_fit(HALVES[1])
    np.testing.assert_allclose(variances(pca), variances(sp.PCA(2).fit(ROWS)), rtol=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_model_appears_with_more_rows_than_ddof(solver: str) -> None:
    pca = sp.PCA(4, solver=solver).partial_fit(ROWS[:1])
    assert not hasattr(pca, "components_")
    with pytest.raises(NotFittedError):
        pca.transform(ROWS)
    pca.partial_fit(ROWS[1:2])
    assert len(pca.components_) == 2  # as many as there are rows
    pca.partial_fit(ROWS[2:3])
    assert len(pca.components_) == 3
    pca.partial_fit(ROWS[3:])
    np.testing.assert_allclose(variances(pca), variances(sp.PCA(4, solver=solver).fit(ROWS)), rtol=1e-12)


def test_the_eigenproblem_waits_until_it_is_asked_for() -> None:
    rows = np.random.default_rng(0).standard_normal((40, 700))
    pca = sp.PCA(2, solver="covariance").partial_fit(rows[:20])
    begun = time.process_time()
    for row in rows[20:]:
        pca.partial_fit(row[None])
    added = time.process_time()
    assert pca.components_.shape == (2, 700)
    assert added - begun < 10 * (time.process_time() - added)  # 20 solutions would take twice as long as that


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale": True}, ["scale", "False", "True"]),
        ({"center": False}, ["center", "True", "False"]),
        ({"ddof": 0}, ["ddof", "1", "0"]),
        ({"whiten": True}, ["whiten"]),
        ({"n_components": 3}, ["n_components", "2", "3"]),
        ({"solver": "qr"}, ["solver", "covariance", "qr"]),
        ({"forgetting": 0.5}, ["forgetting", "1.0", "0.5"]),
        ({"missing": "mean"}, ["missing", "'error'", "'mean'"]),
        ({"feature_weight": [1, 1, 1, 1, 1, 2]}, ["feature_weight"]),
    ],
    ids=str,
)
def test_other_parameters_are_a_merge_error(changes: dict[str, Any], words: list[str]) -> None:
    first, second = sp.PCA(2).fit(HALVES[0]), sp.PCA(2).set_params(**changes).fit(HALVES[1])
    with pytest.raises(MergeError) as raised:
        sp.merge([first, second])
    assert all(word in str(raised.value) for word in words), raised.value
    with pytest.raises(MergeError, match=words[0]):
        first.set_params(**changes).partial_fit(HALVES[1])
    assert first.n_samples_seen_ == 120


def test_other_precision_and_names_and_numbers_of_features_are_refused() -> None:
    wide = [
        np.random.default_rng(seed).standard_normal((150, 70)) for seed in range(2)
    ]  # few features are always float64
    pca = sp.PCA(2).fit(wide[0])
    with pytest.raises(MergeError, match=r"precision of products.*float64.*float32"):
        pca.partial_fit(wide[1].astype(np.float32))
    with pytest.raises(MergeError, match="precision"):
        sp.merge([pca, sp.PCA(2).fit(wide[1].astype(np.float32))])
    pca = sp.PCA(2).fit(HALVES[0])
    with pytest.raises(ValueError, match="X has 5 features, but PCA is expecting 6"):
        pca.partial_fit(HALVES[1][:, :5])
    with pytest.raises(MergeError, match="n_features is 6 in the first and 5"):
        sp.merge([pca, sp.PCA(2).fit(HALVES[1][:, :5])])
    named = sp.PCA(2).fit(pytest.importorskip("pandas").DataFrame(HALVES[1], columns=list("abcdef")))
    with pytest.raises(MergeError, match="feature names are unknown in the first and a, b, c"):
        sp.merge([pca, named])


def test_a_call_that_fails_changes_nothing() -> None:
    pca = sp.PCA(2).fit(HALVES[0])
    before, model = kept_bytes(pca), variances(pca).copy()
    broken = HALVES[1].copy()
    broken[100, 3] = np.nan
    with pytest.raises(DataError, match="row 100, column 3"):
        pca.partial_fit(broken)
    with pytest.raises(MergeError, match="cannot be subtracted"):
        pca.partial_unfit(ROWS)
    assert kept_bytes(pca) == before
    np.testing.assert_array_equal(variances(pca), model)


def test_merge_leaves_its_inputs_alone() -> None:
    parts = [sp.PCA(2).fit(half) for half in HALVES]
    before = [kept_bytes(part) for part in parts]
    total = sp.merge(parts)
    total.partial_fit(ROWS)
    assert [kept_bytes(part) for part in parts] == before
    assert total.n_samples_seen_ == 600
    assert sp.merge(parts[:1]).n_samples_seen_ == 120


def test_what_cannot_be_merged_says_why() -> None:
    pca = sp.PCA(2).fit(ROWS)
    for models, error, words in (
        ([], ParameterError, "nothing"),
        ([pca, 3], ParameterError, "int"),
        ([pca, pca], MergeError, "twice"),
        ([pca, sp.PCA(2)], MergeError, "not been fitted"),
        ([pca, sp.PCA(2, solver="gram").fit(ROWS)], MergeError, "holds no state"),
    ):
        with pytest.raises(error, match=words):
            sp.merge(models)
    with pytest.raises(ParameterError, match="n_components=7"):
        sp.PCA(7).partial_fit(ROWS)


def test_copies_have_states_of_their_own() -> None:
    pca = sp.PCA(2).fit(HALVES[0])
    for twin in (copy.copy(pca), copy.deepcopy(pca), pickle.loads(pickle.dumps(pca))):
        before = kept_bytes(pca)
        twin.partial_fit(HALVES[1])
        assert kept_bytes(pca) == before
        np.testing.assert_allclose(variances(twin), variances(sp.PCA(2).fit(ROWS)), rtol=1e-12)
    assert not hasattr(clone(pca), "components_")


def test_partial_unfit_takes_rows_out_and_says_what_it_cost() -> None:
    pca = sp.PCA(2).fit(ROWS).partial_unfit(HALVES[0])
    expected = sp.PCA(2).fit(HALVES[1])
    np.testing.assert_allclose(variances(pca), variances(expected), rtol=1e-12)
    np.testing.assert_allclose(pca.mean_, expected.mean_, rtol=1e-12)
    assert pca.n_samples_seen_ == 180
    assert pca.error_["trusted_above"] > expected.error_["trusted_above"]
    assert "taken out again" in pca.error_["statement"]
    pca.partial_unfit(HALVES[1])
    assert pca.n_samples_seen_ == 0
    assert not hasattr(pca, "components_")
    pca.partial_fit(ROWS)
    np.testing.assert_allclose(variances(pca), variances(sp.PCA(2).fit(ROWS)), rtol=1e-12)


def test_what_would_be_lost_to_rounding_is_not_taken_out() -> None:
    small, large = ROWS[:50] * 1e-9, ROWS[50:] * 1e6
    pca = sp.PCA(2).fit(np.vstack([small, large]))
    with pytest.raises(MergeError, match=r"6 features.*feature 0.*below its rounding"):
        pca.partial_unfit(large)
    with pytest.raises(MergeError, match="cannot be subtracted"):
        sp.PCA(2, solver="qr").fit(ROWS).partial_unfit(HALVES[0])
    with pytest.raises(MergeError, match="forgetting"):
        sp.PCA(2, forgetting=0.9).fit(ROWS).partial_unfit(HALVES[0])
    with pytest.raises(MergeError, match="holds no state"):
        sp.PCA(2).partial_unfit(ROWS)


def test_weights_of_rows_go_on() -> None:
    weights = np.random.default_rng(1).integers(0, 4, 300).astype(float)
    expected = sp.PCA(2, solver="covariance").fit(np.repeat(ROWS, weights.astype(int), axis=0))
    for solver in SOLVERS:
        pca = sp.PCA(2, solver=solver)
        for part in (slice(0, 7), slice(7, 8), slice(8, 300)):
            pca.partial_fit(ROWS[part], sample_weight=weights[part] + (1e-300 if not weights[part].any() else 0))
        np.testing.assert_allclose(variances(pca), variances(expected), rtol=1e-12)
        np.testing.assert_allclose(pca.singular_values_, expected.singular_values_, rtol=1e-12)


@pytest.mark.parametrize("factor", [0.999, 0.5, 1e-300])
def test_forgetting_survives_weights_that_vanish(factor: float) -> None:
    """Powers of the factor underflow long before the rows end; so they do within one panel and between leaves."""
    rows = np.random.default_rng(2).standard_normal((40_000, 3)) + 1e4
    weights = factor ** np.arange(len(rows) - 1, -1, -1.0)
    mean = 1e4 + weights @ (rows - 1e4) / weights.sum()
    rest = rows - mean
    divisor = weights.sum() - (weights @ weights) / weights.sum()
    pca = sp.PCA(forgetting=factor)
    if divisor <= 0:
        with pytest.raises(DataError, match="variance"):
            pca.fit(rows)
        return
    expected = np.linalg.eigvalsh((rest.T * weights) @ rest / divisor)[::-1]
    for made in (
        pca.fit(rows),
        sp.PCA(forgetting=factor).partial_fit(rows[:1]).partial_fit(rows[1:30_000]).partial_fit(rows[30_000:]),
        sp.merge([sp.PCA(forgetting=factor).fit(part) for part in (rows[:20_000], rows[20_000:])]),
    ):
        np.testing.assert_allclose(variances(made), expected, rtol=1e-10)
        np.testing.assert_allclose(made.mean_, mean, rtol=1e-14)
        np.testing.assert_allclose(made.singular_values_**2, expected * divisor, rtol=1e-10)
        assert made.n_samples_seen_ == 40_000
    order = [sp.PCA(forgetting=factor).fit(part) for part in (rows[20_000:], rows[:20_000])]
    assert abs(sp.merge(order).mean_ - mean).max() > 1e-6


def test_forgetting_has_the_same_bits_for_any_number_of_threads(blocks_of: Any) -> None:
    rows = np.random.default_rng(3).standard_normal((20_000, 5)).astype(np.float32)
    blocks_of(256)
    bits = set()
    for threads in (1, 2, 5):
        options = {"threads": threads, "forgetting": 0.9999}
        plan = facade.plan(rows, solver="covariance", **options)
        assert plan.n_leaves > 1
        found = facade.fit(rows, plan, solver="covariance", **options)
        bits.add((found.model.components.tobytes(), found.model.explained_variance.tobytes()))
    assert len(bits) == 1


@pytest.mark.parametrize("value", [0, 1.5, -0.1, "half", True, None, np.nan])
def test_a_forgetting_factor_outside_its_domain(value: Any) -> None:
    with pytest.raises(ParameterError, match=r"forgetting=.*\(0, 1\]"):
        sp.PCA(forgetting=value).fit(ROWS)


@pytest.mark.deep(keep=3)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"solver": "qr", "scale": True},
        {"n_components": 0.9, "whiten": True},
        {"n_components": sp.Threshold(0.2), "center": False, "ddof": 0},
        {"missing": "pairwise"},
        {"missing": "mean", "feature_weight": np.arange(6.0)},
        {"forgetting": 0.99, "random_state": 7},
    ],
    ids=str,
)
def test_a_saved_state_goes_on(tmp_path: Any, options: dict[str, Any]) -> None:
    first, second = (sp.PCA(**{"solver": "covariance", **options}).fit(half) for half in HALVES)
    first.save(tmp_path / "first.zarr", state=True)
    second.save(tmp_path / "second.zarr", state=True)
    loaded = sp.load(tmp_path / "first.zarr")
    assert kept_bytes(loaded) == kept_bytes(first)
    np.testing.assert_array_equal(variances(loaded), variances(first))
    for name, value in sp.PCA(**{"solver": "covariance", **options}).get_params().items():
        found = loaded.get_params()[name]
        assert np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value, name
    expected = sp.merge([first, second])
    np.testing.assert_array_equal(variances(sp.merge([loaded, sp.load(tmp_path / "second.zarr")])), variances(expected))
    np.testing.assert_array_equal(variances(loaded.partial_fit(HALVES[1])), variances(expected))
    first.save(tmp_path / "first.zarr", state=True, overwrite=True)
    first.save(tmp_path / "first.zarr", overwrite=True)
    assert not (tmp_path / "first.zarr/state").exists()


def test_without_a_state_it_says_how_to_save_one(tmp_path: Any) -> None:
    sp.PCA(2).fit(ROWS).save(tmp_path / "m.zarr")
    loaded = sp.load(tmp_path / "m.zarr")
    for call in (
        lambda: loaded.partial_fit(ROWS),
        lambda: loaded.partial_unfit(ROWS),
        lambda: sp.merge([loaded]),
        lambda: loaded.save(tmp_path / "n.zarr", state=True),
    ):
        with pytest.raises(MergeError, match="state=True"):
            call()
    assert not (tmp_path / "n.zarr").exists()
    loaded.fit(ROWS).partial_fit(ROWS)


def edit_attributes(path: Any, change: Any) -> None:
    data = json.loads(path.read_text())
    change(data["attributes"])
    path.write_text(json.dumps(data))


DAMAGE = {
    "version": lambda a: a.update(version=2),
    "format": lambda a: a.update(format="other"),
    "accumulator": lambda a: a.update(accumulator="Rows"),
    "solver": lambda a: a.update(solver="os.system"),
    "digest": lambda a: a["sha256"].update(scatter="0" * 64),
    "rows": lambda a: a["numbers"].update(n_samples=299),
    "negative": lambda a: a["numbers"].update(weight=-1.0),
    "text": lambda a: a["numbers"].update(weight="300"),
    "no numbers": lambda a: a.pop("numbers"),
    "tile size": lambda a: a["configuration"].update(tile_size=0),
    "configuration": lambda a: a["configuration"].update(grid=3),
    "parameters": lambda a: a["parameters"].update(nothing=3),
    "work dtype": lambda a: a.update(work_dtype="nonsense"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_state_is_refused(tmp_path: Any, name: str) -> None:
    sp.PCA(2).fit(ROWS).save(tmp_path / "m.zarr", state=True)
    edit_attributes(tmp_path / "m.zarr/state/zarr.json", DAMAGE[name])
    with pytest.raises(ModelError, match="state"):
        sp.load(tmp_path / "m.zarr")


def test_damaged_arrays_of_a_state_are_refused(tmp_path: Any) -> None:
    sp.PCA(2).fit(ROWS).save(tmp_path / "m.zarr", state=True)
    group = zarr.open_group(tmp_path / "m.zarr/state", mode="r+")
    group["scatter"][0] = 1.0
    with pytest.raises(ModelError, match="scatter does not have the SHA-256"):
        sp.load(tmp_path / "m.zarr")
    (tmp_path / "m.zarr/state/scatter/c/0").write_bytes(b"")
    with pytest.raises(ModelError, match="state"):
        sp.load(tmp_path / "m.zarr")
    sp.PCA(2).fit(ROWS[:, :5]).save(tmp_path / "other.zarr", state=True)
    sp.PCA(2).fit(ROWS).save(tmp_path / "n.zarr", state=True)
    (tmp_path / "n.zarr/state").rename(tmp_path / "away")
    (tmp_path / "other.zarr/state").rename(tmp_path / "n.zarr/state")
    with pytest.raises(ModelError, match="not of shape"):
        sp.load(tmp_path / "n.zarr")


def test_a_foreign_file_within_a_state_is_never_removed(tmp_path: Any) -> None:
    pca = sp.PCA(2).fit(ROWS)
    pca.save(tmp_path / "m.zarr", state=True)
    (tmp_path / "m.zarr/state/notes").write_text("mine")
    with pytest.raises(OutputError, match="state/notes"):
        pca.save(tmp_path / "m.zarr", overwrite=True)
    assert (tmp_path / "m.zarr/state/notes").read_text() == "mine"


KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    "covariance": ({"scale": True, "feature_weight": np.arange(1.0, 7.0)}, ROWS),
    "forgetting": ({"forgetting": 0.9}, ROWS),
    "qr": ({"solver": "qr"}, ROWS),
    "integers": ({}, ROWS.astype("i2")),
    "sparse": ({}, csr_array(ROWS)),
    "sketch": ({"solver": "sketch", "sketch_size": 4, "pilot": 0}, ROWS),
    "drop_rows": ({"missing": "drop_rows"}, ROWS),
    "pairwise": ({"missing": "pairwise"}, ROWS),
    "sketch of complete rows": ({"solver": "sketch", "sketch_size": 4, "pilot": 0, "missing": "drop_rows"}, ROWS),
}


@pytest.mark.deep(keep=5)
@pytest.mark.parametrize("name", KINDS)
def test_every_array_of_a_state_is_known_as_ours(name: str, tmp_path: Path) -> None:
    parameters, rows = KINDS[name]
    pca = sp.PCA(2, **parameters).fit(rows)
    for _ in range(2):  # what is there may be overwritten only where all files are those of a model
        pca.save(tmp_path / "m.zarr", state=True, overwrite=True)
    loaded = sp.load(tmp_path / "m.zarr")
    assert isinstance(loaded, sp.PCA)
    np.testing.assert_array_equal(variances(loaded), variances(pca))


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_check_of_scikit_learn_that_calls_partial_fit(solver: str) -> None:
    check_estimators_partial_fit_n_features("PCA", sp.PCA(2, solver=solver))


def sketch_rows(n: int = 4000, d: int = 60) -> np.ndarray:
    rng = np.random.default_rng(11)
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return np.asarray((rng.standard_normal((n, d)) * np.linspace(3, 0.1, d) ** 2) @ axes + 5)


def test_sketches_merge_and_go_on_as_one_stream(tmp_path: Path) -> None:
    rows = sketch_rows()
    parameters = {"solver": "sketch", "sketch_size": 30, "pilot": 0}
    whole = sp.PCA(4, **parameters).fit(rows)
    parts = [sp.PCA(4, **parameters).fit(part) for part in np.array_split(rows, 8)]
    for order in (parts, parts[::-1], parts[3:] + parts[:3]):
        merged = sp.merge(order)
        np.testing.assert_allclose(merged.explained_variance_, whole.explained_variance_, rtol=1e-12)
        assert merged.solver_ == "sketch"
        assert merged.error_["kind"] == "approximate"
    growing = sp.PCA(4, **parameters)
    for part in np.array_split(rows, 5)[:4]:
        growing.partial_fit(part)
    growing.save(tmp_path / "model.zarr", state=True)
    loaded = sp.load(tmp_path / "model.zarr").partial_fit(np.array_split(rows, 5)[4])
    np.testing.assert_allclose(loaded.explained_variance_, whole.explained_variance_, rtol=1e-12)
    assert loaded.n_samples_seen_ == len(rows)


def test_sketches_of_different_test_matrices_are_refused_and_a_piloted_one_goes_on() -> None:
    first, second = np.array_split(sketch_rows(), 2)
    piloted = [sp.PCA(4, solver="sketch", sketch_size=30, pilot=500).fit(part) for part in (first, second)]
    with pytest.raises(MergeError, match="pilot=0"):
        sp.merge(piloted)
    seeds = [sp.PCA(4, solver="sketch", sketch_size=30, pilot=0, random_state=seed).fit(first) for seed in (0, 1)]
    with pytest.raises(MergeError, match="random_state"):
        sp.merge(seeds)
    exact = sp.PCA(4, solver="covariance").fit(sketch_rows()).explained_variance_
    found = piloted[0].partial_fit(second)
    lower, upper = np.array(found.error_["eigenvalue_intervals"]).T
    assert (lower <= exact * (1 + 1e-9)).all()
    assert (exact <= upper * (1 + 1e-9)).all()


def test_a_damaged_test_matrix_is_found(tmp_path: Path) -> None:
    model = sp.PCA(4, solver="sketch", sketch_size=30, pilot=0).fit(sketch_rows())
    model.save(tmp_path / "model.zarr", state=True)
    test = zarr.open_group(tmp_path / "model.zarr" / "state", mode="r+")["test"]
    test[3, 2] = test[3, 2] + 1
    with pytest.raises(ModelError, match="array test does not have the SHA-256"):
        sp.load(tmp_path / "model.zarr")


@pytest.mark.parametrize("solver", ["covariance", "gram", "sketch", "adaptive"])
def test_a_loaded_model_knows_its_solver(solver: str, tmp_path: Path) -> None:
    sp.PCA(2, solver=solver).fit(ROWS).save(tmp_path / "model.zarr")
    assert sp.load(tmp_path / "model.zarr").solver_ == solver


@pytest.mark.parametrize(
    "parameters", [{}, {"solver": "qr"}, {"missing": "mean"}, {"missing": "pairwise"}, {"forgetting": 0.99}]
)
def test_rows_are_added_to_a_state_in_mapped_files(parameters: dict[str, Any], tmp_path: Path) -> None:
    joblib.dump(sp.PCA(2, **parameters).partial_fit(HALVES[0]), tmp_path / "pca.joblib")
    stored = (tmp_path / "pca.joblib").read_bytes()
    mapped = joblib.load(tmp_path / "pca.joblib", mmap_mode="r").partial_fit(HALVES[1])
    expected = sp.PCA(2, **parameters).partial_fit(HALVES[0]).partial_fit(HALVES[1])
    np.testing.assert_array_equal(variances(mapped), variances(expected))
    np.testing.assert_array_equal(mapped.components_, expected.components_)
    assert (tmp_path / "pca.joblib").read_bytes() == stored


def test_rows_are_taken_out_of_a_state_in_mapped_files(tmp_path: Path) -> None:
    joblib.dump(sp.PCA(2).fit(ROWS), tmp_path / "pca.joblib")
    mapped = joblib.load(tmp_path / "pca.joblib", mmap_mode="r").partial_unfit(HALVES[1])
    np.testing.assert_array_equal(variances(mapped), variances(sp.PCA(2).fit(ROWS).partial_unfit(HALVES[1])))
