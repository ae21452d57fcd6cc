"""Stores that somebody else has opened, also those that say they can list their keys and cannot."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from stores import make_values, write_store
from web import Web
from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore

import streampca as sp
from streampca.errors import ChangedInputError, DamagedChunkError, DataError, MissingChunkError, StoreError
from streampca.sources import open_source


class ForeignError(Exception):
    """What a client of a store raises, related to nothing."""


class WithoutListing(WrapperStore[Any]):
    """A store such as that of a plain web server behind a client that has a listing for other servers."""

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        raise ForeignError("no listing")
        yield ""

    list_dir = list_prefix


def test_store_object_is_opened_like_its_path(tmp_path: Path) -> None:
    write_store(tmp_path / "x.zarr", make_values(60, 8), chunks=(20, 8))
    np.testing.assert_array_equal(open_source(LocalStore(tmp_path / "x.zarr")).read(0, 60)[0], make_values(60, 8))
    with pytest.raises(DataError, match="is not a zarr store"):
        open_source(LocalStore(tmp_path))


@pytest.mark.parametrize("kind", ["URL", "obstore", "fsspec"])
def test_files_are_read_as_files_whoever_has_opened_them(tmp_path: Path, kind: str) -> None:
    path = write_store(tmp_path / "x.zarr", make_values(60, 8), chunks=(20, 8), chain="zstd")
    if kind == "URL":
        source = open_source(f"file://{path}")
    elif kind == "fsspec":
        source = open_source(FsspecStore.from_url(f"file://{path}"))
    else:
        source = open_source(ObjectStore(pytest.importorskip("obstore.store").LocalStore(path), read_only=True))
    assert not source.reads_ahead
    assert source.overhead_bytes(20) == open_source(path).overhead_bytes(20)
    np.testing.assert_array_equal(source.read(0, 60)[0], make_values(60, 8))
    (path / "c/1/0").write_bytes(b"")
    with pytest.raises(DamagedChunkError, match=r"chunk c/1/0 \(codec zstd\)"):
        source.read(0, 60)


@pytest.mark.parametrize("kind", ["store", "URL"])
def test_references_into_other_files_are_read(tmp_path: Path, kind: str) -> None:
    values = make_values(60, 8)
    place, references = tmp_path / "data", dict[str, Any]()
    place.write_bytes(b"header" + values.tobytes())
    described = {"zarr_format": 2, "shape": [60, 8], "chunks": [20, 8], "dtype": "<f8", "order": "C"}
    references |= {".zgroup": '{"zarr_format": 2}', "x/.zattrs": "{}"}
    references["x/.zarray"] = json.dumps(described | {"compressor": None, "filters": None, "fill_value": None})
    references |= {f"x/{i}.0": [str(place), 6 + i * 1280, 1280] for i in range(3)}
    (tmp_path / "references.json").write_text(json.dumps({"version": 1, "refs": references}))
    options = {"fo": str(tmp_path / "references.json"), "remote_protocol": "file"}
    if kind == "URL":
        source = open_source("reference://", array="x", storage_options=options)
    else:
        files = fsspec.filesystem("reference", asynchronous=True, **options)
        source = open_source(FsspecStore(files, read_only=True), array="x")
    source.check()
    np.testing.assert_array_equal(source.read(0, 60)[0], values)
    del references["x/1.0"]
    (tmp_path / "references.json").write_text(json.dumps({"version": 1, "refs": references}))
    if kind == "URL":
        fewer = open_source("reference://", array="x", storage_options=options | {"skip_instance_cache": True})
        with pytest.raises(MissingChunkError, match=r"1 of 3 chunks do not exist, first: 1\.0"):
            fewer.check()


@pytest.mark.distributed
def test_a_store_that_is_gone_hinders_no_fit_on_a_cluster(tmp_path: Path, client: Any) -> None:
    described = {"zarr_format": 2, "shape": [4, 3], "chunks": [4, 3], "dtype": "<f8", "order": "C"}
    described |= {"compressor": None, "filters": None, "fill_value": 0.0}
    references = {".zgroup": '{"zarr_format": 2}', "x/.zattrs": "{}", "x/.zarray": json.dumps(described)}
    place = tmp_path / "references.json"
    place.write_text(json.dumps({"version": 1, "refs": references}))
    files = fsspec.filesystem("reference", asynchronous=True, fo=str(place), remote_protocol="file", marker="key")
    source = open_source(FsspecStore(files, read_only=True), array="x", missing_chunks="fill")
    place.unlink()
    store = write_store(tmp_path / "x.zarr", make_values(60, 8))
    with client.as_current():
        found = sp.PCA(2).fit(store)
        with pytest.raises(StoreError, match=r"a worker cannot open the store \(FileNotFoundError\)"):
            sp.PCA(1).fit(source)
    np.testing.assert_array_equal(found.components_, sp.PCA(2).fit(store).components_)


def zipped(path: Path, values: np.ndarray[Any, Any], leaves_out: str = "") -> Path:
    """Write a zarr group with an array ``x`` to a zip file, without the chunk `leaves_out`."""
    with zipfile.ZipFile(path, "w") as file, zarr.storage.ZipStore(path.with_suffix(".tmp"), mode="w") as store:
        zarr.create_group(store).create_array("x", data=values, chunks=(20, 8))
        store.close()
        with zipfile.ZipFile(path.with_suffix(".tmp")) as whole:
            for name in whole.namelist():
                if name != leaves_out:
                    file.writestr(name, whole.read(name))
    return path


def test_a_store_in_a_zip_file_is_read_and_damage_is_named(tmp_path: Path) -> None:
    values = make_values(60, 8)
    path = zipped(tmp_path / "x.zarr.zip", values)
    source = pickle.loads(pickle.dumps(open_source(path)))
    source.check()
    np.testing.assert_array_equal(source.read(0, 60)[0], values)
    expected = np.linalg.eigvalsh(np.cov(values.T))[::-1][:2]
    np.testing.assert_allclose(sp.PCA(2).fit(str(path)).explained_variance_, expected, rtol=1e-12)
    with pytest.raises(MissingChunkError, match="1 of 3 chunks do not exist, first: c/1/0"):
        sp.PCA(2).fit(str(zipped(tmp_path / "fewer.zip", values, "x/c/1/0")))
    stored = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        stored[file.getinfo("x/c/1/0").header_offset + 100] ^= 1
    (tmp_path / "flipped.zip").write_bytes(stored)
    with pytest.raises(DamagedChunkError, match="CRC"):
        sp.PCA(2).fit(str(tmp_path / "flipped.zip"))
    (tmp_path / "half.zip").write_bytes(path.read_bytes()[: len(stored) // 2])
    with pytest.raises(DataError, match="cannot be opened as zarr: File is not a zip file"):
        open_source(tmp_path / "half.zip")
    (tmp_path / "x.dat").write_bytes(path.read_bytes())
    with pytest.raises(DataError, match=r"a name that ends in \.zip"):
        open_source(tmp_path / "x.dat")


@pytest.mark.parametrize("shards", [None, (40, 8)])
def test_snapshot_of_icechunk_is_its_version_and_its_name(tmp_path: Path, shards: tuple[int, ...] | None) -> None:
    icechunk = pytest.importorskip("icechunk")
    values = make_values(60, 8)
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="x", shape=values.shape, dtype="f8", chunks=(20, 8), shards=shards)
    array[...] = values
    snapshots = [session.commit("first")]
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="x", mode="r+")[:20] = 7.0
    snapshots.append(session.commit("second"))
    sources = [open_source(repository.readonly_session(snapshot_id=each).store, array="x") for each in snapshots]
    for source, snapshot in zip(sources, snapshots, strict=True):
        assert source.description == f"icechunk snapshot {snapshot}"
        assert sp.PCA(2).fit(source).n_samples_seen_ == 60
    np.testing.assert_array_equal(sources[0].read(0, 60)[0], values)
    np.testing.assert_array_equal(sources[1].read(0, 20)[0], np.full((20, 8), 7.0))
    assert sources[0].version() != sources[1].version()


def test_store_that_cannot_list_is_read_and_its_errors_are_named(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("x", data=make_values(60, 8), chunks=(20, 8))
    store = WithoutListing(LocalStore(tmp_path / "g.zarr", read_only=True))
    opened = zarr.open_group(store, mode="r")
    for data in (store, opened):
        with pytest.raises(DataError, match=r"cannot be listed: no listing; name the array"):
            open_source(data)
        assert sp.PCA(2).fit(open_source(data, array="x")).n_samples_seen_ == 60
        with pytest.raises(DataError, match="missing_chunks: fill is for stores that can list"):
            sp.PCA(2).fit(open_source(data, array="x", missing_chunks="fill"))
    (tmp_path / "g.zarr/x/c/1/0").unlink()
    with pytest.raises(MissingChunkError, match="c/1/0"):
        sp.PCA(2).fit(opened["x"])


def test_obstore_that_cannot_list_raises_named_error(tmp_path: Path) -> None:
    stores = pytest.importorskip("obstore.store")
    server = stores.HTTPStore.from_url(
        "http://127.0.0.1:9/", client_options={"allow_http": True}, retry_config={"max_retries": 0}
    )
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:9/: .* cannot be read: Connect, Connection refused"):
        open_source(zarr.storage.ObjectStore(server, read_only=True))
    write_store(tmp_path / "x.zarr", make_values(60, 8), chunks=(20, 8))
    local = zarr.storage.ObjectStore(stores.LocalStore(tmp_path / "x.zarr"), read_only=True)
    source = open_source(local)
    np.testing.assert_array_equal(source.read(0, 60)[0], make_values(60, 8))
    sp.PCA(2).fit(source)
    (tmp_path / "x.zarr/c/0/0").write_bytes(b"")
    with pytest.raises(ChangedInputError):
        source.require_unchanged()


@pytest.mark.parametrize("client", ["obstore", "fsspec"])
def test_stores_on_the_web_that_somebody_else_opened_are_read_ahead(tmp_path: Path, client: str) -> None:
    stores = pytest.importorskip("obstore.store")
    write_store(tmp_path / "x.zarr", make_values(60, 8), chunks=(20, 8))
    with Web(tmp_path) as web:
        web.authorization = "Bearer canary"
        headers, url = {"Authorization": "Bearer canary"}, f"{web.url}/x.zarr"
        if client == "obstore":
            options = {"allow_http": True, "default_headers": headers}
            store: Any = zarr.storage.ObjectStore(
                stores.HTTPStore.from_url(url, client_options=options), read_only=True
            )
        else:
            pytest.importorskip("aiohttp", reason="aiohttp is not installed")
            store = zarr.storage.FsspecStore.from_url(url, storage_options={"headers": headers}, read_only=True)
        source = open_source(zarr.open_array(store, mode="r"))
        assert source.describe()["reader"] == "direct"
        again = pickle.loads(pickle.dumps(source))
        np.testing.assert_array_equal(again.read(0, 60)[0], make_values(60, 8))
        assert b"canary" not in pickle.dumps(source)
        agents = {headers["user-agent"] for headers in web.headers[-3:]}
        assert all(agent.startswith("streampca" if client == "fsspec" else "object_store") for agent in agents)
