"""Rules for the number of components above noise, from the eigenvalues of a covariance matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from streampca.linalg import random_matrix
from streampca.linalg.cross_validation import MOST_COMPONENTS, N_GROUPS, NOT_ASKED, best_count
from streampca.typing import FloatArray, Json

RuleName = Literal["parallel", "marchenko_pastur", "tracy_widom", "gavish_donoho", "cross_validation", "mle"]
"""Names that the parameter `n_components` takes."""
RULES: Final[tuple[RuleName, ...]] = get_args(RuleName)
"""The names in the order of the table."""


LEVEL: Final = 0.01
"""Probability with which "tracy_widom" takes one component more than there are."""
_EPS = 1e-15
"""Share of the first eigenvalue below which eigenvalues are 0."""
_LONGEST, _SMALLEST = 14.0, 1e-10
"""Argument of the Tracy–Widom law from which, and probability below which, a p-value is rounding."""


@dataclass(frozen=True)
class Sample:
    """What the eigenvalues of noise depend on, beside its variance."""

    n_samples: int
    """Number of rows."""
    n_degrees: int
    """Number of rows less what the mean and removed regressors take."""
    n_features: int
    """Number of features that vary."""
    divisor: float
    """What the eigenvalues were divided by: the sum of the weights − ddof."""
    obstacle: str = ""
    """Why noise has no known law here, as the end of a sentence; empty where it has one."""
    uneven: bool = False
    """Whether features have different weights."""
    edge: float | None = None
    """Upper end of the law of the eigenvalues of independent features with the same variances; None where it is not known."""
    prediction_errors: FloatArray | None = field(default=None, compare=False)
    """Errors of predicting values that were left out, for 0, 1, … components; None where they are not known."""

    @property
    def n_centred(self) -> int:
        """Return how many rows about their mean have as many degrees of freedom."""
        return min(self.n_samples, self.n_degrees + 1)


def sample_of(
    shape: tuple[int, int],
    weight: float,
    ddof: float,
    *,
    n_means: int,
    weighted: bool = False,
    n_constant: int = 0,
    n_missing: int = 0,
    feature_weight: FloatArray | None = None,
    edge: float | None = None,
) -> Sample:
    """Return what noise depends on in a table.

    Parameters
    ----------
    shape : tuple of int
        Rows of positive weight that are complete, and features.
    weight : float
        Sum of the weights of the rows.
    ddof : float
        What is subtracted from it for the divisor.
    n_means : int
        Means and slopes that were fitted to each feature and subtracted.
    weighted : bool
        Whether rows have different weights, whose sum may be the number of rows.
    n_constant, n_missing : int
        Features that never vary, and values that are missing.
    feature_weight : array, shape (n_features,), optional
        Weights of features.
    edge : float, optional
        Upper end of the law of the eigenvalues of independent features with the same variances.
    """
    (n, d), reason = shape, ""
    if weighted or weight != n:
        reason = "rows have weights, and no law of the eigenvalues of noise is known for them"
    elif n_missing:
        reason = f"{n_missing:,} values are missing, and the values that replace them have no noise"
    uneven = feature_weight is not None and bool(np.ptp(feature_weight) > 0)
    return Sample(n, max(0, n - n_means), d - n_constant, weight - ddof, reason, uneven, edge)


@dataclass(frozen=True)
class Eigenvalues:
    """Leading eigenvalues of a covariance matrix."""

    values: FloatArray
    """Largest first, ``(k,)``."""
    total: float
    """Trace of the matrix."""
    complete: bool
    """Whether `values` are all of them, min(n_samples, n_features)."""
    rounding: float = 0.0
    """Relative size up to which eigenvalues are rounding."""
    unit: float = 1.0
    """What eigenvalues and trace were divided by."""
    noise: dict[int, float] = field(default_factory=dict, compare=False)
    """Noise variances that were computed, by the number of components."""

    def relative(self, sample: Sample) -> Eigenvalues:
        """Return as many eigenvalues as noise can have, and the trace, divided by the first, so that squares of them are in range."""
        limit = min(sample.n_degrees, sample.n_features)
        unit = float(self.values[0]) if len(self.values) and self.values[0] > 0 else 1.0
        return replace(self, values=self.values[:limit] / unit, total=self.total / unit, noise={}, unit=unit)


Found: TypeAlias = tuple[int, str, dict[str, float], bool]
"""What a rule finds: the number of components, what that is in one sentence, figures behind it, and whether the number is a lower bound.

Figures named ``noise_variance``, ``threshold`` and ``median`` are in the units of the eigenvalues."""


@dataclass(frozen=True)
class RuleResult:
    """What one rule says of a fit."""

    rule: RuleName
    """Name of the rule, as `n_components` takes it."""
    n_components: int | None
    """Number of components, 0 where nothing stands out of the noise; None where the rule gives none."""
    statement: str
    """What it says, or why it says nothing, in one sentence."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Figures behind it: ``noise_variance``, ``threshold``, ``p_value`` and others."""
    at_least: bool = False
    """Whether the number is a lower bound, because all known eigenvalues pass."""

    @property
    def title(self) -> str:
        """Return the name of the rule for people."""
        return DEFINITIONS[self.rule].title

    @property
    def applies(self) -> bool:
        """Return whether the rule gives a number."""
        return self.n_components is not None

    @property
    def count(self) -> str:
        """Return the number as text: ``"7"``, ``"at least 7"`` or ``"–"``."""
        if self.n_components is None:
            return "–"
        return f"at least {self.n_components:,}" if self.at_least else f"{self.n_components:,}"


@dataclass(frozen=True)
class ComponentRules(Mapping[str, RuleResult]):
    """What every rule says of a fit, by the names of the rules; prints as a table."""

    results: tuple[RuleResult, ...]
    """One result for each rule."""

    def __getitem__(self, rule: str) -> RuleResult:
        """Return the result of the rule of this name."""
        for result in self.results:
            if result.rule == rule:
                return result
        raise KeyError(f"{rule!r}: expected one of {', '.join(self)}")

    def __iter__(self) -> Iterator[str]:
        """Return the names of the rules."""
        return (result.rule for result in self.results)

    def __len__(self) -> int:
        """Return the number of rules."""
        return len(self.results)

    def to_dict(self) -> Json:
        """Return the table as plain data."""
        return {
            result.rule: {
                "n_components": result.n_components,
                "at_least": result.at_least,
                "figures": dict(result.figures),
                "statement": result.statement,
            }
            for result in self.results
        }

    def __repr__(self) -> str:
        """Return the table as text, one line for each rule."""
        rows = [("rule", "components", "noise", "threshold", "")]
        for result in self.results:
            noise, edge = (
                f"{result.figures[name]:.4g}" if name in result.figures else ""
                for name in ("noise_variance", "threshold")
            )
            rows.append((result.rule, result.count, noise, edge, result.statement))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(
            f"{row[0]:<{widths[0]}}  " + "  ".join(f"{row[i]:>{widths[i]}}" for i in (1, 2, 3)) + f"  {row[4]}".rstrip()
            for row in rows
        )


def component_rules(known: Eigenvalues, sample: Sample) -> ComponentRules:
    """Return what every rule says of these eigenvalues; those that do not apply say why."""
    relative = known.relative(sample)
    return ComponentRules(tuple(_result(name, relative, sample) for name in RULES))


def apply_rule(name: RuleName, known: Eigenvalues, sample: Sample) -> RuleResult:
    """Return what the rule `name` says of these eigenvalues; figures are rounded to 6 digits.

    Cost: at most d² logarithms, for "mle".
    """
    return _result(name, known.relative(sample), sample)


def _result(name: RuleName, known: Eigenvalues, sample: Sample) -> RuleResult:
    obstacle = obstacle_of(name, sample)
    if obstacle:
        return RuleResult(name, None, f"does not apply: {obstacle}")
    if DEFINITIONS[name].all_eigenvalues and not known.complete:
        return RuleResult(
            name,
            None,
            f"needs all eigenvalues, but only {len(known.values):,} are known: fit an exact solver with n_components={name!r}",
        )
    if not len(known.values) or known.total <= 0 or known.values[0] <= 0:
        return RuleResult(name, 0, "nothing varies")
    count, statement, figures, at_least = DEFINITIONS[name].apply(known, sample)
    figures = {figure: value * known.unit if figure in _VARIANCES else value for figure, value in figures.items()}
    rounded = {figure: float(f"{value:.6g}") for figure, value in figures.items()}
    return RuleResult(name, count, statement, rounded, at_least)


def _sequential(
    known: Eigenvalues, sample: Sample, threshold: Callable[[float, int], float]
) -> tuple[int, dict[str, float], bool]:
    """Count eigenvalues above `threshold(noise variance, number)` until the first that is not.

    Return how many passed, the variance of the noise that remains and the threshold of the first that did not pass, and whether all
    known ones passed and there are more.

    Eigenvalue k is compared with the threshold for the noise that remains if k components are taken for signal (Kritchman &
    Nadler 2009, section IV).
    """
    values, n, p = known.values, sample.n_degrees, sample.n_features
    last = min(n, p) - 1

    def noise_of(k: int) -> float:
        if k not in known.noise:  # two rules ask for the same
            known.noise[k] = random_matrix.noise_variance(values[:k], known.total, n, p)
        return known.noise[k]

    edge = 0.0
    for k in range(1, min(len(values), last) + 1):
        edge = threshold(noise_of(k), k)
        if not values[k - 1] > max(edge, known.rounding * values[0]):
            return k - 1, {"noise_variance": noise_of(k - 1), "threshold": edge}, False
    count = min(len(values), last)
    return count, {"noise_variance": noise_of(count), "threshold": edge}, not known.complete and count < last


def _parallel(known: Eigenvalues, sample: Sample) -> Found:
    """Compare with independent features of the same variances: deterministic parallel analysis (Dobriban & Owen 2019)."""
    edge = (sample.edge or 0.0) / known.unit
    above = known.values > max(edge, known.rounding * known.values[0])
    count = len(above) if above.all() else int(np.argmin(above))
    at_least = count == len(above) and not known.complete
    statement = "eigenvalues above the largest of independent features with the same variances"
    return count, statement, {"threshold": edge}, at_least


def _marchenko_pastur(known: Eigenvalues, sample: Sample) -> Found:
    """Apply the upper edge of the Marchenko–Pastur law, for the noise of Kritchman & Nadler (2009)."""
    n, p = sample.n_degrees, sample.n_features
    edge = random_matrix.upper_edge
    count, figures, at_least = _sequential(known, sample, lambda noise, k: noise * edge((p - k) / n))
    return count, "eigenvalues above the upper edge of the Marchenko–Pastur law of noise", figures, at_least


def _tracy_widom(known: Eigenvalues, sample: Sample) -> Found:
    """Apply the test of Kritchman & Nadler (2009): the quantile of the Tracy–Widom law at every step."""

    def law(k: int) -> tuple[float, float]:
        return random_matrix.largest_noise(sample.n_degrees, sample.n_features - k)

    def threshold(noise: float, k: int) -> float:
        centre, scale = law(k)
        return noise * (centre + random_matrix.TRACY_WIDOM_99 * scale)

    count, figures, at_least = _sequential(known, sample, threshold)
    figures["level"], noise = LEVEL, figures["noise_variance"]
    if count < len(known.values) and noise > 0:
        centre, scale = law(count)
        step = (float(known.values[count]) / noise - centre) / scale
        p_value = 1.0 - random_matrix.tracy_widom(step) if step < _LONGEST else 0.0
        figures["p_value"] = p_value if p_value > _SMALLEST else 0.0
    statement = (
        f"eigenvalues above what the largest of noise exceeds in {LEVEL:.0%} of all samples, by the Tracy–Widom law"
    )
    return count, statement, figures, at_least


def _gavish_donoho(known: Eigenvalues, sample: Sample) -> Found:
    """Apply the optimal hard threshold of singular values for noise of unknown variance (Gavish & Donoho 2014)."""
    sides = sorted((sample.n_degrees, sample.n_features))
    singular = np.sqrt(np.where(known.values > known.rounding * known.values[0], known.values, 0.0))
    omega, middle = random_matrix.optimal_threshold(sides[0] / sides[1]), float(np.median(singular))
    count = int(np.count_nonzero(singular > omega * middle))
    figures = {"threshold": (omega * middle) ** 2, "median": middle**2, "omega": omega}
    return count, f"singular values above {omega:.4g} times their median", figures, False


def _cross_validation(known: Eigenvalues, sample: Sample) -> Found:
    """Take the least error of predicting values that were left out (`streampca.linalg.cross_validation`)."""
    errors = sample.prediction_errors
    if errors is None:
        raise RuntimeError(NOT_ASKED)
    count, unit = best_count(errors), float(errors[0]) or 1.0
    statement = f"the least error of predicting each value of {N_GROUPS} groups of rows, left out in turn, from the others of its row"
    if count == len(errors) - 1 and 1 < count < MOST_COMPONENTS:
        statement += (
            "; it still falls at the last number tried, so it gives no number of factors: noise differs between features, as it does "
            "after scaling"
        )
    if count == MOST_COMPONENTS:
        statement += f"; no more than {MOST_COMPONENTS} were tried"
    return count, statement, {"error": float(errors[count]) / unit, "tried": float(len(errors) - 1)}, False


def _mle(known: Eigenvalues, sample: Sample) -> Found:
    """Apply Minka's (2000) Laplace approximation of the evidence of probabilistic PCA, as scikit-learn does."""
    n = sample.n_centred
    unit = known.unit * sample.divisor / (n - 1)
    evidence = log_evidence(known.values, n, known.rounding) - n * len(known.values) / 2 * np.log(unit)
    count = int(np.argmax(evidence)) + 1
    figures = {"log_evidence": float(evidence[count - 1])}
    finite = np.sort(evidence[np.isfinite(evidence)])
    if len(finite) > 1:
        figures["margin"] = float(finite[-1] - finite[-2])
    return count, "the largest evidence of probabilistic PCA (Minka 2000)", figures, False


_VARIANCES = frozenset({"noise_variance", "threshold", "median"})
"""Figures in the units of the variances of the fit."""


@dataclass(frozen=True)
class Definition:
    """A rule: everything that the package knows of it beside its name."""

    title: str
    """Name for people."""
    apply: Callable[[Eigenvalues, Sample], Found]
    """What it says of eigenvalues divided by the first; at least one of them varies."""
    needs: tuple[str, ...] = ("law", "enough", "even")
    """What it needs of the rows, see `obstacle_of`; the first that fails says why it does not apply."""
    all_eigenvalues: bool = False
    """Whether it needs all eigenvalues, not just the leading ones and the trace: approximate solvers refuse it."""


DEFINITIONS: Final[Mapping[RuleName, Definition]] = {
    "parallel": Definition("parallel analysis", _parallel, ("law", "variances", "enough")),
    "marchenko_pastur": Definition("Marchenko–Pastur", _marchenko_pastur),
    "tracy_widom": Definition("Tracy–Widom", _tracy_widom),
    "gavish_donoho": Definition("Gavish–Donoho", _gavish_donoho, all_eigenvalues=True),
    "cross_validation": Definition("cross-validation", _cross_validation, ("left out",)),
    "mle": Definition("Minka's evidence", _mle, ("law", "enough", "even", "more rows"), all_eigenvalues=True),
}
"""The rules; what they need of groups of rows is read by `solvers.covariance`."""


def obstacle_of(name: RuleName, sample: Sample) -> str:
    """Return why a rule does not apply to such a sample; empty where it does."""
    few = min(sample.n_degrees, sample.n_features) < 3
    n_removed = sample.n_samples - sample.n_degrees
    likelihood = (
        f"the likelihood needs at least as many rows as features that vary, found {sample.n_samples:,} and "
        f"{sample.n_features:,}" + (f", and {n_removed:,} means (and slopes) removed" if n_removed > 1 else "")
    )
    obstacles = {
        "law": sample.obstacle,
        "enough": f"{sample.n_samples:,} rows of {sample.n_features:,} features that vary are too few" if few else "",
        "variances": ""
        if sample.edge is not None
        else "rows were not centred, or the model does not know the variances of its features",
        "even": "features have weights, so that noise has not the same variance in all of them"
        if sample.uneven
        else "",
        "more rows": likelihood if sample.n_centred < sample.n_features else "",
        "left out": NOT_ASKED if sample.prediction_errors is None else "",
    }
    return next((obstacles[need] for need in DEFINITIONS[name].needs if obstacles[need]), "")


def log_evidence(values: FloatArray, n_samples: int, rounding: float = 0.0) -> FloatArray:
    """Return the logarithm of the evidence of 1 to d − 1 components, ``(d - 1,)`` (Minka 2000, eq. 30, with |A_z| of eq. 26).

    Equals the function that scikit-learn maximises for ``n_components="mle"``. Cost: d² logarithms.

    Parameters
    ----------
    values : array, shape (d,)
        All eigenvalues of the covariance matrix with divisor n − 1, largest first.
    n_samples : int
        Number of rows n.
    rounding : float
        Relative size up to which eigenvalues are rounding: there is no evidence of more components than there are above it.
    """
    from scipy.special import gammaln

    d, tiny, unit = len(values), float(np.finfo(np.float64).tiny), float(values[0])
    least = max(_EPS, rounding)
    values = np.maximum(values / unit, least)
    rank = np.arange(1, d)
    noise = np.maximum(np.cumsum(values[::-1])[::-1][1:] / (d - rank), least)
    inverse = 1 / values
    # Sums of log(λᵢ − λⱼ) over all j > i for every i, and of log(1/λⱼ − 1/λᵢ) over all i < j for every j.
    apart, inside = np.zeros(d), np.zeros(d)
    tail = np.empty(d - 1)
    for i in range(d - 1):
        apart[i] = np.log(np.maximum(values[i] - values[i + 1 :], tiny)).sum()
        inside[i + 1] = np.log(np.maximum(inverse[i + 1] - inverse[: i + 1], tiny)).sum()
        tail[i] = (d - 1 - i) * np.log(np.maximum(1 / noise[i] - inverse[: i + 1], tiny)).sum()
    n_pairs = d * rank - rank * (rank + 1) / 2
    hessian = np.cumsum(apart)[:-1] + np.cumsum(inside)[:-1] + tail + n_pairs * np.log(n_samples)
    spheres = gammaln((d - rank + 1) / 2) - np.log(np.pi) * (d - rank + 1) / 2
    prior = np.cumsum(spheres) - rank * np.log(2.0)
    likelihood = -n_samples / 2 * (np.cumsum(np.log(values))[:-1] + (d - rank) * np.log(noise))
    evidence: FloatArray = (
        prior + likelihood + np.log(2 * np.pi) * (n_pairs + rank) / 2 - hessian / 2 - rank * np.log(n_samples) / 2
    )
    evidence -= n_samples * d / 2 * np.log(unit)
    evidence[values[:-1] <= least] = -np.inf
    return evidence
