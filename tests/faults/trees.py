"""Directories that hold results of ours, things of others, and both: only what is wholly ours is ever replaced."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import seed as from_seed
from hypothesis import strategies as st
from score import Score, again
from stores import config_text, make_values, picture, write_lock, write_store

import streampca as sp
from streampca.errors import OutputError

# Names that we use somewhere, in places where we do not use them, and names of others.
_HOSTILE = (
    "thesis",
    "Report.html",
    "report.html.bak",
    ".git",
    "config.yml",
    "streampca.json.bak",
    "7",
    "rows.csv",
    "c.txt",
)
_PLACES = ("", "model.zarr", "model.zarr/components", "model.zarr/mean/c", "scores.zarr", "scores.zarr/scores/c/0")
_AS_FILES = ("samples.zarr", "model.zarr/scale", "scores.zarr/rows")  # directories of ours, or names of another group
_AROUND = ("thesis", "out.part-0123", "out.old-0123", "out2", "streampca.json", "out.bak/streampca.json", "zarr.json")
_DEAD = "00000000deadbeef"


@st.composite
def trees(draw: Any) -> tuple[str, list[tuple[str, str]], list[tuple[str, str]]]:
    """Return what stands in the place of the output, what foreign is in it, and what is around it."""
    inside = draw(
        st.lists(
            st.tuples(
                st.sampled_from(_PLACES), st.sampled_from(_HOSTILE), st.sampled_from(["file", "directory", "link"])
            ),
            max_size=2,
        )
    )
    # A number in a directory of chunks is the name of a chunk: nobody can tell.
    planted = [
        (f"{place}/{name}".lstrip("/"), kind) for place, name, kind in inside if not (name == "7" and "/c" in place)
    ]
    planted += [(name, "file") for name in draw(st.lists(st.sampled_from(_AS_FILES), max_size=1))]
    around = [(name, "file") for name in draw(st.lists(st.sampled_from(_AROUND), unique=True, max_size=3))]
    there = draw(st.sampled_from(["run", "run", "run", "model", "scores", "nothing", "empty", "no record", "foreign"]))
    return there, planted if there != "nothing" else [], around


CASES = {
    "tree": trees(),
    "kind": st.sampled_from(["run", "run", "model", "scores"]),
    "overwrite": st.sampled_from([True, True, False]),
    "ends": st.sampled_from(["well", "well", "badly", "dead"]),
}
"""What is drawn for `check`."""


def make_outputs(directory: Path) -> Path:
    """Write a finished run, a model and scores into a directory."""
    write_store(directory / "x.zarr", make_values(30, 3), chunks=(10, 3))
    (directory / "c.yaml").write_text(config_text(directory / "x.zarr", directory / "run", output="report: false"))
    model = sp.run(directory / "c.yaml").model
    model.save(directory / "model")
    model.transform_to(directory / "x.zarr", directory / "scores")
    return directory


def _plant(place: Path, kind: str) -> None:
    if os.path.lexists(place) or not (place.parent.is_dir() or not place.parent.exists()):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        place.write_bytes(os.urandom(8))
    elif kind == "directory":
        place.mkdir()
    else:
        place.symlink_to("/etc")


def check(outputs: Path, tree: Any, kind: str, overwrite: bool, ends: str) -> None:
    """Let an output of that kind be written where that tree stands, well or badly, or by a process that dies; look at what is left."""
    there, planted, around = tree
    note(f"{there} {planted} {around} {kind} overwrite={overwrite} ends={ends}")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        ours = _grow(root, outputs, there, planted, around)
        before, out = picture(root), root / "out"
        foreign = bool(out.exists() and picture(out).keys() - ours.keys()) or there in ("foreign", "no record")
        if ends == "dead":
            _die(root, outputs, kind)
        try:
            with patch.object(os, "fsync", _failing_at(3)) if ends == "badly" else nullcontext():
                _write(outputs, kind, out, overwrite=overwrite)
        except OutputError:
            assert picture(root) == before
            return
        assert not foreign
        assert there in ("nothing", "empty") or (there == kind and overwrite)
        after = picture(root)
        assert {k: v for k, v in after.items() if not k.startswith("out/")} == (
            {k: v for k, v in before.items() if not k.startswith("out/")} | {"out": "directory"}
        )
        assert picture(out).keys() == picture(outputs / kind).keys()


def _grow(root: Path, outputs: Path, there: str, planted: Any, around: Any) -> dict[str, bytes | str]:
    """Plant the tree; return what of the output is ours."""
    out = root / "out"
    shutil.copytree(outputs / "x.zarr", root / "input.zarr")
    if there in ("run", "model", "scores", "no record"):
        shutil.copytree(outputs / ("run" if there == "no record" else there), out)
    elif there != "nothing":
        out.mkdir()
    if there == "no record":
        (out / "streampca.json").unlink()
    if there == "foreign":
        (out / "streampca.json").write_text('{"format": "other"}')
    ours = picture(out) if out.exists() else {}
    assert not any(Path(place).is_absolute() for place, _ in [*planted, *around])
    for place, what in planted:
        _plant(out / place, what)
    for place, what in around:
        _plant(root / place, what)
    return ours


def _write(outputs: Path, kind: str, out: Path, *, overwrite: bool) -> None:
    """Write an output of that kind."""
    if kind == "run":
        changes = [f"output.directory={out}", f"output.overwrite={str(overwrite).lower()}"]
        sp.run(outputs / "c.yaml", overrides=changes)
    elif kind == "model":
        sp.load(outputs / "model").save(out, overwrite=overwrite)
    else:
        sp.load(outputs / "model").transform_to(outputs / "x.zarr", out, overwrite=overwrite)


def _failing_at(number: int) -> Callable[[int], None]:
    """Return what flushes nothing, and fails the time after so many."""
    calls = itertools.count(1)

    def fsync(handle: int) -> None:
        if next(calls) == number:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return fsync


def _die(root: Path, outputs: Path, kind: str) -> None:
    """Leave what a run leaves that dies between its two renames."""
    out = root / "out"
    shutil.copytree(outputs / kind, root / f"out.part-{_DEAD}")
    moved = out.is_dir() and not out.is_symlink()
    if moved:
        out.rename(root / f"out.old-{_DEAD}")
    write_lock(root / f"out.{_DEAD}", _DEAD)
    if kind == "run":
        write_lock(out, _DEAD)


def run(count: int, seed: int) -> Score:
    """Try `count` trees; of those that fail the smallest is told."""
    score, began = (
        Score("directories with things of others in and around the output: left as they were"),
        time.monotonic(),
    )
    with tempfile.TemporaryDirectory() as name:
        outputs = make_outputs(Path(name))
        tried = settings(
            max_examples=count,
            deadline=None,
            database=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )

        def counted(tree: Any, kind: str, overwrite: bool, ends: str) -> None:
            score.injected += 1
            check(outputs, tree, kind, overwrite, ends)

        try:
            from_seed(seed)(tried(given(**CASES)(counted)))()
            score.survived = score.injected
        except Exception as error:  # noqa: BLE001 whatever was raised is what was found
            score.wrong = 1
            told = " ".join([str(error), *getattr(error, "__notes__", ())])
            score.notes.append(f"{type(error).__name__}: {told}: {again('trees', seed)} with --count {count}")
    score.seconds = time.monotonic() - began
    return score
