"""Which features of a labelled table are used: an array of truth values, or those that were ever observed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from streampca.errors import DataError, ParameterError
from streampca.labels import Labels
from streampca.sources.alignment import of_features
from streampca.sources.arrays import read_array
from streampca.sources.stored_variable import StoredVariable
from streampca.system.workspace import borrow
from streampca.typing import BoolArray

FROM_DATA = ("observed", "survey")
"""Masks that are found in the data: features of which the first rows, or all rows, hold a value."""
_READ_BYTES = 2**26


def feature_mask(mask: object, labels: Labels, parts: Sequence[StoredVariable], label: str) -> BoolArray:
    """Return which features a mask names as used, of all variables one after another.

    Parameters
    ----------
    mask : array, str, Path or {"observed", "survey"}
        True (or a number other than zero and NaN) for features that are used, or the path of an ``.npy`` file of these: an array of the shape of one variable, for all
        variables of this shape, or of all features in one dimension; with labels, see `streampca.sources.alignment`. ``"observed"`` stands for the features with a value in the
        first rows, at most those of 64 MiB and of one chunk, which are read at once; ``"survey"`` reads all rows.

    Raises
    ------
    DataError
        If the shape is another one, or no feature is used.
    """
    if isinstance(mask, str | Path) and str(mask) not in FROM_DATA:
        mask = read_array("mask", str(mask))
    if isinstance(mask, str):
        used = np.concatenate([_observed(part, every_row=mask == "survey") for part in parts])
    else:
        used = _of_array(mask, labels, label)
    if not used.any():
        raise DataError(
            f"{label}: the mask leaves out all of {len(used):,} features: expected True for those that are used"
        )
    return used


def _of_array(given: object, labels: Labels, label: str) -> BoolArray:
    try:
        mask = np.asarray(of_features("mask", given if hasattr(given, "ndim") else np.asarray(given), labels))
    except ParameterError as error:
        raise DataError(f"{label}: {error}") from error
    if mask.dtype.kind not in "biuf":
        raise ParameterError(f"{label}: mask has dtype {mask.dtype}: expected truth values or numbers")
    used: BoolArray = np.nan_to_num(mask) != 0 if mask.dtype.kind == "f" else mask.astype(bool)
    if used.shape != (labels.n_features,):
        raise DataError(
            f"{label}: mask has shape {mask.shape}: expected one value for each of the {labels.n_features} features"
        )
    return used


def _observed(part: StoredVariable, *, every_row: bool) -> BoolArray:
    """Return which features of an array have a value in its first rows, or in any row."""
    source, n_rows = part.source, part.source.shape[0]
    step = max(1, min(source.chunk_rows, _READ_BYTES // source.row_bytes, n_rows))
    observed = np.zeros(part.n_stored, dtype=bool)
    for start in range(0, n_rows if every_row else step, step):
        stop = min(start + step, n_rows)
        stored, _ = source.read(start, stop, borrow("stored rows", (stop - start, part.n_stored), source.dtype))
        observed |= ~part.missing(stored).all(axis=0)
        if observed.all():
            break
    return observed
