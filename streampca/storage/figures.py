"""Digests of the figures in the documents of a finished run, stored in its commit record, so that later changes are detected."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streampca.typing import Json

DOCUMENTS = ("manifest.json", "plan.json")
"""JSON documents of a run whose figures have a digest each."""
_WHOLE = "config.yaml"
_LENGTH = 16  # hexadecimal digits of a SHA-256: 64 bits tell a change, which is all that is asked of them


def figures_of(directory: Path) -> dict[str, dict[str, str]]:
    """Return the digests of the documents in `directory`: file name → name of a figure → digest.

    A figure is an entry of the document, or of an object in it (``"result.total_variance"``); lists and deeper objects
    count as one. The configuration has one digest, under ``""``. Missing documents are omitted.
    """
    digests = {name: _figures(directory / name) for name in DOCUMENTS if (directory / name).is_file()}
    if (directory / _WHOLE).is_file():
        digests[_WHOLE] = {"": _digest((directory / _WHOLE).read_bytes())}
    return digests


def changed_figures(directory: Path, recorded: Json) -> list[tuple[str, str]]:
    """Return file and name of every figure whose digest differs from `recorded`, or that was removed or added."""
    present, changed = figures_of(directory), []
    for document in sorted({*present, *recorded}):
        before, after = recorded.get(document) or {}, present.get(document) or {}
        changed += [(document, name) for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return changed


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


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_LENGTH]
