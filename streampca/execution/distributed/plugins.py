"""Plugins of workers: credentials of stores, and the level of log lines that they send to the driver."""

from __future__ import annotations

import logging
import secrets
import weakref
from contextlib import suppress
from functools import partial

from cloudpickle import dumps, loads
from distributed import Worker, WorkerPlugin

from streampca.logs import ROOT
from streampca.planning.work import workers_of
from streampca.sources.client_options import register_under, registered
from streampca.typing import DaskClient

_given: weakref.WeakKeyDictionary[DaskClient, set[str]] = weakref.WeakKeyDictionary()
_levels: weakref.WeakKeyDictionary[DaskClient, int] = weakref.WeakKeyDictionary()


class Credentials(WorkerPlugin):
    """Passes credentials to a worker when it starts; Dask also gives plugins to workers that join later.

    They are pickled apart, so that a store that cannot be opened any more hinders no work but that with it.
    """

    def __init__(self, values: dict[str, bytes]):
        self.values = values
        self.name = f"streampca-{secrets.token_hex(6)}"

    def setup(self, worker: Worker) -> None:
        """Store the credentials in the process of `worker`."""
        register_under({token: partial(loads, value) for token, value in self.values.items()})


def give_credentials(client: DaskClient) -> None:
    """Send the credentials of this process to the workers of `client`, unless they were sent before."""
    values, given = registered(), _given.setdefault(client, set())
    new = {token: dumps(value) for token, value in values.items() if token not in given}
    if not new:
        return
    with suppress(OSError):  # a worker that was lost meanwhile; all others have it
        client.register_plugin(Credentials(new))
    given.update(new)


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
    if level == _levels.get(client, logging.WARNING):
        return
    if any(address.startswith("inproc://") for address in workers_of(client)):
        return
    # A worker may be lost meanwhile; the scheduler has the plugin, for all others and those to come.
    with suppress(OSError):
        client.register_plugin(LogLevel(level))
    with suppress(OSError):
        client.forward_logging(ROOT, level)
    _levels[client] = level
