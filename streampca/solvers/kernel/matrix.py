"""The kernel matrix of rows that are all in memory: made by pairs of blocks, multiplied with its centring left implicit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streampca.accumulators.centring import work_dtype
from streampca.accumulators.kernel_features import in_panel
from streampca.accumulators.rows import RowsState
from streampca.errors import NotFiniteError
from streampca.execution.leaf import read_ahead
from streampca.linalg.tiles import spread
from streampca.models.stored_rows import StoredRows
from streampca.planning.memory.kernel import PAIR_SIDE
from streampca.planning.shape import Leaf
from streampca.solvers.kernel.solving import DenseMatrix
from streampca.solvers.options import RunOptions
from streampca.sources.base import ReadCount, Source
from streampca.sources.schedule import Schedule
from streampca.storage.directories import require_space
from streampca.storage.scratch import Scratch
from streampca.system.workspace import borrow, release
from streampca.typing import Array, DType, FloatArray

if TYPE_CHECKING:
    from streampca.kernels import Kernel
    from streampca.solvers.quality import QualityReading


@dataclass(frozen=True)
class KernelMatrix(DenseMatrix):
    """A symmetric matrix K, or HKH with H = 1 − 11ᵀ/n where it is centred; `values` is K, ``(n, n)``, float32 or float64."""

    means: FloatArray
    """Mean of each row of K, ``(n,)``."""
    center: bool
    """Whether HKH is meant."""
    n_threads: int
    """Threads for products."""

    @property
    def diagonal(self) -> FloatArray:
        """Return the diagonal, ``(n,)``."""
        diagonal = self.values.diagonal().astype(np.float64)
        return diagonal - 2 * self.means + self.means.mean() if self.center else diagonal

    def multiply(self, vectors: FloatArray) -> FloatArray:
        """Return the matrix times `vectors`, ``(n, p)``: products of blocks in the type of K, their sums in float64."""
        n = len(self.values)
        if self.center:
            vectors = vectors - vectors.mean(axis=0)
        narrow = vectors.astype(self.values.dtype, copy=False)
        product = np.zeros_like(vectors)

        def band(first: int) -> None:
            rows = slice(first, first + PAIR_SIDE)
            for start in range(0, n, PAIR_SIDE):
                columns = slice(start, start + PAIR_SIDE)
                product[rows] += self.values[rows, columns] @ narrow[columns]

        spread(band, range(0, n, PAIR_SIDE), self.n_threads)
        if self.center:
            product -= product.mean(axis=0)
        return product

    def dense(self) -> FloatArray:
        """Return the matrix as a new array, ``(n, n)``."""
        matrix = self.values.astype(np.float64)
        if self.center:
            matrix -= self.means
            matrix -= (self.means - self.means.mean())[:, None]
        return matrix


def kernel_matrix(kernel: Kernel, rows: Array, dtype: DType, *, center: bool, n_threads: int) -> KernelMatrix:
    """Return the kernel matrix of `rows`, ``(n, n_features)``, in `dtype`: half of n² kernel values, on all threads.

    Raises
    ------
    NotFiniteError
        If a kernel value overflows.
    """
    n = len(rows)
    rows = rows.astype(dtype, copy=False)
    values = np.empty((n, n), dtype)
    bands = [slice(start, min(n, start + PAIR_SIDE)) for start in range(0, n, PAIR_SIDE)]

    @np.errstate(over="ignore", invalid="ignore")
    def column(j: int) -> None:
        prepared = kernel.prepare(rows[bands[j]])
        for i in range(j, len(bands)):
            shape = (bands[i].stop - bands[i].start, bands[j].stop - bands[j].start)
            block = prepared(rows[bands[i]], out=borrow("kernel values", shape, dtype))
            if not np.isfinite(block.sum(dtype=np.float64)):
                raise NotFiniteError(
                    f"kernel values of rows {bands[i].start} to {bands[i].stop - 1} overflow {dtype}: rescale the data first"
                )
            if i == j:
                block = (block + block.T) / 2
            values[bands[i], bands[j]] = block
            values[bands[j], bands[i]] = block.T

    spread(column, range(len(bands)), n_threads)
    means = np.empty(n)
    for band in bands:
        means[band] = values[band].mean(axis=1, dtype=np.float64)
    return KernelMatrix(values, means, center, n_threads)


def read_all(
    source: Source, rows_per_block: int, quality: QualityReading | None = None, ahead_bytes: int = 0
) -> tuple[Array, ReadCount]:
    """Return all rows in the type of products, ``(n_samples, n_features)``, and what reading them cost; `quality` examines them.

    `ahead_bytes` of memory are for reading ahead.

    Raises
    ------
    DataError
        If data is missing, damaged or not finite.
    """
    rows = np.empty(source.shape, work_dtype(source.dtype))

    def take(start: int, values: Array) -> None:
        rows[start : start + len(values)] = values

    return rows, _read_each(source, take, rows_per_block, quality, ahead_bytes)


def read_to_disk(
    source: Source, rows_per_block: int, quality: QualityReading | None = None, ahead_bytes: int = 0
) -> tuple[StoredRows, ReadCount]:
    """Copy all rows, in the type of products, to a temporary directory that goes with the result; else as `read_all`.

    Raises
    ------
    NoSpaceError
        If there is no room for them.
    """
    scratch, dtype = Scratch(), work_dtype(source.dtype)
    require_space(scratch.path, source.shape[0] * source.shape[1] * dtype.itemsize)
    rows = StoredRows.create(scratch.path / "rows", source.shape, dtype, scratch)
    return rows, _read_each(source, rows.write, rows_per_block, quality, ahead_bytes)


def _read_each(
    source: Source,
    take: Callable[[int, Array], object],
    rows_per_block: int,
    quality: QualityReading | None,
    ahead_bytes: int,
) -> ReadCount:
    """Read all rows in order and call `take` with the first row and the values of every block; return what reading cost."""
    count, dtype = ReadCount(), work_dtype(source.dtype)
    leaf = Leaf(0, (*range(0, source.shape[0], rows_per_block), source.shape[0]))
    with source.reading(), source.ahead(Schedule.in_order(leaf.spans, ahead_bytes)):
        for read in read_ahead(source, leaf):
            take(read.block.start, in_panel(read.block, dtype))
            count += read.count
            if quality is not None:
                quality.examine(read.block)
    release()
    return count


def sample_of(options: RunOptions, source: Source, rows: Array | StoredRows) -> RowsState | None:
    """Return the rows that `options` ask for, out of all `rows` of `source`; None for none."""
    chosen = options.sample_of(source).chosen
    return RowsState(chosen, rows[chosen]) if len(chosen) else None
