"""Scores of a model as one product of centred rows, and what rounding it to float32 costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from streampca.errors import NotAvailableError
from streampca.export.formats import Target, normalization_of
from streampca.models.pca import PCAModel
from streampca.planning.budget import MemoryBudget, MemoryNeed
from streampca.planning.memory import ALLOWANCE_BYTES, allowed_bytes
from streampca.random import generator
from streampca.sources.arrays import ArraySource
from streampca.sources.cells.normalization import LogarithmOfCounts
from streampca.sources.steps import SteppedSource
from streampca.system.process import process_bytes
from streampca.typing import Array, DType, FloatArray

_MEASURED_ROWS = 256
_MEASURED_VALUES = 2**21
"""Most rows, and values of them, with which the rounding error is measured."""
_LARGEST_MEAN = 1e30
_BYTES_PER_LETTER = 8
"""Memory of the copies of names of features while they are written, for the letters of the longest: numpy takes 4 for each."""


@dataclass(frozen=True)
class Projection:
    """Scores are (rows − centre) axesᵀ + offset."""

    axes: Array
    """Weights of the scores times the factors of features, ``(k, n_features)``."""
    centre: Array
    """What is subtracted from rows, ``(n_features,)``."""
    offset: Array
    """What is added to scores, ``(k,)``."""


def projection_of(model: PCAModel, dtype: DType, *, centred: bool) -> Projection:
    """Return the projection of `model` in `dtype`; rows are centred before the product, or their scores after it.

    The offset is that of the axes as they are rounded to `dtype`, so that only centred values meet their rounding errors.
    """
    k, d = model.components.shape
    axes, offset = np.empty((k, d), dtype), np.zeros(k)
    centre = model.mean.astype(dtype) if centred else np.zeros(d, dtype)
    for features, slab in model.encoder():
        weights = model.weights_of(features)
        axes[:, features] = slab if weights is None else slab * weights
        offset -= axes[:, features].astype(np.float64) @ (model.mean[features] - centre[features])
    return Projection(axes, centre, offset.astype(dtype))


def inverse_factors(model: PCAModel) -> FloatArray:
    """Return the factors of features of reconstructed rows before the mean is added, 0 for constant ones, ``(n_features,)``."""
    factors = model.inverse_weights_of(slice(0, len(model.mean)))
    return np.ones(len(model.mean)) if factors is None else factors


def require_range(model: PCAModel, target: Target, cure: str) -> None:
    """Raise `NotAvailableError` if float32 cannot hold the means, or the factors of features and components."""
    narrow = np.dtype(np.float32)
    if model.product_dtype(narrow) != narrow or np.abs(model.mean).max() > _LARGEST_MEAN:
        raise NotAvailableError(
            f"{target} in float32 cannot express this model: its means, scales or variances leave the range of float32; {cure}"
        )


def require_memory(
    model: PCAModel, memory: int | str | None, bytes_per_value: int, names: Sequence[str] | None = None
) -> None:
    """Raise `PlanError` if copies of the components and of the `names` of features do not fit in `memory`, the ceiling of the process."""
    k, d = model.components.shape
    longest = max(map(len, names or ()), default=0)
    needs = [
        MemoryNeed("process", process_bytes() + ALLOWANCE_BYTES),
        MemoryNeed("components", (bytes_per_value * k + _BYTES_PER_LETTER * longest) * d),
        MemoryNeed("scores", 4 * 8 * _n_measured(d) * (d + k)),
    ]
    budget = MemoryBudget.of(needs, allowed_bytes(memory))
    if not budget.fits:
        raise budget.refusal("fewer components, or ", subject="the exported model: ")


def measured_error(model: PCAModel, scores_of: Callable[[Array], Array], dtype: DType) -> float:
    """Return max |ŝ − s| / max |s| of the scores ŝ that `scores_of` gives and those s of the model in float64.

    For up to 256 rows in `dtype` drawn from the probabilistic model (Tipping & Bishop 1999), the same at every call. Where
    counts are normalised while they are read, the rows are counts that become such rows.
    """
    rows, normalization = _drawn(model), normalization_of(model)
    if normalization is not None:
        np.maximum(rows, 0, out=rows)
        of_logarithms = any(isinstance(step, LogarithmOfCounts) for step in normalization.asked)
        rows = (np.expm1(rows) if of_logarithms else rows).astype(dtype)
        counts = ArraySource(rows.astype(np.float64))
        expected = model.encode(SteppedSource(counts, normalization.steps(counts.dtype)).read(0, len(rows))[0])
    else:
        rows = rows.astype(dtype)
        expected = model.encode(rows.astype(np.float64))
    largest = np.abs(expected).max(initial=0.0)
    difference = np.abs(scores_of(rows) - expected).max(initial=0.0)
    return float(difference / largest) if largest > 0 else float(difference)


def _n_measured(n_features: int) -> int:
    return max(1, min(_MEASURED_ROWS, _MEASURED_VALUES // n_features))


def _drawn(model: PCAModel) -> FloatArray:
    """Return rows of the probabilistic model, in float64."""
    k, d = model.components.shape
    random, n = generator(0, "export"), _n_measured(d)
    scores = random.standard_normal((n, k)) * (1.0 if model.whiten else np.sqrt(model.explained_variance))
    noise = random.standard_normal((n, d)) * (np.sqrt(model.noise_of_features) * inverse_factors(model))
    rows: FloatArray = model.decode(scores) + noise
    return rows
