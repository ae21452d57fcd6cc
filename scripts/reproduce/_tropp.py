"""The synthetic matrices of Tropp, Yurtsever, Udell & Cevher (2019), and their three-sketch algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from _data import with_singular_values
from _methods import CONVERSION, NYSTROM, NYSTROM_2, PILOT, FloatArray, incremental
from _report import Report, brief, drawing, note

from streampca.random import generator

RANK = 10
WAYS = (CONVERSION, NYSTROM, PILOT, NYSTROM_2)
SMALL = "adaptive, a tenth of the rows an update"
THREE = "three-sketch, best sizes"
NAMES = (THREE, *(way.name for way in WAYS), SMALL)
CLASSES = (
    *(f"noise {level:g}" for level in (1e-4, 1e-2, 1e-1)),
    *(f"i^-{power:g}" for power in (0.5, 1, 2)),
    *(f"10^-{rate:g}i" for rate in (0.01, 0.1, 0.5)),
)
"""Low rank and noise, polynomial and exponential decay; slow, medium and fast of each."""


def singular_values(name: str, n: int, effective_rank: int, seed: int) -> FloatArray:
    """Return n singular values, the first `effective_rank` of them 1 or about 1; section 7.3.1 of the paper.

    Noise is ξ GGᵀ/n with a real standard normal G, added to a diagonal of ones and zeros.
    """
    tail = np.arange(1.0, n - effective_rank + 1)
    if name.startswith("noise"):
        noise = generator(seed, "noise").standard_normal((n, n))
        matrix = float(name.split()[1]) * (noise @ noise.T) / n
        matrix[np.arange(effective_rank), np.arange(effective_rank)] += 1
        return np.asarray(np.linalg.eigvalsh(matrix)[::-1])
    power = float(name.removesuffix("i").split("^")[1])
    decay = 10.0 ** (power * tail) if name.endswith("i") else (tail + 1) ** power
    return np.concatenate([np.ones(effective_rank), decay])


def three_sketch(matrix: FloatArray, k: int, s: int, seed: int) -> FloatArray:
    """Return the rank-10 approximation by the three-sketch algorithm of the paper, section 4, with sizes k and s.

    X = ΥA, Y = AΩ, Z = ΦAΨ; Q and P orthonormal bases of Y and Xᵀ; A ≈ Q (ΦQ)⁺ Z ((ΨᵀP)⁺)ᵀ Pᵀ, cut at rank 10.
    """
    m, n = matrix.shape
    shapes = {"co-range": (k, m), "range": (n, k), "core left": (s, m), "core right": (n, s)}
    upsilon, omega, phi, psi = (generator(seed, purpose).standard_normal(shape) for purpose, shape in shapes.items())
    left = np.linalg.qr(matrix @ omega)[0]
    right = np.linalg.qr((upsilon @ matrix).T)[0]
    core = np.linalg.lstsq(phi @ left, phi @ matrix @ psi, rcond=None)[0]
    core = np.linalg.lstsq(psi.T @ right, core.T, rcond=None)[0].T
    u, values, v = np.linalg.svd(core)
    return np.asarray((left @ u[:, :RANK] * values[:RANK]) @ (v[:RANK] @ right.T))


def best_three_sketch(matrix: FloatArray, storage: int, seed: int) -> float:
    """Return the smallest ‖A − Â‖_F over sizes k and s that take up to `storage` numbers for each row and column."""
    n = len(matrix)
    most = [k for k in range(RANK + 2, storage) if np.sqrt(2 * n * (storage - k)) >= k + 1]
    tried = sorted({int(k) for k in np.geomspace(most[0], most[-1], 8)})
    sizes = [(k, min(n, int(np.sqrt(2 * n * (storage - k))))) for k in tried]
    return min(float(np.linalg.norm(matrix - three_sketch(matrix, k, s, seed))) for k, s in sizes)


def errors(tail: str, n: int, effective_rank: int, storage: int, seed: int) -> dict[str, float]:
    """Return ‖A − Â‖_F over the best possible, less 1, of every way to spend 2n · `storage` numbers.

    A sketch of q columns keeps nq of them, so q is twice the storage; the columns of the certificate come on top, as
    the error sketch does in the paper. Â is AVVᵀ with ten axes V.
    """
    values = singular_values(tail, n, effective_rank, seed)
    matrix, _axes = with_singular_values(values, seed)
    best = float(np.linalg.norm(values[RANK:]))
    found = {THREE: best_three_sketch(matrix, storage, seed) / best - 1}
    every = {way.name: way.fit(matrix, RANK, 2 * storage, seed, center=False, ddof=0).components_ for way in WAYS}
    every[SMALL] = incremental(matrix, 2 * storage, n // 10, 10, seed, center=False)[1][:RANK]
    for name, axes in every.items():
        found[name] = float(np.linalg.norm(matrix - (matrix @ axes.T) @ axes)) / best - 1
    return found


def tropp(quick: bool, pictures: Path | None) -> Report:
    """Measure the error of a rank-10 approximation of each class, with three effective ranks."""
    n, seeds = (200, range(2)) if quick else (1000, range(5))
    storages, ranks = ((24, 48), (10,)) if quick else ((24, 48, 96), (5, 10, 20))
    names = CLASSES[::4] if quick else CLASSES
    report = Report()
    for effective_rank in ranks:
        lines = []
        for name in names:
            every = storages if effective_rank == RANK else (48,)
            runs = {storage: [errors(name, n, effective_rank, storage, seed) for seed in seeds] for storage in every}
            middles = {
                storage: {way: float(np.median([run[way] for run in found])) for way in found[0]}
                for storage, found in runs.items()
            }
            report.figures[f"R = {effective_rank}, {name}"] = runs
            lines += [_line(name, storage, middles[storage]) for storage in (48,)]
            note(f"R = {effective_rank}, {name}: done")
        title = (
            f"R = {effective_rank}, {n:,} x {n:,}, T / (m + n) = 48 (q = 96): ‖A − Â‖_F over the best of rank {RANK}, "
            f"less 1, medians of {len(seeds)} seeds"
        )
        report.table(title, ["tail", *NAMES], lines)
    if pictures is not None:
        _draw(pictures / "tropp.png", report.figures, storages, names)
    return report


def _line(name: str, storage: int, middles: dict[str, float]) -> list[str]:
    """Return a row of the table; what is below the rounding of norms counts as 0."""
    return [name, *(brief(value) if abs(value) > 1e-14 else "0" for value in middles.values())]


def _draw(path: Path, figures: dict[str, Any], storages: tuple[int, ...], names: tuple[str, ...]) -> None:
    """Draw the error against storage, a panel for each class of decay with R = 10."""
    with drawing(path, len(names), n_rows=-(-len(names) // 3), width=10, height=9 if len(names) > 3 else 3.6) as panels:
        for panel, name in zip(panels, names, strict=True):
            runs = figures[f"R = {RANK}, {name}"]
            for index, way in enumerate(NAMES):
                middles = [max(1e-16, float(np.median([run[way] for run in runs[storage]]))) for storage in storages]
                panel.plot(storages, middles, "--" if way == THREE else "-", marker="o", color=f"C{index}", label=way)
            panel.set(xscale="log", yscale="log", xlabel="T / (m + n)", title=name, ylim=(1e-16, 10))
            panel.set_xticks(storages, [str(storage) for storage in storages], minor=False)
            panel.minorticks_off()
            panel.grid(alpha=0.3)
        for panel in panels[::3]:
            panel.set_ylabel("relative error")
        panels[-1].legend(fontsize=7, loc="center right")
