"""Files of every format and its oddities are read right, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from conforming import judge
from odd_files import WRITERS, write_all

PACKAGES = {
    "Parquet": ("pyarrow",),
    "Arrow": ("pyarrow",),
    "HDF5": ("h5py",),
    "NetCDF": ("h5py",),
    "Delta": ("deltalake", "pyarrow"),
    "AnnData": ("anndata", "h5py"),
    "PLINK": ("bed_reader",),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_odd_files_are_read_right_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    for package in PACKAGES.get(kind, ()):
        pytest.importorskip(package)
    files = write_all(tmp_path, [kind])
    verdicts = {each.path.name: judge(each.path) for each in files}
    other = {
        each.path.name: verdicts[each.path.name] for each in files if verdicts[each.path.name].outcome != each.outcome
    }
    assert len(files) >= 3
    assert not other
