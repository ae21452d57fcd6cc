"""Attributes of other programs that describe an array: packed values and times (CF conventions), and arrays that describe others.

Sources: CF conventions 1.11, sections 2.5.1 (missing data), 4.4 (times), 8.1 (packed data), 5.6, 6.2, 7.1 and 7.2 (arrays that
describe others); the NetCDF User's Guide, ``_Unsigned``. Times of calendars that `datetime64` does not have stay numbers, of which
`streampca.calendars` finds the parts.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.calendars import GREGORIAN_FROM, UNITS, calendar_named, time_units
from streampca.errors import DataError, PackedDataError
from streampca.typing import Array, DType, JsonValue

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
            f"{label} has the attributes {shown} (CF conventions): the stored numbers are not the values that are meant, and "
            f"this version does not decode them; {cure}"
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


_DECODED = ("standard", "proleptic_gregorian")
_YEAR_0 = re.compile(r"\s*\w+\s+since\s+0{1,4}(-.*)?")


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
