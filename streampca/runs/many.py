"""A configured run of several models: one reading for all, and in ``models/NAME`` what a run of each alone would leave."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from streampca.errors import ConfigError, ModelError, NotFiniteError
from streampca.estimators.base import PlanOptions
from streampca.estimators.many import fit_of_model
from streampca.execution.checkpoint.progress_log import ProgressLog, recording
from streampca.execution.checkpoint.resume import concluding
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.together import Together
from streampca.planning.many import ManyPlan
from streampca.runs.checks import Check, Verification
from streampca.runs.classes import classes_of_samples
from streampca.runs.config import RunConfig
from streampca.runs.config.models import ModelsConfig, is_model_name, load_any_config, parse_any_config
from streampca.runs.config.yaml import dump
from streampca.runs.deploy import cluster_of
from streampca.runs.diagnostics import require_diagnosable
from streampca.runs.from_config import fit_of, source_of
from streampca.runs.group_labels import group_by_of
from streampca.runs.groups import is_run_of_groups, run_groups
from streampca.runs.manifest import Manifest, described_source, read_json, read_manifest, write_json
from streampca.runs.notices import logged
from streampca.runs.report.groups import write_groups_report
from streampca.runs.report.models import write_models_report
from streampca.runs.resume import (
    identity_of_run,
    unfinished_outputs,
)
from streampca.runs.run import Job, Run, Scored, begin_run, bytes_to_write, require_state, run_one, write_results
from streampca.runs.scores_of_models import reads_for_scores, write_scores_of_all
from streampca.runs.verify import verify_run
from streampca.runs.verify_groups import verify_groups
from streampca.solvers.fit import report_rows
from streampca.solvers.many import PlannedFit, plan_many, recorded_plans, run_many
from streampca.solvers.result import FitResult
from streampca.sources import Source
from streampca.sources.store_record import note_digests
from streampca.sources.subsets import view_of
from streampca.storage.directories import (
    AtomicDirectory,
    read_record,
    require_apart,
    require_replaceable,
    require_space,
    write_commit_record,
)
from streampca.storage.figures import changed_figures, figures_of
from streampca.storage.lock import Lock, lock_of
from streampca.system.process import peak_bytes
from streampca.system.versions import versions
from streampca.typing import Json

KIND = "models"
"""Kind of the output of a run of several models."""


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


def is_run_of_models(directory: Path) -> bool:
    """Tell whether `directory` is a finished run of several models."""
    return (read_record(directory) or {}).get("format") == f"streampca-{KIND}"


def runs_of(directory: Path) -> dict[str, Path]:
    """Return the directories of the runs of the models by name, as the manifest of a run of several models lists them."""
    models = read_json(directory, "manifest.json").get("models")
    if not isinstance(models, dict) or not all(map(is_model_name, models)):
        raise ModelError(
            f"{directory} is not a usable run of several models: its manifest.json names no models, or wrongly"
        )
    return {name: directory / "models" / name for name in models}


def directories_of(directory: Path) -> list[Path]:
    """Return the directories of the runs of all models in a run of several; of another run its own."""
    return list(runs_of(directory).values()) if is_run_of_models(directory) else [directory]


def verify_runs(
    directory: Path, *, overrides: Sequence[str] = (), progress: ProgressCallback | None = None
) -> list[Verification]:
    """Return the verification of a finished run, of several models that of each; the first has the check of the common manifest."""
    if is_run_of_groups(directory):
        return [verify_groups(directory, overrides=overrides, progress=progress)]
    results = [verify_run(each, overrides=overrides, progress=progress) for each in directories_of(directory)]
    if not is_run_of_models(directory):
        return results
    record, manifest = read_record(directory) or {}, read_json(directory, "manifest.json")
    changed = [f"{document} {name}" for document, name in changed_figures(directory, record.get("figures", {}))]
    for name, path in runs_of(directory).items():
        entry = manifest["models"][name]
        stated = entry.get("result") if isinstance(entry, dict) else None
        if stated != read_json(path, "manifest.json").get("result"):
            changed.append(f"manifest.json models.{name}")
    note = f"not what was committed: {', '.join(changed)}" if changed else "its figures are those of the commit"
    check = Check("manifest of all models", holds=not changed, note=note)
    return [replace(results[0], checks=(*results[0].checks, check)), *results[1:]]


def write_reports(directory: Path, rows: tuple[int, ...] = ()) -> list[Path]:
    """Write the page of a finished run, with more `rows` of the source; of several models theirs, and one that links them."""
    from streampca.runs.further_rows import further_rows
    from streampca.runs.report.page import write_report

    if is_run_of_groups(directory):
        if rows:
            raise ConfigError(f"{directory} is a run of groups, whose report rebuilds no rows: leave --row out")
        return [write_groups_report(directory)]
    pages = []
    for each in directories_of(directory):
        read_manifest(each)
        pages.append(write_report(each, further_rows(each, rows)))
    return [*pages, write_models_report(directory, runs_of(directory))] if is_run_of_models(directory) else pages


def run(
    config: str | Path | Mapping[str, object] | RunConfig | ModelsConfig,
    *,
    overrides: Sequence[str] = (),
    resume: bool = False,
    fresh: bool = False,
    progress: ProgressCallback | None = None,
    notice: Callable[[str], None] | None = None,
) -> Run:
    """Carry out a configuration file and return the finished run.

    Of several models (``models``) it is a `RunOfModels`, of groups of rows (``model.group_by``) a `RunOfGroups`.

    The directory is built under a temporary name and renamed when it is complete, so a run that fails leaves what was there
    before. A run that was stopped is resumed from its checkpoint, the directory ``<output>.checkpoint``, to the same bits.

    Parameters
    ----------
    config : path, mapping, RunConfig or ModelsConfig
        The YAML file, or what it would say.
    overrides : sequence of "key.sub=value"
        Changes to it, as with ``--set``.
    resume : bool
        Require a checkpoint to resume from, or a finished run, which is returned as it is.
    fresh : bool
        Start over and remove an existing checkpoint.
    progress : callable, optional
        Called with a `Progress` as blocks finish, from any thread.
    notice : callable, optional
        Called with a sentence when a stopped run is resumed, a checkpoint is damaged, a dashboard is served, or fewer workers
        start than were asked for.

    Returns
    -------
    Run, RunOfModels or RunOfGroups
        The finished run with its ``directory``, ``manifest`` and ``model``.

    Raises
    ------
    StreamPCAError
        `ConfigError` for what the file says, `DataError` for what the source holds, `PlanError` if the work does not fit in
        the memory, `OutputError` or `NoSpaceError` for the directory, `ClusterError` for the cluster; see `exit_status`.

    Examples
    --------
    >>> from pathlib import Path
    >>> import streampca as sp
    >>> _ = Path("digits.yaml").write_text("{source: {path: 'builtin:digits'}, model: {n_components: 3}, output: {report: false}}")
    >>> finished = sp.run("digits.yaml")
    >>> finished.model.n_components_, finished.manifest["passes"]
    (3, 1)
    """
    if resume and fresh:
        raise ConfigError("resume and fresh contradict each other: give one of them")
    if isinstance(config, Mapping):
        config = parse_any_config(dump(dict(config)), name="the mapping", overrides=overrides)
    elif isinstance(config, str | Path):
        config = load_any_config(config, overrides)
    notice = logged(notice)
    if isinstance(config, RunConfig) and group_by_of(config) is not None:
        return run_groups(config, resume=resume, fresh=fresh, progress=progress, notice=notice)
    if isinstance(config, RunConfig):
        return run_one(config, resume=resume, fresh=fresh, progress=progress, notice=notice)
    return _run_models(config, resume=resume, fresh=fresh, progress=progress, notice=notice)


def _run_models(
    config: ModelsConfig,
    *,
    resume: bool,
    fresh: bool,
    progress: ProgressCallback | None,
    notice: Callable[[str], None],
) -> RunOfModels:
    """Carry out a configuration of several models and return the finished run; parameters and errors as of `run`."""
    directory, overwrite = config.common.output.directory, config.common.output.overwrite
    may_replace = resume or (directory.name != "" and lock_of(directory).exists())
    require_replaceable(directory, KIND, overwrite=overwrite or may_replace)
    source = source_of(config.common)
    require_apart(directory, source.description)
    jobs = _jobs(config, source, progress, notice)
    identity = {
        f"{name}: {key}": value
        for name, job in jobs.items()
        for key, value in identity_of_run(job.config, job.source, job.fit.parameters).items()
    }
    with Lock(directory, secrets.token_hex(8)) as lock:
        first = replace(next(iter(jobs.values())), config=config.common)
        manifest, log = begin_run(first, lock, identity, KIND, resume=resume, fresh=fresh)
        if log is None:
            return RunOfModels(directory, manifest)  # type: ignore[arg-type]
        with concluding(log), recording(log):
            return _carry_out(config, jobs, source, log)


def plan_of_models(config: ModelsConfig, source: Source) -> ManyPlan:
    """Return what a run of several models would do with `source`; reads metadata only."""
    return _plan(config, _fits(config, _jobs(config, source, None, lambda _: None), source), source)


def _jobs(
    config: ModelsConfig, source: Source, progress: ProgressCallback | None, notice: Callable[[str], None]
) -> dict[str, Job]:
    """Return the run of each model."""
    classes = classes_of_samples(config.common, source)
    common, jobs = config.common.source.model_dump(), {}
    for name, one in config.models.items():
        own = source if one.source.model_dump() == common else source_of(one)
        jobs[name] = Job(one, own, fit_of(one).of(own), progress, notice, classes)
    return jobs


def _tables(jobs: Mapping[str, Job], source: Source) -> dict[str, Source]:
    """Return what each model reads: the features of `source` that its own has, or its own where it has others."""
    return {name: source if job.source is source else view_of(source, job.source) for name, job in jobs.items()}


def _fits(config: ModelsConfig, jobs: Mapping[str, Job], source: Source) -> dict[str, PlannedFit]:
    """Return the fit of each model."""
    output, quality = config.common.output, config.common.quality
    options = {"keep_rows": report_rows(source) if output.report else 0, "quality": quality}
    planning: PlanOptions = {"scores": output.scores, "quality": quality, "report": output.report}
    if output.diagnostics:
        planning["diagnostics"] = True
    tables = _tables(jobs, source)
    return {
        name: fit_of_model(
            job.fit.estimator,
            tables[name],
            job.fit.parameters,
            planning,
            progress=job.progress,
            **options,
        )
        for name, job in jobs.items()
    }


def _plan(config: ModelsConfig, fits: Mapping[str, PlannedFit], source: Source) -> ManyPlan:
    resources = config.common.resources
    memory, threads, ahead = resources.memory_bytes, resources.n_threads, resources.read_ahead_bytes
    client, quality = active_client(source), config.common.quality
    return plan_many(source, fits, memory, threads, client=client, read_ahead=ahead, quality=quality)


def _carry_out(config: ModelsConfig, jobs: Mapping[str, Job], source: Source, log: ProgressLog) -> RunOfModels:
    """Carry out the run of `log`, from where it stopped."""
    common, run_id = config.common, log.identity.run_id
    started, began = datetime.now(UTC), time.perf_counter()
    directory = common.output.directory

    def names_of_unfinished() -> tuple[str, ...]:
        return tuple(f"models/{name}/{each}" for each in unfinished_outputs(log) for name in jobs)

    unfinished = AtomicDirectory(
        directory, KIND, overwrite=common.output.overwrite, run_id=run_id, keeps=names_of_unfinished
    )
    with cluster_of(common, _notice_of(jobs)), unfinished as path:
        fits = _fits(config, jobs, source)
        plan = recorded_plans(log, _plan(config, fits, source))
        n_bytes = 0
        for name, job in jobs.items():
            require_state(job.config, plan.plans[name])
            require_diagnosable(job.config, plan.plans[name])
            solver = job.fit.estimator._solvers[plan.plans[name].solver]
            n_bytes += bytes_to_write(job.config, plan.plans[name], solver)
        require_space(directory, n_bytes)
        (path / "config.yaml").write_text(config.to_yaml())
        write_json(path / "plan.json", plan.to_dict())
        if common.output.state:
            note_digests(source)
        try:
            done = run_many(source, fits, plan)
        except NotFiniteError as error:
            raise NotFiniteError(f"{common.source.path_as_written}: {error}") from error
        shared = write_scores_of_all(jobs, _tables(jobs, source), source, done.results, plan.together, path)
        manifests = {}
        with recording(None):  # the checkpoint has the fits and the common reading for scores
            for name, job in jobs.items():
                result = done.results[name]
                result = replace(result, plan=replace(result.plan, budget=plan.together.budget))
                place, times = path / "models" / name, (started, began)
                manifests[name] = _write_one(job, result, place, log, times, shared.get(name))
        manifest = _manifest(config, source, plan, done, manifests, log, (started, began))
        manifest["reads"]["scores"] = reads_for_scores(manifests, shared)
        write_json(path / "manifest.json", manifest)
        if common.output.report:
            write_models_report(path, {name: path / "models" / name for name in jobs})
        log.require_held()
    return RunOfModels(directory, manifest)  # type: ignore[arg-type]


def _notice_of(jobs: Mapping[str, Job]) -> Callable[[str], None]:
    """Return what is called with sentences for the user."""
    return next(iter(jobs.values())).notice


def _write_one(
    job: Job, result: FitResult, path: Path, log: ProgressLog, times: tuple[datetime, float], scored: Scored | None
) -> Manifest:
    """Write the run of one model to the directory `path`, which has its scores if `scored` says what they cost."""
    (path / "config.yaml").write_text(job.config.to_yaml())
    write_json(path / "plan.json", result.plan.to_dict())
    manifest = write_results(job, result, path, log, *times, scored)
    write_commit_record(path, "run", log.identity.run_id, {"figures": figures_of(path)})
    return manifest


def _manifest(
    config: ModelsConfig,
    source: Source,
    plan: ManyPlan,
    done: Together[FitResult],
    manifests: Mapping[str, Manifest],
    log: ProgressLog,
    times: tuple[datetime, float],
) -> Json:
    """Return the manifest of the run of several models."""
    return {
        "format": f"streampca-{KIND}",
        "format_version": 1,
        "name": config.common.name,
        "versions": versions(),
        "source": described_source(config.common, source),
        "models": {
            name: {"directory": f"models/{name}", "result": each["result"], "warnings": each["warnings"]}
            for name, each in manifests.items()
        },
        "passes": done.n_readings,
        "reads": {"fit": asdict(done.count)},
        "memory": {
            "allowed_bytes": plan.together.allowed_bytes,
            "projected_bytes": plan.projected_bytes,
            "peak_bytes": peak_bytes(),
        },
        "seconds": {"total": time.perf_counter() - times[1]},
        "notes": list(plan.together.notes),
        "run_id": log.identity.run_id,
        "started": times[0].isoformat(timespec="seconds"),
        "identity": log.identity.identity,
        "resumed": log.resumption(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
