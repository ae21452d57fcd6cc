"""Shapes on which others fail: cases that users reported, with streampca and with the system that failed.

Every fit runs in a fresh process with two threads. The process is killed when its anonymous resident memory exceeds the limit of the case, or when its time is
over. Most shapes are scaled down, with the limit, so that a small machine can hold them; the table says so. Systems that are not
installed are cited.

    scripts/bench/shapes --out shapes.json
    scripts/bench/shapes --only dask-3419,sklearn-10885 --out shapes.json

With ``--out`` results of cases that are not run again are taken from that file, so that the cases can be run one by one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _bench import DIRECTORY, PEERS_PYTHON, Row, machine, machine_line
from shape_data import dense, field, low_rank, small, sparse

_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Fit:
    """A function of `shape_fits` with what it is called with after the path of the data."""

    name: str
    """Its name in the table."""
    function: str
    """Its name in `shape_fits`."""
    arguments: tuple[str, ...]
    """Further arguments."""
    peer: bool = False
    """Whether it needs the environment of the peers."""


@dataclass(frozen=True)
class Case:
    """A shape that somebody failed on."""

    key: str
    """Short name."""
    report: str
    """Where it was reported."""
    reported: str
    """The reported shape and what happened."""
    here: str
    """What is run here, and how much smaller it is."""
    limit_mib: int
    """Limit of the memory of a process."""
    data: Callable[[Path], None]
    """Writes the data to a path."""
    fits: tuple[Fit, ...]
    """What is run, streampca first."""


def _peer(name: str, function: str, *arguments: str) -> Fit:
    return Fit(name, function, arguments, peer=True)


def _ours(function: str, k: int, limit_mib: int, *arguments: str) -> Fit:
    return Fit("streampca", function, (str(k), str(limit_mib), *arguments))


CASES = (
    Case(
        "dask-3419",
        "[dask#3419](https://github.com/dask/dask/issues/3419)",
        "500,000 × 6,400 float64, k = 100: 25 GB of memory, 0.36 GB for 500 rows",
        "60,000 × 1,600 float64 (732 MiB), chunks of 1,000 rows, k = 100: 1/33",
        768,
        dense(60_000, 1_600, (1_000, 1_600), "f8"),
        (
            _ours("streampca", 100, 768),
            _peer("dask svd_compressed", "dask_compressed", "100"),
            _peer("dask-ml PCA", "dask_ml_pca", "100"),
        ),
    ),
    Case(
        "dask-9934",
        "[dask#9934](https://github.com/dask/dask/issues/9934)",
        "2,000 × 786,432, chunks of 42 whole rows: 27.6 GiB in one worker",
        "500 × 196,608 float64 (750 MiB), chunks of 10 whole rows, k = 20: 1/16",
        768,
        dense(500, 196_608, (10, 196_608), "f8"),
        (_ours("streampca", 20, 768), _peer("dask svd_compressed", "dask_compressed", "20")),
    ),
    Case(
        "dask-6612",
        "[dask#6612](https://github.com/dask/dask/issues/6612)",
        "100 × 100,000 in one chunk (80 MB): about 80 GB of memory",
        "the same shape, float64, k = 20",
        1024,
        dense(100, 100_000, (100, 100_000), "f8"),
        (_ours("streampca", 20, 1024), _peer("dask svd", "dask_svd", "20")),
    ),
    Case(
        "dask-ml-604",
        "[dask-ml#604](https://github.com/dask/dask-ml/issues/604)",
        "TruncatedSVD of 40,000 × 500,000 float32, k = 4,000: killed",
        "4,000 × 50,000 float32 (763 MiB), k = 400: 1/10 of each",
        1536,
        dense(4_000, 50_000, (400, 50_000)),
        (_ours("streampca", 400, 1536), _peer("dask-ml TruncatedSVD", "dask_ml_truncated", "400")),
    ),
    Case(
        "cuml-4827",
        "[cuml#4827](https://github.com/rapidsai/cuml/issues/4827)",
        "103 × 207,400: asks for a covariance matrix of 160 GB",
        "the same shape, float32, k = 20; cuML needs a GPU: beside it the method that it uses, in scikit-learn",
        1024,
        dense(103, 207_400, (103, 20_740)),
        (
            _ours("streampca", 20, 1024),
            _peer('scikit-learn PCA("covariance_eigh")', "sklearn_pca", "20", "covariance_eigh"),
        ),
    ),
    Case(
        "cuml-68",
        "[cuml#68](https://github.com/rapidsai/cuml/issues/68)",
        "120 × 63,070,800: infeasible",
        "120 × 2,000,000 float32 (916 MiB) in chunks of columns, k = 10: 1/32",
        768,
        dense(120, 2_000_000, (120, 50_000)),
        (_ours("streampca", 10, 768), _peer("scikit-learn PCA", "sklearn_pca", "10")),
    ),
    Case(
        "spark-17907",
        "[spark#17907](https://github.com/apache/spark/pull/17907)",
        "more than 65,535 columns: refused; 55,000 × 15,000: 10 GB of driver memory are not enough",
        "1,000 × 70,000 float32, k = 20; Spark is not installed here, its limit is in its source",
        512,
        dense(1_000, 70_000, (100, 70_000)),
        (_ours("streampca", 20, 512),),
    ),
    Case(
        "sklearn-10885",
        "[scikit-learn#10885](https://github.com/scikit-learn/scikit-learn/issues/10885)",
        "TruncatedSVD of sparse 330 × 2,000,000, k = 100: fails on a machine of 26 GB",
        "330 × 400,000, 0.5 % stored, k = 100: a fifth",
        1024,
        sparse(330, 400_000, 0.005),
        (_ours("streampca_sparse", 100, 1024), _peer("scikit-learn TruncatedSVD", "sklearn_truncated", "100")),
    ),
    Case(
        "xeofs",
        "[documentation of xeofs](https://xeofs.readthedocs.io)",
        "5,000 × 720 × 360 float64, chunks of 100³ (10.4 GB), 5 modes: 15 minutes, 20 GB written to disk",
        "1,000 × 180 × 120 float64 (165 MiB), chunks of 50³, 5 modes: 1/60",
        1024,
        field((1_000, 180, 120), 50),
        (_ours("streampca_field", 5, 1024), _peer("xeofs EOF", "xeofs_eof", "5")),
    ),
    Case(
        "sklearn-19479",
        "[scikit-learn#19479](https://github.com/scikit-learn/scikit-learn/issues/19479)",
        "KernelPCA of 80,000 and of 113,000 rows: a kernel matrix of 96 GiB",
        "80,000 × 10 float64, RBF kernel, k = 20: the number of rows of the report",
        1024,
        dense(80_000, 10, (20_000, 10), "f8"),
        (_ours("streampca_kernel", 20, 1024), _peer("scikit-learn KernelPCA", "sklearn_kernel", "20")),
    ),
    Case(
        "mixomics-18",
        "[mixOmics#18](https://github.com/mixOmicsTeam/mixOmics/issues/18)",
        "NIPALS of 700 × 78,000 with missing values: 45.9 GB",
        "the same shape, float64, 2 % missing, k = 10; mixOmics needs R and is not installed here",
        768,
        dense(700, 78_000, (70, 78_000), "f8", missing=0.02),
        (_ours("streampca_missing", 10, 768),),
    ),
    Case(
        "sklearn-29534",
        "[scikit-learn#29534](https://github.com/scikit-learn/scikit-learn/issues/29534)",
        "whitening of 1,000 × 10 rows of low rank: values explode",
        "the same",
        1024,
        small(low_rank),
        (_ours("streampca_whiten", 10, 1024), _peer('scikit-learn PCA("covariance_eigh")', "sklearn_whiten", "10")),
    ),
    Case(
        "faiss-773",
        "[faiss#773](https://github.com/facebookresearch/faiss/issues/773)",
        "two float32 rows near 10⁵: wrong covariance",
        "the same",
        1024,
        small(lambda: np.array([[1e5 + 1, 1e5], [1e5, 1e5 + 1]], dtype="f4")),
        (_ours("streampca_offset", 1, 1024), Fit("faiss PCAMatrix", "faiss_matrix", ("1",))),
    ),
    Case(
        "sklearn-incremental",
        "[scikit-learn#12234](https://github.com/scikit-learn/scikit-learn/issues/12234)",
        "IncrementalPCA with a batch of fewer rows than components: ValueError (of the first batch still)",
        "60 × 12 in batches of 3, 47 and 10 rows, k = 5",
        1024,
        small(lambda: np.random.default_rng(0).standard_normal((60, 12)) * np.arange(1, 13)),
        (_ours("streampca_batches", 5, 1024), _peer("scikit-learn IncrementalPCA", "sklearn_incremental", "5")),
    ),
)


def watched(fit: Fit, path: Path, limit_mib: int, seconds: float) -> Row:
    """Run a fit in a fresh process and return its outcome, time and memory; kill it at the limit of either."""
    python = PEERS_PYTHON if fit.peer else Path(sys.executable)
    if not python.exists():
        return {"outcome": "not installed"}
    command = [str(python), str(DIRECTORY / "_bench.py"), "shape_fits", fit.function, str(path), *fit.arguments]
    beside = os.environ.get("PYTHONPATH")
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2") | {"DASK_NUM_WORKERS": "2"}
    paths = os.pathsep.join([str(DIRECTORY), *([beside] if beside and not fit.peer else [])])
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=dict(os.environ, PYTHONPATH=paths) | threads)
        began, peak, killed = time.monotonic(), 0.0, ""
        while process.poll() is None:
            peak = max(peak, _anonymous_mib(process.pid))
            elapsed = time.monotonic() - began
            if peak > limit_mib or elapsed > seconds:
                killed = (
                    f"killed at {limit_mib:,} MiB after {elapsed:.0f} s"
                    if peak > limit_mib
                    else f"no answer in {seconds:.0f} s"
                )
                process.kill()
            time.sleep(_POLL_SECONDS)
        out.seek(0)
        err.seek(0)
        printed, said = out.read().strip().splitlines(), err.read().strip().splitlines()
    if killed:
        return {"outcome": killed, "peak_mib": peak}
    if process.returncode or not printed:
        return {"outcome": _error_of(said) or f"exit status {process.returncode}", "peak_mib": peak}
    result = json.loads(printed[-1])
    return {
        "outcome": result.get("note", "done"),
        "seconds": result["seconds"],
        "cpu_seconds": result["cpu_seconds"],
        "peak_mib": peak,
    }


def _error_of(said: list[str]) -> str:
    """Return the last line of a traceback, which is short enough for a table."""
    lines = [line for line in said if line and not line.startswith(" ")]
    return lines[-1].replace("numpy._core._exceptions._Array", "")[:160] if lines else ""


def _anonymous_mib(pid: int) -> float:
    """Return the resident memory of a process that no file backs; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))) / 1024


def run(case: Case, folder: Path, seconds: float) -> Row:
    """Write the data of a case, run its fits and remove the data."""
    path = folder / case.key
    case.data(path)
    rows = {}
    try:
        for fit in case.fits:
            rows[fit.name] = watched(fit, path, case.limit_mib, seconds)
            print(f"{case.key}: {fit.name}: {rows[fit.name]}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {"rows": rows, "limit_mib": case.limit_mib, "date": f"{datetime.datetime.now(tz=datetime.UTC):%d %B %Y}"}


def tables(results: dict[str, Row]) -> list[str]:
    """Return the cases and what came of them as two tables of Markdown."""
    cases = ["| case | reported | run here | limit |", "|---|---|---|---:|"]
    lines = ["| case | system | outcome | seconds | processor seconds | peak MiB |", "|---|---|---|---:|---:|---:|"]
    for number, case in enumerate(CASES, start=1):
        if case.key not in results:
            continue
        cases.append(f"| {number} | {case.report}: {case.reported} | {case.here} | {case.limit_mib:,} MiB |")
        for name, row in results[case.key]["rows"].items():
            took = [f"{row[key]:.1f}" if key in row else "" for key in ("seconds", "cpu_seconds")]
            peak = f"{row['peak_mib']:,.0f}" if "peak_mib" in row else ""
            outcome = row["outcome"].replace("|", "\\|")
            said = outcome if "seconds" in row else f"**{outcome}**"
            lines.append(f"| {number} | {name} | {said} | {took[0]} | {took[1]} | {peak} |")
    return [*cases, "", *lines]


def main() -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    keys = [case.key for case in CASES]
    parser.add_argument("--only", default=",".join(keys), help="cases, by comma (default: all)")
    parser.add_argument("--seconds", type=float, default=60, help="time limit of a fit (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="JSON with all results; those of other cases stay")
    options = parser.parse_args()
    chosen = [key for key in options.only.split(",") if key]
    if unknown := set(chosen) - set(keys):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}; there are {', '.join(keys)}")
    data = json.loads(options.out.read_text()) if options.out and options.out.exists() else {"cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if case.key in chosen:
                data["cases"][case.key] = run(case, Path(folder), options.seconds)
    if chosen:
        data["machine"] = machine()
    dates = sorted({result["date"] for result in data["cases"].values()})
    text = "\n".join([f"{', '.join(dates)}; {machine_line(data['machine'])}.", "", *tables(data["cases"])])
    print(text)
    if options.out:
        options.out.write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    main()
