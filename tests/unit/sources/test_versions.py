"""Versions of stored data: sizes and times of the files that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr

from streampca.sources.versions import InputVersion, chunk_files


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("separator", [".", "/"])
def test_every_chunk_file_and_nothing_else_is_listed(tmp_path: Path, zarr_format: int, separator: str) -> None:
    name = "default" if zarr_format == 3 else "v2"
    array = zarr.create_array(
        tmp_path / "x.zarr",
        shape=(40, 6),
        chunks=(20, 3),
        dtype="f4",
        zarr_format=zarr_format,
        chunk_key_encoding={"name": name, "separator": separator},
    )
    array[...] = 1.0
    (tmp_path / "x.zarr" / "notes").write_text("mine")
    listed = {name for name, _, _ in chunk_files(tmp_path / "x.zarr", 3)}
    assert listed == {array.metadata.encode_chunk_key((i, j)) for i in range(2) for j in range(2)}


def test_a_link_to_a_directory_above_ends(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "1").write_bytes(b"x")
    for name in ("0", "2"):
        (tmp_path / "c" / name).symlink_to(tmp_path / "c", target_is_directory=True)
    assert {name for name, _, _ in chunk_files(tmp_path, 3)} == {"c/1", "c/0/1", "c/2/1"}


def test_the_order_of_files_is_no_part_of_the_version() -> None:
    items = [("c/0", 3, "17"), ("c/1", 4, "18"), ("c/2", 5, "19")]
    assert InputVersion.of(items) == InputVersion.of(items[::-1]) != InputVersion.of(items[:2])
