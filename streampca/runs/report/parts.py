"""What several sections of a page consist of: charts, tables and pictures, plain values with the words beside them."""

from __future__ import annotations

from dataclasses import dataclass


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
