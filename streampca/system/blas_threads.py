"""One BLAS thread for every product, by a limit that all fits of the process share."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import LibController, ThreadpoolController


class _LoadedObject(ctypes.Structure):
    """What the dynamic linker tells of a loaded library (``struct dl_phdr_info``)."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("n_headers", ctypes.c_uint16),
        ("n_loaded", ctypes.c_ulonglong),
        ("n_unloaded", ctypes.c_ulonglong),
    )


def loaded_count() -> tuple[int, int] | None:
    """Return how many libraries this process has loaded and unloaded so far, None where the linker does not count them."""
    if not sys.platform.startswith("linux"):
        return None
    counts: list[tuple[int, int]] = []

    def first(loaded: Any, size: int, _: object) -> int:
        if size >= ctypes.sizeof(_LoadedObject):
            counts.append((loaded.contents.n_loaded, loaded.contents.n_unloaded))
        return 1  # the numbers are the same for all

    try:
        visit = ctypes.CDLL(None).dl_iterate_phdr
    except (OSError, AttributeError):
        return None
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p)
    visit(kind(first), None)
    return counts[0] if counts else None


_known: tuple[tuple[int, int], list[LibController]] | None = None
"""Controllers, and the numbers of loaded and unloaded libraries at that time: looking for them takes milliseconds."""


def libraries() -> list[LibController]:
    """Return the controllers of the loaded BLAS and OpenMP libraries, without those that other packages bring for themselves.

    A wheel keeps its libraries beside its package (``faiss_cpu.libs/libopenblas….so``). Of these only numpy's and scipy's
    multiply for us; a library outside of the directory of packages, as conda and distributions have it, may be that of numpy.
    """
    global _known
    counts = loaded_count()
    if _known is not None and _known[0] == counts:
        return list(_known[1])
    packages = Path(np.__file__).resolve().parents[1]
    found = []
    for library in ThreadpoolController().lib_controllers:
        path = Path(library.filepath).resolve()
        if not path.is_relative_to(packages) or path.relative_to(packages).parts[0].startswith(("numpy", "scipy")):
            found.append(library)
    _known = None if counts is None else (counts, found)
    return list(found)


class _SharedLimit:
    """A limit of one thread on every BLAS of the process: the first holder sets it, the last one restores the earlier numbers.

    The number of threads of OpenBLAS (pthreads) and of MKL belongs to the process. If each fit set and restored it, the fit
    that ends first would lift the limit of the others, and the last one would "restore" the limit of an earlier one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holders: dict[object, int] = {}
        """The thread of each holder."""
        self._originals: dict[str, tuple[LibController, int]] = {}
        """Controller and number of threads of each library before the first holder came, by the path of the library."""

    def acquire(self, holder: object) -> list[tuple[LibController, int]]:
        """Set the limit; return controllers and numbers of threads of libraries that count for each thread by itself."""
        with self._lock:
            self._holders[holder] = threading.get_ident()
            of_this_thread = []
            # Libraries are looked for each time: scipy's may have been loaded since the first holder came.
            for library in libraries():
                on_openmp = getattr(library, "threading_layer", None) == "openmp" and library.internal_api == "openblas"
                if library.user_api == "openmp" or on_openmp:
                    of_this_thread.append((library, library.num_threads))
                else:
                    self._originals.setdefault(library.filepath, (library, library.num_threads))
                _set(library, 1)
            return of_this_thread

    def release(self, holder: object) -> None:
        """Give the limit up; the last holder restores the numbers of threads. Does nothing for who is not a holder."""
        with self._lock:
            self._holders.pop(holder, None)
            if not self._holders:
                self._restore()

    def after_fork_in_child(self) -> None:
        """Forget holders whose threads do not exist in this process; without any left, restore what they found."""
        self._lock = threading.RLock()
        me = threading.get_ident()
        self._holders = {holder: thread for holder, thread in self._holders.items() if thread == me}
        if not self._holders:
            self._restore()

    def _restore(self) -> None:
        for library, n_threads in self._originals.values():
            _set(library, n_threads)
            _disown(library)
        self._originals.clear()


def _set(library: LibController, n_threads: int) -> None:
    """Set the number of threads of `library`, whichever thread has set it before."""
    _disown(library)
    library.set_num_threads(n_threads)


def _disown(library: LibController) -> None:
    """Let any thread set the number of threads of `library`: from version 3.8 on threadpoolctl obeys the first one only."""
    disown = getattr(library, "clear_controlling_thread", None)
    if disown is not None:
        disown(force=True)


_LIMIT = _SharedLimit()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(  # no thread changes the limit while the process forks
        before=lambda: _LIMIT._lock.acquire(),
        after_in_parent=lambda: _LIMIT._lock.release(),
        after_in_child=_LIMIT.after_fork_in_child,
    )


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Pin the BLAS of numpy and scipy to one thread: the number of threads is ours to choose, and the bits depend on it.

    Any number of threads may be inside at the same time; the numbers of threads that were there before the first came are
    restored when the last one leaves, also after an exception.
    """
    holder, of_this_thread = object(), []
    try:
        of_this_thread = _LIMIT.acquire(holder)
        yield
    finally:
        _LIMIT.release(holder)
        for library, n_threads in of_this_thread:
            _set(library, n_threads)
