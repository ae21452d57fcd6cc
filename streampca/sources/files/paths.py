"""Files of rows from a path, a pattern, a directory, or a list of these."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeGuard
from urllib.parse import unquote

from streampca.errors import DataError, NotAvailableError, ParameterError
from streampca.formatting import one_line, plural
from streampca.redaction import shown
from streampca.sources.files.records import LocalFile, StoredFile
from streampca.sources.formats import CSV, ENDINGS, Format, StorageOptions, format_of
from streampca.system.optional import optional_module

Paths: TypeAlias = "str | Path | Sequence[str | Path]"
"""A path, a pattern such as ``shards/*.npy``, a directory, or a list of these."""

_ZARR = ("zarr.json", ".zarray", ".zgroup")
_PATTERN = re.compile(r"[*?\[]")
_PARTITION = re.compile(r"([^=._][^=]*)=(.*)")
_STATE, _SPLITS = "state.json", "dataset_dict.json"  # of data sets that the package datasets saved
_MOST_STATE = 2**24  # bytes
_DELTA_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Features of Delta tables with which the current files hold the rows as they are."""
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\.")
_MOST_FILES = 100_000
_LAKES = {
    re.compile(r"_delta_log/"): ("Delta", "DeltaTable(path).file_uris() of the package deltalake"),
    re.compile(r"\.hoodie/"): ("Hudi", "get_file_slices() of a table of the package hudi"),
    re.compile(r"metadata/[^/]+\.metadata\.json$"): ("Iceberg", "table.inspect.files() of the package pyiceberg"),
}
"""Tables whose log says which files are current, by the names of files of the log: what they are called, and what lists current files."""


class Files(NamedTuple):
    """Files of one kind."""

    format: Format
    """Their format."""
    paths: tuple[StoredFile, ...]
    """The files, in the order of their rows."""
    description: str
    """What messages call them all."""


def is_paths(data: object) -> TypeGuard[Paths]:
    """Return whether `data` is a path or a list of paths."""
    if isinstance(data, list | tuple):
        return len(data) > 0 and all(isinstance(each, str | Path) for each in data)
    return isinstance(data, str | Path)


def files_of(data: Paths, storage_options: StorageOptions | None = None) -> Files | None:
    """Return the files of rows that `data` names; None for everything else, such as a zarr store.

    Files of a pattern or a directory come in natural order (``part-2`` before ``part-10``), those of a list in its order. Nothing is
    requested for URLs of files (see `files_below` for directories behind a URL).

    Raises
    ------
    DataError
        If a pattern matches nothing, or files are of several kinds.
    ParameterError
        If a file is named twice.
    NotAvailableError
        For CSV, and for files behind a URL that are not Parquet or Arrow.
    """
    several = isinstance(data, list | tuple)
    given = [str(each) for each in data] if isinstance(data, list | tuple) else [str(data)]
    labels = [shown(text) if "://" in text else text for text in given]
    paths: list[StoredFile] = []
    stores: dict[str, object] = {}
    for text, label in zip(given, labels, strict=True):
        if "://" not in text:
            found = _expanded(text)
        elif (form := _format_of_url(text)) is None:
            found = None
        else:
            from streampca.sources.files.remote_file import remote_file

            _require_read_behind_urls(text, [form])
            found = [remote_file(text, storage_options, stores)]
        if found is None and several:
            raise DataError(
                f"{label}: expected files of rows ({ENDINGS}) in a list, or directories or patterns of them"
            )
        paths += found or []
    if not paths:
        return None
    beside: dict[Path, list[str]] = {}
    for path in paths:
        if isinstance(path, LocalFile):
            beside.setdefault(path.path.parent, []).append(path.path.name)
    for directory, names in beside.items():
        state = directory / _STATE
        shards = _shards_of(state.read_bytes(), str(directory)) if len(names) > 1 and state.is_file() else None
        others = [name for name in names if name not in (shards or names)]
        if others and len(others) < len(names):
            raise DataError(
                f"{directory / others[0]} is not a shard of the data set in {directory}, by its {_STATE}, so its rows would count twice: "
                "name the directory to read its shards"
            )
    return _files(paths, labels[0] + (f" and {len(given) - 1} more" if len(given) > 1 else ""))


def files_below(url: str, storage_options: StorageOptions | None = None) -> Files | None:
    """Return the files of rows in the directory of an object store, as `files_of` does for a local one; None if there are none.

    One listing of all objects below `url` is requested.

    Raises
    ------
    DataError
        If files are of several kinds or splits.
    NotAvailableError
        If they are not Parquet or Arrow.
    StoreError
        If the store cannot be read.
    """
    if "://" not in url:
        return None
    from streampca.sources.files.remote_file import keys_below, remote_file

    keys, stores, url = keys_below(url, storage_options), dict[str, object](), url.rstrip("/")
    inside: dict[str, tuple[list[str], list[str]]] = {"": ([], [])}
    for key in keys:
        *parts, name = key.split("/")
        below = ""
        for part in parts:
            inside[below][1].append(part)
            below += f"{part}/"
            inside.setdefault(below, ([], []))
        inside[below][0].append(name)

    def entries(below: str) -> tuple[list[str], list[str]]:
        return inside[below][0], list(dict.fromkeys(inside[below][1]))

    def content(name: str) -> bytes:
        return remote_file(f"{url}/{name}", storage_options, stores).pieces([(0, _MOST_STATE)])[0]

    found = sorted(_rows_below(entries, content, shown(url)), key=_natural)
    if not found:
        return None
    _require_read_behind_urls(url, map(format_of, found))
    return _files([remote_file(f"{url}/{name}", storage_options, stores) for name in found], shown(url))


def _files(paths: Sequence[StoredFile], label: str) -> Files:
    """Return files that are a table; raises what `files_of` raises."""
    formats = {path: form for path in paths if (form := format_of(path)) is not None}
    first = {form.name: path for path, form in reversed(formats.items())}
    if CSV.name in first:
        raise _csv(Path(str(first[CSV.name])))
    if len(first) > 1:
        names = ", ".join(str(first[name]) for name in sorted(first))
        raise DataError(f"{label}: files of several kinds cannot be one table: {names}; name those of one kind")
    if len(paths) > _MOST_FILES:
        raise DataError(f"{label}: {len(paths):,} files: expected at most {_MOST_FILES:,}")
    if len(paths) > 1:
        _require_different(paths)
    if len(stores := {id(path.store) for path in paths}) > 1:
        raise NotAvailableError(
            f"{label}: the files are in {len(stores)} places: expected those of one server or bucket, with the same query, or local ones"
        )
    return Files(formats[paths[0]], tuple(paths), label)


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
    _require_different([LocalFile(Path(path)) for path in paths])
    return tuple(paths)


def is_files_path(path: str) -> bool:
    """Return whether a path or URL names files of rows, by itself, as a pattern, or as a directory of them; requests nothing."""
    if "://" in path:
        return _format_of_url(path) is not None
    try:
        return _expanded(path) is not None
    except (DataError, NotAvailableError):
        return True


def _format_of_url(url: str) -> Format | None:
    """Return the format of a file behind a URL by its name, None where it is not one of rows."""
    return format_of(re.split(r"[?#]", url, maxsplit=1)[0])


def _require_read_behind_urls(url: str, formats: Iterable[Format | None]) -> None:
    if others := {each.name for each in formats if each is not None and not each.behind_urls}:
        raise NotAvailableError(
            f"{shown(url)}: only Parquet and Arrow files can be read from a URL, and these are {', '.join(sorted(others))}: copy them "
            "to a local path, or write them to Parquet or zarr"
        )


def _expanded(text: str) -> list[StoredFile] | None:
    """Return the files that one entry names, None if it names none of rows."""
    if text.startswith("builtin:"):
        return None
    path = Path(text)
    if path.is_dir():
        if any((path / name).is_file() for name in _ZARR):
            return None

        def entries(below: str) -> tuple[list[str], list[str]]:
            found = list(os.scandir(path / below))
            return [each.name for each in found if each.is_file()], [each.name for each in found if each.is_dir()]

        if (path / "_delta_log").is_dir():
            return _of_delta(path)
        _require_no_lake_at(path)
        try:
            rows = _rows_below(entries, lambda name: (path / name).read_bytes(), str(path))
        except OSError as error:
            raise DataError(f"{path} cannot be listed: {error.strerror}") from error
        return list(map(LocalFile, sorted((path / name for name in rows), key=_natural))) or None
    if path.exists() or not _PATTERN.search(text):
        return None if format_of(path) is None else [LocalFile(path)]
    matches = [Path(match) for match in glob.glob(text, recursive=True)]
    files = [match for match in matches if match.is_file() and format_of(match) is not None]
    if not files:
        raise DataError(f"{text}: no file of rows ({ENDINGS}) matches this pattern")
    for directory in dict.fromkeys(file.parent for file in files):
        _require_no_lake_at(directory)
    return list(map(LocalFile, sorted(files, key=_natural)))


def _rows_below(
    entries: Callable[[str], tuple[list[str], list[str]]], content: Callable[[str], bytes], label: str, below: str = ""
) -> list[str]:
    """Return the files of rows in a directory: those in it, or else those in partitions below it, or else those of a data hub.

    Parameters
    ----------
    entries : callable
        Returns the names of files and of directories in a directory, by its path, which ends with a slash.
    content : callable
        Returns what is in a file.
    label : str
        What messages call the directory.
    below : str
        Its path.

    Raises
    ------
    DataError
        If it has several splits, or what names its files is damaged.
    NotAvailableError
        If it is a table with a log of its current files.
    """
    files, directories = entries(below)
    if not set(_ZARR).isdisjoint(files):
        return []
    in_metadata = entries(f"{below}metadata/")[0] if "metadata" in directories else []
    _require_no_lake([*(f"{name}/" for name in directories), *(f"metadata/{name}" for name in in_metadata)], label)
    if _SPLITS in files:
        try:
            splits = list(map(str, json.loads(content(below + _SPLITS))["splits"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{label}: {_SPLITS} is damaged: expected a list of splits; name the directory to read"
            ) from error
        raise DataError(
            f"{label} has the splits {', '.join(splits)[:200]}: name the one to read, as in {label}/{(splits or ['…'])[0][:60]}"
        )
    if _STATE in files and (shards := _shards_of(content(below + _STATE), label)) is not None:
        return [below + name for name in shards]
    if found := [below + name for name in files if _is_of_rows(name)]:
        return found
    for part in filter(_PARTITION.fullmatch, directories):
        found += _rows_below(entries, content, f"{label}/{part}", f"{below}{part}/")
    if found or "data" not in directories:
        return found
    return _of_hub([f"{below}data/{name}" for name in entries(f"{below}data/")[0] if _is_of_rows(name)], label)


def _of_delta(directory: Path) -> list[StoredFile]:
    """Return the current files of a Delta table, in natural order.

    Raises
    ------
    NotAvailableError
        If deltalake is not installed, rows cannot be read from the files alone, as of deletion vectors, or files have other endings.
    DataError
        If the log cannot be read, or there are no files.
    """
    deltalake = optional_module("deltalake", f"{directory}, a table of Delta,", "lake")
    try:
        table = deltalake.DeltaTable(str(directory))
        features, found = table.protocol().reader_features or [], table.file_uris()
    except Exception as error:
        raise DataError(f"{directory}: the log of the Delta table cannot be read: {one_line(error)}") from error
    if others := sorted(set(features) - _DELTA_FEATURES):
        raise NotAvailableError(
            f"{directory} is a Delta table with {', '.join(others)}, which are not supported: its rows are not those of its files; write the "
            "current rows to Parquet"
        )
    if not found:
        raise DataError(f"{directory}: version {table.version()} of the Delta table has no files")
    paths = sorted((Path(each.removeprefix("file://")) for each in found), key=_natural)
    if unknown := [path.name for path in paths if format_of(path) is None]:
        raise NotAvailableError(
            f"{directory}: the log of the Delta table names {plural(len(unknown), 'file')} without the ending .parquet, the first {unknown[0]}: "
            "expected files of Parquet, which are known by it; write the current rows to Parquet"
        )
    return [LocalFile(path) for path in paths]


def _require_no_lake_at(directory: Path) -> None:
    """Raise `NotAvailableError` if a directory is a table with a log of its current files, or one of its partitions."""
    while True:
        names = [f"{name}/" for name in ("_delta_log", ".hoodie") if (directory / name).is_dir()]
        names += [f"metadata/{file.name}" for file in (directory / "metadata").glob("*.metadata.json")]
        _require_no_lake(names, str(directory))
        if not _PARTITION.fullmatch(directory.name) and directory.name != "data":
            return
        directory = directory.parent


def _require_no_lake(names: Iterable[str], label: str) -> None:
    """Raise `NotAvailableError` if files of these names below a directory are the log of its current files."""
    for name in names:
        for log, (kind, listing) in _LAKES.items():
            if log.match(name):
                raise NotAvailableError(
                    f"{label} is a table of {kind}, whose log says which files are current; that of a Delta table is read by the path of its local "
                    f"directory, others are not, and without it rows that were removed would count: give the list of the current files ({listing}), or write the current rows to Parquet"
                )


def _shards_of(state: bytes, label: str) -> list[str] | None:
    """Return the names of the shards of a data set that the package datasets saved, by its ``state.json``; None if it is something else.

    Other Arrow files beside them are results that the package keeps (``cache-*.arrow``).

    Raises
    ------
    NotAvailableError
        If its rows are chosen by a file of indices.
    DataError
        If a name leads out of the directory.
    """
    try:
        known = json.loads(state)
        names = [str(each["filename"]) for each in known["_data_files"]]
    except (ValueError, KeyError, TypeError):
        return None
    if known.get("_indices_data_files"):
        raise NotAvailableError(
            f"{label}: the rows of the data set are chosen by a file of indices: save it again with dataset.flatten_indices().save_to_disk(…)"
        )
    if not names or any(os.path.basename(name) != name or format_of(name) is None for name in names):
        raise DataError(
            f"{label}: {_STATE} names {', '.join(names)[:120] or 'no shards'}: expected names of files beside it"
        )
    return names


def _is_of_rows(name: str) -> bool:
    return name[:1] not in ("", ".", "_") and format_of(name) is not None


def _of_hub(files: Sequence[str], label: str) -> list[str]:
    """Return the shards in the directory ``data`` of a data set as hubs lay it out, such as ``data/train-00000-of-00004.parquet``.

    Raises
    ------
    DataError
        If there are shards of several splits, which are not one table.
    """
    shards = {file: match[1] for file in files if (match := _SHARD.match(os.path.basename(file)))}
    splits = sorted(set(shards.values()))
    if len(splits) > 1:
        ending = os.path.splitext(next(iter(shards)))[1]
        raise DataError(
            f"{label} has the splits {', '.join(splits)}: name the one to read, as in {label}/data/{splits[-1]}-*{ending}"
        )
    return list(shards)


def partition_keys(file: StoredFile) -> dict[str, str]:
    """Return the values that the names of the directories of a file give to keys, ``{"year": "2024"}``."""
    found = (_PARTITION.fullmatch(part) for part in file.parts[:-1])
    return {unquote(match[1]): unquote(match[2]) for match in found if match}


def _natural(path: object) -> list[tuple[int, int, str]]:
    """Return a key by which numbers in names are sorted by their value."""
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(part), part) if part.isdigit() else (0, 0, part) for part in parts if part]


def _require_different(paths: Sequence[StoredFile]) -> None:
    """Raise `ParameterError` if a file is named twice, by whichever path."""
    seen: dict[object, StoredFile] = {}
    for path in paths:
        if (identity := path.identity) is None:
            continue  # an error of its own when the file is opened
        first = seen.setdefault(identity, path)
        if first is not path:
            names = f"{path} is named twice" if str(first) == str(path) else f"{first} and {path} are the same file"
            raise ParameterError(f"{names}: its rows would count twice; name every file once")


def _csv(path: Path) -> DataError | NotAvailableError:
    """Return the error that says how a CSV file is converted."""
    if not path.exists():
        return DataError(f"{path}: no such file")
    out = re.sub(r"\.(csv|tsv)(\.(gz|bz2|zst))?$", "", str(path), flags=re.IGNORECASE) + ".parquet"
    options = "c.ReadOptions(block_size=2**24)"  # bytes in memory at a time; types follow from the first
    if ".tsv" in path.name.lower():
        options += ", c.ParseOptions(delimiter='\\t')"
    code = (
        f"import pyarrow.csv as c, pyarrow.parquet as p; rows = c.open_csv({str(path)!r}, {options}); "
        f"out = p.ParquetWriter({out!r}, rows.schema); [out.write_batch(b) for b in rows]; out.close()"
    )
    return NotAvailableError(
        f"{path}: CSV is not supported, because text declares neither types nor where rows begin and would be parsed in every pass: convert it "
        f"once: python -c {shlex.quote(code)}"
    )
