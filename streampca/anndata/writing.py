"""Results into the AnnData store or file at a path, by one writer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streampca.anndata.slots import Slots
from streampca.errors import DataError, NotAvailableError, OutputError
from streampca.redaction import shown
from streampca.sources.cells.description import RAW
from streampca.storage.lock import Lock


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
