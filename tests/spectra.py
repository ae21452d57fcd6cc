"""Matrices and tables with known spectra, and the oracle: numpy's ``eigh`` of the covariance."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def eigenvalues(name: str, d: int) -> FloatArray:
    """Return `d` eigenvalues, largest first."""
    index = np.arange(d)
    table = {
        "fast": 0.5 ** np.minimum(index, 900),
        "slow": 1.0 / (1.0 + index),
        "linear": np.linspace(2.0, 1.0, d),
        "clusters": np.where(index < 3, 4.0, np.where(index < d // 2, 1.0, 0.25)),
        "near_cluster": np.where(index < 5, 1.0 + 1e-9 * (5 - index), 0.5**index),
        "rank_deficient": np.where(index < max(1, d // 5), 1.0 / (1.0 + index), 0.0),
        "rank_one": np.where(index < 1, 3.0, 0.0),
        "zero": np.zeros(d),
        "identity": np.ones(d),
        "tiny": 1e-200 / (1.0 + index),
        "huge": 1e200 / (1.0 + index),
    }
    return np.asarray(table[name], dtype=np.float64)


SPECTRA = ("fast", "slow", "linear", "clusters", "near_cluster", "rank_deficient", "rank_one", "zero", "identity")


def rotation(d: int, seed: int = 0) -> FloatArray:
    """Return a random orthogonal matrix."""
    return np.asarray(np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0])


def symmetric(values: FloatArray, seed: int = 0) -> FloatArray:
    """Return a symmetric matrix with these eigenvalues."""
    if (values == values[0]).all():
        return np.asarray(np.diag(values))
    axes = rotation(len(values), seed)
    matrix = (axes * values) @ axes.T
    return np.asarray((matrix + matrix.T) / 2)


def rows_with_spectrum(n: int, values: FloatArray, seed: int = 0) -> FloatArray:
    """Return `n` normal rows whose population covariance has these eigenvalues."""
    rng = np.random.default_rng(seed)
    return np.asarray((rng.standard_normal((n, len(values))) * np.sqrt(values)) @ rotation(len(values), seed).T)


def lapack(
    rows: NDArray[Any], *, center: bool = True, scale: bool = False, ddof: int = 1
) -> tuple[FloatArray, FloatArray]:
    """Return all eigenvalues, largest first, and eigenvectors in rows, of the covariance of `rows` in float64."""
    values = rows.astype(np.float64)
    centred = values - values[0]  # exact where the spread is small beside the mean
    centred -= centred.mean(axis=0)
    deviation = np.sqrt((centred**2).sum(axis=0) / (len(rows) - ddof))
    taken = centred if center else values
    if scale:
        taken = taken * np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    found, vectors = np.linalg.eigh(taken.T @ taken / (len(rows) - ddof))
    return np.maximum(found[::-1], 0.0), vectors[:, ::-1].T
