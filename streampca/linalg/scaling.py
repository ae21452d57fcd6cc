"""Scaling of features: each by its standard deviation or by one that its mean tells, or all of a variable by the root of its variance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from streampca.errors import DataError
from streampca.typing import FloatArray

Scaling: TypeAlias = bool | str | tuple[int, ...]
"""False: none; True: each feature by its standard deviation; a name of `EXPECTED`: by the standard deviation that its mean tells;
numbers 0 = e₀ < e₁ < … = n_features: the features from eᵢ to eᵢ₊₁ are a variable, and are divided by the square root of the sum of
their variances."""

EXPECTED: Mapping[str, tuple[Callable[[FloatArray], FloatArray], str]] = {
    "poisson": (lambda mean: mean, "counts: expected means above 0"),
    "patterson": (
        lambda mean: mean * (1 - mean / 2),
        "genotypes of diploids (0, 1 or 2 copies): expected means between 0 and 2",
    ),
}
"""Variances that are expected of features with given means, and of what data: Poisson's law; 2 p (1 − p) with the frequency p of an
allele, half the mean (Patterson, Price and Reich 2006). A further scaling of this kind has an entry here, and its name in
`parameters.choices.ScaleName`."""


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


def deviations(variance: FloatArray, mean: FloatArray, scale: Scaling, first: int = 0) -> FloatArray:
    """Return the standard deviations by which features are scaled, ``(n_features,)``; 0 for constant ones.

    `first` is the number of the first feature in messages. `DataError` if a mean is not one of the data that a named scaling is for.
    """
    if not isinstance(scale, str):
        return np.sqrt(variance)
    expected, data = EXPECTED[scale]
    known = np.where(variance > 0, expected(mean), 0.0)
    bad = np.flatnonzero((variance > 0) & ~(known > 0))
    if len(bad):
        raise DataError(f"scale={scale!r} is for {data}; feature {first + bad[0]} has the mean {mean[bad[0]]:.6g}")
    return np.sqrt(known)


def divisors(variance: FloatArray, mean: FloatArray, scale: Scaling) -> FloatArray | None:
    """Return what features with these variances and means are divided by, ``(n_features,)``, 1 where that would be 0; None for 1."""
    if scale is False:
        return None
    deviation = deviations(variance, mean, scale)
    if isinstance(scale, tuple):
        deviation = np.repeat(root_sums(deviation, scale), np.diff(scale))
    return np.where(deviation > 0, deviation, 1.0)


def feature_weights(variance: FloatArray, mean: FloatArray, *, scale: Scaling) -> FloatArray:
    """Return the factors of the features, ``(n_features,)``: without `scale` 1 for all, else 1 / divisor and 0 for constant ones."""
    if scale is False:
        return np.ones_like(variance)
    deviation = deviations(variance, mean, scale)
    if not isinstance(scale, tuple):
        return reciprocals(deviation)
    weights = np.repeat(reciprocals(root_sums(deviation, scale)), np.diff(scale))
    return np.where(variance > 0, weights, 0.0)
