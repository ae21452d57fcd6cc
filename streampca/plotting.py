"""Charts of principal components on matplotlib axes, for `pca.plot` and for the report of a run.

Each function draws its data in the colours of the property cycle of matplotlib, in grey what is beside the point, and names what it draws for a legend,
which `legend` or the page puts beside it. Texts that come from data are never read as formulas. Lengths are those of numpy arrays; NaN is left out.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.typing import Array, FloatArray, IntArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "0.5"
MOST_CLASSES = 8
"""Classes that have a colour."""
MOST_POINTS = 1200
"""Longer lines are drawn as means of consecutive values, within a band from the least to the greatest."""
VISIBLE = 0.003
"""Thinner bands of the share of the variance would not be seen."""
_MANY = 60
"""More components have no mark or bar each."""
_DENSE = 700
"""More points are drawn as a density."""
_DASHES = (0, (4, 3))
_NAME_SIZE, _NAME_LINE, _LETTER, _GAP = 8.75, 12.0, 4.9, 4.0
"""Size, height and width of a letter of the names in a biplot, and the distance from the tip of an arrow, in points of 1/72 inch."""
_DATES = np.datetime64("0001-01-01"), np.datetime64("9999-12-31")

_drawing = threading.RLock()

Intervals = tuple[FloatArray, FloatArray]
"""Lower and upper ends, or two distances, each of shape ``(n,)``."""

EIGENVALUE = "variance (eigenvalue)"
"""Title of the axis of eigenvalues."""


@contextmanager
def alone() -> Iterator[None]:
    """Let no other thread draw through this module meanwhile: matplotlib's settings and its parser of formulas are one for the process."""
    with _drawing:
        yield


def _renew_after_fork() -> None:
    """Replace the lock in a forked process: the thread that held it is not there."""
    global _drawing
    _drawing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)


def scree(
    axes: Axes,
    values: FloatArray,
    *,
    n_kept: int | None = None,
    bounds: Intervals | FloatArray | None = None,
    sampling: Intervals | FloatArray | None = None,
    mixed: Sequence[tuple[int, int]] = (),
    thresholds: Mapping[str, float] | None = None,
    title: str = EIGENVALUE,
    noun: str = "component",
) -> None:
    """Draw eigenvalues, on a logarithmic scale where they span more than a factor of 100.

    Parameters
    ----------
    axes
        Where to draw.
    values
        Eigenvalues in descending order, ``(n,)``; negative ones count as 0.
    n_kept
        So many are components of the model, the others are grey; None for all.
    bounds
        Intervals that hold the eigenvalues of the data, NaN where nothing is known.
    sampling
        Intervals of the eigenvalues of the population.
    mixed
        First and last component, from 0, of groups that are not told apart.
    thresholds
        Edges of noise by name.
    title, noun
        What the values are, and what one of them belongs to.
    """
    number, kept = np.arange(1, len(values) + 1), len(values) if n_kept is None else n_kept
    shown = np.clip(values, 0.0, None)
    positive = shown[shown > 1e-12 * shown.max(initial=0.0)]  # what is zero up to rounding would stretch the scale
    edges = {name: edge for name, edge in (thresholds or {}).items() if edge > 0}
    low, high = (float(positive.min()), float(positive.max())) if len(positive) else (0.0, 1.0)
    low, high = min([low, *edges.values()]), max([high, *edges.values()])
    bottom = 0.0
    if high > 100 * low > 0:
        axes.set_yscale("log")
        bottom = low / 2
        shown = np.where(shown >= low, shown, np.nan)
    _shade(axes, mixed)

    def ends(interval: Intervals | FloatArray) -> tuple[FloatArray, FloatArray]:
        lower, upper = (np.fmax(bottom, np.where(np.isfinite(end), end, shown)) for end in interval)
        return lower, upper

    if bounds is not None and np.isfinite(bounds[1]).any():
        lower, upper = ends(bounds)
        high = max(high, float(upper.max()))
        if len(values) > _MANY:
            axes.fill_between(number, lower, upper, color="C0", alpha=0.3, linewidth=0, label="numerical error")
        else:
            axes.vlines(number, lower, upper, color="C0", alpha=0.4, linewidth=5, label="numerical error")
    if sampling is not None:
        lower, upper = ends(sampling)
        high = max(high, float(upper.max()))
        away = np.clip([shown - lower, upper - shown], 0.0, None)
        axes.errorbar(number, shown, away, fmt="none", ecolor=GREY, capsize=2, label="95 % interval by sampling")
    size = 5 if len(values) <= _MANY else 2.5
    axes.plot(number[:kept], shown[:kept], "o", color="C0", markersize=size, label=f"{noun}s")
    if kept < len(values):
        axes.plot(number[kept:], shown[kept:], "o", color=GREY, markersize=size, label="left out")
    for i, (name, edge) in enumerate(edges.items(), 1):
        axes.axhline(edge, color=f"C{i}", linewidth=1, linestyle=_DASHES, label=name)
    axes.set_ylim(bottom, 1.5 * high if bottom else 1.08 * high)
    _components(axes, len(values), title, noun=noun)


def compared(axes: Axes, values: Mapping[str, FloatArray], title: str, *, sums: bool = False) -> None:
    """Draw a value of each component of several models, by the names of the models.

    The scale is logarithmic where the values span more than a factor of 100 and are no `sums`. Earlier lines are wider than later ones,
    so that equal ones are seen.
    """
    every = np.concatenate(list(values.values()))
    positive = every[np.isfinite(every) & (every > 1e-9 * every.max(initial=0.0))]
    if len(positive) and positive.max() > 100 * positive.min() and not sums:
        axes.set_yscale("log")
        axes.set_ylim(positive.min() / 1.5, 1.5 * positive.max())
    else:
        axes.set_ylim(0, 1.08 * float(every.max(initial=0.0)) or 1.0)
    for i, (name, row) in enumerate(values.items(), 1):
        later = len(values) - i
        axes.plot(np.arange(1, len(row) + 1), row, "o-", markersize=4 + 1.5 * later, linewidth=1.2 + later, label=name)
    _components(axes, max(map(len, values.values()), default=1), title)


def bounds(axes: Axes, values: FloatArray, title: str, mixed: Sequence[tuple[int, int]] = ()) -> None:
    """Draw an upper bound for each component, ``(n,)``, on a logarithmic scale where they span more than a factor of 100.

    NaN and 0 are left out; `mixed` as in `scree`, and `title` is what the bounds are of.
    """
    number, known = np.arange(1, len(values) + 1), np.isfinite(values) & (values > 0)
    if known.any() and values[known].max() > 100 * values[known].min():
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.08 * float(values[known].max(initial=0.0)) or 1.0)
    _shade(axes, mixed)
    axes.plot(
        number[known], values[known], "o", color="C0", markersize=5 if len(values) <= _MANY else 2.5, label="bound"
    )
    _components(axes, len(values), title)


def cumulative(
    axes: Axes,
    ratios: FloatArray,
    marks: Mapping[str, int],
    beyond: float = 0.0,
    noun: str = "component",
    title: str = "share of the variance (%)",
) -> None:
    """Draw the share of the variance that the first components carry together.

    Parameters
    ----------
    axes
        Where to draw.
    ratios
        Share of each component, ``(n_components,)``.
    marks
        Numbers of components that are marked, by name.
    beyond
        Share by which all sums may be too small.
    noun, title
        What one of them belongs to, and what they are shares of.
    """
    number = np.arange(len(ratios) + 1)
    reached = 100 * np.concatenate([[0.0], np.cumsum(ratios)])
    axes.fill_between(number, reached, color="C0", alpha=0.15, linewidth=0)
    axes.plot(number, reached, color="C0", label="proven" if beyond > VISIBLE else "")
    if beyond > VISIBLE:
        most = np.minimum(100.0, reached[1:] + 100 * beyond)
        axes.fill_between(number[1:], reached[1:], most, color="C1", alpha=0.35, linewidth=0, label="possible")
    for i, (name, needed) in enumerate(marks.items(), 2):
        axes.plot([needed, needed], [0, reached[needed]], color=f"C{i}", linewidth=1, linestyle=_DASHES)
        axes.plot(needed, reached[needed], "o", color=f"C{i}", markersize=5, label=name)
    axes.set_ylim(0, max(104.0, 1.02 * float(reached.max())))
    _components(axes, len(ratios), title, first=0, noun=noun)


@dataclass(frozen=True)
class Classes:
    """Classes of samples, the most frequent of which have a colour."""

    names: tuple[str, ...]
    """Names of the classes that have a colour."""
    numbers: IntArray
    """Number of the class of each sample among these, -1 without a colour, ``(n_samples,)``."""
    others: int
    """How many more classes there are."""


def classes_of(labels: Array) -> Classes:
    """Return the classes of samples with some `labels`, ``(n_samples,)``, of any type."""
    plain = labels if labels.dtype.kind in "biufM" else labels.astype(str)  # numbers stay in their order
    names, numbers, counts = np.unique(plain, return_inverse=True, return_counts=True)
    coloured = np.sort(np.argsort(-counts, kind="stable")[:MOST_CLASSES])
    place = np.full(len(names), -1)
    place[coloured] = np.arange(len(coloured))
    return Classes(tuple(map(str, names[coloured])), place[numbers], len(names) - len(coloured))


def scores(
    axes: Axes,
    values: FloatArray,
    titles: Sequence[str],
    classes: Classes | None = None,
) -> None:
    """Draw samples on two axes as points, or as a density where there are many; on one axis as a histogram.

    Parameters
    ----------
    axes
        Where to draw.
    values
        Scores, ``(n_samples, 2)`` or ``(n_samples, 1)``.
    titles
        What the axes are.
    classes
        What points are coloured by; those without a colour are grey.
    """
    if values.shape[1] == 1:
        axes.hist(values[:, 0], bins=max(1, min(40, len(values) // 4)), alpha=0.75, rwidth=0.94)
        _titled(axes, titles[0], "samples")
        return
    _points(axes, values, classes)
    _titled(axes, *titles)


def biplot(
    axes: Axes,
    points: FloatArray,
    arrows: FloatArray,
    features: Sequence[str],
    titles: Sequence[str],
    classes: Classes | None = None,
    size: tuple[float, float] | None = None,
) -> None:
    """Draw samples on two axes of the same scale, with an arrow from the origin for each feature (Gabriel 1971).

    The names of features stand beside the tips of their arrows, where `placed_names` finds room for them.

    Parameters
    ----------
    axes
        Where to draw.
    points
        Standardised scores, ``(n_samples, 2)``.
    arrows
        Tips of the arrows, ``(n_arrows, 2)``.
    features
        Name of each arrow.
    titles, classes
        As for `scores`.
    size
        Width and height of the axes in points of 1/72 inch; those that the axes have now by default.
    """
    axes.set_aspect("equal", adjustable="datalim")
    _points(axes, points, classes)
    origin = np.zeros(len(arrows))
    scale: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.005, "zorder": 3}
    axes.quiver(origin, origin, arrows[:, 0], arrows[:, 1], color=GREY, **scale)
    if size is None:
        inches = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
        size = 72 * inches.width, 72 * inches.height
    unit, _ = _points_of_unit(points, arrows, features, size)
    for j, shift in placed_names(points, arrows, features, size).items():
        right = arrows[j, 0] >= 0
        end = arrows[j, 0] + (1 if right else -1) * (_GAP + _LETTER * len(features[j])) / unit
        axes.update_datalim([(end, arrows[j, 1] + shift / unit)])
        style: dict[str, Any] = {"textcoords": "offset points", "ha": "left" if right else "right", "va": "center"}
        place = (_GAP if right else -_GAP, shift)
        axes.annotate(features[j], arrows[j], place, fontsize=_NAME_SIZE, parse_math=False, **style)
    axes.autoscale_view()
    _titled(axes, *titles)


def is_density(values: FloatArray, classes: Classes | None) -> bool:
    """Return whether `scores` and `biplot` draw these samples, ``(n_samples, 2)``, as hexagons and not as points."""
    return classes is None and len(values) > _DENSE and bool(np.ptp(values, axis=0).all())


def arrow_factor(points: FloatArray, loadings: FloatArray) -> float:
    """Return the number of one digit by which loadings, ``(n_features, 2)``, reach to the outer of some `points`, ``(n_samples, 2)``."""
    longest = float(np.hypot(*loadings.T).max(initial=0.0))
    reach = float(np.quantile(np.hypot(*points.T), 0.98)) if len(points) else 0.0
    return float(f"{reach / longest:.1g}") or 1.0 if longest > 0 else 1.0


def placed_names(
    points: FloatArray, arrows: FloatArray, features: Sequence[str], size: tuple[float, float]
) -> dict[int, float]:
    """Return which arrows of a biplot have a name, and by how many points of 1/72 inch the name is moved up from the tip.

    Names are placed in the order of the arrows. A name that would cover an earlier one is moved by one or two lines. It is left out if
    there is no room there either.

    Parameters
    ----------
    points, arrows, features
        As for `biplot`.
    size
        Width and height of the axes in points of 1/72 inch.
    """
    unit, widths = _points_of_unit(points, arrows, features, size)
    right = arrows[:, 0] >= 0
    left = unit * arrows[:, 0] + np.where(right, _GAP, -_GAP - widths)
    placed: dict[int, float] = {}
    for j, tip in enumerate(unit * arrows[:, 1]):
        others = list(placed)
        beside = (left[j] < (left + widths)[others]) & (left[others] < left[j] + widths[j])
        heights = unit * arrows[others, 1] + list(placed.values())
        for lines in (0, 1, -1, 2, -2):
            if not (beside & (np.abs(tip + lines * _NAME_LINE - heights) < _NAME_LINE)).any():
                placed[j] = lines * _NAME_LINE
                break
    return placed


def _points_of_unit(
    points: FloatArray, arrows: FloatArray, features: Sequence[str], size: tuple[float, float]
) -> tuple[float, FloatArray]:
    """Return how many points of 1/72 inch a unit of the data takes in a biplot, and the widths of the names in such points."""
    widths = _LETTER * np.array([len(feature) for feature in features], dtype=np.float64)
    every = np.concatenate([points, arrows, np.zeros((1, 2))])
    spans = 1.1 * np.maximum(np.ptp(every, axis=0), 1e-300)
    unit = plain = float(min(size[0] / spans[0], size[1] / spans[1]))
    for _ in range(3):  # the room for names narrows the room for data, though not to less than two thirds
        ends = arrows[:, 0] + np.where(arrows[:, 0] >= 0, 1, -1) * (_GAP + widths) / unit
        across = 1.1 * float(np.ptp(np.concatenate([every[:, 0], ends])))
        unit = max(2 / 3 * plain, min(size[0] / across, size[1] / spans[1]))
    return unit, widths


def distances(
    axes: Axes, points: Intervals, unusual: Intervals, limits: tuple[float | None, float | None], level: str = "99 %"
) -> None:
    """Draw T² and Q of rows on logarithmic scales, those of `unusual` rows in another colour, with the `limits` of both at `level`.

    Values that are far below the others, or not positive, are at the lower end of the scale.
    """
    every = [np.concatenate(pair) for pair in zip(points, unusual, strict=True)]
    known = [values[np.isfinite(values) & (values > 0)] for values in every]
    low = [max(float(values.min()), 1e-4 * float(np.median(values))) for values in known]
    axes.set_xscale("log")
    axes.set_yscale("log")
    for pair, name, size, alpha in ((points, "rows", 3.5, 0.5), (unusual, "most unusual", 5, 0.9)):
        x, y = (np.maximum(values, least) for values, least in zip(pair, low, strict=True))
        axes.plot(x, y, "o", markersize=size, alpha=alpha, markeredgewidth=0, label=name)
    style: dict[str, Any] = {"color": GREY, "linewidth": 1, "linestyle": _DASHES}
    name = f"limits at {level}"
    if limits[0] is not None:
        axes.axvline(limits[0], label=name, **style)
    if limits[1] is not None:
        axes.axhline(limits[1], label=name if limits[0] is None else "", **style)
    _titled(axes, "T²: distance among the components", "Q: squared distance from them")


def line(axes: Axes, x: Array, y: FloatArray, titles: Sequence[str], *, zero: bool = True, name: str = "") -> None:
    """Draw values, ``(n,)``, against a coordinate of numbers or ``datetime64``, with gaps at NaN; zero is marked if `zero`."""
    order = np.argsort(x, kind="stable")
    x, y = x[order], np.where(np.isfinite(y), y, np.nan)[order]
    if x.dtype.kind == "M" and len(x) and (x[0] < _DATES[0] or x[-1] > _DATES[1]):
        x = 1970 + x.astype("datetime64[s]").astype(np.float64) / (
            365.2425 * 86400
        )  # years: matplotlib has no such dates
    width = values_of_a_point(len(y))
    if zero:
        axes.axhline(0, color=GREY, linewidth=0.8, alpha=0.6)
    if width > 1:
        pieces = np.full((-(-len(y) // width), width), np.nan)
        pieces.flat[: len(y)] = y
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # pieces that are all NaN have none of these
            low, y, high = np.nanmin(pieces, axis=1), np.nanmean(pieces, axis=1), np.nanmax(pieces, axis=1)
        x = x[np.minimum(np.arange(len(y)) * width + width // 2, len(x) - 1)]
        axes.fill_between(x, low, high, alpha=0.25, linewidth=0)
    axes.plot(x, y, "o-" if len(y) <= 40 else "-", markersize=3, linewidth=1.3, label=name)
    axes.margins(x=0.01)
    _titled(axes, *titles)


def values_of_a_point(n: int) -> int:
    """Return how many consecutive values one point of a line of `n` values stands for."""
    return max(1, -(-n // MOST_POINTS))


def profile(
    axes: Axes, original: FloatArray, rebuilt: Mapping[str, FloatArray], numbers: FloatArray, title: str = "feature"
) -> None:
    """Draw one row across its features, ``(n_features,)``, with what is `rebuilt` of it, by name; `numbers` are the places of features."""
    axes.axhline(0, color=GREY, linewidth=0.8, alpha=0.6)
    axes.plot(numbers, original, color=GREY, alpha=0.4, linewidth=4, label="original")
    for name, row in rebuilt.items():
        axes.plot(numbers, row, linewidth=1.3, label=name)
    _titled(axes, title, "")


def drift(axes: Axes, edges: FloatArray, shifts: FloatArray, largest: FloatArray, noise: float, name: str) -> None:
    """Draw the shift of the mean of the feature `name` in parts of a file, and the largest of all features, ``(n_parts,)`` each.

    `edges`, ``(n_parts + 1,)``, are where parts begin and end; independent rows would show about `noise`.
    """
    places = (edges[:-1] + edges[1:]) / 2
    axes.axhspan(-noise, noise, color=GREY, alpha=0.15, linewidth=0)
    axes.plot(places, shifts, "o-", markersize=3, linewidth=1.4, label=name)
    axes.plot(places, largest, color=GREY, linewidth=1, linestyle=_DASHES, label="largest of all features")
    _titled(axes, "row", "shift (standard deviations)")


def missing(axes: Axes, edges: FloatArray, shares: FloatArray) -> None:
    """Draw the share of missing values in parts of a file, ``(n_parts,)``; `edges` as in `drift`."""
    axes.stairs(100 * shares, edges, fill=True, alpha=0.5)
    _titled(axes, "row", "missing values (%)")


def legend(axes: Axes) -> None:
    """Put a legend into axes on which more than one thing has a name."""
    handles, names = axes.get_legend_handles_labels()
    if len(names) > 1:
        plainly(axes.legend(handles, names).get_texts())


def plainly(texts: Sequence[Any]) -> None:
    """Show texts of matplotlib as they are, dollar signs included."""
    for text in texts:
        text.set_parse_math(False)


def _points(axes: Axes, values: FloatArray, classes: Classes | None) -> None:
    """Draw points in the colours of their classes, or a density of hexagons where there are many without classes."""
    axes.axhline(0, color=GREY, linewidth=0.8, alpha=0.4)
    axes.axvline(0, color=GREY, linewidth=0.8, alpha=0.4)
    style: dict[str, Any] = {"markersize": 5 if len(values) <= 400 else 3.5, "markeredgewidth": 0, "alpha": 0.7}
    if classes is not None:
        if classes.others:
            axes.plot(*values[classes.numbers < 0].T, "o", color=GREY, label="other", **{**style, "alpha": 0.35})
        for i, name in enumerate(classes.names):
            axes.plot(*values[classes.numbers == i].T, "o", color=f"C{i}", label=name, **style)
    elif is_density(values, classes):
        from matplotlib.colors import LinearSegmentedColormap, to_rgba

        shades = LinearSegmentedColormap.from_list("density", [to_rgba("C0", 0.2), to_rgba("C0", 1.0)])
        axes.hexbin(*values.T, gridsize=(38, 22), mincnt=1, bins="log", cmap=shades, linewidths=0)
    else:
        axes.plot(*values.T, "o", color="C0", **style)


def _shade(axes: Axes, mixed: Sequence[tuple[int, int]]) -> None:
    """Hatch components, from the first to the last of each group, that are not told apart."""
    style: dict[str, Any] = {"facecolor": "none", "edgecolor": GREY, "alpha": 0.4, "hatch": "///", "linewidth": 0.5}
    for i, (first, last) in enumerate(mixed):
        axes.axvspan(first + 0.5, last + 1.5, label="" if i else "not separated", **style)


def _components(axes: Axes, k: int, title: str, first: int = 1, noun: str = "component") -> None:
    from matplotlib.ticker import MaxNLocator

    margin = 0.5 if first else 0.02 * k
    axes.set_xlim(first - margin, k + max(0.5, 0.02 * k))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    _titled(axes, noun if first else f"number of {noun}s", title)


def _titled(axes: Axes, across: str, up: str) -> None:
    axes.set_xlabel(across, parse_math=False)
    axes.set_ylabel(up, parse_math=False)
