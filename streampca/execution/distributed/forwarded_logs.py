"""Log lines of workers reach the loggers of this process, through Dask."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from functools import partial

from distributed import Worker, WorkerPlugin

from streampca.logs import ROOT
from streampca.planning.worker_limits import workers_of
from streampca.typing import DaskClient

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
    if level == _levels.get(client, logging.WARNING) or _has_worker_here(client):
        return
    for register in (partial(client.register_plugin, LogLevel(level)), partial(client.forward_logging, ROOT, level)):
        with suppress(
            OSError
        ):  # a worker that was lost meanwhile; the scheduler has the plugin, for all others and those to come
            register()
    _levels[client] = level


def _has_worker_here(client: DaskClient) -> bool:
    """Tell whether a worker of `client` is in this process."""
    return any(address.startswith("inproc://") for address in workers_of(client))
