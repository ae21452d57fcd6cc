"""Training rows of a kernel model that stay on disk: one band of them is in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from streampca.models.stored_array import StoredArray
from streampca.typing import Array, DType

BAND_ROWS = 1024
"""Rows of a band, which is a chunk of the stored array."""


class StoredRows(StoredArray):
    """Rows in a zarr array whose chunks hold all features of `BAND_ROWS` rows; `dtype` is the type in which they are read."""

    contents = "rows"

    @classmethod
    def open(cls, path: Path) -> StoredRows:
        """Return the rows in the zarr array at `path`."""
        import zarr

        array = zarr.open_array(path, mode="r")
        return cls(path, (array.shape[0], array.shape[1]), array.dtype)

    @classmethod
    def create(cls, path: Path, shape: tuple[int, int], dtype: DType, keep: object = None) -> StoredRows:
        """Return new rows of `shape` at `path`, not compressed; `keep` lives at least as long as their array."""
        cls._create(path, shape, (min(BAND_ROWS, shape[0]), shape[1]), dtype)
        return cls(path, shape, dtype, keep)

    def __reduce__(self) -> tuple[object, ...]:
        return StoredRows, (self.path, self.shape, self.dtype)

    def __getitem__(self, rows: int | slice | Array) -> Array:
        """Return some rows; `rows` is a number, a slice, or numbers in ascending order."""
        array = self.array
        with self.reading():
            if not isinstance(rows, slice) or rows.step not in (None, 1):
                return np.asarray(array.oindex[rows], dtype=self.dtype)
            start, stop, _ = rows.indices(len(self))
            values = np.empty((max(0, stop - start), self.shape[1]), self.dtype)
            for first in range(start, stop, BAND_ROWS):  # zarr copies all that it reads at once
                last = min(first + BAND_ROWS, stop)
                values[first - start : last - start] = array[first:last]
            return values

    def astype(self, dtype: DTypeLike, *, copy: bool = False) -> StoredRows:
        """Return the same rows, read as `dtype`; nothing is copied."""
        return StoredRows(self.path, self.shape, np.dtype(dtype), self._keep)

    def write(self, start: int, values: Array) -> None:
        """Write rows from row `start` on."""
        with self.writing():
            self.writable[start : start + len(values)] = values

    def bands(self) -> Iterator[tuple[slice, Array]]:
        """Yield runs of `BAND_ROWS` rows, and these rows."""
        for start in range(0, len(self), BAND_ROWS):
            band = slice(start, min(start + BAND_ROWS, len(self)))
            yield band, self[band]


def survey_rows(rows: StoredRows, each: Callable[[slice, Array], object] | None = None) -> tuple[bool, str]:
    """Read all rows once; return whether every number is finite, and their SHA-256 in C order; `each` is called with every band."""
    finite, digest = True, hashlib.sha256()
    for band, values in rows.bands():
        if each is not None:
            each(band, values)
        finite = finite and bool(np.isfinite(values).all())
        digest.update(np.ascontiguousarray(values).data)
    return finite, digest.hexdigest()
