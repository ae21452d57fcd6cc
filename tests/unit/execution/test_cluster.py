"""What a cluster adds to a fit: readings tried again, memory and threads of workers, software that a worker lacks."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import facade
import numpy as np
import pytest
from distributed import Client, LocalCluster

import streampca as sp
from streampca.errors import ClusterError, DataError, NotFiniteError, PlanError, StoreError

MIB = 2**20
OPTIONS: dict[str, Any] = {"processes": False, "dashboard_address": "127.0.0.1:0"}


class Flaky(facade.Source):
    """Rows of which one block cannot be read as often as it is told to."""

    description = "rows.zarr"
    fingerprint = "flaky"
    grid = facade.Grid(256, chunk_bytes=256 * 3 * 8)

    def __init__(self, errors: tuple[Exception, ...] = (), buffered: bool = False):
        self.rows = np.random.default_rng(1).standard_normal((2000, 3))
        self.shape, self.dtype, self.buffered = self.rows.shape, self.rows.dtype, buffered
        self.errors, self.readings = list(errors), list[int]()

    def read(self, start: int, stop: int, out: Any = None) -> tuple[Any, facade.ReadCount]:
        self.readings.append(start)
        if start == 512 and self.errors:
            raise self.errors.pop(0)
        values = self.rows[start:stop]
        return values, facade.ReadCount(1, values.nbytes, values.nbytes)


@pytest.mark.parametrize("buffered", [False, True])
def test_a_reading_that_fails_three_times_changes_nothing(blocks_of: Any, buffered: bool) -> None:
    blocks_of(256)
    flaky = Flaky((OSError(5, "flaky"), TimeoutError("slow"), ConnectionResetError("gone")), buffered)
    found, expected = (sp.PCA(2, solver="covariance").fit(source) for source in (flaky, Flaky(buffered=buffered)))
    assert found.components_.tobytes() == expected.components_.tobytes()
    assert sorted(flaky.readings) == [0, 256, *[512] * 4, 768, 1024, 1280, 1536, 1792]


def test_a_reading_that_fails_four_times_is_an_error_that_names_the_rows(blocks_of: Any) -> None:
    blocks_of(256)
    flaky = Flaky(tuple(OSError(5, "flaky") for _ in range(9)))
    with pytest.raises(DataError, match=r"rows.zarr: rows 512 to 767 could not be read in 4 attempts: .*flaky"):
        sp.PCA(2, solver="covariance").fit(flaky)
    assert flaky.readings.count(512) == 4


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotFiniteError("NaN"), NotFiniteError),
        (StoreError("403"), StoreError),
        (PermissionError(13, "no"), DataError),
        (FileNotFoundError(2, "no"), DataError),
        (OSError(28, "full"), DataError),
        (ValueError("no"), ValueError),
    ],
    ids=str,
)
def test_what_cannot_pass_is_not_tried_again(error: Exception, kind: type[Exception], blocks_of: Any) -> None:
    blocks_of(256)
    source = Flaky((error,))
    with pytest.raises(kind):
        sp.PCA(2, solver="covariance").fit(source)
    assert source.readings.count(512) == 1


def _rebuilt(at_home: int) -> Flaky:
    if os.getpid() != at_home:
        raise ModuleNotFoundError("No module named 'streampca_of_tomorrow'")
    return Flaky()


class Elsewhere(Flaky):
    """Rows that need a module which workers lack."""

    portable = True

    def __reduce__(self) -> Any:
        return _rebuilt, (os.getpid(),)


def test_workers_with_other_software_are_a_cluster_error_with_advice(client: Any, blocks_of: Any) -> None:
    blocks_of(256)
    with (
        client.as_current(),
        pytest.raises(ClusterError, match=r"cannot run streampca: .*; install the same versions for"),
    ):
        sp.PCA(2, solver="covariance").fit(Elsewhere())


def _another(version: str, blas: str) -> None:
    """Have this worker say that it runs another version of streampca, or other kernels."""
    for name, module in list(sys.modules.items()):
        if name.startswith("streampca.") and hasattr(module, "__version__"):
            module.__version__ = version
    found = sys.modules["streampca.system.process"]
    theirs = getattr(found, "theirs", found.versions)
    found.theirs, found.versions = theirs, (lambda: theirs() | {"blas": blas}) if blas else theirs


def test_workers_with_another_streampca_are_refused_and_other_kernels_said(client: Any, tmp_path: Any) -> None:
    """A worker of another version would make other numbers without a word; before the first leaf, and if it comes later."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((400, 5)))
    address = client.scheduler.address
    refusal = rf"the worker at \S+ runs streampca 0\.0\.1, the process that plans {sp.__version__}: expected the same"

    def fit(asked: Any) -> Any:
        with asked.as_current():
            return sp.PCA(2).fit(tmp_path / "x.npy").plan_

    try:
        with Client(address, set_as_default=False) as asked:
            assert fit(asked).notes == ()
            client.run(_another, "0.0.1", "")
            with pytest.raises(ClusterError, match=refusal) as caught:
                fit(asked)  # which found the same version before
            assert caught.value.exit_status == 3
        with Client(address, set_as_default=False) as asked, pytest.raises(ClusterError, match=refusal):
            fit(asked)
        client.run(_another, sp.__version__, "mkl 2026.1 (avx512)")
        with Client(address, set_as_default=False) as asked:
            (note,) = fit(asked).notes
            assert "mkl 2026.1 (avx512), use other BLAS kernels than this process" in note
    finally:
        client.run(_another, sp.__version__, "")


def test_a_plan_its_progress_and_its_text_say_what_reads(client: Any, tmp_path: Any) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((400, 5)))
    told = set()
    pca = sp.PCA(2, progress=lambda step: told.add(step.runs_on))
    assert str(pca.plan(tmp_path / "x.npy")).count(", on threads of this process") == 1
    with client.as_current():
        assert ", on 2 workers of a cluster" in str(pca.plan(tmp_path / "x.npy"))
        assert pca.fit(tmp_path / "x.npy").plan_.runs_on == "2 workers of a cluster"
        kernel = sp.KernelPCA(2, method="exact").fit(tmp_path / "x.npy")
    assert told == {"workers of a cluster"}
    assert kernel.plan_.n_workers == 2


def test_a_plan_is_made_for_the_threads_and_the_memory_of_workers(tmp_path: Any, blocks_of: Any) -> None:
    blocks_of(256)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((40_000, 5)))

    def plan(memory: str) -> Any:
        with facade.process_of(300 * MIB):
            return sp.PCA(2, solver="covariance", memory=memory).plan(tmp_path / "x.npy")

    here = plan("8GiB")
    with LocalCluster(n_workers=2, threads_per_worker=3, memory_limit="2GiB", **OPTIONS) as cluster, Client(cluster):
        there, least = plan("8GiB"), plan("1GiB")
    assert there.threads == 6
    assert there.allowed_bytes == int(0.8 * 2048 * MIB)  # where Dask pauses a worker
    assert least.allowed_bytes == 1024 * MIB
    assert (there.rows_per_block, there.n_leaves) == (here.rows_per_block, here.n_leaves)  # and so the same bits


def test_workers_with_too_little_memory_are_named_in_the_refusal() -> None:
    lazy = facade.Unread((10_000, 2000))
    lazy.portable = True
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, memory_limit="300MiB", **OPTIONS) as cluster,
        Client(cluster),
        pytest.raises(PlanError, match="the ceiling is that of the worker with the least memory"),
    ):
        sp.PCA(5, solver="covariance", memory="8GiB").fit(lazy)


def test_weights_of_samples_count_on_a_cluster_as_they_do_here(client: Any, tmp_path: Any, blocks_of: Any) -> None:
    blocks_of(256)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((3000, 5)))
    weights = np.random.default_rng(1).random(3000)
    here = sp.PCA(3).fit(tmp_path / "x.npy", sample_weight=weights)
    with client.as_current():
        there = sp.PCA(3).fit(tmp_path / "x.npy", sample_weight=weights)
    assert there.components_.tobytes() == here.components_.tobytes()


class Counting(Flaky):
    """Rows that know by how many threads they are read at once."""

    portable = True
    at_once, most, lock = 0, 0, threading.Lock()

    def __reduce__(self) -> Any:
        return Counting, ()

    def read(self, start: int, stop: int, out: Any = None) -> tuple[Any, facade.ReadCount]:
        with Counting.lock:
            Counting.at_once += 1
            Counting.most = max(Counting.most, Counting.at_once)
        time.sleep(0.02)
        with Counting.lock:
            Counting.at_once -= 1
        return super().read(start, stop, out)


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_worker_runs_no_more_leaves_than_are_planned_for_its_memory(at_once: int) -> None:
    plan = facade.plan(Counting(), k=2, solver="covariance")
    plan = plan.replace(rows_per_block=100, n_blocks=20, n_leaves=20, window=20, leaves_per_worker=at_once)
    Counting.most = 0
    with LocalCluster(n_workers=1, threads_per_worker=4, **OPTIONS) as cluster, Client(cluster):
        there = facade.fit(Counting(), plan, k=2, solver="covariance").model
    assert Counting.most == at_once
    here = facade.fit(Counting(), plan, k=2, solver="covariance").model
    assert there.components.tobytes() == here.components.tobytes()


class StubbornError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, what: str, why: str):
        super().__init__(f"{what}: {why}")


class Defective(Flaky):
    """Rows with an error that is none of the package, and that does not travel."""

    portable = True

    def __reduce__(self) -> Any:
        return Defective, ()

    def read(self, start: int, stop: int, out: Any = None) -> tuple[Any, facade.ReadCount]:
        raise StubbornError("rows", "out of order")


def test_an_error_that_cannot_be_pickled_arrives_in_words() -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, **OPTIONS) as cluster,
        Client(cluster),
        pytest.raises(RuntimeError, match="StubbornError: rows: out of order"),
    ):
        sp.PCA(2, solver="covariance").fit(Defective())


def test_workers_that_merge_branches_have_memory_for_two_states_of_each() -> None:
    lazy = facade.Unread((10_000_000, 4500))
    with (
        LocalCluster(n_workers=2, threads_per_worker=4, memory_limit="6GiB", **OPTIONS) as cluster,
        Client(cluster) as client,
    ):
        plan = facade.plan_fit(lazy, facade.Parameters(5, solver="covariance"), client=client)
    assert plan.leaves_per_branch > 1
    assert (plan.leaves_per_worker, plan.threads_per_leaf) == (1, 4)
    assert plan.window == 2 * (1 + 1)  # a branch that is read, with two states, and one that waits to be fetched
    assert plan.budget.bytes_for("states") >= 3 * 8 * 4500 * 4500 // 2
