"""Kernel PCA against its limits and against scikit-learn, all in one run.

``nystrom``: features of landmarks over all rows of a store. The floor is the bare kernel values of the same landmarks and the
bare float32 products of them, on all cores, one block after the other, plus the processor time of two bare readings divided
by the cores. The reference of the errors is the fit of float64 rows with the same landmarks; scikit-learn draws its own.

``exact``: the first rows of a store, whole kernel matrix. The reference is LAPACK in float64.

    .venv/bin/python scripts/make_data.py data/k.zarr --rows 100000 --features 64
    .venv/bin/python scripts/bench/kernel.py nystrom data/k.zarr --landmarks 1000 --gamma 0.1
    .venv/bin/python scripts/bench/kernel.py exact data/k.zarr --rows 8000 --components 50 --gamma 0.1
    .venv/bin/python scripts/make_data.py data/k16.zarr --rows 10000000 --features 16
    .venv/bin/python scripts/bench/kernel.py nystrom data/k16.zarr --landmarks 500 --memory 1GiB --peers "" --no-reference
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from _bench import (
    Contender,
    Outcome,
    Row,
    add_errors,
    at_least,
    at_most,
    cores,
    floor_seconds,
    medians,
    report,
    timed,
    times_of_fit,
)
from _options import add_peers, parser_of, peers_of

PEERS = {"nystrom": ("sklearn_features", "sklearn_incremental"), "exact": ("sklearn_randomized", "sklearn_dense")}
"""Names of the peers of each mode, which are functions of this module."""
_BLOCK_ROWS = 8192


def _estimator(m: str, k: str, gamma: str, memory: str = "") -> Any:
    import streampca as sp

    return sp.KernelPCA(
        int(k), gamma=float(gamma), method="nystrom", sampling="uniform", n_landmarks=int(m), memory=memory or None
    )


def fit(path: str, m: str, k: str, gamma: str, memory: str = "") -> Row:
    """Run `streampca.KernelPCA.fit` from landmarks."""
    kernel_pca = _estimator(m, k, gamma, memory)
    kernel_pca.plan(path)
    measured = timed(lambda: kernel_pca.fit(path) and None)
    return measured | {
        "projected_mib": kernel_pca.plan_.projected_bytes / 2**20,
        "passes": kernel_pca.n_passes_,
        "condition": kernel_pca.error_["landmark_condition"],
        "eigenvalues": kernel_pca.eigenvalues_.tolist(),
    }


def reference(path: str, m: str, k: str, gamma: str) -> Row:
    """Take the same landmarks and rows in float64."""
    import zarr

    kernel_pca = _estimator(m, k, gamma)
    rows = zarr.open_array(path, mode="r")[...].astype(np.float64)
    return timed(lambda: {"eigenvalues": kernel_pca.fit(rows).eigenvalues_.tolist()})


def bare(path: str, m: str, gamma: str) -> Row:
    """Make kernel values of the first rows with all rows and multiply them, in float32, on all cores."""
    import zarr
    from threadpoolctl import threadpool_limits

    from streampca.kernels import RBF

    store = zarr.open_array(path, mode="r")
    prepared = RBF(float(gamma)).prepare(store[: int(m)].astype(np.float32))
    block = store[:_BLOCK_ROWS].astype(np.float32)
    n_blocks = -(-store.shape[0] // _BLOCK_ROWS)

    def some(worker: int) -> None:
        values = np.empty((len(block), int(m)), dtype=np.float32)
        product = np.empty((int(m), int(m)), dtype=np.float32)
        for _ in range(worker, n_blocks, cores()):
            prepared(block, out=values)
            np.matmul(values.T, values, out=product)

    def work() -> None:
        with threadpool_limits(1), ThreadPoolExecutor(cores()) as pool:
            list(pool.map(some, range(cores())))

    return timed(work)


def bare_read(path: str) -> Row:
    """Read every block once."""
    import limits

    return limits.bare_read(path)


def sklearn_features(path: str, m: str, k: str, gamma: str) -> Row:
    """Load everything; scikit-learn's `Nystroem`, then its PCA of the features."""
    import zarr
    from sklearn.decomposition import PCA
    from sklearn.kernel_approximation import Nystroem

    def work() -> dict[str, Any]:
        rows = zarr.open_array(path, mode="r")[...]
        features = Nystroem(gamma=float(gamma), n_components=int(m), random_state=0).fit_transform(rows)
        model = PCA(int(k), svd_solver="covariance_eigh").fit(features)
        return {"eigenvalues": (model.explained_variance_.astype(np.float64) * (len(rows) - 1)).tolist()}

    return timed(work)


def sklearn_incremental(path: str, m: str, k: str, gamma: str) -> Row:
    """Stream scikit-learn's `Nystroem` features into its `IncrementalPCA`."""
    import zarr
    from sklearn.decomposition import IncrementalPCA
    from sklearn.kernel_approximation import Nystroem

    def work() -> dict[str, Any]:
        store = zarr.open_array(path, mode="r")
        n = store.shape[0]
        chosen = np.sort(np.random.default_rng(0).choice(n, int(m), replace=False))
        features = Nystroem(gamma=float(gamma), n_components=int(m), random_state=0).fit(store.oindex[chosen])
        model = IncrementalPCA(int(k))
        for start in range(0, n - n % _BLOCK_ROWS or n, _BLOCK_ROWS):
            model.partial_fit(features.transform(store[start : start + _BLOCK_ROWS]))
        return {"eigenvalues": (model.explained_variance_ * (model.n_samples_seen_ - 1)).tolist()}

    return timed(work)


def _rows(path: str, n: str) -> Any:
    import zarr

    return zarr.open_array(path, mode="r")[: int(n)]


def exact(path: str, n: str, k: str, gamma: str, dtype: str = "float32") -> Row:
    """Run `streampca.KernelPCA.fit` on the whole kernel matrix."""
    import streampca as sp

    rows = _rows(path, n).astype(dtype)
    kernel_pca = sp.KernelPCA(int(k), gamma=float(gamma), method="exact")
    kernel_pca.plan(rows)
    measured = timed(lambda: {"eigenvalues": kernel_pca.fit(rows).eigenvalues_.tolist()})
    return measured | {"projected_mib": kernel_pca.plan_.projected_bytes / 2**20}


def sklearn_randomized(path: str, n: str, k: str, gamma: str) -> Row:
    """Run scikit-learn's randomized `KernelPCA`."""
    return _sklearn_exact(path, n, k, gamma, "randomized", "float32")


def sklearn_dense(path: str, n: str, k: str, gamma: str) -> Row:
    """Run scikit-learn's `KernelPCA` by LAPACK, in float64."""
    return _sklearn_exact(path, n, k, gamma, "dense", "float64")


def _sklearn_exact(path: str, n: str, k: str, gamma: str, solver: str, dtype: str) -> Row:
    from sklearn.decomposition import KernelPCA

    rows = _rows(path, n).astype(dtype)
    model = KernelPCA(int(k), kernel="rbf", gamma=float(gamma), eigen_solver=solver, random_state=0)
    return timed(lambda: {"eigenvalues": model.fit(rows).eigenvalues_.tolist()})


def measure_nystrom(
    store: str,
    m: int,
    k: int,
    gamma: float,
    *,
    peers: tuple[str, ...] = (),
    memory: str = "",
    with_reference: bool = True,
    repeats: int = 3,
    fresh: bool = True,
) -> Outcome:
    """Run limits, fit and peers in turns, then the reference."""
    common = (store, str(m), str(k), str(gamma))
    entries = [
        Contender("bare_products", "kernel", "bare", (store, str(m), str(gamma))),
        Contender("bare_read", "kernel", "bare_read", (store,)),
        Contender("fit", "kernel", "fit", (*common, memory)),
        *(Contender(name, "kernel", name, common, once=name == "sklearn_incremental") for name in peers),
    ]
    rows = medians(entries, repeats=repeats, fresh=fresh)
    last = Contender("float64 reference", "kernel", "reference", common, once=True)
    add_errors(rows, last if with_reference else None, fresh=fresh)
    floor, ours = floor_seconds(rows["bare_products"], rows["bare_read"], reads=2), rows["fit"]
    ratios: dict[str, float] = {}
    goals = {"fit over floor": at_most(1.4), "peak over projected": at_most(1.0)}
    if "failed" not in ours and floor:
        ratios = {
            "fit over floor": ours["seconds"] / floor,
            "peak over projected": ours["peak_mib"] / ours["projected_mib"],
        }
        ratios |= {"reads": float(ours["passes"])}
    if "error" in ours:
        ratios["error of fit"] = ours["error"]
    if "seconds" in rows.get("sklearn_features", {}) and "failed" not in ours:
        peer = rows["sklearn_features"]
        ratios |= {
            "sklearn_features over fit": peer["seconds"] / ours["seconds"],
            "peak of fit over sklearn_features": ours["peak_mib"] / peer["peak_mib"],
        }
        goals |= {"sklearn_features over fit": at_least(3.5), "peak of fit over sklearn_features": at_most(0.25)}
    return Outcome(f"Nyström kernel PCA of {store}, m = {m}, k = {k}", rows, floor, ratios, goals)


def measure_exact(
    store: str,
    n: int,
    k: int,
    gamma: float,
    *,
    peers: tuple[str, ...] = (),
    with_reference: bool = True,
    repeats: int = 3,
    fresh: bool = True,
) -> Outcome:
    """Run fit and peers in turns, then the float64 reference."""
    common = (store, str(n), str(k), str(gamma))
    entries = [
        Contender("fit", "kernel", "exact", common),
        *(Contender(name, "kernel", name, common, once=name == "sklearn_dense") for name in peers),
    ]
    rows = medians(entries, repeats=repeats, fresh=fresh)
    last = Contender("float64 reference", "kernel", "exact", (*common, "float64"), once=True)
    add_errors(rows, last if with_reference else None, fresh=fresh)
    ours, ratios = rows["fit"], {}
    if "failed" not in ours:
        ratios = {"peak over projected": ours["peak_mib"] / ours["projected_mib"]}
        if "error" in ours:
            ratios["error of fit"] = ours["error"]
        ratios |= times_of_fit(rows, peers)
    goals = {
        "error of fit": at_most(1e-5),
        "sklearn_randomized over fit": at_least(2.0),
        "peak over projected": at_most(1.0),
    }
    return Outcome(f"exact kernel PCA of {n} rows of {store}, k = {k}", rows, None, ratios, goals)


def main() -> None:
    """Compare and print."""
    parser = parser_of(__doc__, components=20)
    parser.add_argument("mode", choices=sorted(PEERS))
    parser.add_argument("store")
    parser.add_argument("--landmarks", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=8000, help="for exact: so many of the first rows")
    parser.add_argument("--gamma", type=float, default=0.1)
    add_peers(parser, None, "; ".join(f"{mode}: {', '.join(names)}" for mode, names in PEERS.items()))
    parser.add_argument("--no-reference", action="store_true", help="skip the float64 reference")
    options = parser.parse_args()
    peers = peers_of(parser, options.peers, PEERS[options.mode])
    common: dict[str, Any] = {"peers": peers, "with_reference": not options.no_reference, "repeats": options.repeats}
    if options.mode == "exact":
        outcome = measure_exact(options.store, options.rows, options.components, options.gamma, **common)
    else:
        outcome = measure_nystrom(
            options.store, options.landmarks, options.components, options.gamma, memory=options.memory, **common
        )
    report(outcome, options.out)


if __name__ == "__main__":
    main()
