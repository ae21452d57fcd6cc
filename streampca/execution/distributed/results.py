"""What happens to the state of a finished leaf: the policy of a pass, chosen once; see also `tree_reduction`."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, Protocol

from streampca.execution.distributed.attempts import RunningTask
from streampca.execution.distributed.client import ClusterClient
from streampca.execution.distributed.payload import Wanted
from streampca.execution.leaf import LeafResult


class PassDriver(Protocol):
    """What a policy asks of the pass, see `cluster.ClusterPass`."""

    def read_again(self, leaf: int) -> None:
        """Queue a leaf whose state was lost."""
        ...

    def progressed(self) -> None:
        """Note that something finished: the pass is not stalled."""
        ...

    def hand_over(self, task: RunningTask) -> None:
        """Leave the result of a finished task to the policy, and cancel other tasks for its leaf."""
        ...

    def fetched(self, key: str, answer: Future[object]) -> None:
        """Store a fetched result, or schedule a retry if it was lost."""
        ...

    def conclude(self, index: int, outcome: LeafResult[Any] | BaseException) -> None:
        """Store the result or the error with number `index` in the order of results."""
        ...


class FetchedResults:
    """The policy for small states: the result of every leaf is fetched as soon as it is there; the driver merges.

    Its methods are the interface of all policies; those that return nothing here have nothing to do.
    """

    wanted: ClassVar[Wanted] = "result"
    """What a task returns."""
    queues_ahead: ClassVar[bool] = True
    """Whether leaves may wait on busy workers."""

    def __init__(self, client: ClusterClient, driver: PassDriver):
        self._client, self._driver = client, driver

    def request(self, index: int) -> None:
        """Note that result `index` is the next one that is needed."""

    def window_start(self, index: int) -> int:
        """Return the leaf from which the window of submitted leaves counts while result `index` is needed."""
        return index

    def keeps_state(self, leaf: int) -> bool:
        """Tell whether the state of `leaf` will wait on its worker."""
        return False

    def leaf_done(self, task: RunningTask) -> None:
        """Take the state of a leaf whose task is done."""
        task.fetching = self._client.fetch(task.key, task.worker, partial(self._driver.fetched, task.key))

    def leaf_failed(self, leaf: int, error: BaseException) -> None:
        """Take the error of a leaf, which is raised when the leaf is next in order."""
        self._driver.conclude(leaf, error)

    def merges_at(self, address: str) -> bool:
        """Tell whether a worker is merging states."""
        return False

    def worker_lost(self, address: str, *, expected: bool) -> None:
        """Recompute the states that were on a worker; the pass retries its tasks."""

    def cancel_late(self, seconds: float) -> bool:
        """Start merges again that take longer than `seconds`; return whether there were any."""
        return False

    def close(self) -> None:
        """Release all states."""
