"""Quantised rows against the same rows decoded to float32 first: time, peak memory, and distance from exact sums of integers.

The codes stand for x·abs(x), whole numbers up to 16,384, whose exact covariance is taken from sums of Python's integers. The stores are
written beside each other when they are not there: codes, codes of which one row in a hundred is nodata, and decoded float32. The limits
are those of the float32 store: a bare read, and the bare float32 products.

    .venv/bin/python scripts/bench/quantised.py data/codes --rows 20000000 --features 64
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import limits
import numpy as np
from _bench import Contender, Outcome, Row, at_most, medians, report, timed
from _options import add_same_process, parser_of

QUANTIZATION = {"power": 2, "nodata": -128}
_BLOCK = 2**18


def fit(path: str, k: str, memory: str, kind: str) -> Row:
    """Fit the rows of a store: ``codes``, codes with ``nodata``, or ``float32``."""
    import streampca as sp

    table = sp.open(path, quantization=None if kind == "float32" else QUANTIZATION)
    pca = sp.PCA(
        int(k), solver="covariance", memory=memory or None, missing="drop_rows" if kind == "nodata" else "error"
    )
    sp.PCA(1).fit(table.read(1, 10)[0])
    pca.plan(table)

    def work() -> Row:
        pca.fit(table)
        return {"eigenvalues": pca.explained_variance_.tolist(), "projected_mib": pca.plan_.projected_bytes / 2**20}

    return timed(work)


def prepare(place: Path, n: int, d: int) -> dict[str, Path]:
    """Write the stores that are not there, and the exact eigenvalues of the codes; return the paths by kind."""
    import zarr

    paths = {kind: place / f"{kind}-{n}-{d}.zarr" for kind in ("codes", "nodata", "float32")}
    if all(path.exists() for path in paths.values()):
        return paths
    arrays = {
        kind: zarr.create_array(
            path,
            shape=(n, d),
            chunks=(_BLOCK, d),
            dtype="f4" if kind == "float32" else "i1",
            compressors=None,
            overwrite=True,
        )
        for kind, path in paths.items()
    }
    sums, products = np.zeros(d, dtype=object), np.zeros((d, d), dtype=object)
    random = np.random.default_rng(0)
    mixing = random.normal(size=(d, d)) * (20 / np.sqrt(d)) * np.linspace(1.5, 0.5, d)[:, None]
    for start in range(0, n, _BLOCK):
        size = min(_BLOCK, n - start)
        rows = random.standard_normal((size, d), dtype=np.float32) @ mixing.astype("f4") + 10
        codes = np.clip(np.rint(rows), -127, 127).astype(np.int8)
        meant = codes.astype(np.float64) * np.abs(codes)
        sums += meant.sum(axis=0).astype(np.int64).astype(object)  # float64 holds every sum of a block
        products += (meant.T @ meant).astype(np.int64).astype(object)
        arrays["float32"][start : start + size] = meant.astype("f4")
        arrays["codes"][start : start + size] = codes
        codes[::100] = QUANTIZATION["nodata"]
        arrays["nodata"][start : start + size] = codes
    scatter = n * products - np.outer(sums, sums)  # exact
    np.save(place / f"exact-{n}-{d}.npy", np.linalg.eigvalsh((scatter / (n * (n - 1))).astype(np.float64))[::-1])
    return paths


def measure(
    place: Path, n: int, d: int, k: int, *, memory: str = "400MiB", repeats: int = 3, fresh: bool = True
) -> Outcome:
    """Run the contenders in turns."""
    place.mkdir(parents=True, exist_ok=True)
    paths = prepare(place, n, d)
    entries = limits.contenders(str(paths["float32"]))
    entries += [Contender("bare_read of codes", "limits", "bare_read", (str(paths["codes"]),))]
    entries += [Contender(kind, "quantised", "fit", (str(path), str(k), memory, kind)) for kind, path in paths.items()]
    rows = medians(entries, repeats=repeats, fresh=fresh)
    ratios: dict[str, float] = {}
    exact = np.load(place / f"exact-{n}-{d}.npy")[:k]
    failed = [row for row in rows.values() if "failed" in row]
    values: dict[str, Any] = {kind: rows[kind].pop("eigenvalues", None) for kind in paths}
    if not failed:
        for kind in ("codes", "float32"):
            ratios[f"error of {kind}, of the first eigenvalue"] = float(np.abs(values[kind] - exact).max() / exact[0])
        for kind in ("codes", "nodata"):
            ratios[f"{kind} over float32"] = rows[kind]["seconds"] / rows["float32"]["seconds"]
            ratios[f"peak MiB of {kind}"] = rows[kind]["peak_mib"]
        slower = max(rows["bare_read of codes"]["seconds"], rows["bare_products"]["seconds"])
        ratios["codes over the slower of a bare read and one float32 product"] = rows["codes"]["seconds"] / slower
    title = f"{n:,} x {d} codes, k = {k}, within {memory}"
    return Outcome(title, rows, None, ratios, {"error of codes, of the first eigenvalue": at_most(1e-12)})


def main() -> None:
    """Compare and print."""
    parser = parser_of(__doc__, components=8)
    parser.add_argument("directory", type=Path, help="of the stores, 7 bytes for each value")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--memory", default="400MiB", help="ceiling of the fits (default: %(default)s)")
    add_same_process(parser)
    given = parser.parse_args()
    outcome = measure(
        given.directory,
        given.rows,
        given.features,
        given.components,
        memory=given.memory,
        repeats=given.repeats,
        fresh=not given.same_process,
    )
    report(outcome, given.out)


if __name__ == "__main__":
    main()
