"""Several fits that share their readings: each runs until it needs a reading, then the source is read once for all of them.

Every fit runs in a thread of its own, one at a time and always in the same order, so results do not depend on timing.
Readings and checkpoints are made by the thread that called `run_together`, where signals arrive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.joint import InPieces, Joint
from streampca.execution.checkpoint.resume import array_digest
from streampca.execution.drive import read_once
from streampca.execution.sharing import Reading, sharing
from streampca.execution.some_features import OfFeatures
from streampca.planning.many import limited_shape
from streampca.planning.plan import Plan
from streampca.planning.shape import WorkShape
from streampca.sources.base import ReadCount, Source
from streampca.sources.subsets import SubsetSource
from streampca.system.workspace import release

_T = TypeVar("_T")


@dataclass(frozen=True)
class Together(Generic[_T]):
    """Results of fits that shared their readings."""

    results: dict[str, _T]
    """The results by the names of the fits."""
    n_readings: int
    """Readings by accumulators, those of single fits included."""
    count: ReadCount
    """What these cost."""


class _CancelledError(BaseException):
    """A fit is given up because another one failed."""


class _Fit(Generic[_T]):
    """A fit in a thread that runs only between `resume` and its next reading."""

    def __init__(self, name: str, run: Callable[[], _T]):
        self.reading: Reading | None = None
        """The reading that it waits for; None once it has ended."""
        self.answer: tuple[Any, ReadCount] | Exception | None = None
        """State and cost of that reading, or why it failed."""
        self.result: _T
        """The result, once it has ended."""
        self.name, self._run = name, run
        self._turn, self._yielded = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._failure: Exception | None = None  # of a reading, which is no fault of this fit, whatever it makes of it
        self._cancelled = self._running = False
        self._thread = threading.Thread(target=copy_context().run, args=(self._main,), daemon=True)

    def resume(self) -> None:
        """Run the fit until it waits for a reading or ends; raise its error."""
        self.reading, self._running = None, True
        self._turn.release()
        if not self._thread.is_alive():
            self._thread.start()
        self._yielded.acquire()
        self._running = False
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """End the thread, unless a signal came while it ran: then it ends at its next reading, or with the process."""
        self._cancelled = True
        if self._thread.is_alive():
            self._turn.release()
            if not self._running:
                self._thread.join()

    def read(self, reading: Reading) -> tuple[Any, ReadCount]:
        """Wait until `reading` has been made together with those of other fits; called in the thread of the fit."""
        release()  # scratch memory, which another fit may need now
        self.reading = reading
        self._yielded.release()
        self._wait()
        answer, self.answer = self.answer, None
        if isinstance(answer, Exception):
            self._failure = answer
            raise answer
        if answer is None:
            raise RuntimeError("a fit was resumed before its reading was made")
        return answer

    def _main(self) -> None:
        try:
            self._wait()
            with sharing(self):
                self.result = self._run()
        except BaseException as error:  # noqa: BLE001 raised by `resume` in the thread that waits
            if self._failure is None:
                error.add_note(f"in the fit of the model {self.name!r}")
            self._error = error
        finally:
            release()
            self._yielded.release()

    def _wait(self) -> None:
        self._turn.acquire()
        if self._cancelled:
            raise _CancelledError


def run_together(fits: Mapping[str, Callable[[], _T]], shared: Plan) -> Together[_T]:
    """Return the results of `fits`, whose readings are shared: see `_groups` for which of them.

    `shared` says how many leaves may run and wait at once, with the memory of all fits (`planning.many`).

    Raises
    ------
    StreamPCAError
        That of the first fit that fails; the others are given up.
    """
    members = [_Fit(name, run) for name, run in fits.items()]
    n_readings, count = 0, ReadCount()
    try:
        for member in members:
            member.resume()
        while waiting := [member for member in members if member.reading is not None]:
            for group in _groups(waiting):
                readings = [member.reading for member in group if member.reading is not None]
                try:
                    answers = _read(readings, shared)
                except Exception as error:
                    group[0].answer = error
                    group[0].resume()  # which names the rows and columns in the message
                    raise
                n_readings, count = n_readings + 1, count + answers[0][1]
                for member, answer in zip(group, answers, strict=True):
                    member.answer = answer
                del answers
            for member in waiting:
                member.resume()
        return Together({member.name: member.result for member in members}, n_readings, count)
    finally:
        for member in members:
            member.cancel()


def _groups(waiting: Sequence[_Fit[_T]]) -> list[list[_Fit[_T]]]:
    """Return the fits that wait, in groups that one reading serves.

    Those that read the same source, or some features of it, with the same weights in the order of its rows; other orders if they
    have the same blocks.
    """
    groups: dict[tuple[object, ...], list[_Fit[_T]]] = {}
    for member in waiting:
        reading = member.reading
        if reading is not None:
            weights = None if reading.weights is None else array_digest(reading.weights)
            order = None if reading.plan.shape.in_row_order else reading.plan.shape.blocks
            groups.setdefault((id(_whole(reading.source)), weights, order), []).append(member)
    return list(groups.values())


def _read(readings: Sequence[Reading], shared: Plan) -> list[tuple[Any, ReadCount]]:
    """Return the answers to `readings`, all by one reading in the blocks that most of them have."""
    first = readings[0]
    if len(readings) == 1:
        return [read_once(first)]
    shape = limited_shape([reading.plan.shape for reading in readings], shared)
    accumulators, places = _distinct(readings, shape)
    phase = " and ".join(dict.fromkeys(reading.phase for reading in readings))
    plan = replace(first.plan, shape=shape)
    both = Joint(tuple(accumulators))
    joint, count = read_once(replace(first, source=_whole(first.source), accumulator=both, plan=plan, phase=phase))
    used: set[int] = set()
    answers: list[tuple[Any, ReadCount]] = []
    for reading, indices in zip(readings, places, strict=True):
        states = tuple(deepcopy(joint[i]) if i in used else joint[i] for i in indices)
        used.update(indices)
        answers.append((states if isinstance(reading.accumulator, Joint) else states[0], count))
    return answers


def _distinct(readings: Sequence[Reading], common: WorkShape) -> tuple[list[AnyAccumulator], list[list[int]]]:
    """Return the accumulators of `readings`, those that make the same states once, and which of them each reading has."""
    accumulators: list[AnyAccumulator] = []
    known: dict[object, int] = {}
    places: list[list[int]] = []
    for reading in readings:
        accumulator, rows = reading.accumulator, reading.plan.rows_per_block
        pieces = rows if rows < common.rows_per_block else None
        places.append([])
        source = reading.source
        subset = source.used.tobytes() if isinstance(source, SubsetSource) else None
        for part in accumulator.parts if isinstance(accumulator, Joint) else (accumulator,):
            key = (_state_key(part, len(accumulators)), pieces, subset)
            if key not in known:
                known[key] = len(accumulators)
                of_rows = part if pieces is None else InPieces(part, pieces)
                accumulators.append(
                    OfFeatures(of_rows, source.columns, source.column_major)
                    if isinstance(source, SubsetSource)
                    else of_rows
                )
            places[-1].append(known[key])
    return accumulators, places


def _whole(source: Source) -> Source:
    """Return the source with all features that is read for `source`."""
    return source.source if isinstance(source, SubsetSource) else source


def _state_key(accumulator: AnyAccumulator, index: int) -> object:
    """Return what is equal for accumulators that make the same states; `index` for those that say nothing of it."""
    for_reading = getattr(accumulator, "for_reading", None)
    return index if for_reading is None else for_reading()
