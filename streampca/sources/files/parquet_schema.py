"""Columns of Parquet files: which are read, their types and widths, and whether all files agree about them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streampca.errors import DataError, ParameterError
from streampca.labels import Dimension, Labels, labels_of_columns
from streampca.typing import Array, DType

if TYPE_CHECKING:
    from pyarrow import Field, Schema


_MOST_NAMED = 8
NUMBERS = {
    **{name: name for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    **{"halffloat": "float16", "float": "float32", "double": "float64"},
}
"""numpy's names of the types of Arrow that are numbers."""


def is_decimal(kind: str) -> bool:
    """Return whether a type of Arrow is one of decimal numbers, which are read as float64."""
    return kind.startswith("decimal")


@dataclass(frozen=True)
class Column:
    """A column of a Parquet file that is read: numbers, or lists of as many numbers each."""

    name: str
    """Name in the schema."""
    type: str
    """Type in the schema, in words of Arrow."""
    dtype: DType
    """Data type of its numbers as they are stored."""
    width: int | None
    """Length of a list; 0 for numbers, None for lists whose length the schema does not say."""

    @classmethod
    def of(cls, field: Field) -> Column | None:
        """Return the column of a field of a schema of Arrow, None if it does not hold numbers."""
        kind = field.type
        width: int | None = 0
        text = str(kind)
        if text.startswith("fixed_size_list"):
            kind, width = kind.value_type, int(kind.list_size)
        elif text.startswith(("list", "large_list")) and not text.startswith("list_view"):
            kind, width = kind.value_type, None
        dtype = "float64" if is_decimal(str(kind)) else NUMBERS.get(str(kind))
        return None if dtype is None else cls(field.name, text, np.dtype(dtype), width)

    @property
    def n_features(self) -> int:
        """Return the number of columns of the table that it makes."""
        return max(1, self.width or 0)


def columns_of(schema: Schema, columns: Sequence[str] | None, id_column: str | None, label: str) -> list[Column]:
    """Return the columns that are read from files of this schema: `columns`, or all but `id_column` and indices of pandas.

    Raises
    ------
    ParameterError
        If there is no column of a name.
    DataError
        If a column does not hold numbers, or a name occurs twice; names all such columns.
    """
    names = list(schema.names)
    for name in (*(columns or ()), *(() if id_column is None else (id_column,))):
        if name not in names:
            close = difflib.get_close_matches(name, names, 1, 0.5)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ParameterError(f"{label} has no column {name[:60]!r}: expected some of {_listed(names)}{meant}")
    left_out = {id_column, *_indices(schema)}
    chosen = list(columns) if columns is not None else [name for name in names if name not in left_out]
    twice = sorted({name for name in chosen if names.count(name) > 1})
    if twice:
        raise DataError(f"{label} has several columns of the name {_listed(twice)}: expected every name once")
    fields = {name: schema.field(name) for name in chosen}
    others = [name for name, field in fields.items() if Column.of(field) is None]
    if others:
        shown = _listed([f"{name} ({fields[name].type})" for name in others])
        numbers = [name for name in chosen if name not in others]
        cure = f"columns: [{', '.join(numbers[:3])}{', …' if len(numbers) > 3 else ''}]" if numbers else "columns"
        raise DataError(
            f"{label} has columns that are not numbers: {shown}; name those to read (source.{cure}), and with source.id_column the "
            "one that names the rows"
        )
    if not chosen:
        raise DataError(f"{label} has no columns of numbers")
    return [column for name in chosen if (column := Column.of(fields[name])) is not None]


def require_same_columns(
    schema: Schema, columns: Sequence[Column], every: bool, first: Sequence[str], label: str, other: str
) -> None:
    """Raise `DataError` unless a file has columns of the same names and types as the first file, in any order.

    With `every`, where all columns are read, it must have no others than `first`, those of the first file.
    """
    names = list(schema.names)
    missing = [column.name for column in columns if names.count(column.name) != 1]
    more = [name for name in names if every and name not in first]
    if missing or more:
        what = f"has no column {missing[0]!r}" if missing else f"has a column {more[0]!r}"
        raise DataError(
            f"{label} {what}, other than {other}: expected the same columns in all files of a table; name those to read in columns"
        )
    for column in columns:
        kind = str(schema.field(column.name).type)
        if kind != column.type:
            raise DataError(
                f"{label}: column {column.name} has the type {kind}, and {column.type} in {other}: expected the same in all files"
            )


def labels_of(
    columns: Sequence[Column], n_rows: int, id_column: str | None, ids: Array | None, zone: str | None = None
) -> Labels:
    """Return the labels of a table: names of columns as coordinate, or the list column as variable; `zone` is that of times in `ids`."""
    samples = Dimension(id_column or "row", n_rows, ids, {} if zone is None else {"time_zone": zone})
    return labels_of_columns([column.name for column in columns], [column.width or 0 for column in columns], samples)


def _indices(schema: Schema) -> set[str]:
    """Return the names of the columns that are indices of a data frame of pandas, as it notes them in the schema."""
    try:
        noted = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    except (ValueError, AttributeError):
        return set()
    return {name for name in noted if isinstance(name, str)} if isinstance(noted, list) else set()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(str(name)[:60] for name in names[:_MOST_NAMED]) + more
