"""Scaling of features: each by its own standard deviation, or all of a variable by the root of the variable's variance."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from streampca.typing import FloatArray

Scaling: TypeAlias = bool | tuple[int, ...]
"""False: none; True: each feature by its standard deviation; numbers 0 = e₀ < e₁ < … = n_features: the features from eᵢ to
eᵢ₊₁ are a variable, and are divided by the square root of the sum of their variances."""


def reciprocals(values: FloatArray) -> FloatArray:
    """Return 1 / x for each x of `values` above 0, and 0 for the others."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)


def root_sums(deviation: FloatArray, edges: tuple[int, ...]) -> FloatArray:
    """Return the root of the sum of squares of each variable's standard deviations, ``(n_variables,)``; nothing overflows."""
    peaks = np.maximum.reduceat(deviation, edges[:-1])
    known = np.where(peaks > 0, peaks, 1.0)
    shares = np.add.reduceat((deviation / np.repeat(known, np.diff(edges))) ** 2, edges[:-1])
    roots: FloatArray = peaks * np.sqrt(shares)
    return roots


def divisors(variance: FloatArray, scale: Scaling) -> FloatArray | None:
    """Return what features with these variances are divided by, ``(n_features,)``, 1 where that would be 0; None for 1."""
    if scale is False:
        return None
    deviation = np.sqrt(variance)
    if scale is not True:
        deviation = np.repeat(root_sums(deviation, scale), np.diff(scale))
    return np.where(deviation > 0, deviation, 1.0)


def feature_weights(variance: FloatArray, *, scale: Scaling) -> FloatArray:
    """Return the factors of the features, ``(n_features,)``: without `scale` 1 for all, else 1 / divisor and 0 for constant ones."""
    if scale is False:
        return np.ones_like(variance)
    if scale is True:
        return reciprocals(np.sqrt(variance))
    weights = np.repeat(reciprocals(root_sums(np.sqrt(variance), scale)), np.diff(scale))
    return np.where(variance > 0, weights, 0.0)
