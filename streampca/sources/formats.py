"""Supported kinds of data, one entry each: how files are recognised and opened, and their options, which are declared once.

A new format of files is its module and an entry in `FORMATS`.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from numpy.typing import ArrayLike

from streampca.errors import NotAvailableError, ParameterError
from streampca.sources.conventions import number_of
from streampca.storage.files import open_regular

_OF_COLUMNS = ("columns", "id_column")
"""Options of tables whose columns have names: Parquet and Arrow files and data frames."""
_TABLE = frozenset({"missing_value", "normalize", "lags", "where"})
_CODED = _TABLE | {"quantization"}
_ARRAY = _TABLE | {"samples", "features", "mask", "orientation"}
_COLUMNS = _CODED | {*_OF_COLUMNS, "mask"}
_PACKED = _ARRAY | _CODED | {"decode", "missing_chunks"}
_ZARR = _PACKED | {"verify", "storage_options", "branch", "tag", "snapshot"}
_CELLS = _TABLE | {"array", "mask", "layer", "mask_var"}
_CHOICE = frozenset({"array", "variables"})
_REFUSED = (
    (
        b"\x0e\x03\x13\x01",
        "it is an HDF4 file, which is not supported: convert it, for example by h4toh5 or nccopy -k nc4",
    ),
    *(
        (first, "it is a CDF file of NASA, which is not supported: convert it, for example by cdf-to-netCDF or cdflib")
        for first in (b"\xcd\xf3\x00\x01", b"\xcd\xf2\x60\x02")
    ),
    (
        b"MATLAB 5.0",
        "it is a MAT file of a version before 7.3, which is not supported: save it with -v7.3, or write the array with numpy.save",
    ),
    (
        b"PK\x03\x04",
        "it is a zip archive: give it a name that ends in .zip if it holds a zarr store, or unpack it to a directory",
    ),
    (b"\x1f\x8b", "it is compressed by gzip: unpack it first"),
    (b"GRIB", "it is a GRIB file, which is not supported: convert it to NetCDF or zarr, for example with cfgrib"),
)
"""First bytes of other files, and what to do with them."""
ICECHUNK = "icechunk:"
"""With what paths and URLs of icechunk repositories begin."""
StorageOptions = Mapping[str, Any]
"""Options of obstore for a store behind a URL, or of fsspec where only that knows the protocol."""


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
    arrays; of rows it takes ``(Files, options)`` and returns their readers, labels, and the columns beside them. Readers of
    columns have a further attribute ``columns``, a `Column` for each that is read.
    """
    prefix: str = ""
    """With what paths begin that stand for no file."""
    behind_urls: bool = False
    """Whether files are read from URLs, for which readers are `ArrowReader`: `FetchedRows` asks them where chunks lie in a file."""
    remembered: tuple[str, ...] = ()
    """Of the options that it takes, those that descriptions of a table keep, so that `transform` opens new files with them (`like`).

    `missing_value`, `quantization`, `normalize`, `lags`, a condition `where` and the mask are remembered of all formats.
    """
    first_bytes: tuple[tuple[bytes, str], ...] = ()
    """First bytes of its files, each with what messages say of a file of another name."""

    def opener(self) -> Any:
        """Return what `opens` names."""
        module, _, name = self.opens.partition(":")
        return getattr(import_module(f"{__package__}.{module}"), name)


FORMATS = (
    Format("a table that is open", _TABLE),
    Format("an array", _ARRAY | _CODED),
    Format("a Dask array", _ARRAY | _CODED | {"max_reads"}),
    Format("a lazy array", _ARRAY | _CODED),
    Format("a sparse matrix", frozenset({"normalize", "lags", "where", "orientation"})),
    Format("a tensor", frozenset({"missing_value", "normalize", "quantization", "lags", "where", "orientation"})),
    Format("a data frame", _CODED | {*_OF_COLUMNS}),
    Format("a DataArray", _PACKED | {"max_reads"}),
    Format("a Dataset", _PACKED | {"max_reads"} | _CHOICE),
    Format("built-in data", _ARRAY, "builtin:open_builtin", prefix="builtin:"),
    Format("an .npy file", _ARRAY - {"orientation"} | _CODED, "files.npy:open_npy", (".npy",)),
    Format(
        "several .npy files",
        _CODED | {"mask"},
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
        remembered=_OF_COLUMNS,
        first_bytes=((b"PAR1", "it is a Parquet file: give it a name that ends in .parquet"),),
    ),
    Format(
        "Arrow files",
        _COLUMNS | {"storage_options"},
        "files.arrow:open_arrow_files",
        (".arrow", ".feather", ".ipc"),
        "columns",
        behind_urls=True,
        remembered=_OF_COLUMNS,
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
    Format("an AnnData file", _CELLS | {"missing_chunks"}, "cells.stored:open_h5ad", (".h5ad",)),
    Format("an AnnData store", _CELLS | (_ZARR - _ARRAY - _CODED) | _CHOICE),
    Format("several AnnData", _CELLS | (_ZARR - _ARRAY - _CODED - {"verify"}) | {"genes"}),
)
"""All kinds of data, in the order in which messages name them."""
ENDINGS = ", ".join(each.endings[0] for each in FORMATS if each.holds)
"""What names of files of rows end in, for messages: one ending of each format."""
TAKEN = {each.name: each.takes for each in FORMATS}
"""Options that each kind of data takes."""
CSV = Format(
    "CSV files",
    frozenset(),
    endings=tuple(f"{kind}{packed}" for kind in (".csv", ".tsv") for packed in ("", ".gz", ".bz2", ".zst")),
    holds="rows",
)
"""Files that are refused, with how they are converted."""


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
    found = (what for first, what in known if begin.startswith(first) or begin[512:] == first)
    text = "it is text, which is not supported: convert a table to Parquet once, for example by pyarrow.csv.open_csv with ParquetWriter"
    return next(found, text if re.fullmatch(rb"[\t\r\n -~]+", begin) else "")


def _option(default: Any = None, *, choices: tuple[str, ...] = (), names: bool = False) -> Any:
    """Declare an option: its default, the values that it may have (the first holds by default), whether it is a name or several."""
    return field(default=default, metadata={"choices": choices, "names": names})


@dataclass(frozen=True)
class ReadOptions:
    """How data are opened; see `open_source` for the meaning of each option.

    Raises
    ------
    ParameterError
        If a choice is none of its values, or a name is not text.
    """

    array: str | None = None
    """Name of the array in a zarr group."""
    variables: str | Sequence[str] | None = _option(names=True)
    """Names of several arrays in a zarr group, whose features are put side by side."""
    samples: str | Sequence[str] | None = _option(names=True)
    """Names of the dimensions whose places are rows, the slowest first; a tuple once it is checked."""
    features: str | Sequence[str] | None = _option(names=True)
    """Names of the dimensions whose places are columns, the slowest first; by default all others."""
    columns: str | Sequence[str] | None = _option(names=True)
    """Names of the columns that are read, in this order; a tuple once it is checked. By default all."""
    id_column: str | None = None
    """Name of the column that names the rows."""
    mask: ArrayLike | str | Path | None = None
    """Which features are used: an array, its name or file, ``"observed"`` or ``"survey"``."""
    orientation: str | None = _option(choices=("samples_first", "features_first"))
    """``"samples_first"`` (None), or ``"features_first"`` for arrays of (features, samples)."""
    missing_chunks: str = _option("error", choices=("error", "fill", "fill_labels"))
    """``"error"``; ``"fill"`` reads chunks that do not exist as the fill value, ``"fill_labels"`` only those of labels and masks."""
    missing_value: float | None = None
    """Stored number that counts as missing, like NaN."""
    quantization: Any = None
    """What codes of 8 bits mean: a mapping, and a `Quantization` once data are opened."""
    storage_options: StorageOptions | None = None
    """Options of obstore or fsspec, for URLs."""
    branch: str | None = None
    """Branch of an icechunk repository whose last snapshot is read; None for main."""
    tag: str | None = None
    """Tag of the snapshot of an icechunk repository that is read."""
    snapshot: str | None = None
    """Identifier of the snapshot of an icechunk repository that is read."""
    verify: str | Path | None = None
    """File of the fingerprint, a run with a state, or ``"manifest"``."""
    follow_symlinks: InitVar[bool] = False
    """Ignored with a `FutureWarning`: links of a store are followed."""
    decode: str = _option("auto", choices=("auto", "raw"))
    """``"auto"`` to decode packed values, ``"raw"`` to read them as they are stored."""
    max_reads: float | None = None
    """Upper limit of the mean number of reads of the chunks behind a Dask array in one pass."""
    layer: str | None = None
    """Name of the layer of an AnnData store or object; None = its X."""
    mask_var: str | None = None
    """Name of the column of truth values in ``var`` of AnnData that says which features are used."""
    normalize: Mapping[str, Any] | None = None
    """How rows are normalised, by the keys of `streampca.counts.NORMALIZE`."""
    genes: str = _option("same", choices=("same", "intersection"))
    """``"intersection"`` for the features that all of several AnnData have."""
    lags: int | Sequence[int] | None = None
    """How many consecutive samples make a row, or at which lags; None = one."""
    where: ArrayLike | str | Path | None = None
    """Which samples are used: a condition, the name of a column of truth values, an array or its file; None = all."""

    def __post_init__(self, follow_symlinks: bool) -> None:
        if follow_symlinks:
            warnings.warn(
                "follow_symlinks is ignored: symbolic links in a store are followed, and the option ends with the next minor version; "
                "leave it out",
                FutureWarning,
                stacklevel=5,  # this function, that of the dataclass, `open_source` and its decorator
            )
        for each in fields(self):
            choices, given = each.metadata.get("choices"), getattr(self, each.name)
            if choices and given not in (*choices, each.default):
                *others, last = (f'"{choice}"' for choice in choices)
                raise ParameterError(f"{each.name}={given!r}: expected {', '.join(others)} or {last}")
            if each.metadata.get("names") and given is not None:
                object.__setattr__(self, each.name, _names(each.name, given))
        if self.mask_var is not None and not isinstance(self.mask_var, str):
            raise ParameterError(
                f"mask_var is {type(self.mask_var).__name__}: expected the name of a column of var; give truth values as mask"
            )
        value = self.missing_value
        if value is not None and (isinstance(value, bool) or not math.isfinite(number_of(value))):
            raise ParameterError(
                f"missing_value={value!r}: expected a finite number; NaN counts as missing in any case"
            )
        if self.array is not None and self.variables is not None:
            raise ParameterError(
                f"array={self.array!r} and variables={list(self.variables)!r} were given: leave one out"
            )
        if self.mask is not None and self.mask_var is not None:
            raise ParameterError(f"mask and mask_var={self.mask_var!r} were given: leave one out")
        of_cells = [name for name in ("layer", "mask_var") if getattr(self, name) is not None]
        if of_cells and (self.array is not None or self.variables is not None):
            raise ParameterError(
                f"{', '.join(of_cells)} is for AnnData, of which X or a layer is read: leave array and variables out"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the arrays to read in a group; none where it is to be found out."""
        return tuple(self.variables or (() if self.array is None else (self.array,)))

    @property
    def by_dimension(self) -> bool:
        """Return whether an array is read by the names of its dimensions, or with a mask."""
        return not (self.samples is None and self.features is None and self.mask is None)

    def require_only(self, kind: str, label: str) -> None:
        """Raise `NotAvailableError` if options are given that a `kind` of data does not take, see `TAKEN`; messages call the data `label`."""
        others = []  # those that have another value than by default
        for each in fields(self):
            value, choices = getattr(self, each.name), each.metadata.get("choices")
            plain = isinstance(value, str | bool | Mapping)
            is_default = value is None or (plain and value in (choices[0] if choices else each.default, {}))
            if not is_default and each.name not in TAKEN[kind]:
                others.append(each.name)
        if others:
            users = [
                f"{name} is for {', '.join(each for each, taken in TAKEN.items() if name in taken)}" for name in others
            ]
            raise NotAvailableError(
                f"{label}: {', '.join(others)} does not apply to {kind}: leave it out ({'; '.join(users)})"
            )

    @property
    def fills_data(self) -> bool:
        """Return whether chunks of the data that do not exist are read as the fill value."""
        return self.missing_chunks == "fill"

    @property
    def fills_labels(self) -> bool:
        """Return whether chunks of arrays beside the data that do not exist are read as the fill value."""
        return self.missing_chunks != "error"


def _names(key: str, value: object) -> tuple[str, ...]:
    """Return one name or several as a tuple; `ParameterError` for anything else."""
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        value = value.tolist()  # an array of names, or some of the columns of a data frame of pandas
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ParameterError(f"{key}={str(value)[:60]!r}: expected a name, or a list of different names")
    return names
