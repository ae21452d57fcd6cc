"""Several models from the same readings: the bits of single fits, every chunk read once, memory and errors of all together."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca as sp
from streampca.errors import NotFiniteError, ParameterError, PlanError

pytestmark = pytest.mark.numerical
N, D = 20_000, 12


@pytest.fixture(scope="module")
def rows() -> Any:
    rng = np.random.default_rng(0)
    return rng.standard_normal((N, D)) @ rng.standard_normal((D, D)) + 3.0


@pytest.fixture
def small_blocks(blocks_of: Any) -> None:
    """Have blocks of 512 rows in PCA, so that there are several leaves."""
    blocks_of(512)


@pytest.fixture
def store(rows: Any, tmp_path: Path, small_blocks: None) -> str:
    path = tmp_path / "x.zarr"
    zarr.create_array(path, shape=rows.shape, chunks=(512, D), dtype="f8")[:] = rows
    return str(path)


def exact() -> dict[str, Any]:
    return {
        "raw": sp.PCA(4),
        "z": sp.PCA(3, scale=True, whiten=True),
        "origin": sp.PCA(2, center=False, ddof=0),
        "triangle": sp.PCA(3, solver="qr"),
    }


def assert_same(found: Any, expected: Any) -> None:
    names = ("components_", "explained_variance_", "mean_", "scale_", "total_variance_")
    names = ("eigenvalues_", "landmarks_") if isinstance(expected, sp.KernelPCA) else names
    for name in names:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def test_exact_models_have_the_bits_of_single_fits_from_one_reading(store: str, rows: Any) -> None:
    fitted = sp.fit_many(exact(), store)
    assert fitted.n_passes_ == fitted.plan_.passes == 1
    assert fitted.bytes_read_ == fitted.plan_.bytes_to_read == rows.nbytes
    assert fitted["raw"].plan_.n_leaves > 1
    for name, model in exact().items():
        assert_same(fitted[name], model.fit(store))


def test_a_model_is_continued_without_change_of_the_others(store: str, rows: Any) -> None:
    fitted = sp.fit_many({"raw": sp.PCA(4), "z": sp.PCA(3, scale=True)}, store)
    fitted["raw"].partial_fit(rows[:100])
    assert fitted["z"].n_samples_seen_ == N
    assert_same(fitted["z"].partial_fit(rows[:500]), sp.PCA(3, scale=True).fit(store).partial_fit(rows[:500]))


def test_later_passes_are_shared_by_those_that_need_them(store: str, rows: Any) -> None:
    def models() -> dict[str, Any]:
        made = {"solver": "sketch", "sketch_size": 6, "tolerance": 0}
        return {
            "raw": sp.PCA(3),
            "three": sp.PCA(3, **made, max_passes=3),
            "two": sp.PCA(3, **made, scale=True, max_passes=2),
            "seasons": sp.PCA(3, remove={"trend": 1}),
        }

    fitted = sp.fit_many(models(), store)
    assert fitted.n_passes_ == fitted.plan_.passes == 3
    pilots = sum(plan.sketch.get("pilot_bytes", 0) for plan in fitted.plan_.plans.values())
    assert fitted.bytes_read_ == 3 * rows.nbytes + pilots
    for name, model in models().items():
        assert_same(fitted[name], model.fit(store))


def test_kernel_models_share_the_readings_for_landmarks_and_features(rows: Any) -> None:
    def models() -> dict[str, Any]:
        made = {"method": "nystrom", "n_landmarks": 30}
        return {
            "raw": sp.PCA(3),
            "rbf": sp.KernelPCA(3, **made),
            "poly": sp.KernelPCA(3, kernel="poly", degree=2, **made),
            "all rows": sp.KernelPCA(3, method="exact"),
        }

    few = rows[:600]
    fitted = sp.fit_many(models(), few)
    assert fitted.n_passes_ == fitted.plan_.passes == 3  # the exact one keeps all rows, which it reads by itself
    for name, model in models().items():
        assert_same(fitted[name], model.fit(few))


def test_models_of_other_blocks_take_those_of_the_majority(store: str, rows: Any) -> None:
    models = {"raw": sp.PCA(3), "z": sp.PCA(3, scale=True), "rbf": sp.KernelPCA(3, method="nystrom", n_landmarks=40)}
    models["rbf"].fit(store)
    expected = models["rbf"].eigenvalues_
    fitted = sp.fit_many(models, store)
    assert fitted.n_passes_ == 2
    other = fitted.plan_.plans["rbf"].blocks != fitted.plan_.together.blocks
    assert other == any(note.startswith("rbf: accumulated in the blocks") for note in fitted.plan_.together.notes)
    np.testing.assert_allclose(fitted["rbf"].eigenvalues_, expected, rtol=1e-10)


def test_shuffled_and_wide_readings_are_apart(rows: Any) -> None:
    wide = np.ascontiguousarray(rows[:24].T @ rows[:24].T.T).repeat(60, axis=1)
    models = {"gram": sp.PCA(2, solver="gram"), "moving": sp.PCA(2, solver="adaptive"), "raw": sp.PCA(2)}
    fitted = sp.fit_many(models, wide)
    assert {"gram", "moving"} <= set(fitted.plan_.together.notes[-1].partition(":")[0].split(", "))
    for name, solver in (("gram", "gram"), ("moving", "adaptive")):
        assert_same(fitted[name], sp.PCA(2, solver=solver).fit(wide))


def test_weights_count_for_all_models(rows: Any) -> None:
    weights = np.random.default_rng(1).uniform(size=N)
    fitted = sp.fit_many({"raw": sp.PCA(3), "z": sp.PCA(3, scale=True)}, rows, sample_weight=weights)
    assert_same(fitted["z"], sp.PCA(3, scale=True).fit(rows, sample_weight=weights))
    with pytest.raises(ParameterError, match="sample_weight: k is a KernelPCA"):
        sp.fit_many({"k": sp.KernelPCA(2)}, rows, sample_weight=weights)


class _PowerCutError(BaseException):
    """Stops a fit as a signal would."""


def test_a_stopped_fit_goes_on_to_the_same_bits(store: str, tmp_path: Path, all_checkpoints: None) -> None:

    def models() -> dict[str, Any]:
        made = {"solver": "sketch", "sketch_size": 6, "tolerance": 0, "max_passes": 2}
        return {"raw": sp.PCA(3), "a": sp.PCA(3, **made), "b": sp.PCA(3, **made, scale=True, random_state=1)}

    def stop_late(step: Any) -> None:
        if step.phase == "pass 2" and step.rows > N // 2:
            raise _PowerCutError

    seen: list[tuple[str, int]] = []
    with pytest.raises(_PowerCutError):
        sp.fit_many(models(), store, checkpoint=tmp_path / "kept", progress=stop_late)
    fitted = sp.fit_many(
        models(), store, checkpoint=tmp_path / "kept", progress=lambda step: seen.append((step.phase, step.rows))
    )
    assert {rows for phase, rows in seen if phase == "fit"} == {N}  # the first reading is in the checkpoint
    assert not (tmp_path / "kept").exists()
    for name, model in models().items():
        assert_same(fitted[name], model.fit(store))


def test_models_that_do_not_fit_together_are_refused_with_figures(rows: Any) -> None:
    alone = sp.PCA(2).plan(rows)
    room = alone.budget.bytes_for("process") + 3 * 2**20
    with pytest.raises(PlanError, match=r"9 models from one reading: projected .* exceeds the allowed .* fewer models"):
        sp.fit_many({f"m{i}": sp.PCA(2, solver="qr", ddof=i % 3) for i in range(9)}, rows, memory=room)


def test_the_memory_of_all_models_is_the_sum_of_what_each_adds(rows: Any) -> None:
    one, three = (
        sp.fit_many({name: sp.PCA(2) for name in names}, rows).plan_.together.budget for names in ("a", "abc")
    )
    own = one.by_phase["reading"] - one.bytes_for("process") - one.bytes_for("blocks")
    added = three.by_phase["reading"] - three.bytes_for("process") - three.bytes_for("blocks")
    assert added == 3 * own


def test_a_value_that_is_not_finite_is_named_and_no_thread_stays(rows: Any) -> None:
    broken = rows.copy()
    broken[777, 5] = np.nan
    before = threading.active_count()
    with pytest.raises(NotFiniteError, match="row 777, column 5") as caught:
        sp.fit_many(exact(), broken)
    assert not getattr(caught.value, "__notes__", ())  # the reading of all models failed, not one of them
    assert threading.active_count() == before


def test_the_model_that_fails_is_noted(rows: Any) -> None:
    huge = rows * 1e160
    with pytest.raises(sp.StreamPCAError) as caught:
        sp.fit_many(
            {"rbf": sp.PCA(2), "poly": sp.KernelPCA(2, kernel="poly", method="nystrom", n_landmarks=20)}, huge[:400]
        )
    assert any("in the fit of the model" in note for note in getattr(caught.value, "__notes__", ())) or "row" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({}, "expected a mapping of names"),
        ({"a": 3}, "found 'a': int, expected names"),
        ({"a": sp.PCA(2, memory="1GiB")}, "a has memory='1GiB': give it to fit_many"),
    ],
)
def test_wrong_models_are_refused(models: Any, message: str, rows: Any) -> None:
    with pytest.raises(ParameterError, match=message):
        sp.fit_many(models, rows)


def test_one_estimator_with_two_names_is_refused(rows: Any) -> None:
    model = sp.PCA(2)
    with pytest.raises(ParameterError, match="the same estimator has two names"):
        sp.fit_many({"a": model, "b": model}, rows)


def test_feature_names_are_those_of_the_frame(rows: Any) -> None:
    import pandas as pd

    frame = pd.DataFrame(rows[:500], columns=[f"f{i}" for i in range(D)])
    fitted = sp.fit_many({"raw": sp.PCA(2), "z": sp.PCA(2, scale=True)}, frame)
    assert list(fitted["z"].feature_names_in_) == list(frame.columns)


def test_a_scan_of_kernel_parameters_with_shared_landmarks_is_one_reading(store: str, rows: Any) -> None:
    landmarks = rows[:: N // 40]

    def scan() -> dict[str, sp.KernelPCA]:
        return {str(gamma): sp.KernelPCA(3, gamma=gamma, sampling=landmarks) for gamma in (1e-3, 1e-2, 1e-1)}

    fitted = sp.fit_many(scan(), store)
    assert fitted.bytes_read_ == rows.nbytes
    assert fitted.n_passes_ == 1
    for name, alone in scan().items():
        assert_same(fitted[name], alone.fit(store))


@pytest.mark.parametrize("first", [True, False])
def test_later_readings_of_adaptive_leave_the_bits_of_other_models(first: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(183, 14)) @ rng.normal(size=(14, 14)) + 5
    settings = {"solver": "sketch", "sketch_size": 4, "scale": True, "max_passes": 2, "tolerance": 0}
    alone, beside = sp.PCA(2, **settings).fit(x), sp.PCA(2, **settings)
    adaptive = sp.PCA(2, solver="adaptive", sketch_size=4, max_passes=2, tolerance=0)
    models = {"adaptive": adaptive, "beside": beside} if first else {"beside": beside, "adaptive": adaptive}
    plan = sp.fit_many(models, x).plan_
    np.testing.assert_array_equal(beside.components_, alone.components_)
    np.testing.assert_array_equal(beside.explained_variance_, alone.explained_variance_)
    assert plan.together.notes[-1].startswith("adaptive: later readings are in the blocks of other models")


def test_a_model_of_some_features_opens_new_data_as_the_table_was_opened(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 10)).round(1)
    rows[np.random.default_rng(1).random(rows.shape) < 0.1] = -99
    zarr.create_array(tmp_path / "x.zarr", data=rows)
    table, used = sp.open(tmp_path / "x.zarr", missing_value=-99), np.arange(10) < 5
    models = {name: sp.PCA(2, missing="mean") for name in ("all", "some")}
    model = sp.fit_many(models, table, features={"some": used})["some"]
    holes = np.where(rows == -99, np.nan, rows)[:, used]
    np.testing.assert_allclose(
        np.asarray(model.transform(str(tmp_path / "x.zarr"))), np.asarray(model.transform(holes)), atol=1e-12
    )
