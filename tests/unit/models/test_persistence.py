"""Saved models: what `load` gives back, what it refuses, and models of earlier versions."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import facade
import numpy as np
import pytest
from numpy.typing import NDArray
from stores import make_values, resealed

import streampca as sp
from streampca.errors import ModelError, OutputError, ParameterError

OLD_MODELS = Path(__file__).parents[2] / "data" / "models-0.1.0.zip"
ROWS = make_values(60, 5)


def assert_same(loaded: Any, fitted: Any, rows: Any) -> None:
    for name, value in fitted.get_params().items():
        np.testing.assert_equal(loaded.get_params()[name], value, err_msg=name)
        assert type(loaded.get_params()[name]) is type(value)
    for name, value in facade.fitted_attributes(fitted).items():
        np.testing.assert_equal(getattr(loaded, name), value, err_msg=name)
    np.testing.assert_array_equal(loaded.transform(rows), fitted.transform(rows))


# -- what is given back ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_components", [2, np.int64(2), 0.95, sp.Threshold(0.1), None])
def test_pca_has_its_parameters_plan_and_reads_after_loading(tmp_path: Path, n_components: Any) -> None:
    pca = sp.PCA(
        n_components,
        scale=True,
        memory="2GiB",
        random_state=3,
        max_passes=5,
        feature_weight=np.arange(1.0, 6.0),
        checkpoint=tmp_path / "progress",
    ).fit(ROWS)
    loaded = sp.load(pca.save(tmp_path / "model.zarr"))
    if isinstance(n_components, np.integer):
        pca.n_components = int(n_components)
    assert_same(loaded, pca, ROWS)
    assert loaded.plan_ == pca.plan_
    assert loaded.n_passes_ == 1
    assert loaded.bytes_read_ == ROWS.nbytes


def test_sketch_of_several_passes_has_its_certificate_and_passes_after_loading(tmp_path: Path) -> None:
    pca = sp.PCA(2, solver="sketch", sketch="sparse_sign", sketch_size=3, tolerance=0, max_passes=3, pilot=20).fit(ROWS)
    loaded = sp.load(pca.save(tmp_path / "model.zarr"))
    assert_same(loaded, pca, ROWS)
    assert loaded.n_passes_ == 3
    assert loaded.error_ == pca.error_


@pytest.mark.parametrize("sampling", ["uniform", [4, 1, 9, 30], ROWS[:6], ROWS[:6].astype(np.float16)])
def test_kernel_pca_has_its_parameters_plan_and_reads_after_loading(tmp_path: Path, sampling: Any) -> None:
    kernel = sp.kernels.RBF(gamma=0.1) + 2.0 * sp.kernels.Polynomial(degree=2)
    model = sp.KernelPCA(
        3,
        kernel=kernel,
        kernel_params={"unused": 1},
        method="nystrom",
        n_landmarks=10,
        sampling=sampling,
        fit_inverse_transform=True,
        alpha=0.5,
        memory="2GiB",
    ).fit(ROWS)
    loaded = sp.load(model.save(tmp_path / "model.zarr"))
    model.sampling = sampling if isinstance(sampling, str) else np.asarray(loaded.sampling)
    np.testing.assert_array_equal(model.sampling, sampling)
    assert_same(loaded, model, ROWS)
    np.testing.assert_array_equal(loaded.inverse_transform(ROWS[:, :3]), model.inverse_transform(ROWS[:, :3]))


def test_exact_kernel_pca_with_a_named_kernel_has_eigenvectors_after_loading(tmp_path: Path) -> None:
    model = sp.KernelPCA(3, kernel="poly", degree=2, gamma=0.5).fit(ROWS)
    loaded: Any = sp.load(model.save(tmp_path / "model.zarr"))
    assert (loaded.kernel, loaded.gamma, loaded.n_landmarks) == ("poly", 0.5, 1000)
    assert_same(loaded, model, ROWS)
    np.testing.assert_array_equal(loaded.eigenvectors_, model.eigenvectors_)


def test_what_is_no_data_has_its_default_after_loading(tmp_path: Path) -> None:
    pca = sp.PCA(2, progress=lambda _: None).fit(ROWS)
    assert sp.load(pca.save(tmp_path / "model.zarr")).progress is None


@pytest.mark.parametrize("model", ["{kind: pca, n_components: 0.9}", "{kind: kernel_pca, n_components: 2}"])
def test_model_of_a_run_has_parameters_plan_and_reads(tmp_path: Path, model: str) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    (tmp_path / "run.yaml").write_text(
        f"version: 1\nname: a\nsource: {{path: {tmp_path}/x.npy}}\nmodel: {model}\nseed: 4\nresources: {{memory: 2GiB}}\n"
        f"output: {{directory: {tmp_path}/out, scores: false, report: false}}\n"
    )
    run = sp.run(tmp_path / "run.yaml")
    loaded: Any = run.model
    assert loaded.n_components == (0.9 if isinstance(loaded, sp.PCA) else 2)
    assert (loaded.memory, loaded.random_state) == (2 * 2**30, 4)
    assert loaded.n_passes_ == run.manifest["passes"]
    assert loaded.bytes_read_ == run.manifest["reads"]["fit"]["bytes"]
    assert json.loads(json.dumps(loaded.plan_.to_dict())) == json.loads((tmp_path / "out/plan.json").read_text())


def test_model_copied_out_of_a_run_loads(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    (tmp_path / "run.yaml").write_text(
        f"version: 1\nname: a\nsource: {{path: {tmp_path}/x.npy}}\nmodel: {{kind: pca, n_components: 2}}\n"
        f"output: {{directory: {tmp_path}/out, scores: false, report: false}}\n"
    )
    sp.run(tmp_path / "run.yaml")
    (tmp_path / "out/model.zarr").rename(tmp_path / "copy.zarr")
    assert sp.load(tmp_path / "copy.zarr").n_components_ == 2


def test_plan_of_blocks_of_unequal_size_is_kept(tmp_path: Path) -> None:
    lazy = da.from_array(ROWS, chunks=((7, 30, 23), 5))
    pca = sp.PCA(2).fit(lazy)
    assert sp.load(pca.save(tmp_path / "model.zarr")).plan_ == pca.plan_


@pytest.mark.parametrize("solver", ["covariance", "sketch", "adaptive"])
def test_plan_that_lacks_the_memory_of_phases_is_read(tmp_path: Path, solver: str) -> None:
    """As plans of version 0.1.0 do."""
    place = sp.PCA(2, solver=solver).fit(ROWS).save(tmp_path / "model.zarr")
    plan = sp.load(place).plan_
    resealed(place, lambda attributes: attributes["fit"]["plan"].pop("memory_by_phase"))
    older = sp.load(place).plan_
    assert (str(older), older.projected_bytes, older.leaves()) == (str(plan), plan.projected_bytes, plan.leaves())


def test_state_of_a_loaded_model_is_continued_with_its_rule_for_components(tmp_path: Path) -> None:
    pca = sp.PCA(0.8).partial_fit(ROWS[:30])
    loaded: Any = sp.load(pca.save(tmp_path / "model.zarr", state=True))
    assert loaded.n_components == 0.8
    assert loaded.bytes_read_ == ROWS[:30].nbytes
    loaded.partial_fit(ROWS[30:])
    pca.partial_fit(ROWS[30:])
    np.testing.assert_array_equal(loaded.components_, pca.components_)
    merged = sp.merge([sp.PCA(0.8).fit(ROWS[:30]), sp.PCA(0.8).fit(ROWS[30:])])
    again = sp.load(merged.save(tmp_path / "merged.zarr"))
    assert not hasattr(again, "plan_")
    assert_same(again, merged, ROWS)


FITTED: dict[str, Callable[[], Any]] = {
    "pca": lambda: sp.PCA(2).fit(ROWS),
    "rotated": lambda: sp.PCA(2).fit(ROWS).rotate(2),
    "kernel": lambda: sp.KernelPCA(2).fit(ROWS),
    "mca": lambda: sp.MCA(2, first=3).fit(ROWS),
    "mca of components": lambda: sp.MCA(2, first=3, n_pca=2).fit(ROWS),
    "cca": lambda: sp.CCA(2, first=3).fit(ROWS),
    "factors": lambda: sp.FactorAnalysis(2).fit(ROWS),
}


@pytest.mark.parametrize("kind", FITTED)
def test_a_model_of_any_kind_is_replaced_but_not_an_array_that_is_not_its_own(kind: str, tmp_path: Path) -> None:
    fitted, path = FITTED[kind](), tmp_path / "model.zarr"
    state = {"state": True} if kind in ("pca", "mca", "cca", "factors") else {}
    fitted.save(path, **state)
    np.testing.assert_array_equal(sp.load(fitted.save(path, overwrite=True)).transform(ROWS), fitted.transform(ROWS))
    (path / "prices").mkdir()
    with pytest.raises(OutputError, match="holds prices, which streampca did not write"):
        fitted.save(path, overwrite=True)


def test_a_model_that_is_replaced_while_it_is_loaded_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    fitted, path, done = [sp.PCA(3).fit(make_values(n, 40)) for n in (60, 90)], tmp_path / "model", threading.Event()

    def replace_again_and_again() -> None:
        while not done.is_set():
            for pca in fitted:
                pca.save(path, overwrite=True, state=True)

    fitted[0].save(path, state=True)
    writer = threading.Thread(target=replace_again_and_again)
    writer.start()
    try:
        for _ in range(10):
            loaded = sp.load(path)
            whole = fitted[loaded.n_samples_seen_ == 90]
            assert np.array_equal(loaded.components_, whole.components_)
            loaded.partial_fit(ROWS[:1] @ np.ones((5, 40)))  # whose state is that of the same rows
            assert loaded.n_samples_seen_ == whole.n_samples_seen_ + 1
    finally:
        done.set()
        writer.join()
    with pytest.raises(ModelError, match="no such model"):
        sp.load(tmp_path / "none")


def test_clone_of_a_loaded_model_fits_the_same(tmp_path: Path) -> None:
    from sklearn.base import clone

    pca = sp.PCA(0.9, scale=True, solver="qr").fit(ROWS)
    again = clone(sp.load(pca.save(tmp_path / "model.zarr"))).fit(ROWS)
    np.testing.assert_array_equal(again.components_, pca.components_)


# -- models that did not load ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:explained_variance_ratio_ sums to")
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_conversion_with_few_features_loads(tmp_path: Path, d: int, scale: bool) -> None:
    """Its eigenvalues may add up to more than the total variance."""
    pca = sp.PCA(1, solver="sketch", recovery="conversion", sketch="count_sketch", pilot=0, scale=scale).fit(
        ROWS[:, :d]
    )
    assert_same(sp.load(pca.save(tmp_path / "model.zarr")), pca, ROWS[:, :d])


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch"])
def test_one_row_of_a_weight_above_ddof_loads(tmp_path: Path, solver: str) -> None:
    pca = sp.PCA(1, solver=solver, pilot=0).fit(ROWS, sample_weight=[3.0, *[0.0] * 59])
    assert_same(sp.load(pca.save(tmp_path / "model.zarr")), pca, ROWS)


def _named(estimator: Any, names: list[str]) -> Any:
    """Return a fitted estimator as if its features had these names, of which tables refuse some."""
    estimator._model = replace(estimator._model, source=estimator._model.source | {"feature_names": names})
    return estimator


def test_names_of_200_000_features_load(tmp_path: Path) -> None:
    d = 200_000
    names = [f"a name of 54 characters, as of probes on a chip {i:06d}" for i in range(d)]
    pca = sp.PCA(1, solver="gram").fit(make_values(3, d))
    place = _named(pca, names).save(tmp_path / "model.zarr")
    assert sp.load(place).feature_names_in_.tolist() == names
    assert (place / "zarr.json").stat().st_size < 2**20
    kernel = sp.KernelPCA(1, kernel="linear").fit(make_values(3, d))
    assert sp.load(_named(kernel, names).save(tmp_path / "kernel.zarr")).feature_names_in_.tolist() == names


@pytest.mark.parametrize("names", [["", "", "", "", ""], ["ä", "\ud800", "日本語", "\x00", "a\nb"], list("aaaaa")])
def test_names_of_any_text_load(tmp_path: Path, names: list[str]) -> None:
    pca = _named(sp.PCA(1).fit(ROWS), names)
    loaded = sp.load(pca.save(tmp_path / "model.zarr", state=True))
    assert loaded.feature_names_in_.tolist() == names
    again = sp.load(loaded.save(tmp_path / "again.zarr", state=True))
    assert again.feature_names_in_.tolist() == names


# -- what is refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pca", "kernel"])
def test_model_without_commit_record_is_refused(tmp_path: Path, kind: str) -> None:
    model: Any = sp.PCA(2) if kind == "pca" else sp.KernelPCA(2)
    place = model.fit(ROWS).save(tmp_path / "model.zarr")
    record = (place / "streampca.json").read_text()
    for found in (None, "", "{}", '{"format": "streampca-scores"}', "[1]"):
        (place / "streampca.json").unlink()
        if found is not None:
            (place / "streampca.json").write_text(found)
        with pytest.raises(ModelError, match="has no commit record"):
            sp.load(place)
        (place / "streampca.json").write_text(record)
    assert sp.load(place).n_components_ == 2


@pytest.mark.parametrize("kind", ["pca", "kernel"])
@pytest.mark.parametrize("version", [3, 17, 1.0, True, "2", None])
def test_model_of_another_version_is_refused(tmp_path: Path, kind: str, version: Any) -> None:
    model: Any = sp.PCA(2) if kind == "pca" else sp.KernelPCA(2)
    place = model.fit(ROWS).save(tmp_path / "model.zarr")

    def change(attributes: dict[str, Any]) -> None:
        attributes["version"] = version
        attributes["fit"]["written_by"] = "0.9.0"

    resealed(place, change)
    later = ": streampca 0.9.0 wrote it; load it with that version" if type(version) is int else "$"
    with pytest.raises(ModelError, match=f"format version {version!r}, expected 1 or 2{later}"):
        sp.load(place)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda fit: fit["parameters"].update(rotate=True), "parameter 'rotate', which streampca .* does not have"),
        (lambda fit: fit["parameters"].update(max_passes=0), "max_passes=0"),
        (lambda fit: fit["parameters"].update(n_components={"threshold": 3}), "n_components is damaged"),
        (lambda fit: fit["parameters"].update(n_components={"share": 0.5}), "n_components is .* does not know"),
        (lambda fit: fit["parameters"].update(feature_weight={"array": "no"}), "feature_weight is damaged"),
        (lambda fit: fit["plan"].update(n_features=4), "plan is that of 4 features, not of 5"),
        (lambda fit: fit["plan"].update(passes="many"), "passes of its plan is 'many'"),
        (lambda fit: fit["plan"].update(memory=[1]), "its plan is damaged"),
        (lambda fit: fit["plan"].update(unheard_of=1), "its plan is damaged"),
        (lambda fit: fit["plan"].pop("solver"), "its plan is damaged"),
        (lambda fit: fit.update(n_passes=-1), "record of its fit is damaged"),
        (lambda fit: fit.update(bytes_read="1"), "record of its fit is damaged"),
        (lambda fit: fit.pop("plan"), "record of its fit is damaged"),
    ],
)
def test_damaged_record_of_the_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    place = sp.PCA(2).fit(ROWS).save(tmp_path / "model.zarr")
    resealed(place, lambda attributes: change(attributes["fit"]))
    with pytest.raises(ModelError, match=words):
        sp.load(place)


def test_names_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    place = _named(sp.PCA(1).fit(ROWS), [*"abcde"]).save(tmp_path / "model.zarr")
    import zarr

    def replaced(name: str, values: NDArray[Any]) -> None:
        zarr.open_array(place / name, mode="r+")[...] = values
        digest = hashlib.sha256(values.tobytes()).hexdigest()
        resealed(place, lambda attributes: attributes["sha256"].update({name: digest}))

    for ends in ([1, 2, 3, 4, 6], [1, 3, 2, 4, 5], [-1, 2, 3, 4, 5]):
        replaced("feature_name_ends", np.array(ends))
        with pytest.raises(ModelError, match="feature names are not 5 texts"):
            sp.load(place)
    replaced("feature_name_ends", np.arange(1, 6))
    replaced("feature_name_bytes", np.full(5, 255, dtype=np.uint8))
    with pytest.raises(ModelError, match="feature names are not 5 texts"):
        sp.load(place)


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    pca = sp.PCA(2).fit(ROWS)
    pca.set_params(max_passes=0)
    with pytest.raises(ParameterError, match="max_passes=0"):
        pca.save(tmp_path / "model.zarr")
    pca.set_params(max_passes=2, feature_weight=np.ones(5))
    with pytest.raises(ModelError, match="feature_weight was changed after the fit"):
        pca.save(tmp_path / "model.zarr")
    kernel = sp.KernelPCA(2, kernel_params={"remarks": "x" * 9 * 2**20}).fit(ROWS)
    with pytest.raises(ModelError, match=r"is not saved.*at most 8,388,608 of metadata"):
        kernel.save(tmp_path / "model.zarr")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ParameterError, match="tolerance=inf: expected a finite number"):
        sp.PCA(2, tolerance=float("inf")).fit(ROWS)


# -- earlier versions ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def old_models(tmp_path: Path) -> Path:
    """Return a directory with models and a run that streampca 0.1.0 wrote, the rows, and the scores it gave."""
    with zipfile.ZipFile(OLD_MODELS) as archive:
        archive.extractall(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["pca", "pca-state", "sketch", "kernel"])
def test_models_of_version_0_1_0_load(old_models: Path, name: str) -> None:
    rows: Any = np.load(old_models / "x.npy")
    model: Any = sp.load(old_models / f"{name}.zarr")
    known = name in ("pca", "kernel")
    assert (list(getattr(model, "feature_names_in_", [])) == [*"abcd"]) == known
    rows = pytest.importorskip("pandas").DataFrame(rows, columns=[*"abcd"]) if known else rows
    expected = np.load(old_models / f"scores-{name}.npy")
    np.testing.assert_allclose(model.transform(rows), expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())
    assert not hasattr(model, "plan_")
    if name == "pca-state":
        assert model.partial_fit(rows).n_samples_seen_ == 80
    model = sp.load(old_models / f"{name}.zarr")
    again: Any = sp.load(model.save(old_models / "again.zarr"))
    assert again.get_params().keys() == model.get_params().keys()
    assert list(getattr(again, "feature_names_in_", [])) == list(getattr(model, "feature_names_in_", []))


def test_run_of_version_0_1_0_loads_and_a_copy_of_its_model_is_refused(old_models: Path) -> None:
    assert sp.load(old_models / "run").n_components_ == 2
    assert sp.load(old_models / "run/model.zarr").solver_ == "covariance"
    (old_models / "run/model.zarr").rename(old_models / "copy.zarr")
    with pytest.raises(ModelError, match="has no commit record"):
        sp.load(old_models / "copy.zarr")
