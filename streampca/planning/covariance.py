"""Plans of the covariance solver with the matrix in memory: one matrix, or one for each group of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from streampca.accumulators.centring import product_dtype
from streampca.accumulators.covariance import panel_rows
from streampca.accumulators.pairwise import PairwiseCovariance
from streampca.accumulators.wrappers import ByGroup, ConsecutiveGroups
from streampca.errors import PlanError
from streampca.formatting import as_text
from streampca.linalg.cross_validation import MOST_COMPONENTS, N_GROUPS
from streampca.linalg.eigen import DENSE_LIMIT
from streampca.models.conditional import scratch_bytes
from streampca.parameters import Parameters
from streampca.planning.blocks import BLOCK_BYTES, block_rows_to_try, repeated_reads_note
from streampca.planning.budget import MemoryNeed, Phase
from streampca.planning.covariance_accumulators import CovarianceAccumulator, accumulator_of
from streampca.planning.detail import CovarianceDetail
from streampca.planning.memory import (
    eigenproblem_bytes,
    model_need,
    reading_needs,
    report_need,
    sampled_rows_need,
    scores_bytes,
)
from streampca.planning.plan import Plan
from streampca.planning.shape import WorkShape, count_leaves, divide
from streampca.planning.work import Figures, Resources, Work
from streampca.sources.base import Source

_SMALL_STATE_BYTES = 16 * 2**20
"""Size of a state up to which finished leaves may wait to be merged."""
_WIDE_FROM_BYTES = 32 * 2**20
"""Size of a panel beyond which a block is as large as one."""
_ROWS_OF_GROUP = 32
"""Rows of each group that a block has on average, at least: to add one to the state of a group takes as long as to add some hundreds."""
_OBJECT_BYTES = 8192
"""Memory of the objects of an estimator, its model and its state beside their numbers: 7 kB were measured for 16,000 groups."""
_ROWS_PER_FEATURE = 128
"""Rows for each feature from which all eigenvectors and the merging of the states take less time than one more reading."""
_VERIFYING_BYTES = 128 * 2**20
"""What `verify` takes beside the states of the groups: panels of rows in float64."""


@dataclass(frozen=True)
class CovarianceWork(Work):
    """A fit by the covariance matrix in memory."""

    accumulator: CovarianceAccumulator | ByGroup
    """What accumulates the rows."""

    name: ClassVar[str] = "covariance"

    @override
    @property
    def work_dtype(self) -> str:
        return str(product_dtype(self.source.dtype, self.source.shape[1]))

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        n, d = self.source.shape
        state = self.accumulator.state_bytes(d)
        return divide(
            n,
            rows,
            count_leaves(n, -(-n // rows), self.source.row_bytes, state),
            (leaves, threads_per_leaf, self.resources.threads),
            state_bytes=state,
            small_state_bytes=_SMALL_STATE_BYTES,
            tile=self.accumulator.grid(d).longest_side,
        )

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what states, (1 + W) S, blocks, scratch, the eigenproblem of side d, the model and scores take."""
        d, accumulator = self.source.shape[1], replace(self.accumulator, n_threads=shape.threads_per_leaf)
        scratch = accumulator.scratch_bytes(d, shape.rows_per_block, product_dtype(self.source.dtype, d).itemsize)
        sizes = accumulator.state_bytes(d), scratch
        return [
            *reading_needs(self.source, shape, sizes),
            *solving_needs(self.source, accumulator, self.n_components, shape, self.resources),
        ]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        n, d = self.source.shape
        size = as_text(self.accumulator.state_bytes(d))
        return Figures(
            reason=f"exact; the {d:,} x {d:,} matrix takes {size} as tiles of its lower triangle",
            flops=float(n) * d * d + 4 / 3 * float(d) ** 3,
            detail=CovarianceDetail(),
            notes=repeated_reads_note(self.source, reading),
        )


def solving_needs(
    source: Source,
    accumulator: CovarianceAccumulator | ByGroup,
    n_components: int | None,
    shape: WorkShape,
    resources: Resources,
) -> list[MemoryNeed]:
    """Return what a covariance takes beside its reading, wherever the matrix is."""
    (n, d), rows, leaves = source.shape, shape.rows_per_block, shape.leaves_in_flight
    k = min(n, d) if n_components is None else n_components
    scores = scores_bytes(source, rows, leaves, k, panel_rows(d, product_dtype(source.dtype, d)))
    if isinstance(accumulator, PairwiseCovariance):
        scores += leaves * scratch_bytes(k)
    after: tuple[Phase, ...] = ("solving", "scores", "report")
    return [
        sampled_rows_need(source, resources.report_rows),
        MemoryNeed("solve", eigenproblem_bytes(d, k) + accumulator.finalize_bytes(d), ("solving",)),
        model_need(d, k, *after),
        MemoryNeed("scores", scores if resources.scores else 0, ("scores",)),
        report_need(report=resources.report),
    ]


def plan_covariance(
    source: Source, accumulator: CovarianceAccumulator | ByGroup, n_components: int | None, resources: Resources
) -> Plan:
    """Return how the covariance of `source` is accumulated within the memory that is allowed.

    Raises
    ------
    PlanError
        If it does not fit: with what is projected, what is allowed, and what to change.
    """
    d, grid = source.shape[1], accumulator.grid(source.shape[1])
    dtype = product_dtype(source.dtype, d)
    panel_bytes = panel_rows(d, dtype) * d * dtype.itemsize
    wide = panel_bytes > _WIDE_FROM_BYTES  # else the default size
    least = _ROWS_OF_GROUP * accumulator.n_groups if isinstance(accumulator, ByGroup) else 1
    sizes = block_rows_to_try(source, dtype, panel_bytes if wide else BLOCK_BYTES, least)
    plan = CovarianceWork(source, n_components, resources, accumulator).best(sizes, d, grid.n_tiles)
    if plan.budget.fits:
        return plan
    raise plan.budget.refusal(
        {
            "states": f"the {d:,} x {d:,} matrix is what takes the room; fewer features, or ",
            "blocks": f"chunks of fewer than {source.chunk_rows:,} rows, or ",
            "solve": "fewer components (n_components), or ",
            "scores": "scores: false, or ",
            "report": "report: false, or ",
        }
    )


def grouped_accumulator(parameters: Parameters, source: Source, n_groups: int = N_GROUPS) -> ByGroup:
    """Return the accumulator of the rows of each of `n_groups` groups of consecutive rows, at most as many as rows."""
    n, accumulator = source.shape[0], accumulator_of(parameters, source)
    n_groups = min(n_groups, n)
    return ByGroup(accumulator, ConsecutiveGroups(n, n_groups), n_groups)


def plan_cross_validated(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return how the covariances of all groups are accumulated within the memory that is allowed.

    Beside the states of the groups there are that of all rows, four d × d matrices of the group that is left out, and six times as many
    vectors as components are tried.

    Raises
    ------
    PlanError
        If that does not fit.
    """
    d, accumulator = source.shape[1], grouped_accumulator(parameters, source)
    own = accumulator.accumulator.state_bytes(d) + 8 * d * (4 * d + 6 * min(d, MOST_COMPONENTS))
    try:
        plan = plan_covariance(source, accumulator, None, resources.holding("groups", own))
    except PlanError as error:
        raise PlanError(
            f"n_components='cross_validation', with {accumulator.n_groups} covariance matrices: {error}"
        ) from error
    states = as_text(accumulator.state_bytes(d))
    flops = plan.flops + accumulator.n_groups * 10.0 * d**3
    reason = f"exact; {accumulator.n_groups} matrices of {d:,} x {d:,}, one for each group of rows, take {states}, for cross-validation"
    return replace(plan, reason=reason, flops=flops)


def plan_sampling_groups(
    source: Source, parameters: Parameters, resources: Resources, plan: Plan, *, always: bool = False
) -> Plan | None:
    """Return `plan` with a covariance of each group of rows; None where that does not fit, or would read or compute more.

    With `always`, since there is no other way, whatever it reads and computes: `PlanError` where it does not fit.

    Beside the states of the groups there are that of all rows, five d × d matrices for all eigenvectors and the group at hand, and
    the k products of each group with the components. `verify` has to fit, too.
    """
    (n, d), m = source.shape, parameters.sampling_errors
    if not always and (d > DENSE_LIMIT or n < _ROWS_PER_FEATURE * d):
        return None
    accumulator, n_components = grouped_accumulator(parameters, source, m), parameters.count(source)
    k = min(n, d) if n_components is None else n_components
    own = accumulator.accumulator.state_bytes(d) + 8 * d * (5 * d + m * (k + 6))
    verified = resources.holding("groups", own + 2 * accumulator.state_bytes(d) + _VERIFYING_BYTES)
    try:
        plan_covariance(source, accumulator, n_components, verified)
        grouped = plan_covariance(source, accumulator, n_components, resources.holding("groups", own))
    except PlanError as error:
        if always:
            raise PlanError(f"sampling errors, with {m} covariance matrices: {error}") from error
        return None
    if not always and grouped.bytes_to_read > plan.bytes_to_read:
        return None
    states = as_text(accumulator.state_bytes(d))
    note = f"sampling errors by {m} groups of rows: from a covariance of each, kept by the one reading of the fit; they take {states}"
    flops = grouped.flops + 10.0 * d**3 + 2.0 * m * d * d * k
    return replace(grouped, reason=plan.reason, notes=(*plan.notes, note), flops=flops, sampling_errors="groups")


def plan_groups(source: Source, accumulator: ByGroup, n_components: int | None, resources: Resources) -> Plan:
    """Return how the covariances of all groups, and that within groups, are accumulated within the memory that is allowed.

    Raises
    ------
    PlanError
        If they do not fit: with what is projected, and how many groups would.
    """
    try:
        plan = _groups_plan(source, accumulator, n_components, resources)
    except PlanError as error:
        low, high = 0, accumulator.n_groups
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (middle, high) if _groups_fit(source, accumulator, middle, n_components, resources) else (low, middle)
            )
        most = f"at most {low} groups would fit" if low else "not even one group would fit"
        raise PlanError(f"{accumulator.n_groups} groups, with a covariance matrix each: {error}; {most}") from error
    d = source.shape[1]
    states = as_text(accumulator.state_bytes(d))
    reason = f"exact; {accumulator.n_groups} matrices of {d:,} x {d:,}, one for each group, take {states}"
    return replace(plan, reason=reason)


def _groups_plan(source: Source, accumulator: ByGroup, n_components: int | None, resources: Resources) -> Plan:
    """Return the plan; the codes, the models and the pooled matrix are memory for groups."""
    d = source.shape[1]
    k = min(source.shape) if n_components is None else n_components
    models = (accumulator.n_groups + 1) * (8 * (k * d + 8 * d) + _OBJECT_BYTES)
    pooled = 2 * accumulator.accumulator.state_bytes(d)
    beside = 2 * accumulator.codes.nbytes + models + pooled
    return plan_covariance(source, accumulator, n_components, resources.holding("groups", beside))


def _groups_fit(
    source: Source, accumulator: ByGroup, n_groups: int, n_components: int | None, resources: Resources
) -> bool:
    try:
        _groups_plan(source, replace(accumulator, n_groups=n_groups), n_components, resources)
    except PlanError:
        return False
    return True
