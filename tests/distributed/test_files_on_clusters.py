"""Fits of files of rows, and updates of a store that grew, have the bits of threads on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from fragments import parquet_table, write_hdf5, write_npy, write_parquet
from stores import make_values
from web import Web

import streampca as sp

pytestmark = pytest.mark.distributed


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_update_of_a_store_on_a_cluster_has_the_bits_of_threads(
    client: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    values = make_values(20_000, 6)
    array = zarr.create_array("x.zarr", shape=(12_500, 6), chunks=(1000, 6), dtype=values.dtype)
    array[:] = values[:12_500]
    output = "output: {directory: threads, state: true, report: false, scores: false}"
    Path("c.yaml").write_text(f"source: {{path: x.zarr}}\nmodel: {{n_components: 3}}\n{output}\n")
    sp.run("c.yaml")
    with client.as_current():
        run = sp.run("c.yaml", overrides=["output.directory=cluster"])
    assert run.manifest["reads"]["record"]["chunks"] == 14  # read again here, and the last one decoded
    array.append(values[12_500:])
    expected = sp.update("threads").run.model
    with client.as_current():
        pca = sp.update("cluster").run.model
    np.testing.assert_array_equal(pca.components_, expected.components_)
    np.testing.assert_array_equal(pca.explained_variance_, expected.explained_variance_)
    assert pca.n_samples_seen_ == 20_000


@pytest.mark.slow
def test_files_behind_a_url_have_the_bits_of_threads_on_a_cluster(client: Any, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="the extra remote is not installed")
    values = make_values(20_000, 6)
    for index in range(2):
        rows = values[index * 10_000 :][:10_000]
        write_parquet(tmp_path / f"p{index}.parquet", parquet_table(rows, "columns"), 3000)
    with Web(tmp_path) as web:
        web.authorization = "Basic c2VjcmV0"
        urls = [f"{web.url}/p{index}.parquet" for index in range(2)]
        options = {"default_headers": {"Authorization": web.authorization}}
        with client.as_current():
            pca = sp.PCA(3).fit(sp.open(urls, storage_options={"client_options": options}))
    expected = sp.PCA(3).fit([tmp_path / f"p{index}.parquet" for index in range(2)])
    np.testing.assert_array_equal(pca.components_, expected.components_)
