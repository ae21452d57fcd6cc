"""Processes that start within milliseconds: a server imports everything once and forks; every wait for one has an end."""

from __future__ import annotations

import atexit
import gc
import importlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_START_SECONDS = 120.0
_ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # of pyarrow, which Dask imports where it is installed
}


class Forked:
    """A process of the server; its output goes to files, so it never waits for a reader."""

    def __init__(self, server: Server, number: int):
        self._server, self._out = server, server.place / f"{number}.out"
        self._err = server.place / f"{number}.err"
        self.pid = 0

    def wait(self, seconds: float) -> int | None:
        """Return its exit status, negative for a signal, or None if it is still running after so many seconds."""
        return self._server.status(self.pid, seconds)

    def signal(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        if self.wait(0) is None:
            os.kill(self.pid, number)

    def end(self) -> int | None:
        """Kill it and return its exit status."""
        self.signal(signal.SIGKILL)
        return self.wait(20)

    @property
    def printed(self) -> str:
        """Return its standard output so far."""
        return self._out.read_text() if self._out.exists() else ""

    @property
    def said(self) -> str:
        """Return its standard error so far."""
        return self._err.read_text() if self._err.exists() else ""


class Server:
    """The process that forks. It has one thread, so its children can start any."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="forks-")
        self.place = Path(self._directory.name)
        path = os.pathsep.join([str(_HERE), str(_HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import forks; forks.serve()"],
            env={**os.environ, "PYTHONPATH": path, **_ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._told = threading.Condition()
        self._statuses: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._numbers = itertools.count()
        threading.Thread(target=self._listen, name="forks", daemon=True).start()

    def start(self, target: str, directory: Path, **arguments: Any) -> Forked:
        """Start ``module:function`` with keyword arguments in a process of its own, in `directory`."""
        number = next(self._numbers)
        forked = Forked(self, number)
        job = {"number": number, "target": target, "arguments": arguments, "directory": str(directory)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job | {"out": str(forked._out), "err": str(forked._err)}).encode() + b"\n")
        self._process.stdin.flush()
        with self._told:
            assert self._told.wait_for(lambda: number in self._pids, _START_SECONDS), "the server does not fork"
            forked.pid = self._pids[number]
        return forked

    def status(self, pid: int, seconds: float) -> int | None:
        """Return how the process ended, None if it has not within so many seconds."""
        with self._told:
            self._told.wait_for(lambda: pid in self._statuses, seconds)
            return self._statuses.get(pid)

    def close(self) -> None:
        """End the server, which kills what it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)
        self._directory.cleanup()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                told = json.loads(line)
                with self._told:
                    if "number" in told:
                        self._statuses.pop(told["pid"], None)  # the number of a process may be given again
                        self._pids[told["number"]] = told["pid"]
                    else:
                        self._statuses[told["pid"]] = told["status"]
                    self._told.notify_all()


@cache
def server() -> Server:
    """Return the server of this process, started when it is asked for first."""
    made = Server()
    atexit.register(made.close)
    return made


def serve() -> None:
    """Fork a process for each line of stdin until it ends; in the children, do what the line says and return."""
    _import_everything()
    job = _next_job()
    if job is not None:
        _carry_out(job)


def _import_everything() -> None:
    for name in (
        "dask.array",
        "scipy.linalg",
        "streampca.cli",
        "streampca.solvers.kernel.nystrom",
        "streampca.solvers.adaptive",
        "streampca.solvers.covariance",
        "streampca.solvers.gram",
        "streampca.solvers.qr",
        "streampca.estimators",
        "streampca.runs.run",
        "streampca.sources.zarr.digests",
        "streampca.sources.zarr.reader",
        "streampca.storage.state_file",
        "zarr.codecs",
    ):
        importlib.import_module(name)
    importlib.import_module("streampca.system.process").versions()  # imports more
    gc.collect()
    gc.freeze()  # so that no collection in a forked process goes through all of this
    n_threads = len(os.listdir("/proc/self/task"))
    assert n_threads == 1, f"{n_threads} threads after importing: a forked process would have only one of them"


def _next_job() -> dict[str, Any] | None:
    """Return, in a forked process, what it is to do; None in the server when its stdin ends."""
    wake, signalled = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(signalled, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    alive: set[int] = set()
    pending = b""
    while True:
        ready = select.select([0, wake], [], [])[0]
        if wake in ready:
            os.read(wake, 4096)
            _reap(alive)
        if 0 not in ready:
            continue
        data = os.read(0, 65536)
        if not data:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            return None
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            job: dict[str, Any] = json.loads(line)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(wake)
                os.close(signalled)
                return job
            alive.add(pid)
            _tell({"number": job["number"], "pid": pid})


def _reap(alive: set[int]) -> None:
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        alive.discard(pid)
        _tell({"pid": pid, "status": os.waitstatus_to_exitcode(status)})


def _tell(what: dict[str, int]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _carry_out(job: dict[str, Any]) -> None:
    os.chdir(job["directory"])
    for handle, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, job["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, job["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        file = os.open(name, flags, 0o666)
        os.dup2(file, handle)
        os.close(file)
    module, function = job["target"].split(":")
    getattr(importlib.import_module(module), function)(**job["arguments"])


def command(arguments: list[str]) -> None:
    """Call ``streampca`` with these arguments; a target of `Server.start`."""
    from facade import main

    main(arguments)
