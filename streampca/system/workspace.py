"""Scratch memory that a thread keeps between blocks, so that no hot loop allocates."""

from __future__ import annotations

import math
import threading

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampca.typing import Array

_local = threading.local()


def borrow(purpose: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an uninitialised C-ordered array that this thread reuses for `purpose`.

    Its content lasts until the thread borrows for the same purpose again. Large arrays that are allocated anew for
    every block cost a page fault for every 4 KiB, which is why they are kept.
    """
    buffers: dict[str, NDArray[np.uint8]] = _local.__dict__
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = buffers.get(purpose)
    if buffer is None or buffer.nbytes < n_bytes:
        buffers.pop(purpose, None)
        buffer = np.empty(n_bytes, dtype=np.uint8)
        buffers[purpose] = buffer
    return buffer[:n_bytes].view(dtype).reshape(shape)


def release() -> None:
    """Release all scratch memory of this thread."""
    _local.__dict__.clear()
