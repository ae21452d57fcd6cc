"""Tables in files, as the library of each format reads them: what the readings of streampca are compared with.

Conventions (scale, offset, missing values) are applied by the few formulas of this module, not by the package.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FORMATS = {
    "Parquet": (".parquet", ".parq", ".pq"),
    "Arrow": (".arrow", ".arrow_file", ".feather", ".ipc", ".stream"),
    "HDF5": (".h5", ".hdf5", ".hdf", ".he5", ".loom"),
    "NetCDF": (".nc", ".nc4", ".cdf"),
    "AnnData": (".h5ad",),
    "PLINK": (".bed",),
    "npy": (".npy",),
    "zarr": (".zarr.zip",),
}
"""Endings of files; the first bytes of some tell which of several formats they have, and what a directory holds tells its own."""
READ_AS = {".arrow_file": ".arrow", ".stream": ".arrow", ".parq": ".parquet"}
"""Endings that test data have, and those by which streampca knows the format."""
MOST_TABLES = 24
"""Arrays of one file that are compared; large test files have hundreds that differ in their names."""
MOST_VALUES = 20_000_000
"""Values of a table beyond which it is not compared."""


_STORED = ("_FillValue", "missing_value", "valid_range", "valid_min", "valid_max")


@dataclass(frozen=True)
class Expected:
    """One table of a file."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `streampca.open` that select the table; `samples` may name several dimensions of which the first that exists is meant."""
    values: np.ndarray[Any, Any] | None = None
    """Values as float64, ``(n_samples, n_features)``, with NaN where they are missing; None where the library reads none."""


def format_of(path: Path) -> str | None:
    """Return the name of the format of a file or directory, a key of `READERS`; None where it is none of those that are compared."""
    if path.is_dir():
        return "Delta" if (path / "_delta_log").is_dir() else _version_of_zarr([each.name for each in path.iterdir()])
    kind = next((name for name, endings in FORMATS.items() if path.name.lower().endswith(endings)), None)
    if kind == "zarr":
        return (_version_of_zarr(zipfile.ZipFile(path).namelist()) if zipfile.is_zipfile(path) else None) or "zarr 3"
    if kind not in ("Arrow", "NetCDF"):
        return kind
    with path.open("rb") as file:
        first = file.read(6)
    if kind == "NetCDF":
        return "NetCDF 3" if first.startswith(b"CDF") else "NetCDF 4"
    return "Feather 1" if first.startswith(b"FEA1") else "Arrow file" if first == b"ARROW1" else "Arrow stream"


def _version_of_zarr(names: list[str]) -> str | None:
    """Return which version of zarr has files of these names at the root of a store, None where none has."""
    return "zarr 3" if "zarr.json" in names else "zarr 2" if {".zarray", ".zgroup"} & set(names) else None


def files_below(directory: Path) -> Iterator[Path]:
    """Yield the files, zarr stores and Delta tables in a directory, sorted.

    What is in a zarr store is not yielded beside it; the Parquet files of a Delta table are, which are those of other writers, too.
    """
    for here, directories, names in os.walk(directory):
        directories.sort()
        stores = {name: kind for name in directories if (kind := format_of(Path(here, name)))}
        yield from (Path(here, name) for name in stores)
        directories[:] = [name for name in directories if stores.get(name, "Delta") == "Delta" and name != ".git"]
        yield from (Path(here, name) for name in sorted(names) if format_of(Path(here, name)))


def tables_of(path: Path) -> list[Expected]:
    """Return the tables of a file; one without values if its library finds no table of numbers in it."""
    found = list(READERS[str(format_of(path))](path))
    return found[:MOST_TABLES] or [Expected()]


def _of_arrow(table: Any) -> Iterator[Expected]:
    """Yield the table of all columns where all are numbers, else that of the columns that are."""
    import pyarrow as pa

    columns, names = [], []
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if pa.types.is_dictionary(kind):
            column, kind = column.cast(kind.value_type), kind.value_type
        if pa.types.is_fixed_size_list(kind) and _is_number(kind.value_type):
            flat = column.combine_chunks()
            if flat.null_count == 0:
                columns.append(_float64(flat.flatten()).reshape(len(column), -1))
                names.append(name)
        elif _is_number(kind):
            columns.append(_float64(column)[:, None])
            names.append(name)
    if columns and len(set(names)) == len(names):
        yield Expected({} if len(names) == table.num_columns else {"columns": names}, np.hstack(columns))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return any(
        check(kind) for check in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    )


def _float64(column: Any) -> np.ndarray[Any, Any]:
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


def _parquet(path: Path) -> Iterator[Expected]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        yield from _of_arrow(file.read())


def _arrow(path: Path) -> Iterator[Expected]:
    import pyarrow as pa
    from pyarrow import feather

    kind = format_of(path)
    if kind == "Feather 1":
        yield from _of_arrow(feather.read_table(path, memory_map=False))
    elif kind == "Arrow file":
        yield from _of_arrow(pa.ipc.open_file(path.read_bytes()).read_all())
    else:
        yield from _of_arrow(pa.ipc.open_stream(path.read_bytes()).read_all())


def _delta(path: Path) -> Iterator[Expected]:
    import deltalake
    import pyarrow as pa

    def in_natural_order(fragment: Any) -> list[tuple[int, str]]:
        return [(int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", fragment.path)]

    # A Delta table has no order of its rows: that of streampca is that of the names of the files.
    table = deltalake.DeltaTable(path).to_pyarrow_dataset()
    fragments = sorted(table.get_fragments(), key=in_natural_order)
    parts = [fragment.to_table(schema=table.schema) for fragment in fragments]
    yield from _of_arrow(pa.concat_tables(parts) if parts else table.to_table())


def _hdf5(path: Path) -> Iterator[Expected]:
    import h5py

    with h5py.File(path, locking=False) as file:
        names: list[str] = []
        file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
        for name in names:
            data = file[name]
            if len(data.shape or ()) >= 2 and data.dtype.kind in "iufb" and 0 < data.size <= MOST_VALUES:
                attributes = {key: _attribute(data.attrs, key) for key in data.attrs}
                axis = data.dims[0]
                scales = [scale.name.rsplit("/", 1)[-1] for scale in axis.values() if scale.name]
                yield _array(name, data[...], attributes, [*scales, axis.label])


def _attribute(attributes: Any, key: str) -> Any:
    try:
        return attributes[key]
    except (OSError, TypeError, ValueError):  # a type that h5py does not know
        return None


def _netcdf(path: Path) -> Iterator[Expected]:
    from scipy.io import netcdf_file

    with netcdf_file(path, mmap=False, maskandscale=False) as file:
        for name, data in file.variables.items():
            if len(data.shape) >= 2 and data.data.dtype.kind in "iuf" and data.data.size:
                yield _array(name, data.data, data._attributes, [data.dimensions[0]])


def _zarr(path: Path) -> Iterator[Expected]:
    import zarr

    node = zarr.open(zarr.storage.ZipStore(path) if path.suffix == ".zip" else path, mode="r")
    if isinstance(node, zarr.Group) and "encoding-type" in node.attrs:
        yield from _cells(path)
        return
    arrays = [("", node)] if isinstance(node, zarr.Array) else list(node.members(max_depth=None))
    for name, array in arrays:
        if isinstance(array, zarr.Array) and array.ndim >= 2 and array.dtype.kind in "iufb" and array.size > 0:
            attributes = dict(array.attrs)
            named = getattr(array.metadata, "dimension_names", None) or attributes.get("_ARRAY_DIMENSIONS")
            declared = any(key in attributes for key in ("_FillValue", "missing_value"))
            if (
                named
                and not declared
                and array.dtype.kind in "iuf"
                and array.fill_value is not None
                and array.fill_value != 0
            ):
                attributes["_FillValue"] = array.fill_value
            yield _array(name, np.asarray(array[...]), attributes, [*(named or ())][:1])


def _array(name: str, values: np.ndarray[Any, Any], attributes: Mapping[str, Any], dimensions: list[Any]) -> Expected:
    """Return the table of an array whose first dimension is that of the samples."""
    options: dict[str, Any] = {"array": name} if name else {}
    if values.ndim > 2:
        options["samples"] = [*(str(each) for each in dimensions if each), "dim_0"]
    return Expected(options, decoded(values, attributes).reshape(len(values), -1))


def decoded(values: np.ndarray[Any, Any], attributes: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return stored values as the CF conventions mean them: missing ones as NaN, others by scale and offset, as float64."""
    if values.dtype.kind == "b":
        return values.astype(np.float64)
    if _text(attributes.get("_Unsigned", "")).lower() == "true" and values.dtype.kind == "i":
        signed, values = values.dtype, values.view(values.dtype.str.replace("i", "u"))
        of_stored = {key: _numbers(attributes.get(key)) for key in _STORED}
        # Attributes of stored values are of the signed type, too.
        attributes = dict(attributes) | {
            key: [number % 2 ** (8 * signed.itemsize) for number in map(int, found)]
            for key, found in of_stored.items()
            if found
        }
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    for key in ("_FillValue", "missing_value"):
        for number in _numbers(attributes.get(key)):
            if _fits(number, values.dtype):
                missing |= values == values.dtype.type(number)
    low, high = (_numbers(attributes.get(key)) for key in ("valid_min", "valid_max"))
    both = _numbers(attributes.get("valid_range"))
    if len(both) == 2:
        low, high = both[:1], both[1:]
    if low:
        missing |= values < low[0]
    if high:
        missing |= values > high[0]
    scale, offset = (_numbers(attributes.get(key)) for key in ("scale_factor", "add_offset"))
    wide = values.astype(np.float64)
    if scale and scale[0] != 1:
        wide *= float(scale[0])
    if offset and offset[0] != 0:
        wide += float(offset[0])
    wide[missing] = np.nan
    return wide


def _numbers(value: Any) -> list[Any]:
    """Return an attribute as a list of numbers, empty where it is text or none."""
    if value is None or isinstance(value, str | bytes):
        return []
    found = np.atleast_1d(np.asarray(value))
    return list(found.ravel()) if found.dtype.kind in "iuf" else []


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    return value.decode() if isinstance(value, bytes) else str(value)


def _fits(number: Any, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "f":
        return True
    information = np.iinfo(dtype)
    return float(number).is_integer() and information.min <= number <= information.max


def _cells(path: Path) -> Iterator[Expected]:
    import anndata

    read = anndata.read_h5ad if path.suffix == ".h5ad" else anndata.read_zarr
    data = read(path)
    if data.X is not None:
        yield Expected({}, _dense(data.X))
    for name, layer in data.layers.items():
        yield Expected({"layer": name}, _dense(layer))


def _dense(matrix: Any) -> np.ndarray[Any, Any]:
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, dtype=np.float64)


def _plink(path: Path) -> Iterator[Expected]:
    import bed_reader

    with bed_reader.open_bed(path) as file:
        yield Expected({}, file.read(dtype="float64"))


def _npy(path: Path) -> Iterator[Expected]:
    values = np.load(path, allow_pickle=False)
    if values.ndim == 2 and values.dtype.kind in "iufb":
        yield Expected({}, values.astype(np.float64))


READERS = {
    "Parquet": _parquet,
    "Delta": _delta,
    "Arrow file": _arrow,
    "Arrow stream": _arrow,
    "Feather 1": _arrow,
    "HDF5": _hdf5,
    "NetCDF 3": _netcdf,
    "NetCDF 4": _hdf5,
    "AnnData": _cells,
    "PLINK": _plink,
    "npy": _npy,
    "zarr 2": _zarr,
    "zarr 3": _zarr,
}
"""What reads the files of each format. Feather 2 is the format of Arrow files."""
