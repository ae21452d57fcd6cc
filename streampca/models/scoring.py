"""Scores and rows that are checked to be finite, with the number of the first row that is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.accumulators.centring import refuse_not_finite
from streampca.accumulators.missing import left_out, refuse_infinite
from streampca.accumulators.sparse import refuse_stored
from streampca.errors import NotFiniteError
from streampca.typing import Array

if TYPE_CHECKING:
    from streampca.models.pca import Model

_SLAB_ROWS = 256


def scores_of(model: Model, rows: Any, start: int = 0) -> Array:
    """Return the scores of `rows`, ``(n_rows, k)``, the first of which is row `start` of the data.

    Raises
    ------
    NotFiniteError
        If rows hold infinity, or NaN that `missing` of the model makes an error, or scores overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scores = model.encode(rows)
    require_finite_scores(model, rows, scores, start)
    return scores


def require_finite_scores(model: Model, rows: Any, scores: Array, start: int) -> None:
    """Raise `NotFiniteError` as `scores_of` does; only scores of rows that ``missing="drop_rows"`` excludes may be NaN."""
    dense = isinstance(rows, np.ndarray)
    model.require_finite(rows, start)
    if np.isfinite(scores).all() or left_out(model.missing, rows, start, scores):
        return
    if not dense:
        refuse_stored(rows, start)
    elif model.missing == "error":
        refuse_not_finite(rows, start)
    stop = start + int(rows.shape[0]) - 1
    raise NotFiniteError(f"scores of rows {start} to {stop} overflow {scores.dtype}: rescale the data first")


def rows_from_scores(model: Model, scores: Array, start: int = 0) -> Array:
    """Return the rows that have these `scores`, ``(n_rows, n_features)``, the first of which are those of row `start`.

    Raises
    ------
    NotFiniteError
        If scores hold infinity, or NaN unless the model gives such scores (``missing="drop_rows"``), or rows overflow.
    """
    excluded = model.missing == "drop_rows"
    (refuse_infinite if excluded else refuse_not_finite)(scores, start)
    with np.errstate(over="ignore", invalid="ignore"):
        rows = model.decode(scores)
    for first in range(0, len(rows), _SLAB_ROWS):
        slab = rows[first : first + _SLAB_ROWS]
        if not np.isfinite(slab).all() and (np.isinf(slab).any() or not excluded):
            raise NotFiniteError(
                f"rows {start + first} to {start + first + len(slab) - 1} overflow {rows.dtype}: expected smaller scores"
            )
    return rows
