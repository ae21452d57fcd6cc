"""The plan of several fits that share their passes: the sum of their states and work, with each pass counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streampca.planning.memory import ALWAYS, MemoryBudget, Purpose
from streampca.planning.plan import Plan, SolverDetail
from streampca.planning.shape import WorkShape
from streampca.typing import Json

_RETAINED: tuple[Purpose, ...] = (
    "feature means",
    "rows kept",
    "test matrix",
    "kept products",
    "landmarks",
    "model",
    "axes",
)
"""Memory that a fit keeps, in addition to one state, while others read or solve."""
_ONE_AFTER_ANOTHER = ("pilot", "solve", "report")
"""Phases that run for one fit after another."""


@dataclass(frozen=True, repr=False)
class ManyPlan:
    """Plan of a fit of several models: their own plans, and the passes, memory and work of all together."""

    plans: Mapping[str, Plan]
    """The plan of each model by name, as for a separate fit."""
    together: Plan
    """Shape of the shared passes, memory of all models, and the sum of their costs."""

    def to_dict(self) -> Json:
        """Return plain data for JSON."""
        return {
            "models": {name: plan.to_dict() for name, plan in self.plans.items()},
            "together": self.together.to_dict(),
        }

    @property
    def projected_bytes(self) -> int:
        """Return the projected peak of the resident memory."""
        return self.together.projected_bytes

    @property
    def passes(self) -> int:
        """Return the number of passes over the source, with shared passes counted once."""
        return self.together.passes

    @property
    def bytes_to_read(self) -> int:
        """Return the decoded bytes of all passes."""
        return self.together.bytes_to_read

    def __repr__(self) -> str:
        return f"<ManyPlan of {', '.join(self.plans)}: {self.together!r}>"

    def __str__(self) -> str:
        models = (f"{name}: {plan.solver}, {plan.reason}" for name, plan in self.plans.items())
        return "\n".join([str(self.together), *(f"{'model':<13}{line}" for line in models)])

    def _repr_html_(self) -> str:
        return self.together._repr_html_()


def plan_together(plans: Mapping[str, Plan], allowed_bytes: int, process_bytes: int, quality_bytes: int = 0) -> Plan:
    """Return the plan of the passes that `plans` share, with the memory of all; it may not fit.

    Parameters
    ----------
    plans : mapping of str to Plan
        The plan of each model, for one process, all made for the same number of threads.
    allowed_bytes : int
        Ceiling of the resident memory of that process.
    process_bytes : int
        Memory of the process before the first block.
    quality_bytes : int
        Memory for checking the quality of the data, once for all models.
    """
    each = list(plans.values())
    shape, widest = _shape_of(each), max(each, key=lambda plan: plan.n_features)
    common = [plan for plan in each if shares_rows(plan)]
    apart = [plan for plan in each if not shares_rows(plan)]
    return replace(
        widest.divided_as(shape),
        solver="many",
        reason=f"{len(each)} models from the same readings",
        work_dtype=str(np.result_type(*(plan.work_dtype for plan in each))),
        n_components=max((plan.n_components or 0 for plan in each), default=0) or None,
        budget=_budget(each, shape, allowed_bytes, (process_bytes, quality_bytes)),
        passes=max((plan.passes for plan in common), default=0) + sum(plan.passes for plan in apart),
        bytes_to_read=max((plan.bytes_to_read for plan in common), default=0)
        + sum(plan.bytes_to_read for plan in apart),
        flops=sum(plan.flops for plan in each),
        disk_bytes=sum(plan.disk_bytes for plan in each),
        expected_seconds=None,
        expected_by="",
        sampling_errors="",
        detail=SolverDetail(),
        notes=_notes(plans, shape),
        alternatives=(),
    )


def common_shape(shapes: Sequence[WorkShape]) -> WorkShape:
    """Return the first of `shapes` with the most common blocks."""
    counts = Counter(shape.blocks for shape in shapes)
    return max(shapes, key=lambda shape: counts[shape.blocks])


def limited_shape(shapes: Sequence[WorkShape], shared: Plan) -> WorkShape:
    """Return the common one of `shapes`, with at most as many concurrent leaves as in the plan of all fits.

    Blocks of the plan of all fits take precedence: a model that is planned with them has the same bits as in a separate
    fit, even if it shares later passes with models that first read in another order.
    """
    shape = next((each for each in shapes if each.blocks == shared.blocks), None) or common_shape(shapes)
    limits = ("leaves_in_flight", "window", "leaves_per_worker")
    return replace(shape, **{name: min(getattr(shape, name), getattr(shared, name)) for name in limits})


def shares_rows(plan: Plan) -> bool:
    """Return whether a fit by `plan` can share passes with other fits: it accumulates rows in order."""
    return plan.in_row_order and not plan.detail.holds_all_rows


def _shape_of(plans: Sequence[Plan]) -> WorkShape:
    """Return the shape of the shared passes, with the smallest number of concurrent leaves in `plans`."""
    shape = common_shape([plan for plan in plans if shares_rows(plan)] or plans)
    leaves = min(min(plan.leaves_in_flight for plan in plans), shape.n_leaves)
    window = max(leaves, min(min(plan.window for plan in plans), shape.window))
    return replace(shape, leaves_in_flight=leaves, window=window)


def _budget(plans: Sequence[Plan], shape: WorkShape, allowed_bytes: int, always: tuple[int, int]) -> MemoryBudget:
    """Return the memory of fits that share passes in blocks of `shape`.

    Reading takes the `always` present memory (process and data quality) and blocks once, plus the states, scratch and other
    memory of each fit. Other phases run for one fit after another: each takes the memory of its own fit, and what the other
    fits retain, including one state each. Scores take process and blocks once, what fits retain, and the scores of each.
    """
    process_bytes = sum(always)
    process = min([process_bytes, *(plan.budget.bytes_for(*ALWAYS) for plan in plans)])
    blocks = max(plan.budget.bytes_for("blocks") for plan in plans)
    reading, retained, alone = 0, [], []
    for plan in plans:
        budget = plan.budget
        states, choosing = budget.bytes_for("states"), budget.bytes_for("choosing")
        states_at_once = max(1.0, shape.n_states / plan.n_states)
        once = process + budget.bytes_for("blocks")
        phases = [size for phase, size in budget.by_phase.items() if phase in ("reading", "landmarks")]
        more = round((states_at_once - 1) * max(states, choosing))
        reading += max(phases, default=once) - once + more
        retained.append(budget.bytes_for(*_RETAINED) + states // plan.n_states)
        alone.append(budget.projected_bytes - process)
    others = sum(retained)
    solving = max(one + others - own for one, own in zip(alone, retained, strict=True))
    purposes: dict[str, int] = {}
    for name, size in (
        entry for plan in plans for entry in plan.memory.items() if entry[0] not in ("process", "quality", "blocks")
    ):
        before = purposes.get(name, 0)
        purposes[name] = max(before, size) if name in _ONE_AFTER_ANOTHER else before + size
    by_phase = {"reading": process_bytes + blocks + reading, "solving": process_bytes + solving}
    if any(plan.budget.bytes_for("scores") for plan in plans):
        beside = sum(plan.budget.bytes_for(*ALWAYS, "removal") - process for plan in plans)
        by_phase["scores"] = (
            process_bytes + beside + others + blocks + sum(_scores_bytes(plan, shape) for plan in plans)
        )
    first = {"process": always[0], "quality": always[1]} if always[1] else {"process": always[0]}
    return MemoryBudget(allowed_bytes, {**first, "blocks": blocks, **purposes}, by_phase)


def _scores_bytes(plan: Plan, shape: WorkShape) -> int:
    """Return the maximum memory for writing the scores of one fit, without the blocks of `shape`; it grows with the blocks."""
    if plan.axis == "features":
        return 0  # not from the common reading
    scores = plan.budget.bytes_for("scores") - (plan.budget.bytes_for("blocks") if shares_rows(plan) else 0)
    return max(0, scores) * -(-shape.rows_per_block // plan.rows_per_block)


def _notes(plans: Mapping[str, Plan], shape: WorkShape) -> tuple[str, ...]:
    """Return the notes of all plans, and which models share no pass or have other blocks than in a separate fit."""
    notes = [note for plan in plans.values() for note in plan.notes]
    if sum(plan.axis == "samples" and plan.budget.bytes_for("scores") > 0 for plan in plans.values()) > 1:
        notes.append("scores of all models are written from one more reading")
    other = [name for name, plan in plans.items() if shares_rows(plan) and plan.blocks != shape.blocks]
    if other:
        notes.append(
            f"{', '.join(other)}: accumulated in the blocks and leaves of the other models, so the numbers are those of a fit alone "
            "up to rounding"
        )
    apart = [name for name, plan in plans.items() if not shares_rows(plan)]
    if apart:
        notes.append(
            f"{', '.join(apart)}: the solver reads rows in another order or keeps them all, so it shares no reading with other models"
        )
    later = [name for name, plan in plans.items() if plan.shuffle_seed is not None and plan.passes > 1]
    if later:
        notes.append(
            f"{', '.join(later)}: later readings are in the blocks of other models where they are shared, so the numbers are those of a "
            "fit alone up to rounding"
        )
    return tuple(dict.fromkeys(notes))
