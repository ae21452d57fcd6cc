"""Several fits of one source that share passes: they are planned and run together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streampca.errors import StreamPCAError
from streampca.execution.checkpoint.progress_log import ProgressLog
from streampca.execution.checkpoint.resume import plan_as_before
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.readings import Readings, Together, run_together
from streampca.formatting import as_text
from streampca.planning.many import ManyPlan, plan_together
from streampca.planning.memory import ALLOWANCE_BYTES
from streampca.planning.plan import Plan, with_read_ahead
from streampca.planning.work import for_workers, worker_limits
from streampca.solvers.fit import resources_of
from streampca.solvers.result import quality_bytes
from streampca.sources.base import Source

if TYPE_CHECKING:
    from streampca.typing import DaskClient


@dataclass(frozen=True)
class PlannedFit:
    """A fit of one of several models."""

    plan: Callable[[int, int], Plan]
    """Returns its plan for a ceiling of the memory in bytes and a number of threads of this process."""
    readings: Callable[[Plan], Readings[Any]]
    """Asks for the readings of a plan and returns the result."""


def plan_many(
    source: Source,
    fits: Mapping[str, PlannedFit],
    memory: int | str | None,
    threads: int | None = None,
    *,
    client: DaskClient | None = None,
    read_ahead: int | None = None,
    quality: bool = False,
) -> ManyPlan:
    """Return the plan of `fits` that share their readings of `source`; reads metadata only.

    Every model has the blocks and leaves of a fit alone, or those of the majority where they differ. As many leaves run at
    once as fit with the states of all models. `quality` says that the quality of the data is examined in the first reading,
    once for all models.

    Raises
    ------
    PlanError
        If one of the models alone, or all together, do not fit in the memory that is allowed.
    """
    limits = worker_limits(client)
    with resources_of(source, memory, threads, limits) as resources:
        process, n_threads = resources.process_bytes + ALLOWANCE_BYTES, resources.threads
        examining = quality_bytes(source, n_threads, "mean") if quality else 0

        def planned(n_threads: int) -> tuple[dict[str, Plan], Plan]:
            plans = {name: _planned(name, fit, resources.allowed_bytes, n_threads) for name, fit in fits.items()}
            return plans, plan_together(plans, resources.allowed_bytes, process, examining)

        plans, together = planned(n_threads)
        if not together.budget.fits and n_threads > 1:  # the most threads with which all fit, else one
            fewer = range(2, n_threads)
            n_threads = 1 + bisect_left(fewer, True, key=lambda n: not planned(n)[1].budget.fits)
            plans, together = planned(n_threads)
        if not together.budget.fits:
            most = max(plans, key=lambda name: plans[name].projected_bytes)
            raise together.budget.refusal(
                "fit fewer models, or ",
                subject=f"{len(plans)} models from one reading: ",
                beside=f" and {most} alone {as_text(plans[most].projected_bytes)}",
            )
    together = with_read_ahead(together, source, read_ahead)
    plans = {name: for_workers(plan, limits, together.budget) for name, plan in plans.items()}
    return ManyPlan(plans, for_workers(together, limits))


def run_many(
    source: Source, fits: Mapping[str, PlannedFit], plan: ManyPlan, progress: ProgressCallback | None = None
) -> Together[Any]:
    """Return the results of `fits`, which share their readings of `source` as `plan` says."""
    asking = {name: fit.readings(plan.plans[name]) for name, fit in fits.items()}
    return run_together(asking, plan.together, active_client(source), progress)


def recorded_plans(log: ProgressLog, plan: ManyPlan) -> ManyPlan:
    """Return `plan` with the plans of the stopped run where blocks or leaves would be others, and record it in `log`."""
    stored = (log.plan or {}).get("models", {})
    plans = {name: plan_as_before(stored[name], each) if name in stored else each for name, each in plan.plans.items()}
    used = replace(plan, plans=plans)
    log.plan = used.to_dict()
    return used


def _planned(name: str, fit: PlannedFit, allowed_bytes: int, threads: int) -> Plan:
    """Return the plan of one model; its name is in front of errors."""
    try:
        return fit.plan(allowed_bytes, threads)
    except StreamPCAError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (f"{name}: {error.args[0]}", *error.args[1:])
        raise
