"""Solvers: one module each, with a plan and a run that leads from a source to a fitted model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import Any

    from streampca.execution.task import ProgressCallback
    from streampca.models.pca import PCAModel
    from streampca.parameters import Parameters
    from streampca.planning.plan import Plan, Resources
    from streampca.solvers.result import Accumulated, Fit
    from streampca.sources.base import Source

SOLVERS = ("covariance", "gram", "qr", "adaptive", "sketch")
"""Names of the solvers that run; each is a module of this package."""
APPROXIMATE = ("adaptive", "sketch")
"""Names of those whose answer carries an error, and a certificate of it."""


class Solver(Protocol):
    """What a module of this package offers."""

    def accumulator_of(self, parameters: Parameters) -> Any:
        """Return what the blocks of the (first) reading are folded into."""
        ...

    def plan(self, source: Source, parameters: Parameters, resources: Resources) -> Plan:
        """Return the plan; raise `PlanError` if the work does not fit."""
        ...

    def run(
        self,
        source: Source,
        parameters: Parameters,
        plan: Plan,
        *,
        client: Any,
        keep_rows: int,
        progress: ProgressCallback | None,
    ) -> Fit:
        """Read the source and return the model."""
        ...


class ContinuableSolver(Solver, Protocol):
    """A line whose state can be added to and merged before it is solved."""

    def gather(
        self,
        source: Source,
        parameters: Parameters,
        plan: Plan,
        *,
        client: Any = None,
        keep_rows: int = 0,
        progress: ProgressCallback | None = None,
        **like: Any,
    ) -> Accumulated:
        """Read the source once and return its state; a sketch takes the test matrix of an `accumulator` if one is given."""
        ...

    def solve_model(
        self,
        state: Any,
        accumulator: Any,
        parameters: Parameters,
        work: str,
        source: dict[str, Any],
        n_left_out: int = 0,
    ) -> PCAModel:
        """Return the model of a state."""
        ...


def continuable_solver_of(solver: str) -> ContinuableSolver:
    """Return the module that carries out `solver`, one of `CONTINUED`."""
    line: ContinuableSolver = import_module(f"streampca.solvers.{solver}")
    return line


def solver_of(solver: str) -> Solver:
    """Return the module that carries out `solver`."""
    line: Solver = import_module(f"streampca.solvers.{solver}")
    return line
