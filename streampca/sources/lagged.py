"""Lagged copies of the rows of a table side by side: each row holds consecutive samples, for extended EOFs and singular spectrum analysis.

References
----------
Weare & Nasstrom (1982), Examples of extended empirical orthogonal function analyses, Mon. Wea. Rev. 110:481–485. Broomhead & King
(1986), Extracting qualitative dynamics from experimental data, Physica D 20:217–236.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import xxhash

from streampca.errors import DataError, NotAvailableError, ParameterError
from streampca.labels import Dimension, Labels
from streampca.sources.base import ColumnsOfRows, ReadCount, RowsOfSource, Source
from streampca.sources.grid import Grid
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, IntArray

Lags: TypeAlias = int | Sequence[int]
DIMENSION = "lag"
"""Name of the dimension of the copies."""
_LARGEST_STEP = 1.5
"""Steps of the coordinate of samples, in medians of all steps, above which there is a gap: months have 28 to 31 days."""


def with_lags(source: Source, lags: Lags) -> Source:
    """Return the table whose rows are those of `source` at several lags; reads coordinates only.

    Raises
    ------
    ParameterError
        If lags are not different whole numbers of at least 0, or no run of samples is as long.
    NotAvailableError
        If rows are sparse, or samples have several dimensions.
    """
    whole = isinstance(lags, int | np.integer) and not isinstance(lags, bool)
    values = list(range(int(lags))) if whole else list(lags) if isinstance(lags, list | tuple | np.ndarray) else []  # type: ignore[arg-type]
    good = all(isinstance(each, int | np.integer) and not isinstance(each, bool) and each >= 0 for each in values)
    if not values or not good or len(set(values)) < len(values):
        raise ParameterError(
            f"lags={str(lags)[:60]!r}: expected how many consecutive samples make a row, or different whole numbers of at least 0"
        )
    offsets = tuple(sorted(int(each) for each in values))
    if source.sparse:
        raise NotAvailableError(
            f"{source.description}: lags={lags!r}: copies of sparse rows are not made: give dense rows"
        )
    labels = source.labels
    if labels is not None and len(labels.samples) > 1:
        names = ", ".join(dimension.name for dimension in labels.samples)
        raise NotAvailableError(
            f"{source.description}: lags={lags!r} are along one dimension of samples, found {names}: expected samples to name one"
        )
    coordinate = None if labels is None else labels.samples[0].coordinate
    starts = _starts(source.shape[0], offsets[-1], coordinate)
    if source.chosen is not None:  # windows are of consecutive samples of the table, whatever its coordinate
        places = source.chosen.rows
        starts = starts[places[starts + offsets[-1]] - places[starts] == offsets[-1]]
    if not len(starts):
        raise ParameterError(
            f"{source.description}: lags={lags!r}: no run of its {source.shape[0]:,} samples without a gap has {offsets[-1] + 1:,}: expected "
            "fewer lags"
        )
    return LaggedSource(source, offsets, starts)


class LaggedSource(RowsOfSource):
    """Rows that hold the samples at several lags after a first one, variable by variable and for each lag after lag.

    Parameters
    ----------
    source : Source
        The samples.
    offsets : tuple of int
        Lags in samples, ascending.
    starts : array, shape (n_rows,)
        Number of the first sample of each row, ascending; windows across gaps are left out.
    """

    def __init__(self, source: Source, offsets: tuple[int, ...], starts: IntArray):
        super().__init__(source)
        self.offsets, self.starts = offsets, starts
        n, copies = len(starts), len(offsets)
        self.shape = (n, copies * source.shape[1])
        whole = n + offsets[-1] == source.shape[0]
        edges = source.grid.edges
        clipped = None if edges is None or not whole else (*(edge for edge in edges if edge < n), n)
        self.grid = (
            replace(source.grid, edges=clipped) if whole else Grid(source.chunk_rows, 0, source.grid.chunk_bytes)
        )
        self.grid = replace(self.grid, chunk_columns=0)
        self.fragments, self.feature_shape, self.column_major, self.buffered = (), None, False, True
        self.depth = 1 + source.depth
        self.labels = None if source.labels is None else _lagged_labels(source.labels, offsets, starts)
        names = source.feature_names
        self.feature_names = None
        if names is not None:
            placed = [f"{name} [lag {lag}]" for lag in offsets for name in names]
            self.feature_names = tuple(placed) if len(self._variables) == 1 else None
        columns = source.sample_columns
        self.sample_columns = None if columns is None else ColumnsOfRows(columns, starts)

    @property
    def chosen(self) -> None:
        """Return nothing: scores are those of the windows, one after another."""
        return

    def __reduce__(self) -> tuple[object, ...]:
        return LaggedSource, (self.source, self.offsets, self.starts)

    @property
    def _variables(self) -> list[slice]:
        """Return the columns of each variable of the samples."""
        labels = self.source.labels
        return [slice(0, self.source.shape[1])] if labels is None else [columns for _, columns, _ in labels.places()]

    @property
    def fingerprint(self) -> str:
        """Return a hash of the fingerprint of the samples, of the lags, and of where rows start."""
        digest = xxhash.xxh3_128(self.source.fingerprint.encode())
        digest.update(np.array(self.offsets, dtype=np.int64).tobytes())
        digest.update(np.ascontiguousarray(self.starts).tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """Return the description of the samples with the lags, and shape and names of these rows."""
        names = None if self.feature_names is None else list(self.feature_names)
        own = {
            "shape": list(self.shape),
            "fingerprint": self.fingerprint,
            "feature_names": names,
            "feature_shape": None,
        }
        return self.source.describe() | own | {"lags": list(self.offsets)}

    def plan_notes(self) -> tuple[str, ...]:
        """Return notes about the samples, and how many windows cross a gap."""
        left = self.source.shape[0] - self.offsets[-1] - len(self.starts)
        gaps = (
            f"{self.description}: {left:,} windows of {self.offsets[-1] + 1:,} samples cross a gap and are left out",
        )
        return (*super().plan_notes(), *(gaps if left else ()))

    def spans(self, start: int, stop: int) -> Sequence[tuple[Source, int, int]]:
        """Return the samples from the first of rows `start` to `stop` to the end of the last: they are read once."""
        return ((self.source, int(self.starts[start]), int(self.starts[stop - 1]) + self.offsets[-1] + 1),)

    def equal_rows(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return nothing: whether windows are equal is not known without reading them."""
        return ()

    def slice(self, start: int, stop: int) -> LaggedSource:
        """Return a source for a worker that can read rows `start` to `stop`."""
        ((_, first, last),) = self.spans(start, stop)
        return LaggedSource(self.source.slice(first, last), self.offsets, self.starts)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of the samples of a block, and of what reading them takes."""
        gaps = int(np.diff(self.starts).max(initial=1)) - 1
        n_samples = min(self.source.shape[0], n_rows + self.offsets[-1] + gaps)
        return self.source.overhead_bytes(n_samples) + n_samples * self.source.row_bytes

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows, of samples that are read once."""
        ((_, first, last),) = self.spans(start, stop)
        scratch = None
        if self.source.buffered:
            scratch = borrow(f"samples of lags {self.depth}", (last - first, self.source.shape[1]), self.source.dtype)
        samples, count = self.source.read(first, last, scratch)
        out = np.empty((stop - start, self.shape[1]), dtype=self.dtype) if out is None else out
        places, at = self.starts[start:stop] - first, 0
        consecutive = len(places) == places[-1] - places[0] + 1
        for columns in self._variables:
            width = columns.stop - columns.start
            for lag in self.offsets:
                low = int(places[0]) + lag
                rows = samples[low : low + len(places), columns] if consecutive else samples[places + lag, columns]
                out[:, at : at + width] = rows
                at += width
        return out, count


def _starts(n_samples: int, span: int, coordinate: Array | None) -> IntArray:
    """Return the samples that a window of `span` further ones without a gap begins with."""
    starts = np.arange(max(0, n_samples - span), dtype=np.int64)
    if coordinate is None or coordinate.dtype.kind not in "iufmM" or n_samples < 3 or not span:
        return starts
    broken = np.concatenate([[0], np.cumsum(_gaps(coordinate))])
    whole: IntArray = starts[broken[starts + span] == broken[starts]]
    return whole


def _gaps(coordinate: Array) -> BoolArray:
    """Return after which samples there is a gap, ``(n_samples - 1,)``: the next is not one step further."""
    steps = np.diff(coordinate)
    sizes = steps.astype(np.float64)
    if steps.dtype.kind == "m":
        sizes[np.isnat(steps)] = np.nan
    usual = float(np.nanmedian(sizes)) if np.isfinite(sizes).any() else 0.0
    if usual == 0.0:
        return np.zeros(len(sizes), dtype=bool)
    relative = sizes / usual
    good = (relative > 0) & (relative <= _LARGEST_STEP)
    return ~good


def labels_of_samples(labels: Labels) -> Labels:
    """Return the labels of the samples of which those of a table with lags are made."""
    variables, masks = [], []
    for variable, _, mask in labels.places():
        variables.append(replace(variable, dims=variable.dims[1:], shape=variable.shape[1:]))
        size = variables[-1].size
        masks.append(np.ones(size, dtype=bool) if mask is None else mask[:size])
    features = tuple(dimension for dimension in labels.features if dimension.name != DIMENSION)
    return Labels(labels.samples, features, tuple(variables)).with_mask(np.concatenate(masks))


def _lagged_labels(labels: Labels, offsets: tuple[int, ...], starts: IntArray) -> Labels:
    """Return the labels of the copies: a dimension ``lag`` before those of each variable, and the first sample of each row."""
    if any(dimension.name == DIMENSION for dimension in (*labels.samples, *labels.features)):
        raise DataError(f"the data have a dimension {DIMENSION!r}, which lags add: rename theirs first")
    (sample,) = labels.samples
    coordinate = None if sample.coordinate is None else sample.coordinate[starts]
    variables = [replace(v, dims=(DIMENSION, *v.dims), shape=(len(offsets), *v.shape)) for v in labels.variables]
    masks = []
    for variable, _, mask in labels.places():
        masks.append(np.tile(np.ones(variable.size, dtype=bool) if mask is None else mask, len(offsets)))
    return Labels(
        (replace(sample, size=len(starts), coordinate=coordinate, others={}),),
        (Dimension(DIMENSION, len(offsets), np.array(offsets)), *labels.features),
        tuple(variables),
    ).with_mask(np.concatenate(masks))
