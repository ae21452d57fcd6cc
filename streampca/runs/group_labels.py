"""The label of each row that ``model.group_by`` names, and the source whose rows they are."""

from __future__ import annotations

from streampca.errors import DataError, ParameterError, StreamPCAError
from streampca.estimators.groups import groups_of
from streampca.regressors.removal import as_groups, groups_from
from streampca.runs.config import RunConfig
from streampca.runs.from_config import keywords_of, source_of
from streampca.solvers.groups import Groups
from streampca.sources import Source
from streampca.sources.cells.columns import obs_column
from streampca.sources.files.paths import files_of
from streampca.sources.options import ReadOptions
from streampca.sources.vector import read_array, read_beside
from streampca.typing import Array

_KEY = "model.group_by"


def group_by_of(config: RunConfig) -> str | None:
    """Return what divides the rows into groups, None where one model of all rows is fitted."""
    name: str | None = getattr(config.model, "group_by", None)
    return name


def source_by_groups(config: RunConfig) -> Source:
    """Open the source of `config`; a column of Parquet files that divides the rows is no feature of it."""
    name = str(group_by_of(config))
    if _is_parquet(config) and config.source.id_column is None and not name.endswith(".npy"):
        try:
            return source_of(config, id_column=name)
        except StreamPCAError as error:
            column = name.rpartition(".")[0]
            if not column:
                raise
            raise type(error)(
                f"{error}; where {name} is a part of the times in the column {column}, set source.id_column: {column}"
            ) from error
    return source_of(config)


def groups_of_rows(config: RunConfig, source: Source) -> Groups:
    """Return the groups of the rows of `source` that `config` names; reads the labels, but no rows.

    Raises
    ------
    ParameterError
        If there is no such coordinate, it would be a feature, too, or labels are missing or not one for each row.
    DataError
        If there is no such file, column or array, or a group has the name of another part of the result.
    """
    return groups_of(as_groups(_values(config, source), _KEY), source, _KEY)


def _values(config: RunConfig, source: Source) -> Array:
    name, path = str(group_by_of(config)), str(config.source.path)
    options = ReadOptions(**keywords_of(config.source))
    if name.endswith(".npy"):
        return read_array(_KEY, name)
    labels = source.labels
    coordinates = () if labels is None else tuple(d.name for d in labels.samples if d.coordinate is not None)
    if name in coordinates or name.rpartition(".")[0] in coordinates:
        return groups_from(labels, name, source.description, _KEY)
    if _is_parquet(config):
        if config.source.columns is None and name in (source.feature_names or ()):
            raise ParameterError(
                f"{_KEY}={name!r}: this column would be a feature, too: name the features in source.columns, without it"
            )
        return groups_from(source_of(config, id_column=name).labels, name, source.description, _KEY)
    values = obs_column(_KEY, name, path, options)
    if values is not None:
        return values
    try:
        return read_beside(_KEY, name, path, options)
    except DataError as error:
        known = f"; sample coordinates: {', '.join(coordinates)}" if coordinates else ""
        raise type(error)(f"{error}{known}") from error


def _is_parquet(config: RunConfig) -> bool:
    path = config.source.path
    if isinstance(path, str) and path.startswith("builtin:"):
        return False
    files = files_of(path if isinstance(path, str) else list(path))
    return files is not None and files.kind == "parquet"
