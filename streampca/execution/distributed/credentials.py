"""Gives the workers of a cluster what opens the stores, once for each worker and apart from the tasks."""

from __future__ import annotations

import secrets
import weakref
from contextlib import suppress
from typing import Any

from distributed import WorkerPlugin

from streampca.sources import credentials

_given: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


class Credentials(WorkerPlugin):
    """Tells a worker when it starts; Dask gives plugins to workers that join later, too."""

    def __init__(self, values: dict[str, Any]):
        self.values = values
        self.name = f"streampca-{secrets.token_hex(6)}"

    def setup(self, worker: Any) -> None:
        """Tell the process of `worker`."""
        credentials.learn(self.values)


def give_credentials(client: Any) -> None:
    """Give the workers of `client` what this process keeps and they have not been given."""
    values, given = credentials.kept(), _given.setdefault(client, set())
    new = {token: value for token, value in values.items() if token not in given}
    if not new:
        return
    with suppress(OSError):  # a worker that was lost meanwhile; all others have it
        client.register_plugin(Credentials(new))
    given.update(new)
