"""Tables of some features of another table, in the order of that one."""

from __future__ import annotations

import numpy as np
import xxhash

from streampca.block import Block
from streampca.sources.base import ReadCount, RowwiseSource, Source
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, IntArray


def take_columns(values: Array, columns: IntArray, out: Array) -> Array:
    """Write some `columns` of `values` to `out`, ``(n_rows, n_columns)``, in the order of memory of both."""
    if out.flags.c_contiguous:
        return np.take(values, columns, axis=1, out=out, mode="clip")
    np.take(values.T, columns, axis=0, out=out.T, mode="clip")
    return out


def columns_of_block(block: Block, columns: IntArray, *, column_major: bool) -> Block:
    """Return a block with some columns of `block`, in scratch memory."""
    shape = (len(block), len(columns))
    out = borrow("some features", shape[::-1] if column_major else shape, block.values.dtype)
    out = out.T if column_major else out
    return Block(take_columns(block.values, columns, out), block.start, block.weights)


class SubsetSource(RowwiseSource):
    """The rows of another source with some of its features.

    Parameters
    ----------
    source : Source
        The rows, which are read whole; dense.
    used : array, shape (n_features,)
        True for the features of this source.
    alike : Source, optional
        The same table opened by itself, which this one is described as.
    """

    def __init__(self, source: Source, used: BoolArray, alike: Source | None = None):
        self.alike = alike
        self.source, self.used, self.columns = source, used, np.flatnonzero(used)
        self.shape, self.dtype = (source.shape[0], len(self.columns)), source.dtype
        self.description, self.chunk_rows, self.chunk_bytes = source.description, source.chunk_rows, source.chunk_bytes
        self.portable, self.column_major, self.repeats = source.portable, source.column_major, source.repeats
        self.fragments, self.sample_columns = source.fragments, source.sample_columns
        if alike is not None:
            self.fragments = alike.fragments  # whose fingerprints are of the columns that are read
            self.feature_shape, self.feature_names, self.labels = alike.feature_shape, alike.feature_names, alike.labels
            return
        names, labels = source.feature_names, source.labels
        self.feature_names = None if names is None else tuple(names[column] for column in self.columns)
        if labels is not None:
            mask = np.zeros(sum(variable.size for variable in labels.variables), dtype=bool)
            mask[labels.indices()[self.columns]] = True
            self.labels = labels.with_mask(mask).with_used_variables()

    def __reduce__(self) -> tuple[object, ...]:
        return SubsetSource, (self.source, self.used)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the fingerprint of the rows and of the features."""
        if self.alike is not None:
            return self.alike.fingerprint
        digest = xxhash.xxh3_128(self.source.fingerprint.encode())
        digest.update(np.packbits(self.used).tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """Return the description of the table for a manifest."""
        return super().describe() if self.alike is None else self.alike.describe()

    @property
    def n_features_read(self) -> int:
        """Return the length of the rows of the other source."""
        return self.source.n_features_read

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of two blocks of all features, and of reading one."""
        return self.source.overhead_bytes(n_rows) + 2 * n_rows * self.source.row_bytes

    def slice(self, start: int, stop: int) -> SubsetSource:
        """Return a source for a worker that can read rows `start` to `stop`."""
        return SubsetSource(self.source.slice(start, stop), self.used)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the features of rows `start` to `stop`."""
        shape, stored = (stop - start, self.source.shape[1]), None
        if self.source.buffered:
            rows = borrow("rows with all features", shape[::-1] if self.column_major else shape, self.dtype)
            stored = rows.T if self.column_major else rows
        values, count = self.source.read(start, stop, stored)
        out = np.empty((stop - start, self.shape[1]), dtype=self.dtype) if out is None else out
        return take_columns(values, self.columns, out), count


def view_of(whole: Source, own: Source) -> Source:
    """Return a source with the rows of `own` that reads those of `whole`; `own` itself where it has others than some of them."""
    places = _places_in(whole, own)
    alike = own.shape[0] == whole.shape[0] and own.dtype == whole.dtype and not whole.sparse
    if not alike or places is None or (np.diff(places) <= 0).any() or len(places) != own.shape[1]:
        return own
    used = np.zeros(whole.shape[1], dtype=bool)
    used[places] = True
    return SubsetSource(whole, used, own)


def _places_in(whole: Source, own: Source) -> IntArray | None:
    """Return where the features of `own` are among those of `whole`, by names or variables; None if not all are there."""
    if whole.feature_names is not None and own.feature_names is not None:
        by_name = {name: place for place, name in enumerate(whole.feature_names)}
        found = [by_name.get(name, -1) for name in own.feature_names]
        return None if min(found) < 0 or len(by_name) < len(whole.feature_names) else np.array(found)
    if whole.labels is None or own.labels is None:
        return None
    starts, start = {}, 0
    for variable in whole.labels.variables:
        starts[variable.name, variable.shape] = start
        start += variable.size
    if any((variable.name, variable.shape) not in starts for variable in own.labels.variables):
        return None
    stored = np.concatenate([starts[v.name, v.shape] + np.arange(v.size) for v in own.labels.variables])
    places = np.full(start, -1)
    places[whole.labels.indices()] = np.arange(whole.shape[1])
    found_places: IntArray = places[stored[own.labels.indices()]]
    return None if (found_places < 0).any() else found_places
