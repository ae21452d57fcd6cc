"""A value for each row that a configuration names: a file, a coordinate or column of the table, or an array beside it."""

from __future__ import annotations

from streampca.errors import DataError
from streampca.regressors import groups_from, known_names, values_from
from streampca.runs.config import RunConfig
from streampca.runs.from_config import keywords_of
from streampca.sources import Source
from streampca.sources.options import ReadOptions
from streampca.sources.vector import read_array, read_beside
from streampca.typing import Array


def values_named(key: str, name: str, config: RunConfig, source: Source) -> Array:
    """Return the values that `name` means, which the key `key` of `config` holds; their number is not checked.

    Raises
    ------
    DataError
        If there is no such file, column or array, or it cannot be read.
    ParameterError
        If the name is that of a part of times that there is not, or of no column of files or AnnData.
    """
    if name.endswith(".npy"):
        return read_array(key, name)
    labels, columns = source.labels, source.sample_columns
    values = values_from(labels, name, source.description, key, columns=columns)
    if values is not None:
        return values
    if columns is not None and not columns.of_group:
        return groups_from(labels, name, source.description, key, columns=columns)  # raises what names there are
    try:
        return read_beside(key, name, str(config.source.path), ReadOptions(**keywords_of(config.source)))
    except DataError as error:
        raise type(error)(f"{error}; {known_names(labels, columns)}") from error
