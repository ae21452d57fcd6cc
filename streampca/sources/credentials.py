"""Options of stores that may be secrets, by tokens: tasks for workers hold the token only.

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
    """Store `value` in this process and return its token, the same for an equal value."""
    with _lock:
        for token, known in _kept.items():
            if type(known) is type(value) and known == value:
                return token
        token = secrets.token_hex(16)
        _kept[token] = value
        return token


def recall(token: str) -> Any:
    """Return the value of a token.

    Raises
    ------
    StoreError
        If this process does not have it.
    """
    try:
        return _kept[token]
    except KeyError:
        raise StoreError(
            "a worker was not told how to open the store: expected a distributed.Client that was active when the source was "
            "opened; without one, let workers find the credentials in their environment, and give no options"
        ) from None


def kept() -> dict[str, Any]:
    """Return all values by token."""
    with _lock:
        return dict(_kept)


def learn(values: dict[str, Any]) -> None:
    """Add the values of another process under its tokens."""
    with _lock:
        _kept.update(values)
