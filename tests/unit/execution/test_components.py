"""Components of wide data on disk, and weights and missing values of the Gram solver."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import streampca as sp
from streampca.accumulators.gram import Gram
from streampca.block import Block
from streampca.errors import (
    DataError,
    ModelError,
    NoSpaceError,
    NotAvailableError,
    NotFiniteError,
    ParameterError,
    PlanError,
)
from streampca.estimators.pca import PCA
from streampca.execution.components import Summary, drawn, make_orthonormal, orthonormalising
from streampca.execution.fold import fold
from streampca.execution.write import write_known_scores, write_scores
from streampca.models.persistence import pca as store
from streampca.models.persistence.groups import SEAL, digest
from streampca.models.persistence.models import load_model, save_model
from streampca.models.stored_components import StoredComponents, slab_features, survey
from streampca.planning.plan import Plan, Resources
from streampca.planning.scores import plan_scores
from streampca.runs.inspection import inspect_path
from streampca.solvers.fit import Fit, Parameters, fit
from streampca.solvers.gram import GramSolver
from streampca.sources import open_source
from streampca.storage import directories as output
from streampca.storage.directories import AtomicDirectory

pytestmark = pytest.mark.numerical

MIB = 2**20


def wide(n: int = 60, d: int = 30_011, dtype: str = "f8", seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    strong = (rng.standard_normal((n, 20)) * np.arange(1, 21) ** -0.7) @ rng.standard_normal((20, d))
    return (strong + 0.05 * rng.standard_normal((n, d)) + 5).astype(dtype)


def both(rows: NDArray[Any], k: int | None = 8, **parameters: Any) -> tuple[Fit, Fit]:
    """Return fits with components in memory and on disk."""
    source, parameters_ = open_source(rows), Parameters(k, solver="gram", **parameters)
    plan = GramSolver().plan(source, parameters_, Resources(2**40, 200 * MIB, 2))
    assert not plan.components_on_disk
    return fit(source, parameters_, plan), fit(source, parameters_, plan.replace(components_on_disk=True))


def stored(result: Fit) -> StoredComponents:
    assert isinstance(result.model.components, StoredComponents)
    return result.model.components


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize(("n", "d", "k"), [(60, 30_011, 8), (12, 150_000, None), (200, 100_003, 40)])
def test_on_disk_they_are_what_they_are_in_memory(dtype: str, n: int, d: int, k: int | None) -> None:
    rows = wide(n, d, dtype)
    near, far = both(rows, k)
    assert isinstance(near.model.components, np.ndarray)
    components = stored(far).in_memory()
    np.testing.assert_array_equal(components, near.model.components)
    np.testing.assert_array_equal(far.model.explained_variance, near.model.explained_variance)
    assert np.abs(components @ components.T - np.eye(len(components))).max() <= 1e-12
    assert far.model.certificate["orthonormality"] <= 1e-12
    largest = np.abs(components).argmax(axis=1)
    assert (components[np.arange(len(components)), largest] > 0).all()
    # Sums over slabs are rounded elsewhere than one product: float32 scores by its rounding, float64 by its own.
    error = (1e-5 if dtype == "f4" else 1e-13) * np.abs(near.scores).max()
    scores = near.model.transform(rows)
    np.testing.assert_allclose(far.model.transform(rows), scores, rtol=0, atol=error)
    np.testing.assert_allclose(far.model.inverse_transform(scores), near.model.inverse_transform(scores), atol=error)


@pytest.mark.parametrize("whiten", [False, True])
def test_z_scores_weights_of_features_and_missing_values_transform_alike(whiten: bool) -> None:
    rows = wide(40, 20_000)
    rows[3, ::7], rows[:, 11] = np.nan, 2.0
    area = np.random.default_rng(1).random(20_000)
    area[5] = 0
    near, far = both(rows, 5, scale=True, whiten=whiten, missing="mean", feature_weight=area)
    np.testing.assert_allclose(far.model.transform(rows), near.model.transform(rows), atol=1e-10)
    back, expected = (m.inverse_transform(near.model.transform(rows)) for m in (far.model, near.model))
    np.testing.assert_allclose(back, expected, atol=1e-10)


def test_the_plan_puts_them_on_disk_where_they_do_not_fit() -> None:
    source = open_source(np.lib.stride_tricks.as_strided(np.zeros(1, "f4"), (64, 5_000_000), (0, 0)))
    parameters = Parameters(40, solver="gram")

    def planned(allowed: int) -> Plan:
        return GramSolver().plan(source, parameters, Resources(allowed * MIB, 150 * MIB, 2))

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


def test_no_room_is_said_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source, parameters = open_source(wide(20, 3000)), Parameters(5, solver="gram")
    plan = GramSolver().plan(source, parameters, Resources(2**40, 200 * MIB, 1)).replace(components_on_disk=True)
    monkeypatch.setattr(type(source), "read", lambda *_: pytest.fail("data was read"))
    usage = output.shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(output.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(NoSpaceError, match="1000 B are free"):
        fit(source, parameters, plan)


def test_the_directory_goes_with_the_estimator_and_its_array() -> None:
    rows = wide(20, 3000)
    _, far = both(rows, 5)
    pca, path = PCA(5), stored(far).path
    pca._take(far, open_source(rows))
    del far
    assert isinstance(pca.components_, zarr.Array)
    assert pca.components_.shape == (5, 3000)
    assert pca.n_components_ == 5
    array = pca.components_
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1.0
    del pca
    gc.collect()
    assert np.isfinite(array[...]).all()
    del array
    gc.collect()
    assert not path.exists()


def test_a_copy_shares_the_files_and_a_pickle_says_when_they_are_gone() -> None:
    _, far = both(wide(20, 3000), 5)
    components = stored(far)
    assert copy.deepcopy(components) is components
    assert copy.copy(components) is components
    pickled = pickle.dumps(components)
    assert len(pickled) < 1000
    twin = pickle.loads(pickled)
    np.testing.assert_array_equal(twin.in_memory(), components.in_memory())
    del far, components
    gc.collect()
    with pytest.raises(ModelError, match="temporary directory"):
        twin.slab(0, 10)
    with pytest.raises(ModelError, match="temporary directory"):
        pickle.loads(pickled).slab(0, 10)


def test_nothing_loads_them_by_accident() -> None:
    components = stored(both(wide(20, 3000), 5)[1])
    with pytest.raises(ParameterError, match="call in_memory"):
        np.asarray(components)
    with pytest.raises(TypeError):
        np.ones((2, 5)) @ components  # type: ignore[operator]
    assert len(components) == 5


def test_what_needs_them_in_memory_says_so() -> None:
    pca, rows = PCA(5), wide(20, 3000)
    pca._take(both(rows, 5)[1], open_source(rows))
    pca.n_features_in_ = 3000
    for ask in (pca.get_covariance, pca.get_precision, lambda: pca.score(rows)):
        with pytest.raises(NotAvailableError, match="needs the components in memory"):
            ask()
    assert pca.transform(rows).shape == (20, 5)
    assert len(pca.get_feature_names_out()) == 5


def test_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = wide(20, 3 * MIB // 5 + 11)
    near, far = both(rows, 5)
    for name, result in (("near", near), ("far", far)):
        save_model(result.model, tmp_path / name)
    said = [json.loads((tmp_path / name / "zarr.json").read_text())["attributes"]["sha256"] for name in ("near", "far")]
    assert said[0] == said[1]
    assert said[0]["components"].startswith("rows:")
    loaded = load_model(tmp_path / "far")
    assert isinstance(loaded.components, np.ndarray)
    np.testing.assert_array_equal(loaded.components, near.model.components)
    monkeypatch.setattr(store, "available_bytes", lambda: 4 * near.model.components.nbytes - 1)
    kept = load_model(tmp_path / "far")
    assert isinstance(kept.components, StoredComponents)
    np.testing.assert_array_equal(kept.transform(rows), far.model.transform(rows))
    assert inspect_path(str(tmp_path / "far"))["components"] == [5, rows.shape[1]]
    pca = sp.load(tmp_path / "far")
    pca.save(tmp_path / "far", overwrite=True)  # over the files that it reads from
    np.testing.assert_array_equal(pca.transform(rows), far.model.transform(rows))
    assert isinstance(load_model(tmp_path / "near").components, np.ndarray)  # as whole rows: no slabs to read


@pytest.mark.parametrize("damage", ["bytes", "gone", "values", "digest"])
def test_damage_to_components_on_disk_is_found(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(both(wide(20, 3 * MIB // 5 + 11), 5)[1].model, tmp_path / "model")
    monkeypatch.setattr(store, "available_bytes", lambda: 0)
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
        load_model(tmp_path / "model")


def test_models_of_early_versions_load(tmp_path: Path) -> None:
    model = both(wide(20, 3000), 5)[0].model
    save_model(model, tmp_path / "model")
    meta = tmp_path / "model" / "zarr.json"
    said = json.loads(meta.read_text())
    said["attributes"]["sha256"]["components"] = digest(np.asarray(model.components))
    del said["attributes"][SEAL]
    meta.write_text(json.dumps(said))
    np.testing.assert_array_equal(load_model(tmp_path / "model").components, model.components)


def test_scores_are_written_in_one_reading_by_features(tmp_path: Path) -> None:
    rows = wide(50, 40_000, "f4")
    array = zarr.create_array(tmp_path / "x.zarr", shape=rows.shape, chunks=(50, 1000), dtype="f4", compressors=None)
    array[...] = rows
    source = open_source(str(tmp_path / "x.zarr"))
    model = both(rows, 5, whiten=True)[1].model
    plan = plan_scores(source, model, "4GiB", threads=2)
    assert plan.axis == "features"
    with AtomicDirectory(tmp_path / "scores", "scores") as aside:
        count, _ = write_scores(source, model, plan, aside)
    assert count.bytes == rows.nbytes
    found = zarr.open_array(tmp_path / "scores" / "scores", mode="r")[...]
    np.testing.assert_allclose(found, model.transform(rows), atol=2e-6)
    rows[7, 31_234] = np.inf
    array[...] = rows
    changed = open_source(str(tmp_path / "x.zarr"))
    with pytest.raises(NotFiniteError, match="row 7, column 31234"):
        write_scores(changed, model, plan, tmp_path / "none")


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_t2_and_q_of_components_on_disk_are_those_of_components_in_memory(tmp_path: Path, missing: str) -> None:
    rows = wide(50, 30_000)
    if missing == "mean":
        rows[np.random.default_rng(1).random(rows.shape) < 0.05] = np.nan
    source = open_source(rows)
    roomy, on_disk = both(rows, 5, missing=missing, whiten=True)
    for name, model in (("roomy", roomy.model), ("disk", on_disk.model)):
        plan = plan_scores(source, model, "4GiB", threads=2, diagnostics=True)
        assert plan.axis == "samples"
        write_scores(source, model, plan, tmp_path / name, diagnostics=True)
    assert any("1 MiB on disk, are read up to twice for each of" in note for note in plan.notes)
    for array in ("scores", "t2", "q"):
        found, expected = (zarr.open_array(tmp_path / name / array, mode="r")[...] for name in ("disk", "roomy"))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    if missing == "error":
        model = roomy.model
        z = rows - model.mean
        residual = z - z @ model.components.T @ model.components
        np.testing.assert_allclose(found, np.square(residual).sum(axis=1), rtol=1e-9)


def test_a_run_and_the_transform_command_beside_little_memory(tmp_path: Path) -> None:
    rows = wide(64, 300_000, "f4")
    array = zarr.create_array(tmp_path / "x.zarr", shape=rows.shape, chunks=(64, 4096), dtype="f4", compressors=None)
    array[...] = rows
    out = tmp_path / "out"
    (tmp_path / "run.yaml").write_text(
        f"source: {{path: {tmp_path / 'x.zarr'}}}\nmodel: {{n_components: 50, solver: gram}}\n"
        f"resources: {{memory: 390MiB}}\noutput: {{directory: {out}}}\n"
    )
    for command in (
        ["run", str(tmp_path / "run.yaml"), "--quiet"],
        ["transform", str(out), str(tmp_path / "x.zarr"), str(tmp_path / "s"), "--quiet"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "streampca", *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    plan, manifest = (json.loads((out / f"{name}.json").read_text()) for name in ("plan", "manifest"))
    assert plan["components_on_disk"]
    memory = manifest["memory"]
    assert memory["peak_bytes"] <= memory["projected_bytes"] <= memory["allowed_bytes"]
    page = (out / "report.html").read_text()
    assert "stored in slabs of features" in page
    assert "largest of 300,000 entries" in page
    expected = sp.PCA(50, solver="gram").fit(rows)
    lengths = np.linalg.norm(rows - expected.mean_, axis=1)[:, None]
    turned = angles(sp.PCA(51, solver="gram").fit(rows))[:50]
    clear = turned < 0.01  # those of small gaps may turn within their span, and so change their sign
    assert clear[:10].all()
    rounding = 4 * np.sqrt(rows.shape[1]) * np.finfo(np.float32).eps
    for path in (out / "scores.zarr", tmp_path / "s"):
        scores = zarr.open_array(path / "scores", mode="r")[...]
        apart = np.abs(scores - expected.transform(rows)) / lengths
        assert (apart <= turned + rounding)[:, clear].all()
    components = zarr.open_array(out / "model.zarr" / "components", mode="r")[...]
    apart = np.linalg.norm(components - expected.components_, axis=1)
    assert (apart <= turned + rounding)[clear].all()


def angles(pca: sp.PCA) -> NDArray[np.float64]:
    """Return by how much rounding may turn each component: 4 x precision x λ₁ / gap, in radians (Davis & Kahan 1970).

    Twice the precision, because two matrices are compared, and twice that, because a vector moves by up to √2 sin of
    its angle.
    """
    values = pca.explained_variance_
    gaps = np.minimum(np.abs(np.diff(values, prepend=np.inf)), np.abs(np.diff(values, append=0.0)))
    turned: NDArray[np.float64] = 4 * pca.error_["trusted_above"] * values[0] / gaps
    return turned


def test_slabs_divide_blocks() -> None:
    assert slab_features(40, 114_688) == 16_384
    assert slab_features(8, 30_011) == 30_011
    for k, block in ((1, 12), (50, 131_072), (2000, 8192), (60, 99_991), (7, 262_144)):
        width = slab_features(k, block)
        assert block % width == 0
        assert width == block or 8 * k * width <= 8 * MIB


def test_what_is_drawn_belongs_to_its_place() -> None:
    whole = drawn(3, range(2, 5), 0, 10_000)
    np.testing.assert_array_equal(drawn(3, range(3, 5), 4000, 4500), whole[1:, 4000:8500])
    assert abs(whole.std() - 1) < 0.02


class Listed:
    """Components in slabs, counting how often all were written."""

    def __init__(self, components: NDArray[np.float64]):
        self.components, self.writes = components, 0

    def slabs(self) -> Any:
        for start in range(0, self.components.shape[1], 100):
            yield slice(start, start + 100), self.components[:, start : start + 100]

    def write(self, start: int, values: NDArray[np.float64]) -> None:
        self.writes += start == 0
        self.components[:, start : start + values.shape[1]] = values


def test_orthonormalising_takes_one_sweep_and_another_one_for_a_close_sign() -> None:
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.standard_normal((1000, 4)))[0].T + 1e-8 * rng.standard_normal((4, 1000))
    table, summary = Listed(vectors.copy()), Summary.empty(4)
    summary.add(vectors)
    mapping, error = make_orthonormal(table, summary, 4)
    assert table.writes == 1
    assert error <= 1e-14
    np.testing.assert_allclose(table.components, mapping @ vectors, atol=1e-14)
    np.testing.assert_allclose(np.abs(np.diag(table.components @ vectors.T)), 1, atol=1e-6)
    wrong = replace(summary, signs=-summary.signs)
    table = Listed(vectors.copy())
    make_orthonormal(table, wrong, 4)
    assert table.writes == 2
    largest = np.abs(table.components).argmax(axis=1)
    assert (table.components[np.arange(4), largest] > 0).all()
    near = np.vstack([vectors[:3], vectors[2] + 1e-6 * vectors[3]])  # nearly dependent: a second sweep makes up for it
    table, summary = Listed(near.copy()), Summary.empty(4)
    summary.add(near)
    assert make_orthonormal(table, summary, 3)[1] <= 1e-12
    root = orthonormalising(vectors @ vectors.T, 4)
    np.testing.assert_allclose(root, root.T, atol=1e-15)


WEIGHTS: dict[str, Any] = {
    "none": None,
    "counts": np.random.default_rng(2).integers(0, 4, 60).astype(float),
    "fractions": np.random.default_rng(2).random(60) + 0.1,
    "far apart": 10.0 ** np.random.default_rng(2).integers(-3, 4, 60),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("missing", ["error", "mean"])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_weights_and_missing_values_equal_the_covariance(weights: str, missing: str, center: bool, scale: bool) -> None:
    rows = wide(60, 901)
    rng = np.random.default_rng(5)
    if missing == "mean":
        rows[rng.random(rows.shape) < 0.1] = np.nan
    options: dict[str, Any] = {"center": center, "scale": scale, "missing": missing, "feature_weight": rng.random(901)}
    left, right = (
        PCA(6, solver=solver, **options).fit(rows, sample_weight=WEIGHTS[weights]) for solver in ("gram", "covariance")
    )
    np.testing.assert_allclose(left.explained_variance_, right.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(left.components_, right.components_, atol=1e-10)
    np.testing.assert_allclose(left.mean_, right.mean_, atol=1e-12)
    assert left.total_variance_ == pytest.approx(right.total_variance_, rel=1e-10)
    assert left.noise_variance_ == pytest.approx(right.noise_variance_, rel=1e-10)
    np.testing.assert_allclose(left.singular_values_, right.singular_values_, rtol=1e-10)
    np.testing.assert_allclose(left.transform(rows), right.transform(rows), atol=1e-8)
    assert left.n_samples_seen_ == right.n_samples_seen_
    assert left._model.weight == right._model.weight
    for name in ("missing_values", "rows_left_out"):
        assert left.error_.get(name) == right.error_.get(name)


@pytest.mark.parametrize("dtype", ["f4", "f2", "u1", "i2"])
def test_weights_of_every_type(dtype: str) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((40, 800)) * 20 + 100).astype(dtype)
    weights = rng.integers(0, 3, 40)
    left = PCA(3, solver="gram").fit(rows, sample_weight=weights)
    right = PCA(3, solver="covariance").fit(np.repeat(rows.astype("f8"), weights, axis=0))
    np.testing.assert_allclose(left.explained_variance_, right.explained_variance_, rtol=1e-6)


def test_weights_are_repeated_rows_and_rows_of_weight_0_are_not_looked_at() -> None:
    rows, counts = wide(30, 700), np.random.default_rng(0).integers(0, 4, 30)
    spoilt = rows.copy()
    spoilt[counts == 0, 5] = np.nan
    left = PCA(4, solver="gram").fit(spoilt, sample_weight=counts)
    right = PCA(4, solver="gram").fit(np.repeat(rows, counts, axis=0))
    np.testing.assert_allclose(left.explained_variance_, right.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(left.components_, right.components_, atol=1e-11)


@pytest.mark.parametrize(("k", "missing"), [(4, "error"), (None, "error"), (4, "mean")])
@pytest.mark.parametrize("on_disk", [False, True])
def test_scores_of_all_rows_come_with_the_fit(k: int | None, missing: str, on_disk: bool) -> None:
    rows, weights = wide(30, 700), np.random.default_rng(0).integers(0, 4, 30).astype(float)
    if missing == "mean":
        rows[np.random.default_rng(1).random(rows.shape) < 0.05] = np.nan
    result = both(rows, k, sample_weight=weights, missing=missing, missing_scores="mean", scale=True)[on_disk]
    assert result.scores is not None
    assert result.scores.shape == (30, k or np.count_nonzero(weights) - 1)
    rank = result.model.numerical_rank
    expected = result.model.transform(rows)
    np.testing.assert_allclose(result.scores[:, :rank], expected[:, :rank], atol=1e-9)
    np.testing.assert_allclose(result.scores[weights == 0], expected[weights == 0], atol=1e-9)


def test_a_row_of_weight_0_that_has_no_scores_is_named(tmp_path: Path) -> None:
    rows, weights = wide(30, 700), np.ones(30)
    rows[9, 3], weights[9] = np.nan, 0
    result = both(rows, 4, sample_weight=weights)[0]
    assert result.scores is not None
    with pytest.raises(NotFiniteError, match="row 9, of weight 0"):
        write_known_scores(open_source(rows), result.model, result.scores, tmp_path)


def test_what_is_refused_names_what_is_wrong() -> None:
    rows = wide(30, 700)
    with pytest.raises(DataError, match="weight 1 gives no variance with ddof=1"):
        PCA(3, solver="gram").fit(rows, sample_weight=np.full(30, 1 / 30))
    rows[:, 17] = np.nan
    with pytest.raises(DataError, match=r"1 feature\(s\) were observed in no row, first: 17"):
        PCA(3, solver="gram", missing="mean").fit(rows)
    rows[4, 17] = np.inf
    with pytest.raises(NotFiniteError, match="infinity: first at row 4, column 17"):
        PCA(3, solver="gram", missing="mean").fit(rows)
    weights = np.ones(30)
    weights[:2], rows[1, 8], rows[3, 8] = 0, np.nan, np.nan
    with pytest.raises(NotFiniteError, match="NaN: first at row 3, column 8"):
        PCA(3, solver="gram").fit(rows, sample_weight=weights)
    for missing in ("drop_rows", "pairwise"):
        with pytest.raises(NotAvailableError, match="use solver='covariance' or missing='mean'"):
            PCA(3, solver="gram", missing=missing).fit(rows)


def test_auto_takes_gram_for_wide_data_with_weights_or_missing_values() -> None:
    rows = wide(30, 700)
    assert PCA(3).fit(rows, sample_weight=np.arange(30)).solver_ == "gram"
    rows[2, 2] = np.nan
    assert PCA(3, missing="mean").fit(rows).solver_ == "gram"
    assert PCA(3, missing="drop_rows").fit(rows).solver_ == "covariance"


def test_values_that_leave_float32_survive_weights_and_holes() -> None:
    rows = (wide(40, 800) - 5).astype("f4")
    rows[3, 5], weights = np.nan, np.random.default_rng(0).random(40)
    expected = PCA(3, solver="gram", missing="mean").fit(rows.astype("f8"), sample_weight=weights)
    for factor in (1e-25, 1e25):
        tiny = (rows.astype("f8") * factor).astype("f4")
        found = PCA(3, solver="gram", missing="mean").fit(tiny, sample_weight=weights)
        np.testing.assert_allclose(found.explained_variance_ / factor**2, expected.explained_variance_, rtol=1e-5)


@pytest.mark.parametrize("impute", [False, True])
def test_the_laws_with_weights_and_holes(impute: bool) -> None:
    values = wide(30, 200).T.copy()
    if impute:
        values[np.random.default_rng(0).random(values.shape) < 0.2] = np.nan
    weights = np.random.default_rng(1).integers(0, 3, 30).astype(float)
    gram_ = Gram(tile_size=8, weights=weights, impute=impute)
    whole = gram_.finalize(fold(gram_, [Block(values, 0)], 30))
    parts = [fold(gram_, [Block(values[a:b], a)], 30) for a, b in ((120, 200), (0, 1), (1, 120))]
    merged = gram_.finalize(gram_.merge([gram_.init(30), *parts]))
    assert merged.side == np.count_nonzero(weights)
    assert merged.n_missing == (np.isnan(values[:, weights > 0]).sum())
    np.testing.assert_allclose(merged.dense(), whole.dense(), atol=1e-11 * np.abs(whole.dense()).max())
    filled = np.where(np.isnan(values), merged.mean[:, None], values)[:, weights > 0]
    counted = weights[weights > 0]
    centred = (filled - np.average(filled, axis=1, weights=counted)[:, None]) * np.sqrt(counted)
    expected = centred.T @ centred / (counted.sum() - 1)
    np.testing.assert_allclose(merged.dense(), expected, atol=1e-11 * np.abs(expected).max())
    np.testing.assert_allclose(merged.diagonal, expected.diagonal(), atol=1e-11 * np.abs(expected).max())
    vectors = np.random.default_rng(2).standard_normal((merged.side, 3))
    np.testing.assert_allclose(merged.multiply(vectors), expected @ vectors, atol=1e-10 * np.abs(expected).max())
    np.testing.assert_allclose(merged.variance, (centred**2).sum(axis=1) / (counted.sum() - 1), rtol=1e-11)


def test_a_survey_does_not_depend_on_how_components_are_cut(tmp_path: Path) -> None:
    components = np.random.default_rng(0).standard_normal((3, 1000))
    stored_ = StoredComponents.create(tmp_path / "c", (3, 1000), 130)
    for start in range(0, 1000, 130):
        stored_.write(start, components[:, start : start + 130])
    far, near = survey(stored_), survey(components)
    assert far.digest == near.digest
    assert far.finite
    np.testing.assert_allclose(far.products, components @ components.T, rtol=1e-12)
    assert StoredComponents.open(tmp_path / "c").width == 130
