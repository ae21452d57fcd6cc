"""Fits on a machine with many cores and a graphics card: cores, ceilings, workers, the card, and what others take there. Ten minutes on 16 cores.

Rows are in memory, so that nothing else is measured: A has 400,000 x 1,024 and C 60,000 x 8,192 float32 values. It needs no network: numpy, scipy
and the other dependencies of streampca, and torch with array-api-compat for the card; scikit-learn and cuML are compared where they are.

    .venv/bin/python scripts/bench/device.py --device cuda --out device.json
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from _bench import Contender, Outcome, Row, at_least, at_most, cores, medians, report, timed
from _options import add_same_process, parser_of
from numpy.typing import NDArray

CASES = {"A": (400_000, 1024), "C": (60_000, 8192)}
_LONG_ROWS, _LONG_FEATURES = 10_000_000, 1024  # 41 GB
_BLOCK = 2**16  # rows that are made, and repeated


def rows_of(n: int, d: int) -> NDArray[np.float32]:
    """Return rows with a decaying spectrum and means away from zero, the same for every contender."""
    rng = np.random.default_rng(0)
    some = rng.standard_normal((min(n, _BLOCK), d), dtype="f4") * np.arange(1, d + 1, dtype="f4") ** -0.5 + 3
    rows = np.empty((n, d), dtype="f4")
    for start in range(0, n, len(some)):
        rows[start : start + len(some)] = some[: n - start]
        some += np.float32(1e-3)
    return rows


def fit(n: str, d: str, k: str, device: str, threads: str, memory: str = "") -> Row:
    """Fit rows in memory, after a small fit on the same device."""
    import streampca as sp

    if int(threads):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    rows = rows_of(int(n), int(d))
    sp.PCA(2, device=device).fit(rows[:2000])
    pca = sp.PCA(int(k), solver="covariance", device=device, memory=memory or None)

    def work() -> Row:
        pca.fit(rows)
        plan = pca.plan_
        at_once = plan.leaves_in_flight * plan.threads_per_leaf
        return {
            "first": float(pca.explained_variance_[0]),
            "projected_mib": plan.projected_bytes / 2**20,
            "at_once": at_once,
        }

    return timed(work)


def stream(n: str, d: str, k: str, memory: str) -> Row:
    """Fit rows that a source copies out of a buffer, more than memory would hold, within a ceiling."""
    from free_source import RepeatedSource

    import streampca as sp

    source = RepeatedSource(rows_of(_BLOCK, int(d)), int(n))
    pca = sp.PCA(int(k), solver="covariance", memory=memory)

    def work() -> Row:
        pca.fit(source)
        return {"at_once": pca.plan_.leaves_in_flight * pca.plan_.threads_per_leaf}

    return timed(work)


def workers(store: str, k: str, n_workers: str) -> Row:
    """Fit a store on a cluster of local processes of one thread each."""
    from dask.distributed import Client, LocalCluster

    import streampca as sp

    options: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": None, "processes": True}
    with LocalCluster(n_workers=int(n_workers), **options) as cluster, Client(cluster):
        sp.PCA(2).fit(store)
        return timed(lambda: sp.PCA(int(k), solver="covariance").fit(store) and None)


def bare(n: str, d: str, device: str, what: str) -> Row:
    """Copy as many page-locked bytes to the card as the rows have, or multiply as many rows there, and nothing else."""
    import torch

    from streampca.system.device import device_of

    place = device_of(device).place
    rows = torch.ones((8192, int(d)), dtype=torch.float32, pin_memory=place.type == "cuda")
    there, wide = rows.to(place), rows.to(place).double()
    total = torch.zeros((int(d), int(d)), dtype=torch.float64, device=place)

    def work() -> None:
        for _ in range(-(-int(n) // 8192)):
            if what == "copying":
                there.copy_(rows, non_blocking=True)
            else:
                total.addmm_(wide.T, wide)
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    work()
    return timed(work)


def peer(n: str, d: str, k: str, device: str, name: str) -> Row:
    """Fit by another library on the card; the copy of the rows to it is in the time."""
    import torch

    from streampca.system.device import device_of

    place, rows = device_of(device).place, rows_of(int(n), int(d))

    def work() -> Row:
        if name == "cuml":
            import cuml

            return {"first": float(cuml.PCA(int(k)).fit(rows).explained_variance_[0])}
        there = torch.from_numpy(rows).to(place)
        if name == "torch.pca_lowrank":
            values = torch.pca_lowrank(there, int(k), niter=2)[1]
            return {"first": float(values[0]) ** 2 / (int(n) - 1)}
        os.environ["SCIPY_ARRAY_API"] = "1"  # before scipy is imported, which the device does not do
        import sklearn
        from sklearn.decomposition import PCA

        with sklearn.config_context(array_api_dispatch=True):
            return {"first": float(PCA(int(k), svd_solver="covariance_eigh").fit(there).explained_variance_[0])}

    return timed(work)


def measure(device: str, k: int, scale: float, *, repeats: int = 3, fresh: bool = True) -> Outcome:
    """Run the contenders in turns; `scale` shortens every case."""
    cases = {name: (str(max(256, int(n * scale))), str(max(64, int(d * scale**0.5)))) for name, (n, d) in CASES.items()}
    found, of_torch, components = cores(), device.partition(":")[0] in ("cuda", "torch"), str(k)
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64, 128) if count <= found]
    entries = [
        Contender(f"{name} on {count}", "device", "fit", (*cases[name], components, "cpu", str(count)))
        for name in cases
        for count in counts
    ]
    long = (str(int(_LONG_ROWS * scale)), str(_LONG_FEATURES), components)
    entries += [
        Contender(f"41 GB within {memory}", "device", "stream", (*long, memory), once=True)
        for memory in ("1GiB", "2GiB")
    ]
    for name, case in cases.items() if device != "cpu" else ():
        entries.append(Contender(f"{name} on the card", "device", "fit", (*case, components, device, "0")))
        for what in ("copying", "products") if of_torch else ():
            entries.append(Contender(f"{what} of {name}", "device", "bare", (*case, device, what)))
        for other in ("scikit-learn", "torch.pca_lowrank", "cuml") if of_torch else ():
            entries.append(Contender(f"{other}, {name}", "device", "peer", (*case, components, device, other)))
    with TemporaryDirectory() as place:
        store = Path(place) / "a.zarr"
        write(store, rows_of(*map(int, cases["A"])))
        entries += [
            Contender(f"A by {count} workers", "device", "workers", (str(store), components, str(count)))
            for count in (4, 16)
            if count <= found
        ]
        rows = medians(entries, repeats=repeats, fresh=fresh)
    ratios: dict[str, float] = {}
    goals = {}

    def compare(
        name: str, above: str, below: str, goal: tuple[float, float] | None = None, factor: float = 1.0
    ) -> None:
        one, other = rows.get(above, {}), rows.get(below, {})
        if "seconds" in one and "seconds" in other:
            ratios[name] = one["seconds"] / (factor * other["seconds"])
            if goal is not None:
                goals[name] = goal

    compare("A on 1 core over 8 times that on 8", "A on 1", "A on 8", at_least(0.7), 8)
    compare("A by 16 workers over 4", "A by 16 workers", "A by 4 workers", at_most(1.0))
    for name in CASES:
        for limit in ("copying", "products"):
            compare(f"{name} on the card over {limit}", f"{name} on the card", f"{limit} of {name}")
        compare(f"{name} on the card over all cores", f"{name} on the card", f"{name} on {counts[-1]}")
    for name, most in (("A on the card", 0.25), ("C on the card", 1.0), ("41 GB within 2GiB", 20.0)):
        if "seconds" in rows.get(name, {}):
            ratios[f"seconds, {name}"], goals[f"seconds, {name}"] = rows[name]["seconds"], at_most(most)
    return Outcome(f"{found} cores, device {device}, k = {k}, scale {scale:g}", rows, None, ratios, goals)


def write(path: Path, rows: NDArray[np.float32]) -> None:
    """Write rows to a store without compression."""
    import zarr

    chunks = (min(8000, len(rows)), rows.shape[1])
    zarr.create_array(path, shape=rows.shape, chunks=chunks, dtype="f4", compressors=None)[:] = rows


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cpu", help="cuda, or torch:cpu to try the script (default: none)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows (default: all)")
    add_same_process(parser)
    given = parser.parse_args()
    outcome = measure(given.device, given.components, given.scale, repeats=given.repeats, fresh=not given.same_process)
    report(outcome, given.out)


if __name__ == "__main__":
    main()
