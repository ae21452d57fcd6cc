"""The options of `open_source` in one object that is passed to every kind of source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict, cast

from numpy.typing import ArrayLike

from streampca.errors import NotAvailableError, ParameterError
from streampca.sources.conventions import number_of

StorageOptions = Mapping[str, Any]
"""Options of obstore for a store behind a URL, or of fsspec where only that knows the protocol."""


_CHOICES = {
    "decode": ("auto", "raw"),
    "orientation": ("samples_first", "features_first", None),
    "missing_chunks": ("error", "fill", "fill_labels"),
}

OF_COLUMNS = ("columns", "id_column")
"""Options of tables whose columns have names: Parquet and Arrow files and data frames."""

_TABLE = frozenset({"missing_value", "lags"})
_ARRAY = _TABLE | {"samples", "features", "mask", "orientation"}
_COLUMNS = _TABLE | {*OF_COLUMNS, "mask"}
_PACKED = _ARRAY | {"decode", "missing_chunks"}
_ZARR = _PACKED | {"verify", "follow_symlinks", "storage_options"}
_CELLS = _TABLE | {"array", "mask", "layer", "mask_var", "normalize"}
_CHOICE = frozenset({"array", "variables"})

TAKEN: Mapping[str, frozenset[str]] = {
    "a table that is open": _TABLE,
    "an array": _ARRAY,
    "a Dask array": _ARRAY | {"max_reads"},
    "a lazy array": _ARRAY,
    "a sparse matrix": frozenset({"lags", "orientation"}),
    "a data frame": _TABLE | {*OF_COLUMNS},
    "a DataArray": _PACKED | {"follow_symlinks", "max_reads"},
    "a Dataset": _PACKED | {"follow_symlinks", "max_reads"} | _CHOICE,
    "built-in data": _ARRAY,
    "an .npy file": _ARRAY - {"orientation"},
    "several .npy files": _TABLE | {"mask"},
    "Parquet files": _COLUMNS | {"storage_options"},
    "Arrow files": _COLUMNS | {"storage_options"},
    "HDF5 and NetCDF files": _PACKED | _CHOICE,
    "PLINK files": _ARRAY - {"missing_value"} | _CHOICE,
    "a zarr array": _ZARR,
    "a zarr group": _ZARR | _CHOICE,
    "an AnnData object": _CELLS,
    "an AnnData file": _CELLS | {"missing_chunks"},
    "an AnnData store": _CELLS | (_ZARR - _ARRAY) | _CHOICE,
    "several AnnData": _CELLS | (_ZARR - _ARRAY - {"verify"}),
}
"""Options that each kind of data takes; all others are refused (`ReadOptions.require_only`). A new kind of data has a line here."""


class SourceKeywords(TypedDict, total=False):
    """Keywords of `open_source`."""

    array: str | None
    variables: str | Sequence[str] | None
    samples: str | Sequence[str] | None
    features: str | Sequence[str] | None
    columns: str | Sequence[str] | None
    id_column: str | None
    mask: ArrayLike | str | Path | None
    orientation: str | None
    missing_chunks: str
    missing_value: float | None
    lags: int | Sequence[int] | None
    storage_options: StorageOptions | None
    verify: str | Path | None
    follow_symlinks: bool
    decode: str
    max_reads: float | None
    layer: str | None
    mask_var: str | None
    normalize: Mapping[str, Any] | None


def given_keywords(keywords: SourceKeywords) -> SourceKeywords:
    """Return those of the keywords that are not None."""
    return cast(SourceKeywords, {name: value for name, value in keywords.items() if value is not None})


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
    variables: str | Sequence[str] | None = None
    """Names of several arrays in a zarr group, whose features are put side by side."""
    samples: str | Sequence[str] | None = None
    """Names of the dimensions whose places are rows, the slowest first; a tuple once it is checked."""
    features: str | Sequence[str] | None = None
    """Names of the dimensions whose places are columns, the slowest first; by default all others."""
    columns: str | Sequence[str] | None = None
    """Names of the columns that are read, in this order; a tuple once it is checked. By default all."""
    id_column: str | None = None
    """Name of the column that names the rows."""
    mask: ArrayLike | str | Path | None = None
    """Which features are used: an array, its name or file, ``"observed"`` or ``"survey"``."""
    orientation: str | None = None
    """``"samples_first"`` (None), or ``"features_first"`` for arrays of (features, samples)."""
    missing_chunks: str = "error"
    """``"error"``; ``"fill"`` reads chunks that do not exist as the fill value, ``"fill_labels"`` only those of labels and masks."""
    missing_value: float | None = None
    """Stored number that counts as missing, like NaN."""
    storage_options: StorageOptions | None = None
    """Options of obstore or fsspec, for URLs."""
    verify: str | Path | None = None
    """File of the fingerprint, a run with a state, or ``"manifest"``."""
    follow_symlinks: bool = False
    """Whether files of a local store may be links to places outside of it."""
    decode: str = "auto"
    """``"auto"`` to decode packed values, ``"raw"`` to read them as they are stored."""
    max_reads: float | None = None
    """Upper limit of the mean number of reads of the chunks behind a Dask array in one pass."""
    layer: str | None = None
    """Name of the layer of an AnnData store or object; None = its X."""
    mask_var: str | None = None
    """Name of the column of truth values in ``var`` of AnnData that says which features are used."""
    normalize: Mapping[str, Any] | None = None
    """How rows of AnnData are normalised, by the keys of `streampca.counts.NORMALIZE`."""
    lags: int | Sequence[int] | None = None
    """How many consecutive samples make a row, or at which lags; None = one."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                *others, last = (f'"{choice}"' for choice in choices if choice)
                shown = f"{', '.join(others)} or {last}"
                raise ParameterError(f"{name}={getattr(self, name)!r}: expected {shown}")
        if self.mask_var is not None and not isinstance(self.mask_var, str):
            raise ParameterError(
                f"mask_var is {type(self.mask_var).__name__}: expected the name of a column of var; give truth values as mask"
            )
        value = self.missing_value
        if value is not None and (isinstance(value, bool) or not math.isfinite(number_of(value))):
            raise ParameterError(
                f"missing_value={value!r}: expected a finite number; NaN counts as missing in any case"
            )
        for name in ("variables", "samples", "features", "columns"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        if self.array is not None and self.variables is not None:
            raise ParameterError(
                f"array={self.array!r} and variables={list(self.variables)!r} were given: leave one out"
            )
        if self.mask is not None and self.mask_var is not None:
            raise ParameterError(f"mask and mask_var={self.mask_var!r} were given: leave one out")
        of_cells = [name for name in ("layer", "mask_var", "normalize") if getattr(self, name) is not None]
        if self.names and of_cells:
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

    @property
    def given(self) -> tuple[str, ...]:
        """Return the names of the options that have another value than by default."""
        ordinary = {
            "decode": "auto",
            "missing_chunks": "error",
            "orientation": "samples_first",
            "follow_symlinks": False,
        }
        names = []
        for name in (each.name for each in fields(self)):
            value = getattr(self, name)
            plain = isinstance(value, str | bool | Mapping)
            if value is not None and not (plain and value in (ordinary.get(name), {})):
                names.append(name)
        return tuple(names)

    def require_only(self, kind: str, label: str) -> None:
        """Raise `NotAvailableError` if options are given that a `kind` of data does not take, see `TAKEN`; messages call the data `label`."""
        if others := [name for name in self.given if name not in TAKEN[kind]]:
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

    @property
    def transposed(self) -> bool:
        """Return whether the stored array is (features, samples)."""
        return self.orientation == "features_first"


def _names(key: str, value: object) -> tuple[str, ...] | None:
    """Return one name or several as a tuple; `ParameterError` for anything else."""
    if value is None:
        return None
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        value = value.tolist()  # an array of names, or some of the columns of a data frame of pandas
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ParameterError(f"{key}={str(value)[:60]!r}: expected a name, or a list of different names")
    return names
