"""Components of genotypes, from a `.bed` file and from int8 zarr, against plink2 and against numpy in float64.

People of eleven populations, 3 % of the genotypes missing. Eigenvalues and scores are compared with those of numpy over runs of variants
(``--reference``, for up to some thousand people). plink2 divides products of two people by the variants that both of them have, where means
stand for missing genotypes here: eigenvalues are compared for the fits, components by the largest sine of an angle between the spans of all that are asked for.

    .venv/bin/python scripts/bench/genotypes.py data/genotypes --people 4000 --variants 12000 --reference --plink exact,approx
    .venv/bin/python scripts/bench/genotypes.py data/genotypes --people 20000 --variants 50000 --plink approx
"""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from _bench import Contender, Outcome, Row, add_errors, at_most, medians, report, timed
from _options import add_same_process, parser_of

_POPULATIONS = np.repeat(np.arange(11), np.arange(1, 12))
"""Populations of 66 people, of whom 1 to 11 are of the same one: ten components stand out of the noise."""
_MISSING_SHARE, _AT_ONCE = 0.03, 2**27
_CHUNK = (1000, 10_000)
"""People and variants of a chunk, as VCF Zarr has them."""
_CODES = np.array([3, 2, 0, 1], dtype=np.uint8)
"""Two bits of a `.bed` file for 0, 1, 2 copies and a missing genotype."""


def draw(n: int, first: int, last: int) -> Any:
    """Return variants `first` to `last` of `n` people, ``(n_variants, n)`` int8, −1 for missing."""
    random = np.random.default_rng([n, first])
    share = random.uniform(0.05, 0.5, (last - first, 1)) + random.normal(scale=0.06, size=(last - first, 11))
    chances = np.clip(share, 0.02, 0.98).astype(np.float32)[:, np.resize(_POPULATIONS, n)]
    drawn = np.zeros(chances.shape, dtype=np.int8)
    for _ in range(2):
        drawn += random.random(chances.shape, dtype=np.float32) < chances
    drawn[random.random(chances.shape, dtype=np.float32) < _MISSING_SHARE] = -1
    return drawn


def runs(n: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the runs of variants from `start` to `stop` that are drawn at once."""
    step = max(1, _AT_ONCE // (16 * n))
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def prepare(directory: Path, n: int, d: int) -> Path:
    """Write the genotypes as ``N-D.bed``, with its `.fam` and `.bim`, and ``N-D.zarr`` where they are not there; return the first."""
    import zarr

    directory.mkdir(exist_ok=True, parents=True)
    path = directory / f"{n}-{d}.bed"
    if path.exists():
        return path
    chunks = min(n, _CHUNK[0]), min(d, _CHUNK[1])
    array = zarr.create_array(path.with_suffix(".zarr"), shape=(n, d), chunks=chunks, dtype="i1", overwrite=True)
    with path.with_suffix(".part").open("wb") as file:
        file.write(b"\x6c\x1b\x01")
        for start in range(0, d, chunks[1]):
            band = np.concatenate([draw(n, *run) for run in runs(n, start, min(start + chunks[1], d))])
            array[:, start : start + len(band)] = band.T
            for first in range(0, len(band), 64):
                drawn = band[first : first + 64]
                codes = np.zeros((len(drawn), -(-n // 4) * 4), dtype=np.uint8)
                codes[:, :n] = _CODES[drawn]  # -1 is the last one
                quarters = codes.reshape(len(drawn), -1, 4) << np.arange(0, 8, 2, dtype=np.uint8)
                file.write(quarters.sum(axis=2, dtype=np.uint8))
    path.with_suffix(".fam").write_text("".join(f"F P{i} 0 0 0 -9\n" for i in range(n)))
    path.with_suffix(".bim").write_text("".join(f"1\trs{j}\t0\t{1 + j}\tA\tG\n" for j in range(d)))
    path.with_suffix(".part").rename(path)
    return path


def fit(path: str, k: str, memory: str, solver: str) -> Row:
    """Fit, and keep the scores of the people beside the genotypes."""
    import streampca as sp

    small = np.random.default_rng(0).binomial(2, 0.3, (50, 300)).astype(np.float32)
    sp.PCA(2, solver=solver if solver != "auto" else "gram", scale="patterson", missing="mean").fit(small)
    pca = sp.PCA(int(k), solver=solver, scale="patterson", missing="mean", missing_scores="mean", memory=memory or None)

    def work() -> Row:
        pca.fit(sp.open(path, missing_value=None if path.endswith(".bed") else -1))
        return {"eigenvalues": pca.explained_variance_.tolist(), "passes": pca.n_passes_}

    row = timed(work)
    _keep(path, f"{solver}-{Path(path).suffix[1:]}", _scores(pca, path))
    return row | {"solver": pca.solver_, "certified to": max(pca.error_.component_errors)}


def _scores(pca: Any, path: str) -> Any:
    import streampca as sp

    table = sp.open(path, missing_value=None if path.endswith(".bed") else -1)
    return np.asarray(pca.transform(table))


def _keep(path: str, name: str, scores: Any) -> None:
    np.save(Path(path).with_suffix(f".{name}.npy"), scores)


def plink(path: str, k: str, kind: str) -> Row:
    """Run plink2 --pca; processor time and memory are those of its process."""
    out = str(Path(path).with_suffix(f".{kind}"))
    command = ["plink2", "--bfile", path.removesuffix(".bed"), "--pca", *(["approx"] if kind == "approx" else []), k]
    command += ["--threads", "2", "--maf", "1e-9", "--out", out]

    def work() -> Row:
        subprocess.run(command, check=True, capture_output=True)
        return {}

    row = timed(work)
    _keep(path, f"plink-{kind}", np.loadtxt(f"{out}.eigenvec", usecols=range(2, 2 + int(k)), skiprows=1))
    return row | {"peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024}


def reference(path: str, k: str) -> Row:
    """Take eigenvalues and scores in float64 throughout, by numpy and LAPACK over runs of variants."""
    import zarr
    from scipy.linalg import eigh

    def work() -> Row:
        stored = zarr.open_array(str(Path(path).with_suffix(".zarr")), mode="r")
        n, d = stored.shape
        gram = np.zeros((n, n))
        for first, last in runs(n, 0, d):
            rows = np.asarray(stored[:, first:last]).astype(np.float64)
            rows[rows < 0] = np.nan
            mean = np.nanmean(rows, axis=0)
            rows = np.where(np.isnan(rows), 0, rows - mean)[:, (mean > 0) & (mean < 2)]
            rows /= np.sqrt(mean * (1 - mean / 2))[(mean > 0) & (mean < 2)]
            gram += rows @ rows.T
        values, vectors = eigh(gram / (n - 1), subset_by_index=(n - int(k), n - 1))
        _keep(path, "reference", vectors[:, ::-1])
        return {"eigenvalues": values[::-1].tolist()}

    return timed(work)


def sine(path: Path, one: str, other: str) -> float:
    """Return the largest sine of an angle between the spans of two kept scores."""
    bases = [np.linalg.qr(np.load(path.with_suffix(f".{name}.npy")).astype(np.float64))[0] for name in (one, other)]
    return float(np.linalg.norm(bases[1] - bases[0] @ (bases[0].T @ bases[1]), 2))


def measure(
    path: Path,
    k: int,
    memory: str,
    solver: str,
    kinds: tuple[str, ...],
    *,
    compare: bool,
    repeats: int,
    fresh: bool,
    timeout: float = 3600,
) -> Outcome:
    """Run the contenders in turns."""
    stores = {"bed": path, "zarr": path.with_suffix(".zarr")}
    entries = [
        Contender(f"fit {name}", "genotypes", "fit", (str(each), str(k), memory, solver))
        for name, each in stores.items()
    ]
    entries += [
        Contender(f"plink2 {kind}", "genotypes", "plink", (str(path), str(k), kind), once=True) for kind in kinds
    ]
    rows = medians(entries, repeats=repeats, fresh=fresh, timeout=timeout)
    add_errors(
        rows, Contender("reference", "genotypes", "reference", (str(path), str(k))) if compare else None, fresh=fresh
    )
    ratios: dict[str, float] = {}
    names = {f"fit {name}": f"{solver}-{name}" for name in stores} | {
        f"plink2 {kind}": f"plink-{kind}" for kind in kinds
    }
    names |= {"reference": "reference"} if compare else {}
    known = [name for name in names if "failed" not in rows[name]]
    best = known[-1]
    for name in known[:-1]:
        ratios[f"sine between the spans of components, {name} and {best}"] = sine(path, names[name], names[best])
    for name in stores:
        ratios[f"eigenvalues certified to, fit {name}"] = rows[f"fit {name}"].get("certified to", float("nan"))
        if "cpu_seconds" in rows.get("plink2 approx", {}):
            share = rows[f"fit {name}"]["cpu_seconds"] / rows["plink2 approx"]["cpu_seconds"]
            ratios[f"processor time of fit {name} over plink2 approx"] = share
    wanted = {f"processor time of fit {name} over plink2 approx": at_most(0.8) for name in stores}
    return Outcome(f"Genotypes, {path.stem}, k = {k}", rows, None, ratios, wanted)


def main() -> None:
    """Compare and print."""
    parser = parser_of(__doc__, components=10)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--people", type=int, default=4000)
    parser.add_argument("--variants", type=int, default=12000)
    parser.add_argument("--memory", default="1GiB", help="ceiling of the fits (default: %(default)s)")
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--reference", action="store_true", help="compare with numpy in float64")
    parser.add_argument("--plink", default="", help="exact, approx, or both")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds after which a contender is stopped")
    add_same_process(parser)
    options = parser.parse_args()
    path = prepare(options.directory, options.people, options.variants)
    kinds = tuple(name for name in options.plink.split(",") if name)
    outcome = measure(
        path,
        options.components,
        options.memory,
        options.solver,
        kinds,
        compare=options.reference,
        repeats=options.repeats,
        fresh=not options.same_process,
        timeout=options.timeout,
    )
    report(outcome, options.out)


if __name__ == "__main__":
    main()
