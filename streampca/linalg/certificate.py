"""What an approximate answer can say of its own errors: intervals, angles and shares, and in words what is proven of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.linalg import tall_skinny as tall
from streampca.linalg.bounds import (
    Angles,
    Intervals,
    alignment,
    angles,
    components_for,
    intervals,
    plain_intervals,
    schatten4,
    sines,
    statistical_factor,
)
from streampca.linalg.eigen import relative_precision
from streampca.linalg.nystrom import LowRank, Precision

FloatArray = NDArray[np.float64]

_SHARES = (0.9, 0.95, 0.99)
_ALIKE = 64 * 2.0**-24  # of float32 sums of 256 equal terms: a quarter of a unit for each
_UNSEEN = 2.0  # times the rounding that the asymmetry of ΩᵀY shows
ROUNDING = 1e-13  # of the small problems, which divide by square roots of small eigenvalues


@dataclass(frozen=True)
class Certified:
    """Bounds of the errors of the components that are reported; without a definite matrix there are none."""

    values: FloatArray
    """The eigenvalues that are reported, largest first; ``(k,)``."""
    total: float
    """Trace of the matrix: the total variance."""
    tau: float
    """Trace of what the approximation leaves out, exact to rounding: a proven bound of its largest eigenvalue."""
    sigma: float | None
    """Statistical bound of the largest eigenvalue of what is left out, factors included; None where nothing was held out."""
    bounds: Intervals | None
    """Where the eigenvalues lie; None for a matrix that need not be positive semidefinite."""
    turned: Angles | None
    """How far the components may be turned; None as above."""
    residual: float | None
    """Bound of the largest ‖Cv − λv‖₂ relative to the first eigenvalue; None as above."""
    captured: tuple[float, float]
    """Between which shares of the total variance lies what the components carry."""
    shares: tuple[tuple[int, int | None], ...]
    """Between which numbers of components 0.9, 0.95 and 0.99 of the variance are reached; None = more than were found."""
    precision: float
    """Rounding of the accumulation, relative to the first eigenvalue, above which eigenvalues count towards the rank."""
    rounding: float
    """Rounding that the bounds leave room for, relative to the first eigenvalue: also that of rows that repeat."""
    floor: float
    """The same in the units of the eigenvalues, for the condition of the test matrix: `bounds` are that much wider."""
    proven: float
    """Proven bound of the largest eigenvalue of what is left out, with all rounding."""
    orthonormality: float
    """Largest entry of VᵀV − I."""
    converted: bool
    """Whether the components are those of the literature's conversion."""
    incremental: bool
    """Whether the approximation has no test matrix that it is exact on, so that bounds are of first order."""

    @property
    def errors(self) -> FloatArray:
        """Return a bound of |λ̂ − λ| / λ of every eigenvalue, ``(k,)``; NaN where there is none, or infinity.

        The values of the conversion may lie beyond their intervals, on either side.
        """
        if self.bounds is None:
            return np.full(len(self.values), np.nan)
        lower, upper = self.bounds.lower, self.bounds.upper
        below = np.divide(upper - lower, upper, out=np.zeros_like(upper), where=upper > 0)
        if not self.converted:
            return below
        below = np.divide(upper - self.values, upper, out=np.zeros_like(upper), where=upper > 0)
        unlimited = np.where(self.values > lower, np.inf, 0.0)
        above = np.divide(self.values - lower, lower, out=unlimited, where=lower > 0)
        return np.maximum(np.maximum(below, above), 0.0)

    @property
    def largest_relative_width(self) -> float:
        """Return the largest of `errors`: infinite without a certificate, 0 without components."""
        errors = self.errors
        return float(np.where(np.isnan(errors), np.inf, errors).max(initial=0.0))

    @property
    def numerical_rank(self) -> int:
        """Return how many of the eigenvalues stand above the rounding of the accumulation."""
        first = self.values[0] if len(self.values) else 0.0
        return int(np.count_nonzero(self.values > self.precision * first))

    def to_dict(self, n_passes: int) -> dict[str, Any]:
        """Return the certificate in plain types, under the names of that of the exact solvers where they mean the same."""
        low, high = self.captured
        certificate: dict[str, Any] = {
            "kind": "approximate",
            "statement": self.statement(n_passes),
            "eigen_residual": None if self.residual is None else float(self.residual),
            "orthonormality": self.orthonormality,
            "relative_residual": 1.0 - low,
            "relative_residual_interval": [1.0 - high, 1.0 - low],
            "captured_variance": low,
            "component_errors": [_number(error) for error in self.errors],
            "numerical_rank": self.numerical_rank,
            "trusted_above": self.precision,
            "eigen_solver": "conversion" if self.converted else "incremental" if self.incremental else "nystrom",
            "n_passes": n_passes,
            "largest_relative_width": _number(self.largest_relative_width),
            "nuclear_error": self.tau / self.total if self.total > 0 else 0.0,
            "sigma": None if self.sigma is None else float(self.sigma),
            "components_for": {str(share): list(span) for share, span in zip(_SHARES, self.shares, strict=True)},
        }
        if self.bounds is None or self.turned is None:
            return certificate | {
                "relative_residual_interval": [0.0, 1.0],
                "nuclear_error": None,
                "eigenvalue_intervals": None,
                "angle_bounds": [None] * len(self.values),
                "subspace_angle_bound": None,
                "unresolved_clusters": [],
                "components_for": {str(share): [1, None] for share in _SHARES},
            }
        pairs = zip(self.bounds.lower.tolist(), self.bounds.upper.tolist(), strict=True)
        return certificate | {
            "eigenvalue_intervals": [list(pair) for pair in pairs],
            "proven_upper_bounds": self.bounds.proven_upper.tolist(),
            "angle_bounds": list(self.turned.sine),
            "subspace_angle_bound": self.turned.subspace,
            "unresolved_clusters": [list(cluster) for cluster in self.turned.clusters],
        }

    def statement(self, n_passes: int) -> str:
        """Return in words what is proven, what is statistical, and what is not resolved."""
        passes = "one pass" if n_passes == 1 else f"{n_passes} passes"
        if self.bounds is None or self.turned is None:
            return (
                f"approximate, from {passes}, without a certificate: a covariance corrected for missing values need not be "
                "positive semidefinite, and no bound holds for what was left out"
            )
        words = [
            f"approximate, from {passes}: no eigenvalue is below its interval (proven, with room for rounding of {self.rounding:.0e} "
            f"of the first), and all that was left out sums to {self.tau / self.total if self.total > 0 else 0.0:.1e} of the variance (exact trace)"
        ]
        if self.sigma is None:
            words.append("upper bounds and angles follow from that trace alone (proven, and wide)")
        else:
            words.append(
                "upper bounds and angles rest on an estimate of the largest eigenvalue left out, enlarged by its scatter "
                "(statistical: intervals cover the truth in at least 99 of 100 runs)"
            )
        if self.incremental:
            words.append("bounds are of first order; a further pass narrows them")
        if self.converted:
            words.append(
                "components and eigenvalues are those of the conversion: no angle is bounded, errors are against the intervals"
            )
        elif self.turned.clusters:
            unresolved = sum(last - first + 1 for first, last, _ in self.turned.clusters)
            words.append(
                f"{unresolved} of {len(self.values)} components are not told apart from their neighbours (unresolved clusters)"
            )
        return "; ".join(words)


def certified(
    approx: LowRank,
    test: FloatArray | None,
    *,
    total: float,
    n_components: int,
    precision: Precision | float,
    held_out: FloatArray | None = None,
    held_out_products: FloatArray | None = None,
    again: tuple[FloatArray, FloatArray, float] | None = None,
    stretch: float = 1.0,
    discarded: float | None = None,
    rounding: float = 0.0,
    reported: LowRank | None = None,
    definite: bool = True,
    n_threads: int = 1,
) -> Certified:
    """Return what can be said of the first components of an approximation Ĉ ⪯ C.

    Proven, up to rounding: the lower end of every interval, the trace of what is left out, and with it `proven_upper`.
    Statistical: what rests on the Schatten-4 estimate of the spectral error and its factor (see `bounds.schatten4`).

    Parameters
    ----------
    approx : LowRank
        Ĉ of full rank r: a Nyström approximation, or that of an incremental pass.
    test : float64 array, shape (d, q), or None
        Ω of the Nyström approximation; None for any other Ĉ ⪯ C, whose bounds are of first order only.
    total : float
        tr C, exact.
    n_components : int
        How many components are reported; at most r count.
    precision : "float32", "float64" or float
        How C was accumulated, or its relative rounding.
    held_out, held_out_products : float64 arrays, shape (d, g), optional
        Standard normal columns that had no say in `approx`, and their products with C.
    again : two float64 arrays, shape (d, g), and float, optional
        Columns s (I − P_Ω) C G of the same G, from a later pass that multiplied them, their products with C, and the factor s. With
        E = C − Ĉ they give E C G, because E P_Ω = 0, and since E ⪯ C, ‖E‖² ≤ ‖E C‖: on a slowly decaying spectrum the
        root of the Schatten-4 norm of E C is much closer to ‖E‖ than that of E.
    stretch : float
        Factor of the estimated error, at least 1. Where features were scaled after the fact by 1/D and G was drawn for
        scales 1/D̂, this is max D̂/D.
    discarded : float, optional
        A bound of ‖C − Ĉ‖₂ from an incremental pass: proven where every update was an exact decomposition, an estimate
        where one was an iteration, so it counts as statistical.
    rounding : float
        Rounding of an incremental pass relative to the first eigenvalue, where that may be more than that of the products.
    reported : LowRank, optional
        Pairs that are reported in place of those of `approx`: the literature's conversion.
    definite : bool
        Whether C is positive semidefinite; if not, nothing is certified.
    n_threads : int
        Threads that share the slabs of rows.
    """
    source = approx if reported is None else reported
    k = min(n_components, len(source.values))
    axes = source.vectors[:, :k]
    trusted = max(ROUNDING, relative_precision(precision, len(axes))) if isinstance(precision, str) else precision
    trusted = max(trusted, rounding)
    arithmetic: Precision = precision if isinstance(precision, str) else "float64"
    relative = max(trusted, _ALIKE) if arithmetic == "float32" else trusted
    aligned = None if test is None else alignment(approx, test, n_threads, arithmetic)
    floor = rounding_floor(approx, 1.0 if aligned is None else aligned.condition, relative)
    tau = max(0.0, total - approx.trace)
    sigma = None
    if held_out is not None and held_out_products is not None and held_out.shape[1] > 1 and definite:
        factor = statistical_factor(held_out.shape[1]) * max(1.0, stretch)
        sigma = factor * schatten4(held_out, held_out_products, approx, n_threads)
        if again is not None:
            columns, products, scaled = again
            length = factor * schatten4(columns, products, approx, n_threads)
            sigma = min(sigma, float(np.sqrt(length) / np.sqrt(scaled)))
        sigma = max(sigma, floor) + approx.shift
    if discarded is not None and definite:
        sigma = min(np.inf if sigma is None else sigma, discarded + floor)
    # What is exact on Ω is the matrix with the shift on its diagonal, so what that leaves out counts.
    shifted = tau + approx.shift * (len(axes) - len(approx.values)) + relative * total
    proven = shifted + floor
    bounds, turned, residual, left = None, None, None, 0.0
    if definite:
        cosines = None if aligned is None else aligned.cosines
        bounds, turned = _bounds(approx, cosines, sigma, proven, k, floor)
        if reported is not None and test is not None:
            cosines = alignment(replace(reported, vectors=axes), test, n_threads, arithmetic).cosines
            turned = Angles((None,) * k, ((0, k - 1, None),) if k else (), None)
        best = proven if sigma is None else min(proven, sigma)
        outside = sines(cosines, k)
        if reported is None and k:
            residual = (best * float(outside.max()) + floor) / float(approx.values[0])
        left = min(proven, best * float((outside**2).sum()))
    return Certified(
        values=source.values[:k],
        total=total,
        tau=tau,
        sigma=sigma,
        bounds=bounds,
        turned=turned,
        residual=residual,
        captured=_captured(approx, axes, reported is not None, total, left, (relative, floor), n_threads),
        shares=tuple(components_for(approx.values, total, shifted, share, floor) for share in _SHARES),
        precision=trusted,
        rounding=relative,
        floor=floor,
        proven=proven,
        orthonormality=float(np.abs(tall.gram(axes, axes, n_threads) - np.eye(k)).max(initial=0.0)),
        converted=reported is not None,
        incremental=test is None,
    )


def rounding_floor(approx: LowRank, condition: float, relative: float) -> float:
    """Return how far rounding may carry an eigenvalue of Ĉ beyond its exact bounds, in the units of the eigenvalues.

    Products Y = CΩ + Δ are those of a matrix C + D with ‖D‖₂ ≤ ‖ΔR‖₂, where ΩR is orthonormal (Krein's extension of a
    symmetric block), and eigenvalues move no more than that (Weyl): `relative` · λ̂₁ for each digit that the `condition` of Ω
    keeps. The part that is not symmetric shows in ΩᵀY: it is measured, and what does not show may be as large again. The shift
    is no larger than what it stands for, so that Ĉ + ν is a Nyström approximation of a matrix that is positive.
    """
    seen = max(approx.shift, approx.asymmetry)
    return relative * condition * float(approx.values.max(initial=0.0)) + _UNSEEN * seen


def _bounds(
    approx: LowRank, cosines: FloatArray | None, sigma: float | None, proven: float, k: int, floor: float
) -> tuple[Intervals, Angles]:
    """Return bounds of the first k eigenvalues and eigenvectors; the next eigenvalue limits the last gap."""
    more = min(k + 1, len(approx.vectors))
    if cosines is None:
        found = plain_intervals(
            approx.values, sigma=sigma, tau=proven, discarded=proven, n_components=more, floor=floor
        )
    else:
        found = intervals(approx, cosines, sigma=sigma, tau=proven, n_components=more, floor=floor)
    best = proven if sigma is None else min(proven, sigma)
    turned = angles(found, cosines, sigma=best, n_components=k, floor=floor)
    return Intervals(found.lower[:k], found.upper[:k], found.proven_upper[:k]), turned


def _captured(
    approx: LowRank,
    axes: FloatArray,
    foreign: bool,
    total: float,
    left: float,
    rounding: tuple[float, float],
    n_threads: int,
) -> tuple[float, float]:
    """Return the share of the total variance that axes carry for certain, and with what may be `left` beside Ĉ.

    `rounding` is that of the total, relative, and that of an eigenvalue, which every axis has.
    """
    relative, floor = rounding
    if total <= 0:
        return 0.0, 0.0
    if foreign:
        inner = tall.gram(approx.vectors, axes, n_threads)
        surely = float((approx.values @ inner**2).sum())
    else:
        surely = float(approx.values[: axes.shape[1]].sum())
    room = floor * axes.shape[1]
    low = float(np.clip((surely - room) / total * (1 - relative), 0.0, 1.0))
    return low, float(np.clip((surely + left + room) / total * (1 + relative), low, 1.0))


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
