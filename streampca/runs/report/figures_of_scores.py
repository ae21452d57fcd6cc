"""Charts of the scores of samples: points or densities on two axes, and biplots with arrows of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streampca.runs.report.figures import ACCENT, CLASS_COLOURS, GRID, INK, MUTED, PAPER, WIDTH, inline, plain
from streampca.typing import FloatArray, IntArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LETTER, _LINE, _GAP = 0.078, 0.165, 0.06
"""Width of a letter, height of a line and distance of a name from the tip of its arrow, in inches."""
_LONG = 11
"""Longer names are broken into two lines."""
_MARGIN = 0.65
"""What ticks and titles of the axes of a biplot take of its width and of its height, in inches."""
_ROOM = np.array([WIDTH - _MARGIN, 3.8])
"""Width of the axes of a biplot, and their height at most, in inches."""
_LEAST_ROOM = 2.8
"""Height of the axes of a biplot at least, in inches."""


def plane(x: FloatArray, y: FloatArray, labels: tuple[str, str], salt: str, classes: IntArray | None = None) -> str:
    """Return the samples on two axes: points in the colours of their `classes`, or a density of hexagons when there are many.

    Without classes, ``(n_samples,)``, all points have one colour; samples of class -1 are grey.
    """

    def draw(axes: Axes) -> None:
        _draw_samples(axes, x, y, classes)
        for axis, values in ((axes.xaxis, x), (axes.yaxis, y)):
            plain(axis)
            if np.ptp(values) == 0:
                axis.set_ticks([float(values[0])] if len(values) else [])
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])

    return inline(salt, draw, height=3.9)


def _draw_samples(axes: Axes, x: FloatArray, y: FloatArray, classes: IntArray | None) -> None:
    axes.axhline(0, color=GRID, linewidth=1)
    axes.axvline(0, color=GRID, linewidth=1)
    if classes is not None:
        size = 2.6 if len(x) > 700 else 3.4 if len(x) > 250 else 4.6
        for number in np.unique(classes):
            here, colour = classes == number, MUTED if number < 0 else CLASS_COLOURS[number]
            alpha = 0.35 if number < 0 else 0.75
            axes.plot(x[here], y[here], "o", color=colour, markersize=size, alpha=alpha, markeredgewidth=0)
    elif len(x) > 700 and np.ptp(x) > 0 and np.ptp(y) > 0:
        hexagons = axes.hexbin(x, y, gridsize=(38, 22), mincnt=1, linewidths=0)
        counts = np.log1p(np.asarray(hexagons.get_array(), dtype=np.float64))
        order = np.argsort(counts, kind="stable")  # those of one colour are written together
        hexagons.set_offsets(np.asarray(hexagons.get_offsets())[order])
        counts = counts[order]
        colours = np.tile([4 / 255, 4 / 255, 4 / 255, 1.0], (len(counts), 1))
        colours[:, 3] = 0.2 + 0.8 * (counts / counts.max())  # in this order never above 1
        hexagons.set_array(None)
        hexagons.set_facecolor([tuple(colour) for colour in colours])
        hexagons.set_edgecolor("none")
    else:
        size = 3.4 if len(x) > 250 else 4.6 if len(x) > 40 else 6.5
        alpha = 0.5 if len(x) > 250 else 0.65
        axes.plot(x, y, "o", color=ACCENT, markersize=size, alpha=alpha, markeredgewidth=0)


def biplot(
    points: FloatArray,
    arrows: FloatArray,
    names: Sequence[str],
    labels: tuple[str, str],
    classes: IntArray | None = None,
) -> str:
    """Return samples on two axes of the same scale with an arrow from the origin for each feature.

    Parameters
    ----------
    points
        Standardised scores, shape ``(n_samples, 2)``.
    arrows
        Tips of the arrows, shape ``(n_arrows, 2)``.
    names
        Name of each arrow; names do not cover each other.
    labels
        Titles of the axes.
    classes
        As for `plane`.
    """
    texts = [_broken(name) for name in names]
    frame = _frame(points, arrows, texts)

    def draw(axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        axes.set_aspect("equal")
        _draw_samples(axes, points[:, 0], points[:, 1], classes)
        for tip, place, text in zip(arrows, frame.places, texts, strict=True):
            head = {"arrowstyle": "-|>,head_width=0.22,head_length=0.4", "color": INK, "linewidth": 1.2}
            axes.annotate("", (tip[0], tip[1]), (0.0, 0.0), arrowprops=head | {"shrinkA": 0, "shrinkB": 0}, zorder=4)
            if abs(place[1] - tip[1]) > frame.gap:
                axes.plot([tip[0], place[0]], [tip[1], place[1]], color=MUTED, linewidth=0.6, zorder=3)
            width, height = _size(text) * frame.gap / _GAP
            corner = (place[0] - (width if tip[0] < 0 else 0.0), place[1] - height / 2)
            axes.add_patch(Rectangle(corner, width, height, color=PAPER, alpha=0.75, linewidth=0, zorder=2.5))
            side = "left" if tip[0] >= 0 else "right"
            axes.text(place[0], place[1], text, color=INK, ha=side, va="center", fontsize=9.5, zorder=5)
        axes.set_xlim(frame.low[0], frame.high[0])
        axes.set_ylim(frame.low[1], frame.high[1])
        plain(axes.xaxis)
        plain(axes.yaxis)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])

    return inline("biplot", draw, height=frame.height)


@dataclass(frozen=True)
class _Frame:
    """Places and limits of a biplot, in units of its axes."""

    places: FloatArray
    """Where names start, right or left of the tips of their arrows, ``(n_arrows, 2)``."""
    low: FloatArray
    """Lower limits of the axes, ``(2,)``."""
    high: FloatArray
    """Upper limits, ``(2,)``."""
    gap: float
    """Distance of names from tips."""
    height: float
    """Height of the chart in inches."""


def _frame(points: FloatArray, arrows: FloatArray, texts: Sequence[str]) -> _Frame:
    """Return places for names and the limits that hold them, points and arrows.

    Names left of the origin do not cover each other, nor do those right of it; their widths are estimates. The limits depend on
    the widths in units of the axes, which depend on the limits, so that both are iterated.
    """
    every = np.concatenate([points, arrows, np.zeros((1, 2))])
    sizes = np.array([_size(text) for text in texts])
    height = float(sizes[:, 1].max())
    sides = np.where(arrows[:, 0] >= 0, 1.0, -1.0)
    low, high = every.min(axis=0), every.max(axis=0)
    for _ in range(20):
        unit = float(((high - low) / _ROOM).max())  # of the axes, for an inch
        places = arrows + np.stack([sides * _GAP * unit, np.zeros(len(arrows))], axis=1)
        for side in (-1.0, 1.0):
            places[sides == side, 1] = _apart(places[sides == side, 1], height * unit)
        ends = np.stack([places[:, 0] + sides * sizes[:, 0] * unit, places[:, 1]], axis=1)
        away = np.array([0.0, height * unit / 2])
        taken = np.concatenate([every - 0.1 * unit, every + 0.1 * unit, ends - away, ends + away])
        low, high = taken.min(axis=0), taken.max(axis=0)
    unused = np.maximum(0.0, np.array([_ROOM[0], _LEAST_ROOM]) * unit - (high - low)) / 2
    low, high = low - unused, high + unused
    return _Frame(places, low, high, _GAP * unit, float((high - low)[1] / unit + _MARGIN))


def _size(text: str) -> FloatArray:
    """Return estimates of the width and the height of a text in inches."""
    lines = text.split("\n")
    return np.array([_LETTER * max(map(len, lines)), _LINE * len(lines)])


def _broken(name: str) -> str:
    """Return a long name in two lines, broken at the space or the mark nearest its middle."""
    ends = [at for at, letter in enumerate(name[:-1], 1) if letter in " _-/.,"]
    if len(name) <= _LONG or not ends:
        return name
    at = min(ends, key=lambda place: abs(2 * place - len(name)))
    return f"{name[:at].rstrip()}\n{name[at:]}"


def _apart(places: FloatArray, gap: float) -> FloatArray:
    """Return the places nearest to `places` in least squares, in the same order, that are at least `gap` apart."""
    order = np.argsort(places, kind="stable")
    groups: list[tuple[float, int]] = []  # mean and number of values that are pooled: isotonic regression
    for value in places[order] - gap * np.arange(len(places)):
        groups.append((float(value), 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (first, m), (second, n) = groups[-2:]
            groups[-2:] = [((m * first + n * second) / (m + n), m + n)]
    result = np.empty(len(places))
    result[order] = [mean for mean, count in groups for _ in range(count)] + gap * np.arange(len(places))
    return result
