"""Certificate and imputation of models that were fitted on rows with missing values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from streampca.models import certificate_sentences as sentences
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
    given = model.certificate
    if missing == "drop_rows":
        certificate = given.saying(sentences.rows_left_out(n_left_out), rows_left_out=n_left_out)
        return replace(model, missing=missing, certificate=certificate)
    n_missing = int(getattr(state, "n_missing", 0))
    clause = sentences.missing_values(n_missing, missing, clipped)
    certificate = given.saying(clause, missing_values=n_missing, clipped_mass=clipped)
    return replace(model, missing=missing, fill=state.mean, missing_scores=missing_scores, certificate=certificate)
