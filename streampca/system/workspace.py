"""Scratch memory that a thread keeps between blocks, so that hot loops do not allocate."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampca.typing import Array

_local = threading.local()
_Buffer = NDArray[np.uint8]


class _Shelf:
    """Buffers that threads have released, for threads that borrow for the same purpose later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: list[tuple[str, _Buffer]] = []
        self._limit = 0
        self._holders = 0

    def open(self, limit: int) -> None:
        """Keep up to `limit` bytes until `close`; of several holders, the first one's limit counts."""
        with self._lock:
            self._limit = limit if not self._holders else self._limit
            self._holders += 1

    def close(self) -> None:
        """Drop all buffers once the last holder is gone."""
        with self._lock:
            self._holders -= 1
            if not self._holders:
                self._buffers, self._limit = [], 0

    def put(self, buffers: dict[str, _Buffer]) -> None:
        """Take those of `buffers` for which there is room."""
        with self._lock:
            room = self._limit - sum(buffer.nbytes for _, buffer in self._buffers)
            for purpose, buffer in buffers.items():
                if buffer.nbytes <= room:
                    self._buffers.append((purpose, buffer))
                    room -= buffer.nbytes

    def take(self, purpose: str, n_bytes: int) -> _Buffer | None:
        """Return a buffer for `purpose` of at least `n_bytes`, None if there is none; one that is too small is dropped."""
        with self._lock:
            found = [(buffer.nbytes, i) for i, (name, buffer) in enumerate(self._buffers) if name == purpose]
            if not found:
                return None
            enough = [pair for pair in found if pair[0] >= n_bytes]
            buffer = self._buffers.pop(min(enough or found)[1])[1]
            return buffer if enough else None


_SHELF = _Shelf()


def borrow(purpose: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an uninitialised C-ordered array that this thread reuses for `purpose`.

    Its content lasts until the thread borrows for the same purpose again. Large arrays that are allocated anew for
    every block cost a page fault for every 4 KiB, which is why they are kept.
    """
    buffers: dict[str, _Buffer] = _local.__dict__
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = buffers.get(purpose)
    if buffer is None or buffer.nbytes < n_bytes:
        buffers.pop(purpose, None)
        buffer = _SHELF.take(purpose, n_bytes)
        if buffer is None:
            buffer = np.empty(n_bytes, dtype=np.uint8)
        buffers[purpose] = buffer
    return buffer[:n_bytes].view(dtype).reshape(shape)


def release() -> None:
    """Release all scratch memory of this thread."""
    _SHELF.put(_local.__dict__)
    _local.__dict__.clear()


@contextmanager
def keep_released(limit: int) -> Iterator[None]:
    """Keep up to `limit` bytes that threads release, for the threads of the next pass: first access to memory takes time."""
    _SHELF.open(limit)
    try:
        yield
    finally:
        _SHELF.close()
