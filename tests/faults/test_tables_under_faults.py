"""Tables of stored arrays under faults: the bits of the same numbers in a plain table, or a named error."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from facade import write_fingerprint
from slow_run import SlowRun, digest_of_run
from stores import config_text, write_store

import streampca as sp
from streampca.errors import (
    AlteredChunkError,
    ChangedInputError,
    DamagedChunkError,
    MissingChunkError,
    StreamPCAError,
)
from streampca.sources import Source

N = 4_000
OPTIONS: dict[str, Any] = {"samples": "time", "variables": ["u", "v"], "mask": "land"}


def write_field(path: Path) -> Path:
    """Write two packed variables in unequal chunks, one of them not in the order of the table, and a mask."""
    rng = np.random.default_rng(0)
    u = (rng.standard_normal((N, 4, 5)) * 900).astype("i2")
    v = (rng.standard_normal((5, N)) * 90).astype("i2")
    group = zarr.create_group(path)
    for name, values, chunks, dims in (
        ("u", u, (100, 2, 5), ("time", "lat", "lon")),
        ("v", v, (5, 50), ("lon", "time")),
        ("land", np.arange(20).reshape(4, 5).T % 4 > 0, (5, 4), ("lon", "lat")),
    ):
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=chunks,
            dimension_names=dims,
            attributes={} if name == "land" else {"scale_factor": 0.01, "add_offset": 2.5, "_FillValue": -32768},
            config={"write_empty_chunks": True},
        )
        array[...] = values
    return path


def bits(pca: sp.PCA) -> bytes:
    return bytes(pca.components_.tobytes() + pca.explained_variance_.tobytes() + pca.mean_.tobytes())


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the labelled store, and a plain table of the same numbers in chunks of as many rows."""
    directory = tmp_path_factory.mktemp("tables")
    source = sp.open(write_field(directory / "field.zarr"), **OPTIONS)
    rows = source.read(0, N)[0]
    return directory / "field.zarr", write_store(
        directory / "x.zarr", rows, chunks=(source.chunk_rows, rows.shape[1]), chain="zstd"
    )


@pytest.mark.parametrize("solver", ["covariance", "sketch", "adaptive"])
def test_table_of_arrays_has_the_bits_of_the_plain_table(stores: tuple[Path, Path], solver: str) -> None:
    field, plain = stores
    options = {} if solver == "covariance" else {"sketch_size": 10}
    expected = sp.PCA(4, solver=solver, **options).fit(plain)
    assert bits(sp.PCA(4, solver=solver, **options).fit(sp.open(field, **OPTIONS))) == bits(expected)


@pytest.mark.distributed
@pytest.mark.parametrize("solver", ["covariance", "gram"])
def test_workers_of_a_cluster_give_the_same_bits(
    stores: tuple[Path, Path], solver: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sp.open(stores[0], **OPTIONS)
    alone = sp.PCA(4, solver=solver).fit(source)
    with client.as_current():
        monkeypatch.chdir(stores[0].parent)
        assert bits(sp.PCA(4, solver=solver).fit(sp.open("field.zarr", **OPTIONS))) == bits(alone)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as by every web server of today

    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # the default of 5 refuses connections while this process is busy


@pytest.fixture
def served(stores: tuple[Path, Path]) -> Iterator[str]:
    """Serve the directory of the stores over HTTP."""
    handler = functools.partial(_Quiet, directory=str(stores[0].parent))
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_store_behind_a_url_gives_the_same_bits(stores: tuple[Path, Path], served: str) -> None:
    pytest.importorskip("obstore")
    source = sp.open(f"{served}/field.zarr", **OPTIONS)
    assert bits(sp.PCA(4, solver="covariance").fit(source)) == bits(
        sp.PCA(4, solver="covariance").fit(sp.open(stores[0], **OPTIONS))
    )


@pytest.mark.deep
def test_run_that_is_killed_and_resumed_has_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    source = "{path: field.zarr, samples: [time], variables: [u, v], mask: land}"
    text = config_text("x", "out", "model: {n_components: 3, solver: covariance}", "resources: {threads: 2}")
    digests = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        write_field(tmp_path / name / "field.zarr")
        (tmp_path / name / "c.yaml").write_text(text.replace("{path: 'x'}", source))
        run = SlowRun(tmp_path / name, block_rows=100)
        if name == "killed":
            assert run.kill_after(12)
        assert run.finish()[0] == 0
        digests.append(digest_of_run(tmp_path / name / "out"))
    assert digests[0] == digests[1]


def chunk_of(store: Path, variable: str) -> Path:
    return sorted(path for path in (store / variable / "c").rglob("*") if path.is_file())[3]


@pytest.fixture
def field(tmp_path: Path) -> Path:
    return write_field(tmp_path / "field.zarr")


def opened(field: Path, **options: Any) -> Source:
    return sp.open(field, **OPTIONS, **options)


@pytest.mark.parametrize("variable", ["u", "v"])
def test_missing_chunk_of_any_variable_is_an_error_or_is_filled_and_counted(field: Path, variable: str) -> None:
    chunk_of(field, variable).unlink()
    with pytest.raises(MissingChunkError, match=r"1 of (80|160) chunks do not exist, first: c/"):
        sp.PCA(2, solver="covariance").fit(opened(field))
    pca = sp.PCA(2, solver="covariance").fit(opened(field, missing_chunks="fill"))
    assert pca._model.source["missing_chunks_filled"] == 1


@pytest.mark.parametrize("solver", ["covariance", "gram"])
@pytest.mark.parametrize("variable", ["u", "v"])
def test_damaged_chunk_of_any_variable_is_named(field: Path, variable: str, solver: str) -> None:
    chunk = chunk_of(field, variable)
    chunk.write_bytes(chunk.read_bytes()[:-9])
    key = chunk.relative_to(field / variable).as_posix()
    with pytest.raises(DamagedChunkError, match=rf"{variable}: chunk {key} ") as raised:
        sp.PCA(2, solver=solver).fit(opened(field))
    assert raised.value.exit_status == 5


def test_variable_that_changes_during_a_pass_raises_named_error(field: Path) -> None:
    def change(progress: Any) -> None:
        chunk = chunk_of(field, "v")
        chunk.write_bytes(chunk.read_bytes() + b"")

    with pytest.raises(ChangedInputError):
        sp.PCA(2, solver="covariance", progress=change).fit(opened(field))


@pytest.mark.parametrize("chain", ["none", "zstd"])
def test_fingerprint_of_a_cube_finds_every_altered_chunk(tmp_path: Path, chain: str) -> None:
    cube = np.random.default_rng(0).standard_normal((30, 20, 6))
    store = write_store(tmp_path / "x.zarr", cube, chunks=(10, 10, 3), chain=chain, dimension_names=("y", "x", "band"))
    options: dict[str, Any] = {"samples": ["x", "y"], "verify": "manifest"}
    write_fingerprint(sp.open(store, samples=["y", "x"]))
    sound = sp.PCA(2, solver="covariance").fit(sp.open(store, **options))
    assert bits(sound) == bits(sp.PCA(2, solver="covariance").fit(sp.open(store, samples=["x", "y"])))
    chunks = sorted(path for path in (store / "c").rglob("*") if path.is_file())
    chunks[4].write_bytes(chunks[7].read_bytes())  # of the right size and codec
    with pytest.raises(AlteredChunkError, match=r"chunk c/1/0/0 is not what was fingerprinted"):
        sp.PCA(2, solver="covariance").fit(sp.open(store, **options))


def test_several_variables_are_verified_each_by_its_own_fingerprint(field: Path) -> None:
    for name in ("u", "v"):
        write_fingerprint(sp.open(field, samples="time", array=name, decode="raw"))
    sp.PCA(2, solver="covariance").fit(opened(field, verify="manifest"))
    chunks = chunk_of(field, "v"), chunk_of(field, "v").with_name("0")
    chunks[0].write_bytes(chunks[1].read_bytes())
    with pytest.raises(StreamPCAError, match="is not what was fingerprinted"):
        sp.PCA(2, solver="covariance").fit(opened(field, verify="manifest"))
