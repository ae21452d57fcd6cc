"""Measure false alarms of T² and Q, their cost beside scores, and where a digit with a stray dot stands among all digits.

Usage: python scripts/bench/outliers.py [--rows N]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import zarr

import streampca as sp

STRAY, DOT = 1000, 24


def distances(pca: sp.PCA, data: object, place: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return T² and Q as `transform_to` writes them."""
    group = zarr.open_group(pca.transform_to(data, place / "s.zarr", diagnostics=True, overwrite=True), mode="r")
    return group["t2"][:], group["q"][:]


def false_alarms(n_rows: int, place: Path) -> None:
    """Print how many of `n_rows` new normal rows exceed the limits at 99 %, with and without holes."""
    print("features components signal missing    T²       Q")
    for d, k in ((20, 3), (50, 5), (200, 10)):
        for signal in (1.0, 3.0):
            for missing in (0.0, 0.1, 0.3):
                random = np.random.default_rng([d, int(signal), int(100 * missing)])
                factors = signal * random.standard_normal((k, d))
                noise = np.sqrt(np.linspace(1.5, 0.5, d))

                def rows(random=random, factors=factors, noise=noise, missing=missing, n=n_rows, d=d):
                    made = random.standard_normal((n, len(factors))) @ factors + noise * random.standard_normal((n, d))
                    return np.where(random.random(made.shape) < missing, np.nan, made)

                pca = sp.PCA(k, missing="pairwise").fit(rows())
                t2, q = distances(pca, rows(), place)
                alarms = [(value > limit).mean() for value, limit in ((t2, pca.t2_limit()), (q, pca.q_limit()))]
                print(f"{d:8} {k:10} {signal:6} {missing:7.0%} {alarms[0]:6.2%}  {alarms[1]:6.2%}", flush=True)


def cost(n_rows: int, place: Path) -> None:
    """Print the processor time of scores with and without diagnostics, medians of five in turn."""
    print("type      features components   scores  with T² and Q  ratio")
    for dtype in ("float32", "float64"):
        for d, k in ((784, 20), (784, 50), (4096, 50)):
            random = np.random.default_rng(0)
            n = max(k + 2, n_rows * 784 // d)
            rows = random.standard_normal((n, 30)) @ random.standard_normal((30, d)) + random.standard_normal((n, d))
            zarr.create_array(str(place / "x.zarr"), data=rows.astype(dtype), chunks=(2048, d), overwrite=True)
            pca = sp.PCA(k, solver="covariance").fit(rows[: max(200, 2 * k)].astype(dtype))
            seconds: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(5):
                for diagnostics, taken in seconds.items():
                    began = time.process_time()
                    pca.transform_to(place / "x.zarr", place / "c.zarr", diagnostics=diagnostics, overwrite=True)
                    taken.append(time.process_time() - began)
            plain, both = (float(np.median(taken)) for taken in seconds.values())
            print(f"{dtype} {d:9} {k:10} {plain:7.2f} s {both:12.2f} s {both / plain:6.2f}", flush=True)


def stray_dot(place: Path) -> None:
    """Print the place of a digit with a white dot at its edge among all digits, by number of components."""
    rows = np.array(sp.open("builtin:digits").read(0, 1797)[0])
    rows[STRAY, DOT] = 16
    print("components  dot rebuilt  T²/limit  Q/limit  place among 1,797")
    for k in (5, 10, 20, 30, 40, 50, 60):
        pca = sp.PCA(k).fit(rows)
        t2, q = distances(pca, rows, place)
        relative = t2 / pca.t2_limit(distribution="beta"), q / pca.q_limit()
        back = pca.inverse_transform(pca.transform(rows[STRAY : STRAY + 1]))[0, DOT]
        where = 1 + int((sum(relative) > sum(each[STRAY] for each in relative)).sum())
        print(f"{k:10} {back / 16:12.0%} {relative[0][STRAY]:9.2f} {relative[1][STRAY]:8.2f} {where:10}", flush=True)


def main() -> None:
    """Run all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="rows of each table")
    n_rows = parser.parse_args().rows
    with TemporaryDirectory() as directory:
        stray_dot(Path(directory))
        false_alarms(n_rows, Path(directory))
        cost(n_rows, Path(directory))


if __name__ == "__main__":
    main()
