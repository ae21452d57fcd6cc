"""Leaves on the workers of a `distributed.Client`: a window of tasks, whose results are merged in the plan's order.

Dask places tasks, moves them, and runs those again that are lost with a worker. This module counts what Dask gives up, names
the rows that end workers, and keeps the number of states in memory as planned. None of this influences any number.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from cloudpickle import dumps, loads

from streampca.errors import BlockFailedError, ClusterError, StreamPCAError
from streampca.execution.leaf import ATTEMPTS, LeafResult, Task, may_pass, merge_neighbours, run_leaf
from streampca.execution.progress import Meter
from streampca.logs import logger
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.planning.work import other_version, scheduler_gone, workers_of
from streampca.sources.base import Source
from streampca.sources.grid import Schedule
from streampca.system.process import one_blas_thread
from streampca.typing import DaskClient, DaskFuture
from streampca.version import __version__

_State = TypeVar("_State")
_log = logger(__name__)

_SMALL_BYTES = 2**20  # what leaves have in common does not go into every task where it is larger
_FETCHERS = 4  # results that are fetched at the same time, about as many as a client of Dask does
_AHEAD = 2  # states of branches that are fetched before they are next in order: they are large
_PATIENCE = 3  # times as many lost workers, where others are lost as well
_LOOK_SECONDS = 2.0  # between two looks at the workers
_STEP_SECONDS = 1.0


def on_cluster(
    client: DaskClient, task: Task[_State], plan: Plan, meter: Meter, first: int = 0
) -> Generator[LeafResult[_State]]:
    """Yield the results of `task` for the leaves from `first` on in the plan's order, computed by the workers of `client`.

    A result holds ``task.leaves_per_result(plan)`` leaves, read and merged by one task.

    Raises
    ------
    BlockFailedError
        If a leaf ended every worker that it was on.
    ClusterError
        If Dask gives up because there are no workers, or the scheduler does not answer.
    """
    reading = _Reading(client, task, plan, meter, first)
    try:
        for piece, result in reading.results():
            meter.add(sum(leaf.n_rows for leaf in piece.leaves), result.count.bytes)
            yield result
            del result
    finally:
        reading.close()


@dataclass(eq=False)
class _Piece:
    """Neighbouring leaves whose result comes as one: a single one, or those of a branch."""

    index: int
    """Position in the order of results."""
    leaves: tuple[Leaf, ...]
    """The leaves."""
    key: str = ""
    """Key of its task."""
    future: DaskFuture | None = None
    """Dask's future of its task, None if there is none."""
    failures: int = 0
    """How often Dask lost the task."""
    deaths: int = 0
    """Workers lost while they had it."""
    deaths_alone: int = 0
    """Those of them since the last success that had nothing else of this reading."""
    others_before: int = -1
    """Workers of the cluster that were lost before it was tried alone since its last success; -1 = it was not."""
    alone: bool = False
    """Whether its task runs alone."""
    parts: deque[tuple[Leaf, ...]] = field(default_factory=deque)
    """Parts that are to be tried alone before the whole, so that an error can name one of them."""

    def divide(self) -> None:
        """Have each leaf, or each block of a single leaf, tried alone."""
        if len(self.leaves) > 1:
            self.parts = deque((leaf,) for leaf in self.leaves)
        elif len(spans := self.leaves[0].spans) > 1:
            self.parts = deque((replace(self.leaves[0], edges=span, shuffled=None),) for span in spans)

    @property
    def tried(self) -> tuple[Leaf, ...]:
        """Return what its task reads."""
        return self.parts[0] if self.alone and self.parts else self.leaves


class _Reading(Generic[_State]):
    """One reading by a cluster. Its state is changed by the thread that iterates `results`; others queue calls for it."""

    def __init__(self, client: DaskClient, task: Task[_State], plan: Plan, meter: Meter, first: int):
        self._client, self._plan, self._meter, self._source = client, plan, meter, task.source
        size = self._size = task.leaves_per_result(plan)
        self._first, self._stop = -(-first // size), -(-plan.n_leaves // size)
        self._next = self._needed = self._first
        self._name, self._n_tasks = f"streampca-leaf-{secrets.token_hex(6)}", 0
        common = dumps(getattr(task, task.common))
        apart = len(common) > _SMALL_BYTES
        self._task: Task[_State] = replace(task, **{task.common: None}) if apart else task
        self._common: bytes | None = common if apart else None
        self._carrier: DaskFuture | None = None
        self._pieces: dict[int, _Piece] = {}
        self._running: set[_Piece] = set()
        self._waiting: set[_Piece] = set()
        self._lost: deque[_Piece] = deque()
        self._suspects: deque[_Piece] = deque()
        self._outcomes: dict[int, LeafResult[_State] | BaseException] = {}
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed, self._unanswered, self._n_workers, self._n_lost = threading.Event(), 0.0, -1, 0

    def results(self) -> Generator[tuple[_Piece, LeafResult[_State]]]:
        """Yield pieces and results in order, each as soon as all before it are there; raise an error when it is next in order."""
        for work in (*[self._fetch_in_thread] * min(_FETCHERS, self._stop - self._first), self._look_at_workers):
            threading.Thread(target=work, name="streampca-cluster", daemon=True).start()
        for index in range(self._first, self._stop):
            self._needed = index
            while index not in self._outcomes:
                self._submit_more()
                self._step()
            while not self._events.empty():
                self._events.get()()
            self._submit_more()  # so that workers are busy while the result is merged
            outcome = self._outcomes.pop(index)
            if isinstance(outcome, BaseException):
                raise outcome
            yield self._pieces.pop(index), outcome
            del outcome  # a state is large

    def close(self) -> None:
        """Release all tasks and end the threads; does not wait for either."""
        self._closed.set()
        for piece in self._pieces.values():
            self._release(piece)
        if self._carrier is not None:
            self._carrier.release()
        for _ in range(_FETCHERS):
            self._work.put(None)

    def _step(self) -> None:
        """Wait for an event, at most a second, and handle it; report that there are no workers.

        Raises
        ------
        ClusterError
            If the scheduler has not answered for as long as a worker may be silent: at least a minute.
        """
        try:
            self._events.get(timeout=_STEP_SECONDS)()
            return
        except queue.Empty:
            self._require_connected()
        import dask
        import distributed  # noqa: F401  brings its settings
        from dask.utils import parse_timedelta

        self._unanswered += _STEP_SECONDS
        patience = parse_timedelta(dask.config.get("distributed.scheduler.worker-ttl") or "5 minutes")
        if self._unanswered > max(60.0, float(patience)):
            raise ClusterError(
                f"the scheduler has not answered for {self._unanswered:.0f} s: check that it is still running, and run again"
            )
        if self._n_workers == 0:
            self._meter.wait("the cluster has no workers")

    def _submit_more(self) -> None:
        """Submit what the window holds; where some piece ended workers, that piece alone, as soon as no other runs."""
        for piece in [one for one in self._waiting if one.index < self._needed + _AHEAD]:
            self._fetch(piece)
        if self._suspects:
            if not self._running and self._suspects[0].future is None:
                self._submit(self._suspects[0], alone=True)
            return
        while self._lost:
            self._submit(self._lost.popleft())
        while self._next < min(self._stop, self._needed + self._plan.window):
            first, last = self._next * self._size, min((self._next + 1) * self._size, self._plan.n_leaves)
            piece = self._pieces[self._next] = _Piece(self._next, tuple(map(self._plan.leaf, range(first, last))))
            self._next += 1
            self._submit(piece)

    def _submit(self, piece: _Piece, *, alone: bool = False) -> None:
        self._require_connected()
        piece.alone = alone
        if alone and piece.others_before < 0:
            piece.others_before = self._n_lost
        # What all leaves share is the result of a task and not scattered data, which Dask cannot make again when a worker is lost.
        lost = self._carrier is None or self._carrier.status not in ("pending", "finished")
        if self._common is not None and lost:
            key, self._n_tasks = f"{self._name}-common-{self._n_tasks}", self._n_tasks + 1
            with _without_size_warning(len(self._common)):
                self._carrier = self._client.submit(loads, self._common, key=key, pure=False)
        body = dumps([(self._task.for_leaf(leaf), leaf) for leaf in piece.tried])
        arguments = body, self._carrier, self._plan.leaves_per_worker, piece.tried is piece.leaves, __version__
        piece.key, self._n_tasks = f"{self._name}-{self._n_tasks}", self._n_tasks + 1
        with _without_size_warning(len(body)):
            piece.future = self._client.submit(read_piece, *arguments, key=piece.key, pure=False, retries=ATTEMPTS - 1)
        self._running.add(piece)
        piece.future.add_done_callback(lambda future: self._events.put(partial(self._done, piece, future)))

    def _done(self, piece: _Piece, future: DaskFuture) -> None:
        """Fetch the result of a task, or its error; large states wait on their workers until they are next."""
        if piece.future is not future:
            return
        self._running.discard(piece)
        self._waiting.add(piece)
        if self._size == 1 or piece.alone or future.status != "finished":
            self._fetch(piece)

    def _fetch(self, piece: _Piece) -> None:
        self._waiting.discard(piece)
        if piece.future is not None:
            self._work.put(partial(self._ask_for, piece, piece.future))

    def _fetch_in_thread(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _ask_for(self, piece: _Piece, future: DaskFuture) -> None:
        """Queue what became of a task; waits where its result was lost, until Dask has computed it again."""
        try:
            found: object = future.result()
        except BaseException as error:  # noqa: BLE001 it is judged in the thread of the reading
            found = error
        self._events.put(partial(self._found, piece, future, found))

    def _found(self, piece: _Piece, future: DaskFuture, found: object) -> None:
        """Store a result or an error, or submit the piece again."""
        from distributed import KilledWorker

        if piece.future is not future:
            return
        whole, raised = piece.tried is piece.leaves, future.status == "error"
        if isinstance(found, BaseException):
            self._require_connected()
        self._release(piece)
        if isinstance(found, Failure):
            self._conclude(piece, with_advice(found.error))
        elif isinstance(found, KilledWorker) and found.task == piece.key:
            self._workers_died(piece, found.allowed_failures + 1)
        elif isinstance(found, KilledWorker) or (isinstance(found, BaseException) and not raised):
            # What leaves share was lost, or the connection to the scheduler.
            piece.failures += 1
            if piece.failures == ATTEMPTS:
                self._conclude(piece, retries_exhausted(piece.leaves, found, self._plan))
            elif not piece.alone:
                self._lost.append(piece)
        elif isinstance(found, MemoryError) or (isinstance(found, BaseException) and may_pass(found)):
            self._conclude(piece, retries_exhausted(piece.leaves, found, self._plan))
        elif isinstance(found, BaseException):
            advice = with_advice(found)
            if not isinstance(advice, ClusterError):  # no worker came, or its software is another
                advice = ClusterError(
                    f"Dask gave up on a task: {_in_words(found)}; check the logs and the memory of the workers, start workers and run again"
                )
            raise advice from found
        elif whole:
            self._conclude(piece, found)
        else:
            piece.deaths_alone, piece.others_before = 0, -1
            piece.parts.popleft()

    def _workers_died(self, piece: _Piece, n_workers: int) -> None:
        """Have a piece tried alone that ended `n_workers` workers one after the other; give it up if it ended them alone.

        Where more workers were lost meanwhile than had the piece, it takes three times as many: it may be their bad luck.
        """
        piece.deaths += n_workers
        piece.deaths_alone += n_workers if piece.alone else 0
        late = 2  # the scheduler is asked now and then, so some that are counted were lost before
        others = piece.alone and self._n_lost - piece.others_before > piece.deaths_alone + late
        needed = _PATIENCE * ATTEMPTS if others else ATTEMPTS
        if piece.deaths >= needed and piece.deaths_alone >= needed - 1:
            deaths = piece.deaths, piece.deaths_alone
            self._conclude(piece, workers_killed(piece.tried, deaths, self._source, self._plan.axis))
            return
        first, last = piece.leaves[0].index, piece.leaves[-1].index
        _log.warning("leaves %d to %d: %d workers were lost with them; each is tried alone", first, last, piece.deaths)
        if piece not in self._suspects:
            piece.divide()
            self._suspects.append(piece)

    def _conclude(self, piece: _Piece, outcome: Any) -> None:
        """Store the result or the error of a piece."""
        self._outcomes[piece.index] = outcome
        if piece in self._suspects:
            self._suspects.remove(piece)

    def _release(self, piece: _Piece) -> None:
        """Release a task and its result."""
        self._running.discard(piece)
        self._waiting.discard(piece)
        if piece.future is not None:
            piece.future.release()
            piece.future = None

    def _look_at_workers(self) -> None:
        """Ask the scheduler for its workers now and then; in a thread of its own, because a frozen scheduler never answers."""
        before: set[str] = set()
        while not self._closed.wait(_LOOK_SECONDS):
            try:
                addresses = set(workers_of(self._client))
                self._n_lost += len(before - addresses)  # a process that is started again has another address
                before, self._n_workers, self._unanswered = addresses, len(addresses), 0.0
            except Exception:  # noqa: BLE001 the connection was lost, which `_require_connected` says
                time.sleep(_STEP_SECONDS)

    def _require_connected(self) -> None:
        """Raise `ClusterError` if the client has given up its scheduler."""
        if self._client.status in ("closing", "closed"):
            raise scheduler_gone(self._client)


def _without_size_warning(n_bytes: int) -> AbstractContextManager[object]:
    """Suppress Dask's warning about large tasks where this one has to be large."""
    if n_bytes <= _SMALL_BYTES:
        return nullcontext()
    import dask

    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 PiB"})


_SHOWN_KEYS = 5


def workers_killed(leaves: Sequence[Leaf], deaths: tuple[int, int], source: Source, axis: str) -> BlockFailedError:
    """Return the error for `leaves`, or a block as a leaf, that ended every worker they were on; names rows and chunks.

    `deaths` are workers that were lost with them, and those among them that had nothing else of this run.
    """
    keys = [key for leaf in leaves for start, stop in leaf.spans for key in source.keys(start, stop)]
    chunks = f", chunk{'s' if len(keys) > 1 else ''} {', '.join(keys[:_SHOWN_KEYS])}" if keys else ""
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return BlockFailedError(
        f"{source.description}: {_rows(leaves, axis)}{chunks}{more}: {deaths[0]} workers died while reading this, the last "
        f"{deaths[1]} while reading nothing else; check the logs and the memory of the workers: a chunk that crashes the "
        "decoder is damaged and must be written again"
    )


def retries_exhausted(leaves: Sequence[Leaf], error: BaseException, plan: Plan) -> ClusterError:
    """Return the error for `leaves` whose transient errors did not end, the last of which is `error`."""
    first, last = leaves[0].index, leaves[-1].index
    which = f"leaf {first}" if first == last else f"leaves {first} to {last}"
    return ClusterError(
        f"{which} of {plan.n_leaves} ({_rows(leaves, plan.axis)}) failed {ATTEMPTS} times, last with {_in_words(error)}; check "
        "the logs and the memory of the workers, and run again"
    )


def with_advice(error: BaseException) -> BaseException:
    """Return `ClusterError` for an error of workers or scheduler that lack software; any other error as it is."""
    message = " ".join(str(error).split())
    if isinstance(error, ImportError) or message.startswith("Error during deserialization of the task graph"):
        return ClusterError(
            f"the cluster cannot run streampca: {message}; install the same versions for the scheduler and the workers"
        )
    return error


def _in_words(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return type(error).__name__ + (f": {message}" if message else "")


def _rows(leaves: Sequence[Leaf], axis: str) -> str:
    spans = [span for leaf in leaves for span in leaf.spans]
    start, stop = min(span[0] for span in spans), max(span[1] for span in spans)
    return f"{'rows' if axis == 'samples' else 'features'} {start} to {stop - 1}"


@dataclass(frozen=True)
class Failure:
    """An error as the result of a task: Dask would run a task again that raises it, and it would come again."""

    error: Exception
    """The error."""


def read_piece(body: bytes, common: Any, at_once: int, keep: bool, version: str) -> LeafResult[Any] | Failure | None:
    """Read the leaves in `body` and return their states, merged from left to right.

    The function of every task that reads rows. What may pass (an error of the system, or no memory) is raised, so that Dask
    tries again; every other error is returned.

    Parameters
    ----------
    body : bytes
        Pairs of a `Task`, with only what one leaf needs, and the leaf, pickled by the driver: the scheduler passes on bytes.
    common : object
        What all leaves share, by Dask's own transfer; None where it is in the tasks.
    at_once : int
        Most leaves that this worker may run at once, for its memory; 0 = one for each of its threads.
    keep : bool
        Whether the result is wanted, or only whether there is one.
    version : str
        Version of streampca of the driver: workers may come after it has compared theirs.
    """
    if version != __version__:
        return Failure(other_version(_address(), __version__, version))
    try:
        pairs: list[tuple[Task[Any], Leaf]] = loads(body)
        if common is not None:
            pairs = [(replace(task, **{task.common: common}), leaf) for task, leaf in pairs]
        with _turn(at_once), one_blas_thread():  # Dask sets the threads only in processes that it starts itself
            results = (_read(task, leaf) for task, leaf in pairs)
            (merged,) = merge_neighbours(results, pairs[0][0], len(pairs))
        return merged if keep else None
    except MemoryError:
        raise
    except Exception as error:
        if may_pass(error):
            raise
        return Failure(_portable(error))


def _read(task: Task[Any], leaf: Leaf) -> LeafResult[Any]:
    with task.source.ahead(Schedule.in_order(leaf.spans, leaf.read_ahead_bytes)):
        return run_leaf(task, leaf)


def _portable(error: Exception) -> Exception:
    """Return `error` as it arrives at the driver: an error that cannot be pickled would never do so."""
    if not isinstance(error, StreamPCAError):  # unexpected, so the place counts, which is not pickled
        error.add_note("on a worker:\n" + "".join(traceback.format_tb(error.__traceback__)))
    try:
        arrived = loads(dumps(error))
    except Exception:  # noqa: BLE001 whatever the error does when it is pickled
        arrived = None
    return arrived if isinstance(arrived, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


def _address() -> str:
    """Return the address of this worker."""
    from distributed import get_worker

    return str(get_worker().address)


_turns = threading.Condition()
_running: Counter[str] = Counter()  # leaves by address: a process may have several workers


@contextmanager
def _turn(at_once: int) -> Iterator[None]:
    """Wait until fewer than `at_once` leaves run on this worker, and count as one; Dask itself counts threads, not memory."""
    address = _address()
    with _turns:
        _turns.wait_for(lambda: not at_once or _running[address] < at_once)
        _running[address] += 1
    try:
        yield
    finally:
        with _turns:
            _running[address] -= 1
            _turns.notify_all()
