"""What is sent to workers: for every leaf its own data, and once per worker the large data that all leaves share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from streampca.execution.leaf import LeafResult, Task, run_leaf
from streampca.planning.shape import Leaf
from streampca.sources.base import ReadCount
from streampca.sources.schedule import Schedule
from streampca.system.blas_threads import one_blas_thread
from streampca.system.distributed_interface import DaskClient, DaskFuture, pickled, unpickled

_State = TypeVar("_State")

Wanted = Literal["result", "state", "nothing"]
"""What a task returns: the result of its leaf, the state, which stays on the worker, or nothing."""

_SMALL_BYTES = 2**20  # larger common data do not go into every task


class LostPayloadError(Exception):
    """A worker does not have the common data of the leaves: it is new, or another pass replaced them."""


class LostStateError(Exception):
    """A state on a worker is incomplete or has been used already and must be recomputed."""


@dataclass(eq=False)
class PartialState(Generic[_State]):
    """State of neighbouring leaves, on the worker that ran the first of them; extended in place."""

    state: _State
    """State of the rows."""
    count: ReadCount
    """What reading them cost."""
    first: int
    """Index of the first leaf."""
    stop: int
    """Index after the last leaf; -1 during a merge, so that an interrupted merge is never used."""

    def absorb(self, task: Task[_State], other: PartialState[_State]) -> PartialState[_State]:
        """Merge the state of the leaves after these into this one and return it.

        Raises
        ------
        LostStateError
            If `other` does not follow: it is merged already, or a merge was interrupted.
        """
        if self.stop != other.first:
            raise LostStateError(f"leaves {self.first} to {self.stop} are not before leaf {other.first}")
        self.stop = -1
        self.state = task.absorb(self.state, other.state)
        self.count += other.count
        self.stop = other.stop
        return self


class TaskPayload(Generic[_State]):
    """The task of one pass as it is sent to workers.

    Tasks are pickled here and unpickled by workers, so the scheduler only passes on bytes. Large data that all leaves share,
    such as a test matrix, are the result of a task of their own: Dask passes them from worker to worker and recomputes them
    if all workers that had them are lost. A worker that has completed a leaf caches them.
    """

    def __init__(self, client: DaskClient, task: Task[_State], name: str):
        self._client, self._name = client, name
        self._task = task
        self._common: bytes | None = None
        self._merge_task: bytes | None = None
        self._carrier: DaskFuture | None = None
        self._n_carriers = 0
        common = pickled(getattr(task, task.common))
        if len(common) > _SMALL_BYTES:
            self._common, self._task = common, replace(task, **{task.common: None})

    def submit(self, leaf: Leaf, key: str, address: str, *, wanted: Wanted, cached: bool) -> DaskFuture:
        """Submit `leaf` to the worker at `address` and return the future of what is `wanted`.

        `cached` tells whether the worker has the common data.
        """
        body = pickled(self._task.for_leaf(leaf))
        return self._submit(run_on_worker, body, (leaf, wanted), key, address, cached=cached)

    def submit_merge(
        self, merged: DaskFuture, following: DaskFuture, name: str, address: str, *, cached: bool
    ) -> tuple[str, DaskFuture]:
        """Submit the merge of the state behind the future `following` into that of `merged`, which is on the worker at `address`.

        Returns the key of the task and its future.
        """
        if self._merge_task is None:
            self._merge_task = pickled(replace(self._task, source=None, weights=None, record=None))
        key = f"{self._name}-{name}"
        return key, self._submit(merge_on_worker, self._merge_task, (merged, following), key, address, cached=cached)

    def _submit(
        self,
        function: Callable[..., object],
        body: bytes,
        arguments: tuple[object, ...],
        key: str,
        address: str,
        *,
        cached: bool,
    ) -> DaskFuture:
        name = None if self._common is None else self._name
        common = None if self._common is None or cached else self._common_future()
        with _without_size_warning(len(body)):
            return self._client.submit(function, body, *arguments, name, common, key=key, workers=[address], pure=False)

    def renew(self) -> None:
        """Have the common data sent again if they were lost for good."""
        if self._carrier is not None and self._carrier.status in ("error", "cancelled", "lost"):
            self.release()

    def release(self) -> None:
        """Release the common data."""
        if self._carrier is not None:
            self._carrier.release()
            self._carrier = None

    def _common_future(self) -> DaskFuture | None:
        if self._carrier is None and self._common is not None:
            key = f"{self._name}-common-{self._n_carriers}"
            self._n_carriers += 1
            with _without_size_warning(len(self._common)):
                self._carrier = self._client.submit(unpickled, self._common, key=key, pure=False)
        return self._carrier


def _without_size_warning(n_bytes: int) -> AbstractContextManager[object]:
    """Suppress Dask's warning about large tasks where this one has to be large."""
    if n_bytes <= _SMALL_BYTES:
        return nullcontext()
    import dask

    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 PiB"})


_begun: deque[str] = deque(maxlen=1024)  # in a worker: keys of tasks that must not run again
_cached: tuple[str, object] | None = None  # in a worker: the name of a pass, and the common data of its leaves


def run_on_worker(
    body: bytes, leaf: Leaf, wanted: Wanted, name: str | None, common: object
) -> LeafResult[object] | PartialState[object] | None:
    """Run a leaf; called by Dask on a worker. `name` is that of the pass if it has common data.

    Raises
    ------
    LostPayloadError
        If common data are needed and not cached.
    LostStateError
        If the task ran before and its state was to stay.
    """
    task = _task_of(body, name, common)
    if wanted == "state":
        _begin_once()
    ahead = task.source.ahead(Schedule.in_order(leaf.spans, leaf.read_ahead_bytes))
    with one_blas_thread(), ahead:  # Dask sets it only for processes that it starts itself
        result = run_leaf(task, leaf)
    if wanted == "state":
        return PartialState(result.state, result.count, leaf.index, leaf.index + 1)
    return result if wanted == "result" else None


def _begin_once() -> None:
    """Let merges run beside this task, and refuse to run it again.

    When a state is lost Dask by itself would run again all tasks that had led to it, everywhere at once.
    """
    from distributed import get_worker, secede

    key = str(get_worker().get_current_task())
    if key in _begun:
        raise LostStateError(f"{key} was begun before")
    _begun.append(key)
    secede()  # type: ignore[no-untyped-call]


def merge_on_worker(
    body: bytes, merged: PartialState[object], following: PartialState[object], name: str | None, common: object
) -> PartialState[object]:
    """Merge the state of the next leaves into that of a branch; called by Dask on the worker that has the latter.

    Raises
    ------
    LostPayloadError
        If common data are needed and not cached.
    LostStateError
        If they are not the next leaves.
    """
    with one_blas_thread():
        return merged.absorb(_task_of(body, name, common), following)


def _task_of(body: bytes, name: str | None, common: object) -> Task[object]:
    global _cached
    task: Task[object] = unpickled(body)
    if name is None:
        return task
    if common is not None:
        _cached = (name, common)
    elif _cached is not None and _cached[0] == name:
        common = _cached[1]
    else:
        raise LostPayloadError(name)
    return replace(task, **{task.common: common})
