"""Covariance of sparse rows, centred without storing the zeros."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array, issparse

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.centring import (
    Panel,
    product_dtype,
    refuse_not_finite,
    require_finite,
    safe_panels,
    weights_within_float32,
    within_float32,
)
from streampca.accumulators.covariance import Covariance, CovarianceState, panel_rows
from streampca.block import Block, as_block
from streampca.linalg.scaling import mark_underflow, mark_underflow_of_stored
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, DType, FloatArray, IntArray, override

_WEIGHT_BITS = 6  # binary digits of a ratio of weights, and so of a sum of squares, that may be lost


@dataclass(frozen=True)
class SparseCovariance(Covariance):
    """`Covariance` of rows in compressed sparse row form; it has the same state and merges with states of dense rows.

    The products of a block are computed about zero, where rows are sparse, and moved to the mean in float64:
    ``M = XᵀX − n m mᵀ``. This loses no digits of a feature with at least as many zeros as other values. Features that are
    stored in more than half of the rows of a block are first shifted, zeros included, by one of their values, which at
    most doubles the stored entries. Blocks with more than 5 % stored values are multiplied as dense panels of a few
    thousand rows, which is faster (`dense_panel`).

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.sparse
    >>> import streampca as sp
    >>> rows = scipy.sparse.csr_array([[0.0, 1.0], [0.0, 0.0], [3.0, 2.0]])
    >>> sparse = sp.accumulators.SparseCovariance()
    >>> matrix = sparse.finalize(sparse.update(sparse.init(2), rows)).dense()
    >>> bool(np.allclose(matrix, np.cov(rows.toarray(), rowvar=False)))
    True
    """

    dense_from: float = 0.05
    """Fraction of stored values from which a block is multiplied as dense panels."""

    @override
    def shares(self, n_features: int) -> int:
        return self.grid(n_features).n_tiles

    @override
    def stored_form(self, state: CovarianceState) -> tuple[AnyAccumulator, CovarianceState, int]:
        return Covariance(self.center, self.scale, self.ddof), state, 0

    def update(self, state: CovarianceState, block: Block | Array) -> CovarianceState:
        """Return `state` with the rows of `block`, a csr matrix or array without duplicates, added to it in place.

        Raises
        ------
        NotFiniteError
            If stored values are NaN or infinity, or overflow when squared.
        """
        block = as_block(block)
        if not issparse(block.values):
            return super().update(state, block)
        refuse_not_finite(block.values, block.start)
        block, (_, d) = block.counted(), block.values.shape
        if csr_array(block.values).nnz < self.dense_from * len(block) * d:
            return self._add_sparse(state, block)
        dtype = product_dtype(block.values.dtype, d)
        for panel in block.panels(panel_rows(d, dtype)):
            for one in safe_panels(panel, dtype, dense_panel):
                state = self.add_panel(state, one)
        return state

    def _add_sparse(self, state: CovarianceState, block: Block) -> CovarianceState:
        """Add rows by products of their stored values."""
        weights = block.weights
        if not len(block):
            return state
        columns, origin = shift_full_columns(csc_array(block.values, dtype=np.float64), weights)
        if weights is not None and not _near_mean(columns, weights):
            # Rows whose weights are within a factor of 64 together, the heaviest first.
            classes = np.floor(np.log2(weights.max() / weights) / _WEIGHT_BITS)
            for one in np.unique(classes):
                state = self._add_sparse(state, block.where(classes == one))
            return state
        mark_underflow_of_stored(columns)
        total, squares = block.weight_sums()
        if weights is not None:
            offset = np.asarray(columns.T @ weights) / total
            columns.data *= np.sqrt(weights)[columns.indices]
        else:
            offset = np.asarray(columns.sum(axis=0)).ravel() / total
        with np.errstate(over="ignore"):
            require_finite(np.isfinite(np.asarray(columns.multiply(columns).sum(axis=0)).ravel()), block)
        state, step, factor = state.joined((len(block), total, squares), origin, offset)
        outer = np.stack([step * factor, offset * -total], axis=1), np.stack([step, offset])
        self.grid(len(step)).add_sparse_products(state.scatter, columns, self.n_threads, outer)
        return state

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: a dense panel, and a dense and a sparse product for each thread."""
        side = self.grid(n_features).longest_side
        return super().scratch_bytes(n_features, n_rows, itemsize) + self.n_threads * 16 * side**2


def shift_full_columns(
    columns: csc_array, weights: FloatArray | None = None, near: FloatArray | None = None
) -> tuple[csc_array, FloatArray]:
    """Return `columns` with mostly full columns shifted, and the shifts, ``(n_features,)``.

    Columns that are stored in more than half of the rows are shifted by their number in `near`, or, if that is 0, by the
    value nearest to their mean under `weights`. Sums of squares about it are at most twice the sums about the mean. Their
    zeros become stored entries, so the number of entries at most doubles. All other columns have at least as many zeros
    as other values, so the same holds for their sums of squares about zero if weights are equal.
    """
    n_rows, counts = columns.shape[0], np.diff(columns.indptr)
    origin = np.zeros(columns.shape[1])
    mostly = np.flatnonzero(2 * counts > n_rows)
    if len(mostly) == 0:
        return columns, origin
    if (counts[mostly] < n_rows).any():
        columns = _filled(columns, mostly)
    for j in mostly:
        column = slice(columns.indptr[j], columns.indptr[j + 1])
        values = columns.data[column]
        origin[j] = 0.0 if near is None else near[j]
        if origin[j] == 0:
            origin[j] = values[0] if weights is None else _nearest(values, weights[columns.indices[column]])
        columns.data[column] -= origin[j]
    return columns, origin


def _nearest(values: FloatArray, weights: FloatArray) -> float:
    """Return the element of `values` nearest to their weighted mean."""
    mean = values[0] + weights @ (values - values[0]) / weights.sum()
    return float(values[np.argmin(np.abs(values - mean))])


def _near_mean(columns: csc_array, weights: FloatArray) -> bool:
    """Return whether weights differ by at most a factor of 64, or sums of squares about zero are at most 64 times the sums about the mean."""
    if weights.max() <= 2.0**_WEIGHT_BITS * weights.min():
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.asarray(columns.multiply(columns).T @ weights)
        sums = np.asarray(columns.T @ weights)
        return bool((squares - sums**2 / weights.sum() >= squares * 2.0**-_WEIGHT_BITS).all())


def _filled(columns: csc_array, which: NDArray[np.intp]) -> csc_array:
    """Return `columns` with all entries of the columns `which` stored."""
    n_rows, counts = columns.shape[0], np.diff(columns.indptr)
    full = np.zeros(len(counts), dtype=bool)
    full[which] = True
    edges = np.concatenate([[0], np.cumsum(np.where(full, n_rows, counts))])
    column = np.repeat(np.arange(len(counts)), counts)
    within = np.where(full[column], columns.indices, np.arange(len(column)) - columns.indptr[column])
    data, indices = np.zeros(edges[-1]), np.empty(edges[-1], dtype=np.int64)
    data[edges[column] + within] = columns.data
    indices[edges[column] + within] = columns.indices
    for j in which:
        indices[edges[j] : edges[j + 1]] = np.arange(n_rows)
    return csc_array((data, indices, edges), shape=columns.shape)


_MOST_SQUARES = 2.0  # times those about the mean: products about zero lose one binary digit at most
_LEAST_SQUARES = 1e-290  # below this sums of squares may have lost digits to underflow
_STRIP = 64  # features that are shifted at a time


def dense_panel(panel: Block, dtype: DType) -> Panel | None:
    """Return finite sparse rows without duplicates as a dense panel; None if `dtype` is float32 and their products would lose digits.

    Zeros remain zeros. In a centred panel they become many copies of one small number; float32 rounds the products of such
    numbers the same way in every sum, so the products would have to be repeated in float64. Only features whose sum of
    squares about zero is more than twice the sum about the mean are shifted, by their value nearest to the mean.

    Raises
    ------
    NotFiniteError
        If squares overflow float64.
    """
    rows, weights = csr_array(panel.values), panel.weights
    if dtype == np.float32 and weights is not None and not weights_within_float32(weights):
        return None
    counts = (len(panel), *panel.weight_sums())
    total = counts[1]
    sums, squares = _sums(rows, weights)
    require_finite(np.isfinite(squares), panel)
    values = borrow("dense rows", rows.shape, dtype)
    rows.astype(dtype, copy=False).toarray(out=values)
    origin, offset = np.zeros(len(sums)), sums / total
    far = np.flatnonzero((squares > _MOST_SQUARES * (squares - sums * offset)) | _unsafe(rows, squares))
    for first in range(0, len(far), _STRIP):
        _shift(values, weights, total, far[first : first + _STRIP], (origin, offset, squares))
    if weights is not None:
        values *= np.sqrt(weights).astype(dtype)[:, None]
    mark_underflow(values, squares)
    if dtype == np.float32 and not within_float32(squares, values):
        return None
    return Panel(values, origin, offset, offset, None if dtype == np.float64 else squares, counts)


def _sums(rows: csr_array, weights: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Return the weighted sums of each column and of its squares, ``(n_features,)``."""
    values: FloatArray = rows.data.astype(np.float64)
    weighted = values if weights is None else values * np.repeat(weights, np.diff(rows.indptr))
    sums = np.bincount(rows.indices, weighted, rows.shape[1])
    with np.errstate(over="ignore", under="ignore"):
        squares = np.bincount(rows.indices, weighted * values, rows.shape[1])
    return sums.astype(np.float64), squares.astype(np.float64)  # for a panel that stores nothing, too


def _unsafe(rows: csr_array, squares: FloatArray) -> BoolArray:
    """Return which columns are not all zero but have squares that are 0 or may have lost digits to underflow."""
    unsafe: BoolArray = squares < _LEAST_SQUARES
    if rows.dtype == np.float64:  # no other type has so small numbers
        used = np.zeros(len(squares), dtype=bool)
        used[rows.indices[rows.data != 0]] = True
        return unsafe & used
    return np.zeros_like(unsafe)


def _shift(
    panel: Array,
    weights: FloatArray | None,
    total: float,
    columns: IntArray,
    figures: tuple[FloatArray, FloatArray, FloatArray],
) -> None:
    """Subtract from `columns` of a panel their values nearest to their means; write origins, offsets and squares to `figures`."""
    origin, offset, squares = figures
    values = panel[:, columns]
    nearest = np.argmin(np.abs(values - offset[columns]), axis=0)
    shifts = values[nearest, np.arange(len(columns))]
    values -= shifts
    panel[:, columns] = values
    shifted: FloatArray = values.astype(np.float64)
    weighted = shifted if weights is None else shifted * weights[:, None]
    origin[columns], offset[columns] = shifts, weighted.sum(axis=0) / total
    with np.errstate(under="ignore"):
        squares[columns] = np.einsum("ij,ij->j", weighted, shifted)
