"""Two distances of rows from a model: Hotelling's T² within the space of the components, and the squared distance Q from it.

A row z is centred, scaled and weighted, and s = V z are its scores. T² = Σ sᵢ²/λᵢ over the components above rounding, and
Q = ‖z − Vᵀ s‖², the squared prediction error, with the same components. Of rows with missing values, s are the conditional means
given the observed features o, and Q = f ‖z_o − V_oᵀ s‖², with the factor f of `conditional.residual_factors` by which such rows have
the limit of complete ones. Where missing values count as the mean (``missing_scores="mean"``) the row is the one that is filled
with means. Rows that have no scores have neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from streampca.errors import NotAvailableError, NotComputedError, ParameterError
from streampca.linalg.control_limits import Distribution, QMethod, q_limit, t2_limit
from streampca.linalg.random_matrix import projection_shrinkage
from streampca.linalg.selection import is_number
from streampca.models.conditional import add_lost, gains, n_packed, patterns_of, residual_factors, unpacked
from streampca.models.pca import PCAModel
from streampca.models.stored import StoredComponents
from streampca.typing import Array, BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array


_PANEL_BYTES = 2**20
_BATCH_VALUES = 2**16
"""Entries of the k × k matrices of patterns of holes that are in memory at once."""
_SUBTRACTED_FROM = 0.01
"""Share Q / ‖z‖² from which Q is ‖z‖² − ‖s‖²."""
_ORTHONORMAL = 1e-13
"""Orthonormality of components up to which that is so."""


def t2_of_scores(model: PCAModel, scores: Array) -> FloatArray:
    """Return T² of rows with these scores, ``(n_rows, k)``, whitened if the model whitens; ``(n_rows,)``."""
    rank = model.numerical_rank
    unit = scores[:, :rank].astype(np.float64)
    if not model.whiten:
        unit /= np.sqrt(model.explained_variance[:rank])
    t2: FloatArray = np.einsum("ij,ij->i", unit, unit)
    return t2


def row_diagnostics(model: PCAModel, rows: Any, scores: Array) -> tuple[FloatArray, FloatArray]:
    """Return T² and Q of `rows`, each ``(n_rows,)``, in float64.

    Q is ‖z‖² − ‖s‖² where that is at least a hundredth of ‖z‖², so that the subtraction costs at most two digits of the
    accuracy of the scores, and else the sum of the squared residuals, for which the rows are projected back: 2 d k flops a row.
    That is also done for all rows with missing values.

    Parameters
    ----------
    model : PCAModel
        The model.
    rows : array or sparse matrix, shape (n_rows, n_features)
        Rows as `PCAModel.encode` takes them.
    scores : array, shape (n_rows, k)
        Their scores.
    """
    t2 = t2_of_scores(model, scores)
    if not isinstance(rows, np.ndarray):
        return t2, _q_of_sparse(model, rows.tocsr(), scores)
    q, step = np.empty(len(scores)), _panel_rows(model)
    for start in range(0, len(q), step):
        panel = slice(start, start + step)
        q[panel] = _q(model, rows[panel], plain_scores(model, scores[panel]))
    return t2, q


def scratch_bytes(model: PCAModel, rows: int) -> int:
    """Return the scratch memory in bytes of `row_diagnostics` for blocks of `rows` dense rows."""
    k, width, panel = model.n_components, model.width, _panel_rows(model)
    values = 6 * 8 * panel * width + 16 * k * panel + 48 * rows
    if model.on_disk:
        values += 16 * k * width
    if model.conditional:
        values += 10 * 8 * max(_BATCH_VALUES, k**2) + 8 * panel * n_packed(k)
    return values


def _panel_rows(model: PCAModel) -> int:
    """Return how many dense rows are looked at at once: about 1 MiB of them."""
    return max(1, _PANEL_BYTES // (8 * model.width))


def plain_scores(model: PCAModel, scores: Array) -> FloatArray:
    """Return scores without whitening of the components above rounding, ``(n_rows, rank)``, in float64."""
    plain = scores[:, : model.numerical_rank].astype(np.float64)
    if model.whiten:
        plain *= model.deviations[: model.numerical_rank]
    return plain


def centred_rows(
    model: PCAModel, rows: Array, features: slice, out: FloatArray | None = None
) -> tuple[FloatArray, BoolArray | None]:
    """Return some features of rows, centred, scaled and weighted, in float64, 0 where they count as missing, and where that is.

    The values are written to `out`, of their shape, if it is given.
    """
    values = np.empty((len(rows), features.stop - features.start)) if out is None else out
    values[...] = rows[:, features]
    values -= model.centre[features]
    missing = None
    if model.stand_in is not None and rows.dtype.kind == "f":
        absent = np.isnan(values)
        if absent.any():
            np.copyto(values, (model.stand_in - model.mean)[features], where=absent)
            missing = absent if model.conditional else None
    weights = model.weights_of(features)
    if weights is not None:
        values *= weights
    return values, missing


def _q(model: PCAModel, rows: Array, scores: FloatArray) -> FloatArray:
    """Return Q of a panel of dense rows with the scores of the components above rounding."""
    lengths, holes = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
    for start in range(0, model.n_features, model.width):
        features = slice(start, min(model.n_features, start + model.width))
        values, missing = centred_rows(model, rows, features)
        lengths += np.einsum("ij,ij->i", values, values)
        if missing is not None:
            holes |= missing.any(axis=1)
    q: FloatArray = lengths - np.einsum("ij,ij->i", scores, scores)
    again = np.flatnonzero(~(q >= _least_share(model) * lengths) | holes)
    if len(again):
        q[again] = _squared_residuals(model, rows[again], scores[again])
    if holes.any():
        q[holes] *= _factors(model, rows[holes])
    return q


def _least_share(model: PCAModel) -> float:
    """Return the share from which Q is ‖z‖² − ‖s‖²: none where components are not, or not known to be, orthonormal."""
    return _SUBTRACTED_FROM if model.certificate.orthonormality <= _ORTHONORMAL else np.inf


def _squared_residuals(model: PCAModel, rows: Array, scores: FloatArray) -> FloatArray:
    """Return ‖z_o − V_oᵀ s‖² of dense rows."""
    squares = np.zeros(len(rows))
    for features, slab in model.slabs():
        residual, missing = centred_rows(model, rows, features)
        residual -= scores @ slab[: model.numerical_rank]
        if missing is not None:
            residual[missing] = 0.0
        squares += np.einsum("ij,ij->i", residual, residual)
    return squares


def _q_of_sparse(model: PCAModel, rows: csr_array, scores: Array) -> FloatArray:
    """Return Q of sparse rows; those are made dense, some at a time, where the sum of squares cancels."""
    own, weights = plain_scores(model, scores), model.weights
    squared = np.ones(rows.shape[1]) if weights is None else weights**2
    far = float(squared @ model.mean**2)
    values, mean, factor = rows.data.astype(np.float64), model.mean[rows.indices], squared[rows.indices]
    lengths = far + _row_sums(rows, factor * values * (values - 2 * mean))
    largest = far + _row_sums(rows, factor * values**2)
    q: FloatArray = lengths - np.einsum("ij,ij->i", own, own)
    again, step = np.flatnonzero(~(q >= _least_share(model) * largest)), _panel_rows(model)
    for start in range(0, len(again), step):
        some = again[start : start + step]
        q[some] = _squared_residuals(model, rows[some].toarray(), own[some])
    return q


def _row_sums(rows: csr_array, values: FloatArray) -> FloatArray:
    """Return the sums over each row of `values` at the places that `rows` stores."""
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    return np.asarray(np.bincount(owner, values, minlength=rows.shape[0]), dtype=np.float64)


def _factors(model: PCAModel, rows: Array) -> FloatArray:
    """Return the factor f of every one of dense rows with holes, ``(n_rows,)``."""
    counted = np.ones(model.components.shape[1], dtype=bool) if model.weights is None else model.weights > 0
    missing = np.isnan(rows)
    n_observed = np.count_nonzero(~missing & counted, axis=1)
    factors = np.empty(len(rows))
    for patterns, observed in observed_products(model, missing):
        first = [members[0] for members in patterns]
        of_patterns = residual_factors(model, observed, n_observed[first], int(counted.sum()))
        for members, factor in zip(patterns, of_patterns, strict=True):
            factors[members] = factor
    return factors


def observed_products(model: PCAModel, missing: BoolArray) -> Iterator[tuple[list[IntArray], FloatArray]]:
    """Yield rows that share a pattern of holes, and A = V_o V_oᵀ of each pattern, ``(n, k, k)``, some patterns at a time."""
    k, components = model.n_components, model.components
    lost = np.zeros((len(missing), n_packed(k) if model.on_disk else 0))
    for features, slab in model.slabs() if model.on_disk else ():
        add_lost(missing[:, features], slab, lost)
    patterns = [members for _, members in patterns_of(missing)]
    size = max(1, _BATCH_VALUES // k**2)
    for start in range(0, len(patterns), size):
        batch, products = patterns[start : start + size], []
        for members in batch:
            if isinstance(components, StoredComponents):
                products.append(unpacked(lost[members[0]], np.triu_indices(k)))
            else:
                absent = components[:, missing[members[0]]]
                products.append(absent @ absent.T)
        yield batch, np.eye(k) - np.stack(products)


@dataclass(frozen=True)
class Contributions:
    """Contributions of each feature to T² and Q of rows."""

    t2: FloatArray
    """Contributions to T², ``(n_rows, n_features)``: zⱼ Σᵢ vᵢⱼ sᵢ/λᵢ (Nomikos & MacGregor 1995; Westerhuis, Gurden & Smilde
    2000, section 3), summed over the components. They may be negative, and sum to T²."""
    q: FloatArray
    """Contributions to Q, ``(n_rows, n_features)``: squared residuals, times the factor of rows with missing values. They sum to Q."""
    feature_names: tuple[str, ...] | None = None
    """Names of the features; None if the data of the fit had none."""

    def largest(self, n: int = 10, of: Literal["q", "t2"] = "q") -> list[list[tuple[str, float]]]:
        """Return for each row its `n` largest contributions with the names of their features, or their numbers, largest first."""
        if of not in ("q", "t2"):
            raise ParameterError(f"of={of!r}: expected 'q' or 't2'")
        values = self.q if of == "q" else self.t2
        order = np.argsort(-values, axis=1, kind="stable")[:, : max(0, n)]
        return [
            [(self._name(int(j)), float(row[j])) for j in places] for row, places in zip(values, order, strict=True)
        ]

    def _name(self, feature: int) -> str:
        return str(feature) if self.feature_names is None else self.feature_names[feature]


def contributions_of(model: PCAModel, rows: Array, names: tuple[str, ...] | None) -> Contributions:
    """Return the contributions of features to T² and Q of dense `rows`, ``(n_rows, n_features)``, in float64.

    Of rows with missing values the scores are ŝ = K V_o z_o, so that zⱼ Σᵢ vᵢⱼ (Kᵀ Λ⁻¹ ŝ)ᵢ sums to T²; missing features contribute 0.
    """
    rows = np.asarray(rows, dtype=np.float64)
    scores, rank = model.encode(rows), model.numerical_rank
    q = row_diagnostics(model, rows, scores)[1]
    plain = plain_scores(model, scores)
    axes = np.asarray(model.components)
    values, missing = centred_rows(model, rows, slice(0, rows.shape[1]))
    residual = values - plain @ axes[:rank]
    weighted = np.zeros(scores.shape)
    weighted[:, :rank] = plain / model.explained_variance[:rank]
    if missing is not None:
        residual[missing] = 0.0
        holes = np.flatnonzero(missing.any(axis=1))
        for patterns, observed in observed_products(model, missing[holes]):
            for members, gain in zip(patterns, gains(model, observed), strict=True):
                weighted[holes[members]] = weighted[holes[members]] @ gain
    squares = residual**2
    sums = squares.sum(axis=1)
    factor = np.divide(q, sums, out=np.ones_like(sums), where=sums > 0)
    return Contributions(values * (weighted @ axes), squares * factor[:, None], names)


def t2_limit_of(model: PCAModel, probability: float, distribution: Distribution) -> float:
    """Return the limit of T²; see `PCA.t2_limit`."""
    probability = _checked(probability)
    if distribution not in get_args(Distribution):
        raise ParameterError(f"distribution={distribution!r}: expected one of {', '.join(get_args(Distribution))}")
    k, weight = model.numerical_rank, model.weight
    if not k:
        raise NotAvailableError("T² has no limit: no component has a variance above rounding")
    estimated = k + model.n_means - int(distribution == "f")
    if distribution != "chi2" and weight <= estimated:
        raise NotAvailableError(
            f"T² has no limit by distribution={distribution!r}: expected more rows than components and means, and found a weight "
            f"of {weight:g} for {k} and {model.n_means}: take fewer components, or distribution='chi2'"
        )
    return t2_limit(k, weight, probability, distribution=distribution, n_means=model.n_means, ddof=model.ddof)


def q_limit_of(model: PCAModel, probability: float) -> tuple[float, QMethod]:
    """Return the limit of Q and its method; see `PCA.q_limit`."""
    probability = _checked(probability)
    left = variance_left(model)
    if not left > max(model.rounding, 1e-14) * model.total_variance:
        raise NotAvailableError(
            "Q has no limit: the components carry all variance up to rounding, so Q is only rounding"
        )
    if not model.residual_moments:
        raise NotAvailableError(
            "Q has no limit: the sums of powers of the eigenvalues left out are unknown, because the model was saved by an "
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


def projection_shrinkage_of(model: PCAModel) -> FloatArray:
    """Return the factors of a model, ``(k,)``; see `PCA.projection_shrinkage`.

    Raises
    ------
    NotComputedError
        If no factors are known for such rows.
    """
    if obstacle := _obstacle(model):
        raise NotComputedError(f"no projection shrinkage is known: {obstacle}")
    left = max(0.0, variance_left(model))
    moment = model.residual_moments[0] if model.residual_moments else 0.0
    n_degrees = model.n_samples - model.n_means
    return projection_shrinkage(model.explained_variance, left, moment, n_degrees, model.eigenvalues)


def _obstacle(model: PCAModel) -> str:
    """Return why there are no factors, empty where there are."""
    if model.sample_weight is not None:
        return "rows have weights, and no law of the eigenvalues of noise is known for them; fit without sample_weight"
    if model.missing == "pairwise":
        return "a matrix of pairwise covariances has other eigenvalues than its rows; fit with missing='mean'"
    if model.n_samples - model.n_means < 2:
        return f"there are {model.n_samples:,} rows: expected two more than means and slopes that were subtracted"
    if not model.residual_moments and variance_left(model) > max(model.rounding, 1e-13) * model.total_variance:
        return (
            "the sums of powers of the eigenvalues left out are unknown, because the model was saved by an earlier version, or its "
            "sketch has no held-out columns; fit again, with an exact solver"
        )
    return ""
