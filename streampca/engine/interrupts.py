"""Signals that end a run, held back while a state is being changed or a file replaced."""

from __future__ import annotations

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


def deliver(stop: StopSignalError) -> None:
    """Raise `stop`, now or at the end of what must not be interrupted; called by a signal handler in the main thread."""
    _Held.asked = stop
    if not _Held.depth:
        raise stop
    _Held.pending = stop


def heed() -> None:
    """Raise the signal that came if work goes on all the same: Python drops what is raised in a callback of its collector."""
    if _Held.asked is not None and threading.current_thread() is threading.main_thread():
        raise _Held.asked


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
