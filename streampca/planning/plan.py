"""The plan of a fit or a pass: a pure function of shape, chunks, parameters and memory, printed and checked before reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from html import escape
from typing import Self

from streampca.formatting import as_seconds, as_text
from streampca.planning.budget import MemoryBudget, Phase
from streampca.planning.detail import DETAILS, SolverDetail
from streampca.planning.shape import WorkShape
from streampca.sources.base import Source
from streampca.sources.schedule import Schedule
from streampca.typing import Json

READ_AHEAD_BYTES = 128 * 2**20
"""Memory for reading ahead where nothing else is said: 32 requests of 4 MiB."""
_READING: tuple[Phase, ...] = ("pilot", "landmarks", "reading", "components", "scores")


@dataclass(frozen=True, repr=False, kw_only=True)
class Plan(WorkShape):
    """What will be done: the shape of the work, its memory, what it takes beside that, and the settings of its solver."""

    solver: str
    """Which solver runs."""
    reason: str
    """Why."""
    n_samples: int
    """Rows of the source."""
    n_features: int
    """Columns of the source."""
    dtype: str
    """Data type of the source."""
    work_dtype: str
    """Data type of the products."""
    n_components: int | None
    """Components wanted; None where the data decides."""
    budget: MemoryBudget
    """Projected and allowed memory."""
    passes: int
    """Passes over the source."""
    bytes_to_read: int
    """Decoded bytes that are read."""
    flops: float
    """Floating point operations."""
    expected_seconds: float | None = None
    """Expected duration; None where it was not estimated."""
    expected_by: str = ""
    """Source of the estimate: ``"nominal rates"``, those of a middling machine."""
    disk_bytes: int = 0
    """Size of the temporary files."""
    sampling_errors: str = ""
    """Where sampling errors come from: ``"groups"``, the covariances of groups of rows that the reading of the fit keeps, or
    ``"reading"``, the scores of one more reading; empty = there are none."""
    detail: SolverDetail = field(default_factory=SolverDetail)
    """Settings of the solver."""
    notes: tuple[str, ...] = ()
    """What a user should know."""
    alternatives: tuple[Json, ...] = ()
    """Figures of the solvers that were not chosen."""

    @property
    def projected_bytes(self) -> int:
        """Return the projected peak of the resident memory."""
        return self.budget.projected_bytes

    @property
    def allowed_bytes(self) -> int:
        """Return the ceiling of the resident memory."""
        return self.budget.allowed_bytes

    @property
    def memory(self) -> dict[str, int]:
        """Return the projected bytes by purpose."""
        return self.budget.by_purpose

    @property
    def solver_passes(self) -> int:
        """Return the passes that the solver makes at most, without the one that sampling errors may take afterwards."""
        return self.passes - int(self.sampling_errors == "reading")

    @property
    def tile_groups(self) -> int:
        """Return in how many groups of tiles, one pass each, the covariance is computed and stored on disk; 0 = in memory."""
        return int(getattr(self.detail, "tile_groups", 0))

    @property
    def components_on_disk(self) -> bool:
        """Tell whether the components of wide data are stored on disk because they do not fit in memory."""
        return bool(getattr(self.detail, "components_on_disk", False))

    @property
    def copied_rows(self) -> int:
        """Return the rows of a block while rows are copied to disk, of which features are read then; 0 where they are not."""
        return int(getattr(self.detail, "copied_rows", 0))

    @property
    def rows_on_disk(self) -> bool:
        """Tell whether the rows of the empirical kernel map are copied to disk because they do not fit in memory."""
        return bool(getattr(self.detail, "rows_on_disk", False))

    @property
    def model_on_disk(self) -> bool:
        """Tell whether a part of the model stays in a temporary directory: components of wide data, or rows of kernel PCA."""
        return self.components_on_disk or self.rows_on_disk

    @property
    def sketch(self) -> Json:
        """Return the settings of an approximate solver as a dictionary; empty for exact ones."""
        sketch: Json = self.detail.to_dict().get("sketch", {})
        return sketch

    @property
    def approximate(self) -> bool:
        """Tell whether the answer of the solver carries an error, and a certificate of it."""
        return bool(self.sketch)

    def replace(self, **changes: object) -> Self:
        """Return the plan with `changes` to entries of its plain form (`to_dict`)."""
        return self.from_dict(self.to_dict() | changes)

    def divided_as(self, shape: WorkShape) -> Self:
        """Return the plan with the blocks, leaves and threads of `shape`."""
        return replace(self, **{each.name: getattr(shape, each.name) for each in fields(WorkShape)})

    def with_notes(self, notes: tuple[str, ...] | list[str]) -> Self:
        """Return the plan with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def to_dict(self) -> Json:
        """Return plain data for JSON."""
        plain: Json = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_PLAIN}
        return {
            "solver": self.solver,
            "reason": self.reason,
            **plain,
            "projected_bytes": self.projected_bytes,
            "allowed_bytes": self.allowed_bytes,
            "memory": dict(self.memory),
            "memory_by_phase": dict(self.budget.by_phase),
            "tile_groups": 0,
            "components_on_disk": False,
            "sketch": {},
            **self.detail.to_dict(),
            "notes": list(self.notes),
            "alternatives": list(self.alternatives),
        }

    @classmethod
    def from_dict(cls, data: Json) -> Self:
        """Return the plan of the plain form `data`, also if it was stored as JSON or by version 0.1.0.

        Raises
        ------
        TypeError, KeyError
            If entries are missing or unknown.
        """
        unknown = set(data) - set(types_of_entries())
        if unknown:
            raise TypeError(f"a plan has no entry {min(unknown)!r}")
        edges = data.get("edges")
        plain = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        return cls(
            **{
                **plain,
                "extent": data["n_features" if data.get("axis") == "features" else "n_samples"],
                "edges": None if edges is None else tuple(edges),
                "budget": _budget(data),
                "detail": DETAILS.get(data["solver"], SolverDetail).from_dict(data),
                "notes": tuple(data.get("notes", ())),
                "alternatives": tuple(data.get("alternatives", ())),
            }
        )

    def __repr__(self) -> str:
        shape = f"{self.n_samples:,} x {self.n_features:,} {self.dtype}"
        memory = f"{as_text(self.projected_bytes)} of {as_text(self.allowed_bytes)}"
        return f"<{type(self).__name__} {self.solver}: {shape}, {_passes(self.passes, self.sketch)}, {memory}>"

    def __str__(self) -> str:
        lines = [f"{name:<13}{text}" for name, text in _lines(self)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in _lines(self))
        return f"<table>{''.join(rows)}</table>"


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the lines that a plan prints."""
    components = "as many as the data asks for" if plan.n_components is None else str(plan.n_components)
    yield "solver", f"{plan.solver}: {plan.reason}"
    yield from plan.detail.lines()
    yield "data", f"{plan.n_samples:,} samples x {plan.n_features:,} features, {plan.dtype}; components: {components}"
    yield (
        "reading",
        f"{_passes(plan.passes, plan.sketch)}, {as_text(plan.bytes_to_read)} decoded, in {plan.n_blocks:,} blocks of {plan.rows_per_block:,} {plan.axis}",
    )
    yield (
        "work",
        f"{plan.flops:.2e} flops in {plan.work_dtype}, {plan.n_leaves:,} leaves, {plan.leaves_in_flight} at once "
        f"x {plan.threads_per_leaf} thread{'s' if plan.threads_per_leaf > 1 else ''}, on {plan.runs_on}",
    )
    yield "memory", str(plan.budget)
    yield "merging", plan.merging
    if plan.expected_seconds is not None:
        yield "time", f"about {as_seconds(plan.expected_seconds)} by {plan.expected_by}"
    for note in plan.notes:
        yield "note", note
    for other in plan.alternatives:
        yield "or", _alternative_in_words(other)


def _alternative_in_words(other: Json) -> str:
    """Return the figures of a solver that was not chosen, on one line."""
    if not other["fits"]:
        return f"{other['solver']}: no: {other['why']}"
    approximate = " (approximate)" if other["sketch"] else ""
    return (
        f"{other['solver']}{approximate}: {_passes(other['passes'], other['sketch'])}, {as_text(other['bytes_to_read'])} decoded, "
        f"{as_text(other['projected_bytes'])} projected, {other['flops']:.2e} flops in {other['work_dtype']}, "
        f"about {as_seconds(other['expected_seconds'])} by {other['expected_by']}"
    )


def _passes(passes: int, sketch: Json) -> str:
    """Return the number of passes; "at most" so many where an approximate solver may stop earlier."""
    most = "at most " if sketch.get("passes", passes) > 1 and sketch.get("tolerance") else ""
    return f"{most}{passes} pass{'es' if passes > 1 else ''}"


def with_repeated_reads(plan: Plan, source: Source) -> Plan:
    """Return `plan` with the notes of `source` and its labels, and with reads that its own graph repeats in the bytes to read.

    Raises
    ------
    RepeatedReadsError
        If they are repeated more often than is allowed.
    """
    dimensions = () if source.labels is None else (*source.labels.samples, *source.labels.features)
    of_names = (f"{source.description}: {each.note}" for each in dimensions if each.note)
    notes = (*source.plan_notes(), *of_names)
    if not notes:
        return plan
    return replace(plan, bytes_to_read=round(plan.bytes_to_read * source.repeats), notes=(*plan.notes, *notes))


def with_read_ahead(plan: Plan, source: Source, most: int | None) -> Plan:
    """Return `plan` with memory for reading ahead: at most `most` bytes, None = 128 MiB, of what the ceiling leaves.

    Blocks and leaves stay as they are, so that no bit of a result depends on it.
    """
    phases = [phase for phase in _READING if phase in plan.budget.by_phase]
    if not source.reads_ahead or not phases:
        return plan
    left = plan.allowed_bytes - max(plan.budget.by_phase[phase] for phase in phases)
    n_bytes = max(0, min(READ_AHEAD_BYTES if most is None else most, left))
    budget = plan.budget.plus(n_bytes, "read ahead", phases)
    return replace(plan, budget=budget, read_ahead_bytes=n_bytes)


def schedule_of(plan: Plan, source: Source, first: int = 0) -> Schedule:
    """Return what threads of this process read by `plan`, from leaf `first` on: blocks of equal rows are not read."""

    def spans_of(index: int) -> list[tuple[int, int]]:
        spans = plan.leaf(first + index).spans
        return [(start, stop) for start, stop in spans if source.equal_rows(start, stop) != ((start, stop),)]

    return Schedule(plan.n_leaves - first, spans_of, plan.leaves_in_flight, plan.read_ahead_bytes)


_NOT_PLAIN = ("extent", "budget", "detail")


def types_of_entries() -> dict[str, str]:
    """Return the types of the entries of the plain form of a plan, as annotations."""
    types = {name: text for kind in DETAILS.values() for name, text in kind.entries().items()}
    return {
        **types,
        **{each.name: str(each.type) for each in fields(Plan) if each.name not in _NOT_PLAIN},
        "allowed_bytes": "int",
        "projected_bytes": "int",
        "memory": "dict",
        "memory_by_phase": "dict",
        "notes": "list",
        "alternatives": "list",
    }


def _budget(data: Json) -> MemoryBudget:
    """Return the budget from the plain form of a plan; without phases (version 0.1.0), of its peak alone."""
    peak, by_phase = data["projected_bytes"], dict(data.get("memory_by_phase", {}))
    if max(by_phase.values(), default=None) != peak:
        by_phase = {"peak": peak}
    return MemoryBudget(data["allowed_bytes"], dict(data["memory"]), by_phase)
