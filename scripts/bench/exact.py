"""Exact PCA of a store against its own limits and against peers, all in one run.

The floor is the bare float32 products over the same blocks on all cores plus the processor time of a bare read divided
by the cores; the larger of the two alone is what perfect overlap would take. Peers read the same store.

    .venv/bin/python scripts/make_data.py data/a.zarr --rows 400000 --features 1024 --chunks 8000
    .venv/bin/python scripts/bench/exact.py data/a.zarr
    .venv/bin/python scripts/bench/exact.py data/a.zarr --peers dask_cov,sklearn_incremental
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from _bench import contend, medians, report, summary, timed

PEERS = ("dask_cov", "sklearn_incremental", "sklearn_pca", "sklearnex_incremental")


def fit(path: str, k: str = "50", memory: str = "") -> dict[str, Any]:
    """Run `streampca.PCA.fit`."""
    import streampca as sp

    pca = sp.PCA(int(k), solver="covariance", memory=memory or None)
    measured = timed(lambda: pca.fit(path))
    return measured | {
        "projected_mib": pca.plan_.projected_bytes / 2**20,
        "eigenvalues": pca.explained_variance_.tolist(),
    }


def dask_cov(path: str, k: str = "50") -> dict[str, Any]:
    """Run Dask's blockwise ``X.T @ X`` minus the means, then LAPACK's eigh."""
    import dask
    import dask.array as da
    from scipy.linalg import eigh

    def work() -> dict[str, Any]:
        x = da.from_zarr(path)
        gram, mean = dask.compute(x.T @ x, x.mean(axis=0))
        n, d = x.shape
        covariance = (gram - n * np.outer(mean, mean)) / (n - 1)
        return {"eigenvalues": eigh(covariance, eigvals_only=False, subset_by_index=(d - int(k), d - 1))[0][::-1].tolist()}

    return timed(work)


def sklearn_incremental(path: str, k: str = "50") -> dict[str, Any]:
    """Run scikit-learn's IncrementalPCA, a chunk a batch."""
    import zarr
    from sklearn.decomposition import IncrementalPCA

    def work() -> dict[str, Any]:
        x = zarr.open_array(path, mode="r")
        model = IncrementalPCA(int(k))
        for start in range(0, x.shape[0], x.chunks[0]):
            model.partial_fit(x[start : start + x.chunks[0]])
        return {"eigenvalues": model.explained_variance_.tolist()}

    return timed(work)


def sklearn_pca(path: str, k: str = "50") -> dict[str, Any]:
    """Load everything and run scikit-learn's PCA by the covariance matrix."""
    import zarr
    from sklearn.decomposition import PCA

    def work() -> dict[str, Any]:
        model = PCA(int(k), svd_solver="covariance_eigh").fit(zarr.open_array(path, mode="r")[...])
        return {"eigenvalues": model.explained_variance_.tolist()}

    return timed(work)


def sklearnex_incremental(path: str, k: str = "50") -> dict[str, Any]:
    """Run scikit-learn-intelex's IncrementalPCA, a chunk a batch."""
    import zarr
    from sklearnex.preview.decomposition import IncrementalPCA

    def work() -> dict[str, Any]:
        x = zarr.open_array(path, mode="r")
        model = IncrementalPCA(n_components=int(k))
        for start in range(0, x.shape[0], x.chunks[0]):
            model.partial_fit(x[start : start + x.chunks[0]])
        return {"eigenvalues": np.asarray(model.explained_variance_).tolist()}

    return timed(work)


def reference(path: str, k: str = "50") -> dict[str, Any]:
    """Take the eigenvalues in float64 throughout, by numpy and LAPACK."""
    import zarr
    from scipy.linalg import eigh

    def work() -> dict[str, Any]:
        x = zarr.open_array(path, mode="r")
        (n, d), step = x.shape, 4096
        shift = x[:step].mean(axis=0, dtype=np.float64)
        total, gram = np.zeros(d), np.zeros((d, d))
        for start in range(0, n, step):
            rows = x[start : start + step].astype(np.float64) - shift
            total += rows.sum(axis=0)
            gram += rows.T @ rows
        covariance = (gram - np.outer(total, total) / n) / (n - 1)
        return {"eigenvalues": eigh(covariance, subset_by_index=(d - int(k), d - 1))[0][::-1].tolist()}

    return timed(work)


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--components", default="50")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", default="dask_cov", help=f"comma-separated, of: {', '.join(PEERS)}")
    parser.add_argument("--no-reference", action="store_true", help="skip the float64 reference")
    parser.add_argument("--memory", default="", help="ceiling for the fit")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ours = _together(options)
    limits = {name: ours.pop(name) for name in ("bare_read", "bare_products")}
    slow = [name for name in options.peers.split(",") if name in ("sklearn_incremental",)]
    quick = [name for name in options.peers.split(",") if name and name not in slow]
    rows = limits | ours | medians("exact", quick, options.store, options.components, repeats=options.repeats)
    for name in slow:
        rows[name] = contend("exact", name, options.store, options.components)
        print(f"  {name}: {summary(rows[name])}")
    if not options.no_reference:
        rows["reference"] = contend("exact", "reference", options.store, options.components)
        _errors(rows)
    for row in rows.values():
        row.pop("eigenvalues", None)
    report(f"exact PCA of {options.store}, k = {options.components}", rows, _ratios(rows), options.out)


def _together(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run limits and fit in turns, so that all three see the same machine."""
    turns = []
    for _ in range(options.repeats):
        turn = {}
        for module, name, *arguments in (
            ("limits", "bare_read"),
            ("limits", "bare_products"),
            ("exact", "fit", options.components, options.memory),
        ):
            turn[name] = contend(module, name, options.store, *arguments)
            print(f"  {name}: {summary(turn[name])}")
        turns.append(turn)
    from _bench import _median

    return {name: _median([turn[name] for turn in turns]) for name in turns[0]}


def _errors(rows: dict[str, dict[str, Any]]) -> None:
    exact = np.array(rows["reference"]["eigenvalues"])
    for row in rows.values():
        if "eigenvalues" in row:
            row["error"] = float(np.abs(np.array(row["eigenvalues"]) / exact - 1).max())


def _ratios(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    products, read, ours = rows["bare_products"], rows["bare_read"], rows["fit"]
    cores = max(1.0, products["cpu_seconds"] / products["seconds"])
    ratios = {
        "cores kept busy by the products (1.9 of 2 = a quiet machine)": cores,
        "fit over the larger of read and products": ours["seconds"] / max(products["seconds"], read["seconds"]),
        "fit over the floor (products + read cpu / cores)": ours["seconds"] / (products["seconds"] + read["cpu_seconds"] / round(cores)),
        "peak over projected": ours["peak_mib"] / ours["projected_mib"],
    }
    for name, row in rows.items():
        if name not in ("bare_read", "bare_products", "fit", "reference") and "seconds" in row:
            ratios[f"{name} over fit"] = row["seconds"] / ours["seconds"]
    return ratios


if __name__ == "__main__":
    main()
