"""Runs scripts of the repository in this process, which has imported everything that they need."""

from __future__ import annotations

import importlib
import io
import runpy
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

SCRIPTS = Path(__file__).parents[1] / "scripts"


@dataclass(frozen=True)
class Finished:
    """A script that has ended."""

    stdout: str
    """Text that it printed."""
    stderr: str
    """Text that it printed to standard error, with the message it ended with."""
    status: int
    """Exit status."""


@contextmanager
def _beside(directory: Path) -> Iterator[None]:
    """Let modules of `directory` be imported by name, whatever modules of these names there are."""
    names = {path.stem for path in directory.glob("*.py")}
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    path = list(sys.path)
    sys.path.insert(0, str(directory))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peers warn of what is not ours
            yield
    finally:
        sys.path[:] = path
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)


@contextmanager
def module(path: Path) -> Iterator[Any]:
    """Yield a script as a module; what it imports from its directory can be imported meanwhile."""
    with _beside(path.parent):
        yield importlib.import_module(path.stem)


def run(path: Path, *arguments: Any) -> Finished:
    """Run a script as ``python path arguments`` does."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with (
        _beside(path.parent),
        patch.object(sys, "argv", [str(path), *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                err.write(end.code)
    return Finished(out.getvalue(), err.getvalue(), status)
