"""The Dask client that a fit uses: the active one, unless waiting for it would block forever."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from streampca.errors import ClusterError
from streampca.sources.base import Source
from streampca.system.distributed_interface import DaskClient, clients_and_workers
from streampca.system.process import worker_of_this_task

_decided: ContextVar[tuple[DaskClient | None] | None] = ContextVar("streampca client in use", default=None)
_inherited: weakref.WeakSet[object] = weakref.WeakSet()
"""Clients and workers of the process that this one was forked from: their event loops do not run here."""


def active_client(source: Source) -> DaskClient | None:
    """Return the active `distributed.Client` if its workers can be used for `source`, else None, which stands for threads.

    They cannot be used by a task that holds a thread of a worker, because the fit would wait for tasks that wait for that
    thread: it runs on threads of that worker instead, unless it was begun within ``distributed.worker_client()``, which
    gives the thread up. Neither can clients that a forked process has inherited.

    Raises
    ------
    ClusterError
        In the event loop of an asynchronous client, which a fit would block.
    """
    if not source.portable:
        return None
    decided = _decided.get()
    if decided is not None:
        return decided[0]
    client = _usable_client()
    if client is not None:
        from streampca.execution.distributed.credentials import give_credentials
        from streampca.execution.distributed.forwarded_logs import forward_logs

        give_credentials(client)
        forward_logs(client)
    return client


@contextmanager
def using_client(client: DaskClient | None) -> Iterator[None]:
    """Have the fits of this block use `client`, also in threads of their own, which hold no thread of a worker."""
    token = _decided.set((client,))
    try:
        yield
    finally:
        _decided.reset(token)


def share_credentials(source: Source) -> None:
    """Give the workers of the active client what opens `source`, if that is something they cannot find by themselves.

    Raises
    ------
    ClusterError
        If they were not given it and cannot be, in the event loop of an asynchronous client.
    """
    from streampca.sources.credentials import registered

    if registered():
        active_client(source)


def _usable_client() -> DaskClient | None:
    if "distributed" not in sys.modules:
        return None
    from distributed import Client, get_client

    try:
        worker = worker_of_this_task()
        if worker is None:
            client = get_client()
        elif worker in _inherited:
            client = Client.current()  # type: ignore[no-untyped-call]
        else:
            return None
    except ValueError:  # there is none
        return None
    if client in _inherited:
        return None
    if client.asynchronous:
        raise ClusterError(
            "the active client is asynchronous and this is its event loop, which a fit would block: expected another thread; "
            "write await asyncio.to_thread(pca.fit, X), or close the client to compute on threads of this process"
        )
    return client


def _remember_inherited() -> None:
    """Record, in a forked process, the clients and workers of its parent."""
    _inherited.update(clients_and_workers())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remember_inherited)
