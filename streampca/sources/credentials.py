"""What opens a store and may be a secret, by tokens: what is sent to workers with every task holds the token only.

The arguments of a task are not private: a scheduler keeps them, logs of workers print them, and Dask's pages show them of tasks
that fail. So the options of a store stay in this process, and go to each worker once (`streampca.execution.distributed.credentials`).
"""

from __future__ import annotations

import os
import secrets
import threading
from typing import Any

from streampca.errors import StoreError

_kept: dict[str, Any] = {}
_lock = threading.Lock()

if hasattr(
    os, "register_at_fork"
):  # a thread that holds the lock while another one forks does not exist in the new process
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def keep(value: Any) -> str:
    """Keep `value` in this process and return a token for it, the same for an equal value."""
    with _lock:
        for token, known in _kept.items():
            if type(known) is type(value) and known == value:
                return token
        token = secrets.token_hex(16)
        _kept[token] = value
        return token


def recall(token: str) -> Any:
    """Return what the token stands for.

    Raises
    ------
    StoreError
        If this process was not told.
    """
    try:
        return _kept[token]
    except KeyError:
        raise StoreError(
            "a worker was not told how to open the store: expected a distributed.Client that was active when the source was "
            "opened; without one, let workers find the credentials in their environment, and give no options"
        ) from None


def kept() -> dict[str, Any]:
    """Return all that is kept, by token."""
    with _lock:
        return dict(_kept)


def learn(values: dict[str, Any]) -> None:
    """Keep what another process kept, under its tokens."""
    with _lock:
        _kept.update(values)
