"""States for embedding in other programs: accumulate rows as they arrive, merge states of several processes, solve at the end.

This module imports numpy and scipy, and no other dependency of streampca. An accumulator is a frozen configuration
(see `Accumulator`): ``init(n_features)`` makes an empty state, ``update(state, rows)`` adds a block of any number of
rows, and ``merge(states)`` joins states of the same configuration. `principal_components` solves a state. States are
dataclasses of arrays and numbers, which can be pickled. Their size (`state_bytes`) does not depend on the number of
rows.

========================  ===============================================  ==============================  ==========================
accumulator               rows                                             state                           cost of n rows
========================  ===============================================  ==============================  ==========================
`Covariance`              any numbers                                      4 d² to 8 d² bytes              n d² flops
`DeviceCovariance`        any numbers, tensors; multiplied on a card       as `Covariance`                 n d² flops there
`ExactIntegerCovariance`  8-bit integers, bool                             4 d² to 8 d² bytes, exact sums  n d² flops
`CompleteRows`            rows with NaN are left out                       as `Covariance`                 n d² flops
`PairwiseCovariance`      NaN is missing; pairs of observed values count   four times that                 up to 4 n d² flops
`QRFactor`                singular values below 1e-7 of the first matter   8 d² bytes                      2 n d² flops, float64
`Moments`                 any numbers; mean and variance only              24 d bytes                      4 n d flops
========================  ===============================================  ==============================  ==========================

Here d is the number of features. Dividing the rows into other blocks or merging in another order changes a state only
by rounding. The same blocks in the same order give the same bits.

Examples
--------
>>> import numpy as np
>>> from streampca.states import Covariance, principal_components
>>> rows = np.random.default_rng(0).normal(size=(1000, 3)) * [3, 2, 1]
>>> covariance = Covariance()
>>> states = [covariance.update(covariance.init(3), block) for block in np.split(rows, 4)]
>>> found = principal_components(covariance, covariance.merge(states), 2)
>>> found.components.shape, found.n_samples
((2, 3), 1000)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.accumulators.covariance import Covariance, CovarianceState
from streampca.accumulators.device_covariance import DeviceCovariance
from streampca.accumulators.integer import ExactIntegerCovariance, IntegerState
from streampca.accumulators.pairwise import PairwiseCovariance, PairwiseState
from streampca.accumulators.rows import Moments, MomentsState
from streampca.accumulators.triangle import Factored, QRFactor, TriangleState
from streampca.accumulators.wrappers import CompleteRows, CompleteRowsState
from streampca.block import Block
from streampca.errors import ParameterError
from streampca.linalg.eigen import SymmetricOperator, relative_precision, signed, solve
from streampca.linalg.selection import Count
from streampca.typing import FloatArray

__all__ = [
    "Accumulator",
    "Block",
    "CompleteRows",
    "CompleteRowsState",
    "Components",
    "Covariance",
    "CovarianceState",
    "DeviceCovariance",
    "ExactIntegerCovariance",
    "IntegerState",
    "Moments",
    "MomentsState",
    "PairwiseCovariance",
    "PairwiseState",
    "QRFactor",
    "TriangleState",
    "principal_components",
]

Solvable: TypeAlias = Covariance | ExactIntegerCovariance | CompleteRows | PairwiseCovariance | QRFactor
"""Accumulators whose states have principal components."""


@dataclass(frozen=True)
class Components:
    """Principal components of the rows behind a state; scores are ``((rows - mean) * factors) @ components.T``."""

    components: FloatArray
    """Orthonormal rows, largest variance first, with the entry of largest modulus positive; shape ``(k, n_features)``."""
    explained_variance: FloatArray
    """Variance along each component, shape ``(k,)``; the divisor is n − ddof of the accumulator."""
    total_variance: float
    """Sum of the variances along all directions."""
    mean: FloatArray
    """Mean of each feature, which is subtracted, or 0 with ``center=False``; shape ``(n_features,)``."""
    factors: FloatArray
    """Factors of the centred features: 1, or with ``scale=True`` 1 / standard deviation, and 0 for constant features; ``(n_features,)``."""
    n_samples: int
    """Number of rows."""


def principal_components(accumulator: Solvable, state: Any, n_components: int | None = None) -> Components:
    """Return the principal components of the rows behind `state`, which is not changed.

    LAPACK solves matrices of up to 1,536 features, and larger ones if more than a tenth of the components is
    requested (4/3 d³ flops, 16 d² bytes beside the state). Block Lanczos with thick restart solves the others, in the
    memory of about 2 k + 600 vectors.

    Parameters
    ----------
    accumulator : Covariance, ExactIntegerCovariance, CompleteRows, PairwiseCovariance or QRFactor
        The accumulator that made the state; its `center`, `scale` and `ddof` apply.
    state : CovarianceState, IntegerState, CompleteRowsState, PairwiseState or TriangleState
        A state that its `update` or `merge` returned.
    n_components : int, optional
        Number of components, at most the smaller of features and rows; None for all of these.

    Returns
    -------
    Components

    Raises
    ------
    DataError
        If there are `ddof` rows or fewer.
    ParameterError
        If `n_components` is not positive, or the states of `accumulator` have no components.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca.states import QRFactor, principal_components
    >>> factor = QRFactor()
    >>> state = factor.update(factor.init(2), np.array([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]))
    >>> principal_components(factor, state, 1).explained_variance
    array([5.])
    """
    if n_components is not None and n_components < 1:
        raise ParameterError(f"n_components={n_components}: expected at least 1, or None for all")
    if not isinstance(accumulator, Solvable):
        raise ParameterError(
            f"states of {type(accumulator).__name__} have no principal components: expected those of Covariance, "
            "ExactIntegerCovariance, CompleteRows, PairwiseCovariance or QRFactor"
        )
    matrix: SymmetricOperator | Factored = accumulator.finalize(state)
    centred = matrix.offset is None
    k = min(n_components or len(matrix.mean), matrix.n_samples, len(matrix.mean))
    if isinstance(matrix, Factored):
        from scipy.linalg import svd

        _, lengths, vectors = svd(matrix.rows() / np.sqrt(matrix.divisor), full_matrices=False, check_finite=False)
        values, vectors = np.square(lengths), signed(vectors.T)
        total = float(values.sum())
    else:
        found = solve(matrix, Count(k), precision=relative_precision("float32", matrix.n_features))
        values, vectors, total = found.values, found.vectors, found.total
    return Components(
        components=vectors[:k],
        explained_variance=values[:k],
        total_variance=total,
        mean=matrix.mean if centred else np.zeros_like(matrix.mean),
        factors=matrix.weights,
        n_samples=matrix.n_samples,
    )
