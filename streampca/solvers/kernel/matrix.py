"""The kernel matrix of rows that are all in memory: made by pairs of blocks, multiplied with its centring left implicit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streampca.accumulators.centring import work_dtype
from streampca.accumulators.kernel_features import in_panel
from streampca.block import Block
from streampca.errors import NotFiniteError
from streampca.execution.readings import Reading, Readings
from streampca.linalg.tiles import spread
from streampca.models.stored import StoredRows
from streampca.planning.plan import Plan
from streampca.solvers.kernel.plan import PAIR_SIDE
from streampca.solvers.kernel.solving import DenseMatrix
from streampca.sources.base import Source
from streampca.storage.directories import require_space
from streampca.storage.scratch import Scratch
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray

if TYPE_CHECKING:
    from streampca.kernels import Kernel


@dataclass(frozen=True)
class KernelMatrix(DenseMatrix):
    """A symmetric matrix K, or HKH with H = 1 − 11ᵀ/n where it is centred; `values` is K, ``(n, n)``, float32 or float64."""

    means: FloatArray
    """Mean of each row of K, ``(n,)``."""
    center: bool
    """Whether HKH is meant."""

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
    return KernelMatrix(values, means, center, n_threads=n_threads)


def all_rows(source: Source, plan: Plan) -> Readings[Array]:
    """Ask for all rows and return them in the type of products, ``(n_samples, n_features)``."""
    dtype = work_dtype(source.dtype)
    rows = np.empty(source.shape, dtype)

    def take(block: Block) -> None:
        rows[block.start : block.start + len(block)] = in_panel(block, dtype)

    yield Reading(source, (), plan, take=take)
    return rows


def rows_on_disk(source: Source, plan: Plan) -> Readings[StoredRows]:
    """Ask for all rows and copy them, in the type of products, to a temporary directory that goes with the result.

    Raises
    ------
    NoSpaceError
        If there is no room for them.
    """
    scratch, dtype = Scratch(), work_dtype(source.dtype)
    require_space(scratch.path, source.shape[0] * source.shape[1] * dtype.itemsize)
    rows = StoredRows.create(scratch.path / "rows", source.shape, dtype, scratch)
    yield Reading(source, (), plan, take=lambda block: rows.write(block.start, in_panel(block, dtype)))
    return rows
