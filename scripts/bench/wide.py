"""Exact PCA of wide data, components included, against its limits and against peers, all in one run.

The floor is the bare float32 products of the samples over the same blocks of features on all cores, plus the processor
time of two bare readings divided by the cores. `fit` imports and plans before the clock starts. `numpy_gram` has the data
in memory beforehand, and only its products, eigenproblem and components are timed.

    .venv/bin/python scripts/make_data.py data/w.zarr --rows 2000 --features 500000 --chunks 2000,4000 --noise 0.005
    .venv/bin/python scripts/bench/wide.py data/w.zarr
"""

from __future__ import annotations

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
from exact import fit as exact_fit

PEERS = {"numpy_gram": {}, "sklearn_randomized": {}, "svd_compressed": {}}
"""Names of the peers, which are functions of this module, and how they are run."""


def fit(path: str, k: str = "50", memory: str = "") -> Row:
    """Run `streampca.PCA.fit` by the Gram matrix, components included."""
    return exact_fit(path, k, memory, "gram")


def numpy_gram(path: str, k: str = "50") -> Row:
    """Take the same steps with numpy on data that is in memory already."""
    import zarr

    x = zarr.open_array(path, mode="r")[...]
    return timed(lambda: _gram(x, int(k)))


def _gram(x: Any, k: int) -> dict[str, Any]:
    from scipy.linalg import eigh

    n = len(x)
    mean = x.mean(axis=0)
    gram = (x @ x.T).astype(np.float64)
    cross = (x @ mean).astype(np.float64)
    gram += -cross[:, None] - cross + float(mean.astype(np.float64) @ mean)
    values, vectors = eigh(gram, subset_by_index=(n - k, n - 1))
    axes = (vectors / np.sqrt(np.maximum(values, 1e-30))).astype(x.dtype)
    components = axes.T @ x - axes.sum(axis=0)[:, None] * mean
    assert components.shape == (k, x.shape[1])
    return {"eigenvalues": (values[::-1] / (n - 1)).tolist()}


def sklearn_randomized(path: str, k: str = "50") -> Row:
    """Load everything and run scikit-learn's randomized PCA."""
    import zarr
    from sklearn.decomposition import PCA

    PCA(2, svd_solver="randomized").fit(np.random.default_rng(0).standard_normal((32, 16), dtype=np.float32))

    def work() -> dict[str, Any]:
        model = PCA(int(k), svd_solver="randomized", random_state=0).fit(zarr.open_array(path, mode="r")[...])
        return {"eigenvalues": model.explained_variance_.tolist()}

    return timed(work)


def svd_compressed(path: str, k: str = "50") -> Row:
    """Run Dask's compressed SVD of the centred data with four power iterations, re-orthonormalised."""
    import dask.array as da

    def solve(x: Any, wanted: int) -> dict[str, Any]:
        _, s, v = da.linalg.svd_compressed(
            x - x.mean(axis=0), wanted, n_power_iter=4, iterator="QR", seed=0, compute=False
        )
        s, v = da.compute(s, v)
        return {"eigenvalues": (s.astype(np.float64) ** 2 / (x.shape[0] - 1)).tolist()}

    solve(da.random.default_rng(0).standard_normal((32, 64), chunks=(32, 16)), 2)
    return timed(lambda: solve(da.from_zarr(path), int(k)))


def reference(path: str, k: str = "50") -> Row:
    """Take the eigenvalues in float64 throughout, by numpy and LAPACK over runs of features."""
    import zarr
    from scipy.linalg import eigh

    def work() -> dict[str, Any]:
        x = zarr.open_array(path, mode="r")
        n, d = x.shape
        step = x.chunks[1] * max(1, 2**22 // (n * x.chunks[1]))
        gram = np.zeros((n, n))
        for start in range(0, d, step):
            columns = x[:, start : start + step].astype(np.float64)
            columns -= columns.mean(axis=0)
            gram += columns @ columns.T
        gram /= n - 1
        return {"eigenvalues": eigh(gram, subset_by_index=(n - int(k), n - 1))[0][::-1].tolist()}

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
        *limits.contenders(store, "gram"),
        Contender("fit", "wide", "fit", (store, str(k), memory)),
        *(Contender(name, "wide", name, (store, str(k)), **PEERS[name]) for name in peers),
    ]
    rows = medians(entries, repeats=repeats, fresh=fresh)
    last = Contender("float64 reference", "wide", "reference", (store, str(k)), once=True)
    add_errors(rows, last if with_reference else None, fresh=fresh)
    ratios, goals = limits.quiet(rows)
    floor, ours = floor_seconds(rows["bare_products"], rows["bare_read"], reads=2), rows["fit"]
    if "failed" not in ours and floor:
        ratios |= {
            "seconds of fit": ours["seconds"],
            "fit over floor": ours["seconds"] / floor,
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
    add_peers(parser, None, ", ".join(PEERS))
    parser.add_argument("--no-reference", action="store_true", help="skip the float64 reference")
    options = parser.parse_args()
    peers = peers_of(parser, options.peers, PEERS)
    outcome = measure(
        f"exact PCA of {options.store}, wide, k = {options.components}",
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
