"""From a path, URL, store or zarr object to the array in it that is read as a table."""

from __future__ import annotations

from pathlib import Path

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore

from streampca.errors import DataError, StoreError, StreamPCAError
from streampca.formatting import one_line
from streampca.redaction import shown
from streampca.sources.base import Source
from streampca.sources.conventions import describes_others, describing_names, dimensions_of, require_unpacked
from streampca.sources.options import ReadOptions, StorageOptions
from streampca.sources.remote import open_store, place_of, retrying
from streampca.sources.zarr.digests import verified_by
from streampca.sources.zarr.reader import ZarrSource
from streampca.sources.zarr.strictness import StrictStore, as_stored, quietly, strict_group
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import JsonValue

_DECODE = (
    "write the decoded values to a store of their own (xarray.open_zarr decodes them) and read that, or, if the stored "
    'numbers are meant, set source.decode: raw (from Python: open_source(…, decode="raw"))'
)


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
        if options.array is not None:
            raise DataError(f"{label} is an array, not a group: expected no array name, found array: {options.array}")
        return open_array(node, options, label)
    return open_group(node, options, label)


def arrays_in(path: str, storage_options: StorageOptions | None = None) -> list[dict[str, JsonValue]] | None:
    """Return names, shapes, data types and chunks of the arrays in the zarr group at `path`, None if it is an array.

    Raises
    ------
    DataError
        If there is no zarr array or group.
    """
    store, label = _store_at(path, storage_options)
    node = _node_of(store, label, links=False)
    if isinstance(node, zarr.Array):
        return None
    return [
        {"name": name, "shape": list(array.shape), "dtype": str(array.dtype), "chunks": list(array.chunks)}
        for name, array in sorted(_members(node, label).items())
        if isinstance(array, zarr.Array)
    ]


def _store_at(path: str, storage_options: StorageOptions | None) -> tuple[Store, str]:
    """Return the store at `path`, and its name in messages."""
    if "://" in path:
        return open_store(path, storage_options), shown(path)
    if not Path(path).exists():
        raise DataError(f"{path}: no such file or directory: expected a zarr array or group, or an .npy file")
    if Path(path).is_file():
        raise DataError(
            f"{path} is a file that cannot be read as data: expected a zarr array or group, or an .npy file"
        )
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
            f"{label} is not a zarr store: found no zarr.json, .zarray or .zgroup in it; expected a zarr array or group, or an .npy file"
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
    description, array = description or place_of(group), options.array
    group = strict_group(group)
    if array is not None:  # listing a large group takes many requests, or cannot be done
        named = _named(group, array)
        if named is not None:
            return open_array(named, options, description, array)
    elif str(group.attrs.get("format", "")) == "streampca-model":
        raise DataError(f"{description} is a model of streampca: expected data; an array of the model can be named")
    arrays = _members(group, description)
    listing = _listing(arrays)
    if array is None:
        array = _only_table(arrays)
    if array is None:
        raise DataError(f"{description} is a group: name the array to read, one of: {listing}")
    node = arrays.get(array)
    if not isinstance(node, zarr.Array):
        raise DataError(f"{description} has no array {array[:80]!r}: expected one of: {listing}")
    return open_array(node, options, description, array)


def _members(group: zarr.Group, description: str) -> dict[str, ZarrArray | zarr.Group]:
    """Return the arrays and groups in `group` by their names."""
    try:
        with quietly():
            return dict(group.members(max_depth=4))
    except Exception as error:
        raise DataError(
            f"the members of {description} cannot be listed: {one_line(error)}; name the array to read, or the URL of the array itself"
        ) from error


def _only_table(members: dict[str, ZarrArray | zarr.Group]) -> str | None:
    """Return the name of the only array with two or more axes, if it has two and describes no other; None otherwise.

    So neither the mask beside a cube is taken, nor the bounds of a time axis, nor an embedding beside sparse rows.
    """
    arrays = {name: node for name, node in members.items() if isinstance(node, zarr.Array)}
    tables = [name for name, node in arrays.items() if node.ndim >= 2]
    groups = {name: node for name, node in members.items() if isinstance(node, zarr.Group)}
    tables += [
        n for n, node in groups.items() if str(node.attrs.get("encoding-type", "")).endswith("_matrix")
    ]  # AnnData
    if len(tables) != 1 or tables[0] not in arrays or arrays[tables[0]].ndim != 2 or describes_others(tables[0]):
        return None
    described: set[str] = set().union(*(describing_names(node.metadata.attributes) for node in members.values()))
    return None if tables[0].rsplit("/", 1)[-1] in described else tables[0]


def _listing(members: dict[str, ZarrArray | zarr.Group]) -> str:
    """Return names, shapes and axes of arrays, those with most axes first."""
    shown = []
    arrays = [(name, node) for name, node in members.items() if isinstance(node, zarr.Array)]
    for name, node in sorted(arrays, key=lambda pair: (-pair[1].ndim, pair[0]))[:12]:
        dimensions = dimensions_of(node.metadata)
        shown.append(f"{name} {node.shape}" + (f" [{', '.join(dimensions)}]" if dimensions else ""))
    return ", ".join(shown) + (f" and {len(arrays) - 12} more" if len(arrays) > 12 else "") or "none"


def _named(group: zarr.Group, name: str) -> ZarrArray | None:
    if name != "/".join(filter(None, name.split("/"))):  # which zarr would set right
        return None
    try:
        with quietly():
            member = group[name]
    except StreamPCAError:
        raise
    except (KeyError, ValueError, OSError):  # also names that no file can have
        return None
    except Exception as error:  # clients of stores have no class of errors in common
        raise StoreError(f"{place_of(group)}: {name} cannot be opened: {one_line(error)}") from error
    return member if isinstance(member, zarr.Array) else None


def open_array(
    array: ZarrArray, options: ReadOptions, description: str | None = None, name: str | None = None
) -> ZarrSource:
    """Return the source of an open zarr array.

    Raises
    ------
    DataError
        If it is not a table of real numbers, does not match its fingerprint, or is packed and not to be read raw.
    """
    if str(options.verify) == "manifest" and description is None:
        raise DataError(
            "verify='manifest' is for paths, beside which the fingerprint stands: name the file of the fingerprint"
        )
    digests = verified_by(options.verify, description or "", name)
    label = description or place_of(array)
    array = as_stored(array, label, options.follow_symlinks)
    if options.decode != "raw":
        require_unpacked(array.metadata, f"{label}/{name}" if name else label, _DECODE)
    fill = options.missing_chunks == "fill"
    source = ZarrSource(array, label, name, options.transposed, fill, digests, options.follow_symlinks)
    if digests is not None:
        digests.require_array(source.metadata_digest(), source.chunk_counts, source.label)
    return source
