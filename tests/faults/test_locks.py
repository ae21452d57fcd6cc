"""Two runs for one output: one wins, the other is told who holds it; a holder that is gone is taken over once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from slow_run import SlowRun
from stores import Command, config_text, make_values, picture, write_store

import streampca as sp
from streampca.engine import lock as lock_module
from streampca.engine.lock import BEAT, Lock, lock_of
from streampca.errors import OutputError


def _stale(path, **changes):
    """Write the lock of a run of this machine whose process is gone."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with Lock(path, "00000000deadbeef"):
        holder = json.loads(lock_of(path).read_bytes())
    lock_of(path).write_text(json.dumps(holder | {"pid": dead.pid} | changes))


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
        process.send_signal(signal.SIGSTOP)  # frozen is not dead
        Command(capsys).quietly("run", "c.yaml").refused(6, "out.lock is held by run")
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / "out.lock").exists()
    assert Command(capsys).quietly("run", "c.yaml").status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "out", "x.zarr"]


def test_of_many_that_start_together_one_wins_and_the_result_is_whole(tmp_path):
    write_store(tmp_path / "x.zarr", make_values(400, 8))
    code = "import sys; from streampca.cli import main; main(sys.argv[1:])"
    for race in range(2):
        for seed in range(3):
            text = config_text("x.zarr", f"out{race}", f"seed: {seed}", "model: {n_components: 2}")
            (tmp_path / f"{seed}.yaml").write_text(text)
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, "run", f"{seed}.yaml", "--quiet", "--json"],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for seed in range(3)
        ]
        done = [process.communicate(timeout=60) for process in processes]
        statuses = sorted(process.returncode for process in processes)
        assert statuses == [0, 6, 6], done
        (winner,) = (json.loads(out) for out, _ in done if out)
        manifest = json.loads((tmp_path / f"out{race}/manifest.json").read_text())
        assert manifest["run_id"] == winner["run_id"]
        record = json.loads((tmp_path / f"out{race}/streampca.json").read_text())
        assert record["run_id"] == winner["run_id"]
    left = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("out"))
    assert left == ["out0", "out1"]


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


def test_a_number_that_was_given_again_is_not_the_holder(tmp_path):
    _stale(tmp_path / "out", pid=os.getpid(), started="1")
    with Lock(tmp_path / "out", "1" * 16) as lock:
        assert lock.dead == ["00000000deadbeef"]


def test_a_holder_elsewhere_is_judged_by_its_signs_of_life(tmp_path, monkeypatch):
    _stale(tmp_path / "out", host="elsewhere")
    with pytest.raises(OutputError, match="on elsewhere, process"), Lock(tmp_path / "out", "1" * 16):
        pass
    old = time.time() - 2 * BEAT - 5
    os.utime(lock_of(tmp_path / "out"), (old, old))
    with Lock(tmp_path / "out", "1" * 16) as lock:
        assert lock.dead == ["00000000deadbeef"]
    monkeypatch.setattr(lock_module, "BEAT", 0.05)
    with Lock(tmp_path / "out", "2" * 16):
        os.utime(lock_of(tmp_path / "out"), (old, old))
        deadline = time.monotonic() + 10
        while lock_of(tmp_path / "out").stat().st_mtime < old + 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_lock_that_is_not_ours_is_left_alone_and_one_that_was_lost_is_noticed(tmp_path):
    place = lock_of(tmp_path / "out")
    place.write_text("not a lock")
    with pytest.raises(OutputError, match="not a lock of streampca"), Lock(tmp_path / "out", "1" * 16):
        pass
    assert place.read_text() == "not a lock"
    place.unlink()
    with Lock(tmp_path / "out", "1" * 16) as lock:
        lock.require_held()
        place.write_text("of another")
        with pytest.raises(OutputError, match="not held by this run any more"):
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
