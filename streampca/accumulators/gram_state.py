"""The state of a Gram matrix of samples, and the matrix of inner products between centred samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.linalg.tiles import TileGrid
from streampca.storage.state_file import storable
from streampca.typing import FloatArray, IntArray


@storable
@dataclass(frozen=True)
class GramState:
    """Gram matrix of the accumulated features, with their means and variances."""

    n_samples: int
    """Number of samples; those of positive weight are the side of the matrix."""
    products: FloatArray
    """Sum over features of the outer products of their (shifted, weighted) values, flat tiles of ``(n, n)``."""
    starts: IntArray
    """First feature of each accumulated run of features."""
    lengths: IntArray
    """Number of features of each run."""
    means: FloatArray
    """Mean of each feature in the order of the runs, ``(n_accumulated,)``."""
    variances: FloatArray
    """Variance of each feature (divisor n − ddof) in the order of the runs, ``(n_accumulated,)``."""
    n_missing: int = 0
    """Number of values that are missing (NaN) in samples of positive weight."""

    @property
    def n_features(self) -> int:
        """Return the length of a row."""
        return self.n_samples


@dataclass(frozen=True)
class GramOperator:
    """The matrix H G H / (W − ddof) of inner products between centred samples; G as tiles, H = 1 − u uᵀ.

    Samples are multiplied by the square roots √w of their weights, W is the sum of these weights, and u = √w / √W.
    """

    grid: TileGrid
    """Layout of `products`."""
    products: FloatArray
    """G as flat tiles; shares memory with the state, so it must not be changed."""
    centre: FloatArray | None
    """The unit vector u, ``(n_samples,)``, or None where H is not applied."""
    divisor: float
    """W − ddof."""
    mean: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    variance: FloatArray
    """Variance of each feature about its mean, ``(n_features,)``."""
    n_threads: int
    """Threads for products with the matrix."""
    n_missing: int = 0
    """Number of values that were missing."""

    @property
    def n_samples(self) -> int:
        """Return the number of samples of positive weight."""
        return self.grid.n_features

    @property
    def side(self) -> int:
        """Return the side of the matrix: the number of samples."""
        return self.grid.n_features

    @property
    def rank_limit(self) -> int:
        """Return the largest possible number of components."""
        return min(self.side, len(self.mean))

    def _on_centre(self, centre: FloatArray) -> FloatArray:
        return self.grid.multiply(self.products, centre[:, None], self.n_threads)[:, 0]

    @property
    def diagonal(self) -> FloatArray:
        """Return the diagonal of the matrix, ``(n_samples,)``."""
        diagonal = self.grid.diagonal(self.products)
        if self.centre is not None:
            image = self._on_centre(self.centre)
            diagonal = diagonal - 2 * self.centre * image + (self.centre @ image) * self.centre**2
        return diagonal / self.divisor

    def multiply(self, vectors: FloatArray) -> FloatArray:
        """Return the matrix times `vectors`, ``(n_samples, n_vectors)``."""
        if self.centre is not None:
            vectors = vectors - np.outer(self.centre, self.centre @ vectors)
        product = self.grid.multiply(self.products, vectors, self.n_threads)
        if self.centre is not None:
            product -= np.outer(self.centre, self.centre @ product)
        product /= self.divisor
        return product

    def dense(self) -> FloatArray:
        """Return the matrix as a new array, ``(n_samples, n_samples)``."""
        matrix = self.grid.dense(self.products)
        if np.shares_memory(matrix, self.products):
            matrix = matrix.copy()
        if self.centre is not None:
            u, image = self.centre, self._on_centre(self.centre)
            image -= (u @ image / 2) * u
            for start in range(0, len(matrix), 256):  # in bands, because an outer product is as large as the matrix
                band = slice(start, start + 256)
                matrix[band] -= np.outer(u[band], image) + np.outer(image[band], u)
        matrix /= self.divisor
        return matrix
