"""Rows whose missing values are replaced by the means of their features."""

from __future__ import annotations

import numpy as np

from streampca.sources.steps import SLAB_BYTES, Step
from streampca.typing import Array, DType, FloatArray


class Filled(Step):
    """Rows minus a number near the mean of each feature, with a number in place of NaN; dense.

    What is subtracted is exact in the type of the rows, so that means far from zero cost no digits of the rows, nor of the difference
    between them and the means that stand for missing values.

    Parameters
    ----------
    subtracted : array, shape (n_features,)
        What is subtracted from each feature.
    fill : array, shape (n_features,)
        What stands for missing values afterwards.
    dtype : dtype
        The type of the rows then: that of products.
    """

    of_fit = True

    def __init__(self, subtracted: FloatArray, fill: FloatArray, dtype: DType):
        self.subtracted, self.fill, self._dtype = subtracted, fill, dtype

    @property
    def digest(self) -> bytes:
        """Return what is subtracted and filled in."""
        return self.subtracted.tobytes() + self.fill.tobytes()

    def dtype(self, dtype: DType) -> DType:
        """Return the type of products."""
        return self._dtype

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory of the mask of missing values, and of differences in float64."""
        return n_rows * n_features + 2 * SLAB_BYTES

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the rows without missing values to `out`."""
        fill, step = self.fill.astype(self._dtype), max(1, SLAB_BYTES // (8 * values.shape[1]))
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is refused by what reads the rows
            for first in range(0, len(values), step):
                slab = values[first : first + step]
                np.subtract(slab, self.subtracted, out=out[first : first + step], casting="same_kind")
                if values.dtype.kind == "f":
                    np.copyto(out[first : first + step], fill, where=np.isnan(slab))
