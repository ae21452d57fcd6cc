"""Verification of a finished run: read its data once more and measure its contents and figures again."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streampca.accumulators.wrappers import Joint
from streampca.errors import ConfigError, DataError, ModelError, NotAvailableError, PlanError
from streampca.execution.progress import ProgressCallback
from streampca.execution.readings import Reading
from streampca.labels import Labels
from streampca.models.pca import Model
from streampca.models.persistence.models import load_model, load_saved
from streampca.models.persistence.state import load_record
from streampca.models.rows import residuals_of
from streampca.parameters import Parameters
from streampca.planning.columns import with_columns
from streampca.planning.memory import allowed_bytes
from streampca.planning.plan import Plan
from streampca.planning.scores import plan_scores
from streampca.runs.config import RunConfig, load_config
from streampca.runs.diagnostics import as_json, expected_diagnostics
from streampca.runs.from_config import fit_of, groups_of_rows, source_by_groups, source_of
from streampca.runs.manifest import Manifest, read_json, read_manifest
from streampca.runs.several import groups_of_run
from streampca.runs.verify.eigenpairs import (
    Check,
    Measured,
    StoredRows,
    Verification,
    accumulator_for,
    check_of_unusual_rows,
    checks_of_analysis,
    checks_of_eigenpairs,
    checks_of_figures,
    checks_of_rows,
    panel_rows,
    stored_arrays,
)
from streampca.solvers.fitted_steps import with_figures
from streampca.solvers.groups import plan_fits_of_groups, read_groups
from streampca.sources import Source
from streampca.sources.store_record import arrays_of, keys_where, note_digests
from streampca.sources.zarr.digests import StoreRecord, default_place
from streampca.sources.zarr.reader import ZarrSource
from streampca.storage.directories import DIAGNOSTICS, read_record
from streampca.system.process import n_cores, one_blas_thread

__all__ = ["verify_groups", "verify_run"]


_OVERRIDES = ("source.", "resources.")
_MOST_NAMED = 3


def verify_run(
    directory: Path, *, overrides: Sequence[str] = (), progress: ProgressCallback | None = None
) -> Verification:
    """Read the data of a finished run once more and measure its numbers again.

    `overrides` change keys of ``source`` and ``resources``, if the data have moved or the machine differs; `progress` is
    called as blocks finish. Differences do not raise an error (see `Verification.require`).

    Raises
    ------
    ModelError
        If `directory` is not a finished run, or if its model is damaged.
    DataError
        If data are missing, damaged or of another shape.
    NotAvailableError
        For runs with forgetting, or with components on disk.
    """
    began, record = time.perf_counter(), read_record(directory)
    if record is None or record.get("format") != "streampca-run":
        raise ModelError(f"{directory} is not a finished run: expected a directory that streampca run has written")
    manifest, config = read_manifest(directory), _config_of(directory, overrides)
    model = _model_of(directory, config)
    source = with_figures(_opened_as_fitted(config, model.labels), config.resources.memory_bytes)
    checks = [_check_of_input(source, manifest, overrides)]
    _require_shape(source, model, manifest)
    parameters = with_columns(fit_of(config).parameters, source)
    rows, weights = residuals_of(source, model), getattr(parameters, "sample_weight", None)
    stored, checks_of_stored = stored_arrays(directory, config, model, source)
    compared_rows = StoredRows(model, stored, source.chosen)
    plan, joint = _planned(rows, model, config, compared_rows, parameters)
    chunks = recorded_chunks(directory, source)
    states: Any
    with one_blas_thread():
        answer = Reading(rows, joint.parts, plan, weights, "verify").make(None, progress)
        states, count = answer.take(), answer.count
        checks.append(check_of_chunks(source, chunks))
        summary = None
        if set(DIAGNOSTICS) <= stored.keys():
            summary = as_json(expected_diagnostics(config, directory, model, source))
        figures = {"certificate": model.certificate.to_dict(), "result": model.summary(), "diagnostics": summary}
        checks += checks_of_figures(directory, record, figures)
        if model.linear is not None and isinstance(parameters, Parameters):
            solved = model.linear.before_rotation
            measured = Measured.of(joint.parts[-1], states[-1], solved, parameters)
            checks_of: Any = checks_of_eigenpairs if solved.has_spectrum else checks_of_analysis
            checks += checks_of(solved, measured, parameters.scaling)
        lightest = 1.0 if weights is None else float(np.min(weights[weights > 0]))
        checks += [*checks_of_stored, *checks_of_rows(compared_rows, states[0], source, lightest)]
    statistics = {
        "quality": manifest.get("quality"),
        "sampling errors": model.sampling_errors,
        "prediction errors": None if model.linear is None else model.linear.prediction_errors,
    }
    why = "of what was committed with the run alone: a new run measures them again"
    checks += [Check(name, note=why) for name, figures in statistics.items() if figures is not None]
    if config.output.reconstruction:
        checks.append(
            Check("reconstruction", note="the rows in reconstruction.zarr are not measured: scores and model are")
        )
    if summary is not None and config.output.report:
        checks.append(check_of_unusual_rows(directory, source, [row["row"] for row in summary["unusual_rows"]]))
    return Verification(directory, tuple(checks), source.shape, count, time.perf_counter() - began)


def verify_groups(
    directory: Path, *, overrides: Sequence[str] = (), progress: ProgressCallback | None = None
) -> Verification:
    """Read the data of a run of groups once more and measure the numbers of all its models again.

    The covariances of all groups are accumulated as in the fit. Each group has one check, and so do the models within and
    between groups, for the quantity that differs most. Parameters and errors are as in `verify_run`.
    """
    began, record = time.perf_counter(), read_record(directory) or {}
    manifest, config = read_json(directory, "manifest.json"), _config_of(directory, overrides)
    entries = groups_of_run(directory)
    models = [load_model(path) for _, path in entries]
    source = source_by_groups(config)
    if stored_as_zarr(source):
        source = _opened_as_fitted(config, models[0].labels)
    checks = [_check_of_input(source, manifest, overrides)]
    groups = groups_of_rows(config, source)
    n_groups = len(groups.names)
    if n_groups + (2 if n_groups > 1 else 1) != len(models) or any(len(m.mean) != source.shape[1] for m in models):
        raise DataError(
            f"{source.description} has {n_groups} groups of rows of {source.shape[1]} features, and the run has another number: "
            "these are other data; run again"
        )
    parameters = with_columns(fit_of(config).parameters, source)
    if not isinstance(parameters, Parameters):
        raise ModelError(f"{directory} is not a usable run of groups: its config.yaml is of another kind")
    plan = plan_fits_of_groups(source, parameters, groups)
    states = read_groups(source, parameters, groups, plan, progress, "verify")
    checks.append(check_of_chunks(source))
    with one_blas_thread():
        figures = {
            str(entry["label"]): entry
            | {"result": model.summary(), "certificate": model.certificate.to_dict(), "n_samples": model.n_samples}
            for (entry, _), model in zip(entries, models, strict=True)
        }
        checks += checks_of_figures(directory, record, {"models": figures})
        fitted = [*states.groups, states.pooled, *([] if states.between is None else [states.between])]
        for (entry, _), model, each in zip(entries, models, fitted, strict=True):
            if states.removing is not None:  # residuals about the mean of the group as the model has it
                each = states.removing.about_mean_of(model, each)
            found = checks_of_eigenpairs(model, Measured.of_covariance(each, model), parameters.scaling)
            checks.append(_worst(str(entry["label"]), found))
    return Verification(directory, tuple(checks), source.shape, states.count, time.perf_counter() - began)


def _worst(label: str, checks: Sequence[Check]) -> Check:
    """Return the check with the largest share of its allowed difference, under the name of a model."""
    worst = max(checks, key=lambda check: (check.holds is False, (check.difference or 0.0) / (check.allowed or 1.0)))
    return replace(worst, name=label, note=f"{worst.name}, which differs most: {worst.note}")


def _config_of(directory: Path, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration of a finished run; `ConfigError` if `overrides` change more than where and how data are read."""
    for text in overrides:
        if not text.startswith(_OVERRIDES):
            key = text.partition("=")[0]
            raise ConfigError(
                f"--set {key}: a run is verified as it was: only keys of source and resources may be changed"
            )
    return load_config(directory / "config.yaml", overrides)


def _model_of(directory: Path, config: RunConfig) -> Model:
    """Load the model of a run; raise `NotAvailableError` if its numbers cannot be measured in one pass."""
    model = load_saved(directory / "model.zarr")[0]
    forgetting = getattr(config.model, "forgetting", 1.0)
    for results, what, why in (
        (forgetting != 1.0, f"model.forgetting: {forgetting}", "weights of rows depend on their order"),
        (model.on_disk, "components on disk", "they do not fit in memory here"),
    ):
        if results:
            raise NotAvailableError(f"{directory}: streampca verify does not measure runs with {what}: {why}")
    return model


def _opened_as_fitted(config: RunConfig, labels: Labels | None) -> Source:
    """Open the source with the mask of the fit, and with the fingerprint beside it if none is named."""
    given: dict[str, Any] = {} if labels is None else {"mask": labels.mask}
    if labels is not None and config.source.mask is not None and not (config.source.array or config.source.variables):
        # The array that was not taken for the table, because it is the mask, is none any more.
        given["variables"] = [variable.name for variable in labels.variables if variable.name] or None
    source = source_of(config, **given)
    arrays = stored_as_zarr(source)
    if config.source.verify is not None or not arrays:
        return source
    places = [default_place(array.description, array.name) for array in arrays]
    return source_of(config, **(given | {"verify": "manifest"})) if all(map(Path.exists, places)) else source


def _check_of_input(source: Source, manifest: Mapping[str, Any], overrides: Sequence[str]) -> Check:
    """Compare the identity of the data without reading them; only shape and type if `overrides` name another path."""
    recorded, moved = manifest["source"], any(text.startswith("source.path=") for text in overrides)
    shape, before = f"{list(source.shape)} {source.dtype}", f"{recorded['shape']} {recorded['dtype']}"
    if moved or shape != before:
        return Check("input", before, shape, holds=shape == before, note="shape and data type")
    same = recorded["fingerprint"] == source.fingerprint
    if not same and not stored_as_zarr(source):
        note = "the size or time of the file differs: the numbers below decide"
        return Check("input", before, shape, note=note)
    return Check("input", recorded["fingerprint"], source.fingerprint, holds=same, note="metadata")


def _require_shape(source: Source, model: Model, manifest: Manifest) -> None:
    d, n, before = model.n_features, source.shape[0], manifest["source"]["shape"][0]
    if source.shape[1] != d or n != before:
        raise DataError(
            f"{source.description} has shape {source.shape}, and the run was made from ({before}, {d}): these are other data; run again, or "
            "streampca update if rows were appended"
        )


def _planned(
    source: Source,
    model: Model,
    config: RunConfig,
    rows: StoredRows,
    parameters: object,
) -> tuple[Plan, Joint]:
    """Return the plan of the pass, a transform with memory for the measurements, and the accumulators.

    These are `rows` and, for linear PCA, one for the covariance, with only some components if products with all do not fit.
    """
    allowed, d, k = allowed_bytes(config.resources.memory_bytes), source.shape[1], model.n_components
    threads, refusal = config.resources.n_threads or n_cores(), "blocks of rows do not fit in memory"
    for n_threads, columns in dict.fromkeys([(threads, k), (1, k), (1, max(1, k // 4)), (1, 1)]):
        joint = Joint((rows,))
        if model.linear is not None and isinstance(parameters, Parameters):
            joint = Joint((rows, accumulator_for(model.linear.before_rotation, parameters, source, columns)))
        state = joint.state_bytes(d)
        needed = n_threads * (joint.scratch_bytes(d, panel_rows(d), 8) + 3 * state) + 2 * state
        try:
            plan = plan_scores(source, model, max(1, allowed - needed), n_threads)
        except PlanError as error:
            refusal = str(error)
            continue
        if plan.axis == "samples":
            return replace(plan, budget=replace(plan.budget.plus(needed), allowed_bytes=allowed)), joint
    raise PlanError(f"verifying: {refusal}")


def stored_as_zarr(source: Source) -> list[ZarrSource]:
    """Return the zarr arrays that a source reads; empty if it reads anything else."""
    arrays = [each for each in source.stored_arrays if isinstance(each, ZarrSource)]
    return arrays if len(arrays) == len(source.stored_arrays) else []


def recorded_chunks(directory: Path, source: Source) -> StoreRecord | None:
    """Return the record of chunks of the run in `directory`, or None without one; the digests of read chunks are then recorded."""
    record = load_record(directory / "model.zarr")
    if record is not None:
        note_digests(source)
    return record


def check_of_chunks(source: Source, record: StoreRecord | None = None) -> Check:
    """Return the check of the stored chunks after all were read; a difference from a fingerprint would have stopped the pass."""
    digests = [array.digests for array in stored_as_zarr(source)]
    known = [each for each in digests if each is not None]
    if known and len(known) == len(digests):
        whole, beside = ", ".join(each.whole for each in known), ", ".join(str(each.place) for each in known)
        return Check("chunks", whole, whole, holds=True, note=f"every chunk is as in {beside}")
    arrays = arrays_of(source)
    if record is None or len(arrays) != len(record.arrays):
        return Check("chunks", note="there is no fingerprint: streampca fingerprint makes one")
    forms = [(array.layout.shape, array.deciding_metadata()) for array in arrays]
    if forms != [(each.shape, each.metadata) for each in record.arrays]:
        return Check("chunks", note="the metadata of the store differ from those that the run read")
    n_chunks = n_read = 0
    changed = list[str]()
    for array, each in zip(arrays, record.arrays, strict=True):
        read = array.note_digests()
        noted = read.any(axis=-1)
        n_chunks, n_read = n_chunks + noted.size, n_read + int(noted.sum())
        changed += keys_where(array, noted & (read != each.digests).any(axis=-1))
    if changed:
        more = f" and {len(changed) - _MOST_NAMED:,} more" if len(changed) > _MOST_NAMED else ""
        note = f"{len(changed):,} of {n_read:,} differ from those that the run read: {', '.join(changed[:_MOST_NAMED])}{more}"
        return Check("chunks", holds=False, note=note)
    if not n_read:
        return Check("chunks", note="none was read whole here: with digests by streampca fingerprint all are compared")
    return Check("chunks", holds=True, note=f"{n_read:,} of {n_chunks:,} have the bytes that the run read")
