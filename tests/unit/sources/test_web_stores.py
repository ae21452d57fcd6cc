"""Stores on web servers: names with special characters, proxies, passwords, redirects, refusals and pages in place of metadata."""

from __future__ import annotations

import base64
import ftplib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from facade import impatient, quiet_after
from stores import chunk_files, make_values, write_store
from web import Web

import streampca as sp
from streampca.cli import main
from streampca.errors import DataError, StoreError

pytest.importorskip("obstore", reason="the extra remote is not installed")

NAMES = ["a b", "a%20b", "a+b", "a%2Bb", "a#b", "a%23b", "a?b", "ü", "~t", "q'q", "x&y", "x;y", "%", "100%", "a%zz"]


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    write_store(tmp_path / "x.zarr")
    with impatient(), Web(tmp_path) as server:
        yield server


def rows_of(url: str, **options: Any) -> np.ndarray:
    source = sp.open(url, **options)
    return source.read(0, source.shape[0])[0]


def test_arrays_whose_names_have_special_characters_are_told_apart(web: Web, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "group.zarr")
    for index, name in enumerate(NAMES):
        group.create_array(name, data=make_values(40, 4, seed=index), chunks=(20, 4))
    for index, name in enumerate(NAMES):
        rows = rows_of(f"{web.url}/group.zarr", array=name)
        np.testing.assert_array_equal(rows, make_values(40, 4, seed=index), err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_paths_are_given_as_parts_of_addresses(web: Web, tmp_path: Path, name: str) -> None:
    from urllib.parse import quote

    write_store(tmp_path / f"{name}.zarr", make_values(40, 4), chunks=(20, 4))
    np.testing.assert_array_equal(rows_of(f"{web.url}/{quote(name)}.zarr"), make_values(40, 4))


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY"])
def test_proxies_of_the_environment_are_used(web: Web, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, web.url)
    np.testing.assert_array_equal(rows_of("http://store.invalid/x.zarr"), make_values())
    assert {headers["host"] for headers in web.headers} == {"store.invalid"}
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    np.testing.assert_array_equal(rows_of(f"{web.url}/x.zarr"), make_values())


def test_a_password_in_the_address_is_sent_and_in_no_message_or_plan(web: Web, tmp_path: Path) -> None:
    web.authorization = "Basic " + base64.b64encode(b"user:p@ss word").decode()
    url = web.url.replace("://", "://user:p%40ss%20word@") + "/x.zarr"
    np.testing.assert_array_equal(rows_of(url), make_values())
    pca = sp.PCA(2).fit(url)
    told = [json.dumps(sp.PCA(2).plan(url).to_dict()), repr(sp.open(url).describe()), repr(pca.plan_)]
    saved = pca.save(tmp_path / "model.zarr")
    told += [path.read_text(errors="replace") for path in saved.rglob("*") if path.is_file()]
    for status in (403, 404, 500):
        source = sp.open(url)
        web.refusals = [(status, {})] * 100
        with pytest.raises(DataError) as caught:
            source.read(0, 400)
        web.refusals = []
        told.append(str(caught.value))
    with pytest.raises(StoreError, match="status 401, Unauthorized: check the credentials") as wrong:
        sp.open(url.replace("p%40ss", "p%40zz"))
    for text in (*told, str(wrong.value)):
        assert "p%40" not in text
        assert "p@" not in text


def test_a_redirect_to_another_server_takes_no_password_along(web: Web, tmp_path: Path) -> None:
    with Web(tmp_path, "127.0.0.1") as other:
        web.elsewhere = other.url.replace("127.0.0.1", "localhost")
        options = {"client_options": {"default_headers": {"Authorization": "Bearer of the test"}}}
        np.testing.assert_array_equal(rows_of(f"{web.url}/x.zarr", storage_options=options), make_values())
        np.testing.assert_array_equal(rows_of(web.url.replace("://", "://me:it@") + "/x.zarr"), make_values())
        assert all("authorization" in headers for headers in web.headers)
        assert other.headers
        assert not any("authorization" in headers for headers in other.headers)


@pytest.mark.parametrize("name", ["zarr.json", "c"])
def test_an_answer_that_does_not_come_in_time_is_given_up(web: Web, name: str) -> None:

    def slow(file: Path) -> Iterator[bytes] | None:
        is_meant = (file.name == "zarr.json") == (name == "zarr.json")
        return (time.sleep(0.02) or file.read_bytes()[i : i + 1] for i in range(400)) if is_meant else None

    web.pieces_of, begin = slow, time.monotonic()
    with (
        impatient(2),
        pytest.raises(
            StoreError, match=rf"{name}\S* cannot be read: .*the whole answer did not come in time, after 2 req"
        ),
    ):
        rows_of(f"{web.url}/x.zarr", storage_options={"client_options": {"read_timeout": "200ms"}})
    assert time.monotonic() - begin < 5  # with all bytes 8 s, or no end


@pytest.mark.parametrize(("status", "wait"), [(429, "1"), (503, "1"), (503, "date"), (503, "soon"), (503, "-3")])
def test_a_request_is_repeated_when_the_server_says(web: Web, tmp_path: Path, status: int, wait: str) -> None:
    source, begin, is_heeded = sp.open(f"{web.url}/x.zarr"), time.monotonic(), wait in ("1", "date")
    value = formatdate(time.time() + 3, usegmt=True) if wait == "date" else wait
    web.refusals = [(status, {"Retry-After": value})] * (100 if is_heeded else 3)
    opening = threading.Timer(0.9, web.refusals.clear)
    opening.start()
    np.testing.assert_array_equal(source.read(0, 400)[0], make_values())
    assert (1.0 if is_heeded else 0.0) <= time.monotonic() - begin < 10
    if is_heeded:
        n_chunks = len(chunk_files(tmp_path / "x.zarr"))
        assert 2 <= web.n_refused <= 2 * n_chunks  # the second of each chunk learns what the server asks for
    opening.cancel()


def test_a_server_that_asks_for_a_long_wait_is_not_waited_for(web: Web) -> None:
    source, begin = sp.open(f"{web.url}/x.zarr"), time.monotonic()
    web.refusals = [(503, {"Retry-After": "3600"})] * 100
    with pytest.raises(StoreError, match=r"status 503, .* after 2 requests: the store asks to wait 3600 s"):
        source.read(0, 400)
    assert time.monotonic() - begin < 10


def test_a_key_without_an_answer_is_given_up_after_its_total_time(web: Web) -> None:
    source, begin = (
        sp.open(f"{web.url}/x.zarr", storage_options={"client_options": {"read_timeout": "200ms"}}),
        time.monotonic(),
    )
    web.delay_of = lambda name: 1.0
    with impatient(12, seconds=0.5), pytest.raises(StoreError, match=r"c/\S+ cannot be read: .*after [2-4] requests"):
        source.read(0, 400)
    assert time.monotonic() - begin < 5


def test_progress_says_that_a_store_is_waited_for(web: Web) -> None:
    web.delay_of, told = (lambda name: 0.5), set()
    with quiet_after(0.1):
        sp.PCA(2, progress=lambda step: told.add(step.waiting_for)).fit(f"{web.url}/x.zarr")
    assert told == {"", "waiting for the store"}


def test_a_server_that_is_started_again_is_waited_for_once_it_has_answered(tmp_path: Path) -> None:
    write_store(tmp_path / "x.zarr")
    with Web(tmp_path) as first:
        options = {"client_options": {"pool_max_idle_per_host": "0"}}
        source, port = sp.open(f"{first.url}/x.zarr", storage_options=options), first.server_address[1]
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(source.read, 0, 400)
        time.sleep(0.3)
        assert not reading.done()
        with Web(tmp_path, port=port):
            np.testing.assert_array_equal(reading.result(30)[0], make_values())


def test_a_host_that_there_is_not_is_named_at_once(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def unknown(*arguments: Any, **_: Any) -> Any:
        asked.append(arguments)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(StoreError, match="Name or service not known: check the address"):
        sp.open("http://store.invalid/x.zarr")
    assert len(asked) <= 4  # of the documents of both formats, requested at once


@pytest.mark.parametrize("door", ["open", "inspect", "run"])
@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        ConnectionRefusedError(111, "Connection refused"),
        TimeoutError("timed out"),
        ftplib.error_perm("530 Login incorrect for me with s3cr3t."),
        EOFError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_client_that_connects_when_it_is_made_and_cannot_is_named(
    door: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(ftplib.FTP, "connect", connect)
    url = f"ftp://me:s3cr3t@{door}-{type(error).__name__.replace('_', '-')}.invalid/x.zarr"  # fsspec remembers clients
    if door == "open":
        with pytest.raises(StoreError, match=r"cannot be opened: .*: check the address and source.storage_options"):
            sp.open(url)
        return
    configuration = tmp_path / "x.yaml"
    configuration.write_text(f"name: x\nsource: {{path: '{url}'}}\noutput: {{directory: '{tmp_path / 'out'}'}}\n")
    with pytest.raises(SystemExit, match="5"):
        main(["inspect", url] if door == "inspect" else ["run", str(configuration)])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("streampca: error: ftp://")
    assert "cannot be opened" in lines[0]
    assert "s3cr3t" not in lines[0]


def certificates(directory: Path) -> tuple[Path, Path]:
    """Write a certificate for the loopback interface with its key, and that of the authority that has signed it."""
    x509 = pytest.importorskip("cryptography.x509", reason="cryptography is not installed")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    keys, now = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)], datetime.now(UTC)
    ours, theirs = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("ours", "theirs"))
    texts = []
    for subject, key, is_authority in ((ours, keys[0], True), (theirs, keys[1], False)):
        made = x509.CertificateBuilder(ours, subject, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now).not_valid_after(now + timedelta(days=1))
        made = made.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key())
        made = made.add_extension(issuer, critical=False)
        if not is_authority:
            names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
            made = made.add_extension(names, critical=False)
        texts.append(made.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "authority").write_bytes(texts[0])
    (directory / "server").write_bytes(texts[1] + keys[1].private_bytes(serialization.Encoding.PEM, form, secret))
    return directory / "authority", directory / "server"


def test_certificates_are_those_of_the_options_and_of_the_environment(web: Web, tmp_path: Path) -> None:
    trusted, own = certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    with Web(tmp_path) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = server.url.replace("http:", "https:") + "/x.zarr"
        with pytest.raises(
            StoreError, match=r"its certificate is not trusted \(UnknownIssuer\): give that of its authority"
        ) as caught:
            sp.open(url)
        assert "request" not in str(caught.value)  # it is not repeated
        options = {"client_options": {"root_certificate": trusted.read_bytes()}}
        np.testing.assert_array_equal(rows_of(url, storage_options=options), make_values())
        server.refusals = [(503, {"Retry-After": "3600"})] * 100
        with pytest.raises(StoreError, match="the store asks to wait 3600 s"):
            rows_of(url, storage_options=options)
        code = f"import streampca; print(streampca.open({url!r}).shape)"
        environment = os.environ | {"SSL_CERT_FILE": str(trusted)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.stdout == "(400, 8)\n", done.stderr


def test_a_page_in_place_of_metadata_is_named(web: Web, tmp_path: Path) -> None:
    (tmp_path / "x.zarr" / "zarr.json").write_text("\n<!doctype html><html>Please log in.</html>")
    with pytest.raises(DataError, match=r"zarr\.json is a page of HTML or XML: .*asks for a login"):
        sp.open(f"{web.url}/x.zarr")
