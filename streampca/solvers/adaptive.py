"""Approximate PCA by an incremental low-rank basis that follows the rows in shuffled order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.adaptive import IncrementalSVD, rescaled
from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.centring import product_dtype
from streampca.accumulators.sketch import Sketch, Sketched
from streampca.errors import DataError
from streampca.linalg.certificate import ROUNDING_OF_REPEATED_ROWS, Evidence
from streampca.linalg.nystrom import LowRank
from streampca.planning.plan import Plan, SketchDetail
from streampca.planning.shape import WorkShape
from streampca.solvers.approximate import ApproximateSolver, FirstPass, sizes_of
from streampca.solvers.capabilities import Table
from streampca.typing import FloatArray

_EXCESS = 1e-3  # of the variance of a feature, known exactly, above which the answer is not below the covariance
_UPDATE_ROUNDING = 16 * float(np.finfo(np.float64).eps)
_BLOCKS_TO_SHUFFLE = 64
_BLOCKS_PER_UPDATE, _UPDATES_PER_LEAF, _MOST_LEAVES, _UPDATE_BYTES = 8, 4, 8, 32 * 2**20


class AdaptiveSolver(ApproximateSolver):
    """Approximate, by an incremental low-rank basis that follows the rows in shuffled order; it keeps no state."""

    name = "adaptive"
    multiplies_first = False
    one_pass_cost = 3.5
    refuses: ClassVar[Table] = {
        **ApproximateSolver.refuses,
        "missing='drop_rows'": "use solver='covariance' or missing='mean'",
        "missing='pairwise'": "use solver='covariance' or missing='mean'",
        "sparse rows": "use solver='covariance' or solver='sketch'",
        "recovery='conversion'": "that converts products with a test matrix: use solver='sketch'",
    }

    @override
    @property
    def keeps(self) -> str:
        return f"a basis of rank {self.columns} follows the rows in shuffled order"

    @override
    @property
    def directed(self) -> bool:
        return False

    @override
    @property
    def needs_few_columns(self) -> bool:
        return True

    @override
    @property
    def shares(self) -> int:
        return self.resources.threads

    @override
    @property
    def block_bytes(self) -> int:
        """Return the preferred size of a block: so small that a shuffled order of the blocks mixes what lies far apart."""
        source, n = self.source, self.source.shape[0]
        band = min(source.chunk_rows, n)
        rows = max(1, n // _BLOCKS_TO_SHUFFLE, min(band, n))
        row_bytes = source.n_features_read * max(source.dtype.itemsize, self.dtype.itemsize)
        return min(super().block_bytes, max(rows // band * band, 1) * row_bytes)

    def blocks_per_update(self, rows: int) -> int:
        """Return the blocks of one incremental update: eight, or as many as have 32 MiB."""
        return max(_BLOCKS_PER_UPDATE, _UPDATE_BYTES // (rows * self.source.shape[1] * self.dtype.itemsize))

    @override
    def count_leaves(self, rows: int, state_bytes: int) -> int:
        """Return the number of leaves for blocks of `rows` rows: each of some updates."""
        n_blocks = -(-self.source.shape[0] // rows)
        return max(1, min(_MOST_LEAVES, n_blocks // (self.blocks_per_update(rows) * _UPDATES_PER_LEAF)))

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        return replace(super().shape(rows, leaves, threads_per_leaf), shuffle_seed=self.parameters.seed)

    @override
    def detail(self, shape: WorkShape) -> SketchDetail:
        """Return the settings; the rows of an update are those of eight blocks or 32 MiB, unless these are many more than the rank.

        The more rows from different places meet in one update, the less is lost.
        """
        rows, row_bytes = shape.rows_per_block, self.source.shape[1] * self.dtype.itemsize
        blocks = min(self.blocks_per_update(rows), -(-shape.n_blocks // shape.n_leaves))
        most = max(rows, 16 * self.columns, _UPDATE_BYTES // row_bytes)
        return replace(super().detail(shape), rows_per_update=max(1, min(blocks * rows, most)))

    @override
    def first_in_size(self, detail: SketchDetail, threads: int) -> Sequence[AnyAccumulator]:
        basis = IncrementalSVD(detail.columns, detail.rows_per_update, n_threads=threads)
        return basis, self.sketch_in_size(detail.held_out, threads)

    @override
    def first_accumulators(self, plan: Plan, begun: FirstPass, sketch: Sketch) -> tuple[AnyAccumulator, ...]:
        return self._basis(plan, begun.factors), sketch

    def _basis(self, plan: Plan, factors: FloatArray) -> IncrementalSVD:
        """Return what follows the rows, of which features are multiplied by `factors`."""
        sizes = sizes_of(plan)
        return IncrementalSVD(
            min(sizes.columns, plan.n_features),
            sizes.rows_per_update,
            self.parameters.center,
            _metric(factors),
            n_threads=plan.threads_per_leaf,
            dtype=str(product_dtype(plan.work_dtype, plan.n_features, factors)),
            seed=self.parameters.seed,
        )

    @override
    def answer_of_first(
        self, known: Sketched, evidence: Evidence, states: tuple[Any, ...], begun: FirstPass, plan: Plan
    ) -> tuple[Evidence, LowRank | None]:
        adapted = self._basis(plan, begun.factors).finalize(states[0])
        metric = _metric(begun.factors)
        factors = known.weights if metric is None else known.weights / metric
        # Every update rounds relative to the largest feature in its metric, which the factors may magnify.
        largest = float(adapted.values.max(initial=0.0)) * float(factors.max(initial=0.0)) ** 2
        rounding = _UPDATE_ROUNDING * largest
        unit = ROUNDING_OF_REPEATED_ROWS if plan.work_dtype == "float32" else _UPDATE_ROUNDING
        if (factors != 1).any():
            adapted = rescaled(adapted, factors)
            diagonal = np.einsum("ij,j,ij->i", adapted.vectors, adapted.values, adapted.vectors)
            _require_below(diagonal, known, unit * float(adapted.values.max(initial=0.0)))
        low_rank = LowRank(adapted.values / known.divisor, adapted.vectors, 0.0)
        rounding /= max(float(adapted.values.max(initial=0.0)), float(np.finfo(np.float64).tiny))
        # What an update discards is measured in its products, so that what lies below their rounding may be missed.
        discarded = (adapted.discarded + unit * largest) / known.divisor
        return replace(evidence, discarded=discarded, rounding=rounding), low_rank


def _require_below(diagonal: FloatArray, known: Sketched, rounding: float) -> None:
    """Raise `DataError` if a rescaled basis gives a feature more variance than it has: rounding that a factor has magnified.

    `rounding`, of sums of squares, is that of the first eigenvalue, which certificates allow for.
    """
    excess = ((diagonal - rounding) / known.divisor - known.diagonal * (1 + _EXCESS)) * (known.diagonal > 0)
    if (excess > 0).any():
        raise DataError(
            f"feature {int(excess.argmax())} varies by so much less than others that solver='adaptive' cannot standardise it: the "
            "updates follow unscaled features here, and its variance is below their rounding: use solver='covariance' or 'sketch', or "
            "rescale the feature first"
        )


def _metric(factors: FloatArray) -> FloatArray | None:
    """Return the metric of an incremental pass: `factors`, kept above zero; None for 1."""
    if (factors == 1).all():
        return None
    metric: FloatArray = np.maximum(factors, 1e-12 * factors.max())
    return metric
