"""Choice of the solver: the named one, or the best whose plan fits, with the costs of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from streampca.errors import NotAvailableError, PlanError, StreamPCAError
from streampca.linalg.selection import Count
from streampca.parameters import Parameters
from streampca.planning.memory import ALLOWANCE_BYTES
from streampca.planning.plan import Plan, with_repeated_reads
from streampca.planning.work import Resources
from streampca.solvers.adaptive import AdaptiveSolver
from streampca.solvers.approximate import reading_limits
from streampca.solvers.base import ContinuableSolver, PCASolver, Solver
from streampca.solvers.capabilities import TRAITS, WAYS
from streampca.solvers.covariance import CovarianceSolver
from streampca.solvers.gram import GramSolver
from streampca.solvers.kernel.base import KernelMethod, KernelParameters
from streampca.solvers.kernel.empirical_map import EmpiricalMapMethod
from streampca.solvers.kernel.exact import ExactMethod
from streampca.solvers.kernel.nystrom import NystromMethod
from streampca.solvers.kernel.nystrom_extension import ExtensionMethod
from streampca.solvers.qr import QRSolver
from streampca.solvers.sketch import SketchSolver
from streampca.sources.base import Source
from streampca.typing import Json

SOLVERS: dict[str, type[PCASolver]] = {
    solver.name: solver for solver in (CovarianceSolver, GramSolver, QRSolver, AdaptiveSolver, SketchSolver)
}
"""The solvers of linear PCA. A new one joins by its own module and its place here."""
CONTINUABLE = {name: solver for name, solver in SOLVERS.items() if issubclass(solver, ContinuableSolver)}
"""Those whose states can be continued and merged."""
METHODS: dict[str, type[KernelMethod]] = {
    method.name: method for method in (ExactMethod, NystromMethod, ExtensionMethod, EmpiricalMapMethod)
}
"""The methods of kernel PCA, likewise."""
_WIDE_FROM = 512
"""Features from which the second reading of the Gram matrix pays."""
_EXACT_FLOPS = 1e13
"""Work above which ``"auto"`` does not choose exact kernel PCA: some minutes on one thread."""
_FIGURES = (
    *("passes", "sketch", "projected_bytes", "bytes_to_read", "flops", "work_dtype"),
    *("expected_seconds", "expected_by"),
)


def obstacle_to_state(wanted: Any, plan: Plan | None = None) -> str | None:
    """Return why a fit by the parameters `wanted`, and the `plan` if one is given, keeps no state that rows could be added to.

    None where it keeps one; without a plan, whatever the rows.
    """
    if hasattr(wanted, "kernel"):
        return "kernel PCA keeps no state to add rows to: fit all rows at once, or use PCA"
    solver = wanted.solver if plan is None else plan.solver
    if solver in SOLVERS and solver not in CONTINUABLE:
        return f"solver={solver!r} keeps no state to add rows to: use one of {', '.join(CONTINUABLE)}"
    if plan is not None and plan.tile_groups:
        return "a covariance matrix that is on disk, because it does not fit in memory, keeps no state to add rows to: allow more memory"
    if plan is not None and solver in CONTINUABLE and plan.axis == "features":
        return "a sketch of the samples, which is taken because one of the features does not fit in memory, keeps no state to add rows to: allow more memory"
    own = CONTINUABLE[solver].refuses_state if solver in CONTINUABLE else {}
    for trait, instead in {**own, **WAYS["states that rows can be added to"]}.items():
        if (found := TRAITS[trait](None, wanted)) is not None:
            named = f"solver={solver!r} with {found}" if trait in own else found
            return f"{named} keeps no state to add rows to: {instead}"
    return None


def solvers_for(parameters: Parameters | KernelParameters) -> Mapping[str, type[Solver[Any, Any]]]:
    """Return by name the solvers that take such parameters."""
    return SOLVERS if isinstance(parameters, Parameters) else METHODS


def solver_of(plan: Plan) -> type[Solver[Any, Any]]:
    """Return the solver that `plan` names."""
    return SOLVERS[plan.solver] if plan.solver in SOLVERS else METHODS[plan.solver]


def plan_by(solver: str, source: Source, parameters: Any, resources: Resources) -> Plan:
    """Return the plan of a fit by the solver of that name.

    Raises
    ------
    NotAvailableError, ParameterError
        If it does not take such rows or parameters.
    PlanError
        If the work does not fit in memory.
    """
    chosen = solvers_for(parameters)[solver]
    chosen.require(source, parameters)
    return with_repeated_reads(chosen(source, parameters).plan(resources), source)


def with_time(plan: Plan, resources: Resources) -> Plan:
    """Return `plan` with the seconds that a fit is expected to take."""
    seconds = solver_of(plan).seconds(plan, resources.companions)
    return replace(plan, expected_seconds=seconds, expected_by="nominal rates")


def choose(source: Source, parameters: Parameters | KernelParameters, resources: Resources) -> Plan:
    """Return the plan of the solver that was named, or of the one that ``"auto"`` takes.

    Raises
    ------
    PlanError
        If none fits in the memory that is allowed, with what would.
    """
    if isinstance(parameters, KernelParameters):
        return _choose_method(source, parameters, resources)
    if parameters.solver != "auto":
        return plan_by(parameters.solver, source, parameters, resources)
    return _choose_solver(source, parameters, resources)


def _choose_solver(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return the plan of the better exact solver that fits; else of the better approximate one.

    With a tolerance, approximate answers are allowed, and the first of the plans that fit is the fastest.
    """
    n, d = source.shape
    order = ["gram", "covariance"] if 2 * n <= d and d >= _WIDE_FROM else ["covariance", "gram"]
    if isinstance(parameters.selection(source), Count) and parameters.n_components is not None:
        # More passes are faster from a sketch; the best answer of one pass is that of incremental updates.
        several = reading_limits(parameters)[0] > 1
        order += ["sketch", "adaptive"] if several else ["adaptive", "sketch"]
    refusals = []
    plans = []
    for solver in order:
        try:
            plan = plan_by(solver, source, parameters, resources)
        except NotAvailableError:
            continue  # not for rows of this kind
        except PlanError as error:
            if resources.process_bytes + ALLOWANCE_BYTES > resources.allowed_bytes:
                raise  # whatever the solver
            refusals.append(f"solver {solver}: {error}")
            continue
        plans.append(with_time(plan, resources))
        if parameters.tolerance is None or solver in ("sketch", "adaptive"):
            break
    if not plans:
        raise PlanError("; ".join(refusals))
    return min(plans, key=lambda plan: plan.expected_seconds or 0.0).with_notes(refusals)


def _choose_method(source: Source, parameters: KernelParameters, resources: Resources) -> Plan:
    """Return the plan of the method of kernel PCA that was named; else with the reason for it.

    ``"auto"`` is exact where the kernel matrix of all rows fits in memory and takes at most `_EXACT_FLOPS`, unless a
    sampling of landmarks was named, and always for kernels that are known not to be positive semi-definite: a few
    landmarks give few of their directions, and nothing bounds the error.
    """
    n, m, sampling = source.shape[0], parameters.n_landmarks, parameters.sampling
    method = parameters.method
    if method != "auto":
        why = "asked for by name"
    elif parameters.given is not None:
        method, why = "nystrom", "chosen because landmarks were given"
    elif n <= m:
        method, why = "exact", f"chosen because there are no more rows than the {m:,} landmarks asked for"
    elif parameters.kernel.definite is False:
        method = "exact"
        why = "chosen because the kernel is not positive semi-definite: landmarks would give no certificate"
    elif sampling != "auto":
        method, why = "nystrom", f"chosen because sampling={sampling!r} asks for landmarks"
    else:
        method = "nystrom"
        try:
            exact = plan_by("exact", source, parameters, resources)
        except PlanError:
            why = f"chosen because the {n:,} x {n:,} kernel matrix does not fit in memory"
        else:
            why = f"chosen because exact kernel PCA of {n:,} rows would take {exact.flops:.1g} flops"
            if exact.flops <= _EXACT_FLOPS:
                method, why = "exact", "chosen because the kernel matrix fits in memory"
    try:
        plan = plan_by(method, source, parameters, resources)
    except PlanError as error:
        raise PlanError(f"method {method}: {error}{_what_fits(method, source, parameters, resources)}") from error
    return replace(plan, reason=f"{plan.reason}; {why}")


def _what_fits(method: str, source: Source, parameters: KernelParameters, resources: Resources) -> str:
    """Return the other way that would fit, with fewer landmarks where need be; nothing where none would."""
    most = parameters.n_wanted(source.shape[0])
    for m in dict.fromkeys((most, *(count for count in (2000, 1000, 500, 200, 100, 50) if count < most))):
        if method == "nystrom" and (m == most or parameters.given is not None):
            continue
        if not isinstance(parameters.n_components, int) or m >= parameters.n_components:
            wanted = replace(parameters, method="nystrom", n_landmarks=m)
            try:
                other = METHODS["nystrom"](source, wanted).plan(resources)
            except StreamPCAError:
                continue
            gib = other.projected_bytes / 2**30
            return f"; method='nystrom' with n_landmarks={m} would fit, with {gib:.2f} GiB projected"
    return ""


def with_alternatives(plan: Plan, source: Source, parameters: Any, resources: Resources) -> Plan:
    """Return `plan` with the figures of every other solver, or why it does not do."""

    def figures() -> Iterator[Json]:
        for name in solvers_for(parameters):
            if name == plan.solver:
                continue
            try:
                other = with_time(plan_by(name, source, parameters, resources), resources)
            except StreamPCAError as error:
                yield {"solver": name, "fits": False, "why": str(error)}
                continue
            yield {"solver": name, "fits": True, "why": other.reason} | {
                each: getattr(other, each) for each in _FIGURES
            }

    others = tuple(figures())
    refusals = {f"solver {other['solver']}: {other['why']}" for other in others}  # notes of `auto`
    plan = replace(plan, alternatives=others, notes=tuple(note for note in plan.notes if note not in refusals))
    if plan.solver not in SOLVERS:
        return plan
    by_name = parameters.solver != "auto"
    why = "asked for by name" if by_name else SOLVERS[plan.solver](source, parameters).reason_chosen(plan)
    return replace(plan, reason=f"{plan.reason}; {why}")
