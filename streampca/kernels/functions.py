"""Kernels with names, and kernels from a user's function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import ParameterError
from streampca.kernels.base import Kernel, Needs, check_parameters
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray

_WIDE_SPREAD = 16.0
_DIAGONAL_ROWS = 16


class ProductKernel(Kernel):
    """A kernel f(γ a · b) for vectors a of a row and b of a landmark; f is applied to every entry in place."""

    gamma: float | None = 1.0
    """γ; None = 1 / n_features, until `bound`."""
    _cost: ClassVar[tuple[int, int, float, float]] = (0, 0, 2, 0)

    def finish(self, values: Array) -> None:
        """Apply f to the inner products, in place."""

    def _rows(self, rows: Array, dtype: DType, *origin: Array) -> Array:
        """Return the vectors a of the rows, ``(n_rows, n_columns)``; may be scratch memory."""
        return copied(rows, dtype)

    def _landmarks(self, landmarks: FloatArray, dtype: DType) -> tuple[Array, ...]:
        """Return the vectors γ b in columns, ``(n_columns, n_landmarks)`` in float64 or `dtype`, and what else `_rows` takes."""
        return (np.ascontiguousarray(landmarks.T * bound_gamma(self), dtype=dtype),)

    def _fill(self, rows: Array, out: Array, right: Array, *origin: Array) -> None:
        left = self._rows(rows, right.dtype, *origin)
        values = out if out.dtype == right.dtype else borrow("kernel products", out.shape, right.dtype)
        np.matmul(left, right, out=values)
        self.finish(values)
        if values is not out:
            np.copyto(out, values, casting="same_kind")

    def _diagonal(self, rows: Array) -> FloatArray:
        wide = copied(rows, np.dtype(np.float64))
        values: FloatArray = np.einsum("ij,ij->i", wide, wide) * bound_gamma(self)
        self.finish(values)
        return values


def copied(rows: Array, dtype: DType) -> Array:
    """Return `rows` as a C-ordered array of `dtype`, in scratch memory if a copy is needed."""
    if rows.dtype == dtype and rows.flags.c_contiguous:
        return rows
    out = borrow("kernel rows", rows.shape, dtype)
    np.copyto(out, rows, casting="unsafe")
    return out


def bound_gamma(kernel: ProductKernel | Laplacian) -> float:
    """Return γ of a kernel that `Kernel.bound` returned."""
    if kernel.gamma is None:
        raise ParameterError("gamma=None: expected a kernel that is bound to a number of features")
    return kernel.gamma


@dataclass(frozen=True)
class Linear(ProductKernel):
    """κ(x, y) = x · y, with which kernel PCA is PCA.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> sp.kernels.Linear()(rows, rows)
    array([[ 5., 11.],
           [11., 25.]])
    """

    name: ClassVar[str] = "linear"


@dataclass(frozen=True)
class Polynomial(ProductKernel):
    """κ(x, y) = (γ x · y + c)^p, as in scikit-learn.

    It is positive semi-definite for whole p and c ≥ 0, as a sum of products of such kernels. For other p, `definite`
    is None.

    Raises
    ------
    ParameterError
        If p or γ is negative, or a parameter is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> sp.kernels.Polynomial(degree=2, gamma=1.0)(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))
    array([[144.]])
    """

    name: ClassVar[str] = "poly"

    degree: float = 3
    """p, at least 0; whole numbers are raised by products."""
    gamma: float | None = None
    """γ, at least 0; None = 1 / n_features."""
    coef0: float = 1.0
    """c."""

    def __post_init__(self) -> None:
        check_parameters(self, "degree", "gamma", signed=("coef0",))
        if self.degree.is_integer():
            object.__setattr__(self, "degree", int(self.degree))

    @property
    def definite(self) -> bool | None:
        """Whether every matrix of the kernel is positive semi-definite."""
        return None if not isinstance(self.degree, int) else self.coef0 >= 0 or self.degree == 0

    def needs(self, n_features: int) -> Needs:
        """Return the cost of kernel values of rows of `n_features` features."""
        return Needs(n_features, 1, 2.0 * n_features + 2 * max(1.0, self.degree).__ceil__().bit_length())

    def finish(self, values: Array) -> None:
        """Add c and raise to the power p, by squaring from the highest bit of p on."""
        values += self.coef0
        if not isinstance(self.degree, int):
            np.power(values, self.degree, out=values)
            return
        if self.degree == 0:
            values.fill(1)
            return
        bits = bin(self.degree)[3:]
        if "1" in bits:
            base = borrow("kernel base", values.shape, values.dtype)
            np.copyto(base, values)
        for bit in bits:
            np.multiply(values, values, out=values)
            if bit == "1":
                values *= base


@dataclass(frozen=True)
class Sigmoid(ProductKernel):
    """κ(x, y) = tanh(γ x · y + c), as in scikit-learn; not positive semi-definite.

    `KernelPCA` therefore leaves out components with negative eigenvalues, and its landmark methods give no
    certificate.

    Raises
    ------
    ParameterError
        If γ is negative, or a parameter is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> sp.kernels.Sigmoid(gamma=0.1)(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])).round(4)
    array([[0.9705]])
    """

    name: ClassVar[str] = "sigmoid"
    definite: ClassVar[bool | None] = False
    _cost: ClassVar[tuple[int, int, float, float]] = (0, 0, 2, 20)

    gamma: float | None = None
    """γ, at least 0; None = 1 / n_features."""
    coef0: float = 1.0
    """c."""

    def __post_init__(self) -> None:
        check_parameters(self, "gamma", signed=("coef0",))

    def finish(self, values: Array) -> None:
        """Add c and take the hyperbolic tangent."""
        values += self.coef0
        np.tanh(values, out=values)


@dataclass(frozen=True)
class Cosine(ProductKernel):
    """κ(x, y) = x · y / (‖x‖ ‖y‖), and 0 if x or y is 0.

    Rows are divided by their norms before the product, even if squares of their values overflow or underflow.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> sp.kernels.Cosine()(np.array([[1e200, 0.0]]), np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0. ]])
    """

    name: ClassVar[str] = "cosine"
    constant_diagonal: ClassVar[bool] = True

    def _rows(self, rows: Array, dtype: DType, *origin: Array) -> Array:
        return unit(rows, borrow("kernel rows", rows.shape, dtype))

    def _landmarks(self, landmarks: FloatArray, dtype: DType) -> tuple[Array, ...]:
        return super()._landmarks(unit(landmarks, np.empty_like(landmarks)), dtype)

    def _diagonal(self, rows: Array) -> FloatArray:
        return (rows != 0).any(axis=1).astype(np.float64) if rows.shape[1] else np.zeros(len(rows))


def unit(rows: Array, out: Array) -> Array:
    """Write `rows` divided by their norms to `out`, and return it; rows of zeros stay as they are."""
    np.copyto(out, rows, casting="unsafe")
    with np.errstate(over="ignore", under="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", out, out, dtype=np.float64))
    low, high = (1e-30, 1e30) if out.dtype == np.float32 else (1e-140, 1e140)
    # Squares overflow or underflow float64, 1 / norm the type of `out`, or the row is 0.
    odd = ~((norms > low) & (norms < high))
    if odd.any():
        scaled = rows[odd].astype(np.float64)
        peak = np.abs(scaled).max(axis=1, initial=0.0)
        scaled /= np.where(peak > 0, peak, 1.0)[:, None]
        out[odd] = scaled
        norms[odd] = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    out *= np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0).astype(out.dtype)[:, None]
    return out


@dataclass(frozen=True)
class RBF(ProductKernel):
    """κ(x, y) = exp(−γ ‖x − y‖²), the Gaussian kernel, as in scikit-learn.

    With a = √γ (x − c) and b = √γ (y − c), where c is the mean of the landmarks, −γ‖x − y‖² is the product of (a,
    ‖a‖², 1) and (2b, −1, −‖b‖²): one matrix product, then exp in place. The shift by c costs nothing, because the
    rows are copied anyway, and keeps the cancelling terms small when the mean of the data is far from 0. The
    remaining cancellation gives kernel values a relative error of about 2 (‖a‖² + ‖b‖²) units of rounding. If the
    mean of ‖b‖² is above 16, products of float32 rows are therefore computed in float64.

    The keyword `sigma`, a number above 0, can replace `gamma`: γ = 1 / (2 sigma²).

    Raises
    ------
    ParameterError
        If `gamma` is negative or not finite, `sigma` is not a finite number above 0, or both are given.

    Examples
    --------
    >>> import streampca as sp
    >>> kernel = sp.kernels.RBF(gamma=1e-4) + 2.0 * sp.kernels.Polynomial(degree=5)
    >>> sp.KernelPCA(10, kernel=kernel).kernel is kernel
    True
    """

    name: ClassVar[str] = "rbf"
    constant_diagonal: ClassVar[bool] = True
    _cost: ClassVar[tuple[int, int, float, float]] = (2, 1, 2, 20)

    gamma: float | None = None
    """γ, at least 0; None = 1 / n_features."""
    _: KW_ONLY
    sigma: InitVar[float | None] = None

    def __post_init__(self, sigma: float | None) -> None:
        if sigma is not None:
            if self.gamma is not None:
                raise ParameterError(
                    f"rbf kernel with gamma={self.gamma!r} and sigma={sigma!r}: expected only one of them"
                )
            if not (isinstance(sigma, int | float | np.number) and np.isfinite(sigma) and sigma > 0):
                raise ParameterError(f"rbf kernel with sigma={sigma!r}: expected a finite number above 0")
            object.__setattr__(self, "gamma", 0.5 / float(sigma) ** 2)
        check_parameters(self, "gamma")

    def _rows(self, rows: Array, dtype: DType, *origin: Array) -> Array:
        """Return (a, ‖a‖², 1) of each row."""
        n_features = rows.shape[1]
        out = borrow("kernel rows", (len(rows), n_features + 2), dtype)
        shifted = out[:, :n_features]
        np.subtract(rows, origin[0].astype(dtype), out=shifted, casting="same_kind")
        shifted *= dtype.type(bound_gamma(self) ** 0.5)
        norms = out[:, n_features]
        np.einsum("ij,ij->i", shifted, shifted, out=norms)
        np.minimum(norms, np.finfo(dtype).max / 4, out=norms)  # infinity times 0 is no number
        out[:, n_features + 1] = 1
        return out

    def finish(self, values: Array) -> None:
        """Apply the exponential, after clipping values that rounding made positive."""
        np.minimum(values, 0, out=values)
        np.exp(values, out=values)

    def _landmarks(self, landmarks: FloatArray, dtype: DType) -> tuple[Array, ...]:
        n_landmarks, n_features = landmarks.shape
        scale = bound_gamma(self) ** 0.5
        # The origin in the type of the values, so that it is the same number for landmarks and rows.
        origin = (landmarks.mean(axis=0) if n_landmarks else np.zeros(n_features)).astype(dtype).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            b = (landmarks - origin) * scale
            mean_square = float(np.einsum("ij,ij->", b, b)) / max(1, n_landmarks)
            products = dtype if mean_square <= _WIDE_SPREAD else np.dtype(np.float64)
            b = b.astype(products)  # ‖b‖² of the rounded b in the products
            squares = np.einsum("ij,ij->i", b, b, dtype=np.float64)
        right = np.empty((n_features + 2, n_landmarks), dtype=products)
        right[:n_features] = 2 * b.T
        right[n_features] = -1
        right[n_features + 1] = -squares
        return right, origin


@dataclass(frozen=True)
class Laplacian(Kernel):
    """κ(x, y) = exp(−γ ‖x − y‖₁), as in scikit-learn.

    Distances are sums of d absolute differences in float64, not matrix products: a kernel value of rows of 64 features
    takes about ten times as long as one of the Gaussian kernel in float32.

    Raises
    ------
    ParameterError
        If `gamma` is negative or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> sp.kernels.Laplacian(gamma=0.5)(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])).round(4)
    array([[0.1353]])
    """

    name: ClassVar[str] = "laplacian"
    constant_diagonal: ClassVar[bool] = True
    _cost: ClassVar[tuple[int, int, float, float]] = (0, 1, 20, 20)  # an absolute difference counts as 20 flops

    gamma: float | None = None
    """γ, at least 0; None = 1 / n_features."""

    def __post_init__(self) -> None:
        check_parameters(self, "gamma")

    def _landmarks(self, landmarks: FloatArray, dtype: DType) -> tuple[FloatArray]:
        return (landmarks,)

    def _fill(self, rows: Array, out: Array, landmarks: FloatArray) -> None:
        from scipy.spatial.distance import cdist

        wide = borrow("kernel rows", rows.shape, np.float64)
        np.copyto(wide, rows, casting="unsafe")
        if rows.size == 0 or len(landmarks) == 0:
            out.fill(1)
            return
        distances = borrow("kernel distances", out.shape, np.float64)
        cdist(wide, landmarks, "cityblock", out=distances)
        np.multiply(distances, -bound_gamma(self), out=out, casting="same_kind")
        np.exp(out, out=out)


@dataclass(frozen=True)
class Custom(Kernel):
    """κ from a function of two blocks of rows, ``function(X, Y) -> (len(X), len(Y))``.

    The function should be symmetric and deterministic. Several threads call it with a few rows at a time.
    `check_kernel` tests whether it is positive semi-definite on given rows. The kernel can be pickled if the function
    can (not a lambda).

    Raises
    ------
    ParameterError
        If the function is not callable; later, if it does not return real numbers of shape ``(len(X), len(Y))``.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> def overlap(X, Y):
    ...     return np.minimum(X[:, None], Y).sum(axis=2)
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> sp.kernels.Custom(overlap)(rows, rows)
    array([[3., 3.],
           [3., 7.]])
    """

    name: ClassVar[str] = "custom"
    definite: ClassVar[bool | None] = None
    _cost: ClassVar[tuple[int, int, float, float]] = (0, 2, 20, 0)  # an estimate for the function

    function: Callable[..., ArrayLike]
    """The function."""
    parameters: tuple[tuple[str, object], ...] = ()
    """Names and values of its keyword arguments."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ParameterError(f"function={self.function!r}: expected a callable on two blocks of rows")

    def to_dict(self) -> dict[str, object]:
        """Raise `ParameterError`, because a function cannot be stored as data."""
        raise ParameterError(
            f"the kernel is the function {getattr(self.function, '__qualname__', self.function)!r}, which cannot be saved: "
            "expected one of the kernels of streampca.kernels"
        )

    def values(self, rows: Array, landmarks: Array) -> Array:
        """Return the values of the function for two blocks; `ParameterError` if they are not a matrix of the right shape."""
        values = np.asarray(self.function(rows, landmarks, **dict(self.parameters)))
        shape = len(rows), len(landmarks)
        if values.shape != shape or values.dtype.kind not in "fiub":
            raise ParameterError(
                f"the kernel function returned {values.dtype} {values.shape} for blocks of {shape[0]} and {shape[1]} rows: "
                f"expected real numbers of shape {shape}, the kernel value of every row of the first with every row of the "
                "second (a function of two single rows has to be applied to all pairs)"
            )
        return values

    def _landmarks(self, landmarks: FloatArray, dtype: DType) -> tuple[Array]:
        return (landmarks.astype(dtype),)

    def _fill(self, rows: Array, out: Array, landmarks: Array) -> None:
        np.copyto(out, self.values(rows.astype(landmarks.dtype), landmarks), casting="same_kind")

    def _diagonal(self, rows: Array) -> FloatArray:
        out = np.empty(len(rows))
        for start in range(0, len(rows), _DIAGONAL_ROWS):
            panel = rows[start : start + _DIAGONAL_ROWS]
            out[start : start + len(panel)] = self.values(panel, panel).diagonal()
        return out
