"""Charts as inline SVG: one style that is legible on white and on black, and one way to write it."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from streampca.plotting import alone, plainly
from streampca.system.optional import is_installed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#3f82cc", "#cf5f2c", "#5b8f2f", "#a868c0", "#a67f16", "#189195", "#cc5a88", "#94765a")
"""Colours of a chart: of middling lightness, so that each has a contrast of more than 3.5 with white and with the dark card of a page."""
GREY = "#808080"
WIDTH, HEIGHT = 4.9, 3.5
"""Size of a chart in inches of 72 points: as wide as a phone, so that its letters are never scaled far."""
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.size": 10.5,
    "axes.edgecolor": GREY,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.xmargin": 0.02,
    "date.converter": "concise",
    "grid.alpha": 0.3,
    "grid.color": GREY,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


_drawn: ContextVar[dict[str, str] | None] = ContextVar("_drawn", default=None)
"""Charts of the page that is written, by name, where it is written twice."""


@contextmanager
def each_drawn_once() -> Iterator[None]:
    """Keep the charts of one page meanwhile, so that it is written again with the same charts and without drawing them."""
    token = _drawn.set({})
    try:
        yield
    finally:
        _drawn.reset(token)


def can_draw() -> bool:
    """Return whether there can be charts: matplotlib belongs to the extra ``report``."""
    return is_installed("matplotlib")


def inline(name: str, draw: Callable[[Axes], object], width: float = WIDTH, height: float = HEIGHT) -> str:
    """Return what `draw` puts on fresh axes as one ``<svg>`` element, with a legend above of what it has named.

    `name` is one that no other chart of the page has. The settings of a user's matplotlibrc play no part and are not changed,
    so that the same arrays give the same characters. Empty where matplotlib is not installed.
    """
    if not can_draw():
        return ""
    drawn = _drawn.get()
    if drawn is not None and name in drawn:
        return drawn[name]
    from cycler import cycler
    from matplotlib import style
    from matplotlib.figure import Figure

    settings = {**_STYLE, "axes.prop_cycle": cycler(color=COLOURS), "svg.hashsalt": name}
    with alone(), style.context(["default", settings]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the browser has its own fonts
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        handles, names = axes.get_legend_handles_labels()
        if len(names) > 1:
            columns = max(1, int(11.5 * width) // (max(map(len, names)) + 6))
            plainly(figure.legend(handles, names, loc="outside upper left", ncols=columns).get_texts())
        svg = svg_of(figure, name)
    if drawn is not None:
        drawn[name] = svg
    return svg


def svg_of(figure: Figure, name: str) -> str:
    """Return a figure as an ``<svg>`` element for a page: transparent, without a date, its identities beginning with `name`."""
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)  # makes the ticks, and finds the places of everything; faster than drawing it for that
    figure.set_layout_engine("none")  # once is enough
    for i, artist in enumerate(figure.findobj()):
        artist.set_gid(f"{name}-{i}")
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    document = buffer.getvalue()
    return document[document.index("<svg") :]
