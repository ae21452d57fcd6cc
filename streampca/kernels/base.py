"""What every kernel offers, and the panels of rows in which kernel values are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array, issparse

from streampca.errors import ParameterError
from streampca.workspace import borrow

FloatArray = NDArray[np.float64]

_PANEL_BYTES = 1 << 20  # kernel values that stay in the cache between the product and the function
_PANEL_ROWS = 64, 1024  # below, products lose speed; above, the scratch copy of the rows leaves the cache
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

    @staticmethod
    def from_dict(document: dict[str, Any]) -> Kernel:
        """Return the kernel that `to_dict` made `document` of; `ParameterError` if there is none."""
        from streampca.kernels.choosing import kernel_from_dict

        return kernel_from_dict(document)

    def __add__(self, other: Any) -> Kernel:
        from streampca.kernels.sums import Sum

        if isinstance(other, int | float) and other == 0:  # where sum() starts
            return self
        return Sum((self, other)) if isinstance(other, Kernel) else NotImplemented

    __radd__ = __add__

    def __mul__(self, factor: Any) -> Kernel:
        from streampca.kernels.sums import Scaled

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


def panel_rows(n_values: int, dtype: np.dtype[Any]) -> int:
    """Return how many rows of `n_values` values of `dtype` are taken at a time."""
    low, high = _PANEL_ROWS
    return min(high, max(low, _PANEL_BYTES // max(1, n_values * dtype.itemsize)))


def panels(n_rows: int, n_values: int, dtype: DTypeLike = np.float64) -> Iterator[slice]:
    """Yield slices of `n_rows` rows of which each has `n_values` values of `dtype`."""
    step = panel_rows(n_values, np.dtype(dtype))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def as_table(X: Any) -> Any:
    """Return `X` as an array, or in csr form if it is sparse; `ParameterError` unless it is a table of real numbers."""
    stored = issparse(X)
    table: Any = X
    table = csr_array(table) if stored else np.asarray(table)
    if table.ndim != 2:
        raise ParameterError(f"rows of shape {table.shape}: expected (n_rows, n_features)")
    if table.dtype.kind not in "fiub":
        raise ParameterError(f"rows of {table.dtype}: expected real numbers")
    return table


def dense(rows: Any) -> NDArray[Any]:
    """Return sparse `rows` as an array, an array as it is."""
    return rows if isinstance(rows, np.ndarray) else np.asarray(rows.toarray())


def value_dtype(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of kernel values of rows of `dtypes`: float32 if all are floats of at most 4 bytes, else float64."""
    narrow = all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in dtypes)
    return np.dtype(np.float32 if narrow else np.float64)


def copied(rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `rows` as a C-ordered array of `dtype`, in scratch memory unless they are one."""
    if rows.dtype == dtype and rows.flags.c_contiguous:
        return rows
    out = borrow("kernel rows", rows.shape, dtype)
    np.copyto(out, rows, casting="unsafe")
    return out


def squared_norms(rows: NDArray[Any]) -> FloatArray:
    """Return ‖x‖² of a few `rows` in float64, shape ``(n_rows,)``, each row summed alike wherever it stands."""
    wide = copied(rows, np.dtype(np.float64))
    norms: FloatArray = np.einsum("ij,ij->i", wide, wide)
    return norms


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
