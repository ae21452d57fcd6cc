"""Kernels: definitions, precision, sums, plain data, memory."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tolerances
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import pairwise_kernels

import streampca as sp
from streampca.errors import DataError, ParameterError
from streampca.kernels import (
    RBF,
    Cosine,
    Custom,
    Kernel,
    Laplacian,
    Linear,
    Polynomial,
    Scaled,
    Sigmoid,
    Standardised,
    Sum,
    check_kernel,
    kernel_from_dict,
    kernel_of,
)

pytestmark = pytest.mark.numerical

BUILT_IN: list[tuple[Kernel, str, dict[str, Any]]] = [
    (Linear(), "linear", {}),
    (Polynomial(), "poly", {}),
    (Polynomial(5, 0.05, 0.5), "poly", {"degree": 5, "gamma": 0.05, "coef0": 0.5}),
    (Polynomial(2.5, 0.01, 2.0), "poly", {"degree": 2.5, "gamma": 0.01, "coef0": 2.0}),
    (Polynomial(0), "poly", {"degree": 0}),
    (Polynomial(1, coef0=0), "poly", {"degree": 1, "coef0": 0}),
    (RBF(), "rbf", {}),
    (RBF(0.2), "rbf", {"gamma": 0.2}),
    (RBF(sigma=3.0), "rbf", {"gamma": 1 / 18}),
    (RBF(0), "rbf", {"gamma": 0}),
    (Sigmoid(), "sigmoid", {}),
    (Sigmoid(0.02, -1), "sigmoid", {"gamma": 0.02, "coef0": -1}),
    (Laplacian(), "laplacian", {}),
    (Laplacian(0.3), "laplacian", {"gamma": 0.3}),
    (Cosine(), "cosine", {}),
]
MIXED = RBF(gamma=1e-2) + 2.0 * Polynomial(degree=5) + Laplacian() * 0.5
every_kernel = pytest.mark.parametrize("kernel", [*(kernel for kernel, _, _ in BUILT_IN), MIXED], ids=str)


def rows(n: int, d: int = 16, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((n, d)) + 0.5


def products(X: Any, Y: Any) -> NDArray[Any]:
    """Return X Yᵀ: a kernel of a user."""
    return np.asarray(X @ Y.T)


def lopsided(X: Any, Y: Any, slope: float = 1.0) -> NDArray[Any]:
    return np.asarray(slope * X[:, :1] + 2 * Y[:, 0])


@pytest.mark.parametrize(("kernel", "name", "parameters"), BUILT_IN, ids=str)
def test_definitions_are_those_of_scikit_learn(kernel: Kernel, name: str, parameters: dict[str, Any]) -> None:
    X, Y = rows(70), rows(30, seed=1)
    expected = pairwise_kernels(X, Y, metric=name, **parameters)
    np.testing.assert_allclose(kernel(X, Y), expected, rtol=0, atol=tolerances.kernel(kernel, X, Y, np.float64))
    found = kernel(X.astype(np.float32), Y.astype(np.float16).astype(np.float32))
    expected = pairwise_kernels(X, Y.astype(np.float16).astype(np.float64), metric=name, **parameters)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerances.kernel(kernel, X, Y, np.float32))


@every_kernel
def test_the_diagonal_is_that_of_the_matrix(kernel: Kernel) -> None:
    X = rows(40)
    found = kernel.diagonal(X)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, kernel(X, X).diagonal(), atol=tolerances.kernel(kernel, X, X, np.float64))
    assert kernel.constant_diagonal == (np.ptp(found) == 0 or isinstance(kernel, Cosine)) or kernel == Polynomial(0)


@every_kernel
@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", "float64", "uint8", "int64", "bool"])
def test_any_real_type_layout_and_cut(kernel: Kernel, dtype: str) -> None:
    X, Y = ((rows(n, seed=n) * 3 + 9).astype(dtype) for n in (33, 9))
    found = kernel(X, Y)
    assert found.dtype == (np.float32 if np.dtype(dtype).kind == "f" and np.dtype(dtype).itemsize < 8 else np.float64)
    error = tolerances.kernel(kernel, X, Y, found.dtype)
    np.testing.assert_allclose(kernel(np.asfortranarray(X), np.repeat(Y, 2, axis=1)[:, ::2]), found, atol=error)
    parts = [kernel(X[:1], Y), kernel(X[1:1], Y), kernel(X[1:], Y)]
    np.testing.assert_allclose(np.concatenate(parts), found, atol=error)
    np.testing.assert_allclose(found, kernel(X.astype(np.float64), Y.astype(np.float64)), atol=error)


@every_kernel
def test_sparse_rows_give_the_bits_of_dense_ones(kernel: Kernel) -> None:
    X, Y = (np.where(rows(n, seed=n) > 1, rows(n, seed=n), 0.0) for n in (300, 20))
    np.testing.assert_array_equal(kernel(csr_array(X), csr_array(Y)), kernel(X, Y))
    np.testing.assert_array_equal(kernel.diagonal(csr_array(X)), kernel.diagonal(X))


def test_a_far_mean_costs_a_gaussian_kernel_no_digits() -> None:
    X = np.rint(rows(200) * 8)
    far = X + 2.0**22  # whole numbers below 2²⁴: float32 holds both exactly
    for dtype in (np.float32, np.float64):
        found, expected = (RBF(1e-3)(part.astype(dtype), part[:50].astype(dtype)) for part in (far, X))
        np.testing.assert_allclose(found, expected, atol=tolerances.kernel(RBF(1e-3), X, X, dtype))


def test_narrow_gaussian_kernels_of_float32_rows_keep_their_digits() -> None:
    X = rows(300, 8).astype(np.float32)
    found = RBF(gamma=1e4)(X, X)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.eye(300), atol=1e-6)  # 8 float32 roundings: products were taken in float64


def test_a_row_beyond_the_range_of_float32_is_far_from_all_others() -> None:
    X = rows(5, 8).astype(np.float32)
    X[3] = 1e25
    np.testing.assert_array_equal(RBF()(X[3:4], X[:3]), np.zeros((1, 3)))


def test_cosines_of_extreme_rows() -> None:
    X = np.array([[3.0, 4.0], [3e200, 4e200], [3e-200, 4e-200], [0.0, 0.0], [-4.0, 3.0]])
    expected = np.zeros((5, 5))
    expected[:3, :3], expected[4, 4] = 1, 1
    np.testing.assert_allclose(Cosine()(X, X), expected, atol=4 * tolerances.EPS)
    np.testing.assert_array_equal(Cosine().diagonal(X), expected.diagonal())


@every_kernel
def test_many_panels_into_given_memory(kernel: Kernel) -> None:
    X, Y = rows(5000, 7), rows(300, 7, seed=1)
    prepared, out = kernel.prepare(Y), np.full((5000, 300), np.nan)
    assert prepared(X, out) is out
    picked = np.arange(0, 5000, 97)
    np.testing.assert_allclose(out[picked], kernel(X[picked], Y), atol=tolerances.kernel(kernel, X, Y, np.float64))
    again = pickle.loads(pickle.dumps(prepared))
    np.testing.assert_array_equal(again(X[:100]), prepared(X[:100]))
    for wrong in (out[:-1], out[:, :-1], out.astype(np.float32)):
        with pytest.raises(ParameterError, match="expected float64"):
            prepared(X, wrong)
    with pytest.raises(ParameterError, match="rows of 6 features: expected 7"):
        prepared(X[:, :6])


@pytest.mark.deep(keep=12)
@every_kernel
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_memory_is_what_the_plan_is_told(kernel: Kernel, dtype: str) -> None:
    X, Y = (rows(6000, 16) * 10).astype(dtype), (rows(500, 16, seed=1) * 10).astype(dtype)
    out = np.empty((len(X), 500), dtype="float64" if dtype == "int16" else dtype)
    kernel(X[:10], Y)  # what is imported on the first call is not memory of the call

    def taken() -> int:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        prepared(X, out)
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    prepared = kernel.prepare(Y)
    made, peaks = tracemalloc.get_traced_memory()[0], []
    for _ in range(3):  # the smallest: other threads of this process allocate, too
        with ThreadPoolExecutor(1) as thread:  # scratch memory belongs to a thread, and this one has none yet
            peaks.append(thread.submit(taken).result())
    peak = min(peaks)
    tracemalloc.stop()
    slack = 1 << 16  # objects of Python
    assert made <= kernel.prepared_bytes(500, 16) + slack
    assert peak <= kernel.scratch_bytes(500, 16) + slack


def test_sums_and_multiples() -> None:
    X, Y = rows(40), rows(20, seed=1)
    expected = RBF(1e-2)(X, Y) + 2 * Polynomial(5)(X, Y) + 0.5 * Laplacian()(X, Y)
    np.testing.assert_allclose(MIXED(X, Y), expected, atol=tolerances.kernel(MIXED, X, Y, np.float64))
    nested = 3 * (Linear() + 2 * (RBF() + Linear()))
    assert nested == Sum((Linear() * 3, RBF() * 6, Linear() * 6)) or isinstance(nested, Scaled)
    np.testing.assert_allclose((nested + RBF())(X, Y), 9 * X @ Y.T + 7 * RBF()(X, Y), rtol=1e-12)
    assert sum([RBF(), Linear()]) == RBF() + Linear()
    assert (RBF() + Laplacian()).constant_diagonal
    assert (2 * Cosine()).constant_diagonal
    assert not MIXED.constant_diagonal
    assert MIXED.bound(16) == RBF(1e-2) + 2.0 * Polynomial(5, 1 / 16) + Laplacian(1 / 16) * 0.5
    np.testing.assert_array_equal((0.0 * RBF())(X, Y), np.zeros((40, 20)))
    for wrong in (lambda: RBF() * -1, lambda: np.inf * RBF(), lambda: Sum(()), lambda: Sum((RBF(), "rbf"))):  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="expected"):
            wrong()
    with pytest.raises(TypeError):
        RBF() + 1
    with pytest.raises(TypeError):
        RBF() * "2"


def test_kernels_inside_of_each_other_do_not_share_scratch_memory() -> None:
    rows = np.random.default_rng(3).normal(size=(6, 3)) + 1

    def standardised(kernel: Kernel, shift: float) -> Kernel:
        return Standardised(kernel).with_moments(np.full(3, shift), np.full(3, 2.0))

    linear = 4 * (rows - 1) @ (rows - 1).T
    gaussian = np.exp(-0.3 * 4 * cdist(rows, rows, "sqeuclidean"))
    both = Linear() + standardised(Linear() + RBF(gamma=0.3), 1.0)
    np.testing.assert_allclose(both(rows, rows), rows @ rows.T + linear + gaussian, atol=1e-12)
    inner = standardised(standardised(Linear(), 0.5) + Linear(), 1.0)
    twice = 2 * (2 * (rows - 1) - 0.5)
    np.testing.assert_allclose(inner(rows, rows), twice @ twice.T + linear, atol=1e-12)


def test_what_is_known_to_be_definite() -> None:
    definite = (Linear(), Polynomial(5), RBF(), Laplacian(), Cosine(), 2 * RBF() + Linear(), Polynomial(0, coef0=-1))
    assert all(kernel.definite is True for kernel in definite)
    assert all(kernel.definite is False for kernel in (Sigmoid(), Sigmoid() + Sigmoid(0.1), Polynomial(3, coef0=-1)))
    assert all(
        kernel.definite is None
        for kernel in (Custom(products), Polynomial(2.5), Custom(products) + RBF(), RBF() + Sigmoid())
    )
    X = rows(60)
    for kernel in (*definite, MIXED):
        found = check_kernel(kernel, X)
        assert found["symmetric"]
        assert found["positive_semidefinite"], (kernel, found)


def test_check_kernel_reports_what_is_wrong() -> None:
    X = rows(60)
    found = check_kernel(Sigmoid(), X)
    matrix = np.linalg.eigvalsh(Sigmoid()(X, X))
    assert found["symmetric"]
    assert not found["positive_semidefinite"]
    np.testing.assert_allclose(found["smallest_eigenvalue"], matrix[0] / np.abs(matrix).max(), rtol=1e-9)
    np.testing.assert_allclose(found["largest_eigenvalue"], matrix[-1], rtol=1e-12)
    found = check_kernel(Custom(lopsided), X)
    assert not found["symmetric"]
    assert found["asymmetry"] > 0.1
    with pytest.raises(DataError, match="kernel values of row 0 are not finite"):
        check_kernel(Polynomial(200), X * 1e3)
    with pytest.raises(DataError, match="0 rows"):
        check_kernel(RBF(), X[:0])


@every_kernel
def test_plain_data_pickles_and_equality(kernel: Kernel) -> None:
    document = json.loads(json.dumps(kernel.to_dict()))
    assert kernel_from_dict(document) == kernel
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert hash(kernel_from_dict(document)) == hash(kernel)
    assert kernel != RBF(0.123)
    bound = kernel.bound(4)
    assert bound == bound.bound(9)
    assert '"gamma": null' not in json.dumps(bound.to_dict())


def test_a_function_as_kernel() -> None:
    X, Y = rows(40), rows(20, seed=1)
    kernel = kernel_of(products)
    assert kernel == Custom(products) == pickle.loads(pickle.dumps(kernel))
    np.testing.assert_allclose(kernel(X, Y), X @ Y.T, rtol=1e-13)
    np.testing.assert_allclose(kernel.diagonal(X), (X**2).sum(axis=1), rtol=1e-13)
    assert kernel(X.astype(np.float32), Y.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(kernel_of(lopsided, kernel_params={"slope": 3.0})(X, Y), lopsided(X, Y, 3.0), rtol=1e-13)
    with pytest.raises(ParameterError, match="'products', which cannot be saved"):
        kernel.to_dict()
    with pytest.raises(ParameterError, match="cannot be saved"):
        (kernel + RBF()).to_dict()
    with pytest.raises(ParameterError, match=r"two single rows has to be applied to all pairs"):
        Custom(np.vdot)(X, X)
    with pytest.raises(ParameterError, match="kernel_params=3"):
        kernel_of(products, kernel_params=3)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="expected a callable"):
        Custom("rbf")  # type: ignore[arg-type]


def test_kernels_by_name() -> None:
    assert kernel_of("rbf", gamma=0.5) == RBF(0.5)
    assert kernel_of("poly", 0.5, 4, 2.0) == Polynomial(4, 0.5, 2.0) == kernel_of("polynomial", 0.5, 4, 2.0)
    assert kernel_of("tanh", coef0=0.0) == Sigmoid(None, 0) == kernel_of("sigmoid", coef0=0)
    assert kernel_of("linear", gamma=3) == Linear()
    assert kernel_of("laplacian") == Laplacian()
    assert kernel_of("cosine", gamma=1) == Cosine()
    assert kernel_of(MIXED, gamma=3) is MIXED
    assert sp.kernels.RBF is RBF
    with pytest.raises(ParameterError, match="did you mean 'laplacian'"):
        kernel_of("laplace")
    with pytest.raises(ParameterError, match="did you mean 'rbf'"):
        kernel_of("RBF")
    with pytest.raises(ParameterError, match="'precomputed' is not supported"):
        kernel_of("precomputed")
    for wrong in (None, 3, ["rbf"]):
        with pytest.raises(ParameterError, match="expected one of linear, rbf"):
            kernel_of(wrong)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RBF(-1.0), "rbf kernel with gamma=-1.0: expected a finite number of at least 0"),
        (lambda: RBF(float("nan")), "expected a finite number"),
        (lambda: RBF("scale"), "gamma='scale'"),  # type: ignore[arg-type]
        (lambda: RBF(1.0, sigma=1.0), "gamma=1.0 and sigma=1.0: expected only one of them"),
        (lambda: RBF(sigma=0.0), "expected a finite number above 0"),
        (lambda: RBF(True), "gamma=True"),
        (lambda: Polynomial(-1), "degree=-1"),
        (lambda: Polynomial(3, coef0=float("inf")), "coef0=inf: expected a finite number"),
        (lambda: Sigmoid(coef0=None), "coef0=None"),  # type: ignore[arg-type]
        (lambda: RBF()(np.zeros(3), np.zeros((3, 3))), r"rows of shape \(3,\)"),
        (lambda: RBF()(np.zeros((3, 3), complex), np.zeros((3, 3))), "complex128: expected real numbers"),
        (lambda: RBF().prepare(np.zeros((3, 3)), np.int64), "expected float32 or float64"),
        (lambda: kernel_from_dict({"name": "rbf", "width": 3}), "width"),
        (lambda: kernel_from_dict({"name": "custom"}), "expected one of"),
        (lambda: kernel_from_dict({"terms": []}), "expected a mapping with the name"),
        (lambda: kernel_from_dict({"name": "scaled"}), "expected a name and its parameters"),
    ],
)
def test_parameters_outside_their_domains(make: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make()
