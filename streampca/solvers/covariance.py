"""Exact PCA by the d × d covariance matrix: one reading, then the eigenpairs of what was accumulated.

Where the matrix exceeds the memory and this solver was asked for by name, `disk_covariance` takes over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streampca.accumulators import ExactIntegerCovariance, Joint, RowSample
from streampca.accumulators.centring import work_dtype
from streampca.accumulators.covariance import panel_rows
from streampca.errors import PlanError
from streampca.execution.drive import accumulate
from streampca.execution.progress import ProgressCallback
from streampca.formatting import as_text
from streampca.linalg.selection import Count
from streampca.models.pca import PCAModel
from streampca.parameters import Parameters
from streampca.planning.covariance import plan_covariance
from streampca.planning.covariance_accumulators import accumulator_of, general_form
from streampca.planning.plan import Plan, Resources
from streampca.solvers import disk_covariance
from streampca.solvers.base import ContinuableSolver
from streampca.solvers.covariance_model import solve_model
from streampca.solvers.result import Accumulated, Fit
from streampca.sources.base import Source
from streampca.typing import Json

_ON_DISK_FROM = 2048  # features; below, the matrix takes 32 MiB at most and is not what takes the room


def plan(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return the plan of a fit; raise `PlanError` if it does not fit."""
    selection = parameters.selection(source)
    n_components = selection.n_components if isinstance(selection, Count) else None
    if parameters.sample_weight is not None:
        # Of a panel, the rows whose weight is not zero are copied.
        panel = 8 * source.shape[1] * panel_rows(source.shape[1], work_dtype(source.dtype))
        resources = replace(resources, process_bytes=resources.process_bytes + resources.threads * panel)
    accumulator: Any = accumulator_of(parameters, source)
    try:
        return plan_covariance(source, accumulator, n_components, resources)
    except PlanError as error:
        if source.shape[1] < _ON_DISK_FROM:
            raise
        return _plan_on_disk(source, parameters, accumulator, n_components, resources, str(error))


def _plan_on_disk(
    source: Source,
    parameters: Parameters,
    accumulator: Any,
    n_components: int | None,
    resources: Resources,
    refusal: str,
) -> Plan:
    """Return the plan with the matrix on disk if this solver was named; else say in the `PlanError` what it would take."""
    by_name = parameters.solver == "covariance"
    try:
        plan = disk_covariance.plan(source, accumulator, n_components, resources)
    except PlanError as error:
        raise PlanError(f"{refusal}; {error}" if by_name else refusal) from error
    if by_name:
        return plan.with_notes([f"in memory: {refusal}"])
    raise PlanError(
        f"{refusal}; solver='covariance', asked for by name, would take {plan.passes} passes and {as_text(plan.disk_bytes)} of disk"
    )


class CovarianceSolver(ContinuableSolver):
    """Exact, by the d × d covariance matrix."""

    name = "covariance"

    def plan(self, source: Source, parameters: Parameters, resources: Resources) -> Plan:
        """Return the plan of a fit; raise `PlanError` if it does not fit in memory."""
        return plan(source, parameters, resources)

    def accumulator_of(self, source: Source, parameters: Parameters, plan: Plan) -> Any:
        """Return the accumulator of rows of this kind."""
        return accumulator_of(parameters, source)

    def reason_chosen(self, plan: Plan, parameters: Parameters) -> str:
        """Return why ``solver="auto"`` chose `plan`."""
        if 2 * plan.n_samples > plan.n_features:
            return "chosen because one reading is enough, and there are more samples than half the features"
        return "chosen because one reading is enough, and there are few features or gram does not do"

    def accumulate(
        self,
        source: Source,
        parameters: Parameters,
        plan: Plan,
        *,
        client: Any = None,
        keep_rows: int = 0,
        progress: ProgressCallback | None = None,
        accumulator: Any = None,
    ) -> Accumulated:
        """Read `source` once and return its state; raise `PlanError` if the matrix is to be on disk."""
        if plan.tile_groups:
            raise PlanError(
                f"the {plan.n_features:,} x {plan.n_features:,} matrix would be on disk, where it is not a state that rows could be added "
                f"to: use fit, or give it more memory; {plan.notes[-1]}"
            )
        covariance: Any = replace(accumulator_of(parameters, source), n_threads=plan.threads_per_leaf)
        rows = RowSample(source.shape[0], keep_rows, str(source.dtype))
        both: Any = Joint((covariance, rows)) if keep_rows else covariance
        weights = parameters.sample_weight
        state, count = accumulate(source, both, plan, client=client, progress=progress, weights=weights)
        state, samples = state if keep_rows else (state, None)
        general, state, n_left_out = general_form(replace(covariance, n_threads=plan.threads), state)
        if samples is not None and parameters.missing != "error":
            samples = samples.complete()
        return Accumulated(replace(general, n_threads=plan.threads), state, samples, count, n_left_out)

    def solve_model(
        self,
        state: Any,
        accumulator: Any,
        parameters: Parameters,
        work: str,
        source: Json,
        n_left_out: int = 0,
    ) -> PCAModel:
        """Return the model of a covariance matrix."""
        return solve_model(state, accumulator, parameters, work, source, n_left_out)

    def work_of(self, source: Source, parameters: Parameters, plan: Plan) -> str:
        """Return the data type whose rounding the products carry: of small integers nothing but the last step is rounded."""
        exact = isinstance(accumulator_of(parameters, source), ExactIntegerCovariance)
        return "float64" if exact else plan.work_dtype

    def run(
        self,
        source: Source,
        parameters: Parameters,
        plan: Plan,
        *,
        client: Any = None,
        keep_rows: int = 0,
        progress: ProgressCallback | None = None,
    ) -> Fit:
        """Read `source`, once or, with the matrix on disk, once for each group of tiles; return its principal components."""
        run = disk_covariance.run if plan.tile_groups else super().run
        return run(source, parameters, plan, client=client, keep_rows=keep_rows, progress=progress)
