"""A fitted principal component model: what it takes to transform rows and to get them back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.solve import Reduced, Spectrum

FloatArray = NDArray[np.float64]

_SLAB_BYTES = 8 * 2**20


@dataclass(frozen=True)
class PCAModel:
    """Principal components of one data set."""

    components: FloatArray
    """Orthonormal rows, largest variance first, the entry of largest modulus positive; ``(k, n_features)``."""
    explained_variance: FloatArray
    """Variance along each component, divisor n − ddof; ``(k,)``."""
    mean: FloatArray
    """Mean of each feature; zeros if the data was not centred; ``(n_features,)``."""
    scale: FloatArray | None
    """Standard deviation of each feature, 1 where it never varies, or None if features were not scaled; ``(n_features,)``."""
    total_variance: float
    """Sum of the variances of all features after scaling: the trace of the matrix that was decomposed."""
    n_samples: int
    """Rows the model was fitted on."""
    ddof: int
    """Divisor of variances is n − ddof."""
    center: bool
    """Whether the mean is subtracted."""
    whiten: bool
    """Whether scores are divided by the standard deviation of their component."""
    numerical_rank: int
    """How many of the eigenvalues stand above the rounding of the accumulation."""
    constant_features: NDArray[np.int64]
    """Features that never vary; with scaling their weight is 0."""
    certificate: dict[str, Any] = field(default_factory=dict)
    """How far the numbers can be trusted, in numbers and words."""
    source: dict[str, Any] = field(default_factory=dict)
    """Where the data came from."""

    @classmethod
    def of_spectrum(
        cls,
        spectrum: Spectrum,
        reduced: Reduced,
        *,
        center: bool,
        scale: bool,
        whiten: bool,
        ddof: int,
        work: str,
        source: dict[str, Any],
    ) -> PCAModel:
        """Return the model of the eigenpairs of an accumulated matrix."""
        deviation = np.sqrt(reduced.variance)
        constant = np.flatnonzero(reduced.variance == 0)
        return cls(
            components=spectrum.vectors,
            explained_variance=spectrum.values,
            mean=reduced.mean if center else np.zeros_like(reduced.mean),
            scale=np.where(deviation > 0, deviation, 1.0) if scale else None,
            total_variance=spectrum.total,
            n_samples=reduced.n_samples,
            ddof=ddof,
            center=center,
            whiten=whiten,
            numerical_rank=spectrum.numerical_rank,
            constant_features=constant.astype(np.int64),
            certificate=exact_certificate(spectrum, work),
            source=source,
        )

    @property
    def explained_variance_ratio(self) -> FloatArray:
        """Return the share of the total variance along each component, ``(k,)``."""
        return (
            self.explained_variance / self.total_variance
            if self.total_variance > 0
            else np.zeros_like(self.explained_variance)
        )

    @property
    def singular_values(self) -> FloatArray:
        """Return the singular values of the centred (and scaled) data, ``(k,)``."""
        return np.sqrt(self.explained_variance * (self.n_samples - self.ddof))

    @property
    def noise_variance(self) -> float:
        """Return the mean variance of the directions that are left out (Tipping & Bishop 1999, eq. 8)."""
        k, d = self.components.shape
        left_out = min(self.n_samples, d) - k
        return (
            max(0.0, (self.total_variance - float(self.explained_variance.sum())) / left_out) if left_out > 0 else 0.0
        )

    @property
    def weights(self) -> FloatArray | None:
        """Return what centred features are multiplied by: 1 / scale, 0 where a feature never varied; None for no scaling."""
        if self.scale is None:
            return None
        weights = 1.0 / self.scale
        weights[self.constant_features] = 0.0
        return weights

    @property
    def deviations(self) -> FloatArray:
        """Return what whitened scores are divided by: 1 per noise component, whose scores are set to 0 instead; ``(k,)``."""
        deviation = np.sqrt(self.explained_variance)
        deviation[self.numerical_rank :] = np.inf
        return deviation

    def score_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the data type of the scores of rows of `dtype`: float32 for float16 and float32, else float64."""
        return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64)

    def transform(self, rows: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the scores of `rows`, shape ``(n_rows, k)``; cost 2 d k flops a row.

        The mean is subtracted before the product, never after, so a far mean costs no digits.
        """
        dtype = self.score_dtype(rows.dtype)
        out = np.empty((len(rows), len(self.components)), dtype=dtype) if out is None else out
        axes = self.components if self.weights is None else self.components * self.weights
        axes = axes.T.astype(dtype)
        if self.whiten:
            axes /= self.deviations.astype(dtype)
        centre = self.mean.astype(dtype)
        # What rounding the mean to `dtype` left of it, projected.
        remainder = ((self.mean - centre) @ axes).astype(dtype)
        step = max(1, _SLAB_BYTES // max(1, rows.shape[1] * dtype.itemsize))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            np.matmul(np.subtract(rows[part], centre, dtype=dtype), axes, out=out[part])
            out[part] -= remainder
        return out

    def inverse_transform(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Return the rows in the original space that have these `scores`, shape ``(n_rows, n_features)``."""
        dtype = self.score_dtype(scores.dtype)
        scores = np.asarray(scores, dtype=dtype)
        if self.whiten:
            scores = scores * np.sqrt(self.explained_variance).astype(dtype)
        rows: NDArray[Any] = scores @ self.components.astype(dtype)
        if self.scale is not None:
            rows *= self.scale.astype(dtype)
        rows += self.mean.astype(dtype)
        return rows

    def components_for(self, share: float) -> int | None:
        """Return how many components carry `share` of the total variance, None if more than there are."""
        reached = np.flatnonzero(np.cumsum(self.explained_variance) >= share * self.total_variance)
        return int(reached[0]) + 1 if len(reached) else None


def relative_precision(work: str, n_features: int) -> float:
    """Return the relative error in the spectral norm of a matrix accumulated with products in `work`.

    Measured: 1e-8 for float32 products of blocks of up to 8,192 rows, below 1e-15 for float64; the bounds leave room
    for the eigenvalue solver.
    """
    return 1e-7 if work == "float32" else max(1e-14, 4 * n_features * float(np.finfo(np.float64).eps))


def exact_certificate(spectrum: Spectrum, work: str) -> dict[str, Any]:
    """Return what an exact solver can say of its own result."""
    vectors = spectrum.vectors
    orthonormality = float(np.abs(vectors @ vectors.T - np.eye(len(vectors))).max())
    captured = min(1.0, float(spectrum.values.sum()) / spectrum.total) if spectrum.total > 0 else 0.0
    precision = relative_precision(work, vectors.shape[1])
    return {
        "kind": "exact",
        "statement": (
            "exact: the matrix holds every row; eigenvalues carry the rounding of the accumulation "
            f"(relative to the first: {precision:.0e}), nothing else"
        ),
        "eigen_residual": spectrum.residual,
        "orthonormality": orthonormality,
        "relative_residual": 1.0 - captured,
        "relative_residual_interval": [max(0.0, 1.0 - captured - precision), min(1.0, 1.0 - captured + precision)],
        "captured_variance": captured,
        "component_errors": [0.0] * len(spectrum.values),
        "numerical_rank": spectrum.numerical_rank,
        "trusted_above": precision,
        "eigen_solver": spectrum.method,
    }
