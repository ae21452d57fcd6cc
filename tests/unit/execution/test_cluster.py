"""What a cluster adds to a reading, without a cluster: what is tried again, what is sent, what workers may use."""

from __future__ import annotations

import errno
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import streampca as sp
from streampca.accumulators import Covariance
from streampca.errors import (
    BlockFailedError,
    ClusterError,
    DataError,
    NotFiniteError,
    OutputError,
    PlanError,
    StoreError,
)
from streampca.execution.distributed import payload as parcel
from streampca.execution.distributed import retries as attempts
from streampca.execution.distributed.attempts import LeafAttempts, one_block
from streampca.execution.distributed.failures import with_advice, worker_killed
from streampca.execution.distributed.payload import LostPayloadError, TaskPayload, run_on_worker
from streampca.execution.distributed.retries import ATTEMPTS, may_pass, pause_after, read_with_retries
from streampca.execution.drive import accumulate
from streampca.execution.fold import FoldTask
from streampca.execution.leaf import run_leaf
from streampca.execution.score_task import ScoreTask
from streampca.execution.write import _create
from streampca.planning import worker_limits as limits
from streampca.planning.memory import WORKER_PROCESS_BYTES
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.planning.worker_limits import WorkerLimits, for_workers, worker_limits
from streampca.solvers.fit import Parameters, plan_fit, resources_of
from streampca.sources import Source, open_source
from streampca.sources.base import ReadCount


def leaf_of(*edges: int) -> Leaf:
    return Leaf(5, edges)


def test_one_block_of_a_leaf() -> None:
    assert one_block(leaf_of(10, 20, 25), 1).spans == ((20, 25),)
    shuffled = Leaf(5, (0, 30), ((20, 30), (0, 10)))
    assert one_block(shuffled, 1).spans == ((0, 10),)
    assert one_block(shuffled, 0).n_rows == 10


class Keyed(Source):
    """Rows with keys; reading fails as often as it is told to."""

    description = "rows.zarr"
    chunk_rows = 10

    def __init__(self, n: int = 100, errors: tuple[Exception, ...] = (), buffered: bool = False):
        self.rows = np.random.default_rng(1).standard_normal((n, 3))
        self.shape, self.dtype, self.buffered = self.rows.shape, self.rows.dtype, buffered
        self.errors, self.readings = list(errors), list[int]()

    @property
    def fingerprint(self) -> str:
        return "keyed"

    def keys(self, start: int, stop: int) -> list[str]:
        return [f"c/{i}/0" for i in range(start // 10, -(-stop // 10))]

    def read(self, start: int, stop: int, out: Any = None) -> tuple[Any, ReadCount]:
        self.readings.append(start)
        if start and self.errors:
            raise self.errors.pop(0)
        values = self.rows[start:stop]
        return values, ReadCount(1, values.nbytes, values.nbytes)


def plan_of(source: Source) -> Plan:
    return plan_fit(source, Parameters(1, solver="covariance")).replace(
        rows_per_block=10,
        n_blocks=10,
        n_leaves=2,
        leaves_in_flight=1,
        window=2,
    )


def test_blame_names_rows_and_the_first_chunks() -> None:
    source = Keyed()
    trial = LeafAttempts(1, losses=4, losses_alone=3)
    block = str(worker_killed(trial, 2, plan_of(source), source))
    assert "rows.zarr: rows 70 to 79, chunk c/7/0: the worker died in each of 4 attempts, 3 times" in block
    leaf = worker_killed(trial, None, plan_of(source), source)
    assert "rows 50 to 99, chunks c/5/0, c/6/0, c/7/0, c/8/0, c/9/0: " in str(leaf)
    many = plan_of(source).replace(n_leaves=1)
    assert "c/4/0 and 5 more: " in str(worker_killed(LeafAttempts(0), None, many, source))
    assert isinstance(leaf, BlockFailedError)
    assert leaf.exit_status == 3


def test_errors_that_say_that_the_cluster_has_other_software_are_with_advice() -> None:
    assert isinstance(with_advice(ModuleNotFoundError("No module named 'streampca'")), ClusterError)
    assert isinstance(with_advice(RuntimeError("Error during deserialization of the task graph. This …")), ClusterError)
    other = RuntimeError("something else")
    assert with_advice(other) is other


@pytest.mark.parametrize("n_failed", [1, 2, 3, 7, 8, 100])
def test_pauses_double_up_to_twenty_seconds(n_failed: int) -> None:
    least = min(20.0, 0.2 * 2 ** (n_failed - 1))
    for _ in range(20):
        assert least <= pause_after(n_failed) <= min(20.0, 1.5 * least)


def test_which_errors_may_pass() -> None:
    for error in (OSError("?"), ConnectionResetError(), TimeoutError(), OSError(errno.EIO, "input/output error")):
        assert may_pass(error)
    lasting = (FileNotFoundError(2, "no"), PermissionError(13, "no"), OSError(errno.ENOSPC, "full"))
    for error in (*lasting, StoreError("no"), DataError("no"), ValueError("no")):
        assert not may_pass(error)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    monkeypatch.setattr(attempts, "pause_after", lambda n: asked.append(n) or 0.0)
    return asked


@pytest.mark.parametrize("buffered", [False, True])
def test_a_reading_that_fails_three_times_changes_nothing(no_pause: list[int], buffered: bool) -> None:
    flaky = Keyed(errors=(OSError(5, "flaky"), TimeoutError("slow"), ConnectionResetError("gone")), buffered=buffered)
    plan = plan_of(flaky)
    total, _ = accumulate(flaky, Covariance(), plan)
    expected, _ = accumulate(Keyed(buffered=buffered), Covariance(), plan)
    assert total.scatter.tobytes() == expected.scatter.tobytes()
    assert no_pause == [1, 2, 3]
    assert sorted(set(flaky.readings)) == list(range(0, 100, 10))


def test_a_reading_that_fails_four_times_is_an_error_that_names_the_rows(no_pause: list[int]) -> None:
    flaky = Keyed(errors=tuple(OSError(5, "flaky") for _ in range(9)))
    with pytest.raises(DataError, match=r"rows.zarr: rows 10 to 19 could not be read in 4 attempts: .*flaky"):
        read_with_retries(flaky, 10, 20)
    assert flaky.readings == [10] * ATTEMPTS
    assert no_pause == [1, 2, 3]


@pytest.mark.parametrize(
    "error", [NotFiniteError("NaN"), StoreError("403"), PermissionError(13, "no"), ValueError("no")]
)
def test_what_cannot_pass_is_not_tried_again(no_pause: list[int], error: Exception) -> None:
    source = Keyed(errors=(error,))
    with pytest.raises(DataError if isinstance(error, OSError) else type(error)):
        read_with_retries(source, 10, 20)
    assert len(source.readings) == 1
    assert no_pause == []


class Direct:
    """A client whose only worker is this process, which carries out what it is sent when the result is asked for."""

    class Sent:
        def __init__(self, work: Any):
            self.work, self.status = work, "finished"

        def release(self) -> None:
            self.status = "cancelled"

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.keys: list[str] = []

    def submit(self, function: Any, *arguments: Any, key: str, pure: bool, workers: Any = None) -> Any:
        assert not pure
        self.keys.append(key)
        self.sizes.append(sum(len(part) for part in arguments if isinstance(part, bytes)))
        return self.Sent(
            lambda: function(*(part.work() if isinstance(part, self.Sent) else part for part in arguments))
        )


@dataclass(frozen=True)
class Large:
    """An accumulator with a large matrix."""

    matrix: Any
    kept: ClassVar[int] = 0

    def init(self, n_features: int) -> float:
        return 0.0

    def update(self, state: float, block: Any) -> float:
        return state + float((block.values @ self.matrix).sum())


@pytest.mark.parametrize("columns", [2, 100_000])
def test_what_is_large_and_common_goes_to_a_worker_once(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcel, "_cached", None)
    source, client = Keyed(), Direct()
    large = Large(np.ones((3, columns)))
    sent = TaskPayload(client, FoldTask(source, large), "name")
    leaves = plan_of(source).leaves()
    first = sent.submit(leaves[0], "name-0-0", "a", wanted="result", cached=False).work()
    second = sent.submit(leaves[1], "name-1-0", "a", wanted="result", cached=True).work()
    total = first.state + second.state
    assert total == pytest.approx(columns * source.rows.sum(), rel=1e-9)
    assert [key for key in client.keys if "common" in key] == (["name-common-0"] if columns > 2 else [])
    assert client.sizes[-1] < 2**16
    assert sent.submit(leaves[1], "name-1-1", "a", wanted="nothing", cached=True).work() is None
    if columns > 2:
        monkeypatch.setattr(parcel, "_cached", ("another reading", None))
        with pytest.raises(LostPayloadError):
            sent.submit(leaves[1], "name-1-2", "a", wanted="result", cached=True).work()
        sent._carrier.status = "lost"
        sent.renew()
        assert sent.submit(leaves[1], "name-1-3", "b", wanted="result", cached=False).work().state == second.state
        assert client.keys[-2:] == ["name-common-1", "name-1-3"]


def test_a_leaf_on_a_worker_gives_what_it_gives_here() -> None:
    from distributed.protocol.pickle import dumps

    source, leaf = Keyed(), leaf_of(0, 10, 20)
    task = FoldTask(source, Covariance())
    there = run_on_worker(dumps(task.for_leaf(leaf)), leaf, "result", None, None)
    assert there is not None
    assert there.state.scatter.tobytes() == run_leaf(task, leaf).state.scatter.tobytes()


class Workers:
    """A client that knows its workers."""

    def __init__(self, **workers: dict[str, Any]):
        self.workers = workers

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        assert n_workers == -1
        return {"workers": {f"tcp://10.0.0.1:{name}": info for name, info in self.workers.items()}}


GIB = 2**30


def test_the_limits_of_workers() -> None:
    client = Workers(
        **{"1": {"nthreads": 2, "memory_limit": 4 * GIB, "host": "10.0.0.1"}},
        **{"2": {"nthreads": 4, "memory_limit": 2 * GIB, "host": "10.0.0.1"}},
    )
    assert worker_limits(client) == [WorkerLimits(2, int(3.2 * GIB)), WorkerLimits(4, int(1.6 * GIB))]
    assert worker_limits(None) == []
    assert worker_limits(Workers()) == [WorkerLimits(1)]


def test_workers_without_a_limit_share_what_their_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(limits, "_available_at", lambda _, address: asked.append(address) or 10 * GIB)
    client = Workers(**{n: {"nthreads": 1, "memory_limit": 0, "host": "10.0.0.1"} for n in ("1", "2", "3")})
    share = int(0.6 * 10 * GIB / 3) + WORKER_PROCESS_BYTES
    assert worker_limits(client) == [WorkerLimits(1, share)] * 3
    assert len(asked) == 1
    monkeypatch.setattr(limits, "_available_at", lambda *_: None)
    assert worker_limits(client) == [WorkerLimits(1, None)] * 3


def test_a_plan_is_made_for_the_worker_with_the_least_memory() -> None:
    source = open_source(np.zeros((10_000, 2000), dtype=np.float32))
    here = resources_of(source, "8GiB", 2, [], scores=False, report=False)
    there = resources_of(
        source, "8GiB", 2, [WorkerLimits(2, GIB), WorkerLimits(3, 5 * GIB)], scores=False, report=False
    )
    assert here.allowed_bytes == 8 * GIB
    assert (there.allowed_bytes, there.process_bytes, there.threads) == (GIB, WORKER_PROCESS_BYTES, 3)
    least = resources_of(source, "1GiB", 2, [WorkerLimits(2, 5 * GIB)], scores=False, report=False)
    assert least.allowed_bytes == GIB
    with pytest.raises(PlanError, match="the ceiling is that of the worker with the least memory"):
        plan_fit(
            source,
            Parameters(5, solver="covariance", memory="8GiB"),
            client=Workers(**{"1": {"nthreads": 1, "memory_limit": 300 * 2**20, "host": "10.0.0.1"}}),
        )


def test_a_plan_for_a_cluster_has_as_many_leaves_in_flight_as_fit_in_its_workers() -> None:
    source = open_source(np.zeros((400_000, 100), dtype=np.float32))
    two = plan_fit(source, Parameters(5, solver="covariance", memory="8GiB", threads=2))
    assert (two.leaves_in_flight, two.leaves_per_worker) == (2, 0)
    wide = for_workers(two, [WorkerLimits(2), WorkerLimits(4), WorkerLimits(1)], two.memory["process"])
    assert (wide.leaves_in_flight, wide.leaves_per_worker, wide.threads, wide.window) == (5, 2, 7, 10)
    narrow = for_workers(two.replace(allowed_bytes=two.memory["process"]), [WorkerLimits(2)] * 9, two.memory["process"])
    assert (narrow.leaves_in_flight, narrow.window) == (1, 1)
    assert [leaf.edges for leaf in wide.leaves()] == [leaf.edges for leaf in two.leaves()]
    assert all(a.edges[-1] == b.edges[0] for a, b in pairwise(wide.leaves()))


def test_scores_are_not_written_for_a_run_that_has_ended(tmp_path: Path) -> None:
    """A worker may be at it for a while after the driver has cleaned up; it must not make the directory again."""
    source = open_source(np.random.default_rng(1).standard_normal((100, 4)))
    model, path = sp.PCA(2).fit(source)._model, tmp_path / "scores.zarr"
    _create(path, model, source, 10)

    def end(*_: object) -> None:
        shutil.rmtree(path)

    with pytest.raises(OutputError, match="is gone"):
        run_leaf(ScoreTask(source, model, path), leaf_of(0, 10, 20, 30), None, end)
    assert not path.exists()
