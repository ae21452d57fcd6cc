"""The record of zarr arrays on disk: arrays beside those of a state."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from streampca.errors import ModelError
from streampca.models.persistence.groups import StoredGroup
from streampca.sources.store_record import StoreRecord
from streampca.sources.zarr.chunk_record import ChunkRecord
from streampca.typing import Array

if TYPE_CHECKING:
    from streampca.sources.zarr.chunk_record import Digests

_DOCUMENT = "stored_arrays"
_DIGESTS = ("digests", "versions", "edge")
_TEXTS = ("name", "metadata")


def arrays_of_record(record: StoreRecord | None) -> dict[str, Array]:
    """Return a record as arrays of numbers: names and metadata as the bytes of JSON, and digests; none without a record."""
    if record is None:
        return {}
    entries = [{name: getattr(each, name) for name in (*_TEXTS, "shape")} for each in record.arrays]
    document = json.dumps({"arrays": entries, "coordinates": dict(record.coordinates)}).encode()
    arrays: dict[str, Array] = {_DOCUMENT: np.frombuffer(document, dtype=np.uint8)}
    for index, each in enumerate(record.arrays):
        arrays |= {f"stored_{index}_{name}": getattr(each, name) for name in _DIGESTS}
    return arrays


def record_from(group: StoredGroup) -> StoreRecord | None:
    """Return the record that `arrays_of_record` made; None where the group has none, `ModelError` if it is damaged."""
    if _DOCUMENT not in group:
        group.require(_DOCUMENT not in group.digests, "the record of its chunks is missing")
        return None
    try:
        document = json.loads(group.array(_DOCUMENT, "u").tobytes())
        arrays = tuple(_array_from(group, index, entry) for index, entry in enumerate(document["arrays"]))
        coordinates = {str(name): str(digest) for name, digest in document["coordinates"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{group.path}: the record of its chunks is damaged: {error}") from error
    group.require(len(arrays) > 0, "the record of its chunks is empty")
    return StoreRecord(arrays, coordinates)


def _array_from(group: StoredGroup, index: int, entry: dict[str, object]) -> ChunkRecord:
    digests, versions, edge = (_digests(group, f"stored_{index}_{name}") for name in _DIGESTS)
    shape, texts = entry["shape"], [str(entry[name]) for name in _TEXTS]
    whole = isinstance(shape, list) and all(type(size) is int for size in shape)
    group.require(
        whole and digests.shape == versions.shape and edge.ndim == 2, "the record of its chunks contradicts itself"
    )
    sizes = tuple(int(size) for size in shape) if isinstance(shape, list) else ()
    return ChunkRecord(texts[0], sizes, texts[1], digests, versions, edge)


def _digests(group: StoredGroup, name: str) -> Digests:
    digests: Digests = group.array(name, "u").astype(np.uint8, copy=False)
    return digests
