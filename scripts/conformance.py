"""Reads the files of other programs and compares them with the libraries of their formats and with LAPACK.

Called by ``scripts/conformance``. Each directory holds the test data of one producer, as its repository has them; each file and
each zarr store in it is opened, planned, fitted and transformed in a process of its own, under a ceiling of memory and time.
Without directories the files of ``tests/conformance/odd_files.py`` are written and read. Exit status 1 if a value was wrong, an
exception had no name of streampca, or a process died or hung.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACES = [str(ROOT / "tests" / "conformance"), str(ROOT / "tests")]
sys.path[:0] = PLACES
# Processes are forked from one that has imported all that is needed, and finds it here.
os.environ["PYTHONPATH"] = os.pathsep.join([*PLACES, str(ROOT), os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

PAGE = ROOT / "docs" / "reference" / "conformance.md"
PRODUCERS = ROOT / "tests" / "conformance" / "producers.json"
"""Repositories of test data by the names of their directories here: their address and revision, and what was found."""
BEGIN, END = "<!-- begin: scripts/conformance -->", "<!-- end: scripts/conformance -->"
OUTCOMES = ("right", "named", "alone", "wrong", "crash")
_HEAD = (
    "| producer | files | formats | right | refused by name | read by no other library | wrong | crashes, hangs |",
    "|---|---:|---|---:|---:|---:|---:|---:|",
)


def in_this_process(path: Path, mebibytes: int, answer: Connection) -> None:
    """Judge one file here, where data may take so much memory, and send the verdict."""
    from conforming import judge

    resource.setrlimit(resource.RLIMIT_DATA, (mebibytes * 2**20, mebibytes * 2**20))
    sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    answer.send(asdict(judge(path)))


def judged(path: Path, mebibytes: int, seconds: float) -> dict[str, Any]:
    """Judge one file in a process of its own; a process that dies or takes too long is a crash."""
    from oracles import format_of

    processes = multiprocessing.get_context("forkserver")
    mine, theirs = processes.Pipe(duplex=False)
    process = processes.Process(target=in_this_process, args=(path, mebibytes, theirs))
    process.start()
    theirs.close()
    try:
        if mine.poll(seconds):
            return mine.recv()  # type: ignore[no-any-return]
        process.kill()
        detail = f"no answer after {seconds:.0f} s"
    except EOFError:
        process.join()
        detail = f"the process died with status {process.exitcode}"
    finally:
        process.join()
        mine.close()
    return {"outcome": "crash", "detail": detail, "format": format_of(path), "tables": 0}


def producers(directories: list[Path], written: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield the producers and their files: those of the directories, or those that are written here."""
    from oracles import files_below

    if not directories:
        from odd_files import write_all

        yield "written here", [each.path for each in write_all(written)]
    for directory in directories:
        if not directory.is_dir():
            sys.exit(f"error: {directory} is not a directory")
        files = list(files_below(directory))
        if files:
            yield directory.name, files


def row(name: str, verdicts: list[dict[str, Any]]) -> str:
    """Return a row of the Markdown table."""
    counts = Counter(each["outcome"] for each in verdicts)
    formats = Counter(each["format"] for each in verdicts)
    shown = ", ".join(f"{kind} {count:,}" for kind, count in formats.most_common())
    return f"| {name} | {len(verdicts):,} | {shown} | {' | '.join(f'{counts[each]:,}' for each in OUTCOMES)} |"


def compared(name: str, verdicts: list[dict[str, Any]]) -> str:
    """Return in what the counts of a producer differ from those on record; empty where they do not, or none are."""
    record = json.loads(PRODUCERS.read_text()).get(name, {}).get("found", {})
    counts = Counter(each["outcome"] for each in verdicts)
    other = [
        f"{each} {counts[each]:,} for {record.get(each, 0):,}"
        for each in OUTCOMES
        if counts[each] != record.get(each, 0)
    ]
    return f"{name}: other than on record: {', '.join(other)}" if record and other else ""


def circumstances() -> str:
    """Return versions and date in a line."""
    names = ("numpy", "zarr", "pyarrow", "deltalake", "h5py", "anndata", "bed-reader", "scipy")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    return f"streampca {version('streampca')}, Python {platform.python_version()}, {packages}; {date.today()}."


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/conformance", description=__doc__.splitlines()[0])
    parser.add_argument("directories", type=Path, nargs="*", metavar="DIRECTORY", help="test data of one producer each")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="ceiling of a process")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a file counts as a hang")
    parser.add_argument("--list", action="store_true", help="print the verdict and the message of every file")
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON lines to this file")
    parser.add_argument(
        "--update",
        action="store_true",
        help="write the table into docs/reference/conformance.md, and the counts into the list of producers",
    )
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(
        ["conforming", "pyarrow.parquet", "h5py", "anndata", "zarr", "scipy.io", "streampca.estimators.pca"]
    )
    rows, records, total = [], [], []
    found: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as written, ThreadPoolExecutor(arguments.jobs) as pool:
        for name, files in producers(arguments.directories, Path(written)):
            verdicts = list(pool.map(lambda path: judged(path, arguments.memory, arguments.limit), files))
            for path, verdict in zip(files, verdicts, strict=True):
                records.append({"producer": name, "file": str(path), **verdict})
                if arguments.list or verdict["outcome"] in ("wrong", "crash"):
                    print(f"{verdict['outcome']}: {path}: {verdict['detail']}", flush=True)
            rows.append(row(name, verdicts))
            found[name] = Counter(each["outcome"] for each in verdicts)
            total += verdicts
            print(rows[-1], compared(name, verdicts), sep="\n", file=sys.stderr, flush=True)
    lines = [*_HEAD, *sorted(rows, key=str.lower), row("**all**", total)]
    print("\n".join(lines))
    if arguments.out is not None:
        arguments.out.write_text("".join(json.dumps(record) + "\n" for record in records))
    if arguments.update:
        head, rest = PAGE.read_text().split(BEGIN)
        page = [f"{head}{BEGIN}", "", *lines, "", circumstances(), "", f"{END}{rest.split(END)[1]}"]
        PAGE.write_text("\n".join(page))
        known = json.loads(PRODUCERS.read_text())
        for name in found.keys() & known.keys():
            known[name]["found"] = dict(sorted(found[name].items()))
        PRODUCERS.write_text(json.dumps(known, indent=2) + "\n")
    return 1 if any(verdict["outcome"] in ("wrong", "crash") for verdict in total) else 0


if __name__ == "__main__":
    sys.exit(main())
