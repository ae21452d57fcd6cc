"""Single-pass accumulators: each is a frozen configuration that updates and merges plain states.

`Accumulator` describes the protocol and has an example. What each solver accumulates:

- ``covariance``: `Covariance`, or `ExactIntegerCovariance` (8-bit integers), `SparseCovariance` (sparse rows), `CompleteRows` and
  `PairwiseCovariance` (missing values), `ByGroup` (one state for each group of rows);
- ``qr``: `QRFactor`; ``sketch``: `Sketch`; ``adaptive``: `IncrementalSVD`;
- kernel PCA: `KernelFeatures`, and `UniformLandmarks`, `WeightedLandmarks`, `ColumnNormLandmarks` or `RPCholeskyLandmarks`.

`Moments`, `RowSample` and `Joint` accompany them. Results and states are dataclasses of arrays.
"""

import warnings

from streampca.accumulators.adaptive import AdaptiveState, IncrementalBasis, IncrementalSVD, rescaled
from streampca.accumulators.base import Accumulator
from streampca.accumulators.by_group import ByGroup, ConsecutiveGroups, GroupStates
from streampca.accumulators.covariance import Covariance, CovarianceState
from streampca.accumulators.integer import ExactIntegerCovariance, IntegerState
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
from streampca.accumulators.pairwise import PairwiseCovariance, PairwiseState
from streampca.accumulators.rows import RowSample, RowsState
from streampca.accumulators.rpcholesky import RPCholeskyLandmarks, RPCholeskyState
from streampca.accumulators.sketch import Sketch
from streampca.accumulators.sketched import Sketched, SketchState
from streampca.accumulators.sparse import SparseCovariance
from streampca.accumulators.triangle import QRFactor, TriangleState
from streampca.linalg.tiles import TileGrid

__all__ = [
    "Accumulator",
    "AdaptiveState",
    "ByGroup",
    "ColumnNormLandmarks",
    "CompleteRows",
    "CompleteRowsState",
    "ConsecutiveGroups",
    "Covariance",
    "CovarianceState",
    "ExactIntegerCovariance",
    "GroupStates",
    "IncrementalBasis",
    "IncrementalSVD",
    "IntegerState",
    "Joint",
    "KernelFeatures",
    "KernelFeaturesState",
    "KernelSums",
    "Landmarks",
    "LandmarksState",
    "Moments",
    "MomentsState",
    "PairwiseCovariance",
    "PairwiseState",
    "QRFactor",
    "RPCholeskyLandmarks",
    "RPCholeskyState",
    "RowSample",
    "RowsState",
    "Sketch",
    "SketchState",
    "Sketched",
    "SparseCovariance",
    "TileGrid",
    "TriangleState",
    "UniformLandmarks",
    "WeightedLandmarks",
    "rescaled",
]

_RENAMED = {
    "Adapted": "IncrementalBasis",
    "Adaptive": "IncrementalSVD",
    "Integers": "ExactIntegerCovariance",
    "Pairwise": "PairwiseCovariance",
    "Rows": "RowSample",
    "Triangle": "QRFactor",
}


def __getattr__(name: str) -> object:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(f"{__name__}.{name} is called {new} since version 0.2", DeprecationWarning, stacklevel=2)
    return globals()[new]
