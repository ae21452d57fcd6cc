"""Result of the verification of a run: one line for each check."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from streampca.errors import DataError
from streampca.sources.base import ReadCount

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


def close(
    name: str,
    recorded: float,
    measured: float,
    scale: float,
    allowed: float,
    note: str,
    *,
    difference: float | None = None,
) -> Check:
    """Return the comparison of two numbers relative to `scale`; `difference` is that of others where these are examples."""
    apart = abs(measured - recorded) if difference is None else difference
    relative = apart / scale if scale > 0 else (0.0 if apart == 0 else float("inf"))
    return Check(
        name, float(recorded), float(measured), float(relative), float(allowed), bool(relative <= allowed), note
    )


class VerificationData(TypedDict):
    """A `Verification` as plain data."""

    directory: str
    """The run."""
    holds: bool
    """Whether nothing differs."""
    checks: list[dict[str, object]]
    """The fields of each `Check` and its verdict; null for numbers that are not finite."""
    reads: dict[str, int]
    """Chunks and bytes that were read."""
    seconds: float
    """Duration in seconds."""


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

    def to_dict(self) -> VerificationData:
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
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
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


def _plain(check: Check) -> dict[str, object]:
    data = {**asdict(check), "verdict": check.verdict}
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in data.items()
    }


def _figure(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
