"""The only module that imports private names of zarr, and the place where differences between its versions are handled."""

from __future__ import annotations

from typing import Any

import zarr
from zarr.abc.buffer import Buffer, BufferPrototype, NDBuffer
from zarr.buffer import default_buffer_prototype

from streampca.errors import NotAvailableError

try:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.codec_pipeline import BatchedCodecPipeline
    from zarr.core.sync import sync
except ImportError as error:
    raise NotAvailableError(
        f"zarr {zarr.__version__} is not supported ({error}): expected zarr >= 3.1 with the interface of 3.1 to 3.4; install such a version"
    ) from error

__all__ = [
    "ArraySpec",
    "BatchedCodecPipeline",
    "Buffer",
    "BufferPrototype",
    "NDBuffer",
    "default_buffer_prototype",
    "has_regular_chunks",
    "sync",
]


def has_regular_chunks(metadata: Any) -> bool:
    """Return whether all chunks of an array with `metadata` of version 3 have one shape, but for those at the edges."""
    return bool(metadata.to_dict()["chunk_grid"]["name"] == "regular")
