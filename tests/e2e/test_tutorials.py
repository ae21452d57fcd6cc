"""Tutorials and the scripts of the gallery run. `scripts/docs --quick` relies on these tests and runs neither."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from stores import REPOSITORY

_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n((?::[^\n]*\n)*)(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize(
    "page", sorted((REPOSITORY / "docs" / "tutorials").glob("[!i]*.md")), ids=lambda page: page.stem
)
def test_tutorial_runs(page: Path, tmp_path: Path) -> None:
    """Run all cells of a tutorial in one process, which the build of the site does otherwise (`scripts/docs --quick` does not)."""
    cells = [code for _, code in _CELL.findall(page.read_text())]
    assert len(cells) >= 5
    environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", "\n".join(cells)]  # no file: worker processes would run it, too
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.deep
@pytest.mark.parametrize(
    "script", sorted((REPOSITORY / "docs" / "gallery").glob("plot_*.py")), ids=lambda path: path.stem
)
def test_script_of_the_gallery_draws_a_picture(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script of the gallery here, without a display."""
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    try:
        exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__"})
        assert all(plt.figure(number).axes for number in plt.get_fignums())
        assert plt.get_fignums()
    finally:
        plt.close("all")
