"""Memory formulas shared by solvers, in bytes: the ceiling, and the memory of blocks, states, eigenproblems, models and scores.

The symbols in these formulas and in those of the solvers (`Work.needs`): n samples, d features and k components; b rows of a block, s bytes of
a stored value, w of a value in a product, e of a score; L leaves at once, T threads of each, at most W leaves under way or waiting to be
merged; p ≤ b rows of a panel, which are multiplied at once; S bytes of a state; t the side of a tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from streampca.errors import ParameterError, PlanError
from streampca.formatting import as_text
from streampca.linalg.eigen import basis_size, uses_krylov
from streampca.planning.shape import WorkShape
from streampca.sources.base import Source
from streampca.system.process import MEBIBYTE, available_bytes, resident_bytes
from streampca.typing import DType

Purpose = Literal[
    "process",
    "quality",
    "removal",
    "weights",
    "groups",
    "states",
    "feature means",
    "blocks",
    "read ahead",
    "scratch",
    "page-locked",
    "rows kept",
    "pilot",
    "test matrix",
    "kept products",
    "landmarks",
    "choosing",
    "kernel matrix",
    "tiles",
    "solve",
    "model",
    "components",
    "axes",
    "conditional means",
    "diagnostics",
    "scores",
    "report",
]
"""What memory is for."""

PURPOSES: dict[Purpose, str] = {
    "process": "the process with its imports at the time of planning, and 24 MiB for threads and the allocator",
    "quality": "statistics of the quality of the data, if it is examined, as a run does by default; in every phase",
    "removal": "factors of the regressions on what `remove` names; in every phase",
    "weights": "copies of the rows of positive weight in panels, with `sample_weight`; in every phase",
    "groups": "models, codes and pooled matrices of groups of rows, beside their states; in every phase",
    "states": "what the rows are accumulated into: the total, and a state for each leaf under way or waiting to be merged; with 256 leaves or more and states of 64 MiB or more two more, because leaves are merged in branches first",
    "feature means": "mean and variance of each feature of wide data, and temporary copies",
    "blocks": "the current block of each leaf and the next one, and decoding: the stored chunk and, unless blocks are whole chunks that have all features, the decoded one; nothing for arrays in memory",
    "read ahead": "stored bytes behind a URL that are requested ahead of their use, of what the ceiling leaves beside everything else (`resources.read_ahead`)",
    "scratch": "panels of rows and their products, in each leaf",
    "page-locked": "panels of rows that a device copies from, two in each leaf",
    "rows kept": "rows for the report: 2,000, or 16 MiB of them if that is less",
    "pilot": "rows that are read before the first pass of a sketch",
    "test matrix": "the matrix that rows are multiplied by, twice with several passes",
    "kept products": "test matrices and products of earlier passes",
    "landmarks": "the rows that kernel PCA compares others with, and the root of their kernel matrix",
    "choosing": "what choosing landmarks takes, before the reading",
    "kernel matrix": "values of the kernel for pairs of rows, or the rows they are computed from",
    "tiles": "tiles that are read from the disk, and their products",
    "solve": "the eigenproblem",
    "model": "components and vectors of the features",
    "components": "components of wide data while they are computed",
    "axes": "components or landmarks that scores are computed with",
    "conditional means": "the systems of rows with missing values",
    "diagnostics": "T² and Q of rows",
    "scores": "scores of a block, and its blocks, if scores are written after a fit",
    "report": "drawing the page, if it is written",
}
"""What each purpose holds."""

ALWAYS: tuple[Purpose, ...] = ("process", "quality", "weights", "groups", "diagnostics")
"""Purposes of memory that every phase of a fit has, however its rows are divided."""
KEPT: tuple[Purpose, ...] = (*ALWAYS, "removal", "landmarks", "solve", "model")
"""Purposes of memory that the process which merges the states of workers holds or sets aside beside them."""

Phase = Literal["pilot", "copying", "landmarks", "reading", "solving", "components", "scores", "report"]
"""Stretches of a fit; what is allocated in one of them is released before the next unless it is needed there, too."""
ALLOWANCE_BYTES = 24 * MEBIBYTE
"""Interpreter, thread stacks and the allocator, beside the arrays that a plan counts."""
WORKER_PROCESS_BYTES = 230 * MEBIBYTE
"""A fresh Dask worker process with the imports of this package, before its first leaf."""
REPORT_BYTES = 96 * MEBIBYTE
"""Drawing the report, beside the model and the sampled rows."""
SAFE_SHARE = 0.6
"""Share of the available memory that is used where no ceiling is given."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes for one purpose."""

    purpose: Purpose
    """What they are for."""
    n_bytes: int
    """How many."""
    phases: tuple[Phase, ...] = ()
    """The phases in which they are allocated; all where none is named."""
    listed: bool = True
    """Whether `MemoryBudget.by_purpose` shows them; False for memory that it shows for an earlier phase."""


@dataclass(frozen=True)
class MemoryBudget:
    """Projected and allowed memory of the process."""

    allowed_bytes: int
    """Ceiling of the resident memory."""
    by_purpose: dict[str, int] = field(default_factory=dict)
    """Projected bytes by purpose (`Purpose`); not all of them are allocated at the same time."""
    by_phase: dict[str, int] = field(default_factory=dict)
    """Projected bytes by phase (`Phase`): the sum of what is allocated in it."""

    @classmethod
    def of(cls, needs: Iterable[MemoryNeed], allowed_bytes: int) -> MemoryBudget:
        """Return the budget of `needs`: by phase, the sum of those that name the phase and those that name none."""
        needs = tuple(needs)
        always = sum(need.n_bytes for need in needs if not need.phases)
        by_phase: dict[str, int] = {phase: always for need in needs for phase in need.phases} or {"reading": always}
        for need in needs:
            for phase in need.phases:
                by_phase[phase] += need.n_bytes
        by_purpose: dict[str, int] = {}
        for need in needs:
            if need.listed:
                by_purpose[need.purpose] = by_purpose.get(need.purpose, 0) + need.n_bytes
        return cls(allowed_bytes, by_purpose, by_phase)

    @property
    def projected_bytes(self) -> int:
        """Return the projected peak of the resident memory: the largest sum of a phase."""
        return max(self.by_phase.values())

    @property
    def fits(self) -> bool:
        """Tell whether the projected peak is allowed."""
        return self.projected_bytes <= self.allowed_bytes

    def bytes_for(self, *purposes: Purpose) -> int:
        """Return the projected bytes for `purposes` together."""
        return sum(self.by_purpose.get(purpose, 0) for purpose in purposes)

    def plus(self, n_bytes: int, purpose: Purpose | None = None, phases: Iterable[Phase] | None = None) -> MemoryBudget:
        """Return the budget with `n_bytes` more in `phases`, in all if None; they are listed under `purpose` if one is named."""
        added = dict.fromkeys(self.by_phase if phases is None else phases, n_bytes)
        listed: dict[str, int] = {} if purpose is None else {purpose: self.bytes_for(purpose) + n_bytes}
        by_phase = {phase: total + added.get(phase, 0) for phase, total in self.by_phase.items()}
        return MemoryBudget(self.allowed_bytes, {**self.by_purpose, **listed}, by_phase)

    def __str__(self) -> str:
        purposes = ", ".join(f"{name} {as_text(size)}" for name, size in self.by_purpose.items() if size)
        return f"{as_text(self.projected_bytes)} projected of {as_text(self.allowed_bytes)} allowed ({purposes})"

    def refusal(self, advice: str | Mapping[Purpose, str], *, subject: str = "", beside: str = "") -> PlanError:
        """Return the error of a plan that does not fit: what is projected, what is allowed, and what to change.

        It names ``quality: false`` if the plan fits without examining the quality of the data.

        Parameters
        ----------
        advice : str or mapping of str
            What to change instead of allowing more memory; a mapping gives it by purpose, for the largest of its purposes.
        subject : str
            What does not fit, in front of the sentence.
        beside : str
            What else describes the projection, behind the figures.
        """
        if not isinstance(advice, str):
            advice = advice[max(advice, key=self.bytes_for)]
        if removal := self.bytes_for("removal"):
            beside = f", the regressions of remove {as_text(removal)}{beside}"
            if 2 * removal > self.projected_bytes:
                advice = (
                    "use fewer groups or covariates in remove, whose memory grows with the square of their number, or "
                )
        quality = self.bytes_for("quality")
        if quality and self.projected_bytes - quality <= self.allowed_bytes:
            beside += f", examining the quality of the data {as_text(quality)}"
            advice = f"set quality: false, {advice}{'' if advice else 'or '}"
        process = self.bytes_for("process")
        if process > self.allowed_bytes:
            return PlanError(
                f"{subject}projected {as_text(self.projected_bytes)} exceeds the allowed {as_text(self.allowed_bytes)}"
                f"; the process itself takes {as_text(process)} before anything is read: free what it holds (arrays, other models), or "
                f"allow memory of at least {as_text(1.01 * self.projected_bytes)}"
            )
        return PlanError(
            f"{subject}projected {as_text(self.projected_bytes)} exceeds the allowed {as_text(self.allowed_bytes)}"
            f" (the process itself takes {as_text(self.bytes_for('process'))}{beside}): {advice}allow memory of at least "
            f"{as_text(1.01 * self.projected_bytes)}"
        )


def allowed_bytes(memory: int | str | None) -> int:
    """Return the ceiling in bytes for the parameter `memory`: the number itself, or a text such as "2GiB".

    None gives resident memory + 0.6 · available memory. Raises `ParameterError` for anything that is not a size.
    """
    if memory is None:
        return int(resident_bytes() + SAFE_SHARE * available_bytes())
    if isinstance(memory, str):
        from dask.utils import parse_bytes

        try:
            memory = int(parse_bytes(memory)) if memory.strip() else 0
        except (ValueError, KeyError) as error:
            raise ParameterError(f'memory={memory!r} is not a size: expected bytes or a text such as "2GiB"') from error
    if isinstance(memory, bool) or not isinstance(memory, int) or memory <= 0:
        raise ParameterError(f'memory={memory!r} is not a size: expected bytes or a text such as "2GiB"')
    return memory


def report_need(*, report: bool) -> MemoryNeed:
    """Return what drawing the report takes: `REPORT_BYTES`, 0 without a report."""
    return MemoryNeed("report", REPORT_BYTES if report else 0, ("report",))


def sampled_rows_need(source: Source, rows: int) -> MemoryNeed:
    """Return what the rows take that are sampled for the report: 3 r d s."""
    return MemoryNeed("rows kept", 3 * rows * source.shape[1] * source.dtype.itemsize)


def buffer_bytes(source: Source, rows: int) -> int:
    """Return what the blocks of one leaf take: 2 b d s, the current block and the next one, and decoding."""
    return (2 * rows * source.row_bytes if source.buffered else 0) + source.overhead_bytes(rows)


def reading_needs(
    read: Source,
    shape: WorkShape,
    sizes: tuple[int, int],
    phases: tuple[Phase, ...] = ("reading",),
    kept: tuple[Phase, ...] = (),
) -> tuple[MemoryNeed, MemoryNeed, MemoryNeed]:
    """Return what a reading takes: (1 + W) S for states, and for each of L leaves its blocks and scratch.

    `sizes` are bytes of a state and of the scratch of a leaf; the reading has the `phases`, and states are `kept` in others, all if empty.
    """
    state, scratch = sizes
    return (
        MemoryNeed("states", state * shape.n_states, kept),
        MemoryNeed("blocks", shape.leaves_in_flight * buffer_bytes(read, shape.rows_per_block), phases),
        MemoryNeed("scratch", shape.leaves_in_flight * scratch, phases),
    )


def eigenproblem_bytes(side: int, k: int) -> int:
    """Return what k eigenpairs of a symmetric matrix of that side take beside it.

    LAPACK: 8 (2 side² + 3 side k); Krylov: 8 side (2 m + 512 + k) for a basis of m vectors.
    """
    basis = 2 * basis_size(side, k) + 8 * 64 + k
    return 8 * side * (basis if uses_krylov(side, k) else 2 * side + 3 * k)


def model_need(d: int, k: int, *phases: Phase) -> MemoryNeed:
    """Return what components and vectors of the features take: 8 (3 k d + 4 d)."""
    return MemoryNeed("model", 8 * (3 * k * d + 4 * d), phases)


def score_itemsize(dtype: DType) -> int:
    """Return e, the bytes of a score: 4 for float16 and float32 rows, else 8 (`PCAModel.score_dtype`)."""
    return 4 if dtype.kind == "f" and dtype.itemsize <= 4 else 8


def scores_bytes(source: Source, rows: int, leaves: int, k: int, panel: int) -> int:
    """Return what writing scores after a fit takes: L (2 b d s + decoding + 2 p d e + 6 b k e) + d k e.

    p ≤ b are the rows of a `panel`.
    """
    d, itemsize = source.shape[1], score_itemsize(source.dtype)
    panel = min(rows, panel)
    in_leaf = buffer_bytes(source, rows) + 2 * panel * d * itemsize + 6 * rows * k * itemsize
    return leaves * in_leaf + d * k * itemsize
