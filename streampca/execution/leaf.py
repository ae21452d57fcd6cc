"""A leaf: its blocks are read in order, each while the previous one is processed, and again after transient errors."""

from __future__ import annotations

import errno
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import Field, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, cast

import numpy as np

from streampca.accumulators.base import Accumulator, settled
from streampca.block import Block, RowWeights
from streampca.errors import DataError, StreamPCAError
from streampca.logs import logger
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.sources.base import ReadCount, Source
from streampca.sources.grid import Span
from streampca.system.phases import Phase, phases_of_thread
from streampca.system.workspace import borrow, release
from streampca.typing import Array

_State = TypeVar("_State")
_log = logger(__name__)

ATTEMPTS = 4
"""Number of attempts at a leaf, or at reading a block."""
_FIRST_SECONDS = 0.2
_PERMANENT = frozenset(
    getattr(errno, name)
    for name in (
        *("ENOENT", "EACCES", "EPERM", "EISDIR", "ENOTDIR", "EINVAL", "ENAMETOOLONG", "ELOOP"),
        *("ENOSPC", "EDQUOT", "EFBIG", "EROFS"),
    )
    if hasattr(errno, name)
)
_jitter = random.SystemRandom()  # its draws decide when, never what

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

    @property
    def rows_device(self) -> str:
        """Return the name of the device whose arrays `update` takes as rows, too; empty for none."""
        return ""

    def for_leaf(self, leaf: Leaf) -> Self:
        """Return the task with only what `leaf` needs: no more of the source, unless overridden."""
        return replace(self, source=self.source.slice(leaf.edges[0], leaf.edges[-1]))

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


@dataclass(frozen=True)
class FoldTask(Task[_State]):
    """Fold the blocks of a leaf into a state of an accumulator."""

    common: ClassVar[str] = "accumulator"
    source: Source
    accumulator: Accumulator[_State, object]
    """What blocks are folded with."""
    weights: RowWeights | None = None
    """Sample weights; None = all 1."""
    record: LeafRecord | None = None
    retired: list[_State] = field(default_factory=list, compare=False)
    """States that are merged, whose memory later leaves of this process reuse: new memory costs a fault for each page."""

    @property
    def rows_device(self) -> str:
        """Return that of the accumulator."""
        return self.accumulator.rows_device

    def for_leaf(self, leaf: Leaf) -> FoldTask[_State]:
        """Return the task with only the rows and sample weights of `leaf`."""
        start, stop = leaf.edges[0], leaf.edges[-1]
        weights = None if self.weights is None else self.weights.slice(start, stop)
        return replace(self, source=self.source.slice(start, stop), weights=weights, record=None, retired=[])

    def init(self, leaf: Leaf) -> _State:
        """Return the state of no rows."""
        n_features = self.source.shape[1]
        try:
            state = self.retired.pop()
        except IndexError:
            return self.accumulator.init(n_features)
        return self.accumulator.init_within(n_features, state)

    def update(self, state: _State, block: Block) -> _State:
        """Return `state` with the weighted rows of `block` added."""
        return self.accumulator.update(state, block if self.weights is None else self.weights.on(block))

    def finish(self, state: _State) -> _State:
        """Return `state` in the memory of this process."""
        return cast("_State", settled(state))

    def retire(self, state: _State) -> None:
        """Keep the memory of `state` for a later leaf, if the accumulator can reuse it."""
        if self.accumulator.reuses_states:
            self.retired.append(state)

    def release(self) -> None:
        """Release the memory that is kept."""
        self.retired.clear()

    def leaves_per_result(self, plan: Plan) -> int:
        """Return the number of leaves per branch of the tree reduction."""
        return plan.leaves_per_branch

    def absorb(self, state: _State, following: _State) -> _State:
        """Return `state` merged with the state of the rows after it; may reuse its memory."""
        return self.accumulator.absorb(state, following)


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
    reads = read_ahead(task.source, leaf, done, task.rows_device)
    while True:
        with phases_of_thread() as seconds:
            with Phase("waiting"):
                read = next(reads, None)
            if read is None:
                break
            block, began = read.block, time.perf_counter()
            with Phase("products"):
                state = task.update(state, block)
        _log.debug(
            "leaf %d: block %d, %d rows, computed in %.3f s", leaf.index, done, len(block), time.perf_counter() - began
        )
        done, total = done + 1, total + read.count + ReadCount(phases=seconds)
        if on_block is not None:
            on_block(block, read.count)
        stopped = stop is not None and stop.is_set()
        if task.record is not None:
            task.record.block_done(leaf, done, state, total)
        if stopped:
            raise StoppedError
    return LeafResult(task.finish(state), total)


@dataclass(frozen=True)
class BlockRead:
    """A block of a leaf, and what reading it took."""

    block: Block
    """The block, valid until the next one is requested."""
    counts: list[ReadCount]
    """What each reading of it took: the first, and those after it was overwritten."""

    @property
    def count(self) -> ReadCount:
        """Return what reading the block took so far."""
        return sum(self.counts, ReadCount())


def read_ahead(source: Source, leaf: Leaf, first: int = 0, device: str = "") -> Iterator[BlockRead]:
    """Yield the blocks of `leaf` in order from number `first` on; rows that are on `device` stay there."""
    spans = leaf.spans[first:]
    if not source.buffered:
        for start, stop in spans:
            there = source.rows_on(device, start, stop) if device else None
            if there is not None:
                yield BlockRead(Block(there, start), [ReadCount(0, source.row_bytes * (stop - start), 0)])
                continue
            values, count = read_with_retries(source, start, stop)
            yield BlockRead(Block(values, start), [count])
    elif spans:
        with ThreadPoolExecutor(1, thread_name_prefix="streampca-read") as thread:
            yield from _read_into_buffers(source, spans, thread)
            thread.submit(release).result()


def _read_into_buffers(source: Source, spans: Sequence[Span], thread: ThreadPoolExecutor) -> Iterator[BlockRead]:
    """Yield the blocks of `spans`, which `thread` reads into two buffers in turn, one block ahead."""
    equal = [
        tuple(
            (first - start, last - start)
            for first, last in source.equal_rows(start, stop)
            if last - first >= _LEAST_EQUAL
        )
        for start, stop in spans
    ]

    def buffer(i: int) -> Array:
        start, stop = spans[i]
        if source.column_major:
            return borrow(f"block {i % 2}", (source.shape[1], stop - start), source.dtype).T
        return borrow(f"block {i % 2}", (stop - start, source.shape[1]), source.dtype)

    def read_equal(start: int, stop: int) -> tuple[Array, ReadCount]:
        row, count = read_with_retries(source, start, start + 1)
        return np.broadcast_to(row, (stop - start, row.shape[1])), count

    def submit(i: int) -> Future[tuple[Array, ReadCount]]:
        start, stop = spans[i]
        if equal[i] == ((0, stop - start),):
            return thread.submit(read_equal, start, stop)
        return thread.submit(read_with_retries, source, start, stop, buffer(i))

    def again(values: Array, start: int, counts: list[ReadCount]) -> None:
        # In the thread that reads ahead, after the next block: no further memory is needed to decode it.
        done = thread.submit(read_with_retries, source, start, start + len(values), values).result()
        counts.append(done[1])
        _read_again.add(source.fingerprint)

    pending = submit(0)
    for i, (start, _) in enumerate(spans):
        values, count = pending.result()
        if i + 1 < len(spans):
            pending = submit(i + 1)
        counts, read_again = [count], None
        was_read_again = bool(_read_again) and source.fingerprint in _read_again  # so others would have to be, too
        if values.flags.writeable and np.may_share_memory(values, buffer(i)) and not was_read_again:
            read_again = partial(again, values, start, counts)
        yield BlockRead(Block(values, start, equal=equal[i], read_again=read_again), counts)


def may_pass(error: BaseException) -> bool:
    """Tell whether `error` is a transient error of the system or of a connection.

    Errors of this package are not: they are raised after retries.
    """
    return isinstance(error, OSError) and not isinstance(error, StreamPCAError) and error.errno not in _PERMANENT


def read_with_retries(source: Source, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
    """Return what ``source.read`` returns, retried after transient errors of the system.

    Pauses are 0.2 s, doubled with each failure, and up to half more at random.

    Raises
    ------
    DataError
        If the error is not transient, or every attempt failed.
    """
    attempt = 1
    while True:
        try:
            return source.read(start, stop, out)
        except StreamPCAError:
            raise
        except OSError as error:
            if attempt == ATTEMPTS or not may_pass(error):
                message = " ".join(str(error).split()) or type(error).__name__
                tried = f" in {attempt} attempts" if attempt > 1 else ""
                raise DataError(
                    f"{source.description}: rows {start} to {stop - 1} could not be read{tried}: {message}; check that the store can be "
                    "reached and read, and run again"
                ) from error
            pause = _FIRST_SECONDS * 2.0 ** (attempt - 1) * _jitter.uniform(1.0, 1.5)
            which = f"rows {start} to {stop - 1} could not be read, attempt {attempt} of {ATTEMPTS}"
            _log.info("%s: %s; again in %.1f s", which, error, pause)
        time.sleep(pause)
        attempt += 1


def merge_neighbours(
    results: Generator[LeafResult[_State]], task: Task[_State], n_leaves: int
) -> Generator[LeafResult[_State]]:
    """Yield `results` merged from left to right in groups of `n_leaves`; the last group may be smaller."""
    merged: LeafResult[_State] | None = None
    size = 0
    try:
        for result in results:
            if merged is None:
                merged = result
            else:
                merged = LeafResult(task.absorb(merged.state, result.state), merged.count + result.count)
            size += 1
            del result
            if size == n_leaves:
                yield merged
                merged, size = None, 0
        if merged is not None:
            yield merged
    finally:
        results.close()
