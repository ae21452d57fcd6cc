"""Formulas of memory, in bytes, that solvers share: the ceiling, and what blocks, states, eigenproblems, models and scores take.

The symbols in these formulas and in those of the solvers (`Work.needs`): n samples, d features and k components; b rows of a block, s bytes of
a stored value, w of a value in a product, e of a score; L leaves at once, T threads of each, at most W leaves under way or waiting to be
merged; p ≤ b rows of a panel, which are multiplied at once; S bytes of a state; t the side of a tile.
"""

from __future__ import annotations

from streampca.errors import ParameterError
from streampca.linalg.eigen import uses_krylov
from streampca.linalg.lanczos import basis_size
from streampca.planning.budget import MemoryNeed, Phase
from streampca.planning.shape import WorkShape
from streampca.sources.base import Source
from streampca.system.process import MEBIBYTE, available_bytes, resident_bytes
from streampca.typing import DType

ALLOWANCE_BYTES = 24 * MEBIBYTE
"""Interpreter, thread stacks and the allocator, beside the arrays that a plan counts."""
WORKER_PROCESS_BYTES = 230 * MEBIBYTE
"""A fresh Dask worker process with the imports of this package, before its first leaf."""
REPORT_BYTES = 96 * MEBIBYTE
"""Drawing the report, beside the model and the sampled rows."""
SAFE_SHARE = 0.6
"""Share of the available memory that is used where no ceiling is given."""


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
    return MemoryNeed("rows kept", 3 * rows * source.dense_row_bytes)


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
