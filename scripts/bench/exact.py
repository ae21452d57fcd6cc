"""Exact PCA of a store against its own limits and against peers, all in one run.

The floor is the bare float32 products over the same blocks on all cores plus the processor time of a bare read divided
by the cores. Contenders take turns; every figure is a median. `fit` imports and calls ``pca.plan(path)`` before the
clock starts, as all contenders import before it. Peers read the same store.

    .venv/bin/python scripts/make_data.py data/a.zarr --rows 400000 --features 1024 --chunks 8000 --mean-to-sd 3
    .venv/bin/python scripts/bench/exact.py data/a.zarr
    .venv/bin/python scripts/bench/exact.py data/a.zarr --peers dask_cov,sklearn_incremental
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import limits
import numpy as np
from _bench import (
    Contender,
    Outcome,
    Row,
    add_errors,
    floor_seconds,
    medians,
    report,
    timed,
    times_of_fit,
)
from _options import add_peers, parser_of, peers_of

PEERS = {
    "dask_cov": {},
    "sklearn_incremental": {"once": True},
    "sklearn_pca": {},
    "sklearnex_incremental": {"peer": True},
    "sklearnex_pca": {"peer": True},
    "dask_ml_pca": {"peer": True, "once": True},
    "xeofs_eof": {"peer": True, "once": True},
    "faiss_pca": {"peer": True, "once": True},
}
"""Names of the peers, which are functions of this module, and how they are run."""


def fit(path: str, k: str = "50", memory: str = "", solver: str = "covariance") -> Row:
    """Run `streampca.PCA.fit`."""
    import streampca as sp

    pca = sp.PCA(int(k), solver=solver, memory=memory or None)
    pca.plan(path)
    measured = timed(lambda: pca.fit(path) and None)
    return measured | {
        "projected_mib": pca.plan_.projected_bytes / 2**20,
        "expected_seconds": pca.plan_.expected_seconds,
        "eigenvalues": pca.explained_variance_.tolist(),
    }


def dask_cov(path: str, k: str = "50") -> Row:
    """Run Dask's blockwise ``X.T @ X`` minus the means, then LAPACK's eigh."""
    import dask
    import dask.array as da
    from scipy.linalg import eigh

    def solve(x: Any, wanted: int) -> dict[str, Any]:
        gram, mean = dask.compute(x.T @ x, x.mean(axis=0))
        n, d = x.shape
        covariance = (gram - n * np.outer(mean, mean)) / (n - 1)
        return {"eigenvalues": eigh(covariance, subset_by_index=(d - wanted, d - 1))[0][::-1].tolist()}

    solve(da.from_array(_few_rows(), chunks=(32, -1)), 2)
    return timed(lambda: solve(da.from_zarr(path), int(k)))


def _few_rows() -> Any:
    """Return what peers are warmed up with, so that late imports and compilations are not in their time either."""
    return np.random.default_rng(0).standard_normal((128, 16), dtype=np.float32)


def sklearn_incremental(path: str, k: str = "50") -> Row:
    """Run scikit-learn's IncrementalPCA, a chunk a batch."""
    from sklearn.decomposition import IncrementalPCA

    return _incremental(path, IncrementalPCA(n_components=int(k)))


def sklearnex_incremental(path: str, k: str = "50") -> Row:
    """Run scikit-learn-intelex's IncrementalPCA, a chunk a batch."""
    from sklearnex.preview.decomposition import IncrementalPCA

    return _incremental(path, IncrementalPCA(n_components=int(k)))


def _incremental(path: str, model: Any) -> Row:
    import zarr
    from sklearn.base import clone

    clone(model).set_params(n_components=2).partial_fit(_few_rows())

    def work() -> dict[str, Any]:
        x = zarr.open_array(path, mode="r")
        edges = [*range(0, x.shape[0], max(x.chunks[0], model.n_components)), x.shape[0]]
        if edges[-1] - edges[-2] < model.n_components and len(edges) > 2:
            del edges[-2]  # scikit-learn refuses batches of fewer rows than components
        for start, stop in pairwise(edges):
            model.partial_fit(x[start:stop])
        return {"eigenvalues": np.asarray(model.explained_variance_).tolist()}

    return timed(work)


def sklearn_pca(path: str, k: str = "50") -> Row:
    """Load everything and run scikit-learn's PCA by the covariance matrix."""
    from sklearn.decomposition import PCA

    return _loaded(path, PCA(int(k), svd_solver="covariance_eigh"))


def sklearnex_pca(path: str, k: str = "50") -> Row:
    """Load everything and run scikit-learn-intelex's PCA by the covariance matrix."""
    from sklearnex.decomposition import PCA

    return _loaded(path, PCA(int(k), svd_solver="covariance_eigh"))


def faiss_pca(path: str, k: str = "50") -> Row:
    """Load everything and train faiss's PCAMatrix, which takes at most 1,000 rows for each feature."""
    import faiss
    import zarr

    faiss.PCAMatrix(16, 2).train(_few_rows())

    def work() -> dict[str, Any]:
        x = np.asarray(zarr.open_array(path, mode="r")[:])
        model = faiss.PCAMatrix(x.shape[1], int(k))
        model.train(x)
        n_used = min(len(x), model.max_points_per_d * x.shape[1])
        return {"eigenvalues": (faiss.vector_to_array(model.eigenvalues)[: int(k)] / (n_used - 1)).tolist()}

    return timed(work)


def _loaded(path: str, model: Any) -> Row:
    import zarr
    from sklearn.base import clone

    clone(model).set_params(n_components=2).fit(_few_rows())

    def work() -> dict[str, Any]:
        model.fit(zarr.open_array(path, mode="r")[...])
        return {"eigenvalues": np.asarray(model.explained_variance_).tolist()}

    return timed(work)


def dask_ml_pca(path: str, k: str = "50") -> Row:
    """Run dask-ml's PCA by a tall-skinny QR."""
    import dask.array as da
    from dask_ml.decomposition import PCA

    PCA(2, svd_solver="tsqr").fit(da.from_array(_few_rows(), chunks=(32, -1)))

    def work() -> dict[str, Any]:
        model = PCA(int(k), svd_solver="tsqr").fit(da.from_zarr(path))
        return {"eigenvalues": np.asarray(model.explained_variance_).tolist()}

    return timed(work)


def xeofs_eof(path: str, k: str = "50") -> Row:
    """Run xeofs' EOF analysis over Dask."""
    import dask.array as da
    import xarray
    import xeofs

    def solve(lazy: Any, wanted: int) -> dict[str, Any]:
        x = xarray.DataArray(lazy, dims=("time", "x"))
        x = x.assign_coords(time=np.arange(x.shape[0]), x=np.arange(x.shape[1]))
        model = xeofs.single.EOF(n_modes=wanted, random_state=0)
        model.fit(x, dim="time")
        return {"eigenvalues": np.asarray(model.explained_variance()).tolist()}

    solve(da.from_array(_few_rows(), chunks=(32, -1)), 2)
    return timed(lambda: solve(da.from_zarr(path), int(k)))


def reference(path: str, k: str = "50") -> Row:
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
        gram -= np.outer(total, total / n)
        gram /= n - 1
        return {"eigenvalues": eigh(gram, subset_by_index=(d - int(k), d - 1), overwrite_a=True)[0][::-1].tolist()}

    return timed(work)


def measure(
    title: str,
    store: str,
    k: int,
    *,
    peers: tuple[str, ...] = (),
    memory: str = "",
    with_reference: bool = True,
    repeats: int = 3,
    fresh: bool = True,
    wanted: dict[str, tuple[float, float]] | None = None,
) -> Outcome:
    """Run one case: limits, fit and peers in turns, then the reference."""
    entries = [
        *limits.contenders(store),
        Contender("fit", "exact", "fit", (store, str(k), memory)),
        *(Contender(name, "exact", name, (store, str(k)), **PEERS[name]) for name in peers),
    ]
    rows = medians(entries, repeats=repeats, fresh=fresh)
    last = Contender("float64 reference", "exact", "reference", (store, str(k)), once=True)
    add_errors(rows, last if with_reference else None, fresh=fresh)
    ratios, goals = limits.quiet(rows)
    floor, ours, products = floor_seconds(rows["bare_products"], rows["bare_read"]), rows["fit"], rows["bare_products"]
    if "failed" not in ours and floor:
        ratios |= {
            "fit over floor": ours["seconds"] / floor,
            "fit over bare products": ours["seconds"] / products["seconds"],
            "peak MiB of fit": ours["peak_mib"],
            "peak over projected": ours["peak_mib"] / ours["projected_mib"],
        }
        if "error" in ours:
            ratios["error of fit"] = ours["error"]
        ratios |= times_of_fit(rows, peers)
    return Outcome(title, rows, floor, ratios, goals | (wanted or {}))


def main() -> None:
    """Compare and print."""
    parser = parser_of(__doc__)
    parser.add_argument("store")
    add_peers(parser, "dask_cov", ", ".join(PEERS))
    parser.add_argument("--no-reference", action="store_true", help="skip the float64 reference")
    options = parser.parse_args()
    peers = peers_of(parser, options.peers, PEERS)
    outcome = measure(
        f"exact PCA of {options.store}, k = {options.components}",
        options.store,
        options.components,
        peers=peers,
        memory=options.memory,
        with_reference=not options.no_reference,
        repeats=options.repeats,
    )
    report(outcome, options.out)


if __name__ == "__main__":
    main()
