"""The accumulated state of a fit with the parameters it was made with."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.labels import Labels
from streampca.parameters import PCA_PARAMETERS, Parameters
from streampca.sources.files.records import Fragment
from streampca.typing import FloatArray, Json

if TYPE_CHECKING:
    from streampca.sources.zarr.digests import StoreRecord

AGREE = tuple(parameter.name for parameter in PCA_PARAMETERS if parameter.of_states)
"""Parameters that enter the state or the model made from it."""


@dataclass(frozen=True)
class FittedState:
    """The state of a fit with the configuration that it was made with."""

    solver: str
    """Name of the solver."""
    accumulator: Any
    """Accumulator of the rows."""
    state: Any
    """The accumulated state."""
    parameters: Parameters
    """Parameters of the fit."""
    work_dtype: str
    """Data type of the products."""
    source: Json
    """Description of the source of the first rows."""
    error_growth: float = 1.0
    """Factor by which removed rows have increased the relative rounding of the state."""
    exact: bool = False
    """Whether all rows were small integers, whose products are not rounded in whatever type they are taken."""
    weighted: bool = False
    """Whether rows have weights other than 1."""
    n_left_out: int = 0
    """Rows that were left out because values are missing in them."""
    labels: Labels | None = None
    """Labels of the features, and of as many samples as there are; None where the data had none."""
    fragments: tuple[Fragment, ...] = ()
    """Records of the files whose rows are in the state; none of rows that came from elsewhere."""
    groups: tuple[Any, ...] = ()
    """States of groups of its rows, for cross-validation or sampling errors; empty where no reading kept them."""
    stored: StoreRecord | None = None
    """The record of the zarr arrays whose rows, and no others, are in the state, where one was made."""
    removed: tuple[FloatArray, FloatArray] | None = None
    """Means of the rows, and mean squares of what regression removed of them, ``(n_features,)`` each; None where nothing was removed."""

    @property
    def n_features(self) -> int:
        """Return the number of features."""
        return len(self.state.mean)

    @property
    def solvable(self) -> bool:
        """Return whether there are more rows than `ddof`, so that variances exist."""
        if not self.state.n_samples:
            return False
        return bool(self.accumulator.divisor(self.state) > 0)


def with_writable_state(fitted: FittedState) -> FittedState:
    """Return `fitted` with a state that rows can be added to, which is a copy if one of its arrays is read-only.

    joblib maps the arrays of estimators that it sends to other processes, or loads with ``mmap_mode="r"``, and such maps
    are read-only.
    """
    return fitted if _is_writable(fitted.state) else replace(fitted, state=copy.deepcopy(fitted.state))


def _is_writable(value: object) -> bool:
    """Return whether no array in `value`, a state or a part of one, is read-only."""
    if isinstance(value, np.ndarray):
        return value.flags.writeable
    if isinstance(value, tuple):
        return all(map(_is_writable, value))
    if is_dataclass(value):
        return all(_is_writable(getattr(value, field.name)) for field in fields(value))
    return True
