"""Numbers in columns of data frames of pandas and polars, also in columns of lists; neither package is imported."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from streampca.errors import DataError
from streampca.system.optional import package_of
from streampca.typing import Array, BoolArray


def is_number(kind: Any) -> bool:
    """Return whether a data type of pandas or polars is one of real numbers or truth values."""
    if package_of(kind) == "polars" or hasattr(kind, "is_numeric"):
        return bool(kind.is_numeric()) or str(kind) == "Boolean"
    return getattr(kind, "kind", "O") in "biuf" or str(kind).startswith("decimal")


def lists_in(frame: Any, names: Collection[object]) -> set[object]:
    """Return those of the columns that hold lists or arrays of numbers, such as embeddings."""
    if _is_polars(frame):
        schema = frame.collect_schema() if hasattr(frame, "collect_schema") else frame.schema
        kinds = {name: schema[name] for name in names}
        return {
            name
            for name, kind in kinds.items()
            if str(kind).startswith(("List", "Array")) and is_number(getattr(kind, "inner", None))
        }
    columns = zip(frame.columns, frame.dtypes, strict=True)
    objects = [
        place for place, (name, kind) in enumerate(columns) if getattr(kind, "kind", "O") == "O" and name in names
    ]
    return {frame.columns[place] for place in objects if _begins_with_list(frame.iloc[:, place])}


def values_of_frame(frame: Any, names: Sequence[object]) -> tuple[Array, list[int]]:
    """Return columns of a data frame as one array, NaN for missing values, and the width of each, 0 for numbers.

    Raises
    ------
    DataError
        If lists of a column have different lengths, or hold other things than numbers.
    """
    lists = lists_in(frame, names)
    if not lists:
        return _numbers(frame, names), [0] * len(names)
    parts = [_rows_of_lists(frame[name], name) if name in lists else _numbers(frame, [name]) for name in names]
    widths = [part.shape[1] if name in lists else 0 for name, part in zip(names, parts, strict=True)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1), widths


def _is_polars(frame: Any) -> bool:
    return package_of(frame) == "polars"


def without_decimals(frame: Any) -> Any:
    """Return a data frame of polars with decimals as float64, and others as they are."""
    decimals = [name for name, kind in frame.schema.items() if "Decimal" in str(kind)] if _is_polars(frame) else []
    float64 = sys.modules["polars"].Float64 if decimals else None
    return frame.with_columns(frame[name].cast(float64) for name in decimals) if decimals else frame


def _numbers(frame: Any, names: Sequence[object]) -> Array:
    """Return columns of numbers as one array; NaN for missing values."""
    if _is_polars(frame):
        return np.asarray(without_decimals(frame.select(names)).to_numpy())
    chosen = frame[names]
    values = chosen.to_numpy()
    if values.dtype.kind != "O":
        return np.asarray(values)
    wide = any(str(kind).lower() not in ("float32", "float16") for kind in chosen.dtypes)
    return np.asarray(chosen.to_numpy(dtype=np.float64 if wide else np.float32, na_value=np.nan))


def _begins_with_list(column: Any) -> bool:
    """Return whether the first value of a column of pandas that is not missing is a list or an array."""
    return next((isinstance(each, list | tuple | np.ndarray) for each in column if not _is_missing(each)), False)


def _is_missing(value: object) -> bool:
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def _rows_of_lists(column: Any, name: object) -> Array:
    """Return a column of lists as a table, ``(n_rows, length of a list)``; a row of NaN for a list that is missing."""
    if _is_polars(column):
        lists = column.arr.to_list() if str(column.dtype).startswith("Array") else column
        present = ~lists.is_null().to_numpy()
        lists = lists.drop_nulls()
        width = _width(lists.list.len().to_numpy(), name)
        flat = lists.explode()
        rows = (flat.cast(sys.modules["polars"].Float64) if "Decimal" in str(flat.dtype) else flat).to_numpy()
        return _with_missing(np.asarray(rows).reshape(-1, width), present)
    present = np.array([not _is_missing(each) for each in column], dtype=bool)
    values = [np.asarray(each) for each in column[present]]
    if any(each.ndim != 1 for each in values):
        raise DataError(
            f"column {name} holds something else than lists of numbers in some rows: expected a list in every row"
        )
    _width(np.array([len(each) for each in values]), name)
    rows = np.stack(values)
    if rows.dtype.kind == "O":
        with suppress(TypeError, ValueError):
            rows = rows.astype(np.float64)  # None becomes NaN
    if rows.dtype.kind not in "biuf":
        raise DataError(f"column {name} has lists of {rows.dtype}: expected numbers")
    return _with_missing(rows, present)


def _width(lengths: Array, name: object) -> int:
    """Return the length of all lists; `DataError` if it differs or is 0."""
    wrong = np.flatnonzero(lengths != lengths[:1])
    if not len(lengths) or len(wrong) or not lengths[0]:
        found = f"{lengths[wrong[0]]:,} and {lengths[0]:,} numbers" if len(wrong) else "no numbers"
        raise DataError(f"column {name} has lists of {found}: expected lists of one length")
    return int(lengths[0])


def _with_missing(rows: Array, present: BoolArray) -> Array:
    """Return `rows` at the places that are `present`, and NaN elsewhere."""
    if present.all():
        return rows
    dtype = rows.dtype if rows.dtype.kind == "f" else np.float64
    out = np.full((len(present), rows.shape[1]), np.nan, dtype=dtype)
    out[present] = rows
    return out
