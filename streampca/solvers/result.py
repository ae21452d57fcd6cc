"""What a reading and a fit return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampca.models.pca import PCAModel
from streampca.planning.plan import Plan
from streampca.sources.base import ReadCount

if TYPE_CHECKING:
    from streampca.accumulators import RowsState


@dataclass(frozen=True)
class Accumulated:
    """What one reading of the source leaves, before anything is solved."""

    accumulator: Any
    """What the rows were accumulated with."""
    state: Any
    """The accumulated state."""
    samples: RowsState | None
    """Rows copied out of the stream, where asked for."""
    count: ReadCount
    """What reading cost."""
    n_left_out: int = 0
    """Rows that were left out because values are missing in them."""


@dataclass(frozen=True)
class Fit:
    """What a fit leaves behind."""

    model: PCAModel
    """The model."""
    plan: Plan
    """What was planned."""
    state: Any
    """The accumulated state, for merging and going on; None where the solver keeps none."""
    samples: RowsState | None
    """Rows copied out of the stream, where asked for."""
    count: ReadCount
    """What reading cost."""
    stream_seconds: float
    """Time of the reading."""
    solve_seconds: float
    """Time of the eigenproblem."""
    accumulator: Any = None
    """What `state` was accumulated with; None where the solver keeps none."""
    scores: NDArray[np.float64] | None = None
    """Scores of all samples where the solver has them without reading again, ``(n_samples, k)``."""
    n_passes: int | None = None
    """Readings of the whole source that it took; None = as planned."""
