"""Changes of stored chunks are told from what else lies in a store, whatever the names of chunks, and links in a circle end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import streampca as sp
from streampca.errors import ChangedInputError


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("separator", [".", "/"])
def test_every_chunk_file_and_nothing_else_is_watched(tmp_path: Path, zarr_format: int, separator: str) -> None:
    name = "default" if zarr_format == 3 else "v2"
    array = zarr.create_array(
        tmp_path / "x.zarr",
        shape=(40, 6),
        chunks=(20, 3),
        dtype="f4",
        zarr_format=zarr_format,
        chunk_key_encoding={"name": name, "separator": separator},
        compressors=None,
    )
    array[...] = np.random.default_rng(0).random((40, 6))
    chunks = [tmp_path / "x.zarr" / array.metadata.encode_chunk_key((i, j)) for i in range(2) for j in range(2)]
    for chunk in chunks:
        source = sp.open(tmp_path / "x.zarr")
        expected = sp.PCA(2).fit(source)
        (tmp_path / "x.zarr" / "notes").write_text(str(chunk))
        np.testing.assert_array_equal(sp.PCA(2).fit(source).components_, expected.components_)
        stored = chunk.read_bytes()
        chunk.write_bytes(stored[:4][::-1] + stored[4:])
        with pytest.raises(ChangedInputError):
            sp.PCA(2).fit(source)


def test_a_link_to_a_directory_above_ends(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((40, 6))
    zarr.save_array(tmp_path / "x.zarr", values)
    for name in ("8", "9"):
        (tmp_path / "x.zarr" / "c" / name).symlink_to(tmp_path / "x.zarr" / "c", target_is_directory=True)
    np.testing.assert_allclose(sp.PCA(2).fit(tmp_path / "x.zarr").mean_, values.mean(axis=0))
