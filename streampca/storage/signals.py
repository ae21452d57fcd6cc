"""Signals that end a run; their delivery is deferred while a state is changed or a file is replaced."""

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
    """Raise `stop`, now or at the end of the outermost `uninterrupted` block; called by a signal handler in the main thread."""
    _Held.asked = stop
    if not _Held.depth:
        raise stop
    _Held.pending = stop


def raise_pending_signal() -> None:
    """Raise a signal again that did not end the run: Python drops exceptions raised in callbacks of its garbage collector."""
    if _Held.asked is not None and threading.current_thread() is threading.main_thread():
        raise _Held.asked


def forget() -> None:
    """Clear a signal that ended a run: the process may start another run."""
    _Held.asked = _Held.pending = None


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer signals until the end of the block if it runs in the main thread, where signals arrive."""
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
    """Clear the signals of the parent, and its deferral unless the thread that forked continues here."""
    forget()
    if not _Held.forked_by_main:
        _Held.depth = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
