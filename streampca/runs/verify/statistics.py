"""Statistics of a run, measured again by the accumulators and functions that the fit takes them from."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from streampca.accumulators import ByGroup, GroupStates
from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.wrappers import Joint
from streampca.errors import ModelError
from streampca.linalg.cross_validation import best_count
from streampca.linalg.scaling import Scaling
from streampca.models.pca import Model, PCAModel
from streampca.models.sampling_errors import SamplingErrors
from streampca.models.score_groups import ScoreGroups
from streampca.parameters import Parameters
from streampca.planning.covariance import grouped_accumulator
from streampca.planning.covariance_accumulators import general_form
from streampca.runs.config import RunConfig
from streampca.runs.manifest import Manifest
from streampca.runs.quality import quality_figures, quality_from
from streampca.runs.verify.checks import Check, compared, shown
from streampca.solvers.covariance_model import prediction_errors_of
from streampca.solvers.quality import STATISTICS, QualityFound, with_statistics
from streampca.solvers.sampling_figures import errors_of
from streampca.solvers.sampling_groups import errors_of_groups
from streampca.sources import Source
from streampca.typing import Json

Measured = tuple[AnyAccumulator, Callable[[Any], list[Check]]]
"""An accumulator of the rows, and what makes the checks of its state."""
_ALLOWED = 1e-3
"""Sampling and prediction errors are compared to three digits: where eigenvalues nearly coincide, rounding turns the components."""
_LEAST_GAP = 1e-3
"""Angles are compared where eigenvalues are farther apart, relative to the first: they grow with the inverse of the gap."""
_RELATIVE, _ABSOLUTE = 1e-6, 1e-8
"""Differences of figures of quality that blocks of other sizes make: sums are rounded in another order."""


def statistics_of(
    model: Model, parameters: object, rows: Source, source: Source, manifest: Manifest, directory: Path
) -> list[Measured]:
    """Return the accumulators of the statistics that the run in `directory` has: prediction errors, sampling errors and quality.

    They accumulate `rows`: those of `source`, or what is left where the model removes a part of them, of which quality says nothing.
    `ModelError` if the record of the rows that were examined for quality is damaged.
    """
    statistics: list[Measured] = []
    errors, scaling = model.sampling_errors, getattr(parameters, "scaling", False)
    pca = model.linear
    if pca is not None and isinstance(parameters, Parameters):
        if pca.prediction_errors is not None:
            left_out = grouped_accumulator(parameters, rows)
            statistics.append((left_out, partial(_check_of_prediction, pca, left_out)))
        if errors is not None and errors.method == "groups":
            by_group = grouped_accumulator(parameters, rows, parameters.sampling_errors)
            statistics.append((by_group, partial(_checks_by_group, pca, by_group, scaling)))
    if errors is not None and errors.method != "groups":
        scores = ScoreGroups(model, rows.shape[0], errors.n_blocks)
        statistics.append((scores, lambda state: _checks_of_errors(model, errors_of(model, state, "reading", scaling))))
    recorded = manifest.get("quality")
    if recorded is not None and rows is source:
        try:
            quality = quality_from(recorded["examined"], source)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ModelError(f"manifest.json: quality.examined is damaged ({type(error).__name__}: {error})") from error
        place = directory / "scores.zarr"
        written = place if (place / "scores").is_dir() else None

        examining = Joint(with_statistics(quality))
        statistics.append((examining, partial(_checks_of_quality, examining, recorded, source, model, written)))
    return statistics


def checks_of_unmeasured(config: RunConfig, rows: Source, source: Source, manifest: Manifest) -> list[Check]:
    """Return rows that say which figures of quality are not measured again, and why; none where all are, or none were asked for."""
    if manifest.get("quality") is None:
        why = "the run has no figures: its fit did not read all rows"
        if manifest.get("updates"):
            why = "the run has no figures: an update reads new rows alone; run again in full for them"
    elif rows is not source:
        why = "figures of the rows before a part of them was removed, which are not read here"
    else:
        return []
    names = ("quality", *(_label(kind.name) for kind in STATISTICS))
    return [Check(name, note=why) for name in names] if config.quality else []


def _checks_of_quality(
    examining: Joint,
    recorded: Json,
    source: Source,
    model: Model,
    written: Path | None,
    states: tuple[Any, ...],
) -> list[Check]:
    """Compare the figures of the quality of the data that the run has; one of an earlier version has fewer."""
    figures = quality_figures(QualityFound(examining.parts, states), source, model, written)
    del figures["examined"]
    return [
        _check_of_quality(name, recorded[name], measured)
        if name in recorded
        else Check(_label(name), note="the run has no such figures: an earlier version made it")
        for name, measured in figures.items()
    ]


def _groups(accumulator: ByGroup, state: GroupStates) -> list[Any]:
    """Return the covariances of the groups as the fit has them."""
    return [general_form(accumulator.inner, group)[1] for group in state.groups]


def _check_of_prediction(model: PCAModel, accumulator: ByGroup, state: GroupStates) -> list[Check]:
    """Compare the errors of predicting values that were left out."""
    recorded, factors = model.prediction_errors, np.ones(len(model.mean)) if model.weights is None else model.weights
    assert recorded is not None  # noqa: S101 they are measured where the model has them
    grid = accumulator.grid(len(model.mean))
    measured = prediction_errors_of(_groups(accumulator, state), grid, factors, center=model.center)
    note = f"of {{}} component(s), the worst, relative to that of none; the least is that of {best_count(recorded)}"
    return [compared("prediction errors", recorded, measured, _ALLOWED, note, scale=recorded[0], first=0)]


def _checks_by_group(model: PCAModel, accumulator: ByGroup, scaling: Scaling, state: GroupStates) -> list[Check]:
    """Compare the sampling errors that follow from the covariance of each group."""
    grid = accumulator.grid(len(model.mean))
    return _checks_of_errors(model, errors_of_groups(model, grid, _groups(accumulator, state), scaling))


def _checks_of_errors(model: Model, measured: SamplingErrors) -> list[Check]:
    """Compare sampling errors; figures are those of the component that differs most.

    Components without variance are left out, and so are, for the exact method of kernel PCA, angles and shares, for which the fit knew
    more than scores tell.
    """
    recorded = model.sampling_errors
    assert recorded is not None  # noqa: S101 they are measured where the model has them
    values = recorded.estimates
    gaps = np.minimum(np.abs(np.diff(values, prepend=np.inf)), np.abs(np.diff(values, append=np.inf)))
    counts = values > 1e-6 * values[0]
    names = ["eigenvalues", "north"] + ([] if recorded.method == "groups" else ["effective_n_samples"])
    names += [] if model.linear is None and recorded.method == "known scores" else ["shares", "angles"]
    checks = []
    for name in names:
        before, after = getattr(recorded, name), getattr(measured, name)
        chosen = np.flatnonzero(counts & ((name != "angles") | (gaps > _LEAST_GAP * values[0])))
        if len(chosen):
            apart = np.zeros(len(before))
            apart[chosen] = np.abs(before - after)[chosen]
            scale, note = float(before[chosen].max()), "component {}, the worst, relative to the largest"
            checks.append(compared(f"sampling errors: {name}", before, after, _ALLOWED, note, scale=scale, apart=apart))
    return checks


def _label(name: str) -> str:
    """Return the name of the row of a group of figures."""
    return f"quality {name.replace('_', ' ')}"


def _check_of_quality(name: str, recorded: object, measured: object) -> Check:
    """Compare one group of figures of the quality of the data; the first that differs is shown."""
    label = _label(name)
    figures = _flat(recorded), _flat(measured)
    for where in figures[0] | figures[1]:
        before, now = (each.get(where, "none") for each in figures)
        floats = type(now) is float and isinstance(before, int | float)
        if not (math.isclose(before, now, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE) if floats else before == now):
            return Check(label, shown(before), shown(now), holds=False, note=where.lstrip("."))
    return Check(label, holds=True, note="all figures")


def _flat(value: Any, where: str = "") -> dict[str, Any]:
    """Return the numbers and texts in nested lists and objects by where they are."""
    if not isinstance(value, dict | list) or not value:
        return {where: value}
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    return {place: each for key, entry in entries for place, each in _flat(entry, f"{where}.{key}").items()}
