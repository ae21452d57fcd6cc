"""Branches: leaves that are merged before the rest, here and, without a cluster, as if on workers that come and go."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from streampca.accumulators import Covariance
from streampca.errors import ClusterError, DataError
from streampca.execution.distributed import payload as parcel
from streampca.execution.distributed.payload import LostStateError, PartialState
from streampca.execution.distributed.retries import ATTEMPTS
from streampca.execution.distributed.tree_reduction import TreeReduction
from streampca.execution.distributed.workers import WorkerPool
from streampca.execution.drive import accumulate
from streampca.execution.fold import FoldTask, merge_neighbours
from streampca.execution.leaf import LeafResult, run_leaf
from streampca.planning.plan import Plan
from streampca.planning.shape import count_leaves, leaves_per_branch, states_at_once
from streampca.planning.worker_limits import WorkerLimits, for_workers
from streampca.solvers.fit import Parameters, plan_fit
from streampca.sources import open_source
from streampca.sources.base import ReadCount

MIB = 2**20


@pytest.mark.parametrize(
    ("n_leaves", "state_bytes", "expected"),
    [(1024, 268 * MIB, 16), (256, 64 * MIB, 4), (257, 64 * MIB, 5), (255, 268 * MIB, 1), (65_536, 63 * MIB, 1)],
)
def test_only_many_large_states_are_merged_in_branches(n_leaves: int, state_bytes: int, expected: int) -> None:
    assert leaves_per_branch(n_leaves, state_bytes) == expected
    assert -(-n_leaves // expected) <= 64 or expected == 1


def test_a_plan_of_branches_has_room_for_the_branch_and_does_not_wait_for_the_driver() -> None:
    n, d = 70_000_000, 8192  # 2.3 TB
    state = Covariance().state_bytes(d)
    n_leaves = count_leaves(n, n // 1024, 4 * d, state)
    per_branch = leaves_per_branch(n_leaves, state)
    assert per_branch > 1
    assert states_at_once(1, n_leaves, per_branch) == 4
    plan = _plan(leaves_per_branch=1, memory={"process": 0, "states": 2 * 2**20}, window=1)
    narrow = for_workers(plan.replace(allowed_bytes=4 * 2**20), [WorkerLimits(1)] * 20, 0)
    wide = for_workers(
        plan.replace(leaves_per_branch=4, allowed_bytes=4 * 2**20, memory={"process": 0, "states": 4 * 2**20}),
        [WorkerLimits(1)] * 20,
        0,
    )
    assert (narrow.window, wide.window, wide.leaves_in_flight) == (3, 40, 20)
    assert "4 at a time into 3 branches" in str(wide)


def _plan(**changes: Any) -> Plan:
    source = open_source(np.random.default_rng(5).standard_normal((1200, 6)) + 2)
    shape = {"rows_per_block": 50, "n_blocks": 24, "n_leaves": 12, "leaves_in_flight": 2, "window": 2}
    return plan_fit(source, Parameters(2, solver="covariance")).replace(**{**shape, **changes})


@pytest.mark.parametrize("per_branch", [1, 4, 5, 12, 30])
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_merge_branches_from_left_to_right(per_branch: int, threads: int) -> None:
    plan = _plan(leaves_per_branch=per_branch, leaves_in_flight=threads, window=threads)
    source, kind = open_source(np.random.default_rng(5).standard_normal((1200, 6)) + 2), Covariance()
    told: list[int] = []
    found, count = accumulate(source, kind, plan, progress=lambda progress: told.append(progress.rows))
    states = [run_leaf(FoldTask(source, kind), leaf).state for leaf in plan.leaves()]
    expected = kind.init(6)
    for first in range(0, 12, per_branch):
        branch = states[first]
        for state in states[first + 1 : first + per_branch]:
            branch = kind.absorb(branch, state)
        expected = kind.absorb(expected, branch)
    assert found.scatter.tobytes() == expected.scatter.tobytes()
    assert told[-1] == 1200
    assert count.bytes == 1200 * 6 * 8


def test_branches_here_are_closed_with_what_they_come_from() -> None:
    closed: list[bool] = []

    def leaves() -> Any:
        try:
            for index in range(5):
                yield LeafResult([index], ReadCount())
        finally:
            closed.append(True)

    found = merge_neighbours(leaves(), Listing(), 2)
    assert next(found).state == [0, 1]
    found.close()
    assert closed == [True]
    assert [branch.state for branch in merge_neighbours(leaves(), Listing(), 2)] == [[0, 1], [2, 3], [4]]


class Listing:
    """States are lists of leaves, changed in place."""

    def absorb(self, state: list[int], other: list[int]) -> list[int]:
        state.extend(other)
        return state

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Failing(Listing):
    """Breaks off in the middle."""

    def absorb(self, state: list[int], other: list[int]) -> list[int]:
        state.extend(other)
        raise MemoryError("no room")


def growing(first: int, stop: int) -> PartialState:
    return PartialState(list(range(first, stop)), ReadCount(1, 8, 8), first, stop)


def test_a_state_grows_by_the_next_leaves_once_only() -> None:
    kind: Any = Listing()
    state = growing(0, 1).absorb(kind, growing(1, 2))
    assert (state.state, state.stop, state.count.bytes) == ([0, 1], 2, 16)
    for other in (growing(1, 2), growing(3, 4), growing(0, 1)):
        with pytest.raises(LostStateError):
            state.absorb(kind, other)
    assert state.state == [0, 1]
    broken: Any = Failing()
    with pytest.raises(MemoryError):
        state.absorb(broken, growing(2, 3))
    with pytest.raises(LostStateError):  # whatever it holds now, nobody takes it for whole
        state.absorb(kind, growing(2, 3))


def test_a_leaf_whose_state_stays_is_carried_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed
    from distributed.protocol.pickle import dumps

    class Worker:
        def get_current_task(self) -> str:
            return "key"

    seceded: list[bool] = []
    monkeypatch.setattr(distributed, "get_worker", Worker)
    monkeypatch.setattr(distributed, "secede", lambda: seceded.append(True))
    parcel._begun.clear()
    source, plan = open_source(np.ones((1200, 6))), _plan()
    body = dumps(FoldTask(source, Covariance()).for_leaf(plan.leaf(3)))
    found = parcel.run_on_worker(body, plan.leaf(3), "state", None, None)
    assert isinstance(found, PartialState)
    assert (found.first, found.stop, seceded) == (3, 4, [True])
    with pytest.raises(LostStateError, match="key was begun before"):
        parcel.run_on_worker(body, plan.leaf(3), "state", None, None)


class Sim:
    """Workers that read, merge and die when they are told to, and the reading that listens to `TreeReduction`."""

    class Future:
        def __init__(self, address: str, value: Any = None):
            self.address, self.value, self.released = address, value, False

        def release(self) -> None:
            assert not self.released
            self.released = True

    def __init__(self, n_leaves: int, per_branch: int, n_workers: int, rng: random.Random):
        self.rng, self.outcomes, self.progress = rng, dict[int, Any](), 0
        self.fleet = WorkerPool(10.0)
        self.alive = {f"w{i}" for i in range(n_workers)}
        self.fresh = n_workers
        self.merges: list[tuple[Any, Any, Sim.Future, Any, Any]] = []
        self.fetches: list[tuple[Any, Future[Any], Any]] = []
        self.futures: list[Sim.Future] = []
        self.todo = list(range(n_leaves))
        self.named: dict[str, Sim.Future] = {}
        self._know()
        plan: Any = _plan(n_leaves=n_leaves, leaves_per_branch=per_branch)
        mine: Any = self
        self.branches = TreeReduction(plan, 0, mine, mine, self.fleet, mine)

    def _know(self) -> None:
        info = {"nthreads": 1, "last_seen": 1.0, "nanny": None, "status": "running"}
        self.fleet.update(dict.fromkeys(self.alive, info), 0.0)

    def read_again(self, leaf: int) -> None:
        self.todo.append(leaf)

    def conclude(self, index: int, outcome: Any) -> None:
        self.outcomes[index] = outcome

    def progressed(self) -> None:
        self.progress += 1

    def submit_merge(self, grown: Any, other: Any, key: str, address: str, *, cached: bool) -> Any:
        assert key not in self.named
        assert grown.address == address in self.alive
        assert not grown.released
        assert not other.released
        future = self.named[key] = self.Future(address)
        self.futures.append(future)
        self._last = (grown, other, future)
        return key, future

    def renew(self) -> None: ...

    def require_connected(self) -> None: ...

    def watch(self, future: Any, landed: Any, failed: Any) -> None:
        grown, other, own = self._last
        assert own is future
        self.merges.append((grown, other, own, landed, failed))

    def fetch(self, key: str, address: str, arrived: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        source = self.named[key]
        assert source.address == address
        self.fetches.append((source, answer, arrived))
        return answer

    def read(self) -> None:
        leaf = self.todo.pop(self.rng.randrange(len(self.todo)))
        address = self.rng.choice(sorted(self.alive))
        future = self.Future(address, growing(leaf, leaf + 1))
        self.futures.append(future)
        key = f"leaf {leaf}, {len(self.futures)}"
        self.named[key] = future
        self.branches.add(leaf, key, address, future)

    def merge(self, fails: bool) -> None:
        grown, other, future, landed, failed = self.merges.pop(self.rng.randrange(len(self.merges)))
        if grown.address not in self.alive:
            return
        if other.address not in self.alive or fails:
            if self.rng.random() < 0.5 and other.address in self.alive:
                grown.value.absorb(Listing(), other.value)  # done, and the answer was lost
            failed(OSError("a worker did not answer"))
            return
        kind: Any = Listing()
        future.value = grown.value.absorb(kind, other.value)
        landed()

    def answer(self) -> None:
        source, answer, arrived = self.fetches.pop(self.rng.randrange(len(self.fetches)))
        if answer.cancelled():
            return
        answer.set_result(source.value if source.address in self.alive else None)
        arrived(answer)

    def lose(self) -> None:
        address = self.rng.choice(sorted(self.alive))
        self.alive.remove(address)
        self.alive.add(f"w{self.fresh}")
        self.fresh += 1
        self._know()
        self.fleet.remove(address)
        self.branches.worker_lost(address, expected=self.rng.random() < 0.2)


@pytest.mark.parametrize("seed", range(60))
def test_every_leaf_is_in_its_branch_once_and_in_order_whatever_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    sim, turn, losses, failures = Sim(22, 4, rng.randint(1, 5), rng), 0, 12, 3
    sim.branches.request(0)
    for _ in range(5000):
        if turn in sim.outcomes:
            turn += 1
            if turn == 6:
                break
            sim.branches.request(turn)
            continue
        acts = [sim.read] * bool(sim.todo) + [sim.answer] * bool(sim.fetches)
        if sim.merges:
            fails = failures > 0 and rng.random() < 0.1
            failures -= fails
            acts.append(lambda fails=fails: sim.merge(fails))
        if losses and rng.random() < 0.15:
            losses -= 1
            acts = [sim.lose]
        assert acts, f"nothing goes on: {turn}, {sim.branches._branches}"
        rng.choice(acts)()
        assert len(sim.branches._merging) <= len(sim.alive)
    assert [sim.outcomes[i].state for i in range(6)] == [list(range(4 * i, min(4 * i + 4, 22))) for i in range(6)]
    assert all(worker.states == 0 for worker in sim.fleet.workers.values())
    sim.branches.close()
    assert all(future.released for future in sim.futures if future.address in sim.alive)


def test_the_error_of_the_first_leaf_is_that_of_its_branch() -> None:
    sim = Sim(8, 4, 1, random.Random(1))
    sim.branches.request(0)
    late, early = DataError("leaf 3"), DataError("leaf 1")
    sim.branches.leaf_failed(3, late)
    sim.branches.leaf_failed(1, early)
    assert not sim.outcomes
    sim.branches.add(0, "leaf 0", "w0", sim.Future("w0", growing(0, 1)))
    assert sim.outcomes == {0: early}
    after = sim.Future("w0", growing(2, 3))
    sim.branches.add(2, "leaf 2", "w0", after)
    assert after.released


@pytest.mark.parametrize(
    ("error", "attempts", "said"),
    [
        (OSError("reset"), ATTEMPTS, r"merging states of leaves 0 to 3 failed 4 times \(reset\)"),
        (DataError("odd"), 1, "odd"),
    ],
)
def test_merges_that_go_on_failing_are_an_error(error: Exception, attempts: int, said: str) -> None:
    sim = Sim(4, 4, 1, random.Random(1))
    sim.branches.request(0)
    for attempt in range(attempts):
        assert not sim.outcomes, attempt
        while sim.todo and not sim.merges:
            sim.read()
        *_, failed = sim.merges.pop()
        failed(error)
    assert isinstance(sim.outcomes[0], ClusterError if attempts > 1 else DataError)
    with pytest.raises(type(sim.outcomes[0]), match=said):
        raise sim.outcomes[0]


def test_a_merge_that_hangs_is_begun_again_and_workers_that_die_of_it_end_the_branch() -> None:
    sim = Sim(2, 2, 1, random.Random(1))
    sim.branches.request(0)
    sim.read()
    sim.read()
    assert not sim.branches.cancel_late(100.0)
    assert sim.branches.merges_at("w0")
    assert sim.branches.cancel_late(-1.0)
    assert sorted(sim.todo) == [0, 1]
    for _ in range(12):
        assert not sim.outcomes
        while sim.todo:
            sim.read()
        address = next(iter(sim.alive))
        sim.alive = {f"{address}+"}
        sim._know()
        sim.fleet.remove(address)
        sim.branches.worker_lost(address, expected=False)
    assert "12 workers were lost while they merged states of leaves 0 to 1" in str(sim.outcomes[0])
