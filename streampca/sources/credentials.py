"""Options of stores that may be secrets, by tokens: tasks for workers hold the token only.

The arguments of a task are not private: a scheduler keeps them, logs of workers print them, and Dask's pages show them of tasks
that fail. So the options of a store stay in this process, and go to each worker once (`streampca.execution.distributed.plugins`).
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from streampca.errors import StoreError
from streampca.sources.options import StorageOptions

if TYPE_CHECKING:
    from zarr.abc.store import Store

StoreArguments: TypeAlias = "tuple[str, Store | StorageOptions | None]"
"""URL of a store, and its options or the open store itself."""

_registered: dict[str, StoreArguments | Callable[[], StoreArguments]] = {}
"""Arguments by token; those from another process are made when they are asked for, because a store may open files then."""
_lock = threading.Lock()

if hasattr(os, "register_at_fork"):  # a thread that holds the lock does not exist in the new process
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def register(arguments: StoreArguments) -> str:
    """Store `arguments` in this process and return their token, the same for equal ones."""
    with _lock:
        for token, known in _registered.items():
            if known == arguments:
                return token
        token = secrets.token_hex(16)
        _registered[token] = arguments
        return token


def resolve(token: str) -> StoreArguments:
    """Return the arguments of a token.

    Raises
    ------
    StoreError
        If this process does not have them, or a store that another process had opened cannot be opened here.
    """
    try:
        known = _registered[token]
    except KeyError:
        raise StoreError(
            "a worker was not told how to open the store: expected a distributed.Client that was active when the source was "
            "opened; without one, let workers find the credentials in their environment, and give no options"
        ) from None
    while callable(known):
        try:
            known = _registered[token] = known()
        except Exception as error:  # noqa: BLE001 of a store of another library, whose words may hold secrets
            raise StoreError(
                f"a worker cannot open the store ({type(error).__name__}): expected its files where every worker finds them"
            ) from None
    return known


def registered() -> dict[str, StoreArguments | Callable[[], StoreArguments]]:
    """Return all arguments by token, or what makes them."""
    with _lock:
        return dict(_registered)


def update(values: Mapping[str, Callable[[], StoreArguments]]) -> None:
    """Add the arguments of another process under its tokens."""
    with _lock:
        for token, value in values.items():
            _registered.setdefault(token, value)
