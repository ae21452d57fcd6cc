"""Signals that end a run, held back while a state is being changed or a file replaced."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopSignalError(BaseException):
    """A signal that ends the run."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class _Held:
    depth = 0
    asked: StopSignalError | None = None
    pending: StopSignalError | None = None
    forked_by_main: bool = True


def deliver(stop: StopSignalError) -> None:
    """Raise `stop`, now or at the end of what must not be interrupted; called by a signal handler in the main thread."""
    _Held.asked = stop
    if not _Held.depth:
        raise stop
    _Held.pending = stop


def raise_pending_signal() -> None:
    """Raise the signal that came if work goes on all the same: Python drops what is raised in a callback of its collector."""
    if _Held.asked is not None and threading.current_thread() is threading.main_thread():
        raise _Held.asked


def forget() -> None:
    """Forget a signal that ended a run: the process goes on and may begin another one."""
    _Held.asked = _Held.pending = None


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold signals back for as long as the block lasts, if it runs in the main thread, where they arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Held.depth += 1
    try:
        yield
    finally:
        _Held.depth -= 1
        if not _Held.depth and _Held.pending is not None:
            stop, _Held.pending = _Held.pending, None
            raise stop


def _before_fork() -> None:
    _Held.forked_by_main = threading.current_thread() is threading.main_thread()


def _after_fork_in_child() -> None:
    """Begin without the signals of the parent, and without what its main thread was doing unless that goes on here."""
    forget()
    if not _Held.forked_by_main:
        _Held.depth = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
