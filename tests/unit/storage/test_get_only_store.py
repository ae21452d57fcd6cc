"""Whatever zarr calls to read a store, the checks of `get` are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from facade import run_command
from stores import make_values
from zarr.codecs import TransposeCodec

import streampca as sp
from streampca.errors import AlteredChunkError

PIPELINES = ["BatchedCodecPipeline", "FusedCodecPipeline"]


@pytest.fixture(params=PIPELINES)
def pipeline(request: pytest.FixtureRequest) -> Any:
    from zarr.core import codec_pipeline

    if not hasattr(codec_pipeline, request.param):
        pytest.skip("a later version of zarr has this pipeline")
    with zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{request.param}"}):
        yield


def test_altered_inner_chunks_of_shards_that_zarr_decodes_are_found(tmp_path: Path, pipeline: Any) -> None:
    values = make_values(400, 24)
    array = zarr.create_array(
        tmp_path / "x.zarr",
        shape=values.shape,
        dtype="f8",
        chunks=(25, 12),
        shards=(100, 24),
        filters=[TransposeCodec(order=(1, 0))],
        compressors=None,
    )
    array[...] = values
    source = sp.open(tmp_path / "x.zarr")
    assert source.describe()["reader"] == "zarr"
    assert run_command("fingerprint", tmp_path / "x.zarr") == 0
    opened = sp.open(tmp_path / "x.zarr", verify="manifest")
    np.testing.assert_array_equal(opened.read(30, 60)[0], values[30:60])
    shard = tmp_path / "x.zarr/c/0/0"
    stored = bytearray(shard.read_bytes())
    stored[1000] ^= 1  # a bit of an inner chunk that is not read with the one compared
    shard.write_bytes(stored)
    with pytest.raises(AlteredChunkError, match="c/0/0"):
        sp.open(tmp_path / "x.zarr", verify="manifest").read(30, 60)
