"""Arrays of zarr as tables: from a path, URL, store or zarr object to the array in it, with dimensions named by zarr, xarray or OME-Zarr."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, ZipStore

from streampca.errors import DataError, NotAvailableError, StoreError, StreamPCAError
from streampca.formatting import one_line
from streampca.redaction import shown
from streampca.sources.conventions import Packing, describes_others, dimensions_of, packing
from streampca.sources.features import Axes
from streampca.sources.formats import ENDINGS, ICECHUNK, ReadOptions, found_in
from streampca.sources.named_arrays import NamedArray, NamedArrays
from streampca.sources.remote import open_store, place_of, retrying
from streampca.sources.table import StoredVariable
from streampca.sources.zarr.codecs import require_codecs
from streampca.sources.zarr.digests import verified_by
from streampca.sources.zarr.reader import ZarrSource
from streampca.sources.zarr.strictness import StrictStore, as_stored, read_labels, require_readable
from streampca.storage.zarr_interface import MetadataValidationError, ZarrArray, has_regular_chunks, sync
from streampca.typing import Array, Json

IRREGULAR = (
    "has chunks of several shapes, which are not supported: write it with chunks of one shape (a regular chunk grid)"
)
"""What messages say of an array with a rectilinear chunk grid."""
_DEPTH = 4
DATA = f"a zarr array or group, a file of rows ({ENDINGS}), or AnnData (.h5ad)"
"""What is read from a path, for messages."""


class ZarrArrays(NamedArrays):
    """The arrays of a zarr group, read strictly; or one array alone.

    Parameters
    ----------
    node : zarr.Group or zarr.Array
        The group, or the array.
    options : ReadOptions
        How they are read.
    description : str, optional
        Path or URL of the store.
    """

    kind = "array"

    def __init__(self, node: zarr.Group | ZarrArray, options: ReadOptions, description: str | None = None):
        self.node, self.options, self.description = node, options, description
        self.label = description or place_of(node)
        self.place = "group" if isinstance(node, zarr.Group) else "array"

    def find(self, name: str) -> NamedArray | None:
        """Return the array of a name, None if there is none; raises `StoreError` if the store does not answer."""
        if not isinstance(self.node, zarr.Group) or not name or name != "/".join(filter(None, name.split("/"))):
            return None  # zarr would set the name right
        try:
            with warnings.catch_warnings(action="ignore"):
                member = self.node[name]
        except StreamPCAError:
            raise
        except (KeyError, ValueError, OSError) as error:  # also names that no file can have
            require_codecs(error, f"{self.label}: {name}")
            if "data type" in str(error):
                raise DataError(f"{self.label}: {name} cannot be opened: {one_line(error)}") from error
            # The error of an absent array names it, by itself or in a sentence; that of an absent entry names the entry.
            incomplete = isinstance(error, KeyError) and name.rpartition("/")[2] not in "".join(map(str, error.args))
            if incomplete or isinstance(error, MetadataValidationError):
                raise DataError(
                    f"{self.label}: {name} has incomplete metadata: {one_line(error)}; restore it"
                ) from error
            return None
        except Exception as error:  # clients of stores have no class of errors in common
            raise StoreError(f"{self.label}: {name} cannot be opened: {one_line(error)}") from error
        return self._named(name, member) if isinstance(member, zarr.Array) else None

    def listed(self) -> Mapping[str, NamedArray]:
        """Return all arrays by their names."""
        members = self.members()
        return {name: self._named(name, node) for name, node in members.items() if isinstance(node, zarr.Array)}

    def members(self) -> dict[str, ZarrArray | zarr.Group]:
        """Return the arrays and groups by their names; `DataError` where they cannot be listed."""
        if not isinstance(self.node, zarr.Group):
            return {}
        try:
            with warnings.catch_warnings(action="ignore"):
                return dict(self.node.members(max_depth=_DEPTH))
        except Exception as error:
            if found := _members_one_by_one(self.node, _DEPTH):
                return found
            raise DataError(
                f"the members of {self.label} cannot be listed: {one_line(error)}; name the array to read, or the URL of the array itself"
            ) from error

    def default(self, options: ReadOptions) -> list[NamedArray]:
        """Return the array, the image of full resolution of OME-Zarr, or the only array that can be the table."""
        if not isinstance(self.node, zarr.Group):
            return [self._named(None, self.node)]
        image = _multiscale(self.node).get("datasets")
        path = image[0].get("path") if isinstance(image, list) and image and isinstance(image[0], dict) else None
        if isinstance(path, str) and (found := self.find(path)) is not None:
            return [found]
        if str(self.node.attrs.get("format", "")) == "streampca-model":
            raise DataError(f"{self.label} is a model of streampca: expected data; an array of the model can be named")
        groups = {name: node for name, node in self.members().items() if isinstance(node, zarr.Group)}
        kinds = {name: str(node.attrs.get("encoding-type", "")) for name, node in groups.items()}
        sparse = [name for name, kind in kinds.items() if kind.endswith("_matrix") and not describes_others(name)]
        if sparse:
            raise DataError(f"{self.label} is a group: name the array to read, one of: {self.listing()}")
        return super().default(options)

    def _named(self, name: str | None, array: ZarrArray) -> NamedArray:
        names = dimensions_of(array.metadata)
        if not names and isinstance(self.node, zarr.Group):  # OME-Zarr names the axes of its images in their group
            axes = _multiscale(self.node).get("axes")
            if isinstance(axes, list) and len(axes) == array.ndim:
                names = tuple(str(each.get("name", "?") if isinstance(each, dict) else each)[:60] for each in axes)
        names = names or ("?",) * array.ndim
        dims = tuple(f"dim_{axis}" if each == "?" else each for axis, each in enumerate(names))
        attributes: Mapping[str, object] = array.metadata.attributes
        shape = tuple(int(size) for size in array.shape)
        packed, chunks = packing(array.metadata), None
        if has_regular_chunks(array.metadata):
            chunks = tuple(map(int, array.chunks))
        return NamedArray(name, dims, shape, np.dtype(array.dtype), attributes, array, packed, chunks)

    def opened(self, array: NamedArray, axes: Axes, options: ReadOptions) -> StoredVariable:
        """Return an array as a part of a table; its chunks are compared with a fingerprint where the options name one."""
        if str(options.verify) == "manifest" and self.description is None:
            raise DataError(
                "verify='manifest' is for paths, beside which the fingerprint stands: name the file of the fingerprint"
            )
        if array.chunks is None:
            raise NotAvailableError(f"{self.title(array)} {IRREGULAR}")
        place, digests = self.description or place_of(array.stored), None
        if options.verify is not None:
            digests = verified_by(options.verify, self.description or "", array.name)
        stored = as_stored(array.stored, place)
        declared = {} if options.decode == "raw" else packing(stored.metadata)
        packed = Packing.of_attributes(declared, np.dtype(stored.dtype), self.title(array)) if declared else None
        source = ZarrSource(stored, place, array.name, axes, options.fills_data, digests)
        if digests is not None:
            source.require_form_of(digests)
        return StoredVariable(source, packed)

    def read(self, array: NamedArray, label: str) -> Array:
        """Return the stored values of an array beside the data."""
        if array.chunks is None:
            raise NotAvailableError(f"{self.title(array)} {IRREGULAR}")
        stored = as_stored(array.stored, label)
        if array.dtype.kind in "biufMm":
            require_readable(stored.metadata, array.dtype.itemsize, label)
        return read_labels(stored, label, fill=self.options.fills_labels)


def _members_one_by_one(group: zarr.Group, depth: int, prefix: str = "") -> dict[str, ZarrArray | zarr.Group]:
    """Return the members of a group that zarr can open, those of groups in it included; none where the store cannot list them."""

    async def listed() -> list[str]:
        return [name async for name in group.store.list_dir(group.path)]

    found: dict[str, ZarrArray | zarr.Group] = {}
    try:
        names = sorted(sync(listed()))
    except Exception:  # noqa: BLE001 stores have no class of errors in common
        return found
    for name in names:
        try:
            with warnings.catch_warnings(action="ignore"):
                member = group[name]
        except StreamPCAError:
            raise
        except (KeyError, ValueError, TypeError, OSError):  # no member, or one that zarr does not know
            continue
        found[prefix + name] = member
        if isinstance(member, zarr.Group) and depth > 0:
            found |= _members_one_by_one(member, depth - 1, f"{prefix}{name}/")
    return found


def _multiscale(group: zarr.Group) -> Json:
    """Return the first entry of ``multiscales`` of OME-Zarr 0.4 or 0.5 in the attributes of a group, empty if there is none."""
    attributes: Json = dict(group.attrs.asdict())
    nested = attributes.get("ome", attributes)
    scales = nested.get("multiscales") if isinstance(nested, dict) else None
    return scales[0] if isinstance(scales, list) and scales and isinstance(scales[0], dict) else {}


def values_of(array: ZarrArray, label: str, options: ReadOptions) -> Array | None:
    """Return the values of an array beside the data, see `NamedArrays.values`."""
    alone = ZarrArrays(array, options)
    return alone.values(alone.default(options)[0], label)


def node_at(path: str, options: ReadOptions) -> tuple[ZarrArray | zarr.Group, str]:
    """Return the zarr array or group at `path`, and its name in messages; `DataError` if there is none."""
    place = path if options.storage_options else path.removeprefix("file://")
    if path.startswith(ICECHUNK):
        from streampca.sources.zarr.snapshots import snapshot_url

        path = place = snapshot_url(path, options)
    elif others := [name for name in ("branch", "tag", "snapshot") if getattr(options, name) is not None]:
        raise NotAvailableError(
            f"{shown(path)}: {', '.join(others)} is for icechunk repositories: write {ICECHUNK}PATH, or leave it out"
        )
    if "://" in place or path.startswith(ICECHUNK):
        label = shown(path)
        return node_of(open_store(path, options.storage_options), label), label
    if not Path(place).exists():
        endings = (".zarr", ".h5ad", *ENDINGS.split(", "))
        found = next((f"{path}{end}" for end in endings if Path(f"{place}{end}").exists()), "")
        meant = f"; did you mean {found}?" if found else ""
        raise DataError(f"{path}: no such file or directory: expected {DATA}{meant}")
    if place.endswith(".zip") and Path(place).is_file():
        return node_of(ZipStore(Path(place).absolute(), read_only=True), path), path
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
        cure = "; write bfloat16 as float32, which holds all of its values" if "bfloat16" in str(error) else ""
        raise DataError(
            f"{label} cannot be opened as zarr: {one_line(error)}; expected a zarr array or group of format 2 or 3{cure}"
        ) from error
