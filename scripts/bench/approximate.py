"""Approximate PCA in a few passes against its limits and against peers, all in one run.

The floor is the bare float32 products of as many passes, a block times the test matrix and back, on all cores, plus the
processor time of as many bare readings divided by the cores. `fit` imports and plans before the clock starts.
`sklearn_in_memory` has the data in memory beforehand, and only its fit is timed. The reference is the exact fit by the
covariance matrix, without a ceiling: 8 bytes for the square of the number of features have to fit into memory.

    .venv/bin/python scripts/make_data.py data/d.zarr --rows 50000 --features 30000 --chunks 1000 --noise 0.05
    .venv/bin/python scripts/bench/approximate.py data/d.zarr --passes 4 --memory 1.5GiB
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
    cores,
    floor_seconds,
    medians,
    report,
    timed,
    times_of_fit,
)
from _options import add_peers, parser_of, peers_of
from exact import fit as exact_fit
from wide import svd_compressed as run_svd_compressed

PEERS = {"sklearn_in_memory": {}, "svd_compressed": {"once": True}}
"""Names of the peers, which are functions of this module, and how they are run."""


def fit(
    path: str, k: str = "50", memory: str = "", passes: str = "4", columns: str = "auto", tolerance: str = "1e-4"
) -> Row:
    """Run `streampca.PCA.fit` by a sketch."""
    import streampca as sp

    size = columns if columns == "auto" else int(columns)
    pca = sp.PCA(
        int(k),
        solver="sketch",
        sketch_size=size,
        max_passes=int(passes),
        tolerance=float(tolerance),
        memory=memory or None,
    )
    pca.plan(path)
    measured = timed(lambda: pca.fit(path) and None)
    return measured | {
        "projected_mib": pca.plan_.projected_bytes / 2**20,
        "expected_seconds": pca.plan_.expected_seconds,
        "passes": pca.n_passes_,
        "columns": pca.plan_.sketch["columns"],
        "certified": pca.error_["largest_relative_width"],
        "eigenvalues": pca.explained_variance_.tolist(),
    }


def bare_passes(path: str, columns: str = "100", passes: str = "4") -> Row:
    """Multiply a block with a test matrix and back as often as the store has blocks, in every pass, without any reading."""
    source, spans = limits._opened(path, "sketch")
    rows, side, q = max(stop - start for start, stop in spans), source.shape[1], int(columns)
    dtype = np.dtype(np.float32 if source.dtype.itemsize <= 4 else np.float64)
    draw = np.random.default_rng(0)
    block, test = draw.standard_normal((rows, side), dtype=dtype), draw.standard_normal((side, q), dtype=dtype)
    lengths = [stop - start for start, stop in spans] * int(passes)

    def work(indices: range) -> None:
        x = block if indices.start == 0 else block.copy()
        projected, out = np.empty((rows, q), dtype=dtype), np.empty((side, q), dtype=dtype)
        for i in indices:
            part = x[: lengths[i]]
            np.matmul(part, test, out=projected[: lengths[i]])
            np.matmul(part.T, projected[: lengths[i]], out=out)

    limits._on_all_cores(work, cores())
    return timed(lambda: limits._on_all_cores(work, len(lengths)))


def sklearn_in_memory(path: str, k: str = "50") -> Row:
    """Run scikit-learn's randomized PCA on data that is in memory already."""
    import zarr
    from sklearn.decomposition import PCA

    PCA(2, svd_solver="randomized").fit(np.random.default_rng(0).standard_normal((32, 16), dtype=np.float32))
    x = zarr.open_array(path, mode="r")[...]

    def work() -> dict[str, Any]:
        model = PCA(int(k), svd_solver="randomized", random_state=0).fit(x)
        return {"eigenvalues": model.explained_variance_.tolist()}

    return timed(work)


def svd_compressed(path: str, k: str = "50") -> Row:
    """Run Dask's compressed SVD as in `wide`."""
    return run_svd_compressed(path, k)


def reference(path: str, k: str = "50") -> Row:
    """Take the eigenvalues by the exact fit."""
    return exact_fit(path, k, "20GiB", "covariance")


def measure(
    title: str,
    store: str,
    k: int,
    *,
    peers: tuple[str, ...] = (),
    memory: str = "",
    passes: int = 4,
    columns: str = "auto",
    tolerance: float = 1e-4,
    repeats: int = 3,
    fresh: bool = True,
    wanted: dict[str, tuple[float, float]] | None = None,
) -> Outcome:
    """Run one case: limits, fit and peers in turns, then the reference."""
    size = columns if columns != "auto" else str(max(2 * k, k + 32))
    entries = [
        Contender("bare_read", "limits", "bare_read", (store, "sketch")),
        Contender("bare_products", "approximate", "bare_passes", (store, size, str(passes))),
        Contender("fit", "approximate", "fit", (store, str(k), memory, str(passes), size, str(tolerance))),
        *(Contender(name, "approximate", name, (store, str(k)), **PEERS[name]) for name in peers),
    ]
    rows = medians(entries, repeats=repeats, fresh=fresh)
    last = Contender("exact", "approximate", "reference", (store, str(k)), once=True)
    add_errors(rows, last, fresh=fresh)
    ratios, goals = limits.quiet(rows)
    floor, ours = floor_seconds(rows["bare_products"], rows["bare_read"], reads=passes), rows["fit"]
    if "failed" not in ours and floor:
        ratios |= {
            "seconds of fit": ours["seconds"],
            "passes": ours["passes"],
            "fit over floor": ours["seconds"] / floor,
            "peak MiB of fit": ours["peak_mib"],
            "peak over projected": ours["peak_mib"] / ours["projected_mib"],
            "error of fit": ours.get("error", float("nan")),
            "certified error of fit": ours["certified"],
        }
        ratios |= times_of_fit(rows, peers)
    return Outcome(title, rows, floor, ratios, goals | (wanted or {}))


def main() -> None:
    """Compare and print."""
    parser = parser_of(__doc__)
    parser.add_argument("store")
    add_peers(parser, None, ", ".join(PEERS))
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--columns", default="auto", help="of the sketch (default: %(default)s)")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="at which passes stop (default: %(default)s)")
    options = parser.parse_args()
    peers = peers_of(parser, options.peers, PEERS)
    outcome = measure(
        f"approximate PCA of {options.store}, k = {options.components}",
        options.store,
        options.components,
        peers=peers,
        memory=options.memory,
        passes=options.passes,
        columns=options.columns,
        tolerance=options.tolerance,
        repeats=options.repeats,
    )
    report(outcome, options.out)


if __name__ == "__main__":
    main()
