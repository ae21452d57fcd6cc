"""From a path, URL, store or zarr object to the array in it that is read as a table."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore

from streampca.errors import DataError, NotAvailableError, StreamPCAError
from streampca.formatting import one_line
from streampca.redaction import shown
from streampca.sources.base import Source
from streampca.sources.cells.stored import ZarrCells, is_anndata_group, open_cells
from streampca.sources.formats import found_in
from streampca.sources.named_arrays import open_named
from streampca.sources.options import ReadOptions, StorageOptions
from streampca.sources.remote import open_store, place_of, retrying
from streampca.sources.zarr.codecs import require_codecs
from streampca.sources.zarr.group import IRREGULAR, ZarrArrays
from streampca.sources.zarr.metadata import quietly
from streampca.sources.zarr.strictness import StrictStore, strict_group
from streampca.storage.zarr_interface import ZarrArray

DATA = "a zarr array or group, or a file of rows: .npy, Parquet (.parquet), HDF5 (.h5) or AnnData (.h5ad)"
"""What is read from a path, for messages."""


def open_path(path: str, options: ReadOptions) -> Source:
    """Open the zarr array at `path`, or the one that `options` name in the group there; reads metadata only.

    Raises
    ------
    DataError
        If there is none, or it is not a table of real numbers.
    """
    return _open_node(*node_at(path, options), options)


def open_stored(store: Store, options: ReadOptions, label: str) -> Source:
    """Open the array or group in `store`, which messages call `label`; raises what `open_path` raises."""
    return _open_node(_node_of(store, label), label, options)


def _open_node(node: ZarrArray | zarr.Group, label: str, options: ReadOptions) -> Source:
    if isinstance(node, zarr.Array):
        return open_array(node, options, label)
    return open_group(node, options, label)


def node_at(path: str, options: ReadOptions) -> tuple[ZarrArray | zarr.Group, str]:
    """Return the zarr array or group at `path`, and its name in messages; `DataError` if there is none."""
    store, label = _store_at(path, options.storage_options)
    return _node_of(store, label), label


def cells_at(path: str, options: ReadOptions) -> ZarrCells:
    """Return the AnnData store at `path`; `DataError` if there is none."""
    store, label = _store_at(path, options.storage_options)
    node = _node_of(store, label)
    if not isinstance(node, zarr.Group) or not is_anndata_group(node):
        raise DataError(f"{label} is no AnnData store: expected AnnData, the only stores of zarr that make one table")
    return ZarrCells(strict_group(node), options, label)


def _store_at(path: str, storage_options: StorageOptions | None) -> tuple[Store, str]:
    """Return the store at `path`, and its name in messages."""
    place = path if storage_options else path.removeprefix("file://")
    if "://" in place:
        return open_store(path, storage_options), shown(path)
    if not Path(place).exists():
        raise DataError(f"{path}: no such file or directory: expected {DATA}")
    if Path(place).is_file():
        found = found_in(Path(place))
        raise DataError(f"{path} is a file that cannot be read as data: {f'{found}; ' if found else ''}expected {DATA}")
    return LocalStore(place, read_only=True), path


def _node_of(store: Store, label: str) -> ZarrArray | zarr.Group:
    """Return the zarr array or group in `store`, read strictly."""
    try:
        with quietly():
            node = _opened(StrictStore(retrying(store)))
    except DataError as error:
        raise type(error)(str(error) if label in str(error) else f"{label} cannot be opened: {error}") from error
    except StreamPCAError:
        raise
    except FileNotFoundError as error:
        raise DataError(
            f"{label} is not a zarr store: found no zarr.json, .zarray or .zgroup in it; expected {DATA}"
        ) from error
    except Exception as error:
        require_codecs(error, label)
        if "chunk grid" in str(error):
            raise NotAvailableError(f"{label} {IRREGULAR} ({one_line(error)})") from error
        raise DataError(
            f"{label} cannot be opened as zarr: {one_line(error)}; expected a zarr array or group of format 2 or 3"
        ) from error
    return node


def _opened(store: Store) -> ZarrArray | zarr.Group:
    """Return the array or group in a store; consolidated metadata of an array that zarr does not know hide no other array."""
    try:
        return zarr.open(store, mode="r")
    except (StreamPCAError, FileNotFoundError):
        raise
    except Exception:
        with suppress(Exception):  # the first error says what is wrong
            return zarr.open_group(store, mode="r", use_consolidated=False)
        raise


def open_group(group: zarr.Group, options: ReadOptions, description: str | None = None) -> Source:
    """Open the array that `options` name in `group`, or the only one that can be the table; AnnData as rows of cells.

    Raises
    ------
    DataError
        If there is no such array, or, where none is named, several arrays have two or more axes, or the only one describes
        others (bounds, masks, coordinates); lists names, shapes and axes.
    """
    description, group = description or place_of(group), strict_group(group)
    arrays = ZarrArrays(group, options, description)
    sparse = options.array is not None and arrays.find(options.array) is None
    if is_anndata_group(group) and options.variables is None and (options.array is None or sparse):
        return open_cells(ZarrCells(group, options, description), options)
    options.require_only("a zarr group", description)
    return open_named(arrays, options)


def open_array(array: ZarrArray, options: ReadOptions, description: str | None = None) -> Source:
    """Return the source of an open zarr array; raises what `open_named` raises."""
    options.require_only("a zarr array", description or place_of(array))
    return open_named(ZarrArrays(array, options, description), options)
