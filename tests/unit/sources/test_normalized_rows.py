"""The option `normalize` of tables that are not AnnData: rows of norm 1, compared with scikit-learn, and what follows from them with numpy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cells
import numpy as np
import onnxruntime
import pytest
import zarr
from facade import export, run_command, with_features
from scipy.sparse import csc_array, csr_array
from sklearn.preprocessing import Normalizer
from test_options import Sliced

import streampca as sp
from streampca.errors import DataError, NotAvailableError, NotFiniteError, ParameterError

pytestmark = pytest.mark.numerical
RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(240, 12)) * np.linspace(3, 1, 12) + 0.5
ROWS[7] = 0.0
ROWS *= RNG.uniform(0.01, 100, (240, 1))
ROUNDING = 4 * np.finfo(float).eps
"""Of a norm that is added up in another order, and of a quotient."""
NORMS = ("l2", "l1", "max")
"""Values of the key ``norm``, which are those of scikit-learn."""


def of_norm(rows: Any, norm: str = "l2") -> Any:
    return Normalizer(norm).transform(np.asarray(rows, dtype="f8"))


def eigenvalues(rows: Any, k: int = 3) -> Any:
    centred = rows - rows.mean(axis=0)
    return (np.linalg.svd(centred, compute_uv=False) ** 2 / (len(rows) - 1))[:k]


def values_of(table: Any) -> Any:
    rows = table.read(0, table.shape[0])[0]
    return rows.toarray() if table.sparse else rows


def npy(path: Path) -> str:
    np.save(path / "x.npy", ROWS)
    return str(path / "x.npy")


def several(path: Path) -> str:
    for index, part in enumerate(np.split(ROWS, [100, 130])):
        np.save(path / f"p-{index}.npy", part)
    return str(path / "p-*.npy")


def parquet(path: Path) -> str:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": [f"r{i}" for i in range(240)], "embedding": list(ROWS)})
    frame.to_parquet(path / "x.parquet", row_group_size=50)
    return str(path / "x.parquet")


def feather(path: Path) -> str:
    pytest.importorskip("pandas").DataFrame(ROWS, columns=[f"c{i}" for i in range(12)]).to_feather(path / "x.feather")
    return str(path / "x.feather")


def hdf5(path: Path) -> str:
    with pytest.importorskip("h5py").File(path / "x.h5", "w") as file:
        file["x"] = ROWS
    return str(path / "x.h5")


def netcdf(path: Path) -> str:
    array(path).to_dataset().to_netcdf(path / "x.nc", engine="scipy")
    return str(path / "x.nc")


def chunks(path: Path) -> str:
    zarr.create_array(path / "x.zarr", data=ROWS, chunks=(50, 5))
    return str(path / "x.zarr")


def variables(path: Path) -> str:
    group = zarr.create_group(path / "v.zarr", zarr_format=3)
    for name, columns in (("u", slice(0, 8)), ("v", slice(8, 12))):
        group.create_array(name, data=ROWS[:, columns].reshape(240, -1, 4), dimension_names=("time", f"y_{name}", "x"))
    return str(path / "v.zarr")


def array(path: Path) -> Any:
    return pytest.importorskip("xarray").DataArray(ROWS.reshape(240, 3, 4), dims=("time", "y", "x"), name="t")


TABLES: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "npy": (npy, {}),
    "several": (several, {}),
    "parquet": (parquet, {"columns": "embedding", "id_column": "id"}),
    "feather": (feather, {}),
    "hdf5": (hdf5, {}),
    "netcdf": (netcdf, {"samples": "time"}),
    "zarr": (chunks, {}),
    "variables": (variables, {"variables": ["u", "v"], "samples": "time"}),
    "DataArray": (array, {"samples": "time"}),
    "array": (lambda _: ROWS, {}),
    "Fortran order": (lambda _: np.asfortranarray(ROWS), {}),
    "features first": (lambda _: ROWS.T, {"orientation": "features_first"}),
    "Dask": (lambda _: pytest.importorskip("dask.array").from_array(ROWS, chunks=(70, 12)), {}),
    "lazy": (lambda _: Sliced(ROWS), {}),
    "frame": (lambda _: pytest.importorskip("pandas").DataFrame(ROWS), {}),
    "CSR": (lambda _: csr_array(ROWS), {}),
    "CSC": (lambda _: csc_array(ROWS), {}),
    "open": (lambda _: sp.open(ROWS), {}),
}
"""What is opened, and with which options."""


@pytest.mark.parametrize("kind", TABLES)
def test_rows_of_every_kind_are_those_of_scikit_learn_and_the_fit_that_of_numpy(kind: str, tmp_path: Path) -> None:
    make, options = TABLES[kind]
    data = make(tmp_path)
    for norm in NORMS:
        table = sp.open(data, **options, normalize={"norm": norm})
        expected = of_norm(ROWS, norm)
        assert table.dtype == "float64"
        np.testing.assert_allclose(values_of(table), expected, rtol=ROUNDING, atol=0)
        pca = sp.PCA(3).fit(table)
        np.testing.assert_allclose(pca.explained_variance_, eigenvalues(expected), rtol=1e-12)
        assert json.loads(json.dumps(pca._model.source))["normalize"] == {"norm": norm}
        if isinstance(data, str | zarr.Array) or kind == "DataArray":  # the fit remembers it
            np.testing.assert_array_equal(pca.transform(data), pca.transform(table))


@pytest.mark.parametrize("dtype", ["f4", "f2", ">f8", "i1", "u2", "i4", "?"])
@pytest.mark.parametrize("sparse", [False, True])
def test_types_of_rows_are_float32_where_that_holds_what_is_stored(dtype: str, sparse: bool) -> None:
    if sparse and dtype in ("f2", ">f8"):
        pytest.skip("scipy has no such sparse arrays")
    rows = (ROWS / np.abs(ROWS).max() * 100).astype(dtype)
    wide = dtype in (">f8", "i4")
    table = sp.open(csr_array(rows) if sparse else rows, normalize={"norm": "l2"})
    assert table.dtype == ("float64" if wide else "float32")
    np.testing.assert_allclose(values_of(table), of_norm(rows), rtol=1e-15 if wide else 1.2e-7, atol=1e-300)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_out_of_the_range_of_squares_have_norm_1(norm: str, sparse: bool) -> None:
    sizes = np.array([1e-320, 1e-300, 1e-160, 1.0, 1e160, 1e300])
    rows = np.array([[3.0, 0.0, -4.0]]) * sizes[:, None]
    found = values_of(sp.open(csr_array(rows) if sparse else rows, normalize={"norm": norm}))
    expected = np.array([3.0, 0.0, -4.0]) / {"l2": 5, "l1": 7, "max": 4}[norm]
    np.testing.assert_allclose(found, np.tile(expected, (6, 1)), rtol=2e-3)
    np.testing.assert_allclose(found[1:], np.tile(expected, (5, 1)), rtol=1e-15)


@pytest.mark.parametrize("norm", NORMS)
def test_missing_values_stay_missing_and_the_norm_is_that_of_the_others(norm: str) -> None:
    rows = np.where(RNG.random(ROWS.shape) < 0.1, np.nan, ROWS)
    rows[3] = np.nan
    holes = np.isnan(rows)
    expected = np.where(holes, np.nan, of_norm(np.nan_to_num(rows), norm))
    table = sp.open(rows, normalize={"norm": norm})
    np.testing.assert_allclose(values_of(table), expected, rtol=ROUNDING)
    whole = expected[~holes.any(axis=1)]
    np.testing.assert_allclose(
        sp.PCA(3, missing="drop_rows").fit(table).explained_variance_, eigenvalues(whole), rtol=1e-12
    )
    filled = np.where(holes, np.nanmean(expected, axis=0), expected)
    pca = sp.PCA(3, missing="mean").fit(table)
    np.testing.assert_allclose(pca.explained_variance_, eigenvalues(filled), rtol=1e-12)
    as_stored = np.where(holes, -99.0, rows)
    for same in (
        sp.open(as_stored, normalize={"norm": norm}, missing_value=-99),
        sp.open(sp.open(as_stored, normalize={"norm": norm}), missing_value=-99),
    ):
        np.testing.assert_array_equal(values_of(same), values_of(table))
    with pytest.raises(ValueError, match="NaN"):
        sp.PCA(3).fit(table)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("normalize", [{"norm": "l2"}, {"norm": "max"}, {"log1p": True}])
def test_infinity_is_named(sparse: bool, normalize: dict[str, Any]) -> None:
    rows = np.abs(ROWS)
    rows[33, 5] = np.inf
    with pytest.raises(NotFiniteError, match="row 33, column 5"):
        sp.PCA(2, missing="error" if sparse else "mean").fit(
            sp.open(csr_array(rows) if sparse else rows, normalize=normalize)
        )


@pytest.mark.parametrize("sparse", [False, True])
def test_logarithms_and_sums_are_done_before_the_norm(sparse: bool) -> None:
    rows = np.abs(ROWS)
    normalize = {"norm": "l2", "log1p": True, "target_sum": 50}
    found = values_of(sp.open(csr_array(rows) if sparse else rows, normalize=normalize))
    expected = of_norm(np.log1p(50 * of_norm(rows, "l1")))
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    small = np.tanh(ROWS) / 2
    small[2, 2] = np.nan
    np.testing.assert_allclose(values_of(sp.open(small, normalize={"log1p": True})), np.log1p(small), rtol=1e-15)
    with pytest.raises(DataError, match=r"value -1 at row 5, column 1: normalize: log1p needs values above -1"):
        values_of(sp.open(np.where(np.arange(2880).reshape(240, 12) == 61, -1.0, 0.5), normalize={"log1p": True}))
    for given in (small, -np.abs(small)):
        with pytest.raises((DataError, NotFiniteError), match=r"row \d+, column \d+"):
            values_of(sp.open(given, normalize={"target_sum": 1}))


@pytest.mark.parametrize(
    ("normalize", "words"),
    [
        (
            {"norm": "l2", "idf": True},
            r"idf needs figures of all rows first.*expected target_sum \(a number above 0\), log1p",
        ),
        ({"target_sum": "median"}, r"target_sum='median' needs figures of all rows first"),
        ({"residuals": "pearson"}, "residuals needs figures"),
        ({"max_value": 3}, r"max_value needs figures.*norm \(l2, l1, max\)"),
        ({"norm": "l3"}, "norm='l3': expected l2, l1, max, or None"),
        ({"unit": True}, "expected a mapping with target_sum"),
        ("l2", "expected a mapping with"),
    ],
)
def test_keys_that_need_other_rows_and_other_values_are_refused(normalize: Any, words: str) -> None:
    with pytest.raises((NotAvailableError, ParameterError), match=words):
        sp.open(ROWS, normalize=normalize)


def test_an_open_table_is_normalised_once_and_before_its_lags() -> None:
    table = sp.open(ROWS, normalize={"norm": "l2"}, lags=2)
    expected = of_norm(ROWS)
    np.testing.assert_allclose(values_of(table), np.hstack([expected[:-1], expected[1:]]), rtol=ROUNDING)
    for given in (table, sp.open(ROWS, normalize={"norm": "l1"}), sp.open(ROWS, lags=2)):
        with pytest.raises(NotAvailableError, match="this table is already open"):
            sp.open(given, normalize={"norm": "l2"})
    with pytest.raises(NotAvailableError, match="give both to"):
        sp.open(table, missing_value=0)


USED = np.arange(12) % 4 != 1
"""A mask of features."""


def test_the_norm_is_that_of_the_features_that_are_used(tmp_path: Path) -> None:
    path = chunks(tmp_path)
    table = sp.open(path, mask=USED, normalize={"norm": "l2"})
    expected = of_norm(ROWS[:, USED])
    np.testing.assert_allclose(values_of(table), expected, rtol=ROUNDING)
    pca = sp.PCA(3).fit(table)
    np.testing.assert_allclose(pca.explained_variance_, eigenvalues(expected), rtol=1e-12)
    np.testing.assert_array_equal(pca.transform(path), pca.transform(table))
    with pytest.raises(NotAvailableError, match="normalised by 12 features, and the fit used 9"):
        pca.transform(sp.open(path, normalize={"norm": "l2"}))
    whole = sp.open(ROWS, normalize={"norm": "l2"})
    with pytest.raises(NotAvailableError, match="rows normalised over all features"):
        sp.fit_many({"some": sp.PCA(2)}, whole, features={"some": USED})


def test_models_of_one_run_have_the_norms_of_their_own_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    feather(tmp_path)
    sp.run(
        {
            "source": {"path": "x.feather", "normalize": {"norm": "l2"}},
            "models": {
                "all": {"n_components": 2},
                "some": {"n_components": 2, "source": {"columns": ["c0", "c3", "c4"]}},
            },
            "output": {"directory": "run", "report": False, "scores": True},
        }
    )
    for name, rows in (("all", ROWS), ("some", ROWS[:, [0, 3, 4]])):
        model = sp.load(f"run/models/{name}")
        np.testing.assert_allclose(model.explained_variance_, eigenvalues(of_norm(rows), 2), rtol=1e-12)
        scores = zarr.open_group(f"run/models/{name}/scores.zarr", mode="r")["scores"][:]
        np.testing.assert_allclose(scores, model.transform("x.feather"), atol=1e-12)


FITS: dict[str, Callable[..., Any]] = {
    **{solver: lambda solver=solver: sp.PCA(3, solver=solver) for solver in ("covariance", "gram", "qr", "sketch")},
    "kernel": lambda: sp.KernelPCA(3, kernel="linear", method="exact"),
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_every_solver_takes_them(name: str, sparse: bool, wide: bool) -> None:
    if sparse and name == "qr":
        pytest.skip("it takes dense rows")
    rows = ROWS[:10].copy() if wide else ROWS
    table = sp.open(csr_array(rows) if sparse else rows, normalize={"norm": "l2"})
    pca = FITS[name]().fit(table)
    found = (
        pca.eigenvalues_ / (1 if name != "kernel" else len(rows) - 1) if name == "kernel" else pca.explained_variance_
    )
    np.testing.assert_allclose(found, eigenvalues(of_norm(rows)), rtol=1e-4 if name == "sketch" else 1e-10)


def test_scales_weights_and_groups_are_those_of_normalised_rows() -> None:
    table, expected = sp.open(ROWS, normalize={"norm": "l2"}), of_norm(ROWS)
    scaled = sp.PCA(3, scale=True).fit(table)
    np.testing.assert_allclose(
        scaled.explained_variance_, np.linalg.eigvalsh(np.corrcoef(expected.T))[::-1][:3], rtol=1e-11
    )
    weight = RNG.uniform(0.5, 2, 240)
    weighted = sp.PCA(3).fit(table, sample_weight=weight)
    again = sp.PCA(3).fit(expected, sample_weight=weight)
    np.testing.assert_allclose(weighted.explained_variance_, again.explained_variance_, rtol=1e-12)
    groups = sp.PCA(3).fit_groups(table, np.arange(240) % 2)
    np.testing.assert_allclose(groups[1].explained_variance_, eigenvalues(expected[1::2]), rtol=1e-11)


def test_a_model_gives_normalised_rows_back_and_takes_arrays_as_such(tmp_path: Path) -> None:
    path, expected = npy(tmp_path), of_norm(ROWS)
    pca = sp.PCA(12).fit(sp.open(path, normalize={"norm": "l2"}))
    scores = pca.transform(path)
    np.testing.assert_allclose(pca.inverse_transform(scores), expected, atol=1e-14)
    np.testing.assert_allclose(pca.transform(expected), scores, atol=1e-14)
    np.testing.assert_allclose(pca.transform(csr_array(expected)), scores, atol=1e-14)
    for raw in (ROWS, csr_array(ROWS)):
        with pytest.warns(
            UserWarning, match=r"arrays are taken as they are.*sp.open\(array, normalize={'norm': 'l2'}\)"
        ):
            pca.transform(raw)
    np.testing.assert_allclose(pca.transform(sp.open(ROWS, normalize={"norm": "l2"})), scores, atol=1e-14)
    pca.save(tmp_path / "m.zarr")
    loaded = sp.load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(loaded.transform(path), scores)
    assert run_command("transform", tmp_path / "m.zarr", path, tmp_path / "s.zarr") == 0
    np.testing.assert_allclose(zarr.open_group(tmp_path / "s.zarr", mode="r")["scores"][:], scores, atol=1e-14)
    more = str(tmp_path / "more.npy")
    np.save(more, 5 * ROWS)
    parts = sp.PCA(3, solver="covariance").partial_fit(sp.open(path, normalize={"norm": "l2"})).partial_fit(more)
    np.testing.assert_allclose(parts.explained_variance_, eigenvalues(np.vstack([expected, expected])), rtol=1e-12)


def test_the_table_and_the_plan_say_what_is_done(tmp_path: Path) -> None:
    table = sp.open(npy(tmp_path), normalize={"norm": "l1", "log1p": True})
    assert "normalize    {'log1p': True, 'norm': 'l1'}" in str(table)
    plan = sp.PCA(2).plan(table)
    assert any("rows are normalised while they are read (log1p: true, norm: l1)" in note for note in plan.notes)
    plain = sp.open(npy(tmp_path))
    fingerprints = {sp.open(npy(tmp_path), normalize={"norm": norm}).fingerprint for norm in NORMS}
    assert len({plain.fingerprint, table.fingerprint, *fingerprints}) == 5


def test_a_stopped_fit_goes_on_and_two_workers_give_the_same_bits(tmp_path: Path, client: Any, blocks_of: Any) -> None:
    path = chunks(tmp_path)
    blocks_of(50)

    def table() -> Any:
        return sp.open(path, normalize={"norm": "l2"})

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with client.as_current():
        far = sp.PCA(3).fit(table())
    client.run(lambda: None)
    plain = sp.PCA(3).fit(table())
    with pytest.raises(KeyboardInterrupt):
        sp.PCA(3, checkpoint=tmp_path / "kept", progress=stop).fit(table())
    resumed = sp.PCA(3, checkpoint=tmp_path / "kept").fit(table())
    for other in (far, resumed):
        np.testing.assert_array_equal(other.components_, plain.components_)


def test_new_files_are_normalised_by_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    np.save("data/p-0.npy", ROWS[:100])
    np.save("data/p-2.npy", ROWS[150:])
    run = {
        "source": {"path": "data", "normalize": {"norm": "l2"}},
        "model": {"n_components": 3},
        "output": {"directory": "run", "report": False, "scores": True, "state": True},
    }
    sp.run(run)
    np.save("data/p-1.npy", ROWS[100:150])
    assert sp.update("run").n_rows == 50
    model = sp.load("run")
    np.testing.assert_allclose(model.explained_variance_, eigenvalues(of_norm(ROWS)), rtol=1e-12)
    assert run_command("verify", "run") == 0


def test_exports_normalise_rows_or_are_refused(tmp_path: Path) -> None:
    rows = np.vstack([ROWS, 1e25 * ROWS[:1]])
    for norm in NORMS:
        pca = sp.PCA(3).fit(sp.open(rows, normalize={"norm": norm}))
        scores = pca.transform(of_norm(rows, norm))
        np.testing.assert_allclose(pca.to_sklearn().transform(rows), scores, atol=1e-12)
        np.testing.assert_allclose(
            pca.to_sklearn().inverse_transform(scores), pca.inverse_transform(scores), atol=1e-12
        )
        exported = pca.to_onnx(tmp_path / f"{norm}.onnx")
        assert exported.error is not None
        assert exported.error < 1e-5
        (found,) = onnxruntime.InferenceSession(exported.path).run(["scores"], {"X": rows.astype("f4")})
        np.testing.assert_allclose(found, scores, atol=1e-5 * np.abs(scores).max())
        for end in ("npz", "faiss"):
            with pytest.raises(NotAvailableError, match=f"{end} cannot express normalize"):
                export(pca, tmp_path / f"m.{end}")


def test_exports_of_rows_with_missing_values(tmp_path: Path) -> None:
    rows = np.where(RNG.random(ROWS.shape) < 0.1, np.nan, ROWS)
    pca = sp.PCA(3, missing="mean", missing_scores="mean").fit(sp.open(rows, normalize={"norm": "l2"}))
    scores = pca.transform(sp.open(rows, normalize={"norm": "l2"}))
    exported = pca.to_onnx(tmp_path / "m.onnx", dtype="float64")
    (found,) = onnxruntime.InferenceSession(exported.path).run(["scores"], {"X": rows})
    np.testing.assert_allclose(found, scores, atol=1e-12)
    with pytest.raises(NotAvailableError, match="normalize with missing_scores: its norms take no missing values"):
        pca.to_sklearn()


def test_one_of_two_tables_is_normalised_and_exports_refuse_it(tmp_path: Path) -> None:
    first, second = ROWS[:, :7], ROWS[:, 7:]
    mca = sp.MCA(2).fit(sp.open(first, normalize={"norm": "l2"}), second)
    cross = (of_norm(first) - of_norm(first).mean(axis=0)).T @ (second - second.mean(axis=0)) / 239
    np.testing.assert_allclose(mca.singular_values_, np.linalg.svd(cross, compute_uv=False)[:2], rtol=1e-11)
    with pytest.raises(NotAvailableError, match="normalize of one of two tables"):
        mca.to_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize("sparse", [False, True])
def test_cells_take_the_norm_of_the_genes_that_are_used(tmp_path: Path, sparse: bool) -> None:
    anndata, counts = pytest.importorskip("anndata"), cells.make_counts().toarray().astype("f4")
    embedding, used = RNG.normal(size=(len(counts), 5)), np.arange(40) % 3 != 1
    path = cells.write_cells(
        tmp_path / "a.zarr",
        csr_array(counts) if sparse else counts,
        var={"used": used},
        layers={"embedding": np.tile(embedding, 8)},
    )
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"normalize": {"norm": "l2"}}, of_norm(counts)),
        ({"normalize": {"norm": "l2"}, "mask_var": "used"}, of_norm(counts[:, used])),
        (
            {"normalize": {"target_sum": 100, "log1p": True, "norm": "l1"}, "mask_var": "used"},
            of_norm(np.log1p(100 * of_norm(counts, "l1"))[:, used], "l1"),
        ),
        ({"normalize": {"norm": "max"}, "layer": "embedding"}, of_norm(np.tile(embedding, 8), "max")),
    ]
    for options, expected in cases:
        table = sp.open(path, **options)
        np.testing.assert_allclose(values_of(table), expected, atol=1e-7)
        pca = sp.PCA(3).fit(table)
        np.testing.assert_allclose(pca.explained_variance_, eigenvalues(expected), rtol=1e-5)
        np.testing.assert_array_equal(pca.transform(path), pca.transform(table))
    chosen = sp.anndata.pca(
        anndata.AnnData(csr_array(counts) if sparse else counts), 3, hvg={"n": 9}, normalize={"norm": "l2"}
    )
    highly = np.asarray(chosen.labels_.mask)
    assert highly.sum() == 9
    np.testing.assert_allclose(chosen.explained_variance_, eigenvalues(of_norm(counts[:, highly])), rtol=1e-5)
    with pytest.raises(NotAvailableError, match=r"leave one out|dense rows"):
        sp.open(path, normalize={"norm": "l2"}, missing_value=3)
    with pytest.raises(NotAvailableError, match="this table is already open"):
        sp.open(sp.open(path), normalize={"norm": "l2"})


def test_a_wide_row_takes_the_memory_that_is_planned(tmp_path: Path) -> None:
    rows = RNG.normal(size=(3, 200_000)).astype("f4")
    table = sp.open(rows, normalize={"norm": "l2"})
    np.testing.assert_allclose(values_of(table), of_norm(rows), rtol=1.2e-7)
    assert table.overhead_bytes(3) >= 3 * rows[:1].nbytes * 2
    assert with_features(table, np.arange(200_000) < 5).shape == (3, 5)
