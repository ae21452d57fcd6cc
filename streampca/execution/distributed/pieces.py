"""What runs on a worker: one piece of a reading, which is a leaf, or the leaves of a branch one after the other."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from cloudpickle import dumps, loads

from streampca.errors import StreamPCAError
from streampca.execution.distributed.retries import may_pass
from streampca.execution.fold import merge_neighbours
from streampca.execution.leaf import LeafResult, Task, run_leaf
from streampca.planning.shape import Leaf
from streampca.planning.worker_limits import other_version
from streampca.sources.schedule import Schedule
from streampca.system.blas_threads import one_blas_thread
from streampca.version import __version__


@dataclass(frozen=True)
class Failure:
    """An error as the result of a task: Dask would run a task again that raises it, and it would come again."""

    error: Exception
    """The error."""


def read_piece(body: bytes, common: Any, at_once: int, keep: bool, version: str) -> LeafResult[Any] | Failure | None:
    """Read the leaves in `body` and return their states, merged from left to right.

    The function of every task that reads rows. What may pass (an error of the system, or no memory) is raised, so that Dask
    tries again; every other error is returned.

    Parameters
    ----------
    body : bytes
        Pairs of a `Task`, with only what one leaf needs, and the leaf, pickled by the driver: the scheduler passes on bytes.
    common : object
        What all leaves share, by Dask's own transfer; None where it is in the tasks.
    at_once : int
        Most leaves that this worker may run at once, for its memory; 0 = one for each of its threads.
    keep : bool
        Whether the result is wanted, or only whether there is one.
    version : str
        Version of streampca of the driver: workers may come after it has compared theirs.
    """
    if version != __version__:
        return Failure(other_version(_address(), __version__, version))
    try:
        pairs: list[tuple[Task[Any], Leaf]] = loads(body)
        if common is not None:
            pairs = [(replace(task, **{task.common: common}), leaf) for task, leaf in pairs]
        with _turn(at_once), one_blas_thread():  # Dask sets the threads only in processes that it starts itself
            results = (_read(task, leaf) for task, leaf in pairs)
            (merged,) = merge_neighbours(results, pairs[0][0], len(pairs))
        return merged if keep else None
    except MemoryError:
        raise
    except Exception as error:
        if may_pass(error):
            raise
        return Failure(_portable(error))


def _read(task: Task[Any], leaf: Leaf) -> LeafResult[Any]:
    with task.source.ahead(Schedule.in_order(leaf.spans, leaf.read_ahead_bytes)):
        return run_leaf(task, leaf)


def _portable(error: Exception) -> Exception:
    """Return `error` as it arrives at the driver: an error that cannot be pickled would never do so."""
    if not isinstance(error, StreamPCAError):  # unexpected, so the place counts, which is not pickled
        error.add_note("on a worker:\n" + "".join(traceback.format_tb(error.__traceback__)))
    try:
        arrived = loads(dumps(error))
    except Exception:  # noqa: BLE001 whatever the error does when it is pickled
        arrived = None
    return arrived if isinstance(arrived, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


def _address() -> str:
    """Return the address of this worker."""
    from distributed import get_worker

    return str(get_worker().address)


_turns = threading.Condition()
_running: Counter[str] = Counter()  # leaves by address: a process may have several workers


@contextmanager
def _turn(at_once: int) -> Iterator[None]:
    """Wait until fewer than `at_once` leaves run on this worker, and count as one; Dask itself counts threads, not memory."""
    address = _address()
    with _turns:
        _turns.wait_for(lambda: not at_once or _running[address] < at_once)
        _running[address] += 1
    try:
        yield
    finally:
        with _turns:
            _running[address] -= 1
            _turns.notify_all()
