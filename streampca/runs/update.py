"""Addition of new rows to the state of a run, with the result of a run of all rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from streampca.accumulators import RowsState
from streampca.errors import ChangedInputError, ConfigError, DataError, ModelError, NotAvailableError
from streampca.estimators.continuing import Continuing
from streampca.estimators.loading import load
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.readings import Readings
from streampca.logs import Notice, logged
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.planning.plan import Plan
from streampca.runs.config import RunConfig
from streampca.runs.config.models import ModelsConfig, load_any_config
from streampca.runs.from_config import ConfiguredFit, obstacle_to_update
from streampca.runs.manifest import UPDATED, Manifest, read_json, read_manifest
from streampca.runs.one_model import OneModel
from streampca.runs.report.run_files import read_samples
from streampca.runs.run import common_of, strategy_of
from streampca.runs.several import RunOfModels, SeveralModels, runs_of
from streampca.runs.strategy import Place, Run, Strategy, locked, written
from streampca.solvers.result import Fit
from streampca.solvers.state import continued, readings_of_batch
from streampca.sources import Source
from streampca.sources.alignment import with_rows_shifted
from streampca.sources.formats import ENDINGS
from streampca.sources.like import NewRows
from streampca.sources.store_record import MOST_RECORDED, arrays_of
from streampca.sources.table import FROM_DATA, view_of
from streampca.storage.directories import tidy_after
from streampca.storage.lock import lock_of
from streampca.suggestions import suggests_keywords
from streampca.typing import Json

_CHANGEABLE = (
    "source.path=",
    "source.storage_options",
    "resources.",
    "cluster",
    "checkpoint.",
    "output.scores=",
    "output.reconstruction=",
    "output.report=",
)
"""Keys that may differ from the run: they do not affect its bits."""


@dataclass(frozen=True)
class Update:
    """Result of `update`."""

    run: Run
    """The updated run in the same directory, or the existing one if there were no new rows."""
    n_rows: int
    """Number of new rows."""
    files: tuple[str, ...]
    """Names of the new files; empty if rows were appended to a store."""


@dataclass(frozen=True)
class _ContinuedFit(ConfiguredFit[Parameters, Fit]):
    """A fit that reads new rows only and adds them to the state of a finished run."""

    estimator: Continuing
    """The estimator that solves the state."""
    fitted: FittedState
    """The state of the run."""
    added: NewRows
    """Indices of the new rows."""
    rows: Source
    """Only the new rows; for several models in one pass, parts of one table."""
    directory: Path
    """Directory of the model to continue."""
    updates: tuple[Json, ...]
    """Earlier updates of the run."""

    @cached_property
    def samples(self) -> RowsState | None:
        """Rows that the run copied for its report, with their numbers in the current table."""
        rows, index = read_samples(self.directory / "samples.zarr", self.added.table.shape[1])
        return None if rows is None or index is None else RowsState(self.added.places(index, new=False), rows[:])

    def plan(self, config: RunConfig, source: Source, *, shared: bool = False) -> Plan:
        """Return the plan of a fit of all rows with the solver of the run."""
        plan: Plan = self.estimator._plan_source(
            source,
            replace(self.parameters, solver=self.fitted.solver),
            scores=config.output.scores,
            diagnostics=config.output.diagnostics,
            report=config.output.report,
            client=None if shared else active_client(source),
        )
        return plan

    def readings(self, source: Source, plan: Plan, *, keep_rows: int, quality: bool) -> Readings[Fit]:
        """Request the new rows of `source` and return the fit of all its rows; new rows alone do not give their `quality`."""
        began, n_before, n_new = time.perf_counter(), self.fitted.state.n_samples, self.rows.shape[0]
        keep_new = -(-keep_rows * n_new // source.shape[0])
        try:
            batch = yield from readings_of_batch(
                self.rows, self.parameters, self.fitted, keep_rows=keep_new if keep_rows else 0
            )
        except DataError as error:  # which counts rows from the first new one
            error.args = tuple(with_rows_shifted(str(each), self.added.n_shifted) for each in error.args)
            raise
        fitted = replace(
            continued(self.fitted, batch.state),
            source=source.describe() | {"solver": plan.solver},
            labels=None if source.labels is None else source.labels.without_sample_coordinates(),
            fragments=source.fragments,
        )
        streamed = time.perf_counter()
        model = self.estimator._solved(fitted)
        entry: Json = {
            "n_samples_before": int(n_before),
            "n_samples_added": int(n_new),
            "files": list(self.added.files),
            "bytes": batch.count.bytes,
            "stored_bytes": batch.count.stored_bytes,
        }
        if self.fitted.stored is not None:
            entry["compared"] = self.added.compared.to_dict()
        return Fit(
            model=model,
            plan=plan,
            samples=self._samples(batch.samples, keep_rows - keep_new),
            count=batch.count,
            stream_seconds=streamed - began,
            solve_seconds=time.perf_counter() - streamed,
            fitted_state=fitted,
            updates=(*self.updates, entry),
        )

    def _samples(self, new: RowsState | None, n_before: int) -> RowsState | None:
        """Return rows for the report: `n_before` evenly spaced rows copied by the run, and the `new` ones."""
        if new is None:
            return None
        index, values = self.added.places(new.index, new=True), new.values
        before = self.samples
        if before is not None and n_before > 0:
            some = np.unique(
                np.linspace(0, len(before.index) - 1, min(n_before, len(before.index))).round().astype(int)
            )
            index = np.concatenate([before.index[some], index])
            values = np.concatenate([before.values[some], values])
        order = np.argsort(index, kind="stable")
        return RowsState(index[order], values[order])


@suggests_keywords
def update(
    directory: str | Path,
    *,
    overrides: Sequence[str] = (),
    progress: ProgressCallback | None = None,
    notice: Callable[[str], None] | None = None,
) -> Update:
    """Add new rows to the state of a run, and replace the run by one of all rows.

    Only the new rows are read, once for all models of the run. If the run has scores, all rows are read once more,
    since the components change. The new run replaces the old one when complete, as with ``output.overwrite``. A
    stopped update resumes from its checkpoint. Without new rows nothing changes.

    Parameters
    ----------
    directory : path
        A finished run of one or several models with ``output.state: true``, from files of rows or zarr arrays.
    overrides : sequence of "key.sub=value"
        Changes to ``source.path`` (a list with the new files), ``source.storage_options``, ``resources``, ``cluster``,
        ``checkpoint``, ``output.scores``, ``output.reconstruction`` and ``output.report``.
    progress : callable, optional
        Called with a `Progress` as blocks finish.
    notice : callable, optional
        Called with a sentence when a stopped update is resumed or restarted.

    Returns
    -------
    Update
        The updated run, and the number of new rows.

    Raises
    ------
    ConfigError
        If the run, or one of its models, kept no state.
    DataError
        If the models of the run have different rows, because some were updated separately.
    ChangedInputError
        If a file or chunk that the run has read is missing or has changed; the message names it.
    NotAvailableError
        If the run cannot be continued: other sources, rows inserted between others, sample weights, or masks taken from
        the data.

    Examples
    --------
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import streampca as sp
    >>> generator = np.random.default_rng(0)
    >>> Path("shards").mkdir()
    >>> np.save("shards/0.npy", generator.normal(size=(200, 5)))
    >>> _ = Path("job.yaml").write_text("{source: {path: 'shards/*.npy'}, name: job, output: {state: true, report: false}}")
    >>> run = sp.run("job.yaml")
    >>> np.save("shards/1.npy", generator.normal(size=(100, 5)))
    >>> _ = sp.update(run.directory)
    >>> sp.load(run.directory).n_samples_seen_
    300
    """
    directory, notice = Path(directory), logged(notice)
    if not directory.is_dir() and not lock_of(directory).exists():
        raise ModelError(f"{directory}: no such run")
    with locked(directory) as place:
        if place.kind not in ("run", "models"):
            raise ModelError(
                f"{directory} is not a finished run of one model or of several: expected a directory that streampca run has written"
            )
        config, manifest = _config_of(directory, overrides), read_json(directory, "manifest.json")
        strategy, added = _continued(directory, strategy_of(config, progress, notice))
        if not added.n_rows:
            return _without_new_rows(place, config, manifest, notice)
        identity = strategy.identity() | {UPDATED: manifest["run_id"]}
        other = _begun(place) not in (None, identity)
        if other:
            notice("the stopped update began with other files or another run: starting over")
        run = written(strategy, place, identity, fresh=other)
    return Update(run, added.n_rows, added.files)


def _config_of(directory: Path, overrides: Sequence[str]) -> RunConfig | ModelsConfig:
    for text in overrides:
        if not text.startswith(_CHANGEABLE):
            raise ConfigError(
                f"--set {text.partition('=')[0]}: a run is updated as it was made: only source.path, source.storage_options, resources, "
                "cluster, checkpoint, output.scores, output.reconstruction and output.report may be changed"
            )
    here = f"output.directory={json.dumps(str(directory))}"
    return load_any_config(directory / "config.yaml", [*overrides, here])


def _begun(place: Place) -> Json | None:
    """Return the identity of a stopped update; None if no update was stopped."""
    stored = place.checkpoint.newest()[0]
    return stored["identity"] if stored is not None and UPDATED in stored["identity"] else None


def _without_new_rows(place: Place, config: RunConfig | ModelsConfig, manifest: Manifest, notice: Notice) -> Update:
    """Return the unchanged run; remove the remains of a stopped update, and name outputs that `config` would change."""
    if place.stopped is not None and _begun(place) is not None:
        notice(f"the stopped update no longer has new rows: {place.checkpoint.path} is removed")
        place.checkpoint.remove()
        tidy_after(place.directory, place.stopped)
    now, before = (common_of(each).output for each in (config, _config_of(place.directory, ())))
    for name in ("scores", "reconstruction", "report"):
        if getattr(now, name) != getattr(before, name):
            notice(f"--set output.{name} has no effect: nothing is new, and the run stays as it is")
    return Update((RunOfModels if place.kind == "models" else Run)(place.directory, manifest), 0, ())


def _continued(directory: Path, strategy: Strategy) -> tuple[Strategy, NewRows]:
    """Return `strategy` with fits that add rows to the states of the models in `directory`, and the new rows.

    Raises
    ------
    ConfigError
        If a model keeps no state.
    DataError
        If the models of a run have different rows.
    """
    jobs: dict[str, Any] = {"": strategy}
    places = {"": directory}
    if isinstance(strategy, SeveralModels):
        jobs, places = dict(strategy.jobs), runs_of(directory)
    fits = {name: _continued_fit(places[name], job) for name, job in jobs.items()}
    first, table = next(iter(fits.values())).added, strategy.source
    rows = replace(first, table=table).rows() if first.n_rows else table
    for name, fit in fits.items():
        if (fit.added.n_rows, fit.added.files) != (first.n_rows, first.files):
            raise DataError(
                f"{directory}: its models have different rows, {name} {table.shape[0] - fit.added.n_rows:,}: bring each up to date by "
                f"itself, streampca update {directory}/models/NAME, or run again in full"
            )
        own = rows if fit.added.table is table or not first.n_rows else view_of(rows, fit.added.rows())
        jobs[name] = replace(jobs[name], fit=replace(fit, rows=own), replaces=True)
    if isinstance(strategy, SeveralModels):
        return replace(strategy, jobs=jobs, replaces=True), first
    return jobs[""], first


def _continued_fit(directory: Path, job: OneModel) -> _ContinuedFit:
    """Return the fit that continues the run of one model in `directory` with the unread rows of the source of `job`."""
    config, configured = job.config, job.fit
    manifest, plan = read_manifest(directory), Plan.from_dict(read_json(directory, "plan.json"))
    if obstacle := obstacle_to_update(config, configured.parameters, plan):
        raise ConfigError(f"{directory} cannot be updated: {obstacle}")
    fitted: FittedState | None = vars(load(directory)).get("_fitted_state")
    if fitted is None:
        raise ConfigError(f"{directory} kept no state to add rows to: run it once more with output.state: true")
    added = _new_rows(job.source, fitted, manifest, directory)
    assert isinstance(configured.estimator, Continuing)  # noqa: S101 for the type checker: no other has a state
    assert isinstance(configured.parameters, Parameters)  # noqa: S101
    updates = tuple(manifest.get("updates", ()))
    fit = _ContinuedFit(configured.estimator, configured.parameters, fitted, added, job.source, directory, updates)
    if added.n_rows:
        _require_continuable(config, fit)
    return fit


def _new_rows(source: Source, fitted: FittedState, manifest: Manifest, directory: Path) -> NewRows:
    """Return the new rows of `source`; raise an error unless all others are the rows that the run has read."""
    of_files = bool(fitted.fragments and source.fragments)
    if not of_files and (fitted.stored is None or not arrays_of(source)):
        raise NotAvailableError(
            f"{source.description}: only runs on files of rows ({ENDINGS}) and on zarr arrays of at most {MOST_RECORDED:,} chunks "
            "can be updated, and from states that have a record of them: run again in full"
        )
    before, d = manifest["source"]["shape"]
    if of_files and sum(each.n_rows for each in fitted.fragments) != before + manifest["source"].get("n_left_out", 0):
        raise DataError(
            f"{directory}: the files recorded in its state do not add up to its {before:,} rows: run again in full"
        )
    if source.shape[1] != d or str(source.dtype) != manifest["source"]["dtype"]:
        raise DataError(
            f"{source.description} has {source.shape[1]:,} features of {source.dtype}, and the run was made from {d:,} of "
            f"{manifest['source']['dtype']}: expected the same"
        )
    difference = None
    if fitted.labels is not None and source.labels is not None:
        difference = fitted.labels.difference(source.labels)
    if difference is not None:
        raise DataError(f"{source.description} has {difference}: expected the features of the run")
    if of_files or fitted.stored is None:
        added = NewRows.of_files(source, fitted.fragments)
    else:
        added = NewRows.of_store(source, fitted.stored)
    if source.chosen is not None and added.n_before != before:
        raise ChangedInputError(
            f"{source.description}: the condition where holds for {added.n_before:,} of the rows that the run has read, and held for "
            f"{before:,}: their coordinates or columns were changed; run again in full"
        )
    added.require_same_codes(fitted.source)
    return added


def _require_continuable(config: RunConfig, fit: _ContinuedFit) -> None:
    """Raise `NotAvailableError` if new rows cannot be added to such a run, or `ConfigError` if no report can be drawn."""
    mask = config.source.mask
    forgets = fit.fitted.parameters.forgetting != 1.0 and not fit.added.appended
    for refused, what, why in (
        (mask in FROM_DATA, f"source.mask: {mask}", "which features are used depends on all rows"),
        (
            config.source.where is not None and config.source.where.endswith(".npy"),
            f"source.where: {config.source.where}",
            "a mask does not say which earlier rows it left out; give a condition",
        ),
        (
            config.preprocess.sample_weight is not None,
            "preprocess.sample_weight",
            "the weights of earlier rows may have changed",
        ),
        (
            config.statistics.sampling_errors > 0,
            f"statistics.sampling_errors: {config.statistics.sampling_errors}",
            "they follow from the scores of all rows in groups of equal size",
        ),
        (
            forgets,
            "model.forgetting",
            "the new files do not come after all others, and the order of rows is that of time",
        ),
    ):
        if refused:
            raise NotAvailableError(f"a run with {what} cannot be updated: {why}; run again in full")
    if config.output.report and fit.samples is None:
        raise ConfigError(
            f"{fit.directory} holds no copied rows, from which a report is drawn: give --set output.report=false, or run again in full"
        )
