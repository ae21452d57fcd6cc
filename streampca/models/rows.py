"""Rows and scores of a model: removal of effects from rows, and refusal of nonfinite rows and scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from streampca.accumulators.centring import left_out, refuse_not_finite
from streampca.block import rows_of_tensor
from streampca.errors import NotAvailableError, NotFiniteError, ParameterError
from streampca.labels import Labels, SampleColumns
from streampca.regressors import (
    KEYS,
    FittedRegression,
    RowRegressors,
    RowValues,
    as_covariates,
    as_groups,
    as_positions,
    groups_from,
    positions_from,
    require_lengths,
)
from streampca.sources.alignment import column_order, of_chosen, of_rows
from streampca.sources.base import Chosen, Source
from streampca.sources.steps import RowResiduals, SteppedSource, residual_dtype, subtract_fitted
from streampca.sources.where import ColumnsOfChosen, labels_of_some
from streampca.suggestions import did_you_mean
from streampca.system.device import device_of
from streampca.typing import Array, BoolArray

if TYPE_CHECKING:
    from streampca.models.pca import Model, PCAModel


Given = Mapping[str, object]
"""What `remove` names, for rows that are not those of the fit: labels of groups, positions of the trend, covariates."""


def residuals_of(source: Source, model: Model, given: Given | None = None) -> Source:
    """Return the source of the rows that `model` transforms: `source` itself, or without what the model removes and the mean.

    Residuals that still had the mean would lose digits where they are rounded to float32.

    Groups, positions and covariates are those that are `given`, or follow from labels and columns of the table, or are those of the
    fit where the table has the fingerprint of the fit.

    Raises
    ------
    NotAvailableError
        If rows are sparse.
    ParameterError
        If they are not known, do not fit the rows, or hold a group that the fit did not see.
    """
    step = residuals_step(source, model, given)
    return source if step is None else SteppedSource(source, [step])


def residuals_step(source: Source, model: Model, given: Given | None = None) -> RowResiduals | None:
    """Return the step from rows of `source` to those that `model` transforms, None where these are the same; see `residuals_of`."""
    fitted = removed_by(model, given)
    if fitted is None:
        return None
    if source.sparse:
        raise NotAvailableError(
            f"{source.description}: the model removes a part of each row, and residuals of sparse rows are dense: give dense rows"
        )
    known = model.source.get("fingerprint")
    same = known is not None and known == source.fingerprint
    rows = rows_of(
        fitted,
        _of_chosen(given, source.chosen),
        source.shape[0],
        labels=source.labels,
        columns=source.sample_columns,
        table=source.description,
        same=same,
    )
    return RowResiduals(rows, fitted, residual_dtype(source.dtype))


def removed_by(model: Model, given: Given | None) -> FittedRegression | None:
    """Return what `model` removes; `ParameterError` if something is `given` and it removes nothing."""
    if model.removal is None and given is not None:
        raise ParameterError("remove was given, but the model was fitted without it, so nothing is removed")
    return model.removal


def with_fitted(
    values: Array,
    model: Model,
    given: Given | None = None,
    labels: Labels | None = None,
    columns: SampleColumns | None = None,
) -> Array:
    """Return rows of `decode` with what `model` removes, and the mean with it, added, in their memory.

    They are rows of the fit where nothing is `given`, `labels` and `columns` of the scores do not tell, and there are as many.
    """
    fitted = removed_by(model, given)
    if fitted is None:
        return values
    rows = rows_of_scores(fitted, given, ~np.logical_and.reduce(np.isnan(values), axis=1), labels, columns)
    return subtract_fitted(values, rows, fitted, values, 1)


def rows_of_scores(
    fitted: FittedRegression,
    given: Given | None,
    present: BoolArray,
    labels: Labels | None = None,
    columns: SampleColumns | None = None,
) -> RowRegressors:
    """Return the regressors of the rows of scores, of which those of samples that `where` left out, not `present`, mean nothing."""
    n, places = len(present), np.flatnonzero(present)
    if present.all():
        return rows_of(fitted, given, n, labels=labels, columns=columns, same=True)
    if labels is not None:
        columns, labels_of_rows = ColumnsOfChosen(labels, columns, places), labels_of_some(labels, places)
    chosen = Chosen(places, n, labels)
    of_present = rows_of(
        fitted,
        _of_chosen(given, chosen),
        len(places),
        labels=None if labels is None else labels_of_rows,
        columns=columns,
        same=True,
    )
    return of_present.spread(places, n)


def _of_chosen(given: Given | None, chosen: Chosen | None) -> Given | None:
    """Return what `remove` names for a table, for those of its rows that are chosen."""
    return given and {key: of_chosen(f"remove: {key}", value, chosen) for key, value in given.items()}


def rows_of(
    fitted: FittedRegression,
    given: Given | None,
    n_rows: int,
    *,
    labels: Labels | None = None,
    columns: SampleColumns | None = None,
    table: str = "X",
    same: bool = False,
) -> RowRegressors:
    """Return the regressors of rows; `same` says that they are those of the fit if there are as many.

    Raises
    ------
    ParameterError
        As `residuals_of`.
    """
    basis, given = fitted.basis, {} if given is None else given
    needed = {"groups": basis.labels is not None, "trend": basis.degree > 0, "covariates": basis.centres is not None}
    for key in given:
        if key not in KEYS:
            raise ParameterError(
                f"remove has the key {key!r}: expected some of {', '.join(KEYS)}{did_you_mean(key, KEYS)}"
            )
        if not needed[key]:
            raise ParameterError(f"remove: {key} was given, but the model was fitted without it")
    groups, positions, values = (of_rows(f"remove: {key}", given.get(key), labels) for key in KEYS)
    covariates = None if values is None else as_covariates(cast(ArrayLike, values))
    order = column_order("remove: covariates", given.get("covariates"), labels, basis.covariate_names)
    if covariates is not None and order is not None:
        covariates = covariates[:, order]
    if isinstance(groups, str):
        groups = groups_from(labels, groups, table, columns=columns)
    elif groups is not None:
        groups = as_groups(groups)
    elif basis.groups is not None and (labels is not None or columns is not None):
        groups = groups_from(labels, basis.groups, table, columns=columns)
    if positions is not None:
        positions = as_positions(cast(ArrayLike, positions), "positions")
    elif basis.by_coordinate:
        positions = positions_from(labels, table)
    found = {
        "groups": groups,
        "trend": positions,
        "covariates": covariates,
    }
    unknown = [key for key in KEYS if needed[key] and found[key] is None]
    if unknown and same and not given and fitted.rows is not None and len(fitted.rows.codes) == n_rows:
        return fitted.rows
    if unknown:
        raise ParameterError(
            f"remove: {' and '.join(unknown)} of the {n_rows} rows of {table} are not known: these are not the rows of the fit and have "
            f"no labels for this: give them, as in remove={{{unknown[0]!r}: …}} with one value for each row (for a trend its position)"
        )
    rows = RowValues(n_rows, found["groups"], found["trend"], found["covariates"])
    require_lengths(rows, table)
    return basis.regressors(rows)


_SLAB_ROWS = 256
_TENSOR_ROWS = 8192


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


def scores_of_tensor(model: PCAModel, rows: Any) -> Any | None:
    """Return the scores of a tensor of torch as one on its device, ``(n_rows, k)``; None where NaN has a meaning, or components are on disk.

    Raises
    ------
    NotFiniteError
        If rows or scores hold NaN or infinity.
    """
    if model.missing != "error" or model.on_disk:
        return None
    place = rows.device.type if rows.device.index is None else f"{rows.device.type}:{rows.device.index}"
    device = device_of(place if place.startswith("cuda") else f"torch:{place}")
    dtype = model.product_dtype(model.score_dtype(rows_of_tensor(rows[:0]).dtype))
    axes = np.concatenate([slab for _, slab in model.encoder()], axis=1)
    axes = (axes if model.weights is None else axes * model.weights).T.astype(dtype)
    near = model.centre.astype(dtype)
    remainder = device.send(((model.centre - near) @ axes).astype(dtype))
    there, centre, scores = device.send(axes), device.send(near), []
    with device.exact_products():
        for start in range(0, max(1, len(rows)), _TENSOR_ROWS):
            panel = rows[start : start + _TENSOR_ROWS].detach()
            scores.append((device.xp.astype(panel, device.dtype(dtype)) - centre) @ there - remainder)
            if not bool(device.xp.all(device.xp.isfinite(scores[-1]))):
                require_finite_scores(model, device.fetch(panel), device.fetch(scores[-1]), start)
    return device.xp.concat(scores)


def require_finite_scores(model: Model, rows: Any, scores: Array, start: int) -> None:
    """Raise `NotFiniteError` as `scores_of` does; only scores of rows that ``missing="drop_rows"`` excludes may be NaN."""
    dense = isinstance(rows, np.ndarray)
    model.require_finite(rows, start)
    if np.isfinite(scores).all() or left_out(model.missing, rows, start, scores):
        return
    if not dense or model.missing == "error":
        refuse_not_finite(rows, start)
    stop = start + int(rows.shape[0]) - 1
    raise NotFiniteError(f"scores of rows {start} to {stop} overflow {scores.dtype}: rescale the data first")


def rows_from_scores(model: Model, scores: Array, start: int = 0) -> Array:
    """Return the rows that have these `scores`, ``(n_rows, n_features)``, the first of which are those of row `start`.

    Raises
    ------
    NotFiniteError
        If scores hold infinity, or NaN unless the model gives such scores (``missing="drop_rows"``, or all of a row for samples that were
        left out), or rows overflow.
    """
    excluded = model.missing == "drop_rows"
    absent: BoolArray = np.zeros(len(scores), dtype=bool)
    if not excluded and scores.dtype.kind == "f":
        absent = np.logical_and.reduce(np.isnan(scores), axis=1)
    if absent.any():  # of samples that `where` left out
        refuse_not_finite(np.where(absent[:, np.newaxis], 0, scores), start)
        present = rows_from_scores(model, scores[~absent], start)
        rows = np.full((len(scores), present.shape[1]), np.nan, dtype=present.dtype)
        rows[~absent] = present
        return rows
    refuse_not_finite(scores, start, missing=excluded)
    with np.errstate(over="ignore", invalid="ignore"):
        rows = model.decode(scores)
    for first in range(0, len(rows), _SLAB_ROWS):
        slab = rows[first : first + _SLAB_ROWS]
        if not np.isfinite(slab).all() and (np.isinf(slab).any() or not excluded):
            raise NotFiniteError(
                f"rows {start + first} to {start + first + len(slab) - 1} overflow {rows.dtype}: expected smaller scores"
            )
    return rows
