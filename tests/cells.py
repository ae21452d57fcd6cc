"""Counts of cells, and AnnData stores of them written by the documented encoding, without anndata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from scipy.sparse import csr_array


def make_counts(n: int = 300, d: int = 40, seed: int = 0, dtype: str = "float32") -> csr_array:
    """Return sparse counts with five separated directions, ``(n, d)``; row 3 is empty."""
    rng = np.random.default_rng(seed)
    activity = rng.gamma(1.0, 1.0, (n, 5)) * 4.0 ** -np.arange(5)
    counts = rng.poisson(activity @ rng.gamma(0.5, 2.0, (5, d)))
    counts[3] = 0
    return csr_array(counts.astype(dtype))


def normalized(counts: csr_array, target_sum: float | None = 1e4, *, log1p: bool = True) -> NDArray[np.float64]:
    """Return the normalised rows, dense, in float64."""
    rows: NDArray[np.float64] = counts.toarray().astype(np.float64)
    totals = rows.sum(axis=1, keepdims=True)
    if target_sum is not None:
        rows = rows * target_sum / np.where(totals == 0, 1, totals)
    return np.log1p(rows) if log1p else rows


def components(rows: NDArray[np.float64], k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the first `k` components ``(k, d)`` of rows and their variances, by LAPACK."""
    _, s, vt = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    return vt[:k], s[:k] ** 2 / (len(rows) - 1)


def add(group: zarr.Group, name: str, values: Any, chunks: int = 0, encoding: str = "array") -> None:
    """Add an array to a group, every chunk of it."""
    values = np.asarray(values)
    shape = tuple(min(chunks or n, n) or 1 for n in values.shape)
    array = group.create_array(
        name,
        shape=values.shape,
        dtype=str if values.dtype.kind == "U" else values.dtype,
        chunks=shape,
        attributes={"encoding-type": encoding, "encoding-version": "0.2.0"},
        config={"write_empty_chunks": True},
    )
    if values.size:
        array[...] = values.astype(object) if values.dtype.kind == "U" and group.metadata.zarr_format == 2 else values


def add_matrix(group: zarr.Group, name: str, matrix: csr_array | NDArray[Any], chunks: int = 500) -> None:
    """Add a sparse matrix by rows, or a dense one, to a group."""
    if isinstance(matrix, np.ndarray):
        add(group, name, matrix, chunks)
        return
    attributes = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(matrix.shape)}
    node = group.create_group(name, attributes=attributes)
    for key in ("data", "indices", "indptr"):
        add(node, key, getattr(matrix, key), chunks)


def write_cells(
    path: Path,
    matrix: csr_array | NDArray[Any],
    *,
    version: int = 3,
    chunks: int = 500,
    layers: dict[str, csr_array | NDArray[Any]] | None = None,
    var: dict[str, NDArray[Any]] | None = None,
    consolidated: bool = False,
) -> Path:
    """Write an AnnData store with names ``cell0`` and ``gene0`` and so on."""
    root = zarr.open_group(
        path, mode="w", zarr_format=version, attributes={"encoding-type": "anndata", "encoding-version": "0.1.0"}
    )
    add_matrix(root, "X", matrix, chunks)
    for name in ("layers", "obsm", "varm", "uns"):
        root.create_group(name, attributes={"encoding-type": "dict", "encoding-version": "0.1.0"})
    for name, layer in (layers or {}).items():
        add_matrix(root["layers"], name, layer, chunks)  # type: ignore[arg-type]
    for axis, size, word, columns in (
        ("obs", matrix.shape[0], "cell", {}),
        ("var", matrix.shape[1], "gene", var or {}),
    ):
        attributes = {
            "encoding-type": "dataframe",
            "encoding-version": "0.2.0",
            "_index": "_index",
            "column-order": list(columns),
        }
        frame = root.create_group(axis, attributes=attributes)
        add(frame, "_index", np.array([f"{word}{i}" for i in range(size)]), encoding="string-array")
        for name, values in columns.items():
            add(frame, name, values)
    if consolidated:
        zarr.consolidate_metadata(path, zarr_format=version)
    return path


def write_file(path: Path, matrix: csr_array, var: dict[str, NDArray[Any]] | None = None) -> Path:
    """Write an ``.h5ad`` file with names ``cell0`` and ``gene0`` and so on."""
    import h5py

    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        node = file.create_group("X")
        node.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(matrix.shape)})
        for key in ("data", "indices", "indptr"):
            node.create_dataset(
                key, data=getattr(matrix, key), chunks=(min(500, len(getattr(matrix, key))),), compression=1
            )
        for name in ("layers", "obsm", "varm", "uns"):
            file.create_group(name).attrs.update({"encoding-type": "dict", "encoding-version": "0.1.0"})
        for axis, size, word, columns in (
            ("obs", matrix.shape[0], "cell", {}),
            ("var", matrix.shape[1], "gene", var or {}),
        ):
            frame = file.create_group(axis)
            frame.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"})
            frame.attrs["column-order"] = np.array(list(columns), dtype=h5py.string_dtype())
            for name, values in ({"_index": [f"{word}{i}" for i in range(size)]} | columns).items():
                frame.create_dataset(name, data=values)
    return path


def values_of(path: Path, name: str) -> NDArray[Any]:
    """Return what stands at a place of a store or a file."""
    if path.suffix == ".h5ad":
        import h5py

        with h5py.File(path, "r") as file:
            return np.asarray(file[name][()])
    return np.asarray(zarr.open_array(path / name, mode="r")[...])


def sides_of(path: Path, names: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Return the shapes of what stands at places of a store or a file."""
    return [values_of(path, name).shape for name in names]
