"""Mean and scatter of the kernel values between rows and landmarks: the state of streamed kernel PCA."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.accumulators.centring import Centred, centre_columns, refuse_not_finite, weighed_panel
from streampca.accumulators.covariance import Covariance, CovarianceState, panel_rows
from streampca.block import Block, EqualRows, as_block
from streampca.errors import NotFiniteError
from streampca.kernels.base import Kernel, Prepared, dense
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray, override

_SLAB_BYTES, _SLAB_ROWS = 1 << 20, 1024  # kernel values that fit in the cache between product and sum


@storable
@dataclass(frozen=True)
class KernelFeaturesState:
    """Covariance of the kernel values of the accumulated rows, and the trace of their kernel matrix."""

    values: CovarianceState
    """Number of rows, mean and scatter of their kernel values with the landmarks."""
    trace: float
    """Σ κ(x, x) over the rows."""

    @property
    def n_features(self) -> int:
        """Return the length of a row."""
        return self.values.n_features


@dataclass(frozen=True)
class KernelSums:
    """Sums over all rows x of their features f(x): kernel values with the landmarks, or linear functions of them."""

    n_samples: int
    """Number of rows."""
    mean: FloatArray
    """f̄, the mean of f(x), ``(r,)``."""
    scatter: FloatArray
    """Σ (f(x) − f̄)(f(x) − f̄)ᵀ, ``(r, r)``."""
    trace: float
    """Σ κ(x, x)."""


@dataclass(frozen=True, eq=False)
class KernelFeatures(Accumulator[KernelFeaturesState, KernelSums]):
    """Accumulate the covariance of kernel values k(x) = (κ(x, z₁), …, κ(x, z_m)), or of Aᵀ(k(x) − c), and Σ κ(x, x).

    Kernel values are computed while the rows are in the cache, shifted by c, the mean of the landmarks' kernel values,
    and added to the scatter in panels as in `Covariance`: products in the type of the rows, sums in float64. Panels of
    float32 are first centred by their own mean. The features φ with κ̂(x, y) = φ(x)·φ(y) (Williams & Seeger 2001) are
    linear in k(x), φ(x) = Aᵀ k(x), so their covariance can be computed at the end as AᵀΣA, for m² + 2 m d flops and m
    kernel values per row. A amplifies rounding: with float32 products, an error of 6e-8 of the largest entries of Σ
    becomes 6e-8 w₁/w_r, where w₁ and w_r are the largest and the smallest retained eigenvalue of K_mm. If that matters,
    `matrix` is A, each panel is multiplied by it (2 m r flops per row), and the error in φ is 6e-8 √(w₁/w_r), which
    averages out.

    References
    ----------
    Williams & Seeger (2001), Using the Nyström method to speed up kernel machines.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 4))
    >>> kernel, landmarks = sp.kernels.RBF(gamma=0.1), rows[:10]
    >>> origin = kernel(landmarks, landmarks).mean(axis=0)
    >>> features = sp.accumulators.KernelFeatures(kernel.prepare(landmarks), kernel, origin)
    >>> sums = features.finalize(features.update(features.init(4), rows))
    >>> sums.scatter.shape, bool(np.allclose(sums.mean, kernel(rows, landmarks).mean(axis=0)))
    ((10, 10), True)
    """

    prepared: Prepared
    """The kernel prepared for the landmarks."""
    kernel: Kernel
    """The kernel itself, for κ(x, x)."""
    origin: Array
    """c, near the mean of k(x), in the type of kernel values, ``(m,)``; it affects the bits of the result."""
    matrix: Array | None = None
    """A in the same type, ``(m, r)``, or None for the kernel values k(x) themselves."""
    n_threads: int = 1
    """Number of threads that share the tiles of one update; it does not affect the bits."""
    products: Covariance = field(default_factory=lambda: Covariance(ddof=0))
    """Accumulator of the kernel values, in one thread."""

    @property
    def dtype(self) -> DType:
        """Return the type of kernel values, which is the type of landmarks and rows."""
        return self.origin.dtype

    @property
    def n_columns(self) -> int:
        """Return r, the length of f(x)."""
        return len(self.origin) if self.matrix is None else int(self.matrix.shape[1])

    @property
    def covariance(self) -> Covariance:
        """Return the accumulator of the kernel values."""
        return self.products.with_threads(self.n_threads)

    @override
    def init(self, n_features: int) -> KernelFeaturesState:
        return KernelFeaturesState(self.covariance.init(self.n_columns), 0.0)

    def update(self, state: KernelFeaturesState, block: Block | Array) -> KernelFeaturesState:
        """Return `state` with the rows of `block`, ``(n_rows, n_features)``, added to it in place.

        Raises
        ------
        NotFiniteError
            If rows hold NaN or infinity, or their kernel values overflow.
        """
        block = as_block(block)
        others, equal = block.apart()
        for panel in chain.from_iterable(other.panels(feature_rows(self.n_columns, self.dtype)) for other in others):
            state = self._add_panel(state, panel)
        return state if equal is None else self._add_equal(state, equal)

    def _add_equal(self, state: KernelFeaturesState, rows: EqualRows) -> KernelFeaturesState:
        """Add rows that are all equal, with kernel values of one of them and an outer product."""
        row, out = in_panel(Block(rows.row[None]), self.dtype), np.empty((1, self.n_columns), dtype=self.dtype)
        self._fill(row, out)
        trace = float(self.kernel.diagonal(row)[0]) * rows.weight
        if not (np.isfinite(out).all() and np.isfinite(trace)):
            raise NotFiniteError(f"kernel values of the fill value overflow {self.dtype}: rescale the data first")
        equal = replace(rows, row=self._origin)
        return KernelFeaturesState(
            self.covariance.add_equal(state.values, equal, out[0].astype(np.float64)), state.trace + trace
        )

    def _add_panel(self, state: KernelFeaturesState, panel: Block) -> KernelFeaturesState:
        n_rows = len(panel)
        rows = borrow("kernel features", (n_rows, self.n_columns), self.dtype)
        trace = 0.0
        step = max(16, min(_SLAB_ROWS, _SLAB_BYTES // (len(self.origin) * self.dtype.itemsize)))
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, n_rows, step):
                slab = in_panel(panel.slice(start, start + step), self.dtype)
                self._fill(slab, rows[start : start + step])
                trace += float(self.kernel.diagonal(slab).sum())
            centred = self._centred(rows)
        if not (centred.finite.all() and np.isfinite(trace)):
            raise NotFiniteError(
                f"kernel values of rows {panel.start} to {panel.start + n_rows - 1} overflow {self.dtype}: rescale the data first"
            )
        centred = replace(centred, origin=self._origin + centred.origin)
        values = self.covariance.add_panel(state.values, weighed_panel(replace(panel, weights=None), rows, centred))
        return KernelFeaturesState(values, state.trace + trace)

    def _centred(self, rows: Array) -> Centred:
        """Subtract a number near the mean of each column from float32 `rows`, in place; float64 has digits to spare for products about c.

        If most rows are far from all landmarks, their kernel values are nearly 0, and k(x) − c is nearly −c in all of them.
        Float32 products would round each of these squares in the same direction, which does not average out.
        """
        if self.dtype == np.float64:
            mean = np.ones(len(rows)) @ rows / len(rows)
            return Centred(np.zeros(len(mean)), mean, np.zeros(len(mean)))
        return centre_columns(rows, rows, self.covariance.grid(self.n_columns), self.n_threads)

    @property
    def _origin(self) -> FloatArray:
        """Return the number subtracted from f(x) before summation, ``(r,)``."""
        return self.origin.astype(np.float64) if self.matrix is None else np.zeros(self.n_columns)

    def _fill(self, rows: Array, out: Array) -> None:
        """Write k(x) − c, or Aᵀ(k(x) − c), of a slab of rows to `out`."""
        values = out if self.matrix is None else borrow("kernel values", (len(rows), len(self.origin)), self.dtype)
        self.prepared(rows, out=values)
        values -= self.origin
        if self.matrix is not None:
            np.matmul(values, self.matrix, out=out)

    @override
    def absorb(self, state: KernelFeaturesState, other: KernelFeaturesState) -> KernelFeaturesState:
        return KernelFeaturesState(self.covariance.absorb(state.values, other.values), state.trace + other.trace)

    def finalize(self, state: KernelFeaturesState) -> KernelSums:
        """Return the sums as plain arrays."""
        scatter = self.covariance.grid(self.n_columns).dense(state.values.scatter)
        if not np.isfinite(scatter).all():
            raise NotFiniteError(f"products of kernel values overflow {self.dtype}: rescale the data first")
        return KernelSums(state.values.n_samples, state.values.mean, scatter, state.trace)

    @override
    def state_bytes(self, n_features: int) -> int:
        return self.covariance.state_bytes(self.n_columns) + 8

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of updates in one thread: a panel of features, a slab of rows and kernel values."""
        rows = min(n_rows, feature_rows(self.n_columns, self.dtype))
        slab = _SLAB_ROWS * (len(self.origin) + n_features)
        panel_bytes = (rows * self.n_columns + slab) * self.dtype.itemsize
        return panel_bytes + self.covariance.product_scratch_bytes(self.n_columns)


def feature_rows(n_columns: int, dtype: DType) -> int:
    """Return the number of rows in a panel of features: half as many as in a panel of data, because features need scratch memory."""
    return max(512, panel_rows(n_columns, dtype) // 2)


def in_panel(block: Block, dtype: DType) -> Array:
    """Return the rows of `block` as a contiguous dense array of `dtype`.

    Raises
    ------
    NotFiniteError
        If they hold NaN or infinity.
    """
    rows = np.ascontiguousarray(dense(block.values), dtype=dtype)
    if not np.isfinite(rows).all():
        refuse_not_finite(rows, block.start)
    return rows
