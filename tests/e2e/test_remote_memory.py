"""What readings from a web server leave in the memory of a process: few arenas of glibc, in which freed memory stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.web import Web

_READ = """
import ctypes, sys
import streampca as sp

def heaps(path):
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(path.encode(), b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)
    return open(path).read().count("<heap nr=")

before = heaps(sys.argv[2])
sp.PCA(2).fit(sp.open(sys.argv[1]))
print(before, heaps(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_threads_that_receive_bodies_share_arenas(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((8192, 256), dtype="f4")
    zarr.create_array(tmp_path / "x.zarr", shape=rows.shape, chunks=(256, 256), dtype="f4", compressors=None)[:] = rows
    with Web(tmp_path) as web:
        called = subprocess.run(
            [sys.executable, "-c", _READ, f"{web.url}/x.zarr", str(tmp_path / "info")],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    before, after = map(int, called.stdout.split())
    assert after <= max(before, 2)
