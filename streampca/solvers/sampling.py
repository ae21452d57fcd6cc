"""Sampling errors of a fit: planned before it, and computed after it from groups that it kept or one more reading."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from streampca.errors import ParameterError
from streampca.execution.readings import Meters, Reading, Readings, relayed
from streampca.linalg.scaling import Scaling
from streampca.models.pca import Model
from streampca.models.rows import residuals_of
from streampca.models.sampling_errors import SamplingErrors
from streampca.models.score_groups import ScoreGroups, moments_bytes, moments_scratch_bytes
from streampca.planning.plan import Plan
from streampca.planning.scores import plan_scores
from streampca.solvers.base import AnyFit
from streampca.solvers.sampling_figures import errors_of
from streampca.solvers.sampling_groups import errors_of_groups
from streampca.sources.base import Source
from streampca.typing import FloatArray

_LEAST_ROWS = 2
"""Rows of a group at least."""


def require_sampling(n_groups: int, n_samples: int) -> None:
    """Raise `ParameterError` for a number of groups that the rows cannot be divided into."""
    if n_groups == 0:
        return
    if n_groups < 2 or n_groups * _LEAST_ROWS > n_samples:
        most = n_samples // _LEAST_ROWS
        raise ParameterError(
            f"sampling_errors={n_groups}: expected 0 for none, or from 2 to {most} groups of the {n_samples:,} rows, at least "
            f"{_LEAST_ROWS} in each; about 20 are usual"
        )


def with_sampling(plan: Plan, source: Source, n_groups: int, *, scaled: bool) -> Plan:
    """Return `plan` with what sampling errors by `n_groups` take: one more reading.

    Parameters
    ----------
    plan : Plan
        Plan of the fit.
    source : Source
        What is read.
    n_groups : int
        Number of groups; 0 returns the plan as it is.
    scaled : bool
        Whether features are scaled.

    Raises
    ------
    PlanError
        If it does not fit.
    """
    if not n_groups:
        return plan
    k = plan.n_components or min(source.shape)
    extra = moments_bytes(k, source.shape[1] if scaled else 0, n_groups) * (2 + plan.leaves_in_flight)
    extra += plan.leaves_in_flight * moments_scratch_bytes(k, source.shape[1], scaled=scaled)
    budget = plan.budget.plus(extra, plan.allowed_bytes)
    if not budget.fits:
        raise budget.refusal(f"sampling errors take {extra:,} bytes; set sampling_errors=0, or ")
    plan = replace(
        plan,
        budget=budget,
        sampling_errors="reading",
        passes=plan.passes + 1,
        bytes_to_read=plan.bytes_to_read + plan.bytes_to_read // max(1, plan.passes),
        flops=plan.flops + 2.0 * source.shape[0] * source.shape[1] * k,
    )
    return plan.with_notes([f"sampling errors by {n_groups} groups of rows: one more reading, for the scores"])


@dataclass(frozen=True)
class Sampling:
    """How the sampling errors of a fit are computed."""

    source: Source
    """Rows of the fit."""
    plan: Plan
    """Plan of the fit."""
    n_groups: int
    """Groups of consecutive rows."""
    weights: FloatArray | None = None
    """Weights of the rows, ``(n_samples,)``; None = all 1."""
    scaling: Scaling = False
    """How features were scaled."""
    memory: int | str | None = None
    """Ceiling of the fit."""
    threads: int | None = None
    """Threads of the fit."""

    def by_reading(self, model: Model) -> Readings[SamplingErrors]:
        """Ask for one more reading of the rows and return the sampling errors."""
        rows, plan = residuals_of(self.source, model), self.plan.unshuffled()
        if plan.axis == "features":
            plan = plan_scores(rows, model, self.memory, self.threads)
        groups = ScoreGroups(model, rows.shape[0], self.n_groups)
        (moments,) = (yield Reading(rows, (groups,), plan, self.weights, "sampling errors")).take()
        return errors_of(model, moments, "reading", self.scaling)

    def added_to(self, fit: AnyFit) -> Readings[AnyFit]:
        """Return `fit` with its sampling errors from the groups that it kept, or by another reading."""
        model = fit.model
        if self.plan.sampling_errors == "groups" and model.linear is not None and fit.fitted_state is not None:
            began, state = time.perf_counter(), fit.fitted_state
            errors = errors_of_groups(
                model.linear, state.accumulator.grid(state.n_features), state.groups, self.scaling
            )
            return replace(
                fit,
                model=model.changed(sampling_errors=errors),
                fitted_state=replace(state, groups=()),
                solve_seconds=fit.solve_seconds + time.perf_counter() - began,
            )
        meters = Meters()
        errors = yield from relayed(self.by_reading(model), meters)
        return replace(
            fit,
            model=model.changed(sampling_errors=errors),
            count=fit.count + meters.count,
            n_passes=fit.passes + meters.n_readings,
            stream_seconds=fit.stream_seconds + meters.seconds,
        )
