"""Requests of blocks that are read or will be, and what of them was sent and received."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streampca.sources.fetching.client import Fetched
from streampca.sources.fetching.object_version import ObjectVersion
from streampca.sources.schedule import Schedule, Span

Bytes = NDArray[np.uint8]

NOTHING: Future[Fetched | None] = Future()
"""The answer of a request whose memory was released: it is not read again."""
NOTHING.set_exception(RuntimeError("the memory of a request was released before it was read"))


@dataclass(eq=False)
class Part:
    """One request: a chunk or a range of it."""

    span: Span | None
    """The range in bytes; None for the whole chunk."""
    cost: int
    """Bytes of memory."""
    answer: Future[Fetched | None] = field(default_factory=Future)
    """What was received; None if there is no such chunk."""
    buffer: Bytes | None = None
    """Memory from the pool that it was received in."""
    task: asyncio.Task[Fetched | None] | None = None
    """The request, once it was sent."""
    is_held: bool = False
    """Whether its memory is counted."""
    is_wanted: bool = True
    """Whether its answer is still needed."""


@dataclass(frozen=True)
class Piece:
    """An inner chunk of a shard."""

    place: tuple[int, ...]
    """Its coordinates in the grid of inner chunks."""
    offset: int = -1
    """Where it begins in the shard; negative for one that is not stored."""
    n_bytes: int = 0
    """Its size in bytes."""


@dataclass(eq=False)
class StoredChunk:
    """The stored bytes of a chunk, or of adjacent inner chunks of a shard, of which some may have been received."""

    key: str
    """Key of the chunk in the store."""
    parts: list[Part]
    """Requests for it, in order; further ones may follow when its size is known."""
    block: Block
    """The block it is read for."""
    total: int = 0
    """Its size in bytes, once it was received."""
    pieces: list[Piece] = field(default_factory=list)
    """The inner chunks, of a shard; without requests those that are not stored."""
    version: ObjectVersion = field(default_factory=ObjectVersion)
    """Version of the shard whose index says where they are."""

    @property
    def span(self) -> Span | None:
        """Return the range of the shard that holds the inner chunks, None for a chunk that is an object."""
        if not self.pieces:
            return None
        return self.pieces[0].offset, self.pieces[-1].offset + self.pieces[-1].n_bytes

    @property
    def n_bytes(self) -> int:
        """Return the size of the inner chunks in bytes."""
        return 0 if self.span is None else self.span[1] - self.span[0]


@dataclass(eq=False)
class Block:
    """The chunks of one block."""

    span: Span
    """Rows of the block."""
    chunks: list[StoredChunk] = field(default_factory=list)
    """Its chunks in the order in which they are decoded."""
    pending: deque[tuple[StoredChunk, Part]] = field(default_factory=deque)
    """Requests that were not sent."""
    held_bytes: int = 0
    """Memory of requests that were sent and of what was received."""
    awaited: tuple[StoredChunk, Part] | None = None
    """A request that is sent whatever is in memory, because decoding waits for it."""
    is_closed: bool = False
    """Whether nobody needs it any more."""
    indexes: list[Future[object]] = field(default_factory=list)
    """Indexes of its shards, from which its chunks follow."""


@dataclass(eq=False)
class Leaf:
    """The blocks of one leaf that were not read."""

    spans: deque[Span]
    """Blocks of which nothing was requested."""
    blocks: deque[Block] = field(default_factory=deque)
    """Blocks of which something was requested."""

    @property
    def held_bytes(self) -> int:
        """Return the memory of its blocks."""
        return sum(block.held_bytes for block in self.blocks)


@dataclass(eq=False)
class Pass:
    """A schedule that is carried out."""

    schedule: Schedule
    """What will be read."""
    n_opened: int = 0
    """Leaves that were begun."""
    leaves: list[Leaf] = field(default_factory=list)
    """Leaves that were begun and are not read to their end."""

    def open_next(self) -> bool:
        """Begin one more leaf; False if there is none."""
        if self.n_opened == self.schedule.n_leaves:
            return False
        spans = self.schedule.spans_of(self.n_opened)
        self.n_opened += 1
        if spans:
            self.leaves.append(Leaf(deque(spans)))
        return True

    def take(self, span: Span, opened: Callable[[Span], Block], close: Callable[[Block], None]) -> Block | None:
        """Return the block of `span` and close those before it in its leaf, which are not read; None if there is none."""
        self.open_active()
        for leaf in self.leaves:
            block = next((block for block in leaf.blocks if block.span == span), None)
            if block is None and span not in leaf.spans:
                continue
            while block is None or leaf.blocks[0] is not block:
                if leaf.blocks:
                    close(leaf.blocks.popleft())
                elif leaf.spans[0] != span:
                    leaf.spans.popleft()
                else:
                    block = opened(leaf.spans.popleft())
                    leaf.blocks.append(block)
            leaf.blocks.popleft()
            if not leaf.blocks and not leaf.spans:
                self.leaves.remove(leaf)
            return block
        return None

    def open_active(self) -> None:
        """Begin as many leaves as are read at once."""
        while len(self.leaves) < self.schedule.at_once and self.open_next():
            pass


def runs_of(pieces: list[Piece], key: str, block: Block, most: int) -> list[StoredChunk]:
    """Return `pieces` of shard `key`, which are sorted by offset, adjacent ones together up to `most` bytes."""
    runs: list[StoredChunk] = []
    for piece in pieces:
        end = runs[-1].span[1] if runs and runs[-1].span is not None else None
        if end is None or piece.offset != end or runs[-1].n_bytes + piece.n_bytes > most:
            runs.append(StoredChunk(key, [], block))
        runs[-1].pieces.append(piece)
    return runs


def ranges(start: int, stop: int, most: int) -> list[Span]:
    """Return equal ranges of at most `most` bytes from `start` to `stop`."""
    n = -(-(stop - start) // most)
    edges = [start + (stop - start) * i // n for i in range(n + 1)]
    return list(pairwise(edges))
