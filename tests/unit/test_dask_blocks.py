"""Blocks of a Dask array are computed once, whatever their sizes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dask.array as da
import numpy as np
import pytest

import streampca as sp


@pytest.mark.parametrize("sizes", [(400, 100, 350, 7, 250, 401), (600, 600, 600), (1, 1, 1000, 3), (5, 0, 900)])
def test_every_block_is_computed_once(sizes: tuple[int, ...]) -> None:
    computed: Counter[int] = Counter()

    def block(block_info: Any = None) -> Any:
        (start, stop), _ = block_info[None]["array-location"]
        computed[block_info[None]["chunk-location"][0]] += 1
        return np.random.default_rng(start).standard_normal((stop - start, 4))

    rows = da.map_blocks(block, chunks=(sizes, (4,)), dtype="f8", meta=np.empty((0, 0)))
    pca = sp.PCA(2, solver="covariance").fit(rows)
    assert computed == dict.fromkeys(range(len(sizes)), 1)
    assert pca.bytes_read_ == rows.nbytes == pca.plan_.bytes_to_read
    np.testing.assert_allclose(
        pca.explained_variance_, np.linalg.eigvalsh(np.cov(rows.compute().T))[::-1][:2], rtol=1e-12
    )
