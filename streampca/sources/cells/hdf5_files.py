"""Files of AnnData (``.h5ad``): how they are opened, and the columns of ``obs`` in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from streampca.errors import DataError
from streampca.formatting import one_line
from streampca.labels import SampleColumns
from streampca.sources.cells.columns import column_of, names_in
from streampca.storage.regular_files import require_regular
from streampca.system.optional import optional_module
from streampca.typing import Array


def h5py_module() -> ModuleType:
    """Return h5py; `NotAvailableError` with the command that installs it if it is not installed."""
    return optional_module("h5py", "an .h5ad file", "anndata")


def opening_error(path: object, error: OSError) -> DataError:
    """Return the error for an ``.h5ad`` file that h5py cannot open for the reason `error`."""
    reason = os.strerror(error.errno) if error.errno else one_line(error)
    if "unable to lock file" in str(error):
        reason = (
            "another program has it open for writing: close it there; "
            "for a file system without locks set HDF5_USE_FILE_LOCKING=FALSE in the environment"
        )
    return DataError(f"{path} cannot be opened as an .h5ad file: {reason}")


@contextmanager
def opened_h5ad(path: str) -> Iterator[Any]:
    """Open the ``.h5ad`` file at `path` for reading; `DataError` if h5py cannot."""
    h5py, place = h5py_module(), Path(path).absolute()
    try:
        require_regular(place)
        file = h5py.File(place, "r")
    except OSError as error:
        raise opening_error(path, error) from error
    with file:
        yield file


class ObsOfFile(SampleColumns):
    """Columns of ``obs`` of an ``.h5ad`` file, which is opened for each reading.

    Parameters
    ----------
    path : str
        Path of the file.
    """

    def __init__(self, path: str):
        self._path, self._place = path, str(Path(path).absolute())

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        with opened_h5ad(self._place) as file:
            return names_in(file.get("obs"))

    def values(self, name: str) -> Array | None:
        """Return a column, None if there is none of that name; `DataError` if it is damaged, or has missing values."""
        with opened_h5ad(self._place) as file:
            return column_of(file.get("obs"), name, self._path, self._read)

    def _read(self, node: Any) -> Array:
        try:
            values = np.asarray(node[()])
        except Exception as error:
            raise DataError(f"{self._path}{node.name} cannot be decoded: it is damaged or cut short") from error
        if values.dtype.kind in "OS":
            return np.array([v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values.tolist()])
        return values
