"""T² and Q of the rows of a run: limits, the number of rows beyond them, and the most unusual rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import numpy as np
import zarr

from streampca.errors import ConfigError, NotAvailableError
from streampca.models.diagnostics import q_limit_of, t2_limit_of, variance_left
from streampca.models.pca import Model, PCAModel
from streampca.models.persistence.groups import write_array
from streampca.planning.plan import Plan
from streampca.runs.config import RunConfig
from streampca.sources.base import ReadCount, Source
from streampca.sources.zarr.strictness import strict
from streampca.storage.directories import DIAGNOSTICS
from streampca.typing import Array, FloatArray, IntArray, Json

PROBABILITY = 0.99
"""Share of normally distributed rows within a limit."""
MOST_UNUSUAL = 20
"""Number of listed rows."""
UNUSUAL_ROWS, UNUSUAL_INDEX = "unusual_rows", "unusual_index"
"""Arrays of ``samples.zarr``: the listed rows, unchanged from the source, and their numbers."""
_BLOCK_ROWS = 2**20
_ROW_BYTES = 16 * 2**20


class UnusualRow(TypedDict):
    """An unusual row."""

    row: int
    """Its number in the source."""
    name: str | None
    """Its coordinates, if any."""
    t2: float
    """T²."""
    q: float
    """Q."""


class DiagnosticsSummary(TypedDict):
    """Summary of T² and Q of the rows for the manifest; it follows from the model and the two arrays."""

    probability: float
    """Share of normally distributed rows within a limit."""
    t2_limit: float | None
    """Limit of T² for rows of the fit, by the Beta distribution; None without a limit."""
    q_limit: float | None
    """Limit of Q; None without a limit."""
    q_method: str | None
    """Method for the limit of Q: ``jackson-mudholkar`` or ``box``."""
    without_limit: list[str]
    """Reasons for missing limits, in sentences."""
    n_rows: int
    """Number of rows with T² and Q."""
    n_beyond_t2: int
    """Number of rows beyond the limit of T²."""
    n_beyond_q: int
    """Number of rows beyond the limit of Q."""
    n_beyond_both: int
    """Number of rows beyond both limits."""
    unusual_rows: list[UnusualRow]
    """The rows with the largest T²/limit + Q/limit, largest first (Yue & Qin 2001)."""


def require_diagnosable(config: RunConfig, plan: Plan) -> None:
    """Raise `ConfigError`, before anything is read, if diagnostics are requested and the components would be on disk."""
    if config.output.diagnostics and plan.components_on_disk:
        raise ConfigError(
            "output.diagnostics: true, but the components do not fit in memory and will be on disk: set output.diagnostics: false and write "
            "T² and Q with streampca transform --diagnostics afterwards, take fewer components, or raise resources.memory"
        )


def diagnostics_summary(model: PCAModel, scores: Path, source: Source) -> DiagnosticsSummary:
    """Return the summary of the arrays ``t2`` and ``q`` of `source` in the group of scores at `scores`, reading them in pieces."""
    labels = source.labels if source.chosen is None else source.chosen.labels
    limits, reasons = _limits(model)
    t2_limit, q_limit, method = limits
    beyond, n_rows = np.zeros(3, dtype=np.int64), 0
    largest, rows = np.empty((0, 3)), np.empty(0, dtype=np.int64)
    units = _units(model, t2_limit, q_limit)
    for start, t2, q in blocks_of(scores):
        present = ~np.isnan(t2)
        n_rows += int(present.sum())
        over = [
            np.zeros(len(t2), dtype=bool) if limit is None else value > limit
            for value, limit in ((t2, t2_limit), (q, q_limit))
        ]
        beyond += [int(each.sum()) for each in (*over, over[0] & over[1])]
        index = np.where(present, t2 / units[0] + q / units[1], -np.inf)
        largest = np.concatenate([largest, np.stack([index, t2, q], axis=1)[present]])
        rows = np.concatenate([rows, start + np.flatnonzero(present)])
        order = np.lexsort((rows, -largest[:, 0]))[:MOST_UNUSUAL]
        largest, rows = largest[order], rows[order]
    return {
        "probability": PROBABILITY,
        "t2_limit": t2_limit,
        "q_limit": q_limit,
        "q_method": method,
        "without_limit": reasons,
        "n_rows": n_rows,
        "n_beyond_t2": int(beyond[0]),
        "n_beyond_q": int(beyond[1]),
        "n_beyond_both": int(beyond[2]),
        "unusual_rows": [
            {
                "row": int(row),
                "name": None if labels is None else labels.sample_name(int(row)),
                "t2": float(t2),
                "q": float(q),
            }
            for row, (_, t2, q) in zip(rows, largest, strict=True)
        ],
    }


def _limits(model: PCAModel) -> tuple[tuple[float | None, float | None, str | None], list[str]]:
    """Return the limits of T² and Q (None without a limit), the method for Q, and reasons for missing limits."""
    t2_limit, q_limit, method, reasons = None, None, None, []
    try:
        t2_limit = t2_limit_of(model, PROBABILITY, "beta")
    except NotAvailableError as error:
        reasons.append(str(error))
    try:
        q_limit, method = q_limit_of(model, PROBABILITY)
    except NotAvailableError as error:
        reasons.append(str(error))
    return (t2_limit, q_limit, method), reasons


def _units(model: PCAModel, t2_limit: float | None, q_limit: float | None) -> tuple[float, float]:
    """Return the divisors of T² and Q that make them comparable: their limits, else their means, or infinity for rounding."""
    left = variance_left(model)
    mean = left if left > max(model.rounding, 1e-14) * model.total_variance else math.inf
    return t2_limit or float(max(1, model.n_components)), q_limit or mean


def blocks_of(scores: Path) -> Iterator[tuple[int, FloatArray, FloatArray]]:
    """Yield T² and Q of consecutive rows, with the number of the first row."""
    t2, q = (strict(zarr.open_array(scores / name, mode="r")) for name in DIAGNOSTICS)
    step = max(1, _BLOCK_ROWS // t2.chunks[0]) * t2.chunks[0]
    for start in range(0, t2.shape[0], step):
        yield start, np.asarray(t2[start : start + step]), np.asarray(q[start : start + step])


def read_rows(source: Source, rows: list[int]) -> tuple[Array, ReadCount]:
    """Return single rows of `source` as dense rows in the order of `rows`, ``(n, n_features)``, and the cost of reading them.

    Row numbers refer to the scores, that is, to the whole table from which `source` may select rows.
    """
    values, count = [], ReadCount()
    numbers = rows if source.chosen is None else np.searchsorted(source.chosen.rows, rows).tolist()
    for row in numbers:
        read, cost = source.read(row, row + 1)
        values.append(np.array(read.toarray() if source.sparse else read))  # type: ignore[attr-defined]
        count += cost
    return np.concatenate(values) if values else np.empty((0, source.shape[1]), dtype=source.dtype), count


def write_unusual_rows(source: Source, summary: DiagnosticsSummary, path: Path) -> ReadCount:
    """Read the unusual rows of `summary` again, write at most 16 MiB of them to the group of samples at `path`, and return the cost."""
    most = max(1, _ROW_BYTES // (source.shape[1] * source.dtype.itemsize))
    rows = [each["row"] for each in summary["unusual_rows"]][:most]
    values, count = read_rows(source, rows)
    group = zarr.open_group(path, mode="a", zarr_format=3)
    write_array(group, UNUSUAL_ROWS, values, ("unusual_sample", "feature"))
    write_array(group, UNUSUAL_INDEX, np.array(rows, dtype=np.int64), ("unusual_sample",))
    return count


def unusual_rows_of(path: Path) -> tuple[Array, IntArray] | None:
    """Return the rows and their numbers from `write_unusual_rows`; None without any."""
    if not all((path / name).is_dir() for name in (UNUSUAL_ROWS, UNUSUAL_INDEX)):
        return None
    rows, index = (strict(zarr.open_array(path / name, mode="r"))[:] for name in (UNUSUAL_ROWS, UNUSUAL_INDEX))
    return np.asarray(rows), np.asarray(index).astype(np.int64)


def expected_diagnostics(config: RunConfig, directory: Path, model: Model, source: Source) -> DiagnosticsSummary | None:
    """Return the entry for the manifest of a run, computed again; None if diagnostics were not requested or are gone."""
    scores = directory / "scores.zarr"
    if not config.output.diagnostics or model.linear is None:
        return None
    if not all((scores / name).is_dir() for name in DIAGNOSTICS):
        return None
    return diagnostics_summary(model.linear, scores, source)


def as_json(summary: DiagnosticsSummary | None) -> Json | None:
    """Return a summary as plain data, with null for infinity, which JSON lacks."""
    if summary is None:
        return None
    finite = [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in summary["unusual_rows"]
    ]
    return {**summary, "unusual_rows": finite}
