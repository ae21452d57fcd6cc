"""Incremental low-rank update over blocks in shuffled order: the best answer of one pass; further passes if asked."""

from __future__ import annotations

from streampca.parameters import Parameters
from streampca.planning.plan import Plan, Resources
from streampca.solvers.approximate import run
from streampca.solvers.plan_sketch import plan_sketch
from streampca.sources.base import Source

__all__ = ["plan", "run"]


def plan(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return the plan of a fit; raise `PlanError` if it does not fit."""
    return plan_sketch(source, parameters, resources, "adaptive")
