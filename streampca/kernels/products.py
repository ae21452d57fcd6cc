"""Kernels that are functions of the inner product of two rows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streampca.kernels.base import Kernel, Needs, Prepared, any_number, bound_gamma, check_parameters, not_negative
from streampca.kernels.rows import copied, squared_norms
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray


class ProductKernel(Kernel):
    """A kernel f(a · b) for vectors a of a row and b of a landmark; f is applied to every entry in place."""

    def needs(self, n_features: int) -> Needs:
        """Return the cost of kernel values of rows of `n_features` features."""
        return Needs(n_features, 0, 2.0 * n_features)

    @abstractmethod
    def rows(self, rows: Array, prepared: PreparedProduct) -> Array:
        """Return the vectors a of the rows, ``(n_rows, n_columns)``; may be scratch memory."""

    def finish(self, values: Array) -> None:
        """Apply f to the inner products, in place."""


@dataclass(frozen=True, eq=False)
class PreparedProduct(Prepared):
    """A kernel of inner products, and the transposed landmarks."""

    kernel: ProductKernel
    right: Array
    """Vectors b of the landmarks in columns, shape ``(n_columns, n_landmarks)``; float64, or `dtype`."""
    origin: FloatArray | None = None
    """Vector that is subtracted from each row, ``(n_features,)``; None = 0."""
    scale: float = 1.0
    """Factor of each row after the subtraction."""

    def fill(self, rows: Array, out: Array) -> None:
        """Write the kernel values of the `rows` of a panel to `out`."""
        left = self.kernel.rows(rows, self)
        values = out if out.dtype == self.right.dtype else borrow("kernel products", out.shape, self.right.dtype)
        np.matmul(left, self.right, out=values)
        self.kernel.finish(values)
        if values is not out:
            np.copyto(out, values, casting="same_kind")


def of_products(kernel: ProductKernel, right: Array, dtype: DType) -> PreparedProduct:
    """Return `kernel` with `right`, ``(n_features, n_landmarks)``, rounded to `dtype`."""
    n_features, n_landmarks = right.shape
    return PreparedProduct(kernel, n_landmarks, n_features, dtype, np.ascontiguousarray(right, dtype=dtype))


@dataclass(frozen=True)
class Linear(ProductKernel):
    """κ(x, y) = x · y: kernel PCA with it is PCA.

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

    def rows(self, rows: Array, prepared: PreparedProduct) -> Array:
        """Return the rows themselves."""
        return copied(rows, prepared.right.dtype)

    def _prepare(self, landmarks: FloatArray, dtype: DType) -> Prepared:
        return of_products(self, landmarks.T, dtype)

    def _diagonal(self, rows: Array) -> FloatArray:
        return squared_norms(rows)


class GammaProduct(ProductKernel):
    """A kernel f(γ x · y + c) with the fields `gamma` and `coef0`."""

    gamma: float | None
    coef0: float

    def rows(self, rows: Array, prepared: PreparedProduct) -> Array:
        """Return the rows themselves, because the landmarks include γ."""
        return copied(rows, prepared.right.dtype)

    def _prepare(self, landmarks: FloatArray, dtype: DType) -> Prepared:
        return of_products(self, landmarks.T * bound_gamma(self.gamma), dtype)

    def _diagonal(self, rows: Array) -> FloatArray:
        values: FloatArray = squared_norms(rows) * bound_gamma(self.gamma)
        self.finish(values)
        return values


@dataclass(frozen=True)
class Polynomial(GammaProduct):
    """κ(x, y) = (γ x · y + c)^p, as in scikit-learn.

    Positive semi-definite for a whole p and c ≥ 0, as a sum of products of such kernels. For other p `definite` is None.

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
        check_parameters(self, degree=not_negative, gamma=not_negative, coef0=any_number)
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
class Sigmoid(GammaProduct):
    """κ(x, y) = tanh(γ x · y + c), as in scikit-learn; not positive semi-definite.

    So `KernelPCA` leaves out components with negative eigenvalues, and its landmark methods give no certificate.

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

    gamma: float | None = None
    """γ, at least 0; None = 1 / n_features."""
    coef0: float = 1.0
    """c."""

    def __post_init__(self) -> None:
        check_parameters(self, gamma=not_negative, coef0=any_number)

    def needs(self, n_features: int) -> Needs:
        """Return the cost of kernel values of rows of `n_features` features."""
        return Needs(n_features, 0, 2.0 * n_features + 20)

    def finish(self, values: Array) -> None:
        """Add c and take the hyperbolic tangent."""
        values += self.coef0
        np.tanh(values, out=values)


@dataclass(frozen=True)
class Cosine(ProductKernel):
    """κ(x, y) = x · y / (‖x‖ ‖y‖), and 0 where x or y is 0.

    Rows are divided by their norms before the product, also where squares of their values overflow or underflow.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> sp.kernels.Cosine()(np.array([[1e200, 0.0]]), np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0. ]])
    """

    name: ClassVar[str] = "cosine"
    constant_diagonal: ClassVar[bool] = True

    def rows(self, rows: Array, prepared: PreparedProduct) -> Array:
        """Return the rows divided by their norms."""
        out = borrow("kernel rows", rows.shape, prepared.right.dtype)
        return unit(rows, out)

    def _prepare(self, landmarks: FloatArray, dtype: DType) -> Prepared:
        return of_products(self, unit(landmarks, np.empty_like(landmarks)).T, dtype)

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
