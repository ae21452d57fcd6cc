"""Values of the rows that a configuration names: the labels of groups (``model.group_by``), and classes (``source.labels``)."""

from __future__ import annotations

import numpy as np

from streampca.errors import DataError, StreamPCAError
from streampca.estimators.groups import groups_of
from streampca.regressors import as_groups, groups_from, known_names, values_from
from streampca.runs.config import RunConfig
from streampca.runs.from_config import keywords_of, source_of
from streampca.solvers.groups import Groups
from streampca.sources import Source
from streampca.sources.arrays import read_array
from streampca.sources.files.paths import files_of
from streampca.sources.listing import read_beside
from streampca.sources.options import ReadOptions
from streampca.typing import Array

_GROUPS, _CLASSES = "model.group_by", "source.labels"


def values_named(key: str, name: str, config: RunConfig, source: Source) -> Array:
    """Return the values that `name` means, which the key `key` of `config` holds; their number is not checked.

    They are a file, a coordinate or column of the table, or an array beside it.

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


def classes_of_samples(config: RunConfig, source: Source) -> Array | None:
    """Return the class of each sample of `source` as text, ``(n_samples,)``; None where `config` names none.

    Raises
    ------
    DataError
        If there is no such file, coordinate or array, or it does not hold text or a whole number for each sample.
    ParameterError
        If the name is that of a sample coordinate with a part of its times that there is not.
    """
    name = config.source.labels
    if name is None:
        return None
    values = values_named(_CLASSES, name, config, source)
    if values.shape != source.shape[:1]:
        raise DataError(
            f"{_CLASSES}: {name} has shape {values.shape}: expected one class for each of the {source.shape[0]} samples of "
            f"{source.description}"
        )
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "f":
        whole = np.isfinite(values) & (np.abs(values) < 2**53)
        values = values.astype(np.int64) if bool(whole.all()) and bool((values == np.rint(values)).all()) else values
    if values.dtype.kind not in "biuUTO":
        times = f", or a part of its times such as {name}.month" if values.dtype.kind == "M" else ""
        raise DataError(
            f"{_CLASSES}: {name} holds values of the type {values.dtype}: expected text or whole numbers{times}"
        )
    return values.astype(str)


def group_by_of(config: RunConfig) -> str | None:
    """Return what divides the rows into groups, None where one model of all rows is fitted."""
    name: str | None = getattr(config.model, "group_by", None)
    return name


def source_by_groups(config: RunConfig) -> Source:
    """Open the source of `config`; a column of Parquet or Arrow files that divides the rows is no feature of it."""
    name, path = str(group_by_of(config)), config.source.path
    files = files_of(path if isinstance(path, str) else list(path))
    if files is None or not files.has_columns or config.source.id_column is not None or name.endswith(".npy"):
        return source_of(config)
    try:
        return source_of(config, id_column=name)
    except StreamPCAError as error:
        column = name.rpartition(".")[0]
        if not column:
            raise
        raise type(error)(
            f"{error}; where {name} is a part of the times in the column {column}, set source.id_column: {column}"
        ) from error


def groups_of_rows(config: RunConfig, source: Source) -> Groups:
    """Return the groups of the rows of `source` that `config` names; reads the labels, but no rows.

    Raises
    ------
    ParameterError
        If there is no such coordinate, it would be a feature, too, or labels are missing or not one for each row.
    DataError
        If there is no such file, column or array, or a group has the name of another part of the result.
    """
    labels = values_named(_GROUPS, str(group_by_of(config)), config, source)
    return groups_of(as_groups(labels, _GROUPS), source, _GROUPS)
