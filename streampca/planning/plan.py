"""The plan of a fit or a pass: a pure function of shape, chunks, parameters and memory, printed and checked before reading."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Self

from streampca.formatting import as_seconds, as_text, lines_as_html, lines_as_text, plural
from streampca.linalg.eigen import basis_size, block_size, uses_krylov
from streampca.planning.memory import MemoryBudget, Phase
from streampca.planning.shape import WorkShape
from streampca.sources.base import Source
from streampca.sources.grid import Schedule
from streampca.system.phases import PHASES
from streampca.system.process import n_cores
from streampca.typing import Json

ALL_ROWS = "all rows"
"""Choice of landmarks if all rows are landmarks."""
DETAILS: dict[str, type[SolverDetail]] = {}
"""The class of details of each solver, by name; `Solver` registers them."""
READ_AHEAD_BYTES = 128 * 2**20
"""Default memory for reading ahead: 32 requests of 4 MiB."""
_READING: tuple[Phase, ...] = ("pilot", "landmarks", "reading", "components", "scores")
_NOT_PLAIN = ("extent", "budget", "detail", "seconds")
_FIXED_SECONDS = 0.03  # threads, first calls
_ADAPTIVE_COST = 2.5  # of an incremental update, in passes of a sketch of as many columns
_DISK_BYTES_PER_SECOND = 1e9  # of temporary files; those that the page cache holds come several times as fast


@dataclass(frozen=True)
class SolverDetail:
    """Settings that only one solver has; empty for a pass that only computes scores."""

    def to_dict(self) -> Json:
        """Return the settings by their names in the plain form of a plan."""
        return asdict(self)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts of more lines of the printed plan."""
        yield from ()

    @classmethod
    def from_dict(cls, data: Json) -> Self:
        """Return the settings from the plain form `data` of a plan."""
        return cls(**{entry.name: data[entry.name] for entry in fields(cls) if entry.name in data})

    @classmethod
    def entries(cls) -> dict[str, str]:
        """Return the types of the entries of the plain form, as annotations."""
        return {each.name: str(each.type) for each in fields(cls)}

    @property
    def holds_all_rows(self) -> bool:
        """Return whether all rows are in memory, or copied to disk, at once."""
        return False


@dataclass(frozen=True)
class CovarianceDetail(SolverDetail):
    """Settings of the covariance solver."""

    tile_groups: int = 0
    """Groups of tiles of the covariance, each computed in a separate pass and stored on disk; 0 = all in memory."""


@dataclass(frozen=True)
class GramDetail(SolverDetail):
    """Settings of the Gram solver."""

    components_on_disk: bool = False
    """Whether the components are stored on disk because they do not fit in memory."""
    copied_rows: int = 0
    """Rows per block in the first pass, which copies rows to disk so that chunks are decoded once; 0 = no copy."""


@dataclass(frozen=True)
class SketchDetail(SolverDetail):
    """Settings of the approximate solvers."""

    columns: int
    """Columns q of the test matrix, or rank of the incremental update."""
    held_out: int
    """Additional Gaussian columns for the certificate."""
    passes: int
    """Maximum number of passes over the rows."""
    kept_passes: int
    """Passes whose products stay in memory together; after that, a pass restarts from the eigenvectors found so far."""
    pilot_rows: int
    """Rows of the pilot, which is read before the first pass."""
    pilot_bands: int
    """Number of bands of chunks that contain these rows; 0 if single rows can be read."""
    pilot_bytes: int
    """Decoded bytes of the pilot."""
    rows_per_update: int = 0
    """Rows of one incremental update; 0 for a sketch."""
    moments_first: bool = False
    """Whether a pass for means and variances precedes `passes`: the published conversion is defined only for rows with known
    scales."""
    tolerance: float | None = None
    """Relative error of the eigenvalues at which passes stop; None = one pass."""

    def to_dict(self) -> Json:
        """Return the settings under ``sketch``."""
        return {"sketch": asdict(self)}

    @classmethod
    def entries(cls) -> dict[str, str]:
        """Return the type of the one entry."""
        return {"sketch": "dict"}

    @classmethod
    def from_dict(cls, data: Json) -> Self:
        """Return the settings under ``sketch`` in `data`."""
        return cls(**data["sketch"])


@dataclass(frozen=True)
class KernelDetail(SolverDetail):
    """Settings of the methods of kernel PCA."""

    n_landmarks: int = 0
    """Number of landmarks, with which every row is compared."""
    sampling: str = ""
    """How landmarks are drawn."""
    columns: int = 0
    """Columns of the transform of the empirical kernel map."""
    rows_on_disk: bool = False
    """Whether the rows of the empirical kernel map are copied to disk because they do not fit in memory."""
    rows_in_memory: int = 0
    """Number of rows on disk that are in memory at a time."""
    disk_readings: int = 0
    """Number of passes over the rows on disk."""

    @property
    def holds_all_rows(self) -> bool:
        """Return whether all rows are landmarks."""
        return self.sampling == ALL_ROWS

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the columns of the transform, or the number and choice of landmarks."""
        if self.columns:
            yield "transform", f"{self.columns:,} columns"
        else:
            yield "landmarks", f"{self.n_landmarks:,}, {self.sampling}"


@dataclass(frozen=True, repr=False, kw_only=True)
class Plan(WorkShape):
    """Plan of a fit or pass: shape of the work, memory, other costs, and settings of the solver."""

    solver: str
    """Name of the solver."""
    reason: str
    """Reason for the choice of the solver."""
    n_samples: int
    """Rows of the source."""
    n_features: int
    """Columns of the source."""
    dtype: str
    """Data type of the source."""
    work_dtype: str
    """Data type of the products."""
    n_components: int | None
    """Number of components; None if the data decide."""
    budget: MemoryBudget
    """Projected and allowed memory."""
    passes: int
    """Passes over the source."""
    bytes_to_read: int
    """Decoded bytes to read."""
    flops: float
    """Floating point operations."""
    expected_seconds: float | None = None
    """Expected duration in seconds; None if not estimated."""
    expected_by: str = ""
    """Source of the estimate: ``"nominal rates"`` of an average machine."""
    disk_bytes: int = 0
    """Size of the temporary files."""
    waiting_threads: int = 0
    """Number of threads that stay idle because memory is short."""
    bytes_for_threads: int = 0
    """Ceiling of the resident memory with which they would work; 0 if none is idle."""
    sampling_errors: str = ""
    """Source of sampling errors: ``"groups"``, covariances of groups of rows from the pass of the fit, or ``"reading"``, the scores of one more pass; empty = none."""
    detail: SolverDetail = field(default_factory=SolverDetail)
    """Settings of the solver."""
    notes: tuple[str, ...] = ()
    """Remarks for the user."""
    alternatives: tuple[Json, ...] = ()
    """Figures of the other solvers."""
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Seconds of a finished fit by phase; empty before. ``waiting`` for rows, ``centring`` and ``products`` are sums over threads; ``merging``, ``eigenproblem`` and ``total`` are wall-clock times. ``busy`` is the average share of `threads` that computed; it is absent on a cluster."""

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
        """Return the largest number of passes of the solver, without a later pass for sampling errors."""
        return self.passes - int(self.sampling_errors == "reading")

    @property
    def tile_groups(self) -> int:
        """Return the number of groups of tiles, one pass each, if the covariance is stored on disk; 0 = in memory."""
        return int(getattr(self.detail, "tile_groups", 0))

    @property
    def components_on_disk(self) -> bool:
        """Tell whether the components of wide data are stored on disk because they do not fit in memory."""
        return bool(getattr(self.detail, "components_on_disk", False))

    @property
    def copied_rows(self) -> int:
        """Return the rows per block in the pass that copies rows to disk, to read them by features later; 0 without a copy."""
        return int(getattr(self.detail, "copied_rows", 0))

    @property
    def rows_on_disk(self) -> bool:
        """Tell whether the rows of the empirical kernel map are copied to disk because they do not fit in memory."""
        return bool(getattr(self.detail, "rows_on_disk", False))

    @property
    def model_on_disk(self) -> bool:
        """Return whether a part of the model stays in a temporary directory: components of wide data, or rows of kernel PCA."""
        return self.components_on_disk or self.rows_on_disk

    @property
    def sketch(self) -> Json:
        """Return the settings of an approximate solver as a dictionary; empty for exact ones."""
        sketch: Json = self.detail.to_dict().get("sketch", {})
        return sketch

    @property
    def approximate(self) -> bool:
        """Tell whether the result of the solver is approximate, with a certificate of its errors."""
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
        """Return the plan from its plain form `data`, also if stored as JSON or by version 0.1.0.

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
        return lines_as_text(_lines(self))

    def _repr_html_(self) -> str:
        return lines_as_html(_lines(self))


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the printed lines of a plan."""
    components = "as many as the data asks for" if plan.n_components is None else str(plan.n_components)
    yield "solver", f"{plan.solver}: {plan.reason}"
    yield from plan.detail.lines()
    yield "data", f"{plan.n_samples:,} samples x {plan.n_features:,} features, {plan.dtype}; components: {components}"
    yield (
        "reading",
        f"{_passes(plan.passes, plan.sketch)}, {as_text(plan.bytes_to_read)} decoded, in {plural(plan.n_blocks, 'block')} of {plan.rows_per_block:,} {plan.axis}",
    )
    yield (
        "work",
        f"{plan.flops:.2e} flops in {plan.work_dtype}, {plural(plan.n_leaves, 'leaf', 'leaves')}, {plan.leaves_in_flight} at once "
        f"x {plural(plan.threads_per_leaf, 'thread')}, on {plan.runs_on}",
    )
    yield "memory", str(plan.budget)
    if plan.waiting_threads:
        yield (
            "cores",
            f"{plan.waiting_threads} of {plan.threads} will wait for memory; a ceiling of {as_text(plan.bytes_for_threads)} would use all of them",
        )
    yield "merging", plan.merging
    if plan.expected_seconds is not None:
        yield "time", f"about {as_seconds(plan.expected_seconds)} by {plan.expected_by}"
    if plan.seconds:
        yield "took", phases_in_words(plan.seconds)
    for note in plan.notes:
        yield "note", note
    for other in plan.alternatives:
        yield "or", _alternative_in_words(other)


def phases_in_words(seconds: Mapping[str, float]) -> str:
    """Return the time of a fit by phase, in words."""
    of_threads = [
        f"{PHASES[name]} {as_seconds(seconds[name])}" for name in PHASES if name in seconds and name != "merging"
    ]
    text = f"{as_seconds(seconds['total'])}; threads together: {', '.join(of_threads) or 'nothing'}; beside them merging states "
    text += f"{as_seconds(seconds.get('merging', 0.0))}, eigenproblem {as_seconds(seconds['eigenproblem'])}"
    return text + (f"; {seconds['busy']:.0%} of all cores busy on average" if "busy" in seconds else "")


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
    """Return the number of passes, with "at most" if an approximate solver may stop earlier."""
    most = "at most " if sketch.get("passes", passes) > 1 and sketch.get("tolerance") else ""
    return f"{most}{passes} pass{'es' if passes > 1 else ''}"


def with_repeated_reads(plan: Plan, source: Source) -> Plan:
    """Return `plan` with the notes of `source` and its labels, and with repeated reads of its graph in the bytes to read.

    Raises
    ------
    RepeatedReadsError
        If reads are repeated more often than allowed.
    """
    dimensions = () if source.labels is None else (*source.labels.samples, *source.labels.features)
    of_names = (f"{source.description}: {each.note}" for each in dimensions if each.note)
    notes = (*source.plan_notes(), *of_names)
    if not notes:
        return plan
    return replace(plan, bytes_to_read=round(plan.bytes_to_read * source.repeats), notes=(*plan.notes, *notes))


def with_read_ahead(plan: Plan, source: Source, most: int | None) -> Plan:
    """Return `plan` with memory for reading ahead: at most `most` bytes (None = 128 MiB) of what the ceiling leaves.

    Blocks and leaves are unchanged, so the bits of a result do not depend on it.
    """
    phases = [phase for phase in _READING if phase in plan.budget.by_phase]
    if not source.reads_ahead or not phases:
        return plan
    left = plan.allowed_bytes - max(plan.budget.by_phase[phase] for phase in phases)
    n_bytes = max(0, min(READ_AHEAD_BYTES if most is None else most, left))
    budget = plan.budget.plus(n_bytes, "read ahead", phases)
    return replace(plan, budget=budget, read_ahead_bytes=n_bytes)


def schedule_of(plan: Plan, source: Source, first: int = 0) -> Schedule:
    """Return the schedule by which threads of this process read by `plan`, from leaf `first`, without blocks of equal rows."""

    def spans_of(index: int) -> list[tuple[int, int]]:
        spans = plan.leaf(first + index).spans
        return [(start, stop) for start, stop in spans if source.equal_rows(start, stop) != ((start, stop),)]

    return Schedule(plan.n_leaves - first, spans_of, plan.leaves_in_flight, plan.read_ahead_bytes)


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
    """Return the budget from the plain form of a plan; without phases (version 0.1.0), only its peak."""
    peak, by_phase = data["projected_bytes"], dict(data.get("memory_by_phase", {}))
    if max(by_phase.values(), default=None) != peak:
        by_phase = {"peak": peak}
    return MemoryBudget(data["allowed_bytes"], dict(data["memory"]), by_phase)


@dataclass(frozen=True)
class Rates:
    """Speed of an average machine in reading and computing, with the leaves and threads of a plan; sometimes wrong by a factor of three."""

    read: float
    """Decoded bytes per second of all leaves that read concurrently."""
    read_cpu: float
    """CPU seconds per decoded byte."""
    fold: float
    """Products per second of all concurrent leaves, including centring and summation: floating point operations of a
    symmetric product, counted as rows x side², in the data type of the work."""
    multiply: float
    """Floating point operations per second of float64 products on all threads."""
    lapack: float
    """Floating point operations per second of LAPACK's symmetric eigensolver on one thread."""
    merge: float
    """Merged bytes of states per second."""


def nominal_rates(plan: Plan) -> Rates:
    """Return the rates of an average CPU core of 2020 and a local disk, times the threads of `plan`."""
    per_thread = 60e9 if plan.work_dtype == "float32" else 30e9
    return Rates(
        read=1e9 * min(2, plan.leaves_in_flight),
        read_cpu=0.5e-9,
        fold=per_thread * busy_threads(plan),
        multiply=25e9 * plan.threads,
        lapack=8e9,
        merge=3e9,
    )


def busy_threads(plan: Plan) -> int:
    """Return the number of threads that compute concurrently while rows are read."""
    return min(plan.threads, plan.leaves_in_flight * plan.threads_per_leaf)


def expected_seconds(plan: Plan, rates: Rates, solving: float) -> float:
    """Return the seconds that a fit by `plan` takes at `rates`, including `solving` seconds after all rows are read.

    Within a leaf the next block is read while the previous one is accumulated, so the slower of the two counts, and only
    the first block of each leaf for the faster one. Reading also takes CPU time: if all cores are busy, both add up.
    """
    if plan.n_leaves == 0:
        return _FIXED_SECONDS
    rounds = -(-plan.n_leaves // plan.leaves_in_flight) * plan.leaves_in_flight / plan.n_leaves
    faster = 2 if plan.work_dtype == "float32" else 1
    by_features, k = plan.axis == "features", plan.n_components or min(plan.n_samples, plan.n_features)
    # The second reading, which the Gram solver takes for the components.
    projected = 2.0 * plan.n_samples * plan.n_features * k if by_features else 0.0
    fold = rounds * folded_flops(plan) / rates.fold + projected / (faster * rates.multiply)
    read = plan.bytes_to_read / rates.read
    cores = max(1, min(plan.threads, n_cores()))
    first_blocks = min(read, fold) * plan.n_leaves / max(1, plan.n_blocks)
    stream = max(max(read, fold) + first_blocks, fold + plan.bytes_to_read * rates.read_cpu / cores)
    detail = plan.detail
    entries = _side(plan) ** 2
    if isinstance(detail, SketchDetail):
        entries = plan.n_features * (detail.columns + detail.held_out)
    # Threads that share a leaf share merging, too.
    merge = plan.n_leaves * 8 * entries / rates.merge / (cores if plan.threads_per_leaf == 1 else 1)
    written = plan.disk_bytes / _DISK_BYTES_PER_SECOND
    finish = 0.0
    if by_features:  # components are made orthonormal on one thread; those on disk are read and written again
        on_disk = 2 * plan.disk_bytes / _DISK_BYTES_PER_SECOND if plan.components_on_disk else 0.0
        products = 4.0 * k**2 * plan.n_features / (rates.multiply / plan.threads)
        finish = on_disk + products + 4 * 8.0 * k * plan.n_features / rates.merge
    return _FIXED_SECONDS + stream + merge + written + solving + finish


def folded_flops(plan: Plan) -> float:
    """Return the floating point operations of the products of a fit: rows x side², or products with the columns of a sketch."""
    detail = plan.detail
    if isinstance(detail, SketchDetail):
        rows_features = float(plan.n_samples) * plan.n_features
        first = _ADAPTIVE_COST if detail.rows_per_update else 1.0
        columns = float(detail.columns * (detail.passes - 1 + first) + detail.held_out)
        return 4.0 * rows_features * columns
    return float(plan.n_samples) * plan.n_features * _side(plan)


def _side(plan: Plan) -> int:
    """Return the side of the accumulated matrix."""
    return plan.n_features if plan.axis == "samples" else plan.n_samples


def solve_seconds(plan: Plan, rates: Rates) -> float:
    """Return the time of the eigenproblem; for the iteration, the time of one full basis, enough for decaying spectra."""
    side = _side(plan)
    limit = min(plan.n_samples, plan.n_features)
    k = min(limit, 64) if plan.n_components is None else plan.n_components
    if not uses_krylov(side, k):
        k = limit if plan.n_components is None else k
        return (4 / 3 * side**3 + 2.0 * side**2 * k) / rates.lapack
    block, basis = block_size(k), basis_size(side, k)
    steps = -(-basis // block)
    products = 2.0 * side**2 * block * steps
    # Orthogonalisation twice, the projected matrix and the Ritz vectors, for a basis that grows to its full size.
    algebra = side * steps * basis * (4.0 * block + basis * 2 / 3 + 2.0 * k)
    small = steps * (4 / 3 + 2) * float(basis) ** 3 / 4
    multiply = products / rates.multiply
    if plan.tile_groups:  # every product reads the matrix from the disk, and so does the one that gives the residual
        multiply = max(multiply, (steps + 1) * plan.disk_bytes / _DISK_BYTES_PER_SECOND)
    return multiply + 2 * algebra / rates.multiply + small / rates.lapack


def warn_of_probe() -> None:
    """Warn the caller of a public function that `probe` has no effect any more."""
    warnings.warn(
        "probe is ignored: plans expect the time by nominal rates, and the argument ends with the next minor version; leave it out",
        FutureWarning,
        stacklevel=4,  # this function, `plan` and its decorator
    )
