"""Packed values of the CF conventions: integers with a scale and an offset, and values that mean nothing was observed.

Sources: CF conventions 1.11, sections 2.5.1 (missing data) and 8.1 (packed data); the NetCDF User's Guide, ``_Unsigned``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from streampca.errors import PackedDataError
from streampca.sources.conventions import VALID, fill_number, is_nan, number_of, packing
from streampca.typing import Array, BoolArray, DType

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ArrayMetadata

_FILLS = ("_FillValue", "missing_value", "fill_value")
_ALL = (-math.inf, math.inf)


@dataclass(frozen=True)
class Packing:
    """How the stored values of an array are decoded: ``stored * scale + offset``, and NaN for fill values and those out of range."""

    stored: DType
    """Data type of the values that are compared with the fill values: unsigned where ``_Unsigned`` says so."""
    scale: float
    """Attribute ``scale_factor``, 1 where there is none."""
    offset: float
    """Attribute ``add_offset``, 0 where there is none."""
    fills: tuple[float, ...]
    """Stored values that mean that nothing was observed."""
    attributes: Mapping[str, object]
    """The attributes, as they are in the store."""
    dtype: DType
    """Data type of decoded values: that of xarray."""
    valid: tuple[float, float] = field(default=_ALL, repr=False)
    """Lowest and highest stored value that is meant; all others mean that nothing was observed. `attributes` tell them, too."""
    without_effect: tuple[str, ...] = field(default=(), repr=False)
    """Attributes of missing values that no stored value can have, in words."""

    @classmethod
    def of(cls, metadata: ArrayMetadata, label: str) -> Packing | None:
        """Return how the array of these zarr metadata is decoded, see `of_attributes`."""
        dtype = (metadata.dtype if metadata.zarr_format == 2 else metadata.data_type).to_native_dtype()
        return cls.of_attributes(packing(metadata), dtype, label)

    @classmethod
    def of_attributes(
        cls, attributes: Mapping[str, object], dtype: DType, label: str, *, single: bool = False
    ) -> Packing | None:
        """Return how values with these attributes of packed values are decoded, None where they are meant as they are stored.

        `single` says that scale and offset are stored as float32, which makes values that 24 bits hold float32 (CF
        conventions, section 8.1). All others with a scale or an offset are float64: a large offset would take their digits.

        Raises
        ------
        PackedDataError
            If a scale or offset is not one number, the scale is zero, or a fill value is not a number.

        Notes
        -----
        A fill value or a bound that the data type cannot have marks no value, as in xarray and netCDF4: see `without_effect`.
        """
        if not attributes:
            return None
        dtype = _unsigned(dtype) if "_Unsigned" in attributes else dtype
        scale, offset = (
            _finite(name, attributes[name], label) if name in attributes else neutral
            for name, neutral in (("scale_factor", 1.0), ("add_offset", 0.0))
        )
        if scale == 0:
            raise PackedDataError(
                f"{label} has scale_factor=0 (CF conventions): all values would be add_offset; {_CURE}"
            )
        without_effect: list[str] = []
        fills = [
            fill
            for name in _FILLS
            if name in attributes
            for fill in _fills(name, attributes[name], dtype, label, without_effect)
        ]
        valid = _valid(attributes, dtype, without_effect)
        exact = single or (scale, offset) == (1.0, 0.0)
        decoded = _holding(dtype) if exact else np.dtype(np.float64)
        fills = list(dict.fromkeys(fills))
        return cls(dtype, scale, offset, tuple(fills), attributes, decoded, valid, tuple(without_effect))

    @classmethod
    def none(cls, dtype: DType) -> Packing:
        """Return how values of `dtype` are decoded that are meant as they are stored."""
        return cls(dtype, 1.0, 0.0, (), {}, _holding(dtype))

    def with_missing(self, value: float) -> Packing:
        """Return the same with one more stored number that means missing, which values of this type can have."""
        return self if value in self.fills else replace(self, fills=(*self.fills, value))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a plan says of the attributes of missing values."""
        applied = [name for name in (*_FILLS, *VALID) if name in self.attributes]
        applied = [name for name in applied if not any(text.startswith(f"{name}=") for text in self.without_effect)]
        notes = []
        if self.valid != _ALL:
            low, high = self.valid
            notes.append(
                f"{len(applied)} attribute(s) of missing values apply ({', '.join(applied)}): stored numbers below {low:.9g} or above "
                f"{high:.9g} count as missing"
            )
        if self.without_effect:
            notes.append(
                f"{', '.join(self.without_effect)} (CF conventions) cannot be a bound or a value of {self.stored}, and marks no value as "
                "missing"
            )
        return tuple(notes)

    def missing(self, stored: Array) -> BoolArray:
        """Return where stored values mean that nothing was observed."""
        stored = stored.view(self.stored) if stored.dtype != self.stored else stored
        missing: BoolArray = np.isnan(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, dtype=bool)
        for fill in self.fills:
            missing |= stored == stored.dtype.type(fill)
        low, high = self.valid
        if low > -math.inf:
            missing |= stored < stored.dtype.type(low)
        if high < math.inf:
            missing |= stored > stored.dtype.type(high)
        return missing

    def decode(self, stored: Array, out: Array) -> None:
        """Write the decoded values to `out`, a floating type; NaN where nothing was observed."""
        stored = stored.view(self.stored) if stored.dtype != self.stored else stored
        marked = bool(self.fills) or self.valid != _ALL
        missing = self.missing(stored) if marked and self._may_be_missing(stored) else None
        if missing is not None and not missing.any():
            missing = None
        if missing is not None and self.stored.itemsize <= 2 and self.stored.kind in "iu":
            # Scattered missing values take longer than the others: a table of all values is faster, with the same bits.
            table = _decoded_integers(self.stored, self.scale, self.offset, self.fills, self.valid, out.dtype)
            np.take(table, stored.view(_unsigned(self.stored)), out=out, mode="wrap")
            return
        out[...] = stored
        _scale(out, self.scale, self.offset)
        if missing is not None:
            out[missing] = np.nan

    def _may_be_missing(self, stored: Array) -> bool:
        """Return whether integers may be missing by their range; finding that is faster than comparing each of them."""
        if stored.dtype.kind not in "iu" or not stored.size:
            return True
        lowest, highest = stored.min(), stored.max()
        if lowest < self.valid[0] or highest > self.valid[1]:
            return True
        return any(lowest <= fill <= highest for fill in map(stored.dtype.type, self.fills))


def can_hold(dtype: DType, value: float) -> bool:
    """Return whether an array of this type can have `value`, up to the rounding of floats."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.min <= value <= limits.max and value == int(value)
    return dtype.kind == "f" and abs(value) <= np.finfo(dtype).max


def with_nan(values: Array, missing_value: float | None) -> Array:
    """Return `values` with NaN for `missing_value`, as floats; as they are where it is None or their type cannot have it."""
    if missing_value is None or not can_hold(values.dtype, missing_value):
        return values
    packing = Packing.none(values.dtype).with_missing(missing_value)
    out = np.empty_like(values, dtype=packing.dtype)
    packing.decode(values, out)
    return out


def unpacked(values: Array, attributes: Mapping[str, object], label: str) -> Array:
    """Return the values of a coordinate or of labels that `attributes` declare as packed: float64 if that changes any, else as stored.

    Attributes that no value can have, or that are wrong, are left out of account, as those of times, whose units are decoded. So is
    the valid range: a coordinate has no missing values, and many files have longitudes outside of theirs.
    """
    attributes = {name: value for name, value in attributes.items() if name not in VALID}
    if not attributes or values.dtype.kind not in "iuf":
        return values
    try:
        packing = Packing.of_attributes(attributes, values.dtype, label)
    except PackedDataError:
        return values
    if packing is None or ((packing.scale, packing.offset) == (1.0, 0.0) and not packing.missing(values).any()):
        return values
    out = np.empty(values.shape)
    packing.decode(values, out)
    return out


def _holding(dtype: DType) -> DType:
    """Return the floating type that holds values of `dtype`: float32 for those of up to 24 digits, else float64."""
    return np.dtype(np.float32 if dtype.itemsize <= (4 if dtype.kind == "f" else 2) else np.float64)


def _unsigned(dtype: DType) -> DType:
    return np.dtype(f"u{dtype.itemsize}").newbyteorder(dtype.byteorder)


def _scale(values: Array, scale: float, offset: float) -> None:
    if scale != 1.0:
        values *= values.dtype.type(scale)
    if offset:
        values += values.dtype.type(offset)


@lru_cache(maxsize=32)
def _decoded_integers(
    stored: DType, scale: float, offset: float, fills: tuple[float, ...], valid: tuple[float, float], decoded: DType
) -> Array:
    """Return the decoded values of all integers of a type of 8 or 16 bits, by their bits read as an unsigned integer."""
    integers = np.arange(2 ** (8 * stored.itemsize)).astype(_unsigned(stored)).view(stored)
    table = integers.astype(decoded)
    _scale(table, scale, offset)
    for fill in fills:
        table[integers == stored.type(fill)] = np.nan
    table[(integers < valid[0]) | (integers > valid[1])] = np.nan
    return table


_CURE = 'correct the attribute, or, if the stored numbers are meant, set source.decode: raw (from Python: decode="raw")'


def _finite(name: str, value: object, label: str) -> float:
    number = number_of(value)
    if not math.isfinite(number):
        raise PackedDataError(
            f"{label} has {name}={str(value)[:60]!r} (CF conventions): expected a finite number; {_CURE}"
        )
    return number


def _fills(name: str, value: object, dtype: DType, label: str, without_effect: list[str]) -> list[float]:
    """Return the fill values that an attribute names, as values of `dtype`; those that it cannot have go to `without_effect`."""
    fills = []
    for one in value if isinstance(value, list | tuple) else [value]:
        if is_nan(one) and dtype.kind == "f":
            continue
        number = one if isinstance(one, int) else fill_number(one)
        if math.isnan(number) and not is_nan(one):
            raise PackedDataError(f"{label} has {name}={str(one)[:60]!r}: expected a number; {_CURE}")
        if number < 0 and dtype.kind == "u":  # a signed attribute of an array that _Unsigned declares unsigned
            number += 2 ** (8 * dtype.itemsize)
        if _is_value(dtype, number):
            fills.append(number)
        else:
            without_effect.append(f"{name}={str(one)[:60]}")
    return fills


def _valid(attributes: Mapping[str, object], dtype: DType, without_effect: list[str]) -> tuple[float, float]:
    """Return the lowest and highest valid stored value; attributes that are no bounds of `dtype` go to `without_effect`."""
    bounds = list(_ALL)
    for name in VALID:
        if name not in attributes:
            continue
        value = attributes[name]
        given = list(value) if isinstance(value, list | tuple) else [value]
        numbers = [each if isinstance(each, int) else fill_number(each) for each in given]
        if "_Unsigned" in attributes:
            numbers = [number + 2 ** (8 * dtype.itemsize) if number < 0 else number for number in numbers]
        places = {"valid_range": (0, 1), "valid_min": (0,), "valid_max": (1,)}[name]
        if len(numbers) != len(places) or not all(_is_value(dtype, number) for number in numbers):
            without_effect.append(f"{name}={str(value)[:60]}")
            continue
        for place, number in zip(places, numbers, strict=True):
            bounds[place] = number if dtype.kind in "iu" else float(dtype.type(number))
    return bounds[0], bounds[1]


def _is_value(dtype: DType, number: float) -> bool:
    """Return whether a number of an attribute is one of `dtype`, up to the rounding of floats; an infinity is one of theirs."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return math.isinf(number) or bool(np.isfinite(dtype.type(number)))
    return math.isfinite(number) and can_hold(dtype, number)
