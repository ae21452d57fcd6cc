"""Data quality beside a fit: planned with it, and accumulated in its first reading of all rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streampca.accumulators.quality import Quality, QualityState
from streampca.planning.plan import Plan
from streampca.sources.base import Source


@dataclass(frozen=True)
class QualityFound:
    """What a reading says of the quality of the data."""

    accumulator: Quality
    """Which rows and features were examined."""
    state: QualityState
    """The sums over them."""


def quality_beside(source: Source, plan: Plan, missing: str) -> Quality:
    """Return what examines the rows of `source` beside a fit by `plan`, with the parameter `missing`."""
    rows = plan.n_samples if plan.axis == "features" else plan.rows_per_block
    return replace(quality_of(source, rows, missing), by_features=plan.axis == "features")


def quality_of(source: Source, rows_per_block: int, missing: str) -> Quality:
    """Return the accumulator of data quality for the rows of `source`."""
    may_miss = missing != "error" and source.dtype.kind == "f"
    chunk = (source.chunk_rows, source.chunk_columns or source.shape[1])
    return Quality.of(source.shape, str(source.dtype), chunk, rows_per_block, missing=may_miss)


def quality_bytes(source: Source, threads: int, missing: str) -> int:
    """Return what data quality takes beside a fit: 2 N + 2 states and N times the scratch of an update, N = `threads` (``docs/reference/memory-formulas.md``)."""
    quality, (n, d) = quality_of(source, source.shape[0], missing), source.shape
    scratch = quality.scratch_bytes(d, n, source.dtype.itemsize)
    return (2 * threads + 2) * quality.state_bytes(d) + threads * scratch
