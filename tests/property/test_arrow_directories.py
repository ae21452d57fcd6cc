"""Random directories of Parquet and Arrow files, against what plain numpy makes of the same columns."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca as sp

_DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
_SHAPES = {
    "numbers": (),
    "decimal": (),
    "list": (3,),
    "large list": (2,),
    "fixed": (4,),
    "nested": (2, 3),
    "tensor": (3, 2),
}


@dataclass
class Drawn:
    """A column: what Arrow stores, and what numpy reads."""

    name: str
    """Name of the column."""
    stored: Any
    """Array of Arrow."""
    dtype: np.dtype[Any]
    """Data type of its numbers."""
    values: np.ndarray
    """What is expected, ``(n_rows, n_features)``, as float64 where there are nulls."""
    has_nulls: bool
    """Whether there are any."""


def _column(rng: np.random.Generator, name: str, n: int) -> Drawn:
    import pyarrow as pa

    form = str(rng.choice(list(_SHAPES)))
    shape = _SHAPES[form]
    dtype = np.dtype("float64" if form == "decimal" else str(rng.choice(_DTYPES)))
    width = int(np.prod(shape, dtype=int))
    drawn = rng.normal(size=(n, width)) * 50
    numbers = drawn.astype(dtype) if dtype.kind != "u" else np.abs(drawn).astype(dtype)
    within = (
        rng.random((n, width)) < 0.1 if rng.random() < 0.3 and form not in ("tensor",) else np.zeros((n, width), bool)
    )
    rows = rng.random(n) < 0.2 if shape and rng.random() < 0.2 and form != "nested" else np.zeros(n, bool)
    rows[0] = False  # whose length is that of all lists
    if form == "decimal":
        texts = [decimal.Decimal(f"{round(4 * value) / 4:.2f}") for value in drawn[:, 0]]
        numbers = np.array([[float(text)] for text in texts])
        stored = pa.array(texts, pa.decimal128(12, 2), mask=within[:, 0])
    elif not shape:
        stored = pa.array(numbers[:, 0], mask=within[:, 0])
    elif form in ("list", "large list"):
        kind = (pa.list_ if form == "list" else pa.large_list)(pa.from_numpy_dtype(dtype))
        lists = [
            None if missing else [None if hole else value for value, hole in zip(*pair, strict=True)]
            for missing, *pair in zip(rows, numbers, within, strict=True)
        ]
        stored = pa.array(lists, kind)
    else:
        flat = pa.array(numbers.ravel(), mask=within.ravel())
        stored = flat
        for size in (shape if form == "nested" else (width,))[::-1]:
            stored = pa.FixedSizeListArray.from_arrays(stored, size)
        rows[:] = False  # of which older versions of pyarrow write files that they do not read
        if form == "tensor":
            stored = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.from_numpy_dtype(dtype), shape), stored)
    holes = within | rows[:, None]
    values = np.where(holes, np.nan, numbers.astype("f8")) if holes.any() else numbers
    return Drawn(name, stored, dtype, values, bool(holes.any()))


def _write(rng: np.random.Generator, path: Path, table: Any, kind: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    rows = int(rng.integers(1, max(2, table.num_rows)))
    if kind == "parquet":
        options = {
            "compression": str(rng.choice(["none", "snappy", "zstd"])),
            "use_dictionary": bool(rng.random() < 0.5),
        }
        parquet.write_table(table, path, row_group_size=rows, write_page_checksum=bool(rng.random() < 0.5), **options)
        return
    compressed = pa.ipc.IpcWriteOptions(compression=[None, "lz4", "zstd"][int(rng.integers(3))])
    opened = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with opened(str(path), table.schema, options=compressed) as writer:
        writer.write_table(table, max_chunksize=rows)


@pytest.mark.deep(keep=12)
@pytest.mark.parametrize("seed", range(300))
def test_random_directories_are_what_numpy_reads(seed: int, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 120))
    kind = "parquet" if seed % 3 else str(rng.choice(["file", "stream"]))
    columns = [_column(rng, f"c{index}", n) for index in range(int(rng.integers(1, 6)))]
    ids = [f"row {index}" for index in range(n)]
    table = pa.table(
        {"id": pa.array(ids).dictionary_encode() if rng.random() < 0.3 else ids} | {c.name: c.stored for c in columns}
    )
    cuts = np.sort(rng.integers(0, n + 1, int(rng.integers(0, 4)))).tolist()
    years = np.zeros(n)
    partitions = bool(rng.random() < 0.3)
    end = ".parquet" if kind == "parquet" else ".arrow"
    for index, (start, stop) in enumerate(zip([0, *cuts], [*cuts, n], strict=True)):
        folder = tmp_path / "data" / (f"year={2000 + index}" if partitions else "")
        years[start:stop] = 2000 + index
        order = rng.permutation(table.num_columns).tolist() if index else list(range(table.num_columns))
        _write(rng, folder / f"part-{index}{end}", table.slice(start, stop - start).select(order), kind)
    chosen = [columns[i] for i in rng.permutation(len(columns))[: int(rng.integers(1, len(columns) + 1))]]
    names, parts = [c.name for c in chosen], [c.values for c in chosen]
    kinds = [c.dtype for c in chosen]
    if partitions and rng.random() < 0.5:
        names, parts, kinds = [*names, "year"], [*parts, years[:, None]], [*kinds, np.dtype("f8")]
    opened = sp.open(tmp_path / "data", columns=names, id_column="id")
    common = np.result_type(*kinds)
    if common.kind != "f" and any(c.has_nulls for c in chosen):
        common = np.dtype("f4" if common.itemsize <= 2 else "f8")
    expected = np.concatenate([part.astype(common) for part in parts], axis=1)
    assert (opened.shape, opened.dtype) == (expected.shape, common)
    np.testing.assert_array_equal(opened.to_dask(int(rng.integers(1, n + 1))).compute(), expected)
    start, stop = sorted(rng.integers(0, n + 1, 2).tolist())
    np.testing.assert_array_equal(opened.read(start, stop)[0], expected[start:stop])
    assert opened.labels is not None
    assert opened.labels.sample_values("id").tolist() == ids
    if partitions and "year" not in names:
        found = opened.sample_columns
        assert found is not None
        np.testing.assert_array_equal(found.values("year"), years)
