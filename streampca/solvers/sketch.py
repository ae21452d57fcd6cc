"""One-pass sketch: products of the covariance matrix with vectors that a pilot or chance chose; further passes if asked."""

from __future__ import annotations

from streampca.parameters import Parameters
from streampca.planning.plan import Plan, Resources
from streampca.solvers.approximate import gather, run, solve_model
from streampca.solvers.plan_sketch import plan_sketch
from streampca.sources.base import Source

__all__ = ["gather", "plan", "run", "solve_model"]


def plan(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return the plan of a fit; raise `PlanError` if it does not fit."""
    return plan_sketch(source, parameters, resources, "sketch")
