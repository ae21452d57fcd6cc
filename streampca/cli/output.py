"""How commands print: results on stdout, as text wrapped to the terminal or as JSON; log lines, notices and errors on stderr."""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

import click


def print_json(document: Mapping[str, object]) -> None:
    """Print a document as JSON, with null for numbers that are not finite."""
    text = json.dumps(document, indent=2, default=str)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(_finite(json.loads(text)), indent=2)
    click.echo(text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


def write_line(text: str) -> None:
    """Write a line to stderr, above a progress bar that is shown there."""
    if "tqdm" in sys.modules:
        from tqdm import tqdm

        with tqdm.external_write_mode(file=sys.stderr):
            click.echo(text, err=True)
    else:
        click.echo(text, err=True)


def print_error_line(message: str, label: str = "error: ") -> None:
    """Write a sentence of the program to stderr."""
    write_line(f"streampca: {label}{message}")
