"""A configured run of several models: one reading for all, and in ``models/NAME`` what a run of each alone would leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from streampca.errors import ConfigError, ModelError
from streampca.estimators.base import PlanOptions
from streampca.estimators.many import fit_of_model
from streampca.execution.checkpoint.progress_log import ProgressLog, recording
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.together import Together
from streampca.planning.many import ManyPlan
from streampca.runs.classes import classes_of_samples
from streampca.runs.config import RunConfig
from streampca.runs.config.models import ModelsConfig, is_model_name, load_any_config, parse_any_config
from streampca.runs.config.yaml import dump
from streampca.runs.diagnostics import require_diagnosable
from streampca.runs.from_config import source_of
from streampca.runs.group_labels import group_by_of
from streampca.runs.groups import GroupsOfRows, is_run_of_groups
from streampca.runs.manifest import Manifest, Times, common_manifest, read_json, read_manifest, write_json
from streampca.runs.notices import logged
from streampca.runs.report.groups import write_groups_report
from streampca.runs.report.models import write_models_report
from streampca.runs.resume import (
    unfinished_outputs,
)
from streampca.runs.run import Job, Run, Scored, Strategy, carry_out, require_place, require_state, write_results
from streampca.runs.scores_of_models import reads_for_scores, write_scores_of_all
from streampca.runs.verify import verify_groups, verify_run
from streampca.runs.verify.checks import Check, Verification
from streampca.solvers.fit import report_rows
from streampca.solvers.many import PlannedFit, plan_many, recorded_plans, run_many
from streampca.solvers.result import FitResult
from streampca.sources import Source
from streampca.sources.subsets import view_of
from streampca.storage.directories import (
    read_record,
    write_commit_record,
)
from streampca.storage.figures import changed_figures, figures_of

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
    if isinstance(config, ModelsConfig):
        require_place(config.common, Models.kind, resume=resume)
        strategy: Strategy = Models.of(config, source_of(config.common), progress, notice)
    elif group_by_of(config) is not None:
        require_place(config, GroupsOfRows.kind, resume=resume)
        strategy = GroupsOfRows.of(config, progress, notice)
    else:
        require_place(config, Job.kind, resume=resume)
        source = source_of(config)
        strategy = Job.of(config, source, progress, notice, classes_of_samples(config, source))
    return carry_out(strategy, resume=resume, fresh=fresh)


@dataclass(frozen=True, kw_only=True)
class Models(Strategy):
    """A run of several models."""

    kind: ClassVar[str] = KIND
    models: ModelsConfig
    """The whole configuration."""
    jobs: dict[str, Job]
    """The run of each model by name."""

    @classmethod
    def of(
        cls,
        models: ModelsConfig,
        source: Source,
        progress: ProgressCallback | None = None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> Models:
        """Return the run of `models` on `source`."""
        common, classes = models.common.source.model_dump(), classes_of_samples(models.common, source)
        jobs = {
            name: Job.of(
                one, source if one.source.model_dump() == common else source_of(one), progress, notice, classes
            )
            for name, one in models.models.items()
        }
        return cls(config=models.common, source=source, notice=notice, progress=progress, models=models, jobs=jobs)

    @override
    def identity(self) -> dict[str, str]:
        return {f"{name}: {key}": value for name, job in self.jobs.items() for key, value in job.identity().items()}

    @override
    def unfinished(self, log: ProgressLog) -> tuple[str, ...]:
        return tuple(f"models/{name}/{each}" for each in unfinished_outputs(log) for name in self.jobs)

    @override
    def to_yaml(self) -> str:
        return self.models.to_yaml()

    def planned(self) -> ManyPlan:
        """Return what the run would do; reads metadata only."""
        resources = self.config.resources
        memory, threads, ahead = resources.memory_bytes, resources.n_threads, resources.read_ahead_bytes
        client, quality = active_client(self.source), self.config.quality
        return plan_many(self.source, self._fits(), memory, threads, client=client, read_ahead=ahead, quality=quality)

    @override
    def plan(self, log: ProgressLog) -> ManyPlan:
        plan = recorded_plans(log, self.planned())
        for name, job in self.jobs.items():
            require_state(job.config, plan.plans[name])
            require_diagnosable(job.config, plan.plans[name])
        return plan

    @override
    def bytes_to_write(self, plan: ManyPlan) -> int:
        return sum(job.bytes_to_write(plan.plans[name]) for name, job in self.jobs.items())

    @override
    def read(self, plan: ManyPlan) -> Together[FitResult]:
        return run_many(self.source, self._fits(), plan)

    @override
    def write(self, found: Together[FitResult], plan: ManyPlan, path: Path, log: ProgressLog, times: Times) -> Manifest:
        shared = write_scores_of_all(self.jobs, self._tables(), self.source, found.results, plan.together, path)
        manifests = {}
        with recording(None):  # the checkpoint has the fits and the common reading for scores
            for name, job in self.jobs.items():
                result = found.results[name]
                result = replace(result, plan=replace(result.plan, budget=plan.together.budget))
                place = path / "models" / name
                manifests[name] = _write_one(job, result, place, log, times, shared.get(name))
        manifest: Any = common_manifest(
            self.config,
            self.source,
            log,
            times,
            kind=KIND,
            allowed_bytes=plan.together.allowed_bytes,
            projected_bytes=plan.projected_bytes,
        ) | {
            "models": {
                name: {"directory": f"models/{name}", "result": each["result"], "warnings": each["warnings"]}
                for name, each in manifests.items()
            },
            "passes": found.n_readings,
            "reads": {"fit": asdict(found.count)},
            "notes": list(plan.together.notes),
        }
        manifest["reads"]["scores"] = reads_for_scores(manifests, shared)
        write_json(path / "manifest.json", manifest)
        if self.config.output.report:
            write_models_report(path, {name: path / "models" / name for name in self.jobs})
        return manifest  # type: ignore[no-any-return]

    @override
    def finished(self, manifest: Any) -> RunOfModels:
        return RunOfModels(self.config.output.directory, manifest)

    def _tables(self) -> dict[str, Source]:
        """Return what each model reads: the features of `source` that its own has, or its own where it has others."""
        source = self.source
        return {
            name: source if job.source is source else view_of(source, job.source) for name, job in self.jobs.items()
        }

    def _fits(self) -> dict[str, PlannedFit]:
        """Return the fit of each model."""
        output, quality = self.config.output, self.config.quality
        options = {"keep_rows": report_rows(self.source) if output.report else 0, "quality": quality}
        planning: PlanOptions = {"scores": output.scores, "quality": quality, "report": output.report}
        if output.diagnostics:
            planning["diagnostics"] = True
        tables = self._tables()
        return {
            name: fit_of_model(
                job.fit.estimator, tables[name], job.fit.parameters, planning, progress=job.progress, **options
            )
            for name, job in self.jobs.items()
        }


def plan_of_models(config: ModelsConfig, source: Source) -> ManyPlan:
    """Return what a run of several models would do with `source`; reads metadata only."""
    return Models.of(config, source).planned()


def _write_one(
    job: Job, result: FitResult, path: Path, log: ProgressLog, times: Times, scored: Scored | None
) -> Manifest:
    """Write the run of one model to the directory `path`, which has its scores if `scored` says what they cost."""
    (path / "config.yaml").write_text(job.config.to_yaml())
    write_json(path / "plan.json", result.plan.to_dict())
    manifest = write_results(job, result, path, log, times, scored)
    write_commit_record(path, "run", log.identity.run_id, {"figures": figures_of(path)})
    return manifest
