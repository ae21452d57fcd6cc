"""Results written into an AnnData store of zarr: complete or absent, also if the process is killed.

They are built in a directory beside the store, with a journal that is written when they are complete. Then each is moved
to its place by a rename, ``uns`` last, and consolidated metadata, where there are any, are replaced after that. What a
killed process left is removed by the next call if there is no journal, and finished if there is one.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import zarr
from zarr.storage import MemoryStore

from streampca.anndata.results import Keys, Results, with_columns, write_elements
from streampca.anndata.slots import Slots
from streampca.errors import DataError, OutputError
from streampca.sources.zarr.strictness import METADATA_NAMES, read_document
from streampca.storage.directories import require_space
from streampca.storage.files import TEMPORARY, flush, flush_one, read_regular, write_atomically, writing
from streampca.storage.zarr_interface import default_buffer_prototype, sync

if TYPE_CHECKING:
    import dask.array as da

    from streampca.typing import Array

_FORMAT = "streampca-anndata"
_MARKER, _JOURNAL = "streampca.json", "journal.json"


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

    def is_ours(self) -> bool:
        """Return whether streampca wrote what is in the directory in which results are built."""
        unmarked = [child for child in self.staging.iterdir() if not TEMPORARY.fullmatch(child.name)]
        return not unmarked or _document(self.staging / _MARKER).get("format") == _FORMAT

    def finish(self) -> None:
        """Finish what a killed process had committed, and remove what it had not."""
        journal = _document(self.staging / _JOURNAL)
        if journal.get("format") == _FORMAT:
            self._finish(journal["slots"], replace=journal["replace"])
        else:
            with writing(self.staging):
                self._remove()

    def taken(self, keys: Keys) -> list[str]:
        """Return the places that hold something already, whatever it is."""
        return [slot for slot in keys.paths if os.path.lexists(self.path / slot)]

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

    def write(self, results: Results, scores: Array | da.Array, *, replace: bool) -> None:
        """Write results; the directory was made before."""
        require_space(self.path, int(scores.nbytes) + results.loadings.nbytes)
        with writing(self.path):
            with warnings.catch_warnings(action="ignore"):
                self._build(results, scores)
            flush(self.staging)
            journal = {"format": _FORMAT, "slots": list(results.keys.paths), "replace": replace}
            write_atomically(self.staging / _JOURNAL, [json.dumps(journal).encode()])
            self._finish(results.keys.paths, replace=replace)

    def _build(self, results: Results, scores: Array | da.Array) -> None:
        root = zarr.open_group(self.staging / "new", mode="w", zarr_format=self.version)
        write_elements(root, results, scores, {"chunks": getattr(scores, "chunksize", scores.shape)})

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
            self._list_columns(slots)
            self._consolidate(())
            self._remove()

    def _list_columns(self, slots: Sequence[str]) -> None:
        """Add the columns of ``var`` among `slots` to those that its metadata list."""
        path = self.path / "var" / ("zarr.json" if self.version == 3 else ".zattrs")
        document = _document(path)
        attributes = document.get("attributes", {}) if self.version == 3 else document
        listed = attributes.get("column-order", [])
        if (columns := with_columns(listed, slots)) != list(listed):
            attributes["column-order"] = columns
            write_atomically(path, [json.dumps(document, indent=2).encode()])

    def _consolidate(self, without: Sequence[str]) -> None:
        """Replace the consolidated metadata of the store, if it has any, leaving out what lies below some places."""
        name = "zarr.json" if self.version == 3 else ".zmetadata"
        if self.version == 3 and _document(self.path / name).get("consolidated_metadata") is None:
            return
        if not (self.path / name).exists():
            return
        store = MemoryStore()
        prototype = default_buffer_prototype()
        for key in _documents(self.path):
            if not any(key.startswith(f"{slot}/") for slot in without):
                sync(store.set(key, prototype.buffer.from_bytes((self.path / key).read_bytes())))
        with warnings.catch_warnings(action="ignore"):
            zarr.consolidate_metadata(store, zarr_format=self.version)
        document = sync(store.get(name, prototype))
        assert document is not None  # noqa: S101 for the type checker
        write_atomically(self.path / name, [document.to_bytes()])


def _documents(path: Path) -> list[str]:
    """Return the paths of the metadata of all nodes of a store, without consolidated ones of format 2."""
    found = []
    for directory, children, names in os.walk(path):
        documents = [name for name in names if name in METADATA_NAMES and name != ".zmetadata"]
        found += [os.path.relpath(os.path.join(directory, name), path) for name in documents]
        if ".zarray" in names or _document(Path(directory) / "zarr.json").get("node_type") == "array":
            children.clear()  # directories of chunks
    return found


def _document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, empty if there is none."""
    try:
        document = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
