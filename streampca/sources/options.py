"""The options of `open_source` in one object that is passed to every kind of source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from streampca.errors import ParameterError

StorageOptions = Mapping[str, Any]
"""Options of fsspec for a store behind a URL; their names and types are those of the client of its protocol."""


class SourceKeywords(TypedDict, total=False):
    """Keywords of `open_source`."""

    array: str | None
    orientation: str
    missing_chunks: str
    storage_options: StorageOptions | None
    verify: str | Path | None
    follow_symlinks: bool
    decode: str
    max_reads: float | None


@dataclass(frozen=True)
class ReadOptions:
    """How data are opened; see `open_source` for the meaning of each option.

    Raises
    ------
    ParameterError
        If `decode` is neither of its values.
    """

    array: str | None = None
    """Name of the array in a zarr group."""
    orientation: str = "samples_first"
    """``"samples_first"``, or ``"features_first"`` for arrays of (features, samples)."""
    missing_chunks: str = "error"
    """``"error"``, or ``"fill"`` to read chunks that do not exist as the fill value."""
    storage_options: StorageOptions | None = None
    """Options of fsspec, for URLs."""
    verify: str | Path | None = None
    """File of the fingerprint, or ``"manifest"``."""
    follow_symlinks: bool = False
    """Whether files of a local store may be links to places outside of it."""
    decode: str = "auto"
    """``"auto"`` to refuse packed values, ``"raw"`` to read them as they are stored."""
    max_reads: float | None = None
    """Upper limit of the mean number of reads of the chunks behind a Dask array in one pass."""

    def __post_init__(self) -> None:
        if self.decode not in ("auto", "raw"):
            raise ParameterError(f'decode={self.decode!r}: expected "auto" or "raw"')

    @property
    def transposed(self) -> bool:
        """Return whether the stored array is (features, samples)."""
        return self.orientation == "features_first"
