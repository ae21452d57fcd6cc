"""Single-pass accumulators: a frozen configuration outside, a plain mergeable state inside."""

from streampca.accumulators.adaptive import Adapted, Adaptive, AdaptiveState, rescaled
from streampca.accumulators.base import Accumulator
from streampca.accumulators.covariance import Covariance, CovarianceState
from streampca.accumulators.integer import Integers, IntegerState
from streampca.accumulators.joint import Joint
from streampca.accumulators.kernel_features import KernelFeatures, KernelFeaturesState, KernelSums
from streampca.accumulators.landmarks import (
    ColumnNormLandmarks,
    Landmarks,
    LandmarksState,
    UniformLandmarks,
    WeightedLandmarks,
)
from streampca.accumulators.missing import CompleteRows, CompleteRowsState
from streampca.accumulators.moments import Moments, MomentsState
from streampca.accumulators.pairwise import Pairwise, PairwiseState
from streampca.accumulators.rows import Rows, RowsState
from streampca.accumulators.rpcholesky import RPCholeskyLandmarks, RPCholeskyState
from streampca.accumulators.sketch import Sketch, SketchState
from streampca.accumulators.sketched import Sketched
from streampca.accumulators.sparse import SparseCovariance
from streampca.accumulators.triangle import Triangle, TriangleState
from streampca.linalg.tiles import TileGrid

__all__ = [
    "Accumulator",
    "Adapted",
    "Adaptive",
    "AdaptiveState",
    "ColumnNormLandmarks",
    "CompleteRows",
    "CompleteRowsState",
    "Covariance",
    "CovarianceState",
    "IntegerState",
    "Integers",
    "Joint",
    "KernelFeatures",
    "KernelFeaturesState",
    "KernelSums",
    "Landmarks",
    "LandmarksState",
    "Moments",
    "MomentsState",
    "Pairwise",
    "PairwiseState",
    "RPCholeskyLandmarks",
    "RPCholeskyState",
    "Rows",
    "RowsState",
    "Sketch",
    "SketchState",
    "Sketched",
    "SparseCovariance",
    "TileGrid",
    "Triangle",
    "TriangleState",
    "UniformLandmarks",
    "WeightedLandmarks",
    "rescaled",
]
