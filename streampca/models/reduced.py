"""Analyses of two tables by the principal components of each: from the scores back to the features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.models.analysis import AnalysisModel
from streampca.models.certificates import ApproximateCertificate
from streampca.models.pca import PCAModel
from streampca.models.removal import residuals_of
from streampca.models.scoring import scores_of
from streampca.sources import Source
from streampca.sources.steps import Step, SteppedSource
from streampca.typing import Array, DType, FloatArray


class Scores(Step):
    """The scores of rows, as rows."""

    def __init__(self, model: PCAModel | None, n_components: int):
        self.model, self.n_made, self._k = model, n_components, n_components

    def __reduce__(self) -> tuple[object, ...]:
        return Scores, (self.model, self._k)

    @property
    def digest(self) -> bytes:
        """Return the variances of the components, which tell fits apart."""
        if self.model is None:
            return b""
        return np.asarray(self.model.explained_variance).tobytes() + np.asarray(self.model.components)[:, :64].tobytes()

    def dtype(self, dtype: DType) -> DType:
        """Return the data type of scores."""
        return PCAModel.score_dtype(dtype)

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory of the components in the type of products, of centred rows, and of the scores."""
        return 16 * self._k * n_features + 8 * n_rows * (n_features + 2 * self._k)

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the scores to `out`."""
        assert self.model is not None  # noqa: S101 for the type checker: plans do not read
        out[...] = scores_of(self.model, values, start)


def scores_of_rows(source: Source, model: PCAModel | None, n_components: int = 0) -> SteppedSource:
    """Return the table of the scores of the rows of `source`; without `model` one for plans, of `n_components`."""
    if model is None:
        return SteppedSource(source, [Scores(None, n_components)])
    return SteppedSource(residuals_of(source, model), [Scores(model, model.n_components)])


def joined_model(joint: AnalysisModel, one: PCAModel, two: PCAModel, source: Source) -> AnalysisModel:
    """Return the model of the features of two tables from that of the scores of their components.

    A singular value σ̂ of the scores is at most σ of the cross-covariance. For the largest variances λ of the scores and bounds r of
    the largest variances outside of the components (the total that is left, or the last eigenvalue, of sketches with that of what they leave out), what the
    scores leave of C₁₂ has the norm e ≤ max(√(λ₁ r₂), √(r₁ λ₂)) across and d ≤ √(r₁ r₂) outside, because |C₁₂| ≤ |C₁₁|^½ |C₂₂|^½, so that
    σ ≤ σ̂ + 2 e² / (η + √(η² + 4 e²)) for η = max(0, σ̂ − d) (Li & Li 2005, Linear Algebra Appl. 395:183, theorem 2), and where σ̂ < d
    at most d + e.
    """
    k, q = joint.n_components // 2, joint.n_first or 0
    components, patterns = (
        _of_features(np.asarray(weights), (k, q), one, two) for weights in (joint.components, joint.patterns)
    )
    totals = (one.total_variance, two.total_variance)
    left = [max(0.0, side.total_variance - total) for side, total in zip((one, two), joint.totals, strict=True)]
    left = [min(rest, _next_eigenvalue(side)) for rest, side in zip(left, (one, two), strict=True)]
    largest = [
        float(side.explained_variance[0]) if side.certificate.kind == "exact" else total
        for total, side in zip(joint.totals, (one, two), strict=True)
    ]
    across, outside = np.sqrt(max(largest[0] * left[1], left[0] * largest[1])), np.sqrt(left[0] * left[1])
    gap = np.maximum(joint.strengths - outside, 0.0)
    room = gap + np.sqrt(np.square(gap) + 4 * across**2)
    turned = np.divide(2 * across**2, room, out=np.zeros_like(room), where=room > 0)
    beyond = np.where(joint.strengths >= outside, turned, outside + across - joint.strengths)
    shares = [1 - kept / total if total > 0 else 0.0 for kept, total in zip(joint.totals, totals, strict=True)]
    reduced = f"by {one.n_components} and {two.n_components} principal components, which leave {shares[0]:.1%} and {shares[1]:.1%} of the variance"
    error, figures = joint.error, dict(joint.figures)
    if not joint.kind.bounded:
        upper = joint.strengths + beyond + (joint.error or 0.0)
        error, figures["upper_singular_values"] = float((upper - joint.strengths).max()), upper.tolist()
        reduced += f"; the first singular value of all components is at most {upper[0]:.4g}, {upper[0] / joint.strengths[0] - 1:.1%} above"
        # The share of all squared covariance, of which that of the scores is a part, is not known.
    else:
        reduced += "; correlations are those of these components"
    carried = (
        float((joint.explained_variance * np.square(patterns).sum(axis=1)).sum()) / sum(totals) if sum(totals) else 0.0
    )
    carried = min(1.0, carried)
    proven = all(side.certificate.kind == "exact" for side in (one, two))
    rounding = max(model.certificate.trusted_above for model in (joint, one, two))
    certificate = joint.certificate.saying(
        reduced if proven else f"{reduced} (statistical, as the certificates of these)",
        kind="exact" if proven else "statistical",
        captured_variance=carried,
        relative_residual=1.0 - carried,
        relative_residual_interval=(max(0.0, 1.0 - carried - rounding), min(1.0, 1.0 - carried + rounding)),
    )
    removal = one.removal
    if removal is not None and two.removal is not None:
        coefficients = np.hstack([removal.coefficients, two.removal.coefficients])
        removal = replace(removal, coefficients=coefficients, mean=np.concatenate([removal.mean, two.removal.mean]))
    d = len(one.mean)
    labels = None if source.labels is None else source.labels.without_sample_coordinates()
    return replace(
        joint,
        components=components,
        patterns=patterns,
        mean=np.concatenate([one.mean, two.mean]),
        scale=_side_by_side(one, two, "scale"),
        feature_weight=_side_by_side(one, two, "feature_weight"),
        fill=_side_by_side(one, two, "fill"),
        missing=one.missing,
        total_variance=float(sum(totals)),
        totals=totals,
        constant_features=np.concatenate([one.constant_features, two.constant_features + d]),
        certificate=certificate,
        source=source.describe() | {"solver": joint.source.get("solver")},
        labels=labels,
        removal=removal,
        n_first=d,
        error=error,
        figures=figures,
        prediction=None if joint.prediction is None else joint.prediction @ np.asarray(two.components),
    )


def _next_eigenvalue(side: PCAModel) -> float:
    """Return a bound of the largest variance outside of the components: statistical for approximate ones, of which sketches have one."""
    last, certificate = float(side.explained_variance[-1]), side.certificate
    if isinstance(certificate, ApproximateCertificate):
        return np.inf if certificate.sigma is None else last + certificate.sigma
    return last


def _of_features(weights: FloatArray, shape: tuple[int, int], one: PCAModel, two: PCAModel) -> FloatArray:
    """Return weights of scores, ``(2 k, q1 + q2)``, as those of features."""
    k, q = shape
    d = len(one.mean)
    whole = np.zeros((2 * k, d + len(two.mean)))
    whole[:k, :d] = weights[:k, :q] @ np.asarray(one.components)
    whole[k:, d:] = weights[k:, q:] @ np.asarray(two.components)
    return whole


def _side_by_side(one: PCAModel, two: PCAModel, name: str) -> FloatArray | None:
    """Return a vector of the features of both tables, None where neither has one."""
    values = [getattr(one, name), getattr(two, name)]
    if values[0] is None or values[1] is None:
        return None
    return np.concatenate(values)
