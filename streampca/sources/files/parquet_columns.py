"""Columns of Parquet files that are no features, by name, and keys in the names of the directories of partitions."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from streampca.errors import DataError
from streampca.labels import SampleColumns
from streampca.sources.columns_in_memory import feature_error
from streampca.sources.files.parquet import opened_file, values_of
from streampca.sources.files.paths import partition_keys
from streampca.typing import Array

_MISSING = "__HIVE_DEFAULT_PARTITION__"


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
        """Return the names of the columns that are no features, and of the keys of partitions."""
        with opened_file(self._paths[0]) as file:
            stored = list(file.schema_arrow.names)
        return tuple(name for name in dict.fromkeys([*stored, *self._keys]) if name not in self._features)

    def values(self, name: str) -> Array | None:
        """Return a column, None if there is none of that name; `StreamPCAError` if it is a feature, or cannot be read."""
        if name in self._features:
            raise feature_error("column")
        if name not in self.names:
            return None
        files = [(path, opened_file(path)) for path in self._paths]
        try:
            if name not in files[0][1].schema_arrow.names:
                return self._of_partitions(name, [file.metadata.num_rows for _, file in files])
            return values_of(files, name)
        finally:
            for _, file in files:
                file.close()

    @property
    def _keys(self) -> list[str]:
        """Return the keys of partitions that all files have."""
        first, *others = (partition_keys(path) for path in self._paths)
        return [key for key in first if all(key in other for other in others)]

    def _of_partitions(self, name: str, counts: Sequence[int]) -> Array:
        """Return the value of a key of partitions for every row, numbers where all are whole numbers."""
        values = [partition_keys(path)[name] for path in self._paths]
        if _MISSING in values:
            raise DataError(
                f"{self._paths[values.index(_MISSING)]}: the partition has no value of {name}: expected one for every row"
            )
        numbers = all(re.fullmatch(r"0|-?[1-9]\d{0,17}", value) for value in values)
        return np.repeat(np.array([int(value) for value in values] if numbers else values), counts)
