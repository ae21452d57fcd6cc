"""A scatter matrix that does not fit in memory: groups of its tiles made one after the other, kept in a file, read for products."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from streampca.accumulators.covariance import Covariance, CovarianceState
from streampca.errors import NoSpaceError, OutputError, PlanError
from streampca.linalg.eigen import SymmetricOperator
from streampca.linalg.tiles import FloatArray, TileGrid
from streampca.storage.files import is_disk_full
from streampca.system.workspace import borrow, release

_AHEAD = 2  # tiles for each thread whose products may wait to be added up
_CONFIGURATION = [one.name for one in fields(Covariance)]
_LEAVE_IT = "leave the temporary directory alone while a fit runs, and start again"

Item = TypeVar("Item")
Result = TypeVar("Result")


def group_edges(n_tiles: int, n_groups: int) -> list[int]:
    """Return the first tile of each of `n_groups` groups of consecutive tiles, as even as can be, and `n_tiles` behind them."""
    return [n_tiles * i // n_groups for i in range(n_groups + 1)]


@lru_cache(maxsize=2)
def _whole(n_features: int, tile_size: int) -> TileGrid:
    return TileGrid(n_features, tile_size)


@dataclass(frozen=True)
class GroupGrid(TileGrid):
    """Consecutive tiles of a `TileGrid` in a flat array of their own: that stretch of the array of all tiles."""

    first: int
    """Position of the first tile in the order of all tiles."""
    last: int
    """Position behind the last tile."""

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return the coordinates (i, j), i ≥ j, of the tiles of the group."""
        return _whole(self.n_features, self.tile_size).pairs[self.first : self.last]

    @property
    def n_tiles(self) -> int:
        """Return the number of tiles of the group."""
        return self.last - self.first

    @cached_property
    def size(self) -> int:
        """Return the number of entries of the group."""
        return sum(self.side(i) * self.side(j) for i, j in self.pairs)


@dataclass(frozen=True)
class CovarianceGroup(Covariance):
    """The `Covariance` of which only the tiles `first` to `last` are made.

    All else is as it is there: panels, centring, the order of additions. A tile is made from all rows without regard to
    the others, so the groups put one behind the other are the scatter of `Covariance`, bit by bit. A state of it has no
    diagonal and cannot be solved.
    """

    first: int = 0
    """Position of the first tile in the order of all tiles."""
    last: int = 0
    """Position behind the last tile."""

    @classmethod
    def of(cls, covariance: Covariance, first: int, last: int) -> CovarianceGroup:
        """Return the accumulator of tiles `first` to `last` of `covariance`."""
        return cls(**{name: getattr(covariance, name) for name in _CONFIGURATION}, first=first, last=last)

    def grid(self, n_features: int) -> GroupGrid:
        """Return how the tiles of the group are stored."""
        return GroupGrid(n_features, self.tile_size, self.first, self.last)


@dataclass(frozen=True)
class TileFile:
    """A file with the tiles of the lower triangle of a symmetric matrix one behind the other, float64, in the order of a grid."""

    path: Path
    """Where it is."""
    grid: TileGrid
    """Which tiles there are, and their order."""

    def append(self, tiles: FloatArray) -> None:
        """Write `tiles`, a flat array, behind those that are there.

        Raises
        ------
        NoSpaceError
            If the disk is full.
        OutputError
            If it cannot be written to for another reason.
        """
        try:
            with open(self.path, "ab") as file:
                file.write(tiles.data.cast("B"))
        except OSError as error:
            found = error.strerror or str(error)
            if is_disk_full(error):
                raise NoSpaceError(
                    f"{self.path}: no room for the tiles of the matrix, {8 * self.grid.size:,} bytes ({found}): make room, or "
                    "name another place (Dask's temporary-directory, or TMPDIR)"
                ) from error
            raise OutputError(
                f"{self.path} cannot be written: {found}; expected a place for temporary files: name another one (Dask's "
                "temporary-directory, or TMPDIR)"
            ) from error

    @cached_property
    def _starts(self) -> dict[tuple[int, int], int]:
        sizes = [8 * self.grid.side(i) * self.grid.side(j) for i, j in self.grid.pairs]
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)[:-1]])
        return dict(zip(self.grid.pairs, starts.tolist(), strict=True))

    def tile(self, i: int, j: int) -> FloatArray:
        """Return tile (i, j), i ≥ j, in scratch memory of this thread: valid until it asks for the next one.

        Raises
        ------
        OutputError
            If the file is gone or shorter than it was made.
        """
        tile: FloatArray = borrow("tile", (self.grid.side(i), self.grid.side(j)), np.float64)
        left = tile.reshape(-1).data.cast("B")
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(self._starts[i, j])
                while len(left) and (n_bytes := file.readinto(left)):
                    left = left[n_bytes:]
        except OSError as error:
            raise OutputError(f"{self.path} cannot be read: {error.strerror or error}; {_LEAVE_IT}") from error
        if len(left):
            raise OutputError(f"{self.path} ends {len(left):,} bytes before the end of tile ({i}, {j}): {_LEAVE_IT}")
        return tile

    def diagonal(self) -> FloatArray:
        """Return the diagonal, shape ``(n_features,)``."""
        diagonal = np.concatenate([self.tile(i, i).diagonal().copy() for i, j in self.grid.pairs if i == j])
        release()
        return diagonal

    def multiply(self, vectors: FloatArray, n_threads: int = 1) -> FloatArray:
        """Return the matrix times `vectors`, both ``(n_features, n_vectors)``: 2 n_features² n_vectors flops, each tile read once.

        Products are added up in the order of the tiles, so the bits do not depend on `n_threads`.
        """
        product, features = np.zeros_like(vectors), self.grid.features
        computing = threading.Semaphore(n_threads)

        def times(pair: tuple[int, int]) -> tuple[FloatArray, FloatArray | None]:
            i, j = pair
            tile = self.tile(i, j)
            with computing:
                return tile @ vectors[features(j)], None if i == j else tile.T @ vectors[features(i)]

        # One thread more than may compute: it reads meanwhile.
        with ThreadPoolExecutor(n_threads + 1, thread_name_prefix="streampca-disk") as pool:
            for (i, j), (across, down) in _in_order(pool, times, self.grid.pairs, _AHEAD * (n_threads + 1)):
                product[features(i)] += across
                if down is not None:
                    product[features(j)] += down
        return product


def product_bytes(grid: TileGrid, n_vectors: int, n_threads: int) -> int:
    """Return the memory in bytes that `TileFile.multiply` takes beside the vectors and the product."""
    side = grid.longest_side
    return 8 * (n_threads + 1) * (side**2 + (2 * _AHEAD + 2) * side * n_vectors)


def _in_order(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[tuple[Item, Result]]:
    """Yield every item with what `function` makes of it on `pool`, in order; at most `ahead` results wait."""
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    for item in items:
        waiting.append((item, pool.submit(function, item)))
        if len(waiting) > ahead:
            first, future = waiting.popleft()
            yield first, future.result()
    for first, future in waiting:
        yield first, future.result()


@dataclass(frozen=True)
class DiskOperator(SymmetricOperator):
    """A `SymmetricOperator` whose scatter is in a file: products read it once each, and it is never formed; `scatter` is empty."""

    tiles: TileFile
    """The scatter matrix."""

    def times_scatter(self, vectors: FloatArray) -> FloatArray:
        """Return the scatter matrix times `vectors`, ``(n_features, n_vectors)``."""
        return self.tiles.multiply(vectors, self.n_threads)

    def dense(self) -> FloatArray:
        """Raise `PlanError`: what is on disk does not fit in memory."""
        raise PlanError(
            f"the {self.side:,} x {self.side:,} matrix is on disk because it does not fit in memory: expected "
            "n_components of at most a tenth of its side, which are found without forming it"
        )


@dataclass(frozen=True)
class DiskCovariance(Covariance):
    """A `Covariance` whose scatter was made in groups of tiles that are in a file."""

    tiles: TileFile = field(kw_only=True)
    """The file."""

    @classmethod
    def of(cls, covariance: Covariance, tiles: TileFile) -> DiskCovariance:
        """Return `covariance` with its scatter in `tiles`."""
        return cls(**{name: getattr(covariance, name) for name in _CONFIGURATION}, tiles=tiles)

    def finalize(self, state: CovarianceState) -> DiskOperator:
        """Return the symmetric matrix, for counts and mean of `state`, whose own scatter is not looked at."""
        reduced = SymmetricOperator.of_scatter(
            grid=self.tiles.grid,
            scatter=np.empty(0),
            diagonal=self.tiles.diagonal(),
            mean=state.mean,
            n_samples=state.n_samples,
            weight=state.weight,
            center=self.center,
            scale=self.scale,
            ddof=self.ddof,
            n_threads=self.n_threads,
        )
        return DiskOperator(**vars(reduced), tiles=self.tiles)
