"""A configured run of one model for each group of rows (``model.group_by``), from one reading."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
from streampca.execution.checkpoint.progress_log import ProgressLog
from streampca.execution.checkpoint.resume import array_digest, recorded_plan
from streampca.execution.progress import ProgressCallback
from streampca.logs import Notice
from streampca.models.pca import PCAModel
from streampca.models.persistence.models import write_model
from streampca.models.persistence.state import write_state
from streampca.parameters import Parameters
from streampca.planning.plan import Plan
from streampca.runs.config import RunConfig
from streampca.runs.manifest import Manifest, Times, manifest_of, read_json
from streampca.runs.named_values import group_by_of, groups_of_rows, source_by_groups
from streampca.runs.one_model import OneModel
from streampca.runs.report.groups import write_groups_report
from streampca.runs.strategy import Run, Strategy, write_manifest
from streampca.solvers.groups import GroupFits, Groups, fit_groups, plan_fits_of_groups
from streampca.solvers.result import Fit
from streampca.storage.directories import write_commit_record
from streampca.typing import Json

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,59}\.zarr")


@dataclass(frozen=True)
class RunOfGroups(Run):
    """A finished run of groups."""

    @property
    def model(self) -> Any:
        """Return the fitted estimators by the labels of groups, with ``"pooled"`` and ``"between"``, as `PCA.fit_groups` does."""
        models: GroupModels[PCA] = GroupModels()
        entries = {entry["label"]: path for entry, path in groups_of_run(self.directory)}
        for label, path in entries.items():
            models[label] = cast("PCA", load(path))
        models.groups_ = tuple(label for label in entries if label not in (POOLED, BETWEEN))
        models.plan_ = Plan.from_dict(read_json(self.directory, "plan.json"))
        models.n_passes_, models.bytes_read_ = self.manifest["passes"], self.manifest["reads"]["fit"]["bytes"]
        return models


def groups_of_run(directory: Path) -> list[tuple[Json, Path]]:
    """Return the entry of each model in the manifest of a run of groups, and where the model lies.

    Groups come first, then the model within groups, and that of the group means. `ModelError` if the manifest is damaged.
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
        """Return the run of `config`; reads metadata and labels."""
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
        """Return what the run would do; reads metadata and labels only."""
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
            passes=1,
            reads={"fit": asdict(fitted.found.count)},
            notes=fitted.pooled.notes(self.source),
        )
        write_manifest(self.config, path, manifest, write_groups_report)
        return manifest


def directory_names(groups: Groups) -> list[str]:
    """Return the name of the directory of each model: of the groups by their labels, then within and between groups.

    Other characters than letters, digits, ``.``, ``_`` and ``-`` become ``-``, and names that occur twice have a number.
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
    """Return a label as JSON has it, times and infinity as text."""
    infinite = isinstance(label, float) and math.isinf(label)
    return str(label) if infinite or isinstance(label, np.datetime64) else label


def _write_model(job: OneModel, fit: Fit, path: Path, run_id: str) -> None:
    """Write one model, and its state if the configuration asks for it, to the new directory `path`."""
    path.mkdir()
    write_model(fit.model, path, record_of(job.fit.estimator, plan=fit.plan, n_passes=1, bytes_read=fit.count.bytes))
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
