"""Stores that lie, by name and by mutation: refused in one line, or read rightly; bombs; files of others left alone."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from facade import decode_by_zarr
from stores import REPOSITORY, Command, chunk_files, config_text, make_values, picture, write_store
from strategies import in_depth
from test_corruption import SEED, stretch

import streampca as sp
from streampca.errors import DataError
from streampca.sources import open_source

_SECONDS = 250


@pytest.fixture(autouse=True)
def _no_longer_than_that() -> Iterator[None]:
    """End what hangs, with its traceback."""

    def give_up(*_: Any) -> None:
        raise AssertionError(f"more than {_SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _document(store: Path) -> dict[str, Any]:
    return json.loads((store / "zarr.json").read_text())


def _v3(**changes: Any) -> Callable[[Path], None]:
    """Change keys of the zarr.json of a store."""

    def plant(directory: Path) -> None:
        store = write_store(directory / "x.zarr")
        (store / "zarr.json").write_text(json.dumps(_document(store) | changes))

    return plant


def _v2(**changes: Any) -> Callable[[Path], None]:
    def plant(directory: Path) -> None:
        place = write_store(directory / "x.zarr", version=2) / ".zarray"
        place.write_text(json.dumps(json.loads(place.read_text()) | changes))

    return plant


def _text(make: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change the bytes of the zarr.json of a store."""

    def plant(directory: Path) -> None:
        place = write_store(directory / "x.zarr") / "zarr.json"
        place.write_bytes(make(place.read_bytes()))

    return plant


def _grid(*shape: int) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": list(shape)}}


def _in_shards(*shape: int) -> list[dict[str, Any]]:
    inner = {"chunk_shape": list(shape), "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}
    index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    return [{"name": "sharding_indexed", "configuration": {**inner, "index_codecs": index, "index_location": "end"}}]


_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}

REFUSED: dict[str, Callable[[Path], None]] = {
    "shape of 2^64 rows": _v3(shape=[2**64, 8]),
    "more bytes than 2^62": _v3(shape=[2**62, 2**62]),
    "negative shape": _v3(shape=[-1, 8]),
    "shape of text": _v3(shape=[400, "8"]),
    "shape of NaN": _text(lambda text: text.replace(b"400", b"NaN")),
    "no shape": _v3(shape=None),
    "rank 0": _v3(shape=[], chunk_grid=_grid()),
    "rank 1": _v3(shape=[400], chunk_grid=_grid(100)),
    "rank 3": _v3(shape=[400, 8, 1], chunk_grid=_grid(100, 8, 1)),
    "no rows": _v3(shape=[0, 8]),
    "chunks of 0": _v3(chunk_grid=_grid(0, 8)),
    "chunks of 0 in version 2": _v2(chunks=[0, 8]),
    "negative chunks": _v3(chunk_grid=_grid(-100, 8)),
    "chunks of 512 GB": _v3(chunk_grid=_grid(10**9, 64)),
    "compressed chunks of 512 GB": _v3(
        chunk_grid=_grid(10**9, 64), codecs=[_BYTES, {"name": "zstd", "configuration": {"level": 0, "checksum": False}}]
    ),
    "10^9 chunks": _v3(shape=[10**9, 8], chunk_grid=_grid(1, 8)),
    "10^8 chunks, of which four are there": _v3(shape=[10**8, 8], chunk_grid=_grid(1, 8)),
    "10^12 chunks in a shard": _v3(shape=[10**6, 10**6], chunk_grid=_grid(10**6, 10**6), codecs=_in_shards(1, 1)),
    "shards of no chunks": _v3(codecs=_in_shards(0, 8)),
    "chunks of another rank": _v3(chunk_grid=_grid(100)),
    "irregular grid": _v3(chunk_grid={"name": "irregular", "configuration": {}}),
    "bits": _v3(data_type="r8"),
    "complex numbers": _v3(data_type="complex128", fill_value=[0.0, 0.0]),
    "dates": _v3(
        data_type={"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}, fill_value=0
    ),
    "texts": _v3(data_type="string", fill_value="", codecs=[{"name": "vlen-utf8"}]),
    "structures": _v2(dtype=[["a", "<f4"], ["b", "<f4"]], fill_value=None),
    "texts of version 2": _v2(dtype="<U8", fill_value=""),
    "a module as data type": _v3(data_type={"name": "os.system", "configuration": {}}),
    "an unknown codec": _v3(codecs=[_BYTES, {"name": "evil_canary.Codec"}]),
    "an unknown codec of version 2": _v2(compressor={"id": "evil_canary"}),
    "no codecs": _v3(codecs=[]),
    "a codec that is another": _v3(codecs=[_BYTES, {"name": "gzip", "configuration": {"level": 1}}]),
    "a codec whose parameters lie": _v3(
        codecs=[
            _BYTES,
            {
                "name": "blosc",
                "configuration": {
                    "cname": "lz4",
                    "clevel": 5,
                    "shuffle": "shuffle",
                    "typesize": -1,
                    "blocksize": 2**70,
                },
            },
        ]
    ),
    "no such byte order": _v3(codecs=[{"name": "bytes", "configuration": {"endian": "middle"}}]),
    "a fill value of text": _v3(fill_value="NaNaN"),
    "no such order": _v2(order="X"),
    "version 4": _v3(zarr_format=4),
    "no such kind of node": _v3(node_type="table"),
    "storage transformers": _v3(storage_transformers=[{"name": "evil", "configuration": {}}]),
    "keys that leave the store": _v3(chunk_key_encoding={"name": "default", "configuration": {"separator": "/../"}}),
    "a key that must be understood": _v3(evil={"must_understand": True}),
    "shape given twice": _text(lambda text: text.replace(b"{", b'{"shape": [64, 8],', 1)),
    "a key given twice, deep down": _text(
        lambda text: text.replace(b'"attributes": {}', b'"attributes": {"a": {"b": 1, "b": 2}}')
    ),
    "65 levels": _text(
        lambda text: text.replace(b'"attributes": {}', b'"attributes": {"a": ' + b"[" * 64 + b"]" * 64 + b"}")
    ),
    "100,000 brackets": _text(lambda _: b"[" * 100_000),
    "8 MiB of escaped quotes": _text(lambda _: b'\\"' * 2**22),
    "three million values": _text(
        lambda text: text.replace(b'"attributes": {}', b'"attributes": {"a": [' + b"0," * 3_000_000 + b"0]}")
    ),
    "an attribute of 50 MB": _text(
        lambda text: text.replace(b'"attributes": {}', b'"attributes": {"a": "' + b"x" * 50_000_000 + b'"}')
    ),
    "numbers of 5,000 digits": _text(lambda text: text.replace(b"400", b"4" * 5000)),
    "an empty document": _text(lambda _: b""),
    "attributes of text": _v3(attributes="evil"),
    "attributes of a number": _v3(attributes=0),
    "a list": _text(lambda text: b"[" + text + b"]"),
    "bytes that are no text": _text(lambda text: b"\xff\xfe\x00" + text),
}


@pytest.mark.deep(keep=9)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, capsys, name):
    REFUSED[name](tmp_path)
    (tmp_path / "c.yaml").write_text(config_text(tmp_path / "x.zarr", tmp_path / "out", "resources: {memory: 1GiB}"))
    before = picture(tmp_path)
    called = Command(capsys).quietly("run", tmp_path / "c.yaml")
    assert called.status in (2, 5, 7), (called.status, called.err)
    line = called.refused(called.status, "exceeds" if called.status == 7 else "x.zarr")
    assert len(line) < 1000
    assert picture(tmp_path) == before
    inspected = Command(capsys)("inspect", tmp_path / "x.zarr")
    assert inspected.status in (0, 2, 5), inspected.err


ZARR = tuple(map(int, re.findall(r"\d+", zarr.__version__)[:3]))
READ: dict[str, Callable[[Path], None]] = {
    "NaN in attributes": _text(lambda text: text.replace(b'"attributes": {}', b'"attributes": {"missing_value": NaN}')),
    "attributes of 4 MB": _text(
        lambda text: text.replace(b'"attributes": {}', b'"attributes": {"a": "' + b"x" * 4_000_000 + b'"}')
    ),
    "names that are no texts": _v3(attributes={"feature_names": [None, 1, [2], {"a": 3}, "\x1b[31m", "", "b", "c"]}),
    "a picture of 2^80 pixels": _v3(attributes={"feature_shape": [2**40, 2**40]}),
    "a picture of two million axes": _v3(attributes={"feature_shape": [1] * 200_000}),
    "a key that need not be understood": _v3(more={"must_understand": False}),
    "20 levels": _text(
        lambda text: text.replace(b'"attributes": {}', b'"attributes": {"a": ' + b"[" * 20 + b"]" * 20 + b"}")
    ),
}


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize("name", READ)
def test_what_is_only_odd_is_read(tmp_path, capsys, name):
    if "understood" in name and ZARR < (3, 1, 4):
        pytest.skip("earlier versions of zarr refuse such keys")
    READ[name](tmp_path)
    (tmp_path / "c.yaml").write_text(config_text(tmp_path / "x.zarr", tmp_path / "out"))
    called = Command(capsys).quietly("run", tmp_path / "c.yaml")
    assert called.status == 0, called.err
    np.testing.assert_allclose(sp.load(tmp_path / "out").mean_, make_values().mean(axis=0), atol=1e-14)
    for text in (called.out, called.err, Command(capsys)("inspect", tmp_path / "x.zarr").out):
        assert "\x1b" not in text


def _consolidated(path: Path, version: int) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=version)
    group.create_array("x", data=make_values(), chunks=(100, 8), config={"write_empty_chunks": True})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(str(path), zarr_format=version)
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("array", [None, "x"])
def test_consolidated_metadata_are_not_believed(tmp_path, version, array):
    path = _consolidated(tmp_path / "g.zarr", version)
    np.testing.assert_array_equal(open_source(path, array=array).read(0, 400)[0], make_values())
    place = path / ("zarr.json" if version == 3 else ".zmetadata")
    document = json.loads(place.read_text())
    told = document["consolidated_metadata"]["metadata"]["x"] if version == 3 else document["metadata"]["x/.zarray"]
    told["shape"] = [500, 8]
    place.write_text(json.dumps(document))
    assert zarr.open_group(path, mode="r")["x"].shape == (500, 8)  # that is what zarr reads, a fifth of it fill value
    with pytest.raises(DataError, match=r"consolidated metadata says shape \(500, 8\), the array itself \(400, 8\)"):
        open_source(path, array=array)
    with pytest.raises(DataError, match="consolidate the metadata again"):
        open_source(zarr.open_group(path, mode="r")["x"])


@pytest.mark.parametrize(
    "name", ["../secret.zarr", "..", "/etc", "a\\..\\b", "x/../../secret.zarr", "\x1b[31mred", "x" * 5000]
)
def test_names_of_arrays_stay_in_the_store(tmp_path, name):
    write_store(tmp_path / "secret.zarr")
    path = _consolidated(tmp_path / "g.zarr", 3)
    with pytest.raises(DataError, match=r"g\.zarr has no array"):
        open_source(path, array=name)


def _away(file: Path, target: Path, *, relative: bool = False) -> None:
    """Put a link where `file` is, which goes to `target`."""
    if file.is_dir():
        shutil.copytree(file, target)
        shutil.rmtree(file)
    else:
        file.replace(target)
    file.symlink_to(os.path.relpath(target, file.parent) if relative else target)


@pytest.mark.parametrize("what", ["chunk", "relative chunk", "directory of all chunks", "document", "store"])
@pytest.mark.parametrize("reader", ["direct", "zarr"])
def test_links_are_followed(tmp_path, what, reader):
    store = write_store(tmp_path / "x.zarr", chain="zstd+crc32c")
    place = {"directory of all chunks": "c", "document": "zarr.json", "store": ""}.get(what, "c/2/0")
    _away(store / place, tmp_path / "elsewhere", relative="relative" in what)
    source = open_source(store)
    source.check()
    if reader == "zarr":
        decode_by_zarr(source)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(0, 400)[0], make_values())
    np.testing.assert_array_equal(source.read(0, 400)[0], make_values())


def test_follow_symlinks_is_ignored_with_a_warning(tmp_path, capsys):
    store, out = write_store(tmp_path / "x.zarr"), tmp_path / "out"
    (tmp_path / "c.yaml").write_text(config_text(store, out))
    command = Command(capsys)
    for call in (
        lambda: open_source(store, follow_symlinks=True).describe() == open_source(store).describe(),
        lambda: not command.quietly("run", tmp_path / "c.yaml", "--set", "source.follow_symlinks=true").status,
        lambda: not command.quietly("transform", out, store, tmp_path / "scores", "--follow-symlinks").status,
    ):
        with pytest.warns(FutureWarning, match=r"follow_symlinks is ignored: .* leave it out") as caught:
            assert call()
        assert len(caught) == 1


class _Marks:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("change", ["filter", "compressor", "objects"])
def test_nothing_is_unpickled_out_of_a_store(tmp_path, capsys, change):
    changes = {"filter": {"filters": [{"id": "pickle"}]}, "compressor": {"compressor": {"id": "pickle"}}}
    changes["objects"] = {"filters": [{"id": "pickle"}], "dtype": "|O", "fill_value": None}
    _v2(**changes[change])(tmp_path)
    chunks = chunk_files(tmp_path / "x.zarr")
    for chunk in chunks:
        chunk.write_bytes(pickle.dumps(_Marks(tmp_path / "marker")))
    (tmp_path / "c.yaml").write_text(config_text(tmp_path / "x.zarr", tmp_path / "out"))
    command = Command(capsys)
    command.quietly("run", tmp_path / "c.yaml").refused(5, "x.zarr")
    command("inspect", tmp_path / "x.zarr")
    assert not (tmp_path / "marker").exists()
    pickle.loads(chunks[0].read_bytes())
    assert (tmp_path / "marker").exists()  # it would have worked


@pytest.mark.slow
def test_documents_that_were_changed_are_refused_or_read() -> None:
    n = in_depth(25, 500)
    score = stretch("hostile", n, SEED, 240)
    print(score.line(), *score.notes, sep="\n")
    score.require_clean()
    assert score.injected > 0.9 * n
    assert score.detected + score.survived == score.injected
    assert score.detected > 0.3 * score.injected


@pytest.mark.slow
def test_bombs_are_refused_before_they_take_memory() -> None:
    script = REPOSITORY / "tests/faults/bombs.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) > 40
    for name, told in found.items():
        assert told["said"].startswith("DamagedChunkError: "), (name, told)
        assert told["grown"] < 2**26, (name, told)


@pytest.mark.deep
def test_what_is_said_of_a_number_that_is_a_list_of_thousands_is_short():
    score = stretch("hostile", 1, 900355, 60)
    score.require_clean()
    assert score.injected == 1
