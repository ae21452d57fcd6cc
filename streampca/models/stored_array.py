"""Arrays of a model that stay on disk: a zarr array of which one part is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

import numpy as np

from streampca.errors import MissingChunkError, ModelError, NoSpaceError, ParameterError
from streampca.formatting import as_text
from streampca.storage.files import is_disk_full
from streampca.typing import DType

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
            f"{self.path} is gone or not complete: {self.contents} of a fit lie in a temporary directory (Dask's temporary-directory) "
            "that goes with the estimator, and that all workers have to share: save the model to keep them"
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
