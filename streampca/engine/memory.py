"""Every number about memory: what the machine has, what this process uses, what may be used."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import psutil

from streampca.engine.clients import worker_of_this_task
from streampca.errors import ParameterError

MEBIBYTE = 2**20

ALLOWANCE_BYTES = 24 * MEBIBYTE
"""What the interpreter, thread stacks and the allocator take beside the arrays that the plan counts."""
WORKER_PROCESS_BYTES = 230 * MEBIBYTE
"""What a fresh Dask worker process with our imports takes before its first leaf."""
REPORT_BYTES = 96 * MEBIBYTE
"""What drawing the report takes beside the model and the sampled rows."""
_SAFE_SHARE = 0.6


def available_bytes() -> int:
    """Return how much memory this process could still take: of the machine, of its control group or its Dask worker if that is less."""
    available = int(psutil.virtual_memory().available)
    limit = getattr(getattr(worker_of_this_task(), "memory_manager", None), "memory_limit", None)
    if limit:
        available = min(available, max(0, limit - int(psutil.Process().memory_info().rss)))
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


def process_bytes() -> int:
    """Return the resident memory of this process, with everything imported that a fit imports."""
    import dask.array  # noqa: F401
    import scipy.linalg  # noqa: F401
    import threadpoolctl  # noqa: F401
    import zarr  # noqa: F401

    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """Return the largest resident memory this process has had, or what it has now where the system does not say."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(psutil.Process().memory_info().rss)


def allowed_bytes(memory: int | str | None) -> int:
    """Return the ceiling in bytes that the parameter `memory` stands for.

    None stands for what the process has plus 60 % of what is available. Raises `ParameterError` for anything that is
    not a size.
    """
    if memory is None:
        return int(psutil.Process().memory_info().rss + _SAFE_SHARE * available_bytes())
    if isinstance(memory, str):
        from dask.utils import parse_bytes

        try:
            memory = int(parse_bytes(memory)) if memory.strip() else 0
        except (ValueError, KeyError) as error:
            raise ParameterError(f'memory={memory!r} is not a size: expected bytes or a text such as "2GiB"') from error
    if isinstance(memory, bool) or not isinstance(memory, int) or memory <= 0:
        raise ParameterError(f'memory={memory!r} is not a size: expected bytes or a text such as "2GiB"')
    return memory


def give_back_freed_memory() -> None:
    """Return memory that was freed but kept by the C library to the system, where the library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def n_cores() -> int:
    """Return the number of cores this process may run on; in a Dask task, at most as many as its worker has threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    worker = worker_of_this_task()
    return cores if worker is None else max(1, min(cores, int(worker.state.nthreads)))


def as_text(n_bytes: float) -> str:
    """Return a size for people: ``"3.1 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n_bytes) < 1024 or unit == "TiB":
            return f"{n_bytes:.0f} {unit}" if unit in ("B", "KiB", "MiB") else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    raise AssertionError("unreachable")


def as_seconds(seconds: float) -> str:
    """Return a time for people: ``"3.2 s"``, ``"14 min"``."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
