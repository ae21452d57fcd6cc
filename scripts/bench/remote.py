"""Fits from a web server and from S3 beside fits of local files, a bare download by obstore, and reading by zarr with it.

The server runs beside each contender, on the same machine: nginx where it is installed and there is no latency, else
`object_server.py`. Random float32 rows, without compression and with zstd, in chunks of three sizes, with three latencies; with a
latency each connection has at most 60 MB/s. Requests for chunks are counted by the server.

    .venv/bin/python scripts/bench/remote.py --megabytes 256 [--only http] [--latencies 0,0.01] [--out remote.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from _bench import Contender, Row, contend, machine, machine_line, median, timed

FEATURES = 1024
CHUNK_ROWS = {"1 MB": 256, "8 MB": 2048, "32 MB": 8192}
"""Rows of a chunk by its size."""
RATE = 60e6
"""Bytes per second of a connection where there is a latency."""
CONNECTIONS = 32
_HERE = Path(__file__).resolve().parent


def write(root: Path, megabytes: int) -> list[str]:
    """Write the stores that are not there; return their names."""
    import zarr
    from zarr.codecs import ZstdCodec

    n_rows = max(1, round(megabytes * 1e6 / 4 / FEATURES / 8192)) * 8192
    names = []
    for size, rows in CHUNK_ROWS.items():
        for compressors in (None, ZstdCodec(level=1)):
            names.append(f"{size}, {'no compression' if compressors is None else 'zstd'}")
            place = root / "bench" / _directory(names[-1])
            if place.exists():
                continue
            array = zarr.create_array(
                place, shape=(n_rows, FEATURES), chunks=(rows, FEATURES), dtype="f4", compressors=compressors
            )
            rng = np.random.default_rng(0)
            for start in range(0, n_rows, 8192):
                block = rng.standard_normal((8192, FEATURES), dtype="f4")
                array[start : start + 8192] = np.round(block, 2) if compressors else block
    return names


def _directory(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


class Server(NamedTuple):
    """A server that runs, and where it logs a line for each request."""

    port: int
    log: Path
    processes: list[psutil.Process]

    def cpu_seconds(self) -> float:
        """Return the processor time that the server has taken."""
        each = [process for parent in self.processes for process in (parent, *parent.children(recursive=True))]
        return sum(sum(process.cpu_times()[:2]) for process in each)

    def requests(self) -> int:
        """Return the number of requests for chunks."""
        return sum("/c/" in line for line in self.log.read_text().splitlines())


@contextmanager
def server(root: Path, latency: float) -> Iterator[Server]:
    """Serve `root` from other processes."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "requests"
        log.touch()
        command = [sys.executable, str(_HERE / "object_server.py"), str(root), "--latency", str(latency)]
        command += ["--rate", str(RATE)] if latency else []
        nginx = None if latency else shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        command += ["--log", str(log)] if nginx is None else []
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True)]
        try:
            assert processes[0].stdout is not None
            port = int(processes[0].stdout.readline())
            if nginx is not None:
                lists, port = port, _free_port()
                (Path(name) / "conf").write_text(_NGINX.format(place=name, log=log, root=root, port=port, lists=lists))
                processes.append(subprocess.Popen([nginx, "-c", f"{name}/conf", "-p", name, "-e", f"{name}/errors"]))
                _await(port)
            yield Server(port, log, [psutil.Process(process.pid) for process in processes])
        finally:
            for process in processes:
                process.terminate()
                process.wait()


_NGINX = """
daemon off; worker_processes 1; pid {place}/pid;
events {{ worker_connections 512; }}
http {{
  log_format short '$uri $http_range'; access_log {log} short;
  sendfile on; tcp_nopush on; keepalive_requests 1000000;
  client_body_temp_path {place}/1; proxy_temp_path {place}/2; fastcgi_temp_path {place}/3; uwsgi_temp_path {place}/4; scgi_temp_path {place}/5;
  server {{
    listen 127.0.0.1:{port} backlog=512; root {root};
    location / {{ if ($args ~ list-type) {{ proxy_pass http://127.0.0.1:{lists}; }} }}
  }}
}}
"""
"""What nginx does: sends files, and leaves the listing of a bucket to `object_server.py`."""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _await(port: int) -> None:
    for _ in range(200):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise RuntimeError("the server did not start")


def _options(url: str, port: str) -> dict[str, Any]:
    if not url.startswith("s3"):
        return {}
    keys = {"access_key_id": "testing", "secret_access_key": "testing"}
    return {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1", **keys}


def fit(url: str, port: str) -> Row:
    """Fit 10 components from a path or URL."""
    import streampca as sp

    def opened() -> Any:
        return sp.sources.open_source(url, storage_options=_options(url, port)) if "://" in url else url

    sp.PCA(2).fit(np.random.default_rng(0).standard_normal((500, 8)))
    sp.PCA(2).plan(opened())  # which imports the client

    def work() -> Row:
        pca = sp.PCA(10, solver="covariance").fit(opened())
        budget = pca.plan_.budget
        return {"bytes": pca.bytes_read_, "projected_mib": budget.projected_bytes / 2**20}

    return timed(work)


def _store(url: str, port: str) -> Any:
    """Return the store of obstore at a URL."""
    from obstore.store import from_url

    return from_url(url, client_options={"allow_http": True, "timeout": "10min"}, **_options(url, port))


def download(url: str, port: str, names: str) -> Row:
    """Download all chunks by obstore, in the ranges and as many at once as a fit requests them, and throw them away."""
    import obstore

    from streampca.sources.fetching import read_ahead

    store, requests = _store(url, port), list[tuple[str, int, int]]()
    for name, size in json.loads(Path(names).read_text()).items():
        most = size if size <= read_ahead.WHOLE_BYTES else read_ahead.RANGE_BYTES
        requests += [(name, start, min(start + most, size)) for start in range(0, size, most)]

    async def main() -> None:
        left = iter(requests)

        async def worker() -> None:
            for name, start, stop in left:
                await obstore.get_range_async(store, name, start=start, end=stop)

        await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))

    return _settled(timed(lambda: asyncio.run(main())))


def _settled(row: Row) -> Row:
    """Return `row` once the threads of obstore are done: one that hands over an answer while Python ends aborts the process."""
    time.sleep(0.2)
    return row


def by_zarr(url: str, port: str) -> Row:
    """Read all rows by zarr through obstore, as many at once as fit in 128 MB."""
    import zarr

    store = zarr.storage.ObjectStore(_store(url, port), read_only=True)

    def work() -> None:
        array = zarr.open_array(store, mode="r")
        for start in range(0, array.shape[0], 32768):
            array[start : start + 32768]

    return _settled(timed(work))


def sizes_of(place: Path) -> dict[str, int]:
    """Return the sizes of all chunks of a store."""
    return {str(path.relative_to(place)): path.stat().st_size for path in sorted(place.rglob("c/*/*"))}


def needed(place: Path, name: str) -> int:
    """Return how many requests the chunks of a store need: one, or one for each range of a large chunk."""
    from streampca.sources.fetching import read_ahead

    is_whole = 4 * FEATURES * CHUNK_ROWS[name.partition(",")[0]] <= read_ahead.WHOLE_BYTES
    return sum(1 if is_whole else -(-size // read_ahead.RANGE_BYTES) for size in sizes_of(place).values())


def contenders(
    root: Path, name: str, kind: str, port: int, repeats: int, peer_repeats: int
) -> Iterator[tuple[Contender, int]]:
    """Yield the contenders of one store, and how often each runs."""
    place = root / "bench" / _directory(name)
    web = f"http://127.0.0.1:{port}/bench/{place.name}"
    url = web if kind == "http" else f"s3://bench/{place.name}"
    names = root / f"{place.name}.json"
    names.write_text(json.dumps(sizes_of(place)))
    yield Contender("local fit", "remote", "fit", (str(place), "")), repeats
    yield Contender("fit", "remote", "fit", (url, str(port))), repeats
    yield Contender("bare download", "remote", "download", (url, str(port), str(names))), repeats
    yield Contender("zarr", "remote", "by_zarr", (url, str(port))), peer_repeats


def line(kind: str, latency: float, name: str, rows: dict[str, Row], gib: float, requests: str) -> str:
    """Return a row of the table: seconds, and seconds of processor time per GiB, of each contender."""
    cells = [
        "" if not row else "failed" if "failed" in row else f"{row['seconds']:.2f} ({row['cpu_seconds'] / gib:.1f})"
        for row in rows.values()
    ]
    fit_, floor = rows["fit"], [rows[other].get("seconds", 0.0) for other in ("local fit", "bare download")]
    ratio = "" if "failed" in fit_ else f"{fit_['seconds'] / max(floor):.2f}"
    busy = "" if "failed" in fit_ else f"{busy_cores(fit_):.2f}"
    peak = "" if "failed" in fit_ else f"{fit_['peak_mib']:.0f} / {fit_['projected_mib']:.0f}"
    return (
        f"| {kind} | {1000 * latency:.0f} ms | {name} | {' | '.join(cells)} | {ratio} | {busy} | {peak} | {requests} |"
    )


def busy_cores(row: Row) -> float:
    """Return how many cores a contender and its server kept busy."""
    return float((row["cpu_seconds"] + row["server_cpu_seconds"]) / row["seconds"])


def main(arguments: list[str] | None = None, run: Callable[[Contender], Row] = contend) -> list[Row]:
    """Print the table and return its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1074, help="size of each store before compression")
    parser.add_argument("--directory", type=Path, help="where stores are kept; else a temporary directory")
    parser.add_argument("--latencies", default="0,0.01,0.05", help="seconds, with commas")
    parser.add_argument("--kinds", default="http,s3", help="http, s3 or both")
    parser.add_argument("--only", default="", help="only stores whose name has this in it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-repeats", type=int, default=1, help="how often zarr reads; 0: not at all")
    parser.add_argument("--out", type=Path, help="JSON file")
    given = parser.parse_args(arguments)
    results: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        root = given.directory or Path(scratch)
        names = [name for name in write(root, given.megabytes) if given.only in name]
        gib = given.megabytes * 1e6 / 2**30
        print(f"{machine_line(machine())}; {os.getloadavg()[0]:.1f} processes were running", file=sys.stderr)
        print(
            "| store | latency | chunks | local fit | fit | bare download | zarr | ratio | busy cores, with the server | peak / projected MiB | requests / needed |"
        )
        print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
        for kind in given.kinds.split(","):
            for latency in map(float, given.latencies.split(",")):
                for name in names:
                    with server(root, latency) as serving:
                        rows, counts = {}, {}
                        for each, repeats in contenders(
                            root, name, kind, serving.port, given.repeats, given.peer_repeats
                        ):
                            before, begun = serving.requests(), serving.cpu_seconds()
                            rows[each.name] = median([run(each) for _ in range(repeats)]) if repeats else {}
                            counts[each.name] = (serving.requests() - before) / max(1, repeats)
                            if repeats and "failed" not in rows[each.name]:
                                rows[each.name]["server_cpu_seconds"] = (serving.cpu_seconds() - begun) / repeats
                    requests = f"{counts['fit']:g} / {needed(root / 'bench' / _directory(name), name)}"
                    print(line(kind, latency, name, rows, gib, requests), flush=True)
                    results.append({"kind": kind, "latency": latency, "chunks": name, "rows": rows})
    if given.out is not None:
        given.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")
    return results


if __name__ == "__main__":
    main()
