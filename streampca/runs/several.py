"""Configured runs of more than one model in shared passes: several models (``models``), or one per group of rows (``model.group_by``)."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
from typing_extensions import override

from streampca.errors import ModelError
from streampca.estimators.groups import BETWEEN, POOLED, GroupModels
from streampca.estimators.loading import load
from streampca.estimators.pca import PCA
from streampca.estimators.persistence import record_of
from streampca.execution.checkpoint.progress_log import ProgressLog, recording
from streampca.execution.checkpoint.resume import array_digest, recorded_plan
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.readings import Together
from streampca.execution.write import write_scores_of_models
from streampca.logs import Notice
from streampca.models.pca import PCAModel
from streampca.models.persistence.models import write_model
from streampca.models.persistence.state import write_state
from streampca.parameters import Parameters
from streampca.planning.many import ManyPlan, limited_shape
from streampca.planning.plan import Plan
from streampca.runs.config import RunConfig
from streampca.runs.config.models import ModelsConfig, is_model_name
from streampca.runs.from_config import group_by_of, groups_of_rows, of_model, source_by_groups, source_of
from streampca.runs.manifest import Manifest, Times, manifest_of, read_json, write_json
from streampca.runs.one_model import OneModel, Scored
from streampca.runs.report.several import write_groups_report, write_models_report
from streampca.runs.strategy import Run, Strategy, unfinished_rows, write_manifest
from streampca.solvers.groups import GroupFits, Groups, fit_groups, plan_fits_of_groups
from streampca.solvers.many import PlannedFit, plan_many, recorded_plans, run_many
from streampca.solvers.result import Fit, FitResult
from streampca.sources import ReadCount, Source
from streampca.sources.table import part_of, view_of
from streampca.storage.directories import write_commit_record
from streampca.storage.figures import figures_of
from streampca.typing import Json

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,59}\.zarr")


@dataclass(frozen=True)
class RunOfGroups(Run):
    """A finished run of groups."""

    @property
    def model(self) -> Any:
        """Return the fitted estimators by group label, with ``"pooled"`` and ``"between"``, like `PCA.fit_groups`."""
        models: GroupModels[PCA] = GroupModels()
        entries = {entry["label"]: path for entry, path in groups_of_run(self.directory)}
        for label, path in entries.items():
            models[label] = cast("PCA", load(path))
        models.groups_ = tuple(label for label in entries if label not in (POOLED, BETWEEN))
        models.plan_ = Plan.from_dict(read_json(self.directory, "plan.json"))
        models.n_passes_, models.bytes_read_ = self.manifest["passes"], self.manifest["reads"]["fit"]["bytes"]
        return models


def groups_of_run(directory: Path) -> list[tuple[Json, Path]]:
    """Return the entry of each model in the manifest of a run of groups, and the path of the model.

    Groups come first, then the model within groups and the model of the group means. `ModelError` if the manifest is damaged.
    """
    manifest = read_json(directory, "manifest.json")
    entries = manifest.get("models")
    if not isinstance(entries, dict) or not entries:
        raise ModelError(f"{directory} is not a usable run of groups: its manifest.json names no models")
    for entry in entries.values():
        name = str(entry.get("model")) if isinstance(entry, dict) else ""
        if _NAME.fullmatch(name.removeprefix("models/")) is None or not isinstance(entry.get("result"), dict):
            raise ModelError(f"{directory} is not a usable run of groups: an entry of its manifest.json is damaged")
    return [(entry, directory / "models" / Path(entry["model"]).name) for entry in entries.values()]


@dataclass(frozen=True, kw_only=True)
class GroupsOfRows(Strategy):
    """A run of one model for each group of rows."""

    kind: ClassVar[str] = "groups"
    finished: ClassVar[type[Run]] = RunOfGroups
    job: OneModel
    """The run of one model of all rows."""
    groups: Groups
    """The groups of the rows."""

    @classmethod
    def of(cls, config: RunConfig, progress: ProgressCallback | None, notice: Notice) -> GroupsOfRows:
        """Return the run of `config`; reads only metadata and labels."""
        source = source_by_groups(config)
        job, groups = OneModel.of(config, progress, notice, source), groups_of_rows(config, source)
        return cls(config=config, source=source, notice=notice, progress=progress, job=job, groups=groups)

    @property
    def parameters(self) -> Parameters:
        """Parameters of each fit."""
        parameters = self.job.fit.parameters
        assert isinstance(parameters, Parameters)  # noqa: S101 group_by is a key of kind: pca alone
        return parameters

    @override
    def identity(self) -> dict[str, str]:
        groups = self.groups
        labels = array_digest(groups.codes) + array_digest(np.array([str(name) for name in groups.names]))
        return self.job.identity() | {"contents of model.group_by": labels}

    def planned(self) -> Plan:
        """Return the plan of the run; reads only metadata and labels."""
        return plan_fits_of_groups(self.source, self.parameters, self.groups)

    @override
    def plan(self, log: ProgressLog) -> Plan:
        plan = recorded_plan(log, self.planned())
        log.plan = plan.to_dict()
        return plan

    @override
    def bytes_to_write(self, plan: Plan) -> int:
        return (len(self.groups.names) + 2) * self.job.bytes_to_write(plan)

    @override
    def read(self, plan: Plan) -> GroupFits:
        return fit_groups(self.source, self.parameters, self.groups, plan, self.progress)

    @override
    def write(self, fitted: GroupFits, plan: Plan, path: Path, log: ProgressLog, times: Times) -> Manifest:
        names = directory_names(self.groups)
        fits = dict(zip(names, (*fitted.fits(), fitted.pooled, fitted.between), strict=True))
        models = {name: fit for name, fit in fits.items() if fit is not None}
        (path / "models").mkdir()
        for name, fit in models.items():
            _write_model(self.job, fit, path / "models" / name, log.identity.run_id)
        labels = [*map(_plain, self.groups.names), POOLED, BETWEEN]
        manifest = manifest_of(
            self.config,
            self.source,
            log,
            times,
            kind=self.kind,
            plan=fitted.pooled.plan,
            seconds={"fit": fitted.pooled.stream_seconds},
            group_by=group_by_of(self.config),
            models={
                str(label): {
                    "label": label,
                    "model": f"models/{name}",
                    "n_samples": fit.model.n_samples,
                    "result": fit.summary(),
                    "certificate": fit.model.certificate.to_dict(),
                    "warnings": fit.warnings(),
                }
                for label, (name, fit) in zip(labels, models.items(), strict=False)
            },
            similarity=similarities({name: fit.model for name, fit in models.items()}, len(self.groups.names)),
            passes=plan.passes,
            reads={"fit": fitted.found.count.to_dict()},
            notes=fitted.pooled.notes(self.source),
        )
        write_manifest(self.config, path, manifest, write_groups_report)
        return manifest


def directory_names(groups: Groups) -> list[str]:
    """Return the directory name of each model: groups by label, then within and between groups.

    Characters other than letters, digits, ``.``, ``_`` and ``-`` become ``-``, and duplicate names get a number.
    """
    names: list[str] = []
    for label in (*map(_plain, groups.names), POOLED, BETWEEN):
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", str(label)).strip("-.")[:40] or "group"
        plain = plain if plain[0].isalnum() else f"group{plain}"
        taken = {name.casefold() for name in names}
        ways = (f"{plain}{suffix}.zarr" for suffix in ("", *(f"-{i}" for i in range(2, len(groups.names) + 4))))
        names.append(next(way for way in ways if way.casefold() not in taken))
    return names


def _plain(label: Any) -> str | int | float | bool:
    """Return a label in the form of JSON, with times and infinity as text."""
    infinite = isinstance(label, float) and math.isinf(label)
    return str(label) if infinite or isinstance(label, np.datetime64) else label


def _write_model(job: OneModel, fit: Fit, path: Path, run_id: str) -> None:
    """Write one model, and its state if the configuration asks for it, to the new directory `path`."""
    path.mkdir()
    write_model(
        fit.model, path, record_of(job.fit.estimator, plan=fit.plan, n_passes=fit.passes, bytes_read=fit.count.bytes)
    )
    if job.config.output.state and fit.fitted_state is not None:
        write_state(fit.fitted_state, path)
    write_commit_record(path, "model", run_id)


def similarities(models: Mapping[str, PCAModel], n_groups: int) -> Json:
    """Return the similarity and the largest angles of the subspaces of the first `n_groups` of `models`, as tables."""
    compared: GroupModels[Any] = GroupModels()
    for name in list(models)[:n_groups]:
        compared[name] = SimpleNamespace(components_=np.asarray(models[name].components))
    compared.groups_ = tuple(compared)
    return {"mean_squared_cosine": compared.similarity().tolist(), "largest_angle": compared.angles().tolist()}


@dataclass(frozen=True)
class RunOfModels(Run):
    """A finished run of several models."""

    @property
    def runs(self) -> dict[str, Run]:
        """Return the run of each model by name."""
        return {name: Run(path, read_json(path, "manifest.json")) for name, path in runs_of(self.directory).items()}

    @property
    def model(self) -> Any:
        """Raise `ModelError`, because the run has several models."""
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
        """Return the plan of the run; reads only metadata."""
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
        """Return the table of each model: the features of `source` that it uses, or its own source if it has other features."""
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
            reads={"fit": fitted.count.to_dict(), "scores": _reads_for_scores(manifests, shared)},
            notes=list(plan.together.notes),
        )
        directories = {name: path / "models" / name for name in self.jobs}
        write_manifest(self.config, path, manifest, lambda page: write_models_report(page, directories))
        return manifest

    def _write_shared_scores(self, results: Mapping[str, FitResult], together: Plan, path: Path) -> dict[str, Scored]:
        """Write the scores of all models that compute them from rows in one shared pass, and return the cost for each of them.

        The other models already have scores, compute them by features, or read data other than `source`.
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
    """Return the table of each model: `source`, or one opened with other features."""
    common = models.common.source.model_dump()
    return {
        name: source if one.source.model_dump() == common else source_of(one) for name, one in models.models.items()
    }


def _reads_for_scores(manifests: Mapping[str, Manifest], shared: Mapping[str, Scored]) -> Json | None:
    """Return the reads for the scores of all models, with the shared pass counted once, and the number of passes."""
    total, n_readings = next((each.count for each in shared.values()), ReadCount()), int(bool(shared))
    for name, manifest in manifests.items():
        reads, once = manifest["reads"]["scores"], shared[name].count if name in shared else ReadCount()
        if reads is not None:
            total += ReadCount(*(reads[key] - getattr(once, key) for key in ("chunks", "bytes", "stored_bytes")))
            n_readings += name not in shared
    return {"readings": n_readings, **total.to_dict()} if n_readings else None
