"""Digests of the figures in the documents of a finished run, stored in its commit record, so that later changes are detected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streampca.typing import Json

_UNCHECKED = (
    "streampca.json",
    "report.html",
)  # the commit record itself, and the page, which is drawn again on request
_LENGTH = 16  # hexadecimal digits of a SHA-256: 64 bits tell a change, which is all that is asked of them


def figures_of(directory: Path) -> dict[str, dict[str, str]]:
    """Return the digests of the documents in `directory`, the files at its top: file name → name of a figure → digest.

    A figure is an entry of a JSON document, or of an object in it (``"result.total_variance"``); lists and deeper objects
    count as one. Other documents have one digest, under ``""``. The page has none.
    """
    names = (path.name for path in directory.iterdir() if path.is_file())
    return _digests(directory, [name for name in names if name not in _UNCHECKED])


def changed_figures(directory: Path, recorded: Json) -> list[tuple[str, str]]:
    """Return file and name of every figure whose digest differs from `recorded`, or that was removed or added.

    Files that are not recorded are not of the run.
    """
    present, changed = _digests(directory, recorded), []
    for document in sorted(recorded):
        before, after = recorded[document] or {}, present.get(document) or {}
        changed += [(document, name) for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return changed


def _digests(directory: Path, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the digests of those of the documents `names` that exist."""
    paths = {name: directory / name for name in sorted(names) if (directory / name).is_file()}
    return {name: _figures(path) if name.endswith(".json") else {"": _of_file(path)} for name, path in paths.items()}


def _figures(path: Path) -> dict[str, str]:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return {"": _digest(path.read_bytes())}
    figures: dict[str, str] = {}
    for name, value in document.items() if isinstance(document, dict) else (("", document),):
        inner = {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
        figures |= {key: _digest(json.dumps(entry, sort_keys=True).encode()) for key, entry in inner.items()}
    return figures


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_LENGTH]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_LENGTH]
