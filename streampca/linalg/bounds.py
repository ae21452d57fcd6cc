"""Bounds of the eigenvalues and eigenvectors of a matrix by those of an approximation below it.

C is the d × d matrix, Ĉ its approximation with Ĉ ⪯ C, E = C − Ĉ, τ = tr E, which is exact because tr C is accumulated,
σ ≥ ‖E‖₂, and P_Ω the projector on the columns of the test matrix. A Nyström approximation has EΩ = 0, so that
E ⪯ σ (I − P_Ω).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampca.errors import ParameterError
from streampca.linalg import tall_skinny as tall
from streampca.linalg.nystrom import DEPENDENT, LowRank, Precision, independent_columns

FloatArray = NDArray[np.float64]

_COLUMNS = (2, 3, 5, 10, 15, 20, 40)
_FACTORS = (21.6, 6.8, 3.4, 2.09, 1.76, 1.6, 1.37)  # U^(−1/4) for the 1 % quantile of U, from 1,000,000 draws

_WELL_CONDITIONED = 1e-6  # smallest eigenvalue of a Gram matrix whose columns are not made orthonormal once more
_EPS = float(np.finfo(np.float64).eps)
_NO_LESS = 16 * _EPS  # rounding of the square of a sine that is taken from a cosine
_OUTSIDE = 64 * _EPS  # the same of all vectors together, which are orthonormal to 1e-14


def schatten4(held_out: FloatArray, products: FloatArray, approx: LowRank, n_threads: int = 1) -> float:
    """Return σ̂, an estimate of ‖E‖₂ from above: the fourth root of an unbiased estimate of tr E⁴.

    With R = CG − ĈG and A = RᵀR, σ̂⁴ = 2/(g(g − 1)) Σ_{i<j} Aᵢⱼ²: each term is (gᵢᵀE²gⱼ)², whose mean is tr E⁴ for
    independent standard normal columns (Kong & Valiant 2017; Li, Nguyen & Woodruff 2014). It exceeds ‖E‖₂ on average;
    its scatter is what `statistical_factor` stands for.

    Parameters
    ----------
    held_out : float64 array, shape (d, g)
        G: independent standard normal entries that had no say in `approx`, g ≥ 2.
    products : float64 array, shape (d, g)
        CG.
    approx : LowRank
        Ĉ.
    n_threads : int
        Threads that share the slabs of rows.

    Raises
    ------
    ParameterError
        If the shapes differ or there is only one column.
    """
    g = held_out.shape[1]
    if held_out.shape != products.shape or g < 2:
        raise ParameterError(
            f"held-out columns of shape {held_out.shape} with products of shape {products.shape}: "
            "expected one shape and at least 2 columns"
        )
    factor = float(tall.power_of_two(tall.peaks(products, n_threads).max(initial=0.0)))
    remainder = tall.scaled_copy(products, factor, n_threads)
    if len(approx.values):
        coordinates = tall.gram(approx.vectors, held_out, n_threads)
        small = (approx.values * factor)[:, None] * coordinates
        tall.subtract_product(remainder, approx.vectors, small, n_threads)
    peak = float(np.abs(remainder).max(initial=0.0))
    if peak == 0:
        return 0.0
    remainder /= peak  # fourth powers of what is left may be far below those of C
    inner = tall.gram(remainder, remainder, n_threads)
    fourth = 2.0 / (g * (g - 1)) * float((inner[np.triu_indices(g, 1)] ** 2).sum())
    return float(fourth**0.25) * peak / factor


def statistical_factor(n_columns: int) -> float:
    """Return what σ̂ of g columns is multiplied by, so that it is below ‖E‖₂ with a probability of 1 %: 1.6 for 20 columns.

    Nothing makes σ̂ smaller for a given ‖E‖₂ than an E of rank one, E = ε wwᵀ, which is also where the bounds of
    eigenvalues are attained: the sketch then holds all but one of the directions that matter. There σ̂⁴ = ε⁴ U with
    U = 2/(g(g − 1)) Σ_{i<j} zᵢ² zⱼ² for the independent standard normal zᵢ = wᵀgᵢ, whose 1 % quantile is tabled.
    """
    return float(np.exp(np.interp(np.log(n_columns), np.log(_COLUMNS), np.log(_FACTORS))))


@dataclass(frozen=True)
class Intervals:
    """Where eigenvalues lie, largest first; all of shape ``(m,)``."""

    lower: FloatArray
    """Proven lower bounds: the eigenvalues of Ĉ less the rounding of the accumulation, not negative."""
    upper: FloatArray
    """The smaller of the proven and the statistical upper bounds."""
    proven_upper: FloatArray
    """Upper bounds from the residual trace alone."""

    @property
    def relative_width(self) -> FloatArray:
        """Return (upper − lower) / upper, which bounds (λ − lower) / λ for every λ in between; 0 for upper = 0."""
        return np.divide(self.upper - self.lower, self.upper, out=np.zeros_like(self.upper), where=self.upper > 0)


@dataclass(frozen=True)
class Aligned:
    """How the eigenvectors of Ĉ lie to the columns of its test matrix."""

    cosines: FloatArray
    """K = PᵀV for an orthonormal basis P of the columns of Ω, ``(p, r)``."""
    condition: float
    """Condition of Ω with columns of length 1: rounding of CΩ counts that much as rounding of C."""


def alignment(approx: LowRank, test: FloatArray, n_threads: int = 1, precision: Precision = "float64") -> Aligned:
    """Return how V lies to the columns of Ω, ``(d, q)``; 3 d q² flops where Ω is well-conditioned, 9 d q² and a copy else.

    Columns count as `nystrom` counts them, for the same `precision`: of those that depend on others nothing is known, so
    EΩ = 0 only on the span of the rest.
    """
    metric = tall.gram(test, test, n_threads)
    lengths = np.sqrt(np.diagonal(metric))
    used = np.flatnonzero(lengths > 0)
    values = np.linalg.eigvalsh(metric[np.ix_(used, used)] / lengths[used, None] / lengths[used])
    independent = values[values > DEPENDENT[precision]]
    condition = float(np.sqrt(independent[-1] / independent[0])) if len(independent) else 1.0
    small = independent_columns(metric, DEPENDENT[precision])
    if len(independent) == 0 or independent[0] > _WELL_CONDITIONED:
        return Aligned(small.T @ tall.gram(test, approx.vectors, n_threads), condition)
    basis = tall.orthonormal(tall.times(test, small, n_threads), n_threads=n_threads, overwrite=True)
    return Aligned(tall.gram(basis, approx.vectors, n_threads), condition)


def sines(aligned: FloatArray | None, n_vectors: int) -> FloatArray:
    """Return ‖(I − P_Ω) v‖ of each eigenvector, ``(n_vectors,)``, never below 6e-8; 1 where there is no test matrix."""
    if aligned is None:
        return np.ones(n_vectors)
    squares = 1.0 - (aligned[:, :n_vectors] ** 2).sum(axis=0)
    found: FloatArray = np.sqrt(np.clip(squares, _NO_LESS, 1.0))
    return found


def intervals(
    approx: LowRank,
    aligned: FloatArray,
    *,
    sigma: float | None,
    tau: float,
    n_components: int,
    floor: float = 0.0,
) -> Intervals:
    """Return intervals for the first eigenvalues of C: λ̂ᵢ ≤ λᵢ ≤ λᵢ(Ĉ + σ (I − P_Ω)).

    By Weyl's monotonicity from 0 ⪯ E ⪯ σ(I − P_Ω): of second order in the angle between Ω and the eigenvectors, where
    Weyl's λ̂ᵢ + σ is of first. Computed in span[Ω, V], which both matrices leave invariant; outside of it the matrix
    is σI. Sines are known from cosines to √(64 eps) only, which counts where λ̂ᵢ is close to σ (see `_room_outside`).

    Parameters
    ----------
    approx : LowRank
        The full Nyström approximation, not cut to `n_components`.
    aligned : float64 array, shape (p, r)
        The cosines that `alignment` returns for it and its test matrix.
    sigma : float or None
        A statistical bound of ‖E‖₂, with its factor; None if there is none.
    tau : float
        tr E ≥ ‖E‖₂: the bound that is proven.
    n_components : int
        How many intervals.
    floor : float
        Rounding of the accumulation, in the units of the eigenvalues: widens every interval on both sides.
    """
    proven = _upper(approx, aligned, tau, n_components)
    best = proven if sigma is None or sigma >= tau else np.minimum(proven, _upper(approx, aligned, sigma, n_components))
    return _with_floor(_padded(approx.values, n_components), best, proven, floor)


def plain_intervals(
    values: FloatArray,
    *,
    sigma: float | None,
    tau: float,
    discarded: float,
    n_components: int,
    floor: float = 0.0,
) -> Intervals:
    """Return intervals for any Ĉ ⪯ C: λ̂ᵢ ≤ λᵢ ≤ λ̂ᵢ + min(τ, discarded, σ), by Weyl; of first order only.

    `values` are all eigenvalues of Ĉ, `discarded` is a proven bound of ‖E‖₂ (infinity if there is none), `sigma` a
    statistical one with its factor or None; `floor` as in `intervals`.
    """
    lower = _padded(values, n_components)
    proven = lower + min(tau, discarded)
    upper = proven if sigma is None else np.minimum(proven, lower + sigma)
    return _with_floor(lower, upper, proven, floor)


def _padded(values: FloatArray, n: int) -> FloatArray:
    padded = np.zeros(n)
    padded[: len(values)] = values[:n]
    return padded


def _with_floor(lower: FloatArray, upper: FloatArray, proven: FloatArray, floor: float) -> Intervals:
    return Intervals(
        np.maximum(lower - floor, 0.0), np.maximum(upper, lower) + floor, np.maximum(proven, lower) + floor
    )


def _upper(approx: LowRank, aligned: FloatArray, sigma: float, n: int) -> FloatArray:
    """Return the first n eigenvalues of Ĉ + σ(I − P_Ω), n ≤ d."""
    d, r = approx.vectors.shape
    p = len(aligned)
    # In an orthonormal basis [P, Q] of span[Ω, V], V has coordinates [K; S] with SᵀS = I − KᵀK.
    values, turn = np.linalg.eigh(np.eye(r) - aligned.T @ aligned)
    outside = np.flatnonzero(values > _EPS)[-max(0, d - p) :] if d > p else np.zeros(0, dtype=np.int64)
    coordinates = np.vstack([aligned, np.sqrt(values[outside])[:, None] * turn[:, outside].T])
    size = max(float(approx.values.max(initial=0.0)), sigma)
    if size == 0:
        return np.zeros(n)
    matrix = (coordinates * (approx.values / size)) @ coordinates.T
    matrix[np.arange(p, len(matrix)), np.arange(p, len(matrix))] += sigma / size
    inside = np.linalg.eigvalsh(matrix)[::-1] * size
    beyond = np.full(min(n, max(0, d - len(matrix))), sigma)
    upper: FloatArray = _padded(np.sort(np.concatenate([inside, beyond]))[::-1], n)
    return np.maximum(upper, 0.0) + (_room_outside(approx.values, upper, sigma) if d > p else 0.0)


def _room_outside(values: FloatArray, upper: FloatArray, sigma: float) -> FloatArray:
    """Return how far rounding of I − KᵀK = SᵀS may carry the eigenvalues `upper` of Ĉ + σ(I − P), V = PK + QS.

    These are the eigenvalues of [[Λ, B], [Bᵀ, σ]] with BBᵀ = σ Λ^½ SᵀS Λ^½, and an eigenvalue μ ≠ σ is one of Λ + BBᵀ / (μ − σ).
    An error η of SᵀS moves BBᵀ by σ λ̂₁ η at most, hence μ by σ λ̂₁ η / |μ − σ|, or over the distance of σ from Λ if that is more;
    and never by more than √(σ λ̂₁ η), an error of B.
    """
    first = float(values.max(initial=0.0))
    apart = np.maximum(np.abs(upper - sigma), np.abs(values - sigma).min(initial=np.inf))
    most = np.sqrt(_OUTSIDE) * np.sqrt(sigma) * np.sqrt(first)
    return most * np.minimum(1.0, most / np.maximum(apart, most)) if most > 0 else np.zeros_like(upper)


@dataclass(frozen=True)
class Angles:
    """How far the axes can be turned."""

    sine: tuple[float | None, ...]
    """Bound of sin∠(v̂ᵢ, vᵢ) of each component, None where the gap does not support one."""
    clusters: tuple[tuple[int, int, float | None], ...]
    """Runs (first, last, sine) of components, counted from 0, that the intervals cannot tell apart: only their span is
    determined, to the sine of its largest angle, or not even that (None)."""
    subspace: float | None
    """Bound of the sine of the largest angle between the span of all components and the exact one, or None."""


def angles(
    found: Intervals, aligned: FloatArray | None, *, sigma: float, n_components: int, floor: float = 0.0
) -> Angles:
    """Return bounds of the angles between the eigenvectors of Ĉ and those of C.

    The residual is Cv̂ − λ̂v̂ = Ev̂ with ‖Ev̂‖ ≤ σ ‖(I − P_Ω)v̂‖, and sin∠ ≤ ‖Ev̂‖ / gap (Davis & Kahan 1970, sin θ
    theorem), where the gap is the distance from λ̂ to the intervals of all other eigenvalues. Components whose
    intervals touch form an unresolved cluster, whose span has a bound of its own.

    Parameters
    ----------
    found : Intervals
        At least one more than `n_components`, or as many as there are eigenvalues.
    aligned : float64 array, shape (p, r), or None
        The cosines that `alignment` returned; None where there is no test matrix with EΩ = 0.
    sigma : float
        A bound of ‖E‖₂.
    n_components : int
        How many components.
    floor : float
        Rounding of the accumulation: added to every residual.
    """
    if n_components == 0:
        return Angles((), (), None)
    single: list[float | None] = [None] * n_components
    clusters: list[tuple[int, int, float | None]] = []
    first = 0
    for last in range(n_components):
        if last + 1 < len(found.lower) and found.lower[last] <= found.upper[last + 1]:
            continue  # the next one belongs to the same cluster, also where it is no longer among the components
        bound = _span_sine(found, aligned, first, last, sigma, floor)
        if first == last and bound is not None:
            single[last] = bound
        else:
            clusters.append((first, last, bound))
        first = last + 1
    if first < n_components:
        clusters.append((first, n_components - 1, None))
    return Angles(tuple(single), tuple(clusters), _span_sine(found, aligned, 0, n_components - 1, sigma, floor))


def _span_sine(
    found: Intervals, aligned: FloatArray | None, first: int, last: int, sigma: float, floor: float
) -> float | None:
    lower, upper = found.lower, found.upper
    below = upper[last + 1] if last + 1 < len(upper) else 0.0
    gap = lower[last] - below
    if first > 0:
        gap = min(gap, lower[first - 1] - lower[first])
    if gap <= 0:
        return None
    inside = 1.0
    if aligned is not None:
        block = aligned[:, first : last + 1]
        cosine = float(np.linalg.eigvalsh(block.T @ block)[0]) if block.shape[1] else 0.0
        inside = float(np.sqrt(np.clip(1.0 - cosine, _NO_LESS, 1.0)))
    bound = (sigma * inside + floor) / gap
    return float(bound) if bound < 1 else None


def components_for(
    values: FloatArray, total: float, tau: float, share: float, floor: float = 0.0
) -> tuple[int, int | None]:
    """Return between which numbers of components the one lies that carries `share` of the total variance.

    high = min{m: Σ_{i≤m} (λ̂ᵢ − floor) ≥ share · tr C}, None where all r values do not reach it; low = min{m: Σ_{i≤m}
    (λ̂ᵢ + floor) + τ ≥ share · tr C}. Both are proven for Ĉ ⪯ C. `values` are all eigenvalues of Ĉ, `total` is tr C, `floor`
    is the rounding of an eigenvalue.
    """
    sums, rounding = np.cumsum(values), floor * np.arange(1, len(values) + 1)
    wanted = share * total * (1 - 1e-12)  # sums of hundreds of eigenvalues
    surely, perhaps = np.flatnonzero(sums - rounding >= wanted), np.flatnonzero(sums + rounding + tau >= wanted)
    low = int(perhaps[0]) + 1 if len(perhaps) else len(values)
    return max(1, low), int(surely[0]) + 1 if len(surely) else None
