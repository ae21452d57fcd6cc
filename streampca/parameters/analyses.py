"""The parameters of `MCA`, `CCA` and `FactorAnalysis`: those of `PCA` that enter a covariance, and their own."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from streampca.parameters.pca import PCA_PARAMETERS
from streampca.parameters.statement import Parameter, Rotation, choice, special, whole

_SHARED = (
    *("center", "scale", "missing", "missing_value", "feature_weight", "remove", "ddof", "forgetting"),
    *("sampling_errors", "memory", "device", "random_state", "checkpoint", "progress"),
)
_BY_NAME = {parameter.name: parameter for parameter in PCA_PARAMETERS}
SHARED = tuple(_BY_NAME[name] for name in _SHARED)
"""Parameters that mean what they mean for `PCA`."""

N_PAIRS = Parameter(
    "n_components",
    2,
    whole(1),
    "How many pairs of components.",
    "model",
    details=(
        "At most the features of the smaller table. Pairs of `MCA` beyond the rank of the cross-covariance have a covariance of 0, up to "
        "rounding, and arbitrary directions; `CCA` has no more pairs than both tables have directions of variance."
    ),
)
N_FACTORS = Parameter(
    "n_components", 2, whole(1), "How many factors, fewer than the features that vary.", "model", details=""
)
ROTATION = Parameter(
    "rotation",
    None,
    choice(get_args(Rotation), optional=True),
    "Rotation of the factors towards few large loadings each, orthogonal or oblique; None: none.",
    "model",
    field=None,
    details=(
        "The criterion is that of `PCA.rotate` with its defaults, for loadings of features of variance 1, so that it does not depend on "
        "units. The likelihood is the same with and without rotation."
    ),
)
FIRST = Parameter(
    "first",
    None,
    special("int, str, sequence of str or None"),
    "Features of the first of two tables that lie side by side: their number, or the names of the variables, which come first; None: those of X in fit(X, Y), or the first of two variables.",
    "model",
)
N_PCA = Parameter(
    "n_pca",
    None,
    special("int, PCA or None"),
    "Principal components that each table is reduced to first, their number or a PCA with its solver, for tables of more features than a covariance matrix of all has room for, or than there are samples; None: none.",
    field=None,
    details=(
        "Takes a reading or more of each table for its components, and one of both. `error_` says what of the singular values was "
        "left out; canonical correlations are those of the components that were kept. No state is kept."
    ),
)

COUPLED_PARAMETERS = (N_PAIRS, FIRST, N_PCA, *SHARED)
"""Those of `MCA` and `CCA`, in the order of the signature."""
_DDOF = replace(_BY_NAME["ddof"], default=0)
FACTOR_PARAMETERS = (N_FACTORS, ROTATION, *(_DDOF if each.name == "ddof" else each for each in SHARED))
"""Those of `FactorAnalysis`, in the order of the signature."""
