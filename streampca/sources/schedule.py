"""The blocks of a pass in the order of reading, from which sources know what to request ahead."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

Span = tuple[int, int]
"""First row of a block, and the row behind its last."""


requests_since: dict[object, float] = {}
"""When those requests to stores were first sent, by any thread of this process, that have no answer yet; of `time.monotonic`."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=requests_since.clear)


@dataclass(frozen=True)
class Schedule:
    """Blocks that will be read, leaf by leaf, and the memory for what is read ahead."""

    n_leaves: int
    """Number of leaves."""
    spans_of: Callable[[int], Sequence[Span]]
    """The blocks of a leaf in the order of reading, by its index."""
    at_once: int
    """Leaves that are read at once, the first ones first."""
    n_bytes: int
    """Bytes of stored data that may be in memory ahead of their use."""

    @classmethod
    def in_order(cls, spans: Sequence[Span], n_bytes: int) -> Schedule:
        """Return the schedule of one thread that reads `spans`."""
        return cls(1, lambda _: spans, 1, n_bytes)

    def mapped(self, change: Callable[[Span], Span | None], n_shares: int = 1) -> Schedule:
        """Return the schedule of one of `n_shares` arrays, whose rows are those that `change` returns; None for no rows."""

        def spans_of(index: int) -> list[Span]:
            return [span for each in self.spans_of(index) if (span := change(each)) is not None]

        return replace(self, spans_of=spans_of, n_bytes=self.n_bytes // n_shares)
