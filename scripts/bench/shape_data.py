"""Data of the cases of `shapes.py`, made block by block."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def dense(
    rows: int, features: int, chunks: tuple[int, int], dtype: str = "f4", missing: float = 0.0
) -> Callable[[Path], None]:
    """Return a function that writes a store of `rows` with 20 directions and noise, made block by block."""

    def write(path: Path) -> None:
        import zarr

        store = zarr.create_array(path, shape=(rows, features), chunks=chunks, dtype=dtype, compressors=None)
        directions = (
            np.random.default_rng(0).standard_normal((20, features), dtype="f4")
            * np.linspace(3, 1, 20, dtype="f4")[:, None]
        )
        if chunks[1] < features:  # by columns
            scores = np.random.default_rng(1).standard_normal((rows, 20), dtype="f4")
            for block, start in enumerate(range(0, features, chunks[1])):
                part = directions[:, start : start + chunks[1]]
                noise = np.random.default_rng([2, block]).standard_normal((rows, part.shape[1]), dtype="f4")
                store[:, start : start + chunks[1]] = scores @ part + noise
            return
        for block, start in enumerate(range(0, rows, chunks[0])):
            rng, size = np.random.default_rng([1, block]), min(chunks[0], rows - start)
            values = rng.standard_normal((size, 20), dtype="f4") @ directions + rng.standard_normal(
                (size, features), dtype="f4"
            )
            if missing:
                values[rng.random(values.shape, dtype="f4") < missing] = np.nan
            store[start : start + size] = values

    return write


def field(shape: tuple[int, int, int], side: int) -> Callable[[Path], None]:
    """Return a function that writes ``field(time, lat, lon)`` in cubic chunks, with coordinates."""

    def write(path: Path) -> None:
        import zarr

        group, names = zarr.open_group(path, mode="w"), ("time", "lat", "lon")
        array = group.create_array(
            "field", shape=shape, chunks=(side,) * 3, dtype="f8", compressors=None, dimension_names=names
        )
        maps = np.random.default_rng(0).standard_normal((20, *shape[1:]))
        for block, start in enumerate(range(0, shape[0], side)):
            rng, size = np.random.default_rng([1, block]), min(side, shape[0] - start)
            array[start : start + size] = np.tensordot(rng.standard_normal((size, 20)), maps, 1) + rng.standard_normal(
                (size, *shape[1:])
            )
        for name, size in zip(names, shape, strict=True):
            group.create_array(name, data=np.arange(float(size)), dimension_names=(name,))

    return write


def sparse(rows: int, features: int, density: float) -> Callable[[Path], None]:
    """Return a function that writes sparse rows as a file of scipy."""

    def write(path: Path) -> None:
        import scipy.sparse

        random = np.random.default_rng(0)
        matrix = scipy.sparse.random(rows, features, density, format="csr", random_state=random, dtype=np.float32)
        with open(path, "wb") as file:
            scipy.sparse.save_npz(file, matrix)

    return write


def small(values: Callable[[], np.ndarray[Any, Any]]) -> Callable[[Path], None]:
    """Return a function that saves an array for `numpy.load`."""

    def write(path: Path) -> None:
        with open(path, "wb") as file:
            np.save(file, values())

    return write


def low_rank() -> np.ndarray[Any, Any]:
    """Return 1,000 rows of 10 features whose rank is about 5."""
    from sklearn.datasets import make_low_rank_matrix

    return np.asarray(make_low_rank_matrix(1000, 10, effective_rank=2, tail_strength=0, random_state=42))
