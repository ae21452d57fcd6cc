"""Samples as the report draws them: without missing values, and with the classes that a configuration names for their colours."""

from __future__ import annotations

import numpy as np

from streampca.accumulators.rows import RowsState
from streampca.errors import DataError
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.stored_components import StoredComponents
from streampca.runs.config import RunConfig
from streampca.runs.named_values import values_named
from streampca.sources import Source
from streampca.typing import Array

_KEY = "source.labels"
_ROWS_AT_ONCE = 64


def without_holes(samples: RowsState, model: PCAModel | KernelModel) -> RowsState | None:
    """Return `samples` with what the components of `model` give in place of NaN; None if no row is left.

    Rows with NaN are left out where they have no scores, because the fit left them out, or where their scores need more than the row.
    """
    if samples.values.dtype.kind != "f" or not np.isnan(samples.values).any():
        return samples
    values = samples.values.copy()
    alone = isinstance(model, PCAModel) and model.removal is None and not isinstance(model.components, StoredComponents)
    incomplete = np.flatnonzero(np.isnan(values).any(axis=1)) if alone else np.empty(0, dtype=np.int64)
    for start in range(0, len(incomplete), _ROWS_AT_ONCE):
        some = incomplete[start : start + _ROWS_AT_ONCE]
        rows = values[some]
        values[some] = np.where(np.isnan(rows), model.inverse_transform(model.transform(rows)), rows)
    return RowsState(samples.index, values).complete()


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
    return _as_text(name, values_named(_KEY, name, config, source), source)


def _as_text(name: str, values: Array, source: Source) -> Array:
    """Return `values` as text; `DataError` unless they are text or a whole number for each sample."""
    if values.shape != source.shape[:1]:
        raise DataError(
            f"{_KEY}: {name} has shape {values.shape}: expected one class for each of the {source.shape[0]} samples of "
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
            f"{_KEY}: {name} holds values of the type {values.dtype}: expected text or whole numbers{times}"
        )
    return values.astype(str)
