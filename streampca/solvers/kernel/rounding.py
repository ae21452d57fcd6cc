"""Rounding of kernel PCA from landmarks: by how much computed eigenvalues and traces may differ from those of exact arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streampca.accumulators.kernel_features import feature_rows
from streampca.errors import DataError, NotFiniteError
from streampca.models.stored import StoredRows
from streampca.typing import Array, DType, FloatArray

if TYPE_CHECKING:
    from streampca.kernels import Kernel
    from streampca.solvers.kernel.whitening import LandmarkBasis


SAMPLE = 256
"""Rows on which rounding of kernel values is measured."""
_VALUE_ROUNDINGS = 4
_SAFETY = 3  # roundings are taken for independent, and their sums for at most three standard deviations
_MOST_LOST = 1e-3
_LEAST_VALUE = 1e-290  # float64 has all its digits down to 2e-308; sums of squares of smaller values do not
_EPS64 = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Rounding:
    """Intervals of the eigenvalues of K̂ and of its trace, given what was computed."""

    lower: FloatArray
    """Lower ends for the eigenvalues of K̂, ``(k,)``."""
    upper: FloatArray
    """Upper ends, ``(k,)``."""
    trace: float
    """Largest error of Σ ‖φ(x)‖²."""


@dataclass(frozen=True)
class Computed:
    """Results of a fit from landmarks whose rounding is in question."""

    k_mm: FloatArray
    """K_mm in float64, ``(m, m)``."""
    mean: FloatArray
    """φ̄, the mean of the features, ``(r,)``."""
    scatter: FloatArray
    """G = Σ (φ − φ̄)(φ − φ̄)ᵀ, ``(r, r)``."""
    n_samples: int
    """Number of rows."""
    trace: float
    """T = Σ κ(x, x)."""
    values: FloatArray
    """Eigenvalues λ̂, largest first, ``(k,)``."""
    directions: FloatArray
    """Their eigenvectors Q, ``(r, k)``."""
    late: bool
    """Whether kernel values were accumulated and multiplied by A at the end; if not, every panel of rows was."""


def value_rounding(kernel: Kernel, points: Array) -> float:
    """Return ρ, the largest error of kernel values in the type of `points` relative to √(κ(x, x) κ(z, z)).

    Measured on at most 256 of the landmarks `points`, ``(m, n_features)``, with all of them: against float64, and in
    float64 by values that are made about another origin (half of the landmarks) and with themselves; at least four
    units of rounding. Infinite where values overflow.
    """
    chosen = points[:: -(-len(points) // SAMPLE)]
    wide, every, half = chosen.astype(np.float64), points.astype(np.float64), -(-len(points) // 2)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        diagonal = np.maximum(kernel.diagonal(wide), 0.0)
        scale = np.sqrt(diagonal)[:, None] * np.sqrt(np.maximum(kernel.diagonal(every), 0.0))
        exact = kernel(wide, every)
        narrow = np.abs(kernel.prepare(points, points.dtype)(chosen) - exact)
        moved = 2 * np.abs(kernel(wide, every[:half]) - exact[:, :half])
        itself = np.abs(np.diagonal(kernel(wide, wide)) - diagonal)
        worst = max(_ratio(narrow, scale), _ratio(moved, scale[:, :half]), _ratio(itself, diagonal))
    return max(_VALUE_ROUNDINGS * float(np.finfo(points.dtype).eps), worst) if np.isfinite(worst) else math.inf


def _ratio(gaps: Array, scale: FloatArray) -> float:
    """Return the largest of `gaps` / `scale` where `scale` is positive."""
    shares = np.divide(gaps, scale, out=np.zeros(gaps.shape), where=scale > 0)
    return float(shares.max(initial=0.0))


def suitable_dtype(kernel: Kernel, rows: Array | StoredRows, dtype: DType, *, center: bool) -> DType:
    """Return `dtype`, or float64 where float32 would take more than a thousandth of what kernel values vary by.

    That is so where rows are far from zero beside their spread (kernels that are not radial), where a kernel is nearly
    constant, and where values leave the range of float32. Told by at most 256 of `rows`, ``(n_rows, n_features)``.

    Raises
    ------
    DataError
        If kernel values underflow float64; NotFiniteError if they overflow it.
    """
    chosen = np.ascontiguousarray(rows[:: -(-len(rows) // SAMPLE)])
    wide = chosen.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        values = kernel(wide, wide)
    largest = float(np.abs(values).max(initial=0.0))
    if largest < _LEAST_VALUE and (largest > 0 or _vanished(kernel, wide)):
        raise DataError(
            f"kernel values are at most {largest:.3g}, where float64 has lost their digits: rescale the features first"
        )
    if not np.isfinite(largest):
        raise NotFiniteError("kernel values overflow float64: rescale the data first")
    if dtype == np.float64:
        return dtype
    trace = float(values.trace())
    varies = trace - len(values) * float(values.mean()) if center else trace
    rho = value_rounding(kernel, chosen.astype(dtype))
    return dtype if rho * abs(trace) <= _MOST_LOST * varies else np.dtype(np.float64)


def _vanished(kernel: Kernel, rows: FloatArray) -> bool:
    """Tell whether kernel values of `rows`, all of which are 0, are not when the rows are brought to length 1."""
    peak = float(np.abs(rows).max(initial=0.0))
    if not peak:
        return False
    with np.errstate(over="ignore"):
        scaled = rows / peak
    return bool(kernel(scaled, scaled).any())


def rounding_of(basis: LandmarkBasis, computed: Computed, precision: float) -> Rounding:
    """Return intervals for the eigenvalues of K̂, from the coefficients b = A q of each component.

    With u the unit of rounding of the type of the landmarks, s(z) = √κ(z, z), σ(z)² = Σ (κ(x, z) − c(z))² for the origin c, and norms over
    components 1 to i:

    - Kernel values with errors ρ s(x) s(z), independent for landmarks z that differ, change √λᵢ by at most 3 ρ √T ‖s b‖
      (equal landmarks share their errors: each counts as often as it comes).
    - A product of a panel of P rows has errors 3 √P u σ(y) σ(z) in its entries (Higham & Mary 2019): λᵢ changes by 3 √P u ‖σ b‖².
      Where panels are multiplied by A, rounding of that product changes √λᵢ by 2u ‖a q‖, a(j)² = Σ σ(z)² A(z, j)²,
      and the products have errors 3 √P u γ(i) γ(j) with γ(j)² = Σ φⱼ².
    - A is the root of a matrix with errors of 4 m eps in norm: λᵢ changes by that times λ̂ᵢ ‖s b‖².

    λᵢ(K̂) is at least the smallest ‖F q‖² on the span of the first i computed vectors, so only their own coefficients
    count, which are small for large eigenvalues; the trace takes all directions, magnified by the condition of K_mm.
    """
    a, points, n = basis.whitening.matrix, basis.points, computed.n_samples
    work = points.dtype
    eps, rho, m = float(np.finfo(work).eps), value_rounding(basis.kernel, points), len(a)
    _, group, counts = np.unique(points, axis=0, return_inverse=True, return_counts=True)
    alike = counts[group.reshape(-1)].astype(np.float64)
    squares = np.maximum(computed.k_mm.diagonal(), 0.0) * alike
    reach = computed.k_mm @ a
    origin = computed.k_mm.mean(axis=0)
    apart = reach @ computed.mean - origin
    spread = np.maximum(np.einsum("ij,ij->i", reach @ computed.scatter, reach), 0.0) + n * apart**2
    spread = spread * alike
    product = _SAFETY * math.sqrt(min(n, feature_rows(m if computed.late else a.shape[1], work))) * eps / 2
    coefficients = np.square(a @ computed.directions)
    root = _SAFETY * rho * np.sqrt(computed.trace * np.cumsum(squares @ coefficients))
    matrix = 4 * m * _EPS64
    shift = np.cumsum(computed.values * matrix * (squares @ coefficients))
    if computed.late:
        shift = shift + product * np.cumsum(spread @ coefficients)
        trace = product * float((spread @ np.square(a)).sum())
    else:
        columns = spread @ np.square(a)
        features = np.maximum(computed.scatter.diagonal(), 0.0) + n * (computed.mean - origin @ a) ** 2
        weights = np.square(computed.directions)
        root = root + eps * np.sqrt(np.cumsum(columns @ weights))
        shift = shift + product * np.cumsum(features @ weights)
        trace = float((2 * eps * np.sqrt(features * columns) + eps**2 * columns + product * features).sum())
    scaled = np.sqrt(squares)[:, None] * a
    whole = float(np.einsum("ij,ij->", scaled @ computed.scatter, scaled) + n * np.sum((scaled @ computed.mean) ** 2))
    whole = max(0.0, whole)
    trace += (
        2 * _SAFETY * rho * math.sqrt(computed.trace * whole)
        + rho**2 * computed.trace * float(np.sum(scaled**2))
        + matrix * whole
    )
    base = precision * float(computed.values[0])
    low = np.maximum(np.sqrt(np.maximum(computed.values - shift, 0.0)) - root, 0.0) ** 2 - base
    high = (np.sqrt(computed.values + shift) + root) ** 2 + base
    return Rounding(np.maximum(low, 0.0), high, trace)
