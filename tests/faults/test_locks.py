"""Two runs for one output: one wins, the other is told who holds it; a holder that is gone is taken over once."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import races
from slow_run import SlowRun
from stores import Command, config_text, make_values, picture, write_lock, write_store
from strategies import in_depth

import streampca as sp
from streampca.errors import OutputError
from streampca.storage.lock import Lock


def _stale(path, **changes):
    """Write the lock of a run of this machine whose process is gone."""
    write_lock(path, "00000000deadbeef", **changes)


def lock_of(path):
    return path.with_name(f"{path.name}.lock")


@pytest.mark.slow
def test_a_second_run_is_refused_at_once_and_told_who_is_at_work(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "x.zarr", make_values(12_000, 16), chunks=(100, 16))
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out"))
    run = SlowRun(tmp_path)
    process = run.until(5)
    try:
        before = time.monotonic()
        said = Command(capsys).quietly("run", "c.yaml").refused(6, "out.lock is held by run", socket.gethostname())
        assert time.monotonic() - before < 5
        assert f"process {process.pid}," in said
        process.signal(signal.SIGSTOP)  # frozen is not dead
        Command(capsys).quietly("run", "c.yaml").refused(6, "out.lock is held by run")
    finally:
        process.end()
    assert (tmp_path / "out.lock").exists()
    assert Command(capsys).quietly("run", "c.yaml").status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "out", "x.zarr"]


@pytest.mark.slow
def test_of_many_that_start_together_one_wins_and_the_result_is_whole():
    n = in_depth(2, 20)
    score = races.run(n, seed=0)
    score.require_clean()
    assert score.survived == n


def test_a_stale_lock_is_taken_over_by_exactly_one(tmp_path):
    for _ in range(10):
        _stale(tmp_path / "out")
        held, refused, ready = [], [], threading.Barrier(6)
        ending = threading.Event()

        def take(number, held=held, refused=refused, ready=ready, ending=ending):
            ready.wait()
            try:
                with Lock(tmp_path / "out", f"{number:016x}") as lock:
                    held.append(lock.dead)
                    ending.wait()
            except OutputError as error:
                refused.append(str(error))
                if len(refused) == 5:
                    ending.set()

        threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert held == [["00000000deadbeef"]], (held, refused)
        assert all("is held by run" in words for words in refused)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_a_lock_whose_process_was_killed_is_taken_over(tmp_path, host):
    _stale(tmp_path / "out", host=host)
    program = "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(lock_of(tmp_path / "out"))]
    held = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    held.stdout.readline()
    with (
        pytest.raises(OutputError, match=f"held by run 00000000deadbeef on {host}, process"),
        Lock(tmp_path / "out", "1" * 16),
    ):
        pass
    assert lock_of(tmp_path / "out").exists()
    held.kill()
    held.communicate()
    with Lock(tmp_path / "out", "1" * 16) as lock:
        assert lock.dead == ["00000000deadbeef"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_held_by_the_file_alone(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Lock(tmp_path / "out", "1" * 16), pytest.raises(OutputError, match="remove it if no run is active here"):
        Lock(tmp_path / "out", "2" * 16).__enter__()
    assert list(tmp_path.iterdir()) == []
    lock_of(tmp_path / "out").touch()  # of a run that has not yet said who it is
    with pytest.raises(OutputError, match="remove it if no run is active here"):
        Lock(tmp_path / "out", "2" * 16).__enter__()
    assert lock_of(tmp_path / "out").exists()


def test_a_lock_that_is_not_ours_is_left_alone_and_one_that_was_lost_is_noticed(tmp_path):
    place = lock_of(tmp_path / "out")
    place.write_text("not a lock")
    with pytest.raises(OutputError, match="not a lock of streampca"), Lock(tmp_path / "out", "1" * 16):
        pass
    assert place.read_text() == "not a lock"
    place.unlink()
    with Lock(tmp_path / "out", "1" * 16) as lock:
        lock.require_held()
        place.unlink()
        place.write_text("of another")
        with pytest.raises(OutputError, match="no longer held by this run"):
            lock.require_held()
    assert place.read_text() == "of another"


def test_a_run_that_died_between_its_renames_is_set_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "x.zarr", make_values(400, 8))
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out", output="report: false, overwrite: false"))
    sp.run("c.yaml")
    before = picture(tmp_path / "out")
    _stale(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "out.old-00000000deadbeef")
    (tmp_path / "out.part-00000000deadbeef").mkdir()
    with pytest.raises(OutputError, match="finished run already"):
        sp.run("c.yaml")
    assert picture(tmp_path / "out") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "out", "x.zarr"]


def test_a_lock_of_a_run_that_died_before_it_said_who_it_is(tmp_path):
    lock_of(tmp_path / "out").touch()
    with Lock(tmp_path / "out", "1" * 16) as lock:
        assert lock.dead == []
    assert list(tmp_path.iterdir()) == []
