"""Locally weighted quadratic regression on one variable (loess), with the same interpolation as the library dloess.

R's `loess`, `skmisc.loess` and with them Seurat and scanpy use that library: local fits at the corners of cells into which a k-d tree
divides the data, and cubic interpolation of their values and slopes between. Fitted values agree with it to rounding.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from streampca.errors import DataError
from streampca.typing import FloatArray

_MARGIN = 0.005  # of the range, by which the outermost cells are wider than the data
_CELL = 0.2  # share of the points of a local fit from which a cell is divided
_ROUNDING = 100 * np.finfo(np.float64).eps  # relative size of singular values that count as zero


def fitted_by_loess(x: FloatArray, y: FloatArray, span: float = 0.3) -> FloatArray:
    """Return the value that loess of degree 2 fits to each point.

    Parameters
    ----------
    x, y : array, shape (n,)
        The points, in any order; finite.
    span : float
        Share of the points in each local fit, whose weights are tricube of the distance.

    Returns
    -------
    array, shape (n,)
        Fitted values. Cost: n log n, and about 2 / (0.2 span) local fits of span n points.

    Raises
    ------
    DataError
        If a local fit has fewer than four points, or all of them at one place.

    References
    ----------
    Cleveland & Grosse (1991), Computational methods for local regression, sections 2 and 3.
    """
    n_local = min(len(x), math.floor(len(x) * span + 1e-5))
    if n_local < 4:
        raise DataError(f"loess of {len(x)} points with span={span:g}: {n_local} in a local fit: expected at least 4")
    order = np.argsort(x, kind="stable")
    ascending, values = x[order], y[order]
    places = _corners(ascending, math.floor(len(x) * (span * _CELL)))
    heights, slopes = np.array([_local_fit(ascending, values, place, n_local) for place in places]).T
    cell = np.clip(np.searchsorted(places, x, side="left"), 1, len(places) - 1)
    width = places[cell] - places[cell - 1]
    h = (x - places[cell - 1]) / width
    # Cubic Hermite interpolation of values and slopes.
    left = (1 - h) ** 2 * ((1 + 2 * h) * heights[cell - 1] + h * width * slopes[cell - 1])
    right = h**2 * ((3 - 2 * h) * heights[cell] + (h - 1) * width * slopes[cell])
    fitted: FloatArray = left + right
    return fitted


def _corners(x: FloatArray, most: int) -> FloatArray:
    """Return the corners of cells of at most `most` of the ascending points, divided at their medians, ascending."""
    margin = _MARGIN * max(x[-1] - x[0], 1e-10 * max(abs(x[0]), abs(x[-1])) + 1e-30)
    corners = [x[0] - margin, x[-1] + margin]
    cells = deque([(0, len(x) - 1, corners[0], corners[1])])
    while cells:
        first, last, low, high = cells.popleft()
        if last - first + 1 <= most:
            continue
        cut = _cut(x, first, last)
        if x[cut] in (low, high):
            continue
        corners.append(x[cut])
        cells += [(first, cut, low, x[cut]), (cut + 1, last, x[cut], high)]
    return np.unique(corners)


def _cut(x: FloatArray, first: int, last: int) -> int:
    """Return the last point of the left one of two halves: that nearest to the middle whose neighbour on the right is another value."""
    middle, step = (first + last) // 2, 0
    while first <= middle + step < last:
        if x[middle + step] != x[middle + step + 1]:
            return middle + step
        step = -step if step > 0 else 1 - step
    return middle


def _local_fit(x: FloatArray, y: FloatArray, place: float, n_local: int) -> tuple[float, float]:
    """Return value and slope at `place` of the parabola through the `n_local` nearest points, weighted by their distance."""
    distance = np.abs(x - place)
    radius = np.partition(distance, n_local - 1)[n_local - 1]
    near = distance < radius
    if not near.any():
        raise DataError(
            f"loess: {n_local} of {len(x)} points are at one place, {place:g}: expected others; a larger span has more"
        )
    weight = (1 - (distance[near] / radius) ** 3) ** 1.5
    powers = weight[:, None] * (x[near] - place)[:, None] ** np.arange(3)
    norms = np.sqrt((powers**2).sum(axis=0))
    norms[norms == 0] = 1.0
    coefficients = np.linalg.lstsq(powers / norms, weight * y[near], rcond=_ROUNDING)[0] / norms
    return float(coefficients[0]), float(coefficients[1])
