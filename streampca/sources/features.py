"""Choice of features: dimensions of an array, or columns of a table with named columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streampca.errors import DataError, ParameterError
from streampca.labels import Dimension, Labels, Variable
from streampca.sources.base import require_table
from streampca.sources.formats import ReadOptions
from streampca.suggestions import did_you_mean
from streampca.typing import DType

Axes = tuple[tuple[int, ...], tuple[int, ...]]
"""Axes of an array that make rows, and those that make columns, each the slowest first."""
_MOST_NAMED = 8


def axes_of(names: Sequence[str], shape: Sequence[int], options: ReadOptions, label: str) -> Axes:
    """Return the axes whose indices make rows and those whose indices make columns, by `samples` and `features` of the options.

    Without these, arrays of two axes are (samples, features), or as `orientation` says.

    Raises
    ------
    DataError
        If an array of another number of axes has no `samples`.
    ParameterError
        If a name is not one of the array's dimensions, occurs twice, or none is left for rows.
    """
    shown = ", ".join(f"{name} ({size:,})" for name, size in zip(names, shape, strict=True))
    if len(set(names)) < len(names):
        raise DataError(
            f"{label} has the dimensions {shown}: expected every name once; write the array with other names"
        )
    if options.samples is None and options.features is None:
        if len(names) == 2:
            return ((1,), (0,)) if options.orientation == "features_first" else ((0,), (1,))
        if len(names) < 2:
            require_table(tuple(shape), np.dtype(float), label)
        first = likely_samples(names)
        raise DataError(
            f"{label} has {len(names)} dimensions, {shown}: say which of them are samples, for example source.samples: [{first}] "
            f"(from Python: sp.open(…, samples={first!r})); the others are features"
        )
    if options.orientation is not None:
        raise ParameterError(
            f"{label}: orientation={options.orientation!r} and samples or features were given: leave one out"
        )
    given = {"samples": options.samples, "features": options.features}
    chosen: dict[str, tuple[int, ...]] = {}
    for key, wanted in given.items():
        if wanted is not None:
            chosen[key] = tuple(_axis(name, names, f"{label}: {key}", shown) for name in wanted)
    rest = tuple(axis for axis in range(len(names)) if axis not in {a for axes in chosen.values() for a in axes})
    rows, columns = chosen.get("samples", rest), chosen.get("features", rest)
    doubled = [names[axis] for axis in range(len(names)) if (*rows, *columns).count(axis) > 1]
    left = [names[axis] for axis in rest if axis not in (*rows, *columns)]
    if doubled or left or not rows:
        what = (
            f"{doubled[0]} occurs twice"
            if doubled
            else f"{left[0]} is neither"
            if left
            else "no dimension is left for samples"
        )
        raise ParameterError(
            f"{label} has the dimensions {shown}: {what}; expected each among samples or features, once"
        )
    return rows, columns


def likely_samples(names: Sequence[str]) -> str:
    """Return the dimension that is proposed for samples: the one that is called so, or else the first."""
    return next((name for name in names if name.lower() in ("samples", "sample")), names[0])


def _axis(name: str, names: Sequence[str], key: str, shown: str) -> int:
    """Return the axis of the dimension `name`; `ParameterError` with a suggestion if there is none."""
    if name in names:
        return list(names).index(name)
    raise ParameterError(
        f"{key}: there is no dimension {str(name)[:60]!r}: expected one of {shown}{did_you_mean(name, names)}"
    )


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
            raise ParameterError(
                f"{label} has no column {str(name)[:60]!r}: expected some of {listed(list(known))}{did_you_mean(name, known)}"
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
    """Return the labels of a table of columns of numbers, and of lists or tensors of numbers.

    Names of columns are a coordinate. A single column of lists or tensors is a variable, whose features have numbers, as those
    of several columns with more than a million numbers have.
    """
    names, shapes = [str(column.name) for column in columns], [column.shape or () for column in columns]
    if len(names) == 1 and shapes[0]:
        dims = ["feature"] if len(shapes[0]) == 1 else [f"feature_{axis}" for axis in range(len(shapes[0]))]
        features = tuple(Dimension(dim, size) for dim, size in zip(dims, shapes[0], strict=True))
        return Labels((samples,), features, (Variable(names[0], tuple(dims), shapes[0]),))
    n_features = sum(math.prod(shape) for shape in shapes)
    named = n_features <= 1_000_000 or not any(shapes)
    each = [
        f"{name}[{','.join(map(str, place))}]" if shape else name
        for name, shape in zip(names, shapes, strict=True)
        for place in (np.ndindex(*shape) if named else ())
    ]
    feature = Dimension("feature", n_features, np.array(each) if each else None)
    return Labels((samples,), (feature,), (Variable(None, ("feature",), (n_features,)),))


def feature_error(kind: str) -> ParameterError:
    """Return the error for labels of rows that are a feature, too."""
    return ParameterError(
        f"this {kind} would be a feature, too: name the features in source.{kind}s, without it (from Python: sp.open(…, {kind}s=[…])), "
        "or give its values as an array"
    )


def listed(names: Sequence[object]) -> str:
    """Return names for a message, of many only the first."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(str(name)[:60] for name in names[:_MOST_NAMED]) + more
