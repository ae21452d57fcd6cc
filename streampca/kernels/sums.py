"""Kernels multiplied by numbers, and sums of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampca.errors import ParameterError
from streampca.kernels.base import FloatArray, Kernel, Needs, Prepared, not_negative, settle
from streampca.workspace import borrow


@dataclass(frozen=True)
class Scaled(Kernel):
    """A kernel multiplied by a number that is not negative."""

    name: ClassVar[str] = "scaled"

    kernel: Kernel
    """The kernel."""
    factor: float
    """The number."""

    def __post_init__(self) -> None:
        settle(self, factor=not_negative)

    @property
    def constant_diagonal(self) -> bool:
        """Whether κ(x, x) is the same for every x."""
        return bool(self.kernel.constant_diagonal)

    @property
    def definite(self) -> bool | None:
        """Whether every matrix of the kernel is positive semi-definite; None if that is not known."""
        return self.kernel.definite

    def bound(self, n_features: int) -> Kernel:
        """Return the kernel with gamma=None settled."""
        return Scaled(self.kernel.bound(n_features), self.factor)

    def needs(self, n_features: int) -> Needs:
        """Return what kernel values of rows of `n_features` numbers take."""
        needs = self.kernel.needs(n_features)
        return Needs(needs.columns, needs.values, needs.flops + 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the kernel as plain data."""
        return {"name": self.name, "factor": self.factor, "kernel": self.kernel.to_dict()}

    def _prepare(self, landmarks: FloatArray, dtype: np.dtype[Any]) -> Prepared:
        return PreparedSum(
            self, len(landmarks), landmarks.shape[1], dtype, (self.kernel._prepare(landmarks, dtype),), (self.factor,)
        )

    def _diagonal(self, rows: NDArray[Any]) -> FloatArray:
        return self.kernel._diagonal(rows) * self.factor


@dataclass(frozen=True)
class Sum(Kernel):
    """A sum of kernels; sums among the terms are taken apart."""

    name: ClassVar[str] = "sum"

    terms: tuple[Kernel, ...]
    """The kernels, at least one; none of them a sum."""

    def __post_init__(self) -> None:
        terms = tuple(self.terms)
        if not terms or not all(isinstance(term, Kernel) for term in terms):
            raise ParameterError(f"a sum of {terms!r}: expected at least one kernel, and kernels only")
        object.__setattr__(self, "terms", tuple(part for term in terms for part in _parts(term, 1.0)))

    @property
    def constant_diagonal(self) -> bool:
        """Whether κ(x, x) is the same for every x."""
        return all(term.constant_diagonal for term in self.terms)

    @property
    def definite(self) -> bool | None:
        """True if all terms are positive semi-definite, False if all are known not to be, else None: it depends on the weights."""
        found = {term.definite for term in self.terms}
        return found.pop() if len(found) == 1 else None

    def bound(self, n_features: int) -> Kernel:
        """Return the kernel with gamma=None settled in every term."""
        return Sum(tuple(term.bound(n_features) for term in self.terms))

    def needs(self, n_features: int) -> Needs:
        """Return what kernel values of rows of `n_features` numbers take."""
        needs = [term.needs(n_features) for term in self.terms]
        return Needs(
            sum(own.columns for own in needs),
            1 + sum(own.values for own in needs),
            sum(own.flops for own in needs) + len(needs),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the kernel as plain data."""
        return {"name": self.name, "terms": [term.to_dict() for term in self.terms]}

    def _prepare(self, landmarks: FloatArray, dtype: np.dtype[Any]) -> Prepared:
        parts = [(term.kernel, term.factor) if isinstance(term, Scaled) else (term, 1.0) for term in self.terms]
        inner = tuple(kernel._prepare(landmarks, dtype) for kernel, _ in parts)
        n_landmarks, n_features = landmarks.shape
        return PreparedSum(self, n_landmarks, n_features, dtype, inner, tuple(factor for _, factor in parts))

    def _diagonal(self, rows: NDArray[Any]) -> FloatArray:
        total = np.zeros(len(rows))
        for term in self.terms:
            total += term._diagonal(rows)
        return total


@dataclass(frozen=True, eq=False)
class PreparedSum(Prepared):
    """Prepared kernels and their factors."""

    parts: tuple[Prepared, ...]
    """The terms."""
    factors: tuple[float, ...]
    """Their factors."""

    def fill(self, rows: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the kernel values of the few `rows` of a panel to `out`: the first term there, the others beside it."""
        for part, factor in zip(self.parts, self.factors, strict=True):
            first = part is self.parts[0]
            values = out if first else borrow("kernel term", out.shape, out.dtype)
            part.fill(rows, values)
            if factor != 1:
                values *= factor
            if not first:
                out += values


def _parts(term: Kernel, factor: float) -> tuple[Kernel, ...]:
    """Return the terms, multiplied by `factor`, of a kernel that may be a sum or a multiple of one."""
    if isinstance(term, Sum):
        return tuple(part for inner in term.terms for part in _parts(inner, factor))
    if isinstance(term, Scaled):
        return _parts(term.kernel, factor * term.factor)
    return (term if factor == 1 else Scaled(term, factor),)
