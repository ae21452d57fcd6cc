"""How long a plan will take: a pure function of nominal rates."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from streampca.linalg.eigen import uses_krylov
from streampca.linalg.lanczos import basis_size, block_size
from streampca.planning.detail import SketchDetail
from streampca.planning.plan import Plan
from streampca.system.process import n_cores

_FIXED_SECONDS = 0.03  # threads, first calls
_ADAPTIVE_COST = 2.5  # of an incremental update, in passes of a sketch of as many columns
_DISK_BYTES_PER_SECOND = 1e9  # of temporary files; those that the page cache holds come several times as fast


@dataclass(frozen=True)
class Rates:
    """How fast a middling machine reads a source and computes, with the leaves and threads of a plan; wrong by a factor of three at times."""

    read: float
    """Decoded bytes per second of all leaves that read at once."""
    read_cpu: float
    """Processor seconds for each decoded byte."""
    fold: float
    """Products per second that all leaves fold at once, centring and adding up included: floating point operations of
    a symmetric product, counted as rows x side², in the data type of the work."""
    multiply: float
    """Floating point operations per second of float64 products on all threads."""
    lapack: float
    """Floating point operations per second of LAPACK's symmetric eigensolver on one thread."""
    merge: float
    """Bytes of states per second that are merged."""


def nominal_rates(plan: Plan) -> Rates:
    """Return the rates of a middling processor core of 2020 and a local disk, times the threads of `plan`."""
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
    """Return how many threads compute at once while the rows are read."""
    return min(plan.threads, plan.leaves_in_flight * plan.threads_per_leaf)


def expected_seconds(plan: Plan, rates: Rates, solving: float) -> float:
    """Return the seconds that a fit by `plan` takes at `rates`, `solving` of them when all rows are read.

    Within a leaf the next block is read while one is folded, so the slower of the two counts, and of the faster one
    only the first block of each leaf. Reading takes processor time, too: on a machine with all cores busy both add up.
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
    """Return the floating point operations of the products of a fit: rows x side², or those with the columns of a sketch."""
    detail = plan.detail
    if isinstance(detail, SketchDetail):
        rows_features = float(plan.n_samples) * plan.n_features
        first = _ADAPTIVE_COST if detail.rows_per_update else 1.0
        columns = float(detail.columns * (detail.passes - 1 + first) + detail.held_out)
        return 4.0 * rows_features * columns
    return float(plan.n_samples) * plan.n_features * _side(plan)


def _side(plan: Plan) -> int:
    """Return the side of the matrix that is accumulated."""
    return plan.n_features if plan.axis == "samples" else plan.n_samples


def solve_seconds(plan: Plan, rates: Rates) -> float:
    """Return the time of the eigenproblem; of the iteration that of one filled basis, as spectra that decay need."""
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
    """Warn the caller of a public function that its `probe` does nothing any more."""
    warnings.warn(
        "probe is ignored: plans expect the time by nominal rates, and the argument ends with the next minor version; leave it out",
        FutureWarning,
        stacklevel=3,
    )
