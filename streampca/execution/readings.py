"""A fit as a generator of passes, and the loops that run the passes of one fit, or of several that share them.

A solver yields what it wants to read and is sent the states back, so it knows neither threads nor clusters, nor whether other
fits read the same rows. What comes along with a fit (copied rows, data quality, residuals) changes readings and answers on their
way (`relayed`) and works with every solver. A stopped run is resumed by asking again: the checkpoint answers what was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from streampca.accumulators.base import AnyAccumulator, settled
from streampca.accumulators.wrappers import InPieces, Joint, OfFeatures
from streampca.block import Block, RowWeights
from streampca.execution.checkpoint.resume import array_digest, next_pass
from streampca.execution.drive import drive
from streampca.execution.leaf import FoldTask, read_ahead
from streampca.execution.progress import Meter, Onward, ProgressCallback
from streampca.planning.many import limited_shape
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf, WorkShape
from streampca.sources.base import ReadCount, Source
from streampca.sources.grid import Schedule
from streampca.sources.table import part_of
from streampca.system.process import one_blas_thread
from streampca.system.workspace import release
from streampca.typing import FloatArray

if TYPE_CHECKING:
    from streampca.typing import DaskClient


_T = TypeVar("_T")


class Answer:
    """What a reading gave: states, and what reading cost. It is taken once, so that nobody else holds on to large states."""

    def __init__(self, states: tuple[Any, ...], count: ReadCount):
        self._states: tuple[Any, ...] = states
        self.count = count
        """Chunks and bytes that were read."""

    def take(self) -> tuple[Any, ...]:
        """Return the states, in the order of the accumulators, and forget them."""
        states, self._states = self._states, ()
        return states


@dataclass(frozen=True)
class Reading:
    """One reading of all rows of a source into the states of accumulators."""

    source: Source
    """Where the rows come from."""
    accumulators: tuple[AnyAccumulator, ...]
    """What is accumulated; the first one may overwrite the rows."""
    plan: Plan
    """Blocks, leaves and threads."""
    weights: FloatArray | None = None
    """Sample weights, ``(n_samples,)``; None = all 1."""
    phase: str = "fit"
    """Name of the reading, for progress and checkpoints."""
    on_block: Callable[[Block], object] | None = None
    """Called with every block, in the order of rows, by methods that need the rows themselves; such a reading is not shared."""
    n_of_progress: int = 1
    """Readings that progress shows as one, of which this is one."""

    @property
    def n_readings(self) -> int:
        """Return how often all rows are read."""
        return 1

    def make(self, client: DaskClient | None, progress: ProgressCallback | None) -> Answer:
        """Read the rows, on threads of this process or on the workers of `client`, and return the states.

        Raises
        ------
        DataError
            If data is missing, damaged or not finite: of several faults, the one in the earliest leaf.
        ClusterError
            If the cluster lost a task for good.
        """
        if self.on_block is not None:
            return self._make_in_order(self.on_block, progress)
        one = len(self.accumulators) == 1
        accumulator = self.accumulators[0] if one else Joint(self.accumulators)
        with self.source.reading():
            record = next_pass(self.phase, self.plan, type(accumulator).__name__)
            start = record.begin(accumulator.init(self.source.shape[1]))
            weights = None if self.weights is None else RowWeights(self.weights)
            task: FoldTask[Any] = FoldTask(self.source, accumulator, weights, record)
            state, count = drive(task, self.plan, record, start, accumulator.absorb, client=client, progress=progress)
        state = settled(state)
        return Answer((state,) if one else state, count)

    def _make_in_order(self, on_block: Callable[[Block], object], progress: ProgressCallback | None) -> Answer:
        (n, d), count = self.source.shape, ReadCount()
        meter, joint = Meter(self.phase, n, progress), Joint(self.accumulators)
        leaf, states = Leaf(0, (*range(0, n, self.plan.rows_per_block), n)), joint.init(d)
        with (
            self.source.reading(),
            self.source.ahead(Schedule.in_order(leaf.spans, self.plan.read_ahead_bytes)),
        ):
            for read in read_ahead(self.source, leaf):
                on_block(read.block)
                states = joint.update(states, read.block)
                count += read.count
                meter.add_block(read.block, read.count)
        release()
        return Answer(settled(states), count)


@dataclass(frozen=True)
class ReadingAlone:
    """A reading that is no accumulation of rows, or not of all of them, so that nothing comes along with it."""

    work: Callable[[DaskClient | None, ProgressCallback | None], tuple[Any, ReadCount]]
    """Reads and returns the only state, and what reading cost."""
    n_readings: int = 0
    """How often all rows are read."""
    n_of_progress: int = 1
    """Readings that progress shows as one."""

    def make(self, client: DaskClient | None, progress: ProgressCallback | None) -> Answer:
        """Return what `work` gives."""
        state, count = self.work(client, progress)
        return Answer((state,), count)


AnyReading: TypeAlias = Reading | ReadingAlone
Readings: TypeAlias = Generator[AnyReading, Answer, _T]
"""A fit: yields readings, is sent answers, and returns its result."""


class Relay(Protocol):
    """Changes readings and answers between a fit and who reads for it."""

    def asked(self, reading: AnyReading) -> AnyReading:
        """Return what is read for `reading`."""
        ...

    def answered(self, answer: Answer) -> Answer:
        """Return what the fit is sent for `answer`."""
        ...


def relayed(readings: Readings[_T], relay: Relay) -> Readings[_T]:
    """Ask what `readings` asks by way of `relay`; return its result."""
    try:
        reading = next(readings)
        while True:
            try:
                answer = yield relay.asked(reading)
                answer = relay.answered(answer)
            except BaseException as error:
                readings.throw(error)  # which may name rows and features in the message, and removes temporary files
                raise
            reading = readings.send(answer)
    except StopIteration as end:
        result: _T = end.value
        return result


class Beside:
    """Accumulators that come along with the first reading of all rows; one reading more where a fit makes none."""

    def __init__(self, accumulators: Sequence[AnyAccumulator]):
        self.accumulators = tuple(accumulators)
        self.states: tuple[Any, ...] | None = None
        """Their states, once they were read."""
        self._asked = False

    def asked(self, reading: AnyReading) -> AnyReading:
        """Return `reading` with the accumulators if it is the first of all rows."""
        self._asked = self.states is None and isinstance(reading, Reading)
        if not self._asked or not isinstance(reading, Reading):
            return reading
        return replace(reading, accumulators=(*reading.accumulators, *self.accumulators))

    def answered(self, answer: Answer) -> Answer:
        """Return `answer` without the states of the accumulators, which are kept here."""
        if not self._asked:
            return answer
        states, n = answer.take(), len(self.accumulators)
        self.states = states[len(states) - n :]
        return Answer(states[: len(states) - n], answer.count)


def with_beside(readings: Readings[_T], reading: Reading) -> Readings[tuple[_T, tuple[Any, ...]]]:
    """Return the result of `readings` and the states of the accumulators of `reading`, which come along, or are read for at the end."""
    beside = Beside(reading.accumulators)
    if not beside.accumulators:
        return (yield from readings), ()
    result = yield from relayed(readings, beside)
    if beside.states is None:
        beside.states = (yield reading).take()
    return result, beside.states


@dataclass
class Meters:
    """What the readings of a fit cost, measured as they pass by."""

    count: ReadCount = field(default_factory=ReadCount)
    """Chunks and bytes that were read."""
    n_readings: int = 0
    """How often all rows were read."""
    seconds: float = 0.0
    """Time of the readings."""

    def asked(self, reading: AnyReading) -> AnyReading:
        """Start the clock."""
        self._began = time.perf_counter()
        self.n_readings += reading.n_readings
        return reading

    def answered(self, answer: Answer) -> Answer:
        """Stop the clock."""
        self.seconds += time.perf_counter() - self._began
        self.count += answer.count
        return answer


def run_fit(readings: Readings[_T], client: DaskClient | None = None, progress: ProgressCallback | None = None) -> _T:
    """Make the `readings` of one fit, on threads of this process or on the workers of `client`, and return its result."""
    several: Onward | None = None
    with one_blas_thread():
        try:
            reading = next(readings)
            while True:
                if progress is None or reading.n_of_progress == 1:
                    several = None
                elif several is None:
                    several = Onward(progress, reading.n_of_progress)
                try:
                    answer = reading.make(client, several or progress)
                except BaseException as error:
                    readings.throw(error)  # where the fit waits, which may name rows and features in the message
                    raise
                if several is not None:
                    several.next_reading()
                reading = readings.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result


@dataclass(frozen=True)
class Together(Generic[_T]):
    """Results of fits that shared their readings."""

    results: dict[str, _T]
    """The results by the names of the fits."""
    n_readings: int
    """Readings of all rows, shared ones counted once."""
    count: ReadCount
    """What these cost."""


def run_together(
    fits: Mapping[str, Readings[_T]],
    shared: Plan,
    client: DaskClient | None = None,
    progress: ProgressCallback | None = None,
) -> Together[_T]:
    """Return the results of `fits`, whose readings are shared: see `_groups` for which of them.

    Each fit runs until it asks for a reading; then the source is read once for all that wait for the same rows, always in the
    order of `fits`. `shared` says how many leaves may run and wait at once, with the memory of all fits (`planning.many`).

    Raises
    ------
    StreamPCAError
        That of the first fit that fails; the others are given up.
    """
    waiting: dict[str, Reading] = {}
    results: dict[str, _T] = {}
    n_readings, count = 0, ReadCount()

    def resume(name: str, answer: Answer | None) -> None:
        """Let a fit go on until it asks for a reading that others may share, or ends."""
        nonlocal n_readings, count
        waiting.pop(name, None)
        try:
            reading = next(fits[name]) if answer is None else fits[name].send(answer)
            while isinstance(reading, ReadingAlone):
                try:
                    alone = reading.make(client, progress)
                except BaseException as error:
                    fits[name].throw(error)
                    raise
                n_readings, count = n_readings + reading.n_readings, count + alone.count
                reading = fits[name].send(alone)
            waiting[name] = reading
        except StopIteration as end:
            results[name] = end.value
        except Exception as error:
            error.add_note(f"in the fit of the model {name!r}")
            raise
        finally:
            release()  # scratch memory, which another fit may need now

    with one_blas_thread():
        try:
            for name in fits:
                resume(name, None)
            while waiting:
                answers: dict[str, Answer] = {}
                for names in _groups(waiting):
                    try:
                        made = _make([waiting[name] for name in names], shared, client, progress)
                    except BaseException as error:
                        fits[names[0]].throw(error)  # which names the rows and columns in the message
                        raise
                    n_readings, count = n_readings + 1, count + made[0].count
                    answers.update(zip(names, made, strict=True))
                    del made
                for name in list(waiting):
                    resume(name, answers.pop(name))
        finally:
            for each in fits.values():
                each.close()
    return Together({name: results[name] for name in fits}, n_readings, count)


def _groups(waiting: Mapping[str, Reading]) -> list[list[str]]:
    """Return the names of the fits that wait, in groups that one reading serves.

    Those that read the same source, or some features of it, with the same weights in the order of its rows; other orders if they
    have the same blocks.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, reading in waiting.items():
        key: tuple[object, ...] = (name,)
        if reading.on_block is None:
            weights = None if reading.weights is None else array_digest(reading.weights)
            order = None if reading.plan.in_row_order else reading.plan.blocks
            key = (id(part_of(reading.source)[0]), weights, order)
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def _make(
    readings: Sequence[Reading], shared: Plan, client: DaskClient | None, progress: ProgressCallback | None
) -> list[Answer]:
    """Return the answers to the readings that wait, all by one reading in the blocks that most of them have."""
    if len(readings) == 1:
        return [readings[0].make(client, progress)]
    first, shape = readings[0], limited_shape([reading.plan for reading in readings], shared)
    accumulators, places = _distinct(readings, shape)
    joined = replace(
        first,
        source=part_of(first.source)[0],
        accumulators=tuple(accumulators),
        plan=first.plan.divided_as(shape),
        phase=" and ".join(dict.fromkeys(reading.phase for reading in readings)),
    )
    answer, used = joined.make(client, progress), set[int]()
    states, answers = answer.take(), list[Answer]()
    for indices in places:
        own = tuple(deepcopy(states[i]) if i in used else states[i] for i in indices)
        used.update(indices)
        answers.append(Answer(own, answer.count))
    return answers


def _distinct(readings: Sequence[Reading], common: WorkShape) -> tuple[list[AnyAccumulator], list[list[int]]]:
    """Return the accumulators of `readings`, those that make the same states once, and which of them each reading has."""
    accumulators: list[AnyAccumulator] = []
    known: dict[object, int] = {}
    places: list[list[int]] = []
    for reading in readings:
        rows, (table, chosen) = reading.plan.rows_per_block, part_of(reading.source)
        pieces = rows if rows < common.rows_per_block else None
        places.append([])
        subset = None if chosen is None else chosen.used.tobytes()
        for part in reading.accumulators:
            same = part.for_reading()
            key = (len(accumulators) if same is None else same, pieces, subset)
            if key not in known:
                known[key] = len(accumulators)
                of_rows = part if pieces is None else InPieces(part, pieces)
                accumulators.append(
                    of_rows if chosen is None else OfFeatures(of_rows, chosen.columns, table.column_major)
                )
            places[-1].append(known[key])
    return accumulators, places
