"""The functions that run before the first rows of a source arrive are few, so that a reader can follow them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from stores import write_store

import streampca as sp
from streampca.sources import open_source

PACKAGE = str(Path(sp.__file__).parent)
ROWS = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)


def zarr_array(folder: Path) -> str:
    return str(write_store(folder / "rows.zarr", ROWS, chunks=(50, 8)))


def parquet_file(folder: Path) -> str:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = str(folder / "rows.parquet")
    parquet.write_table(arrow.table({f"f{column}": ROWS[:, column] for column in range(8)}), path)
    return path


def h5ad_file(folder: Path) -> str:
    path = str(folder / "rows.h5ad")
    pytest.importorskip("anndata").AnnData(ROWS).write_h5ad(path)
    return path


@pytest.mark.parametrize(("write", "most"), [(zarr_array, 85), (parquet_file, 57), (h5ad_file, 69)])
def test_few_functions_run_before_the_first_rows(write: Any, most: int, tmp_path: Path) -> None:
    path = write(tmp_path)
    open_source(path).read(0, 10)  # what is imported or made once is not counted
    functions: set[tuple[str, str]] = set()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_filename.endswith("suggestions.py"):  # the decorator that checks keywords
            return
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            functions.add((code.co_filename, code.co_qualname))

    before = sys.getprofile()
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        open_source(path).read(0, 10)
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    assert len(functions) <= most, "\n".join(f"{file}: {name}" for file, name in sorted(functions))
