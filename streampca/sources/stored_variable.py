"""The array of one variable of a table, and the steps to its rows in the table: a mask leaves features out, packed values are decoded.

Which features a mask names: those of an array of truth values, or those that were ever observed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from streampca.errors import DataError, ParameterError, PartlyMissingError
from streampca.labels import Labels
from streampca.sources.alignment import of_features
from streampca.sources.arrays import read_array
from streampca.sources.base import Source
from streampca.sources.packing import Packing, can_hold
from streampca.sources.steps import Cast, ChosenFeatures, Elementwise, Step, SteppedSource, slabs
from streampca.system.workspace import borrow
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
        if value is None:
            return self
        packing = self.packing or Packing.none(self.source.dtype)
        if not can_hold(packing.stored, value):
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


FROM_DATA = ("observed", "survey")
"""Masks that are found in the data: features of which the first rows, or all rows, hold a value."""
_READ_BYTES = 2**26


def feature_mask(mask: object, labels: Labels, parts: Sequence[StoredVariable], label: str) -> BoolArray:
    """Return which features a mask names as used, of all variables one after another.

    Parameters
    ----------
    mask : array, str, Path or {"observed", "survey"}
        True (or a number other than zero and NaN) for features that are used, or the path of an ``.npy`` file of these: an array of the shape of one variable, for all
        variables of this shape, or of all features in one dimension; with labels, see `streampca.sources.alignment`. ``"observed"`` stands for the features with a value in the
        first rows, at most those of 64 MiB and of one chunk, which are read at once; ``"survey"`` reads all rows.

    Raises
    ------
    DataError
        If the shape is another one, or no feature is used.
    """
    if isinstance(mask, str | Path) and str(mask) not in FROM_DATA:
        mask = read_array("mask", str(mask))
    if isinstance(mask, str):
        used = np.concatenate([_observed(part, every_row=mask == "survey") for part in parts])
    else:
        used = _of_array(mask, labels, label)
    if not used.any():
        raise DataError(
            f"{label}: the mask leaves out all of {len(used):,} features: expected True for those that are used"
        )
    return used


def _of_array(given: object, labels: Labels, label: str) -> BoolArray:
    try:
        mask = np.asarray(of_features("mask", given if hasattr(given, "ndim") else np.asarray(given), labels))
    except ParameterError as error:
        raise DataError(f"{label}: {error}") from error
    if mask.dtype.kind not in "biuf":
        raise ParameterError(f"{label}: mask has dtype {mask.dtype}: expected truth values or numbers")
    used: BoolArray = np.nan_to_num(mask) != 0 if mask.dtype.kind == "f" else mask.astype(bool)
    if used.shape != (labels.n_features,):
        raise DataError(
            f"{label}: mask has shape {mask.shape}: expected one value for each of the {labels.n_features} features"
        )
    return used


def _observed(part: StoredVariable, *, every_row: bool) -> BoolArray:
    """Return which features of an array have a value in its first rows, or in any row."""
    source, n_rows = part.source, part.source.shape[0]
    step = max(1, min(source.chunk_rows, _READ_BYTES // source.row_bytes, n_rows))
    observed = np.zeros(part.n_stored, dtype=bool)
    for start in range(0, n_rows if every_row else step, step):
        stop = min(start + step, n_rows)
        stored, _ = source.read(start, stop, borrow("stored rows", (stop - start, part.n_stored), source.dtype))
        observed |= ~part.missing(stored).all(axis=0)
        if observed.all():
            break
    return observed
