"""From a path, URL, store or zarr object to the array in it that is read as a table."""

from __future__ import annotations

import warnings
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
from streampca.sources.options import ReadOptions
from streampca.sources.remote import open_store, place_of, retrying
from streampca.sources.zarr.codecs import require_codecs
from streampca.sources.zarr.group import IRREGULAR, ZarrArrays
from streampca.sources.zarr.strictness import StrictStore, strict_group
from streampca.storage.zarr_interface import ZarrArray

DATA = "a zarr array or group, or a file of rows: .npy, Parquet (.parquet), HDF5 (.h5) or AnnData (.h5ad)"
"""What is read from a path, for messages."""


def node_at(path: str, options: ReadOptions) -> tuple[ZarrArray | zarr.Group, str]:
    """Return the zarr array or group at `path`, and its name in messages; `DataError` if there is none."""
    place = path if options.storage_options else path.removeprefix("file://")
    if "://" in place:
        label = shown(path)
        return node_of(open_store(path, options.storage_options), label), label
    if not Path(place).exists():
        raise DataError(f"{path}: no such file or directory: expected {DATA}")
    if Path(place).is_file():
        found = found_in(Path(place))
        raise DataError(f"{path} is a file that cannot be read as data: {f'{found}; ' if found else ''}expected {DATA}")
    return node_of(LocalStore(place, read_only=True), path), path


def node_of(store: Store, label: str) -> ZarrArray | zarr.Group:
    """Return the zarr array or group in `store`, which messages call `label`, read strictly; `DataError` if there is none.

    Consolidated metadata of an array that zarr does not know hide no other array.
    """
    place = StrictStore(retrying(store))
    try:
        with warnings.catch_warnings(action="ignore"):
            try:
                return zarr.open(place, mode="r")
            except (StreamPCAError, FileNotFoundError):
                raise
            except Exception:
                with suppress(Exception):  # the first error says what is wrong
                    return zarr.open_group(place, mode="r", use_consolidated=False)
                raise
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


def open_node(node: ZarrArray | zarr.Group, options: ReadOptions, description: str | None = None) -> Source:
    """Return the source of an array, or of the one that `options` name in a group, or the only one that can be the table; AnnData as rows of cells.

    Raises
    ------
    DataError
        If there is no such array, or it is not a table of real numbers, or, where none is named, several arrays have two or more
        axes, or the only one describes others (bounds, masks, coordinates); lists names, shapes and axes.
    """
    if isinstance(node, zarr.Array):
        options.require_only("a zarr array", description or place_of(node))
        return open_named(ZarrArrays(node, options, description), options)
    description, group = description or place_of(node), strict_group(node)
    arrays = ZarrArrays(group, options, description)
    sparse = options.array is not None and arrays.find(options.array) is None
    if is_anndata_group(group) and options.variables is None and (options.array is None or sparse):
        return open_cells(ZarrCells(group, options, description), options)
    options.require_only("a zarr group", description)
    return open_named(arrays, options)


def cells_at(path: str, options: ReadOptions) -> ZarrCells:
    """Return the AnnData store at `path`; `DataError` if there is none."""
    node, label = node_at(path, options)
    if not isinstance(node, zarr.Group) or not is_anndata_group(node):
        raise DataError(f"{label} is no AnnData store: expected AnnData, the only stores of zarr that make one table")
    return ZarrCells(strict_group(node), options, label)
