"""The rows that are measured on: digits, patches of photographs, and matrices with chosen spectra."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

import streampca as sp
from streampca.random import generator

FloatArray = NDArray[np.float64]

N_ROWS = 500
SIDE = 32
PHOTOGRAPHS = ("china.jpg", "flower.jpg")


@cache
def digits(n_rows: int = N_ROWS) -> FloatArray:
    """Return the first of 1,797 digits, ``(n_rows, 64)``."""
    return np.asarray(sp.sources.open_source("builtin:digits").read(0, n_rows)[0], dtype=np.float64)


@cache
def patches(n_rows: int = N_ROWS) -> FloatArray:
    """Return patches from random places of both photographs in turn, ``(n_rows, 3072)``."""
    from sklearn.datasets import load_sample_image

    photographs = [load_sample_image(name) for name in PHOTOGRAPHS]
    draws = generator(0, "places of patches")
    rows = np.empty((n_rows, SIDE * SIDE * 3))
    for index in range(n_rows):
        photograph = photographs[index % len(photographs)]
        down, right = (int(draws.integers(0, side - SIDE + 1)) for side in photograph.shape[:2])
        rows[index] = photograph[down : down + SIDE, right : right + SIDE].ravel()
    return rows


DATA: dict[str, Callable[[], FloatArray]] = {"digits": digits, "patches": patches}


def z_scores(rows: FloatArray) -> FloatArray:
    """Return centred rows over their deviations (divisor n − 1), 0 in features that never vary."""
    centred = rows - rows.mean(axis=0)
    deviation = centred.std(axis=0, ddof=1)
    return np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 0)


def rotation(d: int, seed: int, purpose: str) -> FloatArray:
    """Return a random orthogonal matrix."""
    return np.asarray(np.linalg.qr(generator(seed, purpose).standard_normal((d, d)))[0])


def with_singular_values(values: FloatArray, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return a square matrix with these singular values between random rotations, and its right vectors in rows."""
    left, right = (rotation(len(values), seed, f"{side} singular vectors") for side in ("left", "right"))
    return (left * values) @ right.T, right.T


def drifting_rows(n: int, values: FloatArray, n_segments: int, seed: int) -> FloatArray:
    """Return normal rows with these variances along random axes, times log-normal factors in each of the segments.

    The factors have a median of 1 and differ between axes and segments; with one segment there are none.
    """
    d = len(values)
    axes, draws = rotation(d, seed, "axes"), generator(seed, "rows")
    rows = np.empty((n, d))
    for segment in range(n_segments):
        part = slice(n * segment // n_segments, n * (segment + 1) // n_segments)
        factors = np.exp(draws.standard_normal(d)) if n_segments > 1 else np.ones(d)
        drawn = draws.standard_normal((part.stop - part.start, d)) * np.sqrt(values * factors)
        rows[part] = drawn @ axes.T
    return rows
