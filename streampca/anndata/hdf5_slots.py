"""Results written into an ``.h5ad`` file: into a copy of it, which then takes its name."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.anndata.results import Results, with_columns, write_elements
from streampca.anndata.slots import Slots
from streampca.errors import DataError, OutputError
from streampca.sources.cells.hdf5 import WRITTEN, HDF5Cells, before_results, h5py_module
from streampca.storage.directories import require_space
from streampca.storage.files import TEMPORARY, flush_one, writing

if TYPE_CHECKING:
    import dask.array as da
    import h5py

    from streampca.typing import Array

_OURS = re.compile(
    rf"scores(\..*)?|copy\.h5ad|{TEMPORARY.pattern}"
)  # also scores that are being written, and their lock


class HDF5Slots(Slots):
    """Places of results in an ``.h5ad`` file, which a killed process has not changed."""

    def __init__(self, path: Path):
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        super().__init__(path)

    def opened(self) -> AbstractContextManager[Any]:
        """Open the file for reading, and return its root."""
        return HDF5Cells(str(self.path)).opened()

    def is_ours(self) -> bool:
        """Return whether streampca wrote what is in the directory in which results are built."""
        return all(_OURS.fullmatch(child.name) for child in self.staging.iterdir())

    def finish(self) -> None:
        """Remove what a killed process left beside the file."""
        with writing(self.staging):
            shutil.rmtree(self.staging)

    def directory(self) -> Path:
        """Make the directory in which results are built, and return it."""
        with writing(self.staging):
            self.staging.mkdir()
        return self.staging

    def discard(self) -> None:
        """Remove the directory in which results are built."""
        shutil.rmtree(self.staging, ignore_errors=True)

    def write(self, results: Results, scores: Array | da.Array, *, replace: bool) -> None:
        """Write results to a copy of the file, and rename it over the file; the directory was made before."""
        copy = self.staging / "copy.h5ad"
        require_space(self.path, self.path.stat().st_size + int(scores.nbytes) + results.loadings.nbytes)
        before = self.path.stat()
        with writing(self.path):
            shutil.copy2(self.path, copy)
            with h5py_module().File(copy, "r+") as file:
                write_elements(file, results, scores, {})
                attributes = file["var"].attrs
                attributes["column-order"] = with_columns(attributes["column-order"], results.keys.paths)
                now = _note_version(file, before)
            os.utime(copy, ns=(now, now))
            flush_one(copy)
            after = self.path.stat()
            if (before.st_ino, before.st_mtime_ns, before.st_size) != (after.st_ino, after.st_mtime_ns, after.st_size):
                raise OutputError(
                    f"{self.path} was changed while results were written to a copy of it: it is left as it is"
                )
            os.rename(copy, self.path)
            flush_one(self.path.parent)
            shutil.rmtree(self.staging)


def _note_version(file: h5py.File, before: os.stat_result) -> int:
    """Note in an open file what it was before results were written, for fits that go on; return the time that it must have then."""
    now = time.time_ns() // 10**9 * 10**9  # which every file system can store
    known = before_results(file, before.st_mtime_ns) or (before.st_size, before.st_mtime_ns)
    file.attrs[WRITTEN] = np.array([now, *known], dtype=np.int64)
    return now
