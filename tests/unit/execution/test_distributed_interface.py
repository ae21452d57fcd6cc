"""The installed version of `distributed` has the names outside of its documented interface that this package uses."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import distributed
import pytest

from streampca.system import distributed_interface as interface

ADVICE = f"distributed {distributed.__version__} lacks names that streampca/system/distributed_interface.py uses"


def test_installed_version_has_every_name_that_is_used() -> None:
    assert interface.missing_names() == [], ADVICE


def test_connected_client_has_every_name_that_is_used(client: Any) -> None:
    assert interface.missing_names(client) == [], ADVICE


def test_missing_name_is_reported_with_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(distributed.Client, "_instances")
    client = SimpleNamespace(_event_handlers={}, direct_to_workers=False, rpc=None, scheduler=None, loop=None)
    assert interface.missing_names(client) == [
        "Client._instances of distributed",
        "loop.asyncio_loop of a connected Client",
        "scheduler.gather of a connected Client",
        "scheduler.identity of a connected Client",
    ]


def test_results_and_workers_are_fetched_from_a_cluster(client: Any) -> None:
    future = client.submit(abs, -3, pure=False)
    assert future.result() == 3
    ((address, *_),) = client.who_has([future]).values()

    def wait(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, interface.event_loop(client)).result(10)

    assert wait(interface.fetch_from_worker(client, future.key, address)) == [3]
    assert wait(interface.fetch_from_worker(client, "no such key", address)) == []
    assert wait(interface.fetch_from_scheduler(client, future.key)) == 3
    assert {"last_seen", "nthreads", "status", "nanny"} <= set(wait(interface.workers_of(client))[address])
    assert client in interface.clients_and_workers()
    handler = interface.event_handler(client, "all")
    assert handler is None or callable(handler)
    assert not interface.holds_worker_thread()
    assert client.submit(interface.holds_worker_thread, pure=False).result()
