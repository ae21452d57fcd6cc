"""What the methods that hold all rows and compare every one with every other have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from streampca.accumulators.kernel_features import in_panel
from streampca.block import Block
from streampca.execution.readings import Reading, Readings
from streampca.models.stored import BAND_ROWS, StoredRows
from streampca.planning.memory import MemoryNeed, report_need, sampled_rows_need
from streampca.planning.plan import Plan
from streampca.planning.shape import WorkShape, divide
from streampca.solvers.kernel.base import AFTER, KernelMethod, KernelParameters
from streampca.solvers.kernel.landmarks import FeatureMoments, needs_moments, with_moments
from streampca.typing import Array

PAIR_SIDE = BAND_ROWS
"""Rows on each side of a block of the kernel matrix that one thread computes at once."""
SCORES_ROWS = 8192


@dataclass(frozen=True)
class PairsMethod(KernelMethod):
    """A fit that holds all rows and compares every one with every other."""

    @override
    @property
    def m(self) -> int:
        return self.source.shape[0]

    @override
    @property
    def k(self) -> int:
        return self.parameters.count(self.m) or min(self.m, 64)

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        at_once = 1, self.resources.threads, self.resources.threads
        merge = "pairs of blocks of rows are added in a fixed order"
        return divide(self.m, rows, 1, at_once, tile=PAIR_SIDE, merge=merge)

    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Return the bytes of the kernel matrix, of scratch and of solving."""

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what a fit takes.

        Landmarks: n d w, and 8 n d more if the rows have another type; solve: 16 n² more for the inverse map.
        """
        source, (n, d), dtype = self.source, self.source.shape, self.dtype
        matrix, scratch, solve = self.sizes()
        rows, resources = shape.rows_per_block, self.resources
        scores = self.scores_bytes(min(n, SCORES_ROWS), n) if resources.scores else 0
        return [
            MemoryNeed("landmarks", n * d * dtype.itemsize + (8 * n * d if source.dtype != dtype else 0)),
            MemoryNeed("kernel matrix", matrix, ("solving",)),
            MemoryNeed("blocks", rows * source.row_bytes * 2 + source.overhead_bytes(rows), ("reading",)),
            MemoryNeed("scratch", scratch, ("solving",)),
            sampled_rows_need(source, resources.report_rows),
            MemoryNeed("solve", solve + (16 * n * n if self.parameters.inverse else 0), ("solving",)),
            MemoryNeed("model", 8 * n * (3 * self.k + 2), AFTER),
            MemoryNeed("scores", scores, ("scores",)),
            report_need(report=resources.report),
        ]

    def all_rows(self, plan: Plan) -> Readings[Array]:
        """Ask for all rows and return them in the type of products, ``(n_samples, n_features)``."""
        dtype = self.dtype
        rows = np.empty(self.source.shape, dtype)

        def take(block: Block) -> None:
            rows[block.start : block.start + len(block)] = in_panel(block, dtype)

        yield Reading(self.source, (), plan, on_block=take)
        return rows


def standardised_by(parameters: KernelParameters, rows: Array | StoredRows) -> KernelParameters:
    """Return `parameters` with the kernel that all `rows`, ``(n, d)``, in memory or on disk, standardise if it is one of z-scores."""
    if not needs_moments(parameters.kernel):
        return parameters
    moments = FeatureMoments()
    state = moments.init(rows.shape[1])
    for values in (band for _, band in rows.bands()) if isinstance(rows, StoredRows) else (rows,):
        state = moments.update(state, values)
    return replace(parameters, kernel=with_moments(parameters.kernel, state))
