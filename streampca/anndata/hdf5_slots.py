"""Results written into an ``.h5ad`` file: into a copy of it, which then takes its name."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from streampca.anndata.results import Keys, Results, StoredScores, run_id_in, write_elements
from streampca.errors import DataError, OutputError
from streampca.sources.cells.hdf5 import WRITTEN, before_results, h5py_module, opening_error
from streampca.storage.directories import require_space
from streampca.storage.files import TEMPORARY, flush_one, writing

if TYPE_CHECKING:
    import h5py


_Found = TypeVar("_Found")
_OURS = re.compile(
    rf"scores(\..*)?|copy\.h5ad|{TEMPORARY.pattern}"
)  # also scores that are being written, and their lock


class HDF5Slots:
    """Places of results in the ``.h5ad`` file at `path`."""

    def __init__(self, path: Path):
        self.path = path.resolve()
        self.staging = self.path.with_name(f".{self.path.name}.streampca-results")
        if not self.path.is_file():
            raise DataError(f"{path}: no such file")
        if not os.access(self.path, os.W_OK) or not os.access(self.path.parent, os.W_OK):
            raise OutputError(
                f"{path} cannot be written to: expected write permission there and in the directory above"
            )

    def recover(self) -> None:
        """Remove what a killed process left beside the file, which it had not changed."""
        if self.staging.is_symlink() or (self.staging.exists() and not self.staging.is_dir()):
            raise OutputError(f"{self.staging} is in the way: move it away")
        if self.staging.is_dir():
            if not all(_OURS.fullmatch(child.name) for child in self.staging.iterdir()):
                raise OutputError(f"{self.staging} is in the way, and streampca did not write it: move it away")
            with writing(self.staging):
                shutil.rmtree(self.staging)

    def _read(self, look: Callable[[h5py.File], _Found]) -> _Found:
        try:
            with h5py_module().File(self.path, "r") as file:
                return look(file)
        except OSError as error:
            raise opening_error(self.path, error) from error

    def taken(self, keys: Keys) -> list[str]:
        """Return the places that hold something already."""
        return self._read(lambda file: [slot for slot in keys.paths if slot in file])

    def run_id(self, keys: Keys) -> str | None:
        """Return the identifier of the run whose results stand there, None if all three are not there or none is known."""
        if len(self.taken(keys)) < len(keys.paths):
            return None

        return self._read(lambda file: run_id_in(file, keys))

    def directory(self) -> Path:
        """Make the directory in which results are built, and return it."""
        with writing(self.staging):
            self.staging.mkdir()
        return self.staging

    def discard(self) -> None:
        """Remove the directory in which results are built."""
        shutil.rmtree(self.staging, ignore_errors=True)

    def write(self, results: Results, scores: StoredScores, *, replace: bool) -> None:
        """Write results to a copy of the file, and rename it over the file; the directory was made before."""
        copy = self.staging / "copy.h5ad"
        n, k = scores.shape
        require_space(self.path, self.path.stat().st_size + n * k * scores.dtype.itemsize + results.loadings.nbytes)
        before = self.path.stat()
        with writing(self.path):
            shutil.copy2(self.path, copy)
            with h5py_module().File(copy, "r+") as file:
                write_elements(file, results, scores, {})
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
