"""Groups of ours on disk, read strictly: metadata in bounds, every chunk there, nothing larger than it says, attributes sealed."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import LocalStore

from streampca.errors import ModelError, StreamPCAError
from streampca.formatting import as_text
from streampca.sources.zarr.metadata import read_document, require_document, require_readable
from streampca.sources.zarr.strictness import StrictStore, read_whole
from streampca.system.process import available_bytes

SEAL = "seal"
"""Attribute that holds the SHA-256 of all others."""
_MOST_CHUNKS = 2**20


def open_strictly(path: Path) -> zarr.Group:
    """Return the group at `path`, to be read; arrays are found by their own metadata, and no link leaves it."""
    store = StrictStore(LocalStore(path, read_only=True))
    return zarr.open_group(store, mode="r", use_consolidated=False)


def format_of(path: Path) -> str | None:
    """Return the format that the attributes of the zarr group at `path` name, None if there is no such group."""
    try:
        return str(read_document(path / "zarr.json")["attributes"]["format"])
    except (OSError, StreamPCAError, ValueError, KeyError, TypeError):
        return None


def in_short(words: str) -> str:
    """Return what is said of a file with the middle of what is too long left out: values in it may be of any length."""
    return words if len(words) <= 400 else f"{words[:300]} … {words[-50:]}"


def require(holds: bool, path: Path, otherwise: str, kind: str = "model") -> None:
    """Raise `ModelError` unless something holds."""
    if not holds:
        raise ModelError(f"{path} is not a usable {kind}: {in_short(otherwise)}")


def require_sealed(attributes: dict[str, Any], path: Path) -> None:
    """Raise `ModelError` if attributes are not those that were sealed; models of early versions have no seal."""
    others = {name: value for name, value in attributes.items() if name != SEAL}
    if SEAL in attributes and attributes[SEAL] != seal_of(others):
        raise ModelError(
            f"{path} is not a usable model: its attributes do not have the SHA-256 that was saved with them"
        )


def write_attributes(group: zarr.Group, attributes: dict[str, Any]) -> None:
    """Write the attributes of a new group, and their SHA-256 beside them; `ModelError` if they could not be read again."""
    try:
        plain = json.loads(json.dumps(attributes, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ModelError(f"its attributes cannot be written as JSON: {error}") from error
    whole = {**plain, SEAL: seal_of(plain)}
    try:  # as zarr writes them, within the document of the group
        require_document(json.dumps({"attributes": whole}, indent=2).encode(), "zarr.json")
    except StreamPCAError as error:
        raise ModelError(f"its attributes could not be read again: {error}") from error
    group.attrs.update(whole)


def seal_of(attributes: dict[str, Any]) -> str:
    """Return the SHA-256 of attributes."""
    return hashlib.sha256(json.dumps(attributes, sort_keys=True).encode()).hexdigest()


def read_array(array: Any, kind: str, label: str) -> NDArray[Any]:
    """Return all of an array of a model, of a dtype whose kind is in `kind`, as numpy has it.

    Raises
    ------
    ModelError
        If it is no array, of another type, larger than memory, or chunks are missing or damaged.
    """
    require_array(array, kind, label)
    try:
        return read_whole(array)
    except StreamPCAError as error:
        raise ModelError(f"{label} cannot be read: {error}") from error
    except Exception as error:  # every codec has its own
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(f"{label} cannot be read: {reason}") from error


def require_array(array: Any, kind: str, label: str, *, in_memory: bool = True) -> None:
    """Raise `ModelError` unless `array` is one, of a dtype of `kind`, of sizes that can be, and fits `in_memory`."""
    dtype = np.dtype(array.dtype) if isinstance(array, zarr.Array) else None
    if dtype is None or dtype.kind not in kind or (dtype.kind == "f" and dtype.itemsize not in (4, 8)):
        raise ModelError(f"{label} is not an array of the right type: found {dtype or 'none'}")
    try:
        require_readable(array.metadata, dtype.itemsize, label, most_chunks=_MOST_CHUNKS)
    except StreamPCAError as error:
        raise ModelError(str(error)) from error
    n_bytes, available = math.prod(int(n) for n in array.shape) * dtype.itemsize, available_bytes()
    if in_memory and n_bytes > available:
        raise ModelError(
            f"{label} declares {as_text(n_bytes)}, of which {as_text(available)} can be had: free some memory"
        )


def names_of(source: dict[str, Any], n_features: int, path: Path) -> NDArray[Any] | None:
    """Return the names of the features that a model was saved with; `ModelError` if they are not one text for each."""
    names = source.get("feature_names")
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != n_features or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{path} is not a usable model: its feature names are not {n_features:,} texts")
    return np.array(names, dtype=object)
