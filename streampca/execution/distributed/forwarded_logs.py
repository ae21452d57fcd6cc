"""Log lines of workers reach the loggers of this process, through Dask."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress

from distributed import Worker, WorkerPlugin

from streampca.logs import ROOT
from streampca.system.distributed_interface import DaskClient, clients_and_workers

_levels: weakref.WeakKeyDictionary[DaskClient, int] = weakref.WeakKeyDictionary()


class LogLevel(WorkerPlugin):
    """Sets the level of the package's logger in a worker."""

    name = "streampca-log-level"

    def __init__(self, level: int):
        self.level = level

    def setup(self, worker: Worker) -> None:
        """Set the level in the process of `worker`."""
        logging.getLogger(ROOT).setLevel(self.level)


def forward_logs(client: DaskClient) -> None:
    """Have the workers of `client` log as this process does, and Dask forward what they log.

    Nothing is sent while only warnings are logged here, which is the default. Workers within this process log by themselves.
    """
    level = logging.getLogger(ROOT).getEffectiveLevel()
    if level == _levels.get(client, logging.WARNING) or any(isinstance(each, Worker) for each in clients_and_workers()):
        return
    with suppress(OSError):  # a worker that was lost meanwhile; all others log
        client.register_plugin(LogLevel(level))
        client.forward_logging(ROOT, level)
    _levels[client] = level
