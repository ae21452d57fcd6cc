"""Formatting of numbers, sizes, times, errors and foreign text for people: for terminals, and below for HTML."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape

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


def lines_as_text(lines: Iterable[tuple[str, str]]) -> str:
    """Return names and texts as lines of two columns."""
    return "\n".join(f"{name:<13}{text}" for name, text in lines)


def lines_as_html(lines: Iterable[tuple[str, str]]) -> str:
    """Return names and texts as a table of HTML, for notebooks."""
    rows = (f"<tr><th>{escape(clean(name))}</th><td>{escape(clean(text, 2000))}</td></tr>" for name, text in lines)
    return f"<table>{''.join(rows)}</table>"


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


MISSING = "\N{EM DASH}"
SPACE = "\N{NO-BREAK SPACE}"

# C0 and C1 controls, marks that turn the direction of writing, and lone surrogates that UTF-8 cannot carry.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def clean(value: object, limit: int = 240) -> str:
    """Return `value` as one line of at most `limit` characters, with what cannot be seen written out as its code."""
    if value is None:
        return MISSING
    text = value[: limit + 1] if isinstance(value, str) else str(value)[: limit + 1]

    def escaped(match: re.Match[str]) -> str:
        code = ord(match.group())
        if code in (0x09, 0x0A, 0x0D):
            return " "
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    shown = _UNSAFE.sub(escaped, text[:limit])
    return shown + "…" if len(text) > limit else shown


def number(value: object) -> float | None:
    """Return `value` when it is a finite number, else None: fields of a file may hold anything."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def whole(value: object) -> int | None:
    """Return `value` when it is an integer that is not negative, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


def numbers(value: object, limit: int | None = None) -> list[float]:
    """Return the leading finite numbers of a list; nothing when it is not one."""
    result: list[float] = []
    if isinstance(value, Sequence) and not isinstance(value, str):
        for entry in value[:limit]:
            checked = number(entry)
            if checked is None:
                break
            result.append(checked)
    return result


def count(value: object) -> str:
    """Return a whole number with separators: ``158,000``."""
    checked = whole(value)
    return MISSING if checked is None else f"{checked:,}"


def dimensions(shape: object) -> str:
    """Return a list of at most nine whole numbers as ``158,000 × 64``."""
    sides = [whole(side) for side in shape] if isinstance(shape, list) and len(shape) < 10 else []
    return " × ".join(map(count, sides)) if sides and None not in sides else MISSING


def share(value: object) -> str:
    """Return a fraction of one as a percentage that never rounds up to 100 or down to 0."""
    checked = number(value)
    if checked is None:
        return MISSING
    percent = 100 * checked
    if percent in (0, 100) or abs(percent - 100) < 1e-9:
        return f"{percent:.0f}{SPACE}%"
    if abs(percent) < 0.1:
        return f"{percent:.1g}{SPACE}%" if abs(percent) >= 1e-4 else f"{percent:.0e}{SPACE}%"
    for digits in range(1, 5):
        shown = f"{percent:.{digits}f}"
        if float(shown) < 100 or percent > 100:
            return f"{shown}{SPACE}%"
    return f"over 99.9999{SPACE}%"


def size(value: object) -> str:
    """Return bytes in the binary unit that suits them: ``301 MiB``."""
    checked = number(value)
    if checked is None:
        return MISSING
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if abs(checked) < 1000 or unit == "TiB":
            break
        checked /= 1024
    digits = 0 if unit == "bytes" or abs(checked) >= 100 else 1 if abs(checked) >= 10 else 2
    return f"{checked:,.{digits}f}{SPACE}{unit}"


def duration(value: object) -> str:
    """Return seconds as ``0.42 s``, ``12.3 s``, ``3 min 05 s`` or ``2 h 07 min``."""
    checked = number(value)
    if checked is None:
        return MISSING
    if round(checked, 1) < 60:
        return f"{checked:.{2 if checked < 10 else 1}f}{SPACE}s"
    minutes, seconds = divmod(round(checked), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min {seconds:02d}{SPACE}s"
    return f"{minutes // 60:,}{SPACE}h {minutes % 60:02d}{SPACE}min"


def figure(value: object, digits: int = 4) -> str:
    """Return a number to `digits` significant digits, ``3.2 × 10⁻¹⁶`` where that is shorter."""
    checked = number(value)
    if checked is None:
        return MISSING
    if checked == 0:
        return "0"
    exponent = math.floor(math.log10(abs(checked)))
    if -4 <= exponent < 7:
        return f"{checked:,.{max(0, digits - 1 - exponent)}f}"
    mantissa, _, power = f"{checked:.{max(0, digits - 1)}e}".partition("e")
    exponents = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}{SPACE}×{SPACE}10{exponents}"


def angle(sine: float) -> str:
    """Return the angle of a sine in degrees: ``0.35°``, ``4 × 10⁻⁹°``."""
    degrees = math.degrees(math.asin(min(1.0, max(0.0, sine))))
    return f"{figure(degrees, 2)}°"


Facts = tuple[str, list[tuple[str, str]]]
"""Names with values in a box of their own: its heading, and pairs of name and value."""


def facts(title: str, pairs: Sequence[tuple[str, str]]) -> Facts:
    """Return a box of names with values, without those whose value is missing."""
    return title, [(name, value) for name, value in pairs if value != MISSING]


def plural(n: object, one: str, many: str | None = None) -> str:
    """Return `n` with its noun: ``1 row``, ``2 rows``."""
    return f"{count(n)} {one if whole(n) == 1 else many or one + 's'}"


def sentence(text: str) -> str:
    """Return `text` with a capital first letter, unless its first word is a name from code such as ``n_components=5``."""
    first = text.partition(" ")[0].rstrip(",:;")
    return text if re.search(r"[_=.(/]", first) else text[:1].upper() + text[1:]


def times(n: object) -> str:
    """Return ``one pass``, ``two passes`` or ``12 passes``."""
    spelled = {1: "one pass", 2: "two passes", 3: "three passes"}
    checked = whole(n)
    return spelled.get(checked or 0, plural(n, "read"))
