"""Requests for stored bytes ahead of their use: many at once, in the order of reading, within a number of bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streampca.errors import ChangedInputError, StoreError
from streampca.sources.fetching.client import Fetched, ObjectVersion
from streampca.sources.grid import Schedule, Span
from streampca.storage.zarr_interface import event_loop, sync

MOST_REQUESTS = 32
"""Requests of one array at once, at most."""
RANGE_BYTES = 4 * 2**20
"""Size of a range of an object that is requested in several ranges."""
WHOLE_BYTES = 9 * 2**20
"""Largest object that is requested as a whole: up to here ranges are not received earlier at 60 MB/s per connection, and joining them takes time."""
_LEAST_BYTES = 16 * 2**20
_RANGES_AT_ONCE = 6
"""Ranges of one object at once, each of which is in memory twice until it is joined to the others."""
_OPENED_AHEAD, _MOST_OPENED = 2, 8
"""Blocks of a leaf, and of all, of which it is looked up at once what to request."""

Part = tuple[tuple[int, ...], int, int]
"""A chunk within an object: its place in the grid, where it begins in the object, and its size in bytes; negative for none."""


class Store(Protocol):
    """Where objects are."""

    @property
    def serves_ranges(self) -> bool:
        """Return whether ranges of objects can be requested; some web servers send the whole object."""
        ...

    @property
    def shown_url(self) -> str:
        """Return the address without what may be secret."""
        ...

    async def fetch(self, key: str, span: Span | None, most: int | None = None) -> Fetched | None:
        """Return the bytes of an object of at most `most` bytes, or those in `span`; None if it does not exist."""
        ...


@dataclass(eq=False)
class Run:
    """Bytes of one object that are requested at once: all of it, or adjacent chunks in it."""

    key: str
    """Key of the object."""
    span: Span | None
    """The range in bytes; None for the whole object."""
    most: int
    """Most bytes that there may be; 0 where nothing is requested, because `parts` are not stored."""
    parts: list[Part] = field(default_factory=list)
    """The chunks in it; none where they are known once it was received."""
    version: ObjectVersion = field(default_factory=ObjectVersion)
    """Version of the object that `parts` were looked up in."""
    held: NDArray[np.uint8] | None = None
    """Its bytes, where they are in memory already."""
    file: int = -1
    """Descriptor of the file, of a local store."""
    block: Block | None = None
    answer: Future[Fetched | None] | None = None
    task: asyncio.Task[Fetched | None] | None = None
    cost: int = 0
    """Bytes of memory that are counted."""


def runs_of(key: str, parts: list[Part], most: int, gap: int = 0, version: ObjectVersion | None = None) -> list[Run]:
    """Return runs of `parts`, which are sorted by offset, of at most `most` bytes; between two that are read at once lie `gap` bytes at most."""
    runs: list[Run] = []
    for part in parts:
        _, offset, n_bytes = part
        if runs and offset >= 0 and (span := runs[-1].span) is not None:
            end = max(span[1], offset + n_bytes)
            if offset <= span[1] + gap and end - span[0] <= most:
                runs[-1].span, runs[-1].most = (span[0], end), end - span[0]
                runs[-1].parts.append(part)
                continue
        span = None if offset < 0 else (offset, offset + n_bytes)
        runs.append(Run(key, span, max(0, n_bytes), [part], version or ObjectVersion()))
    return runs


@dataclass(eq=False)
class Block:
    """The runs of one block."""

    span: Span
    """Rows of the block."""
    opening: asyncio.Task[None] | None = None
    """Looks up what to request."""
    runs: list[Run] = field(default_factory=list)
    """What is requested, in the order of decoding."""
    pending: deque[Run] = field(default_factory=deque)
    """What was not requested yet."""
    held_bytes: int = 0
    """Memory of what was requested and received."""
    is_closed: bool = False
    """Whether nobody needs it any more."""


@dataclass(eq=False)
class _Leaf:
    """The blocks of one leaf that were not read: those of which nothing was looked up, and the others."""

    spans: deque[Span]
    blocks: deque[Block] = field(default_factory=deque)


@dataclass(eq=False)
class _Pass:
    """A schedule that is carried out: leaves that were begun and are not read to their end."""

    schedule: Schedule
    n_begun: int = 0
    leaves: list[_Leaf] = field(default_factory=list)

    def begin(self) -> bool:
        """Begin one more leaf; False if there is none."""
        if self.n_begun == self.schedule.n_leaves:
            return False
        self.n_begun += 1
        if spans := self.schedule.spans_of(self.n_begun - 1):
            self.leaves.append(_Leaf(deque(spans)))
        return True

    def begin_active(self) -> None:
        """Begin as many leaves as are read at once."""
        while len(self.leaves) < self.schedule.at_once and self.begin():
            pass


class ReadAhead:
    """Requests the bytes of one array for the blocks of all passes that read it.

    Requests for a block that is being read come first, then those of the leaves that are read at once, the leaf that holds
    least memory first, then those of the leaves behind them. What is received ahead takes no more than ``Schedule.n_bytes``,
    and each block that is being read `least_bytes` more. All but waiting happens in the event loop of zarr.

    Parameters
    ----------
    store : Store
        Where objects are.
    look_up : callable
        Returns the runs of rows `start` to `stop` in the order of decoding.
    most : callable
        Returns the largest size in bytes of a run; larger ones than `WHOLE_BYTES` are requested in ranges.
    change : str
        What has happened to an object of another version than that of a run, for messages.
    most_object : int
        Largest size in bytes of an object that is requested as a whole where ranges of it are not served.
    """

    def __init__(
        self,
        store: Store,
        look_up: Callable[[int, int], Awaitable[list[Run]]],
        most: Callable[[], int],
        change: str,
        most_object: int = 0,
    ):
        self.store, self._look_up, self._most, self._change, self._most_object = (
            store,
            look_up,
            most,
            change,
            most_object,
        )
        self._passes: list[_Pass] = []
        self._reading: list[Block] = []
        self._n_requests = self._n_opening = self._held_bytes = 0
        self._is_cancelled = False

    @property
    def request_bytes(self) -> int:
        """Return the memory of one request."""
        most = self._most()
        return most + (_RANGES_AT_ONCE * RANGE_BYTES if most > WHOLE_BYTES and self.store.serves_ranges else 0)

    @property
    def least_bytes(self) -> int:
        """Return the memory for a block that is being read, whatever else is in memory."""
        return max(self.request_bytes, min(MOST_REQUESTS * self.request_bytes, _LEAST_BYTES))

    @contextmanager
    def ahead(self, schedule: Schedule) -> Iterator[None]:
        """Request the blocks of `schedule` ahead while the context lasts."""
        begun = _Pass(schedule)

        async def begin() -> None:
            self._passes.append(begun)
            self._send()

        async def end() -> None:
            self._passes.remove(begun)
            for leaf in begun.leaves:
                self._close(*leaf.blocks)
            self._is_cancelled = self._is_cancelled and bool(self._passes)

        sync(begin())
        try:
            yield
        finally:
            sync(end())

    @contextmanager
    def reading(self, start: int, stop: int) -> Iterator[list[Run]]:
        """Return the runs of rows `start` to `stop` in the order of decoding, requested before everything else."""

        async def begin() -> Block:
            if self._is_cancelled:
                raise self._stopped()
            block = self._scheduled((start, stop)) or self._opened((start, stop))
            self._reading.append(block)
            return block

        async def opened() -> list[Run]:
            if block.opening is not None:
                await asyncio.wait([block.opening])
                if block.opening.cancelled():
                    raise self._stopped()
                block.opening.result()
            self._send()
            return block.runs

        async def end() -> None:
            self._reading.remove(block)
            self._close(block)
            self._send()

        block = sync(begin())
        try:
            yield sync(opened())
        finally:
            sync(end())

    @property
    def is_idle(self) -> bool:
        """Return whether nobody reads or will."""
        return not self._passes and not self._reading

    @contextmanager
    def received(self, run: Run) -> Iterator[Fetched | None]:
        """Wait for a run and return what was received, None if there is no such object; its memory is released afterwards.

        Raises
        ------
        ChangedInputError
            If the object is another than that in which its parts were looked up.
        """
        if not run.most:
            yield None
            return
        answer = run.answer.result() if run.answer is not None else None
        if answer is not None and answer.version.differs(run.version):
            raise ChangedInputError(
                f"{self.store.shown_url}/{run.key}: {self._change}, because its entity tag or size differs: read again when "
                "it no longer changes; if several servers answer at this address, name one of them, or give their copies the same "
                "modification times"
            )
        try:
            yield answer
        finally:
            run.answer = answer = None
            with suppress(RuntimeError):  # its event loop was closed, at the end of the process
                event_loop().call_soon_threadsafe(self._release, run, True)

    def again(self, run: Run) -> None:
        """Request a run once more, whose memory was released."""
        run.answer = Future()
        try:
            run.answer.set_result(sync(self._fetched(run)))
        except Exception as error:  # noqa: BLE001 raised where it is waited for
            run.answer.set_exception(error)

    def cancel(self) -> None:
        """Let all blocks that are being read end with a `StoreError`, and send no more requests in the current passes."""

        async def cancel() -> None:
            self._is_cancelled = bool(self._passes)
            for block in [
                *self._reading,
                *(block for each in self._passes for leaf in each.leaves for block in leaf.blocks),
            ]:
                if block.opening is not None:
                    block.opening.cancel()
                while block.pending:
                    if (answer := block.pending.popleft().answer) is not None:
                        answer.set_exception(self._stopped())
                for run in block.runs:
                    if run.task is not None and not run.task.done():
                        run.task.cancel()

        sync(cancel())

    def _stopped(self) -> StoreError:
        return StoreError(f"{self.store.shown_url}: the reading was stopped")

    def _scheduled(self, span: Span) -> Block | None:
        """Return the block of a schedule and close those before it in its leaf, which are not read; None if there is none."""
        for each in self._passes:
            each.begin_active()
            for leaf in each.leaves:
                if not (any(block.span == span for block in leaf.blocks) or span in leaf.spans):
                    continue
                block = None
                while block is None or block.span != span:
                    if block is not None:
                        self._close(block)
                    block = leaf.blocks.popleft() if leaf.blocks else Block(leaf.spans.popleft(), is_closed=True)
                if not leaf.blocks and not leaf.spans:
                    each.leaves.remove(leaf)
                return self._opened(span) if block.is_closed else block
        return None

    def _opened(self, span: Span) -> Block:
        """Return a block, of which it is being looked up what to request."""
        block = Block(span)

        async def look_up() -> None:
            runs = await self._look_up(*span)
            for run in runs:
                run.block, run.answer = block, Future()
            block.runs = [] if block.is_closed else runs
            block.pending.extend(run for run in block.runs if run.most)

        def looked_up(task: asyncio.Task[None]) -> None:
            self._n_opening -= 1
            if not task.cancelled() and task.exception() is None:  # an error is told to who reads the block
                self._send()

        self._n_opening += 1
        block.opening = asyncio.get_running_loop().create_task(look_up())
        block.opening.add_done_callback(looked_up)
        return block

    def _send(self) -> None:
        """Send requests as long as there are some, and memory for them."""
        allowed = sum(each.schedule.n_bytes for each in self._passes)
        while self._n_requests < MOST_REQUESTS and not self._is_cancelled:
            block = self._next_reading(allowed) or self._next_ahead(allowed)
            if block is None:
                return
            run = block.pending.popleft()
            self._n_requests += 1
            self._count(run, run.most)
            run.task = asyncio.get_running_loop().create_task(self._fetched(run))
            run.task.add_done_callback(partial(self._answered, run))

    def _next_reading(self, allowed: int) -> Block | None:
        """Return the block to send a request of among those that are being read; one that holds nothing waits for no memory."""
        for block in sorted(self._reading, key=lambda block: block.held_bytes):
            if block.pending:
                cost = block.pending[0].most
                within = block.held_bytes + cost <= self.least_bytes or self._held_bytes + cost <= allowed
                if within or not block.held_bytes:
                    return block
        return None

    def _next_ahead(self, allowed: int) -> Block | None:
        """Return the block to send a request of among those that will be read."""
        for each in self._passes:
            for leaf in self._leaves(each) if self._held_bytes < allowed else ():
                if (block := self._pending(leaf)) is not None:
                    return block if self._held_bytes + block.pending[0].most <= allowed else None
        return None

    def _leaves(self, each: _Pass) -> Iterator[_Leaf]:
        """Yield leaves in the order in which they are requested; further ones are begun once it is known what those before need."""
        each.begin_active()
        n_active = each.schedule.at_once
        yield from sorted(each.leaves[:n_active], key=lambda leaf: sum(block.held_bytes for block in leaf.blocks))
        while n_active < len(each.leaves) or (not self._n_opening and each.begin()):
            yield from each.leaves[n_active:]
            n_active = max(n_active, len(each.leaves))

    def _pending(self, leaf: _Leaf) -> Block | None:
        """Return the first block of a leaf that has requests to send; looks up what to request for the next ones."""
        for block in leaf.blocks:
            if block.pending:
                return block
        n_opening = sum(not block.opening.done() for block in leaf.blocks if block.opening is not None)
        while leaf.spans and n_opening < _OPENED_AHEAD and self._n_opening < _MOST_OPENED:
            leaf.blocks.append(self._opened(leaf.spans.popleft()))
            n_opening += 1
        return None

    async def _fetched(self, run: Run) -> Fetched | None:
        """Return what was received of a run: large ones in ranges, and as a whole where the store serves none."""
        if run.most > WHOLE_BYTES and self.store.serves_ranges:
            answer = await self._joined(run)
        else:
            answer = await self.store.fetch(run.key, run.span, run.most)
        if answer is not None and run.span is not None and not answer.is_range:
            whole = await self.store.fetch(run.key, None, self._most_object)
            return None if whole is None else replace(whole, data=whole.data[slice(*run.span)])
        return answer

    async def _joined(self, run: Run) -> Fetched | None:
        """Return what was received of a run that was requested in ranges; as a whole if these do not fit together."""
        start = 0 if run.span is None else run.span[0]
        first = await self.store.fetch(run.key, (start, start + RANGE_BYTES))
        if first is None or not first.is_range:
            return first if first is None or run.span is not None else await self.store.fetch(run.key, None, run.most)
        stop, n_first = first.total if run.span is None else run.span[1], len(first.data)
        if stop - start > run.most:
            return replace(first, data=memoryview(b""))
        joined, limit = np.empty(stop - start, dtype=np.uint8), asyncio.Semaphore(_RANGES_AT_ONCE)
        joined[:n_first] = np.frombuffer(first.data, dtype=np.uint8)

        async def receive(low: int, high: int) -> bool:
            async with limit:
                answer = await self.store.fetch(run.key, (low, high))
                if answer is None or not answer.is_range or len(answer.data) != high - low:
                    return False
                joined[low - start : high - start] = np.frombuffer(answer.data, dtype=np.uint8)
                return not answer.version.differs(first.version)

        spans = ranges(start + n_first, stop, RANGE_BYTES)
        if all(await asyncio.gather(*(receive(*span) for span in spans))):
            return replace(first, data=memoryview(joined.data))
        return replace(first, is_range=False) if run.span else await self.store.fetch(run.key, None, run.most)

    def _answered(self, run: Run, task: asyncio.Task[Fetched | None]) -> None:
        """Take the answer to a request."""
        self._n_requests -= 1
        error = self._stopped() if task.cancelled() else task.exception()
        if run.answer is not None:
            if error is not None:
                run.answer.set_exception(error)
            else:
                found = task.result()
                self._count(run, 0 if found is None else len(found.data))
                run.answer.set_result(found)
        if error is not None or run.block is None or run.block.is_closed:
            self._release(run)
        self._send()

    def _count(self, run: Run, n_bytes: int) -> None:
        if run.block is not None:
            run.block.held_bytes += n_bytes - run.cost
        self._held_bytes += n_bytes - run.cost
        run.cost = n_bytes

    def _close(self, *blocks: Block) -> None:
        """Release the memory of blocks that nobody needs, and stop their requests."""
        for block in blocks:
            block.is_closed = True
            block.pending.clear()
            if block.opening is not None:
                block.opening.cancel()
            for run in block.runs:
                if run.task is not None and not run.task.done():
                    run.task.cancel()
                else:
                    self._release(run)

    def _release(self, run: Run, sends: bool = False) -> None:
        """Release the memory of what was received."""
        if run.task is not None and run.task.done():
            self._count(run, 0)
            run.task = None
            if run.block is not None and run.block.is_closed:
                run.answer = None
        if sends:
            self._send()


def ranges(start: int, stop: int, most: int) -> list[Span]:
    """Return equal ranges of at most `most` bytes from `start` to `stop`."""
    n = -(-(stop - start) // most)
    return list(pairwise([start + (stop - start) * i // n for i in range(n + 1)])) if n else []
