"""From eigenpairs to a model: signs, coefficients, and what can be said of the error."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from streampca.models.kernel import KernelModel, preimage_of
from streampca.solvers.kernel.parameters import KernelParameters
from streampca.typing import Array, FloatArray, Json

ROUNDING = {"float32": 2e-7, "float64": 1e-12}
"""Share of the first eigenvalue below which one is rounding, as scikit-learn has it."""


@dataclass(frozen=True)
class DenseMatrix:
    """A symmetric matrix in memory."""

    values: Array
    """The matrix, ``(side, side)``."""
    n_threads: int = field(default=1, kw_only=True)
    """Threads for products."""

    @property
    def side(self) -> int:
        """Return the side of the matrix."""
        return len(self.values)

    @property
    def rank_limit(self) -> int:
        """Return the largest possible number of eigenpairs."""
        return len(self.values)

    @property
    def diagonal(self) -> FloatArray:
        """Return the diagonal, ``(side,)``."""
        return self.values.diagonal().copy()

    def multiply(self, vectors: FloatArray) -> FloatArray:
        """Return the matrix times `vectors`, ``(side, n_vectors)``."""
        return self.values @ vectors

    def dense(self) -> FloatArray:
        """Return the matrix as a new array."""
        return self.values.copy()


def signs_of(columns: FloatArray) -> FloatArray:
    """Return 1 or −1 for each column, so that its entry of largest modulus (the first of several) becomes positive, ``(k,)``."""
    largest = np.abs(columns).argmax(axis=0)
    return np.where(columns[largest, np.arange(columns.shape[1])] < 0, -1.0, 1.0)


def inverse_roots(values: FloatArray, precision: float) -> FloatArray:
    """Return 1/√λ, and 0 for eigenvalues that are rounding beside the first, ``(k,)``."""
    large = values > precision * max(float(values[0]), 0.0) if len(values) else values > 0
    return np.divide(
        1.0, np.sqrt(values, where=large, out=np.ones_like(values)), where=large, out=np.zeros_like(values)
    )


def share_of(part: float, whole: float) -> float:
    """Return `part` / `whole`, 0 where there is nothing."""
    return part / whole if whole > 0 else 0.0


def shares(values: FloatArray, total: float, residual: float) -> Json:
    """Return how much of the trace the components carry, and the interval of what they leave."""
    captured = min(1.0, float(values.sum()) / total) if total > 0 else 0.0
    return {
        "captured_variance": captured,
        "relative_residual": 1.0 - captured,
        "relative_residual_interval": (
            max(0.0, 1.0 - captured - residual / total) if total > 0 else 0.0,
            1.0 - captured,
        ),
    }


def with_preimage(model: KernelModel, parameters: KernelParameters, vectors: FloatArray | None = None) -> KernelModel:
    """Return `model` with the map from scores back to features if that was asked for; `vectors` are those of the landmarks."""
    if not parameters.inverse:
        return model
    points = np.asarray(model.landmarks, dtype=np.float64)
    scores = model.encode(points) if vectors is None else vectors * np.sqrt(model.eigenvalues)
    return replace(model, preimage=preimage_of(model.kernel, points, scores, parameters.alpha))
