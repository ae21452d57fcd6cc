"""Several runs that start together for one output: one at a time has it, and what stays is wholly that of one of them."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import facade
from forks import Forked, server
from score import Score, again
from slow_run import digest_of_run
from stores import config_text, make_values, write_store

_MOST = 4
_SECONDS = 60.0
_REFUSED_SECONDS = 5.0
_HELD = re.compile(r"out\.lock is held by run [0-9a-f]{16} on (\S+), process (\d+), since")


def late(arguments: list[str], seconds: float) -> None:
    """Call ``streampca`` a little later and print how long it took."""
    os.fsync = lambda _: None  # which takes most of the time, and only a loss of power would tell
    time.sleep(seconds)
    began = time.monotonic()
    try:
        facade.main(arguments)
    finally:
        print(f"took {time.monotonic() - began}")


@dataclass(frozen=True)
class _Outcome:
    """What became of one of those that raced."""

    status: int
    """Its exit status."""
    said: str
    """Its standard error."""
    seconds: float
    """How long it took."""
    manifest: dict[str, Any] | None
    """Its result, if it had one."""

    @classmethod
    def of(cls, process: Forked, status: int) -> _Outcome:
        """Return the outcome of a process that has ended."""
        text, _, seconds = process.printed.rpartition("took ")
        manifest = json.loads(text) if status == 0 else None
        return cls(status, process.said, float(seconds or 0), manifest)


def run(count: int, seed: int) -> Score:
    """Hold `count` races."""
    score, began = Score("two to four runs for one output, some of them killed"), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_store(place / "x.zarr", make_values(2_000, 8), chunks=(100, 8))
        digests = []
        for k in range(1, _MOST + 1):  # results differ by their number of components
            write_config(place, k, f"alone{k}", overwrite=False)
            process = server().start("forks:command", place, arguments=["run", f"alone{k}-{k}.yaml", "--quiet"])
            assert process.wait(_SECONDS) == 0, process.said
            digests.append(digest_of_run(place / f"alone{k}"))
        for item in range(seed, seed + count):
            directory = place / str(item)
            directory.mkdir()
            score.injected += 1
            wrong = _race(directory, digests, random.Random(item), score)
            if wrong:
                score.wrong += 1
                score.notes.append(f"{wrong}: {again('races', item)}")
            else:
                score.survived += 1
    score.seconds = time.monotonic() - began
    return score


def write_config(directory: Path, k: int, out: str, *, overwrite: bool) -> None:
    """Write the configuration of a run with `k` components."""
    output = f"report: false, overwrite: {str(overwrite).lower()}"
    source = directory / "x.zarr" if (directory / "x.zarr").exists() else directory.parent / "x.zarr"
    text = config_text(source, out, f"model: {{n_components: {k}}}", "resources: {threads: 1}", output=output)
    (directory / f"{out}-{k}.yaml").write_text(text)


def _race(directory: Path, digests: list[str], draw: random.Random, score: Score) -> str:
    """Return what is wrong with one race, nothing if all is well."""
    n, overwrite, killed = draw.randint(2, _MOST), draw.random() < 0.5, draw.random() < 0.3
    processes = {}
    for k in range(1, n + 1):
        write_config(directory, k, "out", overwrite=overwrite)
        arguments = ["run", f"out-{k}.yaml", "--quiet", "--json"]
        processes[k] = server().start("races:late", directory, arguments=arguments, seconds=draw.random() * 0.3)
    if killed:
        victim = processes[draw.randint(1, n)]
        if victim.wait(draw.random() * 0.6) is None:
            victim.end()
    outcomes = {}
    for k, process in processes.items():
        status = process.wait(_SECONDS)
        if status is None:
            score.hangs += 1
            return f"contender {k} of {n} did not end (killed, status {process.end()})"
        if "Traceback" in process.said or "internal error" in process.said:
            score.tracebacks += 1
            return process.said
        outcomes[k] = _Outcome.of(process, status)
    pids = {process.pid for process in processes.values()}
    wrong = _judge(outcomes, pids, overwrite=overwrite, killed=killed)
    return wrong or _result(directory, outcomes, digests, killed=killed)


def _judge(outcomes: dict[int, _Outcome], pids: set[int], *, overwrite: bool, killed: bool) -> str:
    """Return what is wrong with how the contenders ended."""
    winners = [k for k, outcome in outcomes.items() if outcome.status == 0]
    if not killed and not winners:
        return f"nobody won: {outcomes}"
    if len(winners) > 1 and not overwrite:
        return f"several won: {outcomes}"
    for k, outcome in outcomes.items():
        if outcome.status == 6:
            held = _HELD.search(outcome.said)
            named = held is not None and held[1] == socket.gethostname() and int(held[2]) in pids
            finished = not overwrite and "holds a finished run already" in outcome.said
            if not named and not finished:
                return f"contender {k} was not told who is at work: {outcome.said}"
            if outcome.seconds > _REFUSED_SECONDS:
                return f"contender {k} was told after {outcome.seconds:.1f} s"
        elif outcome.status != 0 and not (killed and outcome.status == -9):
            return f"contender {k} ended with status {outcome.status}: {outcome.said}"
    return ""


def _result(directory: Path, outcomes: dict[int, _Outcome], digests: list[str], *, killed: bool) -> str:
    """Return what is wrong with what the race has left, after one run more if one was killed in it."""
    out, by_run = directory / "out", {o.manifest["run_id"]: k for k, o in outcomes.items() if o.manifest is not None}
    if killed:
        write_config(directory, 1, "out", overwrite=True)
        process = server().start(
            "forks:command", directory, arguments=["run", "out-1.yaml", "--quiet", "--json", "--fresh"]
        )
        status = process.wait(_SECONDS)
        if status != 0:
            return f"after the race a run ends with status {status}: {process.said}"
        by_run = {json.loads(process.printed)["run_id"]: 1}
    found = json.loads((out / "manifest.json").read_text())["run_id"]
    record = json.loads((out / "streampca.json").read_text())["run_id"]
    if found not in by_run or record != found:
        return f"the result is of run {found}, its record of {record}, the winners were {by_run}"
    if digest_of_run(out) != digests[by_run[found] - 1]:
        return f"the result is not that of contender {by_run[found]} alone"
    left = sorted(path.name for path in directory.iterdir() if path.suffix != ".yaml" and path != out)
    return f"left behind: {left}" if left else ""
