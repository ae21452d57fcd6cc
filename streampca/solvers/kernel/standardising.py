"""Means and deviations of features for kernels of z-scores: from a reading of the source, or from rows in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from streampca.accumulators.moments import Moments, MomentsState
from streampca.block import Block, as_block
from streampca.kernels import Kernel, Standardised
from streampca.linalg.scaling import reciprocals
from streampca.models.stored import StoredRows
from streampca.typing import Array

if TYPE_CHECKING:
    from streampca.solvers.kernel.parameters import KernelParameters

_PANEL_BYTES = 4 * 2**20


@dataclass(frozen=True)
class FeatureMoments(Moments):
    """Moments of dense or sparse rows, which are taken a few at a time as dense ones."""

    def update(self, state: MomentsState, block: Block | Array) -> MomentsState:
        """Return `state` with the rows of `block` added; `NotFiniteError` if they hold NaN or infinity."""
        for panel in as_block(block).panels(_panel_rows(state.n_features)):
            state = super().update(state, panel.dense())
        return state

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes for blocks of `n_rows` rows: two copies of a panel."""
        return 16 * n_features * min(n_rows, _panel_rows(n_features))


def _panel_rows(n_features: int) -> int:
    return max(1, _PANEL_BYTES // (8 * max(1, n_features)))


def needs_moments(kernel: Kernel) -> bool:
    """Return whether `kernel` is one of z-scores whose means and deviations are not known yet."""
    return isinstance(kernel, Standardised) and kernel.mean is None


def with_moments(kernel: Kernel, moments: MomentsState) -> Kernel:
    """Return `kernel`, which is one of z-scores, with means and deviations (divisor n − 1); constant features have factor 0."""
    if not isinstance(kernel, Standardised):
        return kernel
    deviation = np.sqrt(np.maximum(moments.scatter, 0.0) / max(1, moments.n_samples - 1))
    return kernel.with_moments(moments.mean, reciprocals(deviation))


def standardised_by(parameters: KernelParameters, rows: Array | StoredRows) -> KernelParameters:
    """Return `parameters` with the kernel that all `rows`, ``(n, d)``, in memory or on disk, standardise if it is one of z-scores."""
    if not needs_moments(parameters.kernel):
        return parameters
    moments = FeatureMoments()
    state = moments.init(rows.shape[1])
    for values in (band for _, band in rows.bands()) if isinstance(rows, StoredRows) else (rows,):
        state = moments.update(state, values)
    return replace(parameters, kernel=with_moments(parameters.kernel, state))
