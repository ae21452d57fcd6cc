"""Plans of fits of kernel PCA, and fits by the method that a plan names."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from streampca.errors import DataError, NotAvailableError, NotFiniteError, PlanError, StreamPCAError
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.readings import Readings, run_fit
from streampca.logs import logger
from streampca.models.kernel import KernelModel
from streampca.models.rounding import with_rounded_integers
from streampca.planning.plan import Plan, with_repeated_reads
from streampca.planning.read_ahead import with_read_ahead
from streampca.planning.work import Resources
from streampca.planning.worker_limits import for_workers, on_workers, worker_limits
from streampca.solvers.alternatives import figures_of
from streampca.solvers.fit import naming_the_limit, resources_of
from streampca.solvers.fitted_steps import with_steps
from streampca.solvers.kernel import METHODS
from streampca.solvers.kernel.base import KernelFit
from streampca.solvers.kernel.parameters import KernelParameters
from streampca.solvers.kernel.plan import with_seconds
from streampca.solvers.measuring import measured
from streampca.solvers.options import Asked
from streampca.solvers.quality import quality_beside, quality_bytes
from streampca.solvers.sampling import Sampling, require_sampling, with_sampling
from streampca.sources.base import Source
from streampca.sources.files.records import require_distinct
from streampca.sources.naming import places_named

if TYPE_CHECKING:
    from streampca.typing import DaskClient

_log = logger(__name__)
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
            plan = METHODS[method].plan(source, parameters, resources)
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
            return with_seconds(METHODS[method].plan(source, parameters, resources))

        others = tuple(figures_of(name, partial(planned, name)) for name in METHODS if name != method)
        plan = replace(plan, alternatives=others)
    return with_steps(with_seconds(plan), source)


def fit_kernel(
    source: Source,
    parameters: KernelParameters,
    plan: Plan | None = None,
    *,
    keep_rows: int = 0,
    quality: bool = False,
    progress: ProgressCallback | None = None,
) -> KernelFit:
    """Carry out `plan` and return the model, with `keep_rows` rows copied out of the stream and, if asked for, their quality."""
    client = active_client(source)
    with places_named(source):
        plan = plan or plan_kernel(source, parameters, client=client)
    readings = readings_of_kernel(source, parameters, plan, keep_rows=keep_rows, quality=quality)
    return run_fit(readings, client, progress)


def readings_of_kernel(
    source: Source, parameters: KernelParameters, plan: Plan, *, keep_rows: int = 0, quality: bool = False
) -> Readings[KernelFit]:
    """Ask for the readings of a fit by `plan`, and return what `fit_kernel` returns."""
    _log.info("plan: %r", plan)
    with places_named(source):
        solving = METHODS[plan.solver].readings(source, parameters, plan, Asked())
        examining = quality_beside(source, plan, "error") if quality else ()
        fitted = yield from measured(solving, source, plan, keep_rows, examining)
        _require_range(fitted.model, source)
        fitted = replace(fitted, model=with_rounded_integers(fitted.model, source.dtype))
        if parameters.sampling_errors:
            limits = parameters.memory, parameters.threads
            sampling = Sampling(source, plan, parameters.sampling_errors, None, False, *limits)
            fitted = yield from sampling.added_to(fitted)
        if source.labels is None:
            return fitted
        return replace(fitted, model=replace(fitted.model, labels=source.labels.without_sample_coordinates()))


def _require_range(model: KernelModel, source: Source) -> None:
    """Raise `NotFiniteError` if numbers of the model are not finite, or its scores leave the range of their type."""
    numbers = (model.eigenvalues, model.coefficients, model.centre, np.array(model.total))
    if not all(np.isfinite(each).all() for each in numbers):
        raise NotFiniteError("kernel values or their products overflow float64: rescale the data first")
    limits, longest = np.finfo(model.score_dtype(source.dtype)), float(np.sqrt(model.eigenvalues[0]))
    smallest = float(limits.tiny) * model.n_samples**0.5 / float(limits.eps)
    if longest and not smallest <= longest <= float(limits.max):
        raise NotFiniteError(
            f"scores of length {longest:.3g} leave the range of {limits.dtype}, in which scores of {source.dtype} rows are "
            "returned: rescale the data first, or convert it to float64"
        )


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
        exact = METHODS["exact"].plan(source, parameters, resources)
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
                other = METHODS["nystrom"].plan(source, wanted, resources)
            except StreamPCAError:
                continue
            gib = other.projected_bytes / 2**30
            return f"; method='nystrom' with n_landmarks={m} would fit, with {gib:.2f} GiB projected"
    return ""
