"""Wide sparse rows by the n x n matrix: stored, normalised and in memory, against LAPACK on the dense matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cells
import numpy as np
import pytest
import tolerances
from facade import fit
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, random_array

import streampca as sp
from streampca.errors import DataError, NotFiniteError, PlanError
from streampca.metrics import principal_angles

pytestmark = [
    pytest.mark.numerical,
    pytest.mark.filterwarnings(
        "ignore:.*:zarr.errors.ZarrUserWarning", "ignore:.*:zarr.errors.UnstableSpecificationWarning"
    ),
]
NORMALIZE = {"target_sum": 1e4, "log1p": True}


def wide(n: int = 90, d: int = 700, dtype: str = "f8") -> csr_array:
    """Return rows with features of every density and four separated directions, one feature far from zero."""
    rng = np.random.default_rng(5)
    thin, thick = (random_array((n, m), density=share, random_state=rng) for m, share in ((d, 0.02), (60, 0.4)))
    strong = rng.standard_normal((n, 4)) * [40, 25, 15, 9] + [1e4, 0, 3, 0]
    strong[np.abs(strong) < 2] = 0
    return csr_array(hstack([thin, csr_array(strong), thick]), dtype=dtype)


def exact(
    rows: NDArray[np.float64], weights: NDArray[np.float64] | None = None, *, center: bool = True, scale: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return all eigenvalues and the first four components of dense rows."""
    w = np.ones(len(rows)) if weights is None else weights
    mean, divisor = w @ rows / w.sum(), w.sum() - 1
    deviation = np.sqrt(w @ (rows - mean) ** 2 / divisor)
    x = (rows - mean * center) / (np.where(deviation > 0, deviation, np.inf) if scale else 1.0)
    _, s, v = np.linalg.svd(x * np.sqrt(w)[:, None], full_matrices=False)
    return s**2 / divisor, v[:4]


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("how", [{}, {"scale": True}, {"center": False}, {"feature_weight": True}], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_answers_are_those_of_lapack_for_features_of_every_density(
    dtype: str, how: dict[str, Any], *, weighted: bool
) -> None:
    rows, how = wide(dtype=dtype), dict(how)
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 4, rows.shape[0]) * 1.7 if weighted else None
    of_features = rng.uniform(0.5, 2, rows.shape[1]) if how.pop("feature_weight", False) else None
    pca = sp.PCA(4, solver="gram", feature_weight=of_features, **how).fit(rows, sample_weight=weights)
    dense = rows.toarray().astype(np.float64) * (1 if of_features is None else np.sqrt(of_features))
    values, vectors = exact(dense, weights, **how)
    error = tolerances.eigenvalues(dtype) * values[0]
    assert np.abs(pca.explained_variance_ - values[:4]).max() <= error
    if not how.get("scale"):
        gap = (values[:4] - values[1:5]).min()
        assert np.sin(principal_angles(pca.components_, vectors)).max() <= 4 * error / gap
    assert pca.total_variance_ == pytest.approx(values.sum(), rel=10 * tolerances.eigenvalues(dtype))
    mean = np.average(rows.toarray().astype(np.float64), axis=0, weights=weights) * how.get("center", True)
    assert (np.abs(pca.mean_ - mean) <= tolerances.mean(rows.toarray())).all()
    assert (pca.n_passes_, pca.bytes_read_) == (1, pca.plan_.bytes_to_read)


def test_stored_normalised_rows_are_decomposed_exactly_and_auto_chooses_it(tmp_path: Path) -> None:
    counts = cells.make_counts(80, 600)
    used = np.arange(600) % 5 != 2
    path = cells.write_cells(tmp_path / "a.zarr", counts, chunks=1000, var={"highly_variable": used})
    table = sp.open(path, mask_var="highly_variable", normalize=NORMALIZE)
    pca = sp.PCA(4, solver="gram").fit(table)
    assert sp.PCA(4).plan(sp.open(path, normalize=NORMALIZE)).solver == "gram"
    rows = cells.normalized(counts)[:, used]
    values, vectors = exact(rows)
    error = tolerances.EIGENVALUES_FLOAT32 * values[0]
    assert np.abs(pca.explained_variance_ - values[:4]).max() <= error
    assert np.sin(principal_angles(pca.components_, vectors)).max() <= 4 * error / (values[:4] - values[1:5]).min()
    assert pca.bytes_read_ == pca.plan_.bytes_to_read
    scores = (rows - rows.mean(axis=0)) @ pca.components_.T
    np.testing.assert_allclose(pca.transform(table).compute(), scores, atol=1e-4)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, csr_array]:
    """Return a store of 11 MiB, whose features store about equally much."""
    rng = np.random.default_rng(2)
    rows = csr_array(random_array((50, 100_000), density=0.2, random_state=rng), dtype="f8")
    return cells.write_cells(tmp_path_factory.mktemp("large") / "a.zarr", rows, chunks=200_000), rows


@pytest.mark.slow
def test_rows_that_do_not_fit_are_read_once_for_every_band_of_features(large: tuple[Path, csr_array]) -> None:
    path, rows = large
    memory = sp.PCA(3, solver="gram").plan(path).projected_bytes - 15 * 2**20
    pca = sp.PCA(3, solver="gram", memory=memory)
    plan = pca.plan(path)
    assert (plan.passes, plan.n_blocks > 1) == (2, True)
    assert any(f"all rows are read {plan.n_blocks} times in each reading" in note for note in plan.notes)
    pca.fit(path)
    assert pca.bytes_read_ == plan.bytes_to_read
    whole = sp.PCA(3, solver="gram").fit(path)
    assert whole.n_passes_ == 1
    np.testing.assert_allclose(pca.explained_variance_, whole.explained_variance_, rtol=1e-12)
    centred = rows.toarray() - rows.mean(axis=0)
    values = np.linalg.eigvalsh(centred @ centred.T / 49)
    np.testing.assert_allclose(whole.explained_variance_, values[:-4:-1], rtol=1e-10)


def test_bits_do_not_depend_on_threads() -> None:
    rows = wide(1100, 2400)  # three tiles
    one, three = (fit(rows, k=3, solver="gram", threads=threads).model for threads in (1, 3))
    assert np.asarray(one.components).tobytes() == np.asarray(three.components).tobytes()


def test_features_that_store_much_more_than_others_are_refused_where_bands_are_planned(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    thick, thin = (
        random_array((50, d), density=share, random_state=rng) for d, share in ((20_000, 1.0), (80_000, 0.01))
    )
    path = cells.write_cells(tmp_path / "a.zarr", csr_array(hstack([thick, thin]), dtype="f8"), chunks=200_000)
    memory = sp.PCA(3, solver="gram").plan(path).projected_bytes - 15 * 2**20
    with pytest.raises(DataError, match="store more than 2 times as many values as others"):
        sp.PCA(3, solver="gram", memory=memory).fit(path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "NaN: first at row 7, column 11"),
        (np.inf, "infinity: first at row 7, column 11"),
        (1e200, "column 11 overflows"),
    ],
)
def test_values_without_meaning_are_named_by_row_and_column(value: float, message: str) -> None:
    rows = wide().tolil()
    rows[7, 11] = value
    with pytest.raises(NotFiniteError, match=message):
        sp.PCA(2, solver="gram").fit(csr_array(rows))


def test_a_column_that_overflows_about_its_sampled_mean_is_named() -> None:
    rows = np.random.default_rng(3).standard_normal((1280, 6))
    rows[:, :2] *= np.arange(1280)[:, None] % 40 == 3  # 2 columns of few values, before those that are made dense
    rows[:, 5] = np.where(np.arange(1280) % 10 == 0, 1e153, 0.0)  # every tenth row, as those of which the mean is taken
    with pytest.raises(NotFiniteError, match="column 5 overflows"):
        sp.PCA(2, solver="gram").fit(csr_array(rows))


@pytest.mark.parametrize("as_rows", [csr_array, np.asarray])
def test_a_column_whose_weighted_squares_overflow_is_named(as_rows: Any) -> None:
    rows = np.random.default_rng(3).standard_normal((40, 60))
    rows[:, 4] *= 1e150
    weights = np.random.default_rng(4).uniform(1e9, 2e9, 40)
    with pytest.raises(NotFiniteError, match="column 4 overflows"):
        sp.PCA(2, solver="gram", scale=True).fit(as_rows(rows), sample_weight=weights)


@pytest.mark.distributed
def test_workers_read_twice(client: Any, tmp_path: Path) -> None:
    path = str(cells.write_cells(tmp_path / "a.zarr", cells.make_counts(80, 600), chunks=1000))
    alone = sp.PCA(2, solver="gram").fit(path)
    with client.as_current():
        pca = sp.PCA(2, solver="gram").fit(path)
    assert (alone.n_passes_, pca.n_passes_) == (1, 2)
    np.testing.assert_allclose(pca.explained_variance_, alone.explained_variance_, rtol=1e-9)


def test_too_many_samples_are_refused() -> None:
    many = csr_array(([1.0], ([5], [6])), shape=(60_000, 200_000))
    with pytest.raises(PlanError, match="60,000 x 60,000 matrix takes most of it"):
        sp.PCA(2, solver="gram", memory="4GiB").plan(many)


def test_a_fit_that_was_stopped_between_its_readings_resumes_with_the_same_bits(tmp_path: Path) -> None:
    path = cells.write_cells(tmp_path / "a.zarr", cells.make_counts(80, 600), chunks=1000)

    def stop(step: Any) -> None:
        if step.phase == "components":
            raise KeyboardInterrupt

    place = tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt):
        sp.PCA(3, solver="gram", checkpoint=place, progress=stop).fit(path)
    resumed = sp.PCA(3, solver="gram", checkpoint=place).fit(path)
    assert resumed.components_.tobytes() == sp.PCA(3, solver="gram").fit(path).components_.tobytes()
