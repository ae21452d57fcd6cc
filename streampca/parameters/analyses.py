"""The parameters of `MCA`, `CCA` and `FactorAnalysis`: the parameters of `PCA` that affect a covariance, and their own."""

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
    "Number of pairs of components.",
    "model",
    details=(
        "At most the number of features of the smaller table. Pairs of `MCA` beyond the rank of the cross-covariance have covariance 0, "
        "up to rounding, and arbitrary directions. `CCA` has no more pairs than either table has directions of variance."
    ),
)
N_FACTORS = Parameter(
    "n_components", 2, whole(1), "Number of factors, less than the number of features that vary.", "model", details=""
)
ROTATION = Parameter(
    "rotation",
    None,
    choice(get_args(Rotation), optional=True),
    "Rotation of the factors towards few large loadings each: orthogonal (varimax) or oblique (promax); None: none.",
    "model",
    field=None,
    details=(
        "The criterion is that of `PCA.rotate` with its defaults, applied to loadings of features of variance 1, so units do not matter. "
        "Rotation does not change the likelihood."
    ),
)
FIRST = Parameter(
    "first",
    None,
    special("int, str, sequence of str or None"),
    "Features of the first table, if both lie side by side: their number, or the names of its variables, which must come first; None: those of X in fit(X, Y), or the first of two variables.",
    "model",
)
N_PCA = Parameter(
    "n_pca",
    None,
    special("int, PCA or None"),
    "Reduce each table to principal components first: their number, or a PCA with its solver. For tables with more features than fit in a covariance matrix, or more than samples; None: no reduction.",
    field=None,
    details=(
        "It takes one or more passes over each table for its components, and one over both. `error_` states the part of the singular "
        "values that was left out; canonical correlations are those of the kept components. No state is kept."
    ),
)

COUPLED_PARAMETERS = (N_PAIRS, FIRST, N_PCA, *SHARED)
"""Those of `MCA` and `CCA`, in the order of the signature."""
_DDOF = replace(_BY_NAME["ddof"], default=0)
FACTOR_PARAMETERS = (N_FACTORS, ROTATION, *(_DDOF if each.name == "ddof" else each for each in SHARED))
"""Those of `FactorAnalysis`, in the order of the signature."""
