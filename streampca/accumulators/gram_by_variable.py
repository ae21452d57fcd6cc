"""Gram matrices of the samples, one for each variable, for variables that are scaled by their total variance."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np

from streampca.accumulators.gram import Gram, GramOperator, GramState
from streampca.block import Block, as_block
from streampca.linalg.scaling import feature_weights, reciprocals, root_sums
from streampca.typing import Array, FloatArray

_SLAB_ENTRIES = 1 << 16


@dataclass(frozen=True)
class GramByVariable(Gram):
    """Gram matrix of the samples from whole features, with each variable divided by the square root of its total variance.

    That variance is known when all features of the variable were read, so a state holds a matrix for each variable, and
    `finalize` adds them up. `scale` are the edges of the variables.
    """

    @property
    def edges(self) -> tuple[int, ...]:
        """Return the first feature of each variable, and the number of features."""
        assert isinstance(self.scale, tuple)  # noqa: S101 for the type checker
        return self.scale

    @property
    def n_variables(self) -> int:
        """Return the number of variables, and of matrices in a state."""
        return len(self.edges) - 1

    def init(self, n_features: int) -> GramState:
        """Return the state of no features; `n_features` is the length of a row of a block: the number of samples."""
        state = super().init(n_features)
        return replace(state, products=np.zeros(self.n_variables * self.grid(n_features).size))

    def update(self, state: GramState, block: Block | Array) -> GramState:
        """Return `state` with the features in the rows of `block`, ``(n_block_features, n_samples)``, added in place."""
        block = as_block(block)
        size, products, start, stop = self.grid(state.n_samples).size, state.products, 0, 0
        while start < len(block):
            variable = bisect_right(self.edges, block.start + start) - 1
            stop = min(len(block), self.edges[variable + 1] - block.start)
            state = replace(state, products=products[variable * size : (variable + 1) * size])
            state = super().update(state, block.slice(start, stop))
            start = stop
        return replace(state, products=products)

    def factors_of(self, start: int, means: FloatArray, variances: FloatArray) -> FloatArray | None:
        """Return the factors of the features from `start` on without those of variables; None for factors of 1."""
        factors = super().factors_of(start, means, variances)
        if self.center or (variances > 0).all():
            return factors
        varying = (variances > 0).astype(np.float64)
        return varying if factors is None else factors * varying

    def finalize(self, state: GramState) -> GramOperator:
        """Return the matrix whose eigenvectors are the scores; `state` is not changed."""
        reduced = super().finalize(state)
        factors = reciprocals(root_sums(np.sqrt(reduced.variance), self.edges)) ** 2
        matrices = state.products.reshape(self.n_variables, -1)
        total: FloatArray = matrices[0] * factors[0]
        for start in range(0, len(total), _SLAB_ENTRIES):
            part = slice(start, start + _SLAB_ENTRIES)
            for matrix, factor in zip(matrices[1:], factors[1:], strict=True):
                total[part] += matrix[part] * factor
        return replace(reduced, products=total)

    def for_components(self, means: FloatArray, variances: FloatArray) -> Gram:
        """Return the accumulator with the factors of the second reading, given the means and variances of all features."""
        factors = feature_weights(variances, means, scale=self.scale)
        given = {
            name: getattr(self, name) for name in ("center", "ddof", "weights", "impute", "tile_size", "n_threads")
        }
        return Gram(**given, factors=factors if self.factors is None else factors * self.factors)

    def state_bytes(self, n_features: int) -> int:
        """Return the size of the matrices of `n_features` samples in bytes; 16 bytes for each feature are added to that."""
        return self.n_variables * super().state_bytes(n_features)

    def finalize_bytes(self, n_features: int) -> int:
        """Return the memory in bytes of `finalize`: the sum of the matrices."""
        return super().state_bytes(n_features)
