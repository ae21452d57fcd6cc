"""Kernels, their sums and multiples, kernels of standardised features, and kernels prepared for landmarks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike
from scipy.sparse import csr_array, issparse

from streampca.errors import ParameterError
from streampca.suggestions import SuggestsKeywords
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray, Rows

_PANEL_BYTES = 1 << 20  # kernel values that fit in the cache between the product and the function
_PANEL_ROWS = 64, 1024  # fewer rows make products slow, more rows do not fit in the cache
_CASTING_BYTES = 4 * 8192 * 8  # numpy's buffers of an operation on two types


@dataclass(frozen=True)
class Needs:
    """Cost of kernel values of rows of a given length, for plans."""

    columns: int
    """Numbers stored for each landmark, and copied for each row of a panel."""
    values: int
    """Scratch values for each kernel value of a panel."""
    flops: float
    """Approximate floating-point operations of one kernel value."""


class Kernel(SuggestsKeywords, ABC):
    """A function κ(x, y) of two rows; frozen, comparable, picklable.

    ``kernel(X, Y)`` is the matrix of all κ(x, y). `prepare` computes everything that depends only on Y once. Kernels can
    be added, and multiplied by nonnegative numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> kernel = 2.0 * sp.kernels.Linear() + sp.kernels.RBF(gamma=0.5)
    >>> kernel(rows, rows).round(2)
    array([[11.  , 22.02],
           [22.02, 51.  ]])
    >>> kernel.definite
    True
    """

    name: ClassVar[str]
    """Name in parameters and files."""
    _cost: ClassVar[tuple[int, int, float, float]]
    """Columns beside the features, scratch values for each kernel value, and flops of a kernel value: for each feature, and further ones."""
    _depth: int = 0  # kernels inside of each other, which have scratch memory of their own

    @property
    def constant_diagonal(self) -> bool:
        """Whether κ(x, x) is the same for every x (for the cosine: for every x but 0)."""
        return False

    @property
    def definite(self) -> bool | None:
        """Whether every kernel matrix is positive semi-definite; None if unknown."""
        return True

    def bound(self, n_features: int) -> Kernel:
        """Return the kernel with gamma=None resolved: 1 / n_features."""
        if getattr(self, "gamma", 0.0) is not None:
            return self
        return replace(self, gamma=1.0 / max(1, n_features))  # type: ignore[type-var]

    def prepare(self, Y: Rows, dtype: DTypeLike | None = None) -> Prepared:
        """Return the function from rows to their kernel values with the rows of `Y`.

        Parameters
        ----------
        Y : array or scipy sparse, shape (n_landmarks, n_features)
        dtype : float32 or float64, optional
            Type of the values and of the underlying products; by default float32 if `Y` has floats of at most 4 bytes,
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
            return self.bound(table.shape[1])._prepared(landmarks, work)

    def __call__(self, X: Rows, Y: Rows, out: Array | None = None) -> Array:
        """Return κ(x, y) for all rows of `X` and `Y`, shape ``(len(X), len(Y))``.

        Parameters
        ----------
        X, Y : array or scipy sparse, shapes (n_rows, n_features) and (n_landmarks, n_features)
            Sparse rows are converted to dense panels.
        out : array, optional
            Array for the result, of its type.

        Returns
        -------
        array
            float32 if both have floats of at most 4 bytes, else float64. Overflow, NaN and infinity give infinite values or
            NaN without a warning.

        Raises
        ------
        ParameterError
            If `X` or `Y` is not a table of real numbers, their numbers of features differ, or `out` has another shape or type.
        """
        left, right = as_table(X), as_table(Y)
        return self.prepare(right, value_dtype(left.dtype, right.dtype))(left, out)

    def diagonal(self, X: Rows) -> FloatArray:
        """Return κ(x, x) for every row of `X`, shape ``(n_rows,)``, in float64, without warnings for infinity or NaN.

        Costs one kernel value per row. Raises `ParameterError` if `X` is not a table of real numbers.
        """
        table = as_table(X)
        kernel = self.bound(table.shape[1])
        out = np.empty(table.shape[0])
        with np.errstate(over="ignore", invalid="ignore"):
            for panel in panels(table.shape[0], table.shape[1]):
                out[panel] = kernel._diagonal(dense(table[panel]))
        return out

    def needs(self, n_features: int) -> Needs:
        """Return the cost of kernel values of rows of `n_features` features."""
        columns, values, flops, further = self._cost
        return Needs(n_features + columns, values, flops * n_features + further)

    def prepared_bytes(self, n_landmarks: int, n_features: int) -> int:
        """Return the memory in bytes of the result of `prepare`."""
        return 8 * n_landmarks * self.needs(n_features).columns

    def scratch_bytes(self, n_landmarks: int, n_features: int) -> int:
        """Return the scratch memory in bytes of evaluating a prepared kernel in one thread."""
        needs, rows = self.needs(n_features), kernel_panel_rows(n_landmarks, np.dtype(np.float32))
        return 8 * rows * (needs.columns + n_features + needs.values * n_landmarks) + _CASTING_BYTES

    def to_dict(self) -> dict[str, object]:
        """Return the kernel as plain data for JSON; `kernel_from_dict` restores it."""
        return {"name": self.name, **{field.name: getattr(self, field.name) for field in fields(self)}}  # type: ignore[arg-type]

    def __add__(self, other: object) -> Kernel:
        if isinstance(other, int | float) and other == 0:  # the start value of sum()
            return self
        return Sum((self, other)) if isinstance(other, Kernel) else NotImplemented

    __radd__ = __add__

    def __mul__(self, factor: object) -> Kernel:
        return Scaled(self, float(factor)) if isinstance(factor, Real) else NotImplemented

    __rmul__ = __mul__

    def _prepared(self, landmarks: FloatArray, dtype: DType) -> Prepared:
        n_landmarks, n_features = landmarks.shape
        return Prepared(self, n_landmarks, n_features, dtype, self._landmarks(landmarks, dtype))

    @abstractmethod
    def _landmarks(self, landmarks: FloatArray, dtype: DType) -> tuple[Any, ...]:
        """Return what `_fill` needs of the landmarks."""

    @abstractmethod
    def _fill(self, rows: Array, out: Array, *landmarks: Any) -> None:
        """Write the kernel values of the `rows` of a panel to `out`."""

    def _diagonal(self, rows: Array) -> FloatArray:
        """Return κ(x, x) of the rows of a panel: 1, where it is the same for every x."""
        return np.ones(len(rows))


@dataclass(frozen=True, eq=False)
class Prepared:
    """A kernel prepared for landmarks; picklable and thread-safe.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> landmarks = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> values_of = sp.kernels.Linear().prepare(landmarks)
    >>> values_of(np.array([[1.0, 0.0]]))
    array([[1., 3.]])
    """

    kernel: Kernel
    """The kernel, with its gamma resolved."""
    n_landmarks: int
    """Number of columns of the result."""
    n_features: int
    """Length of a row."""
    dtype: DType
    """Type of the values, float32 or float64."""
    landmarks: tuple[Any, ...]
    """The landmarks, in the form that the kernel needs."""

    def __call__(self, rows: Rows, out: Array | None = None) -> Array:
        """Return the kernel values of `rows` with every landmark, shape ``(n_rows, n_landmarks)``.

        The rows are processed in panels whose values fit in the cache. `out` has the type of the values. Overflow, NaN and
        infinity give infinite values or NaN without a warning; the caller checks the sums of the values.

        Raises
        ------
        ParameterError
            If `rows` are not a table of real numbers with `n_features` columns, or `out` has another shape or type.
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
            for panel in panels(shape[0], self.n_landmarks, self.dtype):
                self.fill(dense(table[panel]), out[panel])
        return out

    def fill(self, rows: Array, out: Array) -> None:
        """Write the kernel values of the `rows` of a panel to `out`."""
        self.kernel._fill(rows, out, *self.landmarks)


def check_parameters(kernel: Kernel, *names: str, signed: tuple[str, ...] = ()) -> None:
    """Convert the fields of these names to finite floats; `ParameterError` if they are no numbers, or below 0 and not `signed`."""
    for name in (*names, *signed):
        value = getattr(kernel, name)
        if value is None and name == "gamma":
            continue
        is_number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
        if not (is_number and np.isfinite(float(value)) and (name in signed or float(value) >= 0)):
            expected = "a finite number" + ("" if name in signed else " of at least 0")
            raise ParameterError(f"{kernel.name} kernel with {name}={value!r}: expected {expected}")
        object.__setattr__(kernel, name, float(value))


@dataclass(frozen=True)
class Scaled(Kernel):
    """A kernel multiplied by a nonnegative number, as ``factor * kernel`` returns it.

    Raises
    ------
    ParameterError
        If the factor is negative or not finite.
    """

    name: ClassVar[str] = "scaled"

    kernel: Kernel
    """The kernel."""
    factor: float
    """The number."""

    def __post_init__(self) -> None:
        check_parameters(self, "factor")
        object.__setattr__(self, "_depth", self.kernel._depth)

    @property
    def constant_diagonal(self) -> bool:
        """Whether κ(x, x) is the same for every x."""
        return bool(self.kernel.constant_diagonal)

    @property
    def definite(self) -> bool | None:
        """Whether every kernel matrix is positive semi-definite; None if unknown."""
        return self.kernel.definite

    def bound(self, n_features: int) -> Kernel:
        """Return the kernel with gamma=None resolved."""
        return Scaled(self.kernel.bound(n_features), self.factor)

    def needs(self, n_features: int) -> Needs:
        """Return the cost of kernel values of rows of `n_features` features."""
        needs = self.kernel.needs(n_features)
        return Needs(needs.columns, needs.values, needs.flops + 1)

    def to_dict(self) -> dict[str, object]:
        """Return the kernel as plain data."""
        return {"name": self.name, "factor": self.factor, "kernel": self.kernel.to_dict()}

    def _landmarks(self, landmarks: FloatArray, dtype: DType) -> tuple[Any, ...]:
        return self.kernel._landmarks(landmarks, dtype)

    def _fill(self, rows: Array, out: Array, *landmarks: Any) -> None:
        self.kernel._fill(rows, out, *landmarks)
        out *= self.factor

    def _diagonal(self, rows: Array) -> FloatArray:
        return self.kernel._diagonal(rows) * self.factor


@dataclass(frozen=True)
class Sum(Kernel):
    """A sum of kernels, as ``kernel + other`` returns it; nested sums are flattened.

    For positive semi-definite terms, the feature space is the direct sum of the feature spaces of the terms. The cost
    is the sum of the costs of the terms.

    Raises
    ------
    ParameterError
        If `terms` is empty, or if a term is not a kernel.

    Examples
    --------
    >>> import streampca as sp
    >>> (sp.kernels.Linear() + (sp.kernels.RBF() + sp.kernels.Cosine())).terms
    (Linear(), RBF(gamma=None), Cosine())
    """

    name: ClassVar[str] = "sum"

    terms: tuple[Kernel, ...]
    """The kernels, at least one; none of them a sum."""

    def __post_init__(self) -> None:
        terms = tuple(self.terms)
        if not terms or not all(isinstance(term, Kernel) for term in terms):
            raise ParameterError(f"a sum of {terms!r}: expected at least one kernel, and kernels only")
        object.__setattr__(self, "terms", tuple(simple for term in terms for simple in _flattened(term, 1.0)))
        object.__setattr__(self, "_depth", 1 + max(term._depth for term in terms))

    @property
    def constant_diagonal(self) -> bool:
        """Whether κ(x, x) is the same for every x."""
        return all(term.constant_diagonal for term in self.terms)

    @property
    def definite(self) -> bool | None:
        """True if all terms are positive semi-definite, False if all are known not to be, else None (depends on the factors)."""
        answers = {term.definite for term in self.terms}
        return answers.pop() if len(answers) == 1 else None

    def bound(self, n_features: int) -> Kernel:
        """Return the kernel with gamma=None resolved in every term."""
        return Sum(tuple(term.bound(n_features) for term in self.terms))

    def needs(self, n_features: int) -> Needs:
        """Return the cost of kernel values of rows of `n_features` features."""
        needs = [term.needs(n_features) for term in self.terms]
        return Needs(
            sum(needs_of_term.columns for needs_of_term in needs),
            1 + sum(needs_of_term.values for needs_of_term in needs),
            sum(needs_of_term.flops for needs_of_term in needs) + len(needs),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the kernel as plain data."""
        return {"name": self.name, "terms": [term.to_dict() for term in self.terms]}

    def _landmarks(self, landmarks: FloatArray, dtype: DType) -> tuple[Prepared, ...]:
        return tuple(term._prepared(landmarks, dtype) for term in self.terms)

    def _fill(self, rows: Array, out: Array, *terms: Prepared) -> None:
        terms[0].fill(rows, out)
        for term in terms[1:]:
            values = borrow(f"kernel term {self._depth}", out.shape, out.dtype)
            term.fill(rows, values)
            out += values

    def _diagonal(self, rows: Array) -> FloatArray:
        total = np.zeros(len(rows))
        for term in self.terms:
            total += term._diagonal(rows)
        return total


def _flattened(term: Kernel, factor: float) -> tuple[Kernel, ...]:
    """Return the terms, multiplied by `factor`, of a kernel that may be a sum or a multiple of one."""
    if isinstance(term, Sum):
        return tuple(simple for inner in term.terms for simple in _flattened(inner, factor))
    if isinstance(term, Scaled):
        return _flattened(term.kernel, factor * term.factor)
    return (term if factor == 1 else Scaled(term, factor),)


@dataclass(frozen=True)
class Standardised(Kernel):
    """κ(z(x), z(y)) with the z-scores z(x) = (x − mean) · factor of rows, for a kernel κ.

    Mean and factor are None before a fit. The fit computes them, and `with_moments` returns the kernel with them. The
    factor is 1 / the standard deviation, or 0 for a feature that never varies, which then has no effect on new rows
    either.

    `KernelPCA` uses it for ``scale=True``. Kernel values are computed in float64.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> kernel = sp.kernels.Standardised(sp.kernels.Linear()).with_moments(np.array([2.0, 3.0]), np.array([1.0, 0.5]))
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> kernel(rows, rows)
    array([[ 1.25, -1.25],
           [-1.25,  1.25]])
    """

    name: ClassVar[str] = "standardised"

    kernel: Kernel
    """The kernel κ."""
    mean: tuple[float, ...] | None = None
    """Mean of each feature; None before a fit."""
    factor: tuple[float, ...] | None = None
    """Factor of each feature; None before a fit."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_depth", 1 + self.kernel._depth)

    @property
    def constant_diagonal(self) -> bool:
        """Whether κ(x, x) is the same for every x."""
        return bool(self.kernel.constant_diagonal)

    @property
    def definite(self) -> bool | None:
        """Whether every kernel matrix is positive semi-definite; None if unknown."""
        return self.kernel.definite

    def with_moments(self, mean: FloatArray, factor: FloatArray) -> Standardised:
        """Return the kernel with mean and factor of each feature, both ``(n_features,)``."""
        return Standardised(self.kernel, tuple(mean.tolist()), tuple(factor.tolist()))

    def bound(self, n_features: int) -> Kernel:
        """Return the kernel with gamma=None resolved."""
        return Standardised(self.kernel.bound(n_features), self.mean, self.factor)

    def needs(self, n_features: int) -> Needs:
        """Return the cost of kernel values of rows of `n_features` features: those of κ, and a copy of the rows."""
        needs = self.kernel.needs(n_features)
        return Needs(needs.columns + 2 * n_features, needs.values, needs.flops + 1)

    def to_dict(self) -> dict[str, object]:
        """Return the kernel as plain data, without mean and factors, which models store as arrays."""
        return {"name": self.name, "kernel": self.kernel.to_dict()}

    def moments(self) -> tuple[FloatArray, FloatArray]:
        """Return mean and factor of each feature; `ParameterError` before a fit has found them."""
        if self.mean is None or self.factor is None:
            raise ParameterError("a standardised kernel without means and deviations: expected one that a fit returned")
        return np.asarray(self.mean), np.asarray(self.factor)

    def standardise(self, rows: Array) -> FloatArray:
        """Return the z-scores of `rows`, ``(n_rows, n_features)``."""
        mean, factor = self.moments()
        scores: FloatArray = (rows - mean) * factor
        return scores

    def restore(self, scores: FloatArray) -> FloatArray:
        """Return the rows that have these z-scores, ``(n_rows, n_features)``; features that never vary have their mean."""
        mean, factor = self.moments()
        rows: FloatArray = mean + np.divide(scores, factor, out=np.zeros_like(scores), where=factor > 0)
        return rows

    def _landmarks(self, landmarks: FloatArray, dtype: DType) -> tuple[Prepared, FloatArray, FloatArray]:
        return self.kernel._prepared(self.standardise(landmarks), dtype), *self.moments()

    def _fill(self, rows: Array, out: Array, inner: Prepared, mean: FloatArray, factor: FloatArray) -> None:
        scores = borrow(f"z-scores {self._depth}", rows.shape, np.float64)
        np.subtract(rows, mean, out=scores)
        scores *= factor
        inner.fill(scores, out)

    def _diagonal(self, rows: Array) -> FloatArray:
        return self.kernel._diagonal(self.standardise(rows))


def kernel_panel_rows(n_values: int, dtype: DType) -> int:
    """Return the number of rows of a panel with `n_values` values of `dtype` per row."""
    low, high = _PANEL_ROWS
    return min(high, max(low, _PANEL_BYTES // max(1, n_values * dtype.itemsize)))


def panels(n_rows: int, n_values: int, dtype: DTypeLike = np.float64) -> Iterator[slice]:
    """Yield panels of `n_rows` rows as slices, for `n_values` values of `dtype` per row."""
    step = kernel_panel_rows(n_values, np.dtype(dtype))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def as_table(X: Rows) -> Array | csr_array:
    """Return `X` as an array, or in csr form if it is sparse; `ParameterError` unless it is a table of real numbers."""
    table = csr_array(X) if issparse(X) else np.asarray(X)
    if table.ndim != 2:
        raise ParameterError(f"rows of shape {table.shape}: expected (n_rows, n_features)")
    if table.dtype.kind not in "fiub":
        raise ParameterError(f"rows of {table.dtype}: expected real numbers")
    return table


def dense(rows: Array | csr_array) -> Array:
    """Return sparse `rows` as a dense array, and a dense array unchanged."""
    return rows if isinstance(rows, np.ndarray) else np.asarray(rows.toarray())


def value_dtype(*dtypes: DType) -> DType:
    """Return the type of kernel values of rows of `dtypes`: float32 if all are floats of at most 4 bytes, else float64."""
    narrow = all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in dtypes)
    return np.dtype(np.float32 if narrow else np.float64)
