"""The Laplacian kernel, computed from distances instead of a matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streampca.kernels.base import Kernel, Needs, Prepared, bound_gamma, check_parameters, not_negative
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray


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

    gamma: float | None = None
    """γ, at least 0; None = 1 / n_features."""

    def __post_init__(self) -> None:
        check_parameters(self, gamma=not_negative)

    def needs(self, n_features: int) -> Needs:
        """Return the cost of kernel values of rows of `n_features` features; an absolute difference counts as 20 flops."""
        return Needs(n_features, 1, 20.0 * n_features + 20)

    def _prepare(self, landmarks: FloatArray, dtype: DType) -> Prepared:
        return PreparedDistances(self, len(landmarks), landmarks.shape[1], dtype, landmarks)

    def _diagonal(self, rows: Array) -> FloatArray:
        return np.ones(len(rows))


@dataclass(frozen=True, eq=False)
class PreparedDistances(Prepared):
    """The Laplacian kernel and its landmarks."""

    kernel: Laplacian
    landmarks: FloatArray
    """Shape ``(n_landmarks, n_features)``."""

    def fill(self, rows: Array, out: Array) -> None:
        """Write the kernel values of the `rows` of a panel to `out`."""
        from scipy.spatial.distance import cdist

        wide = borrow("kernel rows", rows.shape, np.float64)
        np.copyto(wide, rows, casting="unsafe")
        if rows.size == 0 or self.n_landmarks == 0:
            out.fill(1)
            return
        distances = borrow("kernel distances", out.shape, np.float64)
        cdist(wide, self.landmarks, "cityblock", out=distances)
        np.multiply(distances, -bound_gamma(self.kernel.gamma), out=out, casting="same_kind")
        np.exp(out, out=out)
