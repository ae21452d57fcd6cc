"""Scores, and rows from scores, one slab of features at a time: for components on disk, and for data read by features."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.models.conditional import add_lost, fill_in_from, n_packed
from streampca.models.scoring import ScoringModel
from streampca.models.stored_components import SLAB_BYTES, StoredComponents
from streampca.typing import Array, DType, FloatArray


def transform(model: ScoringModel, stored: StoredComponents, rows: Any, out: Array) -> Array:
    """Write the scores of `rows`, dense or sparse, ``(n_rows, n_features)``, to `out`, ``(n_rows, k)``, and return it.

    As `PCAModel.transform`, with sums over slabs in float64. Every call reads all components once.
    """
    scores = np.zeros(out.shape)
    lost = None
    if model.conditional and isinstance(rows, np.ndarray) and rows.dtype.kind == "f":
        lost = np.zeros((len(rows), n_packed(model.n_components)))
    for columns, slab in stored.slabs():
        add_scores(model, columns, slab, rows[:, columns], out.dtype, scores)
        if lost is not None:
            add_lost(np.isnan(rows[:, columns]), slab, lost)
    if lost is not None:
        fill_in_from(model, lost, scores)
    if model.whiten:
        scores /= model.deviations
    out[...] = scores
    return out


def add_scores(
    model: ScoringModel, features: slice, slab: FloatArray, rows: Any, dtype: DType, scores: FloatArray
) -> None:
    """Add the contribution of some features to `scores`, ``(n_rows, k)``, without whitening and conditional means.

    Parameters
    ----------
    model : ScoringModel
        Its mean, weights and replacements of missing values.
    features : slice
        Which features.
    slab : array, shape (k, n_some)
        Components for them.
    rows : array or sparse matrix, shape (n_rows, n_some)
        Values of them.
    dtype : dtype
        In which products are taken.
    scores : array, shape (n_rows, k)
        Is added to.
    """
    dtype = model.product_dtype(dtype)
    weights, mean = model.weights_of(features), model.mean[features]
    axes = (slab if weights is None else slab * weights).T.astype(dtype)
    if not isinstance(rows, np.ndarray):  # sparse: what is not stored is never made
        scores += rows @ axes
        scores -= mean @ axes
        return
    centre = mean.astype(dtype)
    scores -= (mean - centre) @ axes
    fill = None
    if model.stand_in is not None and rows.dtype.kind == dtype.kind:
        fill = (model.stand_in[features] - centre).astype(dtype)
    step = max(1, SLAB_BYTES // (max(1, len(mean)) * dtype.itemsize))
    for start in range(0, len(rows), step):
        panel = slice(start, start + step)
        centred = np.subtract(rows[panel], centre, dtype=dtype)
        if fill is not None:
            np.copyto(centred, fill, where=np.isnan(centred))
        scores[panel] += centred @ axes


def inverse_transform(model: ScoringModel, stored: StoredComponents, scores: Array) -> Array:
    """Return the rows, ``(n_rows, n_features)``, that have these `scores`, ``(n_rows, k)``, in their data type."""
    dtype = scores.dtype
    rows = np.empty((len(scores), stored.shape[1]), dtype=dtype)
    for columns, slab in stored.slabs():
        panel = scores @ slab.astype(dtype)
        if model.scale is not None:
            panel *= model.scale[columns].astype(dtype)
        if model.feature_weight is not None:
            root = np.sqrt(model.feature_weight[columns])
            panel *= np.divide(1.0, root, out=np.zeros_like(root), where=root > 0).astype(dtype)
        panel += model.mean[columns].astype(dtype)
        rows[:, columns] = panel
    return rows
