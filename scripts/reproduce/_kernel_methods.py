"""Ways of kernel PCA, and how far their eigenpairs are from the exact ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from _data import FloatArray
from _report import brief

import streampca as sp
from streampca.kernels import RBF, Kernel, Polynomial, Sigmoid

N_PAIRS = 10
N_HASHES = 5


@dataclass(frozen=True)
class Way:
    """A way of kernel PCA, by name."""

    name: str
    """Its name in tables and pictures."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the estimator."""
    style: str = "-"
    """Line style in pictures."""
    factor: float = 1.0
    """What eigenvalues are multiplied by: other than 1 for scales as published."""
    equal_weights: bool = False
    """Whether every landmark stands for n/q rows, as published, however it was drawn."""

    def fit(self, rows: FloatArray, kernel: Kernel, size: int, seed: int) -> sp.KernelPCA:
        """Return the estimator fitted to `rows` with `size` columns or landmarks."""
        sizes: dict[str, Any] = {"n_landmarks": size, "sketch_size": size, "n_hashes": N_HASHES, "random_state": seed}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the signed form may keep fewer than ten directions
            found = sp.KernelPCA(N_PAIRS, kernel=kernel, **sizes, **self.options).fit(rows)
            if self.equal_weights:
                again = dict(self.options) | {"sampling": found.landmark_indices_}
                found = sp.KernelPCA(N_PAIRS, kernel=kernel, **sizes, **again).fit(rows)
        return found

    def suits(self, kernel: Kernel) -> bool:
        """Return whether the kernel has what this way needs: RPCholesky needs one that is positive semi-definite."""
        return self.options.get("sampling") != "rpcholesky" or bool(kernel.definite)


MAP: dict[str, Any] = {"method": "empirical_map"}
CONVERSION = MAP | {"recovery": "conversion"}
HASHED = CONVERSION | {"sketch": "count_sketch"}


def _landmarks(method: str, sampling: str) -> dict[str, Any]:
    return {"method": method, "sampling": sampling}


WAYS = (
    Way("map, Gaussian, conversion", CONVERSION, "--"),
    Way("map, hashing, conversion", HASHED, "--"),
    Way("map, hashing, conversion, entries 1/l", HASHED, "--", factor=N_HASHES**-0.5),
    Way("map, Gaussian, Nyström on K²", MAP),
    Way("map, hashing, Nyström on K²", MAP | {"sketch": "count_sketch"}),
    Way("extension, uniform", _landmarks("nystrom_extension", "uniform"), ":"),
    Way("extension, diagonal", _landmarks("nystrom_extension", "diagonal"), ":"),
    Way("extension, column norm", _landmarks("nystrom_extension", "column_norm"), ":"),
    Way("features, uniform", _landmarks("nystrom", "uniform"), "-."),
    Way("features, diagonal", _landmarks("nystrom", "diagonal"), "-."),
    Way("features, column norm", _landmarks("nystrom", "column_norm"), "-."),
    Way("features, RPCholesky", _landmarks("nystrom", "rpcholesky"), "-."),
)
"""What the tables of the accuracy page compare."""

TUTORIAL = (
    Way("Approx-KPCA (g)", CONVERSION, "-"),
    Way("Approx-KPCA (f), entries 1/l", HASHED, "-", factor=N_HASHES**-0.5),
    Way("Approx-KPCA (f), entries 1/√l", HASHED, "--"),
    Way("Nyström (r)", _landmarks("nystrom_extension", "uniform"), "-"),
    Way("Nyström (d), n/q", _landmarks("nystrom_extension", "diagonal"), "-", equal_weights=True),
    Way("Nyström (d), weights", _landmarks("nystrom_extension", "diagonal"), "--"),
    Way("Nyström (c), n/q", _landmarks("nystrom_extension", "column_norm"), "-", equal_weights=True),
    Way("Nyström (c), weights", _landmarks("nystrom_extension", "column_norm"), "--"),
    Way("map, Nyström on K²", MAP, ":"),
    Way("landmark features", _landmarks("nystrom", "auto"), ":"),
)
"""The five curves of figures 8 and 9 as they are published, the same with correct scales, and the defaults of this library."""


def kernels_of(divisor: int) -> dict[str, Kernel]:
    """Return the kernels of the tutorial, with the polynomial (x·y / divisor)⁵.

    The tutorial's public code divides by nothing. Only the sum depends on it: with 1 the polynomial is all that is left of it, with
    the number of features its three terms have about the same size.
    """
    tanh, radial, quintic = Sigmoid(1e-4, 0.0), RBF(1e-4), Polynomial(5, 1 / divisor, 0.0)
    return {"tanh 1e-4": tanh, "RBF 1e-4": radial, "polynomial 5": quintic, "sum": tanh + radial + quintic}


def compared(found: Any, truth: Any, factor: float = 1.0) -> dict[str, Any]:
    """Return similarity and relative difference of the first ten pairs, each and in the mean; missing pairs count as 0 and 1.

    The similarity is |uᵢᵀvᵢ| of unit eigenvectors of the kernel matrix (Marukatat 2023, eq. 66). Eigenvalues are multiplied by
    `factor`.
    """
    k = min(N_PAIRS, len(found.eigenvalues_), int(np.count_nonzero(found.eigenvalues_ > 0)))
    similarities, differences = np.zeros(N_PAIRS), np.ones(N_PAIRS)
    similarities[:k] = sp.metrics.similarities(found.eigenvectors_[:, :k].T, truth.eigenvectors_[:, :k].T)
    differences[:k] = sp.metrics.relative_differences(truth.eigenvalues_[:k], factor * found.eigenvalues_[:k])
    return {
        "similarity": float(similarities.mean()),
        "difference": float(differences.mean()),
        "similarities": similarities.tolist(),
        "differences": differences.tolist(),
    }


Runs = dict[int, list[dict[str, Any]]]
"""What was measured, for every size and seed."""


def measured(
    rows: FloatArray, kernel: Kernel, ways: Iterable[Way], sizes: Iterable[int], seeds: range
) -> dict[str, Runs]:
    """Return what every way that suits the kernel gives for every size and seed, against the exact answer."""
    truth = sp.KernelPCA(N_PAIRS, kernel=kernel, method="exact").fit(rows)
    return {
        way.name: {
            size: [compared(way.fit(rows, kernel, size, seed), truth, way.factor) for seed in seeds] for size in sizes
        }
        for way in ways
        if way.suits(kernel)
    }


def mean(runs: list[dict[str, Any]], name: str) -> Any:
    """Return the mean of a figure, or of a list of figures, over runs."""
    values = np.mean([run[name] for run in runs], axis=0)
    return values if np.ndim(values) else float(values)


def cell(runs: list[dict[str, Any]]) -> str:
    """Return similarity and relative difference as they stand in a table."""
    return f"{mean(runs, 'similarity'):.4f} / {brief(mean(runs, 'difference'))}"
