"""Blocks that are overwritten while they are centred and have to be read again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stores import write_store
from web import Web

from streampca import PCA
from streampca.accumulators import Covariance
from streampca.execution.leaf import read_ahead
from streampca.planning.shape import Leaf
from streampca.sources import open_source
from streampca.sources.base import ReadCount, RowwiseSource, Source

BLOCK = 1024


def rows_with_underflow(n: int, d: int) -> NDArray[np.float32]:
    """Return rows whose first feature underflows in float32 when squared, but not in rows that a sample of a block has."""
    rows = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
    rows[:, 0] = np.where(np.arange(n) % 8 == 1, np.float32(1e-20), 0)  # 128 of 1,024 rows are 0, 8, 16, …
    return rows


class WatchedSource(RowwiseSource):
    """The rows of another source, with the thread and the cost of each reading."""

    def __init__(self, source: Source):
        self.source, self.shape, self.dtype, self.description = source, source.shape, source.dtype, "watched"
        self.chunk_rows, self.chunk_bytes = source.chunk_rows, source.chunk_bytes
        self.readings: list[tuple[str, int, ReadCount]] = []

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    def overhead_bytes(self, n_rows: int) -> int:
        return self.source.overhead_bytes(n_rows)

    def read(self, start: int, stop: int, out: Any = None) -> tuple[Any, ReadCount]:
        values, count = self.source.read(start, stop, out)
        self.readings.append((threading.current_thread().name, start, count))
        return values, count


@pytest.fixture(params=["zstd", "blosc", "zstd in shards", "zstd behind a URL", "zstd in shards behind a URL"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    codec = request.param.split()[0]
    shards = (2 * BLOCK, 16) if "shards" in request.param else None
    write_store(tmp_path / "x", rows_with_underflow(4 * BLOCK, 16), chain=codec, chunks=(BLOCK, 16), shards=shards)
    if "URL" not in request.param:
        yield WatchedSource(open_source(tmp_path / "x"))
        return
    pytest.importorskip("aiohttp", reason="the extra s3 is not installed")
    with Web(tmp_path) as server:
        yield WatchedSource(open_source(f"{server.url}/x"))


def test_a_block_is_read_again_by_the_thread_that_reads_ahead_and_counted(watched: WatchedSource) -> None:
    accumulator, total = Covariance(), ReadCount()
    state = accumulator.init(16)
    for read in read_ahead(watched, Leaf(0, tuple(range(0, 5 * BLOCK, BLOCK)))):
        state = accumulator.update(state, read.block)
        total += read.count
    threads, starts, counts = zip(*watched.readings, strict=True)
    assert len(set(threads)) == 1
    assert threading.current_thread().name not in threads
    assert total == sum(counts, ReadCount())
    assert sorted(starts) == [0, 0, BLOCK, 2 * BLOCK, 3 * BLOCK]
    rows, expected = rows_with_underflow(4 * BLOCK, 16), accumulator.init(16)
    for start in range(0, len(rows), BLOCK):
        expected = accumulator.update(expected, rows[start : start + BLOCK])
    np.testing.assert_array_equal(state.scatter, expected.scatter)


def test_bytes_read_include_blocks_that_were_read_again(tmp_path: Path) -> None:
    rows = rows_with_underflow(16 * BLOCK, 16)
    write_store(tmp_path / "x", rows, chain="zstd", chunks=(BLOCK, 16))
    source = WatchedSource(open_source(tmp_path / "x"))
    pca = PCA(3, solver="covariance").fit(source)
    assert len(source.readings) > pca.plan_.n_blocks
    assert pca.bytes_read_ == sum(count.bytes for _, _, count in source.readings)
    np.testing.assert_allclose(
        pca.explained_variance_, np.linalg.eigvalsh(np.cov(rows.astype(float).T))[:-4:-1], rtol=1e-6
    )
