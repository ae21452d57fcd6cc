"""Blocks that are overwritten while they are centred and have to be read again."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import facade
import numpy as np
import pytest
from numpy.typing import NDArray
from stores import write_store
from web import Web

from streampca import PCA

BLOCK = 1024
WIDE = 80  # features; products of up to 64 are float64, which centring in place loses nothing of


def rows_with_underflow(n: int, d: int) -> NDArray[np.float32]:
    """Return rows whose first feature underflows in float32 when squared, but not in rows that a sample of a block has."""
    rows = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
    rows[:, 0] = np.where(np.arange(n) % 8 == 1, np.float32(1e-20), 0)  # 128 of 1,024 rows are 0, 8, 16, …
    return rows


class WatchedSource(facade.Source):
    """The rows of another source, with the thread and the cost of each reading."""

    def __init__(self, source: Any):
        self.source, self.shape, self.dtype, self.description = source, source.shape, source.dtype, "watched"
        for name in ("grid", "buffered", "column_major"):
            setattr(self, name, getattr(source, name))
        self.readings: list[tuple[str, facade.ReadCount]] = []

    @property
    def fingerprint(self) -> str:
        return str(self.source.fingerprint)

    def overhead_bytes(self, n_rows: int) -> int:
        return int(self.source.overhead_bytes(n_rows))

    def read(self, start: int, stop: int, out: Any = None) -> tuple[Any, facade.ReadCount]:
        values, count = self.source.read(start, stop, out)
        self.readings.append((threading.current_thread().name, count))
        return values, count


@pytest.mark.parametrize("kind", ["zstd", "blosc", "zstd in shards", "zstd in shards behind a URL"])
def test_blocks_that_are_read_again_are_counted_and_read_by_threads_that_read_ahead(
    tmp_path: Path, kind: str, blocks_of: Any
) -> None:
    blocks_of(BLOCK)
    rows = rows_with_underflow(16 * BLOCK, WIDE)
    shards = (2 * BLOCK, WIDE) if "shards" in kind else None
    write_store(tmp_path / "x", rows, chain=kind.split()[0], chunks=(BLOCK, WIDE), shards=shards)
    with ExitStack() as stack:
        place = str(tmp_path / "x")
        if "URL" in kind:
            pytest.importorskip("obstore", reason="the extra remote is not installed")
            place = f"{stack.enter_context(Web(tmp_path)).url}/x"
        source = WatchedSource(facade.open_source(place))
        pca = PCA(3, solver="covariance").fit(source)
    names = {name for name, _ in source.readings}
    assert threading.current_thread().name not in names
    assert len(source.readings) > pca.plan_.n_blocks
    assert pca.bytes_read_ == sum(count.bytes for _, count in source.readings)
    expected = np.linalg.eigvalsh(np.cov(rows.astype(float).T))[:-4:-1]
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-6)
