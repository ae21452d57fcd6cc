"""Components of wide data on disk, and weights and missing values of the Gram solver."""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import facade
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from stores import Command, call_apart

import streampca as sp
from streampca.errors import (
    DataError,
    ModelError,
    NoSpaceError,
    NotAvailableError,
    NotFiniteError,
    PlanError,
)
from streampca.models.persistence import models as store

pytestmark = pytest.mark.numerical

MIB = 2**20


def wide(n: int = 60, d: int = 30_011, dtype: str = "f8", seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    strong = (rng.standard_normal((n, 20)) * np.arange(1, 21) ** -0.7) @ rng.standard_normal((20, d))
    return (strong + 0.05 * rng.standard_normal((n, d)) + 5).astype(dtype)


def both(rows: NDArray[Any], k: int | None = 8, **parameters: Any) -> tuple[Any, Any]:
    """Return models with components in memory and on disk."""
    given: dict[str, Any] = {"k": k, "solver": "gram", **parameters}
    plan = facade.plan(rows, allowed=2**40, **given)
    assert not plan.components_on_disk
    return tuple(  # type: ignore[return-value]
        facade.fit(rows, plan.replace(components_on_disk=on_disk), **given).model for on_disk in (False, True)
    )


K = 24
LARGE = wide(28, 250_000, "f4")


def beside_little_memory(**parameters: Any) -> sp.PCA:
    """Return a fit of `LARGE` rows under a ceiling that leaves no room for the components."""
    pca = sp.PCA(K, solver="gram", **parameters)
    with facade.blocks_of(50_000), facade.process_of(150 * MIB):
        pca.set_params(memory=(150 + 24 + 34) * MIB).fit(LARGE)
    assert pca.plan_.components_on_disk
    return pca.set_params(memory=None)


def in_memory(**parameters: Any) -> sp.PCA:
    """Return the fit of `LARGE` rows in the same blocks without a ceiling."""
    with facade.blocks_of(50_000):
        return sp.PCA(K, solver="gram", **parameters).fit(LARGE)


@pytest.fixture(scope="module")
def far() -> sp.PCA:
    """Return a fit with components on disk."""
    return beside_little_memory()


@pytest.fixture(scope="module")
def near() -> sp.PCA:
    """Return the same fit with components in memory."""
    return in_memory()


@pytest.fixture(scope="module")
def saved(far: sp.PCA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the fit with components on disk is saved."""
    place = tmp_path_factory.mktemp("saved") / "model"
    far.save(place)
    return place


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have one byte less available than four times what the components take, above which they are loaded."""
    monkeypatch.setattr(store, "available_bytes", lambda: 4 * 8 * K * LARGE.shape[1] - 1)


@pytest.mark.parametrize(
    ("n", "d", "k", "dtype"), [(60, 30_011, 8, "f8"), (60, 30_011, 8, "f4"), (12, 100_003, None, "f8")]
)
def test_on_disk_they_are_what_they_are_in_memory(dtype: str, n: int, d: int, k: int | None) -> None:
    rows = wide(n, d, dtype)
    near, far = both(rows, k)
    components = far.decode(np.eye(len(near.components))) - far.mean
    np.testing.assert_allclose(components, near.components, rtol=0, atol=1e-14 * np.abs(near.mean).max())
    np.testing.assert_array_equal(far.explained_variance, near.explained_variance)
    assert far.certificate["orthonormality"] <= 1e-12
    # Sums over slabs are rounded elsewhere than one product: float32 scores by its rounding, float64 by its own.
    scores = near.encode(rows)
    error = (1e-5 if dtype == "f4" else 1e-13) * np.abs(scores).max()
    np.testing.assert_allclose(far.encode(rows), scores, rtol=0, atol=error)
    np.testing.assert_allclose(far.decode(scores), near.decode(scores), atol=error)


def test_components_on_disk_are_orthonormal_and_have_their_signs(far: sp.PCA, near: sp.PCA) -> None:
    components = far.components_[...]
    np.testing.assert_array_equal(components, near.components_)
    assert np.abs(components @ components.T - np.eye(K)).max() <= 1e-12
    assert (components[np.arange(K), np.abs(components).argmax(axis=1)] > 0).all()


@pytest.mark.parametrize("whiten", [False, True])
def test_z_scores_weights_of_features_and_missing_values_transform_alike(whiten: bool) -> None:
    rows = wide(40, 20_000)
    rows[3, ::7], rows[:, 11] = np.nan, 2.0
    area = np.random.default_rng(1).random(20_000)
    area[5] = 0
    near, far = both(rows, 5, scale=True, whiten=whiten, missing="mean", feature_weight=area)
    np.testing.assert_allclose(far.encode(rows), near.encode(rows), atol=1e-10)
    back, expected = (m.decode(near.encode(rows)) for m in (far, near))
    np.testing.assert_allclose(back, expected, atol=1e-10)


def test_the_plan_puts_them_on_disk_where_they_do_not_fit() -> None:
    rows = np.lib.stride_tricks.as_strided(np.zeros(1, "f4"), (64, 5_000_000), (0, 0))

    def planned(allowed: int) -> Any:
        return facade.plan(rows, allowed=allowed * MIB, k=40, solver="gram")

    roomy, tight = planned(4000), planned(900)
    assert (roomy.components_on_disk, roomy.disk_bytes) == (False, 0)
    assert roomy.memory["components"] > 8 * 40 * 5_000_000
    assert (tight.components_on_disk, tight.disk_bytes) == (True, 8 * 40 * 5_000_000)
    assert tight.projected_bytes <= tight.allowed_bytes
    assert tight.memory["components"] <= 100 * MIB
    assert any("on disk, up to 1.5 GiB" in note for note in tight.notes)
    assert not any("on disk" in note for note in roomy.notes)
    with pytest.raises(PlanError, match="means and variances of 5,000,000 features take 48 bytes each"):
        planned(300)


class Wide(facade.Unread):
    """A table of few rows and many features that must not be read."""

    def by_features(self) -> Any:
        return facade.Unread((self.shape[1], self.shape[0]))


def test_no_room_is_said_before_anything_is_read() -> None:
    rows = Wide((64, 10**12), chunk_rows=1)
    plan = facade.plan(rows, allowed=10**14, k=40, solver="gram")
    with pytest.raises(NoSpaceError, match="are free"):
        facade.fit(rows, plan, k=40, solver="gram")


@pytest.mark.slow
def test_the_directory_goes_with_the_estimator_and_its_array() -> None:
    pca = beside_little_memory()
    array: Any = pca.components_
    path = Path(str(array.store).partition("file://")[2])
    assert path.is_dir()
    assert isinstance(array, zarr.Array)
    assert (array.shape, pca.n_components_) == ((K, 250_000), K)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1.0
    twin, pickled = copy.deepcopy(pca), pickle.dumps(pca)
    assert len(pickled) < array.nbytes / 2
    few = LARGE[:3]
    for other in (twin, pickle.loads(pickled)):
        np.testing.assert_array_equal(other.transform(few), pca.transform(few))
    del pca, twin, other
    gc.collect()
    assert np.isfinite(array[:, :100]).all()
    del array
    gc.collect()
    assert not path.exists()
    with pytest.raises(ModelError, match="temporary directory"):
        pickle.loads(pickled).transform(few)


def test_what_needs_them_in_memory_says_so(far: sp.PCA) -> None:
    for ask in (far.get_covariance, far.get_precision, lambda: far.score(LARGE)):
        with pytest.raises(NotAvailableError, match="needs the components in memory"):
            ask()
    assert len(far.get_feature_names_out()) == K


@pytest.mark.slow
def test_saved_and_loaded(
    far: sp.PCA, near: sp.PCA, saved: Path, tmp_path: Path, capsys: Any, request: pytest.FixtureRequest
) -> None:
    near.save(tmp_path / "near")
    said = [json.loads((path / "zarr.json").read_text())["attributes"]["sha256"] for path in (tmp_path / "near", saved)]
    assert said[0]["components"] == said[1]["components"]
    assert said[0]["components"].startswith("rows:")
    loaded = sp.load(saved)
    assert isinstance(loaded, sp.PCA)
    assert isinstance(loaded.components_, np.ndarray)
    np.testing.assert_array_equal(loaded.components_, near.components_)
    done = Command(capsys)("inspect", saved, "--json")
    assert json.loads(done.out)["components"] == [K, 250_000]
    request.getfixturevalue("little_memory")
    kept = sp.load(saved)
    assert isinstance(kept, sp.PCA)
    assert isinstance(kept.components_, zarr.Array)
    few = LARGE[:5]
    np.testing.assert_array_equal(kept.transform(few), far.transform(few))
    kept.save(saved, overwrite=True)  # over the files that it reads from
    np.testing.assert_array_equal(kept.transform(few), far.transform(few))
    whole = sp.load(tmp_path / "near")
    assert isinstance(whole, sp.PCA)
    assert isinstance(whole.components_, np.ndarray)  # as whole rows: no slabs to read


@pytest.mark.parametrize("damage", ["bytes", "gone", "values", "digest"])
@pytest.mark.usefixtures("little_memory")
def test_damage_to_components_on_disk_is_found(saved: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(saved, tmp_path / "model")
    chunk = tmp_path / "model" / "components" / "c" / "0" / "1"
    if damage == "gone":
        chunk.unlink()
    elif damage == "bytes":
        chunk.write_bytes(chunk.read_bytes()[:-9])
    elif damage == "values":
        zarr.open_array(tmp_path / "model" / "components", mode="r+")[2, 3] = np.nan
    else:
        meta = tmp_path / "model" / "zarr.json"
        meta.write_text(meta.read_text().replace('"rows:', '"rows:0'))
    with pytest.raises(ModelError):
        sp.load(tmp_path / "model")


def test_models_of_early_versions_load(tmp_path: Path) -> None:
    pca = sp.PCA(3, solver="gram").fit(wide(20, 3000))
    pca.save(tmp_path / "model")
    meta = tmp_path / "model" / "zarr.json"
    said = json.loads(meta.read_text())
    said["attributes"]["sha256"]["components"] = hashlib.sha256(np.asarray(pca.components_).tobytes()).hexdigest()
    del said["attributes"]["seal"]
    meta.write_text(json.dumps(said))
    loaded = sp.load(tmp_path / "model")
    assert isinstance(loaded, sp.PCA)
    np.testing.assert_array_equal(loaded.components_, pca.components_)


def test_scores_of_wide_chunks_are_written(far: sp.PCA, near: sp.PCA, tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x.zarr", shape=LARGE.shape, chunks=(28, 4000), dtype="f4", compressors=None)
    array[...] = LARGE
    written: Any = zarr.open_group(far.transform_to(tmp_path / "x.zarr", tmp_path / "scores"), mode="r")
    expected = near.transform(LARGE)
    np.testing.assert_allclose(written["scores"][:], expected, atol=1e-5 * np.abs(expected).max())
    array[7, 31_234] = np.inf
    with pytest.raises(NotFiniteError, match="row 7, column 31234"):
        far.transform_to(tmp_path / "x.zarr", tmp_path / "none")


@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("parameters", [{"whiten": True}, {"missing": "mean"}], ids=str)
def test_t2_and_q_of_components_on_disk_are_those_of_components_in_memory(
    tmp_path: Path, parameters: dict[str, Any]
) -> None:
    rows = LARGE[:6].astype("f8")
    if "missing" in parameters:
        rows[np.random.default_rng(1).random(rows.shape) < 0.05] = np.nan
    written: dict[str, Any] = {}
    for name, pca in (
        ("disk", beside_little_memory(**parameters)),
        ("roomy", in_memory(**parameters)),
    ):
        written[name] = zarr.open_group(pca.transform_to(rows, tmp_path / name, diagnostics=True), mode="r")
    for array in ("scores", "t2", "q"):
        found, expected = (written[name][array][:] for name in ("disk", "roomy"))
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9 * np.abs(expected).max())


@pytest.mark.deep
def test_a_run_and_the_transform_command_beside_little_memory(tmp_path: Path, capsys: Any) -> None:
    rows = wide(64, 200_000, "f4")
    array = zarr.create_array(tmp_path / "x.zarr", shape=rows.shape, chunks=(64, 4096), dtype="f4", compressors=None)
    array[...] = rows
    out = tmp_path / "out"
    (tmp_path / "run.yaml").write_text(
        f"source: {{path: {tmp_path / 'x.zarr'}}}\nmodel: {{n_components: 50, solver: gram}}\n"
        f"resources: {{memory: 340MiB}}\noutput: {{directory: {out}}}\n"
    )
    done = call_apart("run", "run.yaml", "--quiet", directory=tmp_path)
    assert done.status == 0, done.err
    assert Command(capsys).quietly("transform", out, tmp_path / "x.zarr", tmp_path / "s").status == 0
    plan, manifest = (json.loads((out / f"{name}.json").read_text()) for name in ("plan", "manifest"))
    assert plan["components_on_disk"]
    memory = manifest["memory"]
    assert memory["peak_bytes"] <= memory["projected_bytes"] <= memory["allowed_bytes"]
    page = (out / "report.html").read_text()
    assert "stored in slabs of features" in page
    assert "largest of 200,000 entries" in page
    centred = rows - rows.mean(axis=0, dtype="f8")
    values, left = (found[..., ::-1][..., :11] for found in np.linalg.eigh(centred @ centred.T))
    components = (left / np.sqrt(values)).T[:10] @ centred
    components *= np.sign(components[np.arange(10), np.abs(components).argmax(axis=1)])[:, None]
    gaps = np.minimum(np.abs(np.diff(values, prepend=np.inf)), np.abs(np.diff(values, append=0.0)))[:10]
    # By how much rounding may turn each component, in radians (Davis & Kahan 1970).
    turned = 4 * sp.load(out / "model.zarr").error_["trusted_above"] * values[0] / gaps
    assert turned.max() < 0.01
    lengths = np.linalg.norm(centred, axis=1)[:, None]
    rounding = 4 * np.sqrt(rows.shape[1]) * np.finfo(np.float32).eps
    for path in (out / "scores.zarr", tmp_path / "s"):
        scores: Any = zarr.open_array(path / "scores", mode="r")[:, :10]
        assert (np.abs(scores - centred @ components.T) / lengths <= turned + rounding).all()
    found: Any = zarr.open_array(out / "model.zarr" / "components", mode="r")[:10]
    assert (np.linalg.norm(found - components, axis=1) <= turned + rounding).all()


WEIGHTS: dict[str, Any] = {
    "none": None,
    "counts": np.random.default_rng(2).integers(0, 4, 60).astype(float),
    "fractions": np.random.default_rng(2).random(60) + 0.1,
    "far apart": 10.0 ** np.random.default_rng(2).integers(-3, 4, 60),
}


@pytest.mark.parametrize(
    ("weights", "missing", "center", "scale"),
    [
        ("none", "error", False, True),
        ("none", "mean", True, True),
        ("counts", "error", True, True),
        ("counts", "mean", False, False),
        ("fractions", "error", False, False),
        ("fractions", "mean", True, True),
        ("far apart", "error", True, False),
        ("far apart", "mean", False, True),
    ],
)
def test_weights_and_missing_values_equal_the_covariance(weights: str, missing: str, center: bool, scale: bool) -> None:
    rows = wide(60, 401)
    rng = np.random.default_rng(5)
    if missing == "mean":
        rows[rng.random(rows.shape) < 0.1] = np.nan
    options: dict[str, Any] = {"center": center, "scale": scale, "missing": missing, "feature_weight": rng.random(401)}
    left, right = (
        sp.PCA(6, solver=solver, **options).fit(rows, sample_weight=WEIGHTS[weights])
        for solver in ("gram", "covariance")
    )
    np.testing.assert_allclose(left.explained_variance_, right.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(left.components_, right.components_, atol=1e-10)
    np.testing.assert_allclose(left.mean_, right.mean_, atol=1e-12)
    assert left.total_variance_ == pytest.approx(right.total_variance_, rel=1e-10)
    assert left.noise_variance_ == pytest.approx(right.noise_variance_, rel=1e-10)
    np.testing.assert_allclose(left.singular_values_, right.singular_values_, rtol=1e-10)
    np.testing.assert_allclose(left.transform(rows), right.transform(rows), atol=1e-8)
    assert left.n_samples_seen_ == right.n_samples_seen_
    for name in ("missing_values", "rows_left_out"):
        assert left.error_.get(name) == right.error_.get(name)


@pytest.mark.parametrize("dtype", ["f4", "f2", "u1", "i2"])
def test_weights_of_every_type(dtype: str) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((40, 800)) * 20 + 100).astype(dtype)
    weights = rng.integers(0, 3, 40)
    left = sp.PCA(3, solver="gram").fit(rows, sample_weight=weights)
    right = sp.PCA(3, solver="covariance").fit(np.repeat(rows.astype("f8"), weights, axis=0))
    np.testing.assert_allclose(left.explained_variance_, right.explained_variance_, rtol=1e-6)


def test_weights_are_repeated_rows_and_rows_of_weight_0_are_not_looked_at() -> None:
    rows, counts = wide(30, 700), np.random.default_rng(0).integers(0, 4, 30)
    spoilt = rows.copy()
    spoilt[counts == 0, 5] = np.nan
    left = sp.PCA(4, solver="gram").fit(spoilt, sample_weight=counts)
    right = sp.PCA(4, solver="gram").fit(np.repeat(rows, counts, axis=0))
    np.testing.assert_allclose(left.explained_variance_, right.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(left.components_, right.components_, atol=1e-11)


def run_with_weights(place: Path, rows: Any, weights: Any, k: int | None, missing: str) -> Any:
    """Return the run of rows, whose scores come with the fit."""
    np.save(place / "x.npy", rows)
    np.save(place / "w.npy", weights)
    config = {
        "source": {"path": str(place / "x.npy")},
        "preprocess": {"scale": True, "missing": missing, "sample_weight": str(place / "w.npy")},
        "model": {"n_components": k, "solver": "gram"},
        "output": {"directory": str(place / "run"), "report": False},
    }
    return sp.run(config)


@pytest.mark.parametrize(("k", "missing"), [(4, "error"), (None, "error"), (4, "mean")])
def test_scores_of_all_rows_come_with_the_fit(k: int | None, missing: str, tmp_path: Path) -> None:
    rows, weights = wide(30, 700), np.random.default_rng(0).integers(0, 4, 30).astype(float)
    if missing == "mean":
        rows[np.random.default_rng(1).random(rows.shape) < 0.05] = np.nan
    run = run_with_weights(tmp_path, rows, weights, k, missing)
    scores: Any = zarr.open_array(tmp_path / "run" / "scores.zarr" / "scores", mode="r")[...]
    assert scores.shape == (30, k or np.count_nonzero(weights) - 1)
    np.testing.assert_allclose(scores, run.model.transform(rows), atol=1e-9)


def test_a_row_of_weight_0_that_has_no_scores_is_named(tmp_path: Path) -> None:
    rows, weights = wide(30, 700), np.ones(30)
    rows[9, 3], weights[9] = np.nan, 0
    with pytest.raises(NotFiniteError, match="row 9, of weight 0"):
        run_with_weights(tmp_path, rows, weights, 4, "error")


def test_what_is_refused_names_what_is_wrong() -> None:
    rows = wide(30, 700)
    with pytest.raises(DataError, match="weight 1 gives no variance with ddof=1"):
        sp.PCA(3, solver="gram").fit(rows, sample_weight=np.full(30, 1 / 30))
    rows[:, 17] = np.nan
    with pytest.raises(DataError, match=r"no values observed for 1 feature, first: feature 17"):
        sp.PCA(3, solver="gram", missing="mean").fit(rows)
    rows[4, 17] = np.inf
    with pytest.raises(NotFiniteError, match="infinity: first at row 4, column 17"):
        sp.PCA(3, solver="gram", missing="mean").fit(rows)
    weights = np.ones(30)
    weights[:2], rows[1, 8], rows[3, 8] = 0, np.nan, np.nan
    with pytest.raises(NotFiniteError, match="NaN: first at row 3, column 8"):
        sp.PCA(3, solver="gram").fit(rows, sample_weight=weights)
    for missing in ("drop_rows", "pairwise"):
        with pytest.raises(NotAvailableError, match="use solver='covariance' or missing='mean'"):
            sp.PCA(3, solver="gram", missing=missing).fit(rows)


def test_auto_takes_gram_for_wide_data_with_weights_or_missing_values() -> None:
    rows = wide(30, 700)
    assert sp.PCA(3).fit(rows, sample_weight=np.arange(30)).solver_ == "gram"
    rows[2, 2] = np.nan
    assert sp.PCA(3, missing="mean").fit(rows).solver_ == "gram"
    assert sp.PCA(3, missing="drop_rows").fit(rows).solver_ == "covariance"


def test_values_that_leave_float32_survive_weights_and_holes() -> None:
    rows = (wide(40, 800) - 5).astype("f4")
    rows[3, 5], weights = np.nan, np.random.default_rng(0).random(40)
    expected = sp.PCA(3, solver="gram", missing="mean").fit(rows.astype("f8"), sample_weight=weights)
    for factor in (1e-25, 1e25):
        tiny = (rows.astype("f8") * factor).astype("f4")
        found = sp.PCA(3, solver="gram", missing="mean").fit(tiny, sample_weight=weights)
        np.testing.assert_allclose(found.explained_variance_ / factor**2, expected.explained_variance_, rtol=1e-5)
