"""The options of `open_source`, declared once, in one object that is passed to every kind of source; `formats` says which kinds take them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from streampca.errors import NotAvailableError, ParameterError
from streampca.sources.conventions import number_of
from streampca.sources.formats import TAKEN

StorageOptions = Mapping[str, Any]
"""Options of obstore for a store behind a URL, or of fsspec where only that knows the protocol."""


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
    storage_options: StorageOptions | None = None
    """Options of obstore or fsspec, for URLs."""
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
    """How rows of AnnData are normalised, by the keys of `streampca.counts.NORMALIZE`."""
    lags: int | Sequence[int] | None = None
    """How many consecutive samples make a row, or at which lags; None = one."""

    def __post_init__(self, follow_symlinks: bool) -> None:
        if follow_symlinks:
            warnings.warn(
                "follow_symlinks is ignored: symbolic links in a store are followed, and the option ends with the next minor version; "
                "leave it out",
                FutureWarning,
                stacklevel=4,  # this function, that of the dataclass, `open_source`
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
        names = []
        for each in fields(self):
            value, choices = getattr(self, each.name), each.metadata.get("choices")
            plain = isinstance(value, str | bool | Mapping)
            if value is not None and not (plain and value in (choices[0] if choices else each.default, {})):
                names.append(each.name)
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


def _names(key: str, value: object) -> tuple[str, ...]:
    """Return one name or several as a tuple; `ParameterError` for anything else."""
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        value = value.tolist()  # an array of names, or some of the columns of a data frame of pandas
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ParameterError(f"{key}={str(value)[:60]!r}: expected a name, or a list of different names")
    return names
