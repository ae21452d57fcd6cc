"""A user's file has no expression of an unknown type for mypy, nor for pyright where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
USER = ROOT / "tests" / "typing" / "user.py"


@pytest.fixture
def environment() -> dict[str, str]:
    return os.environ | {"MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)}


@pytest.mark.lint
@pytest.mark.slow
def test_mypy_knows_the_type_of_every_expression(environment: dict[str, str]) -> None:
    pytest.importorskip("mypy")
    options = ["--strict", "--disallow-any-expr", "--follow-imports=silent", "--no-error-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(USER)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    errors = [
        line
        for line in done.stdout.splitlines()
        if "error_" not in USER.read_text().splitlines()[int(line.split(":")[1]) - 1]
    ]
    assert errors == [], done.stdout + done.stderr  # the values of the mapping error_ are of any type


@pytest.mark.deep
def test_scores_have_types_where_xarray_is_not_installed(environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-xarray.*]\nfollow_imports = skip\n")
    options = [f"--config-file={tmp_path / 'mypy.ini'}", "--follow-imports=silent", "--no-error-summary"]
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'without-xarray'}"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, cache, str(USER.with_name("without_xarray.py"))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "", done.stdout + done.stderr


@pytest.mark.lint
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_finds_nothing_in_strict_mode(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "user.py").write_text(USER.read_text())
    settings = {"include": ["."], "strict": ["."], "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        ["pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
