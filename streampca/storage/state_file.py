"""One state in one file: a JSON header with its structure, then the bytes of its arrays; no pickle, no imports by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from streampca.errors import DataError
from streampca.storage.files import write_atomically
from streampca.storage.regular_files import open_regular
from streampca.typing import Array

_T = TypeVar("_T")

_MAGIC = b"streampca state 1\n"
_ALIGN = 64
_MOST_HEADER = 64 * 2**20


class NotRecordableError(TypeError):
    """A state holds a value that the file format cannot store."""


_CLASSES: dict[str, type] = {}


def storable(cls: type[_T]) -> type[_T]:
    """Register a dataclass so that its instances can be stored in checkpoint files; use as a class decorator.

    The name of the class identifies it in files, so two registered classes must not share one.
    """
    if _CLASSES.setdefault(cls.__name__, cls) is not cls:
        raise TypeError(f"two classes named {cls.__name__} are registered as storable")
    return cls


def write_state_file(path: Path, state: Any) -> tuple[int, str]:
    """Write `state` to `path`, whole or not at all; return the size of the file and its xxh3-128.

    Raises
    ------
    NotRecordableError
        If it holds anything but registered states, arrays of numbers, numbers, texts and tuples of these.
    """
    arrays: list[Array] = []
    tree = _tree_of(state, arrays)
    header = {"tree": tree, "arrays": [_described(array) for array in arrays]}
    return write_atomically(path, _pieces(json.dumps(header).encode(), arrays))


def state_bytes(state: Any) -> int:
    """Return the size in bytes of the arrays of `state`; raise `NotRecordableError` as `write_state_file` would."""
    arrays: list[Array] = []
    _tree_of(state, arrays)
    return sum(array.nbytes for array in arrays)


def read_state_file(path: Path) -> Any:
    """Read the state that `write_state_file` wrote; the caller checks its digest.

    Raises
    ------
    DataError
        If the file does not match its header.
    """
    try:
        with open_regular(path, buffering=0) as file:
            header = _read_header(file, path)
            size, at = path.stat().st_size, file.tell()
            expected = sum(_length(entry) + -_length(entry) % _ALIGN for entry in header["arrays"])
            if size - at != expected:
                raise DataError(f"{path} holds {size - at} bytes of arrays: expected {expected}")
            arrays = [_read_array(file, entry, path) for entry in header["arrays"]]
        return _value_of(header["tree"], arrays)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as a state: {error}") from error


def _tree_of(value: Any, arrays: list[Array]) -> Any:
    """Return JSON data for `value`, its arrays by their positions in `arrays`, to which they are added."""
    if value is None or isinstance(value, bool | int | str) or type(value) is float:
        return {"value": value}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"scalar": value.item(), "dtype": value.dtype.str}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, tuple):
        return {"tuple": [_tree_of(item, arrays) for item in value]}
    if is_dataclass(value) and _CLASSES.get(type(value).__name__) is type(value):
        values = {field.name: _tree_of(getattr(value, field.name), arrays) for field in fields(value)}
        return {"state": type(value).__name__, "fields": values}
    raise NotRecordableError(f"{type(value).__name__} is not kept in checkpoints")


def _value_of(tree: Any, arrays: list[Array]) -> Any:
    if "value" in tree:
        return tree["value"]
    if "scalar" in tree:
        return np.dtype(tree["dtype"]).type(tree["scalar"])
    if "array" in tree:
        return arrays[tree["array"]]
    if "tuple" in tree:
        return tuple(_value_of(item, arrays) for item in tree["tuple"])
    values = {name: _value_of(subtree, arrays) for name, subtree in tree["fields"].items()}
    return _CLASSES[tree["state"]](**values)


def _described(array: Array) -> dict[str, Any]:
    """Return shape, type and order; the order in memory enters the bits of later products."""
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    return {"shape": list(array.shape), "dtype": array.dtype.str, "order": "F" if fortran else "C"}


def _length(entry: dict[str, Any]) -> int:
    n_items: int = np.dtype(entry["dtype"]).itemsize
    for n in entry["shape"]:
        if type(n) is not int or n < 0:
            raise ValueError(f"a side of {n!r}")
        n_items *= n
    return n_items


def _pieces(header: bytes, arrays: list[Array]) -> Iterator[bytes | memoryview]:
    yield _MAGIC + len(header).to_bytes(8, "little") + header
    yield bytes(-(len(_MAGIC) + 8 + len(header)) % _ALIGN)
    for array in arrays:
        yield from _bytes_of(array)
        yield bytes(-array.nbytes % _ALIGN)


def _bytes_of(array: Array) -> Iterator[memoryview]:
    """Yield the bytes of `array` without a copy of the whole."""
    if not array.size:
        return
    if array.flags.c_contiguous:
        yield array.reshape(-1).view(np.uint8).data
    elif array.flags.f_contiguous:
        yield array.T.reshape(-1).view(np.uint8).data
    else:
        for row in array:
            yield from _bytes_of(np.ascontiguousarray(row))


def _read_header(file: Any, path: Path) -> Any:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise DataError(f"{path} is not a state of this version of streampca")
    length = int.from_bytes(file.read(8), "little")
    if length > _MOST_HEADER:
        raise DataError(f"{path} declares a header of {length} bytes")
    header = json.loads(file.read(length))
    file.seek(-file.tell() % _ALIGN, 1)
    return header


def _read_array(file: Any, entry: dict[str, Any], path: Path) -> Array:
    dtype = np.dtype(entry["dtype"])
    if dtype.kind not in "biuf":
        raise DataError(f"{path} declares an array of {dtype}")
    array: Array = np.empty(tuple(entry["shape"]), dtype=dtype, order=entry["order"])
    if array.size:
        flat = (array.T if entry["order"] == "F" else array).reshape(-1).view(np.uint8).data
        while len(flat):
            n_bytes = file.readinto(flat)
            if not n_bytes:
                raise DataError(f"{path} ends too early")
            flat = flat[n_bytes:]
    file.seek(-array.nbytes % _ALIGN, 1)
    return array
