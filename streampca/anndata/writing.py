"""Results into the AnnData store or file at a path, by one writer at a time."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streampca.anndata.results import Keys, Results, run_id_in
from streampca.errors import DataError, NotAvailableError, OutputError
from streampca.redaction import shown
from streampca.sources.cells.description import RAW
from streampca.storage.lock import Lock

if TYPE_CHECKING:
    import dask.array as da


class Slots(ABC):
    """Places of results in the AnnData store or file at `path`; what a killed process left is recovered before they are used."""

    def __init__(self, path: Path):
        self.path = path.resolve()
        self.staging = self.path.with_name(f".{self.path.name}.streampca-results")
        if not os.access(self.path, os.W_OK) or not os.access(self.path.parent, os.W_OK):
            raise OutputError(
                f"{path} cannot be written to: expected write permission there and in the directory above"
            )

    @abstractmethod
    def opened(self) -> AbstractContextManager[Any]:
        """Open it for reading, and return its root."""

    @abstractmethod
    def is_ours(self) -> bool:
        """Return whether streampca wrote what is in the directory in which results are built."""

    @abstractmethod
    def finish(self) -> None:
        """Finish what a killed process had committed, or remove what it had not."""

    @abstractmethod
    def directory(self) -> Path:
        """Make the directory in which results are built, and return it."""

    @abstractmethod
    def discard(self) -> None:
        """Remove that directory, unless results in it are committed."""

    @abstractmethod
    def write(self, results: Results, scores: da.Array, *, replace: bool) -> None:
        """Write results, all or none; the directory was made before."""

    def recover(self) -> None:
        """Set right what a killed process left; `OutputError` if something of others stands in its place."""
        if not os.path.lexists(self.staging):
            return
        if self.staging.is_symlink() or not self.staging.is_dir():
            raise OutputError(f"{self.staging} is in the way: move it away")
        if not self.is_ours():
            raise OutputError(f"{self.staging} is in the way, and streampca did not write it: move it away")
        self.finish()

    def taken(self, keys: Keys) -> list[str]:
        """Return the places that hold something already."""
        with self.opened() as root:
            return [slot for slot in keys.paths if slot in root]

    def run_id(self, keys: Keys) -> str | None:
        """Return the identifier of the run whose results stand there, None if all three are not there or none is known."""
        if len(self.taken(keys)) < len(keys.paths):
            return None
        with self.opened() as root:
            return run_id_in(root, keys)


@contextmanager
def slots_at(path: str, run_id: str) -> Iterator[Slots]:
    """Open the places of results in the AnnData at `path` for one writer, `run_id`, as long as the block lasts.

    Raises
    ------
    DataError
        If it is no AnnData.
    NotAvailableError
        If it is a URL.
    OutputError
        If another process writes there.
    """
    if "://" in path:
        raise NotAvailableError(
            f"{shown(path)}: results are written into local AnnData stores, expected a path; copy the store"
        )
    if not Path(path).exists():
        raise DataError(f"{path}: no such file or directory: expected an AnnData store")
    slots: Slots
    if path.endswith(".h5ad"):
        from streampca.anndata.hdf5_slots import HDF5Slots  # here, because it needs h5py

        slots = HDF5Slots(Path(path))
    else:
        from streampca.anndata.zarr_slots import ZarrSlots  # here, because it imports zarr

        slots = ZarrSlots(Path(path))
    with Lock(slots.path, run_id):
        slots.recover()
        try:
            yield slots
        finally:
            slots.discard()


def require_features_of_var(layer: str | None) -> None:
    """Raise `NotAvailableError` for results of ``raw``, whose features are not those of ``varm``."""
    if layer == RAW:
        raise NotAvailableError(
            f"layer {RAW}: results are written beside X, and raw has features of its own: write adata.raw.to_adata() and name that, or fit "
            "sp.PCA to it and write nothing"
        )


def require_free(taken: list[str], label: object, cure: str) -> None:
    """Raise `OutputError` if places of results are taken."""
    if taken:
        raise OutputError(f"{label} holds {', '.join(taken)} already: it is left as it is; {cure}")
