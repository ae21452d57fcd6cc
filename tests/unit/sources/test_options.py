"""Every option for every kind of data: it changes the table, its name stands in an error, or it permits what is not there."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import cells
import numpy as np
import pytest
import zarr
from facade import FORMATS, TAKEN, ReadOptions, cli
from scipy.sparse import csr_array
from tensors import Tensor

import streampca as sp
from streampca.errors import NotAvailableError, StreamPCAError

VALUES = np.random.default_rng(0).integers(-1, 5, (12, 6)).astype("i2")
GIVEN: dict[str, Any] = {
    "array": "nothere",
    "variables": ["nothere"],
    "samples": "nothere",
    "features": "nothere",
    "columns": ["nothere"],
    "id_column": "nothere",
    "mask": np.arange(6) % 2 > 0,
    "orientation": "features_first",
    "missing_chunks": "fill",
    "missing_value": -1.0,
    "storage_options": {"region": "nowhere"},
    "branch": "nothere",
    "tag": "nothere",
    "snapshot": "nothere",
    "verify": "manifest",
    "decode": "raw",
    "max_reads": 2.0,
    "layer": "nothere",
    "mask_var": "nothere",
    "normalize": {"log1p": True},
    "genes": "intersection",
    "lags": 2,
    "quantization": {"power": 2},
    "where": "nothere",
}
PERMIT = {"missing_chunks", "decode", "max_reads", "genes"}
"""Options that change nothing of data that are whole, plain and read once."""


class Sliced:
    """An array of another library, which reads a slice when it is indexed."""

    def __init__(self, values: np.ndarray[Any, Any]):
        self.values, self.shape, self.dtype, self.ndim = values, values.shape, values.dtype, values.ndim

    def __getitem__(self, at: Any) -> np.ndarray[Any, Any]:
        return self.values[at]


def anndata() -> Any:
    return pytest.importorskip("anndata").AnnData(X=VALUES.astype("f4"))


def h5ad(path: Path) -> Path:
    anndata().write_h5ad(path)
    return path


def frame() -> Any:
    return pytest.importorskip("pandas").DataFrame(VALUES, columns=list("abcdef"))


def parquet(path: Path) -> Path:
    frame().to_parquet(path)
    return path


def feather(path: Path) -> Path:
    frame().to_feather(path)
    return path


def npy(path: Path) -> Path:
    np.save(path, VALUES)
    return path


def hdf5(path: Path) -> Path:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file["x"] = VALUES
    return path


def plink(path: Path) -> Path:
    path.write_bytes(b"\x6c\x1b\x01" + bytes(range(27, 45)))  # six variants of twelve people, two bits for each
    path.with_suffix(".fam").write_text("".join(f"F P{i} 0 0 1 1\n" for i in range(12)))
    path.with_suffix(".bim").write_text("".join(f"1\trs{j}\t0.5\t{j}\tA\tG\n" for j in range(6)))
    return path


def group(path: Path) -> Path:
    zarr.create_group(path).create_array("x", data=VALUES, chunks=(5, 6))
    return path


def array(path: Path) -> Path:
    zarr.create_array(path, data=VALUES, chunks=(5, 6))
    return path


def xarray(dataset: bool) -> Any:
    made = pytest.importorskip("xarray").DataArray(VALUES, dims=("t", "y"), name="x")
    return made.to_dataset() if dataset else made


MAKE: dict[str, Callable[[Path], Any]] = {
    "a table that is open": lambda path: sp.open(VALUES),
    "an array": lambda path: VALUES,
    "a Dask array": lambda path: pytest.importorskip("dask.array").from_array(VALUES, chunks=(5, 6)),
    "a lazy array": lambda path: Sliced(VALUES),
    "a sparse matrix": lambda path: csr_array(VALUES),
    "a tensor": lambda path: Tensor(VALUES),
    "a data frame": lambda path: frame(),
    "a DataArray": lambda path: xarray(dataset=False),
    "a Dataset": lambda path: xarray(dataset=True),
    "built-in data": lambda path: "builtin:iris",
    "an .npy file": lambda path: npy(path / "x.npy"),
    "several .npy files": lambda path: [npy(path / "x.npy"), npy(path / "y.npy")],
    "Parquet files": lambda path: parquet(path / "x.parquet"),
    "Arrow files": lambda path: feather(path / "x.feather"),
    "HDF5 and NetCDF files": lambda path: hdf5(path / "x.h5"),
    "PLINK files": lambda path: plink(path / "x.bed"),
    "a zarr array": lambda path: array(path / "x.zarr"),
    "a zarr group": lambda path: group(path / "x.zarr"),
    "an AnnData object": lambda path: anndata(),
    "an AnnData file": lambda path: h5ad(path / "x.h5ad"),
    "an AnnData store": lambda path: cells.write_cells(path / "x.zarr", VALUES.astype("f4")),
    "several AnnData": lambda path: [h5ad(path / "x.h5ad"), h5ad(path / "y.h5ad")],
}


def test_every_kind_of_data_and_every_option_is_tried() -> None:
    names = {field.name for field in fields(ReadOptions)}
    assert set(MAKE) == set(TAKEN)
    assert set(GIVEN) == names
    assert set().union(*TAKEN.values()) == names


def test_the_options_are_the_keywords_of_open() -> None:
    keywords = [each for each in signature(sp.open).parameters.values() if each.kind is each.KEYWORD_ONLY]
    defaults = {each.name: each.default for each in keywords}
    assert defaults.pop("follow_symlinks") is False  # ends with the next minor version
    assert defaults == {each.name: each.default for each in fields(ReadOptions)}


def test_an_option_is_a_key_of_configurations_and_an_option_of_inspect() -> None:
    names = {field.name for field in fields(ReadOptions)}
    schema = json.loads((Path(__file__).parents[3] / "configs" / "streampca.schema.json").read_text(encoding="utf-8"))
    assert names - set(schema["$defs"]["SourceConfig"]["properties"]) == {"max_reads"}, "see runs/config/__init__.py"
    others = {"max_reads", "verify", "storage_options", "normalize", "genes", "lags", "quantization"}
    assert names - {each.name for each in cli.commands["inspect"].params} == others, "see cli/stores.py"


def test_new_files_of_rows_are_opened_with_all_options_of_the_fit() -> None:
    of_all = {"missing_value", "quantization", "normalize", "lags", "where", "mask", "storage_options"}
    for each in FORMATS:
        if each.holds in ("rows", "columns"):
            assert each.takes - of_all == set(each.remembered), each.name


def rows_of(data: Any, **options: Any) -> np.ndarray[Any, Any]:
    table = sp.open(data, **options)
    rows = table.read(0, table.shape[0])[0]
    return np.asarray(rows.toarray() if table.sparse else rows, dtype="f8")  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TAKEN)
def test_an_option_is_used_or_refused(tmp_path: Path, kind: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        data = MAKE[kind](tmp_path)
    plain = rows_of(data)
    given = GIVEN | {"mask": np.arange(plain.shape[1]) % 2 > 0}
    if kind == "built-in data":
        given["missing_value"] = plain[0, 0]
    for option, value in given.items():
        if option not in TAKEN[kind]:
            with pytest.raises(
                NotAvailableError, match=f"{option} (does not apply|is for)|{option}.* is for dense rows"
            ):
                rows_of(data, **{option: value})
            continue
        rows, said = plain, ""
        try:
            rows = rows_of(data, **{option: value})
        except StreamPCAError as error:
            said = str(error)
        named = any(word in said for word in (option, "nothere", "no such fingerprint", "negative value"))
        changed = rows.shape != plain.shape or not np.array_equal(rows, plain, equal_nan=True)
        assert named or changed or (option in PERMIT and not said), f"{option} is ignored: {said}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [kind for kind, taken in TAKEN.items() if "mask" in taken])
def test_a_mask_that_names_nothing_is_refused(tmp_path: Path, kind: str) -> None:
    data = MAKE[kind](tmp_path)
    with pytest.raises(StreamPCAError, match="mask"):
        sp.open(data, mask=str(tmp_path / "nothere.npy"))


@pytest.mark.parametrize("form", ["object", "h5ad", "zarr"])
@pytest.mark.parametrize("sparse", [False, True])
def test_array_names_a_matrix_of_anndata(tmp_path: Path, form: str, sparse: bool) -> None:
    data = anndata()
    layer, embedding = VALUES * 2.5, VALUES[:, :3] * 100.0
    data.layers["twice"] = csr_array(layer) if sparse else layer
    data.obsm["X_emb"] = embedding
    data.raw = anndata()
    data.X = data.X + 1
    if form != "object":
        path = tmp_path / f"x.{form}"
        with warnings.catch_warnings(action="ignore"):
            data.write_zarr(path) if form == "zarr" else data.write_h5ad(path)
        data = path
    for name, expected in (("X", VALUES + 1), ("layers/twice", layer), ("obsm/X_emb", embedding), ("raw/X", VALUES)):
        np.testing.assert_array_equal(rows_of(data, array=name), expected)
    for name in ("obsm/X_umap", "obs/nothere", "uns"):
        with pytest.raises(StreamPCAError, match=name):
            sp.open(data, array=name)
    model = sp.PCA(2).fit(sp.open(data, array="obsm/X_emb"))
    assert model.n_features_in_ == 3
    if form != "object":
        np.testing.assert_allclose(model.transform(data), model.transform(sp.open(embedding)), atol=1e-9)


def test_a_table_says_what_it_is() -> None:
    assert repr(sp.open(VALUES)) == "<ArraySource of array: table of 12 samples x 6 features, int16>"
    assert repr(sp.open(csr_array(VALUES.astype("f4")))).endswith("sparse table of 12 samples x 6 features, float32>")


def test_a_table_prints_samples_features_chunks_and_missing_values(tmp_path: Path) -> None:
    field = zarr.create_array(
        tmp_path / "<b>.zarr",
        shape=(100, 4, 5),
        chunks=(50, 4, 5),
        dtype="i2",
        dimension_names=("time", "lat", "lon"),
        attributes={"scale_factor": 0.1, "_FillValue": -9},
    )
    field[...] = 1
    table = sp.open(tmp_path / "<b>.zarr", samples="time", missing_value=3)
    assert str(table).splitlines()[1:] == [
        "samples      100: time (100)",
        "features     20: lat (4), lon (5)",
        "type         float64",
        "chunks       50 x 4 x 5",
        "missing      NaN, -9 as stored, 3 as stored",
    ]
    html = table._repr_html_()
    assert "&lt;b&gt;.zarr" in html
    assert "<b>" not in html
    assert "<tr><th>chunks</th><td>50 x 4 x 5</td></tr>" in html
    assert "missing" not in str(sp.open(VALUES))


def test_the_error_for_nan_says_what_stands_in_for_it() -> None:
    values = VALUES.astype(float)
    values[3, 2] = np.nan
    with pytest.raises(StreamPCAError, match=r"row 3, column 2 .*missing='mean'.*mask='observed'"):
        sp.PCA(2).fit(values)
