"""Memory and cores of this process and its machine, and versions of libraries."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from streampca.version import __version__

if TYPE_CHECKING:
    from distributed import Worker


MEBIBYTE = 2**20


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


_M_ARENA_MAX = -8  # of malloc.h


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


def versions() -> dict[str, str]:
    """Return the versions of all packages and libraries that determine the bits of a result."""
    from importlib.metadata import version

    import scipy.linalg  # noqa: F401  brings its BLAS, which a worker may not have in memory yet

    from streampca.system.blas_threads import libraries  # here, because it imports numpy

    blas = sorted(
        {
            f"{library.internal_api} {library.version} ({getattr(library, 'architecture', '?')})"
            for library in libraries()
            if library.user_api == "blas"
        }
    )
    packages = ("numpy", "scipy", "zarr", "numcodecs", "dask")
    return {
        "python": platform.python_version(),
        "streampca": __version__,
        **{name: version(name) for name in packages},
        "blas": ", ".join(blas),
        "platform": f"{platform.system()} {platform.machine()}",
    }
