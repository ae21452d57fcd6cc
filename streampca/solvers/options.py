"""What is asked of a solver beside the model: what it cannot leave to others that come along with its readings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streampca.solvers.removing import Removing

if TYPE_CHECKING:
    from streampca.solvers.analyses import Analysis


@dataclass(frozen=True)
class Asked:
    """What is asked of a solver beside the model."""

    keep_rows: int = 0
    """Rows that a solver which reads by features copies itself, because they do not pass by; see `RowSample`."""
    removing: Removing | None = None
    """What is removed from the rows as they are read; None = nothing."""
    analysis: Analysis | None = None
    """What is solved from the state of the covariance solver; None = its principal components."""
