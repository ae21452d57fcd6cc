"""Out-of-core scatter matrix: groups of tiles are computed one after the other, stored in a file, and read for products."""

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
from streampca.linalg.eigen import Scatter, SymmetricOperator
from streampca.linalg.tiles import TileGrid
from streampca.storage.files import is_disk_full
from streampca.system.workspace import borrow, release
from streampca.typing import FloatArray

_AHEAD = 2  # results per thread that may be queued for addition
_CONFIGURATION = [item.name for item in fields(Covariance)]
_ADVICE = "do not change the temporary directory during a fit; start again"

Item = TypeVar("Item")
Result = TypeVar("Result")


def group_edges(n_tiles: int, n_groups: int) -> list[int]:
    """Return the edges, ``n_groups + 1`` numbers, of groups of consecutive tiles of nearly equal size."""
    return [n_tiles * i // n_groups for i in range(n_groups + 1)]


@lru_cache(maxsize=2)
def _full_grid(n_features: int, tile_size: int) -> TileGrid:
    return TileGrid(n_features, tile_size)


@dataclass(frozen=True)
class GroupGrid(TileGrid):
    """Consecutive tiles of a `TileGrid`, stored in a separate flat array."""

    first: int
    """Position of the first tile in the order of all tiles."""
    last: int
    """Position after the last tile."""

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return the coordinates (i, j), i ≥ j, of the tiles of the group."""
        return _full_grid(self.n_features, self.tile_size).pairs[self.first : self.last]

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
    """A `Covariance` that accumulates only tiles `first` to `last` of the scatter.

    Panels, centring and the order of additions are those of `Covariance`. A tile does not depend on the other tiles, so
    the concatenated groups equal the scatter of `Covariance` bit by bit. A state has no diagonal and cannot be solved.
    """

    first: int = 0
    """Position of the first tile in the order of all tiles."""
    last: int = 0
    """Position after the last tile."""

    @classmethod
    def of(cls, covariance: Covariance, first: int, last: int) -> CovarianceGroup:
        """Return the accumulator of tiles `first` to `last` of `covariance`."""
        return cls(**{name: getattr(covariance, name) for name in _CONFIGURATION}, first=first, last=last)

    def grid(self, n_features: int) -> GroupGrid:
        """Return the layout of the tiles of the group."""
        return GroupGrid(n_features, self.tile_size, self.first, self.last)


@dataclass(frozen=True)
class TileFile:
    """File with the float64 tiles of the lower triangle of a symmetric matrix, in the order of a grid."""

    path: Path
    """Path of the file."""
    grid: TileGrid
    """Layout of the tiles."""

    def append(self, tiles: FloatArray) -> None:
        """Append `tiles`, a flat array, to the file.

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
                    f"{self.path}: no room for the tiles of the matrix, {8 * self.grid.size:,} bytes ({reason}): make room, or set "
                    "another directory (Dask's temporary-directory, or TMPDIR)"
                ) from error
            raise OutputError(
                f"{self.path} cannot be written: {reason}; expected a directory for temporary files: set another one (Dask's "
                "temporary-directory, or TMPDIR)"
            ) from error

    @cached_property
    def _starts(self) -> dict[tuple[int, int], int]:
        sizes = [8 * self.grid.side(i) * self.grid.side(j) for i, j in self.grid.pairs]
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)[:-1]])
        return dict(zip(self.grid.pairs, starts.tolist(), strict=True))

    def tile(self, i: int, j: int) -> FloatArray:
        """Return tile (i, j), i ≥ j, in scratch memory of this thread, valid until its next call.

        Raises
        ------
        OutputError
            If the file is missing or was truncated.
        """
        tile: FloatArray = borrow("tile", (self.grid.side(i), self.grid.side(j)), np.float64)
        remaining = tile.reshape(-1).data.cast("B")
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(self._starts[i, j])
                while len(remaining) and (n_bytes := file.readinto(remaining)):
                    remaining = remaining[n_bytes:]
        except OSError as error:
            raise OutputError(f"{self.path} cannot be read: {error.strerror or error}; {_ADVICE}") from error
        if len(remaining):
            raise OutputError(f"{self.path} ends {len(remaining):,} bytes before the end of tile ({i}, {j}): {_ADVICE}")
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

        # One more thread than may compute, so that one reads while the others compute.
        with ThreadPoolExecutor(n_threads + 1, thread_name_prefix="streampca-disk") as pool:
            for (i, j), (across, down) in _in_order(pool, times, self.grid.pairs, _AHEAD * (n_threads + 1)):
                product[features(i)] += across
                if down is not None:
                    product[features(j)] += down
        return product


def product_bytes(grid: TileGrid, n_vectors: int, n_threads: int) -> int:
    """Return the memory in bytes of `TileFile.multiply`, without the vectors and the product."""
    side = grid.longest_side
    return 8 * (n_threads + 1) * (side**2 + (2 * _AHEAD + 2) * side * n_vectors)


def _in_order(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[tuple[Item, Result]]:
    """Yield every item and its `function` value, computed on `pool`, in order; at most `ahead` results are queued."""
    queued: deque[tuple[Item, Future[Result]]] = deque()
    for item in items:
        queued.append((item, pool.submit(function, item)))
        if len(queued) > ahead:
            first, future = queued.popleft()
            yield first, future.result()
    for first, future in queued:
        yield first, future.result()


@dataclass(frozen=True)
class DiskOperator(SymmetricOperator):
    """A `SymmetricOperator` with its scatter in a file, which every product reads once; `scatter` is empty."""

    tiles: TileFile
    """The scatter matrix."""

    def times_scatter(self, vectors: FloatArray) -> FloatArray:
        """Return the scatter matrix times `vectors`, ``(n_features, n_vectors)``."""
        return self.tiles.multiply(vectors, self.n_threads)

    def dense(self) -> FloatArray:
        """Raise `PlanError`, because the matrix does not fit in memory."""
        raise PlanError(
            f"the {self.side:,} x {self.side:,} matrix is on disk because it does not fit in memory: expected "
            "n_components of at most a tenth of its side, which are computed without forming it"
        )


@dataclass(frozen=True)
class DiskCovariance(Covariance):
    """A `Covariance` with its scatter in a file of tiles."""

    tiles: TileFile = field(kw_only=True)
    """The file."""

    @classmethod
    def of(cls, covariance: Covariance, tiles: TileFile) -> DiskCovariance:
        """Return `covariance` with its scatter in `tiles`."""
        return cls(**{name: getattr(covariance, name) for name in _CONFIGURATION}, tiles=tiles)

    def finalize(self, state: CovarianceState) -> DiskOperator:
        """Return the symmetric matrix of the scatter in `tiles` and the counts and mean of `state`; ignores `state.scatter`."""
        operator = SymmetricOperator.of_scatter(
            Scatter(self.tiles.grid, np.empty(0), state.mean, state.n_samples, state.weight, self.tiles.diagonal()),
            center=self.center,
            scale=self.scale,
            ddof=self.ddof,
            n_threads=self.n_threads,
        )
        return DiskOperator(**vars(operator), tiles=self.tiles)
