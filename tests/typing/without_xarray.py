"""What a user without xarray writes, whose types are of no known kind there, for type checkers."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import dask.array as da
import numpy as np
from numpy.typing import NDArray

import streampca as sp


def use(pca: sp.PCA | sp.KernelPCA, rows: NDArray[np.float32], lazy: da.Array, path: Path) -> None:
    assert_type(pca.transform(rows), NDArray[np.floating])
    assert_type(pca.transform([[1.0, 2.0], [3.0, 4.0]]), NDArray[np.floating])
    assert_type(pca.fit_transform(rows), NDArray[np.floating])
    assert_type(pca.transform(lazy), da.Array)
    assert_type(pca.transform(path), da.Array)
    assert_type(pca.transform("rows.zarr"), da.Array)
    assert_type(pca.inverse_transform(pca.transform(rows)), NDArray[np.floating])
    assert_type(pca.inverse_transform(lazy), da.Array)
