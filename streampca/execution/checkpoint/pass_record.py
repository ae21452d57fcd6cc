"""The checkpoint of one pass over the source: where the pass starts, when a checkpoint is due, and what it holds.

Leaves are merged in order into one state, so the state and the number of the next leaf determine the rest of the pass, and a
resumed pass has the bits of one that was never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from streampca.execution.checkpoint.progress_log import BegunLeaf, Entry, ProgressLog, StoredState, log_in_use
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.sources.base import ReadCount
from streampca.storage.signals import uninterrupted
from streampca.storage.state_file import NotRecordableError, read_state_file, state_bytes

_Total = TypeVar("_Total")

_STEPS = 20  # checkpoints of a pass, if they are cheap
_LAST_SECONDS = 8.0  # time for writing after a signal, of the ten seconds that are promised


class PassState(NamedTuple, Generic[_Total]):
    """Where a pass starts."""

    total: _Total
    """State of the leaves before."""
    read_count: ReadCount
    """What reading them cost."""
    next_leaf: int
    """Index of the first leaf to read."""


class PassRecord:
    """Checkpoints of one pass; with no log it starts at the first leaf and writes nothing.

    Parameters
    ----------
    log : ProgressLog, optional
        Checkpoints of the run.
    phase : str
        Name of the pass, for progress.
    plan : Plan
        Plan of the pass.
    made_with : str
        What the states depend on beside the plan.
    before_saving : callable, optional
        Called before a checkpoint with the first leaf that no checkpoint holds and the one after the last that this one holds.
    piece : callable, optional
        Called likewise; returns further results of these leaves that the checkpoint stores, see `pieces`.
    """

    def __init__(
        self,
        log: ProgressLog | None,
        phase: str,
        plan: Plan,
        made_with: str = "",
        before_saving: Callable[[int, int], None] | None = None,
        piece: Callable[[int, int], object] | None = None,
    ):
        self.log, self.phase, self.n_leaves = log, phase, plan.n_leaves
        work = f"{plan.axis} {plan.extent} {plan.rows_per_block} {plan.n_blocks} {plan.n_leaves} {plan.shuffle_seed} {made_with}"
        self._entry = Entry(phase if log is None else log.key_of_next_pass(phase), work, n_leaves=plan.n_leaves)
        self._leaves_in_flight = plan.leaves_in_flight
        self._blocks_per_step = max(1, plan.n_blocks // (_STEPS * plan.leaves_in_flight))
        self._last_saved: dict[int, tuple[float, int]] = {}
        self._before_saving, self._piece = before_saving, piece

    def begin(self, template: _Total) -> PassState[_Total]:
        """Return where the pass starts; `template` is its state before the first leaf.

        A checkpoint made for another plan or other parameters is dropped, with all later ones.
        """
        entry = self.log.entry(self._entry.key) if self.log else None
        if self.log is None or entry is None:
            return PassState(template, ReadCount(), 0)
        state = template if entry.state is None else read_state_file(self.log.directory.path / entry.state.file)
        if (entry.work, entry.n_leaves) != (self._entry.work, self.n_leaves) or not _alike(template, state):
            return self.restart(template)
        self._entry = entry
        return PassState(state, entry.count, entry.next_leaf)

    def restart(self, template: _Total) -> PassState[_Total]:
        """Drop the checkpoint of this pass; return its beginning."""
        if self.log is not None:
            self.log.forget_from(self._entry.key)
        self._entry = Entry(self._entry.key, self._entry.work, n_leaves=self.n_leaves)
        return PassState(template, ReadCount(), 0)

    def pieces(self) -> Iterator[Any]:
        """Yield the stored results of `piece`, in order."""
        if self.log is not None:
            for stored in self._entry.pieces:
                yield read_state_file(self.log.directory.path / stored.file)

    def begun(self, leaf: Leaf) -> tuple[int, Any, ReadCount] | None:
        """Return the number of completed blocks of `leaf`, their state and what they cost; None if there are none."""
        begun = self._entry.begun.get(leaf.index)
        if self.log is None or begun is None:
            return None
        return begun.blocks, read_state_file(self.log.directory.path / begun.state.file), begun.count

    def begun_leaves(self) -> dict[int, BegunLeaf]:
        """Return the leaves of which some blocks are completed, by index."""
        return self._entry.begun if self.log else {}

    def leaf_merged(self, index: int, state: object, count: ReadCount) -> None:
        """Write a checkpoint if one is due, now that leaf `index` is merged into `state`."""
        if self.log is None or self.log.identity.every is None:
            return
        next_leaf, every = index + 1, self.log.identity.every
        try:
            n_bytes = state_bytes(state)
        except NotRecordableError:
            self.log = None
            return
        if next_leaf >= self.n_leaves:
            # A finished pass is worth more than its last leaves: it is never read again.
            due = self.log.affords(n_bytes, time.monotonic() - self.log.began)
        else:
            since, leaves = time.monotonic() - self.log.saved, next_leaf - self._entry.next_leaf
            due = self.log.affords(n_bytes, since) and (since >= every or leaves * _STEPS >= self.n_leaves)
        if due:
            self._save(self.log, next_leaf, state, count)

    def block_done(self, leaf: Leaf, blocks: int, state: object, count: ReadCount) -> None:
        """Write a checkpoint of the first `blocks` blocks of `leaf` if one is due; called by the leaf's thread."""
        log = self.log
        if log is None or log.identity.every is None or blocks == len(leaf.spans):
            return
        now = time.monotonic()
        saved, before = self._last_saved.setdefault(leaf.index, (now, blocks - 1))
        try:
            n_bytes = state_bytes(state)
        except NotRecordableError:
            return
        if log.stopping:
            due = blocks > before and self._leaves_in_flight * log.cost(n_bytes) <= _LAST_SECONDS
        else:
            enough = log.affords(n_bytes, now - saved, self._leaves_in_flight)
            due = enough and (now - saved >= log.identity.every or blocks - before >= self._blocks_per_step)
        if due:
            with log.lock:
                begun = BegunLeaf(blocks, count, StoredState("", 0, ""))
                self._entry = log.save(self._entry, begun=(leaf.index, begun, state))
            self._last_saved[leaf.index] = time.monotonic(), blocks

    def stopped(self, next_leaf: int, state: object, count: ReadCount) -> None:
        """Write a last checkpoint after an error or signal if there are new leaves and time enough."""
        log = self.log
        if log is None or log.identity.every is None or not log.stopping or next_leaf <= self._entry.next_leaf:
            return
        try:
            if log.cost(state_bytes(state)) <= _LAST_SECONDS:
                self._save(log, next_leaf, state, count)
        except NotRecordableError:
            return

    def _save(self, log: ProgressLog, next_leaf: int, state: object, count: ReadCount) -> None:
        with uninterrupted(), log.lock:
            if self._before_saving is not None:
                self._before_saving(self._entry.next_leaf, next_leaf)
            piece = None if self._piece is None else self._piece(self._entry.next_leaf, next_leaf)
            begun = {index: leaf for index, leaf in self._entry.begun.items() if index >= next_leaf}
            entry = replace(self._entry, next_leaf=next_leaf, count=count, begun=begun)
            self._entry = log.save(entry, state, piece)


def _alike(template: object, state: object) -> bool:
    """Tell whether `state` has the classes, array types and texts of `template`."""
    if type(template) is not type(state):
        return False
    if isinstance(template, tuple) and isinstance(state, tuple):
        return len(template) == len(state) and all(map(_alike, template, state))
    if isinstance(template, np.ndarray) and isinstance(state, np.ndarray):
        return bool(template.dtype == state.dtype and template.ndim == state.ndim)
    if isinstance(template, str):
        return bool(template == state)
    if is_dataclass(template) and not isinstance(template, type):
        pairs = [(getattr(template, f.name), getattr(state, f.name)) for f in fields(template)]
        return all(_alike(a, b) for a, b in pairs if isinstance(a, str | np.ndarray) or is_dataclass(a))
    return True


def next_pass(
    phase: str,
    plan: Plan,
    made_with: str = "",
    *,
    before_saving: Callable[[int, int], None] | None = None,
    piece: Callable[[int, int], object] | None = None,
) -> PassRecord:
    """Return the record of the next pass called `phase` in the log in use; without a log it writes nothing."""
    return PassRecord(log_in_use(), phase, plan, made_with, before_saving, piece)
