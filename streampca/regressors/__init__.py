"""Regressors for the parameter `remove`, known for every row before it is read."""

from streampca.regressors.basis import Basis, FittedRegression, Regressors, RowRegressors
from streampca.regressors.removal import (
    KEYS,
    Removal,
    RowValues,
    as_covariates,
    as_groups,
    as_positions,
    groups_from,
    known_names,
    positions_from,
    removal_of,
    require_lengths,
    values_from,
)

__all__ = [
    "KEYS",
    "Basis",
    "FittedRegression",
    "Regressors",
    "Removal",
    "RowRegressors",
    "RowValues",
    "as_covariates",
    "as_groups",
    "as_positions",
    "groups_from",
    "known_names",
    "positions_from",
    "removal_of",
    "require_lengths",
    "values_from",
]
