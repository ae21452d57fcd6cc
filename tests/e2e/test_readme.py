"""Every block of README.md runs as a newcomer runs it: in a clone, in the environment that `scripts/quickstart` makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from stores import REPOSITORY

_PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def _installed_by_quickstart() -> set[str]:
    """Return the names of the distributions that pip installs for the requirement in `scripts/_environment`."""
    extras = re.search(r'requirement="\.\[(.*?)\]"', (REPOSITORY / "scripts/_environment").read_text())
    assert extras is not None
    wanted = list(_PROJECT["dependencies"])
    for extra in extras[1].split(","):
        wanted += _PROJECT["optional-dependencies"][extra]
    found: dict[str, set[str]] = {}
    to_do = [Requirement(text) for text in wanted]
    while to_do:
        one = to_do.pop()
        known = found.setdefault(one.name, set())
        for extra in {"", *one.extras} - known:
            known.add(extra)
            for text in distribution(one.name).requires or ():
                inner = Requirement(text)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    to_do.append(inner)
    return set(found)


def _tops(names: set[str]) -> Iterator[tuple[str, Path]]:
    """Yield what stands in the directory of packages for these distributions: names, and where they lead."""
    for name in names:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            yield top, Path(str(installed.locate_file(top))).resolve()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a directory with the files of the repository and an environment with what the quickstart installs, all links."""
    for name in ("scripts", "streampca", "configs", "docs", "pyproject.toml", "README.md"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    packages = next((tmp_path / ".venv/lib").glob("python*/site-packages"))
    for top, place in {"streampca": REPOSITORY / "streampca", **dict(_tops(_installed_by_quickstart()))}.items():
        (packages / top).symlink_to(place)
    command = tmp_path / ".venv/bin/streampca"
    command.write_text(f'#!/bin/sh\nexec "{tmp_path}/.venv/bin/python" -I -m streampca "$@"\n')
    command.chmod(0o755)
    stamped = "source scripts/_environment; fingerprint >.venv/.installed-examples"
    subprocess.run(["bash", "-c", stamped], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.deep
def test_blocks_of_the_readme_run_in_the_environment_of_the_quickstart(clone: Path) -> None:
    before = {path.name for path in clone.iterdir()}
    command = [clone / ".venv/bin/python", "-I", REPOSITORY / "tests/run_page.py", "README.md"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=clone, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    left = {path.name for path in clone.iterdir()} - before
    assert {"data", "runs"} <= left
    ignored = (REPOSITORY / ".gitignore").read_text().splitlines()
    assert [name for name in left if f"/{name}/" not in ignored] == []


@pytest.mark.deep
@pytest.mark.slow
def test_the_environment_of_the_quickstart_is_not_that_of_the_tests(clone: Path) -> None:
    code = "import matplotlib, sklearn, PIL, xarray\ntry: import pytest\nexcept ImportError: print('not there')"
    python = clone / ".venv/bin/python"
    assert (
        subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout == "not there\n"
    )
