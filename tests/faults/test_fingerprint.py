"""Fingerprints of stores: every chunk that is not what it was is found, whatever its codec, by both readers."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import xxhash
import zarr
from facade import decode_by_zarr, write_fingerprint
from stores import CHAINS, Command, chunk_files, config_text, make_values, picture, write_store

import streampca as sp
from streampca.errors import (
    AlteredChunkError,
    DamagedChunkError,
    DataError,
    MissingChunkError,
    NotAvailableError,
    OutputError,
)
from streampca.sources import open_source

LAYOUTS = {
    "v3": {"version": 3, "chunks": (50, 8)},
    "v3 in both axes": {"version": 3, "chunks": (70, 3)},
    "v2": {"version": 2, "chunks": (50, 8), "chain": "zstd"},
    "sharded": {"version": 3, "chunks": (25, 4), "shards": (50, 8), "chain": "zstd"},
    "sharded with an edge": {"version": 3, "chunks": (30, 8), "shards": (90, 8)},
}


def contents(place):
    """Return the document and the arrays of a fingerprint."""
    with np.load(place) as stored:
        arrays = dict(stored)
    return json.loads(arrays["stored_arrays"].tobytes()), arrays


def written_with(place, change, **arrays):
    """Write a fingerprint anew with another document or other arrays."""
    document, stored = contents(place)
    change(document)
    stored |= {"stored_arrays": np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)} | arrays
    np.savez(place, **stored)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fingerprint_holds_the_digest_of_every_stored_object(tmp_path, layout):
    store = write_store(tmp_path / "x.zarr", **LAYOUTS[layout])
    before, seen = picture(store), []
    made = write_fingerprint(open_source(store), progress=seen.append)
    assert made.place == tmp_path / "x.zarr.fingerprint.npz"
    assert picture(store) == before
    files = chunk_files(store)
    assert (made.n_chunks, made.n_missing) == (len(files), 0)
    assert made.stored_bytes == sum(file.stat().st_size for file in files)
    assert (seen[-1].phase, seen[-1].rows, seen[-1].bytes) == ("fingerprint", len(files), made.stored_bytes)
    document, written = contents(made.place)
    digests = {row.tobytes().hex() for row in written["stored_0_digests"].reshape(-1, 16)}
    assert digests == {xxhash.xxh3_128(file.read_bytes()).hexdigest() for file in files}
    entry = document["arrays"][0]
    assert (entry["whole"], entry["name"], entry["shape"]) == (made.whole, str(store), [400, 8])
    plain, verified = sp.PCA().fit(store), sp.PCA().fit(open_source(store, verify="manifest"))
    np.testing.assert_array_equal(plain.components_, verified.components_)


def _flip(data, rng, other):
    data = bytearray(data)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


DAMAGES = {
    "flip": _flip,
    "cut": lambda data, rng, other: data[: rng.randrange(1, len(data))],
    "longer": lambda data, rng, other: data + b"\0",
    "zeros": lambda data, rng, other: bytes(len(data)),
    "empty": lambda data, rng, other: b"",
    "of another chunk": lambda data, rng, other: other,
}


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("reader", ["direct", "zarr"])
def test_every_damage_is_found_whatever_the_codec(tmp_path, chain, reader):
    seed = int(os.environ.get("STREAMPCA_TEST_SEED", "20250301"))
    rng = random.Random(seed)
    store = write_store(tmp_path / "x.zarr", chain=chain)
    write_fingerprint(open_source(store))
    files = chunk_files(store)
    wholes = [file.read_bytes() for file in files]
    for number in range(8 * len(DAMAGES)):
        name = list(DAMAGES)[number % len(DAMAGES)]
        index = rng.randrange(len(files))
        damaged = DAMAGES[name](wholes[index], rng, wholes[index - 1])
        files[index].write_bytes(damaged)
        source = open_source(store, verify="manifest")
        if reader == "zarr":
            decode_by_zarr(source)
        with pytest.raises(DamagedChunkError) as caught:
            source.read(0, 400)
        what = (seed, chain, reader, name, str(caught.value))
        assert f"chunk c/{index}/0" in str(caught.value), what
        if isinstance(caught.value, AlteredChunkError):
            assert xxhash.xxh3_128(damaged).hexdigest() in str(caught.value), what
            assert xxhash.xxh3_128(wholes[index]).hexdigest() in str(caught.value), what
        files[index].write_bytes(wholes[index])
    assert open_source(store, verify="manifest").read(0, 400)[1].chunks == 4


def test_shards_side_by_side_are_read_once_for_blocks_that_are_fractions_of_them(tmp_path):
    store = write_store(tmp_path / "x.zarr", make_values(400, 32), chunks=(25, 4), shards=(100, 8), chain="zstd")
    made = write_fingerprint(open_source(store))
    source = open_source(store, verify=made.place)
    n_bytes = sum(source.read(start, start + 50)[1].stored_bytes for start in range(0, 400, 50))
    assert n_bytes == sum(file.stat().st_size for file in chunk_files(store))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_damage_outside_of_the_rows_that_are_read_is_found_if_their_chunk_is_damaged(tmp_path, layout):
    store = write_store(tmp_path / "x.zarr", **LAYOUTS[layout])
    write_fingerprint(open_source(store))
    last = chunk_files(store)[-1]
    whole = last.read_bytes()
    source = open_source(store, verify="manifest")
    np.testing.assert_array_equal(source.read(361, 363)[0], make_values()[361:363])
    np.testing.assert_array_equal(source.read(3, 391)[0], make_values()[3:391])
    last.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    source = open_source(store, verify="manifest")
    with pytest.raises(AlteredChunkError):
        source.read(361, 363)
    with pytest.raises(AlteredChunkError):
        pickle.loads(pickle.dumps(source)).read(361, 363)
    assert len(pickle.dumps(source)) < 20_000  # workers read the digests themselves


def test_swapped_chunks_with_valid_checksums_are_found(tmp_path):
    store = write_store(tmp_path / "x.zarr", chain="zstd+crc32c")
    write_fingerprint(open_source(store))
    first, second, *_ = chunk_files(store)
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    sp.PCA().fit(store)  # nobody can tell
    with pytest.raises(AlteredChunkError, match="c/0/0"):
        sp.PCA().fit(open_source(store, verify="manifest"))


def test_missing_chunks_are_told_and_compared(tmp_path):
    store = write_store(tmp_path / "x.zarr", fill_value=1.5)
    gone = chunk_files(store)[2]
    kept = gone.read_bytes()
    gone.unlink()
    with pytest.raises(MissingChunkError, match="1 of 4 chunks"):
        write_fingerprint(open_source(store))
    assert not (tmp_path / "x.zarr.fingerprint.npz").exists()
    made = write_fingerprint(open_source(store, missing_chunks="fill"))
    assert (made.n_chunks, made.n_missing) == (3, 1)
    filled = {"missing_chunks": "fill", "verify": "manifest"}
    np.testing.assert_array_equal(open_source(store, **filled).read(200, 300)[0], np.full((100, 8), 1.5))
    gone.write_bytes(kept)
    with pytest.raises(AlteredChunkError, match="expected no such chunk"):
        open_source(store, **filled).read(200, 300)
    gone.unlink()
    chunk_files(store)[0].unlink()
    with pytest.raises(AlteredChunkError, match="found no such chunk"):
        open_source(store, **filled).read(0, 100)


def test_arrays_in_groups_and_by_features(tmp_path):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    values = make_values(60, 8)
    for name in ("deep/x", "deep/y"):
        group.create_array(name, data=values.T.copy(), chunks=(8, 20))
    options = {"array": "deep/x", "orientation": "features_first"}
    made = write_fingerprint(open_source(tmp_path / "g.zarr", **options))
    assert made.place.name == "g.zarr.deep.x.fingerprint.npz"
    source = open_source(tmp_path / "g.zarr", verify="manifest", **options)
    np.testing.assert_array_equal(source.read(0, 60)[0], values)
    np.testing.assert_array_equal(source.by_features().read(0, 8)[0], values.T)
    chunk = tmp_path / "g.zarr/deep/x/c/0/1"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    for spoilt in (source, source.by_features()):
        with pytest.raises(DamagedChunkError, match="c/0/1"):
            spoilt.read(0, spoilt.shape[0])
    with pytest.raises(DataError, match=r"deep\.y\.fingerprint\.npz: no such fingerprint"):
        open_source(tmp_path / "g.zarr", array="deep/y", verify="manifest")


def test_other_metadata_is_another_array(tmp_path):
    store = write_store(tmp_path / "x.zarr")
    made = write_fingerprint(open_source(store), tmp_path / "elsewhere")
    place = store / "zarr.json"
    whole = json.loads(place.read_text())
    place.write_text(json.dumps(whole | {"attributes": {"note": "of no account"}}))
    assert open_source(store, verify=made.place).shape == (400, 8)
    place.write_text(json.dumps(whole | {"shape": [399, 8]}))
    with pytest.raises(DataError, match="metadata is not what was fingerprinted"):
        open_source(store, verify=made.place)
    place.write_text(json.dumps(whole | {"fill_value": 3.0}))
    with pytest.raises(DataError, match="metadata is not what was fingerprinted"):
        open_source(store, verify=made.place)


def test_metadata_in_another_order_is_the_same_array(tmp_path):
    store = write_store(tmp_path / "x.zarr")
    write_fingerprint(open_source(store))
    whole = json.loads((store / "zarr.json").read_text())
    (store / "zarr.json").write_text(json.dumps(dict(reversed(whole.items())), indent=7))
    assert open_source(store, verify="manifest").shape == (400, 8)
    for damaged in (b"[1]", b"{", b"\xff", b"[" * 100_000):
        (store / "zarr.json").write_bytes(damaged)
        with pytest.raises(DataError):
            open_source(store, verify="manifest")


def test_a_damaged_fingerprint_is_not_used(tmp_path):
    store = write_store(tmp_path / "x.zarr")
    made = write_fingerprint(open_source(store))
    place, whole = made.place, made.place.read_bytes()
    table = contents(place)[1]["stored_0_digests"]
    flipped = table.copy()
    flipped[1, 0, 3] ^= 1

    def refuse():
        with pytest.raises(DataError, match=r"fingerprint|damaged") as caught:
            open_source(store, verify="manifest")
        assert str(place) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1

    at = whole.index(table.tobytes()) + 17
    for damaged in (whole[:200], b"[]", b"", whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
        place.write_bytes(damaged)
        refuse()
    for name in ("arrays", "coordinates"):
        place.write_bytes(whole)
        written_with(place, lambda document, name=name: document.pop(name))
        refuse()
    for change in ({"version": 2}, {"arrays": []}, {"arrays": 7}):
        place.write_bytes(whole)
        written_with(place, lambda document, change=change: document.update(change))
        refuse()
    for entry in ({"metadata": "of another"}, {"metadata": "[]"}, {"shape": [400]}, {"whole": "0" * 32}):
        place.write_bytes(whole)
        written_with(place, lambda document, entry=entry: document["arrays"][0].update(entry))
        refuse()
    for digests in (flipped, table[1:], table.astype("u4"), table[..., :8], np.array([None])):
        place.write_bytes(whole)
        written_with(place, lambda document: None, stored_0_digests=digests)
        refuse()
    place.write_bytes(whole)
    assert open_source(store, verify="manifest").digests.whole == made.whole


def test_fingerprints_of_earlier_versions_are_refused_as_such(tmp_path):
    store = write_store(tmp_path / "x.zarr")
    (tmp_path / "x.zarr.fingerprint.json").write_text('{"format": "streampca-fingerprint", "version": 1}')
    with pytest.raises(DataError, match=r"version 0\.2 or earlier.*make it"):
        open_source(store, verify="manifest")
    with pytest.raises(DataError, match=r"version 0\.2 or earlier.*make it"):
        open_source(store, verify=tmp_path / "x.zarr.fingerprint.json")


def test_a_run_with_a_state_is_a_fingerprint_of_what_it_has_read(tmp_path, capsys):
    store, command = write_store(tmp_path / "x.zarr"), Command(capsys)
    (tmp_path / "c.yaml").write_text(config_text(store, tmp_path / "out", output="report: false, state: true"))
    sp.run(tmp_path / "c.yaml")
    sp.run(tmp_path / "c.yaml", overrides=[f"output.directory={tmp_path / 'other'}", "output.state=false"])
    whole = write_fingerprint(open_source(store)).whole
    for place in ("out", "out/model.zarr"):
        source = open_source(store, verify=tmp_path / place)
        assert source.digests.whole == whole
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(0, 400)[0], make_values())
    last = chunk_files(store)[-1]
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    line = ["run", tmp_path / "c.yaml", "--set", f"output.directory={tmp_path / 'third'}", "--set"]
    command.quietly(*line, f"source.verify={tmp_path / 'out'}").refused(
        5, "c/3/0", "not what was fingerprinted", "/out"
    )
    command.quietly(*line, f"source.verify={tmp_path / 'other'}").refused(5, "/other", "output.state: true")
    table = chunk_files(tmp_path / "out/model.zarr/state/stored_0_digests")[0]
    table.write_bytes(table.read_bytes()[::-1])
    with pytest.raises(DataError, match="/out"):
        open_source(store, verify=tmp_path / "out")


def test_what_is_there_is_not_replaced_unless_asked_for(tmp_path):
    store = write_store(tmp_path / "x.zarr")
    source = open_source(store)
    foreign = tmp_path / "letter"
    foreign.write_text("dear reader")
    with pytest.raises(OutputError, match="not a fingerprint"):
        write_fingerprint(source, foreign, overwrite=True)
    assert foreign.read_text() == "dear reader"
    first = write_fingerprint(source).whole
    with pytest.raises(OutputError, match="--overwrite"):
        write_fingerprint(source)
    zarr.open_array(store, mode="r+")[0, 0] = 7.0
    assert write_fingerprint(open_source(store), overwrite=True).whole != first
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr", "x.zarr.fingerprint.npz", "letter"}


def test_what_has_no_chunks_has_no_fingerprint(tmp_path):
    np.save(tmp_path / "x.npy", make_values())
    with pytest.raises(DataError, match="zarr arrays"):
        write_fingerprint(open_source(tmp_path / "x.npy"))
    with pytest.raises(NotAvailableError, match="verify does not apply to an"):
        open_source(tmp_path / "x.npy", verify="manifest")
    with pytest.raises(NotAvailableError, match="verify is for a zarr array"):
        open_source(make_values(), verify="manifest")
    store = write_store(tmp_path / "x.zarr")
    place = write_fingerprint(open_source(store)).place
    array = zarr.open_array(store, mode="r")
    with pytest.raises(DataError, match="name the file"):
        open_source(array, verify="manifest")
    assert open_source(array, verify=place).digests is not None


def test_default_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "data/x.zarr")
    assert write_fingerprint(open_source("data/x.zarr/")).place == Path("data/x.zarr.fingerprint.npz")
    zarr.open_group(tmp_path / "g.zarr", mode="w").create_array("a/b", data=make_values(60, 8))
    made = write_fingerprint(open_source(f"file://{tmp_path}/g.zarr", array="a/b"))
    assert made.place == tmp_path / "g.zarr.a.b.fingerprint.npz"
    url = "memory://deep/far.zarr"
    zarr.create_array(url, data=make_values(60, 8))
    assert write_fingerprint(open_source(url)).place == Path("far.zarr.fingerprint.npz")


def test_the_command_and_a_run_that_compares(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    store, command = write_store(tmp_path / "x.zarr", chain="zstd"), Command(capsys)
    Path("c.yaml").write_text(config_text("x.zarr", "out"))
    command.quietly("run", "c.yaml", "--set", "source.verify=manifest").refused(
        5, "no such fingerprint", "streampca fingerprint"
    )
    called = command("fingerprint", "x.zarr", "--json", "--quiet")
    told = json.loads(called.out)
    assert (told["path"], told["chunks"], told["missing_chunks"]) == ("x.zarr.fingerprint.npz", 4, 0)
    called = command("fingerprint", "x.zarr", "--out", "again.npz")
    assert called.out.startswith("again.npz: 4 chunks, ")
    assert called.out.endswith(f"xxh3-128 {told['digest']}\n")
    command("fingerprint", "x.zarr").refused(6, "--overwrite")
    called = command.quietly("run", "c.yaml", "--set", "source.verify=again.npz")
    assert called.status == 0, called.err
    manifest = json.loads(Path("out/manifest.json").read_text())
    assert manifest["source"]["verified_by"] == {"path": str(tmp_path / "again.npz"), "digest": told["digest"]}
    chunk = chunk_files(store)[2]
    data = bytearray(chunk.read_bytes())
    data[-3] ^= 4
    chunk.write_bytes(bytes(data))
    line = command.quietly("run", "c.yaml", "--set", "source.verify=manifest", "--set", "output.directory=other")
    line.refused(5, "c/2/0", "is not what was fingerprinted", "xxh3-128", "x.zarr.fingerprint.npz")
    assert not Path("other").exists()
