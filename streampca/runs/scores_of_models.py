"""Scores of a run of several models: from one reading where they take those of rows, and what all of them cost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from streampca.execution.write_together import write_scores_of_models
from streampca.planning.many import limited_shape
from streampca.planning.plan import Plan
from streampca.runs.manifest import Manifest
from streampca.runs.run import Job, Scored
from streampca.solvers.result import FitResult
from streampca.solvers.sampling import groups_beside_scores
from streampca.sources import ReadCount, Source
from streampca.sources.subsets import SubsetSource
from streampca.typing import Json


def write_scores_of_all(
    jobs: Mapping[str, Job],
    tables: Mapping[str, Source],
    source: Source,
    results: Mapping[str, FitResult],
    together: Plan,
    path: Path,
) -> dict[str, Scored]:
    """Write the scores of all models that take those of rows from one reading, and return what it cost for each of them.

    The others have theirs already, take them by features, or read other data than `source`. `tables` are what the models read.
    """
    first = next(iter(jobs.values()))
    output = first.config.output
    names = [
        name
        for name, result in results.items()
        if result.plan.axis == "samples"
        and (output.diagnostics or not result.has_scores)
        and (tables[name] is source or isinstance(tables[name], SubsetSource))
    ]
    for name in jobs:
        (path / "models" / name).mkdir(parents=True, exist_ok=True)
        if name not in names:
            shutil.rmtree(path / "models" / name / "scores.zarr", ignore_errors=True)
    if not output.scores or not names:
        return {}
    began = time.perf_counter()
    places = {name: path / "models" / name / "scores.zarr" for name in names}
    models = {place: results[name].model for name, place in places.items()}
    plan = replace(together, shape=limited_shape([results[name].plan.in_row_order().shape for name in names], together))
    n = source.shape[0]
    groups = [groups_beside_scores(results[name].plan, jobs[name].fit.parameters, n) for name in names]
    count, sums = write_scores_of_models(
        source,
        models,
        plan,
        tables={place: tables[name] for name, place in places.items()},
        progress=first.progress,
        diagnostics=output.diagnostics,
        groups=groups,
    )
    seconds = time.perf_counter() - began
    return {name: Scored(count, seconds, moments) for name, moments in zip(names, sums, strict=True)}


def reads_for_scores(manifests: Mapping[str, Manifest], shared: Mapping[str, Scored]) -> Json | None:
    """Return what was read for the scores of all models, the common reading counted once, and how many readings it took."""
    reads = {name: each["reads"]["scores"] for name, each in manifests.items()}
    common = next((each.count for each in shared.values()), ReadCount())
    total, n_readings = common, int(bool(shared))
    for name, read in reads.items():
        if read is not None:
            once = common if name in shared else ReadCount()
            numbers = (read["chunks"] - once.chunks, read["bytes"] - once.bytes)
            total += ReadCount(*numbers, read["stored_bytes"] - once.stored_bytes)
            n_readings += name not in shared
    return {"readings": n_readings, **asdict(total)} if n_readings else None
