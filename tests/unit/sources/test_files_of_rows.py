"""Lists, patterns and directories of files as one table, the records of the files, and what is refused of .npy files."""

from __future__ import annotations

import json
import os
import pickle
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from fragments import write_npy
from stores import Command, make_values

import streampca as sp
from streampca.errors import ChangedInputError, DataError, NotAvailableError, ParameterError, StreamPCAError

CUTS = (0, 130, 131, 250, 400)


@pytest.fixture
def values() -> np.ndarray:
    return make_values(400, 8).astype(np.float32)


@pytest.fixture
def shards(tmp_path: Path, values: np.ndarray) -> list[Path]:
    return write_npy(tmp_path / "shards", values, CUTS, fortran=(2,))


def test_a_list_a_pattern_and_a_directory_are_the_same_table(shards, values):
    for data in (shards, tuple(map(str, shards)), str(shards[0].parent / "*.npy"), shards[0].parent):
        table = sp.open(data)
        assert (table.shape, table.dtype) == (values.shape, values.dtype)
        np.testing.assert_array_equal(table.to_dask(37).compute(), values)
        np.testing.assert_array_equal(table.by_features().to_dask(3).compute(), values.T)


def test_files_come_in_natural_order_of_names_and_lists_in_their_own(tmp_path, values):
    paths = write_npy(tmp_path / "s", values, range(0, 401, 40))[:3]
    for path, name in zip(paths, ("a-10.npy", "a-2.npy", "a-1.npy"), strict=True):
        path.rename(tmp_path / "s" / name)
    names = [Path(fragment.name).name for fragment in sp.open(tmp_path / "s" / "a-*.npy").fragments]
    assert names == ["a-1.npy", "a-2.npy", "a-10.npy"]
    listed = [tmp_path / "s" / name for name in ("a-2.npy", "a-10.npy", "a-1.npy")]
    np.testing.assert_array_equal(
        sp.open(listed).to_dask().compute(), values[[*range(40, 80), *range(40), *range(80, 120)]]
    )


def test_the_same_blocks_of_a_list_and_of_one_zarr_array_give_the_same_bits(tmp_path, shards, values):
    zarr.save_array(tmp_path / "x.zarr", values)
    whole, listed = sp.PCA(3).fit(str(tmp_path / "x.zarr")), sp.PCA(3).fit(shards)
    assert listed.plan_.rows_per_block == whole.plan_.rows_per_block
    for name in ("components_", "explained_variance_", "mean_"):
        np.testing.assert_array_equal(getattr(listed, name), getattr(whole, name))
    assert listed.bytes_read_ == values.nbytes
    np.testing.assert_array_equal(listed.transform(shards).compute(), whole.transform(values))


def test_wide_files_are_solved_by_features(tmp_path):
    values = make_values(30, 500)
    paths = write_npy(tmp_path / "s", values, (0, 7, 30), fortran=(1,))
    pca = sp.PCA(3, solver="gram").fit(paths)
    expected = np.linalg.svd(values - values.mean(0), compute_uv=False)[:3] ** 2 / 29
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-12)


def test_every_file_has_a_record_and_a_copy_has_the_same_fingerprint(tmp_path, shards, values):
    (tmp_path / "copy.npy").write_bytes(shards[0].read_bytes())
    first, copied, other = sp.open([shards[0], tmp_path / "copy.npy", shards[3]]).fragments
    assert (first.name, first.n_rows, first.n_bytes) == (str(shards[0]), 130, shards[0].stat().st_size)
    assert first.modified == shards[0].stat().st_mtime_ns
    assert first.fingerprint == copied.fingerprint != other.fingerprint


def test_a_worker_gets_only_the_files_of_its_rows(shards, values):
    part = pickle.loads(pickle.dumps(sp.open(shards).slice(135, 140)))
    assert [Path(fragment.name).name for fragment in part.fragments] == ["part-2.npy"]
    np.testing.assert_array_equal(part.read(135, 140)[0], values[135:140])


def test_a_mask_leaves_out_features_of_files(shards, values):
    mask = np.arange(8) % 3 > 0
    table = sp.open(shards, mask=mask)
    np.testing.assert_array_equal(table.to_dask().compute(), values[:, mask])
    assert len(table.fragments) == 4


def test_a_file_that_is_replaced_is_named(shards, values):
    table = sp.open(shards)
    np.save(shards[1].with_suffix(".new.npy"), values[:1] + 1)
    os.utime(shards[1].with_suffix(".new.npy"), ns=(1, 1))
    os.replace(shards[1].with_suffix(".new.npy"), shards[1])
    with pytest.raises(ChangedInputError, match=r"part-1\.npy was changed"):
        sp.PCA(2).fit(table)
    shards[1].unlink()
    with pytest.raises(ChangedInputError, match=r"part-1\.npy .* can no longer be read"):
        table.read(0, 200)


def test_zarr_stores_are_no_directories_of_files(tmp_path, values):
    zarr.save_array(tmp_path / "x.zarr", values)
    np.save(tmp_path / "x.zarr" / "stray.npy", values)
    assert sp.open(tmp_path / "x.zarr").shape == values.shape
    with pytest.raises(DataError, match="nowhere"):
        sp.open(tmp_path / "nowhere.zarr")


def test_hidden_files_and_those_of_other_kinds_are_left_out_of_directories(shards):
    for name in ("_SUCCESS", ".part.npy", "_part.npy", "README.md"):
        (shards[0].parent / name).write_text("")
    assert len(sp.open(shards[0].parent).fragments) == 4


def _with(path: Path, array: np.ndarray, **options: bool) -> Path:
    np.save(path, array, **options)
    return path


def _cut(path: Path, array: np.ndarray) -> Path:
    path.write_bytes(_with(path, array).read_bytes()[:-50])
    return path


def _written(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    return path


BROKEN = {
    "objects": (lambda p: _with(p, np.array([["a", 1]], dtype=object), allow_pickle=True), "Python objects"),
    "empty": (lambda p: _written(p, b""), "does not begin like one"),
    "damaged header": (
        lambda p: _written(p, _with(p, np.ones((5, 8), "f4")).read_bytes().replace(b"8)", b"8[")),
        "cannot be opened as an .npy file",
    ),
    "cut short": (lambda p: _cut(p, np.ones((50, 8), "f4")), "cut short"),
    "no rows": (lambda p: _with(p, np.ones((0, 8), "f4")), r"0 sample"),
    "one dimension": (lambda p: _with(p, np.ones(8, "f4")), "Expected 2D array"),
    "other width": (lambda p: _with(p, np.ones((5, 7), "f4")), "7 columns and .*part-0.npy has 8"),
    "other type": (lambda p: _with(p, np.ones((5, 8), "f8")), "float64 and .*part-0.npy has float32"),
    "complex": (lambda p: _with(p, np.ones((5, 8), "c8")), "Complex data not supported"),
    "bfloat16": (lambda p: _with(p, np.zeros((5, 8), "V2")), "as numpy stores bfloat16"),
    "missing": (lambda p: p, "No such file"),
    "a pipe": (lambda p: os.mkfifo(p) or p, "named pipe"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_in_a_list_is_named(name, tmp_path, shards):
    make, message = BROKEN[name]
    path = make(tmp_path / "broken.npy")
    with pytest.raises(DataError, match=message) as caught:
        sp.open([shards[0], path])
    assert "broken.npy" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_named_twice_is_refused_by_whichever_path(tmp_path, shards):
    (tmp_path / "link.npy").symlink_to(shards[0])
    with pytest.raises(ParameterError, match="named twice"):
        sp.open([shards[0], shards[1], shards[0]])
    with pytest.raises(ParameterError, match="are the same file"):
        sp.open([shards[0], tmp_path / "link.npy"])


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ("nothing-*.npy", DataError, r"no file of rows \(.npy, .parquet, .arrow, .h5, .bed\) matches"),
        (["a.npy", "x.txt"], DataError, "x.txt: expected files of rows"),
        (["a.npy", "b.parquet"], DataError, "several kinds"),
        ("s3://bucket/x.h5", NotAvailableError, "Parquet and Arrow files can be read from a URL, and these are HDF5"),
        (
            "table.csv",
            NotAvailableError,
            "CSV is not supported.*would be parsed in every pass: convert it once: python -c .*ParquetWriter",
        ),
        ("gone.csv", DataError, "no such file"),
    ],
)
def test_what_is_no_file_of_rows_is_refused(data, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _with(Path("a.npy"), np.ones((5, 2)))
    Path("table.csv").write_text("a,b\n1,2\n")
    with pytest.raises(error, match=message):
        sp.open(data)


@pytest.mark.parametrize("option", ["samples", "array", "columns", "id_column"])
def test_options_that_npy_files_do_not_have_are_refused(option, shards):
    with pytest.raises(NotAvailableError, match=option):
        sp.open(shards, **{option: "x"})


@pytest.mark.slow
def test_packages_of_other_files_are_not_imported(shards):
    code = "import sys, streampca as sp; sp.PCA(2).fit(sys.argv[1:]); print({'h5py', 'polars'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, *map(str, shards)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(("name", "extra"), [("x.parquet", "arrow"), ("x.h5", "hdf5")])
def test_a_missing_package_is_named_with_its_extra(name, extra, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, {"arrow": "pyarrow", "hdf5": "h5py"}[extra], None)
    with pytest.raises(NotAvailableError, match=rf'pip install "streampca\[{extra}\]"'):
        sp.open(tmp_path / name)


def test_fingerprints_of_files_of_rows_are_refused_as_such(tmp_path, values, capsys):
    np.save(tmp_path / "a.npy", values)
    config = tmp_path / "run.yaml"
    config.write_text(f"source: {{path: {tmp_path}}}\noutput: {{directory: run}}\n")
    for path in (tmp_path / "a.npy", tmp_path, tmp_path / "*.npy", config):
        called = Command(capsys)("fingerprint", path)
        called.refused(5, "fingerprints are for zarr arrays, and these are files of rows")


@pytest.mark.parametrize(
    ("name", "delimiter"), [("t.csv", ","), ("t.tsv", "\t"), ("t.csv.gz", ","), ("t.tsv.bz2", "\t")]
)
def test_the_line_that_converts_csv_does_so_piece_by_piece(tmp_path, name, delimiter):
    pytest.importorskip("pyarrow")
    values = np.random.default_rng(0).standard_normal((50, 3))
    np.savetxt(tmp_path / name, values, delimiter=delimiter, header=delimiter.join("abc"), comments="")
    with pytest.raises(NotAvailableError) as refused:
        sp.open(tmp_path / name)
    _, line = str(refused.value).split("convert it once: ")
    command, option, code = shlex.split(line)
    assert (command, option) == ("python", "-c")
    assert "block_size" in code
    subprocess.run([sys.executable, option, code], check=True)
    np.testing.assert_array_equal(sp.open(tmp_path / "t.parquet").to_dask().compute(), values)


def delta_table(place, values, **options):
    deltalake, pa = pytest.importorskip("deltalake"), pytest.importorskip("pyarrow")
    columns = {name: values[:, i] for i, name in enumerate("abc")} | {"day": np.arange(len(values)) // 100}
    deltalake.write_deltalake(place, pa.table(columns), mode="append", **options)
    return deltalake.DeltaTable(place)


@pytest.mark.parametrize("partition_by", [None, ["day"]])
def test_the_current_rows_of_a_delta_table_are_read(tmp_path, partition_by):
    place, values = tmp_path / "table", make_values(400, 3)
    delta_table(place, values[:250], partition_by=partition_by)
    table = delta_table(place, values[250:], partition_by=partition_by)
    table.delete("a > 0")
    kept = values[values[:, 0] <= 0]
    for data in (place, [place]):
        rows = sp.open(data, columns=["a", "b", "c"]).to_dask().compute()
        np.testing.assert_array_equal(rows[np.lexsort(rows.T)], kept[np.lexsort(kept.T)])
    expected = np.linalg.eigvalsh(np.cov(kept.T))[::-1]
    fitted = sp.PCA(2).fit(sp.open(place, columns=["a", "b", "c"]))
    np.testing.assert_allclose(fitted.explained_variance_, expected[:2], rtol=1e-12)
    with pytest.raises(NotAvailableError, match="a table of Delta, whose log"):
        sp.open(f"{place}/**/*.parquet")


def test_a_delta_table_of_files_without_an_ending_is_refused(tmp_path):
    delta_table(tmp_path / "table", make_values(50, 3))
    file = next((tmp_path / "table").glob("*.parquet"))
    log = tmp_path / "table" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace(file.name, "rows"))
    file.rename(file.with_name("rows"))
    with pytest.raises(NotAvailableError, match=r"1 file without the ending .parquet, the first rows"):
        sp.open(tmp_path / "table")


def test_an_update_takes_the_new_files_of_a_delta_table(tmp_path):
    place, values = tmp_path / "table", make_values(400, 3)
    config = {"model": {"n_components": 2}}
    delta_table(place, values[:250])
    config["source"] = {"path": str(place), "columns": ["a", "b", "c"]}
    config["output"] = {"directory": str(tmp_path / "run"), "state": True, "scores": False, "report": False}
    sp.run(config)
    table = delta_table(place, values[250:])
    update = sp.update(tmp_path / "run")
    assert update.n_rows == 150
    expected = np.linalg.eigvalsh(np.cov(values.T))[::-1][:2]
    np.testing.assert_allclose(update.run.model.explained_variance_, expected, rtol=1e-12)
    table.optimize.compact()
    with pytest.raises(StreamPCAError):
        sp.update(tmp_path / "run")


def test_a_delta_table_that_cannot_be_read_from_its_files_is_refused(tmp_path):
    place = tmp_path / "table"
    delta_table(place, make_values(400, 3), configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(NotAvailableError, match=r"with deletionVectors.*, which are not supported"):
        sp.open(place)
    log = next((place / "_delta_log").glob("*.json"))
    log.write_text("{")
    with pytest.raises(DataError, match="the log of the Delta table cannot be read"):
        sp.open(place)


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("_delta_log/00000000000000000000.json", "Delta"),
        (".hoodie/hoodie.properties", "Hudi"),
        ("metadata/v1.metadata.json", "Iceberg"),
    ],
)
def test_tables_with_a_log_of_their_files_are_refused_by_name(tmp_path, values, log, kind):
    """Files that the log has removed are still there, and would count."""
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    place = tmp_path / "table"
    for name in (log, "data/year=2024/a.parquet", "year=2024/a.parquet", "a.parquet"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": values[:, 0]}), place / name)
    inside = (
        place,
        [place],
        f"{place}/*.parquet",
        place / "year=2024",
        f"{place}/data/*/*.parquet",
        [f"{place}/*.parquet"],
    )
    for data in inside[2 * (kind == "Delta") :]:  # whose log is read by the path of the table
        with pytest.raises(NotAvailableError, match=f"is a table of {kind}, whose log"):
            sp.open(data)
    assert sp.open([place / "a.parquet", place / "year=2024/a.parquet"]).shape == (800, 1)  # as the caller lists them


def test_shards_are_those_that_the_state_of_a_data_set_names(tmp_path, values):
    """Beside which the package datasets keeps results of its functions."""
    pa = pytest.importorskip("pyarrow")
    names = [f"data-{index:05d}-of-00002.arrow" for index in range(2)]
    for part, name in enumerate([*names, "cache-1f.arrow"]):
        table = pa.table({"x": values[:, part]})
        with pa.ipc.new_stream(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (tmp_path / "state.json").write_text(json.dumps(state))
    for data in (tmp_path, tmp_path / "data-*.arrow"):
        np.testing.assert_array_equal(sp.open(data).to_dask().compute()[:, 0], np.r_[values[:, 0], values[:, 1]])
    for data in (tmp_path / "*.arrow", sorted(tmp_path.glob("*.arrow"))):
        with pytest.raises(DataError, match=r"cache-1f.arrow is not a shard of the data set .* by its state.json"):
            sp.open(data)
    (tmp_path / "state.json").write_text(json.dumps(state | {"_indices_data_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(NotAvailableError, match="flatten_indices"):
        sp.open(tmp_path)
    (tmp_path / "state.json").write_text(json.dumps(state | {"_data_files": [{"filename": "../a.arrow"}]}))
    with pytest.raises(DataError, match="expected names of files beside it"):
        sp.open(tmp_path)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    with pytest.raises(DataError, match="has the splits train, test: name the one to read"):
        sp.open(tmp_path)
