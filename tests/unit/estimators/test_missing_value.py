"""Numbers that mean "missing": integers have no NaN, so -1 must not count as a value without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import tolerances
import yaml
import zarr
from kinds import by_pairs, imputed
from stores import Command, config_text

import streampca as sp
from streampca.errors import NotAvailableError, NotFiniteError, ParameterError

N, D = 150, 6


def genotypes() -> Any:
    """Return 0, 1 and 2 of correlated features, and -1 where nothing was observed."""
    generator = np.random.default_rng(1)
    latent = generator.normal(size=(N, 2)) @ generator.normal(size=(2, D)) + 0.5 * generator.normal(size=(N, D))
    values = np.digitize(latent, [-0.5, 1.0]).astype(np.int8)
    values[generator.random(values.shape) < 0.15] = -1
    values[40:60] = np.abs(values[40:60])
    return values


X = genotypes()
HOLED = np.where(X == -1, np.nan, X.astype(float))
ORACLES = {
    "mean": imputed,
    "pairwise": by_pairs,
    "drop_rows": lambda rows: np.cov(rows[~np.isnan(rows).any(axis=1)].T),
}
MODES = list(ORACLES)


def expected(missing: str) -> Any:
    return np.linalg.eigvalsh(ORACLES[missing](HOLED))[::-1]


def zarr_of(path: Path, values: Any = X, **options: Any) -> Path:
    array = zarr.create_array(path, shape=values.shape, chunks=(40, 4), dtype=values.dtype, **options)
    array[...] = values
    return path


def npy_of(path: Path) -> Path:
    np.save(path.with_suffix(".npy"), X)
    return path.with_suffix(".npy")


def shards_of(path: Path) -> str:
    path.mkdir()
    for index, rows in enumerate(np.array_split(X, 3)):
        np.save(path / f"part-{index}.npy", rows)
    return str(path / "part-*.npy")


def hdf5_of(path: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["x"] = X
    return path.with_suffix(".h5")


def xarray_of(path: Path, *, lazily: str) -> Any:
    xr = pytest.importorskip("xarray")
    if lazily == "zarr":
        zarr_of(path / "g", dimension_names=("sample", "variant"))
        zarr.open_group(path)
        return xr.open_dataset(path, engine="zarr", consolidated=False, chunks={})["g"]
    array = xr.DataArray(X, dims=("sample", "variant"), name="g")
    return array.chunk({"sample": 40}) if lazily == "dask" else array


def group_of(path: Path) -> Path:
    zarr.create_group(path)
    return path


KINDS = {
    "numpy": lambda path: X,
    "in Fortran order": lambda path: np.asfortranarray(X),
    "int64": lambda path: X.astype(np.int64),
    "float32": lambda path: X.astype(np.float32),
    "zarr 3": lambda path: zarr_of(path),
    "zarr 2": lambda path: zarr_of(path, zarr_format=2),
    "zarr array": lambda path: zarr.open_array(zarr_of(path)),
    ".npy": npy_of,
    "memory map": lambda path: np.load(npy_of(path), mmap_mode="r"),
    "files of rows": shards_of,
    "HDF5": hdf5_of,
    "Dask": lambda path: da.from_array(X, chunks=(40, 4)),
    "DataArray": lambda path: xarray_of(path, lazily="no"),
    "DataArray of Dask": lambda path: xarray_of(path, lazily="dask"),
    "DataArray of zarr": lambda path: xarray_of(group_of(path), lazily="zarr"),
    "data frame": lambda path: pytest.importorskip("pandas").DataFrame(X, columns=list("abcdef")),
}


def assert_right(pca: Any, missing: str) -> None:
    values = expected(missing)[: pca.n_components_]
    atol = tolerances.eigenvalues(np.float32) * values[0]
    np.testing.assert_allclose(pca.explained_variance_, values, rtol=0, atol=atol)


@pytest.mark.deep(keep=20)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", MODES)
def test_rows_of_every_kind_are_those_with_nan(tmp_path: Path, kind: str, missing: str) -> None:
    data = KINDS[kind](tmp_path / "x.zarr")
    pca = sp.PCA(3, missing=missing, missing_value=-1, solver="covariance").fit(data)
    assert_right(pca, missing)
    reference = sp.PCA(3, missing=missing, solver="covariance").fit(HOLED)
    scores = reference.transform(HOLED)
    close = {"rtol": 0, "atol": 1e-4 * np.nanmax(np.abs(scores))}  # of eigenvectors of float32 rows
    np.testing.assert_allclose(np.asarray(pca.transform(data)), scores, **close)
    pca.transform_to(data, tmp_path / "scores.zarr")
    np.testing.assert_allclose(zarr.open_array(tmp_path / "scores.zarr/scores")[...], scores, **close)
    rows = X if kind != "data frame" else data
    np.testing.assert_allclose(np.asarray(pca.transform(rows)), scores, **close)  # whatever it was fitted on


@pytest.mark.parametrize("kind", KINDS)
def test_missing_value_is_an_error_unless_it_has_a_meaning(tmp_path: Path, kind: str) -> None:
    data = KINDS[kind](tmp_path / "x.zarr")
    complete = X[40:60] if kind != "data frame" else data[40:60]
    row, column = np.argwhere(X == -1)[0]
    for model in (sp.PCA(2, missing_value=-1), sp.KernelPCA(2, missing_value=-1)):
        with pytest.raises(NotFiniteError, match=f"row {row}, column {column}"):
            model.fit(data)
        model.fit(complete)
        with pytest.raises(ValueError, match="NaN"):
            np.asarray(model.transform(data))
        with pytest.raises(ValueError, match="NaN"):
            model.transform_to(data, tmp_path / "scores.zarr")


@pytest.mark.parametrize("kind", ["zarr 3", "numpy", "Dask", "DataArray of zarr"])
@pytest.mark.parametrize("missing", MODES)
def test_table_that_names_it_needs_no_parameter(tmp_path: Path, kind: str, missing: str) -> None:
    data = KINDS[kind](tmp_path / "x.zarr")
    pca = sp.PCA(3, missing=missing, solver="covariance").fit(sp.open(data, missing_value=-1))
    assert_right(pca, missing)
    scores = np.asarray(pca.transform(sp.open(data, missing_value=-1)))
    for rows in (data, X, sp.open(X)):
        np.testing.assert_allclose(np.asarray(pca.transform(rows)), scores, atol=1e-5)


@pytest.mark.parametrize("missing", MODES)
def test_rows_that_are_added_and_a_loaded_model_keep_it(tmp_path: Path, missing: str) -> None:
    pca = sp.PCA(3, missing=missing, missing_value=-1, solver="covariance")
    for rows in (X[:50], da.from_array(X[50:90], chunks=(20, 6)), zarr_of(tmp_path / "x.zarr", X[90:])):
        pca.partial_fit(rows)
    assert_right(pca, missing)
    pca.save(tmp_path / "m.zarr", state=True)
    loaded = sp.load(tmp_path / "m.zarr")
    assert loaded.missing_value == -1
    np.testing.assert_array_equal(loaded.transform(X), pca.transform(X))
    if missing != "drop_rows":
        np.testing.assert_array_equal(loaded.score_samples(X), pca.score_samples(np.where(X < 0, np.nan, X)))
    loaded.partial_fit(X)
    doubled = ORACLES[missing](np.vstack([HOLED, HOLED]))
    values = np.linalg.eigvalsh(doubled)[::-1][:3]
    np.testing.assert_allclose(loaded.explained_variance_, values, rtol=0, atol=4e-7 * values[0])


def test_other_solvers_weights_and_scales_see_the_same_rows() -> None:
    weights = np.arange(1.0, N + 1)
    for parameters in (
        {"missing": "mean", "solver": "gram"},
        {"missing": "pairwise", "solver": "sketch", "sketch_size": D},
        {"missing": "mean", "scale": True},
        {"missing": "drop_rows", "feature_weight": np.arange(1.0, D + 1)},
    ):
        rows = (X[:5], HOLED[:5]) if parameters.get("solver") == "gram" else (X, HOLED)
        given = {} if parameters.get("solver") in ("gram", "sketch") else {"sample_weight": weights}
        pca = sp.PCA(2, missing_value=-1, **parameters).fit(rows[0], **given)
        same = sp.PCA(2, **parameters).fit(rows[1].astype(np.float32), **given)
        np.testing.assert_allclose(pca.explained_variance_, same.explained_variance_, rtol=1e-6)


def test_features_never_observed_are_found_by_it(tmp_path: Path) -> None:
    values = X.copy()
    values[:, 2] = -1
    for mask in ("observed", "survey"):
        table = sp.open(zarr_of(tmp_path / f"{mask}.zarr", values), missing_value=-1, mask=mask, samples="dim_0")
        assert table.shape == (N, D - 1)


@pytest.mark.parametrize("value", [1.5, 300, -1e300])
def test_number_that_the_data_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ParameterError, match=r"missing_value=.* is no int8.*no value can be missing"):
        sp.PCA(2, missing_value=value).fit(X)
    with pytest.raises(ParameterError, match="missing_value"):
        sp.open(X, missing_value=value)


@pytest.mark.parametrize("value", [True, "-1", float("nan"), float("inf")])
def test_value_that_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(ParameterError, match=r"missing_value=.*expected a finite number"):
        sp.PCA(2, missing_value=value).fit(X)
    with pytest.raises(ParameterError, match=r"missing_value=.*expected a finite number"):
        sp.open(X, missing_value=value)


def test_sparse_rows_and_models_of_one_reading_that_differ_are_refused() -> None:
    with pytest.raises(NotAvailableError, match="missing_value does not apply to a sparse matrix"):
        sp.PCA(2, missing_value=-1).fit(scipy.sparse.csr_array(X))
    with pytest.raises(ParameterError, match="different missing_value"):
        sp.fit_many({"a": sp.PCA(2, missing="mean", missing_value=-1), "b": sp.PCA(2)}, X)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("fill", "named", "counts"), [(-1, True, True), (0, True, False), (-1, False, False)])
def test_fill_value_counts_where_dimensions_have_names_and_it_is_not_the_default(
    tmp_path: Path, version: int, fill: int, named: bool, counts: bool
) -> None:
    names = {} if not named or version == 2 else {"dimension_names": ("sample", "variant")}
    attributes = {"_ARRAY_DIMENSIONS": ["sample", "variant"]} if named and version == 2 else {}
    path = zarr_of(tmp_path / "x.zarr", zarr_format=version, fill_value=fill, attributes=attributes, **names)
    pca = sp.PCA(2, missing="mean", solver="covariance").fit(path)
    if counts:
        assert_right(pca, "mean")
        with pytest.raises(NotFiniteError):
            sp.PCA(2).fit(path)
    else:
        values = np.linalg.eigvalsh(np.cov(X.T.astype(float)))[::-1][:2]
        np.testing.assert_allclose(pca.explained_variance_, values, rtol=1e-6)
        assert any("no value is missing" in note for note in pca.plan_.notes)
    declared = zarr_of(tmp_path / "y.zarr", zarr_format=version, fill_value=fill, attributes=attributes, **names)
    assert_right(sp.PCA(2, missing="mean", missing_value=-1, solver="covariance").fit(declared), "mean")


def test_plan_says_what_counts_as_missing() -> None:
    assert any("NaN and the stored numbers -1" in n for n in sp.PCA(2, missing_value=-1).plan(X).notes)
    silent = sp.PCA(2, missing="mean").plan(X)
    assert any("no value is missing, because int8 has no NaN" in note for note in silent.notes)
    assert not sp.PCA(2, missing="mean").plan(HOLED).notes


@pytest.mark.slow
def test_commands_take_it_from_the_file(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    zarr_of(tmp_path / "x.zarr")
    text = yaml.safe_load(config_text("x.zarr", "out", "model: {n_components: 3}", output="scores: true, state: true"))
    text["source"]["missing_value"] = -1
    text["preprocess"] = {"missing": "mean"}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(text))
    command = Command(capsys)
    assert "stored numbers -1" in command("plan", "c.yaml").out
    assert command.quietly("run", "c.yaml").status == 0
    assert_right(sp.load(tmp_path / "out"), "mean")
    assert command.quietly("verify", "out").status == 0
    assert command.quietly("transform", "out", "x.zarr", "again.zarr").status == 0
    scores = zarr.open_array("again.zarr/scores")[...]
    np.testing.assert_allclose(zarr.open_array("out/scores.zarr/scores")[...], scores, atol=1e-6)
    zarr.open_array("x.zarr", mode="a").append(X[:40])
    assert command.quietly("update", "out").status == 0
    values = np.linalg.eigvalsh(imputed(np.vstack([HOLED, HOLED[:40]])))[::-1][:3]
    np.testing.assert_allclose(sp.load("out").explained_variance_, values, rtol=0, atol=4e-7 * values[0])
    described = json.loads(command("inspect", "x.zarr", "--missing-value", "-1", "--json").out)
    assert described["missing"] == ["NaN", -1]
    assert json.loads(command("inspect", "x.zarr", "--json").out)["missing"] == []
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(text | {"source": {"path": "x.zarr", "missing_value": "none"}}))
    command.quietly("plan", "c.yaml").refused(2, "source.missing_value")


def test_programs_that_would_take_it_as_a_value_get_no_model() -> None:
    pca = sp.PCA(2, missing="drop_rows", missing_value=-1).fit(X)
    with pytest.raises(NotAvailableError, match=r"missing_value.*as a value"):
        pca.to_sklearn()
