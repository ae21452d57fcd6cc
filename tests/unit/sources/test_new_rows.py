"""Which files of a table are new: renamed files are known by content and time, and no two by the same one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from stores import Command


def look_alikes(directory: Path) -> list[Path]:
    """Write two files that differ only where fingerprints do not look, with the same time."""
    paths = [directory / "a.npy", directory / "b.npy"]
    for value, path in enumerate(paths):
        rows = np.zeros((8000, 8))
        rows[2000:2100] = value + 1.0
        np.save(path, rows)
        os.utime(path, ns=(10**18, 10**18))
    return paths


def finished(directory: Path, capsys: Any) -> Command:
    """Run a PCA of the files of `directory` that can be updated."""
    command = Command(capsys)
    (directory / "c.yaml").write_text(
        f"source: {{path: '{directory}/*.npy'}}\nmodel: {{n_components: 2, solver: covariance}}\n"
        f"output: {{directory: '{directory}/out', report: false, state: true}}\n"
    )
    called = command("run", directory / "c.yaml")
    assert called.status == 0, called.err
    return command


def test_files_that_look_alike_and_were_renamed_are_refused_and_none_counts_twice(tmp_path: Path, capsys: Any) -> None:
    look_alikes(tmp_path)
    command = finished(tmp_path, capsys)
    for name in ("a", "b"):
        (tmp_path / f"{name}.npy").rename(tmp_path / f"{name}-renamed.npy")
    command("update", tmp_path / "out").refused(5, "several files could be it")


def test_a_file_that_is_gone_is_not_taken_for_one_that_looks_alike(tmp_path: Path, capsys: Any) -> None:
    first, _ = look_alikes(tmp_path)
    command = finished(tmp_path, capsys)
    first.unlink()
    command("update", tmp_path / "out").refused(5, "a.npy is missing")


def test_one_renamed_file_is_known_by_its_content_and_time(tmp_path: Path, capsys: Any) -> None:
    first, _ = look_alikes(tmp_path)
    command = finished(tmp_path, capsys)
    first.rename(tmp_path / "z.npy")
    called = command("update", tmp_path / "out")
    assert (called.status, "is up to date" in called.out) == (0, True), called
