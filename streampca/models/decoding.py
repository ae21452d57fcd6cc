"""What the rounding of packed values, while they are decoded, adds to a certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.linalg.scaling import EXPECTED, Scaling, root_sums
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import ApproximateCertificate
from streampca.models.pca import PCAModel
from streampca.typing import FloatArray

_PER_VALUE = 3.0
"""Units of |v| + |o| that a value v = n s + o loses at most: |n s| for the product, |v| for the sum, |n s| + |o| for s and o."""


def rounding_of_decoding(
    model: PCAModel,
    mean: FloatArray,
    variance: FloatArray | float = 0.0,
    scaling: Scaling = False,
    removed: FloatArray | float = 0.0,
) -> float:
    """Return a bound of ‖E‖_F / √(n − ddof) for the rounding E of scaled and weighted rows that were decoded; 0 where none were.

    A feature with the mean m, the standard deviation s and the offset o loses, as a root mean square, at most
    e = 3 u √(2 (m² + o² + s² + r)) with the unit u of rounding and the square r of what was `removed` of it.
    Rows times fixed factors w move by √(Σ w² e²). Factors that follow from the data move, too:

    - w = 1/s has the relative error ρ ≤ e / (s − e), of a variable the same with root sums of e² and s². Of centred features the
      change of the length cancels the part of the rounding that caused it; uncentred ones move by √(Σ w² m² ρ²) in addition.
    - w = 1/√v(m), expected of the mean, has ρ = max |√(v(m) / v(m ± e)) − 1|; rows move by √(Σ w² (s² + m²) ρ²) in addition,
      without m² where they are centred.

    Parameters
    ----------
    model : PCAModel
        Its source says what was decoded.
    mean, variance : float arrays, shape (n_features,)
        Those of the features before they are scaled; the variance counts where factors follow from the data.
    scaling : bool, str or tuple
        The parameter of the fit; False for factors that do not depend on the data.
    removed : float array, shape (n_features,)
        Mean squares of what regression removed from the rows.
    """
    described: Any = model.source
    arrays = described.get("variables") if isinstance(described.get("variables"), list) else [described]
    packed = [array["packing"] for array in arrays if array.get("decoded") and array.get("packing")]
    packed = [each for each in packed if "scale_factor" in each or "add_offset" in each]
    if not packed:
        return 0.0
    offset = max(abs(float(np.ravel(each.get("add_offset", 0.0))[0])) for each in packed)
    weights = np.ones_like(mean) if model.weights is None else model.weights
    unit = _PER_VALUE * float(np.finfo(described["dtype"]).eps) / 2
    per_divisor = model.n_samples / max(1, model.n_samples - model.ddof)
    means = mean**2 * per_divisor
    about_zero = means + (offset**2 + removed) * per_divisor
    squares = float((weights**2 * about_zero).sum()) + model.total_variance
    moved = unit * float(np.sqrt(2 * squares))
    if scaling is False or (model.center and not isinstance(scaling, str)):
        return moved
    lost = unit * np.sqrt(2 * (about_zero + variance))
    change = _change_of_factors(mean, variance, scaling, lost)
    spread = (0.0 if model.center else means) + (variance if isinstance(scaling, str) else 0.0)
    used = weights > 0
    return moved + float(np.sqrt((weights**2 * spread * change**2)[used].sum()))


def _change_of_factors(
    mean: FloatArray, variance: FloatArray | float, scaling: Scaling, lost: FloatArray
) -> FloatArray:
    """Return a bound of the relative errors of factors that follow from features which `lost` so much, root mean squares."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if isinstance(scaling, str):
            expected = EXPECTED[scaling][0]
            known = expected(mean)
            ends = [np.abs(np.sqrt(known / expected(mean + sign * lost)) - 1) for sign in (-1, 1)]
            return np.asarray(np.nan_to_num(np.maximum(*ends), nan=np.inf))
        deviation = np.sqrt(variance)
        if isinstance(scaling, tuple):
            sizes = np.diff(scaling)
            deviation, lost = (np.repeat(root_sums(each, scaling), sizes) for each in (deviation, lost))
        return np.where(lost < deviation, lost / (deviation - lost), np.inf)


def with_decoding(
    model: PCAModel,
    mean: FloatArray,
    variance: FloatArray | float = 0.0,
    scaling: Scaling = False,
    removed: FloatArray | float = 0.0,
) -> PCAModel:
    """Return `model` with the rounding of decoded values in its certificate: of singular values σ it is at most ‖E‖.

    For the other parameters see `rounding_of_decoding`.
    """
    first = float(model.explained_variance[0]) if len(model.explained_variance) else 0.0
    error = rounding_of_decoding(model, mean, variance, scaling, removed)
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
