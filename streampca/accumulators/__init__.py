"""Single-pass accumulators: each is a frozen configuration that updates and merges plain states.

`Accumulator` describes the protocol and has an example. Accumulators of each solver:

- ``covariance``: `Covariance`, or `ExactIntegerCovariance` (8-bit integers), `SparseCovariance` (sparse rows), `CompleteRows` and
  `PairwiseCovariance` (missing values), `ByGroup` (one state for each group of rows);
- ``qr``: `QRFactor`; ``sketch``: `Sketch`; ``adaptive``: `IncrementalSVD`;
- kernel PCA: `KernelFeatures`, and `UniformLandmarks`, `WeightedLandmarks`, `ColumnNormLandmarks` or `RPCholeskyLandmarks`.

`Moments`, `RowSample`, `RowTotals` and `Joint` accompany them. Results and states are dataclasses of arrays.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

# Names are resolved when they are first used: one accumulator is imported without the kernels and hashes of others.
_NAMES = {
    "streampca.accumulators.adaptive": ("AdaptiveState", "IncrementalBasis", "IncrementalSVD", "rescaled"),
    "streampca.accumulators.base": ("Accumulator",),
    "streampca.accumulators.covariance": ("Covariance", "CovarianceState"),
    "streampca.accumulators.device_covariance": ("DeviceCovariance",),
    "streampca.accumulators.integer": ("ExactIntegerCovariance", "IntegerState"),
    "streampca.accumulators.kernel_features": ("KernelFeatures", "KernelFeaturesState", "KernelSums"),
    "streampca.accumulators.landmarks": (
        "ColumnNormLandmarks",
        "Landmarks",
        "LandmarksState",
        "UniformLandmarks",
        "WeightedLandmarks",
        "RPCholeskyLandmarks",
        "RPCholeskyState",
    ),
    "streampca.accumulators.pairwise": ("PairwiseCovariance", "PairwiseState"),
    "streampca.accumulators.rows": ("Moments", "MomentsState", "RowSample", "RowTotals", "RowsState"),
    "streampca.accumulators.sketch": ("Sketch", "Sketched", "SketchState"),
    "streampca.accumulators.sparse": ("SparseCovariance",),
    "streampca.accumulators.triangle": ("QRFactor", "TriangleState"),
    "streampca.accumulators.wrappers": (
        "ByGroup",
        "ConsecutiveGroups",
        "GroupStates",
        "Joint",
        "CompleteRows",
        "CompleteRowsState",
    ),
    "streampca.linalg.tiles": ("TileGrid",),
}
_EXPORTS = {name: module for module, names in _NAMES.items() for name in names}
_RENAMED = {
    "Adapted": "IncrementalBasis",
    "Adaptive": "IncrementalSVD",
    "Integers": "ExactIntegerCovariance",
    "Pairwise": "PairwiseCovariance",
    "Rows": "RowSample",
    "Triangle": "QRFactor",
}

__all__ = [*_EXPORTS]

if TYPE_CHECKING:
    from streampca.accumulators.adaptive import AdaptiveState as AdaptiveState
    from streampca.accumulators.adaptive import IncrementalBasis as IncrementalBasis
    from streampca.accumulators.adaptive import IncrementalSVD as IncrementalSVD
    from streampca.accumulators.adaptive import rescaled as rescaled
    from streampca.accumulators.base import Accumulator as Accumulator
    from streampca.accumulators.covariance import Covariance as Covariance
    from streampca.accumulators.covariance import CovarianceState as CovarianceState
    from streampca.accumulators.device_covariance import DeviceCovariance as DeviceCovariance
    from streampca.accumulators.integer import ExactIntegerCovariance as ExactIntegerCovariance
    from streampca.accumulators.integer import IntegerState as IntegerState
    from streampca.accumulators.kernel_features import KernelFeatures as KernelFeatures
    from streampca.accumulators.kernel_features import KernelFeaturesState as KernelFeaturesState
    from streampca.accumulators.kernel_features import KernelSums as KernelSums
    from streampca.accumulators.landmarks import ColumnNormLandmarks as ColumnNormLandmarks
    from streampca.accumulators.landmarks import Landmarks as Landmarks
    from streampca.accumulators.landmarks import LandmarksState as LandmarksState
    from streampca.accumulators.landmarks import RPCholeskyLandmarks as RPCholeskyLandmarks
    from streampca.accumulators.landmarks import RPCholeskyState as RPCholeskyState
    from streampca.accumulators.landmarks import UniformLandmarks as UniformLandmarks
    from streampca.accumulators.landmarks import WeightedLandmarks as WeightedLandmarks
    from streampca.accumulators.pairwise import PairwiseCovariance as PairwiseCovariance
    from streampca.accumulators.pairwise import PairwiseState as PairwiseState
    from streampca.accumulators.rows import Moments as Moments
    from streampca.accumulators.rows import MomentsState as MomentsState
    from streampca.accumulators.rows import RowSample as RowSample
    from streampca.accumulators.rows import RowsState as RowsState
    from streampca.accumulators.rows import RowTotals as RowTotals
    from streampca.accumulators.sketch import Sketch as Sketch
    from streampca.accumulators.sketch import Sketched as Sketched
    from streampca.accumulators.sketch import SketchState as SketchState
    from streampca.accumulators.sparse import SparseCovariance as SparseCovariance
    from streampca.accumulators.triangle import QRFactor as QRFactor
    from streampca.accumulators.triangle import TriangleState as TriangleState
    from streampca.accumulators.wrappers import ByGroup as ByGroup
    from streampca.accumulators.wrappers import CompleteRows as CompleteRows
    from streampca.accumulators.wrappers import CompleteRowsState as CompleteRowsState
    from streampca.accumulators.wrappers import ConsecutiveGroups as ConsecutiveGroups
    from streampca.accumulators.wrappers import GroupStates as GroupStates
    from streampca.accumulators.wrappers import Joint as Joint
    from streampca.linalg.tiles import TileGrid as TileGrid


def __getattr__(name: str) -> object:
    new = _RENAMED.get(name, name)
    if new not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[new]), new)
    if new == name:
        globals()[name] = value
    else:
        warnings.warn(f"{__name__}.{name} is called {new} since version 0.2", DeprecationWarning, stacklevel=2)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__"])  # Sphinx looks for that among the names
