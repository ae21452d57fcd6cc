"""Memory and cores of this process and its machine, and versions of libraries."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from threadpoolctl import LibController, ThreadpoolController

from streampca.version import __version__

if TYPE_CHECKING:
    from distributed import Worker


MEBIBYTE = 2**20
_M_ARENA_MAX = -8  # of malloc.h
_known: tuple[tuple[int, int], list[LibController]] | None = None
"""Controllers, and the numbers of loaded and unloaded libraries at that time: looking for them takes milliseconds."""


def available_bytes() -> int:
    """Return the memory in bytes that this process could still allocate: of the machine, its control group or its Dask worker, whichever is less."""
    available = int(psutil.virtual_memory().available)
    limit = getattr(getattr(worker_of_this_task(), "memory_manager", None), "memory_limit", None)
    if limit:
        available = min(available, max(0, limit - resident_bytes()))
    for limit_file, usage_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limit, usage = int(Path(limit_file).read_text()), int(Path(usage_file).read_text())
        except (OSError, ValueError):
            continue
        available = min(available, max(0, limit - usage))
    return available


def resident_bytes() -> int:
    """Return the resident memory in bytes of this process."""
    return int(_process(os.getpid()).memory_info().rss)


@lru_cache(maxsize=1)
def _process(pid: int) -> psutil.Process:
    """Return the process of that number, which psutil takes longer to look up than to ask."""
    return psutil.Process(pid)


def process_bytes() -> int:
    """Return the resident memory in bytes of this process after importing the modules that every fit needs.

    Dask is in memory already where rows are Dask arrays or a client is active, and is not needed otherwise.
    """
    import scipy.linalg  # noqa: F401
    import threadpoolctl  # noqa: F401
    import zarr  # noqa: F401

    return resident_bytes()


def peak_bytes() -> int:
    """Return the peak resident memory in bytes of this process, or the current one if the system does not report it."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resident_bytes()


def release_freed_memory() -> None:
    """Return freed memory that glibc holds to the system; does nothing with other C libraries."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def limit_arenas() -> None:
    """Have glibc allocate from at most two arenas from now on; does nothing with other C libraries.

    Memory that one of many threads frees stays in its arena, by default one of 8 for each core. Of bodies that a library receives in its own threads this
    came to 70 MiB after one reading of 1 GiB and to 200 MiB after five, which no plan can know.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if option is not None:
        option(_M_ARENA_MAX, 2)


def n_cores() -> int:
    """Return the number of cores this process may run on; in a Dask task, at most as many as its worker has threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    worker = worker_of_this_task()
    return cores if worker is None else max(1, min(cores, int(worker.state.nthreads)))


def worker_of_this_task() -> Worker | None:
    """Return the `distributed.Worker` that runs the Dask task which this code is part of; None outside of tasks."""
    if "distributed" not in sys.modules:
        return None
    from distributed import get_worker

    try:
        return get_worker()
    except ValueError:
        return None


@cache
def _package_versions() -> dict[str, str]:
    """Return the versions of the packages that determine the bits of a result; their metadata take 10 ms each to parse."""
    from importlib.metadata import version

    return {name: version(name) for name in ("numpy", "scipy", "zarr", "numcodecs", "dask")}


def versions() -> dict[str, str]:
    """Return the versions of all packages and libraries that determine the bits of a result."""
    import scipy.linalg  # noqa: F401  brings its BLAS, which a worker may not have in memory yet

    blas = sorted(
        {
            f"{library.internal_api} {library.version} ({getattr(library, 'architecture', '?')})"
            for library in libraries()
            if library.user_api == "blas"
        }
    )
    return {
        "python": platform.python_version(),
        "streampca": __version__,
        **_package_versions(),
        "blas": ", ".join(blas),
        "platform": f"{platform.system()} {platform.machine()}",
    }


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
