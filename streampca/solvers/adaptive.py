"""Incremental low-rank update over blocks in shuffled order: the best answer of one pass; further passes if asked."""

from __future__ import annotations

from streampca.solvers.approximate import ApproximateSolver


class AdaptiveSolver(ApproximateSolver):
    """Approximate, by a basis that follows the rows; it keeps no state."""

    name = "adaptive"
