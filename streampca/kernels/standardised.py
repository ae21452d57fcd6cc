"""Kernels of features that are standardised by means and deviations found in the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streampca.errors import ParameterError
from streampca.kernels.base import Kernel, Needs, Prepared
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray


@dataclass(frozen=True)
class Standardised(Kernel):
    """κ(z(x), z(y)) with the z-scores z(x) = (x − mean) · factor of rows, for a kernel κ.

    Before a fit, mean and factor are None: the fit finds them, and `with_moments` returns the kernel with them. The factor
    is 1 / the standard deviation, and 0 for a feature that never varies, so that it has no effect on new rows either.

    `KernelPCA` makes it for ``scale=True``. Kernel values are computed in float64.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> kernel = sp.kernels.Standardised(sp.kernels.Linear()).with_moments(np.array([2.0, 3.0]), np.array([1.0, 0.5]))
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> kernel(rows, rows)
    array([[ 1.25, -1.25],
           [-1.25,  1.25]])
    """

    name: ClassVar[str] = "standardised"

    kernel: Kernel
    """The kernel κ."""
    mean: tuple[float, ...] | None = None
    """Mean of each feature; None = not found yet."""
    factor: tuple[float, ...] | None = None
    """Factor of each feature; None = not found yet."""

    @property
    def constant_diagonal(self) -> bool:
        """Whether κ(x, x) is the same for every x."""
        return bool(self.kernel.constant_diagonal)

    @property
    def definite(self) -> bool | None:
        """Whether every kernel matrix is positive semi-definite; None if unknown."""
        return self.kernel.definite

    def with_moments(self, mean: FloatArray, factor: FloatArray) -> Standardised:
        """Return the kernel with mean and factor of each feature, both ``(n_features,)``."""
        return Standardised(self.kernel, tuple(mean.tolist()), tuple(factor.tolist()))

    def bound(self, n_features: int) -> Kernel:
        """Return the kernel with gamma=None resolved."""
        return Standardised(self.kernel.bound(n_features), self.mean, self.factor)

    def needs(self, n_features: int) -> Needs:
        """Return the cost of kernel values of rows of `n_features` features: those of κ, and a copy of the rows."""
        needs = self.kernel.needs(n_features)
        return Needs(needs.columns + 2 * n_features, needs.values, needs.flops + 1)

    def to_dict(self) -> dict[str, object]:
        """Return the kernel as plain data, without mean and factors, which models store as arrays."""
        return {"name": self.name, "kernel": self.kernel.to_dict()}

    def moments(self) -> tuple[FloatArray, FloatArray]:
        """Return mean and factor of each feature; `ParameterError` before a fit has found them."""
        if self.mean is None or self.factor is None:
            raise ParameterError("a standardised kernel without means and deviations: expected one that a fit returned")
        return np.asarray(self.mean), np.asarray(self.factor)

    def standardise(self, rows: Array) -> FloatArray:
        """Return the z-scores of `rows`, ``(n_rows, n_features)``."""
        mean, factor = self.moments()
        scores: FloatArray = (rows - mean) * factor
        return scores

    def restore(self, scores: FloatArray) -> FloatArray:
        """Return the rows that have these z-scores, ``(n_rows, n_features)``; features that never vary have their mean."""
        mean, factor = self.moments()
        rows: FloatArray = mean + np.divide(scores, factor, out=np.zeros_like(scores), where=factor > 0)
        return rows

    def _prepare(self, landmarks: FloatArray, dtype: DType) -> Prepared:
        mean, factor = self.moments()
        inner = self.kernel._prepare(self.standardise(landmarks), dtype)
        return PreparedStandardised(self, inner.n_landmarks, inner.n_features, dtype, inner, mean, factor)

    def _diagonal(self, rows: Array) -> FloatArray:
        return self.kernel._diagonal(self.standardise(rows))


@dataclass(frozen=True, eq=False)
class PreparedStandardised(Prepared):
    """A kernel prepared for standardised landmarks."""

    inner: Prepared
    """κ, prepared for the z-scores of the landmarks."""
    mean: FloatArray
    """Mean of each feature."""
    factor: FloatArray
    """Factor of each feature."""

    def fill(self, rows: Array, out: Array) -> None:
        """Write the kernel values of the z-scores of the `rows` of a panel to `out`; they are computed in float64."""
        scores = borrow("z-scores", rows.shape, np.float64)
        np.subtract(rows, self.mean, out=scores)
        scores *= self.factor
        self.inner.fill(scores, out)
