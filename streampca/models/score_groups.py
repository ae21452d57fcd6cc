"""Accumulation of cross products of scores by groups of rows, which sampling errors are computed from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from typing_extensions import override

from streampca.accumulators.base import Accumulator
from streampca.accumulators.centring import refuse_not_finite
from streampca.block import Block, as_block
from streampca.linalg.cross_validation import group_edges, pieces
from streampca.models.diagnostics import centred_rows
from streampca.models.pca import Model
from streampca.models.sampling_errors import GroupMoments
from streampca.typing import Array, FloatArray

_PANEL_BYTES = 2**20


def score_unit(model: Model) -> float:
    """Return a power of two near the standard deviation of the first scores, in whose units fourth powers of scores are near 1."""
    variance = float(model.score_variances[0])
    return 2.0 ** (math.frexp(variance)[1] // 2) if variance > 0 else 1.0


@dataclass(frozen=True)
class ScoreGroups(Accumulator[GroupMoments, GroupMoments]):
    """Accumulates `GroupMoments` of the rows that a model was fitted on, with scores and rows in units of `score_unit`."""

    model: Model
    """The model; its components are in memory."""
    n_samples: int
    """Rows of the source."""
    n_groups: int
    """Groups of consecutive rows."""

    @property
    def scaled(self) -> bool:
        """Tell whether the squares of every feature are summed, because features were scaled."""
        return self.model.linear is not None and self.model.linear.scale is not None

    @override
    def init(self, n_features: int) -> GroupMoments:
        return GroupMoments.empty(self.model.n_components, n_features if self.scaled else 0)

    def update(self, state: GroupMoments, block: Block | Array) -> GroupMoments:
        """Return `state` with the rows of `block` added, after it; `NotFiniteError` if rows that count are not finite."""
        block = as_block(block)
        model = self.model if self.model.linear is None else replace(self.model.linear, whiten=False)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = model.encode(block.values)
        counts = np.ones(len(block), dtype=bool) if block.weights is None else block.weights > 0
        if not counts.all():
            scores = np.where(counts[:, None], scores, 0)
        if not np.isfinite(scores).all():
            refuse_not_finite(block.values, block.start)
        total = self.init(block.values.shape[1])
        unit = score_unit(self.model)
        edges, step = group_edges(self.n_samples, self.n_groups), max(1, _PANEL_BYTES // (8 * scores.shape[1]))
        for group, first, end in pieces(edges, block.start, block.start + len(block)):
            for start in range(first, end, step):
                rows = slice(start - block.start, min(end, start + step) - block.start)
                part, t = block.slice(rows.start, rows.stop), scores[rows].astype(np.float64) / unit
                lengths, features = self._lengths(part)
                total = total.absorb(GroupMoments.of(group, start, t, lengths, part.weights, features))
        return state.absorb(total)

    def _lengths(self, block: Block) -> tuple[FloatArray | None, FloatArray]:
        """Return ‖z‖² of the rows, None for kernel PCA, and Σ w z² of each feature if features were scaled."""
        d, model = block.values.shape[1], self.model.linear
        features = np.zeros(d if self.scaled else 0)
        if model is None:
            return None, features
        lengths = np.empty(len(block))
        step = max(1, min(len(block), _PANEL_BYTES // (8 * d)))
        space = np.empty((step, d))
        for start in range(0, len(block), step):
            panel = block.slice(start, start + step).dense()
            with np.errstate(invalid="ignore", over="ignore"):  # rows of weight 0 may hold anything
                z = centred_rows(model, panel.values, slice(0, d), space[: len(panel)])[0]
                z /= score_unit(model)
            if panel.weights is not None:
                z[panel.weights == 0] = 0.0
            lengths[start : start + len(z)] = np.einsum("ij,ij->i", z, z)
            if self.scaled:
                weighted = z if panel.weights is None else z * panel.weights[:, None]
                features += np.einsum("ij,ij->j", z, weighted)
        return lengths, features

    @override
    def absorb(self, state: GroupMoments, other: GroupMoments) -> GroupMoments:
        return state.absorb(other)

    @override
    def merge(self, states: Sequence[GroupMoments]) -> GroupMoments:
        return reduce(self.absorb, states)

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state with all groups in bytes."""
        return moments_bytes(self.model.n_components, n_features if self.scaled else 0, self.n_groups)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update: the scores of the block, and that of `moments_scratch_bytes`."""
        k = self.model.n_components
        return 16 * n_rows * k + moments_scratch_bytes(k, n_features, scaled=self.scaled)


def moments_bytes(k: int, n_features: int, n_groups: int) -> int:
    """Return the size in bytes of the sums of `n_groups` groups with `k` scores and the squares of `n_features` features."""
    return 8 * (n_groups * (k * k + k + n_features + 3) + 4 * k)


def moments_scratch_bytes(k: int, n_features: int, *, scaled: bool) -> int:
    """Return the scratch memory in bytes of `ScoreGroups.update`: panels of rows and of scores, and states of two groups."""
    return (
        3 * max(_PANEL_BYTES, 8 * n_features)
        + 6 * max(_PANEL_BYTES, 8 * k)
        + 4 * moments_bytes(k, n_features * scaled, 2)
    )
