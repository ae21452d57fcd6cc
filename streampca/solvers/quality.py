"""Data quality beside a fit: planned with it, and accumulated in its first reading of all rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.quality import STATISTICS, Quality, Statistic
from streampca.sources.base import Source
from streampca.typing import FloatArray


@dataclass(frozen=True)
class QualityFound:
    """What a reading says of the quality of the data."""

    accumulators: tuple[AnyAccumulator, ...]
    """A `Quality`, which says what was examined, and the `STATISTICS`."""
    states: tuple[Any, ...]
    """Their states."""

    @property
    def quality(self) -> Quality:
        """Return which rows and features were examined."""
        quality = self.accumulators[0]
        assert isinstance(quality, Quality)  # noqa: S101 for the type checker: `examining` has it first
        return quality

    def statistics(self) -> Iterator[tuple[Statistic, FloatArray]]:
        """Yield the further statistics with their sums."""
        for statistic, state in zip(self.accumulators[1:], self.states[1:], strict=True):
            assert isinstance(statistic, Statistic)  # noqa: S101 as above
            yield statistic, statistic.finalize(state)


def examining(source: Source, missing: str, *, by_features: bool = False) -> tuple[AnyAccumulator, ...]:
    """Return what examines the rows of `source`, with the parameter `missing`: a `Quality`, and the `STATISTICS` of the same rows and features."""
    may_miss = missing != "error" and source.dtype.kind == "f"
    quality = replace(Quality.of(source.shape, str(source.dtype), missing=may_miss), by_features=by_features)
    return (quality, *(kind(quality) for kind in STATISTICS))


def quality_bytes(source: Source, threads: int, missing: str) -> int:
    """Return what data quality takes beside a fit: 2 N + 2 states and N times the scratch of an update, N = `threads` (``docs/reference/memory-formulas.md``)."""
    accumulators, (n, d) = examining(source, missing), source.shape
    scratch = max(each.scratch_bytes(d, n, source.dtype.itemsize) for each in accumulators)
    return (2 * threads + 2) * sum(each.state_bytes(d) for each in accumulators) + threads * scratch
