"""Log lines of workers, in the loggers of the process whose client it is."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster
from stores import write_store

from streampca import PCA

ROOT = "streampca"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(write_store(tmp_path / "rows.zarr"))


@pytest.fixture
def worker_of_this_process() -> Iterator[Any]:
    """Return the client of a cluster whose only worker is in this process."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", memory_limit=0
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def processes(client: Any, path: str, caplog: pytest.LogCaptureFixture, level: int = logging.DEBUG) -> list[int]:
    """Return the number of the process of each record of a leaf, of a fit by `client` that logs at `level`."""
    caplog.clear()
    with caplog.at_level(level, logger=ROOT), client.as_current():
        PCA(2).fit(path)
    leaves = [record for record in caplog.records if record.name == f"{ROOT}.execution.leaf"]
    assert len({record.getMessage().partition(", computed")[0] for record in leaves}) == len(leaves)
    return [record.process or 0 for record in leaves]


def test_records_of_workers_arrive_while_they_are_logged_here(
    client: Any, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert processes(client, path, caplog, logging.INFO) == []
    found = processes(client, path, caplog)
    assert len(found) > 0
    assert os.getpid() not in found
    assert len(processes(client, path, caplog)) == len(found)
    assert processes(client, path, caplog, logging.WARNING) == []


def test_records_arrive_although_another_worker_is_in_this_process(
    client: Any, worker_of_this_process: Any, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert processes(client, path, caplog)


def test_records_of_a_worker_in_this_process_are_not_forwarded(
    worker_of_this_process: Any, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert set(processes(worker_of_this_process, path, caplog)) == {os.getpid()}
    assert logging.getLogger(ROOT).level == logging.NOTSET


def test_records_of_other_workers_arrive_when_one_is_lost_meanwhile(
    client: Any, path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert processes(client, path, caplog, logging.WARNING) == []
    register = client.register_plugin

    def interrupted(plugin: object, *arguments: Any) -> object:
        answer = register(plugin, *arguments)
        if type(plugin).__module__.startswith(ROOT):
            raise OSError("the connection to a worker was lost")
        return answer

    monkeypatch.setattr(client, "register_plugin", interrupted)
    assert processes(client, path, caplog)
