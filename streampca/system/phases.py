"""Where the time of a thread goes: seconds by phase, which cost a microsecond each time one ends."""

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
def kept() -> Iterator[dict[str, float]]:
    """Give the seconds of the phases of this thread from here on."""
    seconds: dict[str, float] = {}
    before, _local.seconds = getattr(_local, "seconds", None), seconds
    try:
        yield seconds
    finally:
        _local.seconds = before


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Add the time in this context to a phase of this thread, if somebody keeps it, and take it from the phase around it."""
    seconds: dict[str, float] | None = getattr(_local, "seconds", None)
    if seconds is None:
        yield
        return
    began, around = time.perf_counter(), getattr(_local, "inside", 0.0)
    _local.inside = 0.0
    try:
        yield
    finally:
        taken = time.perf_counter() - began
        seconds[name] = seconds.get(name, 0.0) + taken - _local.inside
        _local.inside = around + taken
