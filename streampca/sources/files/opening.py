"""From files of rows to the table that they make."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streampca.labels import Dimension, Labels, Variable
from streampca.sources.base import Source
from streampca.sources.files.arrays import ArrayFile, ArrayFiles
from streampca.sources.files.bed import BedFile
from streampca.sources.files.fragments import FragmentedRows
from streampca.sources.files.hdf5 import Hdf5File
from streampca.sources.files.netcdf3 import Netcdf3File, is_netcdf3
from streampca.sources.files.npy import open_npy_files
from streampca.sources.files.paths import NPY, PLINK, Files
from streampca.sources.masks import FROM_DATA, read_mask_file
from streampca.sources.named_arrays import open_named
from streampca.sources.options import ReadOptions
from streampca.sources.stored_variable import StoredVariable
from streampca.sources.table import table_of


def open_files(files: Files, options: ReadOptions) -> Source:
    """Return the rows of files as one table; reads headers and footers only, unless the options need rows.

    Raises
    ------
    DataError
        If a file is missing or damaged, or differs from the first in columns, data type or dimensions.
    NotAvailableError
        For options that such files do not have, and if the package that reads them is not installed.
    """
    options.require_only(files.kind, files.description)
    columns = None
    if files.kind == NPY:
        readers = open_npy_files([Path(str(file)) for file in files.paths])
        source, labels = FragmentedRows(readers, files.description), None
    elif files.has_columns:
        from streampca.sources.files.arrow import ArrowColumns, open_arrow_files

        rows, labels = open_arrow_files(files.paths, options, files.description)
        names = [column.name for column in rows[0].columns]
        kind = FragmentedRows if files.paths[0].store is None else _fetched_rows()
        source = kind(rows, files.description, {"columns": names, "id_column": options.id_column})
        columns = ArrowColumns(files.paths, names)
    else:
        return open_named(arrays_of(files), options)
    table = _table([StoredVariable(source)], labels or _nameless(source), files, options)
    table.sample_columns = columns
    return table


def _fetched_rows() -> type[FragmentedRows]:
    """Return the class of the rows of files behind URLs, whose packages are imported only for these."""
    from streampca.sources.files.fetched_rows import FetchedRows

    return FetchedRows


def _nameless(source: Source) -> Labels:
    """Return the labels of a table whose rows and columns have numbers only."""
    n, d = source.shape
    return Labels((Dimension("dim_0", n),), (Dimension("dim_1", d),), (Variable(None, ("dim_1",), (d,)),))


def arrays_of(files: Files) -> ArrayFiles:
    """Return the arrays of HDF5 and NetCDF files; each is opened by what it begins with."""
    paths = [Path(str(file)) for file in files.paths]
    opened: list[ArrayFile] = (
        [BedFile(path) for path in paths]
        if files.kind == PLINK
        else [Netcdf3File(path) if is_netcdf3(path) else Hdf5File(path) for path in paths]
    )
    return ArrayFiles(opened, files.description)


def _table(parts: Sequence[StoredVariable], labels: Labels, files: Files, options: ReadOptions) -> Source:
    """Return the table of the rows, decoded and with only the features in the mask."""
    mask: object = options.mask
    if isinstance(mask, str | Path) and str(mask) not in FROM_DATA:
        mask = read_mask_file(str(Path(mask).expanduser()))
    parts = [part.with_missing(options.missing_value) for part in parts]
    return table_of(parts, labels, files.description, mask)
