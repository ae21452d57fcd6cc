"""Tasks that compute and write the scores of a leaf for one or several models, and the arrays that they write."""

from __future__ import annotations

import re
import warnings
from abc import abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from streampca.accumulators.wrappers import columns_of_block
from streampca.block import Block
from streampca.errors import OutputError
from streampca.execution.leaf import Task
from streampca.models.diagnostics import row_diagnostics
from streampca.models.pca import Model
from streampca.models.rows import require_finite_scores
from streampca.planning.shape import Leaf
from streampca.sources.base import Source
from streampca.sources.grid import Span
from streampca.sources.steps import RowResiduals
from streampca.storage.directories import ARRAYS_BESIDE_SCORES, DIAGNOSTICS, require_space
from streampca.storage.zarr_interface import opened_for_writing
from streampca.system.phases import Phase
from streampca.system.workspace import borrow
from streampca.typing import DType, IntArray, Json

if TYPE_CHECKING:
    from streampca.labels import Dimension, Labels
    from streampca.storage.zarr_interface import ZarrArray


Arrays: TypeAlias = "tuple[ZarrArray, ...]"
"""The arrays that a leaf is written to, once they are open."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,80}")
"""Names of arrays that nothing can be mistaken for."""
_OTHERS = frozenset({"scores", "mode", "t2", "q"})
_CHUNK = 2**20
_TIMES = {"units": "microseconds since 1970-01-01", "calendar": "proleptic_gregorian"}


class Writer(Task[Arrays]):
    """A task that writes arrays of one zarr group, whose first axis are the rows."""

    model: Model
    """The model."""
    path: Path
    """Path of the zarr group."""

    @property
    @abstractmethod
    def by_row(self) -> tuple[str, ...]:
        """Return the names of the arrays."""

    @abstractmethod
    def create(self, rows_per_chunk: int) -> None:
        """Make the group and its arrays."""

    def written(self, start: int, stop: int, rows_per_chunk: int) -> Span:
        """Return the first row of the arrays that the blocks of rows `start` to `stop` write, and the one behind the last."""
        return start, stop

    def init(self, leaf: Leaf) -> Arrays:
        """Return nothing: the first block opens the arrays."""
        return ()

    def opened(self, state: Arrays) -> Arrays:
        """Return the arrays, open for writing; `OutputError` if the directory was removed."""
        if not (self.path / "zarr.json").exists():  # zarr would make the directories again, for nobody
            raise OutputError(f"{self.path} is gone: the run that it was written for has ended, or somebody removed it")
        return state or tuple(opened_for_writing(self.path / name) for name in self.by_row)

    def finish(self, state: Arrays) -> Arrays:
        """Return nothing: values are in the store."""
        return ()


@dataclass(frozen=True)
class ScoreTask(Writer):
    """Transform the blocks of a leaf and write each as one chunk."""

    common: ClassVar[str] = "model"
    """Name of the field that all leaves share."""
    source: Source
    """Source of the rows."""
    model: Model
    """Model that transforms them."""
    path: Path
    """Path of the zarr group."""
    diagnostics: bool = False
    """Whether T² and Q of the rows are written, too."""

    @property
    def by_row(self) -> tuple[str, ...]:
        """Return the names of the arrays."""
        return ("scores", *DIAGNOSTICS) if self.diagnostics else ("scores",)

    def create(self, rows_per_chunk: int) -> None:
        """Make the group and its arrays."""
        create_scores(self.path, self.model, self.source, rows_per_chunk, diagnostics=self.diagnostics)

    def written(self, start: int, stop: int, rows_per_chunk: int) -> Span:
        """Return the places of rows `start` to `stop`, and of those after each that were left out."""
        chosen = self.source.chosen
        return (start, stop) if chosen is None else chosen.written(start, stop, rows_per_chunk)

    def update(self, state: Arrays, block: Block) -> Arrays:
        """Transform `block` and write its scores, and T² and Q; NaN for rows that were left out.

        Raises
        ------
        NotFiniteError
            If rows or scores hold NaN or infinity.
        OutputError
            If the directory was removed.
        """
        out = borrow("scores", (len(block), self.model.n_components), self.model.score_dtype(self.source.dtype))
        others, equal = block.apart()
        runs = block.equal if equal is not None else ()
        parts = [(other, slice(other.start - block.start, other.start - block.start + len(other))) for other in others]
        # Of rows that all equal one another, those of one are copied.
        parts += [(block.slice(first, first + 1), slice(first, last)) for first, last in runs[:1]]
        values, pca = [out], self.model.linear if self.diagnostics else None
        if pca is not None:
            values += [np.empty(len(block)) for _ in DIAGNOSTICS]
        with np.errstate(over="ignore", invalid="ignore"):
            for part, rows in parts:
                scores = self.model.encode(part.values, out[rows.start : rows.start + len(part)])
                if pca is not None:
                    for value, one in zip(values[1:], row_diagnostics(pca, part.values, scores), strict=True):
                        value[rows] = one
        for first, last in runs:
            out[first:last] = out[runs[0][0]]
            for value in values[1:]:
                value[first:last] = value[runs[0][0]]
        require_finite_scores(self.model, block.values, out, block.start)
        arrays, start, chosen = self.opened(state), block.start, self.source.chosen
        size = int(arrays[0].chunks[0])
        low, high = self.written(start, start + len(block), size)
        for array, value in zip(arrays, values, strict=True):
            if chosen is None:
                with Phase("writing"):
                    array[low:high] = value
                continue
            places = chosen.at(start, start + len(block))
            for first in range(low, high, size):
                one, other = np.searchsorted(places, (first, min(first + size, high)))
                whole = np.full((min(size, high - first), *value.shape[1:]), np.nan, dtype=value.dtype)
                whole[places[one:other] - first] = value[one:other]
                array[first : first + len(whole)] = whole
        return arrays


@dataclass(frozen=True)
class ScoreTasks(Task[tuple[Arrays, ...]]):
    """Write the scores of several models from the same blocks; the state has one entry for each."""

    common: ClassVar[str] = "models"
    """Name of the field that all leaves share."""
    source: Source
    """Source of the rows."""
    models: tuple[Model, ...]
    """Models that transform them."""
    paths: tuple[Path, ...]
    """Path of the zarr group of each."""
    columns: tuple[IntArray | None, ...]
    """For each model which features it has; None for all."""
    residuals: tuple[RowResiduals | None, ...]
    """For each model what takes from the rows what it removes; None where it removes nothing."""
    diagnostics: bool = False
    """Whether T² and Q of the rows are written, too."""

    @property
    def writers(self) -> tuple[ScoreTask, ...]:
        """Return the task of each model alone, for rows without what it removes."""
        models = zip(self.models, self.paths, strict=True)
        return tuple(ScoreTask(self.source, model, path, self.diagnostics) for model, path in models)

    def for_leaf(self, leaf: Leaf) -> ScoreTasks:
        """Return the task with no more of the source than `leaf` needs."""
        start, stop = leaf.edges[0], leaf.edges[-1]
        residuals = tuple(None if each is None else each.slice(start, stop) for each in self.residuals)
        return replace(self, source=self.source.slice(start, stop), residuals=residuals)

    def init(self, leaf: Leaf) -> tuple[Arrays, ...]:
        """Return nothing for each model; the first block opens the arrays."""
        return tuple(writer.init(leaf) for writer in self.writers)

    def update(self, state: tuple[Arrays, ...], block: Block) -> tuple[Arrays, ...]:
        """Write the scores of `block` by every model; raises what `ScoreTask.update` raises."""
        written, column_major = [], self.source.column_major
        for writer, one, columns, residuals in zip(self.writers, state, self.columns, self.residuals, strict=True):
            rows = block if columns is None else columns_of_block(block, columns, column_major=column_major)
            rows = rows if residuals is None else residuals.of_block(rows, column_major=column_major)
            written.append(writer.update(one, rows))
        return tuple(written)

    def finish(self, state: tuple[Arrays, ...]) -> tuple[Arrays, ...]:
        """Return nothing: scores are in the store."""
        return ()


def create_scores(
    path: Path, model: Model, source: Source, rows_per_chunk: int, *, diagnostics: bool = False
) -> ZarrArray:
    """Make the group of the scores of `source` and its arrays; return that of the scores."""
    chosen, labels = source.chosen, source.labels
    n, k, dtype = source.shape[0], model.n_components, model.score_dtype(source.dtype)
    n, labels = (n, labels) if chosen is None else (chosen.n_rows, chosen.labels)
    names = DIAGNOSTICS if diagnostics else ()
    require_space(path, n * (k * dtype.itemsize + 8 * len(names)))
    group = zarr.open_group(path, mode="a", zarr_format=3)
    group.update_attributes({"format": "streampca-scores", "version": 1, "source": model.source})
    new_array(group, "mode", (k,), (max(1, min(_CHUNK, k)),), np.dtype(np.int64), ("mode",), {})[:] = np.arange(
        1, k + 1
    )
    samples = () if labels is None else labels.samples
    coordinates = write_coordinates(group, samples, [*_OTHERS, *(["sample"] if len(samples) > 1 else [])])
    document = None if labels is None else labels.to_dict()["samples"]
    group.update_attributes({ARRAYS_BESIDE_SCORES: ["mode", *coordinates, *names], "samples": document})
    axis, rows = sample_axis(labels), min(n, rows_per_chunk)
    array = new_array(group, "scores", (n, k), (rows, k), dtype, (axis, "mode"))
    for name in names:
        new_array(group, name, (n,), (rows,), np.dtype(np.float64), (axis,))
    array.update_attributes(model.score_attributes)
    return array


def new_array(
    group: zarr.Group,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: DType | type[str],
    axes: tuple[str, ...],
    attributes: Json | None = None,
) -> ZarrArray:
    """Return a new array, every chunk of which has a checksum and is written."""
    return group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype=dtype,
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
        dimension_names=axes,
        attributes=attributes,
        config={"write_empty_chunks": True},
    )


def sample_axis(labels: Labels | None) -> str:
    """Return the name of the axis of samples: that of their only dimension, or ``sample``."""
    if labels is None or len(labels.samples) != 1:
        return "sample"
    name = labels.samples[0].name
    return "sample" if name in _OTHERS or not name or re.fullmatch(r"dim_\d+", name) else name


def write_coordinates(group: zarr.Group, dimensions: Iterable[Dimension], taken: Collection[str]) -> list[str]:
    """Write the coordinates of dimensions that have one and a name which no array can be mistaken for, or has `taken`; return these names."""
    names: list[str] = []
    for dimension in dimensions:
        name, values, attributes = dimension.name, dimension.coordinate, dict(dimension.attributes)
        if values is None or not NAME.fullmatch(name) or name in (*taken, *names):
            continue
        if values.dtype.kind == "M":
            values, attributes = values.astype("datetime64[us]").view(np.int64), {**attributes, **_TIMES}
        elif values.dtype.kind == "m":
            values, attributes = (
                values.astype("timedelta64[us]").view(np.int64),
                {**attributes, "units": "microseconds"},
            )
        elif values.dtype.kind not in "iufb":
            values = values.astype(str)
        text, chunks = values.dtype.kind not in "iufb", (max(1, min(_CHUNK, len(values))),)
        with warnings.catch_warnings(action="ignore"):
            array = new_array(group, name, values.shape, chunks, str if text else values.dtype, (name,), attributes)
            array[:] = values.astype(object) if text else values
        names.append(name)
    return names
