"""Charts, tables and pictures with their words, and the file that they are written to."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import streampca.formatting as words
from streampca.plotting import alone, plainly
from streampca.storage.files import write_atomically
from streampca.system.optional import is_installed
from streampca.typing import FloatArray, IntArray, Json

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Chart:
    """A chart with its words."""

    title: str
    """Heading."""
    svg: str
    """The chart itself, made by `figures`: the only text that enters the page unescaped."""
    alt: str
    """What a reader who cannot see it should know."""
    caption: str = ""
    """One sentence below."""


@dataclass(frozen=True)
class ReportTable:
    """A table: its caption, headings and cells."""

    caption: str
    """What it holds."""
    heads: tuple[str, ...]
    """One heading for each column."""
    rows: tuple[tuple[str, ...], ...]
    """Cells; the first of each row is its heading."""
    style: str = ""
    """Class of the card around it in the style sheet."""
    note: str = ""
    """Sentences below."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Addresses of pages by the heading of their row."""


@dataclass(frozen=True)
class Section:
    """A section of a page; one that does not apply to a run is None."""

    identity: str
    """Anchor of its heading; empty for a section without one."""
    title: str
    """Heading."""
    lead: str = ""
    """What it says first."""
    parts: Sequence[tuple[str, Any]] = ()
    """What it shows, from top to bottom: macros of ``parts.html`` with what each takes; empty ones are left out."""
    style: str = ""
    """Class of the section in the style sheet."""


@dataclass(frozen=True)
class Picture:
    """A small picture."""

    uri: str
    """The PNG file as a ``data:`` address."""
    alt: str
    """What it shows."""
    caption: str
    """Its number or name."""
    note: str = ""
    """A figure below the caption."""


_ORDINALS = ("first", "second", "third")


def shares_of_components(ratios: FloatArray) -> str:
    """Return what the first components carry each: "The first component carries 41 %, the second 18 %"."""
    told = [f"the {ordinal} {words.share(float(ratio))}" for ordinal, ratio in zip(_ORDINALS, ratios, strict=False)]
    if not told:
        return ""
    told[0] = f"The first component carries {words.share(float(ratios[0]))} of the variance"
    return f"{_listed(told)}."


def sums_of_components(ratios: FloatArray) -> str:
    """Return what the first two, five and ten components carry together, as far as there are more."""
    sums = np.cumsum(ratios)
    told = [f"the first {n} carry {words.share(float(sums[n - 1]))}" for n in (2, 5, 10) if n < len(sums)]
    return f"{_listed(told).capitalize()}." if told else ""


def spread_of_points(values: FloatArray, names: Sequence[str]) -> str:
    """Return from where to where the scores of samples range, and where the middle half of them lies.

    `values` has shape ``(n_samples, n_axes)``, and `names` says of what they are the scores.
    """
    if not len(values):
        return ""
    told = []
    for column, name in zip(values.T, names, strict=True):
        low, first, third, high = (words.figure(number, 2) for number in np.quantile(column, (0.0, 0.25, 0.75, 1.0)))
        told.append(f"Scores on {name} range from {low} to {high}, the middle half from {first} to {third}.")
    return " ".join(told)


def centres_of_classes(values: FloatArray, numbers: IntArray, names: Sequence[str]) -> str:
    """Return the mean of the points of each class; `values` has shape ``(n_samples, 2)``."""
    told = []
    for number, name in enumerate(names):
        members = values[numbers == number]
        if len(members):
            x, y = (words.figure(mean, 2) for mean in members.mean(axis=0))
            told.append(f"{name} at {x} and {y}")
    return f"Centres of classes: {', '.join(told)}." if told else ""


def directions_of_arrows(arrows: FloatArray, names: Sequence[str], most: int = 4) -> str:
    """Return where the longest arrows point; `arrows` has shape ``(n_features, 2)``."""
    told = []
    for place in np.argsort(-np.hypot(arrows[:, 0], arrows[:, 1]), kind="stable")[:most]:
        x, y = arrows[place]
        sides = ["right" if x > 0 else "left"] if abs(x) >= abs(y) / 2 else []
        sides += ["up" if y > 0 else "down"] if abs(y) >= abs(x) / 2 else []
        told.append(f"{names[place]} {' and '.join(sides)}")
    return f"The longest arrows point: {_listed(told, ', ')}." if told else ""


def _listed(parts: Sequence[str], last: str = " and ") -> str:
    """Return parts of a sentence with commas."""
    return last.join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


SIGNED, RISING, GREYS = "RdBu_r", "viridis", "gray"
"""Colour maps of matplotlib: blue to red around white, dark to light, and black to white."""
MASKED = "#969696"
"""Colour of places that are masked or missing."""


def picture(values: FloatArray, low: float, high: float, colours: str) -> str:
    """Return the ``data:`` address of the picture of values, ``(height, width)`` or red, green and blue, ``(height, width, 3)``.

    What lies outside of `low` to `high` has the colour of the nearest end; NaN is `MASKED`.
    """
    import matplotlib as mpl
    from PIL import Image

    unit = np.clip((values - low) / (high - low), 0.0, 1.0) if high > low else np.where(np.isnan(values), np.nan, 0.5)
    if values.ndim == 3:
        pixels = np.round(255 * np.nan_to_num(unit)).astype(np.uint8)
    else:
        shades = mpl.colormaps[colours].with_extremes(bad=MASKED)
        pixels = np.ascontiguousarray(shades(np.ma.masked_invalid(unit), bytes=True)[..., :3])
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


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


@cache
def _environment() -> Environment:
    """Return the templates beside this module; texts are escaped, and a name that is not given is empty."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("streampca.runs", "report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )


def write_page(directory: Path, page: Json) -> Path:
    """Write ``report.html`` in `directory` with a heading and the sections of `page`, whole or not at all; return its path."""
    html = _environment().get_template("page.html").render(page=page, named=_Names())
    target = directory / "report.html"
    write_atomically(target, [html.encode("utf-8")])
    return target


class _Names:
    """Names for anchors that follow from titles, each given once."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def __call__(self, title: str) -> str:
        """Return a name for `title`, with a number where an earlier title had the same."""
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "figure"
        self._given[name] = count = self._given.get(name, 0) + 1
        return f"at-{name}" if count == 1 else f"at-{name}-{count}"
