"""What a fit of kernel PCA returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streampca.models.kernel import KernelModel
from streampca.solvers.kernel.plan import KernelPlan
from streampca.sources.base import ReadCount

if TYPE_CHECKING:
    from streampca.accumulators import RowsState


@dataclass(frozen=True)
class KernelFit:
    """What a fit leaves behind."""

    model: KernelModel
    """The model."""
    plan: KernelPlan
    """What was planned."""
    samples: RowsState | None
    """Rows copied out of the stream, where asked for."""
    count: ReadCount
    """What reading cost."""
    stream_seconds: float
    """Time of the readings."""
    solve_seconds: float
    """Time of the eigenproblems."""
    eigenvectors: NDArray[np.float64] | None = None
    """Eigenvectors of the kernel matrix of all rows where the method has them in memory, ``(n_samples, k)``."""
    n_passes: int | None = None
    """Readings of the whole source that it took; None = as planned."""
