"""Cross products of the scores of groups of consecutive rows, from which sampling errors follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from streampca.storage.state_file import storable
from streampca.typing import Array, FloatArray, IntArray


@storable
@dataclass(frozen=True)
class GroupMoments:
    """Sums over the rows of m consecutive groups; w is a row's weight, t its k centred scores, z the row itself.

    z is centred and scaled, as the fit takes it, and q = ‖z‖² − ‖t‖² is the part of it that the components leave.
    """

    first: int
    """Number of the first group, from 0."""
    start: int
    """First row."""
    stop: int
    """Row after the last."""
    weights: FloatArray
    """Σ w and Σ w², ``(m, 2)``."""
    sums: FloatArray
    """Σ w t, ``(m, k)``."""
    products: FloatArray
    """Σ w t tᵀ, ``(m, k, k)``."""
    lengths: FloatArray
    """Σ w ‖z‖², ``(m,)``; NaN where it is not known."""
    outside: FloatArray
    """Σ w t² q over all rows, ``(k,)``; NaN where it is not known."""
    lagged: FloatArray
    """Σ √(w w') t t' over all pairs of neighbouring rows, ``(k,)``."""
    ends: FloatArray
    """√w t of the first and the last row, ``(2, k)``."""
    features: FloatArray
    """Σ w z² of each feature where features were scaled, ``(m, n_features)``, else ``(m, 0)``."""

    @classmethod
    def empty(cls, k: int, n_features: int) -> GroupMoments:
        """Return the sums of no rows."""
        return cls(
            first=0,
            start=0,
            stop=0,
            weights=np.zeros((0, 2)),
            sums=np.zeros((0, k)),
            products=np.zeros((0, k, k)),
            lengths=np.zeros(0),
            outside=np.zeros(k),
            lagged=np.zeros(k),
            ends=np.zeros((2, k)),
            features=np.zeros((0, n_features)),
        )

    @classmethod
    def of(
        cls,
        group: int,
        start: int,
        scores: Array,
        lengths: FloatArray | None,
        weights: FloatArray | None,
        features: FloatArray,
    ) -> GroupMoments:
        """Return the sums of consecutive rows of one group.

        Parameters
        ----------
        group : int
            Number of the group.
        start : int
            First row.
        scores : array, shape (n_rows, k)
            Centred scores, not whitened; at least one row.
        lengths : array, shape (n_rows,), or None
            ‖z‖² of the rows.
        weights : array, shape (n_rows,), or None
            Weights of the rows; None = all 1.
        features : array, shape (n_features,) or (0,)
            Σ w z².
        """
        n_rows = len(scores)
        rooted = scores if weights is None else scores * np.sqrt(weights)[:, None].astype(scores.dtype)
        w = np.ones(n_rows) if weights is None else weights
        squares = np.square(scores, dtype=np.float64)
        carried = squares @ np.ones(scores.shape[1])
        unknown = np.full(scores.shape[1], np.nan)
        left = None if lengths is None else w * np.maximum(lengths - carried, 0.0)
        return cls(
            first=group,
            start=start,
            stop=start + n_rows,
            weights=np.array([[w.sum(), w @ w]]),
            sums=(w @ scores)[None].astype(np.float64),
            products=(rooted.T @ rooted)[None].astype(np.float64),
            lengths=np.array([np.nan if lengths is None else w @ lengths]),
            outside=unknown if left is None else left @ squares,
            lagged=np.einsum("ij,ij->j", rooted[:-1], rooted[1:], dtype=np.float64),
            ends=rooted[[0, -1]].astype(np.float64),
            features=features[None],
        )

    def absorb(self, other: GroupMoments) -> GroupMoments:
        """Return the sums of the rows of both; products of neighbouring rows are complete if one follows the other."""
        if not len(self.weights):
            return other
        if not len(other.weights):
            return self
        if other.start < self.start:
            return other.absorb(self)
        first = min(self.first, other.first)
        size = max(self.first + len(self.weights), other.first + len(other.weights)) - first
        summed = {}
        for name in ("weights", "sums", "products", "lengths", "features"):
            mine, theirs = getattr(self, name), getattr(other, name)
            total = np.zeros((size, *mine.shape[1:]))
            total[self.first - first :][: len(mine)] += mine
            total[other.first - first :][: len(theirs)] += theirs
            summed[name] = total
        border = self.ends[1] * other.ends[0] if self.stop == other.start else 0.0
        return GroupMoments(
            first=first,
            start=self.start,
            stop=max(self.stop, other.stop),
            outside=self.outside + other.outside,
            lagged=self.lagged + other.lagged + border,
            ends=np.stack([self.ends[0], (other if other.stop >= self.stop else self).ends[1]]),
            **summed,
        )


def group_edges(n_samples: int, n_groups: int) -> IntArray:
    """Return the edges of groups of consecutive rows whose sizes differ by one at most, ``(n_groups + 1,)``."""
    return np.arange(n_groups + 1, dtype=np.int64) * n_samples // n_groups


def pieces(edges: IntArray, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each group that has some of the rows from `start` to `stop`, and the first and the end of them."""
    group = int(np.searchsorted(edges, start, side="right")) - 1
    while start < stop:
        end = min(stop, int(edges[group + 1]))
        yield group, start, end
        start, group = end, group + 1
