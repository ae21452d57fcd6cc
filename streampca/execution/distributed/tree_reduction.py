"""Large states on a cluster: leaves of a branch are merged on its workers, in the plan's order, before the driver sees them.

The state of a leaf stays where it was read. The first of a branch grows there: the state of each next leaf comes to it from
its own worker. What is lost with a worker is made again from its rows; no state is changed that could be used twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streampca.errors import ClusterError
from streampca.execution.distributed.client import ClusterClient
from streampca.execution.distributed.failures import named
from streampca.execution.distributed.payload import LostPayloadError, TaskPayload
from streampca.execution.distributed.retries import ATTEMPTS, may_pass
from streampca.execution.distributed.workers import WorkerPool
from streampca.execution.fold import LeafResult, LostStateError, PartialState
from streampca.planning.plan import Plan

_LOSSES = 3 * ATTEMPTS  # workers that may be lost while they merge the same branch
_ADVICE = "look at the logs and the memory of the workers, give them more, and run again"
_AHEAD = 2  # branches that are brought here before their turn is over


@dataclass(eq=False)
class _StateOnWorker:
    """A state that stays on a worker."""

    key: str
    """Its name."""
    address: str
    """The worker."""
    future: Any
    """Of the state."""


@dataclass(eq=False)
class _Merge:
    """The next leaf on its way into its branch."""

    key: str
    """Name of what comes of it."""
    began: float
    """When."""
    future: Any
    """Of the state that has grown."""


@dataclass(eq=False)
class _Branch:
    """Neighbouring leaves, some of them merged."""

    index: int
    """Position in the order of merging."""
    first: int
    """Position of the first leaf."""
    stop: int
    """Position behind the last one."""
    reached: int
    """Position behind the last one that is merged."""
    grown: _StateOnWorker | None = None
    """The state of what is merged."""
    aside: dict[int, _StateOnWorker | BaseException] = field(default_factory=dict)
    """States of leaves whose turn has not come, or their errors."""
    merge: _Merge | None = None
    """What is under way."""
    fetching: Future[Any] | None = None
    """Brings the state of all leaves here."""
    failures: int = 0
    """Errors that may pass."""
    losses: int = 0
    """Workers that were lost while they merged."""
    n_merges: int = 0
    """Merges so far."""
    over: bool = False
    """Whether it has come to its end."""


class TreeReduction:
    """The branches of one reading; like the reading, used in the thread that asks for results only.

    `again` is called with a leaf whose state was lost, `progressed` when a merge is done, `concluded` with a branch and what it
    came to.
    """

    def __init__(
        self,
        plan: Plan,
        name: str,
        parcel: TaskPayload,
        calls: ClusterClient,
        fleet: WorkerPool,
        again: Callable[[int], None],
        progressed: Callable[[], None],
        concluded: Callable[[int, LeafResult | BaseException], None],
    ):
        self._name, self._parcel, self._calls, self._fleet = name, parcel, calls, fleet
        self._again, self._progressed, self._concluded = again, progressed, concluded
        self._size, self._turn = plan.leaves_per_branch, 0
        self._branches = [
            _Branch(index, first, min(first + self._size, plan.n_leaves), first)
            for index, first in enumerate(range(0, plan.n_leaves, self._size))
        ]
        self._merging: dict[str, _Branch] = {}
        self.n_merged = 0
        """Leaves whose states stand no longer by themselves."""

    def turn(self, index: int) -> None:
        """Note that a branch is wanted: it is brought here as soon as it is whole, and so is the next one."""
        self._turn = index
        self._go_on()

    def keep(self, leaf: int, key: str, address: str, future: Any) -> None:
        """Take in that the state of `leaf` is on a worker."""
        branch = self._branches[leaf // self._size]
        if branch.over or leaf < branch.reached or leaf in branch.aside:
            future.release()
            return
        branch.aside[leaf] = _StateOnWorker(key, address, future)
        self._fleet.keep(address, 1)
        self._go_on()

    def fail(self, leaf: int, error: BaseException) -> None:
        """Take in that `leaf` has failed: its branch does when its turn comes."""
        branch = self._branches[leaf // self._size]
        if not branch.over:
            branch.aside[leaf] = error
            self._go_on()

    def waits_for(self, leaf: int) -> bool:
        """Tell whether a branch cannot grow before `leaf` is read."""
        return self._branches[leaf // self._size].reached == leaf

    def merges_at(self, address: str) -> bool:
        """Tell whether a worker is merging."""
        return address in self._merging

    def lost(self, address: str, *, expected: bool) -> None:
        """Have everything made again that was on a worker."""
        for branch in self._branches:
            here = [
                leaf
                for leaf, kept in branch.aside.items()
                if isinstance(kept, _StateOnWorker) and kept.address == address
            ]
            grown_here = branch.grown is not None and branch.grown.address == address
            if branch.over or not (here or grown_here):
                continue
            for leaf in here:
                if leaf == branch.reached and branch.merge is not None:
                    grown_here = True  # which may have grown by this leaf or not
                self._drop(branch, leaf)
            if grown_here:
                branch.losses += branch.merge is not None and not expected
                self._start_over(branch)
            if branch.losses >= _LOSSES:
                leaves = f"leaves {branch.first} to {branch.stop - 1}"
                found = f"{branch.losses} workers were lost while they merged states of {leaves}"
                self._conclude(branch, ClusterError(f"{found}: {_ADVICE}"))
        self._go_on()

    def cancel(self, seconds: float) -> bool:
        """Begin again what merges take longer than `seconds`; return whether there were any."""
        now = time.monotonic()
        late = [one for one in self._merging.values() if one.merge is not None and now - one.merge.began > seconds]
        for branch in late:
            self._begin_again(branch, LostStateError(f"merging states took more than {seconds:.0f} s"))
        self._go_on()
        return bool(late)

    def close(self) -> None:
        """Let go of everything."""
        for branch in self._branches:
            self._let_go(branch)

    def _go_on(self) -> None:
        """Merge the next leaf of each branch whose worker merges nothing else, and bring here what is whole."""
        for branch in self._branches:
            if branch.over or branch.merge is not None or branch.fetching is not None:
                continue
            following = branch.aside.get(branch.reached)
            if branch.grown is None and isinstance(following, _StateOnWorker):
                branch.grown = following
                self._advance(branch)
                following = branch.aside.get(branch.reached)
            if isinstance(following, BaseException):
                self._conclude(branch, following)
            elif branch.grown is None or branch.grown.address in self._merging:
                continue
            elif following is not None:
                self._merge(branch, branch.grown, following)
            elif branch.reached == branch.stop and branch.index < self._turn + _AHEAD:
                arrived = partial(self._arrived, branch, branch.grown)
                branch.fetching = self._calls.fetch(branch.grown.key, branch.grown.address, arrived)

    def _advance(self, branch: _Branch) -> None:
        """Note that the next leaf is in the branch."""
        del branch.aside[branch.reached]
        branch.reached += 1
        self.n_merged += 1

    def _merge(self, branch: _Branch, grown: _StateOnWorker, following: _StateOnWorker) -> None:
        self._calls.require_connected()
        key, worker = f"{self._name}-branch-{branch.index}-{branch.n_merges}", self._fleet.workers.get(grown.address)
        known = worker is not None and worker.holds
        future = self._parcel.submit_merge(grown.future, following.future, key, grown.address, known=known)
        merge = branch.merge = _Merge(key, time.monotonic(), future)
        branch.n_merges += 1
        self._merging[grown.address] = branch
        self._calls.follow(future, partial(self._merged, branch, merge), partial(self._failed, branch, merge))

    def _merged(self, branch: _Branch, merge: _Merge) -> None:
        """Take in that a branch has grown by its next leaf."""
        if branch.merge is not merge or branch.grown is None:
            return
        worker = self._fleet.workers.get(branch.grown.address)
        if worker is not None:
            worker.holds = True
        following = branch.aside[branch.reached]
        if isinstance(following, _StateOnWorker):
            self._release(following)
        branch.grown.future.release()
        self._end_merge(branch)
        branch.grown = _StateOnWorker(merge.key, branch.grown.address, merge.future)
        self._advance(branch)
        self._progressed()
        self._go_on()

    def _failed(self, branch: _Branch, merge: _Merge, error: BaseException) -> None:
        """Take in the error of a merge."""
        if branch.merge is not merge or branch.grown is None:
            return
        worker = self._fleet.workers.get(branch.grown.address)
        if isinstance(error, LostPayloadError) and worker is not None and worker.holds:
            worker.holds = False
            merge.future.release()
            self._end_merge(branch)
        else:
            self._begin_again(branch, error)
        self._go_on()

    def _begin_again(self, branch: _Branch, error: BaseException) -> None:
        """Make a branch again after an error of a merge, or give it up."""
        from distributed.scheduler import KilledWorker

        passing = (KilledWorker, CancelledError, asyncio.CancelledError, LostStateError, LostPayloadError, MemoryError)
        branch.failures += 1
        if not isinstance(error, passing) and not may_pass(error):
            self._conclude(branch, named(error))
        elif branch.failures >= ATTEMPTS:
            failed = f"merging states of leaves {branch.first} to {branch.stop - 1} failed {ATTEMPTS} times"
            self._conclude(branch, ClusterError(f"{failed} ({error}): {_ADVICE}"))
        else:
            self._parcel.renew()
            if isinstance(branch.aside.get(branch.reached), _StateOnWorker):
                self._drop(branch, branch.reached)
            self._start_over(branch)

    def _arrived(self, branch: _Branch, grown: _StateOnWorker, answer: Future[Any]) -> None:
        """Take in the state of a branch, or that it is not to be had."""
        if branch.over or branch.grown is not grown:
            return
        branch.fetching = None
        error = CancelledError() if answer.cancelled() else answer.exception()
        found = None if error is not None else answer.result()
        if isinstance(found, PartialState) and (found.first, found.stop) == (branch.first, branch.stop):
            self._progressed()
            self._conclude(branch, LeafResult(found.state, found.count))
        else:
            self._begin_again(branch, error or LostStateError("a state was lost with a worker"))
        self._go_on()

    def _start_over(self, branch: _Branch) -> None:
        """Have all leaves of a branch that are merged read again."""
        lost = range(branch.first, branch.reached)
        self._let_go_of_grown(branch)
        self.n_merged -= len(lost)
        branch.reached = branch.first
        for leaf in lost:
            self._again(leaf)

    def _drop(self, branch: _Branch, leaf: int) -> None:
        """Let go of the state of a leaf that waits, and have it read again."""
        kept = branch.aside.pop(leaf)
        if isinstance(kept, _StateOnWorker):
            self._release(kept)
        self._again(leaf)

    def _release(self, kept: _StateOnWorker) -> None:
        kept.future.release()
        self._fleet.keep(kept.address, -1)

    def _let_go_of_grown(self, branch: _Branch) -> None:
        if branch.merge is not None:
            branch.merge.future.release()
            self._end_merge(branch)
        if branch.fetching is not None:
            branch.fetching.cancel()
            branch.fetching = None
        if branch.grown is not None:
            self._release(branch.grown)
            branch.grown = None

    def _end_merge(self, branch: _Branch) -> None:
        branch.merge = None
        if branch.grown is not None:
            self._merging.pop(branch.grown.address, None)

    def _let_go(self, branch: _Branch) -> None:
        self._let_go_of_grown(branch)
        for kept in branch.aside.values():
            if isinstance(kept, _StateOnWorker):
                self._release(kept)
        branch.aside.clear()

    def _conclude(self, branch: _Branch, outcome: LeafResult | BaseException) -> None:
        """End a branch, whatever it came to."""
        branch.over = True
        self._let_go(branch)
        self._concluded(branch.index, outcome)
