"""Which dimensions of an array are samples and which are features."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np

from streampca.errors import DataError, ParameterError
from streampca.sources.base import require_table
from streampca.sources.options import ReadOptions

Axes = tuple[tuple[int, ...], tuple[int, ...]]
"""Axes of an array that make rows, and those that make columns, each the slowest first."""


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
            return ((1,), (0,)) if options.transposed else ((0,), (1,))
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
    close = difflib.get_close_matches(str(name), names, 1, 0.5)
    raise ParameterError(
        f"{key}: there is no dimension {str(name)[:60]!r}: expected one of {shown}"
        + (f"; did you mean {close[0]!r}?" if close else "")
    )
