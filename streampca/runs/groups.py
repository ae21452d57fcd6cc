"""A configured run of one model for each group of rows (``model.group_by``), from one reading."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import ModelError, NotFiniteError
from streampca.estimators import PCA
from streampca.estimators.groups import BETWEEN, POOLED, GroupModels
from streampca.estimators.loading import load
from streampca.estimators.persistence import record_of
from streampca.execution.checkpoint.progress_log import ProgressLog, recording
from streampca.execution.checkpoint.resume import array_digest, concluding, recorded_plan
from streampca.execution.progress import ProgressCallback
from streampca.models.pca import PCAModel
from streampca.models.persistence.models import write_model
from streampca.models.persistence.state import write_state
from streampca.parameters import Parameters
from streampca.planning.plan import Plan
from streampca.runs.config import RunConfig
from streampca.runs.deploy import cluster_of
from streampca.runs.from_config import fit_of
from streampca.runs.group_labels import group_by_of, groups_of_rows, source_by_groups
from streampca.runs.manifest import described_source, read_json, write_json
from streampca.runs.notices import log_findings
from streampca.runs.report.groups import write_groups_report
from streampca.runs.resume import identity_of_run
from streampca.runs.run import Job, Run, begin_run, bytes_to_write
from streampca.solvers.groups import GroupFits, Groups, fit_groups, plan_fits_of_groups
from streampca.solvers.result import Fit
from streampca.storage.directories import (
    AtomicDirectory,
    read_record,
    require_apart,
    require_replaceable,
    require_space,
    write_commit_record,
)
from streampca.storage.lock import Lock, lock_of
from streampca.system.process import peak_bytes
from streampca.system.versions import versions
from streampca.typing import Json

KIND = "groups"
"""Kind of the output of a run of groups."""
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
            models[label] = load(path)
        models.groups_ = tuple(label for label in entries if label not in (POOLED, BETWEEN))
        models.plan_ = Plan.from_dict(read_json(self.directory, "plan.json"))
        models.n_passes_, models.bytes_read_ = self.manifest["passes"], self.manifest["reads"]["fit"]["bytes"]
        return models


def is_run_of_groups(directory: Path) -> bool:
    """Tell whether `directory` is a finished run of groups."""
    return (read_record(directory) or {}).get("format") == f"streampca-{KIND}"


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


def prepared(
    config: RunConfig, progress: ProgressCallback | None = None, notice: Callable[[str], None] = lambda _: None
) -> tuple[Job, Groups]:
    """Return the run of `config` before it starts, and the groups of its rows; reads metadata and labels."""
    source = source_by_groups(config)
    job = Job(config, source, fit_of(config).of(source), progress, notice)
    return job, groups_of_rows(config, source)


def plan_of_groups(config: RunConfig) -> Plan:
    """Return what a run of groups would do; reads metadata and labels only."""
    job, groups = prepared(config)
    return plan_fits_of_groups(job.source, _parameters(job), groups)


def run_groups(
    config: RunConfig,
    *,
    resume: bool,
    fresh: bool,
    progress: ProgressCallback | None,
    notice: Callable[[str], None],
) -> RunOfGroups:
    """Carry out a configuration with ``model.group_by`` and return the finished run; parameters and errors as of `streampca.run`."""
    directory, overwrite = config.output.directory, config.output.overwrite
    may_replace = resume or (directory.name != "" and lock_of(directory).exists())
    require_replaceable(directory, KIND, overwrite=overwrite or may_replace)
    job, groups = prepared(config, progress, notice)
    require_apart(directory, job.source.description)
    labels = array_digest(groups.codes) + array_digest(np.array([str(name) for name in groups.names]))
    identity = identity_of_run(config, job.source, job.fit.parameters) | {"contents of model.group_by": labels}
    with Lock(directory, secrets.token_hex(8)) as lock:
        manifest, log = begin_run(job, lock, identity, KIND, resume=resume, fresh=fresh)
        if log is None:
            return RunOfGroups(directory, manifest)  # type: ignore[arg-type]
        with concluding(log), recording(log):
            return _carry_out(job, groups, log)


def _parameters(job: Job) -> Parameters:
    parameters = job.fit.parameters
    assert isinstance(parameters, Parameters)  # noqa: S101 group_by is a key of kind: pca alone
    return parameters


def _carry_out(job: Job, groups: Groups, log: ProgressLog) -> RunOfGroups:
    """Carry out the run of `log`, from where it stopped."""
    config, source, parameters = job.config, job.source, _parameters(job)
    directory, run_id = config.output.directory, log.identity.run_id
    times = datetime.now(UTC), time.perf_counter()
    unfinished = AtomicDirectory(directory, KIND, overwrite=config.output.overwrite, run_id=run_id)
    with cluster_of(config, job.notice), unfinished as path:
        plan = recorded_plan(log, plan_fits_of_groups(source, parameters, groups))
        log.plan = plan.to_dict()
        solver = job.fit.estimator._solvers[plan.solver]
        require_space(directory, (len(groups.names) + 2) * bytes_to_write(config, plan, solver))
        (path / "config.yaml").write_text(config.to_yaml())
        write_json(path / "plan.json", plan.to_dict())
        try:
            done = fit_groups(source, parameters, groups, plan, job.progress)
        except NotFiniteError as error:
            raise NotFiniteError(f"{config.source.path_as_written}: {error}") from error
        names = directory_names(groups)
        fits = dict(zip(names, (*done.groups, done.pooled, done.between), strict=True))
        models = {name: fit for name, fit in fits.items() if fit is not None}
        (path / "models").mkdir()
        for name, fit in models.items():
            _write_model(job, fit, path / "models" / name, run_id)
        manifest = _manifest(job, groups, done, models, log, times)
        log_findings(config.name, (), manifest["notes"])
        write_json(path / "manifest.json", manifest)
        if config.output.report:
            write_groups_report(path)
        log.require_held()
    return RunOfGroups(directory, manifest)  # type: ignore[arg-type]


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


def _write_model(job: Job, fit: Fit, path: Path, run_id: str) -> None:
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
        compared[name] = _Components(np.asarray(models[name].components))
    compared.groups_ = tuple(compared)
    return {"mean_squared_cosine": compared.similarity().tolist(), "largest_angle": compared.angles().tolist()}


@dataclass(frozen=True)
class _Components:
    """What `GroupModels` compares of a fitted estimator."""

    components_: Any
    """The components."""


def _manifest(
    job: Job,
    groups: Groups,
    done: GroupFits,
    models: Mapping[str, Fit],
    log: ProgressLog,
    times: tuple[datetime, float],
) -> Json:
    """Return the manifest of a run of groups; `models` are its fits by the names of their directories."""
    plan = done.pooled.plan
    labels = [*map(_plain, groups.names), POOLED, BETWEEN]
    entries = {
        str(label): {
            "label": label,
            "model": f"models/{name}",
            "n_samples": fit.model.n_samples,
            "result": fit.summary(),
            "certificate": fit.model.certificate,
            "warnings": fit.warnings(),
        }
        for label, (name, fit) in zip(labels, models.items(), strict=False)
    }
    return {
        "format": f"streampca-{KIND}",
        "format_version": 1,
        "name": job.config.name,
        "versions": versions(),
        "source": described_source(job.config, job.source),
        "group_by": group_by_of(job.config),
        "models": entries,
        "similarity": similarities({name: fit.model for name, fit in models.items()}, len(groups.names)),
        "passes": 1,
        "reads": {"fit": asdict(done.count)},
        "memory": {
            "allowed_bytes": plan.allowed_bytes,
            "projected_bytes": plan.projected_bytes,
            "peak_bytes": peak_bytes(),
        },
        "seconds": {"fit": done.pooled.stream_seconds, "total": time.perf_counter() - times[1]},
        "notes": done.pooled.notes(job.source),
        "run_id": log.identity.run_id,
        "started": times[0].isoformat(timespec="seconds"),
        "identity": log.identity.identity,
        "resumed": log.resumption(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
