"""Statistics of features that come along with any fit: what is summed over the examined rows, and its figures for the manifest.

A statistic is a subclass of `Statistic`, `Zeros` for example, and an entry of `STATISTICS` in
`streampca.solvers.quality`: then every solver accumulates it, plans count its memory, checkpoints hold it, the manifest has its
figures, the report a row for it, and ``streampca verify`` measures them again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np
from typing_extensions import override

from streampca.accumulators.base import Accumulator
from streampca.accumulators.quality import PANEL_VALUES, Quality
from streampca.block import Block, as_block
from streampca.storage.state_file import storable
from streampca.typing import Array, FloatArray, IntArray, Json

Namer: TypeAlias = Callable[[int], str | None]
"""What names a feature by its number; None where it has no name."""
MOST_LISTED = 20
"""Features that are listed."""
DIGITS = 9
"""Digits after the point of figures that are compared: ties stay ties where blocks, and with them roundings, are others."""


def steady(values: FloatArray) -> FloatArray:
    """Return `values` rounded to `DIGITS`, and 0 for those that are not finite, which JSON does not hold."""
    finite: FloatArray = np.where(np.isfinite(values), values, 0.0)
    return np.asarray(np.round(finite, DIGITS))


@storable
@dataclass(frozen=True)
class FeatureSums:
    """Sums over the examined rows seen so far."""

    n_features: int
    """The argument of `init`: the length of a row of the blocks."""
    sums: FloatArray
    """As `Statistic.of_rows` gives them, of the followed features, ``(n_sums, f)``."""


@dataclass(frozen=True)
class Statistic(Accumulator[FeatureSums, FloatArray]):
    """A statistic of every followed feature, as sums over rows; a subclass says which, how two are joined, and what they mean.

    Sums of no rows are zeros.
    """

    examined: Quality
    """Which rows and features are examined."""
    shares_states: ClassVar[bool] = True
    name: ClassVar[str]
    """Key of its figures in the manifest, under ``quality``."""
    title: ClassVar[str]
    """Its row in the report, such as ``"features that are mostly zeros"``."""
    is_share: ClassVar[bool] = False
    """Whether the values of listed features are shares, which the report gives in percent."""
    n_sums: ClassVar[int]
    """Number of sums of each feature."""
    scratch_of_value: ClassVar[int] = 48
    """Bytes of scratch for each value of a panel of rows that `of_rows` takes, at most: 8 for each copy as float64, 1 for a mask."""

    def of_rows(self, rows: Array, numbers: range) -> FloatArray:
        """Return the sums of some rows, ``(n_sums, m)``.

        `rows` are dense, of the data type of the table, with at least one row and m features; NaN are missing values. `numbers` are
        those of the rows in the table.
        """
        raise NotImplementedError

    def joined(self, sums: FloatArray, other: FloatArray) -> FloatArray:
        """Return the sums of the rows behind both, ``(n_sums, m)``: those that simply add up need not override this."""
        return sums + other

    def figures(self, sums: FloatArray, name: Namer) -> Json:
        """Return what the sums mean, as plain data with finite numbers (`steady`).

        The report shows the entries ``count``, of features that stand out, and ``features``, of which `listed` names the first. What is
        given for every feature is of at most 4,096 followed ones.
        """
        raise NotImplementedError

    def findings(self, figures: Json) -> tuple[list[str], list[str]]:
        """Return sentences about the figures, for warnings and for notes of a run."""
        return [], []

    def listed(self, chosen: IntArray, name: Namer, values: FloatArray) -> list[Json]:
        """Return the first of the followed features `chosen` with names, and one of `values`, ``(f,)``, each."""
        features = self.examined.followed[chosen[:MOST_LISTED]].tolist()
        return [
            {"feature": feature, "name": name(feature), "value": float(value)}
            for feature, value in zip(features, values[chosen], strict=False)
        ]

    @override
    def init(self, n_features: int) -> FeatureSums:
        return FeatureSums(n_features, np.zeros((self.n_sums, len(self.examined.followed))))

    def update(self, state: FeatureSums, block: Block | Array) -> FeatureSums:
        """Return `state` with the examined rows of `block` added; rows of weight 0 count, too."""
        for rows, chosen, numbers in self.examined.panels(as_block(block)):
            state.sums[:, chosen] = self.joined(state.sums[:, chosen], self.of_rows(rows, numbers))
        return state

    @override
    def absorb(self, state: FeatureSums, other: FeatureSums) -> FeatureSums:
        return replace(state, sums=self.joined(state.sums, other.sums))

    def finalize(self, state: FeatureSums) -> FloatArray:
        """Return the sums, ``(n_sums, f)``."""
        return state.sums

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes: 8 f for each sum."""
        return 8 * self.n_sums * len(self.examined.followed)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update: a panel of examined rows, what `of_rows` makes of it, and three times the sums."""
        followed, values = len(self.examined.followed), max(PANEL_VALUES, self.examined.n_features)
        made = max(PANEL_VALUES, followed) * self.scratch_of_value
        return values * itemsize + made + 3 * 8 * self.n_sums * followed


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
