"""The files of a run directory, opened: the one place of the report that reads them, a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict

import numpy as np

from streampca.errors import DamagedChunkError, ModelError
from streampca.labels import Labels
from streampca.runs.manifest import read_json
from streampca.runs.report.words import clean, whole
from streampca.typing import Array, FloatArray, IntArray

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ZarrArray

BLOCK_BYTES = 2 << 20
"""Rows are taken in pieces of about this many bytes as float64."""
_NO_COORDINATES = frozenset({"scores", "mode", "t2", "q"})
"""Arrays of a group of scores that are no coordinates of samples."""
VALUES_OF_SAMPLES = 1 << 26
"""At most this many values of the samples are read, so that a million features do not make a page slow."""


class StoredRows(Protocol):
    """A matrix that is read a few rows at a time: an array in memory, or one in a store."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return ``(n_rows, n_features)``."""
        ...

    def __getitem__(self, rows: slice | tuple[slice, slice]) -> Array:
        """Return some rows, or some of their columns."""
        ...


@dataclass(frozen=True)
class StoredArray:
    """An array in a zarr store, read where it is asked for."""

    array: ZarrArray
    """The open array."""
    path: str
    """Where it is, for messages."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape."""
        return tuple(self.array.shape)

    def __getitem__(self, rows: slice | tuple[slice, slice]) -> Array:
        """Return some rows, or some of their columns; DamagedChunkError when they cannot be decoded."""
        try:
            return np.asarray(self.array[rows])
        except (ValueError, RuntimeError, OSError) as error:
            raise DamagedChunkError(f"{self.path} cannot be read: {clean(error, 160)}") from error


@dataclass(frozen=True)
class FurtherRows:
    """Some rows of the source with their numbers."""

    values: Array
    """The rows, ``(n, n_features)``."""
    index: IntArray
    """Their numbers, ``(n,)``."""


@dataclass(frozen=True)
class RunFiles:
    """What a run left behind, large arrays still on disk."""

    name: str
    """Name of the directory."""
    plan: dict[str, object]
    """What was going to be done: plan.json."""
    manifest: dict[str, object]
    """What was done: manifest.json."""
    components: StoredRows
    """Principal axes, shape ``(n_components, n_features)``, on disk."""
    explained_variance: FloatArray
    """Variance along each axis, shape ``(n_components,)``."""
    mean: FloatArray
    """Mean of each feature, zeros if the data was not centred, shape ``(n_features,)``."""
    scale: FloatArray | None
    """What each centred feature was divided by (with feature weights: by its square root, too), 0 where its weight is 0, shape ``(n_features,)``; or None."""
    samples: StoredRows | None
    """Rows of the source, evenly spread, shape ``(n_samples, n_features)``, on disk; None where they are missing."""
    sample_index: IntArray | None
    """Row number of each sample within the source, shape ``(n_samples,)``."""
    classes: Array | None = None
    """Class of each sample as text, ``(n_samples,)``; None where the configuration names none."""
    centred: bool = True
    """Whether the mean is subtracted."""
    slab: int | None = None
    """Features of a chunk, where the components are stored in slabs of features because they are large; else None."""
    divisors: FloatArray | None = None
    """What scores are divided by when they are whitened, shape ``(n_components,)``; or None."""
    correlations: bool = False
    """Whether loadings are correlations: features are centred and divided by their standard deviations, without other weights."""
    removes: bool = False
    """Whether the model removes group means, a trend or covariates from rows, which `samples` still have."""
    labels: Labels | None = None
    """Names of rows and features; None where the run has none."""
    eigenvalues: FloatArray | None = None
    """All eigenvalues, largest first; None where the model has only those of its components."""
    scores: StoredRows | None = None
    """Scores of all rows, shape ``(n_samples, n_components)``, on disk; None where they were not written."""
    distances: tuple[StoredArray, StoredArray] | None = None
    """T² and Q of all rows, ``(n_samples,)``, on disk; None where they were not written."""
    unusual: FurtherRows | None = None
    """Copies of the rows with the largest T² and Q; None where there are none."""

    @property
    def n_components(self) -> int:
        """Number of components kept."""
        return int(self.components.shape[0])

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.components.shape[1])

    def standardised(self, rows: Array) -> FloatArray:
        """Return `rows` as the model sees them: centred, scaled; 0 for a missing value or a constant feature."""
        deviations: FloatArray = np.array(rows, dtype=np.float64)
        deviations -= self.mean
        if self.scale is not None:
            varies = self.scale != 0
            np.divide(deviations, self.scale, out=deviations, where=varies)
            deviations[:, ~varies] = 0.0
        deviations[~np.isfinite(deviations)] = 0.0
        return deviations

    def amplitude(self, deviations: FloatArray) -> FloatArray:
        """Return differences of rows in the units of the source from differences as the model sees them."""
        return deviations if self.scale is None else deviations * self.scale

    def restored(self, deviations: FloatArray) -> FloatArray:
        """Return rows in the units of the source from rows as the model sees them."""
        return self.amplitude(deviations) + self.mean


class _ModelFields(TypedDict):
    """Fields of `RunFiles` that a model holds."""

    components: StoredRows
    explained_variance: FloatArray
    mean: FloatArray
    scale: FloatArray | None
    centred: bool
    slab: int | None
    divisors: FloatArray | None
    correlations: bool
    removes: bool
    eigenvalues: FloatArray | None


def read_run(directory: Path) -> RunFiles:
    """Open the files of the run in `directory`.

    Raises
    ------
    DataError
        A file is missing, or is not what a run writes; ModelError when it is the model.
    """
    plan, manifest = read_documents(directory)
    model = _model(directory / "model.zarr")
    rows, index = read_samples(directory / "samples.zarr", model["components"].shape[1])
    return RunFiles(
        labels=read_labels(directory, model["components"].shape[1]),
        name=directory.resolve().name,
        plan=plan,
        manifest=manifest,
        samples=rows,
        sample_index=index,
        classes=read_classes(directory / "samples.zarr", index),
        scores=read_scores(directory / "scores.zarr"),
        distances=_read_distances(directory / "scores.zarr"),
        unusual=_read_unusual(directory / "samples.zarr", model["components"].shape[1]),
        **model,
    )


def read_documents(directory: Path) -> tuple[dict[str, object], dict[str, object]]:
    """Return the plan and the manifest of the run in `directory`; ModelError when they cannot be read."""
    return read_json(directory, "plan.json"), read_json(directory, "manifest.json")


def _model(path: Path) -> _ModelFields:
    """Return the fields of the model at `path`, its components unread."""
    names = ("components", "explained_variance", "mean", "scale", "constant_features", "feature_weight", "eigenvalues")
    arrays, attributes = _open_group(path, names)
    if not {"components", "explained_variance", "mean"} <= set(arrays):
        raise ModelError(f"{path} is not a saved model: expected components, explained_variance and mean")
    for stored in arrays.values():
        # A chunk that is gone would be read as zeros without a word.
        if stored.array.nchunks_initialized < stored.array.nchunks:
            raise ModelError(f"{stored.path} lacks chunks: the model is damaged")
    components = arrays["components"]
    shape = components.shape
    agree = len(shape) == 2 and min(shape) > 0 and arrays["explained_variance"].shape == shape[:1]
    if not agree or any(
        arrays[name].shape != shape[1:] for name in ("mean", "scale", "feature_weight") if name in arrays
    ):
        raise ModelError(f"{path} is not a saved model: the shapes of its arrays disagree")
    values = {
        name: arrays[name][:].astype(np.float64)
        for name in ("explained_variance", "mean", "scale", "feature_weight", "eigenvalues")
        if name in arrays
    }
    if not all(np.isfinite(value).all() for value in values.values()):
        raise ModelError(f"{path} is not a usable model: it holds numbers that are not finite")
    scale = values.get("scale")
    if scale is not None and "constant_features" in arrays:
        constant = arrays["constant_features"][:].astype(np.int64)
        scale[constant[(constant >= 0) & (constant < shape[1])]] = 0.0
    if "feature_weight" in values:
        scale = _weighted(scale, values["feature_weight"])
    divisors = None
    if attributes.get("whiten") is True:
        rank = whole(attributes.get("numerical_rank"))
        divisors = np.sqrt(np.clip(values["explained_variance"], 0.0, None))
        divisors[rank if rank is not None else len(divisors) :] = np.inf
        divisors[divisors == 0] = np.inf
    slab = components.array.chunks[1]
    return {
        "components": components,
        "slab": slab if slab < shape[1] else None,
        "explained_variance": values["explained_variance"],
        "mean": values["mean"],
        "scale": scale,
        "centred": attributes.get("center") is not False,
        "divisors": divisors,
        "eigenvalues": values.get("eigenvalues"),
        "correlations": _standardised(attributes),
        "removes": attributes.get("removal") is not None,
    }


def _standardised(attributes: dict[str, object]) -> bool:
    """Return whether a model centred complete features and divided them by their standard deviations, by its attributes."""
    fit = attributes.get("fit")
    parameters = fit.get("parameters") if isinstance(fit, dict) else None
    if not isinstance(parameters, dict) or attributes.get("removal") is not None:
        return False
    expected = {"scale": True, "center": True, "feature_weight": None, "missing": "error"}
    return all(parameters.get(name) == value for name, value in expected.items())


def _weighted(scale: FloatArray | None, weight: FloatArray) -> FloatArray:
    """Return what centred features are divided by, with weights whose square roots they are multiplied by."""
    root = np.sqrt(np.clip(weight, 0.0, None))
    divisor: FloatArray = np.divide(1.0 if scale is None else scale, root, out=np.zeros_like(root), where=root > 0)
    return divisor


def read_labels(directory: Path, n_features: int) -> Labels | None:
    """Return the labels of the model in `directory`, with the coordinates of samples that stand beside the scores; or None."""
    from streampca.models.persistence.groups import StoredGroup
    from streampca.models.persistence.labels import labels_from
    from streampca.models.persistence.pca import FORM

    path = directory / "model.zarr"
    with FORM.reading(path):
        labels = labels_from(StoredGroup(path, FORM), n_features)
    return None if labels is None else with_coordinates(labels, directory / "scores.zarr")


def with_coordinates(labels: Labels, path: Path) -> Labels:
    """Return `labels` with the coordinates of their samples in the group of scores at `path`, where there are any."""
    from streampca.sources.times import decoded_times

    arrays, _ = _open_group(path, tuple(d.name for d in labels.samples if d.name not in _NO_COORDINATES))
    dimensions = []
    for dimension in labels.samples:
        stored = arrays.get(dimension.name)
        if stored is not None and stored.shape == (dimension.size,):
            values = stored[:]
            values = np.array(values.tolist(), dtype=str) if values.dtype.kind in "OT" else values
            values = decoded_times(values, dict(stored.array.attrs), stored.path)
            dimension = replace(dimension, coordinate=values)
        dimensions.append(dimension)
    return replace(labels, samples=tuple(dimensions))


def read_scores(path: Path) -> StoredRows | None:
    """Return the scores in the group at `path`, unread; None where there are none."""
    arrays, _ = _open_group(path, ("scores",))
    return arrays.get("scores")


def _read_distances(path: Path) -> tuple[StoredArray, StoredArray] | None:
    """Return T² and Q in the group of scores at `path`, unread; None where there are none."""
    arrays, attributes = _open_group(path, ("t2", "q"))
    named = attributes.get("coordinate_arrays")
    written = isinstance(named, list) and {"t2", "q"} <= set(named)  # and not coordinates of these names
    return (arrays["t2"], arrays["q"]) if written and len(arrays) == 2 else None


def _read_unusual(path: Path, n_features: int) -> FurtherRows | None:
    """Return the copies of unusual rows in the group of samples at `path`; None where there are none that can be drawn."""
    arrays, _ = _open_group(path, ("unusual_rows", "unusual_index"))
    rows, index = arrays.get("unusual_rows"), arrays.get("unusual_index")
    if rows is None or index is None or rows.shape[1:] != (n_features,) or index.shape != rows.shape[:1]:
        return None
    return FurtherRows(rows[:], index[:].astype(np.int64)) if rows.shape[0] else None


def read_samples(path: Path, n_features: int) -> tuple[StoredRows | None, IntArray | None]:
    """Return the samples, unread, and their row numbers; None where there are none, or none that can be drawn."""
    arrays, _ = _open_group(path, ("rows", "index"))
    rows, index = arrays.get("rows"), arrays.get("index")
    if (
        rows is None
        or rows.shape[1:] != (n_features,)
        or rows.shape[0] < 1
        or np.dtype(rows.array.dtype).kind not in "biuf"
    ):
        return None, None
    return rows, index[:].astype(np.int64) if index is not None and index.shape == rows.shape[:1] else None


def read_classes(path: Path, index: IntArray | None) -> Array | None:
    """Return the classes of the samples with these row numbers as text; None where there are none, or they are damaged."""
    from streampca.models.persistence.texts import texts_of

    arrays, _ = _open_group(path, ("classes", "classes_ends"))
    if index is None or len(arrays) < 2:
        return None
    try:
        texts = texts_of(arrays["classes"][:], arrays["classes_ends"][:])
    except ValueError:
        return None
    return np.array(texts) if len(texts) == len(index) else None


def blocks(rows: StoredRows, stop: int | None = None) -> Iterator[tuple[int, Array]]:
    """Yield the rows before `stop` in pieces of about `BLOCK_BYTES`, each with the number of its first row."""
    n, d = rows.shape[0], rows.shape[1]
    n = n if stop is None else min(n, stop)
    step = max(1, BLOCK_BYTES // (8 * d))
    for start in range(0, n, step):
        yield start, np.asarray(rows[start : min(n, start + step)])


def _open_group(path: Path, names: tuple[str, ...]) -> tuple[dict[str, StoredArray], dict[str, object]]:
    """Return those arrays of a zarr group that exist, unread, and its attributes; nothing where there is no group."""
    import zarr

    from streampca.models.persistence.groups import open_strictly
    from streampca.sources.zarr.strictness import strict

    if not path.is_dir():
        return {}, {}
    try:
        group = open_strictly(path)
        members = {name: group.get(name) for name in names}
        attributes: dict[str, object] = dict(group.attrs)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be opened: {clean(error, 160)}") from error
    arrays = {
        name: StoredArray(strict(array), f"{path}/{name}")
        for name, array in members.items()
        if isinstance(array, zarr.Array)
    }
    return arrays, attributes
