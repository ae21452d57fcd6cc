"""A signal during a run: 130 or 143 within seconds, what to do in one line, nothing left behind, no worker either."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
from facade import run_command
from stores import Command, config_text, make_values, picture, write_store

_SLOW = """
import sys, time
import streampca.sources, zarr
ZarrSource = type(streampca.sources.open_source(zarr.create_array({{}}, shape=(1, 1), dtype='f8')))
read = ZarrSource.read
writing = []
def slow(self, start, stop, out=None):
    if {phase!r} == "fit" or writing:
        time.sleep({seconds})
    return read(self, start, stop, out)
ZarrSource.read = slow
import streampca.runs.one_model as runs
write = runs.write_scores
def marked(*arguments, **options):
    writing.append(True)
    __import__("pathlib").Path({marker!r}).touch()
    return write(*arguments, **options)
runs.write_scores = marked
from streampca.cli import main
main(["run", "c.yaml"])
"""


def _start_slow_run(directory, phase="fit", seconds=3):
    """Start a run whose one block takes three seconds to read, and wait until it is in its phase."""
    marker = directory / "marker"
    code = _SLOW.format(phase=phase, marker=str(marker), seconds=seconds)
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while not (any(directory.glob("out.part-*/plan.json")) and (phase == "fit" or marker.exists())):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    marker.unlink(missing_ok=True)
    return process


@pytest.fixture
def slow_config(tmp_path):
    write_store(tmp_path / "x.zarr", make_values(200_000, 8), chunks=(2_000, 8))
    lines = ["resources: {threads: 1}"]
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out", *lines, output="overwrite: true, report: false"))
    return tmp_path / "c.yaml"


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("phase", ["fit", "scores"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_and_leaves_what_was_there(slow_config, tmp_path, monkeypatch, number, phase):
    if phase == "scores":
        monkeypatch.chdir(tmp_path)
        assert run_command("run", "c.yaml", "--quiet") == 0
    before = picture(tmp_path)
    process = _start_slow_run(tmp_path, phase)
    sent = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - sent < 10
    assert process.returncode == 128 + number
    (line,) = [line for line in err.splitlines() if line.startswith("streampca: error: ")]
    assert err.splitlines()[-1] == line
    assert f"stopped by {number.name}" in line
    assert "start the same command again" in line
    assert "Traceback" not in err + out
    _require_only(tmp_path, before, line)


def _require_only(directory, before, said):
    """Check that there is what was there before, and at most a checkpoint, where the message names it."""
    kept = "progress is kept in out.checkpoint" in said  # where leaves were done, and the reading took long enough
    left = {
        name: value for name, value in picture(directory).items() if not (kept and name.startswith("out.checkpoint"))
    }
    assert left == before


@pytest.mark.slow
def test_a_second_signal_ends_the_run_at_once_and_the_next_run_is_not_in_its_way(
    slow_config, tmp_path, monkeypatch, capsys
):
    process = _start_slow_run(tmp_path, seconds=20)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None  # it waits for the block in hand
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert time.monotonic() - sent < 2
    assert process.returncode == -signal.SIGINT
    (part,) = tmp_path.glob("out.part-*")
    command = Command(capsys)
    called = command("inspect", part)
    assert called.status == 0
    assert "unfinished run" in called.out
    command("transform", part, tmp_path / "x.zarr", tmp_path / "s.zarr", "--quiet").refused(5, str(part))
    assert (tmp_path / "out.lock").exists()
    other = tmp_path / "out.part-0123456789abcdef"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    assert command("run", "c.yaml", "--quiet").status == 0
    # The lock told which directory was that of the run that died; the other may be anybody's.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "out", other.name, "x.zarr"]


@pytest.mark.deep
@pytest.mark.distributed
def test_a_signal_leaves_no_worker_behind(tmp_path):
    write_store(tmp_path / "x.zarr", make_values(400_000, 64), chunks=(1_000, 64), chain="gzip")
    cluster = "cluster: {kind: local, n_workers: 2, threads_per_worker: 1}"
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out", cluster))
    before = picture(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "streampca", "run", "c.yaml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 40
    while not any(tmp_path.glob("out.part-*/plan.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - sent < 10
    assert process.returncode == 143, err
    assert b"stopped by SIGTERM" in err
    assert b"Traceback" not in err
    assert not psutil.wait_procs(workers, timeout=10)[1]
    _require_only(tmp_path, before, err.decode())


def test_a_signal_that_python_drops_is_heeded_at_the_next_leaf(tmp_path, monkeypatch, capsys):
    write_store(tmp_path / "x.zarr", make_values(5_000, 4), chunks=(100, 4))
    (tmp_path / "c.yaml").write_text(config_text(tmp_path / "x.zarr", tmp_path / "out"))
    command, dropped = Command(capsys), []

    class Dropping:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def ask(path, usage=shutil.disk_usage):
        Dropping()  # what a finalizer raises goes nowhere
        return usage(path)

    with monkeypatch.context() as patched:
        patched.setattr(sys, "unraisablehook", dropped.append)
        patched.setattr(shutil, "disk_usage", ask)  # which a run calls before it reads
        command("run", tmp_path / "c.yaml", "--quiet").refused(143, "stopped by SIGTERM")
    assert dropped
    assert not (tmp_path / "out").exists()
    assert command("run", tmp_path / "c.yaml", "--quiet").status == 0
