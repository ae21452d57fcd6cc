"""AnnData stores read as tables: values, names, masks, normalisation, chunks decoded once, and what is refused."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cells
import numpy as np
import pytest
import zarr
from facade import NORMALIZE_KEYS, normalize_keys
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from stores import picture

import streampca as sp
from streampca.errors import DataError, NotAvailableError, NotFiniteError, ParameterError, StreamPCAError

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*:zarr.errors.ZarrUserWarning", "ignore:.*:zarr.errors.UnstableSpecificationWarning"
)
COUNTS = cells.make_counts()
USED = np.arange(40) % 3 != 1
NORMALIZE = {"target_sum": 1e4, "log1p": True}


def rows_of(source: Any, step: int = 77) -> np.ndarray[Any, Any]:
    """Return all rows of a source, read in blocks in order."""
    n = source.shape[0]
    blocks = [source.read(start, min(n, start + step))[0] for start in range(0, n, step)]
    return np.concatenate([block.toarray() if source.sparse else block for block in blocks])


@pytest.mark.parametrize("version", [2, 3])
def test_sparse_rows_names_and_types_are_those_of_the_store(tmp_path: Path, version: int) -> None:
    source = sp.open(cells.write_cells(tmp_path / "a.zarr", COUNTS, version=version))
    assert (source.shape, source.dtype, source.sparse) == ((300, 40), np.float32, True)
    np.testing.assert_array_equal(rows_of(source), COUNTS.toarray())
    assert source.feature_names == tuple(f"gene{i}" for i in range(40))
    assert source.labels is not None
    assert source.labels.sample_name(7) == "obs_names=cell7"


def test_layer_is_read_in_place_of_the_matrix_and_dense_ones_are_dense(tmp_path: Path) -> None:
    path = cells.write_cells(tmp_path / "a.zarr", COUNTS, layers={"twice": COUNTS * 2, "dense": COUNTS.toarray()})
    np.testing.assert_array_equal(rows_of(sp.open(path, layer="twice")), 2 * COUNTS.toarray())
    dense = sp.open(path, layer="dense")
    assert not dense.sparse
    np.testing.assert_array_equal(rows_of(dense), COUNTS.toarray())


def _totals_of_1000(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    totals = rows.sum(axis=1, keepdims=True)
    return rows * 1000 / np.where(totals > 0, totals, 1000)


def _standardised(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    deviations = rows[:, USED].std(axis=0, ddof=1)
    scores = (rows[:, USED] - rows[:, USED].mean(axis=0)) / np.where(deviations > 0, deviations, 1)
    return np.clip(scores, -2, 2)


@pytest.mark.parametrize("layer", [None, "dense"])
@pytest.mark.parametrize("place", [None, 0, 1, 2, 3])
def test_steps_are_done_in_the_order_of_their_keys(tmp_path: Path, place: int | None, layer: str | None) -> None:
    """The order is scanpy's, ``normalize_total``, ``log1p``, ``scale`` of the chosen genes; a further key is done where it stands."""
    done: dict[str, Any] = {"target_sum": _totals_of_1000, "log1p": np.log1p, "max_value": _standardised}
    keys, asked = (
        [key for key in NORMALIZE_KEYS if key.name in done],
        {"target_sum": 1000, "log1p": True, "max_value": 2},
    )
    if place is not None:
        done["root"], asked["root"] = np.cbrt, True
        keys.insert(place, keys[1]._replace(name="root", step="Roots"))
    expected = COUNTS.toarray().astype(np.float64)
    for key in keys:
        expected = done[key.name](expected)
    path = cells.write_cells(tmp_path / "a.zarr", COUNTS, layers={"dense": COUNTS.toarray()}, var={"hv": USED})
    with normalize_keys(keys, Roots=np.cbrt):
        pca = sp.PCA(3).fit(sp.open(path, layer=layer, mask_var="hv", normalize=asked))
    np.testing.assert_allclose(pca.mean_, expected.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pca.explained_variance_, cells.components(expected, 3)[1], rtol=1e-5)


@pytest.mark.parametrize("layer", [None, "dense"])
@pytest.mark.parametrize("normalize", [{"target_sum": 1e4, "log1p": True}, {"log1p": True}, {"target_sum": 100.0}])
def test_rows_are_normalised_by_all_features_and_masked_after_that(
    tmp_path: Path, layer: str | None, normalize: dict[str, Any]
) -> None:
    path = cells.write_cells(
        tmp_path / "a.zarr", COUNTS, layers={"dense": COUNTS.toarray()}, var={"highly_variable": USED}
    )
    source = sp.open(path, layer=layer, mask_var="highly_variable", normalize=normalize)
    expected = cells.normalized(COUNTS, normalize.get("target_sum"), log1p=normalize.get("log1p", False))[:, USED]
    rows = rows_of(source)
    assert rows.dtype == source.dtype == np.float32
    np.testing.assert_allclose(rows, expected, rtol=2e-7)
    assert source.feature_names == tuple(f"gene{i}" for i in np.flatnonzero(USED))
    if layer is None:
        assert source.read(0, 50)[0].nnz == COUNTS[:50][:, USED].nnz


@pytest.mark.parametrize(
    ("stored", "expected"), [("f2", "f4"), ("f8", "f8"), ("u2", "f4"), ("i4", "f8"), ("u1", "f4"), ("bool", "f4")]
)
def test_type_of_normalised_values_is_float32_for_narrow_types(tmp_path: Path, stored: str, expected: str) -> None:
    dense = COUNTS.toarray().astype(stored)
    path = cells.write_cells(tmp_path / "a.zarr", COUNTS, layers={"dense": dense})
    source = sp.open(path, layer="dense", normalize={"target_sum": 1e4})
    assert source.dtype == source.read(0, 10)[0].dtype == np.dtype(expected)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ">f4", "uint16", "int32", "bool"])
def test_values_of_every_type_are_read(tmp_path: Path, dtype: str) -> None:
    counts = csr_array((COUNTS.data.astype("f4"), COUNTS.indices, COUNTS.indptr), shape=COUNTS.shape)
    path = cells.write_cells(tmp_path / "a.zarr", csr_array(counts.shape, dtype="f4"), version=2)
    group = zarr.open_group(path / "X", mode="a")
    for name, values in (("data", counts.data.astype(dtype)), ("indices", counts.indices), ("indptr", counts.indptr)):
        del group[name]
        cells.add(group, name, values, 333)
    rows = rows_of(sp.open(path))
    np.testing.assert_array_equal(rows, counts.toarray().astype(dtype).astype(rows.dtype))


@pytest.mark.slow
@settings(max_examples=40)
@given(data=st.data())
def test_any_blocks_of_any_chunks_give_the_rows(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    n, d, seed = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 12)), data.draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    dense = rng.integers(1, 9, (n, d)) * (rng.random((n, d)) < data.draw(st.sampled_from([0.0, 0.2, 0.9])))
    matrix = csr_array(dense.astype(data.draw(st.sampled_from(["f4", "f8", "i2"]))))
    path = cells.write_cells(tmp_path_factory.mktemp("any") / "a.zarr", matrix, chunks=data.draw(st.integers(1, 60)))
    mask = rng.random(d) < 0.6
    mask[0] = True
    source = sp.open(path, mask=mask, normalize={"log1p": True})
    np.testing.assert_allclose(rows_of(source, data.draw(st.integers(1, n))), np.log1p(dense[:, mask]), rtol=2e-7)
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    block = pickle.loads(pickle.dumps(source)).read(start, stop)[0].toarray()
    np.testing.assert_allclose(block, np.log1p(dense[start:stop, mask]), rtol=2e-7)


@pytest.mark.parametrize("chunks", [13, 64, 500, 10**6])
def test_chunks_are_decoded_once_in_a_pass_in_order(tmp_path: Path, chunks: int) -> None:
    source = sp.open(cells.write_cells(tmp_path / "a.zarr", COUNTS, chunks=chunks))
    counts = [source.read(start, start + 25)[1] for start in range(0, 300, 25)]
    n_chunks = -(-COUNTS.nnz // min(chunks, COUNTS.nnz))
    assert sum(count.chunks for count in counts) == 2 * n_chunks
    assert sum(count.bytes for count in counts) == COUNTS.nnz * (4 + COUNTS.indices.itemsize)


def test_of_shards_the_chunks_in_them_are_read_and_held(tmp_path: Path) -> None:
    path = cells.write_cells(tmp_path / "a.zarr", COUNTS)
    node: Any = zarr.open_group(path, mode="r+")["X"]
    for name in ("data", "indices"):
        values = node[name][:]
        del node[name]
        node.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(10**3,), shards=(10**8,))[:] = values
    table = sp.open(path)
    np.testing.assert_array_equal(rows_of(table, 25), COUNTS.toarray())
    block = pickle.loads(pickle.dumps(table)).read(110, 140)[0].toarray()
    np.testing.assert_array_equal(block, COUNTS[110:140].toarray())
    assert table.overhead_bytes(1) < 10**8  # a shard takes 400 MB
    fitted = sp.PCA(3).fit(table)
    assert fitted.bytes_read_ == COUNTS.nnz * (4 + COUNTS.indices.itemsize) == fitted.plan_.bytes_to_read
    np.testing.assert_array_equal(fitted.components_, sp.PCA(3).fit(sp.open(COUNTS)).components_)


def test_a_store_written_again_is_not_read_from_what_a_thread_kept(tmp_path: Path) -> None:
    path = cells.write_cells(tmp_path / "a.zarr", COUNTS, chunks=10**6)
    sp.open(path).read(0, 10)
    cells.write_cells(path, COUNTS * 3, chunks=10**6)
    np.testing.assert_array_equal(sp.open(path).read(10, 20)[0].toarray(), 3 * COUNTS[10:20].toarray())


def test_unsorted_columns_are_sorted(tmp_path: Path) -> None:
    indices, data = COUNTS.indices.copy(), COUNTS.data.copy()
    for start, stop in zip(COUNTS.indptr[:-1], COUNTS.indptr[1:], strict=True):
        indices[start:stop], data[start:stop] = indices[start:stop][::-1], data[start:stop][::-1]
    path = cells.write_cells(tmp_path / "a.zarr", COUNTS)
    group = zarr.open_group(path / "X", mode="a")
    group["indices"][:], group["data"][:] = indices, data  # type: ignore[index]
    np.testing.assert_array_equal(rows_of(sp.open(path)), COUNTS.toarray())


@pytest.mark.parametrize("solver", ["auto", "covariance", "sketch"])
@pytest.mark.parametrize("dense", [False, True])
def test_components_are_those_of_the_normalised_rows(tmp_path: Path, solver: Any, dense: bool) -> None:
    path = cells.write_cells(tmp_path / "a.zarr", COUNTS.toarray() if dense else COUNTS, var={"hv": USED})
    table = sp.open(path, mask_var="hv", normalize=NORMALIZE)
    pca = sp.PCA(3, solver=solver).fit(table)
    vectors, variances = cells.components(cells.normalized(COUNTS)[:, USED], 3)
    assert np.abs(np.sum(vectors * pca.components_, axis=1)).min() >= 1 - 1e-6
    np.testing.assert_allclose(pca.explained_variance_, variances, rtol=1e-5)
    rows = cells.normalized(COUNTS)[:, USED]
    scores = np.asarray(pca.transform(table))
    np.testing.assert_allclose(np.abs(scores), np.abs((rows - rows.mean(0)) @ vectors.T), atol=2e-2)
    np.testing.assert_array_equal(np.asarray(pca.transform(path)), scores)  # opened as the data of the fit


def test_transform_of_a_path_uses_the_features_of_the_fit(tmp_path: Path) -> None:
    path = cells.write_cells(tmp_path / "a.zarr", COUNTS, var={"hv": USED})
    pca = sp.PCA(2).fit(sp.open(path, mask_var="hv", normalize=NORMALIZE))
    other = cells.write_cells(tmp_path / "b.zarr", COUNTS, var={"hv": ~USED})
    np.testing.assert_array_equal(np.asarray(pca.transform(other)), np.asarray(pca.transform(path)))


def test_a_nullable_mask_without_missing_values_is_read(tmp_path: Path) -> None:
    anndata, pandas = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    var = pandas.DataFrame({"hv": pandas.array(USED, dtype="boolean")}, index=[f"g{i}" for i in range(len(USED))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anndata tells of defaults that will change
        anndata.AnnData(COUNTS, var=var).write_zarr(tmp_path / "a.zarr")
    np.testing.assert_array_equal(rows_of(sp.open(tmp_path / "a.zarr", mask_var="hv")), COUNTS.toarray()[:, USED])


def _csr(group: zarr.Group, name: str, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> None:
    values = change(np.asarray(group[f"X/{name}"][:]))  # type: ignore[index]
    del group[f"X/{name}"]
    cells.add(group["X"], name, values, 500)  # type: ignore[arg-type]


def _at(place: int, value: float) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    def change(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values = values.copy()
        values[place] = value
        return values

    return change


def _twice(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    first = int(np.flatnonzero(np.diff(COUNTS.indptr) > 1)[0])
    values = values.copy()
    values[COUNTS.indptr[first] + 1] = values[COUNTS.indptr[first]]
    return values


def _attribute(group: zarr.Group, name: str, value: Any) -> None:
    group["X"].attrs[name] = value


BROKEN: dict[str, tuple[Callable[[zarr.Group], object], dict[str, Any], type[StreamPCAError], str]] = {
    "duplicate": (lambda g: _csr(g, "indices", _twice), {}, DataError, "twice"),
    "indices too large": (lambda g: _csr(g, "indices", _at(9, 40)), {}, DataError, "indices hold 40 in row"),
    "indices negative": (lambda g: _csr(g, "indices", _at(9, -1)), {}, DataError, "indices hold -1"),
    "indices of floats": (lambda g: _csr(g, "indices", lambda v: v.astype("f4")), {}, DataError, "indices have dtype"),
    "indptr decreases": (lambda g: _csr(g, "indptr", _at(5, 0)), {}, DataError, "indptr decreases after row 4"),
    "indptr beyond data": (
        lambda g: _csr(g, "indptr", _at(-1, 10**9)),
        {},
        DataError,
        "indptr ends with 1,000,000,000",
    ),
    "indptr ends early": (lambda g: _csr(g, "indptr", lambda v: np.minimum(v, v[-2])), {}, DataError, "indptr"),
    "indptr begins late": (lambda g: _csr(g, "indptr", _at(0, 1)), {}, DataError, "indptr begins with 1"),
    "indptr too short": (lambda g: _csr(g, "indptr", lambda v: v[:-1]), {}, DataError, "expected 301 integers"),
    "data too short": (lambda g: _csr(g, "data", lambda v: v[:-1]), {}, DataError, "expected as many"),
    "no rows attribute": (lambda g: _attribute(g, "shape", [300]), {}, DataError, "expected two whole numbers"),
    "shape too many rows": (lambda g: _attribute(g, "shape", [301, 40]), {}, DataError, "expected 302 integers"),
    "shape too few columns": (lambda g: _attribute(g, "shape", [300, 39]), {}, DataError, "var has 40 names"),
    "shape of texts": (lambda g: _attribute(g, "shape", ["a", "b"]), {}, DataError, "expected two whole numbers"),
    "csc": (lambda g: _attribute(g, "encoding-type", "csc_matrix"), {}, DataError, "expected 41 integers"),
    "other encoding": (lambda g: _attribute(g, "encoding-type", "rec"), {}, DataError, "expected csr_matrix"),
    "no X": (lambda g: g.__delitem__("X"), {}, DataError, "has no X"),
    "no layer": (lambda g: None, {"layer": "count"}, DataError, "did you mean counts"),
    "no mask": (lambda g: None, {"mask_var": "hvg"}, DataError, "expected one of hv"),
    "mask of floats": (lambda g: None, {"mask_var": "score"}, DataError, "expected truth values"),
    "mask too short": (lambda g: None, {"mask_var": "short"}, DataError, "mask_var short has 7 names"),
    "mask of nothing": (lambda g: None, {"mask_var": "none"}, DataError, "true for none"),
    "mask in parent": (lambda g: None, {"mask_var": "../obs"}, DataError, "no such column"),
    "not finite": (lambda g: _csr(g, "data", _at(9, np.nan)), {"normalize": NORMALIZE}, NotFiniteError, "first at row"),
    "infinite": (lambda g: _csr(g, "data", _at(9, np.inf)), {}, NotFiniteError, "infinity"),
    "negative": (lambda g: _csr(g, "data", _at(9, -2)), {"normalize": NORMALIZE}, DataError, "negative value -2"),
    "normalize word": (lambda g: None, {"normalize": "log1p"}, ParameterError, "expected a mapping"),
    "normalize key": (lambda g: None, {"normalize": {"sum": 1}}, ParameterError, "expected a mapping"),
    "target zero": (lambda g: None, {"normalize": {"target_sum": 0}}, ParameterError, "above 0"),
    "two masks": (lambda g: None, {"mask_var": "hv", "mask": USED}, ParameterError, "leave one out"),
    "array and layer": (lambda g: None, {"array": "X", "layer": "counts"}, ParameterError, "leave array"),
    "samples": (lambda g: None, {"samples": "obs"}, NotAvailableError, "does not apply"),
}


@pytest.mark.deep(keep=16)
@pytest.mark.parametrize("name", BROKEN)
def test_broken_stores_are_named_errors_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    change, options, error, words = BROKEN[name]
    var = {"hv": USED, "score": np.ones(40), "none": np.zeros(40, bool), "short": np.ones(7, bool)}
    path = cells.write_cells(tmp_path / "a.zarr", COUNTS, layers={"counts": COUNTS}, var=var)
    change(zarr.open_group(path, mode="a"))
    before = picture(path)
    with pytest.raises(error, match=words.replace("(", r"\(").replace(")", r"\)")) as caught:
        sp.PCA(2).fit(sp.open(path, **options))
    assert "\n" not in str(caught.value)
    assert picture(path) == before


def test_missing_chunk_of_values_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    path = cells.write_cells(tmp_path / "a.zarr", COUNTS, chunks=100)
    (path / "X/indices/c/3").unlink()
    with pytest.raises(DataError, match="do not exist"):
        sp.PCA(2).fit(path)


def test_error_names_the_cell_and_the_gene(tmp_path: Path) -> None:
    counts = COUNTS.copy()
    counts.data[0] = np.nan
    row, column = int(np.flatnonzero(np.diff(counts.indptr))[0]), int(counts.indices[0])
    with pytest.raises(NotFiniteError, match=rf"row {row} \[obs_names=cell{row}\], column {column} \[gene{column}\]"):
        sp.PCA(2).fit(cells.write_cells(tmp_path / "a.zarr", counts))


def test_options_of_anndata_are_refused_for_other_data(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", COUNTS.toarray())
    zarr.open_group(tmp_path / "g.zarr", mode="w").create_array("x", data=COUNTS.toarray())
    for data in (COUNTS, COUNTS.toarray(), tmp_path / "x.npy", tmp_path / "g.zarr", tmp_path / "g.zarr" / "x"):
        with pytest.raises(NotAvailableError, match="layer is for an AnnData object"):
            sp.open(data, layer="counts")


def test_memory_of_a_block_counts_its_longest_rows(tmp_path: Path) -> None:
    lengths = np.r_[np.zeros(100, int), np.full(10, 40), np.zeros(100, int)]
    dense = np.arange(40)[None, :] < lengths[:, None]
    source = sp.open(cells.write_cells(tmp_path / "a.zarr", csr_array(dense.astype("f4"))))
    assert source.overhead_bytes(10) >= 8 * 400 * 8
    assert source.overhead_bytes(10) == source.overhead_bytes(100)


@pytest.mark.parametrize("form", ["object", "h5ad", "backed", "zarr"])
@pytest.mark.parametrize("changed", [False, True])
def test_wide_dense_cells_are_decomposed_by_the_matrix_of_samples(tmp_path: Path, form: str, changed: bool) -> None:
    anndata = pytest.importorskip("anndata")
    counts = np.random.default_rng(2).poisson(2, (30, 1000)).astype(np.float32)
    used = np.arange(1000) % 3 > 0
    data: Any = anndata.AnnData(counts)
    data.var["used"] = used
    if form == "zarr":
        with warnings.catch_warnings(action="ignore"):  # of the format of zarr that anndata writes
            data.write_zarr(tmp_path / "a.zarr", chunks=(7, 64))
        data = tmp_path / "a.zarr"
    elif form != "object":
        data.write_h5ad(tmp_path / "a.h5ad")
        data = tmp_path / "a.h5ad" if form == "h5ad" else anndata.read_h5ad(tmp_path / "a.h5ad", backed="r")
    rows = counts.astype(float)
    table = sp.open(data)
    if changed:
        table = sp.open(data, mask_var="used", normalize={"target_sum": 100, "log1p": True})
        rows = np.log1p(rows / rows.sum(axis=1, keepdims=True) * 100)[:, used]
    pca = sp.PCA(4).fit(table)
    assert pca.solver_ == "gram"
    centred = rows - rows.mean(axis=0)
    np.testing.assert_allclose(
        pca.explained_variance_, np.linalg.svd(centred, compute_uv=False)[:4] ** 2 / 29, rtol=1e-5
    )
    np.testing.assert_allclose(pca.transform(table), centred @ pca.components_.T, atol=1e-4)
    features = table.by_features()
    np.testing.assert_array_equal(features.read(5, 40)[0], table.read(0, 30)[0][:, 5:40].T)
    assert pca.plan_.bytes_to_read == pca.bytes_read_


@pytest.mark.parametrize("form", ["raw", "csc", "list"])
def test_raw_counts_columns_and_lists_of_files_are_read(form: str, tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    whole = anndata.AnnData(COUNTS.tocsc() if form == "csc" else COUNTS)
    if form == "raw":
        whole.raw = whole
    halves = (whole[:150].copy(), whole[150:].copy()) if form == "list" else (whole,)
    paths = [tmp_path / f"{place}.h5ad" for place in range(len(halves))]
    for path, half in zip(paths, halves, strict=True):
        half.write_h5ad(path)
    table = sp.open(paths if form == "list" else paths[0], layer="raw/X" if form == "raw" else None)
    np.testing.assert_array_equal(rows_of(table), COUNTS.toarray())


def _stored(tmp_path: Path, form: str, data: Any) -> Any:
    """Return an AnnData object as it is, backed, or the path of the store or file of it."""
    if form == "object":
        return data
    with warnings.catch_warnings(action="ignore"):
        if form == "zarr":
            data.write_zarr(tmp_path / "a.zarr")
        else:
            data.write_h5ad(tmp_path / "a.h5ad")
    if form == "backed":
        return pytest.importorskip("anndata").read_h5ad(tmp_path / "a.h5ad", backed="r")
    return tmp_path / ("a.zarr" if form == "zarr" else "a.h5ad")


@pytest.mark.parametrize("form", ["zarr", "h5ad", "backed"])
@pytest.mark.parametrize("solver", ["covariance", "gram", "sketch"])
def test_a_matrix_by_columns_gives_the_components_of_its_rows(tmp_path: Path, form: str, solver: Any) -> None:
    anndata = pytest.importorskip("anndata")
    data = anndata.AnnData(COUNTS.tocsc())
    data.var["used"] = USED
    table = sp.open(_stored(tmp_path, form, data), mask_var="used", normalize=NORMALIZE)
    rows = cells.normalized(COUNTS)[:, USED]
    np.testing.assert_allclose(rows_of(table), rows, rtol=2e-7)
    np.testing.assert_allclose(table.by_features().read(3, 9)[0].toarray(), rows[:, 3:9].T, rtol=2e-7)
    pca = sp.PCA(3, solver=solver).fit(table)
    np.testing.assert_allclose(pca.explained_variance_, cells.components(rows, 3)[1], rtol=1e-5)
    assert pca.plan_.bytes_to_read == pca.bytes_read_


def test_a_large_matrix_by_columns_is_read_once_for_each_block_that_fits(tmp_path: Path) -> None:
    counts = cells.make_counts(20_000, 200, seed=3)
    path = cells.write_cells(tmp_path / "a.zarr", counts.T.tocsr(), chunks=50_000)
    group = zarr.open_group(path, mode="r+")
    group["X"].attrs.update({"encoding-type": "csc_matrix", "shape": [20_000, 200]})
    del group["obs"], group["var"]
    table = sp.open(path)
    half = table.read(0, 10_000)[1] + table.read(10_000, 20_000)[1]
    assert half.bytes == 2 * table.read(0, 20_000)[1].bytes == table.reads_of(0, 10_000) * 2
    np.testing.assert_array_equal(rows_of(table, 7_000), counts.toarray())
    assert [source.shape[0] for source in table.stored_arrays] == [counts.nnz, counts.nnz, 201]


@pytest.mark.parametrize("form", ["zarr", "h5ad", "object", "backed"])
def test_raw_has_names_and_masks_of_its_own(tmp_path: Path, form: str) -> None:
    anndata = pytest.importorskip("anndata")
    whole = anndata.AnnData(COUNTS.copy())
    whole.var_names = [f"g{i}" for i in range(40)]
    whole.var["used"] = USED
    whole.raw = whole
    data = whole[:, :7].copy()
    data.X = data.X * 9
    stored = _stored(tmp_path, form, data)
    table = sp.open(stored, layer="raw/X", mask_var="used")
    np.testing.assert_array_equal(rows_of(table), COUNTS.toarray()[:, USED])
    assert table.feature_names == tuple(f"g{i}" for i in np.flatnonzero(USED))
    assert sp.open(stored).shape == (300, 7)
    pca = sp.PCA(2).fit(table)
    assert pca.transform(stored).shape == (300, 2)  # opened as the data of the fit
    with pytest.raises(NotAvailableError, match="raw has its own features"):
        sp.anndata.pca(stored, 2, layer="raw/X")
    with pytest.raises(DataError, match="expected raw/X; did you mean raw/X"):
        sp.open(stored, layer="raw")


@pytest.mark.parametrize("kind", ["zarr", "h5ad", "pattern"])
def test_several_files_are_one_table(tmp_path: Path, kind: str) -> None:
    edges, paths = (0, 120, 130, 300), []
    for index in range(3):
        part = COUNTS[edges[index] : edges[index + 1]]
        write = cells.write_cells if kind == "zarr" else cells.write_file
        end = "zarr" if kind == "zarr" else "h5ad"
        paths.append(write(tmp_path / f"part{index + 9}.{end}", part, var={"used": USED}))  # type: ignore[operator]
    data: Any = str(tmp_path / "part*.h5ad") if kind == "pattern" else paths
    table = sp.open(data, mask_var="used", normalize=NORMALIZE)
    np.testing.assert_allclose(rows_of(table), cells.normalized(COUNTS)[:, USED], rtol=2e-7)
    assert table.labels.sample_name(125) == "obs_names=cell5"
    pca = sp.PCA(3).fit(table)
    np.testing.assert_allclose(
        pca.explained_variance_, cells.components(cells.normalized(COUNTS)[:, USED], 3)[1], rtol=1e-5
    )
    assert pca.plan_.bytes_to_read == pca.bytes_read_
    np.testing.assert_array_equal(pca.transform(data), pca.transform(table))
    assert table.overhead_bytes(300) >= 8 * 8 * COUNTS.nnz  # a block of all three files
    block = pickle.loads(pickle.dumps(table)).read(110, 140)[0].toarray()
    np.testing.assert_array_equal(block, rows_of(table)[110:140])


def test_columns_of_several_files_are_put_together(tmp_path: Path) -> None:
    anndata, paths = pytest.importorskip("anndata"), []
    for index, rows in enumerate((slice(0, 200), slice(200, 300))):
        part = anndata.AnnData(COUNTS[rows])
        part.obs["donor"] = [f"d{i % (index + 2)}" for i in range(part.n_obs)]
        if not index:
            part.obs["lane"] = 1
        paths.append(_stored(tmp_path, "h5ad", part).rename(tmp_path / f"{index}.h5ad"))
    table = sp.open(paths)
    assert table.sample_columns.names == ("donor",)
    assert set(sp.PCA(2).fit_groups(table, "donor")) >= {"d0", "d1", "d2", "pooled"}
    with pytest.raises(DataError, match=r"1\.h5ad: obs has no column lane"):
        sp.PCA(2).fit_groups(table, "lane")


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("kind", ["zarr", "h5ad"])
def test_genes_that_all_files_have_are_read_by_their_names(tmp_path: Path, kind: str, dense: bool) -> None:
    anndata, rng, paths = pytest.importorskip("anndata"), np.random.default_rng(0), list[Path]()
    parts = []
    for index, rows in enumerate((slice(0, 120), slice(120, 130), slice(130, 300))):
        genes = rng.permutation(COUNTS.shape[1])[: 30 + 3 * index]
        part = anndata.AnnData(COUNTS[rows][:, genes].toarray() if dense else COUNTS[rows][:, genes])
        part.var_names = [f"g{gene}" for gene in genes]
        part.obs_names = [f"{index}-{i}" for i in range(part.n_obs)]
        part.var["used"] = genes % 3 > 0
        parts.append(part)
        paths.append(_stored(tmp_path, kind, part).rename(tmp_path / f"{index}.{kind}"))
    whole = anndata.concat(parts, join="inner")
    names = [name for name in parts[0].var_names if all(name in part.var_names for part in parts)]
    expected = np.asarray(whole[:, names].X.toarray() if not dense else whole[:, names].X, dtype="f8")
    table = sp.open(paths, genes="intersection")
    assert list(table.labels.features[0].coordinate) == names
    np.testing.assert_array_equal(rows_of(table), expected)
    used = np.array([int(name[1:]) % 3 > 0 for name in names])
    chosen = sp.open(paths, genes="intersection", mask_var="used", normalize=NORMALIZE)
    wanted = cells.normalized(csr_array(expected))[:, used]
    np.testing.assert_allclose(rows_of(chosen), wanted, rtol=2e-7)
    fitted = sp.PCA(3).fit(chosen)
    np.testing.assert_allclose(fitted.explained_variance_, cells.components(wanted, 3)[1], rtol=1e-5)
    np.testing.assert_array_equal(fitted.transform(paths), fitted.transform(chosen))
    np.testing.assert_array_equal(rows_of(pickle.loads(pickle.dumps(chosen))), rows_of(chosen))
    with pytest.raises(DataError, match=r"genes='intersection' takes those that all have|features 33, "):
        sp.open(paths)
    parts[1].var_names = ["g0"] * parts[1].n_vars
    parts[1].write_h5ad(tmp_path / "twice.h5ad")
    with pytest.raises(DataError, match=r"twice\.h5ad: var_names has g0 33 times"):
        sp.open([paths[0], tmp_path / "twice.h5ad"], genes="intersection")
    parts[1].var_names = [f"other{i}" for i in range(parts[1].n_vars)]
    parts[1].write_h5ad(tmp_path / "others.h5ad")
    with pytest.raises(DataError, match="no feature is in all of them"):
        sp.open([paths[0], tmp_path / "others.h5ad"], genes="intersection")


def test_files_that_differ_are_named_errors(tmp_path: Path) -> None:
    first = cells.write_cells(tmp_path / "a.zarr", COUNTS, var={"used": USED})
    others: dict[str, tuple[Path, dict[str, Any], str]] = {
        "fewer": (cells.write_cells(tmp_path / "b.zarr", COUNTS[:, :9]), {}, "features 9, .*a.zarr: 40"),
        "dtype": (cells.write_cells(tmp_path / "c.zarr", COUNTS.astype("f8")), {}, "dtype float64"),
        "dense": (cells.write_cells(tmp_path / "d.zarr", COUNTS.toarray()), {}, "sparse rows False"),
        "mask": (
            cells.write_cells(tmp_path / "e.zarr", COUNTS, var={"used": ~USED}),
            {"mask_var": "used"},
            "mask_var differs .* at feature 0",
        ),
        "names": (cells.write_cells(tmp_path / "f.zarr", COUNTS), {}, "var_names at place 3 is x, .*gene3"),
        "no AnnData": (tmp_path / "g.zarr", {}, "is not an AnnData store"),
        "nothing": (tmp_path / "h.zarr", {}, "no such file"),
    }
    zarr.open_group(tmp_path / "f.zarr/var", mode="r+")["_index"][3] = "x"  # type: ignore[index]
    zarr.open_group(tmp_path / "g.zarr", mode="w").create_array("x", data=np.ones((3, 40)))
    for path, options, words in others.values():
        with pytest.raises(DataError, match=words):
            sp.open([first, path], **options)
    with pytest.raises(ParameterError, match="named twice"):
        sp.open([first, first])
    with pytest.raises(DataError, match=r"no \.h5ad file matches"):
        sp.open(tmp_path / "*.h5ad")


def test_columns_that_are_no_labels_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = cells.write_cells(tmp_path / "a.zarr", COUNTS)
    obs = zarr.open_group(path / "obs", mode="r+")
    obs.attrs["column-order"] = ["nested", "wide", "long"]
    nested = obs.create_group("nested", attributes={"encoding-type": "dict", "encoding-version": "0.1.0"})
    nested.create_array("x", shape=(10**12,), chunks=(10**6,), dtype="f8")
    obs.create_array("wide", data=np.ones((300, 2)))
    obs.create_array("long", shape=(10**12,), chunks=(10**6,), dtype="f8")
    table = sp.open(path)
    for name, words in (("nested", "is dict: expected"), ("wide", "has 2 axes"), ("long", "takes 8,000,000,000,000")):
        with pytest.raises(DataError, match=words):
            sp.PCA(2).fit_groups(table, name)


def test_files_of_anndata_before_0_7_have_names_and_columns(tmp_path: Path) -> None:
    """Of which ``var`` and ``obs`` are datasets of records, and categories of codes are in ``uns``."""
    h5py, anndata = pytest.importorskip("h5py"), pytest.importorskip("anndata")
    path, rows = tmp_path / "old.h5ad", np.random.default_rng(0).normal(size=(30, 5)).astype("f4")
    used = np.array([1, 0, 1, 1, 0], dtype=bool)
    genes = [(f"g{i}".encode(), used[i], i / 2) for i in range(5)]
    persons = [(f"c{i}".encode(), i % 3, i) for i in range(30)]
    with h5py.File(path, "w") as file:
        file["X"] = rows
        file["var"] = np.array(genes, dtype=[("index", "S3"), ("used", "?"), ("mean", "f8")])
        file["obs"] = np.array(persons, dtype=[("index", "S4"), ("phase", "i1"), ("n", "i8")])
        file["uns/phase_categories"] = np.array([b"G1", b"G2M", b"S"])
    with warnings.catch_warnings(action="ignore"):  # of the age of the file
        known = anndata.read_h5ad(path)
    table = sp.open(path)
    assert table.feature_names == tuple(known.var_names)
    assert table.labels is not None
    assert table.labels.sample_name(3) == "obs_names=c3"
    np.testing.assert_array_equal(rows_of(sp.open(path, mask_var="used")), rows[:, known.var["used"]])
    assert table.sample_columns is not None
    np.testing.assert_array_equal(table.sample_columns.values("phase"), np.asarray(known.obs["phase"]))
    assert table.sample_columns.names == ("phase", "n")
    groups = sp.PCA(1).fit_groups(table, "phase")
    assert {"G1", "G2M", "S"} <= set(groups)
    with pytest.raises(StreamPCAError, match="the same values in another order"):
        sp.PCA(2).fit(path).transform(known[:, ::-1])


def test_names_that_cannot_be_read_are_errors_and_absent_ones_a_note(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5ad"
    with h5py.File(path, "w") as file:
        file["X"] = np.ones((4, 3))
        file["var"] = np.arange(3)
    with pytest.raises(DataError, match="var is an array of type int64: expected a data frame"):
        sp.open(path)
    with h5py.File(path, "a") as file:
        del file["var"]
        file.create_group("var").attrs["_index"] = "gene"
    with pytest.raises(DataError, match="var has no names that can be read: expected a vector gene"):
        sp.open(path)
    with h5py.File(path, "a") as file:
        del file["var"]
    assert any("their order is not compared" in note for note in sp.PCA(1).plan(path).notes)
    named = cells.write_file(tmp_path / "named.h5ad", csr_array(np.ones((4, 3))))
    with h5py.File(named, "a") as file:
        del file["X"]
        file["X"] = np.ones((4, 3))
    with pytest.raises(DataError, match="has no names of features in var"):
        sp.open([named, path])
