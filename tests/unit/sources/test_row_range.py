"""Consecutive rows of a source as a source: the same rows, blocks that begin with chunks, and the labels of these rows."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from stores import make_values, write_store
from zarr.codecs import BytesCodec, ZstdCodec

import streampca as sp
from streampca.sources.like import RowRange

VALUES = make_values(100, 4)


@pytest.mark.parametrize(("start", "stop"), [(0, 100), (13, 14), (13, 57), (20, 100)])
@pytest.mark.parametrize("n_rows", [3, 10, 25, 1000])
def test_blocks_hold_the_rows_and_read_a_chunk_twice_only_where_it_is_larger(
    start, stop, n_rows, tmp_path: Path
) -> None:
    source = RowRange(sp.open(str(write_store(tmp_path / "x.zarr", VALUES, chunks=(10, 4)))), start, stop)
    n = stop - start
    edges = source.grid.block_edges(n_rows, n) or (*range(0, n, min(n_rows, n)), n)
    assert edges[0] == 0
    assert edges[-1] == n
    assert max(b - a for a, b in pairwise(edges)) <= n_rows
    if n_rows >= 10 and n_rows % 10 == 0:
        assert all((start + edge) % 10 == 0 for edge in edges[1:-1])
    rows = np.concatenate([source.read(a, b)[0] for a, b in pairwise(edges)])
    np.testing.assert_array_equal(rows, VALUES[start:stop])


def test_a_range_travels_to_workers_and_describes_itself(tmp_path: Path) -> None:
    source = RowRange(sp.open(str(write_store(tmp_path / "x.zarr", VALUES, chunks=(10, 4)))), 13, 57)
    copy = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copy.slice(5, 9).read(5, 9)[0], VALUES[18:22])
    assert source.reads_of(0, 1) == 4 * 8
    assert source.keys(0, 8) == ["c/1/0", "c/2/0"]
    assert source.describe()["shape"] == [44, 4]


def test_labels_are_those_of_the_rows(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("v", data=VALUES.reshape(20, 5, 4), dimension_names=("time", "member", "x"), chunks=(3, 5, 4))
    group.create_array("time", data=np.arange(100, 120), dimension_names=("time",))
    source = sp.open(str(tmp_path / "g.zarr"), array="v", samples=["time", "member"])
    labels = RowRange(source, 35, 50).labels
    assert labels is not None
    assert labels.sample_name(6) == "time=108, member=1"
    odd = RowRange(source, 37, 50).labels
    assert odd is not None
    assert odd.n_samples == 13


def test_memory_for_a_decoded_chunk_is_planned_where_blocks_divide_one(tmp_path: Path) -> None:
    source = sp.open(write_store(tmp_path / "x", make_values(400, 8), chain="zstd", chunks=(100, 8)))
    chunk, whole = 100 * 8 * 8, source.overhead_bytes(100)
    assert [source.overhead_bytes(n) - whole for n in (200, 400, 50, 99, 150)] == [0, 0, chunk, chunk, chunk]
    ranges = {(0, 400): 0, (100, 400): 0, (0, 200): 0, (30, 400): chunk, (0, 150): chunk}
    assert {edges: RowRange(source, *edges).overhead_bytes(100) - whole for edges in ranges} == ranges


@pytest.mark.parametrize("compressors", [None, [ZstdCodec()]], ids=["none", "zstd"])
def test_memory_for_a_decoded_chunk_is_planned_where_bytes_have_another_order(compressors: Any, tmp_path: Path) -> None:
    overhead = {}
    for endian in ("little", "big"):
        zarr.create_array(
            tmp_path / endian,
            data=make_values(400, 8),
            chunks=(100, 8),
            serializer=BytesCodec(endian=endian),
            compressors=compressors,
        )
        source = sp.open(tmp_path / endian)
        overhead[endian] = source.overhead_bytes(100)
        np.testing.assert_array_equal(source.read(0, 400)[0], make_values(400, 8))
        assert source.reads_of(150, 160) == (100 if compressors or endian == "big" else 10) * 8 * 8
    assert overhead["big"] - overhead["little"] == 100 * 8 * 8


@pytest.mark.parametrize("chunks", [(8, 400), (3, 70)])
def test_uncompressed_chunks_across_the_rows_are_read_in_part_into_any_memory(
    chunks: tuple[int, int], tmp_path: Path
) -> None:
    values = make_values(400, 8)
    path = write_store(tmp_path / "x", np.ascontiguousarray(values.T), chunks=chunks)
    source = sp.open(path, orientation="features_first")
    assert source.overhead_bytes(10) == 0
    for start, stop in ((0, 400), (30, 40), (65, 230)):
        n = stop - start
        wide = np.full((n, 12), np.nan)
        for out in (None, np.empty((n, 8)), np.empty((8, n)).T, wide[:, 2:10]):
            rows, count = source.read(start, stop, out)
            np.testing.assert_array_equal(rows, values[start:stop])
            assert count.bytes == count.stored_bytes == source.reads_of(start, stop) == n * 64
        assert np.isnan(wide[:, [0, 1, 10, 11]]).all()
