"""The solvers by name, and which fits keep a state."""

from __future__ import annotations

from typing import Any

from streampca.planning.plan import Plan
from streampca.solvers.adaptive import AdaptiveSolver
from streampca.solvers.base import ContinuableSolver, PCASolver
from streampca.solvers.capabilities import TRAITS, WAYS
from streampca.solvers.covariance import CovarianceSolver
from streampca.solvers.gram import GramSolver
from streampca.solvers.kernel.base import KernelMethod
from streampca.solvers.kernel.empirical_map import EmpiricalMapMethod
from streampca.solvers.kernel.exact import ExactMethod
from streampca.solvers.kernel.nystrom import NystromMethod
from streampca.solvers.kernel.nystrom_extension import ExtensionMethod
from streampca.solvers.qr import QRSolver
from streampca.solvers.sketch import SketchSolver

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


def obstacle_to_state(wanted: Any, plan: Plan | None = None) -> str | None:
    """Return why a fit by the parameters `wanted`, and the `plan` if one is given, keeps no state that rows could be added to.

    None where it keeps one; without a plan, whatever the rows.
    """
    if hasattr(wanted, "kernel"):
        return "kernel PCA keeps no state that rows could be added to: fit all rows at once, or use PCA"
    solver = wanted.solver if plan is None else plan.solver
    if solver in SOLVERS and solver not in CONTINUABLE:
        return f"solver={solver!r} keeps no state that rows could be added to: use one of {', '.join(CONTINUABLE)}"
    if plan is not None and plan.tile_groups:
        return "a covariance matrix that is on disk, because it does not fit in memory, keeps no state that rows could be added to: give more memory"
    own = CONTINUABLE[solver].refuses_state if solver in CONTINUABLE else {}
    for trait, instead in {**own, **WAYS["states that rows can be added to"]}.items():
        if (found := TRAITS[trait](None, wanted)) is not None:
            named = f"solver={solver!r} with {found}" if trait in own else found
            return f"{named} keeps no state that rows could be added to: {instead}"
    return None
