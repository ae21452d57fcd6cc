"""The ways from a source to a model: one module for each solver, each with a plan and a run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import Any

    from streampca.engine.execute import ProgressCallback
    from streampca.engine.parameters import Fit, Parameters
    from streampca.engine.plan import Plan, Resources
    from streampca.sources.base import Source

SOLVERS = ("covariance", "gram", "qr")
"""Names of the solvers that run; each is a module of this package."""


class Line(Protocol):
    """What a module of this package offers."""

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


def line_of(solver: str) -> Line:
    """Return the module that carries out `solver`."""
    line: Line = import_module(f"streampca.engine.lines.{solver}")
    return line
