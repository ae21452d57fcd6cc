"""A configured run: the line from a YAML file to a directory with model, scores, manifest and report."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from streampca.errors import ConfigError, ModelError, NotFiniteError, OutputError
from streampca.estimators import PCA, KernelPCA, load
from streampca.estimators.persistence import record_of
from streampca.execution.checkpoint.directory import CheckpointDirectory
from streampca.execution.checkpoint.ledger import ProgressLog, RunIdentity, ledger_in_use
from streampca.execution.checkpoint.resume import concluding, open_ledger, recorded_plan, require_same
from streampca.execution.distributed.active_client import active_client
from streampca.execution.task import ProgressCallback
from streampca.execution.write import require_writable_by_workers, write_known_scores, write_scores
from streampca.linalg.selection import Threshold
from streampca.models.persistence.groups import write_array
from streampca.models.persistence.models import write_model
from streampca.planning.kinds import as_weights
from streampca.planning.plan import Plan
from streampca.planning.scores import plan_scores
from streampca.redaction import shown
from streampca.runs import kernel as runs_kernel
from streampca.runs.config import RunConfig, load_config
from streampca.runs.config.values import ThresholdValue as ConfigThreshold
from streampca.runs.config.values import plain_options
from streampca.runs.deploy import cluster_of
from streampca.runs.resume import checkpoint_of, finished_run, identity_of_run, parts_kept, remove_leftovers, run_of
from streampca.runs.summary import notes_of, result_of, warnings_of
from streampca.solvers.fit import Fit, Parameters, fit, kept_rows, plan_fit
from streampca.solvers.kernel.parameters import KernelParameters
from streampca.solvers.kernel.plan import KernelPlan
from streampca.solvers.kernel.result import KernelFit
from streampca.sources import ReadCount, Source, open_source
from streampca.sources.vector import read_vector
from streampca.storage.directories import (
    AtomicDirectory,
    require_apart,
    require_replaceable,
    require_room,
    tidy_after,
    write_commit_record,
)
from streampca.storage.lock import Lock, lock_of
from streampca.storage.regular_files import read_regular
from streampca.storage.scratch import shares_disk
from streampca.system.process import peak_bytes
from streampca.system.versions import versions

if TYPE_CHECKING:
    from streampca.accumulators import RowsState

AnyParameters = Parameters | KernelParameters
AnyFit = Fit | KernelFit


@dataclass(frozen=True)
class Run:
    """A finished run."""

    directory: Path
    """Where everything is."""
    manifest: dict[str, Any]
    """What was done: versions, fingerprints, reads, memory, time, certificate, result."""

    @property
    def model(self) -> PCA | KernelPCA:
        """Return the fitted estimator, read from the directory."""
        return load(self.directory)


def run(
    config: str | Path | RunConfig,
    *,
    overrides: Sequence[str] = (),
    resume: bool = False,
    fresh: bool = False,
    progress: ProgressCallback | None = None,
    notice: Callable[[str], None] | None = None,
) -> Run:
    """Carry out a configuration file and return the finished run.

    The directory is built aside and renamed when it is complete, so a run that fails leaves what was there before. One that
    was stopped is gone on with where its checkpoint, the directory ``<output>.checkpoint``, ends, and has the same bits.

    Parameters
    ----------
    config : path or RunConfig
        The YAML file.
    overrides : sequence of "key.sub=value"
        Changes to it, as with ``--set``.
    resume : bool
        There must be a checkpoint to go on from, or a finished run, which is returned as it is.
    fresh : bool
        Start over: a checkpoint that is there is removed.
    progress : callable, optional
        Called with a `Progress` as blocks finish, from any thread.
    notice : callable, optional
        Called with a sentence when a stopped run is gone on with, a checkpoint is found damaged, a dashboard is served, or
        fewer workers come than were asked for.

    Raises
    ------
    StreamPCAError
        `ConfigError` for what the file says, `DataError` for what the source holds, `PlanError` if the work does not fit in
        the memory, `OutputError` or `NoSpaceError` for the directory, `ClusterError` for the cluster; see `exit_status`.
    """
    if resume and fresh:
        raise ConfigError("resume and fresh contradict each other: give one of them")
    config = load_config(config, overrides) if not isinstance(config, RunConfig) else config
    directory = config.output.directory
    waits = resume or (directory.name != "" and lock_of(directory).exists())  # what a dead run left may be tidied first
    require_replaceable(directory, "run", overwrite=config.output.overwrite or waits)
    parameters = parameters_of(config)
    source = source_of(config)
    require_apart(directory, source.description)
    with Lock(directory, secrets.token_hex(8)) as lock:
        place = CheckpointDirectory(checkpoint_of(directory))
        finished, before = finished_run(directory, place), run_of(place)
        remove_leftovers(directory, lock, before)
        identity = identity_of_run(config, source, parameters)
        told = notice or (lambda _: None)
        if finished and resume and before is None:
            same = _same_run(directory, identity)
            _publish(config, told)
            return same
        require_replaceable(directory, "run", overwrite=config.output.overwrite)
        every, about = config.checkpoint.every_seconds, {"config.yaml": config.to_yaml()}
        terms = RunIdentity(lock.run_id, identity, every, about)
        ledger = open_ledger(place, terms, resume=resume, fresh=fresh, notice=told, require_held=lock.require_held)
        if before is not None:  # also where the run that goes on could not give the earlier output its name back
            tidy_after(directory, before, keep_part=before == ledger.terms.run_id)
        if ledger.terms.run_id != lock.run_id:
            lock.name(ledger.terms.run_id)
        _require_free(config, ledger.terms.run_id)
        with concluding(ledger), ledger_in_use(ledger):
            done = _carry_out(config, source, parameters, ledger, progress, told)
        _publish(config, told)
        return done


def _require_free(config: RunConfig, run_id: str) -> None:
    """Raise `OutputError` if `config` has the run copied to a place that is taken, before anything is read."""
    if config.output.publish is not None:
        from streampca.runs.publish import require_free

        ends = [url.rstrip("/") + "/" for url in (config.output.publish, config.source.path)]
        if ends[0].startswith(ends[1]) or ends[1].startswith(ends[0]):
            raise OutputError(
                f"output.publish {shown(config.output.publish)} and the input lie in each other: expected separate places"
            )
        options = plain_options(config.output.storage_options) or None
        require_free(config.output.publish, run_id, storage_options=options)


def _publish(config: RunConfig, told: Callable[[str], None]) -> None:
    """Copy the finished run to the object store that `config` names, if it names one."""
    url, directory = config.output.publish, config.output.directory
    if url is None:
        return
    from streampca.runs.publish import publish

    try:
        found = publish(directory, url, storage_options=plain_options(config.output.storage_options) or None)
    except OutputError as error:
        raise OutputError(
            f"{error}; the run itself is finished, in {directory}: with --resume only the copy is made"
        ) from error
    from streampca.formatting import as_text

    told(f"published to {found.url}: {found.n_objects:,} objects, {as_text(found.n_bytes)}")


def _same_run(directory: Path, identity: dict[str, str]) -> Run:
    """Return the finished run at `directory` if it is the one that was asked for."""
    manifest = read_manifest(directory)
    require_same(manifest.get("identity") or {}, identity, f"{directory} holds a finished run, of another kind")
    return Run(directory, manifest)


def _carry_out(
    config: RunConfig,
    source: Source,
    parameters: Parameters | KernelParameters,
    ledger: ProgressLog,
    progress: ProgressCallback | None,
    told: Callable[[str], None],
) -> Run:
    """Carry out the run of `ledger`, from where it stopped."""
    directory, run_id = config.output.directory, ledger.terms.run_id
    started, began = datetime.now(UTC), time.perf_counter()
    aside = AtomicDirectory(
        directory, "run", overwrite=config.output.overwrite, run_id=run_id, keeps=lambda: parts_kept(ledger)
    )
    with cluster_of(config, told), aside as part:
        plan = recorded_plan(ledger, plan_of(config, source, parameters))
        ledger.plan = plan.to_dict()
        _require_state(config, plan)
        require_room(directory, _bytes_to_write(config, plan))
        if config.output.scores and plan.axis == "samples":  # which workers write, when all has been read
            require_writable_by_workers(active_client(source), part)
        (part / "config.yaml").write_text(config.to_yaml())
        _write_json(part / "plan.json", plan.to_dict())
        report_rows = kept_rows(source) if config.output.report else 0
        try:
            fitted = _fit(source, parameters, plan, report_rows, progress)
        except NotFiniteError as error:
            raise NotFiniteError(f"{config.source.path_as_written}: {error}") from error
        (part / "model.zarr").mkdir()
        _write_model(config, fitted, part / "model.zarr")
        if config.output.state:
            _write_state(fitted, parameters, part / "model.zarr")
        write_commit_record(part / "model.zarr", "model", run_id)  # so that it can be copied out of the run
        if fitted.samples is not None:
            _write_samples(fitted.samples, part / "samples.zarr")
        scored = time.perf_counter()
        scores = _write_scores(config, source, fitted, part / "scores.zarr", progress)
        scores_seconds = time.perf_counter() - scored
        manifest = _manifest(config, source, fitted, scores)
        manifest["run_id"], manifest["started"] = run_id, started.isoformat(timespec="seconds")
        manifest["identity"], manifest["resumed"] = ledger.terms.identity, ledger.told()
        manifest["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        manifest["seconds"] |= {"total": time.perf_counter() - began, "scores": scores_seconds if scores else None}
        _finish(config, part, manifest)
        ledger.require_held()
    return Run(directory, manifest)


def _fit(
    source: Source, parameters: AnyParameters, plan: Plan, keep_rows: int, progress: ProgressCallback | None
) -> AnyFit:
    if isinstance(parameters, KernelParameters):
        return runs_kernel.fit_kernel_run(source, parameters, plan, keep_rows=keep_rows, progress=progress)
    return fit(source, parameters, plan, keep_rows=keep_rows, progress=progress)


def _write_model(config: RunConfig, fitted: AnyFit, path: Path) -> None:
    n_passes = fitted.plan.passes if fitted.n_passes is None else fitted.n_passes
    figures: dict[str, Any] = {"plan": fitted.plan, "n_passes": n_passes, "bytes_read": fitted.count.bytes}
    if isinstance(fitted, KernelFit):
        record = record_of(runs_kernel.kernel_estimator_of(config), **figures)
    else:
        record = record_of(_estimator_of(config, fitted.model.feature_weight), **figures)
    write_model(fitted.model, path, record)


def _bytes_to_write(config: RunConfig, plan: Plan) -> int:
    """Return the size of model and scores; where a share of variance decides their number, that of one component."""
    if isinstance(plan, KernelPlan):
        return runs_kernel.bytes_to_write(config, plan)
    rows, features, dtype = plan.n_samples, plan.n_features, np.dtype(plan.dtype)
    k = plan.n_components or (min(rows, features) if config.model.n_components is None else 1)
    itemsize = 4 if dtype.kind == "f" and dtype.itemsize <= 4 else 8
    kept = 16 * features * (plan.sketch["columns"] + plan.sketch["held_out"]) if plan.sketch else 4 * features**2
    state = kept if config.output.state else 0
    twice = plan.components_on_disk and shares_disk(config.output.directory)  # in the temporary directory, too
    return 8 * k * features * (1 + twice) + state + (itemsize * k * rows if config.output.scores else 0)


def _require_state(config: RunConfig, plan: Plan) -> None:
    """Raise `ConfigError` if the state is to be kept and the solver has none."""
    from streampca.models.state import CONTINUED

    if config.output.state and plan.solver not in CONTINUED:
        raise ConfigError(
            f"output.state: true, but the solver {plan.solver} keeps no state: set model.solver to one of {', '.join(CONTINUED)}"
        )
    if config.output.state and plan.tile_groups:
        raise ConfigError(
            "output.state: true, but the covariance matrix does not fit in memory, and on disk it keeps no state: set "
            "output.state: false, or raise resources.memory"
        )


def _write_state(fitted: AnyFit, parameters: AnyParameters, path: Path) -> None:
    from streampca.models.persistence.state import write_state
    from streampca.solvers.state import fitted_state_of

    if not isinstance(fitted, Fit) or not isinstance(parameters, Parameters):
        return
    kept = fitted_state_of(fitted, parameters)
    if kept is not None:
        write_state(kept, path)


def _write_scores(
    config: RunConfig, source: Source, fitted: AnyFit, path: Path, progress: ProgressCallback | None
) -> ReadCount | None:
    """Write scores if `config` asks for them; return what reading for them cost, None where nothing was read."""
    if not config.output.scores:
        return None
    if isinstance(fitted, Fit) and fitted.scores is not None:
        write_known_scores(source, fitted.model, fitted.scores, path)
        return None
    plan: Plan = replace(fitted.plan, shuffle_seed=None)
    if isinstance(fitted, Fit) and fitted.plan.solver == "gram" and fitted.model.conditional:
        threads = config.resources.threads  # the plan of the fit has no room for the scores of rows with holes
        plan = plan_scores(
            source, fitted.model, config.resources.memory_bytes, None if threads == "auto" else int(threads)
        )
    return write_scores(source, fitted.model, plan, path, progress=progress)


def _finish(config: RunConfig, part: Path, manifest: dict[str, Any]) -> None:
    """Write manifest and report; the manifest again if drawing took more memory than all that went before."""
    _write_json(part / "manifest.json", manifest)
    if not config.output.report:
        return
    from streampca.runs.report import write_report

    write_report(part)
    if peak_bytes() > manifest["memory"]["peak_bytes"]:
        manifest["memory"]["peak_bytes"] = peak_bytes()
        _write_json(part / "manifest.json", manifest)
        write_report(part)


def parameters_of(config: RunConfig) -> AnyParameters:
    """Return the parameters of the fit that `config` asks for; raise `NotAvailableError` for what is not carried out yet."""
    if config.model.kind != "pca":
        return runs_kernel.kernel_parameters_of(config)
    threads = config.resources.threads
    weights = as_weights("preprocess.sample_weight", _weights_of(config, "sample_weight"))
    estimator = _estimator_of(config, _weights_of(config, "feature_weight"))
    return replace(estimator._parameters(None if threads == "auto" else int(threads)), sample_weight=weights)


def _estimator_of(config: RunConfig, feature_weight: NDArray[Any] | None) -> PCA:
    """Return the estimator that `config` describes, not fitted."""
    model = config.model
    if model.kind != "pca":
        raise ConfigError(f"model.kind: {model.kind}: expected pca")
    k = model.n_components
    n_components = Threshold(k.threshold) if isinstance(k, ConfigThreshold) else k
    given = {"n_components": n_components, "feature_weight": feature_weight}
    return PCA(**(config.estimator_parameters() | given))


def _weights_of(config: RunConfig, name: str) -> NDArray[Any] | None:
    """Read the weights that `config` names under preprocess, None where there are none."""
    written, source = getattr(config.preprocess, name), config.source
    if written is None:
        return None
    return read_vector(
        f"preprocess.{name}",
        written,
        path=source.path,
        array=source.array,
        storage_options=plain_options(source.storage_options) or None,
        follow_symlinks=source.follow_symlinks,
    )


def source_of(config: RunConfig) -> Source:
    """Open the source of `config`; reads metadata only."""
    source = config.source
    return open_source(
        source.path,
        array=source.array,
        orientation=source.orientation,
        missing_chunks=source.missing_chunks,
        verify=source.verify,
        follow_symlinks=source.follow_symlinks,
        decode=source.decode,
        storage_options=plain_options(source.storage_options) or None,
    )


def plan_of(config: RunConfig, source: Source, parameters: AnyParameters, *, probe: bool = False) -> Plan:
    """Return the plan of `config` with its alternatives; `probe` reads a few blocks to tell how long it takes."""
    output, client = config.output, active_client(source)
    if isinstance(parameters, KernelParameters):
        return runs_kernel.plan_kernel_run(config, source, parameters, client)
    wanted = {"scores": output.scores, "report": output.report, "alternatives": True, "probe": probe}
    return plan_fit(source, parameters, client=client, **wanted)


def _manifest(config: RunConfig, source: Source, fitted: AnyFit, scores: ReadCount | None) -> dict[str, Any]:
    model, plan = fitted.model, fitted.plan
    return {
        "format": "streampca-run",
        "format_version": 1,
        "name": config.name,
        "versions": versions(),
        "source": source.describe() | {"path": config.source.path_as_written},
        "passes": plan.passes if fitted.n_passes is None else fitted.n_passes,
        "approximation": plan.sketch or None,
        "reads": {
            "fit": _reads(fitted.count, plan, fitted.stream_seconds),
            "scores": _reads(scores, plan, None) if scores else None,
        },
        "memory": {
            "allowed_bytes": plan.allowed_bytes,
            "projected_bytes": plan.projected_bytes,
            "peak_bytes": peak_bytes(),
        },
        "seconds": {"fit": fitted.stream_seconds, "solve": fitted.solve_seconds},
        "certificate": model.certificate,
        "result": result_of(model),
        "warnings": [*_unused_keys(config), *warnings_of(fitted)],
        "notes": notes_of(fitted, source),
    }


def _reads(count: ReadCount, plan: Plan, seconds: float | None) -> dict[str, Any]:
    return {
        "blocks": plan.n_blocks,
        "chunks": count.chunks,
        "bytes": count.bytes,
        "stored_bytes": count.stored_bytes,
        "seconds": seconds,
    }


def _unused_keys(config: RunConfig) -> list[str]:
    kernel = config.model.kind == "pca" and config.model.kernel is not None
    return ["model.kernel is read by kind: kernel_pca only and was not used"] if kernel else []


def _write_samples(samples: RowsState, path: Path) -> None:
    group = zarr.open_group(path, mode="a", zarr_format=3)
    write_array(group, "rows", samples.values)
    write_array(group, "index", samples.index)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n")


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a finished run; raise `ModelError` if the directory is not one."""
    try:
        manifest = json.loads(read_regular(directory / "manifest.json"))
    except OSError as error:
        raise ModelError(
            f"{directory} is not a finished run: manifest.json cannot be read ({error.strerror})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{directory} is not a finished run: its manifest.json is damaged ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != "streampca-run":
        raise ModelError(f"{directory} is not a finished run: its manifest.json is of another kind")
    return manifest
