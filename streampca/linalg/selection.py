"""Selection of eigenpairs: by count, share of variance or squared norm, threshold, or rules for noise.

Every selection receives the relative rounding of the eigenvalues, `rounding`, and treats values within it as equal, so that
the order of additions does not decide a tie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeGuard

import numpy as np

from streampca.errors import NotAvailableError, ParameterError, value_in_words
from streampca.linalg.component_rules import DEFINITIONS, RULES, Eigenvalues, RuleName, Sample, apply_rule, obstacle_of
from streampca.suggestions import did_you_mean
from streampca.typing import FloatArray


@dataclass(frozen=True)
class Count:
    """Select the first `n_components`; None = all."""

    n_components: int | None
    """Number of components."""

    def select(self, values: FloatArray, total: float, rounding: float = 0.0) -> int | None:
        """Return the number of selected eigenvalues among the leading `values`, None if more of them are needed to decide."""
        if self.n_components is None or self.n_components > len(values):
            return None
        return self.n_components


@dataclass(frozen=True)
class Share:
    """Select the smallest number of components that explain `share` of the total variance."""

    share: float
    """Share of the total variance, in (0, 1)."""

    def select(self, values: FloatArray, total: float, rounding: float = 0.0) -> int | None:
        """Return the number of selected eigenvalues among the leading `values`, None if more of them are needed to decide."""
        return smallest_count(values, total, self.share, rounding)


@dataclass(frozen=True)
class Threshold:
    """Select all components whose eigenvalue is at least `eps` times the largest.

    Parameters
    ----------
    eps : float
        Share of the first eigenvalue, between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(5000, 4)) * [10, 5, 1, 0.1]
    >>> sp.PCA(sp.Threshold(1e-3)).fit(rows).n_components_
    3
    """

    eps: float
    """Threshold relative to the first eigenvalue, in (0, 1]."""

    def __post_init__(self) -> None:
        if not is_number(self.eps) or not 0 < self.eps <= 1:
            raise ParameterError(f"Threshold(eps={self.eps!r}): expected a number in (0, 1], for example 1e-3")

    def select(self, values: FloatArray, total: float, rounding: float = 0.0) -> int | None:
        """Return the number of selected eigenvalues among the leading `values`, None if more of them are needed to decide."""
        slack = min(rounding, self.eps / 2)  # a threshold below the rounding remains a threshold
        below = np.flatnonzero(values < (self.eps - slack) * values[0])
        return max(1, int(below[0])) if len(below) else None


@dataclass(frozen=True)
class Frobenius:
    """Select the smallest number of components whose squared eigenvalues reach `share` of the squared Frobenius norm.

    This is the smallest k whose best rank-k approximation leaves at most √(1 − share) of the norm of the covariance
    (or correlation) matrix (Eckart & Young 1936).

    Parameters
    ----------
    share : float
        Share of the squared Frobenius norm, between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(5000, 4)) * [10, 5, 1, 0.1]
    >>> sp.PCA(sp.Frobenius(0.99)).fit(rows).n_components_
    2
    """

    share: float
    """Share of the squared norm, in (0, 1)."""

    def __post_init__(self) -> None:
        if not is_number(self.share) or not 0 < self.share < 1:
            raise ParameterError(f"Frobenius(share={self.share!r}): expected a number in (0, 1), for example 0.95")

    def select(self, values: FloatArray, total: float, rounding: float = 0.0) -> int | None:
        """Return the number of selected eigenvalues among the leading `values`, None if more of them are needed to decide.

        `total` is the Frobenius norm of the matrix, not its trace.
        """
        return smallest_count((values / total) ** 2, 1.0, self.share, 2 * rounding) if total > 0 else 1


@dataclass(frozen=True)
class Rule:
    """Select as many components as a rule of `streampca.linalg.component_rules` finds above noise, at least one."""

    name: RuleName
    """Name of the rule."""
    sample: Sample | None = None
    """What noise depends on; None before the rows were read."""
    n_all: int | None = None
    """Number of all eigenvalues; None before the rows were read."""

    @property
    def needs_all(self) -> bool:
        """Return whether all eigenvalues are needed."""
        return DEFINITIONS[self.name].all_eigenvalues

    def require_applicable(self, sample: Sample) -> None:
        """Raise `NotAvailableError` if the rule does not apply to such a sample."""
        reason = obstacle_of(self.name, sample)
        if reason:
            others = ", ".join(rule for rule in RULES if not obstacle_of(rule, sample))
            raise NotAvailableError(
                f"n_components={self.name!r} does not apply: {reason}; expected a count, a share of the variance"
                f"{f', or a rule that applies here ({others})' if others else ''}"
            )

    def with_errors(self, errors: FloatArray) -> Rule:
        """Return the rule for a sample of which the errors of predicting values that were left out are known."""
        return replace(self, sample=None if self.sample is None else replace(self.sample, prediction_errors=errors))

    def select(self, values: FloatArray, total: float, rounding: float = 0.0) -> int | None:
        """Return the number of selected eigenvalues among the leading `values`, None if more of them are needed to decide."""
        if self.sample is None or self.n_all is None:
            raise RuntimeError("a rule is asked before the rows were read")
        self.require_applicable(self.sample)
        complete = len(values) >= self.n_all
        result = apply_rule(self.name, Eigenvalues(values, total, complete, rounding), self.sample)
        if result.n_components is None or result.at_least:
            return None
        return max(1, result.n_components)


Selection = Count | Share | Threshold | Frobenius | Rule
NComponents: TypeAlias = int | float | Threshold | Frobenius | Mapping[str, float] | RuleName | None
"""The parameter `n_components`."""

_FORMS: dict[str, type[Threshold] | type[Frobenius]] = {"threshold": Threshold, "frobenius": Frobenius}


def from_plain(n_components: object) -> object:
    """Return the parameter `n_components` with ``{"threshold": eps}`` and ``{"frobenius": share}`` as objects.

    Raises
    ------
    ParameterError
        If it is another mapping, or the number is out of range.
    """
    if not isinstance(n_components, Mapping):
        return n_components
    if len(n_components) != 1 or (form := next(iter(n_components))) not in _FORMS:
        raise ParameterError(
            f'n_components={value_in_words(n_components)}: expected {{"threshold": eps}} or {{"frobenius": share}}, with one number'
            + "".join(did_you_mean(form, _FORMS) for form in n_components if form not in _FORMS)
        )
    return _FORMS[form](n_components[form])


def to_plain(n_components: object) -> object:
    """Return the parameter `n_components` with objects as mappings, which JSON can hold."""
    if isinstance(n_components, Threshold):
        return {"threshold": float(n_components.eps)}
    return {"frobenius": float(n_components.share)} if isinstance(n_components, Frobenius) else n_components


def is_count(n_components: object) -> TypeGuard[int]:
    """Return whether the parameter `n_components` is a count."""
    return isinstance(n_components, int | np.integer) and not isinstance(n_components, bool)


def smallest_count(values: FloatArray, total: float, share: float, rounding: float = 0.0) -> int | None:
    """Return the smallest number of leading `values` whose sum reaches ``share * total``, None if their total does not.

    Sums within ``rounding * total`` of it count, where `rounding` is at least that of the sum itself.
    """
    slack = min(max(rounding, 4 * len(values) * float(np.finfo(np.float64).eps)), share / 2)
    reached = np.flatnonzero(np.cumsum(values) >= (share - slack) * total)
    return int(reached[0]) + 1 if len(reached) else None


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a parameter is a number, of Python or numpy, and not a flag."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def as_selection(n_components: object, limit: int) -> Selection:
    """Return the selection rule for the parameter `n_components`.

    Parameters
    ----------
    n_components : int, float, Threshold, Frobenius, mapping, name of a rule or None
        As in `PCA`.
    limit : int
        Largest possible number, min(n_samples, n_features).

    Raises
    ------
    ParameterError
        If it is of another type, or out of range.
    """
    n_components = from_plain(n_components)
    if n_components is None:
        return Count(None)
    if isinstance(n_components, Threshold | Frobenius):
        return n_components
    for name in RULES:
        if isinstance(n_components, str) and n_components == name:
            return Rule(name)
    if is_count(n_components):
        if not 1 <= n_components <= limit:
            raise ParameterError(
                f"n_components={n_components!r} must be between 1 and min(n_samples, n_features)={limit} with this data"
            )
        return Count(int(n_components))
    if is_number(n_components):
        if not 0 < n_components < 1:
            raise ParameterError(
                f"n_components={n_components!r} is a share of the variance and must lie in (0, 1); a count is an int"
            )
        return Share(float(n_components))
    raise ParameterError(
        f"n_components={value_in_words(n_components)}: expected an int, a float in (0, 1), streampca.Threshold(eps), "
        f"streampca.Frobenius(share), one of {', '.join(RULES)}, or None"
        + (did_you_mean(n_components, RULES) if isinstance(n_components, str) else "")
    )
