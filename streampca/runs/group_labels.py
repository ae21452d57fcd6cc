"""The label of each row that ``model.group_by`` names, and the source whose rows they are."""

from __future__ import annotations

from streampca.errors import StreamPCAError
from streampca.estimators.groups import groups_of
from streampca.regressors import as_groups
from streampca.runs.config import RunConfig
from streampca.runs.from_config import source_of
from streampca.runs.named_values import values_named
from streampca.solvers.groups import Groups
from streampca.sources import Source
from streampca.sources.files.paths import files_of

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
    return groups_of(as_groups(values_named(_KEY, str(group_by_of(config)), config, source), _KEY), source, _KEY)


def _is_parquet(config: RunConfig) -> bool:
    path = config.source.path
    if isinstance(path, str) and path.startswith("builtin:"):
        return False
    files = files_of(path if isinstance(path, str) else list(path))
    return files is not None and files.kind == "parquet"
