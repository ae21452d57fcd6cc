"""Limits of the metadata of a store: documents are bounded before they are parsed, and sizes before anything is allocated."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from streampca.errors import DataError
from streampca.formatting import one_line
from streampca.storage.files import open_regular
from streampca.typing import JsonValue

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ArrayMetadata

METADATA_NAMES = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
"""Names of the documents of a store; everything else in it is chunks."""
MAX_DOCUMENT_BYTES = 8 * 2**20
_NAME_BYTES, _MOST_NAMES = 128, 400_000
MAX_NAMED_DOCUMENT_BYTES = MAX_DOCUMENT_BYTES + _NAME_BYTES * _MOST_NAMES
"""Largest size in bytes of a document with the names of as many features as allowed."""
MAX_DEPTH = 64
MAX_VALUES = 10**6
MAX_CHUNKS = 10**8
MAX_INNER_CHUNKS = 2**20
MAX_CODED_BYTES = 2**31
MAX_STORED_BYTES = 2**62
_MOST_AXES = 32
MOST_GROWTH = 16
"""Largest number of bytes that a filter makes of one byte of a value: the widest number for the narrowest."""
_KEEPING = frozenset({"bytes", "transpose", "zstd", "blosc", "gzip", "crc32c", "sharding_indexed"})
"""Codecs that make no value wider."""
_OBJECT_CODECS = frozenset(
    {"pickle", "json", "json2", "msgpack", "msgpack2", "vlen-utf8", "vlen-bytes", "vlen-array", "categorize"}
)
"""Codecs of numcodecs that make Python objects; the first one executes the code that it reads."""
# The inside of a text is passed over as a whole and without going back, so that no text takes long.
_SHAPE = re.compile(rb'"shape"\s*:\s*\[([\d\s,]{1,200})\]')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{},]', re.DOTALL)


def is_document(key: str) -> bool:
    """Return whether `key` is a metadata document, not a chunk."""
    return key.rsplit("/", 1)[-1] in METADATA_NAMES


def read_document(path: Path) -> dict[str, JsonValue]:
    """Return the document at `path`; `DataError` as of `require_document`, `OSError` if it cannot be read."""
    with open_regular(path) as file:
        return require_document(file.read(MAX_NAMED_DOCUMENT_BYTES + 1), path.name)


def require_document(data: bytes, key: str) -> dict[str, JsonValue]:
    """Parse a document of metadata.

    Raises
    ------
    DataError
        Unless it is an object of JSON of bounded size and depth, in which no key is given twice.
    """
    n_names = _n_names(data, key)
    limit, most_values = MAX_DOCUMENT_BYTES + _NAME_BYTES * n_names, MAX_VALUES + n_names
    if len(data) > limit:
        raise DataError(f"{key} takes {len(data):,} bytes: expected at most {limit:,} of metadata")
    if bytes(data[:64]).lstrip()[:1] == b"<":
        raise DataError(
            f"{key} is a page of HTML or XML: expected JSON; look at the address, and whether its server asks for a login"
        )
    depth = n_values = 0
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        n_values += first in b"[{,"
        if depth > MAX_DEPTH or n_values > most_values:
            what = (
                f"nested deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else f"more than {most_values:,} values"
            )
            raise DataError(f"{key} is not metadata of an array: {what}")
    try:
        document = json.loads(data, object_pairs_hook=_without_doubles)
    except _DoubleError as error:
        raise DataError(f"{key} gives {error} twice: expected every key once; two readers may take one each") from None
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8, and numbers of thousands of digits
        raise DataError(f"{key} is damaged: it is not JSON ({one_line(error)}); restore it") from error
    if not isinstance(document, dict):
        raise DataError(f"{key} holds {type(document).__name__}, expected an object of JSON")
    if document.get("attributes") is not None and not isinstance(document["attributes"], dict):
        raise DataError(
            f"{key} holds attributes that are {type(document['attributes']).__name__}, expected an object of JSON"
        )
    return document


def _n_names(data: bytes, key: str) -> int:
    """Return how many features a document may name: the length of its longest axis, or 0 if it has no names.

    ``.zattrs`` stands beside the document that declares the shape and may name as many as is allowed at all.
    """
    if len(data) <= MAX_DOCUMENT_BYTES // 2 or b'"feature_names"' not in data:
        return 0
    if key.endswith(".zattrs"):
        return _MOST_NAMES
    lengths = (
        int(n.strip()[:18])
        for shape in _SHAPE.finditer(data)
        for n in shape.group(1).split(b",")
        if n.strip().isdigit()
    )
    return min(max(lengths, default=0), _MOST_NAMES)


class _DoubleError(Exception):
    """A key that occurs twice in a JSON object."""


def _without_doubles(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    parsed = dict(pairs)
    if len(parsed) < len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _DoubleError(repr(double[:60]))
    return parsed


def require_readable(metadata: ArrayMetadata, item_bytes: int, label: str, *, most_chunks: int = MAX_CHUNKS) -> None:
    """Raise `DataError` if the shapes and codecs that an array declares cannot be, before anything is sized by them.

    `metadata` are those of zarr for an array whose values take `item_bytes`; it may have `most_chunks`.
    """
    codecs = [*(metadata.filters or ()), metadata.compressor] if metadata.zarr_format == 2 else []
    for codec in codecs:
        name = getattr(codec, "codec_id", "")
        if name in _OBJECT_CODECS:
            raise DataError(f"{label} is stored with codec {name}, which makes objects: expected codecs of numbers")
    if getattr(metadata, "storage_transformers", ()):
        raise DataError(f"{label} is stored with storage transformers, which are not known here: write it without")
    shape, inner = (tuple(int(n) for n in sizes) for sizes in (metadata.shape, metadata.chunks))
    stored = tuple(int(n) for n in metadata.shards or inner)
    if len(inner) != len(shape) or len(stored) != len(shape) or min((1, *inner, *stored)) < 1:
        raise DataError(f"{label} declares chunks of shape {stored}: expected at least 1 along each axis")
    for what, sizes, limit in (
        ("chunks", [-(-n // size) for n, size in zip(shape, stored, strict=True)], most_chunks),
        ("inner chunks in a shard", [n // size for n, size in zip(stored, inner, strict=True)], MAX_INNER_CHUNKS),
    ):
        if math.prod(sizes) > limit:
            raise DataError(
                f"{label} declares {math.prod(sizes):,} {what}: expected at most {limit:,}; write it in larger chunks"
            )
    plain = metadata.zarr_format == 3 and len(metadata.codecs) == 1 and metadata.shards is None
    plain = plain or (metadata.zarr_format == 2 and not metadata.compressor and not metadata.filters)
    for what, n_bytes, limit in (
        ("chunks", math.prod(inner) * item_bytes, MAX_STORED_BYTES if plain else MAX_CODED_BYTES),
        ("shards", math.prod(stored) * item_bytes, MAX_STORED_BYTES),
    ):
        if n_bytes > limit:
            raise DataError(
                f"{label} declares {what} of {n_bytes:,} bytes: expected at most {limit:,}; write it in smaller chunks"
            )


def most_stored(n_bytes: int) -> int:
    """Return the largest stored size in bytes of a chunk of `n_bytes`: incompressible data grow slightly."""
    return n_bytes + n_bytes // 10 + 2**16


def most_stored_object(metadata: ArrayMetadata, item_bytes: int) -> int:
    """Return how many bytes one stored object of an array may have, a chunk or a shard of them."""
    if metadata.zarr_format == 2:
        grows = bool(metadata.filters)
    else:
        codecs = getattr(metadata, "inner_codecs", metadata.codecs)
        grows = any(str(codec.to_dict()["name"]) not in _KEEPING for codec in codecs)
    chunk = math.prod(int(n) for n in metadata.chunks) * item_bytes * (MOST_GROWTH if grows else 1)
    if metadata.shards is None:
        return most_stored(chunk)
    n_inner = math.prod(int(n) // int(size) for n, size in zip(metadata.shards, metadata.chunks, strict=True))
    return most_stored(n_inner * (chunk + 128))  # a place in the index, and headers of codecs


def of_features(
    attributes: Mapping[str, object], n_features: int
) -> tuple[tuple[int, ...] | None, tuple[str, ...] | None]:
    """Return the shape of a row as a picture, and the names of the features, that attributes give; None for what does not fit."""
    sizes, names = attributes.get("feature_shape"), attributes.get("feature_names")
    shape: tuple[int, ...] | None = None
    if isinstance(sizes, list) and 0 < len(sizes) <= _MOST_AXES:
        known = all(type(n) is int and 0 < n <= n_features for n in sizes)
        shape = tuple(sizes) if known and math.prod(sizes) == n_features else None
    fits = isinstance(names, list) and len(names) == n_features
    return shape, tuple(map(str, names)) if isinstance(names, list) and fits else None
