"""The driver and Dask's scheduler with a million blocks that cost nothing to read: time and memory for each leaf.

``blocks``: plans a fit of as many blocks and reads them on a cluster of this machine, as a fit does; prints seconds and processor time of the
driver for each leaf, how its resident memory grew, and that of the scheduler beside it (same process).

``waiting``: leaves that take one second each, of which nearly all is spent waiting, as for a slow store, on more and more
threads at once; prints which share of the time is left for work: leaves x 1 s over threads x wall time. That is the load that as many
worker cores would put on one scheduler.

``states``: leaves with a state of 72 MiB each, merged on the workers in branches and, beside that, one by one in the driver; prints
seconds and what came to the driver.

``model``: the cost model of docs/explanation/scaling.md from 1 to 1,000 workers and from 1 GB to 1 PB, with the measured costs.

    .venv/bin/python scripts/bench/scale.py blocks
    .venv/bin/python scripts/bench/scale.py waiting --threads 16,32,64,128
    .venv/bin/python scripts/bench/scale.py states
    .venv/bin/python scripts/bench/scale.py model
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import psutil
from _bench import machine, peak_mib
from free_source import FreeSource

from streampca.planning.shape import count_leaves, leaves_per_branch, states_at_once

_BLOCKS_OF_A_LEAF = 4  # of `FreeSource`
_ROWS_OF_A_STATE = 256


@contextmanager
def cluster(workers: int, threads: int) -> Iterator[Any]:
    """Start a cluster on the loopback; the scheduler runs in this process."""
    from distributed import Client, LocalCluster

    options = {"host": "127.0.0.1", "dashboard_address": None, "memory_limit": 0}
    with LocalCluster(n_workers=workers, threads_per_worker=threads, **options) as local, Client(local) as client:
        yield client


class Memory:
    """The resident memory of this process, looked at a few times a second."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        process = psutil.Process()
        while not self._stop.wait(0.2):
            self.seen.append(process.memory_info().rss)

    def growth(self) -> tuple[float, float]:
        """Return the MiB at the end, and how many it grew over the second half of the time."""
        self._stop.set()
        self._thread.join()
        half = self.seen[len(self.seen) // 2]
        return self.seen[-1] / 2**20, (max(self.seen[len(self.seen) // 2 :]) - half) / 2**20


def read_once(source: FreeSource, client: Any) -> tuple[Any, float]:
    """Plan a fit, and read as it does; an accumulator that keeps a few rows costs nothing either."""
    from streampca.accumulators.rows import RowSample
    from streampca.execution.readings import Reading
    from streampca.solvers.fit import Parameters, plan_fit

    began = time.perf_counter()
    plan = plan_fit(source, Parameters(2, solver="covariance"), client=client)
    planned = time.perf_counter() - began
    rows = RowSample(source.shape[0], 1000, "float32")
    answer = Reading(source, (rows,), plan).make(client, None)
    (state,) = answer.take()
    assert answer.count.chunks == plan.n_blocks
    assert len(state.values) == 1000
    return plan, planned


def run_blocks(n_blocks: int, n_features: int, workers: int) -> dict[str, Any]:
    """Plan and read so many blocks that cost nothing."""
    source = FreeSource(n_blocks, n_features)
    with cluster(workers, 1) if workers else nullcontext() as client:
        read_once(FreeSource(64, n_features), client)  # imports and connections are not what is measured
        memory, process = Memory(), psutil.Process()
        began, cpu = time.perf_counter(), sum(process.cpu_times()[:2])
        plan, planned = read_once(source, client)
        seconds, cpu = time.perf_counter() - began - planned, sum(process.cpu_times()[:2]) - cpu
        resident, grown = memory.growth()
    return {
        "blocks": plan.n_blocks,
        "leaves": plan.n_leaves,
        "planned in s": planned,
        "seconds": seconds,
        "leaves a second": plan.n_leaves / seconds,
        "driver and scheduler, ms of processor a leaf": 1e3 * cpu / plan.n_leaves,
        "driver MiB": resident,
        "grown in the second half, MiB": grown,
    }


def run_waiting(threads: int, rounds: int) -> dict[str, Any]:
    """Run leaves of one second on so many threads at once, a few on each."""
    source = FreeSource(_BLOCKS_OF_A_LEAF * threads * rounds, 16, seconds=1.0 / _BLOCKS_OF_A_LEAF)
    with cluster(2, threads // 2) as client:
        read_once(FreeSource(8 * threads, 16), client)
        process = psutil.Process()
        began, cpu = time.perf_counter(), sum(process.cpu_times()[:2])
        plan, _ = read_once(source, client)
        seconds, cpu = time.perf_counter() - began, sum(process.cpu_times()[:2]) - cpu
    return {
        "threads": threads,
        "leaves": plan.n_leaves,
        "seconds": seconds,
        "share of the time left for work": plan.n_blocks * source.seconds / threads / seconds,
        "processor of driver and scheduler": cpu / seconds,
    }


def run_states(n_leaves: int, n_features: int, *, branches: bool) -> dict[str, Any]:
    """Fold leaves of a few rows, with states that are large, on two workers."""
    from streampca.accumulators import Covariance
    from streampca.execution.readings import Reading
    from streampca.solvers.fit import Parameters, plan_fit

    source = FreeSource(n_leaves, n_features, band=_ROWS_OF_A_STATE)
    with cluster(2, 1) as client:
        read_once(FreeSource(64, 16), client)
        plan = plan_fit(source, Parameters(2, solver="covariance"), client=client)
        plan = plan.replace(edges=None, rows_per_block=_ROWS_OF_A_STATE, n_blocks=n_leaves, n_leaves=n_leaves)
        state = Covariance().state_bytes(n_features)
        per_branch = leaves_per_branch(n_leaves, state) if branches else 1
        plan = plan.replace(leaves_per_branch=per_branch, leaves_per_worker=1)
        own = state * states_at_once(1, n_leaves, per_branch)
        projected = plan.projected_bytes - plan.memory["states"] + own
        memory, process = Memory(), psutil.Process()
        began, cpu = time.perf_counter(), sum(process.cpu_times()[:2])
        Reading(source, (Covariance(),), plan).make(client, None)
        seconds, cpu = time.perf_counter() - began, sum(process.cpu_times()[:2]) - cpu
        memory.growth()
        workers = client.run(peak_mib)
    return {
        "merged by": "workers and driver" if branches else "driver",
        "leaves": n_leaves,
        "leaves of a branch": per_branch,
        "a state, MiB": state / 2**20,
        "brought to the driver, GiB": plan.n_branches * state / 2**30,
        "seconds": seconds,
        "processor of the driver, s": cpu,
        "driver MiB at most": max(memory.seen) / 2**20,
        "a worker MiB at most": max(workers.values()),
        "projected for it MiB": projected / 2**20,
    }


@dataclass(frozen=True)
class Costs:
    """What the model takes each thing to cost; defaults as measured or as stated in docs/explanation/scaling.md."""

    flops: float = 9e10
    """Float32 products of a core, in symmetric flops (rows x features²) per second."""
    store: float = 1e8
    """Bytes per second and core from an object store."""
    network: float = 1e9
    """Bytes per second into the driver."""
    leaf: float = 3.4e-3
    """Seconds of driver and scheduler for a leaf."""
    merge: float = 3e9
    """Bytes of states per second that the driver adds up."""


def model(n_bytes: float, d: int, workers: int, costs: Costs) -> dict[str, float]:
    """Return the seconds of covariance over float32 rows on workers of one core each, by part."""
    n = int(n_bytes / (4 * d))
    state = 4 * d * d
    leaves = count_leaves(n, max(1, n // 8192), 4 * d, state)
    per_branch = leaves_per_branch(leaves, state)
    tasks = -(-leaves // per_branch)
    busy = min(workers, tasks)
    rounds = -(-tasks // busy) * busy / tasks
    merge = state * (1 / costs.network + 1 / costs.merge)
    work = rounds * max(n * float(d) ** 2 / costs.flops, n_bytes / costs.store) / busy
    work += rounds * (leaves - tasks) / busy * state / costs.merge
    driver = tasks * (costs.leaf + merge)
    return {"leaves": leaves, "work": work, "driver": driver, "total": max(work, driver)}


def print_model(costs: Costs) -> None:
    """Print the table of docs/explanation/scaling.md."""
    print("| data | features | leaves | " + " | ".join(f"{w:,} workers" for w in (1, 10, 100, 1000)) + " |")
    print("|---|---:|---:|" + "---:|" * 4)
    for name, n_bytes in (("1 GB", 1e9), ("100 GB", 1e11), ("10 TB", 1e13), ("1 PB", 1e15)):
        for d in (128, 1024, 8192):
            found = [model(n_bytes, d, workers, costs) for workers in (1, 10, 100, 1000)]
            times = " | ".join(f"{_time(f['total'])}{' (driver)' if f['driver'] > f['work'] else ''}" for f in found)
            print(f"| {name} | {d:,} | {found[0]['leaves']:,.0f} | {times} |")


def _time(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("blocks", "waiting", "states", "model"))
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2, help="0: on threads of this process (default: %(default)s)")
    parser.add_argument("--threads", default="16,32,64,128", help="for waiting (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="leaves of each thread, for waiting")
    options = parser.parse_args()
    if options.mode == "model":
        print_model(Costs())
        return
    if options.mode == "blocks":
        rows = [run_blocks(options.blocks, options.features, options.workers)]
    elif options.mode == "states":
        rows = [run_states(256, 4096, branches=branches) for branches in (True, False)]
    else:
        rows = [run_waiting(int(threads), options.rounds) for threads in options.threads.split(",")]
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---:|" * len(rows[0]))
    for row in rows:
        print(
            "| "
            + " | ".join(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in row.values())
            + " |"
        )
    print(json.dumps({"rows": rows, "machine": machine()}))


if __name__ == "__main__":
    main()
