"""The loop that is the specification, and the leaf that carries out a stretch of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from streampca.accumulators.base import Accumulator
from streampca.block import Block, RowWeights
from streampca.execution.distributed.retries import read_patiently
from streampca.planning.leaves import Leaf
from streampca.sources.base import ReadCount, Source
from streampca.system.workspace import borrow, release

State = TypeVar("State")


class StoppedError(Exception):
    """A leaf was asked to stop before its end."""


@dataclass(frozen=True)
class LeafResult:
    """What a leaf gives back."""

    state: Any
    """State of its rows."""
    count: ReadCount
    """What reading them cost."""


@dataclass(eq=False)
class PartialState:
    """The state of neighbouring leaves; stays on the worker that the first of them was read by, and grows in place there."""

    state: Any
    """State of their rows."""
    count: ReadCount
    """What reading them cost."""
    first: int
    """Position of the first leaf."""
    stop: int
    """Position behind the last one; -1 while it grows, so that what was broken off is never taken for whole."""

    def absorb(self, accumulator: Accumulator[Any, Any], other: PartialState) -> PartialState:
        """Return itself with the leaves of `other`, the next ones, merged into it.

        Raises
        ------
        LostStateError
            If they are not the next ones: it has grown by them already, or broke off.
        """
        if self.stop != other.first:
            raise LostStateError(f"leaves {self.first} to {self.stop} are not before leaf {other.first}")
        self.stop = -1
        self.state = accumulator.absorb(self.state, other.state)
        self.count += other.count
        self.stop = other.stop
        return self


class LostStateError(Exception):
    """A state on a worker is not what it should be, and has to be made again."""


def fold(accumulator: Accumulator[State, Any], blocks: Iterable[Block], n_features: int) -> State:
    """Return the state of all rows of `blocks`."""
    state = accumulator.init(n_features)
    for block in blocks:
        state = accumulator.update(state, block)
    return state


class Record(Protocol):
    """Where a leaf finds, and leaves, how far it has come; see `ledger.Reading`."""

    def begun(self, leaf: Leaf) -> tuple[int, Any, ReadCount] | None:
        """Return how many blocks are folded already, their state and what they cost; None if none are."""
        ...

    def folded(self, leaf: Leaf, blocks: int, state: Any, count: ReadCount) -> None:
        """Note that so many blocks are in `state`."""
        ...


def run_leaf(
    source: Source,
    accumulator: Accumulator[State, Any],
    leaf: Leaf,
    stop: threading.Event | None = None,
    on_block: Callable[[Block, ReadCount], None] | None = None,
    weights: RowWeights | None = None,
    record: Record | None = None,
) -> LeafResult:
    """Fold the blocks of `leaf`, their rows weighted; the next one is read while this one is multiplied.

    With a `record`, from where it stopped the last time.
    """
    found = None if record is None else record.begun(leaf)
    done, state, total = found or (0, accumulator.init(source.shape[1]), ReadCount())
    for block, count in read_ahead(source, leaf, done):
        state = accumulator.update(state, block if weights is None else weights.on(block))
        done, total = done + 1, total + count
        if on_block is not None:
            on_block(block, count)
        stopped = stop is not None and stop.is_set()
        if record is not None:
            record.folded(leaf, done, state, total)
        if stopped:
            raise StoppedError
    return LeafResult(state, total)


def in_branches(
    results: Generator[LeafResult], accumulator: Accumulator[State, Any], leaves_per_branch: int
) -> Generator[LeafResult]:
    """Yield the results of branches: so many neighbouring leaves merged from left to right, the last ones perhaps fewer."""
    branch, n_leaves = None, 0
    try:
        for result in results:
            if branch is None:
                branch = result
            else:
                state = accumulator.absorb(branch.state, result.state)
                branch = LeafResult(state, branch.count + result.count)
            n_leaves += 1
            del result
            if n_leaves == leaves_per_branch:
                yield branch
                branch, n_leaves = None, 0
        if branch is not None:
            yield branch
    finally:
        results.close()


def read_ahead(source: Source, leaf: Leaf, first: int = 0) -> Iterator[tuple[Block, ReadCount]]:
    """Yield the blocks of `leaf` in order from number `first`, valid until the next one is asked for, and what each cost to read."""
    spans = leaf.spans[first:]
    if not spans:
        return
    if not source.buffered:
        for start, stop in spans:
            values, count = read_patiently(source, start, stop)
            yield Block(values, start), count
        return

    def submit(i: int) -> Future[tuple[NDArray[Any], ReadCount]]:
        start, stop = spans[i]
        if source.column_major:
            out = borrow(f"block {i % 2}", (source.shape[1], stop - start), source.dtype).T
        else:
            out = borrow(f"block {i % 2}", (stop - start, source.shape[1]), source.dtype)
        return reader.submit(read_patiently, source, start, stop, out)

    with ThreadPoolExecutor(1, thread_name_prefix="streampca-read") as reader:
        coming = submit(0)
        for i, (start, _) in enumerate(spans):
            values, count = coming.result()
            if i + 1 < len(spans):
                coming = submit(i + 1)
            yield Block(values, start), count
        reader.submit(release).result()
