"""A table made of stored arrays: packed values are decoded, features left out by a mask, and variables put side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import xxhash

from streampca.errors import DataError, NotAvailableError, ParameterError, PartlyMissingError
from streampca.labels import Dimension, Labels, Variable, equal_values
from streampca.sources.base import Features, ReadCount, Source, Stacked, require_table
from streampca.sources.grid import Grid
from streampca.sources.stored_variable import FROM_DATA, StoredVariable, feature_mask
from streampca.typing import Array


class TableSource(Source):
    """Variables side by side as one table: each row holds the used features of the first variable, then of the second, and so on.

    Every variable is read where it is stored, into scratch memory where it is decoded or masked, once in every pass.
    """

    def __init__(self, parts: Sequence[StoredVariable], labels: Labels | None, description: str):
        self.parts, self.labels, self.description = tuple(parts), labels, description
        sources = self.sources
        self.dtype = np.result_type(*(part.dtype for part in self.parts))
        self.shape = (sources[0].shape[0], sum(part.n_features for part in self.parts))
        require_table(self.shape, self.dtype, description)
        self.grid = Grid.joined([source.grid for source in sources])
        self.portable = all(source.portable for source in sources)
        self.reads_ahead = any(source.reads_ahead for source in sources)
        self.column_major = all(source.column_major for source in sources)
        self.repeats = max(source.repeats for source in sources)
        same_files = len({tuple(f.name for f in source.fragments) for source in sources}) == 1
        self.fragments = sources[0].fragments if same_files else ()
        self._rows = [part.rows(self.dtype) for part in self.parts]
        self.depth = max(rows.depth for rows in self._rows)
        self._edges = np.cumsum([0, *(part.n_features for part in self.parts)]).tolist()
        self._tables: tuple[dict[str, object], ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        return TableSource, (self.parts, self.labels, self.description)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return the arrays of the variables."""
        return tuple(part.source for part in self.parts)

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the arrays of the variables."""
        return tuple(array for source in self.sources for array in source.stored_arrays)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the fingerprints of the arrays, of how they are decoded, and of the mask."""
        digest = xxhash.xxh3_128()
        for part in self.parts:
            mask = b"" if part.mask is None else xxhash.xxh3_128(np.packbits(part.mask).tobytes()).digest()
            digest.update(f"{part.source.fingerprint}|{part.packing}|".encode() + mask)
        return digest.hexdigest()

    @property
    def missing_values(self) -> tuple[float, ...]:
        """Return the stored numbers that count as missing in some variable, beside NaN."""
        return tuple(dict.fromkeys(value for part in self.parts for value in part.missing_values))

    def describe(self) -> dict[str, object]:
        """Return the description of the source for a manifest."""
        arrays = []
        for part in self.parts:
            array = part.source.describe()
            raw = array.get("packing") and part.packing is not None and not part.packing.attributes
            arrays.append(array | {"decoded": part.packing is not None and not raw})
        names = [str(array["array"]) for array in arrays if array.get("array")]
        described = super().describe() | {
            "path": arrays[0]["path"],
            "array": ", ".join(names) or None,
            "n_masked": sum(part.n_stored - part.n_features for part in self.parts),
        }
        if values := self.missing_values:
            declared = next((part.missing_value for part in self.parts if part.missing_value is not None), None)
            described |= {"missing_values": list(values), "missing_value": declared}
        if self._tables:
            described["tables"] = list(self._tables)
        return arrays[0] | described if len(arrays) == 1 else described | {"variables": arrays}

    def plan_notes(self) -> tuple[str, ...]:
        """Return notes about reading the arrays; raise an error if no plan is possible."""
        values = ", ".join(map(str, self.missing_values))
        notes = (f"{self.description}: missing are NaN and the stored numbers {values}",) if values else ()
        of_attributes = (
            f"{part.source.description}: {note}" for part in self.parts if part.packing for note in part.packing.notes
        )
        return (*super().plan_notes(), *notes, *dict.fromkeys(of_attributes))

    def equal_rows(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of rows of which no chunk of any array was ever written."""
        runs: tuple[tuple[int, int], ...] = ((start, stop),)
        for part in self.parts:
            pairs = product(runs, part.source.equal_rows(start, stop))
            runs = tuple((max(a, b), min(c, d)) for (a, c), (b, d) in pairs if max(a, b) < min(c, d))
        return runs

    def slice(self, start: int, stop: int) -> TableSource:
        """Return a source for a worker with no more of lazy arrays than rows `start` to `stop` need."""
        parts = [replace(part, source=part.source.slice(start, stop)) for part in self.parts]
        return TableSource(parts, self.labels, self.description)

    def spans(self, start: int, stop: int) -> Sequence[tuple[Source, int, int]]:
        """Return the arrays of the variables, of which the same rows are read."""
        return [(source, start, stop) for source in self.sources]

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of one array's rows as they are stored, and of what decodes them."""
        return max(rows.overhead_bytes(n_rows) for rows in self._rows)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows, each variable in its columns."""
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        count, n_before = ReadCount(), 0
        for part, rows, (first, last) in zip(self.parts, self._rows, pairwise(self._edges), strict=True):
            try:
                values, cost = rows.read(start, stop, target := out[:, first:last])
            except PartlyMissingError as error:
                raise self._named(error, n_before) from None
            if values is not target:  # a view of other memory
                target[...] = values
            count, n_before = count + cost, n_before + part.n_stored
        return out, count

    def _named(self, error: PartlyMissingError, n_before: int) -> PartlyMissingError:
        """Return the error with the coordinates of the row and of the feature, of a variable after `n_before` features."""
        match = re.search(r"feature (\d+) .* in row (\d+)", str(error))
        if self.labels is None or match is None:
            return error
        feature, row = int(match[1]), int(match[2])
        name, sample = self.labels.with_mask(None).known_name(n_before + feature), self.labels.sample_name(row)
        message = str(error)
        message = message if name is None else message.replace(f"feature {feature} ", f"feature {feature} [{name}] ", 1)
        message = message if sample is None else message.replace(f"in row {row}", f"in row {row} [{sample}]", 1)
        return PartlyMissingError(message)

    def by_features(self) -> Source:
        """Return a source whose rows are the features of this one."""
        features = Stacked([rows.by_features() for rows in self._rows], self.description)
        features.grid = replace(features.grid, chunk_bytes=self.grid.chunk_bytes, whole=True)
        features.column_major, features.reads_ahead = not self.column_major, self.reads_ahead
        return Features(self, features)


def table_of(parts: Sequence[StoredVariable], labels: Labels, label: str, mask: object = None) -> Source:
    """Return the table of variables side by side, with the features of a mask: `source` of the only one where nothing is to be done.

    Parameters
    ----------
    parts : sequence of StoredVariable
        The variables.
    labels : Labels
        Names of their rows and features.
    label : str
        What messages call the table.
    mask : array, str, Path or {"observed", "survey"}, optional
        See `feature_mask`.
    """
    if mask is not None:
        labels = labels.with_mask(feature_mask(mask, labels, parts, label))
        observed = isinstance(mask, str) and mask in FROM_DATA
        parts = [part.masked(used, observed) for part, (_, _, used) in zip(parts, labels.places(), strict=True)]
    single = len(parts) == 1 and parts[0].packing is None and parts[0].mask is None
    source = parts[0].source if single else TableSource(parts, labels, label)
    source.labels, source.feature_names = labels, source.feature_names or labels.column_names()
    return source


def with_missing_value(source: Source, value: float | None) -> Source:
    """Return a table in which the stored number `value` counts as missing, too; None = `source` as it is.

    Raises
    ------
    NotAvailableError
        If its rows are sparse.
    ParameterError
        If its values cannot be `value`.
    """
    if value is None:
        return source
    if source.sparse:
        raise NotAvailableError(
            f"{source.description}: missing_value={value!r} is for dense rows: what a sparse matrix does not store is zero"
        )
    parts = _parts_of(source)
    declared = [part.with_missing(value) for part in parts]
    if not any(part.missing_value == value for part in declared):
        types = ", ".join(dict.fromkeys(str(part.source.dtype) for part in parts))
        raise ParameterError(
            f"{source.description}: missing_value={value!r} is no {types}, so no value can be missing: expected a number that "
            "the data can hold"
        )
    table = TableSource(declared, source.labels, source.description)
    table.feature_shape, table.feature_names = source.feature_shape, source.feature_names
    table.sample_columns = source.sample_columns
    return table


def side_by_side(first: Source, second: Source) -> TableSource:
    """Return two tables with the same rows as one: the features of `first`, then those of `second`.

    Dimensions of the second that have the name of another one of the first end in ``_y``. The entry ``tables`` of its description has
    the descriptions of both, with the own names of these ``dimensions``, and whether the features are ``named``.

    Raises
    ------
    DataError
        If they have not the same number of rows, or their samples other coordinates.
    NotAvailableError
        If rows are sparse.
    """
    for source in (first, second):
        if source.sparse:
            raise NotAvailableError(
                f"{source.description}: rows are sparse: two tables side by side are dense; give dense rows"
            )
    n, other = first.shape[0], second.shape[0]
    if n != other:
        raise DataError(
            f"{first.description} has {n:,} rows and {second.description} {other:,}: expected two tables with the same samples"
        )
    parts = [part for source in (first, second) for part in _parts_of(source)]
    one, two = (_labels_of(source, name) for source, name in ((first, "x"), (second, "y")))
    for mine, theirs in zip(one.samples, two.samples, strict=False):
        a, b = mine.coordinate, theirs.coordinate
        if mine.size == theirs.size and a is not None and b is not None and not equal_values(a, b):
            raise DataError(
                f"the samples of {first.description} and {second.description} differ in {mine.name}: expected the same samples in the "
                "same order; select them first"
            )
    known = {dimension.name: dimension for dimension in one.features}
    renamed = {
        each.name: f"{each.name}_y" for each in two.features if each.name in known and not _same(each, known[each.name])
    }
    features = [_renamed(each, renamed.get(each.name, each.name)) for each in two.features]
    variables = [replace(each, dims=tuple(renamed.get(dim, dim) for dim in each.dims)) for each in two.variables]
    masks = [
        np.ones(sum(v.size for v in each.variables), bool) if each.mask is None else each.mask for each in (one, two)
    ]
    joined = Labels(
        one.samples,
        tuple({each.name: each for each in (*one.features, *features)}.values()),
        (*one.variables, *variables),
    ).with_mask(np.concatenate(masks))
    table = TableSource(parts, joined, f"{first.description} and {second.description}")
    table.sample_columns = first.sample_columns
    own_names = {name: each for each, name in renamed.items()}
    table._tables = tuple(
        {
            **source.describe(),
            "feature_names": None,
            "named": source.feature_names is not None,
            "dimensions": dimensions,
        }
        for source, dimensions in ((first, {}), (second, own_names))
    )
    return table


def _parts_of(source: Source) -> tuple[StoredVariable, ...]:
    return source.parts if isinstance(source, TableSource) else (StoredVariable(source),)


def _labels_of(source: Source, name: str) -> Labels:
    """Return the labels of a table; those of numbered features where it has none."""
    if source.labels is not None:
        return source.labels
    (n, d), names = source.shape, source.feature_names
    dimension = Dimension(f"feature_{name}", d, None if names is None else np.array(names))
    return Labels((Dimension("sample", n),), (dimension,), (Variable(name, (dimension.name,), (d,)),))


def _renamed(dimension: Dimension, name: str) -> Dimension:
    """Return a dimension with another name, by whose own name weights of features still find its coordinate."""
    if name == dimension.name:
        return dimension
    return replace(dimension, name=name, others={dimension.name: dimension, **dimension.others})


def _same(one: Dimension, other: Dimension) -> bool:
    if one.size != other.size or (one.coordinate is None) != (other.coordinate is None):
        return False
    return one.coordinate is None or other.coordinate is None or equal_values(one.coordinate, other.coordinate)
