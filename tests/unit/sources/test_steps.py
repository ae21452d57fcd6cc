"""Steps between stored rows and those that are used: their order, their labels, their memory, and rows of any kind."""

from __future__ import annotations

import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import Elementwise, Grid, Normalization, ReadCount, RowRange, Source, Step, SteppedSource, with_features
from numpy.typing import NDArray
from scipy.sparse import csr_array
from stores import write_store

import streampca as sp
from streampca.errors import NotAvailableError

RANDOM = np.random.default_rng(3)
COUNTS = RANDOM.poisson(0.7, (300, 40)).astype(np.uint16)
NORMALIZATION: Any = Normalization.of({"target_sum": 100, "log1p": True})
USED = RANDOM.random(40) < 0.4


class SquareRoots(Elementwise):
    """Square roots, as somebody would add them who has never seen the package."""

    digest = b"roots"

    def dtype(self, dtype: Any) -> Any:
        return np.dtype(np.float32)

    def of_values(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        np.sqrt(values, out=out)


def sources(directory: Path) -> dict[str, Source]:
    """Return the counts as sources of several kinds."""
    return {
        "memory": sp.open(COUNTS),
        "sparse": sp.open(csr_array(COUNTS)),
        "chunks": sp.open(str(write_store(directory / "x.zarr", COUNTS, chunks=(70, 9)))),
        "features first": sp.open(
            str(write_store(directory / "y.zarr", np.ascontiguousarray(COUNTS.T), chunks=(11, 90))),
            orientation="features_first",
        ),
    }


@pytest.mark.parametrize("kind", ["memory", "sparse", "chunks", "features first"])
def test_steps_are_done_in_their_order(tmp_path: Path, kind: str) -> None:
    source = SteppedSource(sources(tmp_path)[kind], [SquareRoots()])
    table = with_features(source, USED) if kind != "sparse" else source
    expected = np.sqrt(COUNTS.astype(np.float32))
    expected = expected if kind == "sparse" else expected[:, USED]
    for each in (table, pickle.loads(pickle.dumps(table)), table.slice(40, 260)):
        values, count = each.read(50, 250)
        values = values.toarray() if kind == "sparse" else values
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, expected[50:250])
        assert count == source.source.read(50, 250)[1]
    features = table.by_features()
    values = features.read(3, 9)[0]
    np.testing.assert_array_equal(values.toarray() if kind == "sparse" else values, expected[:, 3:9].T)


def test_a_table_with_steps_can_be_rows_of_another_one_with_steps(tmp_path: Path) -> None:
    """Each has scratch memory of its own: a packed variable below, for example, and residuals above."""
    counts = np.tile(COUNTS, (30, 1))  # more rows than pass the steps at once
    stored = sp.open(str(write_store(tmp_path / "x.zarr", counts, chunks=(7000, 40))))
    inner = RowRange(SteppedSource(stored, [SquareRoots()]), 15, len(counts))
    outer = with_features(SteppedSource(inner, [SquareRoots()]), USED)
    expected = np.sqrt(np.sqrt(counts[15:].astype(np.float32)))[:, USED]
    np.testing.assert_array_equal(outer.read(20, 8000)[0], expected[20:8000])


def test_what_is_known_of_stored_rows_is_known_of_the_others(tmp_path: Path) -> None:
    stored = sources(tmp_path)["chunks"]
    table = with_features(stored, USED)
    for name in ("description", "chunk_rows", "portable", "column_major", "repeats"):
        assert getattr(table, name) == getattr(stored, name), name
    assert table.grid == replace(stored.grid, chunk_columns=0)
    assert table.keys(0, 80) == stored.keys(0, 80)
    assert table.reads_of(0, 80) == stored.reads_of(0, 80)
    assert table.version() == stored.version()
    assert table.shape == (300, USED.sum())
    assert table.fingerprint != stored.fingerprint


@pytest.mark.parametrize("names", ["roots", "chosen", "roots chosen", "normalized", "unit", "unit chosen"])
def test_reading_takes_no_more_memory_than_is_said(tmp_path: Path, names: str) -> None:
    rows = np.tile(COUNTS, (100, 10))
    source = sp.open(str(write_store(tmp_path / "x.zarr", rows, chunks=(3000, 400))))
    source = SteppedSource(source, [SquareRoots()] if "roots" in names else [])
    source = SteppedSource(source, NORMALIZATION.steps(source.dtype)) if names == "normalized" else source
    source = sp.open(source, normalize={"norm": "l1"}) if "unit" in names else source
    source = with_features(source, np.tile(USED, 10)) if names not in ("roots", "unit") else source
    out = np.empty((9000, source.shape[1]), dtype=source.dtype)

    def peak() -> int:
        tracemalloc.start()
        try:
            source.read(6000, 15_000, out)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    source.read(0, 10, out[:10])  # imports
    with ThreadPoolExecutor(1) as thread:  # without scratch memory of its own
        assert thread.submit(peak).result() <= source.overhead_bytes(9000) + 2**18


def test_answers_are_those_of_numpy(tmp_path: Path) -> None:
    table = SteppedSource(sources(tmp_path)["chunks"], [SquareRoots()])
    rows = np.sqrt(COUNTS.astype(np.float32))
    for solver in ("covariance", "gram", "qr"):
        found = sp.PCA(3, solver=solver).fit(table).explained_variance_
        np.testing.assert_allclose(found, sp.PCA(3).fit(rows).explained_variance_, rtol=1e-5)


def test_steps_for_dense_rows_refuse_sparse_ones() -> None:
    class Halves(SquareRoots):
        apply_stored = Step.apply_stored

    table = SteppedSource(sp.open(csr_array(COUNTS)), [Halves()])
    with pytest.raises(NotAvailableError, match="Halves needs dense rows"):
        table.read(0, 10)


class Rows(Source):
    """Rows of something else, with what a source must have and nothing more."""

    description, fingerprint = "other rows", "other"

    def __init__(self) -> None:
        self.shape, self.dtype, self.grid = COUNTS.shape, COUNTS.dtype, Grid(64, whole=True)

    def read(self, start: int, stop: int, out: Any = None) -> Any:
        return COUNTS[start:stop], ReadCount(1, 0, 0)


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr"])
def test_a_source_needs_little(solver: str) -> None:
    found = sp.PCA(3, solver=solver).fit(Rows())
    expected = sp.PCA(3, solver=solver).fit(COUNTS)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-6)


def test_every_key_of_normalize_has_a_step() -> None:
    for key, _ in NORMALIZATION.values:
        value = True if key.takes is bool else 2.0 if key.takes is float else key.words[0]
        steps = Normalization.of({key.name: value}).steps(np.dtype(np.uint16))
        table = SteppedSource(sp.open(COUNTS), steps)
        if table.unfitted:
            sp.PCA(1).fit(table)
        values = table.read(0, 300)[0]
        if not key.dense:
            sparse = SteppedSource(sp.open(csr_array(COUNTS)), steps).read(0, 300)[0]
            np.testing.assert_allclose(sparse.toarray(), values, rtol=1e-6)
        assert values.shape == COUNTS.shape
        assert np.isfinite(values).all()
        assert (values != COUNTS).any()
