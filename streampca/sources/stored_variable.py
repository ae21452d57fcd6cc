"""The array of one variable of a table: decoded, and without the features that a mask leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from streampca.errors import PartlyMissingError
from streampca.sources.base import ReadCount, Source
from streampca.sources.packing import Packing, can_hold
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, DType, IntArray

_SLAB_BYTES = 1 << 18  # decoded while it is in the cache of a core


@dataclass(frozen=True)
class StoredVariable:
    """The array of one variable."""

    source: Source
    """Its rows as they are stored; if the table is turned, its features."""
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
        if self.packing is not None:
            return self.packing.missing(stored)
        return np.isnan(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, dtype=bool)

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

    def turned(self) -> StoredVariable:
        """Return the part whose source has features in rows."""
        return replace(self, source=self.source.by_features())

    def overhead_bytes(self, n_rows: int, *, turned: bool = False) -> int:
        """Return the memory in bytes that reading `n_rows` rows of its source takes beside the block."""
        n_rows = self.longest_span(n_rows) if turned else n_rows
        reading = self.source.overhead_bytes(n_rows)
        if self.packing is None and self.mask is None:
            return reading
        return reading + n_rows * self.source.row_bytes + 4 * _SLAB_BYTES

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_features)``, with the used features of rows `start` to `stop`."""
        if self.packing is None and self.mask is None and out.dtype == self.source.dtype:
            return _read_into(self.source, start, stop, out)
        stored, count = self._stored(start, stop)
        if self.observed_only and self.mask is not None:
            self._require_missing(stored, np.flatnonzero(~self.mask), start)
        used = None if self.mask is None else np.flatnonzero(self.mask)
        if self.source.column_major:
            self._decode_rows(stored.T, used, out.T)
        else:
            self._decode_columns(stored, used, out)
        return count

    def read_features(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out` with used features `start` to `stop` as rows; the source is a turned one."""
        if self.packing is None and self.mask is None and out.dtype == self.source.dtype:
            return _read_into(self.source, start, stop, out)
        places = self.places(start, stop)
        stored, count = self._stored(int(places[0]), int(places[-1]) + 1)
        used = None if self.mask is None else places - places[0]
        if self.source.column_major:
            self._decode_columns(stored.T, used, out.T)
        else:
            self._decode_rows(stored, used, out)
        return count

    def places(self, start: int, stop: int) -> IntArray:
        """Return where used features `start` to `stop` are among all features of the array."""
        return np.arange(start, stop) if self.mask is None else np.flatnonzero(self.mask)[start:stop]

    def longest_span(self, n_features: int) -> int:
        """Return how many features of the array lie between the first and the last of `n_features` used ones, at most."""
        n = min(n_features, self.n_features)
        if self.mask is None:
            return n
        places = np.flatnonzero(self.mask)
        return int((places[n - 1 :] - places[: len(places) - n + 1]).max()) + 1

    def _stored(self, start: int, stop: int) -> tuple[Array, ReadCount]:
        """Return rows of the source as they are stored, in scratch memory."""
        shape = (stop - start, self.source.shape[1])
        if self.source.column_major:
            return self.source.read(start, stop, borrow("stored rows", shape[::-1], self.source.dtype).T)
        return self.source.read(start, stop, borrow("stored rows", shape, self.source.dtype))

    def _decode_columns(self, stored: Array, used: IntArray | None, out: Array) -> None:
        """Write the decoded columns `used` of stored values to `out`, a few rows at a time, which stay in the cache."""
        for rows in _slabs(stored):
            values = stored[rows]
            if used is not None:
                columns = borrow("used columns", (len(values), len(used)), stored.dtype)
                values = values.take(used, axis=1, out=columns, mode="clip")  # the mode that needs no copy of `columns`
            self._decode(values, out[rows])

    def _decode_rows(self, stored: Array, used: IntArray | None, out: Array) -> None:
        """Write the decoded rows `used` of stored values to `out`, a few at a time."""
        for rows in _slabs(out):
            self._decode(stored[rows] if used is None else stored[used[rows]], out[rows])

    def _decode(self, stored: Array, out: Array) -> None:
        """Write stored values to `out` as they are meant."""
        if self.packing is None:
            out[...] = stored
        else:
            self.packing.decode(stored, out)

    def _require_missing(self, stored: Array, left_out: IntArray, start: int) -> None:
        """Raise `DataError` if a feature that was left out because it was never observed has a value in rows from `start` on."""
        for rows in _slabs(stored):
            missing = self.missing(stored[rows].take(left_out, axis=1))
            if missing.all():
                continue
            row, column = (int(index) for index in np.argwhere(~missing)[0])
            raise PartlyMissingError(
                f"{self.source.description}: feature {int(left_out[column])} was missing in every row of the first chunk, "
                f"and has a value in row {start + rows.start + row}: mask='observed' leaves out features that are never observed; name "
                "those to use with a mask of your own (mask='survey' reads all rows once more beforehand to find them), and say with "
                "missing= what the remaining missing values mean"
            )


def _slabs(values: Array) -> Iterator[slice]:
    """Yield slices of rows that fit in the cache of a core while they are decoded."""
    step = max(1, _SLAB_BYTES // max(1, values[:1].nbytes))
    for first in range(0, len(values), step):
        yield slice(first, min(first + step, len(values)))


def _read_into(source: Source, start: int, stop: int, out: Array) -> ReadCount:
    """Fill `out` with rows of a source, which may return a view of its own memory instead."""
    values, count = source.read(start, stop, out)
    if values is not out:
        out[...] = values
    return count
