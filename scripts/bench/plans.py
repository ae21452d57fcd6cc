"""How many cores plans keep busy, for numbers of threads and ceilings of memory: pure functions of shapes, which need no such machine.

.venv/bin/python scripts/bench/plans.py
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import cache
from tempfile import TemporaryDirectory
from unittest.mock import patch

import zarr

import streampca as sp
from streampca.errors import PlanError
from streampca.planning.plan import Plan
from streampca.solvers import fit
from streampca.solvers.fit import Parameters, plan_fit
from streampca.sources import Source

PLACES = ExitStack()
"""Directories of the stores, until it is left."""

MEBIBYTE = 2**20
PROCESS_BYTES = 100 * MEBIBYTE
"""What a process takes before the first block."""
THREADS = (1, 2, 4, 8, 16, 32, 64, 128)
CEILINGS = (300, 512, 1024, 2048, 4096, 8192, 16384, 65536)
CASES: dict[str, tuple[tuple[int, int], tuple[int, int], str, int]] = {
    "A": ((400_000, 1024), (8000, 1024), "covariance", 1),
    "B": ((3_000_000, 1024), (8000, 1024), "covariance", 1),
    "41 GB": ((10_000_000, 1024), (8000, 1024), "covariance", 1),
    "C": ((60_000, 8192), (1000, 8192), "covariance", 1),
    "D": ((50_000, 30_000), (250, 30_000), "sketch", 3),
    "E": ((2_000, 500_000), (2_000, 4000), "gram", 1),
}
"""Shape, shape of the chunks, solver and passes."""


@cache
def store(case: str) -> Source:
    """Return the table of a store that has metadata and no chunk."""
    place = PLACES.enter_context(TemporaryDirectory())
    shape, chunks = CASES[case][:2]
    zarr.create_array(place, shape=shape, chunks=chunks, dtype="float32", compressors=None)
    return sp.open(place)


def planned(case: str, threads: int, mebibytes: int) -> Plan | None:
    """Return the plan of a case; None where it does not fit."""
    solver, passes = CASES[case][2:]
    further = {"max_passes": passes, "tolerance": 0.0} if passes > 1 else {}
    parameters = Parameters(50, solver=solver, memory=mebibytes * MEBIBYTE, threads=threads, **further)
    with patch.object(fit, "process_bytes", lambda: PROCESS_BYTES):
        try:
            return plan_fit(store(case), parameters)
        except PlanError:
            return None


def table(case: str) -> list[str]:
    """Return the rows of a table: cores that work, as leaves x threads where threads share a leaf."""
    lines = [f"| {case} | {' | '.join(map(str, THREADS))} |", f"|---|{'---:|' * len(THREADS)}"]
    for ceiling in CEILINGS:
        cells = []
        for threads in THREADS:
            plan = planned(case, threads, ceiling)
            if plan is None:
                cells.append("")
                continue
            shared = f" ({plan.leaves_in_flight} x {plan.threads_per_leaf})" if plan.threads_per_leaf > 1 else ""
            cells.append(f"{plan.leaves_in_flight * plan.threads_per_leaf}{shared}")
        lines.append(
            f"| {ceiling if ceiling < 1024 else ceiling // 1024} {'MiB' if ceiling < 1024 else 'GiB'} | {' | '.join(cells)} |"
        )
    return lines


def main() -> None:
    """Print a table for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    with PLACES:
        for case in parser.parse_args().cases.split(","):
            print("\n".join(table(case)), end="\n\n")


if __name__ == "__main__":
    main()
