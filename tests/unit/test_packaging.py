"""Files for other package managers agree with the metadata of the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import streampca as sp

ROOT = Path(__file__).parents[2]
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = METADATA["project"]
CONDA_NAMES = {"dask[array]": "dask-core", "xxhash": "python-xxhash"}


@pytest.mark.parametrize(
    "name",
    ["CITATION.cff", "scripts/packaging/recipe.yaml", "scripts/packaging/Dockerfile"],
)
def test_files_name_the_version_of_the_package(name: str) -> None:
    assert sp.__version__ in (ROOT / name).read_text()


def test_the_first_version_of_the_changelog_is_that_of_the_package() -> None:
    heading = re.search(r"^## (\d\S+)", (ROOT / "docs/changelog.md").read_text(), flags=re.MULTILINE)
    assert heading is not None
    assert heading.group(1) == sp.__version__


def test_the_conda_recipe_has_the_dependencies_of_the_project() -> None:
    recipe = yaml.safe_load((ROOT / "scripts/packaging/recipe.yaml").read_text())
    expected = {f"python {PROJECT['requires-python']}"}
    for requirement in PROJECT["dependencies"]:
        requirement, _, condition = requirement.partition(";")
        if ">=" in condition:  # of newer versions of Python, for which conda has packages of its own
            continue
        name, _, version = requirement.partition(">=")
        expected.add(f"{CONDA_NAMES.get(name, name)} >={version}")
    assert set(recipe["requirements"]["run"]) == expected


def test_packages_that_are_optional_are_no_dependencies() -> None:
    heavy = {"matplotlib", "pillow", "scikit-learn", "pandas", "xarray", "pyarrow", "h5py", "obstore", "anndata"}
    names = {re.split(r"[\[>=]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert not heavy & names


def test_the_names_of_the_package_are_those_that_it_exports() -> None:
    assert dir(sp) == sorted(sp.__all__)
    assert dir(sp.anndata) == ["pca"]


def test_type_checkers_find_the_package_however_it_is_installed() -> None:
    settings = METADATA["tool"]["setuptools"]
    assert (ROOT / "streampca/py.typed").is_file()
    assert "py.typed" in settings["package-data"]["streampca"]
    assert settings["package-dir"] == {
        "": "."
    }  # without it setuptools makes an import hook of an editable installation


def test_the_extra_all_has_every_extra_for_users_but_torch() -> None:
    extras = PROJECT["optional-dependencies"]
    [requirement] = extras["all"]
    held = set(requirement.removeprefix("streampca[").removesuffix("]").split(","))
    assert held == set(extras) - {"all", "torch", "test", "docs", "dev"}
