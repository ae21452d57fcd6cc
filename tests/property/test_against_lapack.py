"""Whatever the source, its chunks, its type and the shape of the work: the answer is that of LAPACK on the same rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import dask.array as da
import facade
import numpy as np
import pytest
import spectra
import tolerances
import zarr
from facade import decode_by_zarr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numcodecs import Blosc, GZip, Zstd
from numpy.typing import NDArray
from strategies import examples, make_rows, tables
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

from streampca import PCA
from streampca.errors import DataError
from streampca.metrics import principal_angles
from streampca.sources import Source, open_source

pytestmark = pytest.mark.numerical

EXAMPLES = examples(20)
EXACT_IN_FLOAT32 = ("bool", "int8", "uint8", "float16", "float32")
"""Types whose rows are worked on in float32."""
_names = count()

V2_CODECS: dict[str, Any] = {
    "none": None,
    "zstd": Zstd(),
    "blosc": Blosc(),
    "gzip": GZip(),
}
V3_CODECS: dict[str, Any] = {
    "none": [],
    "zstd": ZstdCodec(),
    "zstd+crc32c": [ZstdCodec(checksum=True), Crc32cCodec()],
    "blosc": BloscCodec(),
    "gzip": GzipCodec(),
    "crc32c": [Crc32cCodec()],
}


@pytest.fixture(scope="module")
def scratch() -> Any:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def write_zarr(
    path: Any, values: NDArray[Any], chunks: tuple[int, int], *, shards: Any = None, **options: Any
) -> zarr.Array[Any]:
    """Write `values` as a zarr array with every chunk stored, also those that hold only the fill value."""
    array = zarr.create_array(
        path,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks,
        shards=shards,
        config={"write_empty_chunks": True},
        **options,
    )
    array[...] = values
    return array


@st.composite
def sources(draw: st.DrawFn, kind: str) -> Callable[[NDArray[Any], Path], Source]:
    """Draw a way of storing rows: chunk grid, codec, orientation."""
    across, along = draw(st.integers(1, 25)), draw(st.integers(1, 8))
    features_first = draw(st.booleans())
    options = {"orientation": "features_first" if features_first else "samples_first"}
    if kind == "v2":
        codec, order = draw(st.sampled_from(sorted(V2_CODECS))), draw(st.sampled_from("CCF"))
    elif kind in ("v3", "sharded", "in memory"):
        codec = draw(st.sampled_from(sorted(V3_CODECS)))
        inner = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))

    def make(rows: NDArray[Any], directory: Path) -> Source:
        stored = np.ascontiguousarray(rows.T if features_first else rows)
        chunks = (min(along, stored.shape[0]), min(across, stored.shape[1]))
        chunks = chunks if features_first else (min(across, stored.shape[0]), min(along, stored.shape[1]))
        path = str(directory / str(next(_names)))
        if kind == "v2":
            write_zarr(path, stored, chunks, zarr_format=2, compressors=V2_CODECS[codec], order=order)
        elif kind == "v3":
            write_zarr(path, stored, chunks, zarr_format=3, compressors=V3_CODECS[codec])
        elif kind == "in memory":
            return open_source(write_zarr(MemoryStore(), stored, chunks, compressors=V3_CODECS[codec]), **options)
        else:
            shards = tuple(n * k for n, k in zip(chunks, inner, strict=True))
            write_zarr(path, stored, chunks, shards=shards, compressors=V3_CODECS[codec])
        return open_source(path, **options)

    return make


@st.composite
def other_sources(draw: st.DrawFn, kind: str) -> Callable[[NDArray[Any], Path], Source]:
    """Draw a way of handing rows over that has no store of chunks."""
    seed = draw(st.integers(0, 2**16))

    def cut(n: int, rng: np.random.Generator) -> tuple[int, ...]:
        inner = np.sort(rng.integers(0, n + 1, size=rng.integers(0, 4)))
        sizes = np.diff(np.concatenate([[0], inner, [n]]))
        return tuple(int(size) for size in sizes if size) or (n,)

    def make(rows: NDArray[Any], directory: Path) -> Source:
        path, rng = directory / f"{next(_names)}.npy", np.random.default_rng(seed)
        if kind == "dask":
            return open_source(da.from_array(rows, chunks=tuple(cut(n, rng) for n in rows.shape)))
        if kind == "numpy":
            return open_source(rows)
        np.save(path, rows)
        return open_source(path) if kind == "npy" else open_source(np.load(path, mmap_mode="r"))

    return make


@dataclass(frozen=True)
class Shape:
    """How the work is cut, beside how the data is: blocks that straddle chunks, many leaves."""

    rows_per_block: int
    n_leaves: int
    threads: int

    def fit(self, source: Source, **parameters: Any) -> Any:
        plan = facade.plan(source, **parameters)
        rows = min(self.rows_per_block, source.shape[0])
        n_blocks = -(-source.shape[0] // rows)
        n_leaves = min(self.n_leaves, n_blocks)
        plan = plan.replace(
            edges=None,
            rows_per_block=rows,
            n_blocks=n_blocks,
            n_leaves=n_leaves,
            leaves_in_flight=self.threads,
            window=2 * self.threads,
        )
        return facade.fit(source, plan, **parameters)


shapes = st.builds(Shape, st.integers(1, 45), st.integers(1, 6), st.integers(1, 2))
options = st.builds(
    lambda center, scale, ddof: {"center": center, "scale": scale, "ddof": ddof},
    st.booleans(),
    st.booleans(),
    st.integers(0, 1),
)


def assert_is_lapack(model: Any, rows: NDArray[Any], **parameters: Any) -> None:
    """Assert that eigenvalues, leading subspace, total and mean are those of LAPACK."""
    values, vectors = spectra.lapack(rows, **parameters)
    k, precision = len(model.components), tolerances.eigenvalues(rows.dtype)
    first = max(values[0], float(np.finfo(float).tiny))
    assert np.abs(model.explained_variance - values[:k]).max() <= precision * first
    assert abs(model.total_variance - values.sum()) <= precision * len(values) * first
    gram = model.components @ model.components.T
    assert np.abs(gram - np.eye(k)).max() <= tolerances.orthonormality(rows.shape[1])
    leading = tolerances.largest_gap_count(values, precision=1e-8 if rows.dtype.name in EXACT_IN_FLOAT32 else 1e-13)
    if leading:
        assert principal_angles(model.components[:leading], vectors[:leading]).max() < tolerances.ANGLE
    if parameters.get("center", True):
        assert (np.abs(model.mean - exact_mean(rows)) <= tolerances.mean(rows)).all()


def exact_mean(rows: NDArray[Any]) -> NDArray[np.float64]:
    values = rows.astype(np.float64)
    return np.asarray(values[0] + (values - values[0]).mean(axis=0))


@pytest.mark.deep(keep=4)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["v2", "v3", "sharded", "in memory", "npy", "memmap", "numpy", "dask"])
def test_any_source_and_any_chunks(kind: str, scratch: Path) -> None:
    drawn = (sources if kind in ("v2", "v3", "sharded", "in memory") else other_sources)(kind)

    @settings(max_examples=EXAMPLES)
    @given(rows=tables(min_rows=2), make=drawn, shape=shapes, parameters=options)
    def check(rows: NDArray[Any], make: Any, shape: Shape, parameters: dict[str, Any]) -> None:
        assume(not (rows == rows[0]).all())
        source = make(rows, scratch)
        assert source.shape == rows.shape
        result = shape.fit(source, **parameters)
        assert_is_lapack(result.model, rows, **parameters)
        np.testing.assert_array_equal(source.read(0, len(rows))[0], rows)

    check()


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(rows=tables(min_rows=2, max_rows=25), make=st.one_of(sources("v2"), sources("v3")), shape=shapes)
def test_the_direct_reader_gives_the_bytes_that_zarr_gives(rows: NDArray[Any], make: Any, shape: Shape) -> None:
    assume(rows.dtype.kind == "f" or np.abs(rows.astype(np.float64)).max() <= 2**53)  # beyond it a fit may be refused
    with tempfile.TemporaryDirectory() as directory:
        source = make(rows, Path(directory))
        direct = [source.read(start, len(rows))[0].tobytes() for start in range(0, len(rows), 3)]
        one = shape.fit(source)
        decode_by_zarr(source)
        assert [source.read(start, len(rows))[0].tobytes() for start in range(0, len(rows), 3)] == direct
        other = shape.fit(source)
    assert one.model.components.tobytes() == other.model.components.tobytes()
    assert one.model.explained_variance.tobytes() == other.model.explained_variance.tobytes()
    assert one.count.chunks == other.count.chunks


def test_the_usual_ways_of_storing_are_read_directly(tmp_path: Path) -> None:
    rows = make_rows(30, 4, "float32", "normal", 0)
    for name, codec in V3_CODECS.items():
        write_zarr(str(tmp_path / name), rows, (7, 3), compressors=codec)
        assert open_source(tmp_path / name).describe()["reader"] == "direct", name
    for name, codec in V2_CODECS.items():
        write_zarr(str(tmp_path / f"{name}-2"), rows, (7, 3), compressors=codec, zarr_format=2)
        assert open_source(tmp_path / f"{name}-2").describe()["reader"] == "direct", name


@pytest.mark.parametrize("spectrum", ["fast", "slow", "near_cluster", "rank_deficient"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("scale", [False, True])
def test_thousands_of_rows(spectrum: str, dtype: str, scale: bool) -> None:
    rows = spectra.rows_with_spectrum(20_000, spectra.eigenvalues(spectrum, 40), seed=3).astype(dtype)
    rows += np.arange(40, dtype=dtype)
    model = PCA(scale=scale).fit(rows)._model
    assert_is_lapack(model, rows, scale=scale)


@pytest.mark.parametrize("far", [1e6, 1e8])
@pytest.mark.parametrize("scale", [False, True])
def test_a_mean_far_from_zero_costs_no_digits(far: float, scale: bool) -> None:
    """The rows are multiples of 2**-20, so that adding the mean is exact and LAPACK can work on the rows without it."""
    near = np.rint(spectra.rows_with_spectrum(12_000, spectra.eigenvalues("slow", 30), seed=4) * 2**20) / 2**20
    rows = near + far
    assert (rows - far == near).all()
    values, vectors = spectra.lapack(near, scale=scale)
    pca = PCA(10, scale=scale).fit(da.from_array(rows, chunks=(1700, 13)))
    assert np.abs(pca.explained_variance_ - values[:10]).max() <= tolerances.EIGENVALUES_FLOAT64 * values[0]
    assert principal_angles(pca.components_, vectors[:10]).max() < tolerances.ANGLE
    np.testing.assert_allclose(pca.mean_, near.mean(axis=0) + far, rtol=2 * tolerances.EPS)
    expected = near - near.mean(axis=0)
    expected = (expected / expected.std(axis=0, ddof=1) if scale else expected) @ pca.components_.T
    np.testing.assert_allclose(pca.transform(rows), expected, atol=1e-6 * np.abs(expected).max())


def test_float32_far_from_zero() -> None:
    rows = np.array([[1e5 + 1, 1e5], [1e5, 1e5 + 1]], dtype=np.float32)
    pca = PCA().fit(rows)
    np.testing.assert_array_equal(pca.explained_variance_, [1.0, 0.0])
    np.testing.assert_allclose(
        pca.components_[0], [np.sqrt(0.5), -np.sqrt(0.5)] * np.sign(pca.components_[0]) * [1, -1]
    )


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("value", [0.1, 1e8 + 0.1, -7.3e-5])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_constant_features_have_no_variance_and_no_weight(scale: bool, value: float, dtype: str) -> None:
    rows = np.random.default_rng(5).standard_normal((5000, 6)).astype(dtype)
    rows[:, [1, 4]] = value
    pca = PCA(scale=scale).fit(da.from_array(rows, chunks=(700, 4)))
    np.testing.assert_array_equal(pca.constant_features_, [1, 4])
    assert np.abs(pca.components_[:4, [1, 4]]).max() <= tolerances.orthonormality(6)
    assert pca.explained_variance_[4:].max() <= tolerances.residual(6) * pca.explained_variance_[0]
    np.testing.assert_array_equal(pca.mean_[[1, 4]], np.dtype(dtype).type(value))
    assert_is_lapack(pca._model, rows, scale=scale)
    if scale:
        np.testing.assert_allclose(pca.explained_variance_.sum(), 4.0, rtol=tolerances.eigenvalues(dtype))


@pytest.mark.parametrize("shape", [(2, 9), (5, 40), (1, 1), (2, 1), (3, 3)])
@pytest.mark.parametrize("whiten", [False, True])
def test_fewer_rows_than_features(shape: tuple[int, int], whiten: bool) -> None:
    rows = np.random.default_rng(6).standard_normal(shape) + 3
    if shape[0] == 1:
        with pytest.raises(DataError, match="1 sample"):
            PCA().fit(rows)
        return
    pca = PCA(whiten=whiten).fit(rows)
    assert_is_lapack(pca._model, rows)
    scores = pca.transform(rows)
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(pca.inverse_transform(scores), rows, atol=1e-10)


@pytest.mark.parametrize(
    "parameters", [{}, {"scale": True}, {"center": False}, {"scale": True, "center": False}, {"ddof": 0}]
)
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "uint8"])
def test_scores_are_those_of_lapack(parameters: dict[str, Any], whiten: bool, dtype: str) -> None:
    rows = (spectra.rows_with_spectrum(4000, 9.0 * spectra.eigenvalues("slow", 12), seed=7) + 60).astype(dtype)
    values, vectors = spectra.lapack(rows, **parameters)
    pca = PCA(5, whiten=whiten, **parameters).fit(rows)
    assert_is_lapack(pca._model, rows, **parameters)
    assert pca.explained_variance_ratio_ == pytest.approx(values[:5] / values.sum(), rel=1e-6)
    taken = rows.astype(np.float64)
    if parameters.get("center", True):
        taken = taken - taken.mean(axis=0)
    if parameters.get("scale"):
        taken = taken / rows.astype(np.float64).std(axis=0, ddof=parameters.get("ddof", 1))
    expected = taken @ vectors[:5].T
    expected /= np.sqrt(values[:5]) if whiten else 1.0
    scores = pca.transform(rows)
    assert scores.dtype == (np.float32 if dtype == "float32" else np.float64)
    expected *= np.sign((expected * scores).sum(axis=0))
    np.testing.assert_allclose(scores, expected, atol=tolerances.eigenvalues(dtype) * 10 * np.abs(expected).max())
