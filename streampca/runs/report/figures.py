"""Charts of plain arrays as inline SVG in the colours of the page, so that one picture suits light and dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from streampca.runs.report.words import power_of_ten
from streampca.system.optional import is_installed
from streampca.typing import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Colours that stand for the page's own; `inline` writes the variables in their place.
INK, MUTED, GRID, ACCENT, SECOND, PAPER = "#010101", "#020202", "#030303", "#040404", "#050505", "#060606"
CLASS_COLOURS = tuple(f"#{17 + i:02x}0101" for i in range(8))
"""Colours of classes of samples."""
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "line", ACCENT: "accent", SECOND: "second", PAPER: "card"} | {
    colour: f"class-{i}" for i, colour in enumerate(CLASS_COLOURS)
}

_OWN_SETTINGS: dict[str, object] = {
    "svg.fonttype": "none",
    "font.size": 10.5,
    "axes.labelsize": 10.5,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.linewidth": 1.0,
    "axes.axisbelow": True,
    "axes.labelpad": 5.0,
    "axes.formatter.useoffset": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": MUTED,
    "text.parse_math": False,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "path.simplify": True,
}
_DRAWING = (
    "axes date figure font grid hatch image lines mathtext patch path savefig scatter svg text xtick ytick xaxis yaxis"
)

WIDTH, HEIGHT = 4.9, 3.5
"""Size of a chart in inches of 72 points: as wide as a phone, so that its letters are never scaled far."""

MOST_DOTS = 120
"""Charts of lines mark each component where there are at most so many."""

VISIBLE = 0.003
"""Thinner bands of the share of the variance would not be seen."""


def eigenvalues(values: FloatArray) -> str:
    """Return the variance along each axis; on a logarithmic scale when it spans more than a factor of 100."""
    k = len(values)
    shown = np.clip(values, 0.0, None)
    positive = shown[shown > 0]
    logarithmic = len(positive) > 1 and positive.max() > 100 * positive.min()
    if logarithmic:
        # What is zero up to rounding would stretch the scale over empty decades.
        shown = np.where(shown > positive.max() * 1e-18, shown, np.nan)

    def draw(axes: Axes) -> None:
        number = np.arange(1, k + 1)
        axes.grid(axis="y")
        if logarithmic:
            axes.set_yscale("log")
            decades(axes)
        stems = k <= 60 and not logarithmic
        if stems:
            axes.vlines(number, 0, shown, color=ACCENT, alpha=0.35, linewidth=max(1.0, min(7.0, 150 / k)))
        axes.plot(number, shown, color=ACCENT, linewidth=0 if stems else 1.4, **dots(k))
        if not logarithmic:
            axes.set_ylim(0, 1.08 * float(positive.max()) if len(positive) else 1.0)
            plain(axes.yaxis)
        component_axis(axes, k)
        axes.set_ylabel("variance (eigenvalue)")

    return inline("eigenvalues", draw)


def cumulative(ratios: FloatArray, marks: Mapping[float, int], labels: Mapping[float, str], beyond: float = 0.0) -> str:
    """Return the share of variance that the first components carry together.

    Parameters
    ----------
    ratios
        Share of each component, shape ``(n_components,)``.
    marks
        For a share to reach, the number of components that reach it.
    labels
        For the same shares, the number or the range of numbers in words.
    beyond
        Share by which all sums may be too small.
    """
    k = len(ratios)
    total = 100 * np.cumsum(ratios)

    def draw(axes: Axes) -> None:
        number = np.arange(0, k + 1)
        reached = np.concatenate([[0.0], total])
        axes.grid(axis="y")
        axes.fill_between(number, reached, color=ACCENT, alpha=0.13, linewidth=0)
        if beyond > VISIBLE:
            most = np.minimum(100.0, reached[1:] + 100 * beyond)
            axes.fill_between(
                number[1:], reached[1:], most, facecolor="none", edgecolor=SECOND, alpha=0.6, hatch="////", linewidth=0
            )
        axes.plot(number, reached, color=ACCENT, linewidth=1.8, **(dots(k) if k <= 30 else {}))
        for i, (level, needed) in enumerate(marks.items()):
            axes.plot([needed, needed], [0, reached[needed]], color=SECOND, linewidth=1, dashes=(3, 2.5))
            axes.plot([needed], [reached[needed]], "o", color=SECOND, markersize=5, markeredgecolor=PAPER)
            side = "left" if needed < 0.08 * k else "right" if needed > 0.92 * k else "center"
            plate = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.88, "boxstyle": "round,pad=0.25"}
            axes.text(
                needed,
                26 - 10 * i,
                f"{100 * level:.0f} %: {labels.get(level, needed)}",
                color=INK,
                ha=side,
                va="center",
                bbox=plate,
            )
        axes.set_ylim(0, max(104.0, 1.02 * float(reached.max())))
        axes.set_yticks([0, 25, 50, 75, 100])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
        component_axis(axes, k, first=0)
        axes.set_xlabel("components kept")
        axes.set_ylabel("share of the variance")

    return inline("cumulative", draw)


def distances(
    points: tuple[FloatArray, FloatArray],
    unusual: tuple[FloatArray, FloatArray],
    limits: tuple[float | None, float | None],
) -> str:
    """Return T² and Q of rows on logarithmic scales with their limits, and those of `unusual` rows in the second colour.

    Values that are not positive are at the lower end of the scale.
    """
    every = [np.concatenate(pair) for pair in zip(points, unusual, strict=True)]
    known = [values[np.isfinite(values) & (values > 0)] for values in every]
    # Values far below the others would stretch the scale over empty decades.
    low = [max(float(values.min()), 1e-4 * float(np.median(values))) for values in known]

    def draw(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_yscale("log")
        for pair, colour, size, alpha in ((points, ACCENT, 3.2, 0.45), (unusual, SECOND, 4.6, 0.9)):
            x, y = (np.maximum(values, least) for values, least in zip(pair, low, strict=True))
            axes.plot(x, y, "o", color=colour, markersize=size, alpha=alpha, markeredgewidth=0)
        if limits[0] is not None:
            axes.axvline(limits[0], color=INK, linewidth=1, dashes=(3, 2.5))
        if limits[1] is not None:
            axes.axhline(limits[1], color=INK, linewidth=1, dashes=(3, 2.5))
        for axis in (axes.xaxis, axes.yaxis):
            _powers(axis)
        axes.set_xlabel("T²: distance among the components")
        axes.set_ylabel("Q: squared distance from them")

    return inline("distances", draw, height=3.9)


def _powers(axis: Axis) -> None:
    """Label 1, 2 and 5 of every power of ten of a logarithmic scale over few decades, and the powers alone over many."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    low, high = axis.get_view_interval()
    few = high < 300 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())

    def write(value: float, _: float | None = None) -> str:
        plainly = 1e-3 <= value < 1e6
        return f"{value:,.6g}" if plainly else power_of_ten(round(np.log10(value))) if value > 0 else ""

    axis.set_major_formatter(write)


def histogram(x: FloatArray, label: str) -> str:
    """Return how the samples are spread along one axis."""

    def draw(axes: Axes) -> None:
        axes.grid(axis="y")
        axes.hist(x, bins=max(1, min(40, len(x) // 4)), color=ACCENT, alpha=0.75, edgecolor=PAPER, linewidth=0.8)
        plain(axes.xaxis)
        _limit_ticks(axes.yaxis, integer=True)
        axes.set_xlabel(label)
        axes.set_ylabel("samples")

    return inline("histogram", draw)


def profile(
    original: FloatArray, rebuilt: Sequence[FloatArray], numbers: FloatArray, salt: str, label: str = "feature"
) -> str:
    """Return one row across its features, with what is rebuilt from few and from all components.

    Parameters
    ----------
    original
        The row, shape ``(n_shown,)``.
    rebuilt
        One or two rows of the same shape, from few components to many.
    numbers
        Number or coordinate of each feature shown, shape ``(n_shown,)``.
    salt
        A name that no other chart of the page has.
    label
        Name of the axis of `numbers`.
    """

    def draw(axes: Axes) -> None:
        few = len(original) <= 64
        axes.axhline(0, color=GRID, linewidth=1)
        axes.plot(
            numbers, original, color=MUTED, alpha=0.35, linewidth=4.2, solid_capstyle="round", solid_joinstyle="round"
        )
        if len(rebuilt) > 1:
            axes.plot(numbers, rebuilt[0], color=SECOND, linewidth=1.3, dashes=(3, 1.6))
        axes.plot(numbers, rebuilt[-1], color=ACCENT, linewidth=1.5, marker="o" if few else "", markersize=3)
        plain(axes.yaxis)
        if label == "feature":
            _limit_ticks(axes.xaxis, integer=True)
        plain(axes.xaxis)
        axes.set_xlabel(label)

    return inline(salt, draw, width=4.3, height=3.0)


class _Dots(TypedDict, total=False):
    """Keywords of `Axes.plot`."""

    marker: str
    markersize: float
    markeredgecolor: str
    markeredgewidth: float


def dots(k: int, marker: str = "o") -> _Dots:
    """Return how each of `k` components is marked on a line; not at all where there are more than `MOST_DOTS`."""
    if k > MOST_DOTS:
        return {}
    return {
        "marker": marker,
        "markersize": 6 if k <= 15 else 4.2 if k <= 60 else 3,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.7,
    }


def component_axis(axes: Axes, k: int, first: int = 1) -> None:
    """Put whole numbers from the first component to the last under a chart."""
    from matplotlib.ticker import MaxNLocator

    margin = max(0.5 if first else 0.0, 0.02 * k)
    axes.set_xlim(first - margin, k + max(0.5, 0.02 * k))
    ticks = [
        int(tick)
        for tick in MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]).tick_values(first, k)
        if first <= tick <= k
    ]
    ticks = [tick for tick in ticks if tick == k or k - tick > 0.07 * k]
    axes.set_xticks(sorted({first, k, *(tick for tick in ticks if tick == first or tick - first > 0.05 * k)}))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("component")


def decades(axes: Axes) -> None:
    """Label the powers of ten of a logarithmic scale, and nothing between them."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    axes.yaxis.set_major_locator(LogLocator(numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda value, _: power_of_ten(round(np.log10(value))) if value > 0 else "")


def plain(axis: Axis) -> None:
    """Write numbers without mathematical markup, at most seven of them."""

    def write(value: float, _: float | None = None) -> str:
        if value == 0 or abs(value) < 1e-300:
            return "0"
        exponent = int(np.floor(np.log10(abs(value)) + 1e-9))
        if -4 < exponent < 7:
            return f"{value:,.6g}".replace("-", "−") if abs(value) < 1e6 else f"{value:,.0f}".replace("-", "−")
        return f"{value / 10.0**exponent:.4g}".replace("-", "−") + "·" + power_of_ten(exponent)

    _limit_ticks(axis, nbins=6)
    axis.set_major_formatter(write)


def _limit_ticks(axis: Axis, **limits: int) -> None:
    from matplotlib.ticker import MaxNLocator

    locator = axis.get_major_locator()
    if isinstance(locator, MaxNLocator):
        locator.set_params(**limits)


def can_draw() -> bool:
    """Return whether there can be charts: matplotlib belongs to the extra ``report``."""
    return is_installed("matplotlib")


def inline(salt: str, draw: Callable[[Axes], None], width: float = WIDTH, height: float = HEIGHT) -> str:
    """Return what `draw` puts on fresh axes as one ``<svg>`` element without outside references.

    Everything drawn and the buffer are gone on return; the settings of a user's matplotlibrc play no part, so the same
    arrays give the same characters. Empty where matplotlib is not installed.
    """
    if not can_draw():
        return ""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    drawing = set(_DRAWING.split())
    settings: Any = {key: value for key, value in mpl.rcParamsDefault.items() if key.split(".")[0] in drawing}
    settings |= {**_OWN_SETTINGS, "svg.hashsalt": salt}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the browser has its own fonts
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        buffer = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
        figure.clear()
    return _for_page(buffer.getvalue())


def _for_page(svg: str) -> str:
    """Return a figure as a part of the page: its colours are those of the page, light or dark, and its names no others have."""
    box = re.search(r'viewBox="[^"]*"', svg)
    inner = svg[svg.index("</metadata>") + 11 if "</metadata>" in svg else svg.index(">", svg.index("<svg")) + 1 :]
    needed = set(re.findall(r'(?:href="|url\()#([^")]+)', inner))
    inner = re.sub(r' id="([^"]*)"', lambda match: match.group() if match.group(1) in needed else "", inner)
    for sentinel, variable in _VARIABLES.items():
        inner = inner.replace(sentinel, f"var(--{variable})")
    return f'<svg {box.group() if box else ""} aria-hidden="true" focusable="false">{inner}'
