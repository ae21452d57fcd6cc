"""The files of a run directory: its documents and its model, and arrays that are read a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import zarr

import streampca.formatting as words
from streampca.errors import DamagedChunkError, ModelError
from streampca.formatting import clean
from streampca.labels import Dimension, Labels
from streampca.models.analysis import AnalysisModel
from streampca.models.pca import Model, PCAModel
from streampca.models.persistence.groups import StoredGroup, open_strictly
from streampca.models.persistence.labels import labels_from
from streampca.models.persistence.models import build, read_stored
from streampca.models.state import texts_of
from streampca.models.stored import StoredComponents
from streampca.runs.manifest import read_json
from streampca.sources.conventions import decoded_times
from streampca.sources.zarr.strictness import strict
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import Array, FloatArray, IntArray, Json

_MOST_NAMES = 3
"""Variables of a table that are named."""
BLOCK_BYTES = 2 << 20
"""Rows are taken in pieces of about this many bytes as float64."""
_NO_COORDINATES = frozenset({"scores", "mode", "t2", "q"})
"""Arrays of a group of scores that are no coordinates of samples."""
VALUES_OF_SAMPLES = 1 << 26
"""At most this many values of the samples are read, so that a million features do not make a page slow."""


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

    def __getitem__(self, rows: slice) -> Array:
        """Return some rows; DamagedChunkError when they cannot be decoded."""
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
    """What a run left behind: its model, and large arrays of rows on disk."""

    name: str
    """Name of the directory."""
    plan: Json
    """What was going to be done: plan.json, whose fields may hold anything."""
    manifest: Json
    """What was done: manifest.json, whose fields may hold anything."""
    model: Model
    """The model; its components may be on disk."""
    fit: object = None
    """Record of the fit among the attributes of the stored model; None where it has none."""
    labels: Labels | None = None
    """Names of rows and features; None where the run has none."""
    samples: StoredArray | None = None
    """Rows of the source, evenly spread, shape ``(n_samples, n_features)``, on disk; None where they are missing."""
    sample_index: IntArray | None = None
    """Row number of each sample within the source, shape ``(n_samples,)``."""
    classes: Array | None = None
    """Class of each sample as text, ``(n_samples,)``; None where the configuration names none."""
    scores: StoredArray | None = None
    """Scores of all rows, shape ``(n_samples, n_components)``, on disk; None where they were not written."""
    distances: tuple[StoredArray, StoredArray] | None = None
    """T² and Q of all rows, ``(n_samples,)``, on disk; None where they were not written."""
    unusual: FurtherRows | None = None
    """Copies of the rows with the largest T² and Q; None where there are none."""

    @property
    def pca(self) -> PCAModel:
        """Return the model of a run of PCA."""
        assert self.model.linear is not None  # noqa: S101 for the type checker: pages of kernel PCA do not ask
        return self.model.linear

    @property
    def components(self) -> FloatArray:
        """Return the principal axes, shape ``(n_components, n_features)``, of a model in memory."""
        components = self.pca.components
        assert not isinstance(components, StoredComponents)  # noqa: S101 whoever asks has looked at `in_slabs`
        return components

    @property
    def centred(self) -> bool:
        """Whether the mean is subtracted from rows."""
        return self.model.linear is not None and self.model.center

    @cached_property
    def scale(self) -> FloatArray | None:
        """What centred features are divided by, 0 where their weight is 0, shape ``(n_features,)``; None for 1."""
        weights = self.pca.weights
        return None if weights is None else np.divide(1.0, weights, out=np.zeros_like(weights), where=weights != 0)

    @property
    def divisors(self) -> FloatArray | None:
        """What scores are divided by when they are whitened, shape ``(n_components,)``; or None."""
        deviations = self.pca.deviations if self.pca.whiten else None
        return None if deviations is None else np.where(deviations > 0, deviations, np.inf)

    @property
    def removes(self) -> bool:
        """Whether the model removes group means, a trend or covariates from rows, which `samples` still have."""
        return self.pca.removal is not None

    @property
    def correlations(self) -> bool:
        """Whether loadings are correlations: complete features are centred and divided by their standard deviations."""
        parameters = self.fit.get("parameters") if isinstance(self.fit, dict) and not self.removes else None
        expected = {"scale": True, "center": True, "feature_weight": None, "missing": "error"}
        return isinstance(parameters, dict) and all(parameters.get(name) == value for name, value in expected.items())

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """Return the names of the two tables of an analysis: their variables, else their first and last features."""
        names, sides, first = [], self.model.sides if isinstance(self.model, AnalysisModel) else (), 0
        for side in sides:
            variables = () if side.labels is None else side.labels.variables
            named = [clean(variable.name, 40) for variable in variables if variable.name is not None]
            last = first + side.n_features - 1
            if not 0 < len(named) == len(variables) <= _MOST_NAMES:
                named = ["–".join(dict.fromkeys(self.feature_name(place) for place in (first, last)))]
            names.append(", ".join(named))
            first = last + 1
        return tuple(names) if len({*names}) == len(names) else ("first table", "second table")

    def score_name(self, column: int) -> str:
        """Return what the scores in a column are of: a component, a factor, or a pair and its table."""
        noun, k = self.model.kind.noun, self.model.n_components // max(1, len(self.tables))
        if len(self.tables) < 2:
            return f"{noun} {column + 1:,}"
        return f"{noun} {column % k + 1:,}, {self.tables[column // k]}"

    @property
    def of_times(self) -> bool:
        """Whether the samples lie along one dimension of times."""
        dimensions = () if self.labels is None else self.labels.samples
        return (
            len(dimensions) == 1 and dimensions[0].coordinate is not None and dimensions[0].coordinate.dtype.kind == "M"
        )

    @property
    def sample_noun(self) -> str:
        """Return what a sample is called: a time step, where samples are times."""
        return "time step" if self.of_times else "sample"

    def standardised(self, rows: Array) -> FloatArray:
        """Return `rows` as the model sees them: centred, scaled; 0 for a missing value or a constant feature."""
        deviations: FloatArray = np.array(rows, dtype=np.float64)
        deviations -= self.pca.mean
        if self.pca.weights is not None:
            deviations *= self.pca.weights
        deviations[~np.isfinite(deviations)] = 0.0
        return deviations

    def amplitude(self, deviations: FloatArray) -> FloatArray:
        """Return differences of rows in the units of the source from differences as the model sees them."""
        return deviations if self.scale is None else deviations * self.scale

    def restored(self, deviations: FloatArray) -> FloatArray:
        """Return rows in the units of the source from rows as the model sees them."""
        return self.amplitude(deviations) + self.pca.mean

    def feature_name(self, feature: int) -> str:
        """Return the name of a feature: as the source gives it, by its labels where they have coordinates, or by its number."""
        names = field(self.manifest, "source", "feature_names")
        if isinstance(names, list) and len(names) == self.model.n_features:
            return clean(names[feature], 60)
        labels = self.labels
        if labels is None or (len(labels.variables) == 1 and all(d.coordinate is None for d in labels.features)):
            return f"feature {feature:,}"
        return clean(labels.feature_name(feature), 60)


def read_run(directory: Path, model: Model | None = None) -> RunFiles:
    """Open the files of the run in `directory`; `model` is that in model.zarr, where it is in memory already.

    Components that were saved in slabs of features stay on disk.

    Raises
    ------
    DataError
        A file is missing, or is not what a run writes; ModelError when it is the model.
    """
    plan, manifest = (read_json(directory, name) for name in ("plan.json", "manifest.json"))
    scores, attributes = _open_group(directory / "scores.zarr", ("scores", "t2", "q"))
    named = attributes.get("coordinate_arrays")
    model, labels, fit = read_model(directory / "model.zarr", model)
    rows, index = read_samples(directory / "samples.zarr", model.n_features)
    unusual = read_samples(directory / "samples.zarr", model.n_features, ("unusual_rows", "unusual_index"))
    return RunFiles(
        name=directory.resolve().name,
        plan=plan,
        manifest=manifest,
        model=model,
        fit=fit,
        labels=None if labels is None else _with_coordinates(labels, directory / "scores.zarr"),
        samples=rows,
        sample_index=index,
        classes=_read_classes(directory / "samples.zarr", index),
        scores=scores.get("scores"),
        # and not coordinates of these names
        distances=(scores["t2"], scores["q"])
        if isinstance(named, list) and {"t2", "q"} <= {*named} & {*scores}
        else None,
        unusual=FurtherRows(unusual[0][:], unusual[1]) if unusual[0] is not None and unusual[1] is not None else None,
    )


def read_model(path: Path, model: Model | None = None) -> tuple[Model, Labels | None, object]:
    """Return the model at `path`, or `model`, with its labels and the record of its fit as they are stored."""

    def opened(group: StoredGroup) -> tuple[Model, Labels | None, object]:
        built = model or build(group, slabs_on_disk=True)
        return built, labels_from(group, built.n_features), group.stored_attributes.get("fit")

    return read_stored(path, opened)


def _with_coordinates(labels: Labels, path: Path) -> Labels:
    """Return `labels` with the coordinates of their samples in the group of scores at `path`, where there are any."""
    listed, samples = _open_group(path, ())[1].get("samples"), labels.samples
    if isinstance(listed, list) and all(
        isinstance(each, dict) for each in listed
    ):  # also of samples that were left out
        known = [(str(each.get("name")), words.whole(each.get("size")) or 0) for each in listed]
        samples = tuple(Dimension(name, size) for name, size in known) or samples
    arrays, _ = _open_group(path, tuple(d.name for d in samples if d.name not in _NO_COORDINATES))
    dimensions = []
    for dimension in samples:
        stored = arrays.get(dimension.name)
        if stored is not None and stored.shape == (dimension.size,):
            values = stored[:]
            values = np.array(values.tolist(), dtype=str) if values.dtype.kind in "OT" else values
            values = decoded_times(values, dict(stored.array.attrs), stored.path)
            dimension = replace(dimension, coordinate=values)
        dimensions.append(dimension)
    return replace(labels, samples=tuple(dimensions))


def read_samples(
    path: Path, n_features: int, names: tuple[str, str] = ("rows", "index")
) -> tuple[StoredArray | None, IntArray | None]:
    """Return the samples, unread, and their row numbers; None where there are none, or none that can be drawn.

    `names` are those of the arrays in the group at `path`.
    """
    arrays, _ = _open_group(path, names)
    rows, index = (arrays.get(name) for name in names)
    numeric = rows is not None and np.dtype(rows.array.dtype).kind in "biuf"
    if rows is None or not numeric or rows.shape[1:] != (n_features,) or rows.shape[0] < 1:
        return None, None
    return rows, index[:].astype(np.int64) if index is not None and index.shape == rows.shape[:1] else None


def _read_classes(path: Path, index: IntArray | None) -> Array | None:
    """Return the classes of the samples with these row numbers as text; None where there are none, or they are damaged."""
    arrays, _ = _open_group(path, ("classes", "classes_ends"))
    if index is None or len(arrays) < 2:
        return None
    try:
        texts = texts_of(arrays["classes"][:], arrays["classes_ends"][:])
    except ValueError:
        return None
    return np.array(texts) if len(texts) == len(index) else None


def blocks(rows: StoredArray, stop: int | None = None) -> Iterator[tuple[int, Array]]:
    """Yield the rows before `stop` in pieces of about `BLOCK_BYTES`, each with the number of its first row."""
    n, d = rows.shape[0], rows.shape[1]
    n = n if stop is None else min(n, stop)
    step = max(1, BLOCK_BYTES // (8 * d))
    for start in range(0, n, step):
        yield start, np.asarray(rows[start : min(n, start + step)])


def _open_group(path: Path, names: tuple[str, ...]) -> tuple[dict[str, StoredArray], Json]:
    """Return those arrays of a zarr group that exist, unread, and its attributes; nothing where there is no group."""
    if not path.is_dir():
        return {}, {}
    try:
        group = open_strictly(path)
        members = {name: group.get(name) for name in names}
        attributes: Json = dict(group.attrs)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be opened: {clean(error, 160)}") from error
    arrays = {
        name: StoredArray(strict(array), f"{path}/{name}")
        for name, array in members.items()
        if isinstance(array, zarr.Array)
    }
    return arrays, attributes


def field(mapping: object, *path: str) -> object:
    """Return what stands at `path` in nested mappings, or None."""
    for key in path:
        mapping = mapping.get(key) if isinstance(mapping, dict) else None
    return mapping


@dataclass(frozen=True)
class ReportedSpectrum:
    """Eigenvalues and shares as far as the files tell them."""

    values: FloatArray
    """Eigenvalues, shape ``(n_components,)``."""
    ratios: FloatArray
    """Share of the total, shape ``(n_components,)``; zeros where there is none."""
    carried: str
    """The share of all together, or its lower bound."""
    noun: str = "Component"
    """What an axis is called."""
    title: str = "Eigenvalues"
    """Heading of their chart."""
    total: str = "variance"
    """What they are shares of."""
    is_correlation: bool = False
    """Whether the values are correlations, whose squares have no total."""

    def share(self, component: int) -> str:
        """Return the share of a component, from 0, in words; the correlation of a pair of canonical variates."""
        if self.is_correlation:
            return f"r{words.SPACE}={words.SPACE}{words.figure(self.values[component], 3)}"
        return words.share(float(self.ratios[component]))
