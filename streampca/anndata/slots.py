"""Places of results in AnnData, in a store or a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streampca.anndata.results import Keys, Results, run_id_in
from streampca.errors import OutputError

if TYPE_CHECKING:
    import dask.array as da

    from streampca.typing import Array


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
    def write(self, results: Results, scores: Array | da.Array, *, replace: bool) -> None:
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
