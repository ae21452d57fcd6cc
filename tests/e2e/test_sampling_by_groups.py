"""Sampling errors from covariances of groups of rows, which the reading of the fit keeps."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import verify_run
from numpy.typing import NDArray
from scipy import sparse
from stores import config_text, write_store

import streampca as sp
from streampca.errors import ModelError
from streampca.solvers.covariance import CovarianceSolver

pytestmark = pytest.mark.numerical

Rows = NDArray[np.float64]
N, D, CHUNK, N_GROUPS = 4010, 6, 100, 20
"""40 blocks and a rest, whose borders are not those of the groups."""
VARIANCES = np.array([32.0, 12.0, 4.0, 1.0, 0.3, 0.1])


@pytest.fixture(scope="module")
def rows() -> Rows:
    rng = np.random.default_rng(3)
    turn = np.linalg.qr(rng.standard_normal((D, D)))[0]
    return rng.standard_normal((N, D)) * np.sqrt(VARIANCES) @ turn + 5.0


@pytest.fixture(autouse=True)
def small_blocks(blocks_of: Any) -> None:
    """Divide the rows into blocks of one chunk."""
    blocks_of(CHUNK)


@pytest.fixture
def by_reading(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that fits with one more reading for the sampling errors."""

    def fit(pca: sp.PCA, table: Any, **given: Any) -> sp.PCA:
        with monkeypatch.context() as patched:
            patched.setattr(CovarianceSolver, "plan_with_groups", lambda *_, **options: None)
            return pca.fit(table, **given)

    return fit


def eigenpairs(z: Rows, *, scale: bool) -> tuple[Rows, Rows]:
    """Return eigenvalues and eigenvectors in rows, largest first, by LAPACK in float64."""
    z = z - z.mean(axis=0)
    z = z / z.std(axis=0, ddof=1) if scale else z
    values, vectors = np.linalg.eigh(z.T @ z / (len(z) - 1))
    return values[::-1], vectors[:, ::-1].T


def jackknife_variance(full: Rows, without: Rows, sizes: Rows) -> Rows:
    """Return the variance by the pseudo-values of unequal groups (Busing, Meijer & van der Leeden 1999)."""
    h = (sizes.sum() / sizes).reshape(-1, *[1] * full.ndim)
    pseudo = h * full - (h - 1) * without
    return np.asarray(((pseudo - (pseudo / h).sum(axis=0)) ** 2 / (h - 1)).mean(axis=0))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("k", [2, D])
def test_errors_are_those_of_covariances_without_each_group(rows: Rows, scale: bool, k: int) -> None:
    errors = sp.PCA(k, scale=scale, sampling_errors=N_GROUPS).fit(rows).sampling_error_
    assert errors.method == "groups"
    edges = np.arange(N_GROUPS + 1) * N // N_GROUPS
    sizes = np.diff(edges).astype(float)
    values, vectors = eigenpairs(rows, scale=scale)
    without = [
        eigenpairs(np.delete(rows, np.s_[edges[g] : edges[g + 1]], axis=0), scale=scale) for g in range(N_GROUPS)
    ]
    # Terms of second order, relative to those of first order, are the change of the matrix over the gaps of its eigenvalues.
    whole = (vectors.T * values) @ vectors
    change = max(np.linalg.norm((v.T * w) @ v - whole, 2) for w, v in without)
    rtol = 2 * change / (values[:2] - values[1:3]).min()
    assert rtol < 0.5
    leading = np.sqrt(jackknife_variance(values[:2], np.array([w[:2] for w, _ in without]), sizes))
    assert np.allclose(errors.eigenvalues[:2], leading, rtol=rtol)
    turned = np.array([v[:2] * np.sign(np.sum(v[:2] * vectors[:2], axis=1))[:, None] for _, v in without])
    angles = np.sqrt(jackknife_variance(vectors[:2], turned, sizes).sum(axis=1))
    assert np.allclose(errors.angles[:2], angles, rtol=rtol)


@pytest.mark.parametrize("changes", [{}, {"scale": True}, {"center": False}, {"whiten": True}, {"weights": True}])
def test_errors_are_those_of_a_reading_of_the_scores_of_the_same_groups(
    rows: Rows, changes: dict[str, Any], by_reading: Any
) -> None:
    weights = np.random.default_rng(0).integers(0, 4, N).astype(float)
    given = {"sample_weight": weights} if changes.get("weights") else {}
    settings = {name: value for name, value in changes.items() if name != "weights"}
    for k in (3, D):
        pca, other = (sp.PCA(k, sampling_errors=N_GROUPS, **settings) for _ in range(2))
        one, two = pca.fit(rows, **given).sampling_error_, by_reading(other, rows, **given).sampling_error_
        assert (one.method, two.method) == ("groups", "reading")
        for name in ("eigenvalues", "shares", *(["angles"] if k == D else [])):
            np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-8, err_msg=name)
        assert np.isnan(one.effective_n_samples).all()
        n = weights.sum() ** 2 / (weights**2).sum() if given else N
        np.testing.assert_allclose(one.north, one.estimates * np.sqrt(2 / n))
        # Of independent rows, outside of the components: a variance by 20 groups is known to 1 / √(2 · 19).
        np.testing.assert_allclose(one.angles, two.angles, rtol=4 / np.sqrt(38))


def test_errors_of_weighted_features_are_those_of_a_reading(rows: Rows, by_reading: Any) -> None:
    for settings in ({"feature_weight": np.arange(1.0, 7)}, {"feature_weight": np.arange(1.0, 7), "scale": True}):
        pca, other = (sp.PCA(D, sampling_errors=N_GROUPS, **settings) for _ in range(2))
        one, two = pca.fit(rows).sampling_error_, by_reading(other, rows).sampling_error_
        for name in ("eigenvalues", "shares", "angles"):
            np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-8, err_msg=name)


@pytest.mark.parametrize("kind", ["uint8", "sparse"])
def test_small_integers_and_sparse_rows_have_the_errors_of_a_reading(kind: str, by_reading: Any) -> None:
    table: Any = np.random.default_rng(0).poisson([9.0, 4, 2, 1], (3000, 4))
    table = table.astype(np.uint8) if kind == "uint8" else sparse.csr_array(table.astype(float))
    pca, other = sp.PCA(4, sampling_errors=N_GROUPS), sp.PCA(4, sampling_errors=N_GROUPS)
    one, two = pca.fit(table).sampling_error_, by_reading(other, table).sampling_error_
    assert (one.method, two.method) == ("groups", "reading")
    for name in ("eigenvalues", "shares", "angles"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-8, err_msg=name)


def test_every_chunk_is_read_once(rows: Rows, tmp_path: Path, opened: Counter[str]) -> None:
    store = write_store(tmp_path / "x.zarr", rows, chunks=(CHUNK, D))
    pca = sp.PCA(3, sampling_errors=N_GROUPS)
    assert pca.plan(str(store)).passes == 1
    pca.fit(str(store))
    counts = {count for path, count in opened.items() if "/c/" in path}
    assert counts == {1}
    assert (pca.n_passes_, pca.plan_.sampling_errors) == (1, "groups")
    assert "from a covariance of each, kept by the one reading of the fit; they take" in pca.plan_.notes[-1]


def test_plan_counts_the_states_of_all_groups_and_reads_again_where_they_do_not_fit() -> None:
    table = np.broadcast_to(np.float32(1.0), (200_000, 1000))
    plain = sp.PCA(3, memory="4GiB").plan(table)
    large = sp.PCA(3, memory="4GiB", sampling_errors=N_GROUPS).plan(table)
    small = sp.PCA(
        3, memory=sp.PCA(2).plan(np.zeros((9, 3))).budget.bytes_for("process") + 200 * 2**20, sampling_errors=N_GROUPS
    ).plan(table)
    state = 8 * 1000 * 1001 / 2
    assert large.projected_bytes - plain.projected_bytes > 2 * (N_GROUPS - 1) * state
    assert (large.sampling_errors, large.passes) == ("groups", 1)
    assert (small.sampling_errors, small.passes) == ("reading", 2)
    assert large.rows_per_block == plain.rows_per_block


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((500, 60), {}),
        ((N, D), {"n_components": "cross_validation"}),
        ((N, D), {"remove": {"groups": np.arange(N) % 7}}),
        ((N, D), {"solver": "qr"}),
    ],
)
def test_few_rows_for_each_feature_and_other_fits_read_once_more(
    shape: tuple[int, int], settings: dict[str, Any]
) -> None:
    table = np.random.default_rng(0).standard_normal(shape) * np.geomspace(9, 1, shape[1])
    settings = {"n_components": 2, "sampling_errors": N_GROUPS, "solver": "covariance"} | settings
    assert sp.PCA(**settings).fit(table).sampling_error_.method == "reading"


def test_a_stopped_fit_ends_with_the_same_bits(rows: Rows, tmp_path: Path) -> None:
    store = str(write_store(tmp_path / "x.zarr", rows, chunks=(CHUNK, D)))
    made: dict[str, Any] = {"n_components": 3, "scale": True, "sampling_errors": N_GROUPS}
    expected = sp.PCA(**made).fit(store)

    def stop(progress: Any) -> None:
        if progress.rows > N // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sp.PCA(**made, checkpoint=tmp_path / "c", progress=stop).fit(store)
    resumed = sp.PCA(**made, checkpoint=tmp_path / "c").fit(store)
    assert resumed.sampling_error_.to_dict() == expected.sampling_error_.to_dict()
    assert np.array_equal(resumed.components_, expected.components_)


def test_states_of_groups_are_not_kept_with_the_state_that_rows_are_added_to(rows: Rows) -> None:
    pca: Any = sp.PCA(3, sampling_errors=N_GROUPS).fit(rows[:3000])
    assert pca._fitted_state.groups == ()
    pca.partial_fit(rows[3000:])
    np.testing.assert_allclose(pca.explained_variance_, sp.PCA(3).fit(rows).explained_variance_, rtol=1e-10)


@pytest.mark.deep(keep=1)
@pytest.mark.slow
@pytest.mark.parametrize("lines", [(), ("preprocess: {scale: true}",)])
def test_runs_record_the_errors_and_verify_notices_others(rows: Rows, tmp_path: Path, lines: tuple[str, ...]) -> None:
    store = write_store(tmp_path / "x.zarr", rows, chunks=(CHUNK, D))
    text = config_text(
        store,
        tmp_path / "run",
        f"statistics: {{sampling_errors: {N_GROUPS}}}",
        "model: {n_components: 3}",
        *lines,
        output="report: true, scores: false",
    )
    (tmp_path / "c.yaml").write_text(text)
    run = sp.run(tmp_path / "c.yaml").directory
    path = run / "manifest.json"
    manifest = json.loads(path.read_text())
    recorded = manifest["result"]["sampling_errors"]
    assert (recorded["method"], manifest["passes"]) == ("groups", 1)
    assert recorded["effective_n_samples"] == [None] * 3
    checks = verify_run(run).checks
    assert [check for check in checks if check.holds is False] == []
    assert [check.verdict for check in checks if check.name == "sampling errors"] == ["not verified"]
    recorded["angles"][1] *= 1.01
    path.write_text(json.dumps(manifest))
    assert [check.name for check in verify_run(run).checks if check.holds is False] == [
        "manifest result.sampling_errors"
    ]
    place = run / "model.zarr" / "zarr.json"
    model = json.loads(place.read_text())
    model["attributes"]["sampling_errors"]["angles"][1] *= 1.01
    place.write_text(json.dumps(model))
    with pytest.raises(ModelError):
        verify_run(run)
