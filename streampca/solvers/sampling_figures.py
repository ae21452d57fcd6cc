"""Sampling errors of a model, from the products of the scores of groups of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.accumulators.score_groups import GroupMoments
from streampca.execution.score_groups import score_unit
from streampca.linalg.scaling import Scaling
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.sampling_errors import Method, Population, SamplingErrors, sampling_errors
from streampca.typing import FloatArray


def errors_of(
    model: PCAModel | KernelModel,
    moments: GroupMoments,
    method: Method,
    scaling: Scaling = False,
    outside: FloatArray | None = None,
) -> SamplingErrors:
    """Return the sampling errors of `model` from `moments` in units of `score_unit`.

    Parameters
    ----------
    model : PCAModel or KernelModel
        The model.
    moments : GroupMoments
        Sums over groups of rows.
    method : str
        Where they came from.
    scaling : Scaling
        How features were scaled.
    outside : array, shape (k,), or None
        Mean squared turns out of the space of the components, where they are known.
    """
    moments = unweighted(model, moments, scaling)
    unit = score_unit(model) ** 2
    errors = sampling_errors(moments, replace(population_of(model, unit, scaling), outside=outside), method)
    return replace(
        errors,
        estimates=model.eigenvalues if isinstance(model, KernelModel) else model.explained_variance,
        eigenvalues=errors.eigenvalues * unit,
        north=errors.north * unit,
    )


def unweighted(model: PCAModel | KernelModel, moments: GroupMoments, scaling: Scaling) -> GroupMoments:
    """Return `moments` with the squares of features without their weights: those that scales follow from have none."""
    weight = None if isinstance(model, KernelModel) or scaling is False else model.feature_weight
    if weight is None:
        return moments
    factor = np.divide(1.0, weight, out=np.zeros(len(weight)), where=weight > 0)
    return replace(moments, features=moments.features * factor)


def population_of(model: PCAModel | KernelModel, unit: float, scaling: Scaling) -> Population:
    """Return what sampling errors need of `model`, with variances divided by `unit`."""
    n, k = model.n_samples, model.n_components
    if isinstance(model, KernelModel):
        outside = n - int(model.center) - k
        return Population(model.eigenvalues / unit, 0, model.center, model.total / unit / n, max(0, outside), float(n))
    varying = len(model.mean) - len(model.constant_features)
    return Population(
        eigenvalues=model.explained_variance / unit,
        ddof=model.ddof,
        center=model.center,
        total=model.total_variance / unit,
        n_outside=max(0, min(n - model.n_means, varying) - k),
        others=None if model.eigenvalues is None else model.eigenvalues[k:] / unit,
        moments=model.residual_moments,
        axes=np.zeros((0, 0)) if scaling is False else np.asarray(model.components),
        scaling=scaling,
        freedom=1.0 if model.removal is None else (n - model.n_means) / (n - 1),
    )
