"""Storage of the lower triangle of a symmetric matrix as consecutive square tiles.

Tiles take half the memory of the full matrix and are the unit of parallel work: one thread with one BLAS thread
computes a tile, so the bits do not depend on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from streampca.errors import NoSpaceError, OutputError, PlanError
from streampca.storage.files import is_disk_full
from streampca.system.workspace import borrow, release
from streampca.typing import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from scipy.sparse import csc_array, csr_array

Item = TypeVar("Item")

_FULL = 0.1  # share of stored values from which a sparse column is multiplied as a dense one
_DENSE_BYTES = 2**22  # of such columns at once
_PRODUCT_ROWS = 256  # rows of the product with vectors that are made at once; enters the bits
_MOST_HELPERS = 256
_AHEAD = 2  # products of tiles in a file, for each thread, that may wait for their addition
_STRIP_ROWS = 32  # rows of a tile that fit in the cache with what is added to them


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    """Return the helpers of all threads, which start when they have work."""
    return ThreadPoolExecutor(_MOST_HELPERS, thread_name_prefix="streampca-tile")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has only the thread that called fork


def spread(work: Callable[[Item], None], items: Iterable[Item], n_threads: int) -> None:
    """Call `work` on every item in `n_threads` threads, including this one; raise the exception of the first item that fails."""
    left = deque(enumerate(items))
    if n_threads <= 1 or len(left) == 1:
        for _, item in left:
            work(item)
        return
    raised: dict[int, BaseException] = {}

    def take() -> None:
        while True:
            try:
                index, item = left.popleft()
            except IndexError:
                return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001  all items before this one are under way, and may raise, too
                raised[index] = error
                left.clear()

    helpers = [_pool().submit(take) for _ in range(min(n_threads, len(left)) - 1)]
    take()
    for helper in helpers:
        if not helper.cancel():  # one that has not begun is not needed any more
            helper.result()
    if raised:
        raise raised[min(raised)]


@dataclass(frozen=True)
class TileGrid:
    """Layout of the lower triangle of an ``(n_features, n_features)`` matrix in a flat array.

    The side is divided into ⌈n_features / tile_size⌉ tile rows whose lengths differ by at most one. For d features the array
    takes 4 d² to 8 d² bytes: half of the square, and half of the diagonal tiles. With a range it has only the tiles of that range.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> grid = sp.accumulators.TileGrid(n_features=5, tile_size=2)
    >>> grid.edges, grid.n_tiles, grid.size
    ((0, 1, 3, 5), 6, 17)
    >>> flat, x = np.zeros(grid.size), np.arange(5.0)
    >>> grid.add_outer(flat, x[:, None], x[None])
    >>> bool((grid.dense(flat) == np.outer(x, x)).all())
    True
    """

    n_features: int
    """Side of the matrix."""
    tile_size: int
    """Largest side of a tile."""
    first: int = 0
    """Position of the first stored tile, in the order of `pairs` of all tiles."""
    last: int | None = None
    """Position after the last stored tile; None = all following tiles."""

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """Return the first index of every tile along one side, followed by `n_features`."""
        n_rows = self._n_tile_rows
        return tuple(self.n_features * i // n_rows for i in range(n_rows + 1))

    @property
    def _n_tile_rows(self) -> int:
        return max(1, -(-self.n_features // self.tile_size))

    @cached_property
    def _offsets(self) -> dict[tuple[int, int], int]:
        offsets, position = {}, 0
        for i, j in self.pairs:
            offsets[i, j] = position
            position += self.side(i) * self.side(j)
        return offsets

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return the coordinates (i, j), i ≥ j, of the tiles in the range; in the order of all tiles, diagonal tiles come first."""
        sides = range(len(self.edges) - 1)
        return (*((i, i) for i in sides), *((i, j) for i in sides for j in range(i)))[self.first : self.last]

    @property
    def n_tiles(self) -> int:
        """Return the number of tiles in the range."""
        last = self._n_tile_rows * (self._n_tile_rows + 1) // 2 if self.last is None else self.last
        return last - self.first

    @cached_property
    def size(self) -> int:
        """Return the number of stored entries."""
        if self.first or self.last is not None:
            return sum(self.side(i) * self.side(j) for i, j in self.pairs)
        # Half of the square and half of the diagonal tiles; a closed form, because plans ask for sides of millions.
        short, n_longer = divmod(self.n_features, self._n_tile_rows)
        diagonal = n_longer * (short + 1) ** 2 + (self._n_tile_rows - n_longer) * short**2
        return (self.n_features**2 + diagonal) // 2

    def side(self, i: int) -> int:
        """Return the number of features in tile row `i`."""
        return self.edges[i + 1] - self.edges[i]

    @property
    def longest_side(self) -> int:
        """Return the number of features in the largest tile row."""
        return -(-self.n_features // self._n_tile_rows)

    def features(self, i: int) -> slice:
        """Return the features of tile row `i`."""
        return slice(self.edges[i], self.edges[i + 1])

    def tile(self, flat: FloatArray, i: int, j: int) -> FloatArray:
        """Return tile (i, j), i ≥ j, as a view of `flat`."""
        start = self._offsets[i, j]
        return flat[start : start + self.side(i) * self.side(j)].reshape(self.side(i), self.side(j))

    def diagonal(self, flat: FloatArray) -> FloatArray:
        """Return the diagonal, shape ``(n_features,)``."""
        diagonal = np.empty(self.n_features)
        for i in range(len(self.edges) - 1):
            diagonal[self.features(i)] = self.tile(flat, i, i).diagonal()
        return diagonal

    def scale(self, flat: FloatArray, factors: FloatArray) -> None:
        """Multiply entry (a, b) by ``factors[a] * factors[b]``, in place."""
        for i, j in self.pairs:
            tile = self.tile(flat, i, j)
            tile *= factors[self.features(i), None]
            tile *= factors[self.features(j)]

    def add_outer(
        self,
        flat: FloatArray,
        left: FloatArray,
        right: FloatArray,
        n_threads: int = 1,
        other: FloatArray | None = None,
    ) -> None:
        """Add the symmetric matrix ``left @ right`` of factors ``(n_features, r)`` and ``(r, n_features)``, in place, and the tiles of `other`."""

        def add(pair: tuple[int, int]) -> None:
            tile, u, v = self.tile(flat, *pair), left[self.features(pair[0])], right[:, self.features(pair[1])]
            more = None if other is None else self.tile(other, *pair)
            for start in range(0, len(tile), _STRIP_ROWS):
                strip = slice(start, start + _STRIP_ROWS)
                term = u[strip] @ v
                if more is not None:
                    term += more[strip]
                tile[strip] += term

        spread(add, self.pairs, n_threads)

    def copy(self, flat: FloatArray, out: FloatArray, n_threads: int = 1) -> None:
        """Copy the tiles of `flat` to `out`."""

        def copy(pair: tuple[int, int]) -> None:
            np.copyto(self.tile(out, *pair), self.tile(flat, *pair))

        spread(copy, self.pairs, n_threads)

    def clear(self, flat: FloatArray, n_threads: int = 1) -> None:
        """Set all tiles to zero."""
        spread(lambda pair: self.tile(flat, *pair).fill(0.0), self.pairs, n_threads)

    def add_sparse_products(
        self,
        flat: FloatArray,
        columns: csc_array,
        n_threads: int = 1,
        outer: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        """Add ``columnsᵀ columns`` for sparse `columns`, ``(r, n_features)``, and the factors of `outer` like `add_outer`, in place.

        Columns that store many values are multiplied as dense columns: a product of sparse columns takes ten times as long for
        each pair of values in a row.
        """
        counts = np.diff(columns.indptr)
        full: BoolArray = counts >= _FULL * max(1, columns.shape[0])
        most = _DENSE_BYTES // (8 * max(1, columns.shape[0]))
        if full.sum() > most:  # the fullest ones, as many as a dense panel of rows may hold
            full &= counts > np.sort(counts)[::-1][most]

        @np.errstate(over="ignore", invalid="ignore")  # accumulators check that the sums are finite
        def add(pair: tuple[int, int]) -> None:
            i, j = self.features(pair[0]), self.features(pair[1])
            tile, (left, right) = self.tile(flat, *pair), (_Columns.of(columns[:, each], full[each]) for each in (i, j))
            left.add_products(tile, left if pair[0] == pair[1] else right)
            if outer is not None:
                for start in range(0, len(tile), 128):
                    strip = slice(start, start + 128)
                    tile[strip] += outer[0][i][strip] @ outer[1][:, j]

        spread(add, self.pairs, n_threads)

    def dense(self, flat: FloatArray) -> FloatArray:
        """Return the full matrix, shape ``(n_features, n_features)``; a view if there is only one tile."""
        if len(self.pairs) == 1:
            return self.tile(flat, 0, 0)
        matrix = np.empty((self.n_features, self.n_features))
        for i, j in self.pairs:
            tile = self.tile(flat, i, j)
            matrix[self.features(i), self.features(j)] = tile
            matrix[self.features(j), self.features(i)] = tile.T
        return matrix

    def multiply(self, flat: FloatArray, vectors: FloatArray, n_threads: int = 1) -> FloatArray:
        """Return the matrix times `vectors`, both ``(n_features, n_vectors)``, in 2 n_features² n_vectors flops."""
        product = np.zeros_like(vectors)

        def multiply(part: tuple[int, int]) -> None:
            i, start = part
            strip = slice(start, start + _PRODUCT_ROWS)
            out = product[self.features(i)][strip]
            for j in range(len(self.edges) - 1):
                tile = self.tile(flat, i, j) if j <= i else self.tile(flat, j, i).T
                out += tile[strip] @ vectors[self.features(j)]

        sides = range(len(self.edges) - 1)
        spread(multiply, [(i, start) for i in sides for start in range(0, self.side(i), _PRODUCT_ROWS)], n_threads)
        return product


@dataclass(frozen=True)
class TileFile(TileGrid):
    """Layout of a matrix with float64 tiles in a file; the array of tiles passed to methods is empty."""

    path: Path = field(kw_only=True)
    """Path of the file."""

    def append(self, tiles: FloatArray) -> None:
        """Append `tiles`, the next ones in the order of `pairs`, to the file.

        Raises
        ------
        NoSpaceError
            If the disk is full.
        OutputError
            If it cannot be written for another reason.
        """
        try:
            with open(self.path, "ab") as file:
                file.write(tiles.data.cast("B"))
        except OSError as error:
            reason = error.strerror or str(error)
            if is_disk_full(error):
                raise NoSpaceError(
                    f"{self.path}: no room for the tiles of the matrix, {8 * self.size:,} bytes ({reason}): make room, or set "
                    "another directory (Dask's temporary-directory, or TMPDIR)"
                ) from error
            raise OutputError(
                f"{self.path} cannot be written: {reason}; expected a directory for temporary files: set another one (Dask's "
                "temporary-directory, or TMPDIR)"
            ) from error

    def tile(self, flat: FloatArray, i: int, j: int) -> FloatArray:
        """Return tile (i, j), i ≥ j, in scratch memory of this thread, valid until its next call.

        Raises
        ------
        OutputError
            If the file is missing or was truncated.
        """
        advice = "do not change the temporary directory during a fit; start again"
        tile: FloatArray = borrow("tile", (self.side(i), self.side(j)), np.float64)
        remaining = tile.reshape(-1).data.cast("B")
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(8 * self._offsets[i, j])
                while len(remaining) and (n_bytes := file.readinto(remaining)):
                    remaining = remaining[n_bytes:]
        except OSError as error:
            raise OutputError(f"{self.path} cannot be read: {error.strerror or error}; {advice}") from error
        if len(remaining):
            raise OutputError(f"{self.path} ends {len(remaining):,} bytes before the end of tile ({i}, {j}): {advice}")
        return tile

    def diagonal(self, flat: FloatArray) -> FloatArray:
        """Return the diagonal, shape ``(n_features,)``; releases the scratch memory of this thread."""
        diagonal = super().diagonal(flat)
        release()
        return diagonal

    def dense(self, flat: FloatArray) -> FloatArray:
        """Raise `PlanError`, because the matrix does not fit in memory."""
        raise PlanError(
            f"the {self.n_features:,} x {self.n_features:,} matrix is on disk because it does not fit in memory: expected "
            "n_components of at most a tenth of its side, which can be computed without forming it"
        )

    def multiply(self, flat: FloatArray, vectors: FloatArray, n_threads: int = 1) -> FloatArray:
        """Return the matrix times `vectors`, both ``(n_features, n_vectors)``: 2 n_features² n_vectors flops, each tile read once.

        Products are added up in the order of the tiles, so the bits do not depend on `n_threads`.
        """
        product, features = np.zeros_like(vectors), self.features
        computing = threading.Semaphore(n_threads)
        queued = deque[tuple[int, int, Future[tuple[FloatArray, FloatArray | None]]]]()

        def times(i: int, j: int) -> tuple[FloatArray, FloatArray | None]:
            tile = self.tile(flat, i, j)
            with computing:
                return tile @ vectors[features(j)], None if i == j else tile.T @ vectors[features(i)]

        def add_first() -> None:
            i, j, future = queued.popleft()
            across, down = future.result()
            product[features(i)] += across
            if down is not None:
                product[features(j)] += down

        # One more thread than may compute, so that one reads while the others compute.
        with ThreadPoolExecutor(n_threads + 1, thread_name_prefix="streampca-disk") as pool:
            for i, j in self.pairs:
                queued.append((i, j, pool.submit(times, i, j)))
                if len(queued) > _AHEAD * (n_threads + 1):
                    add_first()
            while queued:
                add_first()
        return product


def product_bytes(grid: TileGrid, n_vectors: int, n_threads: int) -> int:
    """Return the memory in bytes of `TileFile.multiply`, without the vectors and the product."""
    side = grid.longest_side
    return 8 * (n_threads + 1) * (side**2 + (2 * _AHEAD + 2) * side * n_vectors)


@dataclass(frozen=True)
class _Columns:
    """Some columns of a sparse matrix; columns that store many values are dense."""

    full: IntArray
    """Numbers of the dense columns."""
    dense: FloatArray
    """These columns, ``(r, n_full)``."""
    rows: csr_array
    """The transpose of all columns, ``(n, r)``, without stored values in the dense ones."""

    @classmethod
    def of(cls, columns: csc_array, full: BoolArray) -> _Columns:
        """Return `columns`, ``(r, n)``, with the `full` ones dense."""
        chosen, rows = np.flatnonzero(full), columns.T.tocsr()
        dense = columns[:, chosen].toarray()
        if len(chosen):
            counts = np.diff(rows.indptr)
            kept, edges = np.repeat(~full, counts), np.concatenate([[0], np.cumsum(np.where(full, 0, counts))])
            rows = type(rows)((rows.data[kept], rows.indices[kept], edges), shape=rows.shape)
        return cls(chosen, dense, rows)

    def add_products(self, tile: FloatArray, right: _Columns) -> None:
        """Add the products of these columns with the columns of `right`, possibly the same, to `tile`, ``(n, n_right)``, in place."""
        product = (self.rows @ right.rows.T).tocsr()
        for start in range(0, len(tile), 128):
            strip = slice(start, start + 128)
            tile[strip] += product[strip].toarray()
        mixed = self.rows @ right.dense  # whose rows of dense columns are zeros
        tile[:, right.full] += mixed
        tile[self.full] += (mixed if right is self else right.rows @ self.dense).T
        tile[self.full[:, None], right.full] += self.dense.T @ right.dense


@lru_cache(maxsize=64)
def tile_grid(n_features: int, tile_size: int) -> TileGrid:
    """Return the layout with these numbers, cached so that states of many groups share its computed properties."""
    return TileGrid(n_features, tile_size)
