"""Components that stay on disk: an array ``(k, n_features)`` of which one slab of features is in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from streampca.errors import ParameterError
from streampca.models.stored_array import StoredArray
from streampca.typing import FloatArray

SLAB_BYTES = 8 * 2**20
"""Size of a slab: all components for a run of features, as float64."""


def slab_features(n_components: int, block: int | None = None) -> int:
    """Return the number of features in a slab of about 8 MiB.

    With `block`, a number that divides it, so that a slab never lies in two blocks; `block` itself where no divisor is
    near 8 MiB.
    """
    most = max(1, SLAB_BYTES // (8 * n_components))
    if block is None:
        return most
    least = -(-block // most)
    return next((block // parts for parts in range(least, 4 * least) if block % parts == 0), block)


class StoredComponents(StoredArray):
    """Components in a zarr array whose chunks hold all components of a run of features.

    `in_memory` loads the whole.
    """

    contents = "components"

    def __init__(self, path: Path, shape: tuple[int, int], width: int, keep: object = None) -> None:
        super().__init__(path, shape, np.dtype(np.float64), keep)
        self.width = width

    @classmethod
    def open(cls, path: Path) -> StoredComponents:
        """Return the components in the zarr array at `path`, whose chunks span all of them."""
        import zarr

        array = zarr.open_array(path, mode="r")
        return cls(path, (array.shape[0], array.shape[1]), array.chunks[1])

    @classmethod
    def create(cls, path: Path, shape: tuple[int, int], width: int, keep: object = None) -> StoredComponents:
        """Return new components of `shape` at `path`, not compressed; `keep` lives at least as long as their array."""
        width = min(width, shape[1])
        cls._create(path, shape, (shape[0], width), np.dtype(np.float64))
        return cls(path, shape, width, keep)

    def __reduce__(self) -> tuple[object, ...]:
        return StoredComponents, (self.path, self.shape, self.width)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise ParameterError(
            f"the components take {self.nbytes:,} bytes and lie on disk: read slabs of them, or call in_memory() if all shall be loaded"
        )

    def slab(self, start: int, stop: int) -> FloatArray:
        """Return all components for features `start` to `stop`, ``(k, stop - start)``."""
        array = self.array
        with self.reading():
            return np.asarray(array[:, start:stop], dtype=np.float64)

    def slabs(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield runs of features and all components for them, chunk by chunk."""
        for start in range(0, self.shape[1], self.width):
            stop = min(start + self.width, self.shape[1])
            yield slice(start, stop), self.slab(start, stop)

    def write(self, start: int, values: FloatArray) -> None:
        """Write all components for the features from `start` on, a multiple of `width`; one writer for each chunk."""
        with self.writing():
            self.writable[:, start : start + values.shape[1]] = values

    def in_memory(self) -> FloatArray:
        """Return all components as an array, ``(k, n_features)``."""
        components = np.empty(self.shape)
        for features, slab in self.slabs():
            components[:, features] = slab
        return components


Components = FloatArray | StoredComponents
"""Components in memory, or on disk."""


@dataclass(frozen=True)
class Survey:
    """Finiteness, inner products and digest of all components, from one pass over them."""

    finite: bool
    """Whether every number is finite."""
    products: FloatArray
    """Inner products of all pairs of components, ``(k, k)``: the identity if they are orthonormal."""
    digest: str
    """``"rows:"`` and the SHA-256 of the SHA-256 of each row, in order: it does not depend on how they are cut."""

    @property
    def orthonormality(self) -> float:
        """Return the largest difference of `products` from the identity."""
        return float(np.abs(self.products - np.eye(len(self.products))).max())


def slabs_of(components: Components) -> Iterator[tuple[slice, FloatArray]]:
    """Yield runs of features and all components for them, in memory or on disk, about 8 MiB at a time."""
    if isinstance(components, StoredComponents):
        yield from components.slabs()
        return
    width = slab_features(max(1, len(components)))
    for start in range(0, components.shape[1], width):
        features = slice(start, min(start + width, components.shape[1]))
        yield features, components[:, features]


def survey(components: Components, each: Callable[[slice, FloatArray], object] | None = None) -> Survey:
    """Read all components once, slab by slab; `each` is called with every slice of features and its slab."""
    k, finite = len(components), True
    products, rows = np.zeros((k, k)), [hashlib.sha256() for _ in range(k)]
    for features, slab in slabs_of(components):
        if each is not None:
            each(features, slab)
        finite = finite and bool(np.isfinite(slab).all())
        with np.errstate(all="ignore"):
            products += slab @ slab.T
        for row, values in zip(rows, slab, strict=True):
            row.update(np.ascontiguousarray(values).data)
    return Survey(finite, products, "rows:" + hashlib.sha256(b"".join(row.digest() for row in rows)).hexdigest())
