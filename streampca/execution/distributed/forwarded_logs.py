"""Log lines of workers reach the loggers of this process, through Dask."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from functools import partial

from distributed import Worker, WorkerPlugin

from streampca.logs import ROOT
from streampca.system.distributed_interface import DaskClient, clients_and_workers, has_ended

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
    """Tell whether a worker of `client` is in this process, in which other workers may be as well, or may have been."""
    here = {each.address_safe for each in clients_and_workers() if isinstance(each, Worker) and not has_ended(each)}
    return bool(here) and not here.isdisjoint(client.scheduler_info(n_workers=-1)["workers"])
