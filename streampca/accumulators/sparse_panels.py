"""Panels of sparse rows that are multiplied as dense ones: about zero, but for features far from it."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from streampca.accumulators.centring import refuse_overflow
from streampca.accumulators.covariance import (
    Covariance,
    CovarianceState,
)
from streampca.accumulators.single_precision import weights_within_float32, within_float32
from streampca.block import Block
from streampca.linalg.underflow import mark_underflow
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, DType, FloatArray, IntArray

_MOST_SQUARES = 2.0  # times those about the mean: products about zero lose one binary digit at most
_LEAST_SQUARES = 1e-290  # below this sums of squares may have lost digits to underflow
_STRIP = 64  # features that are shifted at a time


def add_dense_panel(accumulator: Covariance, state: CovarianceState, panel: Block, dtype: DType) -> CovarianceState:
    """Return `state` with finite sparse rows without duplicates added to it in place, by a dense product in `dtype`.

    Zeros stay zeros, unlike in a centred panel, where they become one small number many times over: float32 rounds the
    products of such numbers the same way in every sum, so that they would have to be repeated in float64. Only features whose
    sum of squares about zero is more than twice that about the mean are shifted, by their value nearest to the mean.

    Raises
    ------
    NotFiniteError
        If squares overflow float64.
    """
    rows, weights = csr_array(panel.values), panel.weights
    if not len(panel):
        return state
    if dtype == np.float32 and weights is not None and not weights_within_float32(weights):
        return _in_float64(accumulator, state, panel)
    total, squares_of_weights = panel.weight_sums()
    sums, squares = _sums(rows, weights)
    if not np.isfinite(squares).all():
        refuse_overflow(np.isfinite(squares), panel.start, len(panel))
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
        return _in_float64(accumulator, state, panel)
    state, step, factor = state.joined((len(panel), total, squares_of_weights), origin, offset)
    exact = None if dtype == np.float64 else squares
    accumulator.add_scatter(state.scatter, values, step, factor, offset, total, exact)
    return state


def _in_float64(accumulator: Covariance, state: CovarianceState, panel: Block) -> CovarianceState:
    """Add a panel that leaves the range of float32, in two halves to limit the scratch memory."""
    for half in panel.halves():
        state = add_dense_panel(accumulator, state, half, np.dtype(np.float64))
    return state


def _sums(rows: csr_array, weights: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Return the weighted sum of each column and that of its squares, ``(n_features,)``."""
    values: FloatArray = rows.data.astype(np.float64)
    weighted = values if weights is None else values * np.repeat(weights, np.diff(rows.indptr))
    sums = np.bincount(rows.indices, weighted, rows.shape[1])
    with np.errstate(over="ignore", under="ignore"):
        squares = np.bincount(rows.indices, weighted * values, rows.shape[1])
    return sums.astype(np.float64), squares.astype(np.float64)  # for a panel that stores nothing, too


def _unsafe(rows: csr_array, squares: FloatArray) -> BoolArray:
    """Return which columns are not all zero although their squares are 0 or may have lost digits to underflow."""
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
    """Subtract from `columns` of a panel their values nearest to their means; their origins, offsets and squares are put into `figures`."""
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
