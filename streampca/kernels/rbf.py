"""The Gaussian kernel, as one matrix product and an exponential."""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass
from typing import ClassVar

import numpy as np

from streampca.errors import ParameterError
from streampca.kernels.base import Needs, Prepared, bound_gamma, check_parameters, not_negative
from streampca.kernels.products import PreparedProduct, ProductKernel
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray

_WIDE_SPREAD = 16.0


@dataclass(frozen=True)
class RBF(ProductKernel):
    """κ(x, y) = exp(−γ ‖x − y‖²), the Gaussian kernel, as in scikit-learn.

    With a = √γ (x − c) and b = √γ (y − c), c the mean of the landmarks, −γ‖x − y‖² is the product of (a, ‖a‖², 1) and
    (2b, −1, −‖b‖²): one matrix product, then exp in place. The shift by c costs nothing, because the rows are copied
    anyway, and keeps the cancelling terms small when the mean of the data is far from 0. The remaining cancellation
    causes a relative error of a kernel value of about 2 (‖a‖² + ‖b‖²) units of rounding; where the mean of ‖b‖² is above
    16, products of float32 rows are therefore computed in float64.

    `sigma`, a number above 0, may be given by keyword in place of `gamma`: γ = 1 / (2 sigma²).

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

    gamma: float | None = None
    """γ, at least 0; None = 1 / n_features."""
    _: KW_ONLY
    sigma: InitVar[float | None] = None

    def __post_init__(self, sigma: float | None) -> None:
        if sigma is not None:
            if self.gamma is not None:
                raise ParameterError(f"rbf kernel with gamma={self.gamma!r} and sigma={sigma!r}: expected one of them")
            if not (isinstance(sigma, int | float | np.number) and np.isfinite(sigma) and sigma > 0):
                raise ParameterError(f"rbf kernel with sigma={sigma!r}: expected a finite number above 0")
            object.__setattr__(self, "gamma", 0.5 / float(sigma) ** 2)
        check_parameters(self, gamma=not_negative)

    def needs(self, n_features: int) -> Needs:
        """Return the cost of kernel values of rows of `n_features` features."""
        return Needs(n_features + 2, 1, 2.0 * n_features + 20)

    def rows(self, rows: Array, prepared: PreparedProduct) -> Array:
        """Return (a, ‖a‖², 1) of each row."""
        n_features, dtype = rows.shape[1], prepared.right.dtype
        out = borrow("kernel rows", (len(rows), n_features + 2), dtype)
        shifted = out[:, :n_features]
        np.subtract(rows, np.asarray(prepared.origin, dtype=dtype), out=shifted, casting="same_kind")
        shifted *= dtype.type(prepared.scale)
        norms = out[:, n_features]
        np.einsum("ij,ij->i", shifted, shifted, out=norms)
        np.minimum(norms, np.finfo(dtype).max / 4, out=norms)  # infinity times 0 is no number
        out[:, n_features + 1] = 1
        return out

    def finish(self, values: Array) -> None:
        """Apply the exponential, after clipping values that rounding made positive."""
        np.minimum(values, 0, out=values)
        np.exp(values, out=values)

    def _prepare(self, landmarks: FloatArray, dtype: DType) -> Prepared:
        n_landmarks, n_features = landmarks.shape
        scale = bound_gamma(self.gamma) ** 0.5
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
        return PreparedProduct(self, n_landmarks, n_features, dtype, right, origin, scale)

    def _diagonal(self, rows: Array) -> FloatArray:
        return np.ones(len(rows))
