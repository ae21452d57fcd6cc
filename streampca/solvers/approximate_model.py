"""From the products of a sketch to a model: the best low-rank matrix below the covariance, with its certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streampca.accumulators import Sketched, SketchState
from streampca.linalg.certificate import ROUNDING, SHARES, Certified, Evidence, certified
from streampca.linalg.eigen import Spectrum, relative_precision, signed
from streampca.linalg.nystrom import DEPENDENT, LowRank, Precision, converted, independent_columns, nystrom
from streampca.linalg.selection import Count, is_count
from streampca.linalg.tall_skinny import gram, needs_scaling, orthonormal, peaks, power_of_two, scaled_copy, times
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import ApproximateCertificate
from streampca.models.noise import known_weight, selection_of_fit
from streampca.models.pca import PCAModel
from streampca.models.rounding import with_decoding, with_missing
from streampca.parameters import Parameters
from streampca.random import generator
from streampca.typing import FloatArray, Json

_TINY = float(np.finfo(np.float64).tiny)
_NEARLY = 1e-4  # each projection leaves so much of what it takes out, and every block is projected at least twice


class Chain:
    """Test matrices and their products, a pair for each pass, in the space of centred, scaled and weighted features."""

    def __init__(self, n_features: int, columns: int) -> None:
        self._test = np.empty((n_features, columns))
        self._products = np.empty((n_features, columns))
        self._used = self._last = 0

    def has_room(self, width: int) -> bool:
        """Tell whether so many columns fit beside those of earlier passes."""
        return self._used + width <= self._test.shape[1]

    def add(self, test: FloatArray, products: FloatArray) -> None:
        """Append a pair; where it does not fit beside all earlier ones, it replaces them."""
        width = test.shape[1]
        self._last = self._used if self.has_room(width) else 0
        self._used = self._last + width
        self._test[:, self._last : self._used] = test
        self._products[:, self._last : self._used] = products

    @property
    def test(self) -> FloatArray:
        """Return all test matrices side by side, ``(n_features, n_columns)``."""
        return self._test[:, : self._used]

    @property
    def products(self) -> FloatArray:
        """Return their products with the matrix, of the same shape."""
        return self._products[:, : self._used]

    def span(self, precision: Precision, n_threads: int) -> FloatArray:
        """Return columns that span what `nystrom` uses of all test matrices, orthonormal to `_NEARLY`: those matrices where they are.

        That is measured, 2 d q² flops: it does not follow from where a test matrix came from. Columns that `nystrom` treats as
        dependent for the same `precision` are ignored: a later pass has to multiply what they hold beyond the others, and so do
        the held-out columns of the certificate.
        """
        peak = peaks(self.test, n_threads)
        factors: FloatArray | float = 1.0
        if needs_scaling(peak):
            factors = power_of_two(peak)
        elif np.linalg.norm(gram(self.test, self.test, n_threads) - np.eye(self._used)) <= _NEARLY:
            return self.test
        columns = scaled_copy(self.test, factors, n_threads)
        rotation = independent_columns(gram(columns, columns, n_threads), DEPENDENT[precision])
        columns = times(columns, rotation, n_threads, out=columns[:, : rotation.shape[1]])
        return orthonormal(columns, n_threads=n_threads, overwrite=True)

    @property
    def newest(self) -> FloatArray:
        """Return the products of the last pass."""
        return self._products[:, self._last : self._used]


@dataclass(frozen=True)
class Approximation:
    """A low-rank matrix below the covariance matrix, with its certificate."""

    low_rank: LowRank
    """All eigenpairs that were found."""
    reported: LowRank
    """The pairs that are reported: the same, or those of the literature's conversion."""
    n_components: int
    """Number of pairs that are taken; the certificate is of as many as are reported, with directions that were not found."""
    reached: bool
    """Whether the requested number was reached."""
    certified: Certified
    """Bounds of their errors."""
    residual_moments: tuple[float, ...]
    """θ₂/θ₁² of the eigenvalues left out, estimated from held-out columns; empty without them."""

    def within(self, tolerance: float | None) -> bool:
        """Return whether every eigenvalue is certified to the relative `tolerance`; True if it is None."""
        return tolerance is None or self.certified.largest_relative_width <= tolerance

    def model(
        self, moments: Sketched, state: SketchState, parameters: Parameters, source: Json, n_passes: int
    ) -> PCAModel:
        """Return the model of these components; `source` describes the origin of the rows."""
        certificate, k = certificate_of(self.certified, n_passes), self.n_components
        if not self.reached:
            certificate = certificate.saying(sentences.too_few(k), components_missing=True)
        rank = min(certificate.numerical_rank, k)
        axes = completed(self.reported.vectors[:, :k], _n_components(parameters, k, moments), parameters.seed)
        values = np.zeros(axes.shape[1])
        values[:k] = self.reported.values[:k]
        residual = certificate.eigen_residual or 0.0
        method, left = certificate.eigen_solver, self.residual_moments
        spectrum = Spectrum(values, signed(axes), moments.total, residual, rank, method, left)
        model = PCAModel.of_spectrum(
            spectrum,
            moments,
            parameters,
            precision=self.certified.precision,
            source=source,
            sample_weight=_known_weight(moments, parameters),
        )
        model = replace(model, certificate=certificate)
        if parameters.n_regressors is None:  # else the rows that were decoded are known when the fit is finished
            model = with_decoding(model, moments.mean, moments.variance, parameters.scaling)
        return with_missing(model, parameters.missing, state, state.n_left_out, None, parameters.missing_scores)


def answer_of(
    moments: Sketched,
    chain: Chain,
    evidence: Evidence,
    parameters: Parameters,
    work: str,
    n_threads: int,
    low_rank: LowRank | None = None,
) -> Approximation:
    """Return the best matrix below C that `chain` gives, or `low_rank`, with its certificate.

    Parameters
    ----------
    known : Sketched
        Moments of the rows.
    chain : Chain
        Test matrices and products of all passes that are kept; may be empty with `low_rank`.
    evidence : Evidence
        Columns held out.
    parameters : Parameters
        Parameters of the fit.
    work : str
        Data type of the products.
    n_threads : int
        Threads for the products of tall matrices.
    low_rank : LowRank, optional
        The answer of an incremental pass.
    """
    definite = parameters.missing != "pairwise"
    precision: Precision = "float32" if work == "float32" else "float64"
    rounding = max(ROUNDING, relative_precision(work, len(moments.mean)))
    test, reported = None, None
    if low_rank is not None:
        rounding = max(rounding, evidence.rounding)
    else:
        test = chain.test
        low_rank = nystrom(chain.products, test, precision=precision, n_threads=n_threads, definite=definite)
        if parameters.recovery == "conversion":
            reported = converted(chain.products, test, n_threads=n_threads).model
        if moments.cancellation:
            rounding = max(
                rounding, min(1.0, moments.cancellation / max(float(low_rank.values.max(initial=0.0)), _TINY))
            )
    taken = low_rank if reported is None else reported
    limit = min(moments.n_samples, len(moments.mean))
    selection = selection_of_fit(moments, parameters, _known_weight(moments, parameters), limit)
    selected = selection.select(taken.values, moments.total, rounding) if len(taken.values) else None
    n_components = len(taken.values) if selected is None else selected
    certificate = certified(
        low_rank,
        replace(evidence, rounding=rounding, definite=definite),
        test=test,
        converted=reported,
        total=moments.total,
        n_components=_n_components(parameters, n_components, moments),
        precision=precision,
        n_threads=n_threads,
    )
    reached = selected is not None or _n_components(parameters, n_components, moments) >= limit
    left = _residual_moments(taken, n_components, evidence, moments.total, limit)
    return Approximation(low_rank, taken, n_components, reached or isinstance(selection, Count), certificate, left)


def _known_weight(moments: Sketched, parameters: Parameters) -> float | None:
    """Return the sum of the weights of the rows, None where all are 1; then the squares of the weights have the same sum."""
    weighted = moments.weight_squares != moments.n_samples
    return known_weight(moments, parameters, moments.weight, weighted=weighted)


def _residual_moments(taken: LowRank, k: int, evidence: Evidence, total: float, limit: int) -> tuple[float, ...]:
    """Return θ₂/θ₁² of the part of C that `k` components leave, empty without held-out columns.

    θ₁ is what of the exact trace is not in the eigenvalues. With the other pairs of the approximation, R = Σ_{j>k} λⱼ vⱼ vⱼᵀ, and g standard
    normal columns G, θ₂ ≈ ‖R‖² + (‖(I − VVᵀ) C G‖² − ‖R G‖²) / g, which has no error where the approximation has all of C. It is at least
    that of equal eigenvalues, of which there are `limit` in all.
    """
    vectors, n_columns = taken.vectors[:, :k], evidence.products.shape[1]
    left = total - float(taken.values[:k].sum())
    if n_columns < 2 or not left > 1e-14 * total:
        return ()
    outside = (evidence.products - vectors @ (vectors.T @ evidence.products)) / left
    others, values = taken.vectors[:, k:], taken.values[k:] / left
    known = values[:, None] * (others.T @ evidence.held_out)
    squares = float(values @ values) + (float(np.vdot(outside, outside)) - float(np.vdot(known, known))) / n_columns
    return (min(max(squares, 1 / max(1, limit - k)), 1.0),)


def _n_components(parameters: Parameters, n_certified: int, moments: Sketched) -> int:
    """Return how many components the model has: as many as were counted out, with directions without variance if need be."""
    count = parameters.n_components
    limit = min(int(count), moments.n_samples, len(moments.mean)) if is_count(count) else 1
    return max(n_certified, limit)


def completed(axes: FloatArray, n_wanted: int, seed: int) -> FloatArray:
    """Return orthonormal columns that begin with `axes`, ``(n_features, n_wanted)``; the rest are drawn."""
    missing = n_wanted - axes.shape[1]
    if missing <= 0:
        return axes
    drawn = np.asarray(generator(seed, "completion").standard_normal((len(axes), missing)))
    return np.hstack([axes, orthonormal(drawn, axes)])


def certificate_of(found: Certified, n_passes: int) -> ApproximateCertificate:
    """Return the certificate of an approximate solver after `n_passes` readings."""
    low, high = found.captured
    bounds, angles, k = found.bounds, found.angles, len(found.values)
    certificate = ApproximateCertificate(
        kind="approximate",
        statement=sentences.approximate(found, n_passes),
        eigen_residual=None if found.residual is None else float(found.residual),
        orthonormality=found.orthonormality,
        relative_residual=1.0 - low,
        relative_residual_interval=(0.0, 1.0),
        captured_variance=low,
        component_errors=tuple(_known(error) for error in found.errors),
        numerical_rank=found.numerical_rank,
        trusted_above=found.precision,
        eigen_solver="conversion" if found.converted else "incremental" if found.incremental else "nystrom",
        n_passes=n_passes,
        largest_relative_width=_known(found.largest_relative_width),
        nuclear_error=None,
        sigma=None if found.sigma is None else float(found.sigma),
        eigenvalue_intervals=None,
        angle_bounds=(None,) * k,
        subspace_angle_bound=None,
        unresolved_clusters=(),
        components_for={str(share): (1, None) for share in SHARES},
    )
    if bounds is None or angles is None:
        return certificate
    return replace(
        certificate,
        relative_residual_interval=(1.0 - high, 1.0 - low),
        nuclear_error=found.left_out,
        eigenvalue_intervals=tuple(zip(bounds.lower.tolist(), bounds.upper.tolist(), strict=True)),
        proven_upper_bounds=tuple(bounds.proven_upper.tolist()),
        bounded_by=bounds.bounded_by,
        residual_bounds=found.residuals,
        confidence=found.confidence,
        angle_bounds=angles.sine,
        subspace_angle_bound=angles.subspace,
        unresolved_clusters=angles.clusters,
        components_for={str(share): span for share, span in zip(SHARES, found.shares, strict=True)},
    )


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
