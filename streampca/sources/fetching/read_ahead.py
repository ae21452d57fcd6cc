"""Requests for stored chunks ahead of their use: many at once, in the order of reading, within a number of bytes."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np

from streampca.errors import ChangedInputError, StoreError
from streampca.redaction import shown
from streampca.sources.fetching import division
from streampca.sources.fetching.client import MAX_STORED_BYTES, Fetched
from streampca.sources.fetching.division import Division
from streampca.sources.fetching.indexes import Indexes, KnownParts, ObjectFormat
from streampca.sources.fetching.object_version import ObjectVersion
from streampca.sources.fetching.requests import NOTHING, Block, Bytes, Leaf, Part, Pass, StoredChunk, runs_of
from streampca.sources.remote import RemoteStore
from streampca.sources.schedule import Schedule, Span
from streampca.storage.zarr_interface import event_loop


class ReadAhead:
    """Requests chunks of one array for the blocks of all passes that read it.

    Requests of a block that is being read come first, then those of the leaves that are read at once, the leaf that holds
    least memory first, then those of the leaves behind them. What is received ahead takes no more than ``Schedule.n_bytes``,
    and each block that is being read `Division.least_bytes` more.

    Parameters
    ----------
    store : RemoteStore
        Where chunks are.
    keys_of : callable
        Returns the keys of the chunks of rows `start` to `stop` in the order of decoding.
    size : int, optional
        Size in bytes of every stored chunk, where it is known.
    most : int
        Largest size in bytes of a stored chunk.
    indexes : Indexes or KnownParts, optional
        Where the parts of objects are, if keys are those of shards or files; these are requested by ranges.
    """

    def __init__(
        self,
        store: RemoteStore,
        keys_of: Callable[[int, int], list[str]],
        size: int | None,
        most: int,
        indexes: Indexes | KnownParts | None = None,
    ):
        self.store, self.keys_of = store, keys_of
        self.division = Division(store, size, most, None if indexes is None else indexes.kind.most_object)
        self._lock = threading.RLock() if indexes is None else indexes.lock
        self.indexes = indexes
        self._passes: list[Pass] = []
        self._reading: list[Block] = []
        self._pool: list[Bytes] = []
        self._n_requests = self._held_bytes = 0
        self._is_cancelled = self._is_opening = False

    @contextmanager
    def ahead(self, schedule: Schedule) -> Iterator[None]:
        """Request the blocks of `schedule` ahead while the context lasts."""
        begun = Pass(schedule)
        with self._lock:
            self._passes.append(begun)
            self._send()
        try:
            yield
        finally:
            with self._lock:
                self._passes.remove(begun)
                for leaf in begun.leaves:
                    self._close(*leaf.blocks)
                if not self._passes:
                    self._is_cancelled = False
                    self._pool.clear()
                self._forget_indexes()

    @contextmanager
    def reading(self, start: int, stop: int) -> Iterator[list[StoredChunk]]:
        """Return the chunks of rows `start` to `stop` in the order of decoding, requested before everything else."""
        with self._lock:
            if self._is_cancelled:
                raise self._stopped()
            block = self._scheduled((start, stop)) or self._opened((start, stop))
            self._reading.append(block)
            self._send()
        try:
            for index in block.indexes:
                index.result()
            yield block.chunks
        finally:
            with self._lock:
                self._reading.remove(block)
                self._close(block)
                self._forget_indexes()
                self._send()

    def _forget_indexes(self) -> None:
        """Request indexes again in later readings, as shards may have been written again."""
        if self.indexes is not None and not self._passes and not self._reading:
            self.indexes.clear()

    def again(self, chunk: StoredChunk) -> None:
        """Request a chunk of a block that is being read once more, as a whole."""
        with self._lock:
            self._release(chunk)
            in_ranges = chunk.span is not None and self.store.client.serves_ranges
            chunk.parts = self._parts_of(chunk) if in_ranges else [self.division.of_whole()]
            others = (each for each in chunk.block.pending if each[0] is not chunk)
            chunk.block.pending = deque([*((chunk, part) for part in chunk.parts), *others])
            self._send()

    @contextmanager
    def stored(self, chunk: StoredChunk, scratch: Callable[[], Bytes]) -> Iterator[Bytes | None]:
        """Wait for a chunk and return its bytes, None if it does not exist; `scratch` returns memory to join its parts in."""
        first = self._answer_of(chunk, chunk.parts[0])
        if first is not None and not self._is_usable(chunk, first):
            self.store.client.serves_ranges = self.store.client.serves_ranges and first.is_range
            self.again(chunk)
            first = self._answer_of(chunk, chunk.parts[0])
        chunk.total = 0 if first is None else first.total
        try:
            if first is None or len(chunk.parts) == 1:
                yield None if first is None else np.frombuffer(first.data, dtype=np.uint8)
                return
            joined, n_bytes = scratch(), 0
            for part in chunk.parts:  # further ones were added with the answer to the first
                answer, span = self._answer_of(chunk, part), part.span or (0, 0)
                # An answer that is no range leaves the chunk too short, so that it is requested again as a whole.
                data = answer.data[: span[1] - span[0]] if answer is not None and answer.is_range else b""
                if answer is not None and MAX_STORED_BYTES > answer.total != chunk.total < MAX_STORED_BYTES:
                    data = b""  # of an object that was written again in between
                if answer is not None and answer.version.differs(first.version):
                    data = b""
                chunk.total = min(chunk.total, MAX_STORED_BYTES if answer is None else answer.total)
                joined[n_bytes : n_bytes + len(data)] = np.frombuffer(data, dtype=np.uint8)
                n_bytes += len(data)
                with self._lock:
                    self._release_part(chunk.block, part)
                    self._send()
            yield joined[:n_bytes]
        finally:
            with self._lock:
                self._release(chunk)
                self._send()

    def _changed(self, chunk: StoredChunk) -> ChangedInputError:
        where = f"{self.store.shown_url}/{chunk.key}"
        change = "" if self.indexes is None else self.indexes.change
        return ChangedInputError(
            f"{where}: {change}, because its entity tag or size is another: read again when "
            "it does not change any more; if several servers answer at this address, name one of them, or give their copies the same "
            "times of modification"
        )

    def _is_usable(self, chunk: StoredChunk, first: Fetched) -> bool:
        """Return whether `first` is what was requested, and the size of the chunk is known, or known from `first`."""
        span = chunk.parts[0].span
        if span is None or (chunk.pieces and first.is_range):
            return True
        return first.is_range

    def _answer_of(self, chunk: StoredChunk, part: Part) -> Fetched | None:
        """Wait for the answer to a request, which is sent first if it was not; `ChangedInputError` if it does not fit the index."""
        block = chunk.block
        with self._lock:
            if not part.is_held and (chunk, part) in block.pending:
                block.awaited = chunk, part
                self._send()
        answer = part.answer.result()
        if chunk.pieces and answer is not None and answer.version.differs(chunk.version):
            raise self._changed(chunk)
        return answer

    def cancel(self) -> None:
        """Let all blocks that are being read end with a `StoreError`, and send no more requests in the current passes."""
        with self._lock:
            self._is_cancelled = bool(self._passes)
            if self.indexes is not None:
                self.indexes.cancel()
            for block in [
                *self._reading,
                *(block for each in self._passes for leaf in each.leaves for block in leaf.blocks),
            ]:
                while block.pending:
                    block.pending.popleft()[1].answer.set_exception(self._stopped())
                for part in (part for chunk in block.chunks for part in chunk.parts):
                    if part.is_held and not part.answer.done():
                        self._release_part(block, part)

    def _stopped(self) -> StoreError:
        return StoreError(f"{shown(self.store.url)}: the reading was stopped")

    def _opened(self, span: Span) -> Block:
        """Return a block with all its requests, of which none is sent."""
        block, self._is_opening = Block(span), True  # what is known of shards is added before later blocks are opened
        try:
            for key in self.keys_of(*span):
                if self._needs_index(span, key) and self.indexes is not None:
                    block.indexes.append(self.indexes.of(key, partial(self._add_pieces, self.indexes.kind, block, key)))
                    continue
                chunk = StoredChunk(key, self.division.of_chunk(), block)
                block.chunks.append(chunk)
                block.pending.extend((chunk, part) for part in chunk.parts)
        finally:
            self._is_opening = False
        return block

    def _needs_index(self, span: Span, key: str) -> bool:
        """Return whether `key` is a shard of which inner chunks are requested: not all of it, and the store serves ranges."""
        if self.indexes is None or not self.store.client.serves_ranges:
            return False
        return not self.indexes.kind.is_whole(*span, key, division.RANGE_BYTES)

    def _add_pieces(self, kind: ObjectFormat, block: Block, key: str, index: object, version: ObjectVersion) -> None:
        """Add the requests for the inner chunks of a shard, those that are adjacent in one, once its index is known."""
        if self._is_cancelled:
            raise self._stopped()
        pieces = [] if block.is_closed else kind.pieces(*block.span, key, index)
        for chunk in runs_of(pieces, key, block, division.RANGE_BYTES):
            chunk.parts, chunk.version = self._parts_of(chunk), version
            block.chunks.append(chunk)
            block.pending.extend((chunk, part) for part in chunk.parts)
        self._send()

    def _parts_of(self, chunk: StoredChunk) -> list[Part]:
        """Return the requests for adjacent inner chunks of a shard."""
        return self.division.of_range(*chunk.span) if chunk.span and chunk.n_bytes else []

    def _scheduled(self, span: Span) -> Block | None:
        """Return the block of a schedule, None if there is none."""
        return next((block for each in self._passes if (block := each.take(span, self._opened, self._close))), None)

    def _send(self) -> None:
        """Send requests as long as there are some, and memory for them."""
        while self._n_requests < division.MOST_REQUESTS and not (self._is_cancelled or self._is_opening):
            block = self._next_reading() or self._next_ahead()
            if block is None:
                return
            chunk, part = block.awaited or block.pending[0]
            part.buffer = self._buffer(part.cost)  # before the request is counted: there may be no memory
            block.pending.remove((chunk, part))
            self._n_requests += 1
            self._held_bytes += part.cost
            block.held_bytes += part.cost
            part.is_held, block.awaited = True, None
            event_loop().call_soon_threadsafe(self._begin, chunk, part)

    def _buffer(self, n_bytes: int) -> Bytes:
        """Return memory for a request, from the pool if there is some."""
        if self._pool and n_bytes <= self.division.buffer_bytes:
            return self._pool.pop()
        return np.empty(max(n_bytes, self.division.buffer_bytes), dtype=np.uint8)

    @property
    def _allowed_bytes(self) -> int:
        return sum(each.schedule.n_bytes for each in self._passes)

    def _next_reading(self) -> Block | None:
        """Return the block to send a request of among those that are being read."""
        for block in sorted(self._reading, key=lambda block: block.held_bytes):
            if not block.pending:
                continue
            cost = block.pending[0][1].cost
            within = (
                block.held_bytes + cost <= self.division.least_bytes or self._held_bytes + cost <= self._allowed_bytes
            )
            if within or block.awaited is not None:
                return block
        return None

    def _next_ahead(self) -> Block | None:
        """Return the block to send a request of among those that will be read."""
        if self._held_bytes + self.division.request_bytes > self._allowed_bytes:
            return None
        for each in self._passes:
            each.open_active()
            active = each.leaves[: each.schedule.at_once]
            for leaf in sorted(active, key=lambda leaf: leaf.held_bytes):
                if (block := self._pending_block(leaf)) is not None:
                    return block
            n_looked = len(active)
            while n_looked < len(each.leaves) or each.open_next():
                for leaf in each.leaves[n_looked:]:
                    if (block := self._pending_block(leaf)) is not None:
                        return block
                n_looked = len(each.leaves)
        return None

    def _pending_block(self, leaf: Leaf) -> Block | None:
        """Return the first block of a leaf that has requests to send; opens the next if there is none."""
        for block in leaf.blocks:
            if block.pending:
                return block
        while leaf.spans and not (self.indexes is not None and self.indexes.is_busy):
            block = self._opened(leaf.spans.popleft())
            leaf.blocks.append(block)
            if block.pending:
                return block
        return None

    def _begin(self, chunk: StoredChunk, part: Part) -> None:
        """Send a request; called in the event loop."""
        part.task = asyncio.get_running_loop().create_task(self._fetched(chunk, part))
        part.task.add_done_callback(lambda task: self._received(chunk, part, task))
        if not part.is_wanted:
            part.task.cancel()

    async def _fetched(self, chunk: StoredChunk, part: Part) -> Fetched | None:
        """Return the answer to a request; an error of any kind is the task's, so that nobody waits for an answer without end."""
        buffer = None if part.buffer is None else memoryview(part.buffer.data)[: part.cost]
        return await self.store.fetch(chunk.key, part.span, buffer, self.division.most_object or self.division.most)

    def _received(self, chunk: StoredChunk, part: Part, task: asyncio.Task[Fetched | None]) -> None:
        """Take the answer to a request; called in the event loop."""
        with self._lock:
            self._n_requests -= 1
            error = self._stopped() if task.cancelled() else task.exception()
            if task.cancelled() and part.is_wanted:
                self.cancel()  # the process ends
            if error is not None:
                part.answer.set_exception(error)
            else:
                self._extend(chunk, part, task.result())
                part.answer.set_result(task.result())
            if not part.is_wanted or chunk.block.is_closed:
                self._release_part(chunk.block, part)
            self._send()

    def _extend(self, chunk: StoredChunk, part: Part, answer: Fetched | None) -> None:
        """Add the requests for the remaining bytes of a chunk, once its size is known."""
        if self.division.size is not None or chunk.pieces or part.span is None or answer is None or not answer.is_range:
            return
        if part.span[0] == 0 and part.span[1] < answer.total <= self.division.most and not chunk.block.is_closed:
            more = self.division.of_range(part.span[1], answer.total)
            chunk.parts.extend(more)
            chunk.block.pending.extendleft((chunk, each) for each in reversed(more))

    def _close(self, *blocks: Block) -> None:
        """Release the memory of blocks that nobody needs, and stop their requests."""
        for block in blocks:
            block.is_closed = True
            block.pending.clear()
            for chunk in block.chunks:
                self._release(chunk)

    def _release(self, chunk: StoredChunk) -> None:
        for part in chunk.parts:
            self._release_part(chunk.block, part)

    def _release_part(self, block: Block, part: Part) -> None:
        """Release the memory of a request, or stop it if it has no answer."""
        if not part.is_held:
            return
        if not part.answer.done():
            part.is_wanted = False
            if part.task is not None:
                with suppress(RuntimeError):  # its event loop was closed, at the end of the process
                    part.task.get_loop().call_soon_threadsafe(part.task.cancel)
            return
        part.is_held = False
        self._held_bytes -= part.cost
        block.held_bytes -= part.cost
        if part.buffer is not None and len(part.buffer) == self.division.buffer_bytes and self._passes:
            self._pool.append(part.buffer)
        part.buffer = part.task = None  # which has the answer, too
        if part.answer.exception() is None:
            part.answer = NOTHING
