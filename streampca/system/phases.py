"""Time of threads by phase, at the cost of a microsecond per phase."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = {
    "waiting": "waiting for rows",
    "centring": "centring rows",
    "products": "products",
    "merging": "merging states",
    "writing": "writing scores",
}
"""The phases of readings, in words. Those of leaves that run at once add up; merging is beside them."""

_local = threading.local()


@contextmanager
def phases_of_thread() -> Iterator[dict[str, float]]:
    """Give the seconds of the phases of this thread from here on."""
    seconds: dict[str, float] = {}
    before, _local.seconds = getattr(_local, "seconds", None), seconds
    try:
        yield seconds
    finally:
        _local.seconds = before


class Phase:
    """A context whose time is added to a phase of this thread, if somebody keeps it, and taken from the phase around it.

    Parameters
    ----------
    name : str
        One of `PHASES`.
    """

    __slots__ = ("_around", "_began", "_seconds", "name")

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        self._seconds: dict[str, float] | None = getattr(_local, "seconds", None)
        if self._seconds is not None:
            self._around, _local.inside = getattr(_local, "inside", 0.0), 0.0
            self._began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        if self._seconds is not None:
            taken = time.perf_counter() - self._began
            self._seconds[self.name] = self._seconds.get(self.name, 0.0) + taken - _local.inside
            _local.inside = self._around + taken
