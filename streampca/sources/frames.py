"""Data frames of pandas and polars, lazy ones too, as tables in memory; neither package is imported."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import DataError, NotAvailableError, ParameterError
from streampca.labels import Dimension, Labels, labels_of_columns
from streampca.sources.arrays import ArraySource
from streampca.sources.base import Source, require_numbers, require_unmasked
from streampca.sources.columns_in_memory import FrameColumns
from streampca.sources.coordinates import dimension_of_index, is_default, is_indexed
from streampca.sources.frame_values import is_number, lists_in, values_of_frame, without_decimals
from streampca.sources.options import ReadOptions
from streampca.system.optional import package_of
from streampca.typing import Array

_MOST_NAMED = 8


def is_frame(data: object) -> bool:
    """Return whether `data` is a data frame of pandas or polars, or a LazyFrame."""
    return package_of(data) in ("pandas", "polars") and type(data).__name__ in ("DataFrame", "LazyFrame")


def is_arrow_table(data: object) -> bool:
    """Return whether `data` is a table of pyarrow."""
    return package_of(data) == "pyarrow" and type(data).__name__ == "Table"


def open_arrow_table(data: Any, options: ReadOptions) -> Source:
    """Return the columns of a table of pyarrow as `open_frame` does; nulls are NaN.

    Raises
    ------
    NotAvailableError
        If pandas, by which pyarrow converts a table, is not installed.
    """
    try:
        frame = data.to_pandas(ignore_metadata=True)
    except ImportError as error:
        raise NotAvailableError(
            "a table of pyarrow is converted by pandas, which is not installed: pip install pandas, or write the table to a Parquet file"
        ) from error
    return open_frame(frame, options)


def numeric_frame(data: Any) -> Any:
    """Return a data frame that is checked to hold numbers only, a LazyFrame collected; other data as they are.

    Of a frame with columns of lists of numbers, an array of all numbers is returned.

    Raises
    ------
    DataError
        If columns are not numbers; names them. If an array has masked values, or a type such as bfloat16 that numpy does not know.
    """
    if not is_frame(data):
        require_unmasked(data, "the masked array")
        if isinstance(data, np.ndarray) and data.dtype.kind == "V":  # which scikit-learn takes for text
            require_numbers(data.dtype, "array")
        return data
    names = list(_types(data))
    _require_numbers(data, names)
    frame = data.collect() if type(data).__name__ == "LazyFrame" else data
    return values_of_frame(frame, names)[0] if lists_in(frame, names) else without_decimals(frame)


def labelled_as(source: Source, data: object) -> Source:
    """Return the `source` of the numbers of `data` with the names of its rows and columns, if it is a data frame that has them."""
    names = list(_types(data)) if is_frame(data) else []
    if len(names) == source.shape[1]:
        source.labels = _labels(data, names, [0] * len(names), source.shape[0], None)
    return source


def open_frame(data: Any, options: ReadOptions) -> Source:
    """Return the columns of a data frame as a table in memory: all, or those that `options.columns` name.

    Rows are named by `options.id_column`, or by the index of a frame of pandas that is no mere range. A LazyFrame is
    collected, of these columns only.

    Raises
    ------
    DataError
        If columns are not numbers; names them.
    ParameterError
        If there is no column of a name.
    """
    others = [name for name in options.by_name if name not in ("columns", "id_column")]
    if others or options.array is not None or options.transposed:
        raise NotAvailableError(
            "a data frame has columns: expected none of the options of a source but columns and id_column"
        )
    known = list(_types(data))
    names = [name for name in known if name != options.id_column] if options.columns is None else list(options.columns)
    for name in (*names, *([] if options.id_column is None else [options.id_column])):
        if name not in known:
            close = difflib.get_close_matches(str(name), [str(each) for each in known], 1, 0.5)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ParameterError(
                f"the data frame has no column {str(name)[:60]!r}: expected some of {_listed(known)}{meant}"
            )
    _require_numbers(data, names)
    wanted = names + ([] if options.id_column is None or options.id_column in names else [options.id_column])
    frame = data.select(wanted).collect() if type(data).__name__ == "LazyFrame" else data
    values, widths = values_of_frame(frame, names)
    source = ArraySource(values, f"{package_of(data)} {type(data).__name__}")
    source.labels = _labels(frame, names, widths, len(values), options.id_column)
    source.feature_names = source.labels.column_names()
    is_lazy = type(data).__name__ == "LazyFrame"
    source.sample_columns = _LazyColumns(data, known, names, source.array) if is_lazy else frame_columns(data, names)
    return source


class _LazyColumns(FrameColumns):
    """Columns of a LazyFrame, collected together with its features, whose order may be another each time.

    Parameters
    ----------
    frame : LazyFrame
        The frame.
    names, features : sequence
        Names of its columns, and of those that are features.
    rows : array, shape (n_rows, n_features)
        The features as they were collected when the frame was opened.
    """

    def __init__(self, frame: Any, names: Sequence[object], features: Sequence[object], rows: Array):
        super().__init__(frame, names, features)
        self._columns, self._rows = list(features), rows

    def _with(self, name: str) -> Any:
        frame = self._frame.select([*self._columns, name]).collect()
        if not np.array_equal(
            values_of_frame(frame, self._columns)[0], self._rows, equal_nan=self._rows.dtype.kind == "f"
        ):
            raise DataError(
                "the LazyFrame gives its rows in another order, or other rows, each time it is collected: collect it "
                "first, sp.open(frame.collect(), …), or sort it"
            )
        return frame


def frame_columns(data: Any, features: Collection[object] = ()) -> FrameColumns:
    """Return the columns of a data frame that are no `features`, by name."""
    return FrameColumns(data, list(_types(data)), features)


def _types(data: Any) -> dict[object, Any]:
    """Return the data types of the columns by their names."""
    if package_of(data) == "pandas":
        return dict(zip(data.columns, data.dtypes, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older versions of polars have no collect_schema
        return dict(data.collect_schema())


def _require_numbers(data: Any, names: Sequence[object]) -> None:
    """Raise `DataError` if columns of a data frame are neither numbers nor lists of numbers."""
    types = _types(data)
    lists = lists_in(data, names)
    others = [f"{name} ({types[name]})" for name in names if not is_number(types[name]) and name not in lists]
    if others:
        raise DataError(
            f"the data frame has columns that are not numbers: {_listed(others)}; name those to read, "
            "sp.open(frame, columns=[…], id_column=…), or select them"
        )


def _labels(frame: Any, names: Sequence[object], widths: Sequence[int], n_rows: int, id_column: str | None) -> Labels:
    """Return the names of columns and rows; columns of lists have a width above 0."""
    if id_column is not None and is_indexed(frame):
        rows = replace(dimension_of_index(frame[[id_column]].set_index(id_column).index), name=id_column)
    elif id_column is not None:
        ids, zone = np.asarray(frame[id_column].to_numpy()), getattr(frame[id_column].dtype, "time_zone", None)
        ids = ids if ids.dtype.kind in "biufMm" else ids.astype(str)
        rows = Dimension(id_column, n_rows, ids, {} if zone is None else {"time_zone": zone})
    elif is_indexed(frame):
        rows = dimension_of_index(frame.index)
        rows = replace(rows, coordinate=None) if is_default(frame.index) else rows
    else:
        rows = Dimension("row", n_rows)
    return labels_of_columns([str(name) for name in names], widths, rows)


def _listed(names: Sequence[object]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(str(name)[:60] for name in names[:_MOST_NAMED]) + more
