"""The generator of benchmark stores: known spectrum, rows addressed by seed and position, nothing overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import zarr

import scripts
from streampca.sources import open_source

SCRIPT = scripts.SCRIPTS / "make_data.py"
SMALL = {"field": (30, 12, 20), "movie": (40, 16, 12), "cube": (14, 10, 12)}


@pytest.fixture(scope="module")
def make_data() -> Iterator[ModuleType]:
    with scripts.module(SCRIPT) as module:
        yield module


def test_the_covariance_has_the_eigenvalues_of_the_recipe(make_data: ModuleType) -> None:
    recipe = make_data.Recipe(features=40, dtype="float64", spectrum=2.0, rank=5, noise=0.1, mean_to_sd=50.0)
    rows = recipe.rows(0, 20_000)
    values = np.linalg.eigvalsh(np.cov(rows.T))[::-1]
    expected = np.concatenate([recipe.eigenvalues + 0.01, np.full(35, 0.01)])
    # Relative deviation of a sample eigenvalue is about sqrt(2 / n); equal ones spread by 2 sqrt(d / n).
    np.testing.assert_allclose(values, expected, rtol=0.12)
    np.testing.assert_allclose(rows.mean(axis=0) / rows.std(axis=0), 50.0, rtol=0.05)


def test_chunks_codec_and_threads_do_not_change_the_values(make_data: ModuleType, tmp_path: Path) -> None:
    recipe = make_data.Recipe(features=30, seed=7)
    stores = []
    for index, codec in enumerate(make_data.CODECS):
        path = tmp_path / codec
        make_data.write(recipe, path, 2500 + index, (100 + 77 * index, 7 + 5 * index), codec, threads=1 + index % 2)
        stores.append(np.asarray(zarr.open_array(str(path), mode="r")[:]))
    for store in stores:
        np.testing.assert_array_equal(store[:2500], stores[0])
    np.testing.assert_array_equal(recipe.rows(1000, 1100), stores[0][1000:1100])
    assert not np.array_equal(make_data.Recipe(features=30, seed=8).rows(0, 10), stores[0][:10])


def test_integers_fill_their_range_without_wrapping(make_data: ModuleType) -> None:
    rows = make_data.Recipe(features=20, dtype="uint8").rows(0, 5000)
    assert rows.dtype == np.uint8
    assert rows.std(axis=0).max() == pytest.approx(255 / 16, rel=0.05)
    assert rows.mean() == pytest.approx(127.5, rel=0.01)


def test_an_existing_path_is_left_alone(make_data: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(FileExistsError, match="exists already"):
        make_data.write(make_data.Recipe(features=3), tmp_path / "x", 5, (5, 3))
    assert (tmp_path / "x").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "arguments", [["--chunks", "0"], ["--chunks", "a"], ["--seed", "-1"], ["--dtype", "uint8", "--mean-to-sd", "3"]]
)
def test_arguments_that_cannot_be_meant_are_refused(make_data: ModuleType, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        make_data.parse_arguments(["x.zarr", "--rows", "5", "--features", "3", *arguments])
    assert caught.value.code == 2


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_labelled_kinds_are_tables_with_names_in_both_formats_of_zarr(
    tmp_path: Path, kind: str, zarr_format: int
) -> None:
    path = tmp_path / "store.zarr"
    shape = ",".join(map(str, SMALL[kind]))
    done = scripts.run(SCRIPT, path, "--kind", kind, "--shape", shape, "--format", zarr_format)
    assert done.status == 0, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["store.zarr"]
    names = {"field": ("time", "lat", "lon"), "movie": ("time", "y", "x"), "cube": ("y", "x", "wavelength")}[kind]
    table = open_source(path, samples=names[:-1] if kind == "cube" else names[0])
    assert table.labels is not None
    assert [(d.name, d.size) for d in (*table.labels.samples, *table.labels.features)] == list(
        zip(names, SMALL[kind], strict=True)
    )
    assert all(d.coordinate is not None and d.attributes["units"] for d in table.labels.features)
    group = zarr.open_group(path, mode="r")
    assert group.metadata.zarr_format == zarr_format


@pytest.mark.parametrize("kind", SMALL)
def test_the_chunks_do_not_change_the_values_of_labelled_kinds(tmp_path: Path, kind: str) -> None:
    with scripts.module(scripts.SCRIPTS / "make_data.py") as labelled:
        data = labelled.KINDS[kind](SMALL[kind])
        for index, chunks in enumerate((None, (7, 5, 4))):
            labelled.write_labelled(data, tmp_path / f"{index}", chunks)
    one, other = (zarr.open_group(tmp_path / name, mode="r")[data.name] for name in "01")
    assert one.chunks != other.chunks
    np.testing.assert_array_equal(one[:], other[:])


def test_the_modes_of_the_field_are_its_leading_components_without_the_seasonal_cycle() -> None:
    with scripts.module(scripts.SCRIPTS / "make_data.py") as labelled:
        data = labelled.sea_temperature((1200, 12, 24))
        stored = np.array(list(data.slices()), dtype=np.float64)
    sea = data.beside["sea_mask"][1]
    assert (stored[:, ~sea] == labelled.FILL).all()
    assert (stored[:, sea] != labelled.FILL).all()
    rows = stored[:, sea] * 0.002 + 15
    rows = (rows.reshape(100, 12, -1) - rows.reshape(100, 12, -1).mean(axis=0)).reshape(1200, -1)
    components = np.linalg.svd(rows, full_matrices=False)[2][:4]
    modes = np.linalg.qr(data.patterns[:, sea].T)[0]
    assert np.linalg.svd(components @ modes)[1].min() > 0.95


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_cells_are_an_anndata_store_whose_marked_genes_are_a_tenth(tmp_path: Path, zarr_format: int) -> None:
    path = tmp_path / "store.zarr"
    done = scripts.run(SCRIPT, path, "--kind", "cells", "--shape", "2500,200", "--format", zarr_format)
    assert done.status == 0, done.stderr
    table = open_source(path, mask_var="highly_variable")
    assert (table.shape, table.sparse) == ((2500, 20), True)
    rows = open_source(path).read(0, 2500)[0]
    assert rows.nnz / (2500 * 200) < 0.2
    assert min(rows.data) >= 1


def test_a_shape_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    for arguments in (
        ["--kind", "movie", "--shape", "3,4"],
        ["--kind", "cube", "--chunks", "0,1,1"],
        ["--kind", "cells", "--shape", "3"],
        ["--rows", "5"],
    ):
        done = scripts.run(SCRIPT, tmp_path / "x.zarr", *arguments)
        assert done.status == 2
        assert not (tmp_path / "x.zarr").exists()
