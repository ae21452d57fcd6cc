"""Panels of rows and conversion to dense arrays, for the evaluation of kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import DTypeLike
from scipy.sparse import csr_array, issparse

from streampca.errors import ParameterError
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray, Rows

_PANEL_BYTES = 1 << 20  # kernel values that fit in the cache between the product and the function
_PANEL_ROWS = 64, 1024  # fewer rows make products slow, more rows do not fit in the cache


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


def copied(rows: Array, dtype: DType) -> Array:
    """Return `rows` as a C-ordered array of `dtype`, in scratch memory if a copy is needed."""
    if rows.dtype == dtype and rows.flags.c_contiguous:
        return rows
    out = borrow("kernel rows", rows.shape, dtype)
    np.copyto(out, rows, casting="unsafe")
    return out


def squared_norms(rows: Array) -> FloatArray:
    """Return ‖x‖² of a few `rows` in float64, shape ``(n_rows,)``, independent of the position of a row."""
    wide = copied(rows, np.dtype(np.float64))
    norms: FloatArray = np.einsum("ij,ij->i", wide, wide)
    return norms
