"""The kinds of data that are read, an entry each: the options that they take, and how files are known and opened.

A new format of files is its module and an entry here.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from streampca.storage.files import open_regular

OF_COLUMNS = ("columns", "id_column")
"""Options of tables whose columns have names: Parquet and Arrow files and data frames."""
_TABLE = frozenset({"missing_value", "lags"})
_ARRAY = _TABLE | {"samples", "features", "mask", "orientation"}
_COLUMNS = _TABLE | {*OF_COLUMNS, "mask"}
_PACKED = _ARRAY | {"decode", "missing_chunks"}
_ZARR = _PACKED | {"verify", "storage_options"}
_CELLS = _TABLE | {"array", "mask", "layer", "mask_var", "normalize"}
_CHOICE = frozenset({"array", "variables"})


class Format(NamedTuple):
    """A kind of data."""

    name: str
    """What messages call it."""
    takes: frozenset[str]
    """The options of `sp.open` that it takes; all others are refused (`ReadOptions.require_only`)."""
    opens: str = ""
    """The function or class that opens a path, ``module:name`` in this package, imported when it is first used; see `holds`."""
    endings: tuple[str, ...] = ()
    """Ends of the names of its files."""
    holds: Literal["", "rows", "columns", "arrays"] = ""
    """What files hold of which several are one table: rows, rows of columns with names, arrays with names; empty for data that stand alone.

    `opens` takes ``(path, options)`` and returns a source of data that stand alone; it takes a path and returns an `ArrayFile` of
    arrays; of rows it takes ``(Files, options)`` and returns their readers, labels, and the columns beside them.
    """
    prefix: str = ""
    """With what paths begin that stand for no file."""
    behind_urls: bool = False
    """Whether files are read from URLs."""
    first_bytes: tuple[tuple[bytes, str], ...] = ()
    """First bytes of its files, each with what messages say of a file of another name."""

    def opener(self) -> Any:
        """Return what `opens` names."""
        module, _, name = self.opens.partition(":")
        return getattr(import_module(f"{__package__}.{module}"), name)


FORMATS = (
    Format("a table that is open", _TABLE),
    Format("an array", _ARRAY),
    Format("a Dask array", _ARRAY | {"max_reads"}),
    Format("a lazy array", _ARRAY),
    Format("a sparse matrix", frozenset({"lags", "orientation"})),
    Format("a data frame", _TABLE | {*OF_COLUMNS}),
    Format("a DataArray", _PACKED | {"max_reads"}),
    Format("a Dataset", _PACKED | {"max_reads"} | _CHOICE),
    Format("built-in data", _ARRAY, "builtin:open_builtin", prefix="builtin:"),
    Format("an .npy file", _ARRAY - {"orientation"}, "files.npy:open_npy", (".npy",)),
    Format(
        "several .npy files",
        _TABLE | {"mask"},
        "files.npy:open_npy_files",
        (".npy",),
        "rows",
        first_bytes=((b"\x93NUMPY", "it is an .npy file: give it a name that ends in .npy"),),
    ),
    Format(
        "Parquet files",
        _COLUMNS | {"storage_options"},
        "files.arrow:open_arrow_files",
        (".parquet", ".pq"),
        "columns",
        behind_urls=True,
        first_bytes=((b"PAR1", "it is a Parquet file: give it a name that ends in .parquet"),),
    ),
    Format(
        "Arrow files",
        _COLUMNS | {"storage_options"},
        "files.arrow:open_arrow_files",
        (".arrow", ".feather", ".ipc"),
        "columns",
        behind_urls=True,
        first_bytes=((b"ARROW1", "it is an Arrow file: give it a name that ends in .arrow"),),
    ),
    Format(
        "HDF5 and NetCDF files",
        _PACKED | _CHOICE,
        "files.hdf5:array_file",
        (".h5", ".hdf5", ".nc", ".nc4", ".cdf", ".he5", ".hdf", ".nwb", ".loom", ".mat"),
        "arrays",
        first_bytes=(
            (b"\x89HDF\r\n\x1a\n", "it is an HDF5 file: give it a name that ends in .h5"),
            (b"CDF", "it is a NetCDF 3 file: give it a name that ends in .nc"),
        ),
    ),
    Format("PLINK files", _ARRAY - {"missing_value"} | _CHOICE, "files.bed:BedFile", (".bed",), "arrays"),
    Format("a zarr array", _ZARR),
    Format("a zarr group", _ZARR | _CHOICE),
    Format("an AnnData object", _CELLS),
    Format("an AnnData file", _CELLS | {"missing_chunks"}, "cells.hdf5:open_h5ad", (".h5ad",)),
    Format("an AnnData store", _CELLS | (_ZARR - _ARRAY) | _CHOICE),
    Format("several AnnData", _CELLS | (_ZARR - _ARRAY - {"verify"})),
)
"""All kinds of data, in the order in which messages name them."""
CSV = Format("CSV files", frozenset(), endings=(".csv", ".tsv", ".csv.gz"), holds="rows")
"""Files that are refused, with how they are converted."""
TAKEN = {each.name: each.takes for each in FORMATS}
"""Options that each kind of data takes."""
_REFUSED = (
    (b"\x0e\x03\x13\x01", "it is an HDF4 file, which is not read: convert it, for example by h4toh5 or nccopy -k nc4"),
    *(
        (first, "it is a CDF file of NASA, which is not read: convert it, for example by cdf-to-netCDF or cdflib")
        for first in (b"\xcd\xf3\x00\x01", b"\xcd\xf2\x60\x02")
    ),
    (
        b"MATLAB 5.0",
        "it is a MAT file of a version before 7.3, which is not read: save it with -v7.3, or write the array with numpy.save",
    ),
    (b"PK\x03\x04", "it is a zip archive, which is not read: unpack it to a directory"),
    (b"\x1f\x8b", "it is compressed by gzip: unpack it first"),
    (b"GRIB", "it is a GRIB file, which is not read: convert it to NetCDF or zarr, for example with cfgrib"),
)
"""First bytes of other files, and what to do with them."""


def format_of(path: object) -> Format | None:
    """Return the format of a file of rows or arrays by its name, None where it is none of these."""
    name = os.path.basename(str(path)).lower()
    of_files = (each for each in (*FORMATS, CSV) if each.holds)
    return next((each for each in of_files if name.endswith(each.endings) and name not in each.endings), None)


def format_alone(path: str) -> Format | None:
    """Return the format of a path of data that stand alone, None where it is that of a zarr store or of files."""
    alone = (each for each in FORMATS if each.opens and not each.holds)
    return next((each for each in alone if path.startswith(each.prefix) and path.endswith(each.endings or "")), None)


def found_in(path: Path) -> str:
    """Return what a file is by its first bytes, for messages and with what to do; empty where that is not known."""
    try:
        with open_regular(path) as file:
            begin = file.read(520)
    except OSError:
        return ""
    known = [*(pair for each in FORMATS for pair in each.first_bytes), *_REFUSED]
    # HDF5 may begin behind 512 bytes of the user.
    return next((what for first, what in known if begin.startswith(first) or begin[512:] == first), "")
