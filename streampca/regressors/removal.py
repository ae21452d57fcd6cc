"""The parameter `remove`: group means, a polynomial trend and covariates, and their values for the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import ArrayLike

from streampca.calendars import parts_of, seconds_of
from streampca.errors import ParameterError, StreamPCAError, value_in_words
from streampca.labels import Labels, SampleColumns
from streampca.suggestions import did_you_mean
from streampca.typing import Array, FloatArray, Json

KEYS = ("groups", "trend", "covariates")
"""Keys of the parameter."""
_MOST_NAMED = 12
_SEASONS = np.array(["DJF", "MAM", "JJA", "SON"])


@dataclass(frozen=True)
class RowValues:
    """What the regressors of some rows are made from."""

    n_rows: int
    """Number of rows."""
    groups: Array | None = None
    """Label of each row, ``(n_rows,)``."""
    positions: FloatArray | None = None
    """Position of each row, over which the trend is a polynomial, ``(n_rows,)``."""
    covariates: FloatArray | None = None
    """Covariates of each row, ``(n_rows, n_covariates)``."""


@dataclass(frozen=True)
class Removal:
    """The checked parameter `remove`."""

    groups: str | Array | None = None
    """Label of each row, or its name in the table: a sample coordinate, a column beside the features, or ``time.month``."""
    trend: int | None = None
    """Degree of the polynomial."""
    covariates: FloatArray | None = None
    """Covariates of each row, ``(n_samples, n_covariates)``."""
    covariate_names: tuple[str, ...] | None = None
    """Names of the covariates, where they have some."""

    def to_dict(self) -> Json:
        """Return the parameter as plain data, arrays by their digests."""
        groups = self.groups if self.groups is None or isinstance(self.groups, str) else _digest(self.groups)
        covariates = None if self.covariates is None else _digest(self.covariates)
        return {"groups": groups, "trend": self.trend, "covariates": covariates}

    def rows_of(
        self, labels: Labels | None, n_rows: int, table: str, columns: SampleColumns | None = None
    ) -> RowValues:
        """Return what the regressors of the rows of a fit are made from.

        Raises
        ------
        ParameterError
            If an array has another number of rows than the table, named `table` in messages, or its labels lack what is named.
        """
        groups = self.groups
        if isinstance(groups, str):
            groups = groups_from(labels, groups, table, columns=columns)
        positions = None
        if self.trend is not None:
            known = positions_from(labels, table)
            positions = np.arange(n_rows, dtype=np.float64) if known is None else known
        rows = RowValues(n_rows, groups, positions, self.covariates)
        require_lengths(rows, table)
        return rows


def removal_of(value: object) -> Removal | None:
    """Return the checked parameter `remove`, None where nothing is removed.

    Raises
    ------
    ParameterError
        If it is not a mapping with some of the keys ``groups``, ``trend`` and ``covariates``, or a value has no meaning.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ParameterError(
            f"remove={value_in_words(value)}: expected a mapping with some of the keys {', '.join(KEYS)}"
        )
    unknown = [key for key in value if key not in KEYS]
    if unknown:
        raise ParameterError(
            f"remove has the key {unknown[0]!r}: expected some of {', '.join(KEYS)}{did_you_mean(unknown[0], KEYS)}"
        )
    groups, trend, covariates = (value.get(key) for key in KEYS)
    if groups is None and trend is None and covariates is None:
        raise ParameterError(f"remove names nothing: expected at least one of {', '.join(KEYS)}")
    if trend is not None and (
        isinstance(trend, bool) or not isinstance(trend, int | np.integer) or not 1 <= trend <= 20
    ):
        raise ParameterError(f"remove: trend={trend!r}: expected the degree of a polynomial, an integer from 1 to 20")
    return Removal(
        groups if groups is None or isinstance(groups, str) else as_groups(groups),
        None if trend is None else int(trend),
        None if covariates is None else as_covariates(covariates),
    )


def as_groups(values: object, key: str = "remove: groups") -> Array:
    """Return labels of rows as an array of numbers, times or text, ``(n_rows,)``; `ParameterError` if they are not."""
    groups = _as_array(values, key)
    if groups.dtype.kind == "O" and groups.ndim == 1:
        labels = groups.tolist()
        missing = any(map(_is_missing, labels))
        for kinds, dtype in ((str, str), (bool, bool), (int, np.int64)):  # as columns of pandas have them
            if labels and not missing and all(isinstance(label, kinds) for label in labels):
                groups = groups.astype(dtype)
                break
    else:
        missing = groups.dtype.kind in "fM" and bool(
            (np.isnat(groups) if groups.dtype.kind == "M" else np.isnan(groups)).any()
        )
    if missing or np.ma.is_masked(values):
        raise ParameterError(f"{key} hold missing labels (NaN): expected a label for every row")
    if groups.ndim != 1 or groups.dtype.kind not in "biufUM":
        raise ParameterError(
            f"{key} of shape {groups.shape} and type {groups.dtype}: expected one label for each row, numbers, times or text"
        )
    return groups


def _as_array(values: object, key: str) -> Array:
    """Return labels as an array; of objects where a list has text, of which numpy would make text of all else."""
    try:
        groups = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"{key} are no array: {error}") from error
    if groups.dtype.kind == "T":  # text of any length, whose missing values may be of any kind
        return groups.astype(object)
    mixed = groups.dtype.kind == "U" and isinstance(values, list | tuple)
    return np.array(values, dtype=object) if mixed else groups


def _is_missing(label: object) -> bool:
    """Tell whether a label is None, NaN, NaT, or the missing value of pandas."""
    nan = isinstance(label, float | np.floating) and bool(np.isnan(label))
    return label is None or nan or type(label).__name__ in ("NAType", "NaTType")


def as_covariates(values: ArrayLike) -> FloatArray:
    """Return covariates, ``(n_rows, n_covariates)``; `ParameterError` if they are not finite numbers in one or two dimensions."""
    if np.ma.is_masked(values):
        raise ParameterError("remove: covariates have masked values: expected finite numbers")
    try:
        covariates = np.array(values, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise ParameterError(f"remove: covariates are not an array of numbers: {error}") from error
    covariates = covariates[:, None] if covariates.ndim == 1 else covariates
    if covariates.ndim != 2 or not covariates.shape[1]:
        raise ParameterError(f"remove: covariates of shape {covariates.shape}: expected (n_samples, n_covariates)")
    return _finite("covariates", covariates)


def _finite(name: str, values: FloatArray) -> FloatArray:
    bad = ~np.isfinite(values)
    if bad.any():
        where = int(np.argwhere(bad)[0][0])
        raise ParameterError(f"remove: {name} hold NaN or infinity in row {where}: expected finite numbers")
    return values


def _digest(values: Array) -> str:
    digest = xxhash.xxh3_128(f"{values.shape}{values.dtype}".encode())
    digest.update(np.ascontiguousarray(values).view(np.uint8).data)
    return digest.hexdigest()


def require_lengths(rows: RowValues, table: str) -> None:
    """Raise `ParameterError` if there is not one value for each row of `table`."""
    for key, values in (("groups", rows.groups), ("trend", rows.positions), ("covariates", rows.covariates)):
        if values is not None and len(values) != rows.n_rows:
            raise ParameterError(
                f"remove: {key} has {len(values)} values: expected one for each of the {rows.n_rows} rows of {table}"
            )


def _sample_coordinates(labels: Labels | None) -> list[str]:
    return [] if labels is None else [d.name for d in labels.samples if d.coordinate is not None]


def groups_from(
    labels: Labels | None,
    name: str,
    table: str,
    key: str = "remove: groups",
    *,
    columns: SampleColumns | None = None,
) -> Array:
    """Return the label of each row that `name` means: a sample coordinate, a column, or a part of its times such as ``time.month``.

    Messages begin with `key`.

    Raises
    ------
    ParameterError
        If neither the labels nor the `columns` of `table` have that name, or it holds no times.
    DataError
        If a column cannot be read.
    """
    values = values_from(labels, name, table, key, columns=columns)
    if values is not None:
        return as_groups(values, key)
    kind = "sample coordinate" if columns is None else "sample coordinate or column"
    opened = "; name a column of a data frame after sp.open(frame, columns=FEATURES)" if columns is None else ""
    raise ParameterError(
        f"{key}={name[:60]!r}: {table} has no {kind} {(name.rpartition('.')[0] or name)[:60]!r}; {known_names(labels, columns)}. "
        f"Expected one of these, a part of its times such as 'time.month', or an array with a label for each row{opened}"
    )


def known_names(labels: Labels | None, columns: SampleColumns | None) -> str:
    """Return the names of sample coordinates and columns, for messages."""
    known = [*_sample_coordinates(labels), *([] if columns is None else columns.names)]
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    kinds = "sample coordinates" if columns is None else "sample coordinates and columns"
    return f"{kinds}: {', '.join(known[:_MOST_NAMED]) or 'none'}{more}"


def values_from(
    labels: Labels | None, name: str, table: str, key: str, *, columns: SampleColumns | None = None
) -> Array | None:
    """Return the values at each row that `name` means, see `groups_from`; None if there is no such coordinate or column."""
    values = _values_of(labels, columns, name, f"{key}={name!r}")
    chosen, _, part = name.rpartition(".")
    if values is not None or not chosen:
        return values
    values = _values_of(labels, columns, chosen, f"{key}={name!r}")
    if values is None:
        return None
    if values.dtype.kind == "M" and np.isnat(values).any():
        raise ParameterError(f"{key}={name!r}: {chosen!r} of {table} has missing times")
    parts = parts_of(values, _attributes_of(labels, chosen))
    if parts is None:
        raise ParameterError(
            f"{key}={name!r}: {chosen!r} of {table} has the type {values.dtype} and no times (datetime64, or numbers with units such as "
            "'days since 1990-01-01')"
        )
    parts = {"month": parts["month"], "season": _SEASONS[parts["month"] % 12 // 3], **parts}
    if part not in parts:
        raise ParameterError(f"{key}={name!r}: expected {chosen}. followed by one of {', '.join(parts)}")
    return parts[part]


def _values_of(labels: Labels | None, columns: SampleColumns | None, name: str, what: str) -> Array | None:
    """Return the coordinate or column `name` at each row, None if there is none; messages begin with `what`."""
    if labels is not None and name in _sample_coordinates(labels):
        return labels.sample_values(name)
    try:
        return None if columns is None else columns.values(name)
    except StreamPCAError as error:
        raise type(error)(f"{what}: {error}") from error


def _attributes_of(labels: Labels | None, name: str) -> Mapping[str, object]:
    """Return the attributes of the sample coordinate `name`, none of other columns."""
    return {} if labels is None or name not in _sample_coordinates(labels) else labels.dimension(name).attributes


def positions_from(labels: Labels | None, table: str) -> FloatArray | None:
    """Return the coordinate of the first sample dimension at each row as numbers, None where there is none.

    Times are numbers of seconds since 1970, or since the first day of the calendar. `ParameterError` if the coordinate is neither
    times nor numbers.
    """
    if labels is None or not labels.samples or labels.samples[0].coordinate is None:
        return None
    first = labels.samples[0].name
    values, what = labels.sample_values(first), f"the coordinate {first!r} of {table}"
    seconds = None if values.dtype.kind == "M" else seconds_of(values, _attributes_of(labels, first))
    return as_positions(values if seconds is None else seconds, what)


def as_positions(values: ArrayLike, what: str) -> FloatArray:
    """Return positions as numbers, times as seconds since 1970; `ParameterError` that begins with `what` if they are neither."""
    if np.ma.is_masked(values):
        raise ParameterError(f"remove: trend: {what} have masked values: expected a number or a time for each row")
    positions = np.asarray(values)
    if positions.ndim != 1 or positions.dtype.kind not in "iufM":
        raise ParameterError(
            f"remove: trend: {what} has the shape {positions.shape} and the type {positions.dtype}: expected a number or a time "
            "for each row"
        )
    if positions.dtype.kind == "M":
        missing, seconds = np.isnat(positions), (positions - np.datetime64(0, "s")) / np.timedelta64(1, "s")
        positions = np.where(missing, np.nan, seconds)
    return _finite("positions of the trend", positions.astype(np.float64))
