"""Other analyses of an accumulated covariance: maximum covariance, canonical correlations, factors.

An analysis solves a state in place of principal components (`Solver.analysis`); reading, merging, resuming and saving are those of any
fit by the covariance matrix. A new one is a class here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from streampca.errors import ParameterError, PlanError
from streampca.formatting import as_text, plural
from streampca.linalg.cross_validation import jackknife_variance
from streampca.linalg.eigen import DENSE_LIMIT, SymmetricOperator, relative_precision
from streampca.linalg.factors import (
    Pairs,
    canonical_correlations,
    maximum_covariance,
    maximum_likelihood,
    ordered,
    promax,
    varimax,
)
from streampca.models.analysis import AnalysisModel, StrengthErrors
from streampca.models.certificates import ExactCertificate
from streampca.models.noise import known_weight
from streampca.models.pca import PCAModel
from streampca.models.rounding import rounding_of_decoding, with_missing
from streampca.models.state import FittedState
from streampca.parameters import KINDS, ModelKind
from streampca.parameters.statement import Rotation
from streampca.planning.memory import eigenproblem_bytes
from streampca.planning.plan import Plan
from streampca.solvers.covariance_model import operator_of
from streampca.sources.base import Source
from streampca.typing import FloatArray, Json


@dataclass(frozen=True)
class Solved:
    """What an analysis finds in a covariance matrix of scaled and weighted features."""

    components: FloatArray
    """Weights of the scores, ``(n_components, n_features)``."""
    patterns: FloatArray
    """What scores give of a row, ``(n_components, n_features)``."""
    variances: FloatArray
    """Variances of the scores, ``(n_components,)``."""
    strengths: FloatArray
    """Singular values, correlations, or communal variances, ``(k,)``."""
    error: float | None
    """Bound of the numerical errors of `strengths`; None where there is none."""
    statement: str
    """The same in words."""
    residual: float
    """How well the equations of the result are fulfilled, relative to the first of `strengths`."""
    method: str
    """How it was computed."""
    figures: Json
    """Further numbers."""
    uniquenesses: FloatArray | None = None
    """Uniquenesses, ``(n_features,)``; None where there are none."""
    prediction: FloatArray | None = None
    """Coefficients of the regression of the second table on the scores of the first; None where there is one table."""


@dataclass(frozen=True)
class Analysis(ABC):
    """What is solved from a state of the covariance solver."""

    n_components: int
    """Number of pairs or factors."""

    kind: ClassVar[ModelKind]
    """Kind of the models that it solves for."""
    n_first: int | None = None
    """Features of the first table; None where there is one."""

    @abstractmethod
    def solved(
        self, matrix: SymmetricOperator, precision: float, fitted: FittedState, near: Solved | None = None
    ) -> Solved:
        """Return the result for the covariance of a state, whose relative error is `precision`.

        Of most of the rows, `near` is that of all: a maximum that is not next to it is no matter of sampling.
        """

    @abstractmethod
    def solve_bytes(self, n_features: int) -> int:
        """Return the memory in bytes that `solved` takes beside the state."""

    def solve_model(self, fitted: FittedState, work: str) -> PCAModel:
        """Return the model of a state whose products have the rounding of the type `work`, with sampling errors if it has groups."""
        state, accumulator, parameters = fitted.state, fitted.accumulator, fitted.parameters
        matrix = operator_of(fitted)
        n_samples, d = matrix.n_samples, matrix.n_features
        precision = relative_precision(work, d) * fitted.error_growth
        result = self.solved(matrix, precision, fitted)
        weight = n_samples if state.weight == n_samples else float(accumulator.divisor(state) + parameters.ddof)
        weighted = fitted.weighted or getattr(state, "weight_squares", n_samples) != n_samples
        total, m = float(matrix.diagonal.sum()), len(result.components)
        # 1 − ‖X − X Wᵀ P‖²_F / ‖X‖²_F for weights W and patterns P, from the covariance of X alone.
        products = matrix.multiply(np.ascontiguousarray(result.components.T))
        rebuilt = 2 * float((result.patterns * products.T).sum())
        rebuilt -= float(((result.patterns @ result.patterns.T) * (result.components @ products)).sum())
        carried = min(1.0, max(0.0, rebuilt / total)) if total > 0 else 0.0
        del products
        certificate = ExactCertificate(
            kind="exact",
            statement=result.statement,
            captured_variance=carried,
            relative_residual=1.0 - carried,
            relative_residual_interval=(max(0.0, 1.0 - carried - precision), min(1.0, 1.0 - carried + precision)),
            eigen_residual=result.residual,
            orthonormality=0.0,
            component_errors=(None,) * m,
            numerical_rank=m,
            trusted_above=precision,
            eigen_solver=result.method,
        )
        n_first, diagonal = self.n_first, matrix.diagonal
        totals = () if n_first is None else (float(diagonal[:n_first].sum()), float(diagonal[n_first:].sum()))
        model = AnalysisModel(
            components=result.components,
            explained_variance=result.variances,
            mean=matrix.mean if parameters.center else np.zeros_like(matrix.mean),
            scale=parameters.scaling.divisors(matrix.variance, matrix.mean),
            total_variance=total,
            n_samples=n_samples,
            ddof=parameters.ddof,
            center=parameters.center,
            whiten=False,
            numerical_rank=m,
            constant_features=np.flatnonzero(matrix.variance == 0).astype(np.int64),
            certificate=certificate,
            source=fitted.source,
            sample_weight=known_weight(matrix, parameters, weight, weighted=weighted),
            feature_weight=parameters.feature_weight,
            labels=fitted.labels,
            missing_scores="mean",
            analysis=self.kind.name,
            patterns=result.patterns,
            strengths=result.strengths,
            n_first=n_first,
            totals=totals,
            error=result.error,
            figures=result.figures,
            uniquenesses=result.uniquenesses,
            prediction=result.prediction,
            strength_errors=self._sampling_errors(result, fitted, precision),
        )
        return with_missing(model, parameters.missing, state, fitted.n_left_out, None, "mean")

    def _sampling_errors(self, result: Solved, fitted: FittedState, precision: float) -> StrengthErrors | None:
        """Return the jackknife errors of the strengths of `result` from the states of groups of rows; None where the state has none."""
        groups = [group for group in fitted.groups if group.weight > 0]
        if len(groups) < 2:
            return None
        accumulator: Any = fitted.accumulator
        strengths, without = result.strengths, []
        for left_out in range(len(groups)):
            others = accumulator.init(fitted.n_features)
            for number, group in enumerate(groups):
                if number != left_out:
                    others = accumulator.absorb(others, group)
            part = replace(fitted, state=others, groups=())
            found = self.solved(operator_of(part), precision, part, result).strengths[: len(strengths)]
            # Without a group the tables may have fewer directions, and correlations that are not there are 0.
            without.append(np.pad(found, (0, len(strengths) - len(found))))
        weights = np.array([group.weight for group in groups])
        errors = np.sqrt(jackknife_variance(strengths, np.stack(without), weights))
        return StrengthErrors(strengths, errors, len(groups), self.kind.bounded)


def sides_of(n_first: int | None, n_features: int) -> int:
    """Return the number of features of the first of two tables; `ParameterError` unless both have some."""
    if n_first is None or not 0 < n_first < n_features:
        raise ParameterError(
            f"first={n_first!r} of {n_features:,} features: expected two tables, fit(X, Y), or how many of the features, or which "
            "variables, are those of the first"
        )
    return n_first


@dataclass(frozen=True)
class _OfTwoTables(Analysis):
    """An analysis of two tables with the same samples."""

    def require_pairs(self, n_features: int) -> int:
        """Return the number of features of the first table; `ParameterError` if there are more pairs than features of one of the tables."""
        n_first = sides_of(self.n_first, n_features)
        most = min(n_first, n_features - n_first)
        if self.n_components > most:
            raise ParameterError(
                f"n_components={self.n_components}: expected at most {most:,}, the features of the smaller table"
            )
        return n_first

    def _joined(
        self,
        matrix: SymmetricOperator,
        pairs: Pairs,
        precision: float,
        error: float,
        statement: str,
        figures: Json,
        *,
        orthonormal: bool,
    ) -> Solved:
        """Return the result with weights, patterns and variances of both tables as rows of all features, and the regression of one on the other.

        Those of the first table come first. Patterns are the weights where these are `orthonormal`, else the regressions of the features
        on the scores of their own table.
        """
        n_first, k, d = sides_of(self.n_first, matrix.side), len(pairs.values), matrix.side
        first, second = slice(0, n_first), slice(n_first, d)
        deviations = np.sqrt(np.maximum(matrix.diagonal, 0.0))
        components, patterns, variances = np.zeros((2 * k, d)), np.zeros((2 * k, d)), np.zeros(2 * k)
        prediction = np.zeros((k, d - n_first))
        for weights, rows, at in ((pairs.first, slice(0, k), first), (pairs.second, slice(k, 2 * k), second)):
            components[rows, at] = weights
            products = matrix.multiply(np.ascontiguousarray(components[rows].T)).T
            covariance = weights @ products[:, at].T
            variances[rows] = np.maximum(np.diag(covariance), 0.0)
            # Rounding of a covariance is relative to the deviations of both features.
            sizes = np.linalg.norm(weights * deviations[at], axis=1)
            units = np.divide(1.0, sizes, out=np.zeros(k), where=sizes > 0)
            scaled = covariance * units * units[:, None]
            inverse = np.linalg.pinv(scaled, rcond=precision * k, hermitian=True) * units * units[:, None]
            patterns[rows, at] = weights if orthonormal else inverse @ products[:, at]
            if at is first:
                prediction = inverse @ products[:, second]
        return Solved(
            components=components,
            patterns=patterns,
            variances=variances,
            strengths=pairs.values,
            error=error,
            statement=statement,
            residual=pairs.residual,
            method=pairs.method,
            figures=figures,
            prediction=prediction,
        )

    def _moved(self, matrix: SymmetricOperator, fitted: FittedState) -> tuple[float, float]:
        """Return what decoding of packed values may have moved the rows of each table, ‖E‖_F / √n, relative to their root total variance."""
        n_first = sides_of(self.n_first, matrix.side)
        rows, scaling = _described(matrix, fitted), fitted.parameters.scaling
        mean, removed = fitted.removed or (matrix.mean, np.zeros_like(matrix.mean))
        moved = []
        for at in (slice(0, n_first), slice(n_first, matrix.side)):
            total = float(matrix.diagonal[at].sum())
            part = replace(
                rows,
                mean=mean[at],
                scale=None,
                feature_weight=np.square(matrix.weights[at]),
                total_variance=total,
            )
            error = rounding_of_decoding(part, part.mean, matrix.variance[at], scaling.within(at), removed[at])
            moved.append(error / np.sqrt(total) if total > 0 else 0.0)
        return moved[0], moved[1]


def _described(matrix: SymmetricOperator, fitted: FittedState) -> PCAModel:
    """Return a model without components that says how the rows of a state were decoded."""
    empty: Any = None
    return PCAModel(
        components=empty,
        explained_variance=np.zeros(0),
        mean=matrix.mean,
        scale=None,
        total_variance=0.0,
        n_samples=matrix.n_samples,
        ddof=0,
        center=fitted.parameters.center,
        whiten=False,
        numerical_rank=0,
        constant_features=np.zeros(0, dtype=np.int64),
        certificate=empty,
        source=fitted.source,
    )


@dataclass(frozen=True)
class MaximumCovariance(_OfTwoTables):
    """Pairs of orthonormal directions whose scores have the largest covariances."""

    kind = KINDS["mca"]

    def solve_bytes(self, n_features: int) -> int:
        """Return what the cross-covariance and its singular vectors take, or the vectors of the iteration."""
        if n_features <= DENSE_LIMIT:
            return 8 * 3 * n_features**2
        return 8 * n_features * (8 * self.n_components + 1024)

    @override
    def solved(
        self, matrix: SymmetricOperator, precision: float, fitted: FittedState, near: Solved | None = None
    ) -> Solved:
        """Return the leading singular triplets of the cross-covariance."""
        n_first = self.require_pairs(matrix.side)
        pairs = maximum_covariance(matrix, n_first, self.n_components, precision=precision, seed=fitted.parameters.seed)
        root = float(np.sqrt(matrix.diagonal[:n_first].sum() * matrix.diagonal[n_first:].sum()))
        one, two = self._moved(matrix, fitted)
        error = (precision + one + two + one * two) * root
        share = error / pairs.values[0] if pairs.values[0] > 0 else np.inf
        statement = f"exact singular vectors of the cross-covariance; rounding changes a singular value by at most {share:.1e} of the first"
        shares = np.square(pairs.values) / pairs.total if pairs.total > 0 else np.zeros_like(pairs.values)
        figures: Json = {"squared_covariance": pairs.total, "squared_covariance_fraction": shares.tolist()}
        return self._joined(matrix, pairs, precision, error, statement, figures, orthonormal=True)


@dataclass(frozen=True)
class CanonicalCorrelation(_OfTwoTables):
    """Pairs of weights whose scores have variance 1 and the largest correlations."""

    kind = KINDS["cca"]

    def solve_bytes(self, n_features: int) -> int:
        """Return what the matrix, its blocks, and eigenvectors of both take."""
        return 8 * 5 * n_features**2

    @override
    def solved(
        self, matrix: SymmetricOperator, precision: float, fitted: FittedState, near: Solved | None = None
    ) -> Solved:
        """Return the leading canonical variates."""
        n_first = self.require_pairs(matrix.side)
        moved = sum(self._moved(matrix, fitted))
        precision += 2 * moved + moved**2
        free = matrix.n_samples - (1 if fitted.parameters.center else 0)
        pairs, error, n_left_out = canonical_correlations(
            matrix, n_first, self.n_components, precision=precision, n_free=free
        )
        statement = f"exact canonical correlations; rounding changes each by at most {error:.1e}"
        if n_left_out:
            statement += f", without {plural(n_left_out, 'direction')} of variance below rounding"
        return self._joined(matrix, pairs, precision, error, statement, {}, orthonormal=False)


@dataclass(frozen=True)
class Factors(Analysis):
    """Maximum-likelihood factors."""

    kind = KINDS["factor_analysis"]
    rotation: Rotation | None = None
    """Criterion by which loadings of features of variance 1 are rotated."""

    def solve_bytes(self, n_features: int) -> int:
        """Return what the matrix, its scaled copy, its eigenvectors, and the work of LAPACK take."""
        return 8 * 4 * n_features**2

    @override
    def solved(
        self, matrix: SymmetricOperator, precision: float, fitted: FittedState, near: Solved | None = None
    ) -> Solved:
        """Return loadings, uniquenesses, and the weights that give the conditional means of the factors."""
        k, d = self.n_components, matrix.side
        varying = np.flatnonzero(matrix.diagonal > 0)
        if k >= len(varying):
            raise ParameterError(
                f"n_components={k}: expected fewer factors than the {len(varying):,} features that vary "
                f"(n_samples={matrix.n_samples:,}, n_features={d:,})"
            )
        dense = matrix.dense()
        dense = dense if len(varying) == d else np.ascontiguousarray(dense[np.ix_(varying, varying)])
        start = None if near is None or near.uniquenesses is None else near.uniquenesses[varying]
        found = maximum_likelihood(dense, k, seed=fitted.parameters.seed, start=start)
        del dense
        variances = matrix.diagonal[varying]
        figures: Json = {
            "log_likelihood": found.log_likelihood,
            "n_iterations": found.n_steps,
            "n_starts": found.n_starts,
            "n_agreeing_starts": found.n_agreeing,
            "heywood_features": varying[found.uniquenesses <= 2e-6 * variances].tolist(),
        }
        turn = np.eye(k)
        if self.rotation is not None:
            standardised = found.loadings / np.sqrt(variances)
            turn = varimax(standardised)
            turn = promax(standardised, turn) if self.rotation == "promax" else turn
            turn = ordered(turn, found.loadings)
        back = np.linalg.inv(turn)
        correlation = back @ back.T if self.rotation == "promax" else np.eye(k)
        figures |= {"rotation": self.rotation, "factor_correlation": correlation.tolist()}
        loadings, unique, weights = np.zeros((k, d)), np.zeros(d), np.zeros((k, d))
        loadings[:, varying], unique[varying] = turn.T @ found.loadings, found.uniquenesses
        scaled = found.loadings / found.uniquenesses
        weights[:, varying] = back @ np.linalg.solve(np.eye(k) + scaled @ found.loadings.T, scaled)
        whole = matrix.multiply(np.ascontiguousarray(weights.T))
        statement = (
            f"maximum of the likelihood to a derivative of {found.gradient:.1e}, the highest from {found.n_starts} starts, "
            f"{found.n_agreeing} of which led to it; a higher one cannot be excluded; the covariance behind it is known to {precision:.1e} of its "
            "largest eigenvalue"
        )
        # Each factor's part of the communal variance tr(Wᵀ Φ W): the diagonal of M⁻¹ (L Lᵀ) M, for uncorrelated factors Σⱼ wⱼ².
        communal = np.einsum("ij,jl,li->i", back, found.loadings @ found.loadings.T, turn)
        return Solved(
            weights,
            loadings,
            np.einsum("kj,jk->k", weights, whole),
            communal,
            None,
            statement,
            found.gradient,
            "l-bfgs-b",
            figures,
            unique,
        )


def plan_of_analysis(plan: Plan, analysis: Analysis, source: Source) -> Plan:
    """Return the `plan` of the covariance solver with what an analysis takes.

    Raises
    ------
    PlanError
        If it does not fit in memory.
    """
    d = source.shape[1]
    if plan.tile_groups:
        raise PlanError(
            f"{analysis.kind.name} needs the {d:,} x {d:,} covariance matrix in memory: {plan.notes[-1]}; use fewer features, more memory, or for two "
            "tables n_pca, which reduces both to their principal components first"
        )
    more = analysis.solve_bytes(d) - eigenproblem_bytes(d, plan.n_components or min(source.shape))
    budget = plan.budget.plus(max(0, more), "solve", ("solving",))
    if not budget.fits:
        raise budget.refusal(
            f"{analysis.kind.name} of {d:,} features takes {as_text(budget.bytes_for('solve'))} to solve; use fewer features, or "
        )
    return replace(plan, budget=budget, reason=f"{plan.reason}; {analysis.kind.name} is solved from it")
