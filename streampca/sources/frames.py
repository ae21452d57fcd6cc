"""Data frames of any package that narwhals supports, as tables in memory: pandas, polars, pyarrow, modin, duckdb and more.

Also how objects with names of their own are known, those of xarray among them, and their coordinates; neither package is imported.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from streampca.errors import DataError, NotAvailableError
from streampca.labels import Dimension, SampleColumns
from streampca.sources.arrays import ArraySource, is_bfloat16, widened
from streampca.sources.base import Source, require_numbers, require_unmasked
from streampca.sources.conventions import plain_attributes
from streampca.sources.features import Column, chosen_columns, feature_error, labels_of, listed
from streampca.sources.formats import ReadOptions
from streampca.system.optional import package_of
from streampca.typing import Array, BoolArray, JsonValue

if TYPE_CHECKING:
    import narwhals as nw

    Frame = nw.DataFrame[Any] | nw.LazyFrame[Any]
    import xarray as xr
_LABEL = "the data frame"


def is_xarray(data: object) -> TypeGuard[xr.DataArray | xr.Dataset]:
    """Return whether `data` is a DataArray or a Dataset."""
    return package_of(data) == "xarray" and hasattr(data, "dims") and hasattr(data, "coords")


def is_indexed(values: object) -> bool:
    """Return whether `values` are a Series or DataFrame of pandas."""
    return package_of(values) == "pandas" and hasattr(values, "iloc")


def dimension_of(array: xr.DataArray, dim: Hashable, size: int) -> Dimension:
    """Return a dimension of a DataArray with its coordinate: numbers, times, or text for all else."""
    if dim not in array.coords or array.coords[dim].dims != (dim,):
        return Dimension(str(dim), size)
    coordinate = array.coords[dim]
    if coordinate.dtype.kind in "OM" and getattr(index := coordinate.to_index(), "tz", None) is not None:
        return dimension_of_index(index, str(dim))  # of which pandas warns that its values have no zone
    values, attributes = np.asarray(coordinate.values), plain_attributes(coordinate.attrs)
    if values.dtype.kind == "O" and values.size and isinstance(calendar := getattr(values[0], "calendar", None), str):
        attributes["calendar"] = calendar
    return Dimension(str(dim), size, _numbers_times_or_text(values), attributes)


def is_default(index: Any) -> bool:
    """Return whether an index of pandas is that of rows without names: 0, 1, 2 and so on."""
    return type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1


def dimension_of_index(index: Any, name: str | None = None) -> Dimension:
    """Return an index of pandas as a dimension, with its values also where it `is_default`.

    Times with a time zone are those of UTC, with the attribute ``time_zone``; periods are the times of their starts.
    """
    attributes: dict[str, JsonValue] = {}
    if (zone := getattr(index, "tz", None)) is not None:
        index, attributes = index.tz_convert(None), {"time_zone": str(zone)}
    index = index.to_timestamp() if hasattr(index, "to_timestamp") else index
    values = _numbers_times_or_text(np.asarray(index))
    default = "time" if values.dtype.kind == "M" else "row"
    return Dimension(name or str(index.name or default), len(index), values, attributes)


def _numbers_times_or_text(values: Array) -> Array:
    """Return the values of a coordinate; as text places of a MultiIndex, dates of other calendars, and all else."""
    if values.dtype.kind in "biufmM":
        return values
    return np.array(
        [", ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values.tolist()], dtype=str
    )


def is_frame(data: object) -> bool:
    """Return whether `data` is a data frame that narwhals reads, which is imported only for classes that look like one."""
    looks_like_one = any(hasattr(type(data), name) for name in ("columns", "column_names"))
    if not looks_like_one or package_of(data).startswith("dask"):
        return False
    import narwhals as nw

    try:
        return nw.from_native(data, pass_through=True) is not data
    except nw.exceptions.DuplicateError:  # of names, which `wrapped` refuses
        return True


def open_frame(data: Any, options: ReadOptions) -> Source:
    """Return the columns of a data frame as a table in memory: all, or those that `options.columns` name; nulls are NaN.

    Rows are named by `options.id_column`, or by the index of a frame of pandas that is no mere range. A lazy frame is
    collected, of these columns only.

    Raises
    ------
    DataError
        If columns are not numbers; names them.
    ParameterError
        If there is no column of a name.
    """
    options.require_only("a data frame", f"{package_of(data)} {type(data).__name__}")
    whole = wrapped(data)
    wanted = None if options.columns is None else list(options.columns)
    columns = chosen_columns(_columns(whole), wanted, options.id_column, _LABEL)
    names = [column.name for column in columns]
    if whole.implementation.is_pandas():
        _require_dense(_with(whole, names))
    frame = _with(whole, names if options.id_column is None else [*names, options.id_column])
    values, shapes = _values(frame, columns)
    source = ArraySource(values, f"{package_of(data)} {type(data).__name__}")
    columns = [replace(column, shape=shape) for column, shape in zip(columns, shapes, strict=True)]
    source.labels = labels_of(columns, _rows(frame, options.id_column))
    source.feature_names = source.labels.column_names()
    source.sample_columns = FrameColumns(data, names, values)
    return source


def numeric_frame(data: Any) -> Any:
    """Return a data frame that is checked to hold numbers only, a lazy one collected; other data as they are.

    Of a frame with columns of lists of numbers, an array of all numbers is returned.

    Raises
    ------
    DataError
        If columns are not numbers; names them. If an array has masked values, or a type that numpy does not know; bfloat16 becomes float32.
    """
    if not is_frame(data):
        require_unmasked(data, "the masked array")
        if getattr(getattr(data, "dtype", None), "kind", "") != "V":
            return data
        if is_bfloat16(data.dtype):
            return widened(data)
        if isinstance(data, np.ndarray):  # which scikit-learn takes for text
            require_numbers(data.dtype, "array")
        return data
    frame = wrapped(data)
    columns = chosen_columns(_columns(frame), None, None, _LABEL)
    frame = _with(frame, [column.name for column in columns])
    _require_dense(frame)
    if any(column.shape != () for column in columns):
        return _values(frame, columns)[0]
    return _without_decimals(frame, columns).to_native()


def labelled_as(source: Source, data: object) -> Source:
    """Return the `source` of the numbers of `data` with the names of its rows and columns, if it is a data frame that has them."""
    if is_frame(data):
        frame = wrapped(data)
        columns = [replace(column, shape=()) for column in _columns(frame).values()]
        if len(columns) == source.shape[1]:
            lazy = not hasattr(frame, "to_numpy")
            source.labels = labels_of(columns, Dimension("row", source.shape[0]) if lazy else _rows(frame, None))
    return source


class FrameColumns(SampleColumns):
    """Columns of a data frame, except those that are features.

    Parameters
    ----------
    data : data frame
        The frame. A lazy one is collected for every column together with its features, whose order may be another each time.
    features : sequence
        Names of those that are features.
    rows : array, shape (n_rows, n_features), optional
        The features as they were when a lazy frame was opened.
    """

    def __init__(self, data: Any, features: Sequence[Any] = (), rows: Array | None = None):
        import narwhals as nw

        frame = wrapped(data)
        if nw.maybe_get_index(frame) is not None:
            # So that the rows keep their order if somebody sorts the frame in place; the values are not copied.
            frame = wrapped(frame.to_native().copy(deep=False))
        self._frame, self._features, self._rows = frame, list(features), rows
        self._all = tuple(name for name in frame.collect_schema() if isinstance(name, str))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that are no features."""
        return tuple(name for name in self._all if name not in self._features)

    def values(self, name: str) -> Array | None:
        """Return a column, None if there is none of that name; `ParameterError` if it is a feature.

        Times with a time zone are those of its clocks.
        """
        if name not in self._all:
            return None
        if name in self._features:
            raise feature_error("column")
        column = self._collected(name).get_column(name)
        native: Any = column.to_native()
        if getattr(getattr(native, "dtype", None), "tz", None) is not None:
            # Of pandas, of which narwhals does not know all zones: that of America/St_Johns is Unknown in narwhals 2.29.
            return np.asarray(native.dt.tz_localize(None).to_numpy())
        if getattr(column.dtype, "time_zone", None) is not None:
            column = column.dt.replace_time_zone(None)
        return np.asarray(column.to_numpy())

    def _collected(self, name: str) -> nw.DataFrame[Any]:
        """Return a frame that has the column `name` in the order of the rows."""
        if hasattr(self._frame, "to_numpy") or self._rows is None:
            return _with(self._frame, [name])
        frame = _with(self._frame, [*self._features, name])
        known = _columns(frame)
        rows, _ = _values(frame, [known[each] for each in self._features])
        if not np.array_equal(rows, self._rows, equal_nan=self._rows.dtype.kind == "f"):
            raise DataError(
                f"the {type(self._frame.to_native()).__name__} gives its rows in another order, or other rows, each time it is "
                "collected: collect it first, sp.open(frame.collect(), …), or sort it"
            )
        return frame


def wrapped(data: Any) -> Frame:
    """Return a data frame as narwhals reads it; `DataError` if several columns have one name."""
    import narwhals as nw

    try:
        frame: Frame = nw.from_native(data)
        frame.collect_schema()
    except nw.exceptions.DuplicateError as error:
        names = list(map(str, getattr(data, "column_names", data.columns)))
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DataError(
            f"{_LABEL} has several columns of the name {listed(twice)}: expected every name once"
        ) from error
    return frame


def collected(data: Any) -> Any:
    """Return a lazy data frame collected, and others as they are."""
    frame = wrapped(data)
    return data if hasattr(frame, "to_numpy") else frame.collect().to_native()


def _with(frame: Frame, names: Sequence[Any]) -> nw.DataFrame[Any]:
    """Return a frame with only the columns of these names; a lazy one collected."""
    import narwhals as nw

    names = list(dict.fromkeys(names))
    chosen: Any = frame if names == list(frame.collect_schema()) else frame.select(nw.col(*names))
    collected: nw.DataFrame[Any] = chosen if hasattr(chosen, "to_numpy") else chosen.collect()
    return collected


def _columns(frame: Frame) -> Mapping[Any, Column]:
    """Return the columns by their names."""
    if frame.implementation.is_pyarrow():
        from streampca.sources.files.arrow import columns_of

        return columns_of(frame.to_native().schema)
    import narwhals as nw

    columns, sparse = {}, _sparse_columns(frame)
    for name, kind in frame.collect_schema().items():
        shape: tuple[int, ...] | None = ()
        inner: Any = kind
        if isinstance(kind, nw.List):
            inner, shape = kind.inner, None
        elif isinstance(kind, nw.Array):
            shape = kind.shape
            for _ in shape:
                inner = inner.inner
        numbers = inner.is_numeric() or inner == nw.Boolean or name in sparse
        if kind == nw.Object:
            known = (each for each in _with(frame, [name]).get_column(name).to_numpy() if not _is_missing(each))
            if isinstance(next(known, None), list | tuple | np.ndarray):
                numbers, shape = True, None
        plain = numbers and (inner.is_float() or inner.is_integer()) and "128" not in str(inner)
        dtype = np.dtype(str(inner).lower() if plain else "bool" if inner == nw.Boolean else "float64")
        columns[name] = Column(name, str(kind), dtype if numbers else None, shape)
    return columns


def _sparse_columns(frame: Frame) -> list[Any]:
    """Return the names of the columns of pandas' type Sparse."""
    if not frame.implementation.is_pandas():
        return []
    native: Any = frame.to_native()
    return [name for name, kind in native.dtypes.items() if type(kind).__name__ == "SparseDtype"]


def _require_dense(frame: nw.DataFrame[Any]) -> None:
    """Raise `NotAvailableError` if columns that are features are of pandas' type Sparse."""
    if sparse := _sparse_columns(frame):
        raise NotAvailableError(
            f"{_LABEL} has columns of pandas' type Sparse, which are not supported: {listed(sparse)}; give the matrix data.sparse.to_coo(), whose "
            "rows stay sparse, or dense columns, data.astype('float64')"
        )


def _values(frame: nw.DataFrame[Any], columns: Sequence[Column]) -> tuple[Array, list[tuple[int, ...]]]:
    """Return columns as one array, ``(n_rows, n_features)``, NaN for missing values, and the shape of the values of each.

    Raises
    ------
    DataError
        If lists of a column have different lengths, or hold other things than numbers.
    """
    if frame.implementation.is_pyarrow():
        from streampca.sources.files.arrow import values_of_table

        return values_of_table(frame.to_native(), columns)
    if all(column.shape == () for column in columns):
        return _numbers(frame, columns), [()] * len(columns)
    parts = [_numbers(frame, [each]) if each.shape == () else _lists(frame, each) for each in columns]
    shapes = [
        each.shape if each.shape is not None else part.shape[1:] for each, part in zip(columns, parts, strict=True)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1), shapes


def _numbers(frame: nw.DataFrame[Any], columns: Sequence[Column]) -> Array:
    """Return columns of numbers as one array of their common type."""
    import narwhals as nw

    chosen = _without_decimals(_with(frame, [column.name for column in columns]), columns)
    values = np.asarray(chosen.to_numpy())
    if values.dtype.kind in "biuf":
        return values
    each = [np.asarray(column.to_numpy()) for column in chosen.iter_columns()]
    return np.stack(
        [
            part if part.dtype.kind in "biuf" else np.asarray(column.cast(nw.Float64).to_numpy(), dtype=np.float64)
            for part, column in zip(each, chosen.iter_columns(), strict=True)
        ],
        axis=1,
    )


def _without_decimals(frame: nw.DataFrame[Any], columns: Sequence[Column]) -> nw.DataFrame[Any]:
    """Return a frame with decimals as float64."""
    import narwhals as nw

    decimals = [column.name for column in columns if column.type.lower().startswith("decimal")]
    return frame.with_columns(nw.col(*decimals).cast(nw.Float64)) if decimals else frame


def _lists(frame: nw.DataFrame[Any], column: Column) -> Array:
    """Return a column of lists as a table, ``(n_rows, length of a list)``; a row of NaN for a list that is missing."""
    import narwhals as nw

    series = frame.get_column(column.name)
    if series.dtype == nw.Object:
        return _lists_of_objects(series.to_numpy(), column.name)
    if isinstance(series.dtype, nw.Array):
        rows = np.asarray(series.to_numpy())
        if rows.dtype.kind in "biuf" and rows.ndim > 1:
            return rows.reshape(len(rows), -1)
    present = ~np.asarray(series.is_null().to_numpy(), dtype=bool)
    kind: Any = series.dtype
    depth = 1 if column.shape is None else len(column.shape)
    for _ in range(depth):
        kind = kind.inner
    kind = nw.Float64() if isinstance(kind, nw.Decimal) else kind
    for _ in range(depth):
        kind = nw.List(kind)
    lists = frame.select(nw.col(column.name).cast(kind)).drop_nulls()
    width = (
        _width(lists.get_column(column.name).list.len().to_numpy(), column.name)
        if depth == 1
        else math.prod(column.shape or ())
    )
    for _ in range(depth):
        lists = lists.explode(column.name)
    rows = np.asarray(lists.get_column(column.name).to_numpy())
    return _with_missing(rows.reshape(-1, width), present)


def _is_missing(value: object) -> bool:
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def _lists_of_objects(lists: Array, name: object) -> Array:
    """Return a column of pandas that holds lists or arrays as a table."""
    present = np.array([not _is_missing(each) for each in lists], dtype=bool)
    values = [np.asarray(each) for each in lists[present]]
    if any(each.ndim != 1 for each in values):
        raise DataError(f"column {name} does not hold a list of numbers in some rows: expected a list in every row")
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


def _rows(frame: Any, id_column: str | None) -> Dimension:
    """Return the names of the rows: of a column, or of the index of pandas."""
    import narwhals as nw

    index: Any = nw.maybe_get_index(frame)
    if id_column is None:
        rows = Dimension("row", len(frame)) if index is None else dimension_of_index(index)
        return replace(rows, coordinate=None) if index is not None and is_default(index) else rows
    if index is not None:
        return replace(dimension_of_index(nw.maybe_get_index(nw.maybe_set_index(frame, id_column))), name=id_column)
    column = frame.get_column(id_column)
    ids, zone = np.asarray(column.to_numpy()), getattr(column.dtype, "time_zone", None)
    ids = ids if ids.dtype.kind in "biufMm" else ids.astype(str)
    return Dimension(id_column, len(ids), ids, {} if zone is None else {"time_zone": zone})
