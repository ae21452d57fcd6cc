"""Rows without the part that regression on known regressors explains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.block import Block
from streampca.regressors import FittedRegression, RowRegressors
from streampca.sources.steps import SLAB_BYTES, Step
from streampca.system.workspace import borrow
from streampca.typing import Array, DType


def residual_dtype(dtype: DType) -> DType:
    """Return the data type of residuals: float32 for float16 and float32, else float64."""
    return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64)


def subtract_fitted(
    values: Array, rows: RowRegressors, regression: FittedRegression, out: Array, sign: int = -1
) -> Array:
    """Write `values` minus what is fitted to them, the mean included, to `out`, or plus them with `sign` 1; computed in float64.

    The mean is subtracted before, and added after, the part that differs between rows: their sum would be rounded to the
    digits of a mean that may be 1e8 standard deviations.
    """
    step = max(1, SLAB_BYTES // (8 * max(1, values.shape[1])))
    with np.errstate(over="ignore", invalid="ignore"):  # callers check that results are finite
        for start in range(0, len(values), step):
            part = slice(start, min(start + step, len(values)))
            effects = rows.fitted(regression.coefficients, rows.start + part.start, rows.start + part.stop)
            if sign > 0:
                effects += values[part]
                np.add(effects, regression.mean, out=out[part], casting="same_kind")
            else:
                if regression.mean_remainder is not None:
                    effects += regression.mean_remainder
                centred = np.subtract(values[part], regression.mean, dtype=np.float64)
                np.subtract(centred, effects, out=out[part], casting="same_kind")
    return out


class RowResiduals(Step):
    """Rows minus what regression fits to them, so that they have no mean; dense.

    Parameters
    ----------
    rows : RowRegressors
        Regressors of the rows.
    fitted : FittedRegression
        Their coefficients.
    dtype : dtype
        The type of the residuals.
    """

    of_fit = True
    by_place = True
    by_features = True

    def __init__(self, rows: RowRegressors, fitted: FittedRegression, dtype: DType):
        self.rows, self.fitted, self._dtype = rows, replace(fitted, rows=None), dtype

    @property
    def digest(self) -> bytes:
        """Return the regressors and their coefficients."""
        arrays = (self.rows.codes, self.rows.columns, self.fitted.coefficients, self.fitted.mean)
        return b"".join(array.tobytes() for array in arrays)

    def dtype(self, dtype: DType) -> DType:
        """Return the type of the residuals."""
        return self._dtype

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory of what is subtracted from some rows, and of their differences from the mean, in float64."""
        return 2 * SLAB_BYTES

    def slice(self, start: int, stop: int) -> RowResiduals:
        """Return the step with the regressors of rows `start` to `stop` alone."""
        return RowResiduals(self.rows.slice(start, stop), self.fitted, self._dtype)

    def of_block(self, block: Block, *, column_major: bool) -> Block:
        """Return the residuals of rows that have been read, in scratch memory."""
        shape = block.values.shape
        out = borrow("residuals", shape[::-1] if column_major else shape, self._dtype)
        out = out.T if column_major else out
        self.apply(block.values, block.start, out)
        return Block(out, block.start, block.weights)

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the residuals of the rows to `out`."""
        subtract_fitted(values, self.rows.slice(start, start + len(values)), self.fitted, out)

    def apply_features(self, values: Array, start: int, out: Array) -> None:
        """Write the residuals of features from `start` on to `out`."""
        fitted = self.fitted.of_features(start, start + len(values))
        subtract_fitted(values.T, self.rows, fitted, out.T)
