"""Scenarios in which a process that has computed forks; run as a script, which prints what each of its arguments came to."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import zarr
from facade import StopSignalError, deliver, one_blas_thread, raise_pending_signal, uninterrupted
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from streampca import PCA, KernelPCA
from streampca.errors import StoreError
from streampca.sources import open_source

FORK_SECONDS = 30.0


def in_a_fork(work: Callable[[], object]) -> None:
    """Do `work` in a forked process; raise if it fails, or has no end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 a forked process may not go on with what its parent does
            traceback.print_exc()
        finally:
            os._exit(status)
    end = time.monotonic() + FORK_SECONDS
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            if status:
                raise RuntimeError(f"the forked process ended with {os.waitstatus_to_exitcode(status)}")
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise TimeoutError(f"the forked process had no end within {FORK_SECONDS} s")


def require(condition: bool) -> None:
    """Raise if `condition` does not hold."""
    if not condition:
        raise AssertionError


def rows() -> NDArray[np.float64]:
    """Return the rows of all scenarios."""
    return np.random.default_rng(0).standard_normal((3000, 12)) * np.linspace(3, 1, 12)


def fits_of_every_kind() -> None:
    """All fits, after all of them have left their pools and loops behind."""

    def fits() -> NDArray[np.float64]:
        pca = PCA(3, solver="covariance").fit("rows.zarr")
        pca.transform_to("rows.zarr", f"scores-{os.getpid()}.zarr")
        PCA(3, solver="gram").fit(rows()[:40])
        PCA(3, solver="sketch", max_passes=2).fit("rows.zarr")
        KernelPCA(2, n_landmarks=30, method="nystrom").fit("rows.zarr")
        return pca.components_

    here = fits()
    in_a_fork(lambda: require(np.array_equal(fits(), here)))


def tiles_of_a_matrix() -> None:
    """Threads that share the tiles of one matrix, which is larger than a tile."""
    wide = np.random.default_rng(1).standard_normal((3000, 1500))
    here = PCA(3, solver="covariance").fit(wide).components_
    in_a_fork(lambda: require(np.array_equal(PCA(3, solver="covariance").fit(wide).components_, here)))


def limit_of_blas_threads() -> None:
    """A limit that another thread of the parent holds."""

    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with one_blas_thread():
            held.set()
            over.wait()

    def work() -> None:
        require(threads() == before)
        with one_blas_thread():
            require(set(threads()) == {1})
        require(threads() == before)

    with threadpool_limits(2, user_api="blas"):
        before, holder = threads(), threading.Thread(target=hold)
        holder.start()
        held.wait()
        try:
            in_a_fork(work)
        finally:
            over.set()
            holder.join()
        require(threads() == before)


def signals_of_the_main_thread() -> None:
    """A thread forks while the main thread holds signals back."""
    errors: list[BaseException] = []

    def work() -> None:
        raise_pending_signal()
        try:
            deliver(StopSignalError(15))
        except StopSignalError:
            return
        raise AssertionError("the signal was held back for a thread that is not here")

    def fork() -> None:
        try:
            in_a_fork(work)
        except BaseException as error:  # noqa: BLE001 raised in the main thread
            errors.append(error)

    with uninterrupted():
        forking = threading.Thread(target=fork)
        forking.start()
        forking.join()
    for error in errors:
        raise error


def store_behind_a_url() -> None:
    """A store that the parent has opened, whose connections and loop are the parent's."""

    class Quiet(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # so that connections are used again

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    serving = os.fork()  # because a thread that serves would not be in the forks
    if serving == 0:
        server.serve_forever()
    url = f"http://127.0.0.1:{server.server_address[1]}/rows.zarr"
    try:
        in_a_fork(lambda: require(PCA(3).fit(url).n_samples_seen_ == 3000))  # the first to read one
        opened = open_source(url)
        here = PCA(3).fit(opened).components_

        def work() -> None:
            for data in (opened, url):
                try:
                    PCA(3).fit(data)
                except StoreError as error:
                    require("forked from one that has read URLs" in str(error))
                else:
                    raise RuntimeError("the threads of obstore are not in a fork")

        in_a_fork(work)
        start = time.monotonic()
        require(np.array_equal(PCA(3).fit(opened).components_, here))
        require(time.monotonic() - start < FORK_SECONDS)  # else the connections had fallen silent
    finally:
        os.kill(serving, 9)
        os.waitpid(serving, 0)


def client_of_a_cluster() -> None:
    """A client, the active one, whose loop runs in a thread of the parent."""
    from distributed import Client

    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"):
        there = PCA(3).fit("rows.zarr").components_
        in_a_fork(lambda: require(np.array_equal(PCA(3).fit("rows.zarr").components_, there)))
        require(np.array_equal(PCA(3).fit("rows.zarr").components_, there))


def main(names: list[str]) -> None:
    """Carry out scenarios and print what they came to as JSON."""
    store = zarr.create_array(Path("rows.zarr"), shape=(3000, 12), chunks=(250, 12), dtype="f8")
    store[...] = rows()
    found = {}
    for name in names:
        try:
            globals()[name]()
            found[name] = "done"
        except Exception as error:  # noqa: BLE001 told to the test
            traceback.print_exc()
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
