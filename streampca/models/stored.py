"""Components and training rows of kernel models that stay on disk; one slab of features or band of rows is in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import DTypeLike

from streampca.errors import MissingChunkError, ModelError, NoSpaceError, ParameterError
from streampca.formatting import as_text
from streampca.storage.files import is_disk_full
from streampca.typing import Array, DType, FloatArray

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ZarrArray


class StoredArray:
    """A table in a zarr array on disk, written and read in parts.

    Nothing loads the whole by accident: it is no array for numpy. Copies share the files; a pickle holds their path.
    """

    __array_ufunc__ = None
    ndim = 2
    contents: ClassVar[str]
    """What the numbers are, for messages."""

    def __init__(self, path: Path, shape: tuple[int, int], dtype: DType, keep: object = None) -> None:
        self.path, self.shape, self.dtype = Path(path), shape, np.dtype(dtype)
        self._keep = keep

    @staticmethod
    def _create(path: Path, shape: tuple[int, int], chunks: tuple[int, int], dtype: DType) -> None:
        """Write the metadata of a new array at `path`, not compressed."""
        import zarr

        whole = {"write_empty_chunks": True}
        zarr.create_array(path, shape=shape, chunks=chunks, dtype=dtype, compressors=None, config=whole)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(path={str(self.path)!r}, shape={self.shape})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise ParameterError(
            f"the {self.contents} take {as_text(self.nbytes)} and lie on disk in {self.path}: read parts of them"
        )

    @property
    def size(self) -> int:
        """Return the number of entries."""
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of all entries."""
        return self.dtype.itemsize * self.size

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
    def writable(self) -> ZarrArray:
        """Return the zarr array for writing."""
        from streampca.storage.zarr_interface import opened_for_writing

        self._require_there()
        return opened_for_writing(self.path)

    def _require_there(self) -> None:
        if not (self.path / "zarr.json").exists():
            raise self._missing_error()

    def _missing_error(self) -> ModelError:
        return ModelError(
            f"{self.path} is gone or incomplete: {self.contents} of a fit are in a temporary directory (Dask's temporary-directory), "
            "which is deleted with the estimator and which all workers must share: save the model to keep them"
        )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn errors while parts are read into `ModelError`."""
        try:
            yield
        except MissingChunkError as error:
            raise self._missing_error() from error
        except (ValueError, RuntimeError) as error:
            raise ModelError(f"{self.path} cannot be read as {self.contents}: a chunk is damaged") from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn the error that the disk is full while parts are written into `NoSpaceError`."""
        try:
            yield
        except OSError as error:
            if is_disk_full(error):
                raise NoSpaceError(
                    f"{self.path}: no room for {self.contents} of {self.nbytes:,} bytes: make room, or set Dask's temporary-directory"
                ) from error
            raise


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
