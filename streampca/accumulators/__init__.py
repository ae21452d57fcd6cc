"""Single-pass accumulators: a frozen configuration outside, a plain mergeable state inside."""

from streampca.accumulators.base import Accumulator
from streampca.accumulators.covariance import Covariance, CovarianceState
from streampca.accumulators.joint import Joint
from streampca.accumulators.moments import Moments, MomentsState
from streampca.accumulators.rows import Rows, RowsState
from streampca.accumulators.tiles import TileGrid

__all__ = [
    "Accumulator",
    "Covariance",
    "CovarianceState",
    "Joint",
    "Moments",
    "MomentsState",
    "Rows",
    "RowsState",
    "TileGrid",
]
