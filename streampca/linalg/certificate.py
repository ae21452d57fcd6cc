"""Certificates of approximate results: error bounds of eigenvalues, angles and explained variance."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streampca.linalg import tall_skinny as tall
from streampca.linalg.bounds import (
    Angles,
    Intervals,
    alignment,
    angles,
    components_for,
    intervals,
    padded,
    plain_intervals,
    schatten4,
    sines,
    statistical_factor,
)
from streampca.linalg.eigen import relative_precision
from streampca.linalg.nystrom import LowRank, Precision
from streampca.typing import BoolArray, FloatArray

SHARES = (0.9, 0.95, 0.99)
"""Shares of the variance for which numbers of components are bounded."""
ROUNDING_OF_REPEATED_ROWS = 64 * 2.0**-24
"""Rounding of float32 sums of 256 equal terms, relative to the first eigenvalue: a quarter of a unit for each."""
_UNMEASURED = 2.0  # total rounding relative to the rounding that the asymmetry of ΩᵀY measures
_VANISHING = 4.0  # times the rounding of the first eigenvalue, up to which one that was not found counts as zero
ROUNDING = 1e-13  # relative rounding of the small problems, which divide by square roots of small eigenvalues


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
    bounds: Intervals | None
    """Intervals of the eigenvalues; None for a matrix that may be indefinite."""
    angles: Angles | None
    """Bounds of the angles of the components; None as above."""
    residual: float | None
    """Bound of the largest ‖Cv − λv‖₂ relative to the first eigenvalue; None as above."""
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
            return np.where(self.vanishing, 0.0, self.bounds.relative_width)
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
    again: tuple[FloatArray, FloatArray, float] | None = None
    """Columns s (I − P_Ω) C G of the same G, ``(n_features, g)``, from a later pass that multiplied them, their products
    with C, and the factor s. With E = C − Ĉ they give E C G, because E P_Ω = 0, and since E ⪯ C, ‖E‖² ≤ ‖E C‖: on a
    slowly decaying spectrum the root of the Schatten-4 norm of E C is much closer to ‖E‖ than that of E."""
    discarded: float | None = None
    """A bound of ‖C − Ĉ‖₂ from an incremental pass: proven where every update was an exact decomposition, an estimate
    where one was an iteration, so it counts as statistical."""
    rounding: float = 0.0
    """Rounding of an incremental pass relative to the first eigenvalue, where it may exceed that of the products."""
    definite: bool = True
    """Whether C is positive semidefinite; if not, nothing is certified."""

    def spectral_error(self, approx: LowRank, floor: float, n_threads: int = 1) -> float | None:
        """Return the statistical bound σ of ‖C − Ĉ‖₂, factors included; None where nothing was measured."""
        if not self.definite:
            return None
        sigma = None
        if self.held_out.shape[1] > 1:
            factor = statistical_factor(self.held_out.shape[1]) * max(1.0, self.stretch)
            sigma = factor * schatten4(self.held_out, self.products, approx, n_threads)
            if self.again is not None:
                columns, products, scaled = self.again
                length = factor * schatten4(columns, products, approx, n_threads)
                sigma = min(sigma, float(np.sqrt(length) / np.sqrt(scaled)))
            sigma = max(sigma, floor) + approx.shift
        if self.discarded is not None:
            sigma = min(np.inf if sigma is None else sigma, self.discarded + floor)
        return sigma


@dataclass(frozen=True)
class Approximation:
    """An approximation Ĉ ⪯ C of full rank r, its test matrix, and the eigenpairs that are reported for it."""

    low_rank: LowRank
    """Ĉ: a Nyström approximation, or that of an incremental pass."""
    test: FloatArray | None = None
    """Ω of the Nyström approximation, ``(n_features, q)``; None for any other Ĉ ⪯ C, whose bounds are of first order only."""
    converted: LowRank | None = None
    """Pairs that are reported in place of those of Ĉ: the literature's conversion."""

    @property
    def reported(self) -> LowRank:
        """Return the eigenpairs that are reported."""
        return self.low_rank if self.converted is None else self.converted


@dataclass(frozen=True)
class _Rounding:
    """Rounding of the accumulation, which widens every bound."""

    arithmetic: Precision
    """Type of the products."""
    trusted: float
    """Rounding relative to the first eigenvalue, above which eigenvalues count towards the rank."""
    relative: float
    """The same with the rounding of rows that repeat."""

    @classmethod
    def of(cls, precision: Precision | float, least: float, n_features: int) -> _Rounding:
        """Return the rounding of products in `precision`, or of the relative rounding `precision`; at least `least`."""
        if isinstance(precision, str):
            trusted = max(ROUNDING, relative_precision(precision, n_features), least)
            return cls(
                precision, trusted, max(trusted, ROUNDING_OF_REPEATED_ROWS) if precision == "float32" else trusted
            )
        trusted = max(precision, least)
        return cls("float64", trusted, trusted)


@dataclass(frozen=True)
class _Residual:
    """Bounds of the part E = C − Ĉ that an approximation leaves out."""

    sigma: float | None
    """Statistical bound of ‖E‖₂."""
    proven: float
    """Proven bound of ‖E‖₂."""
    floor: float
    """Rounding of an eigenvalue."""

    @property
    def smallest(self) -> float:
        """Return the smaller of the two bounds of ‖E‖₂."""
        return self.proven if self.sigma is None else min(self.proven, self.sigma)


def certified(
    answer: Approximation,
    evidence: Evidence,
    *,
    total: float,
    n_components: int,
    precision: Precision | float,
    n_threads: int = 1,
) -> Certified:
    """Return error bounds of the first components of an approximation Ĉ ⪯ C.

    Proven, up to rounding: the lower end of every interval, the trace of C − Ĉ, and with it `proven_upper`.
    Statistical: all bounds that use the Schatten-4 estimate of ‖C − Ĉ‖₂ and its factor (see `bounds.schatten4`).

    `total` is tr C, exact; `precision` is the type in which C was accumulated, or its relative rounding. Where there are
    fewer than `n_components` reported pairs, the others stand for directions v orthogonal to them with the eigenvalue 0,
    for which Ĉv = 0.
    """
    approx, test = answer.low_rank, answer.test
    k = min(n_components, len(answer.reported.vectors))
    axes = answer.reported.vectors[:, :k]
    n_found = axes.shape[1]
    rounding = _Rounding.of(precision, evidence.rounding, len(axes))
    aligned = None if test is None else alignment(approx, test, n_threads, rounding.arithmetic)
    floor = rounding_floor(approx, 1.0 if aligned is None else aligned.condition, rounding.relative)
    tau = max(0.0, total - approx.trace)
    # Ĉ is exact on Ω for the matrix with the shift on its diagonal, so the residual of that matrix counts.
    shifted = tau + approx.shift * (len(axes) - len(approx.values)) + rounding.relative * total
    residual = _Residual(evidence.spectral_error(approx, floor, n_threads), shifted + floor, floor)
    bounds, angle_bounds, eigen_residual, left = None, None, None, 0.0
    if evidence.definite:
        cosines = None if aligned is None else aligned.cosines
        bounds, angle_bounds = _bounds(approx, cosines, residual, k, n_found)
        if answer.converted is not None and test is not None:
            conversion = replace(answer.converted, vectors=axes)
            cosines = alignment(conversion, test, n_threads, rounding.arithmetic).cosines
            angle_bounds = Angles((None,) * k, ((0, k - 1, None),) if k else (), None)
        outside = np.concatenate([sines(cosines, n_found), np.ones(k - n_found)])
        if answer.converted is None and n_found:
            eigen_residual = (residual.smallest * float(outside.max()) + floor) / float(approx.values[0])
        left = min(residual.proven, residual.smallest * float((outside**2).sum()))
    return Certified(
        values=padded(answer.reported.values[:n_found], k),
        n_found=n_found,
        total=total,
        tau=tau,
        sigma=residual.sigma,
        bounds=bounds,
        angles=angle_bounds,
        residual=eigen_residual,
        captured=_captured(answer, axes, total, left, (rounding.relative, floor), n_threads),
        shares=tuple(components_for(approx.values, total, shifted, share, floor) for share in SHARES),
        precision=rounding.trusted,
        rounding=rounding.relative,
        floor=floor,
        proven=residual.proven,
        orthonormality=float(np.abs(tall.gram(axes, axes, n_threads) - np.eye(n_found)).max(initial=0.0)),
        converted=answer.converted is not None,
        incremental=test is None,
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
    approx: LowRank, cosines: FloatArray | None, residual: _Residual, k: int, n_found: int
) -> tuple[Intervals, Angles]:
    """Return bounds of the first k eigenvalues and of the eigenvectors that were found; the next eigenvalue limits the last gap."""
    n, sigma, proven, floor = min(k + 1, len(approx.vectors)), residual.sigma, residual.proven, residual.floor
    if cosines is None:
        limits = plain_intervals(approx.values, sigma=sigma, tau=proven, discarded=proven, n_components=n, floor=floor)
    else:
        limits = intervals(approx, cosines, sigma=sigma, tau=proven, n_components=n, floor=floor)
    angle_bounds = angles(limits, cosines, sigma=residual.smallest, n_components=n_found, floor=floor)
    if n_found < k:
        arbitrary = (n_found, k - 1, None)
        angle_bounds = Angles(angle_bounds.sine + (None,) * (k - n_found), (*angle_bounds.clusters, arbitrary), None)
    return Intervals(limits.lower[:k], limits.upper[:k], limits.proven_upper[:k]), angle_bounds


def _captured(
    answer: Approximation,
    axes: FloatArray,
    total: float,
    left: float,
    rounding: tuple[float, float],
    n_threads: int,
) -> tuple[float, float]:
    """Return the proven share of the total variance along `axes`, and the share with `left` of C − Ĉ added.

    `rounding` holds the relative rounding of the total, and the rounding of an eigenvalue, which counts for every axis.
    """
    relative, floor = rounding
    if total <= 0:
        return 0.0, 0.0
    approx = answer.low_rank
    if answer.converted is not None:
        inner = tall.gram(approx.vectors, axes, n_threads)
        proven = float((approx.values @ inner**2).sum())
    else:
        proven = float(approx.values[: axes.shape[1]].sum())
    slack = floor * axes.shape[1]
    low = float(np.clip((proven - slack) / total * max(0.0, 1 - relative), 0.0, 1.0))
    return low, float(np.clip((proven + left + slack) / total * (1 + relative), low, 1.0))
