"""What the rounding of packed values, while they are decoded, adds to a certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import ApproximateCertificate
from streampca.models.pca import PCAModel

_PER_VALUE = 3.0
"""Units of |v| + |o| that a value v = n s + o loses at most: |n s| for the product, |v| for the sum, |n s| + |o| for s and o."""


def rounding_of_decoding(model: PCAModel) -> float:
    """Return a bound of ‖E‖_F / √n for the rounding E of scaled and weighted rows that were decoded; 0 where none were.

    It follows from the mean and the total variance, and from the largest offset of the variables.
    """
    described: Any = model.source
    arrays = described.get("variables") if isinstance(described.get("variables"), list) else [described]
    packed = [array["packing"] for array in arrays if array.get("decoded") and array.get("packing")]
    packed = [each for each in packed if "scale_factor" in each or "add_offset" in each]
    if not packed:
        return 0.0
    offset = max(abs(float(np.ravel(each.get("add_offset", 0.0))[0])) for each in packed)
    weights = np.ones_like(model.mean) if model.weights is None else model.weights
    squares = float((weights**2 * (model.mean**2 + offset**2)).sum()) + model.total_variance
    return _PER_VALUE * float(np.finfo(described["dtype"]).eps) / 2 * float(np.sqrt(2 * squares))


def with_decoding(model: PCAModel) -> PCAModel:
    """Return `model` with the rounding of decoded values in its certificate: of singular values σ it is at most ‖E‖."""
    first = float(model.explained_variance[0]) if len(model.explained_variance) else 0.0
    error = rounding_of_decoding(model)
    if error == 0 or first <= 0:
        return model
    known = model.certificate
    of_first = error / np.sqrt(first)
    moved, share = (float(2 * part + part**2) for part in (of_first, error / np.sqrt(model.total_variance)))
    # A solver that squares nothing says the square of the error of singular values.
    squared = known.eigen_solver != "lapack svd"
    trusted = known.trusted_above + moved if squared else (np.sqrt(known.trusted_above) + of_first) ** 2
    low, high = known.relative_residual_interval
    certificate = known.saying(
        sentences.decoded(str(model.source["dtype"]), moved),
        trusted_above=float(trusted),
        relative_residual_interval=(max(0.0, low - share), min(1.0, high + share)),
    )
    if isinstance(certificate, ApproximateCertificate):
        certificate = certificate.widened(moved * first)
    return replace(model, certificate=certificate)
