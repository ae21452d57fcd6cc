"""Generated counts of cells in an AnnData store of zarr: sparse rows, named genes, and the most variable of them marked.

Cells mix programs of genes; counts are Poisson. They are made in blocks of cells, with random numbers addressed by (seed, block),
and only what is above zero is held in memory. The store is written by the documented encoding
of AnnData; anndata is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from scipy.sparse import csr_array

SHAPE = (20_000, 2_000)
_PROGRAMS, _BLOCK, _CHUNK = 12, 2_000, 2**20


def blocks(shape: tuple[int, int] = SHAPE, seed: int = 0, depth: float = 1) -> Iterator[csr_array]:
    """Yield the counts of one block of cells after another; with `depth` 1 about 4 % of them are above zero, with 6 about 16 %."""
    n_cells, n_genes = shape
    rng = np.random.default_rng([seed, 2**32 - 1])
    base = rng.gamma(0.4, 0.08, n_genes)
    programs = np.exp(rng.normal(0, 1.2, (_PROGRAMS, n_genes)) * (rng.random((_PROGRAMS, n_genes)) < 0.15))
    for index, start in enumerate(range(0, n_cells, _BLOCK)):
        rng = np.random.default_rng([seed, index])
        size = min(_BLOCK, n_cells - start)
        strength = rng.dirichlet(1.5 * 0.8 ** np.arange(_PROGRAMS), size)
        counts = depth * rng.lognormal(0, 0.3, (size, 1))
        yield csr_array(rng.poisson(counts * (strength @ programs) * base).astype(np.float32))


def write_cells(
    path: Path, shape: tuple[int, int] = SHAPE, seed: int = 0, zarr_format: int = 3, depth: float = 1
) -> None:
    """Write a new AnnData store of counts; the tenth of the genes that vary most is ``var["highly_variable"]``."""
    parts = list(blocks(shape, seed, depth))
    lengths = np.concatenate([[0], *(np.diff(part.indptr) for part in parts)])
    root = zarr.open_group(path, mode="w", zarr_format=zarr_format, attributes=_encoding("anndata", "0.1.0"))
    rows = root.create_group("X", attributes=_encoding("csr_matrix", "0.1.0") | {"shape": list(shape)})
    _array(rows, "data", np.concatenate([part.data for part in parts]))
    _array(rows, "indices", np.concatenate([part.indices for part in parts]).astype(np.int32))
    edges = np.cumsum(lengths)
    _array(rows, "indptr", edges.astype(np.int32 if edges[-1] < 2**31 else np.int64))  # scikit-learn takes one type
    for name in ("layers", "obsm", "obsp", "uns", "varm", "varp"):
        root.create_group(name, attributes=_encoding("dict", "0.1.0"))
    moments = [sum(np.asarray((part**power).sum(axis=0)).ravel() for part in parts) / shape[0] for power in (1, 2)]
    spread = (moments[1] - moments[0] ** 2) / np.maximum(moments[0], 1e-12)
    variable = spread >= np.quantile(spread, 0.9)
    for axis, word, size in (("obs", "cell", shape[0]), ("var", "gene", shape[1])):
        columns = ["highly_variable"] if axis == "var" else []
        attributes = _encoding("dataframe", "0.2.0") | {"_index": "_index", "column-order": columns}
        frame = root.create_group(axis, attributes=attributes)
        names = frame.create_array(
            "_index", shape=(size,), chunks=(size,), dtype=str, attributes=_encoding("string-array", "0.2.0")
        )
        names[:] = np.array([f"{word}{index}" for index in range(size)], dtype=object if zarr_format == 2 else None)
        if columns:
            _array(frame, "highly_variable", variable)


def _encoding(kind: str, version: str) -> dict[str, Any]:
    return {"encoding-type": kind, "encoding-version": version}


def _array(group: zarr.Group, name: str, values: NDArray[Any]) -> None:
    """Add a vector to a group, every chunk of it."""
    array = group.create_array(
        name,
        shape=values.shape,
        dtype=values.dtype,
        chunks=(max(1, min(len(values), _CHUNK)),),
        attributes=_encoding("array", "0.2.0"),
        config={"write_empty_chunks": True},
    )
    array[:] = values
