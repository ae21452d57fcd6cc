"""Which files of a table are new: renamed files are known by content and time, and no two by the same one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import streampca as sp
from streampca.errors import ChangedInputError
from streampca.sources.new_rows import NewFiles


def look_alikes(directory: Path) -> list[Path]:
    """Write two files that differ only where fingerprints do not look, with the same time."""
    paths = [directory / "a.npy", directory / "b.npy"]
    for value, path in enumerate(paths):
        rows = np.zeros((8000, 8))
        rows[2000:2100] = value + 1.0
        np.save(path, rows)
        os.utime(path, ns=(10**18, 10**18))
    return paths


def test_files_that_look_alike_and_were_renamed_are_refused_and_none_counts_twice(tmp_path: Path) -> None:
    recorded = sp.open(str(tmp_path / "*.npy")).fragments if look_alikes(tmp_path) else ()
    assert recorded[0].fingerprint == recorded[1].fingerprint
    for name in ("a", "b"):
        (tmp_path / f"{name}.npy").rename(tmp_path / f"{name}-renamed.npy")
    with pytest.raises(ChangedInputError, match="several files could be it"):
        NewFiles.of(sp.open(str(tmp_path / "*.npy")), recorded)


def test_a_file_that_is_gone_is_not_taken_for_one_that_looks_alike(tmp_path: Path) -> None:
    first, _ = look_alikes(tmp_path)
    recorded = sp.open(str(tmp_path / "*.npy")).fragments
    first.unlink()
    with pytest.raises(ChangedInputError, match=r"a\.npy is missing"):
        NewFiles.of(sp.open([str(tmp_path / "b.npy")]), recorded)


def test_one_renamed_file_is_known_by_its_content_and_time(tmp_path: Path) -> None:
    first, _ = look_alikes(tmp_path)
    recorded = sp.open(str(tmp_path / "*.npy")).fragments
    first.rename(tmp_path / "z.npy")
    found = NewFiles.of(sp.open(str(tmp_path / "*.npy")), recorded)
    assert (found.before, found.new) == ((1, 0), ())
