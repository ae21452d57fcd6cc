"""What goes into a fit beside the data, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampca.linalg.selection import Selection, as_selection
from streampca.sources.base import Source

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Parameters:
    """What of a fit is decided by the user, beside the data."""

    n_components: Any = None
    """Count, share, `Threshold` or None."""
    solver: str = "auto"
    """``"auto"`` or one of `lines.SOLVERS`."""
    center: bool = True
    """Subtract the mean."""
    scale: bool = False
    """Divide by the standard deviation."""
    whiten: bool = False
    """Divide scores by their standard deviation."""
    ddof: int = 1
    """Divisor of variances is n − ddof."""
    missing: str = "error"
    """What is done with NaN: ``"error"``, ``"drop_rows"``, ``"mean"`` or ``"pairwise"``."""
    missing_scores: str = "conditional"
    """Scores of rows with NaN under the last two: ``"conditional"`` or ``"mean"``."""
    sample_weight: NDArray[np.float64] | None = None
    """Weight of each row, ``(n_samples,)``; a weight of 2 counts as the row given twice."""
    feature_weight: NDArray[np.float64] | None = None
    """Factor of each centred (and scaled) feature, ``(n_features,)``."""
    forgetting: float = 1.0
    """What a row's weight is multiplied by with every row after it, in (0, 1]."""
    sketch: str = "auto"
    """What maps features to columns: ``"auto"``, ``"gaussian"``, ``"count_sketch"``, ``"sparse_sign"`` or ``"grouping"``."""
    sketch_size: int | str = "auto"
    """Columns of a sketch, or ``"auto"``."""
    n_hashes: int = 4
    """Hash functions of a count sketch."""
    recovery: str = "nystrom"
    """``"nystrom"`` or ``"conversion"``."""
    pilot: int | str = "auto"
    """Rows read beforehand, or ``"auto"``."""
    max_passes: int = 2
    """Most readings by an approximate solver."""
    tolerance: float | None = None
    """Relative error of eigenvalues at which an approximate solver stops; None = after the first reading."""
    seed: int = 0
    """Seed of everything that is drawn."""
    memory: int | str | None = None
    """Ceiling for the process."""
    threads: int | None = None
    """Threads to share; None = all cores this process may use."""

    def selection(self, source: Source) -> Selection:
        """Return the rule for how many components, checked against the shape of `source`."""
        return as_selection(self.n_components, min(source.shape))
