"""Models of an accumulated covariance other than principal components: linear scores, and patterns that reconstruct rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from typing_extensions import override

from streampca.errors import ModelError
from streampca.models.certificates import ApproximateCertificate
from streampca.models.pca import PCAModel
from streampca.models.plain import hints_of, plain, values_of
from streampca.models.rows import residuals_of, scores_of
from streampca.models.sampling_errors import intervals_of
from streampca.models.stored import slabs_of
from streampca.parameters import KINDS, ModelKind
from streampca.sources import Source
from streampca.sources.steps import Step, SteppedSource
from streampca.typing import Array, DType, FloatArray, Json


@dataclass(frozen=True, eq=False)
class StrengthErrors:
    """Sampling errors of singular values or canonical correlations: a jackknife over groups of consecutive rows."""

    estimates: FloatArray
    """Values that the errors refer to, ``(k,)``."""
    errors: FloatArray
    """Their standard errors, ``(k,)``."""
    n_blocks: int
    """Number of groups that are left out one at a time."""
    bounded: bool
    """Whether the values are correlations, at most 1."""

    def interval(self, level: float = 0.95) -> FloatArray:
        """Return intervals, ``(k, 2)``, with t of Student's distribution with n_blocks − 1 degrees of freedom.

        They are σ exp(± t s / σ) for singular values, and tanh(artanh ρ ± t s / (1 − ρ²)), by Fisher's transformation, for
        correlations. `level` is their nominal coverage; `ParameterError` unless it is between 0 and 1.
        """
        return intervals_of(self.estimates, self.errors, self.n_blocks, level, bounded=self.bounded)


@dataclass(frozen=True, kw_only=True)
class AnalysisModel(PCAModel):
    """Scores are products of centred, scaled and weighted rows with `components`, rows of weights that need not be orthonormal.

    For two tables side by side, the first half of the components has weights only for features of the first table, and the
    second half only for features of the second. Variances of scores are not sorted.
    """

    has_spectrum: ClassVar[bool] = False

    analysis: str
    """Name of the analysis."""
    patterns: FloatArray
    """Patterns that reconstruct centred, scaled and weighted rows from scores, ``(n_components, n_features)``."""
    strengths: FloatArray
    """Singular values of the cross-covariance, canonical correlations, or communal variances of factors; ``(k,)``."""
    n_first: int | None = None
    """Number of features of the first table; None for one table."""
    totals: tuple[float, ...] = ()
    """Total variances of the first and of the second table."""
    error: float | None = None
    """Bound on the numerical errors of `strengths`; None without a bound."""
    figures: Json = field(default_factory=dict)
    """More figures of the result, for manifests."""
    uniquenesses: FloatArray | None = None
    """Uniquenesses of factor analysis, of scaled and weighted features, ``(n_features,)``; None elsewhere."""
    prediction: FloatArray | None = None
    """Coefficients of the regression of the second table on the scores of the first, of scaled and weighted features,
    ``(k, n_features - n_first)``; None for one table, and in models of earlier versions."""
    strength_errors: StrengthErrors | None = None
    """Sampling errors of `strengths`; None if not computed."""

    @property
    @override
    def kind(self) -> ModelKind:
        return KINDS[self.analysis]

    @property
    @override
    def spectrum(self) -> FloatArray:
        return self.strengths

    @property
    @override
    def by_feature(self) -> dict[str, FloatArray]:
        """Values by feature; components of factors are their loadings, and the weights of their scores have a separate name."""
        if self.uniquenesses is None:
            return super().by_feature | {"patterns": self.patterns}
        weights = np.asarray(self.components)
        own = {"components": self.patterns, "score_weights": weights, "uniquenesses": self.uniquenesses}
        return super().by_feature | own

    @property
    def by_component(self) -> dict[str, FloatArray]:
        """Return the values of the components by name."""
        return {"explained_variance": self.explained_variance, self.kind.strengths: self.strengths}

    @property
    def shares(self) -> FloatArray:
        """Return the share of squared covariance, or of variance, of each pair or factor, ``(k,)``; for correlations, their squares."""
        if "squared_covariance_fraction" in self.figures:
            return np.array(self.figures["squared_covariance_fraction"], dtype=np.float64)
        return self.explained_variance_ratio if self.n_first is None else np.square(self.strengths)

    @property
    def explained_variance_ratio(self) -> FloatArray:
        """Return the share of the total variance along each component, ``(n_components,)``; for factors, their communal variance over the total."""
        if self.uniquenesses is None or self.total_variance <= 0:
            return super().explained_variance_ratio
        return np.asarray(self.strengths / self.total_variance)

    @property
    @override
    def correlations(self) -> dict[str, FloatArray]:
        return {} if self.rotated_by is None else {"factor_correlation": self.factor_correlation}

    @property
    @override
    def rotated_by(self) -> str | None:
        return self.figures.get("rotation") or None

    @property
    def factor_correlation(self) -> FloatArray:
        """Return the correlations Φ of factors, ``(k, k)``: the identity unless an oblique rotation was applied."""
        return np.array(self.figures.get("factor_correlation", np.eye(self.n_components)), dtype=np.float64)

    @property
    def communalities(self) -> FloatArray:
        """Return the variance of each feature that the factors explain, diag(Wᵀ Φ W), ``(n_features,)``."""
        return np.asarray(np.einsum("ij,ik,kj->j", self.patterns, self.factor_correlation, self.patterns))

    @property
    def noise_variance(self) -> float:
        """Return the mean of the uniquenesses; 0 without them."""
        return 0.0 if self.uniquenesses is None else float(self.uniquenesses.mean())

    @property
    def noise_of_features(self) -> FloatArray:
        """Return the uniquenesses, ``(n_features,)``; 0 without them."""
        return np.zeros(()) if self.uniquenesses is None else self.uniquenesses

    @property
    def score_attributes(self) -> dict[str, Any]:
        """Return the attributes of stored scores."""
        return {
            "explained_variance": self.explained_variance.tolist(),
            "analysis": self.analysis,
            "strengths": self.strengths.tolist(),
        }

    @cached_property
    def sides(self) -> tuple[Self, ...]:
        """Return the separate models of the first and second table; for one table, the model itself."""
        if self.n_first is None:
            return (self,)
        k = self.n_components // 2
        return self._part(slice(0, k), slice(0, self.n_first)), self._part(slice(k, 2 * k), slice(self.n_first, None))

    def _part(self, rows: slice, columns: slice) -> Self:
        """Return the model of some components of the features of one table."""
        first, stop, _ = columns.indices(self.n_features)
        names = self.source.get("feature_names")
        labels = self.labels
        if labels is not None:
            mask = np.zeros(sum(variable.size for variable in labels.variables), dtype=bool)
            mask[labels.indices()[columns]] = True
            labels = labels.with_mask(mask).with_used_variables()
        removal = self.removal
        if removal is not None:
            removal = replace(removal, coefficients=removal.coefficients[:, columns], mean=removal.mean[columns])
        tables, part = self.source.get("tables"), {"feature_names": names[columns]} if names else {}
        if tables is not None:
            own = tables[0 if first == 0 else 1]
            of_one_fit = self.source.get("fingerprint") is not None
            part = own | part | {"fingerprint": own["fingerprint"] if of_one_fit else None}
            if labels is not None:
                labels = labels.with_names(own["dimensions"])
                columns_named = labels.column_names() if own["named"] and not names else None
                part |= {} if columns_named is None else {"feature_names": list(columns_named)}
        constant = self.constant_features
        inside = (constant >= first) & (constant < stop)
        errors = self.certificate.component_errors[rows]
        return replace(
            self,
            certificate=replace(self.certificate, component_errors=errors),
            components=np.asarray(self.components)[rows, columns],
            patterns=self.patterns[rows, columns],
            explained_variance=self.explained_variance[rows],
            numerical_rank=len(self.explained_variance[rows]),
            mean=self.mean[columns],
            scale=None if self.scale is None else self.scale[columns],
            feature_weight=None if self.feature_weight is None else self.feature_weight[columns],
            fill=None if self.fill is None else self.fill[columns],
            constant_features=constant[inside] - first,
            total_variance=self.totals[0 if first == 0 else 1],
            source=self.source | part,
            labels=labels,
            removal=removal,
            n_first=None,
            prediction=None,
        )

    def decoder(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the patterns; see `PCAModel.decoder`."""
        yield from slabs_of(self.patterns)

    @override
    def score_title(self, component: int) -> str:
        # Scores are no shares of the variance.
        return f"{self.kind.noun} {component + 1}"

    @override
    def score_names(self, prefix: str) -> list[str]:
        """Return the names of the scores; for two tables, they begin with x for the first and y for the second."""
        if self.n_first is None:
            return super().score_names(prefix)
        return [f"{side}_{prefix}{i}" for side in "xy" for i in range(self.n_components // 2)]

    def decode(self, scores: Array) -> Array:
        """Return the rows reconstructed from `scores` by the patterns, in the original space, ``(n_rows, n_features)``."""
        dtype = self.score_dtype(scores.dtype)
        rows = self._reconstructed(slice(0, self.n_features), self.patterns, np.asarray(scores, dtype=np.float64))
        return rows.astype(dtype, copy=False)

    def loadings(self) -> FloatArray:
        """Return the change of scaled and weighted features per standard deviation of each score, ``(n_components, n_features)``.

        It is the patterns times the standard deviations of the scores; for factors, with variance 1, it is the patterns.
        """
        if self.uniquenesses is not None:
            return self.patterns.copy()
        return np.asarray(self.patterns * np.sqrt(np.maximum(self.explained_variance, 0.0))[:, None])

    def summary(self) -> Json:
        """Return the result as plain data."""
        named: Json = {
            "n_components": len(self.strengths),
            "analysis": self.analysis,
            "total_variance": self.total_variance,
            "explained_variance": self.explained_variance.tolist(),
            "explained_variance_ratio": self.explained_variance_ratio.tolist(),
            "strengths": self.strengths.tolist(),
            "strength_error": self.error,
            "constant_features": self.constant_features.tolist(),
        } | self.figures
        if self.strength_errors is not None:
            named["strength_errors"] = self.strength_errors.errors.tolist()
        return named

    @property
    def concerns(self) -> list[str]:
        """Return sentences about figures that differ from what their names say: none."""
        return []

    def settings(self) -> Json:
        """Return what is stored of the analysis beside its arrays, as plain data."""
        named: Json = {name: plain(getattr(self, name)) for name in _SETTINGS}
        errors = self.strength_errors
        spread, n_blocks = (None, None) if errors is None else (plain(errors.errors), errors.n_blocks)
        return named | {"errors": spread, "n_blocks": n_blocks}


OWN_ARRAYS = ("patterns", "uniquenesses", "prediction")
"""Fields that are stored as arrays."""
_SETTINGS = tuple(
    each.name
    for each in fields(AnalysisModel)
    if each.name not in {*OWN_ARRAYS, "strength_errors", *(other.name for other in fields(PCAModel))}
)
"""Fields that are stored as plain data: all others, but for errors, which `AnalysisModel.settings` takes apart."""


def settings_from(stored: Json, n_components: int, n_features: int) -> Json:
    """Return the fields of a model that `AnalysisModel.settings` wrote; `ModelError` if they are damaged."""
    hints = {name: hints_of(AnalysisModel)[name] for name in _SETTINGS}
    named = values_of(hints | {"errors": FloatArray | None, "n_blocks": int | None}, stored, "its analysis is")
    kind, strengths, n_first = KINDS.get(named["analysis"]), named["strengths"], named["n_first"]
    spread, n_blocks, two = named.pop("errors"), named.pop("n_blocks"), n_first is not None
    if kind is None:
        raise ModelError(f"its analysis is damaged: analysis {named['analysis']!r} is not known")
    good = len(strengths) == n_components // (2 if two else 1) and bool(np.isfinite(strengths).all())
    good = good and (not two or (0 < n_first < n_features and n_components % 2 == 0))
    good = good and len(named["totals"]) == (2 if two else 0)
    errors = None
    if spread is not None:
        good = good and spread.shape == strengths.shape and n_blocks is not None and n_blocks > 1
        errors = StrengthErrors(strengths, spread, n_blocks, kind.bounded)
    if not good:
        raise ModelError("its analysis is damaged: its numbers do not agree")
    return named | {"strength_errors": errors}


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
