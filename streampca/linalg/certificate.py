"""Certificates of approximate results: error bounds of eigenvalues, angles and explained variance.

The bounds follow from an approximation Ĉ ⪯ C of the d × d matrix C: E = C − Ĉ, τ = tr E, which is exact because tr C is accumulated,
σ ≥ ‖E‖₂, and P_Ω the projector on the columns of the test matrix. A Nyström approximation has EΩ = 0, so that
E ⪯ σ (I − P_Ω). Probes, Gaussian columns G that have no say in Ĉ and whose products CG are accumulated in the same reading, give
EG = CG − ĈG: σ, and the residual ‖Ev̂‖ of every eigenpair. Bounds from τ are proven; those from probes hold together with `CONFIDENCE`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaincinv

from streampca.errors import ParameterError
from streampca.linalg import tall_skinny as tall
from streampca.linalg.eigen import relative_precision
from streampca.linalg.nystrom import DEPENDENT, LowRank, Precision, independent_columns, of_unit_columns
from streampca.typing import BoolArray, FloatArray

CONFIDENCE = 0.9999
"""Probability with which all bounds of a fit of up to eight passes that rest on probes hold together, at least."""
_LOOKS = 8  # certificates of one fit, each of which may have decided that it was the last; with more of them, confidence is less
_CHANCE_OF_SIGMA = 1e-5  # that σ of one certificate is too small; residuals have what 8 of them leave of 1 − CONFIDENCE
_COLUMNS = (2, 3, 5, 10, 15, 20, 32, 40)
_FACTORS = (957.0, 71.4, 14.2, 4.53, 3.08, 2.52, 1.98, 1.81)
"""U^(−1/4) for that quantile of U, from 1,000,000 directions, by the number of columns."""
_NEIGHBOURS = 10  # eigenpairs beyond the components whose residuals limit the last ones

_WELL_CONDITIONED = 1e-6  # smallest eigenvalue of a Gram matrix whose columns need no second orthogonalisation
_EPS = float(np.finfo(np.float64).eps)
_LEAST_SQUARED_SINE = 16 * _EPS  # rounding of a squared sine that is computed from a cosine
_OUTSIDE = 64 * _EPS  # the same for all vectors together, which are orthonormal to 1e-14
SHARES = (0.9, 0.95, 0.99)
"""Shares of the variance for which numbers of components are bounded."""
ROUNDING_OF_REPEATED_ROWS = 64 * 2.0**-24
"""Rounding of float32 sums of 256 equal terms, relative to the first eigenvalue: a quarter of a unit for each."""
_UNMEASURED = 2.0  # total rounding relative to the rounding that the asymmetry of ΩᵀY measures
_VANISHING = 4.0  # times the rounding of the first eigenvalue, up to which one that was not found counts as zero
ROUNDING = 1e-13  # relative rounding of the small problems, which divide by square roots of small eigenvalues


def schatten4(held_out: FloatArray, products: FloatArray, approx: LowRank, n_threads: int = 1) -> float:
    """Return σ̂, an estimate of ‖E‖₂ from above: the fourth root of an unbiased estimate of tr E⁴.

    With R = CG − ĈG and A = RᵀR, σ̂⁴ = 2/(g(g − 1)) Σ_{i<j} Aᵢⱼ²: each term is (gᵢᵀE²gⱼ)², whose mean is tr E⁴ for
    independent standard normal columns (Kong & Valiant 2017; Li, Nguyen & Woodruff 2014). It exceeds ‖E‖₂ on average;
    `statistical_factor` accounts for its variance.

    Parameters
    ----------
    held_out : float64 array, shape (d, g)
        G: independent standard normal entries that are independent of `approx`, g ≥ 2.
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
    remainder /= peak  # fourth powers of the remainder may be far below those of C
    inner = tall.gram(remainder, remainder, n_threads)
    fourth = 2.0 / (g * (g - 1)) * float((inner[np.triu_indices(g, 1)] ** 2).sum())
    return float(fourth**0.25) * peak / factor


def statistical_factor(n_columns: int) -> float:
    """Return the factor of σ̂ of g columns for which the product is below ‖E‖₂ with probability 1e-5: 2.5 for 20 columns.

    For a given ‖E‖₂, σ̂ is smallest for an E of rank one, E = ε wwᵀ, for which the bounds of eigenvalues are also
    attained: the sketch then misses only one relevant direction. There σ̂⁴ = ε⁴ U with
    U = 2/(g(g − 1)) Σ_{i<j} zᵢ² zⱼ² for independent standard normal zᵢ = wᵀgᵢ; this quantile of U is tabulated.
    """
    return float(np.exp(np.interp(np.log(n_columns), np.log(_COLUMNS), np.log(_FACTORS))))


def residual_limits(approx: LowRank, evidence: Evidence, n_pairs: int) -> FloatArray | None:
    """Return upper limits of ‖Cv̂ᵢ − λ̂ᵢv̂ᵢ‖₂ = ‖Ev̂ᵢ‖₂ of the first eigenpairs, ``(n_pairs,)``; None without probes.

    The entries of Gᵀ(Cv̂ − λ̂v̂) = (CG)ᵀv̂ − λ̂ Gᵀv̂ are independent N(0, ‖Cv̂ − λ̂v̂‖²), because v̂ does not depend on G, so that the sum of
    their squares is chi-square distributed times ‖Cv̂ − λ̂v̂‖². All limits of the certificates of a fit hold with `CONFIDENCE`,
    together with σ (Bonferroni). 4 d g flops for each pair.
    """
    n_columns = evidence.held_out.shape[1]
    if n_columns < 2 or not evidence.definite:
        return None
    vectors = approx.vectors[:, :n_pairs]
    seen = vectors.T @ evidence.products - approx.values[:n_pairs, None] * (vectors.T @ evidence.held_out)
    chance = (1 - CONFIDENCE - _LOOKS * _CHANCE_OF_SIGMA) / (_LOOKS * max(1, n_pairs))
    least = 2 * float(gammaincinv(n_columns / 2, chance))
    factor = float(tall.power_of_two(np.abs(seen).max(initial=0.0)))  # squares of variances may leave the range
    lengths: FloatArray = np.linalg.norm(seen * factor, axis=1) / factor
    lengths *= max(1.0, evidence.stretch) / math.sqrt(least)
    return lengths + approx.shift


def uppers_by_residuals(values: FloatArray, residual: FloatArray, along: FloatArray, beyond: float) -> FloatArray:
    """Return upper bounds of the eigenvalues of C from the residuals of those of Ĉ, ``(n,)``.

    With Sᵢ, the space orthogonal to v̂₁ … v̂ᵢ₋₁, λᵢ ≤ uᵢ = max xᵀCx for unit vectors x in Sᵢ (Courant & Fischer). There C is
    [[λ̂ᵢ + a, cᵀ], [c, H]] with a = v̂ᵢᵀEv̂ᵢ, a² + ‖c‖² ≤ ‖Ev̂ᵢ‖² and H at most uᵢ₊₁, hence uᵢ is at most the largest root t of
    (t − λ̂ᵢ − a)(t − uᵢ₊₁) = ‖c‖²: λ̂ᵢ + a and a term that is quadratic in ‖Ev̂ᵢ‖ over the gap. Residuals alone, without a bound of a that is
    smaller, give λ̂ᵢ + ‖Ev̂ᵢ‖: λ̂ is no Rayleigh quotient of C.

    Parameters
    ----------
    values : float64 array, shape (n,)
        λ̂, largest first.
    residual, along : float64 arrays, shape (n,)
        Bounds of ‖Ev̂ᵢ‖ and of v̂ᵢᵀEv̂ᵢ, which is not negative.
    beyond : float
        A bound of C in the space orthogonal to all n vectors.
    """
    upper = np.empty(len(values))
    factor = float(tall.power_of_two(np.asarray(values.max(initial=beyond))))
    above = beyond * factor
    for i in reversed(range(len(values))):
        value, length, a = values[i] * factor, residual[i] * factor, along[i] * factor
        top = (value + a + above) / 2 + np.hypot((value + a - above) / 2, np.sqrt(max(length**2 - a**2, 0.0)))
        if a > (top - above) / 2:  # the root is largest where a is half of its distance from uᵢ₊₁
            gap = value - above
            top = value + length if gap >= length else above + (gap + np.sqrt(gap**2 + 3 * length**2)) * 2 / 3
        upper[i] = above = float(top)
    return upper / factor


@dataclass(frozen=True)
class Intervals:
    """Intervals that contain the eigenvalues, largest first; all of shape ``(m,)``."""

    lower: FloatArray
    """Proven lower bounds: the eigenvalues of Ĉ less the rounding of the accumulation, not negative."""
    upper: FloatArray
    """The smaller of the proven and the statistical upper bounds."""
    proven_upper: FloatArray
    """Upper bounds from the residual trace alone."""
    bounded_by: tuple[str, ...] = ()
    """What gives each upper bound: ``"trace"``, which is proven, ``"sigma"``, ``"residual"``, or ``"rounding"`` where half of the interval is that."""


def alignment(
    vectors: FloatArray, test: FloatArray, n_threads: int = 1, precision: Precision = "float64"
) -> tuple[FloatArray, float]:
    """Return the cosines between eigenvectors V, ``(d, r)``, and the span of the test matrix Ω, ``(d, q)``, and the condition of Ω.

    The cosines are K = PᵀV, ``(p, r)``, for an orthonormal basis P of the columns of Ω; the condition number is that of Ω with columns
    of length 1, by which rounding of CΩ is amplified. 3 d q² flops for a well-conditioned Ω, else 9 d q² and a copy. Columns that `nystrom` treats as dependent for the same `precision` are ignored, because EΩ = 0 holds only on the
    span of the others.
    """
    metric = tall.gram(test, test, n_threads)
    values = np.linalg.eigvalsh(of_unit_columns(metric)[0])
    independent = values[values > DEPENDENT[precision]]
    condition = float(np.sqrt(independent[-1] / independent[0])) if len(independent) else 1.0
    small = independent_columns(metric, DEPENDENT[precision])
    if len(independent) == 0 or independent[0] > _WELL_CONDITIONED:
        return small.T @ tall.gram(test, vectors, n_threads), condition
    basis = tall.orthonormal(tall.times(test, small, n_threads), n_threads=n_threads, overwrite=True)
    return tall.gram(basis, vectors, n_threads), condition


def sines(aligned: FloatArray | None, n_vectors: int) -> FloatArray:
    """Return ‖(I − P_Ω) v‖ of each eigenvector, ``(n_vectors,)``, at least 6e-8; 1 without a test matrix."""
    if aligned is None:
        return np.ones(n_vectors)
    squares = 1.0 - (aligned[:, :n_vectors] ** 2).sum(axis=0)
    sine: FloatArray = np.sqrt(np.clip(squares, _LEAST_SQUARED_SINE, 1.0))
    return sine


def intervals(
    approx: LowRank,
    aligned: FloatArray | None,
    *,
    sigma: float | None,
    tau: float,
    n_components: int,
    floor: float = 0.0,
) -> Intervals:
    """Return intervals for the first eigenvalues of C: λ̂ᵢ ≤ λᵢ ≤ λᵢ(Ĉ + σ (I − P_Ω)), or λ̂ᵢ + σ without a test matrix.

    This follows from Weyl's monotonicity theorem and 0 ⪯ E ⪯ σ(I − P_Ω). The bound is of second order in the angle
    between Ω and the eigenvectors, whereas λ̂ᵢ + σ is of first order. It is computed in span[Ω, V], which is invariant
    under both matrices; outside of it the matrix is σI. Sines are computed from cosines with an error up to √(64 eps),
    which matters where λ̂ᵢ is close to σ (see `_rounding_outside`).

    Parameters
    ----------
    approx : LowRank
        The full approximation, not cut to `n_components`.
    aligned : float64 array, shape (p, r), or None
        The cosines that `alignment` returns for it and its test matrix; None where there is no test matrix with EΩ = 0.
    sigma : float or None
        A statistical bound of ‖E‖₂, factor included; None if there is none.
    tau : float
        tr E ≥ ‖E‖₂, the proven bound.
    n_components : int
        Number of intervals.
    floor : float
        Rounding of the accumulation in the units of the eigenvalues, by which every interval is widened on both sides.
    """
    lower = padded(approx.values, n_components)
    ends = [
        lower + norm if aligned is None else np.maximum(lower, _upper(approx, aligned, norm, n_components))
        for norm in (tau, sigma)
        if norm is not None
    ]
    return Intervals(np.maximum(lower - floor, 0.0), np.minimum(ends[0], ends[-1]) + floor, ends[0] + floor)


def padded(values: FloatArray, n: int) -> FloatArray:
    """Return the first `n` of `values`, followed by zeros, ``(n,)``."""
    padded = np.zeros(n)
    padded[: len(values)] = values[:n]
    return padded


def _upper(approx: LowRank, aligned: FloatArray, sigma: float, n: int) -> FloatArray:
    """Return the first n eigenvalues of Ĉ + σ(I − P_Ω), n ≤ d."""
    d, r = approx.vectors.shape
    p = len(aligned)
    # In an orthonormal basis [P, Q] of span[Ω, V], V has coordinates [K; S] with SᵀS = I − KᵀK.
    values, rotation = np.linalg.eigh(np.eye(r) - aligned.T @ aligned)
    outside = np.flatnonzero(values > _EPS)[-max(0, d - p) :] if d > p else np.zeros(0, dtype=np.int64)
    coordinates = np.vstack([aligned, np.sqrt(values[outside])[:, None] * rotation[:, outside].T])
    size = max(float(approx.values.max(initial=0.0)), sigma)
    if size == 0:
        return np.zeros(n)
    matrix = (coordinates * (approx.values / size)) @ coordinates.T
    matrix[np.arange(p, len(matrix)), np.arange(p, len(matrix))] += sigma / size
    inside = np.linalg.eigvalsh(matrix)[::-1] * size
    beyond = np.full(min(n, max(0, d - len(matrix))), sigma)
    upper: FloatArray = padded(np.sort(np.concatenate([inside, beyond]))[::-1], n)
    return np.maximum(upper, 0.0) + (_rounding_outside(approx.values, upper, sigma) if d > p else 0.0)


def _rounding_outside(values: FloatArray, upper: FloatArray, sigma: float) -> FloatArray:
    """Return a bound of the effect of rounding of I − KᵀK = SᵀS on the eigenvalues `upper` of Ĉ + σ(I − P), V = PK + QS.

    They are the eigenvalues of [[Λ, B], [Bᵀ, σ]] with BBᵀ = σ Λ^½ SᵀS Λ^½, and an eigenvalue μ ≠ σ is one of
    Λ + BBᵀ / (μ − σ). An error η of SᵀS changes BBᵀ by at most σ λ̂₁ η, hence μ by σ λ̂₁ η / |μ − σ|, or divided by the
    distance of σ from Λ if that is larger; and never by more than √(σ λ̂₁ η), an error of B.
    """
    first = float(values.max(initial=0.0))
    apart = np.maximum(np.abs(upper - sigma), np.abs(values - sigma).min(initial=np.inf))
    most = np.sqrt(_OUTSIDE) * np.sqrt(sigma) * np.sqrt(first)
    return most * np.minimum(1.0, most / np.maximum(apart, most)) if most > 0 else np.zeros_like(upper)


@dataclass(frozen=True)
class Angles:
    """Bounds of the angles between computed and exact eigenvectors."""

    sine: tuple[float | None, ...]
    """Bound of sin∠(v̂ᵢ, vᵢ) of each component, None where the gap is too small for one."""
    clusters: tuple[tuple[int, int, float | None], ...]
    """Runs (first, last, sine) of components, counted from 0, with overlapping intervals: only their span has a bound, the
    sine of its largest angle, or None."""
    subspace: float | None
    """Bound of the sine of the largest angle between the span of all components and the exact one, or None."""


def angles(
    limits: Intervals,
    aligned: FloatArray | None,
    missing: FloatArray | None = None,
    *,
    sigma: float,
    n_components: int,
    floor: float = 0.0,
) -> Angles:
    """Return bounds of the angles between the eigenvectors of Ĉ and those of C.

    The residual is Cv̂ − λ̂v̂ = Ev̂ with ‖Ev̂‖ ≤ σ ‖(I − P_Ω)v̂‖ or measured by probes, and sin∠ ≤ ‖Ev̂‖ / gap (Davis & Kahan 1970, sin θ
    theorem), where the gap is the distance from λ̂ to the intervals of all other eigenvalues. Components whose
    intervals touch form an unresolved cluster, whose span has a bound of its own.

    Parameters
    ----------
    limits : Intervals
        Intervals of at least ``n_components + 1`` eigenvalues, or of all eigenvalues.
    aligned : float64 array, shape (p, r), or None
        The cosines that `alignment` returned; None where there is no test matrix with EΩ = 0.
    missing : float64 array, shape (m,), optional
        Bounds of ‖Ev̂‖ of at least ``n_components`` eigenvectors; only σ without them.
    sigma : float
        A bound of ‖E‖₂.
    n_components : int
        Number of components.
    floor : float
        Rounding of the accumulation, which is added to every residual.
    """
    if n_components == 0:
        return Angles((), (), None)
    single: list[float | None] = [None] * n_components
    clusters: list[tuple[int, int, float | None]] = []
    first = 0
    for last in range(n_components):
        if last + 1 < len(limits.lower) and limits.lower[last] <= limits.upper[last + 1]:
            continue  # the next eigenvalue belongs to the same cluster, even beyond the last component
        bound = _span_sine(limits, (aligned, missing), first, last, sigma, floor)
        if first == last and bound is not None:
            single[last] = bound
        else:
            clusters.append((first, last, bound))
        first = last + 1
    if first < n_components:
        clusters.append((first, n_components - 1, None))
    return Angles(
        tuple(single), tuple(clusters), _span_sine(limits, (aligned, missing), 0, n_components - 1, sigma, floor)
    )


def _span_sine(
    limits: Intervals,
    known: tuple[FloatArray | None, FloatArray | None],
    first: int,
    last: int,
    sigma: float,
    floor: float,
) -> float | None:
    lower, upper, (aligned, missing) = limits.lower, limits.upper, known
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
        inside = float(np.sqrt(np.clip(1.0 - cosine, _LEAST_SQUARED_SINE, 1.0)))
    length = sigma * inside
    if missing is not None:
        length = min(length, math.hypot(*missing[first : last + 1].tolist()))
    bound = (length + floor) / gap
    return float(bound) if bound < 1 else None


def components_for(
    values: FloatArray, total: float, tau: float, share: float, floor: float = 0.0
) -> tuple[int, int | None]:
    """Return a lower and an upper bound of the number of components that carry `share` of the total variance.

    high = min{m: Σ_{i≤m} (λ̂ᵢ − floor) ≥ share · tr C}, None where all r values do not reach it; low = min{m: Σ_{i≤m}
    (λ̂ᵢ + floor) + τ ≥ share · tr C}. Both are proven for Ĉ ⪯ C. `values` are all eigenvalues of Ĉ, `total` is tr C, `floor`
    is the rounding of an eigenvalue.
    """
    sums, rounding = np.cumsum(values), floor * np.arange(1, len(values) + 1)
    wanted = share * total * (1 - 1e-12)  # sums of hundreds of eigenvalues
    certain, possible = np.flatnonzero(sums - rounding >= wanted), np.flatnonzero(sums + rounding + tau >= wanted)
    low = int(possible[0]) + 1 if len(possible) else len(values)
    return max(1, low), int(certain[0]) + 1 if len(certain) else None


@dataclass(frozen=True)
class Certified:
    """Error bounds of the reported components; None where the matrix may be indefinite."""

    values: FloatArray
    """The eigenvalues that are reported, largest first, 0 for those that were not found; ``(k,)``."""
    n_found: int
    """How many of them the approximation has; the directions of the others are arbitrary, orthogonal to it."""
    total: float
    """Trace of the matrix: the total variance."""
    tau: float
    """Trace of E = C − Ĉ, exact to rounding: a proven bound of ‖E‖₂."""
    sigma: float | None
    """Statistical bound of ‖E‖₂, factors included; None without evidence."""
    confidence: float | None
    """Probability with which all statistical bounds of the fit hold together, at least; None as `sigma`."""
    bounds: Intervals | None
    """Intervals of the eigenvalues; None for a matrix that may be indefinite."""
    angles: Angles | None
    """Bounds of the angles of the components; None as above."""
    residual: float | None
    """Bound of the largest ‖Cv − λv‖₂ relative to the first eigenvalue; None as above."""
    residuals: tuple[float, ...] | None
    """Bound of ‖Cv − λv‖₂ of each component that was found; None as above, and for the conversion."""
    captured: tuple[float, float]
    """Lower and upper bound of the share of the total variance that the components explain."""
    shares: tuple[tuple[int, int | None], ...]
    """Bounds of the numbers of components that explain 0.9, 0.95 and 0.99 of the variance; None = more than computed."""
    precision: float
    """Rounding of the accumulation relative to the first eigenvalue; larger eigenvalues count towards the rank."""
    rounding: float
    """Rounding that the bounds allow for, relative to the first eigenvalue, that of repeated rows included."""
    floor: float
    """The same in the units of the eigenvalues, times the condition of the test matrix; `bounds` include it."""
    proven: float
    """Proven bound of ‖E‖₂, rounding included."""
    orthonormality: float
    """Largest entry of VᵀV − I."""
    converted: bool
    """Whether the components come from the literature's conversion."""
    incremental: bool
    """Whether the approximation has no test matrix with EΩ = 0, so that bounds are of first order."""

    @property
    def errors(self) -> FloatArray:
        """Return a bound of |λ̂ − λ| / λ of every eigenvalue, ``(k,)``; NaN where there is none, or infinity.

        Values of the conversion may lie outside their intervals, on either side. Rounding is not counted where nothing
        else is left: an eigenvalue whose upper end is rounding has the error 0.
        """
        if self.bounds is None:
            return np.full(len(self.values), np.nan)
        lower, upper = self.bounds.lower, self.bounds.upper
        if not self.converted:
            # (upper − lower) / upper bounds (λ − lower) / λ for every λ in between.
            return np.where(
                self.vanishing, 0.0, np.divide(upper - lower, upper, out=np.zeros_like(upper), where=upper > 0)
            )
        below = np.divide(upper - self.values, upper, out=np.zeros_like(upper), where=upper > 0)
        unlimited = np.where(self.values > lower, np.inf, 0.0)
        above = np.divide(self.values - lower, lower, out=unlimited, where=lower > 0)
        return np.where(self.vanishing, 0.0, np.maximum(np.maximum(below, above), 0.0))

    @property
    def vanishing(self) -> BoolArray:
        """Return whether each eigenvalue is zero up to rounding: those that were not found and whose upper end is that small."""
        if self.bounds is None:
            return np.zeros(len(self.values), dtype=bool)
        small = self.bounds.upper <= _VANISHING * self.rounding * self.values.max(initial=0.0)
        return np.asarray(small & (np.arange(len(small)) >= self.n_found))

    @property
    def largest_relative_width(self) -> float:
        """Return the largest of `errors`: infinite without a certificate, 0 without components."""
        errors = self.errors
        return float(np.where(np.isnan(errors), np.inf, errors).max(initial=0.0))

    @property
    def numerical_rank(self) -> int:
        """Return the number of eigenvalues above the rounding of the accumulation."""
        first = self.values[0] if len(self.values) else 0.0
        return int(np.count_nonzero(self.values > self.precision * first))

    @property
    def left_out(self) -> float:
        """Return the trace of E as a share of the total variance."""
        return self.tau / self.total if self.total > 0 else 0.0


@dataclass(frozen=True)
class Evidence:
    """Measurements of the error of an approximation Ĉ that its own products do not contain.

    The held-out columns G are standard normal and independent of Ĉ.
    """

    held_out: FloatArray
    """G, ``(n_features, g)``; with fewer than two columns there is no estimate from them."""
    products: FloatArray
    """C G, ``(n_features, g)``."""
    stretch: float = 1.0
    """Factor of the estimated error, at least 1. Where features were scaled after the fact by 1/D and G was drawn for
    scales 1/D̂, this is max D̂/D."""
    again: tuple[FloatArray, FloatArray, float, int] | None = None
    """Columns s (I − P_p) C … (I − P_1) C G of the same G, ``(n_features, g)``, from pass p + 1, which multiplied them, their products
    with C, log₂ s, and p. P_j projects on the test matrices of the first j + 1 passes, so that E P_j = 0 for E = C − Ĉ. They give
    M = E C (I − P_{p−1}) C … C G, and ‖E‖^(p+1) ≤ ‖M‖: for an eigenvector of E, every further product with a compression of C ⪰ E
    is at least as long, because its Rayleigh quotient does not fall (p = 1: E ⪯ C). Where a pass gives up all earlier test matrices for
    Ω_{j+1} that span C Ω_j, E is zero on the last one alone; then P_j stands for that of pass j + 1 alone, and its eigenvector w is orthogonal
    to C^(p−j) of those columns, too, so that P_j changes nothing of C^(p−j) w. On a slowly decaying spectrum this root of the Schatten-4 norm
    of M is much closer to ‖E‖ than that of E."""
    discarded: float | None = None
    """A bound of ‖C − Ĉ‖₂ from an incremental pass: proven where every update was an exact decomposition, an estimate
    where one was an iteration, so it counts as statistical."""
    rounding: float = 0.0
    """Rounding of an incremental pass relative to the first eigenvalue, where it may exceed that of the products."""
    definite: bool = True
    """Whether C is positive semidefinite; if not, nothing is certified."""
    looks: int = 1
    """Certificates that the fit may make, one after each pass, any of which may be its last."""

    def spectral_error(self, approx: LowRank, floor: float, n_threads: int = 1) -> float | None:
        """Return the statistical bound σ of ‖C − Ĉ‖₂, factors included; None where nothing was measured."""
        if not self.definite:
            return None
        sigma = None
        if self.held_out.shape[1] > 1:
            stretch = max(1.0, self.stretch)
            sigma = (
                statistical_factor(self.held_out.shape[1])
                * stretch
                * schatten4(self.held_out, self.products, approx, n_threads)
            )
            if self.again is not None:
                columns, products, exponent, power = self.again
                factor = statistical_factor(columns.shape[1]) * stretch
                length = factor * schatten4(columns, products, approx, n_threads)
                sigma = min(sigma, length ** (1 / (power + 1)) * 2.0 ** (-exponent / (power + 1)))
            sigma = max(sigma, floor) + approx.shift
        if self.discarded is not None:
            sigma = min(np.inf if sigma is None else sigma, self.discarded + floor)
        return sigma


def certified(
    approx: LowRank,
    evidence: Evidence,
    *,
    test: FloatArray | None,
    converted: LowRank | None = None,
    total: float,
    n_components: int,
    precision: Precision | float,
    n_threads: int = 1,
) -> Certified:
    """Return error bounds of the first components of an approximation Ĉ ⪯ C of full rank: a Nyström one, or of an incremental pass.

    Proven, up to rounding: the lower end of every interval, the trace of C − Ĉ, and with it `proven_upper`.
    Statistical: all bounds that use the Schatten-4 estimate of ‖C − Ĉ‖₂ and its factor (see `bounds.schatten4`).

    `test` is the Ω of a Nyström approximation, ``(n_features, q)``; without it, bounds are of first order only. `converted` are pairs that
    are reported in place of those of Ĉ: the literature's conversion. `total` is tr C, exact; `precision` is the type in which C was accumulated, or its relative rounding. Where there are
    fewer than `n_components` reported pairs, the others stand for directions v orthogonal to them with the eigenvalue 0,
    for which Ĉv = 0.
    """
    reported = approx if converted is None else converted
    k = min(n_components, len(reported.vectors))
    axes = reported.vectors[:, :k]
    n_found = axes.shape[1]
    arithmetic: Precision = precision if isinstance(precision, str) else "float64"
    least = max(ROUNDING, relative_precision(precision, len(axes))) if isinstance(precision, str) else precision
    trusted = max(least, evidence.rounding)
    rounding = max(trusted, ROUNDING_OF_REPEATED_ROWS) if arithmetic == "float32" else trusted
    cosines, condition = (None, 1.0) if test is None else alignment(approx.vectors, test, n_threads, arithmetic)
    floor = rounding_floor(approx, condition, rounding)
    tau = max(0.0, total - approx.trace)
    # Ĉ is exact on Ω for the matrix with the shift on its diagonal, so the residual of that matrix counts.
    shifted = tau + approx.shift * (len(axes) - len(approx.values)) + rounding * total
    sigma, proven = evidence.spectral_error(approx, floor, n_threads), shifted + floor
    smallest = proven if sigma is None else min(proven, sigma)
    bounds, angle_bounds, eigen_residual, residuals, left = None, None, None, None, 0.0
    if evidence.definite:
        n_pairs = min(k + _NEIGHBOURS, len(approx.values))
        apart = sines(cosines, n_pairs)
        missing = smallest * apart
        if (limits := residual_limits(approx, evidence, n_pairs)) is not None:
            missing = np.minimum(missing, limits)
        bounds, angle_bounds = _bounds(approx, cosines, (sigma, proven, floor), (missing, apart * missing), k, n_found)
        if converted is None and n_found:
            residuals = tuple((missing[:n_found] + floor).tolist())
            eigen_residual = max(residuals) / float(approx.values[0])
        outside = float((apart * missing)[:n_found].sum())
        if converted is not None:
            angle_bounds = Angles((None,) * k, ((0, k - 1, None),) if k else (), None)
            aligned = None if test is None else alignment(axes, test, n_threads, arithmetic)[0]
            outside = smallest * float((sines(aligned, n_found) ** 2).sum())
        left = min(proven, outside + smallest * (k - n_found))
    if converted is None:
        along = float(approx.values[:n_found].sum())
    else:
        along = float((approx.values @ tall.gram(approx.vectors, axes, n_threads) ** 2).sum())
    return Certified(
        values=padded(reported.values[:n_found], k),
        n_found=n_found,
        total=total,
        tau=tau,
        sigma=sigma,
        confidence=None if sigma is None else 1 - (1 - CONFIDENCE) * max(1.0, evidence.looks / _LOOKS),
        bounds=bounds,
        angles=angle_bounds,
        residual=eigen_residual,
        residuals=residuals,
        captured=_captured(along, left, floor * n_found, total, rounding),
        shares=tuple(components_for(approx.values, total, shifted, share, floor) for share in SHARES),
        precision=trusted,
        rounding=rounding,
        floor=floor,
        proven=proven,
        orthonormality=float(np.abs(tall.gram(axes, axes, n_threads) - np.eye(n_found)).max(initial=0.0)),
        converted=converted is not None,
        incremental=test is None,
    )


def of_ritz_pairs(
    found: Certified, values: FloatArray, residuals: FloatArray, beyond: float, orthonormality: float
) -> Certified:
    """Return the certificate `found` of an approximation for Ritz pairs from one more product with C, whose residuals are known.

    Parameters
    ----------
    found : Certified
        Error bounds of the pairs before.
    values : float64 array, shape (r,)
        The Ritz values, largest first: each is at most the eigenvalue of its place.
    residuals : float64 array, shape (r,)
        Bounds of ‖Cv − λv‖₂, rounding included.
    beyond : float
        A bound of the eigenvalue that follows those of `found`.
    orthonormality : float
        Largest entry of VᵀV − I.
    """
    if found.bounds is None:
        raise TypeError("the matrix may be indefinite, and Ritz values bound no eigenvalue")
    r, k, floor = len(values), len(found.values), found.floor
    lower, upper = found.bounds.lower.copy(), found.bounds.upper.copy()
    lower[:r] = np.maximum(lower[:r], values - floor)
    upper = np.maximum(upper, lower)
    limits = Intervals(np.append(lower, 0.0), np.append(upper, beyond), found.bounds.proven_upper)
    bounds = replace(found.bounds, lower=lower, upper=upper)
    found_angles = angles(limits, None, residuals, sigma=np.inf, n_components=r)
    if r < k:
        clusters = (*found_angles.clusters, (r, k - 1, None))
        found_angles = Angles(found_angles.sine + (None,) * (k - r), clusters, None)
    along = max(0.0, float(values.sum()) - floor * r) * max(0.0, 1 - found.rounding)
    low = min(1.0, along / found.total) if found.total > 0 else 0.0
    return replace(
        found,
        values=padded(values, k),
        n_found=r,
        bounds=bounds,
        angles=found_angles,
        residual=float(residuals.max() / values[0]) if r else None,
        residuals=tuple(residuals.tolist()),
        captured=(low, max(found.captured[1], low)),
        orthonormality=orthonormality,
    )


def rounding_floor(approx: LowRank, condition: float, relative: float) -> float:
    """Return a bound of the effect of rounding on an eigenvalue of Ĉ, in the units of the eigenvalues.

    Products Y = CΩ + Δ are those of a matrix C + D with ‖D‖₂ ≤ ‖ΔR‖₂, where ΩR is orthonormal (Krein's extension of a
    symmetric block), and eigenvalues change by at most that (Weyl): `relative` · λ̂₁ times the `condition` of Ω. The
    asymmetry of ΩᵀY measures the rounding that is not symmetric; the symmetric rounding may be as large again. The shift
    is at most the rounding that it compensates, so that Ĉ + ν is a Nyström approximation of a positive matrix.
    """
    seen = max(approx.shift, approx.asymmetry)
    return relative * condition * float(approx.values.max(initial=0.0)) + _UNMEASURED * seen


def _bounds(
    approx: LowRank,
    cosines: FloatArray | None,
    norms: tuple[float | None, float, float],
    missing: tuple[FloatArray, FloatArray],
    k: int,
    n_found: int,
) -> tuple[Intervals, Angles]:
    """Return bounds of the first k eigenvalues and of the eigenvectors that were found; the next eigenvalue limits the last gap.

    `norms` holds the statistical and the proven bound of ‖C − Ĉ‖₂, and the rounding of an eigenvalue; `missing` the bounds of ‖Ev̂‖ and of
    v̂ᵀEv̂ of the first eigenpairs.
    """
    n, (sigma, proven, floor), n_pairs = min(k + 1, len(approx.vectors)), norms, len(missing[0])
    smallest = proven if sigma is None else min(proven, sigma)
    limits = intervals(approx, cosines, sigma=sigma, tau=proven, n_components=n, floor=floor)
    beyond = float(approx.values[n_pairs : n_pairs + 1].sum()) + smallest
    nearer = np.full(n, np.inf)
    nearer[:n_pairs] = uppers_by_residuals(approx.values[:n_pairs], *missing, beyond)[:n] + floor
    upper = np.minimum(limits.upper, nearer)
    by = np.where(nearer < limits.upper, "residual", np.where(limits.upper < limits.proven_upper, "sigma", "trace"))
    by = np.where(4 * floor >= upper - limits.lower, "rounding", by)
    limits = Intervals(limits.lower, upper, limits.proven_upper)
    angle_bounds = angles(limits, cosines, missing[0], sigma=smallest, n_components=n_found, floor=floor)
    if n_found < k:
        arbitrary = (n_found, k - 1, None)
        angle_bounds = Angles(angle_bounds.sine + (None,) * (k - n_found), (*angle_bounds.clusters, arbitrary), None)
    kept = Intervals(limits.lower[:k], upper[:k], limits.proven_upper[:k], tuple(by[:k].tolist()))
    return kept, angle_bounds


def _captured(along: float, left: float, slack: float, total: float, rounding: float) -> tuple[float, float]:
    """Return the proven share of the total variance that is `along` the axes, and the share with `left` of C − Ĉ added.

    `slack` is the rounding of the eigenvalues of all axes, `rounding` the relative rounding of the total.
    """
    if total <= 0:
        return 0.0, 0.0
    low = float(np.clip((along - slack) / total * max(0.0, 1 - rounding), 0.0, 1.0))
    return low, float(np.clip((along + left + slack) / total * (1 + rounding), low, 1.0))
