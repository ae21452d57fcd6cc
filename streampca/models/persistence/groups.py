"""The reader and the writer of zarr groups for models and states: plain arrays with digests and sealed JSON attributes, never pickle.

Reading is strict: metadata within limits, every chunk present, no array larger than memory, arrays and attributes with
the SHA-256 that was saved with them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import LocalStore

from streampca.errors import ModelError, StreamPCAError
from streampca.formatting import as_text, one_line, shortened
from streampca.models.stored import StoredArray
from streampca.sources.zarr.strictness import (
    StrictStore,
    is_file,
    read_document,
    read_whole,
    require_document,
    require_readable,
)
from streampca.storage.zarr_interface import ZarrArray
from streampca.system.process import available_bytes
from streampca.typing import Array, Json

SEAL = "seal"
"""Attribute that holds the SHA-256 of all others."""
_MAX_CHUNKS = 2**20
_CHUNK_BYTES = 8 * 2**20
T = TypeVar("T")


@dataclass(frozen=True)
class GroupFormat:
    """The fields of one kind of zarr group, from which it is written and checked."""

    format: str
    """Attribute ``format``."""
    title: str
    """Name of such a group in messages."""
    noun: str
    """Name of its content in messages: model or state."""
    versions: tuple[int, ...]
    """Versions that can be read; the last one is written."""
    kind: str | None = None
    """Attribute ``kind``, where several kinds share a format."""
    arrays: Mapping[str, str] = field(default_factory=dict)
    """Names of the arrays and the kinds of their data types (``"f"``, ``"i"``, ``"u"``)."""
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the axes of arrays, as xarray shows them; of one name have the same size."""
    further: re.Pattern[str] | None = None
    """Names of further arrays, which others name with their kinds when they read them."""
    required: frozenset[str] = frozenset()
    """Arrays that every such group has."""
    attributes: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    """Names of the attributes and their types."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Values of attributes that groups of earlier versions do not have."""

    def unusable(self, path: Path, reason: str) -> ModelError:
        """Return the error that the group at `path` cannot be used for `reason`."""
        return ModelError(f"{path} is not a usable {self.noun}: {shortened(reason)}")


class StoredGroup:
    """A zarr group on disk, opened for reading; its header is checked at once and an array when it is read."""

    def __init__(self, path: Path, form: GroupFormat):
        """Open the group at `path` and check it against `form`.

        Raises
        ------
        ModelError
            If format, kind or version differ, arrays are missing, or an attribute is of another type.
        """
        self.path, self.form = path, form
        self._group = open_strictly(path)
        stored: Json = dict(self._group.attrs)
        self.stored_attributes = stored
        same_kind = stored.get("format") == form.format and stored.get("kind") == form.kind
        self.require(same_kind, f"it is not a {form.title}")
        version, fit = stored.get("version"), stored.get("fit")
        writer = fit.get("written_by") if isinstance(fit, dict) else None
        later = type(version) is int and version > form.versions[-1]
        hint = f": streampca {writer or 'of a later version'} wrote it; load it with that version" if later else ""
        expected = " or ".join(map(str, form.versions))
        known = type(version) is int and version in form.versions
        self.require(known, f"it has format version {version!r}, expected {expected}{hint}")
        self.attributes = {name: stored.get(name, form.defaults.get(name)) for name in form.attributes}
        """Attributes of the format, with defaults for those that earlier versions do not have."""
        for name, types in form.attributes.items():
            self.require(type(self.attributes[name]) in types, f"attribute {name} is {self.attributes[name]!r}")
        self.digests: Json = stored.get("sha256") or {}
        """SHA-256 of the arrays by name, as saved."""
        self.require(isinstance(self.digests, dict), "its arrays are not those that were saved")
        further = [name for name in self.digests if form.further and form.further.fullmatch(name)]
        self.names = [name for name in (*form.arrays, *further) if name in self]
        """Names of the arrays of the format that the group has."""
        self.require(form.required <= set(self.names), "arrays are missing")
        same = not form.arrays or set(self.digests) == set(self.names)
        self.require(same, "its arrays are not those that were saved")

    def __contains__(self, name: str) -> bool:
        return is_file(f"{self.path}/{name}/zarr.json")  # which zarr would read to tell that

    def require(self, condition: bool, reason: str) -> None:
        """Raise `ModelError` with `reason` unless `condition` is true."""
        if not condition:
            raise self.form.unusable(self.path, reason)

    def part(self, name: str, read: Callable[[Any], T]) -> T:
        """Return what `read` makes of the attribute `name`; its `ModelError` names the group."""
        try:
            return read(self.attributes[name])
        except ModelError as error:
            raise self.form.unusable(self.path, str(error)) from error

    def require_digest(self, name: str, found: str) -> None:
        """Raise `ModelError` unless `found` is the saved digest of the array `name`."""
        self.require(self.digests.get(name) == found, f"array {name} does not have the SHA-256 that was saved with it")

    def zarr_array(self, name: str, kinds: str | None = None, *, in_memory: bool = True) -> ZarrArray:
        """Return the array `name`, not read yet; `ModelError` if its type or size is not acceptable."""
        array = self._group[name]
        require_array(array, kinds or self.form.arrays[name], self._label(name), in_memory=in_memory)
        assert isinstance(array, zarr.Array)  # noqa: S101 for the type checker: required above
        return array

    def array(self, name: str, kinds: str | None = None) -> Array:
        """Return the values of the array `name`; `ModelError` if they are not those that were saved."""
        values = self.values(self.zarr_array(name, kinds))
        self.require_digest(name, digest(values))
        return values

    def values(self, array: ZarrArray) -> Array:
        """Return the values of one of the arrays, without a check of their digest; `ModelError` if chunks are damaged."""
        label = self._label(array.basename)
        try:
            return read_whole(array)
        except StreamPCAError as error:
            raise ModelError(f"{label} cannot be read: {error}") from error
        except Exception as error:  # codecs have no class of errors in common
            raise ModelError(f"{label} cannot be read: {one_line(error)}") from error

    def array_like(self, name: str, expected: Array) -> Array:
        """Return the finite values of the array `name` with shape, data type and memory order of `expected`."""
        stored = self._group[name]
        if not isinstance(stored, zarr.Array) or stored.shape != expected.shape or stored.dtype != expected.dtype:
            raise ModelError(f"{self.path}: array {name} is not of shape {expected.shape} and type {expected.dtype}")
        values = np.empty_like(expected)
        values[...] = self.array(name, stored.dtype.kind)
        self.require(bool(np.isfinite(values).all()), f"array {name} holds numbers that are not finite")
        return values

    def _label(self, name: str) -> str:
        return f"{self.path} is not a usable {self.form.noun}: array {name}"


def read_group(path: Path, form: GroupFormat, build: Callable[[StoredGroup], T]) -> T:
    """Return the object that `build` makes from the group at `path`; the seal of its attributes is checked last.

    Raises
    ------
    ModelError
        If there is no such group, or it is damaged.
    """
    try:
        group = StoredGroup(path, form)
        value = build(group)
        others = {name: each for name, each in group.stored_attributes.items() if name != SEAL}
        sealed = group.stored_attributes.get(SEAL)  # groups of early versions have none
        changed = "its attributes do not have the SHA-256 that was saved with them"
        group.require(SEAL not in group.stored_attributes or sealed == seal_of(others), changed)
    except ModelError:
        raise
    except (FileNotFoundError, zarr.errors.ContainsArrayError) as error:
        raise ModelError(
            f"{path} is not a {form.title}: expected the model.zarr of a run, or what save wrote"
        ) from error
    except Exception as error:
        raise ModelError(f"{path} cannot be read as a {form.noun}: {one_line(error)}") from error
    return value


def write_group(
    group: zarr.Group,
    form: GroupFormat,
    arrays: Mapping[str, Array | None],
    attributes: Mapping[str, object],
    digests: Mapping[str, str] | None = None,
    axes: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Write arrays that are not None, header and attributes to a new group; `digests` are those of arrays already written.

    `axes` are names of axes of further arrays; a name that has another size elsewhere in the group is replaced.

    Raises
    ------
    ModelError
        If the attributes are not JSON, or too large to be read again.
    """
    written, named = dict(digests or {}), {**form.axes, **(axes or {})}
    sizes: dict[str, int] = {}
    for name in written:
        array = group[name]
        assert isinstance(array, zarr.Array)  # noqa: S101 for the type checker
        sizes |= zip(form.axes[name], array.shape, strict=True)
    for name, values in arrays.items():
        if values is not None:
            write_array(group, name, values, _free_axes(name, values.shape, named.get(name), sizes))
            written[name] = digest(values)
    kind = {} if form.kind is None else {"kind": form.kind}
    header = {"format": form.format, "version": form.versions[-1], **kind, "sha256": written}
    try:
        plain = json.loads(json.dumps(header | dict(attributes), allow_nan=False))
        whole = {**plain, SEAL: seal_of(plain)}
        # As zarr writes them, within the document of the group.
        require_document(json.dumps({"attributes": whole}, indent=2).encode(), "zarr.json")
    except StreamPCAError as error:
        raise ModelError(f"the {form.noun} is not saved: its attributes could not be read again: {error}") from error
    except (TypeError, ValueError) as error:
        raise ModelError(f"the {form.noun} is not saved: its attributes cannot be written as JSON: {error}") from error
    group.update_attributes(whole)


def _free_axes(
    name: str, shape: tuple[int, ...], wanted: tuple[str, ...] | None, sizes: dict[str, int]
) -> tuple[str, ...]:
    """Return names for the axes of an array that have the same size everywhere in a group, and add them to `sizes`."""
    names: list[str] = []
    for index, size in enumerate(shape):
        axis = wanted[index] if wanted is not None and len(wanted) == len(shape) else f"{name}_{index}"
        while sizes.get(axis, size) != size or axis in names or axis == "":
            axis = f"{name}_{index}" if axis in names or not axis.startswith(f"{name}_{index}") else f"{axis}_"
        sizes[axis] = size
        names.append(axis)
    return tuple(names)


def create_array(
    group: zarr.Group, name: str, like: Array | StoredArray, chunks: tuple[int, ...], axes: tuple[str, ...]
) -> ZarrArray:
    """Return a new array in `group` with shape and data type of `like`; chunks have zstd and a CRC-32C."""
    return group.create_array(
        name,
        shape=like.shape,
        chunks=chunks,
        dtype=like.dtype,
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
        dimension_names=axes,
        config={"write_empty_chunks": True},
    )


def write_array(group: zarr.Group, name: str, values: Array, axes: tuple[str, ...]) -> None:
    """Write `values` to a new array in `group`, in chunks of up to 8 MiB; `axes` are names of its axes."""
    rows = 1
    if values.size:
        rows = max(1, min(len(values), _CHUNK_BYTES // max(1, values.nbytes // len(values))))
    array = create_array(group, name, values, (rows, *(max(1, n) for n in values.shape[1:])), axes)
    for start in range(0, len(values), rows):  # one chunk at a time: zarr copies all that it is given at once
        array[start : start + rows] = values[start : start + rows]


def digest(values: Array) -> str:
    """Return the SHA-256 of the values in C order."""
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()


def open_strictly(path: Path) -> zarr.Group:
    """Open the group at `path` for reading, by the metadata of each array."""
    store = StrictStore(LocalStore(path, read_only=True))
    return zarr.open_group(store, mode="r", use_consolidated=False)


def kind_of(path: Path) -> tuple[object, object]:
    """Return format and kind from the attributes of the zarr group at `path`; None for each that is missing."""
    try:
        attributes = read_document(path / "zarr.json")["attributes"]
    except (OSError, StreamPCAError, ValueError, KeyError):
        return None, None
    return (attributes.get("format"), attributes.get("kind")) if isinstance(attributes, dict) else (None, None)


def seal_of(attributes: Json) -> str:
    """Return the SHA-256 of attributes."""
    return hashlib.sha256(json.dumps(attributes, sort_keys=True).encode()).hexdigest()


def require_array(array: object, kinds: str, label: str, *, in_memory: bool = True) -> None:
    """Raise `ModelError` unless `array` is an array with a data type of `kinds`, and fits into memory if `in_memory` is set."""
    dtype = np.dtype(array.dtype) if isinstance(array, zarr.Array) else None
    if (
        not isinstance(array, zarr.Array)
        or dtype is None
        or dtype.kind not in kinds
        or (dtype.kind == "f" and dtype.itemsize not in (4, 8))
    ):
        raise ModelError(f"{label} is not an array of the right type: found {dtype or 'none'}")
    try:
        require_readable(array.metadata, dtype.itemsize, label, most_chunks=_MAX_CHUNKS)
    except StreamPCAError as error:
        raise ModelError(str(error)) from error
    n_bytes, available = math.prod(int(n) for n in array.shape) * dtype.itemsize, available_bytes()
    if in_memory and n_bytes > available:
        raise ModelError(
            f"{label} declares {as_text(n_bytes)}, but only {as_text(available)} are available: free some memory"
        )
