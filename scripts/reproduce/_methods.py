"""What is compared: transforms, ways of fitting, and the figures by which an answer is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import streampca as sp
from streampca.accumulators import IncrementalSVD
from streampca.random import generator
from streampca.transforms import CountSketch, GaussianProjection, SparseSign, Transform

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Method:
    """A transform by name."""

    name: str
    """Its name in tables and pictures."""
    make: Callable[[int, int, int], Transform]
    """From (n_features, size, seed) to the transform."""
    factor: float = 1.0
    """What its result is multiplied by: other than 1 for scales as published."""
    style: str = "-"
    """Line style in pictures."""


METHODS = (
    Method("Gaussian", GaussianProjection),
    Method("hashing, l = 1", lambda d, q, seed: CountSketch(d, q, 1, seed)),
    Method("hashing, l = 4", lambda d, q, seed: CountSketch(d, q, 4, seed)),
    Method("hashing, l = 5", lambda d, q, seed: CountSketch(d, q, 5, seed)),
    Method("sparse sign, 8 entries", lambda d, q, seed: SparseSign(d, q, 8, seed)),
    Method("hashing, l = 4, entries 1/l", lambda d, q, seed: CountSketch(d, q, 4, seed), 4**-0.5, "--"),
    Method("hashing, l = 5, entries 1/l", lambda d, q, seed: CountSketch(d, q, 5, seed), 5**-0.5, "--"),
)


@dataclass(frozen=True)
class Fitting:
    """A way of fitting `streampca.PCA`, by name."""

    name: str
    """Its name in tables and pictures."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the estimator."""

    def fit(self, rows: NDArray[Any], k: int, size: int, seed: int, **more: Any) -> sp.PCA:
        """Return the estimator fitted to `rows`, k components from `size` columns; `more` are further parameters."""
        options = dict(self.options) | more
        return sp.PCA(k, sketch_size=size, random_state=seed, **options).fit(rows)


def passes(n: int) -> dict[str, Any]:
    """Return parameters for exactly n readings."""
    return {"max_passes": n, "tolerance": 0.0}


GAUSSIAN: dict[str, Any] = {"solver": "sketch", "sketch": "gaussian", "pilot": 0}
CONVERSION = Fitting("conversion, Gaussian", GAUSSIAN | {"recovery": "conversion"})
NYSTROM = Fitting("Nyström, Gaussian", GAUSSIAN)
NYSTROM_2 = Fitting("Nyström, Gaussian, 2 passes", GAUSSIAN | passes(2))
NYSTROM_3 = Fitting("Nyström, Gaussian, 3 passes", GAUSSIAN | passes(3))
PILOT = Fitting("Nyström, pilot", {"solver": "sketch"})
PILOT_2 = Fitting("Nyström, pilot, 2 passes", {"solver": "sketch"} | passes(2))
ADAPTIVE = Fitting("adaptive", {"solver": "adaptive"})
ADAPTIVE_2 = Fitting("adaptive, 2 passes", {"solver": "adaptive"} | passes(2))
ADAPTIVE_3 = Fitting("adaptive, 3 passes", {"solver": "adaptive"} | passes(3))


def exact_fit(rows: NDArray[Any], k: int, **more: Any) -> sp.PCA:
    """Return the exact answer with k components, by whichever of the two matrices is the smaller."""
    solver = "gram" if 2 * rows.shape[0] <= rows.shape[1] else "covariance"
    return sp.PCA(k, solver=solver, **more).fit(rows)


def incremental(
    rows: NDArray[Any], rank: int, rows_per_update: int, n_blocks: int, seed: int, *, center: bool = True
) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues (divisor n − 1, or n about zero) and axes, in rows, of incremental updates of a chosen size.

    The blocks come in a random order. `streampca.PCA` puts 32 MiB or more into an update, which may be all of a small
    table; long rows get few rows into each, as they do here.
    """
    adaptive = IncrementalSVD(rank, rows_per_update, center=center, seed=seed)
    state = adaptive.init(rows.shape[1])
    for block in generator(seed, "order of blocks").permutation(n_blocks):
        state = adaptive.update(state, rows[len(rows) * block // n_blocks : len(rows) * (block + 1) // n_blocks])
    found = adaptive.finalize(state)
    return found.values / (found.n_samples - int(center)), found.vectors.T


def judged(exact: sp.PCA, found: sp.PCA, k: int) -> dict[str, Any]:
    """Return how far `found` is from `exact` in the first k axes, and what its certificate says of them."""
    values = exact.explained_variance_[:k]
    figures = compared(exact, found.explained_variance_[:k], found.components_[:k])
    lower, upper = np.array(found.error_["eigenvalue_intervals"][:k]).T
    room = 1e-12 * values[0]
    width = found.error_["largest_relative_width"]
    return figures | {
        "width": np.inf if width is None else width,
        "covered": bool((lower <= values + room).all() and (values <= upper + room).all()),
        "readings": found.n_passes_,
    }


def compared(exact: sp.PCA, values: FloatArray, axes: FloatArray) -> dict[str, Any]:
    """Return the similarity of `axes`, ``(k, d)``, to the first of `exact`, and the relative difference of `values`."""
    return {
        "similarity": sp.metrics.similarity(exact.components_[: len(axes)], axes),
        "difference": sp.metrics.relative_difference(exact.explained_variance_[: len(values)], values),
    }


def median(runs: Sequence[Mapping[str, Any]], name: str) -> float:
    """Return the median of a figure over runs."""
    return float(np.median([run[name] for run in runs]))


def cell(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the medians of similarity and relative difference over `runs` as they stand in a table."""
    return f"{median(runs, 'similarity'):.4f} / {median(runs, 'difference'):.0e}"
