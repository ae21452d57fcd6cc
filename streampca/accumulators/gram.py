"""Gram matrix of all samples in one pass over the features, for exact PCA of wide data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import ClassVar

import numpy as np
from scipy.sparse import csc_array, csr_array, issparse

from streampca.accumulators.base import Accumulator
from streampca.accumulators.centring import (
    WIDE_ROWS,
    add_product_in_float64,
    centre,
    centre_observed,
    keeps_digits,
    lossy_features,
    observed_moments,
    refuse_not_finite,
    require_observed,
    safe_panels,
    squares_of_rows,
    subtract,
    work_dtype,
)
from streampca.block import Block, as_block
from streampca.errors import DataError, MergeError, NotFiniteError
from streampca.linalg.eigen import positive_divisor
from streampca.linalg.scaling import Scale, mark_underflow_of_stored, refuse_underflow, scaling_of, sums_about_zero
from streampca.linalg.tiles import TileGrid, spread
from streampca.storage.state_file import storable
from streampca.system.phases import Phase
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, DType, FloatArray, IntArray, override


@storable
@dataclass(frozen=True)
class GramState:
    """Gram matrix of the accumulated features, with their means and variances."""

    n_samples: int
    """Number of samples; the side of the matrix is the number of samples of positive weight."""
    products: FloatArray
    """Sum over features of the outer products of their (shifted, weighted) values, as flat tiles of ``(n, n)``."""
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
    """The matrix H G H / (W − ddof) of inner products between centred samples, with G in tiles and H = 1 − u uᵀ.

    Samples are multiplied by the square roots √w of their weights, W is the sum of these weights, and u = √w / √W.
    """

    grid: TileGrid
    """Layout of `products`."""
    products: FloatArray
    """G as flat tiles; shares memory with the state, so it must not be changed."""
    centre: FloatArray | None
    """The unit vector u, ``(n_samples,)``, or None if H is not applied."""
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


_PANEL_BYTES = 32 * 2**20 - 2**16
_BAND, _TOGETHER = 4096, 128  # samples and features of a product, for any number of threads
_SAFE_VARIANCES = (1e-12, 1e12)  # between these, products of float32 features keep their digits


@dataclass(frozen=True)
class Gram(Accumulator[GramState, GramOperator]):
    """Gram matrix of the samples from blocks of whole features.

    A block holds features in rows, ``(n_block_features, n_samples)``, each with all samples, so centring and z-scores
    are exact within the block and one pass suffices. Features are shifted by a sampled mean; the projection H G H at
    the end removes the remaining mean, exactly for any shift. Cost: n² d flops, 4 n² to 8 n² bytes.
    """

    center: bool = True
    """Subtract the mean of every feature."""
    scale: Scale = False
    """How features are scaled: by their standard deviation, or by the one computed from their mean."""
    ddof: int = 1
    """Variances are divided by n − ddof."""
    factors: FloatArray | None = None
    """Factor of each feature, ``(n_features,)``, or None."""
    weights: FloatArray | None = None
    """Weight of each sample, ``(n_samples,)``; samples of weight 0 are ignored. None = all 1."""
    impute: bool = False
    """Replace NaN by the mean of the observed values of the feature; otherwise NaN is an error."""
    dtype: str = "float32"
    """Lowest precision of products; features with a longer `work_dtype` are multiplied in that type."""
    tile_size: int = 1024
    """Largest side of a tile; it affects the bits of the result."""
    n_threads: int = field(default=1, compare=False)
    """Number of threads that share the tiles of one update; it does not affect the bits."""
    panel_limits: ClassVar[tuple[int, int]] = (256, 8192)
    """Least and largest number of features that are centred and multiplied together."""

    def panel_features(self, n_samples: int, dtype: DType) -> int:
        """Return the number of features of a panel of `n_samples` samples."""
        low, high = self.panel_limits
        return max(low, min(high, _PANEL_BYTES // max(1, n_samples * dtype.itemsize)))

    def grid(self, n_samples: int) -> TileGrid:
        """Return the tile layout of the matrix for `n_samples` samples."""
        return TileGrid(self.side(n_samples), self.tile_size)

    @cached_property
    def counted(self) -> BoolArray | None:
        """Return whether the weight of each sample is positive, ``(n_samples,)``; None if all are."""
        return None if self.weights is None or self.weights.all() else self.weights > 0

    @cached_property
    def roots(self) -> FloatArray | None:
        """Return the square roots of the positive weights; None if all are 1."""
        return None if self.weights is None else np.sqrt(self.weights[self.weights > 0])

    def side(self, n_samples: int) -> int:
        """Return the number of samples of positive weight among the first `n_samples`."""
        return n_samples if self.counted is None else int(np.count_nonzero(self.counted[:n_samples]))

    def divisor_for(self, n_samples: int) -> float:
        """Return W − ddof; raise `DataError` if it is not positive."""
        weight = float(n_samples) if self.weights is None else float(self.weights[:n_samples].sum())
        return positive_divisor(n_samples, weight, self.ddof)

    def _least_divisor(self, n_samples: int) -> float:
        """Return the divisor of variances; 1 if it would not be positive for samples without weights."""
        return float(max(n_samples - self.ddof, 1)) if self.weights is None else self.divisor_for(n_samples)

    def init(self, n_features: int) -> GramState:
        """Return the empty state; `n_features` is the length of a row of a block, the number of samples."""
        none, empty = np.empty(0, dtype=np.int64), np.empty(0)
        return GramState(n_features, np.zeros(self.grid(n_features).size), none, none, empty, empty)

    def update(self, state: GramState, block: Block | Array) -> GramState:
        """Return `state` with the features in the rows of `block`, ``(n_block_features, n_samples)``, added in place.

        Sparse blocks are in compressed row form. Features that store more than 3 % of their values are made dense.
        """
        block = as_block(block)
        if len(block) == 0 or self.side(block.values.shape[1]) == 0:
            return state
        dtype = np.promote_types(self.dtype, work_dtype(block.values.dtype))
        means, variances = np.empty(len(block)), np.empty(len(block))
        n_missing, step, sparse = 0, self.panel_features(block.values.shape[1], dtype), issparse(block.values)
        if sparse:
            self._add_sparse(state, block, means, variances)
        others = [] if sparse else self._varying(block, means, variances)
        for panel in chain.from_iterable(other.panels(step) for other in others):
            for start, columns, mean, variance, holes in safe_panels(panel, dtype, self._panel_of):
                features = slice(start - block.start, start - block.start + len(mean))
                means[features], variances[features] = mean, variance
                self._add_products(state.products, columns)
                n_missing += holes
        return replace(
            state,
            n_missing=state.n_missing + n_missing,
            starts=np.append(state.starts, block.start),
            lengths=np.append(state.lengths, len(block)),
            means=np.concatenate([state.means, means]),
            variances=np.concatenate([state.variances, variances]),
        )

    def _varying(self, block: Block, means: FloatArray, variances: FloatArray) -> list[Block]:
        """Return the runs of features that are not known to be constant, and write means and variances of the others."""
        others, equal = block.apart()
        if equal is None or not self.center or not (equal.row == equal.row[0]).all():
            return [block]
        for first, last in block.equal:
            means[first:last], variances[first:last] = equal.row[0], 0.0
        return others

    def _panel_of(
        self, panel: Block, dtype: DType, numbers: IntArray | None = None
    ) -> tuple[int, Array, FloatArray, FloatArray, int] | None:
        """Return the start of `panel`, its features in columns, their means and variances, and how many values are missing.

        The columns have the factors of the features and the roots of the weights of the samples. None where `dtype` is float32 and
        would lose digits of their products. `numbers` are the columns of the source for errors, None where they are those of the block.
        """
        with Phase("centring"):
            n_samples = panel.values.shape[1]
            values = self._of_counted(panel.values.T)
            weights = None if self.weights is None else self._of_counted(self.weights[:n_samples])
            columns = borrow("panel", values.shape, dtype)
            missing = self._missing(panel, values) if self.impute else None
            if missing is None:
                centred = centre(values, columns)
                if not centred.finite.all():
                    self._missing(panel, values)  # which raises unless squares overflow
            else:
                centred = centre_observed(values, missing, len(values) - missing.sum(axis=0), columns)
            if dtype == np.float64:
                require_range(centred.finite, panel.start, numbers)
            if not keeps_digits(columns, centred.squares, weights):
                return None
            total, offset, squares = np.full(len(panel), float(len(values))), centred.offset, centred.squares
            if weights is not None or missing is not None:
                total, offset, squares = observed_moments(columns, weights, missing)
            origin = centred.origin
            if weights is not None:
                origin = _about_weighted_mean(values, columns, missing, origin, offset)
                total, offset, squares = observed_moments(columns, weights, missing)
                require_range(~np.isinf(squares), panel.start, numbers)
            means = origin + offset
            variances = np.nan_to_num(np.maximum(squares - total * offset**2, 0)) / self._least_divisor(n_samples)
            if not self.center:
                np.copyto(columns, values)
            if missing is not None:
                np.copyto(columns, (offset if self.center else means).astype(dtype), where=missing)
                columns[:, np.isnan(means)] = 0  # features without observed values, for which `finalize` raises
            if weights is not None:
                columns *= np.sqrt(weights).astype(dtype)[:, None]
            factors = self.factors_of(panel.start, means, variances)
            if factors is not None:
                columns *= factors.astype(dtype)
        return panel.start, columns, means, variances, 0 if missing is None else int(missing.sum())

    def _add_sparse(self, state: GramState, block: Block, means: FloatArray, variances: FloatArray) -> None:
        """Add the features of a sparse block, and write their means and variances."""
        features, gram = csr_array(block.values), self
        if self.weights is not None:
            weights = self.weights[: features.shape[1]]
            gram = replace(self, weights=weights[weights > 0])
            features = features if self.counted is None else features[:, weights > 0]
        n_samples = features.shape[1]
        refuse_values(features, block.start)
        few = few_stored(features, gram.weights)
        if few.any():
            sparse = FewStored.of(features[few], gram.weights)
            means[few], variances[:] = sparse.means, 0.0
            variances[few] = sparse.squares / self._least_divisor(block.values.shape[1])
            factors = self.factors_of(block.start, means, variances)
            samples = sparse.scaled(gram.roots, None if factors is None else factors[few])
            self.grid(block.values.shape[1]).add_sparse_products(state.products, samples, self.n_threads)
        many, dtype = np.flatnonzero(~few), np.promote_types(self.dtype, work_dtype(features.dtype))
        step = self.panel_features(n_samples, dtype)
        for start in range(0, len(many), step):
            chosen = many[start : start + step]
            factors = None if self.factors is None else self.factors[block.start + chosen]
            panel_of = partial(replace(gram, factors=factors)._panel_of, numbers=block.start + chosen)
            for at, columns, mean, variance, _ in safe_panels(Block(features[chosen].toarray()), dtype, panel_of):
                some = chosen[at : at + len(mean)]
                means[some], variances[some] = mean, variance
                self._add_products(state.products, columns)

    def _of_counted(self, samples: Array) -> Array:
        """Return the samples of positive weight; a copy if there are samples of weight 0."""
        return samples if self.counted is None else samples[self.counted[: len(samples)]]

    def centred(self, samples: Array, means: FloatArray, dtype: DType) -> Array:
        """Return the features of samples of positive weight, ``(n_samples, n_some_features)``, minus their rounded `means`.

        Missing values become the remaining mean, so that a mean far from zero costs them no digits; it cancels in products
        with vectors orthogonal to a constant. Without `center` nothing is subtracted, and missing values become the mean.
        The result is scratch memory.
        """
        values = self._of_counted(samples)
        near = means.astype(dtype)
        if values.flags.f_contiguous:  # features stay in their order of memory
            columns = borrow("panel", values.shape[::-1], dtype).T
        else:
            columns = borrow("panel", values.shape, dtype)
        if self.center:
            subtract(values, near, columns)
        else:
            np.copyto(columns, values)
        if self.impute and values.dtype.kind == "f":
            missing = np.isnan(columns)
            if missing.any():
                fill = means
                if self.center:
                    columns[missing] = 0
                    weights = None if self.weights is None else self._of_counted(self.weights[: len(samples)])
                    fill = observed_moments(columns, weights, missing)[1]
                np.copyto(columns, fill.astype(dtype), where=missing)
        return columns

    def factors_of(self, start: int, means: FloatArray, variances: FloatArray) -> FloatArray | None:
        """Return the factors of the features from `start` on, which have these means and variances; None for factors of 1."""
        factors = None
        if self.scale:
            factors = scaling_of(self.scale).weights(variances, means, start)
        if self.factors is not None:
            given = self.factors[start : start + len(variances)]
            factors = given if factors is None else factors * given
        return factors

    def _missing(self, panel: Block, values: Array) -> BoolArray | None:
        """Return the mask of missing `values` of `panel`, None for none; `NotFiniteError` for values that are not allowed."""
        if values.dtype.kind != "f":
            return None
        missing = np.isnan(values)
        bad = np.flatnonzero((np.isinf(values) if self.impute else ~np.isfinite(values)).any(axis=0))
        if len(bad):
            feature = panel.values[bad[0]].copy()
            if self.counted is not None:
                feature[~self.counted[: len(feature)]] = 0
            refuse_not_finite(feature[:, None], 0, panel.start + int(bad[0]), missing=self.impute)
        return missing if missing.any() else None

    def _add_products(self, products: FloatArray, columns: Array) -> None:
        """Add columns columnsᵀ to `products`, tile by tile, and in float64 for samples whose float32 products lose digits."""
        grid = TileGrid(len(columns), self.tile_size)
        lossy = np.zeros(len(columns), dtype=bool)

        @np.errstate(over="ignore", invalid="ignore")  # `finalize` checks that the sums are finite
        def multiply(pair: tuple[int, int]) -> Array:
            i, j = grid.features(pair[0]), grid.features(pair[1])
            product = borrow("product", (i.stop - i.start, j.stop - j.start), columns.dtype)
            return np.matmul(columns[i], columns[j].T, out=product)

        @np.errstate(over="ignore", invalid="ignore")
        def add(pair: tuple[int, int], product: Array | None = None) -> None:
            tile, i, j = grid.tile(products, *pair), grid.features(pair[0]), grid.features(pair[1])
            again = lossy[i], lossy[j]
            if not (again[0].all() or again[1].all()):
                product = multiply(pair) if product is None else product
                product[again[0]], product[:, again[1]] = 0, 0
                for start in range(0, len(tile), 128):
                    tile[start : start + 128] += product[start : start + 128]
            if again[0].any() or again[1].any():
                add_product_in_float64(tile, columns[i].T, columns[j].T, again)

        def add_checked(i: int) -> None:
            product, samples = multiply((i, i)), grid.features(i)
            lossy[samples] = lossy_features(product.diagonal(), squares_of_rows(columns[samples]))
            add((i, i), product)

        if columns.dtype == np.float64:
            spread(add, grid.pairs, self.n_threads)
        else:
            spread(add_checked, range(len(grid.edges) - 1), self.n_threads)
            spread(add, [pair for pair in grid.pairs if pair[0] != pair[1]], self.n_threads)

    def absorb(self, state: GramState, other: GramState) -> GramState:
        """Return the merged state, in the memory of `state`."""
        if state.n_samples != other.n_samples or state.products.shape != other.products.shape:
            raise MergeError(
                f"Gram matrices of {state.n_samples} and {other.n_samples} samples cannot be added: expected the same samples and tile_size"
            )
        np.add(state.products, other.products, out=state.products)
        return GramState(
            state.n_samples,
            state.products,
            np.concatenate([state.starts, other.starts]),
            np.concatenate([state.lengths, other.lengths]),
            np.concatenate([state.means, other.means]),
            np.concatenate([state.variances, other.variances]),
            state.n_missing + other.n_missing,
        )

    def finalize(self, state: GramState) -> GramOperator:
        """Return the matrix whose eigenvectors are the scores; shares memory with `state`.

        Raises
        ------
        DataError
            If a feature was never observed, if the sum of weights is not above `ddof`, or if products of samples overflow float64.
        """
        if not (np.isfinite(state.products.max(initial=0.0)) and np.isfinite(state.products.min(initial=0.0))):
            raise DataError(
                "products of samples overflow float64: expected rows whose squared lengths stay below 1e308; rescale the features first"
            )
        order = np.argsort(state.starts, kind="stable")
        if (np.diff(order) == 1).all():
            means, variances = state.means, state.variances
        else:
            ends = np.cumsum(state.lengths)
            runs = [slice(ends[i] - state.lengths[i], ends[i]) for i in order]
            means = np.concatenate([state.means[run] for run in runs])
            variances = np.concatenate([state.variances[run] for run in runs])
        require_observed(~np.isnan(means))
        squares, weight = variances * self.divisor_for(state.n_samples), self.divisor_for(state.n_samples) + self.ddof
        squares = squares if self.center or self.scale else sums_about_zero(squares, means, weight)
        refuse_underflow(squares, weight, scale=scaling_of(self.scale))
        grid, n = self.grid(state.n_samples), state.n_samples
        roots = np.ones(n) if self.roots is None else self.roots
        unit = roots / np.linalg.norm(roots) if self.center else None
        return GramOperator(
            grid, state.products, unit, self.divisor_for(n), means, variances, self.n_threads, state.n_missing
        )

    def state_bytes(self, n_features: int) -> int:
        """Return the size in bytes of the matrix of `n_features` samples, without the 16 bytes for each feature."""
        return 8 * self.grid(n_features).size

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of updates with blocks of `n_rows` features of `n_features` samples."""
        dtype = np.dtype(np.float32 if itemsize <= 4 else np.float64)
        values = min(n_rows, self.panel_features(n_features, dtype)) * n_features
        panel = values * dtype.itemsize * (1 if self.counted is None else 2) + (3 * values if self.impute else 0)
        side = self.grid(n_features).longest_side
        return panel + self.n_threads * 8 * side * (side + 3 * WIDE_ROWS)


@dataclass(frozen=True, eq=False)
class GramProducts(Gram):
    """Products of the Gram matrix of the samples with a few columns, where the matrix itself does not fit in memory.

    The state is that of `Gram`, with products of shape ``(n, q)`` for q columns. Cost: 4 n d q flops, 8 n q bytes.
    """

    test: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    """The columns, in the type of the products and orthogonal to the roots of the weights if `center`, ``(n_counted, q)``."""
    known: GramOperator | None = field(default=None, repr=False, compare=False)
    """Moments of the features from the first pass, by which later ones centre them; None in the first."""
    panel_limits: ClassVar[tuple[int, int]] = (32, 1024)

    @override
    def init(self, n_features: int) -> GramState:
        none, empty = np.empty(0, dtype=np.int64), np.empty(0)
        return GramState(n_features, np.zeros(self.test.size), none, none, empty, empty)

    def update(self, state: GramState, block: Block | Array) -> GramState:
        """Return `state` with the features in the rows of `block`, ``(n_block_features, n_samples)``, added in place."""
        if self.known is None:
            return super().update(state, block)
        block = as_block(block)
        for panel in block.panels(self.panel_features(block.values.shape[1], work_dtype(block.values.dtype))):
            features = slice(panel.start, panel.start + len(panel))
            means, variances = self.known.mean[features], self.known.variance[features]
            factors = self.factors_of(panel.start, means, variances)
            with Phase("centring"):
                columns = self.centred(panel.values.T, means, self._dtype_of(panel, means, variances, factors))
                if self.roots is not None:
                    columns *= self.roots.astype(columns.dtype)[:, None]
                if factors is not None:
                    columns *= factors.astype(columns.dtype)
            self._add_products(state.products, columns)
        return state

    def _dtype_of(self, panel: Block, means: FloatArray, variances: FloatArray, factors: FloatArray | None) -> DType:
        """Return the type of products of features with these moments: float32 where their squares and factors stay far from its range."""
        dtype = np.promote_types(self.dtype, work_dtype(panel.values.dtype))
        squares = variances if self.center else variances + np.square(means)
        within = (squares == 0) | ((squares > _SAFE_VARIANCES[0]) & (squares < _SAFE_VARIANCES[1]))
        if factors is not None:
            within &= (factors == 0) | ((factors > _SAFE_VARIANCES[0]) & (factors < _SAFE_VARIANCES[1]))
        return dtype if within.all() else np.dtype(np.float64)

    @override
    def _add_products(self, products: FloatArray, columns: Array) -> None:
        """Add columns (columnsᵀ test) to `products`, ``(n_counted, q)`` in one axis."""
        total, test = products.reshape(self.test.shape), self.test.astype(columns.dtype, copy=False)
        projected = borrow("projected", (columns.shape[1], test.shape[1]), columns.dtype)

        @np.errstate(over="ignore", invalid="ignore")  # `finalize` checks that the sums are finite
        def project(start: int) -> None:
            some = slice(start, start + _TOGETHER)
            sums = np.zeros(projected[some].shape)
            for first in range(0, len(test), _BAND):
                band = slice(first, first + _BAND)
                sums += columns[band, some].T @ test[band]
            projected[some] = sums

        @np.errstate(over="ignore", invalid="ignore")
        def add(start: int) -> None:
            band = slice(start, start + _BAND)
            total[band] += np.matmul(columns[band], projected, out=borrow("product", total[band].shape, columns.dtype))

        spread(project, range(0, columns.shape[1], _TOGETHER), self.n_threads)
        spread(add, range(0, len(total), _BAND), self.n_threads)

    def products_of(self, state: GramState) -> tuple[GramOperator, FloatArray]:
        """Return moments of the features, without a matrix, and the products of the matrix with `test`, ``(n_counted, q)``."""
        moments = self.finalize(state) if self.known is None else self.known
        products = state.products.reshape(self.test.shape)
        if not np.isfinite(products).all():
            raise DataError(
                "products of samples overflow float64: expected rows whose squared lengths stay below 1e308; rescale the features first"
            )
        if moments.centre is not None:
            products -= np.outer(moments.centre, moments.centre @ products)
        products /= moments.divisor
        return replace(moments, products=np.empty(0)), products

    def total_of(self, moments: GramOperator) -> float:
        """Return the trace of the matrix: the sum of the variances of the features with their factors, or of their squares about zero."""
        squares = moments.variance
        if not self.center:
            squares = (
                sums_about_zero(squares * moments.divisor, moments.mean, moments.divisor + self.ddof) / moments.divisor
            )
        factors = self.factors_of(0, moments.mean, moments.variance)
        return float(squares.sum() if factors is None else (squares * factors**2).sum())

    @property
    def _n_columns(self) -> int:
        n_columns: int = self.test.shape[1]
        return n_columns

    @override
    def state_bytes(self, n_features: int) -> int:
        return 8 * self.side(n_features) * self._n_columns

    @override
    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        dtype = np.dtype(np.float32 if itemsize <= 4 else np.float64)
        panel = min(n_rows, self.panel_features(n_features, dtype))
        values = panel * n_features * (dtype.itemsize * (1 if self.counted is None else 2) + (3 if self.impute else 0))
        return values + 8 * self._n_columns * (2 * panel + self.n_threads * _BAND)


def _about_weighted_mean(
    values: Array, columns: Array, missing: BoolArray | None, origin: FloatArray, offset: FloatArray
) -> FloatArray:
    """Subtract the weighted mean, ``origin + offset``, from `values` instead of `origin`; return it rounded.

    The plain mean may be many weighted standard deviations from the weighted mean (see `weigh`). `columns` are the result.
    """
    dtype, observed = columns.dtype, True if missing is None else ~missing
    near = np.nan_to_num(np.where(origin == np.rint(origin), np.rint(offset), offset)).astype(dtype)
    if dtype == np.float32:
        moved = (origin + near).astype(dtype)
        np.subtract(values, moved, out=columns, where=observed)
        return np.asarray(moved, dtype=np.float64)
    np.subtract(columns, near, out=columns, where=observed)
    return np.asarray(origin + near)


DENSE_FROM = 0.03
"""Minimum fraction of stored values for which the products of a feature are faster if it is made dense."""
_LARGE = 1e140  # values below it do not overflow float64 when squared and added up


def refuse_values(features: csr_array, start: int) -> None:
    """Raise `NotFiniteError` if `features`, from column `start` of the source on, store NaN or infinity, or overflow."""
    if features.dtype.kind != "f" or features.nnz == 0:
        return
    bad = ~np.isfinite(features.data)
    if bad.any():
        entry = int(np.flatnonzero(bad)[0])
        feature = int(np.searchsorted(features.indptr, entry, "right")) - 1
        refuse_not_finite(features[[feature]].toarray().T, 0, start + feature)
    if float(np.abs(features.data).max()) > _LARGE:
        with np.errstate(over="ignore"):
            squares = np.asarray(features.multiply(features).sum(axis=1))
        require_range(np.isfinite(squares), start)


def require_range(finite: BoolArray, start: int, numbers: IntArray | None = None) -> None:
    """Raise `NotFiniteError` unless squares of all features from `start` on are `finite`; `numbers` are their columns in the source."""
    if not finite.all():
        place = start + int(np.flatnonzero(~finite)[0])
        raise NotFiniteError(
            f"column {place if numbers is None else numbers[place]} overflows float64 when squared: expected magnitudes below 1e150; "
            "rescale this feature first"
        )


def few_stored(features: csr_array, weights: FloatArray | None, most: float = DENSE_FROM) -> BoolArray:
    """Return which of the `features`, ``(n_features, n_samples)``, are multiplied in sparse form.

    They store less than a fraction `most` of their values, in samples with at most half the weight. Sums of squares
    about zero are then at most twice those about the mean, and the mean can be subtracted afterwards without loss of
    digits.
    """
    few: BoolArray = np.diff(features.indptr) < most * features.shape[1]
    if weights is not None:
        stored = csr_array((weights[features.indices], features.indices, features.indptr), shape=features.shape)
        few &= np.asarray(stored.sum(axis=1)) <= weights.sum() / 2
    return few


@dataclass(frozen=True)
class FewStored:
    """Features with few stored values, in float64, and their moments."""

    columns: csc_array
    """The features, ``(n_samples, n_features)``."""
    means: FloatArray
    """Mean of each, ``(n_features,)``."""
    squares: FloatArray
    """Sum of weighted squares of each about its mean, ``(n_features,)``."""

    @classmethod
    def of(cls, features: csr_array, weights: FloatArray | None) -> FewStored:
        """Return the `features`, ``(n_features, n_samples)``, with moments under the `weights` of the samples; may share memory."""
        columns = csc_array(features.astype(np.float64, copy=False).T)
        mark_underflow_of_stored(columns)
        n = columns.shape[0]
        total, each = (float(n), np.ones(n)) if weights is None else (float(weights.sum()), weights)
        means = np.asarray(columns.T @ each) / total
        squares = np.asarray(columns.multiply(columns).T @ each)
        return cls(columns, means, np.maximum(squares - total * means**2, 0.0))

    def scaled(self, roots: FloatArray | None, factors: FloatArray | None) -> csc_array:
        """Return the features times the `roots` of the weights and their `factors`, by samples: ``(n_features, n_samples)``."""
        samples = csc_array(self.columns.T)
        if roots is not None:
            samples.data *= np.repeat(roots, np.diff(samples.indptr))
        if factors is not None:
            samples.data *= factors[samples.indices]
        return samples
