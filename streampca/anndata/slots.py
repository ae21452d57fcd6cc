"""Writing results into the AnnData store or file at a path: all or none, even if the process is killed, and one writer at a time.

They are built in a directory beside it. Those of a store get a journal when they are complete there. Then each is moved
to its place by a rename, ``uns`` last, and consolidated metadata, where there are any, are replaced after that. Those of an
``.h5ad`` file are written into a copy of it, which then takes its name. What a killed process left is removed by the next call
if there is no journal, and finished if there is one.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import zarr
from zarr.storage import MemoryStore

from streampca.anndata.results import RUN_ID, Keys, Results, stored_scores, with_columns, write_elements
from streampca.errors import ConfigError, DataError, NotAvailableError, OutputError
from streampca.models.pca import PCAModel
from streampca.redaction import shown
from streampca.sources import Source
from streampca.sources.cells import StackedCells
from streampca.sources.cells.description import RAW, is_cells
from streampca.sources.cells.stored import WRITTEN, HDF5Cells, anndata_module, before_results
from streampca.sources.zarr.strictness import METADATA_NAMES, read_document
from streampca.storage.directories import require_space
from streampca.storage.files import TEMPORARY, flush, flush_one, read_regular, write_atomically, writing
from streampca.storage.lock import Lock
from streampca.storage.zarr_interface import default_buffer_prototype, sync

if TYPE_CHECKING:
    import dask.array as da

    from streampca.typing import Array

_FORMAT = "streampca-anndata"
_MARKER, _JOURNAL = "streampca.json", "journal.json"
_CURE = "set output.anndata: overwrite to replace it"


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
        """Open it for reading, and return its root, a group of zarr or h5py."""

    @abstractmethod
    def write(self, results: Results, scores: Array | da.Array, *, replace: bool) -> None:
        """Write results, all or none; the directory was made before."""

    def recover(self) -> None:
        """Remove what a killed process left and had not committed; `OutputError` if something of others stands in its place."""
        if not os.path.lexists(self.staging):
            return
        if self.staging.is_symlink() or not self.staging.is_dir():
            raise OutputError(f"{self.staging} is in the way: move it away")
        known = [child for child in self.staging.iterdir() if not TEMPORARY.fullmatch(child.name)]
        if known and _document(self.staging / _MARKER).get("format") != _FORMAT:
            raise OutputError(f"{self.staging} is in the way, and streampca did not write it: move it away")
        if _document(self.staging / _JOURNAL).get("format") != _FORMAT:
            with writing(self.staging):
                self._remove()

    def directory(self) -> Path:
        """Make the directory in which results are built, and return it."""
        with writing(self.staging):
            self.staging.mkdir()
            write_atomically(self.staging / _MARKER, [json.dumps({"format": _FORMAT}).encode()])
        return self.staging

    def discard(self) -> None:
        """Remove the directory in which results are built, unless they are committed."""
        if self.staging.is_dir() and not (self.staging / _JOURNAL).exists():
            with suppress(OSError):
                self._remove()

    def _remove(self) -> None:
        """Remove the directory, its marker last: without it, what a killed process left could not be told from other files."""
        for child in self.staging.iterdir():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            elif child.name not in (_MARKER, _JOURNAL):
                child.unlink()
        for name in (_JOURNAL, _MARKER):
            (self.staging / name).unlink(missing_ok=True)
        self.staging.rmdir()

    def taken(self, keys: Keys) -> list[str]:
        """Return the places that hold something already."""
        with self.opened() as root:
            return [slot for slot in keys.paths if slot in root]

    def run_id(self, keys: Keys) -> str | None:
        """Return the identifier of the run whose results stand there, None if all three are not there or none is known."""
        if len(self.taken(keys)) < len(keys.paths):
            return None
        with self.opened() as root:
            try:
                with warnings.catch_warnings(action="ignore"):
                    return str(anndata_module("io").read_elem(root[f"{keys.paths[-1]}/params/{RUN_ID}"]))
            except Exception:  # noqa: BLE001 results of somebody else, of any form
                return None


class ZarrSlots(Slots):
    """Places of results in the AnnData store in the directory `path`."""

    def __init__(self, path: Path):
        self.version: Literal[2, 3] = 3 if (path / "zarr.json").is_file() else 2
        document = path / ("zarr.json" if self.version == 3 else ".zattrs")
        try:
            read = read_document(document)
        except OSError as error:
            raise DataError(f"{path} is not an AnnData store: found no {document.name} in it") from error
        attributes: Any = read.get("attributes") if self.version == 3 else read
        if not isinstance(attributes, dict) or attributes.get("encoding-type") != "anndata":
            raise DataError(f"{path} is not an AnnData store: its encoding-type is not anndata")
        super().__init__(path)

    def opened(self) -> AbstractContextManager[Any]:
        """Return the root of the store, without consolidated metadata, which may be those from before a kill."""
        return nullcontext(zarr.open_group(self.path, mode="r", use_consolidated=False))

    def recover(self) -> None:
        """Finish what a killed process had committed, and remove what it had not."""
        super().recover()
        journal = _document(self.staging / _JOURNAL)
        if journal:
            self._finish(journal["slots"], replace=journal["replace"])

    def taken(self, keys: Keys) -> list[str]:
        """Return the places that hold something already, whatever it is."""
        return [slot for slot in keys.paths if os.path.lexists(self.path / slot)]

    def write(self, results: Results, scores: Array | da.Array, *, replace: bool) -> None:
        """Write results beside the store, commit them, and move them there."""
        require_space(self.path, int(scores.nbytes) + results.loadings.nbytes)
        with writing(self.path):
            with warnings.catch_warnings(action="ignore"):
                root = zarr.open_group(self.staging / "new", mode="w", zarr_format=self.version)
                write_elements(root, results, scores, {"chunks": getattr(scores, "chunksize", scores.shape)})
            flush(self.staging)
            journal = {"format": _FORMAT, "slots": list(results.keys.paths), "replace": replace}
            write_atomically(self.staging / _JOURNAL, [json.dumps(journal).encode()])
            self._finish(results.keys.paths, replace=replace)

    def _finish(self, slots: Sequence[str], *, replace: bool) -> None:
        """Move built results to their places; carried out again after a kill, it goes on where it was stopped."""
        new, old = self.staging / "new", self.staging / "old"
        with writing(self.path, "the results are complete beside the store, and the next call moves them there"):
            waiting = [slot for slot in slots if (new / slot).exists()]
            earlier = [slot for slot in waiting if os.path.lexists(self.path / slot)]
            if earlier and not replace:
                raise OutputError(
                    f"{self.path} holds {', '.join(earlier)}, written after the results of a call that was killed: move it away, "
                    f"or remove {self.staging} to drop those results"
                )
            if earlier:
                self._consolidate(slots)
            for slot in reversed(earlier):
                (old / slot).parent.mkdir(parents=True, exist_ok=True)
                os.rename(self.path / slot, old / slot)
            for slot in waiting:
                parent = slot.partition("/")[0]
                moved = slot if (self.path / parent).is_dir() else parent
                os.rename(new / moved, self.path / moved)
                flush_one((self.path / moved).parent)
            # New columns of ``var`` are added to those that its metadata list.
            path = self.path / "var" / ("zarr.json" if self.version == 3 else ".zattrs")
            document = _document(path)
            attributes = document.get("attributes", {}) if self.version == 3 else document
            listed = attributes.get("column-order", [])
            if (columns := with_columns(listed, slots)) != list(listed):
                attributes["column-order"] = columns
                write_atomically(path, [json.dumps(document, indent=2).encode()])
            self._consolidate(())
            self._remove()

    def _consolidate(self, without: Sequence[str]) -> None:
        """Replace the consolidated metadata of the store, if it has any, leaving out what lies below some places."""
        name = "zarr.json" if self.version == 3 else ".zmetadata"
        if self.version == 3 and _document(self.path / name).get("consolidated_metadata") is None:
            return
        if not (self.path / name).exists():
            return
        keys = []  # of the metadata of all nodes
        for directory, children, names in os.walk(self.path):
            documents = [each for each in names if each in METADATA_NAMES and each != ".zmetadata"]
            keys += [os.path.relpath(os.path.join(directory, each), self.path) for each in documents]
            if ".zarray" in names or _document(Path(directory) / "zarr.json").get("node_type") == "array":
                children.clear()  # directories of chunks
        store, prototype = MemoryStore(), default_buffer_prototype()
        for key in keys:
            if not any(key.startswith(f"{slot}/") for slot in without):
                sync(store.set(key, prototype.buffer.from_bytes((self.path / key).read_bytes())))
        with warnings.catch_warnings(action="ignore"):
            zarr.consolidate_metadata(store, zarr_format=self.version)
        document = sync(store.get(name, prototype))
        assert document is not None  # noqa: S101 for the type checker
        write_atomically(self.path / name, [document.to_bytes()])


class HDF5Slots(Slots):
    """Places of results in an ``.h5ad`` file, which a killed process has not changed."""

    def __init__(self, path: Path):
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        super().__init__(path)

    def opened(self) -> AbstractContextManager[Any]:
        """Open the file for reading, and return its root."""
        return HDF5Cells(str(self.path)).opened()

    def write(self, results: Results, scores: Array | da.Array, *, replace: bool) -> None:
        """Write results to a copy of the file, and rename it over the file; the directory was made before.

        What the file was before is noted in it, for fits that go on.
        """
        import h5py

        copy, before = self.staging / "copy.h5ad", self.path.stat()
        require_space(self.path, before.st_size + int(scores.nbytes) + results.loadings.nbytes)
        now = time.time_ns() // 10**9 * 10**9  # which every file system can store
        with writing(self.path):
            shutil.copy2(self.path, copy)
            with h5py.File(copy, "r+") as file:
                write_elements(file, results, scores, {})
                attributes = file["var"].attrs
                attributes["column-order"] = with_columns(attributes["column-order"], results.keys.paths)
                known = before_results(file, before.st_mtime_ns) or (before.st_size, before.st_mtime_ns)
                file.attrs[WRITTEN] = np.array([now, *known], dtype=np.int64)
            os.utime(copy, ns=(now, now))
            flush_one(copy)
            after = self.path.stat()
            if (before.st_ino, before.st_mtime_ns, before.st_size) != (after.st_ino, after.st_mtime_ns, after.st_size):
                raise OutputError(
                    f"{self.path} was changed while results were written to a copy of it: it is left unchanged"
                )
            os.rename(copy, self.path)
            flush_one(self.path.parent)
            self._remove()


def _document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, empty if there is none."""
    try:
        document = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


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
    slots = HDF5Slots(Path(path)) if path.endswith(".h5ad") else ZarrSlots(Path(path))
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
            f"layer {RAW}: results are written beside X, but raw has its own features: write adata.raw.to_adata() and name that, or fit "
            "sp.PCA to it and write nothing"
        )


def require_free(taken: list[str], label: object, cure: str) -> None:
    """Raise `OutputError` if places of results are taken."""
    if taken:
        raise OutputError(f"{label} already holds {', '.join(taken)} and is left unchanged; {cure}")


def require_slots(path: str, source: Source, run_id: str, *, replace: bool) -> None:
    """Raise an error if results of a run could not be written into the AnnData at `path`, before anything is read.

    Raises
    ------
    ConfigError
        If the source is not AnnData.
    OutputError
        If there are results of another run already, unless `replace`.
    """
    if not is_cells(source):
        raise ConfigError(
            f"output.anndata: {source.description} is not AnnData: expected an AnnData store, or output.anndata: false"
        )
    if isinstance(getattr(source, "source", None), StackedCells):
        raise ConfigError(
            "output.anndata: source.path names several AnnData stores, but results are written into one: set it to false"
        )
    layer = source.describe().get("layer")
    require_features_of_var(layer if isinstance(layer, str) else None)
    with slots_at(path, run_id) as slots:
        keys = Keys()
        require_free([] if replace or slots.run_id(keys) == run_id else slots.taken(keys), path, _CURE)


def write_run(path: str, model: PCAModel, scores: Path, run_id: str, *, replace: bool) -> None:
    """Write the results of the run `run_id` into the AnnData at `path`, unless they are there already."""
    keys = Keys()
    with slots_at(path, run_id) as slots:
        if slots.run_id(keys) == run_id:
            return
        require_free([] if replace else slots.taken(keys), path, _CURE)
        slots.directory()
        slots.write(Results.of(model, keys, run_id), stored_scores(scores), replace=replace)
