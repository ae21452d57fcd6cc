"""Sampling errors of a model, from the products of the scores of groups of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.linalg.scaling import Scaling
from streampca.models.pca import Model
from streampca.models.sampling_errors import GroupMoments, Method, SamplingErrors, sampling_errors
from streampca.models.score_groups import score_unit
from streampca.typing import FloatArray


def errors_of(
    model: Model,
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
    errors = sampling_errors(moments, replace(model.population(unit, scaling), outside=outside), method)
    return replace(
        errors,
        estimates=model.spectrum,
        eigenvalues=errors.eigenvalues * unit,
        north=errors.north * unit,
    )


def unweighted(model: Model, moments: GroupMoments, scaling: Scaling) -> GroupMoments:
    """Return `moments` with the squares of features without their weights: those that scales follow from have none."""
    weight = None if model.linear is None or scaling is False else model.linear.feature_weight
    if weight is None:
        return moments
    factor = np.divide(1.0, weight, out=np.zeros(len(weight)), where=weight > 0)
    return replace(moments, features=moments.features * factor)
