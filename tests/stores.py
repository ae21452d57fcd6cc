"""Small zarr stores, whole and broken, pictures of directories, and the command called in this process or another."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from facade import run_command
from numcodecs import GZip, Zstd
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

REPOSITORY = Path(__file__).parents[1]

CHAINS: dict[str, Any] = {
    "none": lambda: None,
    "crc32c": lambda: [Crc32cCodec()],
    "zstd": lambda: [ZstdCodec(level=1)],
    "zstd-checksum": lambda: [ZstdCodec(level=1, checksum=True)],
    "blosc": lambda: [BloscCodec(cname="lz4")],
    "gzip": lambda: [GzipCodec(level=1)],
    "zstd+crc32c": lambda: [ZstdCodec(level=1), Crc32cCodec()],
}
"""Codec chains of zarr v3 by name."""
_CHAINS_V2: dict[str, Any] = {"none": lambda: None, "zstd": lambda: Zstd(level=1), "gzip": lambda: GZip(level=1)}


def make_values(n: int = 400, d: int = 8, seed: int = 0) -> NDArray[np.float64]:
    """Return normal values, shape ``(n, d)``."""
    return np.random.default_rng(seed).standard_normal((n, d))


def write_store(
    path: Path,
    values: NDArray[Any] | None = None,
    *,
    version: int = 3,
    chain: str = "none",
    chunks: tuple[int, ...] = (100, 8),
    shards: tuple[int, ...] | None = None,
    **options: Any,
) -> Path:
    """Write `values` (normal ones by default) to a new zarr array, every chunk of it."""
    values = make_values() if values is None else values
    array = zarr.create_array(
        path,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks,
        shards=shards,
        zarr_format=version,
        compressors=(CHAINS if version == 3 else _CHAINS_V2)[chain](),
        config={"write_empty_chunks": True},
        **options,
    )
    if values.size:
        array[...] = values
    return path


def write_group(path: Path) -> None:
    """Write a zarr group of two tables, left and right."""
    group = zarr.open_group(path, mode="w")
    for name in ("left", "right"):
        group.create_array(name, data=make_values(), chunks=(100, 8))


def chunk_files(store: Path) -> list[Path]:
    """Return the files of all chunks of an array, sorted."""
    return sorted(p for p in store.rglob("*") if p.is_file() and p.name not in ("zarr.json", ".zarray", ".zattrs"))


def seal_of(attributes: dict[str, Any]) -> str:
    """Return the seal of a saved model with these other attributes."""
    return hashlib.sha256(json.dumps(attributes, sort_keys=True).encode()).hexdigest()


def resealed(model: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the attributes of a saved model and seal them again, as whoever can change them can: a SHA-256 of all the others."""
    document = json.loads((model / "zarr.json").read_text())
    told = {name: value for name, value in document["attributes"].items() if name != "seal"}
    change(told)
    document["attributes"] = {**told, "seal": seal_of(told)}
    (model / "zarr.json").write_text(json.dumps(document))


def write_lock(place: Path, run_id: str, **changes: object) -> Path:
    """Write the lock of the run `run_id` for `place` as a run leaves it that is killed; return its path."""
    holder = {
        "format": "streampca-lock",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "run_id": run_id,
        "since": "2026-01-01T00:00:00+00:00",
    }
    lock = place.with_name(f"{place.name}.lock")
    lock.write_text(json.dumps(holder | changes, sort_keys=True) + "\n")
    return lock


def picture(directory: Path) -> dict[str, bytes | str]:
    """Return everything below a directory: bytes of files, targets of links, a word for directories."""
    found: dict[str, bytes | str] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        else:
            found[name] = "directory" if path.is_dir() else path.read_bytes()
    return found


def config_text(source: str | Path, directory: str | Path, *lines: str, output: str = "report: false") -> str:
    """Return a configuration without report, with further lines."""
    return "\n".join(
        [f"source: {{path: '{source}'}}", f"output: {{directory: '{directory}', {output}}}", "name: job", *lines, ""]
    )


@dataclass
class Called:
    """What a command came to."""

    status: int
    out: str
    err: str

    def refused(self, status: int, *words: str) -> str:
        """Check that the command ended with one line that holds `words`, and with `status`; return the line."""
        assert self.status == status, (self.status, self.err, self.out)
        assert self.out == ""
        assert self.err.startswith("streampca: error: ")
        assert self.err.endswith("\n")
        assert len(self.err.splitlines()) == 1, self.err
        for word in ("Traceback", "internal error", "StorePath", "Errno", "<class", "object at 0x"):
            assert word not in self.err
        for word in words:
            assert word in self.err, (word, self.err)
        return self.err


class Command:
    """Calls ``streampca`` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Called:
        self._capsys.readouterr()
        status = run_command(*arguments)
        out, err = self._capsys.readouterr()
        return Called(status, out, err)

    def quietly(self, name: str, *arguments: object) -> Called:
        """Call a command that would show progress, without it."""
        return self(name, "--quiet", *arguments)


def call_apart(*arguments: object, directory: Path, **environment: str) -> Called:
    """Call ``streampca`` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "streampca", *map(str, arguments)],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,  # ends a hang; a busy machine may need minutes
        check=False,
    )
    return Called(done.returncode, done.stdout, done.stderr)
