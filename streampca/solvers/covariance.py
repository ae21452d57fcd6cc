"""Exact PCA by the d × d covariance matrix: one reading, then the eigenpairs of what was accumulated.

Where the matrix exceeds the memory and this solver was asked for by name, `disk_covariance` takes over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from typing_extensions import override

from streampca.accumulators import ExactIntegerCovariance
from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.centring import product_dtype
from streampca.accumulators.covariance import panel_rows
from streampca.errors import PlanError
from streampca.execution.readings import Reading, Readings
from streampca.formatting import as_text
from streampca.linalg.cross_validation import N_GROUPS
from streampca.models.pca import PCAModel
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.planning.covariance import (
    grouped_accumulator,
    plan_covariance,
    plan_cross_validated,
    plan_sampling_groups,
)
from streampca.planning.covariance_accumulators import accumulator_of, general_form
from streampca.planning.plan import Plan
from streampca.planning.work import Resources
from streampca.solvers import disk_covariance
from streampca.solvers.base import ContinuableSolver
from streampca.solvers.covariance_model import solve_model
from streampca.solvers.result import Accumulated, Fit
from streampca.sources.base import Source

_ON_DISK_FROM = 2048  # features; below, the matrix takes 32 MiB at most and is not what takes the room


class CovarianceSolver(ContinuableSolver):
    """Exact, by the d × d covariance matrix."""

    name = "covariance"

    @override
    def plan(self, resources: Resources) -> Plan:
        """Return the plan of the fit, with the matrix on disk if it does not fit in memory and this solver was named.

        Raises
        ------
        PlanError
            If that does not fit either, or else with what the matrix on disk would take.
        """
        source, parameters = self.source, self.parameters
        resources = _with_weights(resources, source, parameters)
        if parameters.n_components == "cross_validation":
            return plan_cross_validated(source, parameters, resources)
        accumulator, n_components = accumulator_of(parameters, source), parameters.count(source)
        try:
            return plan_covariance(source, accumulator, n_components, resources)
        except PlanError as error:
            if source.shape[1] < _ON_DISK_FROM or parameters.remove is not None:  # tiles on disk have no residuals
                raise
            refusal = str(error)
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

    @override
    def plan_with_groups(self, resources: Resources, plan: Plan, *, always: bool = False) -> Plan | None:
        """Return `plan` with the covariances of the groups that sampling errors leave out in turn, None where another way is better."""
        source, parameters = self.source, self.parameters
        if plan.tile_groups or parameters.n_components == "cross_validation" or parameters.remove is not None:
            return None
        weighted = _with_weights(resources, source, parameters)
        return plan_sampling_groups(source, parameters, weighted, plan, always=always)

    @override
    def reason_chosen(self, plan: Plan) -> str:
        """Return why ``solver="auto"`` chose `plan`."""
        if 2 * plan.n_samples > plan.n_features:
            return "chosen because one reading is enough, and there are more samples than half the features"
        return "chosen because one reading is enough, and there are few features or gram does not do"

    @override
    def accumulated(self, plan: Plan, accumulator: AnyAccumulator | None = None) -> Readings[Accumulated]:
        """Read the rows once and return their state; raise `PlanError` if the matrix is to be on disk."""
        source, parameters = self.source, self.parameters
        if plan.tile_groups:
            raise PlanError(
                f"the {plan.n_features:,} x {plan.n_features:,} matrix would be on disk, where it is not a state that rows could be added "
                f"to: use fit, or give it more memory; {plan.notes[-1]}"
            )
        if parameters.n_components == "cross_validation":
            return (yield from _by_group(source, parameters, plan, N_GROUPS))
        if plan.sampling_errors == "groups":
            return (yield from _by_group(source, parameters, plan, parameters.sampling_errors))
        covariance = replace(accumulator_of(parameters, source), n_threads=plan.threads_per_leaf)
        (state,) = (yield Reading(source, (covariance,), plan, parameters.sample_weight)).take()
        general, state, n_left_out = general_form(replace(covariance, n_threads=plan.threads), state)
        return Accumulated(replace(general, n_threads=plan.threads), state, n_left_out)

    @override
    @classmethod
    def solve_model(cls, fitted: FittedState, work: str) -> PCAModel:
        """Return the model of a covariance matrix."""
        return solve_model(fitted, work)

    @override
    def work_of(self, plan: Plan) -> str:
        """Return the data type whose rounding the products carry: of small integers nothing but the last step is rounded."""
        exact = isinstance(accumulator_of(self.parameters, self.source), ExactIntegerCovariance)
        return "float64" if exact else plan.work_dtype

    @override
    def readings(self, plan: Plan) -> Readings[Fit]:
        """Read the rows, once or, with the matrix on disk, once for each group of tiles; return their principal components."""
        source, parameters = self.source, self.parameters
        if plan.tile_groups:
            return (yield from disk_covariance.readings(source, parameters, plan))
        fit = yield from super().readings(plan)
        # A state of all rows, without those of their groups, would not give the number of components again.
        return replace(fit, fitted_state=None) if parameters.n_components == "cross_validation" else fit


def _with_weights(resources: Resources, source: Source, parameters: Parameters) -> Resources:
    """Return `resources` with what weights of samples take: of a panel, the rows whose weight is not zero are copied."""
    if parameters.sample_weight is None:
        return resources
    n, d = source.shape
    panel = 8 * d * min(n, panel_rows(d, product_dtype(source.dtype, d)))
    return resources.holding("weights", resources.threads * panel)


def _by_group(source: Source, parameters: Parameters, plan: Plan, n_groups: int) -> Readings[Accumulated]:
    """Read `source` once and return the state of all rows, with those of the groups that are left out in turn."""
    by_group = replace(grouped_accumulator(parameters, source, n_groups), n_threads=plan.threads_per_leaf)
    (state,) = (yield Reading(source, (by_group,), plan, parameters.sample_weight)).take()
    shared = replace(by_group, n_threads=plan.threads).inner
    forms = [general_form(shared, group) for group in state.groups]
    general: Any = replace(forms[0][0], n_threads=plan.threads)
    groups, left_out = tuple(form[1] for form in forms), sum(form[2] for form in forms)
    total = general.init(source.shape[1])
    for group in groups:
        total = general.absorb(total, group)
    return Accumulated(general, total, left_out, groups)
