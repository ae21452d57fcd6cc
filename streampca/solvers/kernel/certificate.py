"""What the passes of kernel PCA from landmarks tell of its error: the residual trace, an estimate, and rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.accumulators.landmarks import LandmarksState
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import Interval, KernelCertificate
from streampca.solvers.kernel.landmarks import chances
from streampca.solvers.kernel.rounding import Computed, Rounding, rounding_of
from streampca.solvers.kernel.solving import share_of, shares
from streampca.solvers.kernel.whitening import LandmarkBasis


def certificate_of(
    basis: LandmarkBasis,
    held: list[LandmarksState],
    computed: Computed,
    residual: float,
    total: float,
    precision: float,
) -> KernelCertificate:
    """Return what the passes tell of the error.

    Where K is positive semi-definite, E = K − K̂ is, too, and λ̂ᵢ ≤ λᵢ ≤ λ̂ᵢ + ‖E‖₂ for the centred matrices. tr E = Σ κ(x, x)
    − Σ ‖φ(x)‖² bounds ‖E‖₂ for certain; on some hundred rows that were drawn beside the landmarks it is estimated. Both
    ends allow for rounding.
    """
    whitening, definite = basis.whitening, basis.kernel.definite
    known = KernelCertificate(
        kind="none",
        statement=sentences.INDEFINITE,
        definite=definite,
        trace=sentences.TRACE_OF_FEATURES,
        residual_trace=None,
        sigma=None,
        eigenvalue_intervals=None,
        landmark_rank=whitening.rank,
        landmark_condition=whitening.condition,
        **shares(computed.values, total, 0.0),
    )
    if not whitening.definite:
        return known
    rounding = rounding_of(basis, computed, precision)
    most = residual + rounding.trace
    sigma = min(_estimate(basis, state, computed.n_samples, most) for state in held)
    bound, rows = min(most, sigma), sum(len(state.index) for state in held)
    return replace(
        known,
        kind="statistical",
        statement=sentences.nystrom(bound, rows, most, known_definite=definite is not None),
        residual_trace=residual,
        residual_trace_rounding=rounding.trace,
        rounding=share_of(float(computed.values[0] - rounding.lower[0]), float(computed.values[0])),
        sigma=sigma,
        held_out_rows=rows,
        eigenvalue_intervals=_intervals(rounding, bound),
        proven_intervals=_intervals(rounding, most),
        **shares(rounding.lower, total, most + float((rounding.upper - rounding.lower).sum())),
    )


def _intervals(rounding: Rounding, bound: float) -> tuple[Interval, ...]:
    """Return (lower, upper) for each eigenvalue of the centred kernel matrix."""
    ends = zip(rounding.lower.tolist(), rounding.upper.tolist(), strict=True)
    return tuple((low, high + bound) for low, high in ends)


def _estimate(basis: LandmarkBasis, held: LandmarksState, n: int, residual: float) -> float:
    """Return an estimate of ‖E‖₂ from above by the residual kernel matrix E_hh of h drawn rows.

    λ₁(D E_hh D), with D = π^(−1/2) for the chances π of being drawn, exceeds ‖E‖₂ on average where the rows see all of E.
    Whether they do is told by Σ Eᵢᵢ/πᵢ, whose mean is tr E: what of the known `residual` trace lies more than two
    standard errors above it is added, as if it were one eigenvalue of rows that were not seen.
    The row with the largest key is left out, which makes the `chances` of the others exact.
    """
    if not len(held.keys):
        return np.inf
    if len(held.keys) < n:
        chosen = np.arange(len(held.keys)) != int(np.argmax(held.keys))
        drawn = chances(held)[chosen]
    else:
        chosen, drawn = np.ones(n, bool), np.ones(n)
    if len(drawn) < 2:
        return np.inf
    rows = held.rows[chosen].astype(np.float64)
    features = basis.kernel(rows, basis.points.astype(np.float64)) @ basis.whitening.matrix
    gap = basis.kernel(rows, rows) - features @ features.T
    scales = 1.0 / np.sqrt(drawn)
    gap = (gap + gap.T) / 2 * scales * scales[:, None]
    seen = gap.diagonal()
    error = float(seen.std(ddof=1)) * np.sqrt(len(seen)) * float(np.sqrt(1.0 - drawn.min()))
    unseen = max(0.0, residual - float(seen.sum()) - 2 * error)
    return float(max(0.0, float(np.linalg.eigvalsh(gap)[-1])) + unseen)
