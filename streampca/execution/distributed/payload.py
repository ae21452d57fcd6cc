"""What a leaf takes to a worker: its own part in every task, and what all leaves have in common once for each worker."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, cast

from streampca.execution.fold import LeafResult, LostStateError, PartialState
from streampca.execution.task import Task
from streampca.planning.leaves import Leaf
from streampca.system.blas_threads import one_blas_thread

Wanted = Literal["result", "state", "nothing"]
"""What is wanted of a leaf: its result, its state, which is to stay on the worker, or only that it was carried out."""

_SMALL_BYTES = 2**20  # what is larger does not go into every task


class LostPayloadError(Exception):
    """A worker does not have what all leaves have in common: it is new, or another reading took the place."""


class TaskPayload:
    """The task of one reading as it is sent to workers.

    Tasks are pickled here and unpickled by the workers, so that the scheduler passes on bytes. What all leaves have in
    common, such as a test matrix, is the result of a task of its own if it is large: Dask passes it from worker to worker
    and makes it again if all who had it are lost. A worker that has done a leaf keeps it and is not sent it again.
    """

    def __init__(self, client: Any, task: Task, name: str):
        self._client, self._token = client, name
        self._task: Any = task
        self._common: bytes | None = None
        self._merging: bytes | None = None
        self._carrier: Any = None
        self._n_carriers = 0
        common = _pickled(getattr(task, task.common))
        if len(common) > _SMALL_BYTES:
            self._common, self._task = common, replace(cast("Any", task), **{task.common: None})

    def submit(self, leaf: Leaf, key: str, address: str, *, wanted: Wanted, known: bool) -> Any:
        """Send `leaf` to the worker at `address` and return the future of what is `wanted` of it.

        `known` says that the worker has what leaves have in common.
        """
        body = _pickled(self._task.for_leaf(leaf))
        token = None if self._common is None else self._token
        common = None if self._common is None or known else self._carried()
        with _without_advice(len(body)):
            return self._client.submit(
                run_on_worker, body, leaf, wanted, token, common, key=key, workers=[address], pure=False
            )

    def submit_merge(self, branch: Any, other: Any, key: str, address: str, *, known: bool) -> Any:
        """Have the worker at `address`, which has the state behind the future `branch`, merge the one behind `other` into it."""
        if self._merging is None:
            self._merging = _pickled(replace(self._task, source=None, weights=None, record=None))
        token = None if self._common is None else self._token
        common = None if self._common is None or known else self._carried()
        with _without_advice(len(self._merging)):
            return self._client.submit(
                merge_on_worker,
                self._merging,
                branch,
                other,
                token,
                common,
                key=key,
                workers=[address],
                pure=False,
            )

    def renew(self) -> None:
        """Send what leaves have in common anew if it was lost for good."""
        if self._carrier is not None and self._carrier.status in ("error", "cancelled", "lost"):
            self.release()

    def release(self) -> None:
        """Let go of what leaves have in common."""
        if self._carrier is not None:
            self._carrier.release()
            self._carrier = None

    def _carried(self) -> Any:
        if self._carrier is None and self._common is not None:
            key = f"{self._token}-common-{self._n_carriers}"
            self._n_carriers += 1
            with _without_advice(len(self._common)):
                self._carrier = self._client.submit(_unpacked, self._common, key=key, pure=False)
        return self._carrier


def _without_advice(n_bytes: int) -> AbstractContextManager[Any]:
    """Keep Dask from advising against large tasks where this one has to be."""
    if n_bytes <= _SMALL_BYTES:
        return nullcontext()
    import dask

    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 PiB"})


_begun: deque[str] = deque(maxlen=1024)  # in a worker: tasks that are not to be carried out again
_kept: tuple[str, Any] | None = None  # in a worker: the token of a reading, and what its leaves have in common


def run_on_worker(
    body: bytes, leaf: Leaf, wanted: Wanted, token: str | None, common: Any
) -> LeafResult | PartialState | None:
    """Carry out a leaf; called by Dask on a worker.

    Raises
    ------
    LostParcelError
        If what leaves have in common is needed and not here.
    LostStateError
        If it was carried out before and its state was to stay.
    """
    task = _task_of(body, token, common)
    if wanted == "state":
        _begin_once()
    with one_blas_thread():  # Dask sets it only for processes that it starts itself
        result: LeafResult = task(leaf)
    if wanted == "state":
        return PartialState(result.state, result.count, leaf.index, leaf.index + 1)
    return result if wanted == "result" else None


def _begin_once() -> None:
    """Let merges go on beside this task, and refuse to carry it out again.

    When a state is lost Dask would by itself begin again all that had gone into it, everywhere at once.
    """
    from distributed import get_worker, secede

    key = str(get_worker().get_current_task())
    if key in _begun:
        raise LostStateError(f"{key} was begun before")
    _begun.append(key)
    secede()  # type: ignore[no-untyped-call]


def merge_on_worker(
    body: bytes, branch: PartialState, other: PartialState, token: str | None, common: Any
) -> PartialState:
    """Merge the state of the next leaves into that of a branch; called by Dask on the worker that has the latter.

    Raises
    ------
    LostParcelError
        If what leaves have in common is needed and not here.
    LostStateError
        If they are not the next leaves.
    """
    with one_blas_thread():
        return branch.absorb(_task_of(body, token, common).accumulator, other)


def _task_of(body: bytes, token: str | None, common: Any) -> Any:
    global _kept
    task = _unpacked(body)
    if token is None:
        return task
    if common is not None:
        _kept = (token, common)
    elif _kept is not None and _kept[0] == token:
        common = _kept[1]
    else:
        raise LostPayloadError(token)
    return replace(task, **{task.common: common})


def _pickled(thing: Any) -> bytes:
    from distributed.protocol.pickle import dumps

    return bytes(dumps(thing))  # type: ignore[no-untyped-call]


def _unpacked(payload: bytes) -> Any:
    from distributed.protocol.pickle import loads

    return loads(payload)  # type: ignore[no-untyped-call]
