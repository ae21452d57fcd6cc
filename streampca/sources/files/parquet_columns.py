"""Columns of Parquet files that are no features, by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from streampca.labels import SampleColumns
from streampca.sources.columns_in_memory import feature_error
from streampca.sources.files.parquet import opened_file, values_of
from streampca.typing import Array


class ParquetColumns(SampleColumns):
    """Columns of the files of a table.

    Parameters
    ----------
    paths : sequence of Path
        The files.
    features : collection of str
        Names of the columns that are features.
    """

    def __init__(self, paths: Sequence[Path], features: Collection[str] = ()):
        self._paths, self._features = tuple(path.absolute() for path in paths), frozenset(features)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that are no features."""
        with opened_file(self._paths[0]) as file:
            return tuple(name for name in file.schema_arrow.names if name not in self._features)

    def values(self, name: str) -> Array | None:
        """Return a column, None if there is none of that name; `StreamPCAError` if it is a feature, or cannot be read."""
        if name in self._features:
            raise feature_error("column")
        if name not in self.names:
            return None
        files = [(path, opened_file(path)) for path in self._paths]
        try:
            return values_of(files, name)
        finally:
            for _, file in files:
                file.close()
