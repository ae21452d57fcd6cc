"""Every way of carrying out a fit gives the same bits: threads, workers, order of completion, with or without a stop."""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import facade
import numpy as np
from facade import ReadCount
from numpy.typing import NDArray
from score import Score, again
from stores import write_store

from streampca.kernels import RBF
from streampca.sources import Source, open_source

_BLOCKS, _LEAVES, _PER_BLOCK = 24, 8, 250
_LONGEST_SLEEP = 0.02


@dataclass(frozen=True)
class Solver:
    """What is fitted."""

    parameters: dict[str, Any]
    """Those of `facade.fit`."""
    shape: tuple[int, int]
    """Rows and features; the longer axis is that of the blocks."""
    per_branch: int = 1
    """Leaves of a branch, which are merged before the rest."""


SOLVERS = {
    "covariance": Solver({"k": 5, "solver": "covariance", "scale": True}, (6_000, 24)),
    "sketch": Solver(
        {"k": 5, "solver": "sketch", "sketch_size": 12, "max_passes": 2, "tolerance": 0.0, "pilot": 10}, (6_000, 24)
    ),
    "adaptive": Solver({"k": 5, "solver": "adaptive", "pilot": 10}, (6_000, 24)),
    "gram": Solver({"k": 5, "solver": "gram"}, (40, 6_000)),
    "sketch of samples": Solver(
        {"k": 5, "solver": "sketch", "sketch_size": 12, "missing": "mean", "max_passes": 3, "tolerance": 0.0},
        (40, 6_000),
    ),
    "nystrom": Solver({"k": 5, "kernel": RBF(gamma=0.01), "method": "nystrom", "n_landmarks": 40}, (6_000, 24)),
    "branches": Solver({"k": 5, "solver": "covariance", "scale": True}, (6_000, 24), per_branch=3),
    "sketch-branches": Solver(
        {"k": 5, "solver": "sketch", "sketch_size": 12, "max_passes": 2, "tolerance": 0.0, "pilot": 10},
        (6_000, 24),
        per_branch=2,
    ),
    "gram-branches": Solver({"k": 5, "solver": "gram"}, (40, 6_000), per_branch=3),
    "conversion": Solver(
        {"k": 5, "solver": "sketch", "sketch_size": 12, "recovery": "conversion", "sketch": "count_sketch"}, (6_000, 24)
    ),
    "holes": Solver({"k": 5, "solver": "sketch", "sketch_size": 12, "missing": "pairwise", "pilot": 10}, (6_000, 24)),
    "adaptive-passes": Solver(
        {"k": 5, "solver": "adaptive", "scale": True, "max_passes": 3, "tolerance": 0.0, "pilot": 10}, (6_000, 24)
    ),
}
"""By name: a solver that is to be tried joins by a line."""


@dataclass(frozen=True)
class Way:
    """A way of carrying out a fit."""

    where: str
    """``"here"``, ``"threads"`` for a cluster in this process, or ``"processes"``."""
    workers: int = 1
    """Workers of the cluster."""
    threads: int = 1
    """Threads here, or of each worker."""
    shuffled: bool = False
    """Whether each reading takes as long as chance has it."""
    stopped: bool = False
    """Whether the fit is stopped midway and gone on with."""
    shared: int = 1
    """Threads that share the products of a leaf."""

    def __str__(self) -> str:
        extra = [word for word in ("shuffled", "stopped") if getattr(self, word)]
        extra += [f"{self.shared} threads a leaf"] if self.shared > 1 else []
        return " ".join([self.where, f"{self.workers} x {self.threads}", *extra])


WAYS = (
    *(Way("here", 1, threads, s, r) for threads in (1, 2, 3) for s in (False, True) for r in (False, True)),
    *(Way("threads", workers, threads, True) for workers, threads in ((1, 2), (2, 1))),
    *(Way("processes", workers, 1, s) for workers in (1, 2, 3, 4) for s in (False, True)),
    *(Way("processes", workers, 1, True, True) for workers in (4, 2)),
)
"""The ways that are tried: twenty-four."""


class Slow(Source):
    """A source that another process can open and whose reads take as long as chance has it."""

    portable = True

    def __init__(self, source: Source, seed: int):
        self.source, self.seed = source, seed
        for name in ("shape", "dtype", "description", "grid", "buffered", "column_major"):
            setattr(self, name, getattr(source, name))

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    def by_features(self) -> Slow:
        return Slow(self.source.by_features(), self.seed)

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> tuple[NDArray[Any], ReadCount]:
        time.sleep(random.Random(1_000_003 * self.seed + start).random() * _LONGEST_SLEEP)
        return self.source.read(start, stop, out)


class _StoppedError(Exception):
    """Stops a fit midway, as a kill would."""


class Clusters:
    """Clusters of this machine, started when they are asked for first, but for one of processes that runs already."""

    def __init__(self, stack: ExitStack, found: tuple[Any, Any] | None = None):
        self._stack = stack
        self._clients: dict[tuple[str, int], tuple[Any, Any]] = {("processes", 1): found} if found else {}

    def client(self, way: Way) -> Any:
        """Return a client of a cluster for that way, with as many workers."""
        from distributed import Client, LocalCluster

        key = (way.where, way.threads)
        if key not in self._clients:
            processes = way.where == "processes"
            options = {"dashboard_address": "127.0.0.1:0", "memory_limit": 0, "silence_logs": 50}
            options |= {"host": "127.0.0.1"} if processes else {}
            cluster = self._stack.enter_context(
                LocalCluster(n_workers=way.workers, threads_per_worker=way.threads, processes=processes, **options)
            )
            self._clients[key] = cluster, self._stack.enter_context(Client(cluster, set_as_default=False))
        cluster, client = self._clients[key]
        if len(client.scheduler_info(n_workers=-1)["workers"]) != way.workers:
            cluster.scale(way.workers)
            self._wait(client, way.workers)
        return client

    @staticmethod
    def _wait(client: Any, n_workers: int) -> None:
        deadline = time.monotonic() + 60
        while len(client.scheduler_info(n_workers=-1)["workers"]) != n_workers:
            assert time.monotonic() < deadline, f"the cluster does not come to {n_workers} workers"
            time.sleep(0.05)


@contextmanager
def prepared(found: tuple[Any, Any] | None = None) -> Iterator[tuple[Path, Clusters]]:
    """Give a directory with the input of every solver, and clusters (`found`: one that runs, and its client)."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        for solver in SOLVERS.values():
            rows = np.random.default_rng(1).standard_normal(solver.shape).astype(np.float32)
            rows *= np.linspace(1, 3, solver.shape[1], dtype=np.float32)
            tall = solver.shape[0] >= solver.shape[1]
            path = _store(Path(name), solver)
            if not path.exists():
                write_store(path, rows + 5, chunks=(_PER_BLOCK, 24) if tall else (solver.shape[0], _PER_BLOCK))
        yield Path(name), Clusters(stack, found)


def _store(place: Path, solver: Solver) -> Path:
    return place / ("tall.zarr" if solver.shape[0] >= solver.shape[1] else "wide.zarr")


def _plan(source: Source, solver: Solver, way: Way) -> Any:
    """Return the plan that data too large for a test would have: eight leaves of three blocks."""
    parameters = solver.parameters
    plan = facade.plan(source, **parameters)
    at_once = way.threads * way.workers
    changes: dict[str, Any] = {"rows_per_block": _PER_BLOCK, "n_blocks": _BLOCKS, "n_leaves": _LEAVES, "edges": None}
    changes["leaves_per_branch"] = solver.per_branch
    if plan.solver == "adaptive":
        changes["sketch"] = plan.sketch | {"rows_per_update": 2 * _PER_BLOCK}
    return plan.replace(
        **changes,
        leaves_in_flight=at_once,
        window=2 * at_once,
        threads=at_once * way.shared,
        threads_per_leaf=way.shared,
    )


def digest_of(place: Path, clusters: Clusters, name: str, way: Way, seed: int) -> str:
    """Return the SHA-256 of what the solver `name` finds in that way: all arrays of the model, and its certificate."""
    solver = SOLVERS[name]
    source = open_source(_store(place, solver))
    plan = _plan(source, solver, way)
    source = Slow(source, seed) if way.shuffled else source
    with ExitStack() as stack:
        if way.where != "here":
            stack.enter_context(clusters.client(way).as_current())
        model = _stop_and_go_on(source, solver, plan, seed) if way.stopped else _fit(source, solver, plan, None)
    found = {key: value for key, value in sorted(vars(model).items()) if isinstance(value, np.ndarray)}
    digest = hashlib.sha256(json.dumps(model.certificate.to_dict(), sort_keys=True, default=str).encode())
    for key, array in found.items():
        digest.update(key.encode() + str(array.dtype).encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _fit(source: Source, solver: Solver, plan: Any, progress: Any) -> Any:
    return facade.fit(source, plan, options={"progress": progress}, **solver.parameters).model


def _stop_and_go_on(source: Source, solver: Solver, plan: Any, seed: int) -> Any:
    """Stop the fit at a random place, and go on from its checkpoint."""
    part = random.Random(seed).uniform(0.3, 0.9)

    def stop_late(step: Any) -> None:
        if step.phase in ("fit", "components") and step.rows > part * step.n_samples:
            raise _StoppedError

    with tempfile.TemporaryDirectory() as name, _eager_checkpoints():
        try:
            with facade.checkpoints_in(Path(name) / "kept"):
                _fit(source, solver, plan, stop_late)
        except _StoppedError:
            assert any((Path(name) / "kept").iterdir())
            with facade.checkpoints_in(Path(name) / "kept"):
                return _fit(source, solver, plan, None)
    raise AssertionError("it was not stopped")


@contextmanager
def _eager_checkpoints() -> Iterator[None]:
    with facade.all_checkpoints():
        yield


def run(count: int, seed: int) -> Score:
    """Try `count` pairs of a solver and a way."""
    score, began = Score("solvers x threads, workers, order of completion, stops"), time.monotonic()
    expected: dict[str, str] = {}
    with prepared() as (place, clusters):
        for item in range(seed, seed + count):
            name = list(SOLVERS)[item % len(SOLVERS)]
            way = WAYS[item // len(SOLVERS) % len(WAYS)]
            if name not in expected:
                expected[name] = digest_of(place, clusters, name, Way("here"), 0)
            score.injected += 1
            if digest_of(place, clusters, name, way, item) == expected[name]:
                score.survived += 1
            else:
                score.wrong += 1
                score.notes.append(f"{name}, {way}: other bits: {again('determinism', item)}")
    score.seconds = time.monotonic() - began
    return score
