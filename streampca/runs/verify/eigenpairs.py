"""Checks of a run: its model against the moments of the rows, and its stored arrays against values from the model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr
from numpy.typing import ArrayLike
from typing_extensions import override

from streampca.accumulators.base import Accumulator, AnyAccumulator
from streampca.accumulators.sketch import Sketch
from streampca.block import Block, as_block
from streampca.errors import DataError
from streampca.linalg.eigen import negative_mass
from streampca.linalg.random_matrix import edge_of_variances
from streampca.linalg.scaling import UNSCALED, Scaling
from streampca.models.analysis import AnalysisModel
from streampca.models.certificates import ApproximateCertificate
from streampca.models.diagnostics import centred_rows, row_diagnostics, scratch_bytes
from streampca.models.kernel import KernelModel
from streampca.models.pca import Model, PCAModel
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.runs.config import RunConfig
from streampca.runs.diagnostics import read_rows, unusual_rows_of
from streampca.runs.manifest import read_json
from streampca.solvers.choosing import SOLVERS
from streampca.solvers.covariance import accumulator_of
from streampca.solvers.covariance_model import operator_of
from streampca.sources import Source
from streampca.sources.base import Chosen, ReadCount
from streampca.sources.zarr.strictness import strict
from streampca.storage.directories import DIAGNOSTICS
from streampca.storage.figures import changed_figures
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import Array, FloatArray, Json

_MOST_CHARACTERS = 16


@dataclass(frozen=True)
class Check:
    """One quantity that was measured again."""

    name: str
    """Name of the quantity."""
    recorded: object = None
    """Value in the run."""
    measured: object = None
    """Value measured now."""
    difference: float | None = None
    """Their difference, relative to the quantity in `note`."""
    allowed: float | None = None
    """Allowed difference."""
    holds: bool | None = None
    """Whether they agree; None if not verified."""
    note: str = ""
    """What the difference is relative to, or why it was not verified."""

    @property
    def verdict(self) -> str:
        """Return the outcome in a word."""
        return "not verified" if self.holds is None else "ok" if self.holds else "differs"


def compared(
    name: str,
    recorded: ArrayLike,
    measured: ArrayLike,
    allowed: float,
    note: str,
    *,
    scale: ArrayLike = 1.0,
    apart: ArrayLike | None = None,
    first: int = 1,
) -> Check:
    """Return the comparison of two numbers, or of two arrays, ``(n,)``, by the entries that differ most.

    Differences, or `apart` in place of them, are divided by `scale`; where it is 0, no difference is allowed. In `note`, which
    names the reference quantity, ``{}`` becomes the number of the entry, counted from `first`.
    """
    before, after = (np.atleast_1d(np.asarray(each, dtype=np.float64)) for each in (recorded, measured))
    if before.shape != after.shape:
        return Check(name, len(before), len(after), holds=False, note="how many there are")
    differences = np.abs(after - before) if apart is None else np.atleast_1d(np.asarray(apart, dtype=np.float64))
    units = np.broadcast_to(np.asarray(scale, dtype=np.float64), before.shape)
    relative = np.divide(differences, units, out=np.where(differences > 0, np.inf, 0.0), where=units > 0)
    worst = int(np.nan_to_num(relative, nan=np.inf, posinf=np.inf).argmax())
    difference = float(relative[worst])
    holds, numbered = bool(difference <= allowed), note.format(worst + first)
    return Check(name, float(before[worst]), float(after[worst]), difference, float(allowed), holds, numbered)


def shown(value: object) -> object:
    """Return the value that a check shows: a number or text."""
    return value if isinstance(value, int | float | str) or value is None else "another list"


@dataclass(frozen=True)
class Verification:
    """Result of the verification of a run."""

    directory: Path
    """The run."""
    checks: tuple[Check, ...]
    """All checks."""
    shape: tuple[int, int]
    """Shape of the data."""
    count: ReadCount
    """Chunks and bytes read."""
    seconds: float
    """Duration in seconds."""

    @property
    def failed(self) -> list[str]:
        """Return the names of the checks that differ."""
        return [check.name for check in self.checks if check.holds is False]

    def require(self) -> None:
        """Raise `DataError` if anything differs."""
        if self.failed:
            n = sum(check.holds is not None for check in self.checks)
            raise DataError(
                f"{self.directory}: {len(self.failed)} of {n} checks differ: {', '.join(self.failed)}: the data or the run have "
                "changed since; run again on the present data, or restore them"
            )

    def to_dict(self) -> Json:
        """Return plain data for JSON."""
        return {
            "directory": str(self.directory),
            "holds": not self.failed,
            "checks": [_plain(check) for check in self.checks],
            "reads": self.count.to_dict(),
            "seconds": self.seconds,
        }

    def table(self) -> tuple[list[str], int]:
        """Return a line for each check under a heading, and the column in which the notes begin."""
        rows = [["", "recorded", "measured", "difference", "allowed", ""]]
        for check in self.checks:
            numbers = (check.recorded, check.measured, check.difference, check.allowed)
            rows.append([check.name, *map(_figure, numbers), check.verdict])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row, note in zip(rows, ("", *(check.note for check in self.checks)), strict=True):
            cells = (f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
            lines.append(f"{'  '.join(cells)}  {note}".rstrip())
        return lines, sum(widths) + 2 * len(widths)

    @property
    def summary(self) -> str:
        """Return the outcome in a sentence."""
        rows, features = self.shape
        outcome = f"different: {', '.join(self.failed)}" if self.failed else "everything measured agrees"
        return f"{self.directory}: {rows:,} x {features:,} read again in {self.seconds:.1f} s: {outcome}"


def _plain(check: Check) -> Json:
    data = {**asdict(check), "verdict": check.verdict}
    infinite = {key for key, value in data.items() if isinstance(value, float) and not math.isfinite(value)}
    return data | dict.fromkeys(infinite)


def _figure(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


MOST_FEATURES = 512
"""Maximum number of features for accumulating the whole matrix, for all eigenvalues or pairwise covariances."""
_SLACK = 4.0
"""Factor between the rounding in a certificate and the allowed difference: both sides are rounded."""
_ALLOWED_LIKELIHOOD = 1e-4
"""Derivative of the likelihood below which a fit counts its maximum as reached."""
_PANEL_BYTES = 8 * 2**20
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Measured:
    """Moments of the rows, and products of their covariance matrix C, scaled and weighted as in the model."""

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
    """Number of missing values."""
    matrix: FloatArray | None = None
    """C itself, ``(n_features, n_features)``, if all eigenvalues are measured."""

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
    """Return the accumulator of the moments of rows: in float64, with products of C with the first `n_columns` components.

    A small C is accumulated as a whole if all eigenvalues are known, and as in the fit if covariances are pairwise.
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
    """Return the number of rows measured at once, about 8 MiB."""
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

    `scaling` gives the scaling of features. Approximate eigenvalues may be too small, and the residual lies in its certified interval.
    """
    certificate, recorded, axes = model.certificate, model.explained_variance, np.asarray(model.components)
    approximate, pairwise = isinstance(certificate, ApproximateCertificate), is_pairwise(model)
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
        note += f"; memory allows only the first {count} of {len(axes)}" if count < len(axes) else ""
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
    """Compare all eigenvalues, from which `component_rules` follow, and the edge of noise, if the model has them."""
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

    For two tables with weights U and V, compare the variances U C₁₁ Uᵀ and V C₂₂ Vᵀ of the scores, and their covariances
    U C₁₂ Vᵀ, which are the singular values or correlations and 0 between different pairs. For factors, check that
    Wᵀ Φ W + ψ has the diagonal of C.
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
        return [*checks, Check("components", note="memory does not allow the products with all of them")]
    weights = np.asarray(model.components)
    covariance = weights @ measured.products
    variances = np.diag(covariance)
    note = "of component {}, the worst, relative to the total variance times the squares of its weights"
    scale = model.total_variance * np.square(weights).sum(axis=1)
    checks.append(compared("variances of scores", model.explained_variance, variances, allowed, note, scale=scale))
    if model.n_first is None and model.uniquenesses is None:
        return checks
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


_ROUNDING = 1e-10
"""Allowed difference of T² and Q, which both sides compute from the stored scores in float64."""
_ABSENT = object()


@dataclass(frozen=True)
class RowsState:
    """Findings in the rows seen so far."""

    n_samples: int
    """Number of rows."""
    n_landmarks: int
    """Number of landmarks of kernel PCA that equal the rows they were taken from."""
    squares: FloatArray
    """Sums of squares of the scores from the model, ``(k,)``; for kernel PCA only."""
    longest: float
    """Length of the longest row after centring, scaling and weighting; for kernel PCA, the largest modulus of a score."""
    scores: FloatArray
    """Largest differences between stored scores and scores from the model, ``(k,)``."""
    diagnostics: FloatArray
    """Largest differences of stored T, relative to 1 + T, and of stored √Q, relative to the row, given the stored scores; ``(2,)``."""


@dataclass(frozen=True)
class StoredRows(Accumulator[RowsState, RowsState]):
    """Accumulator that compares stored scores, T² and Q with values from the model for the rows."""

    model: Model
    """The model; its components are in memory."""
    stored: dict[str, ZarrArray]
    """Arrays by name: ``scores``, ``(n_samples, k)``, ``t2`` and ``q``, ``(n_samples,)``, if the run has them."""
    chosen: Chosen | None = None
    """Positions of the rows in these arrays; None = one after another."""

    @override
    def init(self, n_features: int) -> RowsState:
        k = self.model.n_components
        return RowsState(0, 0, np.zeros(k), 0.0, np.zeros(k), np.zeros(2))

    def update(self, state: RowsState, block: Block | Array) -> RowsState:
        """Return `state` with the rows of `block` added; `NotFiniteError` if rows of kernel PCA are not finite."""
        block = as_block(block)
        self.model.require_finite(block.values, block.start)
        start, stop = block.start, block.start + len(block)
        if self.chosen is None:
            stored = {name: np.asarray(array[start:stop]) for name, array in self.stored.items()}
        else:
            places = self.chosen.at(start, stop)
            low, high = int(places[0]), int(places[-1]) + 1
            stored = {name: np.asarray(array[low:high])[places - low] for name, array in self.stored.items()}
        step = panel_rows(block.values.shape[1])
        for start in range(0, len(block), step):
            panel = {name: values[start : start + step] for name, values in stored.items()}
            state = self.absorb(state, self._of_panel(block.slice(start, start + step), panel))
        return state

    def _of_panel(self, block: Block, stored: dict[str, Array]) -> RowsState:
        """Return the state of a panel of rows."""
        pca = self.model.linear
        with np.errstate(over="ignore", invalid="ignore"):  # rows of weight 0 may hold anything
            scores = self.model.encode(block.values).astype(np.float64)
            if pca is None:
                squares, lengths = np.square(scores).sum(axis=0), np.abs(scores).max(axis=1)
            else:
                rows = centred_rows(pca, block.dense().values, slice(0, block.values.shape[1]))[0]
                squares, lengths = np.zeros(scores.shape[1]), np.sqrt(np.einsum("ij,ij->i", rows, rows))
        differences, of_diagnostics = _largest(stored.get("scores", scores), scores), np.zeros(2)
        if pca is not None and {"scores", *DIAGNOSTICS} <= stored.keys():
            expected = row_diagnostics(pca, block.values, stored["scores"])
            with np.errstate(invalid="ignore"):
                (t, q), roots = map(np.sqrt, expected), [np.sqrt(stored[name]) for name in DIAGNOSTICS]
            of_diagnostics = np.array([_largest(roots[0], t, 1 + t), _largest(roots[1], q, lengths)])
        longest = float(lengths[np.isfinite(lengths)].max(initial=0.0))
        return RowsState(len(block), self.model.count_landmarks(block), squares, longest, differences, of_diagnostics)

    @override
    def absorb(self, state: RowsState, other: RowsState) -> RowsState:
        return RowsState(
            state.n_samples + other.n_samples,
            state.n_landmarks + other.n_landmarks,
            state.squares + other.squares,
            max(state.longest, other.longest),
            np.maximum(state.scores, other.scores),
            np.maximum(state.diagnostics, other.diagnostics),
        )

    @override
    def merge(self, states: Sequence[RowsState]) -> RowsState:
        return reduce(self.absorb, states)

    @override
    def state_bytes(self, n_features: int) -> int:
        return 8 * (2 * self.model.n_components + 5)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of a panel of rows, without the memory of a transform."""
        rows, k = min(n_rows, panel_rows(n_features)), self.model.n_components
        pca = self.model.linear
        own = 0 if pca is None else scratch_bytes(pca, rows) + 24 * rows * n_features
        return 40 * rows * k + own


def _largest(stored: Array, expected: Array, lengths: FloatArray | float = 1.0) -> FloatArray:
    """Return the largest differences along rows, divided by `lengths`; NaN must match NaN, as for rows that were left out."""
    apart = np.abs(stored.astype(np.float64) - expected)
    apart[np.isnan(stored) & np.isnan(expected)] = 0.0
    relative = np.divide(apart, lengths, out=np.where(apart > 0, np.inf, 0.0), where=np.asarray(lengths) > 0)
    largest: FloatArray = np.nan_to_num(relative, nan=np.inf, posinf=np.inf).max(axis=0, initial=0.0)
    return largest


def stored_arrays(
    directory: Path, config: RunConfig, model: Model, source: Source
) -> tuple[dict[str, ZarrArray], list[Check]]:
    """Return the stored scores, T² and Q of a run by name, and checks for those that were not requested, are gone or have another shape."""
    arrays, checks, n = {}, [], source.shape[0] if source.chosen is None else source.chosen.n_rows
    shapes: dict[str, tuple[int, ...]] = {"scores": (n, model.n_components)} if config.output.scores else {}
    shapes |= dict.fromkeys(DIAGNOSTICS if config.output.diagnostics else (), (n,))
    if not config.output.scores:
        checks.append(Check("scores", note="none were written"))
    for name, shape in shapes.items():
        path = directory / "scores.zarr" / name
        if not path.is_dir():
            checks.append(Check(name, holds=False, note="scores.zarr does not have it"))
            continue
        array = strict(zarr.open_array(path, mode="r"))
        if tuple(array.shape) == shape:
            arrays[name] = array
        else:
            checks.append(Check(name, list(shape), list(array.shape), holds=False, note="shape"))
    return arrays, checks


def checks_of_rows(rows: StoredRows, state: RowsState, source: Source, lightest: float) -> list[Check]:
    """Compare scores, T² and Q, and for kernel PCA also landmarks and eigenvalues; `lightest` is the smallest positive weight of a row."""
    model, apart, checks = rows.model, state.scores, list[Check]()
    eps = float(np.finfo(model.score_dtype(source.dtype)).eps)
    pca = model.linear
    if pca is None:
        checks += _checks_of_kernel(cast(KernelModel, model), state)
        allowed, note = (1e-3 if eps > 1e-10 else 1e-7), "largest difference, relative to the largest score"
    else:
        if pca.whiten:
            apart = np.multiply(apart, pca.deviations, out=np.zeros_like(apart), where=apart > 0)
        apart = np.maximum(apart - _known_scores(pca, lightest), 0.0)
        allowed, note = 64 * np.sqrt(source.shape[1]) * eps, "largest difference, relative to the longest row"
    if "scores" in rows.stored:
        checks.append(compared("scores", np.zeros_like(apart), apart, allowed, note, scale=state.longest))
    notes = ("largest difference of T, relative to 1 + T", "largest difference of √Q, relative to the row")
    for name, worst, note in zip(DIAGNOSTICS, state.diagnostics, notes, strict=True):
        if {"scores", name} <= rows.stored.keys():
            checks.append(compared(name, 0.0, worst, _ROUNDING, note))
    return checks


def _known_scores(model: PCAModel, lightest: float) -> FloatArray:
    """Return the allowed differences between projections and scores from the eigenvectors of the n × n matrix, ``(k,)``.

    For X Xᵀ u = λu + r with an error E of X Xᵀ, X (Xᵀu / σ) = σu + (r − Eu) / σ, and making the components orthonormal
    adds half of that (`streampca.solvers.gram.orthonormalising`); ‖E‖ ≤ precision σ₁². Below σ² = precision σ₁² components
    are completed, and their scores are of that size.
    """
    first = float(model.explained_variance[0])
    solver = SOLVERS.get(str(model.source.get("solver")))
    if solver is None or not solver.multiplies_back or first == 0:
        return np.zeros(model.n_components)
    relative = model.rounding + (model.certificate.eigen_residual or 0.0)
    roots = np.sqrt(np.maximum(model.explained_variance, relative * first))
    excess: FloatArray = 6.0 * np.sqrt(max(model.weight - model.ddof, 0.0) / lightest) * relative * first / roots
    return excess


def _checks_of_kernel(model: KernelModel, state: RowsState) -> list[Check]:
    """Compare samples, landmarks and, if they are sums of squares of scores, eigenvalues."""
    checks = [compared("samples", model.n_samples, state.n_samples, 0.0, "rows")]
    if model.landmark_indices is None:
        checks.append(Check("landmarks", note="they were given as rows"))
    else:
        checks.append(compared("landmarks", len(model.landmarks), state.n_landmarks, 0.0, "rows that are the same"))
    if model.method in ("nystrom", "exact"):
        allowed = 1e-6 if model.landmarks.dtype == np.float64 else 1e-3
        values, note = (
            model.eigenvalues,
            "sum of squared scores of component {}, the worst, relative to the first eigenvalue",
        )
        checks.append(compared("eigenvalues", values, state.squares, allowed, note, scale=values[0]))
    else:
        checks.append(Check("eigenvalues", note=f"those of {model.method} are not sums of squared scores"))
    return [*checks, Check("trace", note="it needs the kernel values of every row with itself, and the centring")]


def check_of_unusual_rows(directory: Path, source: Source, listed: Sequence[int]) -> Check:
    """Compare the copies of the `listed`, most unusual rows with the rows of the source, bit for bit."""
    name, stored = "unusual rows", unusual_rows_of(directory / "samples.zarr")
    if stored is None:
        return Check(name, holds=False, note="samples.zarr does not have them")
    rows, index = stored
    if index.tolist() != list(listed[: len(index)]) or (listed and not len(index)):
        return Check(name, holds=False, note="those of samples.zarr are not the rows with the largest T² and Q")
    expected = read_rows(source, index.tolist())[0]
    same = rows.shape == expected.shape and bool(np.array_equal(rows, expected, equal_nan=rows.dtype.kind == "f"))
    return Check(name, len(rows), len(expected), holds=same, note="copies of the rows that fit least")


def checks_of_figures(directory: Path, record: Json, expected: Mapping[str, Json | None]) -> list[Check]:
    """Return a check for each figure of manifest and plan that differs, under its name, or one check for all of them.

    All figures are compared with their digests in the commit `record` (`streampca.storage.figures`), which runs of version 0.1
    do not have. Figures that follow from models are also compared with `expected`, which has some entries of objects of the
    manifest, by name.
    """
    manifest, digests = read_json(directory, "manifest.json"), record.get("figures")
    differing: dict[str, Check] = {}
    for outer, entries in json.loads(json.dumps(expected)).items():
        stated = manifest.get(outer)
        stated = stated if isinstance(stated, dict) else {}
        for inner, value in (entries or {}).items():
            if (inner in stated or digests is not None) and stated.get(inner, _ABSENT) != value:
                name, note = f"manifest {outer}.{inner}", "does not follow from the model"
                differing[name] = Check(name, shown(stated.get(inner)), shown(value), holds=False, note=note)
    for document, figure in () if digests is None else changed_figures(directory, digests):
        name = f"{document.partition('.')[0]} {figure}".strip()
        differing.setdefault(name, Check(name, holds=False, note="is not what was committed with the run"))
    note = "figures of manifest and plan are those of the model" + (" and of the commit" if digests is not None else "")
    return [differing[name] for name in sorted(differing)] or [Check("manifest", holds=True, note=note)]
