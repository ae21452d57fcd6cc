"""Files of exported models: what was written, and writing them whole, never over a file of another kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from streampca.errors import OutputError
from streampca.formatting import as_text
from streampca.storage.directories import require_local
from streampca.storage.files import write_atomically

Kind = Literal["ONNX", "faiss", "npz", "NetCDF", "CSV"]

SUFFIXES: dict[str, Kind] = {".onnx": "ONNX", ".faiss": "faiss", ".npz": "npz", ".nc": "NetCDF", ".csv": "CSV"}
"""Formats of files by the ends of their names."""
_BEGINNINGS: dict[Kind, bytes] = {"ONNX": b"\x08", "faiss": b"LTra", "npz": b"PK", "NetCDF": b"CDF", "CSV": b"feat"}
"""First bytes of a file of each format."""


@dataclass(frozen=True)
class Exported:
    """What was written; its text is one line."""

    path: Path
    """The file."""
    format: str
    """Format of the file, and its version where it has one."""
    shape: tuple[int, int]
    """Numbers of features and of components."""
    dtype: str
    """Type of the numbers in the file."""
    n_bytes: int
    """Size of the file in bytes."""
    error: float | None
    """Largest difference of scores that the file gives from those of the model in float64, over the largest score, for rows
    drawn from the model; None for files that compute nothing."""

    def __str__(self) -> str:
        d, k = self.shape
        measured = "no loss" if self.error is None else f"scores differ by {self.error:.1e} of the largest"
        return f"{self.path}: {self.format}, {d:,} features to {k:,} components, {self.dtype}, {as_text(self.n_bytes)}; {measured}"


def require_free(path: Path, kind: Kind, *, overwrite: bool) -> None:
    """Raise `OutputError` unless `path` is free, or a file of that kind that may be replaced."""
    require_local(path)
    if not path.parent.is_dir():
        raise OutputError(f"{path} cannot be written: {path.parent} is no directory")
    if not path.exists() and not path.is_symlink():
        return
    if path.is_symlink() or not path.is_file() or not _begins_as(path, kind):
        raise OutputError(
            f"{path} exists and is no {kind} file: it is left untouched; name another place, or move it away"
        )
    if not overwrite:
        raise OutputError(f"{path} exists already: ask for overwrite to replace it, or name another place")


def _begins_as(path: Path, kind: Kind) -> bool:
    with path.open("rb") as file:
        return file.read(4).startswith(_BEGINNINGS[kind])


def write(path: Path, kind: Kind, data: bytes | memoryview, *, overwrite: bool) -> None:
    """Write a file whole or not at all; `OutputError` as `require_free`."""
    require_free(path, kind, overwrite=overwrite)
    write_atomically(path, [data])
