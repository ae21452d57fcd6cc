"""Data after a fit: new data opened like the data of the fit, and rows added to a table since it was read."""

from __future__ import annotations

import math
import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import ChangedInputError, DataError, NotAvailableError
from streampca.labels import Labels, note_on_strands
from streampca.sources.base import ColumnsOfRows, ReadCount, RowsOfSource, Source
from streampca.sources.cells import is_anndata
from streampca.sources.files.fragments import FragmentedRows
from streampca.sources.files.paths import cells_paths, files_of, is_paths
from streampca.sources.files.records import Fragment, require_distinct
from streampca.sources.formats import ReadOptions
from streampca.sources.frames import is_xarray
from streampca.sources.genotypes import counting_others
from streampca.sources.lagged import labels_of_samples
from streampca.sources.normalization import NormalizedRows
from streampca.sources.open import open_source
from streampca.sources.table import TableSource, decoding_digests, with_features
from streampca.sources.where import ChosenRows, whole_of
from streampca.typing import Array, IntArray, Json

if TYPE_CHECKING:
    import zarr

    from streampca.sources.zarr.digests import StoreRecord

_TOGETHER = ({"array", "variables"}, {"samples", "features", "orientation"}, {"mask", "mask_var"})
"""Names of keywords of which each replaces all."""


def open_like(data: object, labels: Labels | None, described: Json, given: Mapping[str, Any] | None = None) -> Source:
    """Open the data at a path, or an object of AnnData or xarray, as those of a fit were opened, where `given` does not say otherwise.

    Parameters
    ----------
    data : str, Path, list of these, AnnData, DataArray or Dataset
        Path, pattern, URL or object. One of xarray is read by the dimensions and variables of the fit as far as it has their names.
    labels : Labels or None
        Labels of the fit. With their mask, features are those of the fit, whatever is observed in the new data.
    described : dict
        Description of the source of the fit, see `Source.describe`.
    given : dict, optional
        Keywords of `open_source`. Names of arrays replace those of the fit, and names of dimensions all that the fit says of them.
    """
    keywords = dict(given or {})
    names = set(keywords)
    replaced = names | set().union(*(together for together in _TOGETHER if names & together))
    data = str(data) if isinstance(data, str | Path) else data
    if labels is not None and described.get("lags"):
        labels = labels_of_samples(labels)
    codes = described.get("quantization")
    if is_xarray(data) and not _may_hold_codes(data):  # whose values are those that are meant
        codes = None
    if codes is not None and codes.get("scale", "") is None and "quantization" not in names:
        raise NotAvailableError(
            "the fit was given an array with a scale for each of its rows, which does not apply to other rows: give the new rows with theirs, "
            'sp.open(data, quantization={"scale": …}), or name the array or column of scales that is stored beside the codes'
        )
    of_fit = {
        "missing_value": described.get("missing_value"),
        "quantization": codes,
        "normalize": None if "mask_var" in described else described.get("normalize"),
        "lags": described.get("lags"),
        "where": described.get("where"),
        **_of_fit(data, labels, described),
    }
    known = {name: value for name, value in of_fit.items() if name not in replaced}
    return open_source(data, **{**known, **keywords})


def counting_as(source: Source, labels: Labels | None, described: Json) -> Source:
    """Return genotypes with the alleles counted that the fit counted, whose labels these are; other tables as they are.

    Warns how many variants were exchanged, how many have alleles that do not tell the strand (unless the source is that of the
    fit, see `described`, its description), and where alleles could not be compared, as with models that have none.

    Raises
    ------
    NotAvailableError
        If alleles are exchanged and the rows are not those of one array of genotypes, such as rows with lags.
    """
    known = source.labels
    alleles = None if known is None or len(known.features) != 1 else known.features[0].alleles
    if known is None or labels is None or alleles is None or len(labels.features) != 1:
        return source
    if labels.features[0].alleles is None:
        warnings.warn(
            f"{source.description}: its alleles were not compared with those of the fit, since the model has none: fit again to save them",
            UserWarning,
            stacklevel=2,
        )
        return source
    counted, exchanged = known.counting_as(labels)
    if labels.difference(counted) is not None:  # which is raised where features are compared
        return source
    unclear = labels.palindromic_with(known)
    if exchanged is None:
        if unclear and source.fingerprint != described.get("fingerprint"):
            warnings.warn(f"{source.description}: {note_on_strands(unclear)}", UserWarning, stacklevel=2)
        return source
    if not isinstance(source, TableSource) or len(source.parts) != 1:
        raise NotAvailableError(
            f"{source.description}: {int(exchanged.sum()):,} variants have the alleles of the fit exchanged: only genotypes of a .bed file or "
            "of VCF Zarr by themselves can be counted as in the fit; exchange them first"
        )
    warnings.warn(
        f"{source.description}: {int(exchanged.sum()):,} variants have the alleles of the fit exchanged, and are counted as in the fit"
        + (f"; {note_on_strands(unclear)}" if unclear else ""),
        UserWarning,
        stacklevel=2,
    )
    table = TableSource([counting_others(source.parts[0], exchanged)], counted, source.description)
    table.feature_shape, table.feature_names = source.feature_shape, source.feature_names
    table.sample_columns = source.sample_columns
    return table


def require_decoded(data: object, described: Json) -> None:
    """Raise `DataError` for an array or table of 8-bit integers where the rows of the fit, see `described`, were decoded from such codes.

    A variable of netCDF4 is one, which shows floats where codes are masked.
    """
    dtype: Any = getattr(data, "dtype", None)
    if described.get("quantization") and isinstance(dtype, np.dtype) and dtype.kind in "iu" and dtype.itemsize == 1:
        raise DataError(
            f"rows are {dtype}, but the model was fitted to values decoded from such codes: give the path of the codes, which are decoded "
            "as in the fit, sp.open(codes, quantization={…}), or the values as floats"
        )


def _may_hold_codes(data: Any) -> bool:
    """Return whether an object of xarray has values of 8-bit integers, or floats that are stored as such, which xarray masks so."""
    arrays = data.data_vars.values() if hasattr(data, "data_vars") else [data]
    types = [dtype for array in arrays for dtype in (array.dtype, array.encoding.get("dtype"))]
    return any(isinstance(dtype, np.dtype) and dtype.kind in "iu" and dtype.itemsize == 1 for dtype in types)


def with_features_of(source: Source, labels: Labels | None) -> Source:
    """Return `source` with the features that a fit with a mask used, if it was opened with these and others.

    Raises
    ------
    NotAvailableError
        If its rows are normalised by the others, too.
    """
    known = source.labels
    if labels is None or labels.mask is None or source.sparse:
        return source
    if known is None:
        used = labels.mask if source.shape[1] == len(labels.mask) else np.ones(source.shape[1], dtype=bool)
    elif [variable.shape for variable in known.variables] != [variable.shape for variable in labels.variables]:
        return source
    else:
        used = np.isin(known.indices(), labels.indices())
    if used.all() or used.sum() < labels.n_features:
        return source
    if source.normalized:
        raise NotAvailableError(
            f"{source.description}: rows are normalised by {source.shape[1]:,} features, and the fit used {labels.n_features:,} of them: "
            "expected a table with its mask, sp.open(data, mask=…, normalize=…), or the path"
        )
    return with_features(source, used)


def _of_fit(data: object, labels: Labels | None, described: Json) -> dict[str, Any]:
    """Return the options with which the data of a fit were opened, as far as `data` can have them."""
    path = str(data) if isinstance(data, str | Path) else ""
    mask = {} if labels is None or labels.mask is None else {"mask": labels.mask}
    if labels is not None and "mask_var" in described and _is_anndata(data):
        is_several = "genes" in described and is_paths(data) and cells_paths(data) is not None
        genes = {"genes": described["genes"]} if is_several else {}
        return {"layer": described.get("layer"), "normalize": described["normalize"], **genes, **mask}
    if labels is None or path.startswith("builtin:"):
        return {}
    first, several = labels.variables[0], len(labels.variables) > 1
    samples = described.get("samples") or [dimension.name for dimension in labels.samples]
    if is_xarray(data):
        known: dict[str, Any] = dict(mask)
        dims, of_fit = set(map(str, data.dims)), {*samples, *(dimension.name for dimension in labels.features)}
        if dims >= of_fit:
            known["samples"] = samples
            dosages = "ploidy" in dims - of_fit
            if first.dims and not dosages and all(variable.dims == first.dims for variable in labels.variables):
                known["features"] = list(first.dims)
        variables = [variable.name for variable in labels.variables]
        if hasattr(data, "data_vars") and all(name in data.data_vars for name in variables):
            known["variables"] = [str(name) for name in variables]
        return known
    if not is_paths(data):
        return {}
    flat = len(samples) + len(first.dims) <= 2
    if path.endswith(".npy"):
        return {} if flat else {"samples": samples, "features": list(first.dims)}
    files = files_of(path or data)
    if files is not None and files.format.holds != "arrays":
        return {name: described[name] for name in files.format.remembered if name in described} | mask
    named = first.name if files is None else described.get("array")
    if files is not None and not (several or named):
        return mask
    known = dict(mask)
    if several:
        known["variables"] = [str(variable.name) for variable in labels.variables]
    elif named is not None and (files is not None or _group_at(path) is not None):
        known["array"] = named
    dosages = described.get("genotypes") == "dosage"
    if several or dosages or not flat:
        known["samples"] = samples
        if first.dims and not dosages and all(variable.dims == first.dims for variable in labels.variables):
            known["features"] = list(first.dims)
    elif described.get("orientation") == "features_first":
        known["orientation"] = "features_first"
    stored = described["variables"] if several and isinstance(described.get("variables"), list) else [described]
    if any(array.get("packing") and not array.get("decoded") for array in stored):
        known["decode"] = "raw"
    return known


def _is_anndata(data: object) -> bool:
    """Return whether `data` is an AnnData object, or the path of one that is stored, or paths of several."""
    if is_paths(data) and cells_paths(data) is not None:
        return True
    if not isinstance(data, str):
        return is_anndata(data)
    if data.endswith((".h5ad", ".npy")) or data.startswith("builtin:"):
        return data.endswith(".h5ad")
    group = _group_at(data)
    return group is not None and bool(group.attrs.get("encoding-type") == "anndata")


def _group_at(path: str) -> zarr.Group | None:
    """Return the zarr group at `path`, None where there is an array."""
    import zarr

    from streampca.sources.zarr.group import node_at

    node = node_at(path, ReadOptions())[0]
    return node if isinstance(node, zarr.Group) else None


@dataclass(frozen=True)
class NewRows:
    """The rows of a table that were read before, and those that are new: files of it, or rows that were appended to its zarr arrays."""

    table: Source
    """The whole table."""
    sizes: tuple[int, ...]
    """Numbers of rows of its files; of a store of those that were read before, and of those that are new."""
    before: tuple[int, ...]
    """Positions in `sizes` of what was read before, in the order in which it was recorded."""
    new: tuple[int, ...]
    """Positions of what is new and has rows, ascending."""
    files: tuple[str, ...] = ()
    """The names of new files; none where rows were appended to a store."""
    compared: ReadCount = field(default_factory=ReadCount)
    """What was read to know that the other rows are what they were."""

    @classmethod
    def of_store(cls, table: Source, record: StoreRecord) -> NewRows:
        """Return the rows of `table` that are not in the `record` of its zarr arrays; reads chunks whose size or time is another, and metadata.

        Raises
        ------
        ChangedInputError
            If chunks were changed, which it names, or rows removed, or the arrays have other metadata or coordinates.
        NotAvailableError
            If new rows lie between the others.
        """
        from streampca.sources.store_record import compare_with_record, require_same_chunks  # which import zarr

        whole = whole_of(table)
        n_before, comparison = compare_with_record(whole, record)
        require_same_chunks(table, comparison)
        return cls(table, (n_before, whole.shape[0] - n_before), (0,), (1,), compared=comparison.count)

    @classmethod
    def of_files(cls, table: Source, recorded: Sequence[Fragment]) -> NewRows:
        """Return the new files of `table`, of which those `recorded` were read before; reads no rows.

        A file that was renamed is known by its content and time.

        Raises
        ------
        ChangedInputError
            If a file that was read is missing, or has another size, time of modification or content; names it.
        DataError
            If two files have the same content.
        """
        require_distinct(table.fragments)
        names = {_place(fragment.name): position for position, fragment in enumerate(table.fragments)}
        taken = {names.get(_place(old.name)) for old in recorded}
        before = []
        for old in recorded:
            position = names.get(_place(old.name))
            if position is None:
                position = _renamed(old, table.fragments, taken)
                taken.add(position)
            _require_same(old, table.fragments[position])
            before.append(position)
        sizes = tuple(fragment.n_rows for fragment in table.fragments)
        known = set(before)
        added = tuple(position for position, size in enumerate(sizes) if position not in known and size)
        files = tuple(table.fragments[position].name for position in added)
        return cls(table, sizes, tuple(before), added, files)

    def require_same_codes(self, described: Json) -> None:
        """Raise `ChangedInputError` if codes meant something else in the run, or rows had another scale; `described` is its table."""
        n_before = sum(self.sizes[position] for position in self.before)
        now = decoding_digests(self.table, self.places(np.arange(n_before), new=False))
        for key, what in (("codes", "what its codes mean"), ("scale", "the scale of its rows")):
            if now.get(key) != described.get("quantization_digests", {}).get(key):
                raise ChangedInputError(
                    f"{self.table.description}: {what} was changed since the run: put it back as it was, or run again in full"
                )

    @property
    def n_rows(self) -> int:
        """Return the number of new rows; of those alone that the condition of the table chooses."""
        chosen = self.table.chosen
        return sum(self.sizes[at] for at in self.new) if chosen is None else len(self._of_chosen(self.new))

    @property
    def n_before(self) -> int:
        """Return the number of rows that were read before, as `n_rows`."""
        chosen = self.table.chosen
        return sum(self.sizes[at] for at in self.before) if chosen is None else len(self._of_chosen(self.before))

    def _of_chosen(self, positions: tuple[int, ...]) -> IntArray:
        """Return which rows of the parts at some positions, one after another, the condition of the table chooses."""
        mask, ends = np.zeros(sum(self.sizes), dtype=bool), np.cumsum([0, *self.sizes])
        if isinstance(self.table, ChosenRows):
            mask[self.table.rows] = True
        return np.flatnonzero(np.concatenate([mask[ends[at] : ends[at + 1]] for at in positions] or [mask[:0]]))

    @property
    def appended(self) -> bool:
        """Return whether all new rows come after those that were read before, which are in the same order as they were."""
        order = (*self.before, *self.new)
        return list(order) == sorted(order)

    @property
    def n_shifted(self) -> int:
        """Return by how much the number of a new row in the table is larger than that in `rows`, where it is for all rows."""
        return 0 if self.files else self.n_before

    def rows(self) -> Source:
        """Return a table of the new rows alone; raise `NotAvailableError` if they cannot be read alone."""
        table = whole_of(self.table)
        if isinstance(self.table, ChosenRows):
            every = replace(self, table=table).rows()
            return ChosenRows(every, self._of_chosen(self.new), self.table.where)
        if not self.files:
            return RowRange(table, self.sizes[0], table.shape[0])
        if isinstance(table, NormalizedRows):
            return NormalizedRows(replace(self, table=table.table).rows(), table.normalization)
        if isinstance(table, FragmentedRows):
            return table.subset(self.new)
        parts = table.parts if isinstance(table, TableSource) else ()
        inner = [part.source for part in parts if isinstance(part.source, FragmentedRows)]
        if not parts or len(inner) < len(parts):
            raise NotAvailableError(f"{table.description}: only tables of several files can be read in part")
        rows = [source.subset(self.new) for source in inner]
        labels = None if table.labels is None else table.labels.resized(rows[0].shape[0])
        places = self.places(np.arange(self.n_rows), new=True)
        new = [part.of_rows(source, places) for part, source in zip(parts, rows, strict=True)]
        part = TableSource(new, labels, table.description)
        part.feature_names = table.feature_names
        return part

    def places(self, index: IntArray, *, new: bool) -> IntArray:
        """Return where rows of the table are: rows `index` of `rows`, or of the table as it was recorded.

        Where a condition chooses some, the latter are numbers in the whole table, and what is returned are numbers among the chosen.
        """
        if isinstance(self.table, ChosenRows):
            index = self._of_chosen(self.new)[index] if new else index
            return np.searchsorted(self.table.rows, replace(self, table=self.table.source).places(index, new=new))
        positions, sizes = np.array(self.new if new else self.before, dtype=np.int64), np.array(self.sizes)
        now, then = np.cumsum(sizes) - sizes, np.cumsum(sizes[positions]) - sizes[positions]
        file = np.searchsorted(np.cumsum(sizes[positions]), index, "right")
        found: IntArray = index - then[file] + now[positions][file]
        return found


def _place(name: str) -> str:
    return str(Path(name).absolute())


def _renamed(old: Fragment, fragments: Sequence[Fragment], taken: Container[int | None]) -> int:
    """Return the position of the file, among those that are not `taken`, that has the content and time of `old`."""
    positions = [
        position
        for position, each in enumerate(fragments)
        if position not in taken and (each.fingerprint, each.modified) == (old.fingerprint, old.modified)
    ]
    if not positions:
        raise ChangedInputError(
            f"{old.name} is missing: its {old.n_rows:,} rows are in the run; put it back, or run again in full"
        )
    if len(positions) > 1:
        names = ", ".join(fragments[position].name for position in positions)
        raise ChangedInputError(
            f"{old.name} was renamed, and several files could be it: {names}; restore its name, or run again in full"
        )
    return positions[0]


def _require_same(old: Fragment, now: Fragment) -> None:
    """Raise `ChangedInputError` unless a file is what it was, by size, fingerprint and time of modification."""
    if (old.n_rows, old.n_bytes, old.fingerprint) != (now.n_rows, now.n_bytes, now.fingerprint):
        what = f"it had {old.n_rows:,} rows in {old.n_bytes:,} bytes and has {now.n_rows:,} in {now.n_bytes:,}"
        what = "its content changed" if (old.n_rows, old.n_bytes) == (now.n_rows, now.n_bytes) else what
    elif old.modified != now.modified:
        what = "its modification time changed"
    else:
        return
    raise ChangedInputError(
        f"{now.name} was changed since the run, which has its rows ({what}): put it back as it was, or run again in full"
    )


class RowRange(RowsOfSource):
    """Rows `start` to `stop` of a source; blocks begin where its chunks do."""

    def __init__(self, source: Source, start: int, stop: int):
        super().__init__(source, start, stop)
        self.fragments = ()
        self.labels = None if source.labels is None else _labels_of(source.labels, start, stop)
        columns = source.sample_columns
        self.sample_columns = None if columns is None else ColumnsOfRows(columns, slice(start, stop))

    def __reduce__(self) -> tuple[object, ...]:
        return RowRange, (self.source, self.start, self.stop)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the source with the numbers of the rows."""
        return f"{self.source.fingerprint}-rows-{self.start}-{self.stop}"

    def describe(self) -> dict[str, object]:
        """Return the description of the source with the shape of these rows."""
        return self.source.describe() | {"shape": list(self.shape), "fingerprint": self.fingerprint}

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes that reading `n_rows` rows takes beside the block itself: a chunk more where the range ends in one."""
        n_stored, size = self.source.shape[0], self.source.chunk_rows
        divides = any(edge % size and edge != n_stored for edge in (self.start, self.stop))
        return self.source.overhead_bytes(n_rows) + (self.source.grid.chunk_bytes if divides else 0)

    def slice(self, start: int, stop: int) -> RowRange:
        """Return a source for a worker that can read rows `start` to `stop`."""
        return RowRange(self.source.slice(self.start + start, self.start + stop), self.start, self.stop)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows, read from the source."""
        return self.source.read(self.start + start, self.start + stop, out)


def _labels_of(labels: Labels, start: int, stop: int) -> Labels:
    """Return the labels of rows `start` to `stop`, with coordinates where these are whole places of the first dimension."""
    first, *others = labels.samples
    inner = math.prod(dimension.size for dimension in others)
    if start % inner or stop % inner:
        return labels.resized(stop - start)
    low, high = start // inner, stop // inner
    coordinate = None if first.coordinate is None else first.coordinate[low:high]
    return replace(labels, samples=(replace(first, size=high - low, coordinate=coordinate), *others))
