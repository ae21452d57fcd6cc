"""Charts of values along a coordinate: numbers or dates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streampca.runs.report.figures import ACCENT, GRID, inline, plain
from streampca.typing import Array, FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 1200
"""Longer series are drawn as means of consecutive values, within a band from the least to the greatest."""
_YEARS = np.datetime64("0001-01-01"), np.datetime64("9999-12-31")


def line(x: Array, y: FloatArray, labels: tuple[str, str], salt: str, *, zero: bool = True) -> str:
    """Return values against a coordinate, with gaps at NaN.

    Parameters
    ----------
    x
        Coordinate, ``(n,)``, of numbers or ``datetime64``.
    y
        Values, ``(n,)``.
    labels
        Names of the axes, with units.
    salt
        A name that no other chart of the page has.
    zero
        Whether zero is marked.
    """
    order = np.argsort(x, kind="stable")
    places, (low, middle, high) = _binned(x[order], y[order])
    dates = places.dtype.kind == "M"

    def draw(axes: Axes) -> None:
        axes.grid(axis="y")
        if zero:
            axes.axhline(0, color=GRID, linewidth=1.2)
        at = _date_axis(axes, places) if dates else places.astype(np.float64)
        if len(x) > MOST_POINTS:
            axes.fill_between(at, low, high, color=ACCENT, alpha=0.25, linewidth=0)
        few = len(at) <= 40
        axes.plot(at, middle, color=ACCENT, linewidth=1.3, marker="o" if few else "", markersize=3.2)
        axes.margins(x=0.01)
        if not dates:
            plain(axes.xaxis)
        plain(axes.yaxis)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])

    return inline(salt, draw, height=2.9)


def values_of_a_point(n: int) -> int:
    """Return how many consecutive values one point of a series of `n` values stands for."""
    return max(1, -(-n // MOST_POINTS))


def _binned(x: Array, y: FloatArray) -> tuple[Array, tuple[FloatArray, FloatArray, FloatArray]]:
    """Return the places, and least, mean and greatest values of runs of consecutive values."""
    width = values_of_a_point(len(x))
    if width == 1:
        return x, (y, y, y)
    starts = np.arange(0, len(x), width)
    known = np.isfinite(y)
    counts = np.add.reduceat(known.astype(np.float64), starts)
    sums = np.add.reduceat(np.where(known, y, 0.0), starts)
    low = np.minimum.reduceat(np.where(known, y, np.inf), starts)
    high = np.maximum.reduceat(np.where(known, y, -np.inf), starts)
    some = counts > 0
    mean = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=some)
    middles = x[np.minimum(starts + width // 2, len(x) - 1)]
    return middles, (np.where(some, low, np.nan), mean, np.where(some, high, np.nan))


def _date_axis(axes: Axes, places: Array) -> FloatArray:
    """Return dates as numbers for the horizontal axis, whose ticks are set to years, months, days or hours.

    Dates outside of the years 1 to 9999 are numbers of years.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    if len(places) and (places.min() < _YEARS[0] or places.max() > _YEARS[1]):
        plain(axes.xaxis)
        return 1970 + places.astype("datetime64[s]").astype(np.float64) / (365.2425 * 86400)
    locator = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    numbers: FloatArray = np.asarray(date2num(places), dtype=np.float64)  # type: ignore[no-untyped-call]
    return numbers
