"""A table made of stored arrays: packed values are decoded, features left out by a mask, and variables put side by side.

Also tables of some features of another table, in the order of that one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import xxhash

from streampca.errors import DataError, NotAvailableError, ParameterError, PartlyMissingError
from streampca.labels import Dimension, Labels, SampleColumns, Variable, equal_values
from streampca.sources.alignment import of_features
from streampca.sources.arrays import read_array
from streampca.sources.base import Chosen, Features, ReadCount, Source, Stacked, require_table
from streampca.sources.conventions import Packing, can_hold
from streampca.sources.grid import Grid
from streampca.sources.normalization import NormalizedRows
from streampca.sources.quantization import Quantization, ScaledRows, digest_of
from streampca.sources.steps import Cast, ChosenFeatures, Elementwise, Step, SteppedSource, slabs
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, DType, FloatArray, IntArray, Json

FROM_DATA = ("observed", "survey")
"""Masks that are found in the data: features of which the first rows, or all rows, hold a value."""
_READ_BYTES = 2**26


@dataclass(frozen=True)
class StoredVariable:
    """The array of one variable."""

    source: Source
    """Its rows as they are stored."""
    packing: Packing | None = None
    """How its values are decoded; None where they are meant as they are stored."""
    mask: BoolArray | None = None
    """Which of its features are in the table, ``(n_features,)``; None where all are."""
    observed_only: bool = False
    """Whether features that are not used must hold no value at all, which is checked whenever they are read."""
    missing_value: float | None = None
    """The stored number that counts as missing because the user says so; one of the fill values of `packing`."""
    quantization: Quantization | None = None
    """What its stored codes mean because the user says so, which `packing` decodes; None where they mean themselves."""
    row_scale: FloatArray | None = None
    """By what its rows from row `first_row` on are multiplied after decoding; None where by nothing."""
    first_row: int = 0
    """The row that the first number of `row_scale` is for."""

    @property
    def n_stored(self) -> int:
        """Return the number of its features, those that are left out included."""
        return self.source.shape[1]

    @property
    def n_features(self) -> int:
        """Return the number of its features in the table."""
        return self.n_stored if self.mask is None else int(self.mask.sum())

    @property
    def dtype(self) -> DType:
        """Return the data type of its values in the table."""
        return self.source.dtype if self.packing is None else self.packing.dtype

    def masked(self, mask: BoolArray | None, observed_only: bool) -> StoredVariable:
        """Return the variable with only the features in `mask`."""
        return replace(self, mask=None if mask is None or mask.all() else mask, observed_only=observed_only)

    def missing(self, stored: Array) -> BoolArray:
        """Return where stored values mean that nothing was observed."""
        return _missing(self.packing, stored)

    def decoded_to(self, dtype: DType) -> StoredVariable:
        """Return the variable whose values are decoded to `dtype`."""
        if dtype == self.dtype:
            return self
        packing = self.packing or Packing.none(self.source.dtype)
        return replace(self, packing=replace(packing, dtype=dtype))

    def with_missing(self, value: float) -> StoredVariable:
        """Return the variable with one more stored number that means missing, if it can have it."""
        packing = self.packing or Packing.none(self.source.dtype)
        if not can_hold(packing.stored, value):
            return self
        return replace(self, packing=packing.with_missing(value), missing_value=value)

    def quantised(self, given: Quantization, columns: SampleColumns | None) -> StoredVariable:
        """Return the variable with what its codes mean, if that was not said before; names are those of `columns`, or of what is beside them.

        Raises
        ------
        DataError, ParameterError
            If its values are no codes of 8 bits, or a table or scales are not there or not such: see `Quantization`.
        """
        if self.quantization is not None:
            return self
        label = self.source.description
        packing = given.packing(self.packing, self.source.dtype, columns, label)
        scale = given.scales(self.source.shape[0], columns, label)
        if scale is not None:
            packing = replace(packing, dtype=np.result_type(packing.dtype, scale.dtype))
        return replace(self, packing=packing, quantization=given, row_scale=scale)

    def of_rows(self, source: Source, rows: slice | IntArray) -> StoredVariable:
        """Return the variable of the rows of `source`, which are some of its rows: those from a first one on keep their numbers."""
        if self.row_scale is None:
            return replace(self, source=source)
        if isinstance(rows, slice):
            scale = self.row_scale[rows.start - self.first_row : rows.stop - self.first_row]
            return replace(self, source=source, row_scale=scale, first_row=rows.start)
        return replace(self, source=source, row_scale=self.row_scale[rows - self.first_row], first_row=0)

    @property
    def missing_values(self) -> tuple[float, ...]:
        """Return the stored numbers that count as missing, beside NaN."""
        return () if self.packing is None else self.packing.fills

    def rows(self, dtype: DType) -> Source:
        """Return its rows as they are in a table of `dtype`: the used features, decoded."""
        steps: list[Step] = []
        if self.mask is not None and self.observed_only:
            steps.append(_Observed(self.mask, self.packing, self.source.description))
        elif self.mask is not None:
            steps.append(ChosenFeatures(self.mask))
        if self.packing is not None and self.row_scale is not None:
            steps.append(ScaledRows(replace(self.packing, dtype=dtype), self.row_scale, self.first_row))
        elif self.packing is not None:
            steps.append(Unpacked(replace(self.packing, dtype=dtype)))
        elif self.source.dtype != dtype:
            steps.append(Cast(dtype))
        return SteppedSource(self.source, steps) if steps else self.source


class Unpacked(Elementwise):
    """Packed values as they are meant, NaN where nothing was observed; dense."""

    def __init__(self, packing: Packing):
        self.packing = packing

    @property
    def digest(self) -> bytes:
        """Return how values are decoded."""
        return f"{self.packing}".encode()

    def dtype(self, dtype: DType) -> DType:
        """Return the data type of decoded values."""
        return self.packing.dtype

    def of_values(self, values: Array, out: Array) -> None:
        """Write the decoded values to `out`."""
        self.packing.decode(values, out)

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Raise `NotAvailableError`: values that are not stored need not be zero."""
        return Step.apply_stored(self, data, indices, indptr, start)


class _Observed(ChosenFeatures):
    """Features that were observed in the first rows; the others must hold no value at all, which is checked as rows are read."""

    def __init__(self, used: BoolArray, packing: Packing | None, description: str):
        super().__init__(used)
        self.packing, self.description = packing, description

    def __reduce__(self) -> tuple[object, ...]:
        return _Observed, (self.used, self.packing, self.description)

    def require(self, values: Array, start: int) -> None:
        """Raise `PartlyMissingError` if a feature that is left out has a value."""
        left_out = np.flatnonzero(~self.used)
        for rows in slabs(values):
            missing = _missing(self.packing, values[rows].take(left_out, axis=1))
            if missing.all():
                continue
            row, column = (int(index) for index in np.argwhere(~missing)[0])
            raise PartlyMissingError(
                f"{self.description}: feature {int(left_out[column])} was missing in every row of the first chunk, "
                f"but has a value in row {start + rows.start + row}: mask='observed' leaves out features that are never observed; name "
                "those to use with a mask of your own (mask='survey' reads all rows once more beforehand to find them), and say with "
                "missing= what the remaining missing values mean"
            )


def _missing(packing: Packing | None, stored: Array) -> BoolArray:
    """Return where stored values mean that nothing was observed."""
    if packing is not None:
        return packing.missing(stored)
    return np.isnan(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, dtype=bool)


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
    def chosen(self) -> Chosen | None:
        """Return the places of the rows, which are those of every variable."""
        return self.parts[0].source.chosen

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
            scale = "" if part.row_scale is None else f"{digest_of(part.row_scale)}|"
            digest.update(f"{part.source.fingerprint}|{part.packing}|{scale}".encode() + mask)
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
        given = self.parts[0].quantization
        if given is not None and all(part.quantization is given for part in self.parts):
            described |= {
                "quantization": given.described(self.parts[0].packing),
                "quantization_digests": decoding_digests(self),
            }
        if self._tables:
            described["tables"] = list(self._tables)
        return arrays[0] | described if len(arrays) == 1 else described | {"variables": arrays}

    def plan_notes(self) -> tuple[str, ...]:
        """Return notes about reading the arrays; raise an error if no plan is possible."""
        values = ", ".join(map(str, self.missing_values))
        notes = (f"{self.description}: NaN and the stored numbers {values} count as missing",) if values else ()
        of_attributes = (
            f"{part.source.description}: {note}" for part in self.parts if part.packing for note in part.packing.notes
        )
        return (*super().plan_notes(), *notes, *dict.fromkeys(of_attributes))

    def equal_rows(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of rows of which no chunk of any array was ever written."""
        runs: tuple[tuple[int, int], ...] = ((start, stop),)
        for part in self.parts:
            if part.row_scale is not None:
                return ()
            pairs = product(runs, part.source.equal_rows(start, stop))
            runs = tuple((max(a, b), min(c, d)) for (a, c), (b, d) in pairs if max(a, b) < min(c, d))
        return runs

    def slice(self, start: int, stop: int) -> TableSource:
        """Return a source for a worker with no more of lazy arrays than rows `start` to `stop` need."""
        parts = [part.of_rows(part.source.slice(start, stop), slice(start, stop)) for part in self.parts]
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


def with_missing_value(source: Source, value: float) -> Source:
    """Return a table in which the stored number `value` counts as missing, too.

    Raises
    ------
    NotAvailableError
        If its rows are sparse, or lagged copies of rows that are normalised.
    ParameterError
        If its values cannot be `value`.
    """
    if isinstance(source, NormalizedRows):  # stored numbers are those before
        return NormalizedRows(with_missing_value(source.table, value), source.normalization)
    if source.normalized:
        raise NotAvailableError(
            f"{source.description}: missing_value={value!r} is a stored number, and rows are normalised already: give both to sp.open"
        )
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
    return _with_parts(source, declared)


def quantised(source: Source, given: Quantization) -> Source:
    """Return a table whose stored codes mean what is `given`; as it is where that was said when its arrays were opened."""
    parts = _parts_of(source)
    if all(part.quantization is not None for part in parts):
        return source
    return _with_parts(source, [part.quantised(given, source.sample_columns) for part in parts])


def decoding_digests(source: Source, rows: IntArray | None = None) -> Json:
    """Return digests of what codes of a table mean, and of the scales of all rows, or of some by their numbers; none where it has no codes."""
    parts = [part for part in _parts_of(source) if part.quantization is not None]
    if not parts:
        return {}
    scale = parts[0].row_scale
    some = scale if scale is None or rows is None else scale[rows]
    codes = xxhash.xxh3_128("|".join(f"{part.packing}" for part in parts).encode()).hexdigest()
    return {"codes": codes, "scale": None if some is None else digest_of(some)}


def _with_parts(source: Source, parts: Sequence[StoredVariable]) -> TableSource:
    """Return the table of other `parts` that has the names of `source`."""
    table = TableSource(parts, source.labels, source.description)
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
    if not _same_rows(first, second):
        raise DataError(
            f"{first.description} and {second.description} keep different samples by where: expected the same in both tables"
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


def _same_rows(one: Source, other: Source) -> bool:
    """Return whether two tables with as many rows have those of the same places, where they are some of larger tables."""
    first, second = one.chosen, other.chosen
    if first is None or second is None:
        return first is second
    return first.n_rows == second.n_rows and np.array_equal(first.rows, second.rows)


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


def with_features(source: Source, used: BoolArray, alike: Source | None = None) -> SteppedSource:
    """Return the table of the features of `source` that are `used`, ``(n_features,)``; dense.

    Tables of some features of one table are read together with it. `alike` is the same table opened by itself, which the result is
    described as.
    """
    return SteppedSource(source, [ChosenFeatures(used)], alike=alike, part_of=source)


def part_of(source: Source) -> tuple[Source, ChosenFeatures | None]:
    """Return the table that is read for `source`, and which of its features `source` has; None where it is the table itself."""
    if isinstance(source, SteppedSource) and source.part_of is not None:
        chosen = source.steps[-1]
        if isinstance(chosen, ChosenFeatures):
            return source.part_of, chosen
    return source, None


def view_of(whole: Source, own: Source) -> Source:
    """Return a source with the rows of `own` that reads those of `whole`; `own` itself where it has others than some of them."""
    places = _places_in(whole, own)
    alike = own.shape[0] == whole.shape[0] and _same_rows(whole, own) and own.dtype == whole.dtype and not whole.sparse
    if not alike or whole.normalized or places is None or (np.diff(places) <= 0).any() or len(places) != own.shape[1]:
        return own
    used = np.zeros(whole.shape[1], dtype=bool)
    used[places] = True
    return with_features(whole, used, own)


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
