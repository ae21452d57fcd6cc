"""QR factor of the centred rows in one pass, for exact PCA with accurate small singular values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from streampca.accumulators.base import Accumulator, StateAboutOrigin, require_same_layout
from streampca.accumulators.centring import centre, require_finite, step_between
from streampca.accumulators.covariance import panel_rows
from streampca.block import Block, as_block
from streampca.errors import StreamPCAError
from streampca.linalg.eigen import positive_divisor
from streampca.linalg.scaling import Scale, refuse_underflow, scaling_of, sums_about_zero
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow
from streampca.typing import Array, FloatArray, override

_N_ARGUMENTS = 12
"""Arguments of LAPACK's ``tpqrt``."""
_ARRAYS = (4, 6, 8, 10)
"""Indices of the array arguments."""


@storable
@dataclass(frozen=True)
class TriangleState(StateAboutOrigin):
    """Mean and triangular factor of the accumulated rows."""

    n_samples: int
    """Number of rows of positive weight."""
    weight: float
    """Sum of their weights; the number of rows if no weights are given."""
    origin: FloatArray
    """A number near the mean of each feature, shape ``(n_features,)``."""
    offset: FloatArray
    """Mean of each feature minus `origin`, shape ``(n_features,)``."""
    factor: FloatArray
    """Upper triangular R with RᵀR = Σ (x − mean)(x − mean)ᵀ, columns contiguous, shape ``(n_features, n_features)``."""

    def joined(
        self, n_rows: int, weight: float, origin: FloatArray, offset: FloatArray
    ) -> tuple[TriangleState, FloatArray]:
        """Return the state with more rows of mean ``origin + offset`` except their factor, and √(n₁ n₂ / n) times the difference of the means."""
        first, before = (origin, offset) if self.n_samples == 0 else (self.origin, self.offset)
        step, total = step_between(first, before, origin, offset), self.weight + weight
        share = weight / total
        state = TriangleState(self.n_samples + n_rows, total, first, before + step * share, self.factor)
        return state, step * np.sqrt(self.weight * share)


@dataclass(frozen=True)
class Factored:
    """A matrix B such that BᵀB / (W − ddof) is the covariance matrix, for an SVD without squared singular values."""

    factor: FloatArray
    """Triangular factor of the centred rows; shares memory with the state, so it must not be changed."""
    weights: FloatArray
    """Weight of each feature: 1, or 1 / divisor and 0 for constant features; ``(n_features,)``."""
    offset: FloatArray | None
    """√W times the mean for second moments about zero, ``(n_features,)``; otherwise None."""
    divisor: float
    """W − ddof, where W is the sum of the weights, or the number of rows without weights."""
    mean: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    variance: FloatArray
    """Variance of each feature about its mean, ``(n_features,)``."""
    n_samples: int
    """Number of rows."""

    def rows(self) -> FloatArray:
        """Return B as a new array, ``(n_features, n_features)`` or, about zero, one row more."""
        d = len(self.mean)
        matrix = np.empty((d + (self.offset is not None), d), order="F")
        np.multiply(self.factor, self.weights, out=matrix[:d])
        if self.offset is not None:
            matrix[d] = self.offset * self.weights
        return matrix

    def multiply(self, vectors: FloatArray) -> FloatArray:
        """Return the covariance times `vectors`, both ``(n_features, n_vectors)``."""
        weighted = vectors * self.weights[:, None]
        product: FloatArray = self.factor.T @ (self.factor @ weighted)
        if self.offset is not None:
            product += self.offset[:, None] * (self.offset @ weighted)
        product *= (self.weights / self.divisor)[:, None]
        return product


@dataclass(frozen=True)
class QRFactor(Accumulator[TriangleState, Factored]):
    """Triangular factor R of a tall matrix of centred rows, by orthogonal transformations alone.

    A panel of centred rows X, and the step δ between the means, are annihilated against R by Householder reflections:
    ``R ← qr([R; X; √(n₁ n₂ / n) δ])`` (LAPACK ``tpqrt``, which exploits that R is triangular). Two factors are merged in
    the same way (Demmel, Grigori, Hoemmen & Langou 2012). Nothing is squared, so singular values are accurate down to
    1e-15 of the first, whereas a covariance matrix loses those below 1e-7. All computations are in float64. Cost: 2 n d²
    flops, two to four times the time of float64 products; 8 d² bytes.

    References
    ----------
    Demmel, Grigori, Hoemmen & Langou (2012), Communication-optimal parallel and sequential QR and LU factorizations.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 4))
    >>> qr = sp.accumulators.QRFactor()
    >>> state = qr.update(qr.init(4), rows)
    >>> centred = rows - rows.mean(axis=0)
    >>> bool(np.allclose(state.factor.T @ state.factor, centred.T @ centred))
    True
    """

    center: bool = True
    """Subtract the mean; otherwise use second moments about zero."""
    scale: Scale = False
    """Divide features by their standard deviations, or variables by the roots of their variances (of the same `ddof`)."""
    ddof: int = 1
    """Variances are divided by n − ddof."""

    @override
    def for_reading(self) -> QRFactor:
        return replace(self, center=True, scale=False, ddof=1)

    @override
    def init(self, n_features: int) -> TriangleState:
        factor = np.zeros((n_features, n_features), order="F")
        return TriangleState(0, 0.0, np.zeros(n_features), np.zeros(n_features), factor)

    def update(self, state: TriangleState, block: Block | Array) -> TriangleState:
        """Return `state` with the rows of `block`, shape ``(n_rows, n_features)``, added to it in place.

        A row of weight w counts as w rows (frequency weights): weights need not be integers.

        Raises
        ------
        NotFiniteError
            If the rows hold NaN or infinity, or overflow when squared.
        """
        block = as_block(block)
        for panel in block.panels(panel_rows(block.values.shape[1], np.dtype(np.float64))):
            state = self._add_panel(state, panel.counted())
        return state

    def _add_panel(self, state: TriangleState, panel: Block) -> TriangleState:
        n_rows, d = panel.values.shape
        if n_rows == 0:
            return state
        below = borrow("below", (d, n_rows + 1), np.float64).T  # contiguous columns, as LAPACK requires
        rows = below[:n_rows]
        centred = centre(panel.values, rows)
        require_finite(centred.finite, panel)
        (total, _), offset = panel.weight_sums(), centred.offset
        if panel.weights is not None:
            offset = panel.weights @ rows / total
        rows -= offset
        if panel.weights is not None:
            rows *= np.sqrt(panel.weights)[:, None]
        state, below[n_rows] = state.joined(n_rows, total, centred.origin, offset)
        annihilate(state.factor, below, width=_width(d))
        return state

    def absorb(self, state: TriangleState, other: TriangleState) -> TriangleState:
        """Return the merged state, in the memory of `state`; `MergeError` if the features differ."""
        require_same_layout(state, other, (state.factor.size, other.factor.size), "features")
        if other.n_samples == 0:
            return state
        if state.n_samples == 0:
            state.factor[...] = other.factor
            return replace(other, factor=state.factor)
        d = len(state.origin)
        below = borrow("below", (d, d + 1), np.float64).T
        state, below[0] = state.joined(other.n_samples, other.weight, other.origin, other.offset)
        below[1:] = other.factor
        annihilate(state.factor, below, width=_width(d), n_triangular=d)
        return state

    def finalize(self, state: TriangleState) -> Factored:
        """Return the matrix whose singular vectors are the principal components; shares memory with `state`."""
        divisor = positive_divisor(state.n_samples, state.weight, self.ddof)
        squares = np.einsum("ij,ij->j", state.factor, state.factor)
        centred = self.center or self.scale
        squares_that_count = squares if centred else sums_about_zero(squares, state.mean, state.weight)
        refuse_underflow(squares_that_count, state.weight, scale=scaling_of(self.scale))
        variance = squares / divisor
        weights = scaling_of(self.scale).weights(variance, state.mean)
        offset = None if self.center else state.mean * np.sqrt(state.weight)
        return Factored(state.factor, weights, offset, divisor, state.mean, variance, state.n_samples)

    @override
    def state_bytes(self, n_features: int) -> int:
        return 8 * (n_features**2 + 2 * n_features)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of updates with blocks of `n_rows` rows, and of a merge."""
        panel = min(n_rows, panel_rows(n_features, np.dtype(np.float64)))
        return 8 * n_features * (max(panel, n_features) + 1 + 4 * _width(n_features))


def _width(n_features: int) -> int:
    """Return the block size of the reflections, which affects the bits of the result."""
    return min(n_features, 32 if n_features <= 512 else 64)


def annihilate(factor: FloatArray, below: FloatArray, *, width: int, n_triangular: int = 0) -> None:
    """Replace `factor` by R of the QR decomposition of `factor` on top of `below`; both are overwritten.

    Calls LAPACK's ``tpqrt`` through the address that scipy exports for Cython, because scipy's Python wrapper holds the
    global interpreter lock and would serialise the threads.

    Parameters
    ----------
    factor : float64 array, shape (n, n)
        Upper triangular, columns contiguous; entries below the diagonal are not used.
    below : float64 array, shape (m, n)
        Columns contiguous.
    width : int
        Block size of the reflections, which affects the bits of the result.
    n_triangular : int
        Number of last rows of `below` that form an upper triangular matrix.
    """
    m, n = below.shape
    for array in (factor, below):
        if array.dtype != np.float64 or not array.flags.f_contiguous or not array.flags.writeable:
            raise StreamPCAError("tpqrt needs writeable float64 arrays with contiguous columns")
    reflectors, work = (borrow(f"tpqrt {name}", (n, width), np.float64) for name in ("reflectors", "work"))
    info = ctypes.c_int(0)
    numbers = [ctypes.c_int(number) for number in (m, n, n_triangular, width, n, m, width)]
    rows, columns, triangular, block, factor_stride, below_stride, reflectors_stride = numbers
    _tpqrt()(
        *(rows, columns, triangular, block),
        *(factor.ctypes.data, factor_stride),
        *(below.ctypes.data, below_stride),
        *(reflectors.ctypes.data, reflectors_stride),
        *(work.ctypes.data, info),
    )
    if info.value != 0:
        raise StreamPCAError(f"LAPACK's tpqrt refused argument {-info.value}")


@cache
def _tpqrt() -> Callable[..., None]:
    """Return ``dtpqrt`` as a ctypes function, after checking its signature."""
    from scipy.linalg import cython_lapack

    capsule = cython_lapack.__pyx_capi__["dtpqrt"]
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature: bytes = name_of(capsule)
    kinds = [argument.strip() for argument in signature.decode().partition("(")[2].rstrip(")").split(",")]
    if len(kinds) != _N_ARGUMENTS or any((kind == "int *") == (i in _ARRAYS) for i, kind in enumerate(kinds)):
        raise StreamPCAError(
            f"scipy's tpqrt takes {signature.decode()}: this version of scipy is not supported by solver='qr'"
        )
    number = ctypes.POINTER(ctypes.c_int)
    types = [ctypes.c_void_p if i in _ARRAYS else number for i in range(_N_ARGUMENTS)]
    return ctypes.CFUNCTYPE(None, *types)(pointer_of(capsule, signature))
