"""Sources of rows: their shape, labels and costs, and reading in blocks of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import xxhash
from scipy.sparse import csc_array, csr_array, vstack

from streampca.errors import DataError
from streampca.formatting import clean, lines_as_html, lines_as_text
from streampca.labels import Dimension, Labels, SampleColumns
from streampca.sources.files.records import Fragment
from streampca.sources.grid import Grid, Schedule, Span, parts_between, stacked_edges
from streampca.sources.versions import InputVersion, InputWatch, one_listing
from streampca.storage.state_file import storable
from streampca.typing import Array, DType, IntArray

if TYPE_CHECKING:
    import dask.array as da


_MAX_BYTES = 2**62
_MOST_NAMES = 6  # of features that a source prints
_SLAB_BYTES = 2**22
_FEATURE_COPIES = 4  # rows, all of them together, by features, and those with few or many stored values
_UNEVEN = 2
_DASK_BYTES = 2**25 - 2**16  # blocks of 32 MiB and more go back to the system after every use


@storable
@dataclass(frozen=True)
class ReadCount:
    """Chunks and bytes of one read."""

    chunks: int = 0
    """Stored chunks that were read."""
    bytes: int = 0
    """Bytes of these chunks after decoding."""
    stored_bytes: int = 0
    """Bytes of these chunks as stored."""

    phases: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Thread seconds by phase (`streampca.system.phases`), if they were recorded."""

    def __add__(self, other: ReadCount) -> ReadCount:
        phases = dict(self.phases)
        for name, seconds in other.phases.items():
            phases[name] = phases.get(name, 0.0) + seconds
        sums = self.chunks + other.chunks, self.bytes + other.bytes, self.stored_bytes + other.stored_bytes
        return ReadCount(*sums, phases)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain data, without the seconds, which differ from one pass to the next."""
        return {"chunks": self.chunks, "bytes": self.bytes, "stored_bytes": self.stored_bytes}


@dataclass(frozen=True)
class Chosen:
    """Positions of the selected rows of a source in the whole table, where scores are written."""

    rows: IntArray
    """Number of each row in the table, ascending; a source for a worker has only the rows that it needs (see `first`)."""
    n_rows: int
    """Number of rows of the table."""
    labels: Labels | None = None
    """Labels of the table; a source for a worker does not have them."""
    first: int = 0
    """Number of the row at position ``rows[0]``."""

    def at(self, start: int, stop: int) -> IntArray:
        """Return the positions of rows `start` to `stop`."""
        return self.rows[start - self.first : stop - self.first]

    def slice(self, start: int, stop: int) -> Chosen:
        """Return the positions of rows `start` to `stop`, and of the next one, for a worker."""
        return Chosen(self.at(start, stop + 1).copy(), self.n_rows, None, start)

    def of(self, values: Any) -> Any:
        """Return values along the table, ``(n_rows, …)``, at these rows only; other values are unchanged."""
        if getattr(values, "shape", (0,))[:1] != (self.n_rows,):
            return values
        if hasattr(values, "iloc"):  # of pandas
            return values.iloc[self.rows]
        return values.isel({values.dims[0]: self.rows}) if hasattr(values, "isel") else values[self.rows]

    def spread(self, values: Array, fill: float = np.nan) -> Array:
        """Return values of the rows, ``(n_samples, …)``, at their positions in the table, ``(n_rows, …)``, with `fill` elsewhere."""
        whole = np.full((self.n_rows, *values.shape[1:]), fill, dtype=values.dtype)
        whole[self.rows] = values
        return whole

    def edges(self, n_places: int) -> tuple[int, ...]:
        """Return the edges of blocks of rows; rows within the same `n_places` positions of the table form a block."""
        cuts = np.searchsorted(self.rows, np.arange(0, self.n_rows, n_places))
        return tuple(np.unique([*cuts, len(self.rows)]).tolist())

    def written(self, start: int, stop: int, n_places: int) -> Span:
        """Return the positions that a block between two `edges` fills, up to the first of the next block, in steps of `n_places`."""
        places = self.at(start, stop + 1)
        low = int(places[0]) // n_places * n_places if start else 0
        return low, int(places[-1]) // n_places * n_places if len(places) > stop - start else self.n_rows


class Source(ABC):
    """A table of rows, opened from its metadata and read in blocks of rows."""

    shape: tuple[int, int]
    """(n_samples, n_features)."""
    dtype: DType
    """Data type of the rows."""
    description: str
    """Path or kind of the data, for messages."""
    grid: Grid = Grid()
    """Layout of its chunks, which determines the cost of reading rows; by default rows are read independently."""
    portable: bool = False
    """Whether another process can open it, so that leaves may run on a cluster."""
    buffered: bool = True
    """Whether reading needs a buffer; if not, blocks are views of existing memory."""
    feature_shape: tuple[int, ...] | None = None
    """Shape of one row as an image, if known."""
    feature_names: tuple[str, ...] | None = None
    """Names of the features, if known."""
    labels: Labels | None = None
    """Dimensions, coordinates and variables of the table, if known."""
    sample_columns: SampleColumns | None = None
    """Further named values of the rows that are not features; None without any."""
    column_major: bool = False
    """Whether blocks are read faster into Fortran order."""
    sparse: bool = False
    """Whether blocks are sparse rows."""
    in_memory: bool = False
    """Whether sparse rows are in memory, so that their scores are computed at once."""
    reads_ahead: bool = False
    """Whether `ahead` does anything: the rows come from a remote store."""
    repeats: float = 1.0
    """Average number of times that stored data are read in one pass, without repetitions due to the size of blocks."""
    fragments: tuple[Fragment, ...] = ()
    """The record of every file with rows, in order; empty unless rows come from several files."""
    depth: int = 0
    """Number of nested sources with steps that read a block; each has its own scratch memory."""
    watch: InputWatch | None = None
    """The first version read of the stored data, shared by all views of the source; None if unknown or if nothing is stored."""

    @property
    def sources(self) -> Sequence[Source]:
        """Return the sources that this one reads and checks; empty if it reads stored data itself."""
        return ()

    @property
    def chosen(self) -> Chosen | None:
        """Return the positions of the rows selected by the option `where`; None if the source has all rows of its table."""
        return None

    def rows_on(self, device: str, start: int, stop: int) -> Any | None:
        """Return rows that are already on a device, as an array of its library; None if they are read."""
        return None

    @property
    def missing_chunks_filled(self) -> int:
        """Return the number of missing chunks that are read as the fill value, by ``missing_chunks="fill"``."""
        return sum(source.missing_chunks_filled for source in self.sources)

    def __repr__(self) -> str:
        n, d = self.shape
        kind = "sparse table" if self.sparse else "table"
        return f"<{type(self).__name__} of {self.description}: {kind} of {n:,} samples x {d:,} features, {self.dtype}>"

    def __str__(self) -> str:
        return lines_as_text(_lines(self))

    def _repr_html_(self) -> str:
        return lines_as_html(_lines(self))

    @property
    def fingerprint(self) -> str:
        """Return a hash of description, shape and type, which identifies the data without reading them; `version` detects changes."""
        return xxhash.xxh3_128(f"{self.description}|{self.shape}{self.dtype}".encode()).hexdigest()

    @abstractmethod
    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Read rows `start` to `stop`, shape ``(stop - start, n_features)``; return them and their `ReadCount`.

        `out`, of that shape and the source's dtype, may be filled and returned; a source may also return a view. Raises
        `DataError` if stored data is missing or damaged.
        """

    def check(self) -> None:
        """Raise `DataError` if anything to read is known to be missing; reads no data."""
        for source in self.sources:
            source.check()

    def plan_notes(self) -> tuple[str, ...]:
        """Return notes for a plan about reading the source; raise an error if no plan is possible."""
        return tuple(note for source in self.sources for note in source.plan_notes())

    def settle(self, allowed_bytes: int) -> None:
        """Choose how to read rows within the memory that a plan may use; called before planning."""
        for source in self.sources:
            source.settle(allowed_bytes)

    def version(self) -> InputVersion | None:
        """Return sizes and modification times of the stored data, or None if unknown; reads no data."""
        versions = [source.version() for source in self.sources]
        known = [version for version in versions if version is not None]
        if not known or len(known) < len(versions):
            return None
        return InputVersion.of((str(index), version.n_bytes, version.digest) for index, version in enumerate(known))

    def require_unchanged(self) -> None:
        """Raise `ChangedInputError` if sizes or modification times of the stored data have changed since the first call."""
        if self.watch is not None:
            self.watch.require(self.version(), self.description)
        for source in self.sources:
            source.require_unchanged()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Wrap one pass over the rows: call `check` before it, and `require_unchanged` before and after it."""
        with one_listing():
            self.check()
            self.require_unchanged()
        yield
        self.require_unchanged()

    def cancel(self) -> None:
        """Cancel pending reads with an error."""
        for source in self.sources:
            source.cancel()

    def spans(self, start: int, stop: int) -> Sequence[tuple[Source, int, int]]:
        """Return the sources that are read for rows `start` to `stop`, each with its own half-open range of rows.

        The result is empty if this source reads stored data itself. Costs, keys and reading ahead follow from it.
        """
        return ()

    def ahead(self, schedule: Schedule) -> AbstractContextManager[object]:
        """Wrap the reading of the blocks in `schedule`, which a remote source requests ahead of their use; sources share its memory."""
        sources = [source for source, _, _ in self.spans(0, self.shape[0])] if self.reads_ahead else []

        def rows_of(source: Source, span: Span) -> Span | None:
            return next(((low, high) for each, low, high in self.spans(*span) if each is source), None)

        with ExitStack() as stack:
            for source in sources:
                stack.enter_context(source.ahead(schedule.mapped(partial(rows_of, source), len(sources))))
            return stack.pop_all()

    @property
    def chunk_rows(self) -> int:
        """Return the number of rows in one chunk; blocks of multiples of it read no chunk twice."""
        return min(self.grid.chunk_rows, self.shape[0])

    def reads_of(self, start: int, stop: int) -> int:
        """Return the number of decoded bytes that reading rows `start` to `stop` takes."""
        if spans := self.spans(start, stop):
            return sum(source.reads_of(low, high) for source, low, high in spans)
        return self.grid.decoded(start, stop, self.shape[0]) * self.row_bytes

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes that reading `n_rows` rows takes in addition to the block itself."""
        return 0

    @property
    def normalized(self) -> bool:
        """Return whether whole rows are normalised during reading; features and missing values must be chosen before that."""
        return any(source.normalized for source in self.sources)

    @property
    def unfitted(self) -> tuple[tuple[Source, Any], ...]:
        """Return the steps that must be fitted before rows can be read, in order, each with the rows to fit it to."""
        return tuple(each for source in self.sources for each in source.unfitted)

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the sources of the arrays in this one: the source itself, or the sources of its parts."""
        return (self,)

    def by_features(self) -> Source:
        """Return a source whose rows are the features of this one; by default each read of it reads all rows.

        Raises
        ------
        NotAvailableError
            If the source cannot be read by features.
        """
        return Transposed(self)

    def equal_rows(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of rows from `start` to `stop` that all equal one row, which is known without reading them."""
        return ()

    def keys(self, start: int, stop: int) -> list[str]:
        """Return the keys of the stored chunks that hold rows `start` to `stop`, for messages; empty without chunks."""
        return [key for source, low, high in self.spans(start, stop) for key in source.keys(low, high)]

    def slice(self, start: int, stop: int) -> Source:
        """Return a source for a worker that can read rows `start` to `stop`, but not necessarily others."""
        return self

    @property
    def row_bytes(self) -> int:
        """Return the size of one row in bytes."""
        return self.shape[1] * self.dtype.itemsize

    @property
    def n_features_read(self) -> int:
        """Return the length of rows in memory while a block is read; this source may have only some of these features."""
        return self.shape[1]

    def describe(self) -> dict[str, object]:
        """Return the description of the source for a manifest."""
        return {
            "path": self.description,
            "array": None,
            "shape": list(self.shape),
            "dtype": str(self.dtype),
            "fingerprint": self.fingerprint,
            "feature_shape": list(self.feature_shape) if self.feature_shape else None,
            "feature_names": list(self.feature_names) if self.feature_names else None,
            "missing_chunks_filled": self.missing_chunks_filled,
        }

    def to_dask(self, rows_per_block: int | None = None) -> da.Array:
        """Return the rows as a lazy Dask array whose blocks are made by `read`.

        A block has `rows_per_block` rows, by default whole chunks of about 32 MiB.
        """
        import dask.array as da

        most = max(1, _DASK_BYTES // (self.shape[1] * self.dtype.itemsize))  # blocks of sparse rows are made dense
        rows = rows_per_block or (most if self.sparse else max(1, most // self.chunk_rows) * self.chunk_rows)
        rows = min(rows, self.shape[0])
        edges = None if rows_per_block else self.grid.block_edges(rows, self.shape[0])
        sizes = rows if edges is None else tuple(np.diff(edges).tolist())
        name = f"streampca-{self.fingerprint}-{rows}"
        lazy: da.Array = da.from_array(  # type: ignore[no-untyped-call]
            SourceArray(self), chunks=(sizes, self.shape[1]), name=name, asarray=True, fancy=False
        )
        return lazy


def _lines(source: Source) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the printed lines that describe a source, without reading it."""
    (n, d), labels, described = source.shape, source.labels, source.describe()
    array = described.get("array")
    yield "data", clean(source.description) + ("" if array is None else f", array {clean(array)}")
    rows, columns = ((), ()) if labels is None else (labels.samples, labels.features)
    yield "samples", f"{n:,}" + _of_dimensions(rows)
    if source.chosen is not None:
        yield "where", clean(f"{described.get('where') or 'a mask'}: {n:,} of {source.chosen.n_rows:,} samples")
    names = "" if source.feature_names is None else f": {clean(', '.join(source.feature_names[:_MOST_NAMES]))}"
    more = ", …" if names and d > _MOST_NAMES else ""
    yield "features", f"{d:,}" + (_of_dimensions(columns) or names + more)
    yield "type", str(source.dtype) + (", sparse" if source.sparse else "")
    if chunks := described.get("chunks"):
        yield "chunks", " x ".join(f"{size:,}" for size in cast("list[int]", chunks))
    elif source.chunk_rows > 1:
        yield "chunks", f"{source.chunk_rows:,} samples"
    if given := cast("dict[str, object]", described.get("quantization")):
        numbers = {key: f" {value:g}" for key, value in given.items() if isinstance(value, float)}
        named = {key: f" {value}" for key, value in given.items() if isinstance(value, str)}
        said = (key + (numbers | named).get(key, "") for key in given if key != "nodata")
        yield "codes", clean(", ".join(said))
    if described.get("normalize"):
        yield "normalize", clean(str(described["normalize"]))
    stored = cast("list[float]", described.get("missing_values", []))
    if source.dtype.kind == "f" or stored:
        packed = cast("dict[str, object]", described.get("packing") or {})
        valid = [f", outside of {name} {clean(packed[name])}" for name in packed if name.startswith("valid_")]
        yield "missing", "NaN" + "".join([*(f", {value:g} as stored" for value in stored), *valid])


def _of_dimensions(dimensions: Sequence[Dimension]) -> str:
    """Return names, sizes and ends of dimensions as text; empty without dimensions."""
    texts = []
    for each in dimensions:
        ends = (
            f" from {each.value(0)} to {each.value(each.size - 1)}" if each.coordinate is not None and each.size else ""
        )
        texts.append(clean(f"{each.name} ({each.size:,}){ends}"))
    return f": {', '.join(texts)}" if texts else ""


class DerivedSource(Source):
    """A source computed from another one, `source`."""

    source: Source
    """The source that is read."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return the source that is read."""
        return (self.source,)

    def version(self) -> InputVersion | None:
        """Return the version of the stored rows, or None if unknown."""
        return self.source.version()


_OF_STORED_ROWS = (
    *(
        "description",
        "portable",
        "buffered",
        "column_major",
        "sparse",
        "in_memory",
        "reads_ahead",
        "repeats",
        "fragments",
    ),
    *("feature_shape", "feature_names", "labels", "sample_columns", "depth"),
)
"""Attributes of a source that are shared by other rows made from the same stored rows."""


class RowsOfSource(DerivedSource):
    """Rows that are each made from one row of another source, from row `start`, and share its attributes."""

    def __init__(self, source: Source, start: int = 0, stop: int | None = None):
        self.source, self.start, self.stop = source, start, source.shape[0] if stop is None else stop
        self.shape, self.dtype = (self.stop - start, source.shape[1]), source.dtype
        grid = (
            source.grid
            if self.shape == source.shape
            else replace(source.grid, edges=None, skipped=start % source.grid.chunk_rows)
        )
        self.grid = replace(grid, chunk_columns=0)  # of the features of that one
        for name in _OF_STORED_ROWS:
            setattr(self, name, getattr(source, name))

    @property
    def chosen(self) -> Chosen | None:
        """Return the positions of the rows of the other source if this source has all of them."""
        return self.source.chosen if self.shape[0] == self.source.shape[0] else None

    @property
    def n_features_read(self) -> int:
        """Return the length of the rows of the other source."""
        return self.source.n_features_read

    def spans(self, start: int, stop: int) -> Sequence[tuple[Source, int, int]]:
        """Return the other source with the rows that are read."""
        return ((self.source, self.start + start, self.start + stop),)

    def equal_rows(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of rows from `start` to `stop` that all equal one row, which is known without reading them."""
        runs = self.source.equal_rows(self.start + start, self.start + stop)
        return tuple((low - self.start, high - self.start) for low, high in runs)


class ColumnsOfRows(SampleColumns):
    """Columns for a range of rows, or for rows given by number."""

    def __init__(self, columns: SampleColumns, rows: slice | IntArray):
        self.columns, self.rows = columns, rows

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self.columns.names

    def values(self, name: str) -> Array | None:
        """Return a column for these rows, or None if it does not exist."""
        values = self.columns.values(name)
        return None if values is None else values[self.rows]


class Transposed(DerivedSource):
    """The transpose of another source: its rows are the features of the other one, and each block of them needs all stored rows.

    All features are therefore read as one block if that fits in memory. Features of sparse rows are sparse, and a block takes
    three times its stored size; with `keep` the block of all features stays in memory and is read once.

    Parameters
    ----------
    source : Source
        The rows.
    bands : sequence of int, optional
        Edges of the bands of rows that are read at a time, beginning with 0; by default bands of a few MiB of whole chunks, or
        of a chunk of sparse rows.
    """

    needs_all_rows: bool = True
    """Whether every block of features decodes all stored rows."""
    block_of = "features"
    """Name of its rows in messages."""
    copies = _FEATURE_COPIES
    """Memory for reading and processing a sparse block, in multiples of its size."""

    def __init__(self, source: Source, bands: Sequence[int] | None = None):
        self.source, self.description, self.portable = source, source.description, source.portable
        self.shape, self.dtype, self.grid = source.shape[::-1], source.dtype, Grid(source.shape[1])
        self.sparse, self.buffered = source.sparse, not source.sparse
        whole = max(1, source.grid.decoded_rows)
        slab = source.chunk_rows if self.sparse else max(1, _SLAB_BYTES // source.row_bytes // whole) * whole
        self._bands, self._rows_at_once = bands, int(np.diff(bands).max()) if bands else min(source.shape[0], slab)
        self.keep, self._kept = False, cast("csr_array | None", None)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.source, self._bands)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the source."""
        return f"{self.source.fingerprint}-by-features"

    def by_features(self) -> Source:
        """Return the source."""
        return self.source

    @property
    def stored_bytes(self) -> int:
        """Return the size of all values of sparse rows in memory."""
        return self.source.row_bytes * self.source.shape[0] + 8 * (self.shape[0] + 1)

    @property
    def row_bytes(self) -> int:
        """Return the size of a feature in bytes; for sparse rows, its mean stored size."""
        return max(1, self.stored_bytes // self.shape[0]) if self.sparse else super().row_bytes

    def reads_of(self, start: int, stop: int) -> int:
        """Return the number of decoded bytes of all rows."""
        return self.source.reads_of(0, self.source.shape[0])

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of some rows with all features, and of reading them; for sparse rows, of a block of `n_rows` features with copies.

        Features of sparse rows may store different numbers of values: a block may store up to `_UNEVEN` times the mean.
        """
        reading = self.source.overhead_bytes(self._rows_at_once)
        if self.sparse:
            return self.copies * min(self.stored_bytes, _UNEVEN * n_rows * self.row_bytes) + reading
        return reading + self._rows_at_once * self.source.row_bytes

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return features `start` to `stop` as rows, in compressed row form if they are sparse.

        Raises
        ------
        DataError
            If they store more values than the plan allows for.
        """
        n, count = self.source.shape[0], ReadCount()
        bands = pairwise(self._bands or chain(range(0, n, self._rows_at_once), [n]))
        if not self.sparse:
            out = np.empty((stop - start, n), dtype=self.dtype) if out is None else out
            for first, last in bands:
                rows, cost = self.source.read(first, last)
                out[:, first:last] = rows[:, start:stop].T
                count += cost
            return out, count
        every = (start, stop) == (0, self.shape[0])
        if every and self._kept is not None:
            return self._kept, count
        parts, left = list[csr_array](), _UNEVEN * (stop - start) * self.row_bytes
        for first, last in bands:
            rows, cost = self.source.read(first, last)
            parts.append(as_rows(rows) if every else as_rows(rows)[:, start:stop])
            count, left = count + cost, left - parts[-1].data.nbytes - parts[-1].indices.nbytes
            if left < 0 and not every:
                raise DataError(
                    f"{self.description}: {self.block_of} {start} to {stop - 1} store more than {_UNEVEN} times as many values as others: a "
                    "block of them exceeds the memory that was planned; allow more memory, or use solver='covariance' or 'sketch'"
                )
        table = parts[0] if len(parts) == 1 else vstack(parts, format="csr")
        parts.clear()
        features = csr_array(csc_array(table).T)
        if every and self.keep:
            self._kept = features
        return features, count


class Features(Transposed):
    """The features of a source, read from `stored`, a source whose rows are these features; checks apply to the source.

    Parameters
    ----------
    source : Source
        The rows.
    stored : Source
        Their features, as another source.
    """

    def __init__(self, source: Source, stored: Source):
        super().__init__(source)
        self._stored, self.grid = stored, stored.grid
        self.column_major, self.reads_ahead = stored.column_major, stored.reads_ahead
        self.needs_all_rows = isinstance(stored, Transposed) and stored.needs_all_rows

    def __reduce__(self) -> tuple[object, ...]:
        return type(self.source).by_features, (self.source,)

    def spans(self, start: int, stop: int) -> Sequence[tuple[Source, int, int]]:
        """Return the stored features with the range that is read."""
        return ((self._stored, start, stop),)

    def cancel(self) -> None:
        """Cancel pending reads with an error."""
        self._stored.cancel()

    def reads_of(self, start: int, stop: int) -> int:
        """Return the number of decoded bytes that reading features `start` to `stop` takes."""
        return Source.reads_of(self, start, stop)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory that reading `n_rows` features takes."""
        return self._stored.overhead_bytes(n_rows)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return features `start` to `stop` as rows."""
        return self._stored.read(start, stop, out)


class Stacked(Source):
    """The rows of several sources with the same number of columns, one after another."""

    sources: tuple[Source, ...] = ()
    """The sources that are read."""

    def __init__(self, sources: Sequence[Source], description: str):
        self.sources, self.description = tuple(sources), description
        self.first_rows = np.cumsum([0, *(source.shape[0] for source in sources)]).tolist()
        first = sources[0]
        self.shape, self.dtype, self.sparse = (self.first_rows[-1], first.shape[1]), first.dtype, first.sparse
        self.buffered = not self.sparse
        self.portable, self.depth = all(source.portable for source in sources), max(source.depth for source in sources)
        bands = [s.grid.edges or (*range(0, s.shape[0], s.chunk_rows), s.shape[0]) for s in sources]
        n_bytes = max(source.grid.chunk_bytes for source in sources)
        self.grid = Grid.of_edges(stacked_edges(bands), n_bytes, whole=first.grid.whole)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.sources, self.description)

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the sources of all stored arrays."""
        return tuple(array for source in self.sources for array in source.stored_arrays)

    @property
    def fingerprint(self) -> str:
        """Return the concatenated fingerprints of the sources."""
        return "+".join(source.fingerprint for source in self.sources)

    @property
    def row_bytes(self) -> int:
        """Return the mean stored size of a row in bytes."""
        return max(1, sum(source.row_bytes * source.shape[0] for source in self.sources) // self.shape[0])

    def spans(self, start: int, stop: int) -> Sequence[tuple[Source, int, int]]:
        """Return the sources that hold rows `start` to `stop`, each with its range of rows."""
        return [(self.sources[at], low, high) for at, low, high in parts_between(self.first_rows, start, stop)]

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of reading rows of one of the sources."""
        return max(source.overhead_bytes(min(n_rows, source.shape[0])) for source in self.sources)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return the rows, which are sparse if the sources are."""
        count, at, parts = ReadCount(), 0, list[Any]()
        if not self.sparse and out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        for source, low, high in self.spans(start, stop):
            target = None if out is None or self.sparse else out[at : at + high - low]
            values, cost = source.read(low, high, target)
            if target is None:
                parts.append(values)
            elif values is not target:
                target[...] = values
            count, at = count + cost, at + high - low
        if not self.sparse:
            return out, count
        return parts[0] if len(parts) == 1 else vstack(parts, format="csr"), count


def as_rows(values: Any) -> csr_array:
    """Return sparse `values` in compressed row form without duplicates; shares memory if they already have that form."""
    rows = csr_array(values)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


class SourceArray:
    """An array-like interface to a source for `dask.array.from_array`."""

    def __init__(self, source: Source):
        self.source, self.shape, self.dtype, self.ndim = source, source.shape, source.dtype, 2

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        start, stop, _ = key[0].indices(self.shape[0])
        if start >= stop:  # Dask looks at an empty slice to know the kind of array
            return np.empty((0, self.shape[1]), dtype=self.dtype)[:, key[1]]
        values, _ = self.source.read(start, stop)
        dense: Array = values.toarray() if self.source.sparse else values  # type: ignore[attr-defined]
        return dense[:, key[1]]


def require_unmasked(values: object, what: str) -> None:
    """Raise `DataError` if `values`, which messages call `what`, are a masked array with masked entries.

    Numpy functions without support for masked arrays treat values under the mask, such as 1e20, as data.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DataError(
            f"{what} has {int(np.asarray(values.mask).sum()):,} masked values: expected an array without a mask; give them as NaN, "
            "array.astype(float).filled(numpy.nan), with the parameter missing"
        )


def require_declared(block: Any, shape: tuple[float, ...], dtype: DType, what: str) -> None:
    """Raise `DataError` unless a computed block of a lazy array has the declared shape and a type that the declared type can hold.

    Parameters
    ----------
    block : ndarray or sparse matrix
        The block.
    shape : tuple
        The declared shape; unknown sizes are NaN.
    dtype : dtype
        The declared type.
    what : str
        Name of the block in messages.
    """
    require_unmasked(block, what)
    found, of_block = tuple(np.shape(block)), np.dtype(getattr(block, "dtype", type(block)))
    if len(found) != len(shape) or any(a != b for a, b in zip(found, shape, strict=True) if b == b):
        raise DataError(
            f"{what} has shape {found}, and the array declares {tuple(shape)}: expected blocks of the declared shapes; give map_blocks "
            "the chunks of its results, chunks=(…)"
        )
    if not np.can_cast(of_block, dtype, "safe"):
        raise DataError(
            f"{what} has dtype {of_block}, and the array declares {dtype}, which does not hold all values of {of_block}: expected blocks of the "
            f"declared type; declare theirs, x.map_blocks(numpy.asarray, dtype={str(of_block)!r}), or convert them where they are made"
        )


def require_numbers(dtype: DType, description: str) -> None:
    """Raise `DataError` unless `dtype` is a type of real numbers."""
    if dtype.kind == "c":
        raise DataError(f"Complex data not supported: {description} has dtype {dtype}; expected real numbers")
    if dtype.kind not in "biuf" or (dtype.kind == "f" and dtype.itemsize > 8):
        raw, cure = "", "convert it first, for example with .astype('float64')"
        if dtype.str == "|V2":
            raw = ", as numpy stores bfloat16"
            cure = "give bfloat16 as an array of it, such as numpy.load(path, mmap_mode='r').view(ml_dtypes.bfloat16)"
        raise DataError(
            f"{description} has dtype {dtype}{raw}: expected bool, integers, or floating point numbers of at most 64 bits; {cure}"
        )


def require_table(shape: tuple[int, ...], dtype: DType, description: str) -> None:
    """Raise `DataError` unless `shape` and `dtype` are those of a table of real numbers."""
    require_numbers(dtype, description)
    if len(shape) != 2:
        advice = (
            "Reshape your data with .reshape(-1, 1) for one feature"
            if len(shape) == 1
            else "Stack the other axes into one"
        )
        raise DataError(
            f"Expected 2D array, got {len(shape)}D array of shape {tuple(shape)}: {description} must have samples in rows and features in columns. {advice}."
        )
    if int(shape[0]) * int(shape[1]) * dtype.itemsize > _MAX_BYTES:
        raise DataError(f"{description} declares shape {tuple(shape)} of {dtype}: more bytes than any store can hold")
    if min(shape) == 0:
        what = "0 sample(s)" if shape[0] == 0 else "0 feature(s)"
        raise DataError(
            f"Found array with {what} (shape={tuple(shape)}) while a minimum of 1 is required: {description}"
        )
