"""Random fits of `KernelPCA`, compared with the eigenvalues of the whole kernel matrix."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse as sp
from judging import EPS, Verdict, Wrong, last_line
from numpy.typing import NDArray

from streampca import KernelPCA
from streampca.errors import StreamPCAError

FloatArray = NDArray[np.float64]
KERNELS = ("linear", "rbf", "rbf", "poly", "sigmoid", "laplacian", "cosine")
METHODS = ("auto", "exact", "exact", "nystrom", "nystrom", "nystrom_extension", "empirical_map")
SAMPLINGS = ("auto", "uniform", "diagonal", "column_norm", "rpcholesky")


@dataclass(frozen=True)
class KernelCase:
    """One fit."""

    seed: int
    """What decides everything else."""
    rows: NDArray[Any]
    """The rows, ``(n_samples, n_features)``."""
    container: str
    """How they are handed over."""
    parameters: dict[str, Any]
    """Parameters of `KernelPCA`."""

    def stored(self) -> Any:
        """Return the rows in their container."""
        if self.container == "dask":
            return da.from_array(self.rows, chunks=(max(1, len(self.rows) // 3), self.rows.shape[1]))
        return sp.csr_array(self.rows) if self.container == "csr" else self.rows

    def line(self) -> str:
        """Return the case in words."""
        parameters = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        return f"{self.container} {'x'.join(map(str, self.rows.shape))} {self.rows.dtype.str} KernelPCA({parameters})"


def draw(seed: int) -> KernelCase:
    """Return the case that `seed` stands for."""
    rng = np.random.default_rng([seed, 20261123])
    n, d = int(rng.integers(2, 140)), int(rng.integers(1, 20))
    dtype = np.dtype(str(rng.choice(["<f8", "<f8", "<f4", "<f4", "<f2", "|u1", "<i4"])))
    container = str(rng.choice(["numpy", "numpy", "numpy", "dask", "csr"]))
    dtype = np.dtype("<f4") if container == "csr" and dtype.itemsize == 2 else dtype
    rows = _rows(rng, n, d, dtype)
    kernel, method = str(rng.choice(KERNELS)), str(rng.choice(METHODS))
    parameters: dict[str, Any] = {"kernel": kernel, "method": method}
    parameters["gamma"] = float(rng.choice([0.01, 0.3])) / d
    if kernel == "poly":
        parameters["degree"] = int(rng.integers(2, 5))
    if kernel in ("poly", "sigmoid"):
        parameters["coef0"] = float(rng.choice([0.0, 1.0]))
    if rng.random() < 0.8:
        parameters["n_components"] = min(int(rng.integers(1, 8)), n)
    if method != "exact":
        parameters["n_landmarks"] = int(rng.choice([1, 5, 30, 200]))
        parameters["sampling"] = str(rng.choice(SAMPLINGS))
    if method == "empirical_map":
        parameters["sketch"] = str(rng.choice(["gaussian", "count_sketch", "sparse_sign", "grouping"]))
        parameters["recovery"] = str(rng.choice(["nystrom", "nystrom", "conversion"]))
    if rng.random() < 0.2:
        parameters["center"] = False
    if rng.random() < 0.15:
        parameters["fit_inverse_transform"] = True
    parameters["random_state"] = int(rng.integers(1000))
    return KernelCase(seed, rows, container, parameters)


def _rows(rng: np.random.Generator, n: int, d: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    rows = rng.standard_normal((n, d))
    kind = rng.integers(5)
    if kind == 0:
        rows = rows[:, :1] * rng.standard_normal((1, d))
    elif kind == 1:
        rows = rows[rng.integers(0, max(1, n // 3), n)]
    elif kind == 2:
        rows = rng.integers(0, 3, (n, d)) * 0.1
    elif kind == 3:
        rows[:, rng.random(d) < 0.3] = 0.7
    if dtype.kind in "iu":
        return np.clip(np.rint(rows * 20 + 60), 0, 255).astype(dtype)
    return (rows + float(rng.choice([0.0, 0.0, 3.0, 100.0]))).astype(dtype)


def kernel_matrix(case: KernelCase) -> tuple[NDArray[np.longdouble], float]:
    """Return the kernel matrix of all rows in long double, and how far float64 values may be from it.

    The argument of the kernel function is a sum of d terms, rounded by (d + 20) eps of its size; what that does to the value
    is the derivative of the function times it.
    """
    x, given = case.rows.astype(np.longdouble), case.parameters
    d, kernel, gamma = x.shape[1], given["kernel"], np.longdouble(given["gamma"])
    unit = 4 * (d + 20)
    products = x @ x.T
    if kernel == "linear":
        return products, unit * float(np.abs(products).max())
    if kernel == "cosine":
        lengths = np.sqrt(products.diagonal())
        units = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        return products * units * units[:, None], unit
    if kernel == "poly":
        power, argument = given["degree"], gamma * products + given["coef0"]
        size = float(np.abs(gamma * products).max()) + abs(given["coef0"])
        return argument**power, unit * power * size**power
    if kernel == "sigmoid":
        return np.tanh(gamma * products + given["coef0"]), unit * (float(np.abs(gamma * products).max()) + 1)
    order = 2 if kernel == "rbf" else 1
    distances = (np.abs(x[:, None] - x[None]) ** order).sum(axis=2)
    about = x - x.mean(axis=0)
    size = (float(gamma) * 4 * float((np.abs(about) ** order).sum(axis=1).max())) + 1
    return np.exp(-gamma * distances), unit * size


def judge(case: KernelCase) -> Verdict:
    """Fit `case` and say what became of it."""
    notes: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "n_components=.* eigenvalues|rounding of the kernel values", UserWarning)
        try:
            kpca = KernelPCA(**case.parameters).fit(case.stored())
            _check(case, kpca, notes)
        except Wrong as wrong:
            return Verdict("wrong", str(wrong), tuple(notes))
        except (StreamPCAError, ValueError) as error:
            text = f"{type(error).__name__}: {error}"
            expected = isinstance(error, StreamPCAError) and any(re.search(p, text) for p in _refusals(case))
            return Verdict("refused" if expected else "bare", text if expected else last_line(error))
        except Exception as error:  # noqa: BLE001 whatever was raised is what was looked for
            return Verdict("bare", last_line(error), tuple(notes))
    return Verdict("right", "", tuple(notes), kpca.method_ == "nystrom" and kpca.error_["definite"])


def _refusals(case: KernelCase) -> list[str]:
    """Return patterns of errors that this case may end in."""
    given, found = case.parameters, []
    k, m = given.get("n_components"), given.get("n_landmarks", 1000)
    if case.container == "csr":
        found.append("NotAvailableError|ParameterError.*sparse")
    if given["method"] == "nystrom_extension" and given["sampling"] == "rpcholesky":
        found.append("^ParameterError.*rpcholesky")
    if isinstance(k, int) and (given["method"] != "exact" or given["kernel"] == "sigmoid"):
        found.append("^ParameterError: n_components=.*: expected between 1 and")
    if not case.rows.any() or given["kernel"] in ("linear", "poly", "cosine", "sigmoid"):
        found.append("^DataError: the kernel is zero between all landmarks")
        found.append("^DataError: no landmark could be drawn")
        found.append("^DataError: all .* rows have weight 0")
    if given["kernel"] == "sigmoid":
        found.append("rpcholesky|column_norm|diagonal")
    if m < 2:
        found.append("^(ParameterError|DataError): .*landmark")
    return found


def _check(case: KernelCase, kpca: Any, notes: list[str]) -> None:
    matrix, size = kernel_matrix(case)
    n = len(matrix)
    if case.parameters.get("center", True):
        middle = matrix.mean(axis=0)
        matrix = matrix - middle - middle[:, None] + middle.mean()
    values = np.linalg.eigvalsh(matrix.astype(np.float64))[::-1]
    k, first = kpca.n_components_, max(float(values[0]), 0.0)
    found = kpca.eigenvalues_
    if found.shape != (k,) or not np.isfinite(found).all() or (np.diff(found) > 0).any() or (found < 0).any():
        raise Wrong(f"eigenvalues_: {found[:5]}")
    double = n * size * EPS + 1e-13 * max(first, 1e-300)
    if kpca.method_ == "exact":
        _check_exact(case, kpca, matrix.astype(np.float64), values, double)
    elif kpca.method_ == "nystrom":
        _check_nystrom(kpca, values, double, notes)
    scores = np.asarray(kpca.transform(case.stored()))
    if scores.shape != (n, k) or not np.isfinite(scores).all():
        raise Wrong(f"scores: shape {scores.shape}, finite: {np.isfinite(scores).all()}")
    narrow = case.rows.dtype.kind == "f" and case.rows.dtype.itemsize <= 4
    if scores.dtype != (np.float32 if narrow else np.float64):
        raise Wrong(f"scores: {scores.dtype}")
    if kpca.method_ in ("exact", "nystrom"):
        _check_scores(case, kpca, scores, size, narrow)


def _check_exact(case: KernelCase, kpca: Any, matrix: FloatArray, values: FloatArray, slack: float) -> None:
    k, first = kpca.n_components_, max(float(values[0]), 0.0)
    narrow = kpca.error_["eigen_solver"] != "lapack" and case.rows.dtype.kind == "f" and case.rows.dtype.itemsize <= 4
    slack = slack * (2.0**29 if narrow else 1.0) + 1e-12 * first
    expected = np.maximum(values[:k], 0.0)
    off = np.abs(kpca.eigenvalues_ - expected).max()
    if off > slack:
        raise Wrong(f"eigenvalues_ off by {off:.1e} (first {first:.1e}, allowed {slack:.1e})")
    intervals = np.asarray(kpca.error_["eigenvalue_intervals"])
    below, above = (intervals[:, 0] - expected).max(), (expected - intervals[:, 1]).max()
    if max(below, above) > slack:
        raise Wrong(f"interval of an exact answer off by {max(below, above):.1e} (first {first:.1e})")
    vectors = kpca.eigenvectors_
    good = kpca.eigenvalues_ > 1e-7 * first
    residual = np.abs(matrix @ vectors - vectors * kpca.eigenvalues_)[:, good].max(initial=0.0)
    if residual > 4 * slack + 1e-9 * first:
        raise Wrong(f"eigenvectors_: residual {residual:.1e} (first {first:.1e})")


def _check_nystrom(kpca: Any, values: FloatArray, slack: float, notes: list[str]) -> None:
    said, k = kpca.error_, kpca.n_components_
    if not said["definite"]:
        return
    first = max(float(values[0]), 0.0)
    for name in ("proven_intervals", "eigenvalue_intervals"):
        intervals = np.asarray(said[name], dtype=np.float64)
        below, above = (intervals[:, 0] - values[:k]).max(), (values[:k] - intervals[:, 1]).max()
        if below > slack or (above > slack and name == "proven_intervals"):
            raise Wrong(f"{name} miss by {max(below, above) / max(first, 1e-300):.1e} of the first eigenvalue")
        if above > slack:
            notes.append("upper end of an interval of nystrom")


def _check_scores(case: KernelCase, kpca: Any, scores: NDArray[Any], size: float, narrow: bool) -> None:
    """Check that the squares of each column of scores sum to its eigenvalue, where that is well above rounding."""
    first = max(float(kpca.eigenvalues_[0]), 0.0)
    sums = (scores.astype(np.float64) ** 2).sum(axis=0)
    unit = float(np.finfo(np.float32).eps) if narrow else EPS
    slack = 8 * len(scores) * size * unit + 1e-5 * first * (2.0**7 * unit / EPS * 1e-11 + 1e-4)
    if case.parameters.get("center", True) or kpca.method_ == "exact":
        good = kpca.eigenvalues_ > max(1e-3 * first, 100 * slack)
        off = np.abs(sums - kpca.eigenvalues_)[good].max(initial=0.0)
        if off > 1e-2 * first:
            raise Wrong(f"scores: squares sum to {off:.1e} beside the eigenvalue (first {first:.1e})")
