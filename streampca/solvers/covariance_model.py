"""The model of an accumulated covariance matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.errors import DataError
from streampca.linalg.eigen import negative_mass, relative_precision, solve
from streampca.linalg.residual_moments import with_moments
from streampca.linalg.selection import as_selection
from streampca.models.missing import with_missing
from streampca.models.pca import PCAModel
from streampca.models.state import FittedState


def solve_model(fitted: FittedState, work: str) -> PCAModel:
    """Return the model of an accumulated state whose products have the rounding of the type `work`."""
    state, accumulator, parameters = fitted.state, fitted.accumulator, fitted.parameters
    if not state.weight:
        raise DataError(f"no row is left: all {fitted.n_left_out} of positive weight hold missing values (NaN)")
    reduced = accumulator.finalize(state)
    if parameters.feature_weight is not None:
        reduced = replace(reduced, weights=reduced.weights * np.sqrt(parameters.feature_weight))
    finite = np.isfinite(reduced.diagonal)
    if not finite.all():
        raise DataError(
            f"the variance of feature {int(np.flatnonzero(~finite)[0])} overflows float64: rescale it first"
        )
    selection = as_selection(parameters.n_components, min(reduced.n_samples, reduced.n_features))
    precision = relative_precision(work, reduced.n_features)
    clipped = None if parameters.missing != "pairwise" else negative_mass(reduced)
    total = float(reduced.diagonal.sum()) + (clipped or 0.0)
    spectrum = solve(reduced, selection, precision=precision, seed=parameters.seed, total=total)
    spectrum = with_moments(spectrum, reduced, parameters.seed, definite=clipped is None)
    model = PCAModel.of_spectrum(
        spectrum,
        reduced,
        parameters,
        precision=precision,
        source=fitted.source,
        # Of weights that fade, the sum from which `ddof` is to be taken for the divisor. That of the matrix of pairwise
        # covariances is 1: each of them has a divisor of its own.
        sample_weight=None
        if state.weight == reduced.n_samples
        else float(accumulator.divisor(state) + parameters.ddof),
    )
    return with_missing(model, parameters.missing, state, fitted.n_left_out, clipped, parameters.missing_scores)
