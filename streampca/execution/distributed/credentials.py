"""Credentials of stores are sent to each worker once, not with every task."""

from __future__ import annotations

import secrets
import weakref
from contextlib import suppress

from distributed import Worker, WorkerPlugin

from streampca.sources import credentials
from streampca.typing import DaskClient

_given: weakref.WeakKeyDictionary[DaskClient, set[str]] = weakref.WeakKeyDictionary()


class Credentials(WorkerPlugin):
    """Passes credentials to a worker when it starts; Dask also gives plugins to workers that join later."""

    def __init__(self, values: dict[str, credentials.StoreArguments]):
        self.values = values
        self.name = f"streampca-{secrets.token_hex(6)}"

    def setup(self, worker: Worker) -> None:
        """Store the credentials in the process of `worker`."""
        credentials.update(self.values)


def give_credentials(client: DaskClient) -> None:
    """Send the credentials of this process to the workers of `client`, unless they were sent before."""
    values, given = credentials.registered(), _given.setdefault(client, set())
    new = {token: value for token, value in values.items() if token not in given}
    if not new:
        return
    with suppress(OSError):  # a worker that was lost meanwhile; all others have it
        client.register_plugin(Credentials(new))
    given.update(new)
