"""The policy for large states: leaves of a branch are merged on its workers, in the plan's order, before the driver fetches them.

The state of a leaf stays on the worker that read it. The state of the first leaf of a branch is extended there: the states of
the next leaves come to it one by one. States that are lost with a worker are recomputed from their rows; no state is changed
that could be used twice.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from streampca.errors import ClusterError
from streampca.execution.distributed.attempts import RunningTask
from streampca.execution.distributed.client import ClusterClient
from streampca.execution.distributed.failures import with_advice
from streampca.execution.distributed.payload import LostPayloadError, LostStateError, PartialState, TaskPayload, Wanted
from streampca.execution.distributed.results import FetchedResults, PassDriver
from streampca.execution.distributed.retries import ATTEMPTS, may_pass
from streampca.execution.distributed.workers import WorkerPool
from streampca.execution.leaf import LeafResult
from streampca.planning.plan import Plan
from streampca.system.distributed_interface import DaskFuture, killed_by

_LOSSES = 3 * ATTEMPTS  # workers that may be lost while they merge the same branch
_ADVICE = "look at the logs and the memory of the workers, give them more, and run again"
_AHEAD = 2  # branches that are fetched before they are next in order


@dataclass(eq=False)
class _StateOnWorker:
    """A state that stays on a worker."""

    key: str
    """Key of the task that returned it."""
    address: str
    """Address of the worker."""
    future: DaskFuture
    """Dask's future of the state."""


@dataclass(eq=False)
class _Merge:
    """A running merge of the next leaf into its branch."""

    key: str
    """Key of the task."""
    began: float
    """When it was submitted, by `time.monotonic`."""
    future: DaskFuture
    """Dask's future of the merged state."""


@dataclass(eq=False)
class _Branch:
    """Neighbouring leaves of which the first ones are merged."""

    index: int
    """Position in the order of results."""
    first: int
    """Index of the first leaf."""
    stop: int
    """Index after the last leaf."""
    reached: int
    """Index after the last merged leaf."""
    merged: _StateOnWorker | None = None
    """State of the merged leaves."""
    pending: dict[int, _StateOnWorker | BaseException] = field(default_factory=dict)
    """States, or errors, of leaves that are not merged yet."""
    merge: _Merge | None = None
    """The running merge."""
    fetching: Future[object] | None = None
    """Fetches the state of all leaves."""
    failures: int = 0
    """Transient errors."""
    losses: int = 0
    """Workers lost during a merge."""
    n_merges: int = 0
    """Number of merges so far."""
    concluded: bool = False
    """Whether the branch has its result or its error."""


class TreeReduction(FetchedResults):
    """The branches of one pass; used in the thread of the pass only.

    Parameters
    ----------
    plan : Plan
    first : int
        Index of the first leaf of the pass, the first one of a branch.
    payload : TaskPayload
    client : ClusterClient
    workers : WorkerPool
    driver : PassDriver
        The pass, which reads leaves and receives the results of branches.
    """

    wanted: ClassVar[Wanted] = "state"
    queues_ahead: ClassVar[bool] = False

    def __init__(
        self,
        plan: Plan,
        first: int,
        payload: TaskPayload[Any],
        client: ClusterClient,
        workers: WorkerPool,
        driver: PassDriver,
    ):
        super().__init__(client, driver)
        self._first, self._payload, self._workers = first, payload, workers
        self._size, self._requested = plan.leaves_per_branch, 0
        self._branches = [
            _Branch(index, start, min(start + self._size, plan.n_leaves), start)
            for index, start in enumerate(range(0, plan.n_leaves, self._size))
        ]
        self._merging: dict[str, _Branch] = {}
        self._n_merged = 0

    def request(self, index: int) -> None:
        """Fetch branch `index`, and the one after it, as soon as all their leaves are merged."""
        self._requested = index
        self._advance_all()

    def window_start(self, index: int) -> int:
        """Return the leaf from which the window counts: merged leaves take no memory of their own."""
        return self._first + self._n_merged

    def keeps_state(self, leaf: int) -> bool:
        """Tell whether the state of `leaf` will wait on its worker for the leaves before."""
        return self._branches[leaf // self._size].reached != leaf

    def leaf_done(self, task: RunningTask) -> None:
        """Keep the state of a leaf on its worker."""
        self._driver.hand_over(task)
        self.add(task.leaf, task.key, task.worker, task.future)

    def add(self, leaf: int, key: str, address: str, future: DaskFuture) -> None:
        """Add the state of `leaf` on the worker at `address` to its branch."""
        branch = self._branches[leaf // self._size]
        if branch.concluded or leaf < branch.reached or leaf in branch.pending:
            future.release()
            return
        branch.pending[leaf] = _StateOnWorker(key, address, future)
        self._workers.add_states(address, 1)
        self._advance_all()

    def leaf_failed(self, leaf: int, error: BaseException) -> None:
        """Let the branch of `leaf` fail when this leaf would be merged next."""
        branch = self._branches[leaf // self._size]
        if not branch.concluded:
            branch.pending[leaf] = error
            self._advance_all()

    def merges_at(self, address: str) -> bool:
        """Tell whether a worker is merging states."""
        return address in self._merging

    def worker_lost(self, address: str, *, expected: bool) -> None:
        """Recompute all states that were on a worker."""
        for branch in self._branches:
            leaves = [
                leaf
                for leaf, state in branch.pending.items()
                if isinstance(state, _StateOnWorker) and state.address == address
            ]
            merged_lost = branch.merged is not None and branch.merged.address == address
            if branch.concluded or not (leaves or merged_lost):
                continue
            for leaf in leaves:
                if leaf == branch.reached and branch.merge is not None:
                    merged_lost = True  # the merged state may or may not include this leaf
                self._drop(branch, leaf)
            if merged_lost:
                branch.losses += branch.merge is not None and not expected
                self._restart(branch)
            if branch.losses >= _LOSSES:
                states = f"states of leaves {branch.first} to {branch.stop - 1}"
                self._conclude(
                    branch, ClusterError(f"{branch.losses} workers were lost while they merged {states}: {_ADVICE}")
                )
        self._advance_all()

    def cancel_late(self, seconds: float) -> bool:
        """Restart branches of which a merge takes longer than `seconds`; return whether there were any."""
        now = time.monotonic()
        late = [one for one in self._merging.values() if one.merge is not None and now - one.merge.began > seconds]
        for branch in late:
            self._retry(branch, LostStateError(f"merging states took more than {seconds:.0f} s"))
        self._advance_all()
        return bool(late)

    def close(self) -> None:
        """Release all states."""
        for branch in self._branches:
            self._release_all(branch)

    def _advance_all(self) -> None:
        """Submit the next merge of each branch whose worker merges nothing else, and fetch requested branches that are complete."""
        for branch in self._branches:
            if branch.concluded or branch.merge is not None or branch.fetching is not None:
                continue
            following = branch.pending.get(branch.reached)
            if branch.merged is None and isinstance(following, _StateOnWorker):
                branch.merged = following
                self._advance(branch)
                following = branch.pending.get(branch.reached)
            if isinstance(following, BaseException):
                self._conclude(branch, following)
            elif branch.merged is None or branch.merged.address in self._merging:
                continue
            elif following is not None:
                self._merge(branch, branch.merged, following)
            elif branch.reached == branch.stop and branch.index < self._requested + _AHEAD:
                done = partial(self._fetched, branch, branch.merged)
                branch.fetching = self._client.fetch(branch.merged.key, branch.merged.address, done)

    def _advance(self, branch: _Branch) -> None:
        """Count the next leaf as merged."""
        del branch.pending[branch.reached]
        branch.reached += 1
        self._n_merged += 1

    def _merge(self, branch: _Branch, merged: _StateOnWorker, following: _StateOnWorker) -> None:
        self._client.require_connected()
        worker = self._workers.workers.get(merged.address)
        cached = worker is not None and worker.has_common
        name = f"branch-{branch.index}-{branch.n_merges}"
        key, future = self._payload.submit_merge(merged.future, following.future, name, merged.address, cached=cached)
        merge = branch.merge = _Merge(key, time.monotonic(), future)
        branch.n_merges += 1
        self._merging[merged.address] = branch
        self._client.watch(future, partial(self._merge_done, branch, merge), partial(self._merge_failed, branch, merge))

    def _merge_done(self, branch: _Branch, merge: _Merge) -> None:
        """Replace the state of a branch by the one with its next leaf."""
        if branch.merge is not merge or branch.merged is None:
            return
        worker = self._workers.workers.get(branch.merged.address)
        if worker is not None:
            worker.has_common = True
        following = branch.pending[branch.reached]
        if isinstance(following, _StateOnWorker):
            self._release(following)
        branch.merged.future.release()
        self._end_merge(branch)
        branch.merged = _StateOnWorker(merge.key, branch.merged.address, merge.future)
        self._advance(branch)
        self._driver.progressed()
        self._advance_all()

    def _merge_failed(self, branch: _Branch, merge: _Merge, error: BaseException) -> None:
        """Submit a merge again if its worker lacked the payload; restart the branch after other errors."""
        if branch.merge is not merge or branch.merged is None:
            return
        worker = self._workers.workers.get(branch.merged.address)
        if isinstance(error, LostPayloadError) and worker is not None and worker.has_common:
            worker.has_common = False
            merge.future.release()
            self._end_merge(branch)
        else:
            self._retry(branch, error)
        self._advance_all()

    def _retry(self, branch: _Branch, error: BaseException) -> None:
        """Restart a branch after a transient error; conclude it after any other error, or too many."""
        transient = (CancelledError, asyncio.CancelledError, LostStateError, LostPayloadError, MemoryError)
        branch.failures += 1
        if killed_by(error) is None and not isinstance(error, transient) and not may_pass(error):
            self._conclude(branch, with_advice(error))
        elif branch.failures >= ATTEMPTS:
            failed = f"merging states of leaves {branch.first} to {branch.stop - 1} failed {ATTEMPTS} times"
            self._conclude(branch, ClusterError(f"{failed} ({error}): {_ADVICE}"))
        else:
            self._payload.renew()
            if isinstance(branch.pending.get(branch.reached), _StateOnWorker):
                self._drop(branch, branch.reached)
            self._restart(branch)

    def _fetched(self, branch: _Branch, merged: _StateOnWorker, answer: Future[object]) -> None:
        """Conclude a branch with its fetched state, or restart it if that was lost."""
        if branch.concluded or branch.merged is not merged:
            return
        branch.fetching = None
        error = CancelledError() if answer.cancelled() else answer.exception()
        state = None if error is not None else answer.result()
        if isinstance(state, PartialState) and (state.first, state.stop) == (branch.first, branch.stop):
            self._driver.progressed()
            self._conclude(branch, LeafResult(state.state, state.count))
        else:
            self._retry(branch, error or LostStateError("a state was lost with a worker"))
        self._advance_all()

    def _restart(self, branch: _Branch) -> None:
        """Read all merged leaves of a branch again."""
        lost = range(branch.first, branch.reached)
        self._release_merged(branch)
        self._n_merged -= len(lost)
        branch.reached = branch.first
        for leaf in lost:
            self._driver.read_again(leaf)

    def _drop(self, branch: _Branch, leaf: int) -> None:
        """Release the state of a leaf that is not merged, and read the leaf again."""
        state = branch.pending.pop(leaf)
        if isinstance(state, _StateOnWorker):
            self._release(state)
        self._driver.read_again(leaf)

    def _release(self, state: _StateOnWorker) -> None:
        state.future.release()
        self._workers.add_states(state.address, -1)

    def _release_merged(self, branch: _Branch) -> None:
        if branch.merge is not None:
            branch.merge.future.release()
            self._end_merge(branch)
        if branch.fetching is not None:
            branch.fetching.cancel()
            branch.fetching = None
        if branch.merged is not None:
            self._release(branch.merged)
            branch.merged = None

    def _end_merge(self, branch: _Branch) -> None:
        branch.merge = None
        if branch.merged is not None:
            self._merging.pop(branch.merged.address, None)

    def _release_all(self, branch: _Branch) -> None:
        self._release_merged(branch)
        for state in branch.pending.values():
            if isinstance(state, _StateOnWorker):
                self._release(state)
        branch.pending.clear()

    def _conclude(self, branch: _Branch, outcome: LeafResult[Any] | BaseException) -> None:
        """Pass the result or the error of a branch to the driver."""
        branch.concluded = True
        self._release_all(branch)
        self._driver.conclude(branch.index, outcome)
