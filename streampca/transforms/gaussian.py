"""Gaussian projection: a dense matrix of independent normal numbers, drawn by runs of features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.random import generator
from streampca.transforms.base import bounds, check_fields, key_of, multiply
from streampca.typing import Array, FloatArray, Rows

# Features per random generator; a change would change Ω.
_RUN_FEATURES = 64
_SLAB_BYTES = 16 * 2**20
_SLAB_RUNS = 32
_PANEL_ROWS = 1024


@dataclass(frozen=True)
class GaussianProjection:
    """Ω with independent entries N(0, 1 / size), so that E⟨xΩ, yΩ⟩ = ⟨x, y⟩.

    The variance of ⟨xΩ, yΩ⟩ is (‖x‖² ‖y‖² + ⟨x, y⟩²) / size for any x and y, so no data are unfavourable.
    Features are drawn in fixed runs of 64, each with a separate generator. A product with n rows takes 2 n d q flops, and
    the numbers of Ω are drawn again in every call of `transform`: use many rows.

    Raises
    ------
    ParameterError
        If a parameter is not a whole number, or a count is less than 1.

    References
    ----------
    Johnson & Lindenstrauss (1984), Extensions of Lipschitz mappings into a Hilbert space; Dasgupta (2000), Experiments
    with random projection.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> transform = sp.transforms.GaussianProjection(n_features=1000, size=100, seed=0)
    >>> transform.transform(np.ones((5, 1000))).shape
    (5, 100)
    """

    n_features: int
    """Number of features, d."""
    size: int
    """Number of columns, q."""
    seed: int = 0
    """Seed of all runs."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def key(self) -> str:
        """Return the hash that identifies Ω."""
        return key_of(self, self.seed)

    def matrix(self, start: int = 0, stop: int | None = None) -> FloatArray:
        """Return the rows of Ω of features `start` to `stop`, shape ``(stop - start, size)``.

        Takes 12 to 20 ns for a number. `ParameterError` unless 0 ≤ start ≤ stop ≤ n_features.
        """
        start, stop = bounds(self.n_features, start, stop)
        rows, scale = np.empty((stop - start, self.size)), 1.0 / np.sqrt(self.size)
        for run in range(start // _RUN_FEATURES, -(-stop // _RUN_FEATURES)):
            first = run * _RUN_FEATURES
            low, high = max(start, first), min(stop, first + _RUN_FEATURES)
            if low >= high:
                continue
            draws = generator(self.seed, "gaussian projection", run)
            if low > first:
                draws.standard_normal((low - first, self.size))
            run_rows = rows[low - start : high - start]
            draws.standard_normal(out=run_rows)
            run_rows *= scale
        return rows

    def transform(self, block: Rows) -> Array:
        """Return block @ Ω, float32 for float16 and float32 rows, else float64, shape ``(n_rows, size)``.

        Parameters
        ----------
        block : array or scipy sparse, shape (n_rows, n_features)
            Rows of any real type. Slabs of Ω of at most 16 MiB are drawn and discarded in every call, which takes about
            as long as the products with 300 rows.

        Raises
        ------
        ParameterError
            If the block has another number of columns, or is not of real numbers.
        """
        runs = min(max(_SLAB_BYTES // (8 * self.size * _RUN_FEATURES), 1), _SLAB_RUNS)
        return multiply(block, self.n_features, self.size, self.matrix, runs * _RUN_FEATURES, _PANEL_ROWS)
