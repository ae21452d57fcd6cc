"""Packed values of the CF conventions: integers with a scale and an offset, and values that mean nothing was observed.

Sources: CF conventions 1.11, sections 2.5.1 (missing data) and 8.1 (packed data); the NetCDF User's Guide, ``_Unsigned``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from streampca.errors import PackedDataError
from streampca.sources.conventions import fill_number, is_nan, number_of, packing
from streampca.typing import Array, BoolArray, DType

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ArrayMetadata

_FILLS = ("_FillValue", "missing_value", "fill_value")


@dataclass(frozen=True)
class Packing:
    """How the stored values of an array are decoded: ``stored * scale + offset``, and NaN for the fill values."""

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
            If an attribute is not one number (or a list of numbers, for ``missing_value``), the scale is zero, or a fill
            value is not one of the array's data type.
        """
        if not attributes:
            return None
        if "_Unsigned" in attributes:
            dtype = _unsigned(dtype)
        scale, offset = (
            _finite(name, attributes[name], label) if name in attributes else neutral
            for name, neutral in (("scale_factor", 1.0), ("add_offset", 0.0))
        )
        if scale == 0:
            raise PackedDataError(
                f"{label} has scale_factor=0 (CF conventions): all values would be add_offset; {_CURE}"
            )
        fills = [fill for name in _FILLS if name in attributes for fill in _fills(name, attributes[name], dtype, label)]
        exact = single or (scale, offset) == (1.0, 0.0)
        decoded = _holding(dtype) if exact else np.dtype(np.float64)
        return cls(dtype, scale, offset, tuple(dict.fromkeys(fills)), attributes, decoded)

    @classmethod
    def none(cls, dtype: DType) -> Packing:
        """Return how values of `dtype` are decoded that are meant as they are stored."""
        return cls(dtype, 1.0, 0.0, (), {}, _holding(dtype))

    def with_missing(self, value: float) -> Packing:
        """Return the same with one more stored number that means missing, which values of this type can have."""
        return self if value in self.fills else replace(self, fills=(*self.fills, value))

    def missing(self, stored: Array) -> BoolArray:
        """Return where stored values mean that nothing was observed."""
        stored = stored.view(self.stored) if stored.dtype != self.stored else stored
        missing: BoolArray = np.isnan(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, dtype=bool)
        for fill in self.fills:
            missing |= stored == stored.dtype.type(fill)
        return missing

    def decode(self, stored: Array, out: Array) -> None:
        """Write the decoded values to `out`, a floating type; NaN where nothing was observed."""
        stored = stored.view(self.stored) if stored.dtype != self.stored else stored
        missing = self.missing(stored) if self.fills and self._may_be_missing(stored) else None
        if missing is not None and not missing.any():
            missing = None
        if missing is not None and self.stored.itemsize <= 2 and self.stored.kind in "iu":
            # Scattered missing values take longer than the others: a table of all values is faster, with the same bits.
            table = _decoded_integers(self.stored, self.scale, self.offset, self.fills, out.dtype)
            np.take(table, stored.view(_unsigned(self.stored)), out=out, mode="wrap")
            return
        out[...] = stored
        _scale(out, self.scale, self.offset)
        if missing is not None:
            out[missing] = np.nan

    def _may_be_missing(self, stored: Array) -> bool:
        """Return whether a fill value is in the range of integers; finding that range is faster than comparing each of them."""
        if stored.dtype.kind not in "iu" or not stored.size:
            return True
        lowest = stored.min()
        above = [fill for fill in map(stored.dtype.type, self.fills) if fill >= lowest]
        return bool(above) and bool(min(above) <= stored.max())


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

    Attributes that no value can have, or that are wrong, are left out of account, as those of times, whose units are decoded.
    """
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
def _decoded_integers(stored: DType, scale: float, offset: float, fills: tuple[float, ...], decoded: DType) -> Array:
    """Return the decoded values of all integers of a type of 8 or 16 bits, by their bits read as an unsigned integer."""
    integers = np.arange(2 ** (8 * stored.itemsize)).astype(_unsigned(stored)).view(stored)
    table = integers.astype(decoded)
    _scale(table, scale, offset)
    for fill in fills:
        table[integers == stored.type(fill)] = np.nan
    return table


_CURE = 'correct the attribute, or, if the stored numbers are meant, set source.decode: raw (from Python: decode="raw")'


def _finite(name: str, value: object, label: str) -> float:
    number = number_of(value)
    if not math.isfinite(number):
        raise PackedDataError(
            f"{label} has {name}={str(value)[:60]!r} (CF conventions): expected a finite number; {_CURE}"
        )
    return number


def _fills(name: str, value: object, dtype: DType, label: str) -> list[float]:
    """Return the fill values that an attribute names, as values of `dtype`."""
    fills = []
    for one in value if isinstance(value, list | tuple) else [value]:
        if is_nan(one) and dtype.kind == "f":
            continue
        number = one if isinstance(one, int) else fill_number(one)
        if dtype.kind in "iu":
            if number < 0 and dtype.kind == "u":  # a signed attribute of an array that _Unsigned declares unsigned
                number += 2 ** (8 * dtype.itemsize)
            if not (math.isfinite(number) and can_hold(dtype, number)):
                raise PackedDataError(
                    f"{label} has {name}={str(one)[:60]} (CF conventions), which no {dtype} holds: missing values cannot be told "
                    f"from others; {_CURE}"
                )
        elif math.isnan(number):
            raise PackedDataError(f"{label} has {name}={str(one)[:60]!r}: expected a number; {_CURE}")
        fills.append(number)
    return fills
