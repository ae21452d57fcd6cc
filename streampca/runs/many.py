"""A run of several models: one reading for all, and in ``models/NAME`` what a run of each alone would leave."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from streampca.errors import ModelError
from streampca.execution.checkpoint.progress_log import ProgressLog, recording
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.readings import Together
from streampca.execution.write import write_scores_of_models
from streampca.logs import Notice
from streampca.planning.many import ManyPlan, limited_shape
from streampca.planning.plan import Plan
from streampca.runs.config.models import ModelsConfig, is_model_name
from streampca.runs.from_config import of_model, source_of
from streampca.runs.manifest import Manifest, Times, manifest_of, read_json, write_json
from streampca.runs.one_model import OneModel, Scored
from streampca.runs.report.models import write_models_report
from streampca.runs.strategy import Run, Strategy, unfinished_rows, write_manifest
from streampca.solvers.many import PlannedFit, plan_many, recorded_plans, run_many
from streampca.solvers.result import FitResult
from streampca.sources import ReadCount, Source
from streampca.sources.subsets import part_of, view_of
from streampca.storage.directories import write_commit_record
from streampca.storage.figures import figures_of
from streampca.typing import Json


@dataclass(frozen=True)
class RunOfModels(Run):
    """A finished run of several models."""

    @property
    def runs(self) -> dict[str, Run]:
        """Return the run of each model by name."""
        return {name: Run(path, read_json(path, "manifest.json")) for name, path in runs_of(self.directory).items()}

    @property
    def model(self) -> Any:
        """Raise `ModelError`: there are several."""
        raise ModelError(f"{self.directory} holds several models: use runs[name].model, of {', '.join(self.runs)}")


def runs_of(directory: Path) -> dict[str, Path]:
    """Return the directories of the runs of the models by name, as the manifest of a run of several models lists them."""
    models = read_json(directory, "manifest.json").get("models")
    if not isinstance(models, dict) or not all(map(is_model_name, models)):
        raise ModelError(
            f"{directory} is not a usable run of several models: its manifest.json names no models, or wrongly"
        )
    return {name: directory / "models" / name for name in models}


@dataclass(frozen=True, kw_only=True)
class SeveralModels(Strategy):
    """A run of several models."""

    kind: ClassVar[str] = "models"
    finished: ClassVar[type[Run]] = RunOfModels
    models: ModelsConfig
    """The whole configuration."""
    jobs: Mapping[str, OneModel]
    """The run of each model by name."""

    @classmethod
    def of(cls, models: ModelsConfig, progress: ProgressCallback | None, notice: Notice) -> SeveralModels:
        """Return the run of `models`."""
        source, jobs = source_of(models.common), dict[str, OneModel]()
        for name, own in sources_of(models, source).items():
            with of_model(name):
                jobs[name] = OneModel.of(models.models[name], progress, notice, own)
        return cls(config=models.common, source=source, notice=notice, progress=progress, models=models, jobs=jobs)

    @override
    def identity(self) -> dict[str, str]:
        return {f"{name}: {key}": value for name, job in self.jobs.items() for key, value in job.identity().items()}

    @override
    def unfinished(self, log: ProgressLog) -> tuple[str, ...]:
        return tuple(f"models/{name}/{each}" for each in unfinished_rows(self.config, log) for name in self.jobs)

    @override
    def to_yaml(self) -> str:
        return self.models.to_yaml()

    def planned(self) -> ManyPlan:
        """Return what the run would do; reads metadata only."""
        resources = self.config.resources
        memory, threads, ahead = resources.memory_bytes, resources.n_threads, resources.read_ahead_bytes
        client, quality = active_client(self.source), self.config.quality
        plan = plan_many(self.source, self._fits(), memory, threads, client=client, read_ahead=ahead, quality=quality)
        for name, job in self.jobs.items():
            with of_model(name):
                job.require_possible(plan.plans[name])
        return plan

    @override
    def plan(self, log: ProgressLog) -> ManyPlan:
        plan = recorded_plans(log, self.planned())
        for name, job in self.jobs.items():
            with of_model(name):
                job.require_possible(plan.plans[name])  # the recorded ones may be those of a run with other outputs
        return plan

    @override
    def bytes_to_write(self, plan: ManyPlan) -> int:
        return sum(job.bytes_to_write(plan.plans[name]) for name, job in self.jobs.items())

    @override
    def read(self, plan: ManyPlan) -> Together[FitResult]:
        return run_many(self.source, self._fits(), plan, self.progress)

    def _fits(self) -> dict[str, PlannedFit]:
        """Return the fit of each model."""

        def planned(job: OneModel, table: Source, memory: int, threads: int) -> Plan:
            return job.fit.within(memory, threads).plan(job.config, table, shared=True)

        return {
            name: PlannedFit(partial(planned, self.jobs[name], table), partial(self.jobs[name].readings, table))
            for name, table in self._tables().items()
        }

    def _tables(self) -> dict[str, Source]:
        """Return what each model reads: the features of `source` that its own has, or its own where it has others."""
        source = self.source
        return {
            name: source if job.source is source else view_of(source, job.source) for name, job in self.jobs.items()
        }

    @override
    def write(
        self, fitted: Together[FitResult], plan: ManyPlan, path: Path, log: ProgressLog, times: Times
    ) -> Manifest:
        shared = self._write_shared_scores(fitted.results, plan.together, path)
        manifests = {}
        with recording(None):  # the checkpoint has the fits and the common reading for scores
            for name, job in self.jobs.items():
                result, place = fitted.results[name], path / "models" / name
                result = replace(result, plan=replace(result.plan, budget=plan.together.budget))
                (place / "config.yaml").write_text(job.config.to_yaml())
                write_json(place / "plan.json", result.plan.to_dict())
                manifests[name] = job.write(result, result.plan, place, log, times, shared.get(name))
                write_commit_record(place, job.kind, log.identity.run_id, {"figures": figures_of(place)})
        manifest = manifest_of(
            self.config,
            self.source,
            log,
            times,
            kind=self.kind,
            plan=plan.together,
            seconds={},
            updates=next(iter(fitted.results.values())).updates,
            models={
                name: {"directory": f"models/{name}", "result": each["result"], "warnings": each["warnings"]}
                for name, each in manifests.items()
            },
            passes=fitted.n_readings,
            reads={"fit": asdict(fitted.count), "scores": _reads_for_scores(manifests, shared)},
            notes=list(plan.together.notes),
        )
        directories = {name: path / "models" / name for name in self.jobs}
        write_manifest(self.config, path, manifest, lambda page: write_models_report(page, directories))
        return manifest

    def _write_shared_scores(self, results: Mapping[str, FitResult], together: Plan, path: Path) -> dict[str, Scored]:
        """Write the scores of all models that take those of rows from one reading, and return what it cost for each of them.

        The others have theirs already, take them by features, or read other data than `source`.
        """
        output, source, tables = self.config.output, self.source, self._tables()
        places = {name: path / "models" / name / "scores.zarr" for name in self.jobs}
        names = [
            name
            for name, result in results.items()
            if result.plan.axis == "samples"
            and (output.diagnostics or not result.has_scores)
            and part_of(tables[name])[0] is source
        ]
        for name, place in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            if name not in names:
                shutil.rmtree(place, ignore_errors=True)
        if not output.scores or not names:
            return {}
        began = time.perf_counter()
        shapes = [results[name].plan.unshuffled() for name in names]
        count = write_scores_of_models(
            source,
            {places[name]: results[name].model for name in names},
            together.divided_as(limited_shape(shapes, together)),
            tables={places[name]: tables[name] for name in names},
            progress=self.progress,
            diagnostics=output.diagnostics,
        )
        seconds = time.perf_counter() - began
        return {name: Scored(count, seconds) for name in names}


def sources_of(models: ModelsConfig, source: Source) -> dict[str, Source]:
    """Return the table of each model: `source`, or one that is opened with other features."""
    common = models.common.source.model_dump()
    return {
        name: source if one.source.model_dump() == common else source_of(one) for name, one in models.models.items()
    }


def _reads_for_scores(manifests: Mapping[str, Manifest], shared: Mapping[str, Scored]) -> Json | None:
    """Return what was read for the scores of all models, the common reading counted once, and how many readings it took."""
    total, n_readings = next((each.count for each in shared.values()), ReadCount()), int(bool(shared))
    for name, manifest in manifests.items():
        reads, once = manifest["reads"]["scores"], shared[name].count if name in shared else ReadCount()
        if reads is not None:
            total += ReadCount(*(reads[key] - value for key, value in asdict(once).items()))
            n_readings += name not in shared
    return {"readings": n_readings, **asdict(total)} if n_readings else None
