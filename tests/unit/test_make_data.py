"""The generator of benchmark stores: known spectrum, rows addressed by seed and position, nothing overwritten."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import zarr

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_data.py"


@pytest.fixture(scope="module")
def make_data() -> ModuleType:
    specification = importlib.util.spec_from_file_location("make_data", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # A dataclass looks its module up by name.
    sys.modules["make_data"] = module
    specification.loader.exec_module(module)
    return module


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
