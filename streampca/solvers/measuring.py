"""What comes along with every fit: copied rows, data quality, and what its readings cost."""

from __future__ import annotations

import time
from dataclasses import replace

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.rows import RowSample
from streampca.execution.readings import Meters, Reading, Readings, relayed, with_beside
from streampca.planning.plan import Plan
from streampca.solvers.base import AnyFit
from streampca.solvers.fitted_steps import after_steps
from streampca.solvers.quality import QualityFound
from streampca.sources.base import Source


def measured(
    readings: Readings[AnyFit],
    source: Source,
    plan: Plan,
    keep_rows: int = 0,
    examining: tuple[AnyAccumulator, ...] = (),
) -> Readings[AnyFit]:
    """Return the fit of `readings` with what they cost, `keep_rows` rows copied out of the stream, and what `examining` found."""
    began, meters = time.perf_counter(), Meters()
    sample = (RowSample(source.shape[0], keep_rows, str(source.dtype)),) if keep_rows else ()
    beside = (*sample, *examining)
    reading = after_steps(source, plan, with_beside(readings, Reading(source, beside, plan)))
    fit, states = yield from relayed(reading, meters)
    fit = replace(
        fit,
        count=meters.count,
        n_passes=meters.n_readings,
        stream_seconds=meters.seconds,
        solve_seconds=time.perf_counter() - began - meters.seconds,
    )
    if keep_rows:
        fit = replace(fit, samples=states[0])
    return replace(fit, quality=QualityFound(examining, states[len(sample) :])) if examining else fit
