"""Keys of the option `normalize`, each stated once; without numpy, because configurations import them."""

from __future__ import annotations

from typing import Any, NamedTuple


class CountKey(NamedTuple):
    """A key of `normalize`."""

    name: str
    """The key."""
    takes: type[bool] | type[float] | type[str]
    """``bool`` where it is done or not; ``float`` for a number above 0, ``str`` for `words` alone; None where it is not done."""
    text: str
    """What is done, in one sentence for the reference."""
    step: str
    """Name of the class of its step, in `streampca.sources.normalization`."""
    words: tuple[str, ...] = ()
    """Words that it takes, too."""
    excludes: tuple[str, ...] = ()
    """Keys that it does not go together with."""
    dense: bool = False
    """Whether it leaves no zeros; then it, and the keys after it, are done with the features that are used alone."""
    of_rows: bool = False
    """Whether all tables take it, and not AnnData alone: it needs to know nothing but the row. Words for a number are for AnnData."""
    of_used: bool = False
    """Whether it is done with the features that are used alone, though it leaves zeros."""

    @property
    def default(self) -> Any:
        """Return the value that does nothing."""
        return False if self.takes is bool else None

    @property
    def allowed(self) -> str:
        """Return the values that it takes, for messages and the reference."""
        if self.takes is bool:
            return "True or False"
        number = ["a number above 0"] if self.takes is float else []
        return ", ".join([*number, *self.words]) + ", or None"

    @property
    def allowed_of_rows(self) -> str:
        """Return the values other than the default that tables take that are not AnnData, for messages."""
        return "True" if self.takes is bool else "a number above 0" if self.takes is float else ", ".join(self.words)


NORMALIZE = (
    CountKey(
        "target_sum",
        float,
        "Number that the values of all features of a row are scaled to add up to; median: the median of the sums of rows above 0, which "
        "is read first.",
        "ScaledCounts",
        ("median",),
        of_rows=True,
    ),
    CountKey(
        "idf",
        bool,
        "Multiply each feature by the number of rows over the sum of its counts, which are read first: with target_sum and log1p the "
        "TF-IDF of peaks (Signac's first method).",
        "InverseFrequencies",
    ),
    CountKey("log1p", bool, "Take the logarithm of one plus each value.", "LogarithmOfCounts", of_rows=True),
    CountKey(
        "norm",
        str,
        "Divide each row by its norm, that of the features that are used: l2 (the root of the sum of squares), l1 (the sum of the moduli) "
        "or max (the largest modulus). Rows of zeros stay as they are.",
        "UnitRows",
        ("l2", "l1", "max"),
        of_rows=True,
        of_used=True,
    ),
    CountKey(
        "residuals",
        str,
        "Analytic Pearson residuals of the features that are used, with theta 100 and clipped at the root of the number of rows; sums of "
        "features are read first.",
        "PearsonResiduals",
        ("pearson",),
        ("target_sum", "idf", "log1p", "norm", "max_value"),
        dense=True,
    ),
    CountKey(
        "max_value",
        float,
        "Standardise each feature that is used, by its mean and standard deviation, which are read first, and clip at this number.",
        "ClippedScores",
        dense=True,
    ),
)
"""The keys in the order in which their steps are done: the option, its errors, and the keys of configurations are made from them."""


def keys_in_words() -> str:
    """Return what the option is given, for messages."""
    *others, last = (key.name for key in NORMALIZE)
    return f"a mapping with {', '.join(others)}, {last}, or {'both' if len(others) == 1 else 'several'}"
