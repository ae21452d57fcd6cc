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
    shape = (-1,) + (1,) * full.ndim
    inverse = (weights / weights.sum()).reshape(shape)  # 1 / h
    estimate = len(weights) * full - ((1 - inverse) * without).sum(axis=0)
    pseudo = (full - (1 - inverse) * without) / inverse
    variance: FloatArray = (np.square(pseudo - estimate) * inverse / (1 - inverse)).mean(axis=0)
    return variance
