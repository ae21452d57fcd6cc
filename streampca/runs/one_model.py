"""A run of one model: the fit of a configuration, with its model, scores, samples, manifest and report."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import zarr
from typing_extensions import override

from streampca.anndata.slots import require_slots, write_run
from streampca.errors import ConfigError, NotFiniteError, OutputError, ParameterError
from streampca.estimators.persistence import record_of
from streampca.execution.checkpoint.progress_log import ProgressLog
from streampca.execution.checkpoint.resume import recorded_plan
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.readings import Readings, run_fit
from streampca.execution.write import reconstruction, write_rows, write_scores
from streampca.logs import Notice
from streampca.models.pca import Model
from streampca.models.persistence.groups import write_array
from streampca.models.persistence.models import load_model, write_model
from streampca.models.persistence.state import write_state
from streampca.models.rows import residuals_of, residuals_step
from streampca.models.state import text_arrays
from streampca.parameters import Parameters
from streampca.planning.plan import Plan
from streampca.planning.scores import plan_rows, plan_scores, require_room_for_rows
from streampca.runs.config import RunConfig
from streampca.runs.diagnostics import (
    DiagnosticsSummary,
    as_json,
    diagnostics_summary,
    require_diagnosable,
    write_unusual_rows,
)
from streampca.runs.from_config import AnyConfiguredFit, classes_of_samples, fit_of, require_state, source_of
from streampca.runs.manifest import Manifest, Times, manifest_of
from streampca.runs.quality import record_quality
from streampca.runs.strategy import AnyPlan, Run, Strategy, identity_of_run, unfinished_rows, write_manifest
from streampca.solvers.fit import report_rows
from streampca.solvers.result import FitResult
from streampca.sources import ReadCount, Source, open_source
from streampca.sources.base import Chosen
from streampca.sources.store_record import record_of_store
from streampca.storage.directories import read_record, write_commit_record
from streampca.storage.scratch import shares_disk
from streampca.system.process import release_freed_memory
from streampca.typing import Array, Json

if TYPE_CHECKING:
    from streampca.accumulators import RowsState

_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Scored:
    """Written scores."""

    count: ReadCount
    """Chunks and bytes read for them."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True, kw_only=True)
class OneModel(Strategy):
    """A run of one model."""

    kind: ClassVar[str] = "run"
    fit: AnyConfiguredFit
    """The estimator and the parameters of its fit."""
    classes: Array | None = None
    """Class of each sample as text, for the report; None if the configuration names none."""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        progress: ProgressCallback | None,
        notice: Notice,
        source: Source | None = None,
    ) -> OneModel:
        """Return the run of `config`, with an already opened `source` if given."""
        source = source_of(config) if source is None else source
        classes, fit = classes_of_samples(config, source), fit_of(config).of(source)
        return cls(config=config, source=source, notice=notice, progress=progress, fit=fit, classes=classes)

    @override
    def identity(self) -> dict[str, str]:
        return identity_of_run(self.config, self.source, self.fit.parameters)

    @override
    def unfinished(self, log: ProgressLog) -> tuple[str, ...]:
        return unfinished_rows(self.config, log)

    @override
    def require_places(self, *, resume: bool) -> None:
        output = self.config.output
        if not output.anndata:
            return
        run_id = str(((read_record(output.directory) if resume else None) or {}).get("run_id", ""))
        require_slots(self.source.description, self.source, run_id, replace=output.anndata == "overwrite")

    def planned(self) -> Plan:
        """Return the plan of the run; reads only metadata."""
        plan = self.fit.plan(self.config, self.source)
        self.require_possible(plan)
        return plan

    @override
    def plan(self, log: ProgressLog) -> Plan:
        plan = recorded_plan(log, self.planned())
        log.plan = plan.to_dict()
        self.require_possible(plan)  # the recorded one may be that of a run with other outputs
        return plan

    def require_possible(self, plan: Plan) -> None:
        """Raise `ConfigError`, or `PlanError`, if the run cannot be carried out by `plan`."""
        require_state(self.config, self.fit.parameters, plan)
        require_diagnosable(self.config, plan)
        labels, name = self.source.labels, self.config.output.reconstruction
        on_disk = plan.components_on_disk or plan.model_on_disk
        if name and plan.n_components and not on_disk and isinstance(self.fit.parameters, Parameters):
            require_room_for_rows(plan.n_features, plan.n_components, self.config.resources.memory_bytes)
        if isinstance(name, str) and np.dtype(name).kind != "f" and labels is not None and labels.mask is not None:
            raise ConfigError(
                f"output.reconstruction: {name}, but the mask leaves out features, which are NaN in its rows: expected true or a "
                "floating point type"
            )
        if self.fit.rotation is not None and plan.components_on_disk:
            raise ConfigError(
                "model.rotation: the components do not fit in memory and will be on disk, where they are not rotated: take fewer "
                "components, or raise resources.memory"
            )

    @override
    def bytes_to_write(self, plan: AnyPlan) -> int:
        """Return the size of model, state, scores and reconstruction; if a share of variance sets the number of components, for one component."""
        config, solver = self.config, self.fit.estimator._solvers[plan.solver]
        rows, features, dtype = plan.n_samples, plan.n_features, np.dtype(plan.dtype)
        k = plan.n_components or (min(rows, features) if config.model.n_components is None else 1)
        itemsize = 4 if dtype.kind == "f" and dtype.itemsize <= 4 else 8
        twice = plan.model_on_disk and shares_disk(config.output.directory)  # in the temporary directory, too
        model_bytes = solver.model_bytes(plan, k) * (1 + twice)
        state_bytes = solver.state_bytes(plan) if config.output.state else 0
        row_bytes = itemsize * k * config.output.scores + 16 * config.output.diagnostics
        if config.output.reconstruction:
            labels = self.source.labels
            size = features if labels is None else max(features, sum(each.size for each in labels.variables))
            name = config.output.reconstruction
            row_bytes += size * (np.dtype(name).itemsize if isinstance(name, str) else itemsize)
        return int(model_bytes + state_bytes + row_bytes * rows)

    @override
    def read(self, plan: AnyPlan) -> FitResult:
        return run_fit(self.readings(self.source, plan), active_client(self.source), self.progress)

    def readings(self, source: Source, plan: Plan) -> Readings[FitResult]:
        """Request the passes of the fit of `source` by `plan`, and return the fit."""
        rows = report_rows(self.source) if self.config.output.report else 0
        return (yield from self.fit.readings(source, plan, keep_rows=rows, quality=self.config.quality))

    @override
    def write(
        self,
        fitted: FitResult,
        plan: AnyPlan,
        path: Path,
        log: ProgressLog,
        times: Times,
        scored: Scored | None = None,
    ) -> Manifest:
        """Write model, samples, scores, reconstruction, manifest and report of a fit to the directory `path`; return the manifest.

        `scored` is the cost of scores that exist already; with None they are written.
        """
        from streampca.runs.report.page import write_report

        config, source = self.config, self.source
        samples = None if fitted.samples is None else _without_holes(fitted.samples, fitted.model)
        if samples is not None:
            _write_samples(samples, path / "samples.zarr", self.classes, source.chosen)
        scored = scored or self._write_scores(fitted, path / "scores.zarr")
        reads = {"fit": _reads(fitted.count, fitted.plan, fitted.stream_seconds), "scores": None}
        reads["reconstruction"] = rows_read = self._write_reconstruction(fitted, path)
        recorded = self._write_model(fitted, path / "model.zarr", log.identity.run_id)
        if recorded is not None:
            reads["record"] = recorded.to_dict()
        summarising, scores_seconds = time.perf_counter(), None
        diagnostics, cost = self._summarise_diagnostics(fitted, path)
        if scored is not None:
            scores_seconds = scored.seconds + time.perf_counter() - summarising
            reads["scores"] = _reads(scored.count + cost, fitted.plan, None)
        manifest = manifest_of(
            config,
            source,
            log,
            times,
            kind=self.kind,
            plan=fitted.plan,
            seconds={
                "fit": fitted.stream_seconds,
                "solve": fitted.solve_seconds,
                "scores": scores_seconds,
                "reconstruction": None if rows_read is None else rows_read["seconds"],
                "phases": dict((fitted.count + (scored.count if scored else ReadCount())).phases),
            },
            passes=fitted.passes,
            approximation=fitted.plan.sketch or None,
            reads=reads,
            certificate=fitted.model.certificate.to_dict(),
            diagnostics=as_json(diagnostics),
            quality=None,
            result=fitted.summary(),
            warnings=[*config.model.warnings(), *fitted.warnings()],
            notes=fitted.notes(source),
            updates=fitted.updates,
        )
        record_quality(manifest, fitted, source, path / "scores.zarr" if config.output.scores else None)
        write_manifest(config, path, manifest, partial(write_report, model=fitted.model))
        return manifest

    @override
    def conclude(self, run: Run) -> None:
        """Write the results into the AnnData that was read, if the configuration asks for it."""
        config, directory = self.config, run.directory
        finished = f"the run itself is finished, in {directory}: with --resume only"
        if config.output.anndata:
            model, scores = load_model(directory / "model.zarr"), directory / "scores.zarr"
            overwrite = config.output.anndata == "overwrite"
            try:
                write_run(self.source.description, model, scores, run.manifest["run_id"], replace=overwrite)
            except OutputError as error:
                raise OutputError(f"{error}; {finished} this is done") from error

    def _write_model(self, fitted: FitResult, path: Path, run_id: str) -> ReadCount | None:
        """Write the model, and its state if the configuration asks for it, to the new directory `path`.

        Return the reads for the record of chunks with rows in the state; None without a record.
        """
        path.mkdir()
        record = record_of(self.fit.estimator, plan=fitted.plan, n_passes=fitted.passes, bytes_read=fitted.count.bytes)
        write_model(fitted.model, path, record)
        recorded = None
        if self.config.output.state:
            state, (chunks, count) = fitted.fitted_state, record_of_store(self.source)
            assert state is not None  # noqa: S101 `require_state` has seen to it
            write_state(replace(state, stored=chunks), path)
            recorded = None if chunks is None else count
        write_commit_record(path, "model", run_id)  # so that it can be copied out of the run
        return recorded

    def _write_scores(self, fitted: FitResult, path: Path) -> Scored | None:
        """Write scores if the configuration asks for them; return None if nothing was read for them."""
        output, resources = self.config.output, self.config.resources
        diagnostics = output.diagnostics
        began = time.perf_counter()
        if not output.scores or (not diagnostics and fitted.write_known_scores(self.source, path)):
            return None
        source, plan = residuals_of(self.source, fitted.model), fitted.plan.unshuffled()
        if plan.axis == "features":  # such a plan has no memory for rows, which the scores of rows with holes take
            plan = plan_scores(
                source,
                fitted.model,
                resources.memory_bytes,
                resources.n_threads,
                diagnostics=diagnostics,
                read_ahead=resources.read_ahead_bytes,
            )
        count = write_scores(source, fitted.model, plan, path, progress=self.progress, diagnostics=diagnostics)
        return Scored(count, time.perf_counter() - began)

    def _write_reconstruction(self, fitted: FitResult, path: Path) -> Json | None:
        """Write the rows reconstructed from the scores if the configuration asks for them; return the cost of reading the scores."""
        wanted, resources, began = self.config.output.reconstruction, self.config.resources, time.perf_counter()
        if not wanted:
            return None
        model, step, chosen = fitted.model, residuals_step(self.source, fitted.model), self.source.chosen
        removed = None if step is None else step.rows
        if removed is not None and chosen is not None:
            removed = removed.spread(chosen.rows, chosen.n_rows)
        scores = open_source(path / "scores.zarr", array="scores")
        rows = reconstruction(
            scores,
            model,
            dtype=wanted if isinstance(wanted, str) else None,
            regressors=removed,
        )
        release_freed_memory()  # of the fit, which else counts as taken
        plan = plan_rows(rows, model, resources.memory_bytes, resources.n_threads)
        place = path / "reconstruction.zarr"
        try:
            count = write_rows(rows, model, plan, place, samples=scores.labels, progress=self.progress)
        except (ParameterError, NotFiniteError) as error:
            error.args = (f"output.reconstruction: {json.dumps(wanted)}: {error.args[0]}",)
            raise
        return _reads(count, plan, time.perf_counter() - began)

    def _summarise_diagnostics(self, fitted: FitResult, path: Path) -> tuple[DiagnosticsSummary | None, ReadCount]:
        """Return the summary of T² and Q, or None without them; for a report, write the most unusual rows and return their cost."""
        output = self.config.output
        if not output.diagnostics or fitted.model.linear is None:
            return None, ReadCount()
        summary = diagnostics_summary(fitted.model.linear, path / "scores.zarr", self.source)
        cost = write_unusual_rows(self.source, summary, path / "samples.zarr") if output.report else ReadCount()
        return summary, cost


def _reads(count: ReadCount, plan: Plan, seconds: float | None) -> Json:
    return {"blocks": plan.n_blocks, **count.to_dict(), "seconds": seconds}


def _write_samples(samples: RowsState, path: Path, classes: Array | None, chosen: Chosen | None) -> None:
    group, index = zarr.open_group(path, mode="a", zarr_format=3), samples.index
    write_array(group, "rows", samples.values, ("sample", "feature"))
    write_array(group, "index", index if chosen is None else chosen.rows[index], ("sample",))  # as rows of scores
    if classes is not None:
        texts, ends = text_arrays(classes[samples.index].tolist())
        write_array(group, "classes", texts, ("byte",))
        write_array(group, "classes_ends", ends, ("sample",))


def _without_holes(samples: RowsState, model: Model) -> RowsState | None:
    """Return `samples` with NaN replaced by values from the components of `model`; None if no row is left.

    Rows with NaN are left out if the fit left them out, so that they have no scores, or if scores need more than the row.
    """
    if samples.values.dtype.kind != "f" or not np.isnan(samples.values).any():
        return samples
    values = samples.values.copy()
    alone = model.linear is not None and model.linear.removal is None and not model.on_disk
    incomplete = np.flatnonzero(np.isnan(values).any(axis=1)) if alone else np.empty(0, dtype=np.int64)
    for start in range(0, len(incomplete), _ROWS_AT_ONCE):
        some = incomplete[start : start + _ROWS_AT_ONCE]
        rows = values[some]
        values[some] = np.where(np.isnan(rows), model.decode(model.encode(rows)), rows)
    return replace(samples, values=values).complete()
