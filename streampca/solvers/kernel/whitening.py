"""Whitening of kernel values at landmarks: the directions that the landmarks span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cholesky
from scipy.linalg.blas import dtrmm
from scipy.linalg.lapack import dtrtri

from streampca.errors import DataError
from streampca.typing import Array, BoolArray, FloatArray

if TYPE_CHECKING:
    from streampca.kernels import Kernel


_POWER_STEPS = 20
_WELL_CONDITIONED = 1e-5
"""Share above which all eigenvalues lie where triangular factors are as good as eigenvectors, at a third of the time."""
_HARMLESS = 1e-2
"""Share of the error that landmarks leave anyway which the directions below that share may add to it."""
_CUTOFF = 1e-10
"""Share of the largest eigenvalue of the landmarks' kernel matrix below which its directions are left out."""
_SIGNED_CUTOFF = 1e-2
"""The same for kernels that are not positive semi-definite."""


@dataclass(frozen=True)
class Whitening:
    """The directions that the landmarks span: φ(x) = Aᵀ k(x) with κ̂(x, y) = φ(x)·S φ(y)."""

    matrix: FloatArray
    """A, ``(m, r)``."""
    signs: FloatArray | None
    """Signs on the diagonal of S, ``(r,)``; None where all are positive."""
    sizes: FloatArray | None
    """|w|, ``(r,)``; None where A = D^(−½) L^(−T) is triangular, of a Cholesky factor L."""
    lengths: FloatArray
    """Lengths that landmarks were divided by, the root of D, ``(m,)``; ones where they were not."""
    condition: float
    """Smallest of the kept eigenvalues over the largest."""
    definite: bool
    """Whether κ̂ stays below κ, because K_mm has no negative eigenvalues."""

    @classmethod
    def of(cls, kernel: Kernel, landmarks: Array, *, center: bool, late_from: float = 0.0) -> Whitening:
        """Return A = D^(−1/2) U w^(−1/2) for D^(−1/2) K_mm D^(−1/2) = U diag(w) Uᵀ, D the diagonal of K_mm, as far as w > 1e-10 · w₁.

        Landmarks brought to the same length span the same space, and rounding that is relative to the length of each is
        then not taken for a direction: with float32 rows and a polynomial kernel of degree 5, whose lengths differ by
        1e4, all directions stand above 1e-5, against a third without.

        Directions of w ≤ `late_from` · w₁, which would make every panel be whitened by itself, at three times the flops,
        are left out where they are worth less than a hundredth of the error that the landmarks leave: see `_harmless`.

        Where all w are well above that, A = D^(−½) L^(−T) does as well as any other root, for D^(−½) K_mm D^(−½) = L Lᵀ.

        For kernels that are not positive semi-definite K_mm = U diag(w) Uᵀ is taken as it is, A = U |w|^(−1/2), and
        directions of |w| > 1e-2 · |w|₁ are kept; those of H K_mm H with H = 1 − 11ᵀ/m where the result is centred, which
        it is then about the landmarks' mean as well: a constant, such as that of tanh, would be all that is kept.
        """
        points = landmarks.astype(np.float64)
        k_mm = kernel(points, points)
        k_mm = (k_mm + k_mm.T) / 2
        if kernel.definite is not False and k_mm.diagonal().min() >= 0:
            lengths = np.sqrt(np.maximum(k_mm.diagonal(), 0.0))
            units = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
            unit = k_mm * units * units[:, None]
            triangular = cls._triangular(unit, units, lengths)
            if triangular is not None:
                return triangular
            values, vectors = np.linalg.eigh(unit)
            if kernel.definite or values[0] >= -1e-8 * abs(values[-1]):
                large, late = values > _CUTOFF * values[-1], values > late_from * values[-1]
                if _harmless(values, vectors, ~late):
                    large = large & late
                return cls._of(values[large], vectors[:, large], units, lengths, definite=True)
        if center:
            middle = k_mm.mean(axis=0)
            k_mm = k_mm - middle - middle[:, None] + middle.mean()
        values, vectors = np.linalg.eigh(k_mm)
        large = np.abs(values) > _SIGNED_CUTOFF * np.abs(values).max()
        ones = np.ones(len(k_mm))
        return cls._of(values[large], vectors[:, large], ones, ones, definite=False)

    @classmethod
    def _of(
        cls, values: FloatArray, vectors: FloatArray, units: FloatArray, lengths: FloatArray, *, definite: bool
    ) -> Whitening:
        sizes = np.abs(values)
        if not len(values):
            raise DataError(
                "the kernel is zero between all landmarks: expected rows that differ from 0, or another kernel"
            )
        signs = None if (values > 0).all() else np.sign(values)
        roots = np.sqrt(sizes)
        condition = float(sizes.min() / sizes.max())
        return cls(units[:, None] * vectors / roots, signs, sizes, lengths, condition, definite)

    @classmethod
    def _triangular(cls, unit: FloatArray, units: FloatArray, lengths: FloatArray) -> Whitening | None:
        """Return the triangular root of K_mm, of which `unit` has ones on its diagonal; None if it is not well conditioned."""
        largest = float(np.abs(unit).sum(axis=0).max())
        shifted = unit - _WELL_CONDITIONED * largest * np.eye(len(unit))
        try:
            cholesky(shifted, lower=True, overwrite_a=True, check_finite=False)
            factor = cholesky(unit, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return None
        inverse, _ = dtrtri(factor, lower=1)
        root = np.asfortranarray(units[:, None] * inverse.T)
        return cls(root, None, None, lengths, _condition(unit, inverse), definite=True)

    def centre(self, k_mm: FloatArray, mean: FloatArray) -> FloatArray:
        """Return c with Aᵀc = `mean`, the mean of φ, ``(m,)``, for the kernel values `k_mm` of the landmarks."""
        if self.sizes is None:
            return k_mm @ (self.matrix @ mean)
        return (self.lengths**2) * (self.matrix @ (self.sizes * mean))

    def whitened(self, scatter: FloatArray) -> FloatArray:
        """Return Aᵀ `scatter` A for the scatter of kernel values, ``(r, r)``."""
        a = self.matrix
        if self.sizes is not None:
            return a.T @ scatter @ a
        half = dtrmm(1.0, a, scatter, trans_a=1)
        whole: FloatArray = dtrmm(1.0, a, half, side=1)
        return whole

    @property
    def rank(self) -> int:
        """Return r."""
        return int(self.matrix.shape[1])


@dataclass(frozen=True)
class LandmarkBasis:
    """The landmarks with the directions that they span."""

    kernel: Kernel
    """The kernel."""
    points: Array
    """The landmarks, ``(m, n_features)``, in the type of the products."""
    whitening: Whitening
    """The directions."""
    late: bool
    """Whether kernel values are accumulated as they are and multiplied by A at the end; if not, every panel of rows is."""


def _condition(unit: FloatArray, inverse: FloatArray) -> float:
    """Return the smallest eigenvalue of L Lᵀ = `unit` over the largest to some percent, by power iterations with both and L⁻¹."""
    largest = smallest = 1.0 + 0.5 * np.cos(np.arange(len(unit)))
    top = bottom = 1.0
    for _ in range(_POWER_STEPS):
        largest = unit @ (largest / np.linalg.norm(largest))
        smallest = inverse.T @ (inverse @ (smallest / np.linalg.norm(smallest)))
        top, bottom = float(np.linalg.norm(largest)), 1.0 / float(np.linalg.norm(smallest))
    return bottom / top


def _harmless(values: FloatArray, vectors: FloatArray, dropped: BoolArray) -> bool:
    """Tell whether the error of the approximation stays as it is, within a hundredth, without the `dropped` directions.

    What they add to it is Σ wⱼ/m on the average of the landmarks. What there is anyway is told by the landmarks as well: the
    residual of each after all the others, 1/(K⁻¹)ᵢᵢ, of which the lower quartile counts.
    """
    if not dropped.any():
        return True
    sizes = np.maximum(values, np.finfo(np.float64).eps * values[-1])
    residuals = 1.0 / (vectors**2 @ (1.0 / sizes))
    return bool(sizes[dropped].sum() / len(values) <= _HARMLESS * np.quantile(residuals, 0.25))
