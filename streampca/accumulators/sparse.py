"""Covariance of sparse rows, centred without storing the zeros."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array, issparse

from streampca.accumulators.centring import product_dtype, refuse_overflow
from streampca.accumulators.covariance import Covariance, CovarianceState, panel_rows
from streampca.accumulators.sparse_panels import add_dense_panel
from streampca.block import Block, as_block
from streampca.errors import NotFiniteError
from streampca.linalg.underflow import mark_underflow_of_stored
from streampca.typing import Array, FloatArray, SparseRows

_WEIGHT_BITS = 6  # binary digits of a ratio of weights, and so of a sum of squares, that may be lost


@dataclass(frozen=True)
class SparseCovariance(Covariance):
    """`Covariance` of rows in compressed sparse row form, with the same state, so that it merges with states of dense rows.

    The products of a block are computed about zero, where rows are sparse, and moved to the mean in float64:
    ``M = XᵀX − n m mᵀ``. That loses no digits of a feature with at least as many zeros as other values. Features that are
    stored in more than half of the rows of a block are first shifted by one of their values, zeros included, which at
    most doubles the stored entries. Blocks with more than 5 % stored values are multiplied as dense panels of a few
    thousand rows, which is faster (`add_dense_panel`).

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
    """Least fraction of stored values for which a block is multiplied as dense panels."""

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
        refuse_stored(block.values, block.start)
        block = block.counted()
        rows = csr_array(block.values)
        if rows.nnz < self.dense_from * rows.shape[0] * rows.shape[1]:
            return self._add_sparse(state, rows, block.weights, block.start)
        dtype = product_dtype(rows.dtype, rows.shape[1])
        for panel in block.panels(panel_rows(rows.shape[1], dtype)):
            state = add_dense_panel(self, state, panel, dtype)
        return state

    def _add_sparse(
        self, state: CovarianceState, rows: csr_array, weights: FloatArray | None, start: int
    ) -> CovarianceState:
        n_rows = rows.shape[0]
        if n_rows == 0:
            return state
        columns = csc_array(rows, dtype=np.float64)
        columns, origin = shift_full_columns(columns, weights)
        if weights is not None and not _near_mean(columns, weights):
            return self._add_by_weight(state, rows, weights, start)
        mark_underflow_of_stored(columns)
        total = squares = float(n_rows)
        if weights is not None:
            total, squares = float(weights.sum()), float(weights @ weights)
            offset = np.asarray(columns.T @ weights) / total
            columns.data *= np.sqrt(weights)[columns.indices]
        else:
            offset = np.asarray(columns.sum(axis=0)).ravel() / total
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.asarray(columns.multiply(columns).sum(axis=0)).ravel())
        if not finite.all():
            refuse_overflow(finite, start, n_rows)
        state, step, factor = state.joined((n_rows, total, squares), origin, offset)
        outer = np.stack([step * factor, offset * -total], axis=1), np.stack([step, offset])
        self.grid(len(step)).add_sparse_products(state.scatter, columns, self.n_threads, outer)
        return state

    def _add_by_weight(
        self, state: CovarianceState, rows: csr_array, weights: FloatArray, start: int
    ) -> CovarianceState:
        """Add rows whose weights are within a factor of 64 together, the heaviest first."""
        classes = np.floor(np.log2(weights.max() / weights) / _WEIGHT_BITS)
        for one in np.unique(classes):
            state = self._add_sparse(state, rows[classes == one], weights[classes == one], start)
        return state

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: a dense panel, and a dense and a sparse product for each thread."""
        side = self.grid(n_features).longest_side
        return super().scratch_bytes(n_features, n_rows, itemsize) + self.n_threads * 16 * side**2


def refuse_stored(rows: Array | SparseRows, start: int) -> None:
    """Raise `NotFiniteError` if csr `rows`, with first row `start` of the source, store NaN or infinity."""
    rows = csr_array(rows)
    if rows.dtype.kind != "f":
        return
    bad = ~np.isfinite(rows.data)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        row, column = int(np.searchsorted(rows.indptr, first, "right")) - 1, int(rows.indices[first])
        value = "NaN" if np.isnan(rows.data[first]) else "infinity"
        raise NotFiniteError(
            f"Input contains {value}: first at row {start + row}, column {column} ({int(bad.sum())} such value(s) in rows "
            f"{start} to {start + rows.shape[0] - 1}; reading stopped there): expected finite numbers; clean these values first"
        )


def shift_full_columns(
    columns: csc_array, weights: FloatArray | None = None, near: FloatArray | None = None
) -> tuple[csc_array, FloatArray]:
    """Return `columns` with mostly full columns shifted, and the shifts, ``(n_features,)``.

    Columns that are stored in more than half of the rows are shifted by their number in `near`, or where that is 0 by
    that of their values that is nearest to their mean under `weights`: sums of squares about it are at most twice those
    about the mean. Their zeros become stored entries, so the number of entries at most doubles. All other columns have at
    least as many zeros as other values, so that the same holds for their sums of squares about zero if weights are equal.
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
    """Return that of `values` which is nearest to their weighted mean."""
    mean = values[0] + weights @ (values - values[0]) / weights.sum()
    return float(values[np.argmin(np.abs(values - mean))])


def _near_mean(columns: csc_array, weights: FloatArray) -> bool:
    """Return whether weights differ by at most 64, or sums of squares about zero are at most 64 times those about the mean."""
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
