"""Run every benchmark in one go: data, limits, exact, wide, memory; print the tables of docs/reference/archive/performance.md.

Called by ``scripts/bench/all``, which makes the environments first. Needs about 25 GB below ``data/bench`` (40 GB with
``--large``) and a quiet machine: the first line of every case says whether it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import approximate
import exact
import kernel
import memory
import wide
from _bench import DIRECTORY, PEERS_PYTHON, ROOT, Outcome, at_least, at_most, machine, machine_line

sys.path.insert(0, str(DIRECTORY.parent))

BEGIN, END = "<!-- begin: scripts/bench/all -->", "<!-- end: scripts/bench/all -->"

Goals = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Data:
    """A store that `make_data` writes."""

    name: str
    """Name below the data directory."""
    rows: int
    """Number of samples."""
    features: int
    """Number of features."""
    chunks: tuple[int, int]
    """Rows and features of a chunk."""
    codec: str = "none"
    """Compression."""
    noise: float = 0.05
    """Standard deviation of the noise."""
    mean_to_sd: float = 3.0
    """Mean of every feature over its standard deviation."""
    rank: int = 64
    """Number of directions."""

    def scaled(self, scale: float) -> Data:
        """Return data of `scale` times the size; the longer side shrinks more, so that the shape stays recognisable."""
        if scale == 1:
            return self
        share = (0.5, 0.5) if max(self.rows, self.features) < 10 * min(self.rows, self.features) else (0.75, 0.25)
        by = share if self.rows > self.features else share[::-1]
        sides = [max(16, int(side * scale**power)) for side, power in zip((self.rows, self.features), by, strict=True)]
        chunks = [
            max(1, min(side, int(chunk * side / full)))
            for side, chunk, full in zip(sides, self.chunks, (self.rows, self.features), strict=True)
        ]
        values = {**vars(self), "name": f"{self.name}-{scale:g}", "rows": sides[0], "features": sides[1]}
        return Data(**values | {"chunks": (chunks[0], chunks[1])})

    def path(self, folder: Path) -> str:
        """Return where the store is, after making it if it is not there."""
        import make_data

        path = folder / f"{self.name}.zarr"
        if not path.exists():
            print(f"making {path}: {self.rows:,} x {self.features:,} ...", file=sys.stderr, flush=True)
            recipe = make_data.Recipe(self.features, noise=self.noise, mean_to_sd=self.mean_to_sd, rank=self.rank)
            make_data.write(recipe, path, self.rows, self.chunks, self.codec)
        return str(path)

    def components(self, wanted: int) -> int:
        """Return `wanted`, or what is left of it for small data."""
        return min(wanted, min(self.rows, self.features) // 2)


@dataclass(frozen=True)
class Case:
    """One benchmark."""

    key: str
    """Its name on the command line."""
    title: str
    """Its title in the table."""
    data: Data
    """What it runs on."""
    measure: Callable[..., Outcome]
    """`measure` of `exact`, `wide` or `approximate`, or one of kernel PCA."""
    peers: tuple[str, ...] = ()
    """Who else runs."""
    components: int = 50
    """Number of components."""
    memory: str = ""
    """Ceiling of the fit."""
    repeats: int | None = None
    """How often, where that is not for the command line to say."""
    wanted: Goals = field(default_factory=dict)
    """What the ratios should be at full size."""


A = Data("a", 400_000, 1024, (8000, 1024))
B = Data("b", 3_000_000, 1024, (8000, 1024))
C = Data("c", 60_000, 8192, (1000, 8192))
D = Data("d", 50_000, 30_000, (1000, 30_000))
K64 = Data("k64", 100_000, 64, (8000, 64))


def measure_landmarks(title: str, store: str, k: int, *, m: int, **options: Any) -> Outcome:
    """Run Nyström kernel PCA as a case."""
    del options["wanted"]
    return replace(kernel.measure_nystrom(store, min(m, _rows_of(store) // 2), k, 0.1, **options), title=title)


def measure_kernel_matrix(title: str, store: str, k: int, *, n: int, **options: Any) -> Outcome:
    """Run exact kernel PCA as a case."""
    del options["wanted"], options["memory"]
    return replace(kernel.measure_exact(store, min(n, _rows_of(store)), k, 0.1, **options), title=title)


def _rows_of(store: str) -> int:
    import zarr

    return int(zarr.open_array(store, mode="r").shape[0])


CASES = (
    Case(
        "a",
        "A. 400,000 x 1,024 float32, no compression, k = 50",
        A,
        exact.measure,
        ("dask_cov", "sklearn_incremental", "sklearn_pca", "sklearnex_incremental", "sklearnex_pca", "dask_ml_pca"),
        wanted={
            "fit over floor": at_most(1.25),
            "dask_cov over fit": at_least(1.8),
            "sklearnex_incremental over fit": at_least(3),
            "sklearn_incremental over fit": at_least(25),
            "error of fit": at_most(1e-7),
            "peak MiB of fit": at_most(350e6 / 2**20),
            "peak over projected": at_most(1.0),
        },
    ),
    Case(
        "a-zstd",
        "A with zstd",
        Data("a-zstd", 400_000, 1024, (8000, 1024), "zstd"),
        exact.measure,
        ("dask_cov",),
        wanted={
            "fit over floor": at_most(1.4),
            "error of fit": at_most(1e-7),
            "peak MiB of fit": at_most(450e6 / 2**20),
            "peak over projected": at_most(1.0),
        },
    ),
    Case(
        "means",
        "100,000 x 1,024 float32, means of 1,000 standard deviations",
        Data("means", 100_000, 1024, (8000, 1024), mean_to_sd=1000.0),
        exact.measure,
        ("sklearn_pca",),
        wanted={"error of fit": at_most(1e-5)},
    ),
    Case(
        "c",
        "C. 60,000 x 8,192 float32, k = 50",
        C,
        exact.measure,
        ("dask_cov", "sklearn_pca", "sklearnex_pca", "xeofs_eof"),
        wanted={
            "fit over bare products": at_most(1.5),
            "peak MiB of fit": at_most(1.5e9 / 2**20),
            "sklearnex_pca over fit": at_least(2),
            "sklearn_pca over fit": at_least(3.5),
            "dask_cov over fit": at_least(3.5),
            "peak over projected": at_most(1.0),
        },
    ),
    Case(
        "c-sketch",
        "C by a sketch in three passes, ceiling of 0.8 GB",
        C,
        partial(approximate.measure, passes=3),
        ("sklearn_in_memory",),
        memory="800MB",
        wanted={
            "error of fit": at_most(1e-4),
            "sklearn_in_memory over fit": at_least(1.7),
            "peak MiB of fit": at_most(0.8e9 / 2**20),
            "peak over projected": at_most(1.0),
        },
    ),
    Case(
        "d",
        "D. 50,000 x 30,000 float32 (6 GB), k = 50, by a sketch in three passes, ceiling of 1.5 GiB",
        D,
        partial(approximate.measure, passes=3),
        ("sklearn_in_memory", "svd_compressed"),
        memory="1.5GiB",
        wanted={
            "error of fit": at_most(1e-3),
            "fit over floor": at_most(1.2),
            "sklearn_in_memory over fit": at_least(1.7),
            "svd_compressed over fit": at_least(1.7),
            "peak MiB of fit": at_most(1.5 * 1024),
            "peak over projected": at_most(1.0),
        },
    ),
    Case(
        "e",
        "E. 2,000 x 500,000 float32, chunks of columns, k = 50, components included",
        Data("e", 2000, 500_000, (2000, 4000), noise=0.005),
        wide.measure,
        ("numpy_gram", "sklearn_randomized", "svd_compressed"),
        wanted={
            "fit over floor": at_most(1.2),
            "numpy_gram over fit": at_least(1),
            "sklearn_randomized over fit": at_least(4),
            "peak MiB of fit": at_most(700e6 / 2**20),
            "peak over projected": at_most(1.0),
        },
    ),
    Case(
        "e-103",
        "103 x 207,400 float32, k = 20",
        Data("e-103", 103, 207_400, (103, 20_000), noise=0.005),
        wide.measure,
        ("numpy_gram", "sklearn_randomized"),
        components=20,
        wanted={"seconds of fit": at_most(10), "peak over projected": at_most(1.0)},
    ),
    Case(
        "e-120",
        "120 x 6,000,000 float32, k = 10, ceiling of 1 GiB",
        Data("e-120", 120, 6_000_000, (120, 50_000), noise=0.001, rank=16),
        wide.measure,
        components=10,
        memory="1GiB",
        repeats=1,
        wanted={"peak MiB of fit": at_most(1024), "peak over projected": at_most(1.0)},
    ),
    Case(
        "kernel",
        "Kernel PCA, 100,000 x 64 float32, RBF with γ = 0.1, m = 1,000 landmarks, k = 20",
        K64,
        partial(measure_landmarks, m=1000),
        ("sklearn_features",),
        components=20,
    ),
    Case(
        "kernel-large",
        "Kernel PCA, 10,000,000 x 16 float32, RBF with γ = 0.1, m = 500 landmarks, k = 20, ceiling of 1 GiB",
        Data("k16", 10_000_000, 16, (65_536, 16)),
        partial(measure_landmarks, m=500, with_reference=False),
        components=20,
        memory="1GiB",
    ),
    Case(
        "kernel-exact",
        "Exact kernel PCA, 8,000 x 64 float32, RBF with γ = 0.1, k = 50",
        K64,
        partial(measure_kernel_matrix, n=8000),
        ("sklearn_randomized",),
    ),
)
KEYS = (*(case.key for case in CASES), "b", "memory")
LARGE = ("d", "b")
"""Cases that run with ``--large`` or by name."""


def run_case(case: Case, options: argparse.Namespace) -> Outcome:
    """Run one of `CASES`."""
    data = case.data.scaled(options.scale)
    return case.measure(
        _title(case.title, data, options.scale),
        data.path(options.data),
        data.components(case.components),
        peers=() if options.no_peers else case.peers,
        memory=case.memory,
        repeats=case.repeats or options.repeats,
        fresh=not options.same_process,
        wanted=case.wanted if options.scale == 1 else {},
    )


def run_large(options: argparse.Namespace, peak_of_a: float | None) -> Outcome:
    """Run case B: 12 GB with a cold page cache under a hard limit."""
    data = B.scaled(options.scale)
    title = _title("B. 3,000,000 x 1,024 float32 (12 GB), page cache dropped, RLIMIT_DATA 1 GiB", data, options.scale)
    wanted = {
        "fit over bare products": at_most(1.6),
        "peak over projected": at_most(1.0),
        "peak over that of A": (0.9, 1.1),
    }
    outcome = memory.measure_limited(
        title,
        data.path(options.data),
        data.components(50),
        1024,
        repeats=options.repeats,
        fresh=not options.same_process,
        wanted=wanted if options.scale == 1 else {},
    )
    if peak_of_a and "peak_mib" in outcome.rows["fit"]:
        outcome.ratios["peak over that of A"] = outcome.rows["fit"]["peak_mib"] / peak_of_a
    return outcome


def _title(title: str, data: Data, scale: float) -> str:
    return title if scale == 1 else f"{title}; scaled by {scale:g} to {data.rows:,} x {data.features:,}"


def write_tables(text: str, path: Path) -> None:
    """Replace what stands between the two marks of a page."""
    page = path.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the data, for a trial (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender (default: %(default)s)")
    parser.add_argument("--only", default="", help=f"comma-separated cases, of: {', '.join(KEYS)}")
    parser.add_argument("--large", action="store_true", help="cases B (12 GB) and D (6 GB) as well")
    parser.add_argument("--no-peers", action="store_true", help="limits and fits alone")
    parser.add_argument("--count", type=int, default=20, help="random configurations for memory (default: %(default)s)")
    parser.add_argument(
        "--same-process", action="store_true", help="no process for each contender: quick, peaks mean nothing"
    )
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "bench", help="where the stores are (%(default)s)")
    parser.add_argument("--out", type=Path, help="where JSON goes (default: results.json beside the stores)")
    parser.add_argument("--update", type=Path, nargs="?", const=ROOT / "docs" / "reference" / "archive" / "performance.md", metavar="PAGE",
                        help="write the tables into docs/reference/archive/performance.md, or PAGE")  # fmt: skip
    options = parser.parse_args()
    if not 0 < options.scale <= 1 or options.repeats < 1 or options.count < 0:
        parser.error("--scale must be in (0, 1], --repeats at least 1, --count at least 0")
    options.only = [key for key in options.only.split(",") if key] or [
        key for key in KEYS if key not in LARGE or options.large
    ]
    if options.large:
        options.only += [key for key in LARGE if key not in options.only]
    if unknown := set(options.only) - set(KEYS):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}; there are {', '.join(KEYS)}")
    return options


def main() -> None:
    """Run, print, write."""
    options = parse_arguments()
    if not PEERS_PYTHON.exists() and not options.no_peers:
        print("some peers are not installed: scripts/bench/all --peers", file=sys.stderr)
    began, outcomes = time.perf_counter(), {}
    for case in CASES:
        if case.key in options.only:
            outcomes[case.key] = run_case(case, options)
            print("\n".join(outcomes[case.key].lines()), file=sys.stderr, flush=True)
    if "b" in options.only:
        a = outcomes["a"].rows["fit"].get("peak_mib") if "a" in outcomes else None
        outcomes["b"] = run_large(options, a)
    if "memory" in options.only:
        outcomes["memory"] = memory.measure_random(options.count, scale=options.scale)
    about = machine()
    text = "\n".join(
        [
            f"Machine: {machine_line(about)}. Medians of {options.repeats}, {time.strftime('%Y-%m-%d')}.",
            *(line for outcome in outcomes.values() for line in ("", *outcome.lines())),
        ]
    )
    print(text)
    out = options.out or options.data / "results.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "machine": about,
        "scale": options.scale,
        "repeats": options.repeats,
        "seconds": time.perf_counter() - began,
    }
    data["cases"] = {key: outcome.to_dict() for key, outcome in outcomes.items()}
    out.write_text(json.dumps(data, indent=2) + "\n")
    print(f"\nwritten: {out}", file=sys.stderr)
    if options.update:
        write_tables(text, options.update)
        print(f"written: {options.update}", file=sys.stderr)


if __name__ == "__main__":
    main()
