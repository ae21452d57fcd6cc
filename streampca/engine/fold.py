"""The loop that is the specification, and the leaf that carries out a stretch of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from numpy.typing import NDArray

from streampca.accumulators.base import Accumulator
from streampca.block import Block, RowWeights
from streampca.engine.plan import Leaf
from streampca.sources.base import ReadCount, Source
from streampca.workspace import borrow, release

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


def fold(accumulator: Accumulator[State, Any], blocks: Iterable[Block], n_features: int) -> State:
    """Return the state of all rows of `blocks`."""
    state = accumulator.init(n_features)
    for block in blocks:
        state = accumulator.update(state, block)
    return state


def run_leaf(
    source: Source,
    accumulator: Accumulator[State, Any],
    leaf: Leaf,
    stop: threading.Event | None = None,
    on_block: Callable[[Block, ReadCount], None] | None = None,
    weights: RowWeights | None = None,
) -> LeafResult:
    """Fold the blocks of `leaf`, their rows weighted; the next one is read while this one is multiplied."""
    counts: list[ReadCount] = []

    def blocks() -> Iterator[Block]:
        for block, count in read_ahead(source, leaf):
            yield block if weights is None else weights.on(block)
            counts.append(count)
            if on_block is not None:
                on_block(block, count)
            if stop is not None and stop.is_set():
                raise StoppedError

    state = fold(accumulator, blocks(), source.shape[1])
    return LeafResult(state, sum(counts, ReadCount()))


def read_ahead(source: Source, leaf: Leaf) -> Iterator[tuple[Block, ReadCount]]:
    """Yield the blocks of `leaf` in order, valid until the next one is asked for, and what each cost to read."""
    spans = leaf.spans
    if not source.buffered:
        for start, stop in spans:
            values, count = source.read(start, stop)
            yield Block(values, start), count
        return

    def submit(i: int) -> Future[tuple[NDArray[Any], ReadCount]]:
        start, stop = spans[i]
        if source.column_major:
            out = borrow(f"block {i % 2}", (source.shape[1], stop - start), source.dtype).T
        else:
            out = borrow(f"block {i % 2}", (stop - start, source.shape[1]), source.dtype)
        return reader.submit(source.read, start, stop, out)

    with ThreadPoolExecutor(1, thread_name_prefix="streampca-read") as reader:
        coming = submit(0)
        for i, (start, _) in enumerate(spans):
            values, count = coming.result()
            if i + 1 < len(spans):
                coming = submit(i + 1)
            yield Block(values, start), count
        reader.submit(release).result()
