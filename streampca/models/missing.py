"""Certificate and imputation of models that were fitted on rows with missing values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from streampca.models.pca import PCAModel

if TYPE_CHECKING:
    from streampca.accumulators import CovarianceState, PairwiseState, SketchState
    from streampca.accumulators.gram_state import GramOperator


def with_missing(
    model: PCAModel,
    missing: str,
    state: CovarianceState | PairwiseState | GramOperator | SketchState,
    n_left_out: int,
    clipped: float | None,
    missing_scores: str = "conditional",
) -> PCAModel:
    """Add the treatment of missing values to the certificate of `model` and to its transform of such rows.

    Parameters
    ----------
    model : PCAModel
        As it was solved.
    missing : {"error", "drop_rows", "mean", "pairwise"}
        How missing values were treated.
    state : CovarianceState, PairwiseState or GramReduced
        Accumulated state.
    n_left_out : int
        Rows that were left out.
    clipped : float or None
        Sum of the moduli of negative eigenvalues.
    missing_scores : {"conditional", "mean"}
        What scores rows with missing values have.
    """
    if missing == "error":
        return model
    certificate = dict(model.certificate)
    if missing == "drop_rows":
        certificate["rows_left_out"] = n_left_out
        certificate["statement"] += f"; {n_left_out} row(s) with missing values were left out"
        return replace(model, missing=missing, certificate=certificate)
    certificate["missing_values"] = n_missing = int(getattr(state, "n_missing", 0))
    if clipped is None and missing == "pairwise":
        certificate["statement"] += (
            f"; {n_missing} value(s) are missing, and were taken to be missing at random in each feature"
        )
    elif clipped is None:
        certificate["statement"] += f"; {n_missing} missing value(s) were replaced by the mean of their feature"
    else:
        certificate["clipped_mass"] = clipped
        certificate["statement"] += (
            f"; {n_missing} value(s) are missing, and every covariance is that of the rows in which both features were "
            f"observed: such a matrix may have negative eigenvalues, which were clipped (sum of moduli: {clipped:.3g}, "
            "counted as variance so that shares add up to one)"
        )
    return replace(model, missing=missing, fill=state.mean, missing_scores=missing_scores, certificate=certificate)
