"""What removing regressors from rows adds to the arithmetic and to the expected time of a plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.accumulators.covariance import panel_rows
from streampca.planning.cost import Rates, folded_flops
from streampca.planning.plan import Plan

_TRAVERSALS = 8  # of float64 rows in memory: shift, largest values before and after, subtraction, conversion
_BYTES_PER_SECOND = 3e9  # of these, on one thread


def n_panels(plan: Plan, n_regressors: int) -> int:
    """Return the number of panels that are regressed on their own (see `streampca.accumulators.residuals.Residuals`)."""
    size = max(2 * n_regressors, panel_rows(plan.n_features, np.dtype(np.float64)))
    return plan.n_leaves + -(-plan.n_samples // min(size, max(1, plan.rows_per_block)))


def folded_rows(plan: Plan, n_regressors: int) -> int:
    """Return how many rows the differences between regressions of panels add to those that are accumulated."""
    return 0 if plan.axis == "features" else 2 * n_regressors * n_panels(plan, n_regressors)


def removal_flops(plan: Plan, n_regressors: int) -> float:
    """Return the floating point operations, in float64, of removing so many regressors in the first reading.

    4 q n d for the products; for panels of rows, 2 n q² for their factorisations, and for each merging of two
    factors 8 q² d + 32 q³ (`docs/labelled-data.md`).
    """
    n, d, q = float(plan.n_samples), plan.n_features, float(n_regressors)
    products = 4.0 * q * n * d
    if plan.axis == "features":
        return products
    return products + 2.0 * n * q**2 + n_panels(plan, n_regressors) * (8.0 * q**2 * d + 32.0 * q**3)


def removal_seconds(plan: Plan, n_regressors: int, rates: Rates) -> float:
    """Return the seconds that removing so many regressors adds to a fit by `plan`, every leaf on one thread."""
    if not n_regressors:
        return 0.0
    busy = max(1, min(plan.threads, plan.leaves_in_flight))
    products = removal_flops(plan, n_regressors) / (rates.multiply / plan.threads)
    traversals = _TRAVERSALS * 8.0 * plan.n_samples * plan.n_features * plan.passes / _BYTES_PER_SECOND
    added = folded_rows(plan, n_regressors) / max(1, plan.n_samples) * folded_flops(plan) / rates.fold
    return (products + traversals) / busy + added


def with_removal(plan: Plan, n_regressors: int) -> Plan:
    """Return `plan` with the floating point operations of removing so many regressors."""
    if not n_regressors:
        return plan
    share = folded_rows(plan, n_regressors) / max(1, plan.n_samples)
    flops = plan.flops * (1.0 + share) + removal_flops(plan, n_regressors)
    return replace(plan, cost=replace(plan.cost, flops=flops))
