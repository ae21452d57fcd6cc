"""What a loop of injected faults came to: the one figure that counts is how many ended in neither of the three allowed ways."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Score:
    """Counts of one kind of fault; every injected fault ends in one of `detected`, `survived`, `wrong`, `hangs`, `tracebacks`.

    (But for kills of the same run, which survives or does not as a whole: there `injected` counts kills.)
    """

    name: str
    """What was injected."""
    injected: int = 0
    """Faults that took effect."""
    detected: int = 0
    """Those that ended in a named error, with what was there before untouched."""
    survived: int = 0
    """Those after which the run had the right numbers, bit for bit."""
    wrong: int = 0
    """Wrong numbers without a word, changed output, or anything else that was promised not to happen."""
    hangs: int = 0
    """Those that were given up after a time that no sound run takes."""
    tracebacks: int = 0
    """Those that ended in an error without a name of ours."""
    seconds: float = 0.0
    """Time that all of it took."""
    notes: list[str] = field(default_factory=list)
    """A line for each failure, with the command that repeats it; other lines are figures."""

    def require_clean(self) -> None:
        """Raise `AssertionError`, with the notes, if anything went wrong."""
        found = f"{self.name}: {self.wrong} wrong, {self.hangs} hangs, {self.tracebacks} tracebacks of {self.injected}"
        assert self.wrong == self.hangs == self.tracebacks == 0, "\n".join([found, *self.notes])

    def line(self) -> str:
        """Return a row of the Markdown table."""
        figures = (self.injected, self.survived, self.detected, self.wrong, self.hangs, self.tracebacks)
        return f"| {self.name} | {' | '.join(f'{n:,}' for n in figures)} | {self.seconds:,.0f} |"


def again(loop: str, seed: int) -> str:
    """Return the command that repeats one fault of a loop."""
    return f"scripts/faults --only {loop} --count 1 --seed {seed}"
