"""How commands print: results on stdout, as text wrapped to the terminal or as JSON; progress and notices on stderr."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from streampca.execution.progress import ProgressCallback


@contextmanager
def progress_bar(quiet: bool) -> Iterator[ProgressCallback | None]:
    """Give a progress callback, or None; close it at the end."""
    if quiet:
        yield None
        return
    from streampca.runs.progress import ProgressBar

    bar = ProgressBar()
    try:
        yield bar
    finally:
        bar.close()


def print_json(data: Mapping[str, object]) -> None:
    """Print a result as JSON."""
    click.echo(json.dumps(data, indent=2, default=str))


def print_wrapped(text: str, indent: int) -> None:
    """Print a line, wrapped under `indent` spaces on a terminal; elsewhere it stays one line."""
    if sys.stdout.isatty():
        width = max(40, min(shutil.get_terminal_size().columns, 120))
        text = textwrap.fill(
            text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )
    click.echo(text)


def on_one_line(text: str) -> str:
    """Return `text` on one line, with control characters escaped: names come from files of others."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def notice(sentence: str) -> None:
    """Print a sentence on stderr."""
    click.echo(f"streampca: {on_one_line(sentence)}", err=True)
