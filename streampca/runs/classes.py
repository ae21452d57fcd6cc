"""Classes of samples that a configuration names, for the colours of the report's score plots."""

from __future__ import annotations

import numpy as np

from streampca.errors import DataError
from streampca.labels import Labels
from streampca.regressors.removal import groups_from
from streampca.runs.config import RunConfig
from streampca.runs.from_config import keywords_of
from streampca.sources import Source
from streampca.sources.options import ReadOptions
from streampca.sources.vector import read_array, read_beside
from streampca.typing import Array

_KEY = "source.labels"


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
    coordinates = _sample_coordinates(source.labels)
    if name.endswith(".npy"):
        values = read_array(_KEY, name)
    elif source.labels is not None and name in coordinates:
        values = source.labels.sample_values(name)
    elif name.rpartition(".")[0] in coordinates:
        values = groups_from(source.labels, name, source.description, _KEY)
    else:
        try:
            values = read_beside(_KEY, name, str(config.source.path), ReadOptions(**keywords_of(config.source)))
        except DataError as error:
            known = f"; sample coordinates: {', '.join(coordinates)}" if coordinates else ""
            raise type(error)(f"{error}{known}") from error
    return _as_text(name, values, source)


def _sample_coordinates(labels: Labels | None) -> tuple[str, ...]:
    """Return the names of the sample dimensions that have coordinates."""
    return () if labels is None else tuple(d.name for d in labels.samples if d.coordinate is not None)


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
