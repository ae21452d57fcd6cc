"""Single-pass accumulators: a frozen configuration outside, a plain mergeable state inside."""

from streampca.accumulators.base import Accumulator
from streampca.accumulators.covariance import Covariance, CovarianceState
from streampca.accumulators.integer import Integers, IntegerState
from streampca.accumulators.joint import Joint
from streampca.accumulators.missing import CompleteRows, CompleteRowsState
from streampca.accumulators.moments import Moments, MomentsState
from streampca.accumulators.pairwise import Pairwise, PairwiseState
from streampca.accumulators.rows import Rows, RowsState
from streampca.accumulators.sparse import SparseCovariance
from streampca.accumulators.tiles import TileGrid
from streampca.accumulators.triangle import Triangle, TriangleState

__all__ = [
    "Accumulator",
    "CompleteRows",
    "CompleteRowsState",
    "Covariance",
    "CovarianceState",
    "IntegerState",
    "Integers",
    "Joint",
    "Moments",
    "MomentsState",
    "Pairwise",
    "PairwiseState",
    "Rows",
    "RowsState",
    "SparseCovariance",
    "TileGrid",
    "Triangle",
    "TriangleState",
]
