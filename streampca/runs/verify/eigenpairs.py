"""Models against the moments of the rows: how far C v is from λ v, what follows from C, and the equations of two tables and factors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.sketch import Sketch
from streampca.linalg.eigen import negative_mass
from streampca.linalg.random_matrix import edge_of_variances
from streampca.linalg.scaling import UNSCALED, Scaling
from streampca.models.analysis import AnalysisModel
from streampca.models.pca import PCAModel
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.runs.verify.checks import Check, compared
from streampca.solvers.choosing import SOLVERS
from streampca.solvers.covariance import accumulator_of
from streampca.solvers.covariance_model import operator_of
from streampca.sources import Source
from streampca.typing import FloatArray

MOST_FEATURES = 512
"""Features up to which the whole matrix is accumulated for all eigenvalues, or for pairwise covariances."""
_SLACK = 4.0
"""Factor between the rounding in a certificate and the allowed difference: both sides are rounded."""
_ALLOWED_LIKELIHOOD = 1e-4
"""Derivative of the likelihood up to which a fit takes its maximum as reached."""
_PANEL_BYTES = 8 * 2**20
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Measured:
    """Moments of the rows, and the products of their covariance matrix C, scaled and weighted as the model says."""

    n_samples: int
    """Rows of positive weight that were not left out."""
    mean: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    variance: FloatArray
    """Variance of each feature before scaling, ``(n_features,)``."""
    diagonal: FloatArray
    """Diagonal of C, ``(n_features,)``."""
    total: float
    """Trace of C, with the moduli of negative eigenvalues of pairwise covariances."""
    products: FloatArray | None
    """C Vᵀ for the first m components V, ``(n_features, m)``; None for pairwise covariances of many features, which are not accumulated."""
    n_missing: int = 0
    """Values that are missing."""
    matrix: FloatArray | None = None
    """C itself, ``(n_features, n_features)``, where all eigenvalues are to be measured."""

    @classmethod
    def of(cls, accumulator: AnyAccumulator, state: Any, model: PCAModel, parameters: Parameters) -> Measured:
        """Return the moments of the rows behind a state of `accumulator_for`."""
        if not isinstance(accumulator, Sketch):
            return cls.of_covariance(FittedState("covariance", accumulator, state, parameters, "float64", {}), model)
        # Missing values count as the origin, which is what they are filled with.
        filled = replace(state, observed=np.zeros(0))
        known = replace(accumulator, center=model.center, scale=False, ddof=model.ddof).finalize(filled)
        factors = _factors(model)
        products, diagonal, matrix = known.products * factors[:, None], known.diagonal * factors**2, None
        if _takes_whole(model):
            matrix, products = products, products @ np.asarray(model.components).T
        moments = known.n_samples, state.mean, known.variance, diagonal, float(diagonal.sum())
        return cls(*moments, None if is_pairwise(model) else products, state.n_missing, matrix)

    @classmethod
    def of_covariance(cls, fitted: FittedState, model: PCAModel) -> Measured:
        """Return the moments of rows whose covariance matrix was accumulated."""
        matrix, n_missing = operator_of(fitted), getattr(fitted.state, "n_missing", 0)
        diagonal = matrix.diagonal
        total = float(diagonal.sum()) + (negative_mass(matrix) if is_pairwise(model) else 0.0)
        products = matrix.multiply(np.ascontiguousarray(np.asarray(model.components).T))
        return cls(matrix.n_samples, matrix.mean, matrix.variance, diagonal, total, products, n_missing)


def accumulator_for(model: PCAModel, parameters: Parameters, source: Source, n_columns: int) -> AnyAccumulator:
    """Return what accumulates the moments of rows: in float64, with products of C with the first `n_columns` components.

    Where C is small it is accumulated as a whole if all eigenvalues are known, and as by the fit if covariances are pairwise.
    """
    if is_pairwise(model) and source.shape[1] <= MOST_FEATURES:
        return accumulator_of(parameters, source)
    factors, components = _factors(model)[:, None], np.asarray(model.components)[:n_columns].T
    test = np.diagflat(factors) if _takes_whole(model) else np.ascontiguousarray(factors * components)
    missing = "pairwise" if model.missing == "mean" else model.missing
    origin = model.centre if model.fill is None else model.fill
    return Sketch(test, center=model.center, ddof=model.ddof, missing=missing, origin=origin)


def _factors(model: PCAModel) -> FloatArray:
    """Return the factors of centred features, ``(n_features,)``."""
    return np.ones(len(model.mean)) if model.weights is None else model.weights


def _takes_whole(model: PCAModel) -> bool:
    return model.eigenvalues is not None and len(model.mean) <= MOST_FEATURES


def panel_rows(n_features: int) -> int:
    """Return how many rows are measured at once: about 8 MiB of them."""
    return max(1, _PANEL_BYTES // (8 * n_features))


def _rounding(model: PCAModel, n_samples: int) -> float:
    """Return the relative rounding of the eigenvalues of the fit and of sums of squares over all rows: (p + n / p + d) eps for the latter.

    p rows are summed at once, the sums of n / p panels are added, and a row has d features (Higham 2002, section 4.2).
    """
    d = len(model.mean)
    rows = min(panel_rows(d), max(1, n_samples))
    return model.rounding + (rows + n_samples / rows + d) * _EPS


def checks_of_eigenpairs(model: PCAModel, measured: Measured, scaling: Scaling) -> list[Check]:
    """Compare a model with the moments of its rows; allowed differences follow from the rounding of the fit and of the sums.

    Features were scaled as `scaling` says. Approximate eigenvalues may be too small, and the residual lies in its certified interval.
    """
    certificate, recorded, axes = model.certificate, model.explained_variance, np.asarray(model.components)
    approximate, pairwise = certificate.kind == "approximate", is_pairwise(model)
    rounding, solved = _rounding(model, measured.n_samples), certificate.eigen_residual or 0.0
    allowed = _SLACK * rounding + solved * (not approximate)
    turned = float(np.abs(axes @ axes.T - np.eye(len(axes))).max())
    checks = [
        compared("samples", model.n_samples, measured.n_samples, 0.0, "rows that count"),
        *checks_of_features(model, measured, UNSCALED if pairwise else scaling, rounding),
        compared("orthonormality", certificate.orthonormality, turned, 1e-8, "largest deviation", apart=turned),
    ]
    if measured.products is None:
        return checks
    count, first, total = measured.products.shape[1], float(recorded[0]), measured.total
    values = np.maximum(np.einsum("ij,ji->i", axes[:count], measured.products), 0.0)
    note = "relative to itself, with the moduli of negative eigenvalues" if pairwise else "relative to itself"
    checks.append(compared("total variance", model.total_variance, total, allowed, note, scale=model.total_variance))
    if certificate.converted:
        checks.append(
            Check("variances of components", note="eigenvalues of the conversion are not variances of scores")
        )
    else:
        apart = np.maximum(recorded[:count] - values, 0.0) if approximate else np.abs(recorded[:count] - values)
        note = "of component {}, the worst, relative to the first eigenvalue"
        note += "; an approximation may carry more than it says" if approximate else ""
        note += f"; the memory takes the first {count} of {len(axes)} alone" if count < len(axes) else ""
        checks.append(
            compared("variances of components", recorded[:count], values, allowed, note, scale=first, apart=apart)
        )
    if not pairwise:
        carried = float(values.sum()) + float(recorded[count:].sum())
        checks.append(_check_of_residual(model, carried, total, allowed, approximate=approximate))
    if approximate:
        return checks
    residuals = np.linalg.norm(measured.products - axes[:count].T * recorded[:count], axis=0)
    note, share = "‖C v − λ v‖ of component {}, the worst, relative to the first eigenvalue", np.ones(count)
    solver = SOLVERS.get(str(model.source.get("solver")))
    if solver is not None and solver.multiplies_back:  # components are Xᵀu / σ: an error of X Xᵀ is divided by σ
        share = np.sqrt(np.maximum(recorded[:count], allowed * first) / (first or 1.0))
        note += " and by σ to the first"
    relative = residuals / (first or 1.0)
    checks.append(compared("eigenvectors", np.full(count, solved), relative, allowed, note, apart=relative * share))
    return checks if pairwise else [*checks, *_checks_of_spectrum(model, measured, allowed)]


def is_pairwise(model: PCAModel) -> bool:
    """Return whether each covariance has a divisor of its own, because different values are missing."""
    return model.missing == "pairwise" and bool(model.certificate.missing_values)


def checks_of_features(model: PCAModel, measured: Measured, scaling: Scaling, rounding: float) -> list[Check]:
    """Compare means, scales and the number of missing values."""
    missing = model.certificate.missing_values or 0
    note = "values that were filled in"
    holes = [] if model.fill is None else [compared("missing values", missing, measured.n_missing, 0.0, note)]
    if not model.center:
        return [Check("mean", note="the data were not centred"), *holes]
    recorded, deviations = model.centre, np.sqrt(np.maximum(measured.variance, 0.0))
    apart = np.maximum(np.abs(measured.mean - recorded) - 8 * _EPS * np.abs(recorded), 0.0)
    note = "of feature {}, the worst, in standard deviations"
    allowed = max(1e-10, 10 * rounding)
    checks = [compared("mean", recorded, measured.mean, allowed, note, scale=deviations, apart=apart, first=0)]
    varying = np.where(deviations > 1e-12 * np.abs(model.mean), deviations, 0.0) ** 2
    divided = scaling.divisors(varying, measured.mean)
    if model.scale is not None and divided is not None:
        note = "of feature {}, the worst, relative to itself"
        checks.append(compared("scale", model.scale, divided, _SLACK * rounding, note, scale=model.scale, first=0))
    return [*checks, *holes]


def _check_of_residual(model: PCAModel, carried: float, total: float, allowed: float, *, approximate: bool) -> Check:
    """Compare ‖X − XVᵀV‖² / ‖X‖² with its recorded value, or with the certified interval of an approximation."""
    recorded = model.certificate.relative_residual
    measured = 1 - carried / total if total > 0 else recorded  # rows that are all the same have none
    if not approximate:
        return compared("relative residual", recorded, measured, allowed, "of the sum of squares")
    low, high = model.certificate.relative_residual_interval
    note, outside = f"outside of its interval, {low:.3g} to {high:.3g}", max(low - measured, measured - high, 0.0)
    return compared("relative residual", recorded, measured, allowed, note, apart=outside)


def _checks_of_spectrum(model: PCAModel, measured: Measured, allowed: float) -> list[Check]:
    """Compare all eigenvalues, from which `component_rules` follow, and the edge of noise, where the model has them."""
    checks, recorded, total = [], model.eigenvalues, measured.total
    if model.noise_edge is not None:
        edge = edge_of_variances(measured.diagonal, model.n_samples - model.n_means)
        note = "largest eigenvalue of independent features with the same variances, relative to itself"
        checks.append(compared("edge of noise", model.noise_edge, edge, 4 * allowed, note, scale=model.noise_edge))
    if recorded is None:
        return checks
    first, name = float(model.explained_variance[0]), "all eigenvalues"
    if measured.matrix is not None:
        values = np.maximum(np.linalg.eigvalsh(measured.matrix)[::-1][: len(recorded)], 0.0)
        note = "number {}, the worst, relative to the first eigenvalue"
        return [*checks, compared(name, recorded, values, allowed, note, scale=first)]
    whole = float(recorded.sum())
    apart = max(float(np.abs(recorded[: model.n_components] - model.explained_variance).max()), abs(whole - total))
    note = "their sum, and that the leading ones are the variances of the components"
    return [*checks, compared(name, whole, total, allowed, note, scale=max(first, total), apart=apart)]


def checks_of_analysis(model: AnalysisModel, measured: Measured, scaling: Scaling) -> list[Check]:
    """Compare a model with the products C Wᵀ of the covariance of its rows and its weights W.

    Of two tables with weights U and V: the variances U C₁₁ Uᵀ and V C₂₂ Vᵀ of the scores, their covariances U C₁₂ Vᵀ, which are the singular values
    or correlations, and nothing between different pairs; of factors that Wᵀ Φ W + ψ has the diagonal of C.
    """
    allowed = _SLACK * _rounding(model, measured.n_samples)
    checks = [
        compared("samples", model.n_samples, measured.n_samples, 0.0, "rows that count"),
        *checks_of_features(model, measured, scaling, model.rounding),
        compared(
            "total variance",
            model.total_variance,
            measured.total,
            allowed,
            "relative to itself",
            scale=model.total_variance,
        ),
    ]
    if measured.products is None or measured.products.shape[1] < model.n_components:
        return [*checks, Check("components", note="the memory does not take the products with all of them")]
    weights = np.asarray(model.components)
    covariance = weights @ measured.products
    variances = np.diag(covariance)
    note = "of component {}, the worst, relative to the total variance times the squares of its weights"
    scale = model.total_variance * np.square(weights).sum(axis=1)
    checks.append(compared("variances of scores", model.explained_variance, variances, allowed, note, scale=scale))
    if model.n_first is None:
        communal = model.communalities
        unique = 0.0 if model.uniquenesses is None else model.uniquenesses
        apart = np.where(measured.diagonal > 0, np.abs(communal + unique - measured.diagonal), 0.0)
        note = "Wᵀ Φ W + ψ against the variance of feature {}, the worst, relative to itself"
        scale = np.where(measured.diagonal > 0, measured.diagonal, 1.0)
        allowed_share = _ALLOWED_LIKELIHOOD + allowed * model.total_variance / float(scale.min())
        checks.append(
            compared(
                "diagonal", measured.diagonal, communal + unique, allowed_share, note, scale=scale, apart=apart, first=0
            )
        )
        return checks
    k = len(model.strengths)
    cross = covariance[:k, k:]
    error = 8 * (model.error or 0.0) + 4 * allowed * float(np.abs(model.strengths).max(initial=0.0))
    note = "of pair {}, the worst"
    checks.append(compared("covariances of scores", model.strengths, np.diag(cross), error, note))
    between = cross - np.diag(np.diag(cross))
    worst = np.abs(between).max(axis=1) if k > 1 else np.zeros(k)
    note = "between the scores of pair {}, the worst, and of others"
    checks.append(compared("pairs apart", np.zeros(k), worst, error, note))
    return checks
