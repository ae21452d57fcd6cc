"""Verification of a finished run of groups: the covariances of all groups are accumulated again from the data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from streampca.errors import DataError, ModelError
from streampca.execution.progress import ProgressCallback
from streampca.models.pca import PCAModel
from streampca.models.persistence.models import load_model
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.planning.columns import with_columns
from streampca.runs.checks import Check, Verification, close
from streampca.runs.chunk_checks import check_of_chunks, stored_as_zarr
from streampca.runs.from_config import fit_of
from streampca.runs.group_labels import groups_of_rows, source_by_groups
from streampca.runs.groups import groups_of_run, similarities
from streampca.runs.manifest import read_json
from streampca.runs.verify import (
    check_of_input,
    config_of,
    moved_by,
    opened_as_fitted,
)
from streampca.solvers.covariance_model import operator_of
from streampca.solvers.groups import plan_fits_of_groups, read_groups
from streampca.storage.directories import read_record
from streampca.storage.figures import changed_figures
from streampca.system.blas_threads import one_blas_thread
from streampca.typing import Json

_SLACK = 16.0
"""Factor between the rounding of a fit and the allowed difference: both readings are rounded."""


def verify_groups(
    directory: Path, *, overrides: Sequence[str] = (), progress: ProgressCallback | None = None
) -> Verification:
    """Read the data of a run of groups once more and measure the numbers of all its models again.

    For each group, within and between groups: samples, mean, total variance, variances along the components, how far these are
    from eigenvectors, and their orthonormality. Parameters and errors as of `verify_run`.
    """
    began, record = time.perf_counter(), read_record(directory) or {}
    manifest, config = read_json(directory, "manifest.json"), config_of(directory, overrides)
    entries = groups_of_run(directory)
    models = [load_model(path) for _, path in entries]
    source = source_by_groups(config)
    if stored_as_zarr(source):
        source = opened_as_fitted(config, models[0].labels)
    checks = [check_of_input(source, manifest, moved=moved_by(overrides))]
    groups = groups_of_rows(config, source)
    n_models = len(groups.names) + (2 if len(groups.names) > 1 else 1)
    if n_models != len(models) or any(len(model.mean) != source.shape[1] for model in models):
        raise DataError(
            f"{source.description} has {len(groups.names)} groups of rows of {source.shape[1]} features, and the run another number: "
            "it is other data; run again"
        )
    parameters = with_columns(fit_of(config).parameters, source)
    if not isinstance(parameters, Parameters):
        raise ModelError(f"{directory} is not a usable run of groups: its config.yaml is of another kind")
    plan = plan_fits_of_groups(source, parameters, groups)
    states = read_groups(source, parameters, groups, plan, progress, "verify")
    checks.append(check_of_chunks(source))
    checks += _of_documents(directory, record, manifest, entries, models, len(groups.names))
    measured = [*states.groups, states.pooled, *([] if states.between is None else [states.between])]
    with one_blas_thread():
        for (entry, _), model, fitted in zip(entries, models, measured, strict=True):
            checks.append(_of_model(str(entry["label"]), model, fitted))
    return Verification(directory, tuple(checks), source.shape, states.count, time.perf_counter() - began)


def _of_documents(
    directory: Path,
    record: Json,
    manifest: Json,
    entries: list[tuple[Json, Path]],
    models: list[PCAModel],
    n_groups: int,
) -> list[Check]:
    """Return a check for each figure of the documents that differs from the commit or from the models, or one for all."""
    changed = {f"{document} {name}".strip() for document, name in changed_figures(directory, record.get("figures", {}))}
    for (entry, _), model in zip(entries, models, strict=True):
        recorded = (entry["result"], entry.get("certificate"), entry.get("n_samples"))
        if recorded != (model.summary(), model.certificate, model.n_samples):
            changed.add(f"manifest.json models.{entry['label']}")
    tables = similarities({str(path): model for (_, path), model in zip(entries, models, strict=True)}, n_groups)
    stated = manifest.get("similarity")
    for name, table in tables.items():
        values = np.asarray(stated.get(name) if isinstance(stated, dict) else None, dtype=object)
        if values.shape != (n_groups, n_groups) or not np.allclose(values.astype(np.float64), table, rtol=0, atol=1e-9):
            changed.add(f"manifest.json similarity.{name}")
    if not changed:
        return [
            Check(
                "manifest",
                holds=True,
                note="its figures, and those of the plan, are those of the models and of the commit",
            )
        ]
    return [
        Check(name, holds=False, note="is not what was committed, or follows from the models")
        for name in sorted(changed)
    ]


def _of_model(label: str, model: PCAModel, fitted: FittedState) -> Check:
    """Return the check of one model: its largest difference from the covariance that was accumulated again."""
    operator, vectors = operator_of(fitted), np.asarray(model.components)
    k = len(model.explained_variance)
    products = np.asarray(operator.multiply(np.ascontiguousarray(vectors.T)))
    total = float(operator.diagonal.sum())
    unit = max(total, float(model.explained_variance[0]), np.finfo(np.float64).tiny)
    deviations = np.sqrt(np.maximum(operator.variance, 0.0))
    apart = np.abs(operator.mean - model.mean) - 1e-12 * np.abs(model.mean)
    differences = {
        "samples": float(abs(model.n_samples - fitted.state.n_samples)),
        "mean": float((apart / np.where(deviations > 0, deviations, 1.0)).max()) if len(apart) else 0.0,
        "total variance": abs(total - model.total_variance) / unit,
        "variances": float(np.abs((vectors.T * products).sum(axis=0) - model.explained_variance).max()) / unit,
        "components": float(np.abs(products - vectors.T * model.explained_variance).max()) / unit,
        "orthonormality": float(np.abs(vectors @ vectors.T - np.eye(k)).max()),
    }
    worst = max(differences, key=lambda name: differences[name])
    allowed = max(1e-8, _SLACK * model.rounding + float(model.certificate.get("eigen_residual") or 0.0))
    note = f"{worst}: the largest difference, relative to the total variance, deviations, or 1"
    return close(label, 0.0, differences[worst], 1.0, allowed, note, difference=differences[worst])
