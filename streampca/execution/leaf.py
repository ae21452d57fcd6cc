"""The leaf loop: the blocks of a leaf are read in order, the next one while a task computes with this one."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import Field, dataclass, field
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from streampca.block import Block
from streampca.execution.distributed.retries import read_with_retries
from streampca.logs import logger
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.sources.base import ReadCount, Source
from streampca.sources.schedule import Span
from streampca.system.workspace import borrow, release
from streampca.typing import Array

_State = TypeVar("_State")
_log = logger(__name__)

_LEAST_EQUAL = 128
"""Rows of a run of equal ones from which accumulating the rows around it by themselves is faster."""

_read_again: set[str] = set()
"""Fingerprints of the sources of which this process had to read a block again: their blocks are not overwritten any more."""

OnBlock = Callable[[Block, ReadCount], None]


class StoppedError(Exception):
    """A leaf was asked to stop before its end."""


@dataclass(frozen=True)
class LeafResult(Generic[_State]):
    """Result of a leaf, or of several neighbouring leaves."""

    state: _State
    """State of the rows."""
    count: ReadCount
    """What reading the rows cost."""


class LeafRecord(Protocol):
    """Checkpoints within leaves, see `pass_record.PassRecord`."""

    def begun(self, leaf: Leaf) -> tuple[int, Any, ReadCount] | None:
        """Return the number of completed blocks, their state and what they cost; None if there are none."""
        ...

    def block_done(self, leaf: Leaf, blocks: int, state: object, count: ReadCount) -> None:
        """Record that `state` holds the first `blocks` blocks."""
        ...


class Task(ABC, Generic[_State]):
    """What is computed from the blocks of a leaf; a dataclass that is sent to the worker which runs the leaf."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    common: ClassVar[str]
    """Name of the field that is the same for all leaves and may be large."""
    source: Source
    """Source of the rows."""
    record: LeafRecord | None = None
    """Where progress within leaves is recorded; None = a leaf that was stopped starts again from its first block."""

    @abstractmethod
    def for_leaf(self, leaf: Leaf) -> Self:
        """Return the task with only what `leaf` needs."""

    @abstractmethod
    def init(self, leaf: Leaf) -> _State:
        """Return the state before the first block of `leaf`."""

    @abstractmethod
    def update(self, state: _State, block: Block) -> _State:
        """Return `state` after `block`; may change it in place."""

    def finish(self, state: _State) -> _State:
        """Return the result of a leaf, given the state after its last block."""
        return state

    def retire(self, state: _State) -> None:
        """Keep the memory of `state`, which is needed no more, for a later leaf; unless overridden, it is not kept."""

    def release(self) -> None:
        """Release the memory that is kept."""

    def leaves_per_result(self, plan: Plan) -> int:
        """Return how many neighbouring leaves are merged before the driver receives them."""
        return 1

    def absorb(self, state: _State, following: _State) -> _State:
        """Return `state` merged with that of the leaf after it; called where results have several leaves."""
        raise NotImplementedError


def run_leaf(
    task: Task[_State],
    leaf: Leaf,
    stop: threading.Event | None = None,
    on_block: OnBlock | None = None,
) -> LeafResult[_State]:
    """Run `task` on the blocks of `leaf`, from where its record says that it was stopped.

    Raises
    ------
    StoppedError
        If `stop` is set; progress is recorded before.
    """
    begun = None if task.record is None else task.record.begun(leaf)
    done, state, total = begun or (0, task.init(leaf), ReadCount())
    for read in read_ahead(task.source, leaf, done):
        block, began = read.block, time.perf_counter()
        state = task.update(state, block)
        _log.debug(
            "leaf %d: block %d, %d rows, computed in %.3f s", leaf.index, done, len(block), time.perf_counter() - began
        )
        done, total = done + 1, total + read.count
        if on_block is not None:
            on_block(block, read.count)
        stopped = stop is not None and stop.is_set()
        if task.record is not None:
            task.record.block_done(leaf, done, state, total)
        if stopped:
            raise StoppedError
    return LeafResult(task.finish(state), total)


@dataclass
class _ReadingAgain:
    """Reads a block once more into its own memory, when called, and counts what that takes.

    It is read in the thread that reads ahead, after the next block: no further memory is needed to decode it.
    """

    thread: ThreadPoolExecutor
    """The thread that reads ahead."""
    source: Source
    """The source of the block."""
    start: int
    """Index of its first row."""
    values: Array
    """Its memory."""
    count: ReadCount = field(default_factory=ReadCount)
    """What reading it again took."""

    def __call__(self) -> None:
        stop = self.start + len(self.values)
        done = self.thread.submit(read_with_retries, self.source, self.start, stop, self.values).result()
        self.count += done[1]
        _read_again.add(self.source.fingerprint)


@dataclass(frozen=True)
class BlockRead:
    """A block of a leaf, and what reading it took."""

    block: Block
    """The block, valid until the next one is requested."""
    first_count: ReadCount
    """What the first reading took."""
    again: _ReadingAgain | None = None
    """Reads the block again if it was overwritten; None where it must not be."""

    @property
    def count(self) -> ReadCount:
        """Return what reading the block took so far."""
        return self.first_count if self.again is None else self.first_count + self.again.count


def read_ahead(source: Source, leaf: Leaf, first: int = 0) -> Iterator[BlockRead]:
    """Yield the blocks of `leaf` in order from number `first` on."""
    spans = leaf.spans[first:]
    if not source.buffered:
        for start, stop in spans:
            values, count = read_with_retries(source, start, stop)
            yield BlockRead(Block(values, start), count)
    elif spans:
        with ThreadPoolExecutor(1, thread_name_prefix="streampca-read") as thread:
            yield from _read_into_buffers(source, spans, thread)
            thread.submit(release).result()


def _read_into_buffers(source: Source, spans: Sequence[Span], thread: ThreadPoolExecutor) -> Iterator[BlockRead]:
    """Yield the blocks of `spans`, which `thread` reads into two buffers in turn, one block ahead."""
    equal = [_long(source.equal_rows(start, stop), start) for start, stop in spans]

    def buffer(i: int) -> Array:
        start, stop = spans[i]
        if source.column_major:
            return borrow(f"block {i % 2}", (source.shape[1], stop - start), source.dtype).T
        return borrow(f"block {i % 2}", (stop - start, source.shape[1]), source.dtype)

    def submit(i: int) -> Future[tuple[Array, ReadCount]]:
        start, stop = spans[i]
        if equal[i] == ((0, stop - start),):
            return thread.submit(_read_equal, source, start, stop)
        return thread.submit(read_with_retries, source, start, stop, buffer(i))

    pending = submit(0)
    for i, (start, _) in enumerate(spans):
        values, count = pending.result()
        if i + 1 < len(spans):
            pending = submit(i + 1)
        again = None
        if values.flags.writeable and np.may_share_memory(values, buffer(i)) and not _was_read_again(source):
            again = _ReadingAgain(thread, source, start, values)
        yield BlockRead(Block(values, start, equal=equal[i], read_again=again), count, again)


def _was_read_again(source: Source) -> bool:
    """Return whether this process had to read a block of `source` again, so that others would have to be, too."""
    return bool(_read_again) and source.fingerprint in _read_again


def _long(runs: tuple[tuple[int, int], ...], start: int) -> tuple[tuple[int, int], ...]:
    """Return those of the `runs` that have many rows, relative to `start`."""
    return tuple((first - start, last - start) for first, last in runs if last - first >= _LEAST_EQUAL)


def _read_equal(source: Source, start: int, stop: int) -> tuple[Array, ReadCount]:
    """Return rows `start` to `stop`, which all equal the first one, as a view of it."""
    row, count = read_with_retries(source, start, start + 1)
    return np.broadcast_to(row, (stop - start, row.shape[1])), count
