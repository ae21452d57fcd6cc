"""Columns of a table with names, of a data frame or of files of Arrow: which of them are read, and what each holds."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streampca.errors import DataError, ParameterError
from streampca.labels import Dimension, Labels, labels_of_columns
from streampca.typing import DType

_MOST_NAMED = 8


@dataclass(frozen=True)
class Column:
    """A column with a name."""

    name: str
    """Its name; that of a frame of pandas may be another object than text."""
    type: str
    """Its type in words of the library that holds it."""
    dtype: DType | None
    """Data type of its numbers; None if it holds something else."""
    shape: tuple[int, ...] | None = ()
    """Shape of the value of a row: () for numbers, ``(n,)`` for lists, more for tensors; None for lists whose length the type does not say."""

    @property
    def n_features(self) -> int:
        """Return the number of features that it makes."""
        return math.prod(self.shape or ())


def chosen_columns(
    known: Mapping[str, Column],
    columns: Sequence[str] | None,
    id_column: str | None,
    label: str,
    left_out: Iterable[str] = (),
) -> list[Column]:
    """Return the columns that are features: those that `columns` names, or all but `id_column` and what is `left_out`.

    Raises
    ------
    ParameterError
        If there is no column of a name.
    DataError
        If columns do not hold numbers; names all of them.
    """
    for name in (*(columns or ()), *(() if id_column is None else (id_column,))):
        if name not in known:
            close = difflib.get_close_matches(str(name), [str(each) for each in known], 1, 0.5)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ParameterError(
                f"{label} has no column {str(name)[:60]!r}: expected some of {listed(list(known))}{meant}"
            )
    names = [name for name in known if name not in (id_column, *left_out)] if columns is None else columns
    others = [known[name] for name in names if known[name].dtype is None]
    if others:
        numbers = [str(name) for name in names if known[name].dtype is not None]
        some = f"{', '.join(numbers[:3])}{', …' if len(numbers) > 3 else ''}" or "…"
        raise DataError(
            f"{label} has columns that are not numbers: {listed([f'{each.name} ({each.type})' for each in others])}; name those to "
            f"read (source.columns: [{some}]; from Python: sp.open(…, columns=[…])), and in id_column the one that names the rows"
        )
    if not names:
        raise DataError(f"{label} has no columns of numbers")
    return [known[name] for name in names]


def common_type(columns: Iterable[Column], *, nulls: bool) -> DType:
    """Return the data type that holds the numbers of all columns, and NaN if there are nulls."""
    dtype = np.result_type(*(column.dtype for column in columns if column.dtype is not None))
    if nulls and dtype.kind != "f":
        return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)
    return dtype


def labels_of(columns: Sequence[Column], samples: Dimension) -> Labels:
    """Return the labels of a table: names of columns as coordinate, or the only column of lists or tensors as variable."""
    return labels_of_columns(
        [str(column.name) for column in columns], [column.shape or () for column in columns], samples
    )


def feature_error(kind: str) -> ParameterError:
    """Return the error for labels of rows that are a feature, too."""
    return ParameterError(
        f"this {kind} would be a feature, too: name the features in source.{kind}s, without it (from Python: sp.open(…, {kind}s=[…]))"
    )


def listed(names: Sequence[object]) -> str:
    """Return names for a message, of many only the first."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(str(name)[:60] for name in names[:_MOST_NAMED]) + more
