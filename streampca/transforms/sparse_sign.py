"""Sparse sign matrix: each feature goes to a few different columns, each with a random sign."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from streampca.errors import ParameterError
from streampca.random import hashes
from streampca.transforms.base import SparseTransform, bounds, buckets, check_fields, compressed, key_of


@dataclass(frozen=True)
class SparseSign(SparseTransform):
    """Ω with entries ± 1/√n_nonzeros in n_nonzeros different columns of each row, so that E⟨xΩ, yΩ⟩ = ⟨x, y⟩.

    The columns of a feature are a uniform random subset (Floyd's algorithm, one xxhash64 of the feature's index for
    each column). The variance of ⟨xΩ, yΩ⟩ is (‖x‖² ‖y‖² + ⟨x, y⟩² − 2 Σᵢ xᵢ² yᵢ²) / size for any n_nonzeros; a larger
    n_nonzeros makes it unlikely that two features share all columns.

    Raises
    ------
    ParameterError
        If a parameter is not a whole number, a count is less than 1, or `n_nonzeros` exceeds `size`.

    References
    ----------
    Kane & Nelson (2014), Sparser Johnson-Lindenstrauss transforms; Tropp, Yurtsever, Udell & Cevher (2019), Streaming
    low-rank matrix approximation with an application to scientific simulation, for 8 entries; Bentley & Floyd (1987), A
    sample of brilliance.

    Examples
    --------
    >>> import streampca as sp
    >>> transform = sp.transforms.SparseSign(n_features=1000, size=100, seed=0)
    >>> transform.matrix(0, 10).shape
    (10, 100)
    """

    n_features: int
    """Number of features, d."""
    size: int
    """Number of columns, q."""
    n_nonzeros: int = 8
    """Number of entries in each row of Ω, ζ."""
    seed: int = 0
    """Seed of all rows."""

    def __post_init__(self) -> None:
        check_fields(self, "n_nonzeros")
        if self.n_nonzeros > self.size:
            raise ParameterError(
                f"n_nonzeros={self.n_nonzeros} entries in size={self.size} columns: expected at most one for each; "
                "raise size or lower n_nonzeros"
            )

    @property
    def key(self) -> str:
        """Return the hash that identifies Ω."""
        return key_of(self, self.n_nonzeros, self.seed)

    def sparse(self, start: int = 0, stop: int | None = None) -> csr_array:
        """Return the rows of Ω of features `start` to `stop` in compressed row form, n_nonzeros entries in each.

        `ParameterError` unless 0 ≤ start ≤ stop ≤ n_features.
        """
        start, stop = bounds(self.n_features, start, stop)
        features = np.arange(start, stop, dtype=np.uint64)
        # Twice the column, plus one for a positive sign, so that columns and signs are sorted together.
        codes = np.empty((self.n_nonzeros, stop - start), dtype=np.int64)
        for index in range(self.n_nonzeros):
            last = self.size - self.n_nonzeros + index
            bits = hashes(features, self.seed, "sparse sign", index)
            drawn = buckets(bits, last + 1)
            taken = ((codes[:index] >> 1) == drawn).any(axis=0)
            codes[index] = 2 * np.where(taken, last, drawn) + (bits & np.uint64(1)).astype(np.int64)
        rows = np.sort(codes.T, axis=1)
        scale = 1.0 / np.sqrt(self.n_nonzeros)
        return compressed(rows >> 1, np.where(rows & 1, scale, -scale), self.size)
