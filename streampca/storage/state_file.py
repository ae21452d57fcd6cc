"""One state in one file: a line of JSON with its structure, then its arrays in the format of `np.save`; no pickle.

``file.readline()`` twice returns the name of the format and the JSON, and ``np.load(file)`` the arrays one after the other.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.lib import format as npy

from streampca.errors import DataError
from streampca.storage.files import open_regular, write_atomically
from streampca.typing import Array

_T = TypeVar("_T")

_FORMAT = b"streampca state 2\n"
_MOST_HEADER = 64 * 2**20


class NotRecordableError(TypeError):
    """A state holds a value that the file format cannot store."""


class Elsewhere(ABC):
    """An array of float64 that is not in the memory of this process, such as on a device; ``np.asarray`` brings it here."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Return its size in bytes once it is here."""

    @abstractmethod
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return its values as an array of this process."""


_CLASSES: dict[str, type] = {}


def storable(cls: type[_T]) -> type[_T]:
    """Register a dataclass so that its instances can be stored in checkpoint files; use as a class decorator.

    The name of the class identifies it in files, so two registered classes must not share one.
    """
    if _CLASSES.setdefault(cls.__name__, cls) is not cls:
        raise TypeError(f"two classes named {cls.__name__} are registered as storable")
    return cls


def write_state_file(path: Path, state: object) -> tuple[int, str]:
    """Write `state` to `path`, whole or not at all; return the size of the file and its xxh3-128.

    Raises
    ------
    NotRecordableError
        If it holds anything but registered states, arrays of numbers, numbers, texts and tuples of these.
    """
    arrays: list[Array | Elsewhere] = []
    tree = _tree_of(state, arrays)
    header = json.dumps({"tree": tree, "n_arrays": len(arrays)}).encode()
    return write_atomically(path, _pieces(header, arrays))


def state_bytes(state: object) -> int:
    """Return the size in bytes of the arrays of `state`; raise `NotRecordableError` as `write_state_file` would."""
    arrays: list[Array | Elsewhere] = []
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
        with open_regular(path) as file:
            if file.readline(len(_FORMAT)) != _FORMAT:
                raise DataError(f"{path} is not a state of this version of streampca")
            header = json.loads(file.readline(_MOST_HEADER))
            size = path.stat().st_size
            arrays = [_read_array(file, size) for _ in range(header["n_arrays"])]
            if file.tell() != size:
                raise ValueError(f"{size - file.tell()} bytes follow its arrays")
        return _value_of(header["tree"], arrays)
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as a state: {error}") from error


def _tree_of(value: object, arrays: list[Array | Elsewhere]) -> dict[str, object]:
    """Return JSON data for `value`, its arrays by their positions in `arrays`, to which they are added."""
    if value is None or isinstance(value, bool | int | str) or type(value) is float:
        return {"value": value}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"scalar": value.item(), "dtype": value.dtype.str}
    if isinstance(value, Elsewhere) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf"):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, tuple):
        return {"tuple": [_tree_of(item, arrays) for item in value]}
    if is_dataclass(value) and _CLASSES.get(type(value).__name__) is type(value):
        values = {field.name: _tree_of(getattr(value, field.name), arrays) for field in fields(value)}
        return {"state": type(value).__name__, "fields": values}
    raise NotRecordableError(f"{type(value).__name__} is not kept in checkpoints")


def _value_of(tree: Any, arrays: list[Array]) -> object:
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


def _pieces(header: bytes, arrays: list[Array | Elsewhere]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file; the order of an array in memory is stored, because it enters the bits of later products."""
    yield _FORMAT + header + b"\n"
    for array in map(np.asarray, arrays):
        array_header = BytesIO()
        npy.write_array_header_1_0(array_header, npy.header_data_from_array_1_0(array))
        yield array_header.getvalue()
        yield from _bytes_of(array)


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


def _read_array(file: BinaryIO, size: int) -> Array:
    """Read the next array of a file of `size` bytes; check its header before memory is allocated."""
    start = file.tell()
    npy.read_magic(file)
    shape, _, dtype = npy.read_array_header_1_0(file)
    if dtype.kind not in "biuf" or min((0, *shape)) < 0:
        raise ValueError(f"it declares an array of {dtype} of shape {shape}")
    if math.prod(shape) * dtype.itemsize > size - file.tell():
        raise ValueError("it ends too early")
    file.seek(start)
    return npy.read_array(file, allow_pickle=False)
