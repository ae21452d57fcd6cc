"""Datasets of HDF5 files, NetCDF 4 among them, by h5py: contiguous or in chunks, with the names of their dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streampca.errors import DataError, NotAvailableError, OutsideStoreError
from streampca.formatting import one_line
from streampca.sources.conventions import packed_by
from streampca.sources.files.arrays import ArrayFile
from streampca.sources.files.fragments import damage_named
from streampca.sources.files.paths import found_in
from streampca.sources.named_arrays import NamedArray
from streampca.storage.regular_files import require_regular
from streampca.system.optional import optional_module
from streampca.typing import Array

if TYPE_CHECKING:
    import h5py

_MOST_LINKS, _MOST_LISTED = 16, 10_000
_NO_COORDINATE = "This is a netCDF dimension but not a netCDF variable"


class Hdf5File(ArrayFile):
    """The datasets of an HDF5 file, without those that lie in other files."""

    kind = "dataset"
    damage = staticmethod(
        partial(damage_named, causes="is damaged or cut short, or a filter is missing that its chunks need")
    )

    @contextmanager
    def open(self) -> Iterator[h5py.File]:
        """Open the file without a lock: changes are found by its size and time."""
        optional_module("h5py", "HDF5", "hdf5")
        try:
            require_regular(self.path)
            if self.path.stat().st_size == 0:
                raise DataError(f"{self.label} cannot be opened as HDF5: it is empty")
            file = opened_beside_others(self.path, locking=False)
        except (DataError, MemoryError):
            raise
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
            if (found := found_in(self.path)) and "HDF5" not in found:
                reason = found
            raise DataError(f"{self.label} cannot be opened as HDF5: {reason}") from error
        with file:
            yield file

    def find(self, name: str) -> NamedArray | None:
        """Return a dataset, None if there is none.

        Raises
        ------
        OutsideStoreError
            If it lies in another file: behind an external link, as external raw data, or as a virtual dataset.
        """
        with self.opened_file() as file, self.damage(self.label):
            self._require_inside(file, name)
            try:
                node = file[name]
            except (KeyError, ValueError):
                return None
            if not hasattr(node, "shape") or node.shape is None:
                return None
            if node.is_virtual or node.external:
                raise OutsideStoreError(
                    f"{self.label}: the values of {name} lie in other files, of which a missing one would be read as a fill value: name "
                    "these files, or write one dataset"
                )
            return _named(name.strip("/"), node)

    def listed(self) -> Mapping[str, NamedArray]:
        """Return the datasets, without those behind links; `NotAvailableError` if there are too many."""
        found: dict[str, h5py.Dataset] = {}
        names: dict[object, str] = {}

        def add(name: str, node: h5py.Dataset | h5py.Group) -> bool | None:
            if getattr(node, "shape", None) is not None:
                found[name] = node
                names[_address(node)] = name
            return True if len(found) >= _MOST_LISTED else None

        with self.opened_file() as file, self.damage(self.label):
            file.visititems(add)
            arrays = {name: _named(name, node, names) for name, node in found.items()}
        if len(found) >= _MOST_LISTED:
            raise NotAvailableError(
                f"{self.label} holds {_MOST_LISTED:,} datasets or more: name the one to read (source.array)"
            )
        return arrays

    def _require_inside(self, file: h5py.File, name: str) -> None:
        """Raise `OutsideStoreError` if a path leads through an external link, followed by soft links within the file."""
        import h5py

        left, at, n_links = [part for part in name.split("/") if part], "", 0
        while left:
            at = f"{at}/{left.pop(0)}"
            try:
                link = file.get(at, getlink=True)
            except (KeyError, ValueError):
                return
            if isinstance(link, h5py.ExternalLink):
                raise OutsideStoreError(
                    f"{self.label}: {at.strip('/')} is a link to {str(link.filename)[:80]}/{str(link.path).strip('/')[:80]}, another file: name that file"
                )
            if isinstance(link, h5py.SoftLink):
                n_links += 1
                if n_links > _MOST_LINKS:
                    raise DataError(f"{self.label}: {name} leads through more than {_MOST_LINKS} links")
                base = "" if link.path.startswith("/") else at.rpartition("/")[0]
                left = [part for part in f"{base}/{link.path}".split("/") if part and part != "."] + left
                at = ""

    def coordinate(self, array: NamedArray, axis: int) -> NamedArray | None:
        """Return the first scale of a dimension, None where there is none with values."""
        with self.opened_file() as file, self.damage(self.label):
            scales = file[array.name].dims[axis]
            if not len(scales) or array.dims[axis].startswith("dim_"):
                return None
            scale = scales[0]
            named = _named(array.dims[axis], scale)
            is_dummy = str(named.attributes.get("NAME", "")).startswith(_NO_COORDINATE)
            return None if is_dummy else _named(scale.name.strip("/"), scale)

    def unread_coordinate(self, array: NamedArray, axis: int) -> str:
        """Return that the scale of a dimension lies in other files, or that its name is also that of another dimension."""
        with self.opened_file() as file, self.damage(self.label):
            scales = file[array.name].dims[axis]
            if not len(scales) or str(_attributes(scales[0]).get("NAME", "")).startswith(_NO_COORDINATE):
                return ""
            if array.dims[axis].startswith("dim_"):
                return f"the scale {scales[0].name.strip('/')} is that of several dimensions"
            return "its values lie in other files" if scales[0].is_virtual or scales[0].external else ""

    def read(self, array: NamedArray, label: str) -> Array:
        """Return the values of a dataset; text as such."""
        with self.opened_file() as file, self.damage(label):
            return np.asarray(file[array.name][...])

    def fill(self, name: str, place: tuple[slice, ...], out: Array) -> None:
        """Fill `out` with the values of a dataset at `place`."""
        with self.opened_file() as file:
            dataset = file[name]
            if out.flags.c_contiguous and out.dtype == dataset.dtype:
                dataset.read_direct(out, place)
            else:
                out[...] = dataset[place]

    def chunks(self, array: NamedArray) -> tuple[int, ...] | None:
        """Return the shape of the chunks of a dataset."""
        with self.opened_file() as file:
            chunks = file[array.name].chunks
        return None if chunks is None else tuple(map(int, chunks))

    def stored_bytes(self, name: str) -> int:
        """Return the bytes that a dataset takes."""
        with self.opened_file() as file:
            return int(file[name].id.get_storage_size())

    def missing_chunks(self, name: str) -> int:
        """Return how many chunks were never written; 1 for a contiguous dataset without any value."""
        with self.opened_file() as file:
            dataset = file[name]
            if not dataset.chunks:
                return 0 if dataset.id.get_storage_size() else 1
            counts: int = math.prod(-(-n // size) for n, size in zip(dataset.shape, dataset.chunks, strict=True))
            written: int = dataset.id.get_num_chunks()
            return max(0, counts - written)

    def scales_are_single(self, array: NamedArray) -> bool:
        """Return whether scale and offset of packed values are stored as float32."""
        with self.opened_file() as file:
            attributes = file[array.name].attrs
            names = [name for name in ("scale_factor", "add_offset") if name in attributes]
            return all(np.asarray(attributes[name]).dtype == np.float32 for name in names)


def opened_beside_others(path: Path, *, locking: bool | None) -> h5py.File:
    """Return an HDF5 file opened for reading; where this process has it open already, with the locking of that, as HDF5 requires."""
    import h5py

    for each in (locking, None, True, "best-effort", False):
        try:
            return h5py.File(path, "r", locking=each)
        except OSError as error:
            if "flag values don't match" not in str(error):
                raise
            refused = error
    raise refused


def _named(name: str, dataset: h5py.Dataset, names: Mapping[object, str] | None = None) -> NamedArray:
    """Return a dataset as an array; `names` are those of datasets by their addresses, where they are known."""
    attributes = _attributes(dataset)
    try:
        dtype = np.dtype(dataset.dtype)
    except (TypeError, ValueError):  # times, or floating point numbers that numpy has not
        dtype = np.dtype((np.void, dataset.id.get_type().get_size()))
    packed = packed_by(attributes, dtype)
    dims = _dims(dataset, names or {})
    return NamedArray(name, dims, tuple(map(int, dataset.shape)), dtype, attributes, None, packed)


def _dims(dataset: h5py.Dataset, names: Mapping[object, str]) -> tuple[str, ...]:
    """Return the names of the dimensions of a dataset: of their scales, their labels, or ``dim_0`` and so on."""
    found = []
    for axis, dimension in enumerate(dataset.dims):
        scale = ""
        if len(dimension):  # the library searches the whole file for the name of an object that is known by its address
            scale = names.get(_address(dimension[0])) or dimension[0].name
        found.append(scale.rsplit("/", 1)[-1] or str(dimension.label) or f"dim_{axis}")
    return tuple(found) if len(set(found)) == len(found) else tuple(f"dim_{axis}" for axis in range(len(found)))


def _address(dataset: h5py.Dataset | h5py.Group) -> tuple[int, int]:
    """Return what identifies an object of an open file, whatever it is called."""
    import h5py

    info = h5py.h5o.get_info(dataset.id)
    return info.fileno, info.addr


def _attributes(dataset: h5py.Dataset) -> dict[str, object]:
    """Return the attributes of a dataset as numbers, texts and lists; without those that cannot be read so."""
    plain: dict[str, object] = {}
    for name in dataset.attrs:
        if name in ("DIMENSION_LIST", "REFERENCE_LIST"):
            continue
        try:
            value = dataset.attrs[name]
        except (OSError, TypeError, ValueError):
            continue
        value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        plain[name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return plain
