"""Result of the verification of a run: one line for each check."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import DataError
from streampca.sources.base import ReadCount
from streampca.typing import Json

_MOST_CHARACTERS = 16


@dataclass(frozen=True)
class Check:
    """One quantity that was measured again."""

    name: str
    """Name of the quantity."""
    recorded: object = None
    """Value in the run."""
    measured: object = None
    """Value measured now."""
    difference: float | None = None
    """Their difference, relative to the quantity in `note`."""
    allowed: float | None = None
    """Allowed difference."""
    holds: bool | None = None
    """Whether they agree; None where it was not verified."""
    note: str = ""
    """Relative to what, or why not."""

    @property
    def verdict(self) -> str:
        """Return the outcome in a word."""
        return "not verified" if self.holds is None else "ok" if self.holds else "differs"


def compared(
    name: str,
    recorded: ArrayLike,
    measured: ArrayLike,
    allowed: float,
    note: str,
    *,
    scale: ArrayLike = 1.0,
    apart: ArrayLike | None = None,
    first: int = 1,
) -> Check:
    """Return the comparison of two numbers, or of two arrays, ``(n,)``, by the entries that differ most.

    Differences, or what is given as `apart` in place of them, are divided by `scale`; none is allowed where it is 0. In `note`, which
    says relative to what, ``{}`` becomes the number of the entry, counted from `first`.
    """
    before, after = (np.atleast_1d(np.asarray(each, dtype=np.float64)) for each in (recorded, measured))
    if before.shape != after.shape:
        return Check(name, len(before), len(after), holds=False, note="how many there are")
    differences = np.abs(after - before) if apart is None else np.atleast_1d(np.asarray(apart, dtype=np.float64))
    units = np.broadcast_to(np.asarray(scale, dtype=np.float64), before.shape)
    relative = np.divide(differences, units, out=np.where(differences > 0, np.inf, 0.0), where=units > 0)
    worst = int(np.nan_to_num(relative, nan=np.inf, posinf=np.inf).argmax())
    difference = float(relative[worst])
    holds, numbered = bool(difference <= allowed), note.format(worst + first)
    return Check(name, float(before[worst]), float(after[worst]), difference, float(allowed), holds, numbered)


def shown(value: object) -> object:
    """Return a value as a check shows it: a number or text."""
    return value if isinstance(value, int | float | str) or value is None else "another list"


@dataclass(frozen=True)
class Verification:
    """Result of the verification of a run."""

    directory: Path
    """The run."""
    checks: tuple[Check, ...]
    """All checks."""
    shape: tuple[int, int]
    """Shape of the data."""
    count: ReadCount
    """Chunks and bytes that were read."""
    seconds: float
    """Duration in seconds."""

    @property
    def failed(self) -> list[str]:
        """Return the names of what differs."""
        return [check.name for check in self.checks if check.holds is False]

    def require(self) -> None:
        """Raise `DataError` if anything differs."""
        if self.failed:
            n = sum(check.holds is not None for check in self.checks)
            raise DataError(
                f"{self.directory}: {len(self.failed)} of {n} checks differ: {', '.join(self.failed)}: the data or the run have "
                "changed since; run again on the present data, or restore them"
            )

    def to_dict(self) -> Json:
        """Return plain data for JSON."""
        return {
            "directory": str(self.directory),
            "holds": not self.failed,
            "checks": [_plain(check) for check in self.checks],
            "reads": asdict(self.count),
            "seconds": self.seconds,
        }

    def table(self) -> tuple[list[str], int]:
        """Return a line for each check under a heading, and the column in which the notes begin."""
        rows = [["", "recorded", "measured", "difference", "allowed", ""]]
        for check in self.checks:
            numbers = (check.recorded, check.measured, check.difference, check.allowed)
            rows.append([check.name, *map(_figure, numbers), check.verdict])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row, note in zip(rows, ("", *(check.note for check in self.checks)), strict=True):
            cells = (f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
            lines.append(f"{'  '.join(cells)}  {note}".rstrip())
        return lines, sum(widths) + 2 * len(widths)

    @property
    def summary(self) -> str:
        """Return the outcome in a sentence."""
        rows, features = self.shape
        outcome = f"different: {', '.join(self.failed)}" if self.failed else "all that was measured agrees"
        return f"{self.directory}: {rows:,} x {features:,} read again in {self.seconds:.1f} s: {outcome}"


def _plain(check: Check) -> Json:
    data = {**asdict(check), "verdict": check.verdict}
    infinite = {key for key, value in data.items() if isinstance(value, float) and not math.isfinite(value)}
    return data | dict.fromkeys(infinite)


def _figure(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
