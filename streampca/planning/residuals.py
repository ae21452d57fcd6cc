"""What removing regressors from rows adds to the arithmetic and to the expected time of a plan."""

from __future__ import annotations

from dataclasses import replace

from streampca.accumulators.residuals import residual_panel_rows
from streampca.planning.cost import Rates, folded_flops
from streampca.planning.plan import Plan, Resources

_TRAVERSALS = 8  # of float64 rows in memory: shift, largest values before and after, subtraction, conversion
_BYTES_PER_SECOND = 3e9  # of these, on one thread


def n_panels(plan: Plan, n_regressors: int) -> int:
    """Return the number of panels that are regressed on their own (see `streampca.accumulators.residuals.Residuals`)."""
    size = residual_panel_rows(n_regressors, plan.n_features, approximate=plan.solver in ("sketch", "adaptive"))
    return plan.n_leaves + -(-plan.n_samples // min(size, max(1, plan.rows_per_block)))


def folded_rows(plan: Plan, n_regressors: int) -> int:
    """Return how many rows the differences between regressions of panels add to those that are accumulated."""
    return 0 if plan.axis == "features" else 2 * n_regressors * n_panels(plan, n_regressors)


def removal_flops(plan: Plan, resources: Resources) -> float:
    """Return the floating point operations, in float64, of removing the regressors in the first reading.

    4 q n d for the products; for panels of rows, 2 n q² for their factorisations, and for each merging of two
    factors 8 q² d + 32 q³ (`docs/how-to/labelled-data.md`). Indicators of groups alone are sparse: 8 n d, and 8 q d for each panel.
    """
    n, d, q = float(plan.n_samples), plan.n_features, float(resources.n_regressors)
    products, panels = 4.0 * q * n * d, n_panels(plan, resources.n_regressors)
    if plan.axis == "features":
        return products
    if resources.only_groups:
        return 8.0 * n * d + 8.0 * q * d * panels
    return products + 2.0 * n * q**2 + panels * (8.0 * q**2 * d + 32.0 * q**3)


def removal_seconds(plan: Plan, resources: Resources, rates: Rates) -> float:
    """Return the seconds that removing the regressors adds to a fit by `plan`, every leaf on one thread."""
    if not resources.n_regressors:
        return 0.0
    busy = max(1, min(plan.threads, plan.leaves_in_flight))
    products = removal_flops(plan, resources) / (rates.multiply / plan.threads)
    traversals = _TRAVERSALS * 8.0 * plan.n_samples * plan.n_features * plan.passes / _BYTES_PER_SECOND
    added = folded_rows(plan, resources.n_regressors) / max(1, plan.n_samples) * folded_flops(plan) / rates.fold
    return (products + traversals) / busy + added


def with_removal(plan: Plan, resources: Resources) -> Plan:
    """Return `plan` with the floating point operations of removing the regressors."""
    if not resources.n_regressors:
        return plan
    share = folded_rows(plan, resources.n_regressors) / max(1, plan.n_samples)
    flops = plan.flops * (1.0 + share) + removal_flops(plan, resources)
    return replace(plan, flops=flops)
