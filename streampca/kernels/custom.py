"""Kernels given by a user's function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import ParameterError
from streampca.kernels.base import Kernel, Needs, Prepared
from streampca.typing import Array, DType, FloatArray

_DIAGONAL_ROWS = 16


@dataclass(frozen=True)
class Custom(Kernel):
    """κ given by a function of two blocks of rows, ``function(X, Y) -> (len(X), len(Y))``.

    The function should be symmetric and deterministic; several threads call it with a few rows at a time. `check_kernel`
    checks whether it is positive semi-definite on given rows. Picklable if the function is (not a lambda).

    Raises
    ------
    ParameterError
        If the function is not callable; later, if it does not return real numbers of shape ``(len(X), len(Y))``.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> def overlap(X, Y):
    ...     return np.minimum(X[:, None], Y).sum(axis=2)
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> sp.kernels.Custom(overlap)(rows, rows)
    array([[3., 3.],
           [3., 7.]])
    """

    name: ClassVar[str] = "custom"
    definite: ClassVar[bool | None] = None

    function: Callable[..., ArrayLike]
    """The function."""
    parameters: tuple[tuple[str, object], ...] = ()
    """Names and values of its keyword arguments."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ParameterError(f"function={self.function!r}: expected a callable on two blocks of rows")

    def needs(self, n_features: int) -> Needs:
        """Return the cost of kernel values of rows of `n_features` features, with an estimate for the function."""
        return Needs(n_features, 2, 20.0 * n_features)

    def to_dict(self) -> dict[str, object]:
        """Raise `ParameterError`, because a function cannot be stored as data."""
        raise ParameterError(
            f"the kernel is the function {getattr(self.function, '__qualname__', self.function)!r}, which cannot be saved: "
            "expected one of the kernels of streampca.kernels"
        )

    def values(self, rows: Array, landmarks: Array) -> Array:
        """Return the values of the function for two blocks; `ParameterError` if they are not a matrix of the right shape."""
        values = np.asarray(self.function(rows, landmarks, **dict(self.parameters)))
        shape = len(rows), len(landmarks)
        if values.shape != shape or values.dtype.kind not in "fiub":
            raise ParameterError(
                f"the kernel function returned {values.dtype} {values.shape} for blocks of {shape[0]} and {shape[1]} rows: "
                f"expected real numbers of shape {shape}, the kernel value of every row of the first with every row of the "
                "second (a function of two single rows has to be applied to all pairs)"
            )
        return values

    def _prepare(self, landmarks: FloatArray, dtype: DType) -> Prepared:
        return PreparedFunction(self, len(landmarks), landmarks.shape[1], dtype, landmarks.astype(dtype))

    def _diagonal(self, rows: Array) -> FloatArray:
        out = np.empty(len(rows))
        for start in range(0, len(rows), _DIAGONAL_ROWS):
            panel = rows[start : start + _DIAGONAL_ROWS]
            out[start : start + len(panel)] = self.values(panel, panel).diagonal()
        return out


@dataclass(frozen=True, eq=False)
class PreparedFunction(Prepared):
    """A user's kernel and the landmarks."""

    kernel: Custom
    landmarks: Array
    """Shape ``(n_landmarks, n_features)``, of `dtype`."""

    def fill(self, rows: Array, out: Array) -> None:
        """Write the kernel values of the `rows` of a panel to `out`."""
        np.copyto(out, self.kernel.values(rows.astype(self.dtype), self.landmarks), casting="same_kind")
