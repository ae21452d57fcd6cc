"""The share of zeros of each feature: counts of rare events, masks and padding are mostly zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.statistics import Namer, Statistic
from streampca.typing import Array, FloatArray, Json

MOSTLY = 0.9
"""Share of zeros from which a feature is listed."""


@dataclass(frozen=True)
class Zeros(Statistic):
    """Counts values that are not missing, and zeros among them."""

    name: ClassVar[str] = "zeros"
    title: ClassVar[str] = "features that are mostly zeros"
    is_share: ClassVar[bool] = True
    n_sums: ClassVar[int] = 2
    scratch_of_value: ClassVar[int] = 16

    @override
    def of_rows(self, rows: Array, numbers: range) -> FloatArray:
        return np.array([len(rows) - np.isnan(rows).sum(axis=0), (rows == 0).sum(axis=0)], dtype=np.float64)

    @override
    def figures(self, sums: FloatArray, name: Namer) -> Json:
        counts, zeros = sums
        shares = zeros / np.maximum(counts, 1)
        chosen = np.flatnonzero((shares >= MOSTLY) & (shares < 1))
        order = chosen[np.argsort(-shares[chosen], kind="stable")]
        return {
            "share": float(zeros.sum() / max(counts.sum(), 1)),
            "least": MOSTLY,
            "count": len(order),
            "features": self.listed(order, name, shares),
        }
