"""What processes that were killed leave beside an output is gone when a repeat of them is complete."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest
import run_kills

_START = """
import os, signal, sys
import numpy as np
import streampca as sp
X = np.load("x.npy")
def save():
    sp.PCA(2, solver="covariance").fit(X).save("out", overwrite=True)
def transform_to():
    sp.PCA(2, solver="covariance").fit(X).transform_to(X, "out", overwrite=True)
def run():
    sp.run("c.yaml", fresh=True)
def groups():
    sp.run("g.yaml", fresh=True)
def stop(event, arguments):
    if event == at and ".part-" in str(arguments[0]):
        os.kill(os.getpid(), signal.SIGKILL)
what, at = sys.argv[1:]
sys.addaudithook(stop)
globals()[what]()
"""
_YAML = """
source: {path: x.npy}
model: {n_components: 2, solver: covariance%s}
output: {directory: out, overwrite: true, report: false, scores: false}
"""


def _start(directory, what, stop_at="never"):
    """Carry out `what`; the process kills itself at the system call `stop_at` on the unfinished directory."""
    command = [sys.executable, "-c", _START, what, stop_at]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.fixture
def place(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 4)))
    np.save(tmp_path / "g.npy", np.arange(60) % 2)
    (tmp_path / "c.yaml").write_text(_YAML % "")
    (tmp_path / "g.yaml").write_text(_YAML % ", group_by: g.npy")
    return tmp_path


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("what", ["save", "transform_to", "run", "groups"])
def test_a_complete_repeat_leaves_nothing_of_killed_ones(place, what):
    before = {path.name for path in place.iterdir()}
    for stop_at in ("os.rename", "shutil.rmtree"):  # at its end, and while it tidies
        assert _start(place, what, stop_at).returncode == -signal.SIGKILL, stop_at
    stranger = place / "out.part-0123456789abcdef"
    stranger.mkdir()
    done = _start(place, what)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in place.iterdir()} == before | {"out", stranger.name}


@pytest.mark.deep
def test_runs_of_every_kind_that_are_killed_go_on_to_the_same_bits():
    score = run_kills.run(24, 0)
    print(score.line())
    score.require_clean()
    assert score.survived == score.injected > 0
