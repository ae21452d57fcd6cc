"""From a path, a pattern, a directory, or a list of these to the files of rows that they name."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeGuard
from urllib.parse import unquote

from streampca.errors import DataError, NotAvailableError, ParameterError

Paths: TypeAlias = "str | Path | Sequence[str | Path]"
"""A path, a pattern such as ``shards/*.npy``, a directory, or a list of these."""

_KINDS = {
    ".npy": "npy",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".nc": "hdf5",
    ".nc4": "hdf5",
    ".bed": "hdf5",
    ".csv": "csv",
    ".tsv": "csv",
    ".csv.gz": "csv",
}
"""Kinds of files by the ends of their names."""
_ZARR = ("zarr.json", ".zarray", ".zgroup")
_PATTERN = re.compile(r"[*?\[]")
_PARTITION = re.compile(r"([^=._][^=]*)=(.*)")
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\.")
_MOST_FILES = 100_000


class Files(NamedTuple):
    """Files of one kind."""

    kind: str
    """``npy``, ``parquet``, ``arrow`` or ``hdf5``."""
    paths: tuple[Path, ...]
    """The files, in the order of their rows."""
    description: str
    """What messages call them all."""


def is_paths(data: object) -> TypeGuard[Paths]:
    """Return whether `data` is a path or a list of paths."""
    if isinstance(data, list | tuple):
        return len(data) > 0 and all(isinstance(each, str | Path) for each in data)
    return isinstance(data, str | Path)


def files_of(data: Paths) -> Files | None:
    """Return the files of rows that `data` names; None for everything else, such as a zarr store.

    Files of a pattern or a directory come in natural order (``part-2`` before ``part-10``), those of a list in its order.

    Raises
    ------
    DataError
        If a pattern matches nothing, or files are of several kinds.
    ParameterError
        If a file is named twice.
    NotAvailableError
        For CSV, and for files behind a URL.
    """
    several = isinstance(data, list | tuple)
    given = [str(each) for each in data] if isinstance(data, list | tuple) else [str(data)]
    paths: list[Path] = []
    for text in given:
        found = _expanded(text)
        if found is None and several:
            raise DataError(
                f"{text}: expected .npy, Parquet, Arrow or HDF5 files in a list, or directories or patterns of them"
            )
        paths += found or []
    if not paths:
        return None
    kinds = {kind_of(path) for path in paths}
    if "csv" in kinds:
        raise _csv(next(path for path in paths if kind_of(path) == "csv"))
    label = given[0] if len(given) == 1 else f"{given[0]} and {len(given) - 1} more"
    if len(kinds) > 1:
        names = ", ".join(str(next(p for p in paths if kind_of(p) == kind)) for kind in sorted(map(str, kinds)))
        raise DataError(f"{label}: files of several kinds cannot be one table: {names}; name those of one kind")
    if len(paths) > _MOST_FILES:
        raise DataError(f"{label}: {len(paths):,} files: expected at most {_MOST_FILES:,}")
    _require_different(paths)
    return Files(str(kinds.pop()), tuple(paths), label)


def cells_paths(data: Paths) -> tuple[str, ...] | None:
    """Return the paths of several AnnData stores and files: of a list of these, or of a pattern for ``.h5ad``; None for everything else.

    Raises
    ------
    DataError
        If the pattern matches nothing.
    ParameterError
        If one is named twice.
    """
    if isinstance(data, list | tuple):
        paths = [str(each) for each in data]
        if not all(path.rstrip("/").endswith((".h5ad", ".zarr")) for path in paths):
            return None
    else:
        pattern = str(data)
        if not pattern.endswith(".h5ad") or "://" in pattern or Path(pattern).exists() or not _PATTERN.search(pattern):
            return None
        paths = [str(path) for path in sorted(map(Path, glob.glob(pattern, recursive=True)), key=_natural)]
        if not paths:
            raise DataError(f"{pattern}: no .h5ad file matches this pattern")
    _require_different([Path(path) for path in paths])
    return tuple(paths)


def kind_of(path: str | Path) -> str | None:
    """Return the kind of a file by its name, None where it is not one of rows."""
    name = os.path.basename(str(path)).lower()
    return next((kind for end, kind in _KINDS.items() if name.endswith(end) and name != end), None)


def is_files_path(path: str) -> bool:
    """Return whether a path names files of rows, by itself, as a pattern, or as a directory of them."""
    try:
        return _expanded(path) is not None
    except (DataError, NotAvailableError):
        return True


def _expanded(text: str) -> list[Path] | None:
    """Return the files that one entry names, None if it names none of rows."""
    if "://" in text or text.startswith("builtin:"):
        if "://" in text and kind_of(re.split(r"[?#]", text, maxsplit=1)[0]) is not None:
            raise NotAvailableError(
                f"{text}: files of rows are read from local paths: copy them, or write them to zarr"
            )
        return None
    path = Path(text)
    if path.is_dir():
        return _of_directory(path)
    if path.exists() or not _PATTERN.search(text):
        return None if kind_of(path) is None else [path]
    matches = [Path(match) for match in glob.glob(text, recursive=True)]
    files = [match for match in matches if match.is_file() and kind_of(match) is not None]
    if not files:
        raise DataError(f"{text}: no .npy, Parquet, Arrow or HDF5 file matches this pattern")
    return sorted(files, key=_natural)


def _of_directory(path: Path) -> list[Path] | None:
    """Return the files of rows in a directory, of directories below it only those in partitions, or else those of a data hub.

    None if it is a zarr store or has none.
    """
    if any((path / name).exists() for name in _ZARR):
        return None
    try:
        entries = list(_entries(path)) or [file for part in _partitions(path) for file in _of_directory(part) or []]
        entries = entries or _of_hub(path / "data")
    except OSError as error:
        raise DataError(f"{path} cannot be listed: {error.strerror}") from error
    return sorted(entries, key=_natural) or None


def _entries(path: Path) -> Iterator[Path]:
    """Yield the files of rows in a directory; names that begin with a dot or an underscore are of other programs."""
    for entry in os.scandir(path):
        if entry.name[0] not in "._" and kind_of(entry.name) is not None and entry.is_file():
            yield path / entry.name


def _partitions(path: Path) -> Iterator[Path]:
    """Yield the directories in `path` that are partitions of a data set, such as ``year=2024``."""
    for entry in os.scandir(path):
        if _PARTITION.fullmatch(entry.name) and entry.is_dir():
            yield path / entry.name


def _of_hub(path: Path) -> list[Path]:
    """Return the shards in the directory ``data`` of a data set as hubs lay it out, such as ``data/train-00000-of-00004.parquet``.

    Raises
    ------
    DataError
        If there are shards of several splits, which are not one table.
    """
    shards = {
        file: match[1] for file in (_entries(path) if path.is_dir() else ()) if (match := _SHARD.match(file.name))
    }
    splits = sorted(set(shards.values()))
    if len(splits) > 1:
        raise DataError(
            f"{path.parent} has the splits {', '.join(splits)}: name the one to read, as in {path / splits[-1]}-*{next(iter(shards)).suffix}"
        )
    return list(shards)


def partition_keys(path: Path) -> dict[str, str]:
    """Return the values that the names of the directories of a file give to keys, ``{"year": "2024"}``."""
    found = (_PARTITION.fullmatch(part) for part in path.parts[:-1])
    return {unquote(match[1]): unquote(match[2]) for match in found if match}


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Return a key by which numbers in names are sorted by their value."""
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(part), part) if part.isdigit() else (0, 0, part) for part in parts if part]


def _require_different(paths: Sequence[Path]) -> None:
    """Raise `ParameterError` if a file is named twice, by whichever path."""
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue  # an error of its own when the file is opened
        first = seen.setdefault((status.st_dev, status.st_ino), path)
        if first is not path:
            names = f"{path} is named twice" if str(first) == str(path) else f"{first} and {path} are the same file"
            raise ParameterError(f"{names}: its rows would count twice; name every file once")


def _csv(path: Path) -> DataError | NotAvailableError:
    """Return the error that says how a CSV file is converted."""
    if not path.exists():
        return DataError(f"{path}: no such file")
    out = re.sub(r"\.(csv|tsv)(\.gz)?$", "", str(path), flags=re.IGNORECASE) + ".parquet"
    options = "c.ReadOptions(block_size=2**24)"  # bytes in memory at a time; types follow from the first
    if ".tsv" in path.name.lower():
        options += ", c.ParseOptions(delimiter='\\t')"
    code = (
        f"import pyarrow.csv as c, pyarrow.parquet as p; rows = c.open_csv({str(path)!r}, {options}); "
        f"out = p.ParquetWriter({out!r}, rows.schema); [out.write_batch(b) for b in rows]; out.close()"
    )
    return NotAvailableError(
        f"{path}: CSV is not read, because text would be parsed in every pass: convert it once: python -c {shlex.quote(code)}"
    )
