"""Chunks of coordinates, columns, masks and weights that a writer left out because all their values are the fill value."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import anndata
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from stores import Command

import streampca as sp
from streampca.errors import MissingChunkError, ParameterError

N = 60
FIELD = np.random.default_rng(0).normal(size=(N, 1, 4, 5)).astype("f4")
EXACT = {"solver": "covariance", "random_state": 0}


def ensemble(path: Path, zarr_format: Literal[2, 3]) -> str:
    """Return the path of a store whose coordinates have zeros: written in two steps, the first of one time."""
    coords = {"time": np.arange(N), "member": [0], "lat": np.linspace(-30, 60, 4), "lon": np.arange(5) * 72.0}
    data = xr.Dataset({"t2m": (("time", "member", "lat", "lon"), FIELD)}, coords | {"crs": 0})
    data["kind"] = ("time", np.repeat([0, 1, 2], N // 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first step decides the chunks of all
        data.isel(time=slice(0, 1)).to_zarr(path, zarr_format=zarr_format, consolidated=False)
        data.isel(time=slice(1, None)).to_zarr(path, append_dim="time", consolidated=False)
    return str(path)


def chunks_in(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file.name[:1] not in ".z"}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_coordinates_with_zeros_are_as_xarray_reads_them(zarr_format: Literal[2, 3], tmp_path: Path) -> None:
    path = ensemble(tmp_path / "x.zarr", zarr_format)
    assert not [chunk for chunk in chunks_in(tmp_path / "x.zarr") if chunk.startswith("member")]
    with pytest.raises(MissingChunkError, match=r"coordinate time: chunk .*0 .*missing_chunks: fill_labels"):
        sp.open(path, variables="t2m", samples="time")
    table = sp.open(path, variables="t2m", samples="time", missing_chunks="fill_labels")
    found = sp.PCA(2, **EXACT).fit(table).to_xarray()
    expected = xr.open_zarr(path, zarr_format=zarr_format, consolidated=False)
    assert np.array_equal(table.labels.dimension("time").coordinate, expected["time"])
    for name in ("member", "lat", "lon"):
        assert np.array_equal(found[name], expected[name]), name
    by_kind = sp.PCA(2, remove={"groups": "kind"}, **EXACT).fit(table)
    rows = FIELD.reshape(3, N // 3, -1)
    residuals = (rows - rows.mean(1, keepdims=True, dtype=np.float64)).reshape(N, -1)
    variances = np.linalg.svd(residuals, compute_uv=False)[:2] ** 2 / (N - 1)
    assert np.allclose(by_kind.explained_variance_, variances, rtol=1e-5)


def test_a_missing_chunk_of_the_data_is_still_an_error(tmp_path: Path) -> None:
    path = ensemble(tmp_path / "x.zarr", 3)
    (tmp_path / "x.zarr" / "t2m" / "c" / "7" / "0" / "0" / "0").unlink()
    table = sp.open(path, variables="t2m", samples="time", missing_chunks="fill_labels")
    with pytest.raises(MissingChunkError, match=r"1 of 60 chunks .*c/7/0/0/0.*missing_chunks: fill "):
        sp.PCA(2).fit(table)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_columns_of_cells_whose_codes_are_all_zero(
    zarr_format: Literal[2, 3], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    obs = pd.DataFrame({"batch": pd.Categorical(["a"] * N, ["a", "b"]), "plate": np.zeros(N, int)})
    var = pd.DataFrame({"used": np.zeros(20, bool)}, index=[f"g{i}" for i in range(20)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anndata tells of defaults that will change
        monkeypatch.setattr(anndata.settings, "zarr_write_format", zarr_format)
        anndata.AnnData(FIELD.reshape(N, 20), obs.set_index(obs.index.astype(str)), var).write_zarr(tmp_path / "x.zarr")
    opened = {how: sp.open(tmp_path / "x.zarr", missing_chunks=how) for how in ("error", "fill_labels")}
    for name in ("batch", "plate"):
        with pytest.raises(MissingChunkError, match=rf"{name}.*missing_chunks: fill_labels"):
            sp.PCA(2).fit_groups(opened["error"], name)
        models = sp.PCA(2, **EXACT).fit_groups(opened["fill_labels"], name)
        assert set(models) == {"a" if name == "batch" else 0, "pooled"}
    with pytest.raises(MissingChunkError, match=r"used.*missing_chunks: fill_labels"):
        sp.open(tmp_path / "x.zarr", mask_var="used")


def test_masks_and_weights_with_zeros_beside_the_data(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    rows = FIELD.reshape(N, 20)
    weights, used = np.repeat([0.0, 1.0, 2.0], N // 3), np.arange(20) >= 10
    dims: list[dict[str, Any]] = [{"dimension_names": ("row", "gene")}, {"dimension_names": ("row",)}]
    group.create_array("x", data=rows, chunks=(20, 20), **dims[0])
    group.create_array("weight", data=weights, chunks=(20,), **dims[1])
    group.create_array("used", data=used, chunks=(10,), dimension_names=("gene",))
    config = tmp_path / "c.yaml"
    config.write_text(
        f"source: {{path: {tmp_path}/x.zarr, array: x, mask: used}}\npreprocess: {{sample_weight: weight}}\n"
        f"model: {{kind: pca, n_components: 2, solver: covariance}}\noutput: {{directory: {tmp_path}/run, report: false}}\n"
    )
    with pytest.raises(MissingChunkError, match=r"mask used: chunk c/0 .*missing_chunks: fill_labels"):
        sp.run(config, overrides=["preprocess.sample_weight=null"])
    with pytest.raises(MissingChunkError, match=r"array weight .*: chunk c/0 .*missing_chunks: fill_labels"):
        sp.run(config, overrides=["source.mask=null"])
    run = sp.run(config, overrides=["source.missing_chunks=fill_labels"])
    kept = rows[:, 10:].astype(float)
    mean = np.average(kept, axis=0, weights=weights)
    covariance = (weights[:, None] * (kept - mean)).T @ (kept - mean) / (weights.sum() - 1)
    assert np.allclose(sp.load(run.directory).explained_variance_, np.linalg.eigvalsh(covariance)[::-1][:2], rtol=1e-5)


def test_commands_take_the_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ensemble(tmp_path / "x.zarr", 3)
    table = sp.open(path, variables="t2m", samples="time", missing_chunks="fill_labels")
    sp.PCA(2).fit(table).save(tmp_path / "m.zarr")
    command = Command(capsys).quietly
    command("transform", tmp_path / "m.zarr", path, tmp_path / "s.zarr").refused(5, "fill_labels")
    scores = command("transform", tmp_path / "m.zarr", path, tmp_path / "s.zarr", "--missing-chunks", "fill_labels")
    assert scores.status == 0, scores.err
    assert zarr.open_group(tmp_path / "s.zarr", mode="r")["scores"].shape == (N, 2)
    assert command("fingerprint", path, "--array", "t2m").status == 0
    with pytest.raises(ParameterError, match=r'missing_chunks=.*expected "error", "fill" or "fill_labels"'):
        sp.open(path, missing_chunks="Fill")
