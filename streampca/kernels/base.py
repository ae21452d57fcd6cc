"""What every kernel offers, and the panels of rows in which kernel values are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampca.errors import ParameterError
from streampca.kernels.rows import FloatArray, as_table, dense, panel_rows, panels, value_dtype
from streampca.system.workspace import borrow

_CASTING_BYTES = 4 * 8192 * 8  # numpy's buffers of an operation on two types


@dataclass(frozen=True)
class Needs:
    """What the kernel values of rows of a given length take, for plans."""

    columns: int
    """Numbers kept for each landmark, and copied for each row of a panel."""
    values: int
    """Scratch values for each kernel value of a panel."""
    flops: float
    """Floating point operations of one kernel value, about."""


class Kernel(ABC):
    """A function κ(x, y) of two rows; frozen, comparable, picklable.

    ``kernel(X, Y)`` is the matrix of all κ(x, y). What depends on Y alone is made once by `prepare`. Kernels can be
    added, and multiplied by numbers that are not negative.
    """

    name: ClassVar[str]
    """Name in parameters and files."""

    @property
    def constant_diagonal(self) -> bool:
        """Whether κ(x, x) is the same for every x (for the cosine: for every x but 0)."""
        return False

    @property
    def definite(self) -> bool | None:
        """Whether every matrix of the kernel is positive semi-definite; None if that is not known."""
        return True

    def bound(self, n_features: int) -> Kernel:
        """Return the kernel with gamma=None settled: 1 / n_features."""
        if getattr(self, "gamma", 0.0) is not None:
            return self
        return replace(self, gamma=1.0 / max(1, n_features))  # type: ignore[type-var]

    def prepare(self, Y: Any, dtype: DTypeLike | None = None) -> Prepared:
        """Return the function from rows to their kernel values with the rows of `Y`.

        Parameters
        ----------
        Y : array or scipy sparse, shape (n_landmarks, n_features)
        dtype : float32 or float64, optional
            Type of the values and of the products behind them; as default float32 if `Y` has floats of at most 4 bytes,
            else float64.

        Returns
        -------
        Prepared

        Raises
        ------
        ParameterError
            If `Y` is not a table of real numbers.
        """
        table = as_table(Y)
        work = value_dtype(table.dtype) if dtype is None else np.dtype(dtype)
        if work not in (np.float32, np.float64):
            raise ParameterError(f"kernel values in {work}: expected float32 or float64")
        landmarks = np.ascontiguousarray(dense(table), dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.bound(table.shape[1])._prepare(landmarks, work)

    def __call__(self, X: Any, Y: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return κ(x, y) for all rows of `X` and `Y`, shape ``(len(X), len(Y))``.

        Parameters
        ----------
        X, Y : array or scipy sparse, shapes (n_rows, n_features) and (n_landmarks, n_features)
            Sparse rows are made dense a panel at a time.
        out : array, optional
            Where to write; of the type of the result.

        Returns
        -------
        array
            float32 if both have floats of at most 4 bytes, else float64.
        """
        left, right = as_table(X), as_table(Y)
        return self.prepare(right, value_dtype(left.dtype, right.dtype))(left, out)

    def diagonal(self, X: Any) -> FloatArray:
        """Return κ(x, x) of every row of `X`, shape ``(n_rows,)``, in float64; infinite or NaN without a warning."""
        table = as_table(X)
        kernel = self.bound(table.shape[1])
        out = np.empty(table.shape[0])
        with np.errstate(over="ignore", invalid="ignore"):
            for part in panels(table.shape[0], table.shape[1]):
                out[part] = kernel._diagonal(dense(table[part]))
        return out

    @abstractmethod
    def needs(self, n_features: int) -> Needs:
        """Return what kernel values of rows of `n_features` numbers take."""

    def prepared_bytes(self, n_landmarks: int, n_features: int) -> int:
        """Return the memory in bytes of what `prepare` returns."""
        return 8 * n_landmarks * self.needs(n_features).columns

    def scratch_bytes(self, n_landmarks: int, n_features: int) -> int:
        """Return the scratch memory in bytes that evaluating a prepared kernel takes in one thread."""
        needs, rows = self.needs(n_features), panel_rows(n_landmarks, np.dtype(np.float32))
        return 8 * rows * (needs.columns + n_features + needs.values * n_landmarks) + _CASTING_BYTES

    def to_dict(self) -> dict[str, Any]:
        """Return the kernel as plain data; `kernel_from_dict` makes it again."""
        return {"name": self.name, **{field.name: getattr(self, field.name) for field in fields(self)}}  # type: ignore[arg-type]

    def __add__(self, other: Any) -> Kernel:
        pass

        if isinstance(other, int | float) and other == 0:  # where sum() starts
            return self
        return Sum((self, other)) if isinstance(other, Kernel) else NotImplemented

    __radd__ = __add__

    def __mul__(self, factor: Any) -> Kernel:
        pass

        return Scaled(self, float(factor)) if isinstance(factor, Real) else NotImplemented

    __rmul__ = __mul__

    @abstractmethod
    def _prepare(self, landmarks: FloatArray, dtype: np.dtype[Any]) -> Prepared: ...

    @abstractmethod
    def _diagonal(self, rows: NDArray[Any]) -> FloatArray: ...


@dataclass(frozen=True, eq=False)
class Prepared(ABC):
    """A kernel and what depends on the landmarks alone; picklable, and may be used by many threads at a time."""

    kernel: Kernel
    """The kernel, its gamma settled."""
    n_landmarks: int
    """Number of columns of the result."""
    n_features: int
    """Length of a row."""
    dtype: np.dtype[Any]
    """Type of the values, float32 or float64."""

    def __call__(self, rows: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the kernel values of `rows` with every landmark, shape ``(n_rows, n_landmarks)``.

        The rows are taken in panels whose values fit in the cache. `out` has the type of the values. What leaves the range
        of the type, or comes from NaN or infinity, is infinite or NaN without a warning: whoever sums the values sees it.
        """
        table = as_table(rows)
        shape = table.shape[0], self.n_landmarks
        if table.shape[1] != self.n_features:
            raise ParameterError(
                f"rows of {table.shape[1]} features: expected {self.n_features}, as the landmarks have"
            )
        if out is None:
            out = np.empty(shape, dtype=self.dtype)
        elif out.shape != shape or out.dtype != self.dtype:
            raise ParameterError(f"out of {out.dtype} {out.shape}: expected {self.dtype} {shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            for part in panels(shape[0], self.n_landmarks, self.dtype):
                self.fill(dense(table[part]), out[part])
        return out

    @abstractmethod
    def fill(self, rows: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the kernel values of the few `rows` of a panel to `out`."""


def settle(kernel: Kernel, **domains: Callable[[float], bool]) -> None:
    """Turn the named fields of `kernel` into plain finite numbers; `ParameterError` unless they are in their domains."""
    for name, allowed in domains.items():
        value = getattr(kernel, name)
        if value is None and name == "gamma":
            continue
        number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
        if not (number and np.isfinite(float(value)) and allowed(float(value))):
            expected = "a finite number" + (" of at least 0" if not allowed(-1.0) else "")
            raise ParameterError(f"{kernel.name} kernel with {name}={value!r}: expected {expected}")
        object.__setattr__(kernel, name, float(value))


def not_negative(value: float) -> bool:
    """Return whether `value` is at least 0."""
    return value >= 0


def any_number(value: float) -> bool:
    """Return True: every number is allowed."""
    return True


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
