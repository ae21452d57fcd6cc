"""Values of rows by name, of objects in memory: columns of data frames and of ``obs`` of AnnData."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from streampca.errors import ParameterError
from streampca.labels import SampleColumns
from streampca.system.optional import package_of
from streampca.typing import Array


class FrameColumns(SampleColumns):
    """Columns of a data frame of pandas or polars, except those that are features.

    Parameters
    ----------
    frame : DataFrame
        The frame; that of a derived class may be a LazyFrame.
    names : sequence
        Names of its columns.
    features : collection
        Names of those that are features.
    """

    def __init__(self, frame: Any, names: Sequence[object], features: Collection[object] = ()):
        is_pandas = package_of(frame) == "pandas"
        # So that the rows keep their order if somebody sorts the frame in place; the values are not copied.
        self._frame = frame.copy(deep=False) if is_pandas else frame
        self._features = frozenset(map(str, features))
        self._names = tuple(name for name in names if isinstance(name, str))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that are no features."""
        return tuple(name for name in self._names if name not in self._features)

    def values(self, name: str) -> Array | None:
        """Return a column, None if there is none of that name; `ParameterError` if it is a feature.

        Times with a time zone are those of its clocks.
        """
        if name not in self._names:
            return None
        if name in self._features:
            raise feature_error("column")
        return np.asarray(_by_clocks(self._with(name)[name]).to_numpy())

    def _with(self, name: str) -> Any:
        """Return a frame that has the column `name` in the order of the rows."""
        return self._frame


def _by_clocks(column: Any) -> Any:
    """Return a column of times with a time zone as those of its clocks, and any other as it is."""
    if getattr(column.dtype, "tz", None) is not None:
        return column.dt.tz_localize(None)
    if getattr(column.dtype, "time_zone", None) is not None:
        return column.dt.replace_time_zone(None)
    return column


def feature_error(kind: str) -> ParameterError:
    """Return the error for labels of rows that are a feature, too."""
    return ParameterError(
        f"this {kind} would be a feature, too: name the features in source.{kind}s, without it (from Python: sp.open(…, {kind}s=[…]))"
    )
