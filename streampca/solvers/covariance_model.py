"""The model of an accumulated covariance matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.errors import DataError
from streampca.linalg.control_limits import with_moments, with_moments_of_pairs
from streampca.linalg.cross_validation import prediction_errors
from streampca.linalg.eigen import SymmetricOperator, negative_mass, relative_precision, solve
from streampca.linalg.selection import Rule
from streampca.models.noise import known_weight, selection_of_fit
from streampca.models.pca import PCAModel
from streampca.models.rounding import with_decoding, with_missing
from streampca.models.state import FittedState

_TOLERANCE = 1e-11
"""Residual of eigenpairs, relative to the first eigenvalue, at which the iteration stops."""
_BELOW_PRECISION = 400.0
"""How many times smaller than the error of the matrix that residual is at least."""
_ROWS_PER_FEATURE = 64
"""Rows for each feature from which all eigenvalues are computed beside the requested pairs: they take a small share of the pass."""


def operator_of(fitted: FittedState) -> SymmetricOperator:
    """Return the matrix that is decomposed; `DataError` if there is no row, or a variance overflows."""
    state, accumulator, parameters = fitted.state, fitted.accumulator, fitted.parameters
    if not state.weight:
        if not fitted.n_left_out:
            raise DataError(
                "no row has a positive weight: expected at least one; leave these rows out, or change sample_weight"
            )
        raise DataError(f"no row is left: all {fitted.n_left_out} of positive weight hold missing values (NaN)")
    reduced: SymmetricOperator = accumulator.finalize(state)
    if parameters.feature_weight is not None:
        reduced = replace(reduced, weights=reduced.weights * np.sqrt(parameters.feature_weight))
    finite = np.isfinite(reduced.diagonal)
    if not finite.all():
        raise DataError(
            f"the variance of feature {int(np.flatnonzero(~finite)[0])} overflows float64: rescale it first"
        )
    return reduced


def solve_model(fitted: FittedState, work: str) -> PCAModel:
    """Return the model of an accumulated state whose products have the rounding of the type `work`."""
    state, accumulator, parameters = fitted.state, fitted.accumulator, fitted.parameters
    reduced = operator_of(fitted)
    n_samples, d = reduced.n_samples, reduced.n_features
    # Of weights that fade, the sum from which `ddof` is to be taken for the divisor. That of the matrix of pairwise
    # covariances is 1: each of them has a divisor of its own.
    weight = n_samples if state.weight == n_samples else float(accumulator.divisor(state) + parameters.ddof)
    known = known_weight(
        reduced,
        parameters,
        weight,
        weighted=fitted.weighted or getattr(state, "weight_squares", n_samples) != n_samples,
    )
    n_missing = 0 if parameters.missing == "drop_rows" else int(getattr(state, "n_missing", 0))
    precision = relative_precision(work, reduced.n_features)
    selection = selection_of_fit(reduced, parameters, known, reduced.rank_limit, precision, n_missing)
    validated = bool(fitted.groups) and parameters.n_components == "cross_validation"
    errors = None
    if validated:
        groups = [(each.scatter, each.mean, each.weight) for each in fitted.groups]
        errors = prediction_errors(reduced.grid, groups, reduced.weights, center=parameters.center)
    if isinstance(selection, Rule) and errors is not None:
        selection = selection.with_errors(errors)
    clipped = None if parameters.missing != "pairwise" else negative_mass(reduced)
    total = float(reduced.diagonal.sum()) + (clipped or 0.0)
    tolerance = max(_TOLERANCE, precision / _BELOW_PRECISION)
    spectrum = solve(
        reduced,
        selection,
        precision=precision,
        seed=parameters.seed,
        total=total,
        tolerance=tolerance,
        all_values=n_samples >= _ROWS_PER_FEATURE * d or validated,  # of cross-validation no state is kept
        device=parameters.device,
    )
    n_missing = int(getattr(state, "n_missing", 0)) if parameters.missing == "pairwise" else 0
    if n_missing and clipped is not None:
        n_values = reduced.n_samples * reduced.n_features
        share = n_missing / max(1, n_values - n_missing) / float(np.sqrt(reduced.n_samples))
        spectrum = with_moments_of_pairs(spectrum, reduced, clipped, share)
    else:
        spectrum = with_moments(spectrum, reduced, parameters.seed)
    model = PCAModel.of_spectrum(
        spectrum,
        reduced,
        parameters,
        precision=precision,
        source=fitted.source,
        sample_weight=known,
    )
    model = replace(model, prediction_errors=errors)
    if parameters.n_regressors is None:  # else the rows that were decoded are known when the fit is finished
        model = with_decoding(model, reduced.mean, reduced.variance, parameters.scaling)
    return with_missing(model, parameters.missing, state, fitted.n_left_out, clipped, parameters.missing_scores)
