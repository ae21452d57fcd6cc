"""The second pass over wide data: components are computed slab by slab, in memory or on disk, then orthonormalised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from scipy.sparse import csr_array, issparse

from streampca.accumulators.centring import work_dtype
from streampca.accumulators.gram import Gram, panel_features
from streampca.accumulators.sparse_gram import few_stored
from streampca.block import Block, dense
from streampca.execution.checkpoint.pass_record import PassRecord, next_pass
from streampca.execution.drive import drive
from streampca.execution.leaf import Task
from streampca.execution.progress import ProgressCallback
from streampca.models.stored_components import Components, StoredComponents
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.random import generator
from streampca.sources.base import ReadCount, Source
from streampca.storage.directories import require_space
from streampca.storage.scratch import Scratch
from streampca.storage.state_file import storable
from streampca.system.process import release_freed_memory
from streampca.system.workspace import borrow, release
from streampca.typing import Array, DaskClient, DType, FloatArray, IntArray

_TILE = 4096
"""Features of a tile of random numbers."""
_SAFE_FACTORS = (1e-30, 1e30)  # between these, products of float32 keep their digits
_ORTHONORMAL = 1e-13
"""Difference of inner products from the identity at which components count as orthonormal to rounding."""


@dataclass(frozen=True)
class ComponentsPart:
    """Components for the features of a leaf, with their summary."""

    start: int
    """Index of the first feature."""
    values: Array | None
    """Components, ``(k, n_features)``; None where they were written to the disk."""
    samples: Array
    """Chosen samples, ``(n_chosen, n_features)``."""
    summary: Summary
    """Sums over the features."""


@storable
@dataclass(frozen=True)
class Summary:
    """Sums over the features of components; updated in place."""

    products: FloatArray
    """Inner products of all pairs of components, ``(k, k)``."""
    largest: FloatArray
    """Largest modulus in each component, ``(k,)``; negative before the first feature."""
    signs: FloatArray
    """Sign of the first entry of that modulus, ``(k,)``."""
    left: FloatArray
    """Inner products of components and centred samples of weight 0, ``(n_left, k)``."""

    @classmethod
    def empty(cls, k: int, n_left: int = 0) -> Summary:
        """Return the summary of no features."""
        return cls(np.zeros((k, k)), np.full(k, -1.0), np.ones(k), np.zeros((n_left, k)))

    def add(self, slab: FloatArray) -> None:
        """Add the features of `slab`, ``(k, n_some)``, which follow those before."""
        np.add(self.products, slab @ slab.T, out=self.products)
        rows, high, low = np.arange(len(slab)), slab.argmax(axis=1), slab.argmin(axis=1)
        top, bottom = slab[rows, high], -slab[rows, low]
        negative = (bottom > top) | ((bottom == top) & (low < high))
        self._update_signs(np.maximum(top, bottom), np.where(negative, -1.0, 1.0))

    def absorb(self, other: Summary) -> None:
        """Add the features of `other`, which follow those before."""
        np.add(self.products, other.products, out=self.products)
        np.add(self.left, other.left, out=self.left)
        self._update_signs(other.largest, other.signs)

    def _update_signs(self, largest: FloatArray, signs: FloatArray) -> None:
        larger = largest > self.largest
        np.copyto(self.signs, signs, where=larger)
        np.copyto(self.largest, largest, where=larger)


@dataclass(frozen=True)
class ComponentsTask(Task[ComponentsPart]):
    """Entries of the components for the features of a leaf: V = Xᵀ U S⁻¹ (Turk & Pentland 1991, eq. 6).

    Components beyond the rank are drawn, addressed by component and feature, and are made orthogonal in the end.
    """

    common: ClassVar[str] = "axes"
    """What is the same for all leaves."""
    source: Source
    """The data by features."""
    gram: Gram
    """How samples and features are weighted, and what missing values are."""
    means: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    variances: FloatArray
    """Variance of each feature, ``(n_features,)``."""
    axes: FloatArray
    """Left singular vectors times roots of weights over singular values, for samples that count, ``(n_counted, rank)``."""
    chosen: IntArray
    """Samples that are copied out for a report."""
    k: int
    """Components."""
    seed: int
    """Seed of those beyond the rank."""
    width: int
    """Features of a slab; no slab lies in two blocks."""
    stored: StoredComponents | None
    """Where components go; None = they are given back."""
    first: int = 0
    """First feature that `means` and `variances` hold."""

    def for_leaf(self, leaf: Leaf) -> ComponentsTask:
        """Return the task with no more than the features of `leaf` need."""
        start, stop = leaf.edges[0], leaf.edges[-1]
        part = slice(start - self.first, stop - self.first)
        source = self.source.slice(start, stop)
        return replace(self, source=source, means=self.means[part], variances=self.variances[part], first=start)

    def init(self, leaf: Leaf) -> ComponentsPart:
        """Return the components of no feature, with memory for those of `leaf`."""
        start, n_features = leaf.edges[0], leaf.edges[-1] - leaf.edges[0]
        components = None if self.stored is not None else np.empty((self.k, n_features), dtype=self.axes.dtype)
        samples = np.empty((len(self.chosen), n_features), dtype=self.source.dtype)
        return ComponentsPart(start, components, samples, Summary.empty(self.k, _n_uncounted(self.gram)))

    def update(self, state: ComponentsPart, block: Block) -> ComponentsPart:
        """Compute the components for the features of `block`."""
        values = block.values.T
        state.samples[:, block.start - state.start : block.start - state.start + len(block)] = dense(
            values[self.chosen]
        )
        for offset in range(0, len(block), self.width):
            first = block.start + offset
            slab = self._slab(values[:, offset : offset + self.width], first, self.axes, state.summary)
            state.summary.add(slab)
            if self.stored is not None:
                self.stored.write(first, slab)
            elif state.values is not None:
                state.values[:, first - state.start : first - state.start + slab.shape[1]] = slab
        return state

    def work_dtype(self) -> DType:
        """Return the type of products: float64 where factors leave the range of float32."""
        dtype = np.promote_types(self.gram.dtype, work_dtype(self.source.dtype))
        factors = self.gram.factors_of(self.first, self.means, self.variances)
        largest = np.abs(self.axes).max(axis=0, initial=0.0)
        sizes = largest if factors is None else np.concatenate([largest, factors])
        low, high = _SAFE_FACTORS
        return dtype if ((sizes == 0) | ((sizes > low) & (sizes < high))).all() else np.dtype(np.float64)

    def _slab(self, values: Array, start: int, axes: Array, summary: Summary) -> FloatArray:
        """Return the components for the features from `start` on, scratch memory; adds to ``summary.left``."""
        rank, counted = axes.shape[1], self.gram.counted
        slab = borrow("slab", (self.k, values.shape[1]), np.float64)
        width = panel_features(values.shape[0], axes.dtype)
        for first in range(0, values.shape[1], width):
            panel, out = values[:, first : first + width], slab[:, first : first + width]
            columns = slice(start + first - self.first, start + first - self.first + panel.shape[1])
            means = self.means[columns]
            product = self._products(panel, columns, axes)
            factors = self.gram.factors_of(start + first, means, self.variances[columns])
            if factors is not None:
                product *= factors.astype(product.dtype)
            out[:rank] = product
            out[rank:] = drawn(self.seed, range(rank, self.k), start + first, panel.shape[1]).astype(axes.dtype)
            if counted is not None:
                others = dense(panel[~counted]).astype(np.float64)
                if self.gram.impute:
                    np.copyto(others, means, where=np.isnan(others))
                if self.gram.center:
                    others -= means
                if factors is not None:
                    others *= factors
                np.add(summary.left, others @ out.T, out=summary.left)
        return slab

    def _products(self, panel: Array, columns: slice, axes: Array) -> Array:
        """Return the products of `axes` and the centred features of `panel`, ``(rank, n_some)``, maybe scratch memory.

        Features with means within a standard deviation of zero, all of whose samples count, are multiplied as they are, and
        their means subtracted afterwards. So are sparse features, in float64, unless they store more than half of their values.
        """
        gram, means = self.gram, self.means[columns]
        if not issparse(panel):
            plain = gram.center and not gram.impute and gram.counted is None and panel.dtype == axes.dtype
            if not plain or not (np.abs(means) <= np.sqrt(self.variances[columns])).all():
                return axes.T @ gram.centred(panel, means, axes.dtype)
            product = axes.T @ panel
            product -= np.outer(axes.sum(axis=0, dtype=np.float64), means).astype(axes.dtype)
            return product
        features = csr_array(panel.T)
        few = few_stored(features, gram.weights, 0.5)
        product = np.empty((axes.shape[1], len(means)))
        sparse = features[few] if gram.counted is None else features[few][:, gram.counted]
        product[:, few] = (sparse.astype(np.float64) @ axes.astype(np.float64)).T
        if gram.center:
            product[:, few] -= np.outer(axes.sum(axis=0, dtype=np.float64), means[few])
        if not few.all():
            centred = gram.centred(features[~few].toarray().T, means[~few], axes.dtype)
            product[:, ~few] = axes.T @ centred
        return product


def _n_uncounted(gram: Gram) -> int:
    return 0 if gram.counted is None else int(np.count_nonzero(~gram.counted))


def drawn(seed: int, rows: range, start: int, n_features: int) -> FloatArray:
    """Return the standard normal numbers that belong to (seed, component, feature), ``(len(rows), n_features)``."""
    numbers = np.empty((len(rows), n_features))
    for i, row in enumerate(rows):
        for tile in range(start // _TILE, -(-(start + n_features) // _TILE)):
            low, high = max(start, tile * _TILE), min(start + n_features, (tile + 1) * _TILE)
            values = generator(seed, f"completion {row}", tile).standard_normal(_TILE)
            numbers[i, low - start : high - start] = values[low - tile * _TILE : high - tile * _TILE]
    return numbers


@dataclass(frozen=True)
class WideComponents:
    """Components as they go into a model."""

    components: Components
    """Orthonormal rows with fixed signs."""
    samples: Array
    """Chosen samples, ``(n_chosen, n_features)``."""
    signs: FloatArray
    """By what components were multiplied for their sign, ``(k,)``."""
    left: FloatArray
    """Scores of the samples of weight 0, ``(n_left, k)``."""
    orthonormality: float
    """By how much inner products of components differ from the identity at most."""
    overlaps: FloatArray
    """By how much inner products of the components up to the rank differed from it before that, ``(rank, rank)``."""


def find_components(
    task: ComponentsTask,
    plan: Plan,
    client: DaskClient | None,
    progress: ProgressCallback | None,
    *,
    scratch: Scratch | None,
) -> tuple[WideComponents, ReadCount]:
    """Run the second pass and return what it cost; with `scratch`, components are written there and stay there."""
    k, d = task.k, plan.n_features
    table: SlabwiseComponents = (
        InMemory(np.zeros((k, d)), task.width) if scratch is None else _on_disk(scratch, k, d, task.width)
    )
    stored = table if isinstance(table, StoredComponents) else None
    task = replace(task, stored=stored, axes=task.axes.astype(task.work_dtype()))
    samples = np.empty((len(task.chosen), d), dtype=task.source.dtype)

    def piece(first: int, last: int) -> tuple[int, Array, FloatArray | None]:
        start, stop = plan.leaf(first).edges[0], plan.leaf(last - 1).edges[-1]
        return start, samples[:, start:stop], table.components[:, start:stop] if isinstance(table, InMemory) else None

    def merge(total: Summary, part: ComponentsPart) -> Summary:
        samples[:, part.start : part.start + part.samples.shape[1]] = part.samples
        if part.values is not None:
            table.write(part.start, part.values)
        total.absorb(part.summary)
        return total

    # Components on disk are multiplied in place afterwards: checkpoints are written only of components in memory.
    record = (
        next_pass("components", plan, f"{k}", piece=piece) if scratch is None else PassRecord(None, "components", plan)
    )
    start = record.begin(Summary.empty(k, _n_uncounted(task.gram)))
    for first, stored_samples, values in record.pieces():
        samples[:, first : first + stored_samples.shape[1]] = stored_samples
        table.write(first, values)
    with task.source.reading():
        summary, count = drive(task, plan, record, start, merge, client=client, progress=progress)
    rank = task.axes.shape[1]
    overlaps = summary.products[:rank, :rank] - np.eye(rank)
    mapping, orthonormality = make_orthonormal(table, summary, rank)
    release_freed_memory()
    components = table.components if isinstance(table, InMemory) else table
    signs = np.where(mapping.diagonal() < 0, -1.0, 1.0)
    left = summary.left @ mapping.T
    return WideComponents(components, samples, signs, left, orthonormality, overlaps), count  # type: ignore[arg-type]


def _on_disk(scratch: Scratch, k: int, d: int, width: int) -> StoredComponents:
    require_space(scratch.path, 8 * k * d)
    return StoredComponents.create(scratch.path / "components", (k, d), width, scratch)


class SlabwiseComponents(Protocol):
    """Components of which a slab is in memory at a time."""

    def slabs(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield runs of features and all components for them."""
        ...

    def write(self, start: int, values: FloatArray) -> None:
        """Write all components for the features from `start` on."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Components in memory, cut into slabs as those on disk are, so that both have the same bits."""

    components: FloatArray
    """All of them, ``(k, n_features)``."""
    width: int
    """Features of a slab."""

    def slabs(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield runs of features and all components for them."""
        for start in range(0, self.components.shape[1], self.width):
            part = slice(start, min(start + self.width, self.components.shape[1]))
            yield part, self.components[:, part]

    def write(self, start: int, values: FloatArray) -> None:
        """Write all components for the features from `start` on."""
        self.components[:, start : start + values.shape[1]] = values


def make_orthonormal(table: SlabwiseComponents, summary: Summary, rank: int) -> tuple[FloatArray, float]:
    """Make components orthonormal to rounding and fix their signs, in place, in as few sweeps as it takes: mostly one.

    What they are multiplied by follows from their inner products alone, see `orthonormalising`. Signs are those of the
    entries that were largest before; a further sweep turns components of which another entry became the largest.

    Returns
    -------
    mapping : array, shape (k, k)
        What components were multiplied by.
    orthonormality : float
        By how much their inner products differ from the identity at most.
    """
    step = summary.signs[:, None] * orthonormalising(summary.products, rank)
    mapping = step
    for left in (3, 2, 1, 0):
        summary = _multiply(table, step)
        k = len(step)
        error = float(np.abs(summary.products - np.eye(k)).max())
        good = error <= _ORTHONORMAL or left < 2
        if left == 0 or (good and (summary.signs > 0).all()):
            break
        step = summary.signs[:, None] * (np.eye(k) if good else orthonormalising(summary.products, k))
        mapping = step @ mapping
    return mapping, error


def orthonormalising(products: FloatArray, rank: int) -> FloatArray:
    """Return M, ``(k, k)``, so that M V has orthonormal rows, from ``products`` = V Vᵀ.

    Rows from `rank` on are made orthogonal to those before by Gram and Schmidt, twice; then all symmetrically, by
    (V Vᵀ)^(−½), which changes them the least (Löwdin 1950): after float32 products by about 1e-7.
    """
    k = len(products)
    lower = np.eye(k)
    for row in range(rank, k):
        vector = lower[row] / np.sqrt(products[row, row])
        for _ in range(2):
            vector = vector - (lower[:row] @ (products @ vector)) @ lower[:row]
            vector /= np.sqrt(vector @ products @ vector)
        lower[row] = vector
    squares, vectors = np.linalg.eigh(lower @ products @ lower.T)
    root: FloatArray = (vectors / np.sqrt(squares)) @ vectors.T @ lower
    return root


def _multiply(table: SlabwiseComponents, step: FloatArray) -> Summary:
    """Multiply all components by `step`, ``(k, k)``, and return their new summary."""
    summary = Summary.empty(len(step))
    for part, slab in table.slabs():
        product = np.matmul(step, slab, out=borrow("slab", slab.shape, np.float64))
        table.write(part.start, product)
        summary.add(product)
    release()
    return summary
