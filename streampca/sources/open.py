"""From the data that a user names to the source that reads them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import DataError, NotAvailableError
from streampca.redaction import redacted
from streampca.sources.arrays import ArraySource, MappedSource
from streampca.sources.base import Source
from streampca.sources.options import ReadOptions
from streampca.sources.sparse import SparseSource, is_sparse
from streampca.typing import Array


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
        Passed to fsspec, for URLs.
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
    options = ReadOptions(
        array=array,
        orientation=orientation,
        missing_chunks=missing_chunks,
        storage_options=storage_options,
        verify=None if verify is None else str(verify),
        follow_symlinks=follow_symlinks,
        decode=decode,
        max_reads=max_reads,
    )
    if isinstance(data, Source):
        return data
    for matches, opened in _KINDS:
        if matches(data):
            if options.verify is not None and opened not in _VERIFIED:
                raise DataError(
                    f"verify: fingerprints are of zarr arrays, found {type(data).__name__}: expected verify=None"
                )
            return opened(data, options)
    raise DataError(
        f"cannot read data of type {_kind_of(data)}: expected a path, zarr.Array, dask array, numpy array or memory map"
    )


def _kind_of(data: object) -> str:
    return f"{type(data).__module__}.{type(data).__qualname__}"


def _is_zarr_store(data: object) -> bool:
    return "zarr" in sys.modules and isinstance(data, sys.modules["zarr"].abc.store.Store)


def _open_path(data: str | Path, options: ReadOptions) -> Source:
    path = str(data)
    if path.startswith("builtin:"):
        from streampca.sources.builtin import materialise

        path = str(materialise(path.removeprefix("builtin:")))
    if path.endswith(".npy"):
        return _open_npy(path, options)
    from streampca.sources.zarr.opening import open_path

    return open_path(path, options)


def _open_npy(path: str, options: ReadOptions) -> Source:
    if options.verify is not None:
        raise DataError(f"{path}: fingerprints are of zarr arrays, not of .npy files: leave source.verify out")
    if not Path(path).exists():
        raise DataError(f"{path}: no such file")
    source = MappedSource.open(Path(path))
    if options.transposed:
        raise NotAvailableError(
            f"{path}: orientation features_first is read from zarr stores and arrays in memory, not from .npy files"
        )
    return source


def _open_memory_map(data: np.memmap[Any, Any], options: ReadOptions) -> Source:
    return MappedSource(data.T if options.transposed else data, "memory map")


def _open_array(data: Array, options: ReadOptions) -> Source:
    return ArraySource(data.T if options.transposed else data)


def _open_zarr_store(data: Any, options: ReadOptions) -> Source:
    from streampca.sources.zarr.opening import open_stored

    return open_stored(data, options, redacted(str(data)))


def _open_zarr_node(data: Any, options: ReadOptions) -> Source:
    from streampca.sources.zarr.opening import open_array, open_group

    return open_array(data, options) if hasattr(data, "chunks") else open_group(data, options)


def _open_dask(data: Any, options: ReadOptions) -> Source:
    from streampca.sources.dask import DaskSource

    return DaskSource(data.T if options.transposed else data, options.max_reads)


def _open_sparse(data: Any, options: ReadOptions) -> Source:
    return SparseSource(data.T if options.transposed else data)


def _refuse(data: object, options: ReadOptions) -> Source:
    raise NotAvailableError(
        f"{_kind_of(data)} is not read yet by this version: pass a numpy or Dask array, a zarr array or a path"
    )


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Any, ReadOptions], Source]], ...] = (
    (lambda data: isinstance(data, str | Path), _open_path),
    (lambda data: isinstance(data, np.memmap) and getattr(data, "_mmap", None) is not None, _open_memory_map),
    (lambda data: isinstance(data, np.ndarray), _open_array),
    (_is_zarr_store, _open_zarr_store),
    (lambda data: _kind_of(data).startswith("zarr."), _open_zarr_node),
    (lambda data: _kind_of(data).startswith("dask.array."), _open_dask),
    (is_sparse, _open_sparse),
    (lambda data: _kind_of(data).startswith(("xarray.", "anndata.")), _refuse),
)
"""Kinds of data and the functions that open them; the first that matches is used. A new kind of source has a line here."""
_VERIFIED = (_open_path, _open_zarr_store, _open_zarr_node)
"""Functions that compare chunks with a fingerprint, or refuse one by themselves."""
