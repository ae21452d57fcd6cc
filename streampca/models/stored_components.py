"""Components that stay on disk: an array ``(k, n_features)`` of which one slab of features is in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from streampca.errors import MissingChunkError, ModelError, NoSpaceError, ParameterError
from streampca.storage.files import is_disk_full
from streampca.typing import FloatArray

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ZarrArray


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


class StoredComponents:
    """Components in a zarr array whose chunks hold all components of a run of features.

    Nothing loads the whole by accident: it is no array for numpy, `in_memory` has to be called for that. Copies share
    the files; a pickle holds their path.
    """

    __array_ufunc__ = None
    dtype = np.dtype(np.float64)

    def __init__(self, path: Path, shape: tuple[int, int], width: int, keep: object = None) -> None:
        self.path, self.shape, self.width = Path(path), shape, width
        self._keep = keep

    @classmethod
    def open(cls, path: Path) -> StoredComponents:
        """Return the components in the zarr array at `path`, whose chunks span all of them."""
        import zarr

        array = zarr.open_array(path, mode="r")
        return cls(path, (array.shape[0], array.shape[1]), array.chunks[1])

    @classmethod
    def create(cls, path: Path, shape: tuple[int, int], width: int, keep: object = None) -> StoredComponents:
        """Return new components of `shape` at `path`, not compressed; `keep` lives at least as long as their array."""
        import zarr

        chunks, whole = (shape[0], min(width, shape[1])), {"write_empty_chunks": True}
        zarr.create_array(path, shape=shape, chunks=chunks, dtype="float64", compressors=None, config=whole)  # type: ignore[arg-type]
        return cls(path, shape, min(width, shape[1]), keep)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"StoredComponents(path={str(self.path)!r}, shape={self.shape})"

    def __reduce__(self) -> tuple[object, ...]:
        return StoredComponents, (self.path, self.shape, self.width)

    def __copy__(self) -> StoredComponents:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> StoredComponents:
        return self

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise ParameterError(
            f"the components take {self.nbytes:,} bytes and lie on disk: read slabs of them, or call in_memory() if all shall be loaded"
        )

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of all components."""
        return 8 * self.shape[0] * self.shape[1]

    @cached_property
    def array(self) -> ZarrArray:
        """Return the zarr array, which cannot be written to and keeps a temporary directory alive."""
        import zarr

        from streampca.sources.zarr.strictness import strict

        self._require_there()
        array = strict(zarr.open_array(self.path, mode="r"))
        setattr(array.store, "keep", self._keep)  # noqa: B010 (a name of ours on an object of zarr)
        return array

    @cached_property
    def _writable(self) -> ZarrArray:
        from streampca.storage.zarr_interface import opened_for_writing

        self._require_there()
        return opened_for_writing(self.path)

    def _require_there(self) -> None:
        if not (self.path / "zarr.json").exists():
            raise self._missing_error()

    def _missing_error(self) -> ModelError:
        return ModelError(
            f"{self.path} is gone or not complete: components of a fit lie in a temporary directory (Dask's temporary-directory) "
            "that goes with the estimator, and that all workers have to share: save the model to keep them"
        )

    def slab(self, start: int, stop: int) -> FloatArray:
        """Return all components for features `start` to `stop`, ``(k, stop - start)``."""
        array = self.array
        try:
            return np.asarray(array[:, start:stop], dtype=np.float64)
        except MissingChunkError as error:
            raise self._missing_error() from error
        except (ValueError, RuntimeError) as error:
            raise ModelError(f"{self.path} cannot be read as components: a chunk is damaged") from error

    def slabs(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield runs of features and all components for them, chunk by chunk."""
        for start in range(0, self.shape[1], self.width):
            stop = min(start + self.width, self.shape[1])
            yield slice(start, stop), self.slab(start, stop)

    def write(self, start: int, values: FloatArray) -> None:
        """Write all components for the features from `start` on, a multiple of `width`; one writer for each chunk."""
        try:
            self._writable[:, start : start + values.shape[1]] = values
        except OSError as error:
            if is_disk_full(error):
                raise NoSpaceError(
                    f"{self.path}: no room for components of {self.nbytes:,} bytes: make room, or set Dask's temporary-directory"
                ) from error
            raise

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
