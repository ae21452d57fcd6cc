"""The only module that imports private names of zarr, and the place where differences between its versions are handled."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import zarr
from zarr.abc.buffer import Buffer, BufferPrototype, NDBuffer
from zarr.abc.store import ByteRequest, Store
from zarr.buffer import default_buffer_prototype
from zarr.errors import MetadataValidationError
from zarr.storage import StorePath, WrapperStore

from streampca.errors import NotAvailableError

try:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.codec_pipeline import BatchedCodecPipeline
    from zarr.core.sync import _get_loop, sync
except ImportError as error:
    raise NotAvailableError(
        f"zarr {zarr.__version__} is not supported ({error}): expected zarr >= 3.1.3 with the interface of 3.1 to 3.4; install such a version"
    ) from error

if TYPE_CHECKING:
    from zarr.abc.codec import Codec, CodecPipeline
    from zarr.abc.store import ByteGetter
    from zarr.core.array_spec import ArrayConfigParams
    from zarr.core.common import JSON
    from zarr.core.indexing import SelectorTuple
    from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

ArrayMetadata: TypeAlias = "ArrayV2Metadata | ArrayV3Metadata"
ZarrArray: TypeAlias = "zarr.Array[ArrayV2Metadata] | zarr.Array[ArrayV3Metadata]"

__all__ = [
    "JSON",
    "ArrayMetadata",
    "ArraySpec",
    "ArrayV2Metadata",
    "ArrayV3Metadata",
    "BatchedCodecPipeline",
    "Buffer",
    "BufferPrototype",
    "ByteGetter",
    "CodecPipeline",
    "GetOnlyStore",
    "MetadataValidationError",
    "NDBuffer",
    "SelectorTuple",
    "ZarrArray",
    "array_of",
    "configuration_of",
    "default_buffer_prototype",
    "event_loop",
    "has_regular_chunks",
    "opened_for_writing",
    "sync",
]


class GetOnlyStore(WrapperStore[Store]):
    """A wrapper of a store that is only read through `get`, so that a subclass has to override no other method.

    zarr has several methods for reading, more with each version, and `WrapperStore` passes most of them on to the inner store.
    """

    _supports_sync_io = False
    """Whether zarr >= 3.4 may call `get_sync`, which it does in place of `get`."""

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return the bytes of each key in its range, None where there is no such key."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        for request in requests:
            yield request[0], await self.get(*request)

    def get_sync(self, key: str, **_: object) -> Buffer | None:
        """Raise `NotImplementedError`: zarr asks `_supports_sync_io` first."""
        raise NotImplementedError(f"{type(self).__name__} is read through its method get")

    async def get_ranges(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], *, prototype: BufferPrototype, **_: int | None
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """Yield the number of each range with its bytes, for zarr >= 3.2, which would merge requests; errors are those of `get`."""
        for index, byte_range in enumerate(byte_ranges):
            yield [(index, await self.get(key, prototype, byte_range))]


def event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of zarr, in which stores are used; it runs in a thread of its own."""
    return _get_loop()


def array_of(metadata: ArrayMetadata, store: Store, path: str, *, write_empty_chunks: bool = False) -> ZarrArray:
    """Return the array in `store` at `path` with these metadata instead of the stored ones."""
    place = StorePath(store, path)
    config: ArrayConfigParams = {"write_empty_chunks": write_empty_chunks}
    if metadata.zarr_format == 2:
        return zarr.Array(zarr.AsyncArray(metadata, place, config))
    return zarr.Array(zarr.AsyncArray(metadata, place, config))


def configuration_of(codec: Codec) -> Mapping[str, JSON]:
    """Return the configuration of a codec as metadata have it; its attributes have other types in other versions of zarr."""
    found = codec.to_dict().get("configuration", {})
    return found if isinstance(found, Mapping) else {}


def opened_for_writing(path: Path) -> ZarrArray:
    """Return a stored array that writes all chunks, also those of zeros, which no metadata ask for."""
    array = zarr.open_array(path, mode="r+")
    return array_of(array.metadata, array.store, array.path, write_empty_chunks=True)


def has_regular_chunks(metadata: ArrayMetadata) -> bool:
    """Return whether all chunks of an array have one shape, but for those at the edges: always in version 2 of the format."""
    if metadata.zarr_format == 2:
        return True
    with warnings.catch_warnings(action="ignore"):  # of types that have no specification
        grid = metadata.to_dict().get("chunk_grid")
    return isinstance(grid, Mapping) and grid["name"] == "regular"
