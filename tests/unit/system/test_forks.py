"""What a forked process inherits from one that has computed: no thread, lock, loop or client that it would wait for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

SECONDS = 300.0
SCRIPT = Path(__file__).parents[2] / "fork_scenarios.py"
SCENARIOS = [
    "tiles_of_a_matrix",
    "limit_of_blas_threads",
    "signals_of_the_main_thread",
    "fits_of_every_kind",
    "store_behind_a_url",
    "client_of_a_cluster",
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each scenario came to, all in one process: that of pytest has threads that a fork would not have."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), *SCENARIOS]
    with subprocess.Popen(
        command,
        cwd=tmp_path_factory.mktemp("forks"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        try:
            printed, said = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, said[-3000:]
    found: dict[str, str] = json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_forked_process_does_not_wait_for_what_its_parent_had(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == "done"
