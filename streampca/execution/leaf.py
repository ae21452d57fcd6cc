"""The leaf loop: the blocks of a leaf are read in order, the next one while a task computes with this one."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import Field, dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from streampca.block import Block
from streampca.execution.distributed.retries import read_with_retries
from streampca.logs import logger
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.sources.base import ReadCount, Source
from streampca.system.workspace import borrow, release
from streampca.typing import Array

_State = TypeVar("_State")
_log = logger(__name__)

_LEAST_EQUAL = 128
"""Rows of a run of equal ones from which accumulating the rows around it by themselves is faster."""

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
    for block, count in read_ahead(task.source, leaf, done):
        began = time.perf_counter()
        state = task.update(state, block)
        _log.debug(
            "leaf %d: block %d, %d rows, computed in %.3f s", leaf.index, done, len(block), time.perf_counter() - began
        )
        done, total = done + 1, total + count
        if on_block is not None:
            on_block(block, count)
        stopped = stop is not None and stop.is_set()
        if task.record is not None:
            task.record.block_done(leaf, done, state, total)
        if stopped:
            raise StoppedError
    return LeafResult(task.finish(state), total)


def read_ahead(source: Source, leaf: Leaf, first: int = 0) -> Iterator[tuple[Block, ReadCount]]:
    """Yield the blocks of `leaf` in order from number `first` on and what each cost; a block is valid until the next is requested."""
    spans = leaf.spans[first:]
    if not spans:
        return
    if not source.buffered:
        for start, stop in spans:
            values, count = read_with_retries(source, start, stop)
            yield Block(values, start), count
        return

    equal = [_long(source.equal_rows(start, stop), start) for start, stop in spans]

    def buffer(i: int) -> Array:
        start, stop = spans[i]
        if source.column_major:
            return borrow(f"block {i % 2}", (source.shape[1], stop - start), source.dtype).T
        return borrow(f"block {i % 2}", (stop - start, source.shape[1]), source.dtype)

    def submit(i: int) -> Future[tuple[Array, ReadCount]]:
        start, stop = spans[i]
        if equal[i] == ((0, stop - start),):
            return reader.submit(_read_equal, source, start, stop)
        return reader.submit(read_with_retries, source, start, stop, buffer(i))

    with ThreadPoolExecutor(1, thread_name_prefix="streampca-read") as reader:
        pending = submit(0)
        for i, (start, stop) in enumerate(spans):
            values, count = pending.result()
            if i + 1 < len(spans):
                pending = submit(i + 1)
            again = partial(read_with_retries, source, start, stop, values)
            own = values.flags.writeable and np.may_share_memory(values, buffer(i))
            yield Block(values, start, equal=equal[i], read_again=again if own else None), count
        reader.submit(release).result()


def _long(runs: tuple[tuple[int, int], ...], start: int) -> tuple[tuple[int, int], ...]:
    """Return those of the `runs` that have many rows, relative to `start`."""
    return tuple((first - start, last - start) for first, last in runs if last - first >= _LEAST_EQUAL)


def _read_equal(source: Source, start: int, stop: int) -> tuple[Array, ReadCount]:
    """Return rows `start` to `stop`, which all equal the first one, as a view of it."""
    row, count = read_with_retries(source, start, start + 1)
    return np.broadcast_to(row, (stop - start, row.shape[1])), count
