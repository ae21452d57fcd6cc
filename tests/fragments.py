"""Tables split into files of rows; the packages that write them are imported when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_npy(directory: Path, values: NDArray[Any], cuts: Sequence[int], *, fortran: Sequence[int] = ()) -> list[Path]:
    """Write rows between `cuts` to ``part-0.npy`` and so on; those whose numbers are in `fortran` in Fortran order."""
    directory.mkdir(exist_ok=True)
    paths = [directory / f"part-{index}.npy" for index in range(len(cuts) - 1)]
    for index, path in enumerate(paths):
        rows = values[cuts[index] : cuts[index + 1]]
        np.save(path, np.asfortranarray(rows) if index in fortran else rows)
    return paths


def parquet_table(values: NDArray[Any], form: str, ids: Sequence[object] | None = None) -> Any:
    """Return a table of Arrow with `values` as columns ``c0``, … (``columns``), or as one column ``v`` (``fixed`` or ``list``)."""
    import pyarrow as pa

    columns: dict[str, Any] = {} if ids is None else {"id": pa.array(ids)}
    if form == "columns":
        columns |= {f"c{index}": pa.array(np.ascontiguousarray(column)) for index, column in enumerate(values.T)}
    elif form == "fixed":
        flat = pa.array(np.ascontiguousarray(values).ravel())
        columns["v"] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    else:
        columns["v"] = pa.array(list(values), pa.list_(pa.from_numpy_dtype(values.dtype)))
    return pa.table(columns)


def write_parquet(path: Path, table: Any, group: int = 100, **options: Any) -> Path:
    """Write a table of Arrow, or columns by their names, in row groups of `group` rows."""
    import pyarrow as pa
    from pyarrow import parquet

    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pa.table(table) if isinstance(table, dict) else table, path, row_group_size=group, **options)
    return path


def write_hdf5(path: Path, values: NDArray[Any], name: str = "x", **options: Any) -> Path:
    """Write a dataset to a new HDF5 file."""
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=values, **options)
    return path
