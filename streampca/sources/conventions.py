"""The CF conventions: packed values, integers with a scale and an offset; values that mean nothing was observed; times; arrays that describe others.

Sources: CF conventions 1.11, sections 2.5.1 (missing data) and 8.1 (packed data); the NetCDF User's Guide, ``_Unsigned``.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.calendars import GREGORIAN_FROM, UNITS, calendar_named, time_units
from streampca.errors import DataError, PackedDataError
from streampca.typing import Array, BoolArray, DType, JsonValue

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ArrayMetadata


_NEUTRAL = {"scale_factor": 1.0, "add_offset": 0.0}
"""Values of attributes that do not change the meaning of stored values."""
_FILLS = ("_FillValue", "missing_value")
VALID = ("valid_range", "valid_min", "valid_max")
"""Attributes that say which stored values are meant: all others are missing, as netCDF4 reads them."""
_DESCRIBING = (
    "bounds",
    "climatology",
    "coordinates",
    "ancillary_variables",
    "cell_measures",
    "grid_mapping",
    "formula_terms",
)
"""Attributes that name other arrays, which describe the one that has the attribute."""
_HOW_STORED = frozenset(
    {
        *(
            "scale_factor",
            "add_offset",
            "_FillValue",
            "missing_value",
            *VALID,
            "_Unsigned",
            "_ARRAY_DIMENSIONS",
            "CLASS",
            "NAME",
        ),
        *("DIMENSION_LIST", "DIMENSION_LABELS", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates"),
    }
)
"""Attributes that say how values are stored, not what they are."""
_INFINITIES = ("infinity", "+infinity", "-infinity", "inf", "+inf", "-inf")
_ENDINGS = ("_bnds", "_bounds", "_mask")
_MOST_SHOWN = 60
_DECODED = ("standard", "proleptic_gregorian")
_YEAR_0 = re.compile(r"\s*\w+\s+since\s+0{1,4}(-.*)?")
_FILL_VALUES = ("_FillValue", "missing_value", "fill_value")
_ALL = (-math.inf, math.inf)
_CURE = 'correct the attribute, or, if the stored numbers are meant, set source.decode: raw (from Python: decode="raw")'


def packing(metadata: ArrayMetadata) -> dict[str, object]:
    """Return the attributes that declare the stored values of an array as packed, from its zarr metadata.

    Empty where stored values are meant as they are: no attributes, a scale of 1, an offset of 0, or NaN as the fill value.
    """
    attributes: Mapping[str, object] = metadata.attributes
    dtype = (metadata.dtype if metadata.zarr_format == 2 else metadata.data_type).to_native_dtype()
    packed = packed_by(attributes, dtype)
    # xarray reads the fill value of a labelled array of format 2 as _FillValue. Programs that set none leave 0, which is a value.
    named = "_ARRAY_DIMENSIONS" in attributes or getattr(metadata, "dimension_names", None) is not None
    by_fill = named and dtype.kind in "iuf" and not any(name in attributes for name in _FILLS)
    fill = metadata.fill_value if by_fill else None
    if fill is not None and not is_nan(fill) and fill != 0:
        packed["fill_value"] = fill.item() if isinstance(fill, np.generic) else fill
    return packed


def packed_by(attributes: Mapping[str, object], dtype: DType) -> dict[str, object]:
    """Return those of the attributes of an array of type `dtype` that declare its stored values as packed."""
    packed = {
        name: attributes[name]
        for name, neutral in _NEUTRAL.items()
        if attributes.get(name) is not None and number_of(attributes[name]) != neutral
    }
    for name in _FILLS:
        value = attributes.get(name)
        if value is not None and not is_nan(value):
            packed[name] = value
    if dtype.kind in "iuf":
        packed |= {name: attributes[name] for name in VALID if attributes.get(name) is not None}
    if str(attributes.get("_Unsigned", "false")).lower() == "true" and dtype.kind == "i":
        packed["_Unsigned"] = attributes["_Unsigned"]
    return packed


def require_unpacked(packed: Mapping[str, object], label: str, cure: str) -> None:
    """Raise `PackedDataError` with the advice `cure` if there are attributes that declare an array as packed."""
    if packed:
        shown = ", ".join(f"{name}={_text(value)}" for name, value in packed.items())
        raise PackedDataError(
            f"{label} has the attributes {shown} (CF conventions): the stored numbers are not the actual values, and "
            f"this version cannot decode them; {cure}"
        )


def describing_names(attributes: Mapping[str, object]) -> set[str]:
    """Return the names that attributes of an array give to arrays that describe it: bounds, coordinates, masks, areas."""
    texts = [attributes.get(name) for name in _DESCRIBING]
    return {word.rstrip(":") for text in texts if isinstance(text, str) for word in text[:10_000].split()}


def describes_others(name: str) -> bool:
    """Return whether the name of an array is usual for bounds and masks."""
    last = name.rsplit("/", 1)[-1].lower()
    return last == "mask" or last.endswith(_ENDINGS)


def dimensions_of(metadata: ArrayMetadata) -> tuple[str, ...] | None:
    """Return the names of the axes of an array, from zarr format 3 or from xarray's attribute; None where there are none."""
    names = getattr(metadata, "dimension_names", None) or metadata.attributes.get("_ARRAY_DIMENSIONS")
    if not isinstance(names, list | tuple) or len(names) != len(metadata.shape):
        return None
    return tuple("?" if name is None else str(name)[:_MOST_SHOWN] for name in names)


def number_of(value: object) -> float:
    """Return `value`, a number or a list of one, as a float; NaN for anything else."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else math.nan


def fill_number(value: object) -> float:
    """Return a fill value as a float: a number, a list of one, ``Infinity`` or xarray's base64 of a float64 as text; NaN for all else."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        return number_of(value)
    if value.lower() in _INFINITIES:
        return float(value)
    try:
        return float(struct.unpack("<d", base64.b64decode(value, validate=True))[0])
    except (ValueError, struct.error):
        return math.nan


def plain_attributes(attributes: Mapping[Any, Any]) -> dict[str, JsonValue]:
    """Return the attributes that are finite numbers or short texts, without those that say how values are stored."""
    plain = {str(k): v.item() if isinstance(v, np.generic) else v for k, v in attributes.items()}
    return {
        k: v
        for k, v in plain.items()
        if isinstance(v, bool | int | str) or (isinstance(v, float) and math.isfinite(v))
        if k not in _HOW_STORED and len(str(v)) <= 200
    }


def is_nan(value: object) -> bool:
    """Return whether a fill value is NaN: a number, text, base64 of a float64, or a list of these."""
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(map(is_nan, value))
    if isinstance(value, str):
        return value.lower() == "nan" or (len(value) == 12 and math.isnan(fill_number(value)))
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _text(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def is_time(units: str, calendar: object) -> bool:
    """Return whether numbers in these units are times, whatever their calendar; False where units or calendar are not understood."""
    try:
        return time_units(units, calendar) is not None
    except ValueError:  # a year 0
        return False


def decoded_times(values: Array, attributes: Mapping[str, object], label: str) -> Array:
    """Return `values` as ``datetime64`` if the attributes ``units`` and ``calendar`` say that they are times, else as they are.

    Times in nanoseconds have the unit of nanoseconds, all others that of microseconds. Numbers stay what they are for other
    calendars than the Gregorian one, for times of the standard calendar before 15 October 1582 or since a year 0, which it
    does not have, for months and years, which have no fixed length, and for units that are not understood, such as weeks.

    Raises
    ------
    DataError
        If the units say a date that does not exist or is not understood, or a time lies outside of what `datetime64` holds.
    """
    units = attributes.get("units")
    if values.dtype.kind not in "iuf" or not isinstance(units, str) or " since " not in units:
        return values
    calendar = calendar_named(attributes.get("calendar"))
    if calendar not in _DECODED:
        return values
    try:
        known = time_units(units, calendar)
    except ValueError as error:
        if calendar == "standard" and _YEAR_0.fullmatch(units[:200]):
            return values
        raise DataError(f"{label} has units={units[:60]!r}: there is no such date") from error
    if known is None and units.split()[0].lower() in UNITS:  # of a date that is not understood
        raise DataError(f"{label} has units={units[:60]!r}: expected, for example, 'days since 1990-01-01'")
    if known is None:
        return values
    try:
        microseconds = known.microseconds_of(values)
    except OverflowError as error:
        raise DataError(f"{label} holds a time that is not finite or out of range: expected {units[:60]}") from error
    if calendar == "standard" and microseconds.size and microseconds.min() < GREGORIAN_FROM * 86_400_000_000:
        return values
    times: Array = microseconds.astype("M8[us]")
    if known.microseconds or values.dtype.kind == "f":
        return times
    exact: Array = times.astype("M8[ns]") + (values.astype(np.int64) % 1000).astype("m8[ns]")
    return exact


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
            for name in _FILL_VALUES
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
        applied = [name for name in (*_FILL_VALUES, *VALID) if name in self.attributes]
        applied = [name for name in applied if not any(text.startswith(f"{name}=") for text in self.without_effect)]
        notes = []
        if self.valid != _ALL:
            low, high = self.valid
            notes.append(
                f"missing values are marked by {', '.join(applied)}: stored numbers below {low:.9g} or above "
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
        if marked and stored.dtype.kind in "iu" and stored.size:
            # Whether integers may be missing by their range is found faster than by comparing each of them.
            lowest, highest = stored.min(), stored.max()
            marked = bool(lowest < self.valid[0] or highest > self.valid[1])
            marked = marked or any(lowest <= fill <= highest for fill in map(stored.dtype.type, self.fills))
        missing = self.missing(stored) if marked else None
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
