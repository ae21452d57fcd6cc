"""Datasets of HDF5 files, NetCDF 4 among them, by h5py, and variables of the classic formats of NetCDF (versions 1 and 2), by scipy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import DataError, NotAvailableError, OutsideStoreError
from streampca.formatting import one_line
from streampca.sources.files.arrays import ArrayFile, array_of_file
from streampca.sources.files.fragments import damage_named
from streampca.sources.formats import found_in
from streampca.sources.named_arrays import NamedArray
from streampca.storage.files import require_regular
from streampca.system.optional import optional_module
from streampca.typing import Array

if TYPE_CHECKING:
    import h5py


_BEGINS = (b"CDF\x01", b"CDF\x02")
_ATTEMPTS = 5
"""Types of records are parsed by Python's parser, which in 3.11 now and then fails with a SystemError where several threads use it."""


class Netcdf3File(ArrayFile):
    """The variables of a file in a classic format of NetCDF."""

    kind = "variable"

    @contextmanager
    def open(self) -> Iterator[Any]:
        """Open the file, which is mapped into memory."""
        from scipy.io import netcdf_file

        require_regular(self.path)
        with self.path.open("rb") as stored:
            if stored.read(4) not in _BEGINS:
                raise DataError(
                    f"{self.label} is in the 64-bit data format of NetCDF (CDF-5), which is not supported: convert it to NetCDF 4, for example "
                    f"by nccopy -k nc4 {self.path.name} FILE"
                )
            stored.seek(0)
            reason, file = "", None
            with warnings.catch_warnings():  # of arrays of a file that could not be opened
                warnings.simplefilter("ignore")
                for _ in range(_ATTEMPTS):
                    try:
                        file = netcdf_file(stored, "r", mmap=True)
                        break
                    except MemoryError:
                        raise
                    except Exception as error:  # noqa: BLE001 a damaged header leads to errors of many kinds
                        reason = one_line(error)
                        if not isinstance(error, SystemError):
                            break
                        stored.seek(0)
            if file is None:
                raise DataError(f"{self.label} cannot be opened as NetCDF 3: it is damaged or cut short: {reason}")
            with file:
                yield file

    def listed(self) -> Mapping[str, NamedArray]:
        """Return all variables."""
        with self.opened_file() as file, damage_named(self.label, self.causes):
            return {name: _variable(name, variable) for name, variable in file.variables.items()}

    def stored(self, file: Any, name: str) -> Any:
        """Return the values of a variable of the open file."""
        return file.variables[name].data


def _variable(name: str, variable: Any) -> NamedArray:
    dtype = np.dtype(variable.data.dtype)
    return array_of_file(name, variable.dimensions, variable.shape, dtype, variable._attributes)


_MOST_LINKS, _MOST_LISTED = 16, 10_000
_NO_COORDINATE = "This is a netCDF dimension but not a netCDF variable"


class Hdf5File(ArrayFile):
    """The datasets of an HDF5 file, without those that lie in other files."""

    kind = "dataset"
    causes = "is damaged or cut short, or a filter is missing that its chunks need"

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
        with self.opened_file() as file, damage_named(self.label, self.causes):
            import h5py

            # A path may lead through an external link, followed by soft links within the file.
            left, at, n_links = [part for part in name.split("/") if part], "", 0
            while left:
                at = f"{at}/{left.pop(0)}"
                try:
                    link = file.get(at, getlink=True)
                except (KeyError, ValueError):
                    break
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

        with self.opened_file() as file, damage_named(self.label, self.causes):
            file.visititems(add)
            arrays = {name: _named(name, node, names) for name, node in found.items()}
        if len(found) >= _MOST_LISTED:
            raise NotAvailableError(
                f"{self.label} holds {_MOST_LISTED:,} datasets or more: name the one to read (source.array)"
            )
        return arrays

    def coordinate(self, array: NamedArray, axis: int) -> NamedArray | str:
        """Return the first scale of a dimension, or why it is not read; empty where there is none with values."""
        with self.opened_file() as file, damage_named(self.label, self.causes):
            scales = file[array.name].dims[axis]
            if not len(scales):
                return ""
            named = _named(scales[0].name.strip("/"), scales[0])
            if str(named.attributes.get("NAME", "")).startswith(_NO_COORDINATE):
                return ""
            if array.dims[axis].startswith("dim_"):
                return f"the scale {named.name} is that of several dimensions"
            return "its values lie in other files" if scales[0].is_virtual or scales[0].external else named

    def stored(self, file: h5py.File, name: str) -> h5py.Dataset:
        """Return a dataset of the open file."""
        return file[name]

    def fill(self, name: str, place: tuple[slice, ...], out: Array) -> None:
        """Fill `out` with the values of a dataset at `place`."""
        with self.opened_file() as file:
            dataset = file[name]
            if out.flags.c_contiguous and out.dtype == dataset.dtype:
                dataset.read_direct(out, place)
            else:
                out[...] = dataset[place]

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


def array_file(path: Path) -> ArrayFile:
    """Return a file of HDF5 or NetCDF, by what it begins with."""
    try:
        with path.open("rb") as file:
            classic = file.read(4) in (*_BEGINS, b"CDF\x05")
    except OSError:
        classic = False
    return Netcdf3File(path) if classic else Hdf5File(path)


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
    """Return a dataset as an array, without attributes that cannot be read; `names` are those of datasets by their addresses."""
    attributes: dict[str, object] = {}
    for key in dataset.attrs:
        if key not in ("DIMENSION_LIST", "REFERENCE_LIST"):
            with suppress(OSError, TypeError, ValueError):
                attributes[key] = dataset.attrs[key]
    try:
        dtype = np.dtype(dataset.dtype)
    except (TypeError, ValueError):  # times, or floating point numbers that numpy has not
        dtype = np.dtype((np.void, dataset.id.get_type().get_size()))
    dims = []  # names of scales, labels, or dim_0 and so on
    for axis, dimension in enumerate(dataset.dims):
        scale = ""
        if len(dimension):  # the library searches the whole file for the name of an object that is known by its address
            scale = (names or {}).get(_address(dimension[0])) or dimension[0].name
        dims.append(scale.rsplit("/", 1)[-1] or str(dimension.label) or f"dim_{axis}")
    if len(set(dims)) < len(dims):
        dims = [f"dim_{axis}" for axis in range(len(dims))]
    return array_of_file(name, dims, dataset.shape, dtype, attributes, dataset.chunks)


def _address(dataset: h5py.Dataset | h5py.Group) -> tuple[int, int]:
    """Return what identifies an object of an open file, whatever it is called."""
    import h5py

    info = h5py.h5o.get_info(dataset.id)
    return info.fileno, info.addr
