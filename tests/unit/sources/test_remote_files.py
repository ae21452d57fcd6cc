"""Parquet and Arrow files behind URLs: the bits of local files, requests, and servers that lie or change."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import impatient, requests_of
from fragments import parquet_table, write_parquet
from stores import make_values
from web import Web

import streampca as sp
from scripts import SCRIPTS, module
from streampca.errors import ChangedInputError, DataError, NotAvailableError, ParameterError, StoreError, StreamPCAError

pytest.importorskip("obstore", reason="the extra remote is not installed")
pa = pytest.importorskip("pyarrow", reason="the extra arrow is not installed")

VALUES = make_values(250, 6).astype(np.float32)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with impatient(3), Web(tmp_path) as web:
        web.tag_of = lambda path: f'"{path.stat().st_mtime_ns}"'
        yield web


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Return the options of a store of S3 whose bucket ``b`` is a directory, which can be listed."""
    with module(SCRIPTS / "bench/object_server.py") as script:
        server = script.ObjectServer(tmp_path)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    with impatient(3):
        yield {
            "endpoint": f"http://127.0.0.1:{server.server_address[1]}",
            "region": "eu-north-1",
            "skip_signature": True,
        }
    server.shutdown()
    server.server_close()


def tensors(values: np.ndarray) -> Any:
    return pa.table({"v": pa.FixedShapeTensorArray.from_numpy_ndarray(values.reshape(-1, 2, 3))})


def write_arrow(path: Path, table: Any, form: str, compression: str | None) -> Path:
    opened = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with opened(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=70)
    return path


def written(place: Path, form: str) -> Path:
    """Write `VALUES` to a file in one of the `FORMS`."""
    if form in ("columns", "fixed", "list"):
        return write_parquet(place / "x y.parquet", parquet_table(VALUES, form), 70)
    if form == "tensor":
        return write_parquet(place / "x.pq", tensors(VALUES), 70)
    form, _, compression = form.partition(" ")
    return write_arrow(
        place / "x.arrow",
        tensors(VALUES) if form == "file" else parquet_table(VALUES, "list"),
        form,
        compression or None,
    )


FORMS = ["columns", "fixed", "list", "tensor", "file", "file lz4", "stream", "stream zstd"]


@pytest.mark.parametrize("form", FORMS)
def test_rows_and_fits_have_the_bits_of_the_local_file(form: str, web: Web, tmp_path: Path) -> None:
    path = written(tmp_path, form)
    local, table = sp.open(path), sp.open(f"{web.url}/{path.name.replace(' ', '%20')}")
    assert (table.shape, table.dtype, table.grid.edges) == (local.shape, local.dtype, local.grid.edges)
    for rows in (None, 70, 33, 200):
        np.testing.assert_array_equal(table.to_dask(rows).compute(), VALUES)
    np.testing.assert_array_equal(table.by_features().to_dask(4).compute(), VALUES.T)
    expected, pca = sp.PCA(3).fit(local), sp.PCA(3).fit(table)
    np.testing.assert_array_equal(pca.components_, expected.components_)
    assert pca.bytes_read_ == VALUES.nbytes
    assert [f.fingerprint for f in table.fragments] == [f.fingerprint for f in local.fragments]


def test_only_wanted_columns_are_requested_each_byte_once(web: Web, tmp_path: Path) -> None:
    random = np.random.default_rng(0).normal(size=(4000, 300))
    path = write_parquet(tmp_path / "x.parquet", parquet_table(random, "columns"), 1000)
    table = sp.open(f"{web.url}/x.parquet", columns=[f"c{i}" for i in range(100)])
    web.requests.clear()
    with requests_of(2**17):
        pca = sp.PCA(2).fit(table)
    np.testing.assert_array_equal(pca.mean_, sp.PCA(2).fit(sp.open(path, columns=[f"c{i}" for i in range(100)])).mean_)
    footer = 2**16 * 3
    assert 0.33 * path.stat().st_size < web.sent_bytes("x.parquet") < 0.36 * path.stat().st_size + footer
    assert max(web.requests.values()) == 1


def test_row_groups_are_requested_while_others_are_decoded(web: Web, tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", parquet_table(make_values(4000, 50), "fixed"), 500)
    table = sp.open(f"{web.url}/x.parquet")
    web.n_awaited = 8  # requests that have to come before the first is answered
    sp.PCA(2).fit(table)
    assert web.all_came.is_set()


def test_lists_and_directories_behind_urls_are_tables(bucket: dict[str, Any], tmp_path: Path) -> None:
    for index, (year, start, stop) in enumerate([(2023, 0, 90), (2024, 90, 200), (2025, 200, 250), (2026, 250, 250)]):
        place = tmp_path / f"b/data set/year={year}/part-{index}.parquet"
        place.parent.mkdir(parents=True)
        write_parquet(place, parquet_table(VALUES[start:stop], "fixed"), 40)
    (tmp_path / "b/data set/_SUCCESS").write_text("")
    local = sp.open(tmp_path / "b/data set", columns=["v", "year"])
    table = sp.open("s3://b/data set", columns=["v", "year"], storage_options=bucket)
    np.testing.assert_array_equal(table.read(0, 250)[0], local.read(0, 250)[0])
    assert table.fragments[0].name == "s3://b/data set/year=2023/part-0.parquet"
    np.testing.assert_array_equal(
        sp.open("s3://b/data set", storage_options=bucket).sample_columns.values("year"), local.read(0, 250)[0][:, -1]
    )
    names = [fragment.name for fragment in table.fragments]
    some = sp.open(names[1:], columns="v", storage_options=bucket)
    np.testing.assert_array_equal(some.read(0, 160)[0], VALUES[90:])
    with pytest.raises(ParameterError, match="named twice"):
        sp.open([names[0], names[0]], storage_options=bucket)
    with pytest.raises(NotAvailableError, match="one server or bucket"):
        sp.open([names[0], "s3://c/x.parquet"], storage_options=bucket)
    with pytest.raises(DataError, match="is not a zarr store"):
        sp.open("s3://b/nothing", storage_options=bucket)


def test_what_a_directory_behind_a_url_says_of_its_files_is_followed_or_refused(
    bucket: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "b/saved").mkdir(parents=True)
    for index, name in enumerate(("data-00000-of-00002", "data-00001-of-00002", "cache-1f")):
        rows = parquet_table(VALUES[index * 100 :][:50], "fixed")
        with pa.ipc.new_stream(str(tmp_path / f"b/saved/{name}.arrow"), rows.schema) as writer:
            writer.write_table(rows)
    state = {"_data_files": [{"filename": f"data-0000{index}-of-00002.arrow"} for index in range(2)]}
    (tmp_path / "b/saved/state.json").write_text(json.dumps(state))
    table = sp.open("s3://b/saved", storage_options=bucket)
    np.testing.assert_array_equal(table.read(0, 100)[0], VALUES[np.r_[0:50, 100:150]])
    (tmp_path / "b/dataset_dict.json").write_text(json.dumps({"splits": ["saved"]}))
    with pytest.raises(DataError, match="has the splits saved: name the one to read, as in s3://b/saved"):
        sp.open("s3://b", storage_options=bucket)
    write_parquet(tmp_path / "b/lake/part-0.parquet", parquet_table(VALUES, "fixed"))
    (tmp_path / "b/lake/_delta_log").mkdir()
    (tmp_path / "b/lake/_delta_log/00000000000000000000.json").write_text("{}")
    (tmp_path / "b/lakes").mkdir()
    (tmp_path / "b/lake").rename(tmp_path / "b/lakes/region=eu")
    for place, lake in (("lakes/region=eu", "lakes/region=eu"), ("lakes", "lakes/region=eu")):
        with pytest.raises(NotAvailableError, match=f"s3://b/{lake} is a table of Delta, whose log"):
            sp.open(f"s3://b/{place}", storage_options=bucket)


def test_shards_of_a_data_hub_are_read_where_they_are_of_one_split(bucket: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "b/set").mkdir(parents=True)
    for index in range(2):
        place = tmp_path / f"b/set/data/train-0000{index}-of-00002.parquet"
        write_parquet(place, parquet_table(VALUES[index * 125 :][:125], "fixed"))
    np.testing.assert_array_equal(sp.open("s3://b/set/", storage_options=bucket).read(0, 250)[0], VALUES)
    write_parquet(tmp_path / "b/set/data/test-00000-of-00001.parquet", parquet_table(VALUES, "fixed"))
    with pytest.raises(DataError, match="splits test, train: name the one to read"):
        sp.open("s3://b/set", storage_options=bucket)


def test_a_column_of_names_and_groups_come_from_files_behind_urls(web: Web, tmp_path: Path) -> None:
    ids = [f"row-{i // 50}" for i in range(250)]
    path = write_parquet(tmp_path / "x.parquet", parquet_table(VALUES, "fixed", ids), 70)
    table = sp.open(f"{web.url}/x.parquet", columns="v", id_column="id")
    assert table.labels.sample_name(73) == "id=row-1"
    assert table.sample_columns.values("id").tolist() == ids
    one, other = (sp.PCA(2).fit_groups(place, labels="id") for place in (path, f"{web.url}/x.parquet"))
    assert list(one) == list(other)


def test_a_table_is_opened_in_another_process_and_knows_its_version(web: Web, tmp_path: Path) -> None:
    path = written(tmp_path, "columns")
    table = pickle.loads(pickle.dumps(sp.open(f"{web.url}/x%20y.parquet")))
    np.testing.assert_array_equal(table.slice(70, 140).read(70, 140)[0], VALUES[70:140])
    assert table.version() == sp.open(f"{web.url}/x%20y.parquet").version()
    os.utime(path, ns=(1, 1))
    with pytest.raises(ChangedInputError, match=r"x y\.parquet.*changed"):
        table.read(140, 250)


def with_other_bytes(path: Path) -> None:
    write_parquet(path, parquet_table(VALUES + 1, "fixed"), 70)


@pytest.mark.parametrize("change", [with_other_bytes, lambda path: os.truncate(path, 900), Path.unlink])
def test_a_file_that_is_changed_while_it_is_read_ends_the_fit(change: Any, web: Web, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", parquet_table(VALUES, "fixed"), 70)
    table = sp.open(f"{web.url}/x.parquet")
    sp.PCA(2).fit(table)
    change(path)
    with pytest.raises(ChangedInputError, match=r"/x\.parquet.*changed"):
        sp.PCA(2).fit(table)


def refusing(web: Web, path: Path) -> None:
    web.authorization = "Basic secret"


def without_ranges(web: Web, path: Path) -> None:
    web.serves_ranges = False


def too_short(web: Web, path: Path) -> None:
    web.shortens = True


def endless(web: Web, path: Path) -> None:
    def body(file: Path) -> Iterator[bytes]:
        while True:
            yield bytes(2**16)

    web.pieces_of = body


def busy(web: Web, path: Path) -> None:
    web.refusals = [(503, {})] * 1000


def damaged(web: Web, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30] + bytes(30))


def empty(web: Web, path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("lie", "error", "message"),
    [
        (refusing, StoreError, "cannot be read: status 401"),
        (without_ranges, NotAvailableError, "not send the byte ranges"),
        (too_short, NotAvailableError, "not send the byte ranges"),
        (endless, NotAvailableError, "not send the byte ranges"),
        (busy, StoreError, "status 503, Service Unavailable, after 3 requests"),
        (damaged, DataError, "cannot be opened as Parquet: it is cut short, or its end is damaged"),
        (empty, DataError, "cannot be opened as Parquet: it is empty"),
        (lambda web, path: path.unlink(), DataError, "no such file"),
    ],
)
def test_what_cannot_be_opened_is_named_without_secrets(
    lie: Any, error: type[Exception], message: str, web: Web, tmp_path: Path
) -> None:
    web.query = "key=geheim"
    path = write_parquet(tmp_path / "x.parquet", parquet_table(VALUES, "fixed"), 70)
    lie(web, path)
    with pytest.raises(error, match=message) as raised:
        sp.open(f"{web.url}/x.parquet?key=geheim")
    assert f"{web.url}/x.parquet" in str(raised.value) or f"{web.url}: x.parquet" in str(raised.value)
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize("lie", [refusing, without_ranges, too_short, endless, busy])
def test_a_server_that_lies_later_ends_the_fit_with_a_named_error(lie: Any, web: Web, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", parquet_table(VALUES, "fixed"), 70)
    table = sp.open(f"{web.url}/x.parquet")
    lie(web, path)
    with pytest.raises(StreamPCAError, match=r"x\.parquet"):
        sp.PCA(2).fit(table)


def test_other_kinds_and_protocols_are_refused_without_a_request() -> None:
    for name in ("x.npy", "x.nc", "x.csv", "x.h5"):
        with pytest.raises(NotAvailableError, match="Parquet and Arrow"):
            sp.open(f"https://user:geheim@host/{name}")
    with pytest.raises(NotAvailableError, match="behind ftp:// are not read"):
        sp.open("ftp://host/x.parquet")
