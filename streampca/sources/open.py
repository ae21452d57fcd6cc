"""From the data that a user names to the source that reads them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from streampca.errors import DataError, NotAvailableError
from streampca.redaction import redacted
from streampca.sources.arrays import ArraySource, MappedSource
from streampca.sources.base import Source
from streampca.sources.options import ReadOptions, SourceKeywords
from streampca.sources.sparse import SparseSource, is_sparse

if TYPE_CHECKING:
    import dask.array as da
    import zarr
    from zarr.abc.store import Store

    from streampca.storage.zarr_interface import ZarrArray

Opener = Callable[[Any, ReadOptions], Source]


def open_source(data: object, **keywords: Unpack[SourceKeywords]) -> Source:
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
    options = ReadOptions(**keywords)
    if isinstance(data, Source):
        return data
    for kind in _KINDS:
        if kind.matches(data):
            if options.verify is not None and not kind.verifies:
                raise DataError(
                    f"verify: fingerprints are of zarr arrays, found {type(data).__name__}: expected verify=None"
                )
            return kind.opened(data, options)
    if _kind_of(data).startswith(("xarray.", "anndata.")):
        raise NotAvailableError(
            f"{_kind_of(data)} is not read yet by this version: pass a numpy or Dask array, a zarr array or a path"
        )
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


def _in_memory(opened: Callable[[Any], Source]) -> Opener:
    """Return a function that opens values in memory, transposed if they are stored as (features, samples)."""
    return lambda data, options: opened(data.T if options.transposed else data)


def _open_zarr_store(data: Store, options: ReadOptions) -> Source:
    from streampca.sources.zarr.opening import open_stored

    return open_stored(data, options, redacted(str(data)))


def _open_zarr_node(data: ZarrArray | zarr.Group, options: ReadOptions) -> Source:
    import zarr

    from streampca.sources.zarr.opening import open_array, open_group

    return open_group(data, options) if isinstance(data, zarr.Group) else open_array(data, options)


def _open_dask(data: da.Array, options: ReadOptions) -> Source:
    from streampca.sources.dask import DaskSource

    return DaskSource(data.T if options.transposed else data, options.max_reads)


class _Kind(NamedTuple):
    """A kind of data that can be opened."""

    matches: Callable[[object], bool]
    """Whether data are of this kind."""
    opened: Opener
    """Function that returns their source."""
    verifies: bool = False
    """Whether the function compares chunks with a fingerprint, or refuses one by itself."""


_KINDS = (
    _Kind(lambda data: isinstance(data, str | Path), _open_path, verifies=True),
    _Kind(
        lambda data: isinstance(data, np.memmap) and getattr(data, "_mmap", None) is not None,
        _in_memory(lambda array: MappedSource(array, "memory map")),
    ),
    _Kind(lambda data: isinstance(data, np.ndarray), _in_memory(ArraySource)),
    _Kind(_is_zarr_store, _open_zarr_store, verifies=True),
    _Kind(lambda data: _kind_of(data).startswith("zarr."), _open_zarr_node, verifies=True),
    _Kind(lambda data: _kind_of(data).startswith("dask.array."), _open_dask),
    _Kind(is_sparse, _in_memory(SparseSource)),
)
"""Kinds of data; the first that matches is opened. A new kind of source has a line here."""
