"""From whatever a user names to the reader that reads it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import DataError, NotAvailableError, ParameterError
from streampca.redaction import redacted
from streampca.sources.arrays import ArraySource, MappedSource
from streampca.sources.base import Source
from streampca.sources.sparse import SparseSource, is_sparse


def open_source(
    data: Any,
    *,
    array: str | None = None,
    orientation: str = "samples_first",
    missing_chunks: str = "error",
    storage_options: dict[str, Any] | None = None,
    verify: str | Path | None = None,
    follow_symlinks: bool = False,
    decode: str = "auto",
    max_reads: float | None = None,
) -> Source:
    """Return the source behind `data`; reads metadata only.

    Parameters
    ----------
    data : str, Path, zarr.Array, zarr.Group, zarr store, dask.array.Array, numpy array, np.memmap, scipy sparse matrix or array, or Source
        A path may be a zarr array, a group (name the `array` in it), an ``.npy`` file or ``builtin:NAME``.
    array : str, optional
        Name of the array within a zarr group.
    orientation : {"samples_first", "features_first"}
        How the array is stored: (samples, features), or (features, samples).
    missing_chunks : {"error", "fill"}
        Whether a chunk that does not exist is an error, or holds the fill value.
    storage_options : dict, optional
        For URLs, handed to fsspec.
    verify : str or Path, optional
        File of the fingerprint that every chunk of a zarr array is compared with; ``"manifest"`` for the one that
        ``streampca fingerprint`` writes by default.
    follow_symlinks : bool
        Whether files of a local store may be symbolic links to places outside of it.
    decode : {"auto", "raw"}
        Whether packed values of zarr arrays (attributes ``scale_factor``, ``add_offset``, ``_FillValue``, ``missing_value``
        or ``_Unsigned`` of the CF conventions) are refused, because this version does not decode them, or read as they are
        stored.
    max_reads : float, optional
        How many times the chunks behind a Dask array may be read or made in one pass, on average, because several of its
        blocks need them; plans are refused with `RepeatedReadsError` above it. 4 by default.

    Raises
    ------
    DataError
        If there is no such data, or it is not a table of real numbers; `PackedDataError` if its values are packed.
    ParameterError
        If `decode` is neither.
    """
    if decode not in ("auto", "raw"):
        raise ParameterError(f'decode={decode!r}: expected "auto" or "raw"')
    if isinstance(data, Source):
        return data
    options: dict[str, Any] = {"orientation": orientation, "missing_chunks": missing_chunks}
    options |= {} if verify is None else {"verify": str(verify)}
    options |= {"follow_symlinks": True} if follow_symlinks else {}
    options |= {"decode": decode} if decode != "auto" else {}
    if isinstance(data, str | Path):
        return _open_path(str(data), array, options, storage_options)
    if verify is not None and not type(data).__module__.startswith("zarr."):
        raise DataError(f"verify: fingerprints are of zarr arrays, found {type(data).__name__}: expected verify=None")
    if isinstance(data, np.memmap) and getattr(data, "_mmap", None) is not None:
        return MappedSource(data.T if orientation == "features_first" else data, "memory map")
    if isinstance(data, np.ndarray):
        return ArraySource(data.T if orientation == "features_first" else data)
    if "zarr" in sys.modules and isinstance(data, sys.modules["zarr"].abc.store.Store):
        from streampca.sources.zarr.reader import open_stored

        return open_stored(data, array, options, redacted(str(data)))
    kind = f"{type(data).__module__}.{type(data).__qualname__}"
    if kind.startswith("zarr."):
        from streampca.sources.zarr.reader import open_array, open_group

        return open_array(data, **options) if hasattr(data, "chunks") else open_group(data, array, options)
    if kind.startswith("dask.array."):
        from streampca.sources.dask import DaskSource

        return DaskSource(data.T if orientation == "features_first" else data, max_reads)
    if is_sparse(data):
        return SparseSource(data.T if orientation == "features_first" else data)
    if kind.startswith(("xarray.", "anndata.")):
        raise NotAvailableError(
            f"{kind} is not read yet by this version: pass a numpy or Dask array, a zarr array or a path"
        )
    raise DataError(
        f"cannot read data of type {kind}: expected a path, zarr.Array, dask array, numpy array or memory map"
    )


def _open_path(path: str, array: str | None, options: dict[str, Any], storage_options: dict[str, Any] | None) -> Source:
    if path.startswith("builtin:"):
        from streampca.sources.builtin import materialise

        path = str(materialise(path.removeprefix("builtin:")))
    if path.endswith(".npy"):
        if "verify" in options:
            raise DataError(f"{path}: fingerprints are of zarr arrays, not of .npy files: leave source.verify out")
        if not Path(path).exists():
            raise DataError(f"{path}: no such file")
        source = MappedSource.open(Path(path))
        if options["orientation"] == "features_first":
            raise NotAvailableError(
                f"{path}: orientation features_first is read from zarr stores and arrays in memory, not from .npy files"
            )
        return source
    from streampca.sources.zarr.reader import open_path

    return open_path(path, array, options, storage_options)
