"""Kernel PCA at the edges of its arithmetic: intervals that allow for rounding, and scales that no type holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import DataError, StreamPCAError
from streampca.kernels import RBF, Cosine, Kernel, Laplacian, Linear, Polynomial

pytestmark = pytest.mark.numerical

METHODS = ("exact", "nystrom", "nystrom_extension", "empirical_map")


def eigenvalues_of(kernel: Kernel, rows: NDArray[Any], center: bool) -> tuple[NDArray[np.float64], float]:
    """Return all eigenvalues of the kernel matrix in float64, largest first, and the rounding of this oracle."""
    matrix = kernel(rows.astype(np.float64), rows.astype(np.float64))
    rounding = 4 * float(np.finfo(np.float64).eps) * float(matrix.trace()) * len(rows) ** 0.5
    if center:
        matrix = matrix - matrix.mean(axis=0) - matrix.mean(axis=1)[:, None] + matrix.mean()
    return np.linalg.eigvalsh((matrix + matrix.T) / 2)[::-1], rounding


def random_fit(seed: int) -> tuple[Any, NDArray[Any], Kernel, bool]:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(60, 500)), int(rng.integers(1, 10))
    rows = rng.standard_normal((n, d)) * np.geomspace(1, 0.1, d)
    kind = seed % 4
    if kind == 1:
        rows = np.round(rows * 2)
    elif kind == 2:
        rows = rows[rng.integers(0, n // 10, n)]
    elif kind == 3:
        rows[rng.integers(0, n, 3)] *= 10
    rows = (rows * 10 ** rng.uniform(-3, 3)).astype(rng.choice(["f4", "f8"]))
    size = float((rows.astype(np.float64) ** 2).sum(axis=1).mean())
    kernels = (
        RBF(0.1 / size),
        RBF(3 / size),
        Laplacian(0.3 / size**0.5),
        Polynomial(3, 1 / size, 1.0),
        Cosine(),
        Linear(),
    )
    kernel, m = kernels[seed % len(kernels)], int(rng.integers(5, 60))
    sampling = ("uniform", "diagonal", "column_norm", "rpcholesky")[int(rng.integers(4))]
    center = bool(rng.random() < 0.8)
    k = int(rng.integers(1, min(m, 20) + 1))
    method = "exact" if seed % 5 == 0 else "nystrom"
    made = sp.KernelPCA(k, kernel=kernel, method=method, sampling=sampling, n_landmarks=m, center=center)
    return made, rows, kernel, center


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("start", range(0, 60, 10))
def test_proven_intervals_hold_the_eigenvalues_of_the_kernel_matrix(start: int) -> None:
    for seed in range(start, start + 10):
        made, rows, kernel, center = random_fit(seed)
        found = made.fit(rows)
        truth, rounding = eigenvalues_of(kernel, rows, center)
        truth = np.maximum(truth[: found.n_components_], 0.0)
        low, high = np.array(found.error_.get("proven_intervals", found.error_["eigenvalue_intervals"])).T
        assert np.isfinite(high).all()
        assert (low <= truth + rounding).all(), seed
        assert (truth <= high + rounding).all(), seed


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kernel", [Linear(), RBF(), RBF(1e300), Polynomial(3), Cosine(), Laplacian()], ids=str)
def test_no_scale_gives_nan_or_a_bare_error(kernel: Kernel, method: str) -> None:
    rows = np.random.default_rng(0).standard_normal((40, 5))
    for scale, dtype in ((1e-30, "f4"), (1e-42, "f4"), (1e30, "f4"), (1e-160, "f8"), (1e-315, "f8"), (1e160, "f8")):
        given = (rows * scale).astype(dtype)
        made = sp.KernelPCA(2, kernel=kernel, method=method, n_landmarks=30, sketch_size=30)
        try:
            found = made.fit(given)
        except StreamPCAError as error:
            assert "rescale" in str(error)  # noqa: PT017
            continue
        assert np.isfinite(found.eigenvalues_).all()
        assert np.isfinite(found.transform(given)).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kernel", [Linear(), RBF(), Polynomial(3, coef0=0.0), Cosine()], ids=str)
def test_constant_repeated_and_two_rows_have_the_eigenvalues_that_they_have(kernel: Kernel, method: str) -> None:
    few = np.random.default_rng(0).standard_normal((4, 5))
    for rows, rank in ((np.full((30, 5), 3.3), 0), (np.repeat(few, 10, axis=0), 3), (few[:2], 1)):
        n = len(rows)
        made = sp.KernelPCA(min(n, 6), kernel=kernel, method=method, sampling=np.arange(n), sketch_size=n)
        found = made.fit(rows)
        truth, _ = eigenvalues_of(kernel, rows, center=True)
        k = min(rank, found.n_components_)
        np.testing.assert_allclose(found.eigenvalues_[:k], truth[:k], rtol=1e-6)
        assert not found.eigenvalues_[rank:].max(initial=0.0) > 1e-9 * kernel.diagonal(rows).sum()


def test_rows_far_from_zero_keep_their_digits_or_are_a_warning() -> None:
    rows = np.random.default_rng(0).standard_normal((200, 5))
    far = (rows + 1000.0).astype(np.float32)
    centred = far.astype(np.float64) - far.mean(axis=0, dtype=np.float64)
    truth = np.linalg.svd(centred)[1] ** 2
    for method in ("exact", "nystrom"):
        found = sp.KernelPCA(3, kernel="linear", method=method, sampling=np.arange(0, 200, 4)).fit(far)
        np.testing.assert_allclose(found.eigenvalues_, truth[:3], rtol=1e-5)
        np.testing.assert_allclose((found.transform(far) ** 2).sum(axis=0), truth[:3], rtol=1e-4)
    with pytest.warns(UserWarning, match="subtract the mean"):
        sp.KernelPCA(3, kernel="linear", method="exact").fit(rows + 1e7)
    with pytest.warns(UserWarning, match="only 0 eigenvalues"):
        sp.KernelPCA(3, kernel="linear", method="exact").fit(rows + 1e10)


def nystrom_eigenvalues(
    kernel: Kernel, rows: NDArray[Any], landmarks: NDArray[Any], *, center: bool = True
) -> NDArray[np.float64]:
    """Return the eigenvalues of the Nyström approximation in float64, largest first: squares of singular values, no products."""
    wide, points = rows.astype(np.float64), landmarks.astype(np.float64)
    values, vectors = np.linalg.eigh(kernel(points, points))
    kept = values > 1e-10 * values[-1]
    features = kernel(wide, points) @ (vectors[:, kept] / np.sqrt(values[kept]))
    return np.linalg.svd(features - center * features.mean(axis=0), compute_uv=False) ** 2


@pytest.mark.parametrize(
    ("kernel", "m", "d", "seed"),
    [(RBF(0.05), 20, 4, 1), (RBF(0.05), 20, 4, 2), (Linear(), 9, 9, 2), (Linear(), 9, 9, 6)],
)
def test_eigenvalues_of_few_float32_rows_have_the_rounding_of_float32(
    kernel: Kernel, m: int, d: int, seed: int
) -> None:
    """Kernel values were accumulated as they are, and rounding did not average out: errors up to 2e-3 of the first eigenvalue."""
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((100, d)).astype(np.float32)
    landmarks = rows[draw.choice(len(rows), m, replace=False)]
    kpca = sp.KernelPCA(8, kernel=kernel, method="nystrom", sampling=landmarks).fit(rows)
    exact = nystrom_eigenvalues(kernel, rows, landmarks)[:8]
    np.testing.assert_allclose(kpca.eigenvalues_, exact, rtol=0, atol=5e-6 * exact[0])
    scores = kpca.transform(rows.astype(np.float64))
    np.testing.assert_allclose(np.square(scores).sum(axis=0), kpca.eigenvalues_, rtol=0, atol=5e-6 * exact[0])


@pytest.mark.parametrize("kernel", [RBF(1.0), Laplacian(0.5)])
@pytest.mark.parametrize("m", [5, 100])
@pytest.mark.parametrize("center", [True, False])
def test_rows_far_from_all_landmarks_do_not_raise_float32_eigenvalues(kernel: Kernel, m: int, center: bool) -> None:
    """Their kernel values, nearly 0, were multiplied about the landmarks' mean, 1 / m: the first eigenvalue was up to 14 % too large."""
    rows = np.random.default_rng(0).standard_normal((20_000, 20)).astype(np.float32)
    kpca = sp.KernelPCA(3, kernel=kernel, method="nystrom", sampling=rows[:m], center=center).fit(rows)
    exact = nystrom_eigenvalues(kernel, rows, rows[:m], center=center)[:3]
    np.testing.assert_allclose(kpca.eigenvalues_, exact, rtol=0, atol=5e-6 * exact[0])
    intervals = np.array(kpca.error_["eigenvalue_intervals"])
    assert (intervals[:, 0] <= exact).all()
    assert (exact <= intervals[:, 1]).all()


@pytest.mark.parametrize("method", ["exact", "nystrom", "empirical_map", "nystrom_extension"])
@pytest.mark.parametrize("scale", [False, True])
def test_rounding_of_integers_beyond_float64_is_said(method: str, scale: bool) -> None:
    rng = np.random.default_rng(0)
    small = np.rint(rng.standard_normal((80, 6)) * 1e5 * np.arange(1, 7)).astype(np.int64)
    kernel = {"method": method, "scale": scale, "gamma": 0.1 if scale else 1e-12, "random_state": 0}
    exact = sp.KernelPCA(3, **kernel).fit(small)
    with pytest.warns(UserWarning, match="integers beyond 2"):
        found = sp.KernelPCA(3, **kernel).fit(small + 2**60)
    said = found.certificate_.integer_rounding
    assert said is not None
    assert 1e-5 < said < 1e-2
    assert "integers beyond 2**53" in found.certificate_.statement
    assert exact.certificate_.integer_rounding is None
    # κ = exp(-γ s) with s moved by up to 2 said² + 4 said of the mean square distance, which γ makes about 1.
    np.testing.assert_allclose(found.eigenvalues_, exact.eigenvalues_, rtol=8 * said)


def test_integers_that_rounding_leaves_nothing_of_are_refused_by_kernels() -> None:
    rows = np.random.default_rng(0).integers(0, 5, (60, 4)) + 2**60
    with pytest.raises(DataError, match="Subtract a whole number near its mean"):
        sp.KernelPCA(2).fit(rows)
    assert sp.KernelPCA(2).fit(rows - rows[0]).certificate_.integer_rounding is None
