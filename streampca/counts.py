"""What the option `normalize` does with counts: each of its keys stated once, without numpy, since configurations are read with it."""

from __future__ import annotations

from typing import Any, NamedTuple


class CountKey(NamedTuple):
    """A key of `normalize`."""

    name: str
    """The key."""
    takes: type[bool] | type[float]
    """``bool`` where it is done or not; ``float`` for a number above 0, None where it is not done."""
    text: str
    """What is done, in one sentence for the reference."""
    step: str
    """Name of the class of its step, in `streampca.sources.cells.normalization`."""

    @property
    def default(self) -> Any:
        """Return the value that does nothing."""
        return False if self.takes is bool else None


NORMALIZE = (
    CountKey(
        "target_sum", float, "Number that the values of all features of a row are scaled to add up to.", "ScaledCounts"
    ),
    CountKey("log1p", bool, "Take the logarithm of one plus each value.", "LogarithmOfCounts"),
)
"""The keys in the order in which they are done: the option, its errors, and the keys of configurations are made from them."""


def keys_in_words() -> str:
    """Return what the option is given, for messages."""
    *others, last = (key.name for key in NORMALIZE)
    return f"a mapping with {', '.join(others)}, {last}, or {'both' if len(others) == 1 else 'several'}"
