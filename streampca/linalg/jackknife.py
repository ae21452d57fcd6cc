"""The delete-a-group jackknife for groups of unequal sizes."""

from __future__ import annotations

import numpy as np

from streampca.typing import FloatArray


def jackknife_variance(full: FloatArray, without: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the jackknife estimate of the variance of each of several statistics.

    With h_g = W / W_g, the pseudo-values are h_g θ − (h_g − 1) θ₍g₎, and the variance is the mean over the groups of
    their squared distances from the jackknife estimate, each divided by h_g − 1 (Busing, Meijer &
    van der Leeden 1999; of equal groups Efron & Tibshirani 1993, eq. 11.5).

    Parameters
    ----------
    full : array, shape (...)
        The statistics θ of all rows.
    without : array, shape (n_groups, ...)
        The statistics θ₍g₎ of all rows but those of a group.
    weights : array, shape (n_groups,)
        Sums W_g of the weights of the rows of the groups.
    """
    # A difference of sums would lose what is small.
    others = np.array([np.delete(weights, g).sum() for g in range(len(weights))])
    shape = (-1,) + (1,) * full.ndim
    gaps, roots = full - without, np.sqrt(others / weights).reshape(shape)  # √(h − 1)
    # Pseudo-values are θ + (h − 1) gap, and their mean of weights 1 / h is θ + Σ (1 − 1 / h) gap.
    shift = ((others / weights.sum()).reshape(shape) * gaps).sum(axis=0)
    with np.errstate(over="ignore"):  # a group without which nearly no weight is left says nothing: infinity
        variance: FloatArray = np.square(roots * gaps - shift / roots).mean(axis=0)
    return variance
