"""Rows that cost nothing to read, for what the driver and the scheduler do beside; a module of its own, which workers import."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.sources import ReadCount, Source
from streampca.sources.grid import Grid

_BAND = 262_144  # rows of a chunk: with 16 features 16 MiB, a block, of which a leaf has four


class FreeSource(Source):
    """Rows that are there already: every block is the same few, and waits as long as it is told to."""

    portable = True
    buffered = False

    def __init__(self, n_blocks: int, n_features: int, seconds: float = 0.0, band: int = _BAND):
        self.shape, self.dtype = (n_blocks * band, n_features), np.dtype(np.float32)
        self.grid = Grid(band, chunk_bytes=band * n_features * 4)
        self.description, self.seconds = "rows that cost nothing", seconds

    @property
    def fingerprint(self) -> str:
        """Return what the rows depend on."""
        return f"free {self.shape}"

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> tuple[NDArray[Any], ReadCount]:
        """Return the same rows as ever."""
        if self.seconds:
            time.sleep(self.seconds)
        rows = _rows(stop - start, self.shape[1])
        return rows, ReadCount(1, rows.nbytes, 0)


def _rows(n_rows: int, n_features: int) -> NDArray[np.float32]:
    """Return a row as often as it is asked for, in no memory."""
    return np.broadcast_to(np.arange(n_features, dtype=np.float32), (n_rows, n_features))


class RepeatedSource(Source):
    """Rows that are copied out of a buffer again and again, as many as are asked for."""

    def __init__(self, rows: NDArray[np.float32], n_rows: int):
        self.rows, self.shape, self.dtype = rows, (n_rows, rows.shape[1]), rows.dtype
        self.grid = Grid(8192)
        self.description = "rows that repeat"

    @property
    def fingerprint(self) -> str:
        """Return what the rows depend on."""
        return f"repeated {self.shape}"

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> tuple[NDArray[Any], ReadCount]:
        """Return a copy of the rows, in `out` if given."""
        out = np.empty((stop - start, self.shape[1]), dtype=self.dtype) if out is None else out
        done = 0
        while done < len(out):
            first = (start + done) % len(self.rows)
            size = min(len(out) - done, len(self.rows) - first)
            out[done : done + size] = self.rows[first : first + size]
            done += size
        return out, ReadCount(1, out.nbytes, out.nbytes)
