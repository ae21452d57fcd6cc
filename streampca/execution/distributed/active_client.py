"""The Dask client that a fit uses: the active one, unless waiting for it would block forever."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar

from streampca.errors import ClusterError
from streampca.planning.work import require_same_software, scheduler_gone
from streampca.sources.base import Source
from streampca.system.process import worker_of_this_task
from streampca.typing import DaskClient

_decided: ContextVar[tuple[DaskClient | None] | None] = ContextVar("streampca client in use", default=None)
_default: weakref.ref[DaskClient] | None = None
"""The default client of this process when a fit last used it."""
_IN_THIS_PROCESS = ("threads", "threading", "sync", "synchronous", "single-threaded")
"""Values of Dask's setting ``scheduler`` that go before an active client."""
_inherited: weakref.WeakSet[object] = weakref.WeakSet()
"""The client and the worker of the process that this one was forked from: their event loops do not run here."""


def active_client(source: Source) -> DaskClient | None:
    """Return the active `distributed.Client` if its workers can be used for `source`, else None, which stands for threads.

    A task runs on threads of its worker, because the fit would wait for tasks that wait for the thread of the task; one that
    gave its thread up says so by ``with worker_client() as client, client.as_current():``. Clients that a forked process has
    inherited cannot be used.

    Raises
    ------
    ClusterError
        In the event loop of an asynchronous client, which a fit would block; if the scheduler is gone, also after its client, the
        default of this process, has given it up; if a worker runs another version of streampca.
    """
    if not source.portable:
        return None
    decided = _decided.get()
    if decided is not None:
        return decided[0]
    client = _usable_client()
    if client is not None:
        from streampca.execution.distributed.plugins import forward_logs, give_credentials

        require_same_software(client)
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
    from streampca.sources.client_options import registered

    if registered():
        active_client(source)


def _usable_client() -> DaskClient | None:
    if "distributed" not in sys.modules:
        return None
    import dask
    from distributed import Client

    global _default
    if dask.config.get("scheduler", None) in _IN_THIS_PROCESS:
        return None
    worker = worker_of_this_task()
    in_task = worker is not None and worker not in _inherited
    try:
        client: DaskClient | None = Client.current(allow_global=not in_task)  # type: ignore[no-untyped-call]
    except ValueError:  # there is none
        client = None
    if client in _inherited:
        return None
    if (client is not None and client.asynchronous) or (in_task and _in_event_loop()):
        raise ClusterError(
            "a fit would block this event loop, on which the active asynchronous client runs: "
            "write await asyncio.to_thread(pca.fit, X), or close the client to compute on threads of this process"
        )
    if client is not None:
        with suppress(ValueError):
            if Context().run(Client.current) is client:
                _default = weakref.ref(client)
    elif not in_task and _default is not None and (before := _default()) is not None and _was_lost(before):
        raise scheduler_gone(before)
    return client


def forget(client: DaskClient) -> None:
    """Have later fits run on threads after `client` was closed, even if its scheduler was lost."""
    global _default
    if _default is not None and _default() is client:
        _default = None


def _was_lost(client: DaskClient) -> bool:
    """Tell whether `client` gave up its scheduler, and was not closed by who made it."""
    return client.status in ("closing", "closed") and client.scheduler_comm is None


def _in_event_loop() -> bool:
    from asyncio import get_running_loop  # slow to import, and there is no loop without a cluster

    try:
        get_running_loop()
    except RuntimeError:
        return False
    return True


def _remember_inherited() -> None:
    """Record, in a forked process, the client and the worker that its parent used."""
    if "distributed" not in sys.modules:
        return
    from distributed import Client

    _inherited.update(filter(None, [worker_of_this_task()]))
    with suppress(ValueError):
        _inherited.add(Client.current())  # type: ignore[no-untyped-call]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remember_inherited)
