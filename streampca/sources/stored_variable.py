"""The array of one variable of a table, and the steps to its rows in the table: a mask leaves features out, packed values are decoded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streampca.errors import PartlyMissingError
from streampca.sources.base import Source
from streampca.sources.packing import Packing, can_hold
from streampca.sources.steps import Cast, ChosenFeatures, Elementwise, Step, SteppedSource, slabs
from streampca.typing import Array, BoolArray, DType


@dataclass(frozen=True)
class StoredVariable:
    """The array of one variable."""

    source: Source
    """Its rows as they are stored."""
    packing: Packing | None = None
    """How its values are decoded; None where they are meant as they are stored."""
    mask: BoolArray | None = None
    """Which of its features are in the table, ``(n_features,)``; None where all are."""
    observed_only: bool = False
    """Whether features that are not used must hold no value at all, which is checked whenever they are read."""
    missing_value: float | None = None
    """The stored number that counts as missing because the user says so; one of the fill values of `packing`."""

    @property
    def n_stored(self) -> int:
        """Return the number of its features, those that are left out included."""
        return self.source.shape[1]

    @property
    def n_features(self) -> int:
        """Return the number of its features in the table."""
        return self.n_stored if self.mask is None else int(self.mask.sum())

    @property
    def dtype(self) -> DType:
        """Return the data type of its values in the table."""
        return self.source.dtype if self.packing is None else self.packing.dtype

    def masked(self, mask: BoolArray | None, observed_only: bool) -> StoredVariable:
        """Return the variable with only the features in `mask`."""
        return replace(self, mask=None if mask is None or mask.all() else mask, observed_only=observed_only)

    def missing(self, stored: Array) -> BoolArray:
        """Return where stored values mean that nothing was observed."""
        return _missing(self.packing, stored)

    def decoded_to(self, dtype: DType) -> StoredVariable:
        """Return the variable whose values are decoded to `dtype`."""
        if dtype == self.dtype:
            return self
        packing = self.packing or Packing.none(self.source.dtype)
        return replace(self, packing=replace(packing, dtype=dtype))

    def with_missing(self, value: float | None) -> StoredVariable:
        """Return the variable with one more stored number that means missing, if it can have it; None = no other."""
        packing = self.packing or Packing.none(self.source.dtype)
        if value is None or not can_hold(packing.stored, value):
            return self
        return replace(self, packing=packing.with_missing(value), missing_value=value)

    @property
    def missing_values(self) -> tuple[float, ...]:
        """Return the stored numbers that count as missing, beside NaN."""
        return () if self.packing is None else self.packing.fills

    def rows(self, dtype: DType) -> Source:
        """Return its rows as they are in a table of `dtype`: the used features, decoded."""
        steps: list[Step] = []
        if self.mask is not None and self.observed_only:
            steps.append(_Observed(self.mask, self.packing, self.source.description))
        elif self.mask is not None:
            steps.append(ChosenFeatures(self.mask))
        if self.packing is not None:
            steps.append(Unpacked(replace(self.packing, dtype=dtype)))
        elif self.source.dtype != dtype:
            steps.append(Cast(dtype))
        return SteppedSource(self.source, steps) if steps else self.source


class Unpacked(Elementwise):
    """Packed values as they are meant, NaN where nothing was observed; dense."""

    def __init__(self, packing: Packing):
        self.packing = packing

    @property
    def digest(self) -> bytes:
        """Return how values are decoded."""
        return f"{self.packing}".encode()

    def dtype(self, dtype: DType) -> DType:
        """Return the data type of decoded values."""
        return self.packing.dtype

    def of_values(self, values: Array, out: Array) -> None:
        """Write the decoded values to `out`."""
        self.packing.decode(values, out)

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Raise `NotAvailableError`: values that are not stored need not be zero."""
        return Step.apply_stored(self, data, indices, indptr, start)


class _Observed(ChosenFeatures):
    """Features that were observed in the first rows; the others must hold no value at all, which is checked as rows are read."""

    def __init__(self, used: BoolArray, packing: Packing | None, description: str):
        super().__init__(used)
        self.packing, self.description = packing, description

    def __reduce__(self) -> tuple[object, ...]:
        return _Observed, (self.used, self.packing, self.description)

    def require(self, values: Array, start: int) -> None:
        """Raise `PartlyMissingError` if a feature that is left out has a value."""
        left_out = np.flatnonzero(~self.used)
        for rows in slabs(values):
            missing = _missing(self.packing, values[rows].take(left_out, axis=1))
            if missing.all():
                continue
            row, column = (int(index) for index in np.argwhere(~missing)[0])
            raise PartlyMissingError(
                f"{self.description}: feature {int(left_out[column])} was missing in every row of the first chunk, "
                f"and has a value in row {start + rows.start + row}: mask='observed' leaves out features that are never observed; name "
                "those to use with a mask of your own (mask='survey' reads all rows once more beforehand to find them), and say with "
                "missing= what the remaining missing values mean"
            )


def _missing(packing: Packing | None, stored: Array) -> BoolArray:
    """Return where stored values mean that nothing was observed."""
    if packing is not None:
        return packing.missing(stored)
    return np.isnan(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, dtype=bool)
