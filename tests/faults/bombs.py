"""Chunks of a few bytes that decode to hundreds of MiB, and files that are too large: refused before they take memory.

Called as a script it reads every one of them, by each reader, and prints by how much the process grew: JSON, by name.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import os
import resource
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import numcodecs  # noqa: E402
import numpy as np  # noqa: E402
import zarr  # noqa: E402
from facade import decode_by_zarr, peak_bytes  # noqa: E402
from stores import chunk_files  # noqa: E402
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec  # noqa: E402

import streampca as sp  # noqa: E402
from streampca.errors import DataError  # noqa: E402
from streampca.sources import open_source  # noqa: E402

SIZE = 2**27
"""What a bomb decodes to."""
_PART = 2**24
_SHAPE, _CHUNKS = (256, 8), (128, 8)


def zstd_frame(n_bytes: int, *, told: bool) -> bytes:
    """Return a Zstandard frame of `n_bytes` zeros in run-length blocks, which tells its size or does not."""
    header = b"\x28\xb5\x2f\xfd"
    header += b"\xa0" + struct.pack("<I", n_bytes) if told else b"\x00" + bytes([(17 - 10) << 3])
    blocks, left = [], n_bytes
    while left > 0:
        size = min(left, 2**17)
        left -= size
        blocks.append((size << 3 | 1 << 1 | (left == 0)).to_bytes(3, "little") + b"\0")
    return header + b"".join(blocks)


def _blosc(compressor: str) -> bytes:
    return bytes(numcodecs.Blosc(cname=compressor, shuffle=0).encode(np.zeros(SIZE, dtype=np.uint8)))


def _with_checksum(stored: bytes) -> bytes:
    import google_crc32c

    return stored + int(google_crc32c.value(stored)).to_bytes(4, "little")


BOMBS: dict[str, tuple[int, Any, Callable[[], bytes]]] = {
    "zstd": (3, [ZstdCodec()], lambda: zstd_frame(SIZE, told=True)),
    "zstd without a size": (3, [ZstdCodec()], lambda: zstd_frame(SIZE, told=False)),
    "zstd, many frames": (3, [ZstdCodec()], lambda: zstd_frame(1024, told=True) * 8 + zstd_frame(SIZE, told=False)),
    "zstd that lies": (
        3,
        [ZstdCodec()],
        lambda: zstd_frame(SIZE, told=True).replace(struct.pack("<I", SIZE), struct.pack("<I", 8192)),
    ),
    "zstd+crc32c": (3, [ZstdCodec(), Crc32cCodec()], lambda: _with_checksum(zstd_frame(SIZE, told=True))),
    "blosc-lz4": (3, [BloscCodec(cname="lz4")], lambda: _blosc("lz4")),
    "blosc-zstd": (3, [BloscCodec(cname="zstd")], lambda: _blosc("zstd")),
    "gzip": (3, [GzipCodec()], lambda: gzip.compress(bytes(SIZE // 4))),
    "gzip, many members": (3, [GzipCodec()], lambda: gzip.compress(bytes(_PART)) * 4 + gzip.compress(bytes(8192))),
    "zstd of version 2": (2, numcodecs.Zstd(), lambda: zstd_frame(SIZE, told=False)),
    "gzip of version 2": (2, numcodecs.GZip(), lambda: gzip.compress(bytes(SIZE // 4))),
    "zlib": (2, numcodecs.Zlib(), lambda: zlib.compress(bytes(SIZE // 4), 9)),
    "lz4": (2, numcodecs.LZ4(), lambda: bytes(numcodecs.LZ4().encode(np.zeros(_PART, dtype=np.uint8)))),
    "bz2": (2, numcodecs.BZ2(), lambda: bz2.compress(bytes(_PART)) * (SIZE // _PART)),
    "lzma": (2, numcodecs.LZMA(), lambda: lzma.compress(bytes(_PART), preset=0) * (SIZE // _PART)),
    "a file that is too large": (3, [ZstdCodec()], lambda: b""),
    "a file of values that is too large": (3, None, lambda: b""),
}
"""Format, compressors, and what makes the stored bytes of a chunk of 8 KiB; none: a file of 4 GiB without content."""


def make_store(path: Path, name: str, *, sharded: bool = False) -> Path:
    """Write a store of two chunks, or two shards of two, the first of which is the bomb."""
    version, compressors, bomb = BOMBS[name]
    array = zarr.create_array(
        str(path),
        shape=_SHAPE,
        dtype="f8",
        chunks=(64, 8) if sharded else _CHUNKS,
        shards=_CHUNKS if sharded else None,
        compressors=compressors,
        zarr_format=version,
        config={"write_empty_chunks": True},
    )
    array[...] = np.random.default_rng(0).standard_normal(_SHAPE)
    file = chunk_files(path)[0]
    stored = bomb()
    if not stored:
        os.truncate(file, 2**32)
    elif sharded:
        file.write_bytes(_shard(stored))
    else:
        file.write_bytes(stored)
    return path


def _shard(stored: bytes) -> bytes:
    """Return a shard of two inner chunks that are both `stored`, with the index and its checksum."""
    index = struct.pack("<4Q", 0, len(stored), 0, len(stored))
    return stored + _with_checksum(index)


def grown(act: Callable[[], Any]) -> tuple[Any, int]:
    """Return what `act` returns, and by how many bytes this process grew at most meanwhile."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = peak_bytes()
    result = act()
    return result, peak_bytes() - before


def read(path: Path, reader: str) -> str:
    """Read a store; return the error, or that there was none."""
    source: Any = open_source(path)
    if reader == "zarr":
        decode_by_zarr(source)
    try:
        sp.PCA(2, memory="1GiB").fit(source)
    except DataError as error:
        return f"{type(error).__name__}: {error}"
    return "it was read"


def make_all(directory: Path) -> dict[str, Path]:
    """Write every bomb, plain and, where that can be, in a shard."""
    paths = {}
    for i, (name, (version, _, _)) in enumerate(BOMBS.items()):
        paths[name] = make_store(directory / f"{i}.zarr", name)
        if version == 3 and "too large" not in name:
            paths[f"{name}, in a shard"] = make_store(directory / f"{i}s.zarr", name, sharded=True)
    return paths


def main() -> None:
    """Make the bombs in a process of their own, read them in this one."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        child = os.fork()  # before zarr has threads
        if not child:
            status = 1
            try:
                (directory / "paths.json").write_text(json.dumps(make_all(directory), default=str))
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        zarr.create_array(
            f"{directory}/whole", data=np.eye(256, 8), chunks=_CHUNKS, config={"write_empty_chunks": True}
        )
        for reader in ("direct", "zarr"):
            assert read(directory / "whole", reader) == "it was read"  # whatever is imported late is imported now
        resource.setrlimit(resource.RLIMIT_DATA, (2**31, 2**31))
        found = {}
        for title, path in json.loads((directory / "paths.json").read_text()).items():
            for reader in ("direct", "zarr"):
                said, n_bytes = grown(partial(read, Path(path), reader))
                found[f"{title}, {reader}"] = {"said": said, "grown": n_bytes}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
