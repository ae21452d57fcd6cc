"""One fit for each group of rows, the fit within groups and the fit of the group means, in one pass."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from streampca.accumulators.covariance import Covariance, CovarianceState
from streampca.accumulators.on_device import on_device
from streampca.accumulators.rows import Moments
from streampca.accumulators.wrappers import ByGroup
from streampca.block import Block
from streampca.errors import DataError, NotAvailableError, PlanError
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.readings import Reading, run_fit
from streampca.formatting import as_text, plural
from streampca.labels import time_in_words
from streampca.linalg.tiles import TileGrid
from streampca.models import certificate_sentences as sentences
from streampca.models.pca import PCAModel
from streampca.models.rounding import with_decoding
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.planning.columns import require_rows
from streampca.planning.plan import Plan, with_read_ahead, with_repeated_reads
from streampca.planning.work import Resources, for_workers, worker_limits
from streampca.solvers.capabilities import require_together
from streampca.solvers.covariance import CovarianceSolver, accumulator_of
from streampca.solvers.fit import resources_of
from streampca.solvers.fitted_steps import fit_steps
from streampca.solvers.on_device import device_note, with_device
from streampca.solvers.removing import Removing, regressors_of
from streampca.solvers.result import Accumulated, Fit
from streampca.solvers.state import capped, solve
from streampca.sources.alignment import places_named
from streampca.sources.base import ReadCount, Source
from streampca.system.device import HOST, device_of
from streampca.system.process import one_blas_thread
from streampca.typing import FloatArray, IntArray

_PLAIN_SQUARES = (1e-300, 1e300)
"""Between these, sums of squares, the lower end times the sum of weights, neither underflow nor overflow."""
_OBJECT_BYTES = 8192
"""Memory of the objects of an estimator, its model and its state beside their numbers: 7 kB were measured for 16,000 groups."""
_PLAIN_MEAN = 2.0**53
"""Below this, float64 holds every integer."""


@dataclass(frozen=True)
class Groups:
    """Which group each row belongs to."""

    names: tuple[Any, ...]
    """Label of each group."""
    codes: IntArray
    """Number of the group of each row, ``(n_samples,)``."""

    def accumulator(self, source: Source, parameters: Parameters) -> ByGroup:
        """Return what accumulates the covariance of the rows of each group."""
        return ByGroup(accumulator_of(parameters, source), self.codes, len(self.names))


@dataclass(frozen=True)
class StatesOfGroups:
    """States of all groups after the reading, before anything is solved."""

    groups: tuple[FittedState, ...]
    """The state of each group, in the order of their numbers."""
    pooled: FittedState
    """The state within groups."""
    between: FittedState | None
    """The state of the group means; None for one group."""
    plan: Plan
    """The plan that was carried out."""
    count: ReadCount
    """What the reading cost."""
    seconds: float
    """Time of the reading."""
    removing: RemovedOfGroups | None = None
    """What was removed from the rows of all groups before; None = nothing."""

    def fit(self, fitted: FittedState, model: PCAModel | None = None) -> Fit:
        """Return the fit of one of the states, with as many components as its rows can give; `model` is that of the state, if it is known."""
        began = time.perf_counter()
        return Fit(
            model=solve(fitted) if model is None else model,
            plan=self.plan,
            count=self.count,
            stream_seconds=self.seconds,
            solve_seconds=time.perf_counter() - began,
            n_passes=self.plan.passes,
            fitted_state=fitted if self.removing is None else None,
        )


@dataclass(frozen=True)
class RemovedOfGroups:
    """What regression on all rows took from them before they were divided into groups."""

    removing: Removing
    """The regression, after its reading."""
    groups: Groups
    """The groups of the rows."""

    @cached_property
    def _freedom(self) -> FloatArray:
        """Return how many degrees of freedom of its rows the regression took from each group: its share of the trace of the projection."""
        regressors, n_groups = self.removing.regressors, len(self.groups.names)
        rows = regressors.orthogonal
        weights = np.ones(len(rows.codes)) if self.removing.weights is None else self.removing.weights
        leverage = 1 / regressors.group_weights[rows.codes] + np.square(rows.columns).sum(axis=1) / weights.sum()
        return np.bincount(self.groups.codes, weights * leverage, n_groups).astype(np.float64)

    def n_means(self, number: int | None) -> int:
        """Return how many means and slopes a group lost, its own mean among them; None for all rows within groups."""
        if number is not None:
            return max(1, math.ceil(float(self._freedom[number]) - 1e-6))
        return self.removing.n_regressors + len(self.groups.names) - 1

    def about_mean_of(self, model: PCAModel, fitted: FittedState) -> FittedState:
        """Return the state of residuals about the mean of the rows that a model has, of which the mean of its residuals is a part."""
        regression = self.removing.fitted
        assert regression is not None  # noqa: S101 for the type checker: after the first reading
        own = model.mean - regression.mean
        return replace(fitted, state=replace(fitted.state, origin=fitted.state.origin - own))

    def model(self, model: PCAModel, number: int | None, *, of_means: bool = False) -> PCAModel:
        """Return the model of residuals of a group, of all rows for None, or of group means, as one of rows: with what was removed, and their mean."""
        fitted, rows = self.removing.fitted, self.removing.regressors.rows
        assert fitted is not None  # noqa: S101 for the type checker: after the first reading
        own = rows if number is None else rows.take(np.flatnonzero(self.groups.codes == number))
        mean, rank = fitted.mean + model.mean, 1 if of_means else self.n_means(number)
        fitted = replace(fitted, mean=mean, mean_remainder=None, rows=None if of_means else own, rank=rank)
        certificate = model.certificate.saying(sentences.of_residuals(self.removing.n_regressors))
        model = replace(model, mean=mean, removal=fitted, certificate=certificate)
        return with_decoding(model, mean, removed=self.removing.removed()[1])


@dataclass(frozen=True)
class GroupFits:
    """Fits of all groups; those of the groups themselves are solved when they are asked for."""

    found: StatesOfGroups
    """The states of the groups."""
    models: dict[int, PCAModel]
    """Models of the groups that were solved before they were asked for, by number."""
    pooled: Fit
    """The fit of the covariance within groups."""
    between: Fit | None
    """The fit of the group means; None for one group."""

    def fits(self) -> Iterator[Fit]:
        """Yield the fit of each group, in the order of their numbers."""
        with one_blas_thread():
            for number, fitted in enumerate(self.found.groups):
                yield self.found.fit(fitted, self.models.get(number))


def plan_fits_of_groups(source: Source, parameters: Parameters, groups: Groups) -> Plan:
    """Return the plan of a fit of each group; reads metadata only.

    Raises
    ------
    NotAvailableError, ParameterError
        For parameters that do not go together with groups.
    DataError
        If a group has not more rows than `ddof`.
    PlanError
        If the matrices of all groups do not fit in the memory that is allowed, with how many would.
    """
    require_groups(source, parameters)
    require_rows(source, parameters)
    counts = np.bincount(groups.codes, minlength=len(groups.names))
    few = np.flatnonzero(counts <= parameters.ddof)
    if len(few):
        raise DataError(
            f"group {_shown(groups.names[few[0]])} has {plural(int(counts[few[0]]), 'row')}, but ddof={parameters.ddof} needs at least "
            f"{parameters.ddof + 1} ({plural(len(few), 'such group')}): leave these rows out, or join groups"
        )
    if parameters.device != HOST:
        device_of(parameters.device)  # a part of the process from here on
    client = active_client(source)
    limits = worker_limits(client)
    with resources_of(source, parameters.memory, parameters.threads, limits) as resources:
        regressors = regressors_of(source, parameters)
        if regressors is not None:
            resources = replace(resources, companions=(*resources.companions, Removing(regressors, source)))
            rows = regressors.rows  # of which the model of each group has its own
            resources = resources.holding("removal", rows.columns.nbytes + rows.codes.nbytes)
        resources = with_device(resources, parameters, source)
        plan = _plan_groups(source, parameters, groups.accumulator(source, parameters), resources)
    if regressors is not None:
        note = "one earlier reading fits the regression of all rows, whose residuals are divided into groups"
        plan = replace(plan, passes=2, bytes_to_read=2 * plan.bytes_to_read, notes=(*plan.notes, note))
    plan = with_read_ahead(with_repeated_reads(plan, source), source, parameters.read_ahead)
    if parameters.device != HOST:
        plan = plan.with_notes([device_note(plan, source, parameters)])
    return for_workers(plan, limits)


def _plan_groups(source: Source, parameters: Parameters, by_group: ByGroup, resources: Resources) -> Plan:
    """Return how the covariances of all groups, and that within groups, are accumulated within the memory that is allowed.

    Beside their states there are the codes, the models and the pooled matrix.

    Raises
    ------
    PlanError
        If they do not fit: with what is projected, and how many groups would.
    """
    d, wanted = source.shape[1], parameters.count(source)
    k = min(source.shape) if wanted is None else wanted

    def planned(n_groups: int) -> Plan:
        models = (n_groups + 1) * (8 * (k * d + 8 * d) + _OBJECT_BYTES)
        beside = 2 * by_group.codes.nbytes + models + 2 * by_group.accumulator.state_bytes(d)
        solver = CovarianceSolver(source, parameters)
        return solver.plan_by_group(replace(by_group, n_groups=n_groups), wanted, resources, beside)

    def too_many(n_groups: int) -> bool:
        try:
            planned(n_groups)
        except PlanError:
            return True
        return False

    n_groups = by_group.n_groups
    try:
        plan = planned(n_groups)
    except PlanError as error:
        low = bisect_left(range(1, n_groups), True, key=too_many)
        most = f"at most {low} groups would fit" if low else "not even one group would fit"
        raise PlanError(f"{n_groups} groups, with a covariance matrix each: {error}; {most}") from error
    states = as_text(by_group.state_bytes(d))
    return replace(plan, reason=f"exact; {n_groups} matrices of {d:,} x {d:,}, one for each group, take {states}")


def read_groups(
    source: Source,
    parameters: Parameters,
    groups: Groups,
    plan: Plan,
    progress: ProgressCallback | None = None,
    phase: str = "fit",
) -> StatesOfGroups:
    """Read `source` once and return the states of all groups, of what is within groups, and of the group means.

    With `remove` it is read twice: groups are those of the residuals of all rows, whose means may differ from 0.
    """
    began, removed, count = time.perf_counter(), None, ReadCount()
    by_group: Any = replace(groups.accumulator(source, parameters), n_threads=plan.threads_per_leaf)
    client = active_client(source)
    run_fit(fit_steps(source, plan), client, progress)
    with places_named(source), one_blas_thread():
        if parameters.device != HOST:
            by_group = on_device(by_group, parameters.device) or by_group
        reading: Any = Reading(source, (by_group,), plan, parameters.sample_weight, phase)
        regressors = regressors_of(source, parameters)
        if regressors is not None:
            removing = Removing(regressors, source, np.dtype(plan.work_dtype), parameters.sample_weight)
            first = removing.asked(replace(reading, accumulators=(Moments(),)))
            count += removing.answered(first.make(client, progress)).count
            reading = removing.asked(replace(reading, phase="pass 2" if phase == "fit" else f"{phase}, pass 2"))
            removed = RemovedOfGroups(removing, groups)
        answer = reading.make(client, progress)
        (state,), count = answer.take(), count + answer.count
        states: list[FittedState] = []
        shared = replace(by_group, n_threads=plan.threads).inner
        for number, of_group in enumerate(state.groups):
            general, general_state, n_left_out = shared.stored_form(of_group)
            own = parameters if removed is None else replace(parameters, n_regressors=removed.n_means(number))
            if states:  # the rest is the same for every group
                states.append(replace(states[0], state=general_state, n_left_out=n_left_out))
                if removed is not None:
                    states[-1] = replace(states[-1], parameters=replace(own, sample_weight=None))
                continue
            rows = Accumulated(replace(general, n_threads=plan.threads), general_state, n_left_out)
            fitted = rows.fitted_state(source, own, plan)
            states.append(replace(fitted, source=fitted.source | {"solver": plan.solver}))
        del state
        between, pooled = _between(states) if len(states) > 1 else None, _pooled(states)
        if removed is not None:
            pooled = replace(pooled, parameters=replace(pooled.parameters, n_regressors=removed.n_means(None)))
        seconds = time.perf_counter() - began
        return StatesOfGroups(tuple(states), pooled, between, plan, count, seconds, removed)


def _shown(name: object) -> str:
    """Return the name of a group for a message: a time in ISO 8601, anything else as Python writes it."""
    return time_in_words(name) if isinstance(name, np.datetime64) else repr(name)


def fit_groups(
    source: Source, parameters: Parameters, groups: Groups, plan: Plan, progress: ProgressCallback | None = None
) -> GroupFits:
    """Read `source` once and return the fits of all groups, of what is within groups, and of the group means.

    An eigenproblem takes a hundred times as long as the rows of a small group, so those of groups are solved when they are asked
    for. Here are those that may be an error, which says of which group, and with `remove` all: their models have what was removed.
    """
    found, models = read_groups(source, parameters, groups, plan, progress), dict[int, PCAModel]()
    removed = found.removing
    with one_blas_thread():
        solved = _doubtful(found.groups).tolist() if removed is None else range(len(found.groups))
        for number in solved:
            model = _solved(found.groups[number], f"group {_shown(groups.names[number])}")
            models[number] = model if removed is None else removed.model(model, number)
        within, between = _solved(found.pooled, "the rows within groups"), None
        pooled = found.fit(found.pooled, within if removed is None else removed.model(within, None))
        if found.between is not None:
            model = _solved(found.between, "the group means")
            between = found.fit(found.between, model if removed is None else removed.model(model, None, of_means=True))
            between = replace(between, fitted_state=None)
    # Degrees of freedom, on which limits and rules for the number of components depend.
    certificate = replace(pooled.model.certificate, group_means=len(groups.names))
    pooled = replace(pooled, model=replace(pooled.model, certificate=certificate), fitted_state=None)
    return GroupFits(found, models, pooled, between)


def _solved(fitted: FittedState, what: str) -> PCAModel:
    """Return the model of a state; a `DataError` says `what` it was made of."""
    try:
        return solve(fitted)
    except DataError as error:
        error.args = (f"{what}: {error.args[0]}",)
        raise


def _doubtful(states: Sequence[FittedState]) -> IntArray:
    """Return the numbers of the states whose eigenproblem may be an error: of rules for the number of components, all."""
    first = states[0]
    if isinstance(first.parameters.n_components, str):
        return np.arange(len(states))
    grid: TileGrid = first.accumulator.grid(first.n_features)
    on_diagonal = grid.diagonal(np.arange(grid.size, dtype=np.float64)).astype(np.intp)
    squares = np.stack([fitted.state.scatter[on_diagonal] for fitted in states])
    means = np.stack([fitted.state.mean for fitted in states])
    weights = np.array([fitted.state.weight for fitted in states])
    factor = 1.0 if first.parameters.feature_weight is None else max(1.0, float(first.parameters.feature_weight.max()))
    low, high = _PLAIN_SQUARES
    plain = (squares == 0) | ((squares > low * np.maximum(weights, 1.0)[:, None]) & (squares < high / factor))
    plain &= np.abs(means) < _PLAIN_MEAN
    return np.flatnonzero(~plain.all(axis=1) | (weights <= first.parameters.ddof))


def require_groups(source: Source | None, parameters: Parameters) -> None:
    """Raise `NotAvailableError` for what does not go together with groups; without a `source`, whatever the rows."""
    if parameters.solver not in ("auto", CovarianceSolver.name):
        raise NotAvailableError(f"solver={parameters.solver!r} does not take groups: use solver='covariance'")
    require_together(source, parameters, "fits of groups")


def _pooled(states: Sequence[FittedState]) -> FittedState:
    """Return the state of the scatter within groups, Σ S, about the mean of all rows; its divisor is W − ddof for each group."""
    first = states[0]
    ddof = first.parameters.ddof * len(states)
    total = _total(states)
    grid: TileGrid = first.accumulator.grid(first.n_features)
    scatter = np.zeros(grid.size)
    for fitted in states:
        scatter += fitted.state.scatter
    parameters = replace(first.parameters, ddof=ddof, n_regressors=len(states))
    accumulator = replace(first.accumulator, ddof=ddof)
    n_samples = sum(fitted.state.n_samples for fitted in states)
    squares = sum(fitted.state.weight_squares for fitted in states)
    state = replace(total, n_samples=n_samples, weight_squares=squares, scatter=scatter)
    return _of_all(states, replace(first, accumulator=accumulator, parameters=parameters, state=state))


def _between(states: Sequence[FittedState]) -> FittedState:
    """Return the state of the group means, each with the weight of its group; at most one component less than groups."""
    first = states[0]
    asked, limit = first.parameters.n_components, min(len(states) - 1, first.n_features)
    # Rules separate components from the noise of rows, which means of groups do not have.
    every = asked is None or isinstance(asked, str)
    parameters = replace(first.parameters, n_components=limit if every else capped(asked, limit))
    return _of_all(states, replace(first, parameters=parameters, state=_total(states)))


def _total(states: Sequence[FittedState]) -> CovarianceState:
    """Return the state of the group means, weighted by the weights of the groups."""
    means = np.stack([fitted.state.mean for fitted in states])
    weights = np.array([fitted.state.weight for fitted in states])
    covariance: Covariance = states[0].accumulator
    return covariance.update(covariance.init(means.shape[1]), Block(means, weights=weights))


def _of_all(states: Sequence[FittedState], fitted: FittedState) -> FittedState:
    """Return `fitted` with the counts of all groups."""
    return replace(fitted, n_left_out=sum(each.n_left_out for each in states))
