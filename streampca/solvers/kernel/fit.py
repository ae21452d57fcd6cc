"""Plans of fits of kernel PCA."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from streampca.errors import DataError, NotAvailableError, PlanError, StreamPCAError
from streampca.planning.plan import Plan, with_repeated_reads
from streampca.planning.read_ahead import with_read_ahead
from streampca.planning.work import Resources
from streampca.planning.worker_limits import for_workers, on_workers, worker_limits
from streampca.solvers.alternatives import figures_of
from streampca.solvers.fit import naming_the_limit, resources_of
from streampca.solvers.fitted_steps import with_steps
from streampca.solvers.kernel import METHODS
from streampca.solvers.kernel.parameters import KernelParameters
from streampca.solvers.kernel.plan import with_seconds
from streampca.solvers.quality import quality_bytes
from streampca.solvers.sampling import require_sampling, with_sampling
from streampca.sources.base import Source
from streampca.sources.files.records import require_distinct

if TYPE_CHECKING:
    from streampca.typing import DaskClient

_EXACT_FLOPS = 1e13
"""Work above which ``"auto"`` does not choose the exact method: some minutes on one thread."""


def plan_kernel(
    source: Source,
    parameters: KernelParameters,
    *,
    scores: bool = False,
    report: bool = False,
    client: DaskClient | None = None,
    alternatives: bool = False,
    quality: bool = False,
    diagnostics: bool = False,
) -> Plan:
    """Return the plan of a fit of `source`; reads metadata only.

    ``"auto"`` is exact where the kernel matrix of all rows fits in memory: see `_choose`.

    Raises
    ------
    PlanError
        If it does not fit in the memory that is allowed, with what would.
    DataError
        If there are fewer than two rows, or two files of rows have the same content.
    NotAvailableError
        If diagnostics are asked for.
    """
    if diagnostics:
        raise NotAvailableError("diagnostics (T² and Q of rows) are those of PCA: kernel PCA has none")
    n = source.shape[0]
    require_distinct(source.fragments)
    if n < 2:
        raise DataError(f"n_samples={n}: found 1 sample, at least 2 are needed: {source.description}")
    require_sampling(parameters.sampling_errors, n)
    limits = worker_limits(client)
    memory, threads = parameters.memory, parameters.threads
    writes = (
        scores or parameters.sampling_errors > 0
    )  # scores for sampling errors take the memory of those that are written
    resources = resources_of(source, memory, threads, limits, scores=writes, report=report)
    if quality:
        resources = resources.holding("quality", quality_bytes(source, resources.threads, "error"))
    method, why = _choose(source, parameters, resources)
    try:
        with naming_the_limit(resources, limits):
            plan = METHODS[method](source, parameters).plan(resources)
    except PlanError as error:
        raise PlanError(f"method {method}: {error}{_what_fits(method, source, parameters, resources)}") from error
    plan = with_sampling(plan, source, parameters.sampling_errors, scaled=False)
    plan = with_repeated_reads(replace(plan, reason=f"{plan.reason}; {why}"), source)
    edges = source.block_edges(plan.rows_per_block) if plan.n_leaves > 1 else None
    plan = with_read_ahead(plan.with_edges(edges), source, parameters.read_ahead)
    if limits and "states" in plan.memory:
        plan = for_workers(plan, limits)
    elif limits:
        plan = on_workers(plan, limits)
    if alternatives:

        def planned(method: str) -> Plan:
            return with_seconds(METHODS[method](source, parameters).plan(resources))

        others = tuple(figures_of(name, partial(planned, name)) for name in METHODS if name != method)
        plan = replace(plan, alternatives=others)
    return with_steps(with_seconds(plan), source)


def _choose(source: Source, parameters: KernelParameters, resources: Resources) -> tuple[str, str]:
    """Return the method of a fit and the reason for it.

    ``"auto"`` is exact where the kernel matrix of all rows fits in memory and takes at most `_EXACT_FLOPS`, unless a
    sampling of landmarks was named, and always for kernels that are known not to be positive semi-definite: a few
    landmarks give few of their directions, and nothing bounds the error.
    """
    n = source.shape[0]
    if parameters.method != "auto":
        return parameters.method, "asked for by name"
    if parameters.given is not None:
        return "nystrom", "chosen because landmarks were given"
    if n <= parameters.n_landmarks:
        return "exact", f"chosen because there are no more rows than the {parameters.n_landmarks:,} landmarks asked for"
    if parameters.kernel.definite is False:
        return "exact", "chosen because the kernel is not positive semi-definite: landmarks would give no certificate"
    if parameters.sampling != "auto":
        return "nystrom", f"chosen because sampling={parameters.sampling!r} asks for landmarks"
    try:
        exact = METHODS["exact"](source, parameters).plan(resources)
    except PlanError:
        return "nystrom", f"chosen because the {n:,} x {n:,} kernel matrix does not fit in memory"
    if exact.flops > _EXACT_FLOPS:
        return "nystrom", f"chosen because exact kernel PCA of {n:,} rows would take {exact.flops:.1g} flops"
    return "exact", "chosen because the kernel matrix fits in memory"


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
