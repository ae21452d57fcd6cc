"""The option `where`: some rows of a table, by a condition on its coordinates and columns or by a mask.

A condition is read as Python reads an expression, and only its parts that are listed in `_Condition` are known: nothing is evaluated.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from scipy.sparse import vstack

from streampca.errors import DataError, NotAvailableError, ParameterError
from streampca.labels import Dimension, Labels, SampleColumns
from streampca.regressors import known_names, values_from
from streampca.sources.alignment import of_rows
from streampca.sources.arrays import read_array
from streampca.sources.base import Chosen, Features, ReadCount, RowsOfSource, Source, Transposed, as_rows
from streampca.sources.grid import Grid, Schedule
from streampca.sources.steps import ChosenFeatures, SteppedSource
from streampca.suggestions import did_you_mean
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, IntArray

_SLAB_BYTES = 2**22
"""Rows that are decoded at once where only some of them are used."""
_GAP_BYTES = 2**16
"""Rows between two that are used which are read with them: less takes more time to skip."""
_MOST_CHUNKS = 2**18
"""Chunks of a table beyond which it is not listed which rows each has."""
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EXAMPLES = "\"time.season == 'DJF'\", 'time.year >= 1979 and lat < 60' or \"kind in ['a', 'b']\""
_DATE = re.compile(r"\s*\d{4}(-\d\d(-\d\d([T ]\d\d(:\d\d(:\d\d)?)?)?)?)?\s*")
"""A date in ISO 8601, or the begin of one."""
_QUOTED = re.compile(r"`([^`]+)`|('[^'\\]*'|\"[^\"\\]*\")")


def rows_where(source: Source, where: Any) -> Source:
    """Return the table of those rows of `source` that `where` chooses; reads coordinates and columns that it names, but no rows.

    Parameters
    ----------
    source : Source
        The table.
    where : str, Path or array
        A condition, the name of a coordinate or column of truth values, or truth values ``(n_samples,)`` or of the shape of the sample
        dimensions, as an array or a path of an ``.npy`` file.

    Raises
    ------
    ParameterError
        If a condition is not understood or names what the table does not have, or a mask has another type or length.
    DataError
        If no row is left, or a column or file cannot be read.
    NotAvailableError
        If rows of the table were chosen already, and changed afterwards.
    """
    is_text = isinstance(where, str) and not where.endswith(".npy")
    if source.chosen is not None and not isinstance(source, ChosenRows):
        raise NotAvailableError(
            f"{source.description}: some of its rows are chosen already: give both conditions in one where, joined by and"
        )
    if is_text:
        mask = _Condition(where, source).rows()
    else:
        given = read_array("where", str(where)) if isinstance(where, str | Path) else where
        mask = _truth(
            np.asarray(of_rows("where", given if hasattr(given, "ndim") else np.asarray(given), source.labels)),
            f"{source.description}: where",
        )
        if mask.shape != source.shape[:1]:
            raise ParameterError(
                f"{source.description}: where has shape {mask.shape}: expected one truth value for each of the {source.shape[0]:,} samples"
            )
    rows = np.flatnonzero(mask)
    if not len(rows):
        what = f"where={where!r}" if is_text else "where"
        raise DataError(
            f"{source.description}: {what} leaves out all {source.shape[0]:,} samples: expected a condition that some samples meet"
        )
    condition = str(where) if is_text else None
    if isinstance(source, ChosenRows):
        condition = f"({source.where}) and ({condition})" if source.where and condition else None
        return ChosenRows(source.source, source.rows[rows], condition)
    return ChosenRows(source, rows, condition)


def _truth(values: Array, what: str) -> BoolArray:
    """Return truth values, which may be stored as 0 and 1; `ParameterError` that begins with `what` for others."""
    if values.dtype.kind in "iuf" and bool(np.isin(values, (0, 1)).all()):
        values = values.astype(bool)
    if values.dtype.kind == "O" and all(isinstance(each, bool | np.bool_) for each in values.ravel().tolist()):
        values = values.astype(bool)
    if values.dtype.kind != "b":
        numbers = " (for numbers of rows: mask = np.zeros(n_samples, bool); mask[numbers] = True)"
        raise ParameterError(
            f"{what} has the type {values.dtype} and other values than 0 and 1: expected truth values, or a condition such as {_EXAMPLES}"
            + (numbers if values.dtype.kind in "iu" else "")
        )
    return values


@dataclass
class _Condition:
    """A condition on coordinates and columns of a table, as text."""

    text: str
    """The condition."""
    source: Source
    """The table."""

    def __post_init__(self) -> None:
        self._quoted: dict[str, str] = {}
        self._columns: dict[str, Array] = {}

    def rows(self) -> BoolArray:
        """Return which rows fulfil the condition, ``(n_samples,)``."""

        def named(
            match: re.Match[str],
        ) -> str:  # names in backticks, of as many characters, so that places in messages are right
            if match[1] is None:
                return match[0]
            placeholder = f"q{len(self._quoted)}".ljust(len(match[0]), "_")
            self._quoted[placeholder] = match[1]
            return placeholder

        try:
            tree = ast.parse(_QUOTED.sub(named, self.text), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            place = getattr(error, "offset", None)
            raise self._error(f"is not a condition{'' if place is None else f', from character {place} on'}") from None
        try:
            return self._of(tree.body)
        except RecursionError:
            raise self._error("has too deeply nested conditions") from None

    def _error(self, found: str, node: ast.AST | None = None) -> ParameterError:
        part = ""
        if node is not None:
            line = self.text.splitlines()[node.lineno - 1] if hasattr(node, "lineno") else self.text
            start, stop = (len(line.encode()[:at].decode()) for at in (node.col_offset, node.end_col_offset))  # type: ignore[attr-defined]
            part = f"{line[start:stop][:60]!r} (character {start + 1}) "
        return ParameterError(
            f"{self.source.description}: where={self.text[:200]!r}: {part}{found}: expected comparisons of coordinates or columns with "
            f"numbers, texts or lists of these, joined by and, or and not, such as {_EXAMPLES}"
        )

    def _of(self, node: ast.expr) -> BoolArray:
        """Return which rows fulfil a part of the condition."""
        match node:
            case ast.BoolOp(op=op, values=parts):
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return reduce(join, [self._of(part) for part in parts])
            case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() as op, right=right):
                both = self._of(left), self._of(right)
                return both[0] & both[1] if isinstance(op, ast.BitAnd) else both[0] | both[1]
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=part):
                return ~self._of(part)
            case ast.Compare(left=left, ops=ops, comparators=others):
                operands = [left, *others]
                pairs = zip(operands[:-1], ops, operands[1:], strict=True)
                return reduce(np.logical_and, [self._compared(node, *pair) for pair in pairs])
            case ast.Name() | ast.Attribute():
                name = self._name(node)
                return _truth(
                    self._values(node), f"{self.source.description}: where={self.text[:200]!r}: {name[:60]!r}"
                )
        raise self._error("is not known", node)

    def _compared(self, node: ast.expr, left: ast.expr, op: ast.cmpop, right: ast.expr) -> BoolArray:
        """Return where the comparison of a name with a constant, or of two names, holds."""
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.List | ast.Tuple | ast.Set):
                raise self._error("is not a list, such as [1, 2]", right)
            some = [self._pair(node, left, ast.Eq(), each) for each in right.elts]
            found: BoolArray = reduce(np.logical_or, some, np.zeros(self.source.shape[0], dtype=bool))
            return found if isinstance(op, ast.In) else ~found
        return self._pair(node, left, op, right)

    def _pair(self, node: ast.expr, left: ast.expr, op: ast.cmpop, right: ast.expr) -> BoolArray:
        compare = _COMPARISONS.get(type(op))
        sides = [each if isinstance(each, ast.Name | ast.Attribute) else None for each in (left, right)]
        if compare is None or sides == [None, None]:
            raise self._error("compares nothing that the table has", node)
        values: list[Any] = [
            self._constant(each) if side is None else self._values(side)
            for each, side in zip((left, right), sides, strict=True)
        ]
        if None in sides:
            at = sides.index(None)
            constant, of = values[at], values[1 - at]
            if of.dtype.kind == "M" and isinstance(constant, str):
                values[at] = time = self._time(constant, right if at else left)
                # At the precision of the text, as slices of xarray and pandas: all of December is <= '1990-12'.
                values[1 - at] = of.astype(time.dtype)
            elif (
                of.dtype.kind == "U" and isinstance(constant, str) and _DATE.fullmatch(constant)
            ):  # of another calendar
                values[at] = constant.strip().replace("T", " ")
                values[1 - at] = np.strings.replace(of, "T", " ").astype(f"U{len(values[at])}")
            else:
                self._require_alike(of, constant, node)
        else:
            kinds = {"number" if each.dtype.kind in "biuf" else each.dtype.kind for each in values}
            if len(kinds) > 1:
                raise self._error(f"compares values of the types {values[0].dtype} and {values[1].dtype}", node)
        known = np.ones(self.source.shape[0], dtype=bool)
        for at, each in enumerate(values):
            if isinstance(each, np.ndarray) and each.dtype.kind == "O":  # a text that is missing differs from all
                known &= each != None  # noqa: E711 of every value
                values[at] = np.where(each != None, each, "").astype(str)  # noqa: E711
        with np.errstate(invalid="ignore"):
            result = np.asarray(compare(values[0], values[1]), dtype=bool)
        return np.where(known, result, isinstance(op, ast.NotEq))

    def _require_alike(self, values: Array, constant: object, node: ast.expr) -> None:
        """Raise `ParameterError` if a constant is none that the values could be: the comparison would hold nowhere, or everywhere."""
        is_text = values.dtype.kind in "UO"
        if is_text == isinstance(constant, str) and values.dtype.kind != "M":
            return
        shown = "times" if values.dtype.kind == "M" else "text" if is_text else f"numbers ({values.dtype})"
        wanted = "'1990-06-01'" if values.dtype.kind == "M" else "text in quotes" if is_text else "a number"
        raise self._error(f"compares {shown} with {constant!r}, where {wanted} is expected", node)

    def _time(self, text: str, node: ast.expr) -> np.datetime64:
        try:
            time = np.datetime64(text.strip().removesuffix("Z"))
        except ValueError:
            time = np.datetime64("NaT", "s")
        if np.isnat(time):
            raise self._error(
                "is not a time: expected one in ISO 8601, such as '1990', '1990-06' or '1990-06-01T12:00'", node
            )
        return time

    def _constant(self, node: ast.expr) -> Any:
        sign = 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            sign, node = -1 if isinstance(node.op, ast.USub) else 1, node.operand
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and sign == 1:
            return value
        if isinstance(value, bool | int | float):
            return sign * value if not isinstance(value, bool) else value
        raise self._error("is neither a number nor a text", node)

    def _name(self, node: ast.expr) -> str:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, self._quoted.get(node.attr, node.attr))
            node = node.value
        if not isinstance(node, ast.Name):
            raise self._error("is no name", node)
        return ".".join([self._quoted.get(node.id, node.id), *parts])

    def _values(self, node: ast.expr) -> Array:
        """Return the values at each row of the coordinate or column that a name means; text and what else it holds as objects."""
        name = self._name(node)
        if name in self._columns:
            return self._columns[name]
        labels, columns = self.source.labels, self.source.sample_columns
        table = self.source.description
        found = values_from(labels, name, table, f"{table}: where", columns=columns)
        if found is None:
            known = known_names(labels, columns)
            meant = did_you_mean(name.rpartition(".")[0] or name, re.findall(r"[^\s,:]+", known))
            raise ParameterError(
                f"{table}: where={self.text[:200]!r}: there is no sample coordinate or column {name[:60]!r}; {known}{meant}"
            )
        values = np.asarray(found)
        if values.dtype.kind == "S":
            values = np.char.decode(values, "utf-8", "replace")
        elif values.dtype.kind in "OT":  # missing texts are None, which equals no text
            values = np.array([each if isinstance(each, str) else None for each in values.tolist()], dtype=object)
            if not any(values):
                numbers = np.array(found.tolist())
                values = numbers if numbers.dtype.kind in "biuf" else values
        if values.dtype.kind not in "biufUOM" or values.shape != self.source.shape[:1]:
            raise self._error(f"has the type {values.dtype} and shape {values.shape}", node)
        self._columns[name] = values
        return values


class ColumnsOfChosen(SampleColumns):
    """Coordinates of the further sample dimensions, and columns, of some rows of a table."""

    def __init__(self, labels: Labels | None, columns: SampleColumns | None, rows: IntArray):
        self._labels, self._columns, self._rows = labels, columns, rows
        known = () if labels is None else labels.samples[1:]
        self._coordinates = tuple(each.name for each in known if each.coordinate is not None)
        self.of_group = columns is not None and columns.of_group  # type: ignore[misc]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the coordinates and columns."""
        return (*self._coordinates, *(() if self._columns is None else self._columns.names))

    def values(self, name: str) -> Array | None:
        """Return a coordinate or column of the rows, None if there is none of that name."""
        if self._labels is not None and name in self._coordinates:
            return self._labels.sample_values(name)[self._rows]
        values = None if self._columns is None else self._columns.values(name)
        return None if values is None else values[self._rows]

    def attributes(self, name: str) -> Any:
        """Return the attributes of a coordinate or column."""
        if self._labels is not None and name in self._coordinates:
            return self._labels.dimension(name).attributes
        return {} if self._columns is None else self._columns.attributes(name)


def labels_of_some(labels: Labels, rows: IntArray) -> Labels:
    """Return the labels of some rows: one sample dimension, that of the first, with its coordinate at each row."""
    first = labels.samples[0]
    coordinate = None if first.coordinate is None else labels.sample_values(first.name)[rows]
    return replace(labels, samples=(Dimension(first.name, len(rows), coordinate, first.attributes),))


def whole_of(source: Source) -> Source:
    """Return the table of which the rows of `source` are some, by the option `where`; `source` itself where they are all."""
    return source.source if isinstance(source, ChosenRows) else source


class ChosenRows(RowsOfSource):
    """Some rows of a table, of which only chunks with such rows are read.

    Parameters
    ----------
    source : Source
        The table.
    rows : array, shape (n_samples,)
        Numbers of the rows, ascending; of a source for a worker only those that it needs, see `first`.
    where : str, optional
        The condition that they fulfil; None for a mask.
    first : int
        Number of the row that ``rows[0]`` is.
    n : int, optional
        How many rows there are; by default as many as `rows` has.
    """

    def __init__(self, source: Source, rows: IntArray, where: str | None = None, first: int = 0, n: int | None = None):
        super().__init__(source)
        self.rows, self.first, self.where = rows, first, where
        self._chosen = Chosen(rows, source.shape[0], source.labels, first)
        self.shape = (len(rows) if n is None else n, source.shape[1])
        self.buffered, self.depth = not source.sparse, 1 + source.depth
        if source.labels is not None and len(rows) == self.shape[0]:
            self.labels = labels_of_some(source.labels, rows)
            self.sample_columns = ColumnsOfChosen(source.labels, source.sample_columns, rows)
        elif source.sample_columns is not None:
            self.sample_columns = ColumnsOfChosen(None, source.sample_columns, rows)
        self.grid, self._unit = self._grid_of_rows(), max(1, source.grid.decoded_rows)
        self._slab = max(1, _SLAB_BYTES // max(1, source.row_bytes) // self._unit) * self._unit

    def _grid_of_rows(self) -> Grid:
        """Return where the chunks of the table begin among the rows."""
        stored, n = self.source.grid, self.source.shape[0]
        if self.first or len(self.rows) < self.shape[0]:
            return Grid(
                max(1, min(stored.chunk_rows, self.shape[0])), 0, stored.chunk_bytes
            )  # of a worker, which needs none
        if stored.edges is None and stored.chunk_rows == 1:
            return Grid(chunk_bytes=stored.chunk_bytes)
        if stored.edges is None and n // stored.chunk_rows > _MOST_CHUNKS:
            return Grid(min(stored.chunk_rows, self.shape[0]), 0, stored.chunk_bytes)
        edges = stored.edges or [0, *range(stored.chunk_rows - stored.skipped, n, stored.chunk_rows), n]
        cuts = np.unique(np.searchsorted(self.rows, edges))
        return Grid.of_edges(cuts.tolist(), stored.chunk_bytes, whole=stored.whole)

    def __reduce__(self) -> tuple[object, ...]:
        return ChosenRows, (self.source, self.rows, self.where, self.first, self.shape[0])

    @property
    def chosen(self) -> Chosen:
        """Return the places of the rows in the whole table."""
        return self._chosen

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the arrays of the table."""
        return self.source.stored_arrays

    @property
    def fingerprint(self) -> str:
        """Return a hash of the fingerprint of the table and of which rows there are."""
        digest = xxhash.xxh3_128(self.source.fingerprint.encode())
        digest.update(np.ascontiguousarray(self.rows, dtype=np.int64).tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """Return the description of the table with the shape of these rows, and with what chose them."""
        labels = self.source.labels
        return self.source.describe() | {
            "shape": list(self.shape),
            "fingerprint": self.fingerprint,
            "where": self.where,
            "n_left_out": self.source.shape[0] - self.shape[0],
            "samples": [] if labels is None else [dimension.name for dimension in labels.samples],
        }

    def plan_notes(self) -> tuple[str, ...]:
        """Return notes about the table, and how many of its rows are used."""
        what = f"where {self.where}" if self.where else "by a mask"
        note = f"{self.description}: {self.shape[0]:,} of {self.source.shape[0]:,} samples are used, {what}; the others have no scores"
        return (*super().plan_notes(), note)

    def equal_rows(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return nothing: whether rows are equal is not known without reading them."""
        return ()

    def slice(self, start: int, stop: int) -> ChosenRows:
        """Return a source for a worker that can read rows `start` to `stop`."""
        rows = self.rows[start - self.first : min(stop + 1, self.first + len(self.rows)) - self.first].copy()
        last = int(rows[stop - start - 1]) + 1
        return ChosenRows(self.source.slice(int(rows[0]), last), rows, self.where, start, self.shape[0])

    def by_features(self) -> Source:
        """Return a source whose rows are the features of these rows."""
        stored, few = (
            self.source.by_features(),
            2 * self.reads_of(0, len(self.rows)) < self.source.row_bytes * self.source.shape[0],
        )
        if self.sparse or few or (isinstance(stored, Transposed) and stored.needs_all_rows):
            return Transposed(self)  # which reads these rows alone
        used = np.zeros(self.source.shape[0], dtype=bool)
        used[self.rows] = True
        return Features(self, SteppedSource(stored, [ChosenFeatures(used)]))

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, IntArray]]:
        """Yield what is read for rows `start` to `stop`: first row of the table, the one behind the last, and the rows that are used.

        Runs of rows that are all used are read as one, others a slab of whole chunks at a time, without chunks of which none is used.
        """
        rows, grid = self.rows[start - self.first : stop - self.first], self.source.grid
        if grid.whole and grid.edges is not None:
            slabs = units = np.searchsorted(grid.edges, rows, "right")
        else:
            slabs, units = ((rows + grid.skipped) // size for size in (self._slab, self._unit))
        far = (np.diff(units) > 1) & (np.diff(rows) > max(1, _GAP_BYTES // max(1, self.source.row_bytes)))
        cuts = np.flatnonzero(far | (np.diff(slabs) > 0)) + 1
        low = high = at = 0
        edges = [0, *cuts.tolist(), len(rows)]
        for first, last in pairwise(edges):
            begin, end = int(rows[first]), int(rows[last - 1]) + 1
            dense = end - begin == last - first
            if first and begin == high and dense and high - low == first - at:
                high = end
                continue
            if first:
                yield low, high, rows[at:first]
            low, high, at = begin, end, first
        yield low, high, rows[at:]

    def spans(self, start: int, stop: int) -> Sequence[tuple[Source, int, int]]:
        """Return the rows of the table that are read for rows `start` to `stop`."""
        return [(self.source, low, high) for low, high, _ in self._pieces(start, stop)]

    def ahead(self, schedule: Schedule) -> AbstractContextManager[object]:
        """Enclose the reading of blocks, each of which is several reads of the table."""
        if not self.reads_ahead:
            return super().ahead(schedule)

        def spans_of(index: int) -> list[tuple[int, int]]:
            return [span[1:] for block in schedule.spans_of(index) for span in self.spans(*block)]

        return self.source.ahead(replace(schedule, spans_of=spans_of))

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of a slab of the table, of which only some rows are used, and of what reading takes."""
        grid = self.source.grid
        slab = grid.chunk_rows if grid.whole and grid.edges is not None else self._slab
        slab = min(self.source.shape[0], slab)
        reading = self.source.overhead_bytes(min(self.source.shape[0], max(n_rows, slab)))
        return reading + (2 * slab * self.source.row_bytes if self.sparse else slab * self.source.row_bytes)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return the rows, still sparse where those of the table are."""
        count, at, parts = ReadCount(), 0, list[Any]()
        if not self.sparse and out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        for low, high, rows in self._pieces(start, stop):
            dense = high - low == len(rows)
            if out is None:
                values, cost = self.source.read(low, high)
                parts.append(values if dense else as_rows(values)[rows - low])
                count += cost
                continue
            target = out[at : at + len(rows)]
            scratch = target if dense else self._scratch(high - low)
            values, cost = self.source.read(low, high, scratch if self.source.buffered or dense else None)
            if not dense:
                target[...] = values[rows - low]
            elif values is not target:
                target[...] = values
            count, at = count + cost, at + len(rows)
        if out is not None:
            return out, count
        return parts[0] if len(parts) == 1 else vstack(parts, format="csr"), count

    def _scratch(self, n_rows: int) -> Array:
        """Return scratch memory for rows of the table, in the order of memory of blocks."""
        purpose, shape = f"rows of which some are used {self.depth}", (n_rows, self.shape[1])
        if self.column_major:
            return borrow(purpose, shape[::-1], self.dtype).T
        return borrow(purpose, shape, self.dtype)
