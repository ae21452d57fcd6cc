"""Verification of a finished run: its numbers are measured again in one more pass over the data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.joint import Joint
from streampca.errors import ConfigError, DataError, ModelError, NotAvailableError, PlanError
from streampca.execution.drive import accumulate
from streampca.execution.progress import ProgressCallback
from streampca.labels import Labels
from streampca.linalg.scaling import Scaling, divisors
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.persistence.models import is_kernel_model, load_kernel_model, load_model
from streampca.models.removal import residuals_of
from streampca.models.stored_components import StoredComponents
from streampca.parameters import Parameters
from streampca.planning.columns import with_columns
from streampca.planning.memory import allowed_bytes
from streampca.planning.plan import Plan
from streampca.planning.scores import plan_scores
from streampca.runs.checks import Check, Verification, close
from streampca.runs.chunk_checks import check_of_chunks, recorded_chunks, stored_as_zarr
from streampca.runs.config import RunConfig, load_config
from streampca.runs.diagnostics import as_json, expected_diagnostics
from streampca.runs.eigenvalue_checks import all_eigenvalues, covariances, edge_of_noise, missing_values, orthonormality
from streampca.runs.from_config import fit_of, source_of
from streampca.runs.further_measurements import Further, further_measurements
from streampca.runs.manifest import Manifest, read_manifest
from streampca.runs.measuring import KernelMeasured, KernelMeasuredState, Measured, MeasuredState, panel_rows
from streampca.runs.quality_checks import quality_measurements
from streampca.runs.recorded import figures
from streampca.runs.stored_results import (
    diagnostics_measured,
    stored_diagnostics,
    stored_scores,
    unusual_rows_checked,
)
from streampca.sources import Source
from streampca.sources.zarr.digests import default_place
from streampca.storage.directories import read_record
from streampca.system.blas_threads import one_blas_thread
from streampca.system.process import n_cores
from streampca.typing import FloatArray, Json

_SLACK = 4.0
"""Factor between the rounding in a certificate and the allowed difference: both sides are rounded."""
_OVERRIDES = ("source.", "resources.")


def verify_run(
    directory: Path, *, overrides: Sequence[str] = (), progress: ProgressCallback | None = None
) -> Verification:
    """Read the data of a finished run once more and measure its numbers again.

    Parameters
    ----------
    directory : Path
        The run.
    overrides : sequence of "key.sub=value"
        Changes of ``source`` and ``resources``, where the data have moved or the machine is another.
    progress : callable, optional
        Called with a `Progress` as blocks finish.

    Raises
    ------
    ModelError
        If it is not a finished run, or its model is damaged.
    DataError
        If data are missing or damaged; what differs raises nothing (see `Verification.require`).
    NotAvailableError
        For runs with forgetting, or with components on disk.
    """
    began, record = time.perf_counter(), read_record(directory)
    if record is None or record.get("format") != "streampca-run":
        raise ModelError(f"{directory} is not a finished run: expected a directory that streampca run has written")
    manifest, config = read_manifest(directory), config_of(directory, overrides)
    model = _model_of(directory, config)
    source = opened_as_fitted(config, model.labels)
    checks = [check_of_input(source, manifest, moved=moved_by(overrides))]
    _require_shape(source, model, manifest)
    rows = residuals_of(source, model)
    scores, scores_check = stored_scores(directory, config, model, source)
    diagnostics, diagnostics_checks = stored_diagnostics(directory, config, source)
    parameters = with_columns(fit_of(config).parameters, source)
    plan = _planned(rows, model, config, further_measurements(model, parameters, rows))
    weights = getattr(parameters, "sample_weight", None)
    measured: AnyAccumulator = (
        KernelMeasured(model, scores) if isinstance(model, KernelModel) else Measured(model, scores, diagnostics)
    )
    further = further_measurements(model, parameters, rows)
    further += quality_measurements(source, manifest, model, directory)
    joint: AnyAccumulator = Joint((measured, *(accumulator for accumulator, _ in further)))
    chunks = recorded_chunks(directory, source)
    with one_blas_thread():
        (state, *others), count = accumulate(rows, joint, plan, weights=weights, progress=progress, phase="verify")
    checks.append(check_of_chunks(source, chunks))
    summary = as_json(expected_diagnostics(config, directory, model, source.labels)) if diagnostics else None
    checks += figures(directory, record, manifest, model, summary)
    if isinstance(model, KernelModel):
        checks += _of_kernel(model, state)
    elif isinstance(parameters, Parameters):
        checks += _of_model(model, state, parameters.scaling)
    checks.append(scores_check or _scores(model, source, state, weights))
    checks += [check for (_, checked), each in zip(further, others, strict=True) for check in checked(each)]
    checks += diagnostics_checks
    if diagnostics and summary is not None and isinstance(state, MeasuredState):
        checks += diagnostics_measured(state)
        checks += unusual_rows_checked(directory, config, source, summary)
    return Verification(directory, tuple(checks), source.shape, count, time.perf_counter() - began)


def config_of(directory: Path, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration of a finished run; `ConfigError` if `overrides` change more than where and how it is read."""
    for text in overrides:
        if not text.startswith(_OVERRIDES):
            key = text.partition("=")[0]
            raise ConfigError(
                f"--set {key}: a run is verified as it was: only keys of source and resources may be changed"
            )
    return load_config(directory / "config.yaml", overrides)


def _model_of(directory: Path, config: RunConfig) -> PCAModel | KernelModel:
    """Load the model of a run; raise `NotAvailableError` if its numbers cannot be measured in one pass."""
    if is_kernel_model(directory / "model.zarr"):
        return load_kernel_model(directory / "model.zarr")
    model = load_model(directory / "model.zarr")
    forgetting = getattr(config.model, "forgetting", 1.0)
    for results, what, why in (
        (forgetting != 1.0, f"model.forgetting: {forgetting}", "weights of rows depend on their order"),
        (isinstance(model.components, StoredComponents), "components on disk", "they do not fit in memory here"),
    ):
        if results:
            raise NotAvailableError(f"{directory}: streampca verify does not measure runs with {what}: {why}")
    return model


def opened_as_fitted(config: RunConfig, labels: Labels | None) -> Source:
    """Open the source with the mask of the fit, and with the fingerprint that lies beside it, where none is named."""
    mask = None if labels is None else labels.mask
    source = source_of(config, mask=mask)
    arrays = stored_as_zarr(source)
    if config.source.verify is not None or not arrays:
        return source
    places = [default_place(array.description, array.name) for array in arrays]
    return source_of(config, mask=mask, verify="manifest") if all(map(Path.exists, places)) else source


def _planned(source: Source, model: PCAModel | KernelModel, config: RunConfig, further: Further) -> Plan:
    """Return the plan of the pass: that of a transform, with memory for the measurements."""
    allowed = allowed_bytes(config.resources.memory_bytes)
    threads = n_cores() if config.resources.threads == "auto" else int(config.resources.threads)
    d, refusal = source.shape[1], PlanError("")
    scratch = 0
    if isinstance(model, PCAModel):
        measured = Measured(model)
        scratch = measured.scratch_bytes(d, panel_rows(d), 8) + 3 * measured.state_bytes(d)
    for accumulator, _ in further:
        scratch += accumulator.scratch_bytes(d, panel_rows(d), 8) + 3 * accumulator.state_bytes(d)
    for n_threads in sorted({threads, 1}, reverse=True):
        try:
            plan = plan_scores(source, model, max(1, allowed - n_threads * scratch), n_threads)
        except PlanError as error:
            refusal = error
            continue
        if plan.axis == "samples":
            return replace(plan, budget=plan.budget.plus(n_threads * scratch, allowed))
    raise PlanError(f"verifying: {refusal}" if str(refusal) else "verifying: blocks of rows do not fit in the memory")


def moved_by(overrides: Sequence[str]) -> bool:
    """Tell whether `overrides` name another place of the data."""
    return any(text.startswith("source.path=") for text in overrides)


def check_of_input(source: Source, manifest: Mapping[str, Any], *, moved: bool) -> Check:
    """Compare the identity of the data without reading it; only shape and type if the data were moved."""
    recorded = manifest["source"]
    shape, before = f"{list(source.shape)} {source.dtype}", f"{recorded['shape']} {recorded['dtype']}"
    if moved or shape != before:
        return Check("input", before, shape, holds=shape == before, note="shape and data type")
    same = recorded["fingerprint"] == source.fingerprint
    if not same and not stored_as_zarr(source):
        return Check(
            "input", before, shape, holds=None, note="size or time of the file are others: the numbers below decide"
        )
    return Check("input", recorded["fingerprint"], source.fingerprint, holds=same, note="metadata")


def _require_shape(source: Source, model: PCAModel | KernelModel, manifest: Manifest) -> None:
    d = model.n_features if isinstance(model, KernelModel) else len(model.mean)
    n, before = source.shape[0], manifest["source"]["shape"][0]
    if source.shape[1] != d or n != before:
        raise DataError(
            f"{source.description} has shape {source.shape}, and the run was made from ({before}, {d}): it is other data; run again, or "
            "streampca update if rows were appended"
        )


def _of_model(model: PCAModel, state: MeasuredState, scale: Scaling) -> list[Check]:
    """Return the checks of linear PCA, whose features were scaled as `scale` says; allowed differences follow from the rounding of the fit and of this pass."""
    certificate = model.certificate
    approximate = certificate.get("kind") == "approximate"
    precision = _precision(model) + _rounding_of_sums(model, state)
    allowed = _SLACK * precision + float(certificate.get("eigen_residual") or 0.0) * (not approximate)
    divisor = max(state.weight - model.ddof, np.finfo(float).tiny)
    factor = np.ones(len(model.mean)) if model.weights is None else model.weights
    state = _about_the_mean(model, state, factor)
    variances = state.squares / divisor
    total, values = float((variances * factor**2).sum()), np.diag(state.products) / divisor
    first = float(model.explained_variance[0])
    pairwise = model.missing == "pairwise" and state.n_missing > 0
    results = [
        close("samples", model.n_samples, state.n_samples, 1.0, 0.0, "rows that count"),
        *_centre(model, state, False if pairwise else scale, np.sqrt(np.maximum(variances, 0.0)), precision),
        *missing_values(model, state.n_missing),
        orthonormality(model),
    ]
    if pairwise:  # each covariance has a divisor of its own; `further_measurements` has them
        return results
    results += [
        close("total variance", model.total_variance, total, model.total_variance, allowed, "relative to itself"),
        _variances(model, values, approximate, first, allowed),
        _residual(certificate, state, approximate, allowed),
    ]
    if not approximate:
        results.append(covariances(model, state.products / divisor, allowed))
        results += edge_of_noise(model, variances * factor**2, allowed)
        results += all_eigenvalues(model, state.scatter / divisor, total, allowed)
    return results


def _precision(model: PCAModel) -> float:
    """Return the relative error of the eigenvalues that the solver assumed."""
    return model.rounding if "trusted_above" in model.certificate else 4e-7


def _rounding_of_sums(model: PCAModel, state: MeasuredState) -> float:
    """Return the relative rounding of sums of squares over all rows, in the fit and here: (p + n / p + d) eps.

    p rows are summed at once, the sums of n / p panels are added, and a row has d features (Higham 2002, section 4.2).
    """
    d = len(model.mean)
    rows = min(panel_rows(d), max(1, state.n_samples))
    return (rows + state.n_samples / rows + d) * float(np.finfo(np.float64).eps)


def _about_the_mean(model: PCAModel, state: MeasuredState, factor: FloatArray) -> MeasuredState:
    """Return `state` about the mean that was measured: that of the model is rounded, which counts where it is far."""
    if not model.center or not state.weight:
        return state
    centre = state.offset * factor
    projected = np.asarray(model.components) @ centre
    beyond = max(0.0, float(centre @ centre - projected @ projected)) / state.weight
    return replace(
        state,
        squares=state.squares - np.square(state.offset) / state.weight,
        products=state.products - np.outer(projected, projected) / state.weight,
        scatter=state.scatter - np.outer(centre, centre) / state.weight if len(state.scatter) else state.scatter,
        residual=max(0.0, state.residual - beyond),
    )


def _centre(
    model: PCAModel, state: MeasuredState, scale: Scaling, deviations: FloatArray, precision: float
) -> list[Check]:
    """Compare the mean, and the scale, feature by feature; figures are those of the worst."""
    if not model.center:
        return [Check("mean", note="the data were not centred")]
    eps = float(np.finfo(np.float64).eps)
    apart = np.maximum(np.abs(state.offset / max(state.weight, eps)) - 8 * eps * np.abs(model.mean), 0.0)
    relative = np.divide(apart, deviations, out=np.where(apart > 0, np.inf, 0.0), where=deviations > 0)
    worst, allowed = int(relative.argmax()), max(1e-10, 10 * precision)
    measured = model.mean[worst] + state.offset[worst] / max(state.weight, eps)
    note = f"of feature {worst}, the worst, in standard deviations"
    results = [close("mean", model.mean[worst], measured, 1.0, allowed, note, difference=relative[worst])]
    divided = divisors(np.where(deviations > 1e-12 * np.abs(model.mean), deviations, 0.0) ** 2, scale)
    if model.scale is not None and divided is not None:
        worst = int((np.abs(divided - model.scale) / model.scale).argmax())
        note = f"of feature {worst}, the worst"
        results.append(close("scale", model.scale[worst], divided[worst], model.scale[worst], _SLACK * precision, note))
    return results


def _variances(model: PCAModel, values: FloatArray, approximate: bool, first: float, allowed: float) -> Check:
    """Compare the variance of scores with the eigenvalues, which an approximation gives from below."""
    recorded, name = model.explained_variance, "variances of components"
    if model.certificate.get("eigen_solver") == "conversion":
        return Check(name, note="eigenvalues of the conversion are not variances of scores")
    apart = np.maximum(recorded - values, 0.0) if approximate else np.abs(values - recorded)
    worst = int(apart.argmax())
    note = f"of component {worst + 1}, the worst, relative to the first eigenvalue" + (
        "; an approximation may carry more than it says" if approximate else ""
    )
    return close(name, recorded[worst], values[worst], first, allowed, note, difference=float(apart[worst]))


def _residual(certificate: Json, state: MeasuredState, approximate: bool, allowed: float) -> Check:
    """Compare ‖X − XVᵀV‖² / ‖X‖² with its recorded value, or with the certified interval of an approximation."""
    carried = float(np.trace(state.products))
    whole = carried + state.residual
    recorded = float(certificate["relative_residual"])
    measured = state.residual / whole if whole > 0 else recorded  # rows that are all the same have none
    if not approximate:
        return close("relative residual", recorded, measured, 1.0, allowed, "of the sum of squares")
    low, high = certificate["relative_residual_interval"]
    outside = max(low - measured, measured - high, 0.0)
    note = f"outside of its interval, {low:.3g} to {high:.3g}"
    return close("relative residual", recorded, measured, 1.0, allowed, note, difference=outside)


def _scores(
    model: PCAModel | KernelModel,
    source: Source,
    state: MeasuredState | KernelMeasuredState,
    weights: FloatArray | None,
) -> Check:
    """Compare the stored scores with those measured; relative to the longest row, or the largest score of a kernel."""
    eps = float(np.finfo(model.score_dtype(source.dtype)).eps)
    errors = state.score_errors
    if isinstance(model, KernelModel):
        allowed, note = (1e-3 if eps > 1e-10 else 1e-7), "largest difference, relative to the largest score"
    else:
        allowed, note = 64 * np.sqrt(source.shape[1]) * eps, "largest difference, relative to the longest row"
        if model.whiten:
            finite = np.isfinite(model.deviations)
            errors = np.where(
                finite, errors * np.where(finite, model.deviations, 1.0), np.where(errors > 0, np.inf, 0.0)
            )
        if isinstance(state, MeasuredState):
            errors = np.maximum(errors - _known_scores(model, state, weights), 0.0)
    worst = float(errors.max(initial=0.0))
    return close("scores", 0.0, worst, state.longest, float(allowed), note, difference=worst)


def _known_scores(model: PCAModel, state: MeasuredState, weights: FloatArray | None) -> FloatArray | float:
    """Return by how much scores that came with the eigenvectors of the n × n matrix may differ from projections, ``(k,)``.

    For X Xᵀ u = λu + r with an error E of X Xᵀ, X (Xᵀu / σ) = σu + (r − Eu) / σ, and making the components orthonormal
    adds half of that (`streampca.execution.components.orthonormalising`); ‖E‖ ≤ precision σ₁². Below σ² = precision σ₁² components
    are completed, and their scores are of that size.
    """
    if model.source.get("solver") != "gram":
        return 0.0
    relative = _precision(model) + float(model.certificate.get("eigen_residual") or 0.0)
    first = float(model.explained_variance[0])
    root = np.sqrt(np.maximum(model.explained_variance, relative * first))
    lightest = 1.0 if weights is None else float(np.min(weights[weights > 0]))
    scale = _SLACK * 1.5 * np.sqrt(max(state.weight - model.ddof, 0.0) / lightest)
    excess: FloatArray = np.divide(scale * relative * first, root, out=np.zeros_like(root), where=root > 0)
    return excess


def _of_kernel(model: KernelModel, state: KernelMeasuredState) -> list[Check]:
    """Return the checks of kernel PCA, from its scores and landmarks."""
    results = [close("samples", model.n_samples, state.n_samples, 1.0, 0.0, "rows")]
    if model.landmark_indices is None:
        results.append(Check("landmarks", note="they were given as rows"))
    else:
        results.append(close("landmarks", len(model.landmarks), state.n_landmarks, 1.0, 0.0, "rows that are the same"))
    if model.method in ("nystrom", "exact"):
        apart, allowed = (
            np.abs(state.squares - model.eigenvalues),
            1e-6 if model.landmarks.dtype == np.float64 else 1e-3,
        )
        worst = int(apart.argmax())
        note = f"sum of squared scores of component {worst + 1}, the worst, relative to the first eigenvalue"
        first = float(model.eigenvalues[0])
        results.append(close("eigenvalues", model.eigenvalues[worst], state.squares[worst], first, allowed, note))
    else:
        results.append(Check("eigenvalues", note=f"those of {model.method} are not sums of squared scores"))
    return [*results, Check("trace", note="it needs the kernel values of every row with itself, and the centring")]
