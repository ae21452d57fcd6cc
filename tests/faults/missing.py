"""Chunks that are not there: an error that counts them before anything is read, or, where it was asked for, the fill value."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from score import Score, again
from stores import chunk_files, make_values, write_store

import streampca as sp
from streampca.errors import MissingChunkError
from streampca.sources import open_source

LAYOUTS: dict[str, dict[str, Any]] = {
    "v3": {"version": 3, "chunks": (50, 8)},
    "v3 in both axes": {"version": 3, "chunks": (70, 3)},
    "v3 compressed": {"version": 3, "chunks": (50, 8), "chain": "zstd+crc32c"},
    "v2": {"version": 2, "chunks": (50, 8)},
    "v2 compressed": {"version": 2, "chunks": (50, 8), "chain": "gzip"},
    "sharded": {"version": 3, "chunks": (25, 8), "shards": (50, 8)},
}
FILL = 2.5


def require_refused(store: Path, gone: list[str], n_chunks: int, act: Callable[[], object]) -> None:
    """Check that `act` is refused before anything is read, with the number of chunks that are gone and the first of them."""
    reader: Any = type(open_source(store))
    read, reader.read = reader.read, _must_not_be_called
    try:
        act()
    except MissingChunkError as error:
        message = str(error)
    else:
        raise AssertionError("nothing was missed")
    finally:
        reader.read = read
    assert message.startswith(f"{store}: {len(gone)} of {n_chunks} chunks do not exist, first: "), message
    named = message.split("first: ")[1].split(";")[0].split(", ")
    assert len(named) == min(5, len(gone)), message
    assert set(named) <= set(gone), message
    assert "missing_chunks: fill" in message, message


def _must_not_be_called(*_: object) -> Any:
    raise AssertionError("it read")


def check(layout: str, subset: Callable[[list[Path]], list[Path]], directory: Path) -> int:
    """Remove some chunks of a store of that layout; look at both ways of reading it. Return how many were removed."""
    store = write_store(directory / "x.zarr", **LAYOUTS[layout], fill_value=FILL)
    chunks = chunk_files(store)
    gone = subset(chunks)
    for chunk in gone:
        chunk.unlink()
    keys = [chunk.relative_to(store).as_posix() for chunk in gone]
    if gone:
        require_refused(store, keys, len(chunks), lambda: sp.PCA(2).fit(store))
    else:
        open_source(store).check()
    source = open_source(store, missing_chunks="fill")
    fitted = sp.PCA(2).fit(source)
    expected = zarr.open_array(store, mode="r")[...]
    assert source.missing_chunks_filled == len(gone)
    assert source.describe()["missing_chunks_filled"] == len(gone)
    np.testing.assert_allclose(fitted.mean_, expected.mean(axis=0), rtol=1e-12, atol=1e-15)
    if len(gone) == len(chunks):
        assert (source.read(0, 400)[0] == FILL).all()
    elif not gone:
        np.testing.assert_array_equal(source.read(0, 400)[0], make_values())
    return len(gone)


def run(count: int, seed: int) -> Score:
    """Remove chunks of `count` stores, one, two, all or some of them."""
    score, began = Score("chunks removed, one to all of a store"), time.monotonic()
    for number in range(seed, seed + count):
        rng = random.Random(number)
        layout = rng.choice(sorted(LAYOUTS))

        def subset(chunks: list[Path], rng: random.Random = rng) -> list[Path]:
            return sorted(rng.sample(chunks, rng.choice((1, 2, len(chunks), rng.randint(1, len(chunks))))))

        directory = Path(tempfile.mkdtemp())
        score.injected += 1
        try:
            check(layout, subset, directory)
            score.detected += 1
        except Exception as error:  # noqa: BLE001 whatever was raised is what was found
            if isinstance(error, AssertionError):
                score.wrong += 1
            else:
                score.tracebacks += 1
            score.notes.append(f"{layout}: {type(error).__name__}: {error}: {again('missing', number)}")
        finally:
            shutil.rmtree(directory)
    score.seconds = time.monotonic() - began
    return score
