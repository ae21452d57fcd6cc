"""From a path, URL, store or zarr object to the array in it that is read as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore

from streampca.errors import DataError, ParameterError, StreamPCAError
from streampca.formatting import one_line
from streampca.redaction import shown
from streampca.sources.base import Source
from streampca.sources.cells.zarr_store import is_anndata_group, open_cells
from streampca.sources.conventions import describes_others, describing_names, dimensions_of
from streampca.sources.options import ReadOptions, StorageOptions
from streampca.sources.remote import open_store, place_of, retrying
from streampca.sources.zarr.dimensions import first_image
from streampca.sources.zarr.strictness import StrictStore, quietly, strict_group
from streampca.sources.zarr.variables import named_array, open_arrays
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
    store, label = _store_at(path, options.storage_options)
    return open_stored(store, options, label)


def open_stored(store: Store, options: ReadOptions, label: str) -> Source:
    """Open the array or group in `store`, which messages call `label`; raises what `open_path` raises."""
    node = _node_of(store, label, links=options.follow_symlinks)
    if isinstance(node, zarr.Array):
        if options.names:
            raise DataError(
                f"{label} is an array, not a group: expected no array name, found {', '.join(options.names)}"
            )
        return open_array(node, options, label)
    return open_group(node, options, label)


def node_at(path: str, storage_options: StorageOptions | None = None) -> tuple[ZarrArray | zarr.Group, str]:
    """Return the zarr array or group at `path`, and its name in messages; `DataError` if there is none."""
    store, label = _store_at(path, storage_options)
    return _node_of(store, label, links=False), label


def _store_at(path: str, storage_options: StorageOptions | None) -> tuple[Store, str]:
    """Return the store at `path`, and its name in messages."""
    if "://" in path:
        return open_store(path, storage_options), shown(path)
    if not Path(path).exists():
        raise DataError(f"{path}: no such file or directory: expected {DATA}")
    if Path(path).is_file():
        raise DataError(f"{path} is a file that cannot be read as data: expected {DATA}")
    return LocalStore(path, read_only=True), path


def _node_of(store: Store, label: str, *, links: bool) -> ZarrArray | zarr.Group:
    """Return the zarr array or group in `store`, read strictly."""
    try:
        with quietly():
            node = zarr.open(StrictStore(retrying(store), follow_symlinks=links), mode="r")
    except DataError as error:
        raise type(error)(str(error) if label in str(error) else f"{label} cannot be opened: {error}") from error
    except StreamPCAError:
        raise
    except FileNotFoundError as error:
        raise DataError(
            f"{label} is not a zarr store: found no zarr.json, .zarray or .zgroup in it; expected {DATA}"
        ) from error
    except Exception as error:
        raise DataError(
            f"{label} cannot be opened as zarr: {one_line(error)}; expected a zarr array or group of format 2 or 3"
        ) from error
    return node


def open_group(group: zarr.Group, options: ReadOptions, description: str | None = None) -> Source:
    """Open the array that `options` name in `group`, or the only one that can be the table.

    Raises
    ------
    DataError
        If there is no such array, or, where none is named, several arrays have two or more axes, or the only one describes
        others (bounds, masks, coordinates); lists names, shapes and axes.
    """
    description, names = description or place_of(group), options.names
    group = strict_group(group)
    if not names and (options.of_cells or is_anndata_group(group)):
        return open_cells(group, options, description)
    if not names and (image := first_image(group)) is not None:
        names = (image,)
    if names:  # listing a large group takes many requests, or cannot be done
        named = {name: named_array(group, name) for name in names}
        if None not in named.values():
            return open_arrays({n: a for n, a in named.items() if a is not None}, options, description, group)
    elif str(group.attrs.get("format", "")) == "streampca-model":
        raise DataError(f"{description} is a model of streampca: expected data; an array of the model can be named")
    arrays = members_of(group, description)
    listing = _listing(arrays)
    if not names:
        mask = options.mask if isinstance(options.mask, str) else None
        tables = [name for name in tables_of(arrays) if name != mask]
        if len(tables) != 1 or not isinstance(arrays[tables[0]], zarr.Array):
            raise DataError(f"{description} is a group: name the array to read, one of: {listing}")
        names = (tables[0],)
    nodes = {name: arrays.get(name) for name in names}
    for name, node in nodes.items():
        if not isinstance(node, zarr.Array):
            raise DataError(f"{description} has no array {name[:80]!r}: expected one of: {listing}")
    return open_arrays({n: a for n, a in nodes.items() if isinstance(a, zarr.Array)}, options, description, group)


def members_of(group: zarr.Group, description: str) -> dict[str, ZarrArray | zarr.Group]:
    """Return the arrays and groups in `group` by their names."""
    try:
        with quietly():
            return dict(group.members(max_depth=4))
    except Exception as error:
        raise DataError(
            f"the members of {description} cannot be listed: {one_line(error)}; name the array to read, or the URL of the array itself"
        ) from error


def tables_of(members: Mapping[str, ZarrArray | zarr.Group]) -> list[str]:
    """Return the names of the arrays with two or more axes that describe no other.

    Bounds, masks and coordinates are left out; sparse matrices of AnnData, which are groups, are not.
    """
    described: set[str] = set().union(*(describing_names(node.metadata.attributes) for node in members.values()))
    return [
        name
        for name, node in members.items()
        if (isinstance(node, zarr.Array) and node.ndim >= 2)
        or (isinstance(node, zarr.Group) and str(node.attrs.get("encoding-type", "")).endswith("_matrix"))
        if not describes_others(name) and name.rsplit("/", 1)[-1] not in described
    ]


def _listing(members: dict[str, ZarrArray | zarr.Group]) -> str:
    """Return names, shapes and axes of arrays, those with most axes first."""
    shown = []
    arrays = [(name, node) for name, node in members.items() if isinstance(node, zarr.Array)]
    for name, node in sorted(arrays, key=lambda pair: (-pair[1].ndim, pair[0]))[:12]:
        dimensions = dimensions_of(node.metadata)
        shown.append(f"{name} {node.shape}" + (f" [{', '.join(dimensions)}]" if dimensions else ""))
    return ", ".join(shown) + (f" and {len(arrays) - 12} more" if len(arrays) > 12 else "") or "none"


def open_array(array: ZarrArray, options: ReadOptions, description: str | None = None) -> Source:
    """Return the source of an open zarr array; raises what `open_arrays` raises."""
    if options.of_cells:
        raise ParameterError(
            f"{description or place_of(array)}: {', '.join(options.of_cells)} is for AnnData stores, found an array: leave it out"
        )
    return open_arrays({None: array}, options, description, None)
