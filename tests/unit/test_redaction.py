"""Passwords and signatures within URLs appear in no message, plan, manifest or report."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zarr
from stores import Command, config_text, make_values, write_store
from web import Web

import streampca as sp
from streampca.errors import DataError, OutputError, StreamPCAError
from streampca.sources import open_source

SECRETS = ("hunter2", "tok3n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:hunter2@host.org/a.zarr?X-Sig=tok3n&b=1 cannot be read", "https://host.org/a.zarr cannot be read"),
        ("'s3://me:hunter2@bucket/x': no", "'s3://bucket/x': no"),
        ("simplecache::https://hunter2@host/x", "simplecache::https://host/x"),
        ("a@b.org, what? plain text", "a@b.org, what? plain text"),
        ("https://host/x (see https://other/y?q=tok3n)", "https://host/x (see https://other/y)"),
        ("tls://127.0.0.1:8786", "tls://127.0.0.1:8786"),
        ("file:///data/a@b/c", "file:///data/a@b/c"),
    ],
)
def test_texts_keep_urls_without_user_and_query(text: str, expected: str) -> None:
    assert str(DataError(text)) == expected
    assert str(DataError(expected)) == expected


def test_every_error_is_redacted_also_those_of_the_system() -> None:
    for kind in (DataError, OutputError, StreamPCAError):
        error = kind("https://me:hunter2@host/x?sig=tok3n")
        assert str(error) == "https://host/x"
        assert not any(secret in repr(error.args) for secret in SECRETS)


@pytest.mark.parametrize("name", ["x.npy", "x.zarr"])
def test_errors_of_opening_show_no_password(name: str) -> None:
    with pytest.raises(StreamPCAError) as raised:
        open_source(f"nosuch://me:hunter2@host/{name}?sig=tok3n")
    assert not any(secret in str(raised.value) for secret in SECRETS)


@pytest.mark.slow
def test_run_of_a_store_behind_a_url_with_a_password_writes_it_nowhere(
    tmp_path: Path, capsys: Any, caplog: Any
) -> None:
    url = "memory://me:hunter2@redaction/x.zarr"
    array = zarr.create_array(url, shape=(60, 8), chunks=(20, 8), dtype="f8")
    array[...] = make_values(60, 8)
    caplog.set_level(logging.DEBUG, logger="streampca")
    (tmp_path / "c.yaml").write_text(config_text(url, tmp_path / "out", output="report: true"))
    command = Command(capsys)
    for called in (
        command("check", tmp_path / "c.yaml"),
        command("plan", tmp_path / "c.yaml"),
        command("run", tmp_path / "c.yaml"),
        command("verify", tmp_path / "out"),
        command("inspect", tmp_path / "out"),
        command("run", tmp_path / "c.yaml", "--set", "preprocess.feature_weight=w"),
        command("run", tmp_path / "c.yaml", "--set", f"source.path={url}?sig=tok3n", "--set", "output.overwrite=true"),
    ):
        assert not any(secret in called.out + called.err for secret in SECRETS), called
    assert not any(secret in caplog.text for secret in SECRETS)
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert not any(secret.encode() in path.read_bytes() for secret in SECRETS), path
    for data in (url, array):
        assert not any(secret in open_source(data).description for secret in SECRETS)
        assert not any(secret in str(sp.PCA(2).plan(data).to_dict()) for secret in SECRETS)
    fsspec.filesystem("memory").store.clear()


def test_user_of_an_s3_address_is_in_no_error() -> None:
    pytest.importorskip("s3fs")
    for url in ("s3://AKIAUSER:hunter2@bucket/x.zarr", "s3://AKIAUSER:hunt%65r2@bucket/x.zarr"):
        with pytest.raises(StreamPCAError) as raised:
            sp.open(url, storage_options={"skip_signature": True, "endpoint": "http://127.0.0.1:9"})
        assert not any(secret in str(raised.value) for secret in (*SECRETS, "hunt%65r2", "AKIAUSER"))


def test_literal_secrets_of_options_are_in_no_stored_configuration_and_can_be_given_again(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADER", "tok3n")
    write_store(tmp_path / "x.zarr")
    headers = "{Authorization: Bearer hunter2, Other: '${HEADER}'}"
    options = f"{{client_options: {{default_headers: {headers}}}}}"
    command, stored = Command(capsys), tmp_path / "out" / "config.yaml"
    with Web(tmp_path) as web:
        text = config_text(f"{web.url}/x.zarr", tmp_path / "out")
        (tmp_path / "c.yaml").write_text(text.replace("source: {", f"source: {{storage_options: {options}, ", 1))
        assert command("run", tmp_path / "c.yaml").status == 0
        assert not any(secret in stored.read_text() for secret in SECRETS)
        assert "${HEADER}" in stored.read_text()
        refused = command("verify", tmp_path / "out")
    assert refused.status == 2
    assert "source.storage_options.client_options.default_headers.Authorization: was left out" in refused.err
