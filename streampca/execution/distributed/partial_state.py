"""The merged state of neighbouring leaves on a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streampca.execution.leaf import Task
from streampca.sources.base import ReadCount


class LostStateError(Exception):
    """A state on a worker is incomplete or has been used already and must be recomputed."""


@dataclass(eq=False)
class PartialState:
    """State of neighbouring leaves, on the worker that ran the first of them; extended in place."""

    state: Any
    """State of the rows."""
    count: ReadCount
    """What reading them cost."""
    first: int
    """Index of the first leaf."""
    stop: int
    """Index after the last leaf; -1 during a merge, so that an interrupted merge is never used."""

    def absorb(self, task: Task, other: PartialState) -> PartialState:
        """Merge the state of the leaves after these into this one and return it.

        Raises
        ------
        LostStateError
            If `other` does not follow: it is merged already, or a merge was interrupted.
        """
        if self.stop != other.first:
            raise LostStateError(f"leaves {self.first} to {self.stop} are not before leaf {other.first}")
        self.stop = -1
        self.state = task.absorb(self.state, other.state)
        self.count += other.count
        self.stop = other.stop
        return self
