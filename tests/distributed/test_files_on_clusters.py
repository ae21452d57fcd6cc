"""Fits of files of rows on a cluster have the bits of fits on threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fragments import parquet_table, write_hdf5, write_npy, write_parquet
from stores import make_values

import streampca as sp

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("kind", ["npy", "parquet", "hdf5"])
def test_a_cluster_gives_the_bits_of_threads(kind: str, client: Any, tmp_path: Path) -> None:
    values = make_values(40_000, 6)
    if kind == "npy":
        write_npy(tmp_path / "s", values, (0, 9000, 30_000, 40_000))
    else:
        (tmp_path / "s").mkdir()
        for index in range(4):
            rows, place = values[index * 10_000 : (index + 1) * 10_000], tmp_path / "s" / f"p{index}"
            if kind == "parquet":
                write_parquet(place.with_suffix(".parquet"), parquet_table(rows, "fixed"), 3000)
            else:
                write_hdf5(place.with_suffix(".h5"), rows, chunks=(3000, 4))
    expected = sp.PCA(3).fit(tmp_path / "s")
    with client.as_current():
        pca = sp.PCA(3).fit(tmp_path / "s")
    np.testing.assert_array_equal(pca.components_, expected.components_)
    np.testing.assert_array_equal(pca.explained_variance_, expected.explained_variance_)
    assert pca.n_samples_seen_ == 40_000
