"""A configured run: from a YAML file to a directory with model, scores, manifest and report."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import zarr
from typing_extensions import override

from streampca.errors import ConfigError, NotFiniteError, OutputError
from streampca.estimators import PCA, KernelPCA
from streampca.estimators.loading import load
from streampca.estimators.persistence import record_of
from streampca.execution.checkpoint.directory import CheckpointDirectory
from streampca.execution.checkpoint.progress_log import ProgressLog, RunIdentity, recording
from streampca.execution.checkpoint.resume import concluding, open_log, recorded_plan, require_same
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.write import require_writable_by_workers, write_scores
from streampca.formatting import as_text
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.persistence.groups import write_array
from streampca.models.persistence.models import write_model
from streampca.models.persistence.state import write_state
from streampca.models.persistence.texts import text_arrays
from streampca.models.removal import residuals_of
from streampca.planning.plan import Plan
from streampca.planning.scores import plan_scores
from streampca.redaction import shown
from streampca.runs.classes import without_holes
from streampca.runs.config import RunConfig
from streampca.runs.config.values import plain_options
from streampca.runs.deploy import cluster_of
from streampca.runs.diagnostics import (
    DiagnosticsSummary,
    as_json,
    diagnostics_summary,
    require_diagnosable,
    write_unusual_rows,
)
from streampca.runs.from_config import AnyConfiguredFit, fit_of
from streampca.runs.into_anndata import require_free_slots, write_into_anndata
from streampca.runs.manifest import Manifest, Times, manifest_of, read_json, write_json
from streampca.runs.notices import log_findings
from streampca.runs.publish import publish, require_free
from streampca.runs.quality import record_quality
from streampca.runs.resume import (
    checkpoint_of,
    finished_run,
    identity_of_run,
    remove_leftovers,
    run_of,
    unfinished_outputs,
)
from streampca.solvers.base import Solver
from streampca.solvers.fit import report_rows
from streampca.solvers.registry import CONTINUABLE
from streampca.solvers.result import FitResult
from streampca.solvers.sampling import groups_beside_scores, with_errors
from streampca.sources import ReadCount, Source
from streampca.sources.store_record import note_digests, record_of_store
from streampca.storage.directories import (
    AtomicDirectory,
    require_apart,
    require_replaceable,
    require_space,
    tidy_after,
    write_commit_record,
)
from streampca.storage.lock import Lock, lock_of
from streampca.storage.scratch import shares_disk
from streampca.system.process import peak_bytes
from streampca.typing import Array, Json

if TYPE_CHECKING:
    from streampca.accumulators import RowsState
    from streampca.accumulators.score_groups import GroupMoments

AnyPlan = Any
"""A `Plan`, or of several models a `ManyPlan`."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    directory: Path
    """Where everything is."""
    manifest: Manifest
    """Versions, fingerprints, reads, memory, time, certificate, result."""

    @property
    def model(self) -> PCA | KernelPCA:
        """Return the fitted estimator, read from the directory."""
        return load(self.directory)


@dataclass(frozen=True)
class Scored:
    """Scores that are written."""

    count: ReadCount
    """What reading for them cost."""
    seconds: float
    """How long it took."""
    moments: GroupMoments | None
    """Sums of their products by groups of rows, where sampling errors follow from them."""


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """What one kind of run does in its own way; `carry_out` is the way that all kinds go."""

    kind: ClassVar[str]
    """Kind of the output: ``run``, ``models`` or ``groups``."""
    config: RunConfig
    """Where the run goes and what it may use; of several models, what they have in common."""
    source: Source
    """The opened source."""
    notice: Callable[[str], None]
    """Called with sentences for the user."""
    progress: ProgressCallback | None = None
    """Called as blocks finish."""
    replaces: bool = False
    """Whether the run replaces the one in its directory, whatever `output.overwrite` says."""

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """Return what must be the same for a stopped run to go on."""

    @abstractmethod
    def plan(self, log: ProgressLog) -> AnyPlan:
        """Return the plan, that of the stopped run if `log` has one; raise an error if the run cannot be carried out."""

    @abstractmethod
    def bytes_to_write(self, plan: AnyPlan) -> int:
        """Return about how many bytes the output will have."""

    @abstractmethod
    def read(self, plan: AnyPlan) -> Any:
        """Read the rows and return what `write` takes."""

    @abstractmethod
    def write(self, found: Any, plan: AnyPlan, path: Path, log: ProgressLog, times: Times) -> Any:
        """Write everything but the configuration and the plan to the directory `path`; return the manifest."""

    @abstractmethod
    def finished(self, manifest: Any) -> Run:
        """Return the finished run."""

    def unfinished(self, log: ProgressLog) -> tuple[str, ...]:
        """Return names of outputs that a stopped run has begun and goes on with."""
        return ()

    def require_places(self, *, resume: bool) -> None:  # noqa: B027 most kinds have nothing to do
        """Raise an error if another place that the run writes to is taken."""

    def require_free(self, run_id: str) -> None:  # noqa: B027 most kinds have nothing to do
        """Raise `OutputError` if a place that the run `run_id` is copied to is taken."""

    def conclude(self, run: Run) -> None:  # noqa: B027 most kinds have nothing to do
        """Do what comes after the run is complete, such as copies of it."""

    def to_yaml(self) -> str:
        """Return the configuration as a file."""
        return self.config.to_yaml()


def require_place(config: RunConfig, kind: str, *, resume: bool) -> None:
    """Raise `OutputError` if the directory of `config` holds something that an output of `kind` may not replace."""
    output = config.output
    # What a run that died left is tidied first.
    may_replace = resume or (output.directory.name != "" and lock_of(output.directory).exists())
    require_replaceable(output.directory, kind, overwrite=output.overwrite or may_replace)


def carry_out(strategy: Strategy, *, resume: bool, fresh: bool) -> Run:
    """Carry out a run in a place that was checked, and return it when it is complete; parameters and errors as of `streampca.run`.

    The place is locked, a stopped run found, the work planned and the space for it checked before anything is read. The output has
    another name until it is complete.
    """
    directory = strategy.config.output.directory
    require_apart(directory, strategy.source.description)
    strategy.require_places(resume=resume)
    identity = strategy.identity()
    with Lock(directory, secrets.token_hex(8)) as lock:
        manifest, log = _begin(strategy, lock, identity, resume=resume, fresh=fresh)
        if log is None:
            finished = strategy.finished(manifest)
        else:
            strategy.require_free(log.identity.run_id)
            with concluding(log), recording(log):
                finished = written(strategy, log)
        strategy.conclude(finished)
    return finished


def _begin(
    strategy: Strategy, lock: Lock, identity: dict[str, str], *, resume: bool, fresh: bool
) -> tuple[Json | None, ProgressLog | None]:
    """Return the log of a run, or the manifest of the finished one that is there; each is None with the other.

    The latter where `resume` asks for it and the finished run is of this `identity`.
    """
    directory, kind = strategy.config.output.directory, strategy.kind
    place = CheckpointDirectory(checkpoint_of(directory))
    finished, stopped = finished_run(directory, place, kind), run_of(place)
    remove_leftovers(directory, lock, stopped)
    if finished and resume and stopped is None:
        manifest: Json = read_json(directory, "manifest.json")
        require_same(manifest.get("identity") or {}, identity, f"{directory} holds a finished run, of another kind")
        return manifest, None
    require_replaceable(directory, kind, overwrite=strategy.config.output.overwrite)
    return None, log_of(strategy, lock, identity, resume=resume, fresh=fresh)


def written(strategy: Strategy, log: ProgressLog) -> Run:
    """Carry out the run of `log`, from where it stopped, and return it with its name."""
    config, times = strategy.config, (datetime.now(UTC), time.perf_counter())
    directory, overwrite = config.output.directory, strategy.replaces or config.output.overwrite
    unfinished = AtomicDirectory(
        directory,
        strategy.kind,
        overwrite=overwrite,
        run_id=log.identity.run_id,
        keeps=lambda: strategy.unfinished(log),
    )
    with cluster_of(config, strategy.notice), unfinished as path:
        plan = strategy.plan(log)
        require_space(directory, strategy.bytes_to_write(plan))
        if (
            config.output.scores and getattr(plan, "axis", None) == "samples"
        ):  # which workers write, when all has been read
            require_writable_by_workers(active_client(strategy.source), path)
        (path / "config.yaml").write_text(strategy.to_yaml())
        write_json(path / "plan.json", plan.to_dict())
        if config.output.state:
            note_digests(strategy.source)
        try:
            found = strategy.read(plan)
        except NotFiniteError as error:
            raise NotFiniteError(f"{config.source.path_as_written}: {error}") from error
        manifest = strategy.write(found, plan, path, log, times)
        log.require_held()
    return strategy.finished(manifest)


@dataclass(frozen=True, kw_only=True)
class Job(Strategy):
    """A run of one model."""

    kind: ClassVar[str] = "run"
    fit: AnyConfiguredFit
    """The estimator and the parameters of its fit."""
    classes: Array | None = None
    """Class of each sample as text, for the report; None where the configuration names none."""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        source: Source,
        progress: ProgressCallback | None = None,
        notice: Callable[[str], None] = lambda _: None,
        classes: Array | None = None,
    ) -> Job:
        """Return the run of `config` on `source`."""
        return cls(
            config=config,
            source=source,
            notice=notice,
            progress=progress,
            fit=fit_of(config).of(source),
            classes=classes,
        )

    @override
    def identity(self) -> dict[str, str]:
        return identity_of_run(self.config, self.source, self.fit.parameters)

    @override
    def unfinished(self, log: ProgressLog) -> tuple[str, ...]:
        return unfinished_outputs(log)

    @override
    def require_places(self, *, resume: bool) -> None:
        require_free_slots(self.config, self.source, resume=resume)

    @override
    def require_free(self, run_id: str) -> None:
        _require_free(self.config, run_id)

    @override
    def plan(self, log: ProgressLog) -> Plan:
        plan = recorded_plan(log, self.fit.plan(self.config, self.source))
        log.plan = plan.to_dict()
        require_state(self.config, plan)
        require_diagnosable(self.config, plan)
        return plan

    @override
    def bytes_to_write(self, plan: AnyPlan) -> int:
        return bytes_to_write(self.config, plan, self.fit.estimator._solvers[plan.solver])

    @override
    def read(self, plan: AnyPlan) -> FitResult:
        rows = report_rows(self.source) if self.config.output.report else 0
        return self.fit.run(self.source, plan, keep_rows=rows, quality=self.config.quality, progress=self.progress)

    @override
    def write(self, found: FitResult, plan: AnyPlan, path: Path, log: ProgressLog, times: Times) -> Manifest:
        return write_results(self, found, path, log, times)

    @override
    def finished(self, manifest: Any) -> Run:
        return Run(self.config.output.directory, manifest)

    @override
    def conclude(self, run: Run) -> None:
        write_into_anndata(self.config, self.source, run.directory, run.manifest["run_id"])
        _publish(self.config, self.notice)


def log_of(
    strategy: Strategy, lock: Lock, identity: dict[str, str], *, resume: bool = False, fresh: bool = False
) -> ProgressLog:
    """Return the log of a run of this `identity`: that of the stopped run beside its directory, which `lock` then names, or a new one."""
    config, directory = strategy.config, strategy.config.output.directory
    place = CheckpointDirectory(checkpoint_of(directory))
    stopped = run_of(place)
    files = {"config.yaml": config.to_yaml()}
    run_identity = RunIdentity(lock.run_id, identity, config.checkpoint.every_seconds, files)
    log = open_log(
        place, run_identity, resume=resume, fresh=fresh, notice=strategy.notice, require_held=lock.require_held
    )
    run_id = log.identity.run_id
    if stopped is not None:  # also where the run that goes on could not give the earlier output its name back
        tidy_after(directory, stopped, keep_part=stopped == run_id)
    if run_id != lock.run_id:
        lock.name(run_id)
    return log


def _require_free(config: RunConfig, run_id: str) -> None:
    """Raise `OutputError` if `config` has the run copied to a place that is taken, before anything is read."""
    if config.output.publish is not None:
        ends = [url.rstrip("/") + "/" for url in (config.output.publish, str(config.source.path))]
        if ends[0].startswith(ends[1]) or ends[1].startswith(ends[0]):
            raise OutputError(
                f"output.publish {shown(config.output.publish)} and the input lie in each other: expected separate places"
            )
        options = plain_options(config.output.storage_options) or None
        require_free(config.output.publish, run_id, storage_options=options)


def _publish(config: RunConfig, notice: Callable[[str], None]) -> None:
    """Copy the finished run to the object store that `config` names, if it names one."""
    url, directory = config.output.publish, config.output.directory
    if url is None:
        return
    try:
        copy = publish(directory, url, storage_options=plain_options(config.output.storage_options) or None)
    except OutputError as error:
        raise OutputError(
            f"{error}; the run itself is finished, in {directory}: with --resume only the copy is made"
        ) from error
    notice(f"published to {copy.url}: {copy.n_objects:,} objects, {as_text(copy.n_bytes)}")


def write_results(
    job: Job,
    result: FitResult,
    path: Path,
    log: ProgressLog,
    times: Times,
    scored: Scored | None = None,
) -> Manifest:
    """Write model, samples, scores, manifest and report of a fit to the directory `path`; return the manifest.

    `scored` is what scores cost that are there already; None has them written.
    """
    config, source = job.config, job.source
    samples = None if result.samples is None else without_holes(result.samples, result.model)
    if samples is not None:
        _write_samples(samples, path / "samples.zarr", job.classes)
    scored = scored or _write_scores(job, result, path / "scores.zarr")
    result = with_errors(result, scored.moments if scored else None, job.fit.parameters)
    recorded = _write_model(job, result, path / "model.zarr", log.identity.run_id)
    summarising = time.perf_counter()
    diagnostics, cost = _summarise_diagnostics(config, source, result, path)
    scores = None if scored is None else scored.count + cost
    scores_seconds = (scored.seconds if scored else 0.0) + time.perf_counter() - summarising
    manifest = manifest_of(config, source, result, scores, log, times, scores_seconds if scores else None)
    manifest["diagnostics"] = as_json(diagnostics)
    if recorded is not None:
        manifest["reads"]["record"] = asdict(recorded)
    record_quality(manifest, result, source, path / "scores.zarr" if config.output.scores else None)
    log_findings(config.name, manifest["warnings"], manifest["notes"])
    _finish(config, path, manifest, result.model)
    return manifest


def bytes_to_write(config: RunConfig, plan: Plan, solver: Solver[Any, Any, Any]) -> int:
    """Return the size of model, state and scores; where a share of variance decides how many components, that of one."""
    rows, features, dtype = plan.n_samples, plan.n_features, np.dtype(plan.dtype)
    k = plan.n_components or (min(rows, features) if config.model.n_components is None else 1)
    itemsize = 4 if dtype.kind == "f" and dtype.itemsize <= 4 else 8
    twice = plan.model_on_disk and shares_disk(config.output.directory)  # in the temporary directory, too
    model_bytes = solver.model_bytes(plan, k) * (1 + twice)
    state_bytes = solver.state_bytes(plan) if config.output.state else 0
    row_bytes = itemsize * k * config.output.scores + 16 * config.output.diagnostics
    return model_bytes + state_bytes + row_bytes * rows


def require_state(config: RunConfig, plan: Plan) -> None:
    """Raise `ConfigError` if the state is to be saved and the solver has none."""
    if config.output.state and plan.solver not in CONTINUABLE:
        raise ConfigError(
            f"output.state: true, but the solver {plan.solver} keeps no state: set model.solver to one of {', '.join(CONTINUABLE)}"
        )
    if config.output.state and getattr(config.model, "n_components", None) == "cross_validation":
        raise ConfigError(
            "output.state: true, but model.n_components: cross_validation keeps no state: set output.state: false, or give the number that "
            "cross-validation gave"
        )
    if config.output.state and plan.tile_groups:
        raise ConfigError(
            "output.state: true, but the covariance matrix does not fit in memory, and on disk it keeps no state: set "
            "output.state: false, or raise resources.memory"
        )


def _write_model(job: Job, result: FitResult, path: Path, run_id: str) -> ReadCount | None:
    """Write the model, and its state if the configuration asks for it, to the new directory `path`.

    Return what was read for the record of the chunks whose rows are in the state, None where there is none.
    """
    config, fit = job.config, job.fit
    path.mkdir()
    record = record_of(fit.estimator, plan=result.plan, n_passes=result.passes, bytes_read=result.count.bytes)
    write_model(result.model, path, record)
    state, recorded = result.fitted_state if config.output.state else None, None
    if state is not None:
        chunks, count = record_of_store(job.source)
        write_state(replace(state, stored=chunks), path)
        recorded = None if chunks is None else count
    write_commit_record(path, "model", run_id)  # so that it can be copied out of the run
    return recorded


def _write_scores(job: Job, result: FitResult, path: Path) -> Scored | None:
    """Write scores if the configuration asks for them; None where nothing was read for them."""
    config, diagnostics = job.config, job.config.output.diagnostics
    groups = groups_beside_scores(result.plan, job.fit.parameters, job.source.shape[0])
    beside, began = diagnostics or groups is not None, time.perf_counter()
    if not config.output.scores or (not beside and result.write_known_scores(job.source, path)):
        return None
    source, plan = residuals_of(job.source, result.model), result.plan.in_row_order()
    if plan.axis == "features":  # such a plan has no memory for rows, which the scores of rows with holes take
        memory, threads = config.resources.memory_bytes, config.resources.n_threads
        ahead = config.resources.read_ahead_bytes
        plan = plan_scores(source, result.model, memory, threads, diagnostics=diagnostics, read_ahead=ahead)
    count, moments = write_scores(
        source, result.model, plan, path, progress=job.progress, diagnostics=diagnostics, groups=groups
    )
    return Scored(count, time.perf_counter() - began, moments)


def _summarise_diagnostics(
    config: RunConfig, source: Source, result: FitResult, path: Path
) -> tuple[DiagnosticsSummary | None, ReadCount]:
    """Return the summary of T² and Q, None without them; write the rows that fit least where there is a report, and return their cost."""
    if not config.output.diagnostics or isinstance(result.model, KernelModel):
        return None, ReadCount()
    summary = diagnostics_summary(result.model, path / "scores.zarr", source.labels)
    report = config.output.report
    return summary, write_unusual_rows(source, summary, path / "samples.zarr") if report else ReadCount()


def _finish(config: RunConfig, path: Path, manifest: Manifest, model: PCAModel | KernelModel) -> None:
    """Write manifest and report; the manifest again if drawing took more memory than all that went before."""
    write_json(path / "manifest.json", manifest)
    if not config.output.report:
        return
    from streampca.runs.report.page import write_report

    write_report(path, model=model)
    if peak_bytes() > manifest["memory"]["peak_bytes"]:
        manifest["memory"]["peak_bytes"] = peak_bytes()
        write_json(path / "manifest.json", manifest)
        write_report(path, model=model)


def _write_samples(samples: RowsState, path: Path, classes: Array | None) -> None:
    group = zarr.open_group(path, mode="a", zarr_format=3)
    write_array(group, "rows", samples.values, ("sample", "feature"))
    write_array(group, "index", samples.index, ("sample",))
    if classes is not None:
        texts, ends = text_arrays(classes[samples.index].tolist())
        write_array(group, "classes", texts, ("byte",))
        write_array(group, "classes_ends", ends, ("sample",))
