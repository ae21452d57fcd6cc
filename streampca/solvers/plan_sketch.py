"""What the approximate solvers will do: how many columns, which pilot, how many readings, in how much memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streampca.accumulators.adaptive import IncrementalSVD
from streampca.accumulators.centring import sketch_dtype
from streampca.accumulators.shifting import panel_rows
from streampca.accumulators.sketch import Sketch
from streampca.errors import NotAvailableError, ParameterError, PlanError
from streampca.formatting import as_text
from streampca.linalg.selection import Count
from streampca.parameters import Parameters
from streampca.planning.leaves import count_leaves, leaves_per_branch, most_leaves, states_at_once
from streampca.planning.memory import ALLOWANCE_BYTES, REPORT_BYTES
from streampca.planning.plan import BLOCK_BYTES, Plan, Resources, block_rows_to_try, bytes_to_read, choose
from streampca.solvers.pilot import Pilot, plan_pilot
from streampca.sources.base import Source

HELD_OUT = 20  # Gaussian columns that only the certificate uses
_SPARE_COLUMNS = 10  # beyond the components, below which an answer is not worth having
_COMPONENTS_UNKNOWN = 32  # taken for the size of the sketch where the data decides their number
_ROWS_PER_BLOCK, _MOST_BLOCK_BYTES = 1024, 128 * 2**20
_LEAF_BYTES = 256 * 2**20
_BLOCKS_TO_SHUFFLE = 64
_BLOCKS_PER_UPDATE, _UPDATES_PER_LEAF, _MOST_LEAVES, _UPDATE_BYTES = 8, 4, 8, 32 * 2**20
_RETAINED_BYTES = 64 * 2**20  # what glibc keeps of the memory that a thread has freed: twice its largest mmap threshold
_FINISH_COPIES = 4  # arrays of features x columns beside test matrix and products when all is solved


@dataclass(frozen=True)
class SketchSizes:
    """The shape of a sketch; kept in `Plan.sketch`."""

    columns: int
    """Columns q of the test matrix, or rank of the incremental update."""
    held_out: int
    """Further Gaussian columns for the certificate."""
    passes: int
    """Readings at most."""
    keep_all: bool
    """Whether all blocks of products are kept for the end, or only the last."""
    pilot_rows: int
    """Rows that are read beforehand."""
    pilot_bands: int
    """Bands of chunks that they come from; 0 where single rows can be read."""
    pilot_bytes: int
    """Decoded bytes of that."""
    rows_per_update: int = 0
    """Rows of one incremental update."""
    moments_first: bool = False
    """Whether a reading for means and variances comes before `passes`: the published conversion is only defined for rows
    whose scales are known."""

    @property
    def pilot(self) -> Pilot:
        """Return which rows are read beforehand."""
        return Pilot(self.pilot_rows, self.pilot_bands, self.pilot_bytes)


def sizes_of(plan: Plan) -> SketchSizes:
    """Return the shape of the sketch that `plan` decided."""
    return SketchSizes(**{name: plan.sketch[name] for name in SketchSizes.__dataclass_fields__})


def plan_sketch(source: Source, parameters: Parameters, resources: Resources, solver: str) -> Plan:
    """Return the plan of an approximate fit.

    Raises
    ------
    PlanError
        If not even a sketch of ten columns more than components fits.
    """
    n, d = source.shape
    selection = parameters.selection(source)
    k = selection.n_components if isinstance(selection, Count) else None
    _require(source, parameters, solver, k)
    tried = []
    for columns in _columns_to_try(parameters, n, d, k, solver):
        for keep_all in (True, False):
            plan, fits = _plan(source, parameters, resources, solver, (columns, keep_all), k)
            if fits:
                return plan
            tried.append(plan)
            if plan.passes == 1:
                break
    best = min(tried, key=lambda plan: plan.projected_bytes)
    raise PlanError(
        f"projected {as_text(best.projected_bytes)} exceeds the allowed {as_text(best.allowed_bytes)}, of which the process itself "
        f"takes {as_text(best.memory['process'])}, with a sketch of {best.sketch['columns']} columns of {d:,} features: fewer "
        f"components, or memory of at least {as_text(1.01 * best.projected_bytes)}"
    )


def _require(source: Source, parameters: Parameters, solver: str, k: int | None) -> None:
    """Raise for what the approximate solvers do not take."""
    if parameters.forgetting != 1:
        raise NotAvailableError(f"solver={solver!r} does not take forgetting: use solver='covariance'")
    if parameters.missing == "mean":
        raise NotAvailableError(
            f"solver={solver!r} does not take missing='mean', which needs the means before the pass: use missing='pairwise' or "
            "'drop_rows', or solver='covariance'"
        )
    if solver == "adaptive":
        for found, what in (
            (source.sparse, "sparse rows"),
            (parameters.missing != "error", f"missing={parameters.missing!r}"),
        ):
            if found:
                raise NotAvailableError(f"solver='adaptive' does not take {what}: use solver='sketch'")
    _require_recovery(parameters, solver)
    if not isinstance(parameters.sketch_size, str) and k is not None and parameters.sketch_size < k:
        raise ParameterError(
            f"sketch_size={parameters.sketch_size} is less than n_components={k}: expected at least {k + _SPARE_COLUMNS} "
            'columns, or "auto"'
        )


def needs_moments(parameters: Parameters) -> bool:
    """Tell whether the conversion needs to know scales, or shares of observed values, before rows are multiplied.

    Its eigenvalues are those of ΩᵀCΩ for the Ω that was drawn, so unlike the Nyström approximation it is not the same for
    every test matrix of one span, and factors of the features cannot be put in afterwards.
    """
    return parameters.recovery == "conversion" and (parameters.scale or parameters.missing == "pairwise")


def _require_recovery(parameters: Parameters, solver: str) -> None:
    """Raise where the published conversion does not go together with what is asked for."""
    if parameters.recovery != "conversion":
        return
    if solver == "adaptive":
        raise NotAvailableError(
            "solver='adaptive' does not take recovery='conversion', which converts products with a test matrix: use solver='sketch'"
        )
    readings = 2 if needs_moments(parameters) else 1
    if parameters.max_passes < readings:
        raise ParameterError(
            f"max_passes={parameters.max_passes} with recovery='conversion': expected at least 2, because z-scores and shares of "
            "observed values have to be known before rows are multiplied; use max_passes=2 or recovery='nystrom'"
        )
    if parameters.max_passes > 2 or (parameters.tolerance is not None and parameters.max_passes > readings):
        raise ParameterError(
            f"max_passes={parameters.max_passes} and tolerance={parameters.tolerance} with recovery='conversion': expected {readings} "
            "passes at most, because the published "
            "conversion multiplies every row once and further passes would not improve it; use recovery='nystrom', or "
            f"{'tolerance=None' if parameters.max_passes == 2 else f'max_passes={readings}'}"
        )


def _columns_to_try(parameters: Parameters, n: int, d: int, k: int | None, solver: str) -> list[int]:
    """Return numbers of columns, best first."""
    limit = max(1, min(n, d))
    if not isinstance(parameters.sketch_size, str):
        return [min(int(parameters.sketch_size), d)]
    wanted = _COMPONENTS_UNKNOWN if k is None else k
    informed = parameters.recovery == "nystrom" and (
        solver == "adaptive" or (parameters.pilot != 0 and parameters.sketch in ("auto", "gaussian"))
    )
    size = max(2 * wanted, wanted + 32) if informed else max(4 * wanted, wanted + 64)
    sizes = [min(size, limit)]
    least = min(wanted + _SPARE_COLUMNS, limit)
    while sizes[-1] > least:
        sizes.append(max(least, sizes[-1] * 3 // 4))
    return sizes


def _plan(
    source: Source,
    parameters: Parameters,
    resources: Resources,
    solver: str,
    shape: tuple[int, bool],
    k: int | None,
) -> tuple[Plan, bool]:
    (n, d), (columns, keep_all) = source.shape, shape
    passes = 1 if parameters.tolerance is None or parameters.recovery == "conversion" else parameters.max_passes
    informed = parameters.recovery == "nystrom" and (
        parameters.sketch in ("auto", "gaussian") or parameters.scale or solver == "adaptive"
    )
    room = max(0, resources.allowed_bytes - resources.process_bytes) // 2
    wanted = parameters.pilot if informed and (solver == "sketch" or parameters.scale) else 0
    if parameters.pilot not in ("auto", 0):
        wanted = parameters.pilot
    moments_first = needs_moments(parameters)
    readings = passes + int(moments_first)
    pilot = plan_pilot(source, wanted, columns, room)
    dtype = sketch_dtype(source.dtype, d)
    state = 8 * d * (columns + HELD_OUT)
    n_leaves_of = _leaves_of(source, solver, state)

    def build(rows: int, leaves: int, threads_per_leaf: int) -> Plan:
        n_blocks = -(-n // rows)
        n_leaves = n_leaves_of(rows, n_blocks)
        update = _rows_per_update(rows, n_blocks, n_leaves, columns, d * dtype.itemsize) if solver == "adaptive" else 0
        sizes = SketchSizes(
            columns, min(HELD_OUT, d), passes, keep_all, pilot.n_rows, pilot.n_bands, pilot.bytes, update, moments_first
        )
        window = min(leaves, n_leaves)
        per_branch = leaves_per_branch(n_leaves, state)
        n_states = states_at_once(window, n_leaves, per_branch)
        memory = _memory(source, sizes, k, rows, (window, n_states, threads_per_leaf), resources)
        reading = bytes_to_read(source, rows) if rows % source.chunk_rows else n * source.row_bytes
        shared = 4.0 * n * d * (passes * columns + sizes.held_out)
        return Plan(
            solver=solver,
            reason=_reason(solver, sizes, d) + _stopping(parameters, passes),
            n_samples=n,
            n_features=d,
            dtype=str(source.dtype),
            work_dtype=str(dtype),
            n_components=k,
            passes=readings,
            rows_per_block=rows,
            n_blocks=n_blocks,
            n_leaves=n_leaves,
            leaves_in_flight=window,
            window=window,
            threads=resources.threads,
            threads_per_leaf=threads_per_leaf,
            leaves_per_branch=per_branch,
            tile=0,
            bytes_to_read=readings * reading + pilot.bytes,
            flops=shared * (3.5 if solver == "adaptive" and passes == 1 else 1.0) + 6.0 * d * (passes * columns) ** 2,
            projected_bytes=_peak(memory, window),
            allowed_bytes=resources.allowed_bytes,
            memory=memory,
            notes=_notes(source, sizes, reading),
            shuffle_seed=parameters.seed if solver == "adaptive" else None,
            sketch=asdict(sizes) | {"tolerance": parameters.tolerance},
        )

    sizes_to_try = _block_rows(source, dtype, solver)
    shares = resources.threads if solver == "adaptive" else max(1, d // 4096)
    return choose(sizes_to_try, build, 0, resources.threads, shares)


def _block_rows(source: Source, dtype: np.dtype[Any], solver: str) -> list[int]:
    """Return rows per block, best first; enough rows that adding products of features x columns costs little."""
    n, d = source.shape
    size = min(_MOST_BLOCK_BYTES, max(BLOCK_BYTES, _ROWS_PER_BLOCK * d * dtype.itemsize))
    if solver == "adaptive":  # many blocks, so that a shuffled order mixes what lies far apart
        band = min(source.chunk_rows, n)
        rows = max(1, n // _BLOCKS_TO_SHUFFLE, min(band, n))
        size = min(size, max(rows // band * band, 1) * d * max(source.dtype.itemsize, dtype.itemsize))
    return block_rows_to_try(source, dtype, size)


def _leaves_of(source: Source, solver: str, state_bytes: int) -> Any:
    n = source.shape[0]
    if solver == "sketch":
        # Adding a leaf's products to the total takes a few parts in a hundred of making them.
        most = min(max(1, n * source.row_bytes // _LEAF_BYTES), most_leaves(state_bytes))
        return lambda rows, n_blocks: min(max(most, count_leaves(n, n_blocks, source.row_bytes)), n_blocks)
    row_bytes = source.shape[1] * sketch_dtype(source.dtype, source.shape[1]).itemsize

    def count(rows: int, n_blocks: int) -> int:
        together = max(_BLOCKS_PER_UPDATE, _UPDATE_BYTES // (rows * row_bytes))
        return max(1, min(_MOST_LEAVES, n_blocks // (together * _UPDATES_PER_LEAF)))

    return count


def _rows_per_update(rows: int, n_blocks: int, n_leaves: int, rank: int, row_bytes: int) -> int:
    """Return rows of one incremental update: those of eight blocks or 32 MiB, unless these are many more than the rank.

    The more rows from different places meet in one update, the less is lost.
    """
    blocks = min(max(_BLOCKS_PER_UPDATE, _UPDATE_BYTES // (rows * row_bytes)), -(-n_blocks // n_leaves))
    most = max(rows, 16 * rank, _UPDATE_BYTES // row_bytes)
    return max(1, min(blocks * rows, most))


def _memory(
    source: Source, sizes: SketchSizes, k: int | None, rows: int, shape: tuple[int, int, int], resources: Resources
) -> dict[str, int]:
    (leaves, n_states, threads), (n, d) = shape, source.shape
    dtype = sketch_dtype(source.dtype, d)
    adaptive = sizes.rows_per_update > 0
    k = sizes.columns if k is None else min(k, sizes.columns)
    again = sizes.passes > 1 or sizes.moments_first
    block = rows * source.row_bytes
    buffers = (2 * block if source.buffered else 0) + source.overhead_bytes(rows)
    columns = sizes.columns + sizes.held_out
    empty = np.empty((0, columns), dtype=dtype)
    sketch = Sketch(empty, n_threads=threads, key="plan")
    first = states = sketch.state_bytes(d)
    scratch = sketch.scratch_bytes(d, rows, dtype.itemsize)
    test = d * columns * dtype.itemsize
    if adaptive:
        held = Sketch(np.empty((0, sizes.held_out), dtype=dtype), n_threads=threads, key="plan")
        rank = IncrementalSVD(sizes.columns, sizes.rows_per_update, n_threads=threads)
        first = held.state_bytes(d) + rank.state_bytes(d)
        scratch = max(
            scratch, held.scratch_bytes(d, rows, dtype.itemsize) + rank.scratch_bytes(d, rows, dtype.itemsize)
        )
        states = max(first, states) if again else first
    one = 16 * d * sizes.columns
    kept = (sizes.passes if sizes.keep_all else 1) * one + 16 * d * sizes.held_out
    total = (sizes.passes if sizes.keep_all else 1) * sizes.columns
    band = min(n, source.chunk_rows) * source.row_bytes if sizes.pilot_bands else 0
    pilot = sizes.pilot_rows * d * dtype.itemsize * 2 + band + (2 * one if sizes.pilot_rows else 0)
    scores_rows = min(rows, panel_rows(d, dtype))
    score = 4 if source.dtype.kind == "f" and source.dtype.itemsize <= 4 else 8
    scores = leaves * (buffers + 2 * scores_rows * d * score + 6 * rows * k * score) + d * k * score
    return {
        "process": resources.process_bytes + ALLOWANCE_BYTES,
        # In later passes the first state, its test matrix, and the next basis in float64 stand beside what is read.
        "states": states * n_states + (first + 8 * d * columns if again else 0),
        "test matrix": test * (2 if again else 1),
        "kept products": kept,
        "blocks": leaves * buffers,
        "scratch": leaves * scratch,
        "pilot": pilot,
        "solve": 8 * d * (total * _FINISH_COPIES + 4 * columns),
        "model": 8 * (3 * k * d + 4 * d),
        "scores": scores if resources.scores else 0,
        "rows kept": 3 * resources.kept_rows * source.row_bytes,
        "report": REPORT_BYTES if resources.report else 0,
    }


def _peak(memory: dict[str, int], leaves: int) -> int:
    always = memory["process"] + memory["rows kept"]
    retained = min(memory["blocks"] + memory["scratch"], leaves * _RETAINED_BYTES)
    reading = memory["test matrix"] + memory["states"] + memory["blocks"] + memory["scratch"]
    solving = memory["kept products"] + memory["solve"] + memory["model"] + retained
    after = memory["model"] + max(memory["scores"], memory["report"] + retained)
    return always + max(memory["pilot"], memory["kept products"] + max(reading, 0), solving, after)


def _reason(solver: str, sizes: SketchSizes, d: int) -> str:
    exact = as_text(4 * d * d)
    if solver == "adaptive":
        return (
            f"approximate, with a certificate; a basis of rank {sizes.columns} follows the rows in shuffled order, where the "
            f"{d:,} x {d:,} matrix would take {exact}"
        )
    return (
        f"approximate, with a certificate; the products with {sizes.columns} vectors are kept, where the {d:,} x {d:,} matrix "
        f"would take {exact}"
    )


def _stopping(parameters: Parameters, passes: int) -> str:
    """Return when reading ends, in words; nothing where it ends after one pass."""
    if passes == 1:
        return ""
    if parameters.tolerance == 0:
        return f"; reads {passes} times"
    return f"; reads at most {passes} times, and stops once every eigenvalue is certified to {parameters.tolerance:g}"


def _notes(source: Source, sizes: SketchSizes, reading: int) -> tuple[str, ...]:
    notes = []
    if sizes.pilot_rows:
        share = sizes.pilot_bytes / (source.shape[0] * source.row_bytes)
        where = f"{sizes.pilot_bands:,} bands of chunks" if sizes.pilot_bands else "all over the source"
        notes.append(
            f"before the first pass {sizes.pilot_rows:,} rows from {where} are read ({as_text(sizes.pilot_bytes)}, {share:.2%} of the data)"
        )
    if sizes.moments_first:
        notes.append(
            "the first reading takes means and variances, the second multiplies the rows in their final scales"
        )
    if not sizes.keep_all and sizes.passes > 1:
        notes.append("only the last block of products is kept: with more memory all of them would give smaller errors")
    times = reading / (source.shape[0] * source.row_bytes)
    if times > 1.0:
        notes.append(
            f"a band of whole chunks ({source.chunk_rows:,} rows) does not fit: chunks are decoded {times:.1f} times in each pass"
        )
    return tuple(notes)
