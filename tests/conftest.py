"""Puts this directory on the path, so that tests share its modules; settings of hypothesis; the cluster of the session."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import zip_longest
from typing import Any

import facade
import psutil
import pytest
from hypothesis import HealthCheck, settings
from strategies import spread
from threadpoolctl import threadpool_limits

# Two processes of pytest with a BLAS thread for each core take several times as long: the threads wait for each other.
# Tests of memory start processes with as many threads as a user has (tests/e2e/test_memory.py).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for libraries that are loaded later, here and in child processes
threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), user_api="blas")  # for those that a plugin has loaded

_MEMORY_FILES = "/dev/shm"
_MOST_FILES = 4 * 2**30  # bytes of the files of tests at one time, a few times over


def _keep_files_in_memory() -> None:
    """Have temporary files of tests in memory, unless TMPDIR says where they belong.

    A disk takes milliseconds for each file that is flushed or removed, of which a run of the command has tens. Tests of what is
    flushed look at the calls, those of a full disk mount one. Where programs cannot be started or there is no room (64 MiB in
    many containers), files stay on the disk.
    """
    if "TMPDIR" in os.environ or not os.access(_MEMORY_FILES, os.W_OK):
        return
    status = os.statvfs(_MEMORY_FILES)
    room = min(status.f_bavail * status.f_frsize, psutil.virtual_memory().available)
    if room >= _MOST_FILES and not status.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY_FILES


_keep_files_in_memory()

# The same examples every time, so that a change is judged by its own merits; HYPOTHESIS_PROFILE=search looks for new ones.
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("streampca", derandomize=True, **_COMMON)
settings.register_profile("search", **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "streampca"))


_MOST_SECONDS = 300  # of one test: a wait that never ends fails here, by name, instead of stopping the whole check


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Collect without a search for garbage: there is none, and the search goes through all tests found so far, again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """End a test that waits for ever with an error that shows where."""
    if threading.current_thread() is not threading.main_thread():
        return (yield)

    def give_up(*_: object) -> None:
        raise TimeoutError(f"{item.nodeid} did not end within {_MOST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_MOST_SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[tuple[Any, Any]]:
    """Start two worker processes of one thread each; yields the cluster and a client that is not the default one."""
    from clusters import cluster

    with cluster() as found:
        yield found


@pytest.fixture
def two_workers(session_cluster: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the cluster of the session and its client once both workers run."""
    from clusters import restored

    restored(session_cluster[0])
    return session_cluster


@pytest.fixture
def blocks_of() -> Iterator[Any]:
    """Return a function that gives blocks a number of rows for the rest of the test."""
    with ExitStack() as stack:
        yield lambda n_rows: stack.enter_context(facade.blocks_of(n_rows))


@pytest.fixture
def all_checkpoints() -> Iterator[None]:
    """Have every checkpoint written that is due, however short the run."""
    with facade.all_checkpoints():
        yield


@pytest.fixture
def no_checkpoints() -> Iterator[None]:
    """Have no checkpoint written, however slow the machine: a run that fails leaves nothing then."""
    with facade.no_checkpoints():
        yield


@pytest.fixture(scope="session", autouse=True)
def _charts_left_out() -> Iterator[None]:
    """Have pages written in this process without drawing their charts, unless a test asks for `charts`."""
    with facade.charts_left_out():
        yield


@pytest.fixture
def charts() -> Iterator[None]:
    """Have the charts of pages drawn, for a test that looks at them."""
    with facade.charts_drawn():
        yield


@pytest.fixture
def client(two_workers: tuple[Any, Any]) -> Any:
    """Return the client of the cluster of the session."""
    return two_workers[1]


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark of pytest-xdist known where that is not installed; tell tests and their processes of the deep form."""
    if config.getoption("--deep"):
        os.environ["STREAMPCA_TEST_DEEP"] = "1"
    config.addinivalue_line("markers", "xdist_group(name): runs in the same process as others of that name")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that takes a sample of the tests."""
    parser.addoption("--at-most", type=int, help="run so many tests, spread over all files, without those marked slow")
    parser.addoption(
        "--deep", action="store_true", help="run tests and cases marked deep, and all places of faults, as well"
    )


def _kept_in_the_check(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return `items` without those of the deep form: tests marked ``deep``, and all but `keep` of the cases of ``deep(keep=…)``.

    `keep` is a number of cases, which are spread evenly over all, or a list of their names.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("deep") is not None:
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for each in cases.values():
        keep = each[0].get_closest_marker("deep").kwargs.get("keep", 0)
        if isinstance(keep, int):
            kept = set(spread(each, keep))
        else:
            kept = {item for item in each if item.callspec.id in keep}
            if len(each) > 1 and not kept:
                raise pytest.UsageError(f"{each[0].nodeid}: deep(keep={keep!r}) names none of its cases")
        left_out |= set(each) - kept
    return [item for item in items if item not in left_out]


def _sample(items: list[pytest.Item], n: int) -> list[pytest.Item]:
    """Return `n` tests, as many of each file as of the others: the first case of each function, then the second ones."""
    cases: Counter[tuple[str, str]] = Counter()
    files: dict[str, list[tuple[int, int, pytest.Item]]] = {}
    for place, item in enumerate(items):
        if item.get_closest_marker("slow") is None:
            name = str(item.path), getattr(item, "originalname", item.name)
            files.setdefault(name[0], []).append((cases[name], place, item))
            cases[name] += 1
    turns = zip_longest(*(sorted(found, key=lambda each: each[:2]) for found in files.values()))
    chosen = [each for turn in turns for each in turn if each is not None][:n]
    return [item for *_, item in sorted(chosen, key=lambda each: each[1])]


def _group(item: pytest.Item) -> str:
    """Return what `item` stays together with: all tests that use the cluster, which one process starts, or those of its file."""
    return "cluster" if "session_cluster" in getattr(item, "fixturenames", ()) else item.path.name


def _longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return `items` with the groups first that probably take longest, so that no process has one left when others are done.

    A test marked slow counts as 30 others. With ``--no-loadscope-reorder``, pytest-xdist hands groups out in this order.
    """
    lengths: Counter[str] = Counter()
    for item in items:
        lengths[_group(item)] += 1 if item.get_closest_marker("slow") is None else 30
    return sorted(items, key=lambda item: (-lengths[_group(item)], _group(item)))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Any:
    """Keep the tests of a group together in one process of pytest-xdist.

    A sample is of the tests that ``-m`` and ``-k`` leave.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    result = yield
    kept = items
    if not config.getoption("--deep"):
        kept = _kept_in_the_check(kept)
    if config.getoption("--at-most") is not None:
        kept = _sample(kept, config.getoption("--at-most"))
    if len(kept) < len(items):
        left_out = set(items) - set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = _longest_first(kept) if hasattr(config, "workerinput") else kept
    return result
