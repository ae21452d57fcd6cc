"""What certificates call proven, over transforms, pilots, passes and rows that round badly, against LAPACK in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from _report import Report, brief, note
from numpy.typing import NDArray

from streampca import PCA
from streampca.random import generator

FloatArray = NDArray[np.float64]

TRANSFORMS = ("gaussian", "count_sketch", "sparse_sign", "grouping")
PILOTS, PASSES = (0, 16, 300), (1, 2, 4)
SHAPES = ((1500, 40), (1500, 120), (60, 90))
KINDS = ("decaying", "few values", "near zero", "far from zero", "repeated", "scales")
N_COMPONENTS = 5
PROVEN = ("lower ends", "upper bounds", "share carried", "counts")


@dataclass(frozen=True)
class Trial:
    """What one certificate came to."""

    transform: str
    """One of `TRANSFORMS`."""
    pilot: int
    """Rows read beforehand."""
    passes: int
    """Readings."""
    kind: str
    """Kind of rows, one of `KINDS`."""
    seed: int
    """Of the rows and of the fit."""
    failed: tuple[str, ...]
    """Names of the proven bounds that did not hold."""
    statistical: bool
    """Whether an interval was left at its upper end."""
    excess: float
    """Largest λ̂ − λ relative to the first eigenvalue: above zero by rounding alone."""
    room: float
    """What the lower ends leave for that."""


def rows_of(kind: str, shape: tuple[int, int], seed: int) -> NDArray[Any]:
    """Return the rows of a trial, float32 unless `seed` is a multiple of three."""
    draw, (n, d) = generator(seed, f"proven {kind}"), shape
    variances = (np.arange(1, d + 1.0) ** -0.5, 1 / np.arange(1, d + 1.0), 0.8 ** np.arange(d))[seed % 3]
    axes = np.linalg.qr(draw.standard_normal((d, d)))[0] if seed % 2 else np.eye(d)
    rows = (draw.standard_normal((n, d)) * np.sqrt(variances)) @ axes
    if kind == "few values":
        rows = np.where(rows > 0.1 * rows.std(), 0.7, 0.1)
    elif kind == "near zero":
        rows += 3.5 * rows.std(axis=0)
    elif kind == "far from zero":
        rows += 1e4
    elif kind == "repeated":
        rows = rows[draw.integers(0, 12, n)]
    elif kind == "scales":
        rows *= 10 ** draw.uniform(-3, 3, d)
    return rows if seed % 3 == 0 else rows.astype(np.float32)


def matrix_of(rows: NDArray[Any], scale: bool, weights: FloatArray | None) -> FloatArray:
    """Return the covariance, of z-scores if `scale`, in float64."""
    w = np.ones(len(rows)) if weights is None else weights
    values = rows.astype(np.float64)
    values -= values[0].copy()
    values -= w @ values / w.sum()
    if scale:
        deviation = np.sqrt(w @ values**2 / (w.sum() - 1))
        values *= np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return np.asarray((values * w[:, None]).T @ values / (w.sum() - 1))


def trial(transform: str, pilot: int, passes: int, seed: int) -> Trial:
    """Return what one certificate comes to; kind, shape, scale and weights follow from the seed."""
    kind, shape = KINDS[seed % len(KINDS)], SHAPES[seed // len(KINDS) % len(SHAPES)]
    rows, draw = rows_of(kind, shape, seed), generator(seed, "proven weights")
    scale = kind == "scales" or seed % 5 == 4
    weights = draw.uniform(0, 3, len(rows)) if seed % 4 == 3 else None
    how: dict[str, Any] = {"pilot": pilot, "max_passes": passes, "tolerance": 0, "sketch_size": 8 + seed % 13}
    pca = PCA(N_COMPONENTS, solver="sketch", sketch=transform, n_hashes=3, scale=scale, random_state=seed, **how)
    pca.fit(rows, sample_weight=weights)
    matrix = matrix_of(rows, scale, weights)
    values = np.linalg.eigvalsh(matrix)[::-1]
    said, exact, own = pca.error_, values[:N_COMPONENTS], len(matrix) * np.finfo(np.float64).eps
    lower, upper = np.array(said["eigenvalue_intervals"]).T
    carried = float(np.einsum("ij,jk,ik->", pca.components_, matrix, pca.components_)) / values.sum()
    counts = {
        share: int(np.argmax(np.cumsum(values) >= (float(share) - own) * values.sum())) + 1
        for share in said["components_for"]
    }
    holds = {
        "lower ends": (lower <= exact + own * values[0]).all(),
        "upper bounds": (exact <= np.array(said["proven_upper_bounds"]) + own * values[0]).all(),
        "share carried": said["captured_variance"] <= carried + own,
        "counts": all(
            least <= counts[share] and (most is None or counts[share] <= most)
            for share, (least, most) in said["components_for"].items()
        ),
    }
    return Trial(
        transform,
        pilot,
        passes,
        kind,
        seed,
        failed=tuple(name for name in PROVEN if not holds[name]),
        statistical=bool((exact > upper + own * values[0]).any()),
        excess=float((pca.explained_variance_ - exact).max() / values[0]),
        room=float((pca.explained_variance_ - lower).max() / values[0]),
    )


def proven(quick: bool) -> Report:
    """Run one or 42 trials of each transform, pilot and number of passes: 36 or 1,512 certificates."""
    trials = []
    for number, (transform, pilot, passes) in enumerate(product(TRANSFORMS, PILOTS, PASSES)):
        trials += [trial(transform, pilot, passes, 1000 * number + i) for i in range(1 if quick else 42)]
        note(f"{transform}, pilot {pilot}, passes {passes}: done")
    report = Report({"trials": [asdict(one) for one in trials]})
    rows = [_line(trials, transform, passes) for transform in TRANSFORMS for passes in PASSES]
    head = [
        "transform",
        "passes",
        "certificates",
        *PROVEN,
        "beyond the statistical end",
        "largest excess",
        "room left for it",
    ]
    report.table(
        f"proven bounds that were violated, {N_COMPONENTS} components, pilots of 0, 16 and 300 rows", head, rows
    )
    return report


def _line(trials: Sequence[Trial], transform: str, passes: int) -> list[str]:
    """Return a line of the table; the excess is the largest, with the room of the same trial."""
    own = [one for one in trials if (one.transform, one.passes) == (transform, passes)]
    worst = max(own, key=lambda one: one.excess)
    failed = [str(sum(name in one.failed for one in own)) for name in PROVEN]
    beyond = str(sum(one.statistical for one in own))
    return [transform, str(passes), str(len(own)), *failed, beyond, brief(worst.excess), brief(worst.room)]
