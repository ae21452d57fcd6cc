"""Sizes, times and errors as text for people."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"[=@\t\r]|[+-](?!\d[\d.,]*(e[+-]?\d+)?( ?[\w%]+)?$)")


def as_text(n_bytes: float) -> str:
    """Return a size in bytes as text: ``"3.1 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n_bytes) < 1024 or unit == "TiB":
            return f"{n_bytes:.0f} {unit}" if unit in ("B", "KiB", "MiB") else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    raise AssertionError("unreachable")


def as_seconds(seconds: float) -> str:
    """Return a time as text: ``"3.2 s"``, ``"14 min"``."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def one_line(error: BaseException) -> str:
    """Return the message of `error` on one line of at most 200 characters; the name of its class if it has none."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"


def shortened(text: str) -> str:
    """Return `text` without its middle if it has more than 400 characters: values from files may have any length."""
    return text if len(text) <= 400 else f"{text[:300]} … {text[-50:]}"


def plain_cell(text: str) -> str:
    """Return the text of a cell of a CSV file; one that a spreadsheet would compute begins with an apostrophe."""
    return f"'{text}" if len(text) > 1 and _FORMULA.match(text) else text
