"""Limits of T² and Q of the rows of a model."""

from __future__ import annotations

from typing import get_args

from streampca.errors import NotAvailableError, ParameterError
from streampca.linalg.control_limits import Distribution, QMethod, q_limit, t2_limit
from streampca.linalg.selection import is_number
from streampca.models.pca import PCAModel


def t2_limit_of(model: PCAModel, probability: float, distribution: Distribution) -> float:
    """Return the limit of T²; see `PCA.t2_limit`."""
    probability = _checked(probability)
    if distribution not in get_args(Distribution):
        raise ParameterError(f"distribution={distribution!r}: expected one of {', '.join(get_args(Distribution))}")
    k, weight = model.numerical_rank, model.weight
    if not k:
        raise NotAvailableError("there is no limit of T²: no component has a variance above rounding")
    estimated = k + model.n_means - int(distribution == "f")
    if distribution != "chi2" and weight <= estimated:
        raise NotAvailableError(
            f"there is no limit of T² by distribution={distribution!r}: expected more rows than components and means, and found a weight "
            f"of {weight:g} for {k} and {model.n_means}: take fewer components, or distribution='chi2'"
        )
    return t2_limit(k, weight, probability, distribution=distribution, n_means=model.n_means, ddof=model.ddof)


def q_limit_of(model: PCAModel, probability: float) -> tuple[float, QMethod]:
    """Return the limit of Q and its method; see `PCA.q_limit`."""
    probability = _checked(probability)
    left = variance_left(model)
    if not left > max(model.rounding, 1e-14) * model.total_variance:
        raise NotAvailableError(
            "there is no limit of Q: the components carry all variance up to rounding, and Q is rounding"
        )
    if not model.residual_moments:
        raise NotAvailableError(
            "there is no limit of Q: the sums of powers of the eigenvalues left out are not known, because the model was saved by an "
            "earlier version, or its sketch has no held-out columns: fit again, with an exact solver"
        )
    return q_limit(left, model.residual_moments, probability)


def variance_left(model: PCAModel) -> float:
    """Return the sum of the eigenvalues that the components leave, negative ones of pairwise covariances included."""
    clipped = model.certificate.clipped_mass or 0.0
    return model.total_variance - clipped - float(model.explained_variance.sum())


def _checked(probability: float) -> float:
    """Return a probability as a float of Python, because a float32 would take digits from the limit."""
    if not is_number(probability) or not 0 < probability < 1:
        raise ParameterError(f"probability={probability!r}: expected a number in (0, 1), for example 0.99")
    return float(probability)
