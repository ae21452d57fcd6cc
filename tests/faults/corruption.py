"""Chunks that are damaged in every way: an error that names the chunk, or the numbers that were written; never a crash."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from facade import decode_by_zarr, write_fingerprint
from numcodecs import BZ2, LZ4, Blosc, GZip, Zlib, Zstd
from score import Score, again
from stores import CHAINS, chunk_files
from zarr.codecs import BloscCodec, Crc32cCodec

import streampca as sp
from streampca.errors import AlteredChunkError, DamagedChunkError, DataError, MissingInnerChunkError
from streampca.sources import open_source

ROWS, BAND, FEATURES = 400, 80, 8
_CHAINS_V3 = CHAINS | {
    "blosc-zstd": lambda: [BloscCodec(cname="zstd")],
    "blosc+crc32c": lambda: [BloscCodec(cname="lz4"), Crc32cCodec()],
}
_CHAINS_V2: dict[str, Any] = {
    "none": lambda: None,
    "zstd": lambda: Zstd(level=1),
    "zstd-checksum": lambda: Zstd(level=1, checksum=True),
    "blosc": lambda: Blosc(cname="lz4"),
    "blosc-zstd": lambda: Blosc(cname="zstd"),
    "gzip": lambda: GZip(level=1),
    "zlib": lambda: Zlib(level=1),
    "lz4": lambda: LZ4(),
    "bz2": lambda: BZ2(level=1),
}
_CHECKED = ("crc32c", "checksum", "gzip", "zlib", "bz2")
"""Parts of the names of chains that notice every change of what they decode to."""
_SHARDED = ("none", "zstd", "zstd+crc32c", "blosc", "gzip")
LAYOUTS = (
    *((3, chain, False, reader) for chain in _CHAINS_V3 for reader in ("direct", "zarr")),
    *(
        (2, chain, False, reader)
        for chain in _CHAINS_V2
        for reader in ("direct", "zarr")
        if (chain, reader) != ("bz2", "direct")
    ),
    *((3, chain, True, reader) for chain in _SHARDED for reader in ("direct", "zarr")),
)
"""Version of the format, chain of codecs, whether chunks lie in shards, and who reads."""

Damage = Callable[[list[bytes], int, random.Random], None]


def _flip(chunks: list[bytes], at: int, rng: random.Random) -> None:
    data = bytearray(chunks[at])
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    chunks[at] = bytes(data)


def _truncate(chunks: list[bytes], at: int, rng: random.Random) -> None:
    chunks[at] = chunks[at][: rng.randrange(1, len(chunks[at]))]


def _lengthen(chunks: list[bytes], at: int, rng: random.Random) -> None:
    chunks[at] += rng.randbytes(rng.randrange(1, 100))


def _zero_page(chunks: list[bytes], at: int, rng: random.Random) -> None:
    data = chunks[at]
    start = rng.randrange(max(1, len(data) - 512))
    chunks[at] = data[:start] + bytes(len(data[start : start + 512])) + data[start + 512 :]


def _swap_halves(chunks: list[bytes], at: int, rng: random.Random) -> None:
    half = rng.randrange(1, len(chunks[at]))
    chunks[at] = chunks[at][half:] + chunks[at][:half]


def _garbage(chunks: list[bytes], at: int, rng: random.Random) -> None:
    chunks[at] = rng.randbytes(len(chunks[at]))


def _garbage_behind_the_header(chunks: list[bytes], at: int, rng: random.Random) -> None:
    chunks[at] = chunks[at][:16] + rng.randbytes(len(chunks[at]) - 16)


def _empty(chunks: list[bytes], at: int, rng: random.Random) -> None:
    chunks[at] = b""


def _other_chunk(chunks: list[bytes], at: int, rng: random.Random) -> None:
    chunks[at] = chunks[(at + rng.randrange(1, len(chunks))) % len(chunks)]


def _swap(chunks: list[bytes], at: int, rng: random.Random) -> None:
    other = (at + rng.randrange(1, len(chunks))) % len(chunks)
    chunks[at], chunks[other] = chunks[other], chunks[at]


DAMAGES: tuple[Damage, ...] = (
    *(_flip, _flip, _flip, _truncate, _lengthen, _zero_page, _swap_halves),
    *(_garbage, _garbage_behind_the_header, _empty, _other_chunk, _swap),
)
_ALWAYS_FOUND = (_truncate, _empty)
_MOVED = (_other_chunk, _swap)
"""Whole chunks in the place of others: no checksum of a chunk can tell."""


@dataclass
class Store:
    """A small store and its readers."""

    path: Path
    """Where it is; its fingerprint stands beside it."""
    layout: tuple[int, str, bool, str]
    """One of `LAYOUTS`."""

    @cached_property
    def values(self) -> Any:
        """What was written, coarse enough to be compressed."""
        return np.round(np.random.default_rng(3).standard_normal((ROWS, FEATURES)) * 4) / 4

    @cached_property
    def files(self) -> list[Path]:
        """The chunks, or shards; writes them when it is first asked for."""
        version, chain, sharded, _ = self.layout
        array = zarr.create_array(
            str(self.path),
            shape=(ROWS, FEATURES),
            dtype="f8",
            chunks=(BAND // 2 if sharded else BAND, FEATURES),
            shards=(BAND, FEATURES) if sharded else None,
            zarr_format=version,
            compressors=(_CHAINS_V3 if version == 3 else _CHAINS_V2)[chain](),
            config={"write_empty_chunks": True},
        )
        array[...] = self.values
        write_fingerprint(open_source(self.path), self.path.with_suffix(".npz"))
        return chunk_files(self.path)

    @cached_property
    def whole(self) -> list[bytes]:
        """What the files hold."""
        return [file.read_bytes() for file in self.files]

    @cached_property
    def readers(self) -> tuple[Any, Any]:
        """The reader of this layout, and one that compares digests."""
        plain: Any = open_source(self.path)
        verified: Any = open_source(self.path, verify=self.path.with_suffix(".npz"))
        if self.layout[3] == "zarr":
            decode_by_zarr(plain)
            decode_by_zarr(verified)
        elif plain.describe()["reader"] != "direct":
            raise AssertionError(f"{self.layout} is not decoded directly")
        return plain, verified


def run(count: int, seed: int) -> Score:
    """Damage `count` chunks, one after the other, and read them."""
    score, began, only_by_digests = Score("chunks damaged, 23 chains of codecs"), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as directory:
        stores = [Store(Path(directory) / f"{i}.zarr", layout) for i, layout in enumerate(LAYOUTS)]
        for number in range(seed, seed + count):
            rng = random.Random(number)
            only_by_digests += _inject(rng.choice(stores), rng.choice(DAMAGES), rng, score, number)
    if only_by_digests:
        score.notes.append(
            f"{only_by_digests:,} of {score.injected:,} changed numbers in chains without checksum, or moved whole chunks: found "
            "with verify: manifest, and only so"
        )
    score.seconds = time.monotonic() - began
    return score


def _inject(store: Store, damage: Damage, rng: random.Random, score: Score, number: int) -> bool:
    """Do one damage and undo it; return whether only digests tell."""
    at = rng.randrange(len(store.files))
    damaged = list(store.whole)
    damage(damaged, at, rng)
    changed = [i for i, (old, new) in enumerate(zip(store.whole, damaged, strict=True)) if old != new]
    if not changed:
        return False
    score.injected += 1
    for i in changed:
        store.files[i].write_bytes(damaged[i])
    try:
        return _outcome(store, damage, changed, rng, score)
    except Exception as error:  # noqa: BLE001 whatever was raised is what was found
        if isinstance(error, AssertionError):
            score.wrong += 1
        else:
            score.tracebacks += 1
        score.notes.append(
            f"{store.layout}, {damage.__name__}: {type(error).__name__}: {error}: {again('corruption', number)}"
        )
        return False
    finally:
        for i in changed:
            store.files[i].write_bytes(store.whole[i])


def _outcome(store: Store, damage: Damage, changed: list[int], rng: random.Random, score: Score) -> bool:
    source, verified = store.readers
    spans = [(i * BAND, (i + 1) * BAND) for i in changed]
    try:
        found = [source.read(*span)[0].copy() for span in spans]
    except DataError as error:
        _require_told(error, store, changed)
        if rng.random() < 0.02:
            _require_told_by_a_fit(source)
        score.detected += 1
        return False
    if all(values.tobytes() == store.values[slice(*span)].tobytes() for values, span in zip(found, spans, strict=True)):
        score.survived += 1
        return False
    checked = any(part in store.layout[1] for part in _CHECKED)
    assert damage not in _ALWAYS_FOUND, "wrong numbers of a chunk that was cut short"
    assert not checked or damage in _MOVED, "wrong numbers in spite of a checksum"
    as_zarr_reads = zarr.open_array(store.path, mode="r")[...]
    same = all(
        values.tobytes() == as_zarr_reads[slice(*span)].tobytes() for values, span in zip(found, spans, strict=True)
    )
    assert same, "numbers that are neither those written nor those stored"
    try:
        verified.read(*spans[0])
    except AlteredChunkError:
        score.detected += 1
        return True
    raise AssertionError("wrong numbers in spite of a fingerprint")


def _require_told(error: DataError, store: Store, changed: list[int]) -> None:
    message = str(error)
    keys = [store.files[i].relative_to(store.path).as_posix() for i in changed]
    assert isinstance(error, DamagedChunkError | MissingInnerChunkError), f"{type(error).__name__}: {message}"
    assert len(message.splitlines()) == 1, message
    assert len(message) < 600, message
    assert str(store.path) in message, message
    assert any(f"chunk {key}" in message for key in keys), message
    assert "(codec " in message or isinstance(error, MissingInnerChunkError), message


def _require_told_by_a_fit(source: Any) -> None:
    try:
        sp.PCA(2).fit(source)
    except DataError:
        return
    raise AssertionError("a fit went on over a damaged chunk")
