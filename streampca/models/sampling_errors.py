"""Sampling errors of eigenvalues, shares and components, by a jackknife over groups of rows and by North's rule."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Literal, Self

import numpy as np
from scipy.special import stdtrit

from streampca.errors import DataError, ModelError, ParameterError
from streampca.linalg.control_limits import Moments
from streampca.linalg.cross_validation import jackknife_variance
from streampca.linalg.scaling import UNSCALED, Scaling
from streampca.models.plain import plain, record_of
from streampca.storage.state_file import storable
from streampca.typing import Array, FloatArray, Json


@dataclass(frozen=True, eq=False)
class SamplingErrors:
    """Statistical errors of the result, relative to the population from which the rows are sampled.

    All are standard errors to first order; NaN if unknown. They do not include numerical errors.
    """

    estimates: FloatArray
    """Eigenvalues that the errors refer to, ``(k,)``."""
    eigenvalues: FloatArray
    """Standard errors of the eigenvalues, ``(k,)``."""
    shares: FloatArray
    """Standard errors of the shares of the total variance, ``(k,)``."""
    angles: FloatArray
    """Root mean square angle in radians between each component and the component of the population, at most π/2, ``(k,)``."""
    north: FloatArray
    """North's rule: λ √(2/N), where N is the effective number of samples of each component or, if unknown, of rows, ``(k,)``."""
    effective_n_samples: FloatArray
    """Effective number N of independent samples for the variance of each component, ``(k,)``; NaN if autocorrelations are unknown."""
    method: str
    """Source of the errors: ``"groups"``, whose covariances the fit kept (autocorrelations are then unknown), or ``"reading"``, the scores of one more pass. Earlier versions also wrote ``"scores"`` and ``"known scores"``."""
    n_blocks: int
    """Number of groups of consecutive rows that are left out one at a time."""

    @property
    def errors(self) -> FloatArray:
        """Standard errors of `estimates`, under a name common to all estimators; here those of the eigenvalues, ``(k,)``."""
        return self.eigenvalues

    def interval(self, level: float = 0.95) -> FloatArray:
        """Return intervals of the eigenvalues, ``(k, 2)``: λ exp(± t s / λ), with t of Student's distribution with n_blocks − 1 degrees of freedom.

        They are intervals of log λ, which is closer to normal, and so always positive. `level` is their nominal
        coverage; `ParameterError` unless it is between 0 and 1.
        """
        return intervals_of(self.estimates, self.eigenvalues, self.n_blocks, level)

    @property
    def degenerate_groups(self) -> tuple[tuple[int, int], ...]:
        """First and last component (from 0) of each run of neighbours whose error bars by North's rule overlap.

        Within such a group, components are arbitrary mixtures of the components of the population (North et al.
        1982).
        """
        overlap = (self.estimates - self.north)[:-1] < (self.estimates + self.north)[1:]
        groups: list[tuple[int, int]] = []
        for i in np.flatnonzero(overlap).tolist():
            if groups and groups[-1][1] == i:
                groups[-1] = (groups[-1][0], i + 1)
            else:
                groups.append((i, i + 1))
        return tuple(groups)

    def to_dict(self) -> Json:
        """Return plain data for JSON; None for NaN."""
        named: Json = {entry.name: plain(getattr(self, entry.name)) for entry in fields(self)}
        return named | {"degenerate_groups": [list(group) for group in self.degenerate_groups]}

    @classmethod
    def from_dict(cls, data: Json, n_components: int) -> Self:
        """Return the errors that `data` holds for `n_components`; `ModelError` if it is not what `to_dict` returns."""
        errors = record_of(cls, data, "the sampling errors are")
        for name, value in vars(errors).items():
            if isinstance(value, np.ndarray) and value.shape != (n_components,):
                raise ModelError(
                    f"the sampling errors are damaged: {name} has {len(value)} entries for {n_components} components"
                )
        return errors


def intervals_of(
    values: FloatArray, errors: FloatArray, n_blocks: int, level: float, *, bounded: bool = False
) -> FloatArray:
    """Return intervals of values with standard errors from `n_blocks` groups, ``(k, 2)``, symmetric about log λ or, of correlations, artanh ρ."""
    if not 0 < level < 1:
        raise ParameterError(f"level={level!r}: expected a number between 0 and 1")
    t = float(stdtrit(n_blocks - 1, (1 + level) / 2))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if bounded:
            ends = np.tanh(np.arctanh(values)[:, None] + np.outer(t * errors / (1 - np.square(values)), [-1, 1]))
            return np.where(np.isnan(ends), values[:, None], ends)
        relative = np.divide(errors, values, out=np.zeros_like(values), where=values > 0)
        scaled: FloatArray = values[:, None] * np.exp(np.outer(t * relative, [-1.0, 1.0]))
    return scaled


_OF_GROUPS = ("weights", "sums", "products", "lengths", "features")
"""Sums of which there is one for each group."""
Method = Literal["reading", "groups"]


@dataclass(frozen=True)
class Population:
    """What else is known of the fit whose scores were summed."""

    eigenvalues: FloatArray
    """Eigenvalues of the fit, ``(k,)``."""
    ddof: int
    """Variances are divided by Σ w − ddof."""
    center: bool
    """Whether the mean was subtracted."""
    total: float
    """Total variance."""
    n_outside: int
    """Number of directions that have variance and are not among the components."""
    factor: float = 1.0
    """By what variances of scores are multiplied to give eigenvalues: 1, or n for those of a kernel matrix."""
    others: FloatArray | None = None
    """Variances of the directions outside, where they are known."""
    moments: Moments = ()
    """Their power sums θ₂/θ₁² and θ₃/θ₁³ otherwise, as far as they are known; without any, all have the same variance."""
    axes: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    """The components, ``(k, n_features)``, where features were scaled."""
    scaling: Scaling = UNSCALED
    """How features were scaled."""
    freedom: float = 1.0
    """Share of the degrees of freedom of the rows that `remove` left."""
    outside: FloatArray | None = None
    """Mean squared turns out of the space of the components, ``(k,)``, where the covariances of the groups tell them."""


def sampling_errors(moments: GroupMoments, population: Population, method: Method) -> SamplingErrors:
    """Return the sampling errors of the components whose scores were summed.

    The covariance of the scores without group g is C₍g₎ = (Σ w t tᵀ − s sᵀ / Σ w) / (Σ w − ddof) over the other rows. To first
    order, λᵢ becomes its diagonal entry i, vᵢ turns towards vⱼ by its entry ij over λᵢ − λⱼ, and the variances over the groups
    are those of the jackknife. The turn out of the space of the components is Σ w tᵢ² q / (W − ddof)² (λᵢ − λⱼ)², for rows that
    are independent, in the mean over the directions j outside with their variances as weights (`_outside`).

    Where features were scaled, the scales change with the rows, too: C₍g₎ − ½ (M Λ + Λ M) with M = V E Vᵀ, where E has the
    relative changes of the squared divisors of the features on its diagonal; 0 where the means tell them, which are taken as known.

    Where means and slopes were removed, that left n − c of n − 1 degrees of freedom, all variances are divided by that share.

    Groups whose rows all have the weight 0 do not count. `DataError` if fewer than two are left, or the others of one of them have
    no variance.
    """
    counts = moments.weights[:, 0] > 0
    moments = replace(moments, **{name: getattr(moments, name)[counts] for name in _OF_GROUPS})
    weights = moments.weights[:, 0]
    if len(weights) < 2 or weights.max() >= weights.sum() - population.ddof:
        raise DataError(
            f"the weights of the rows are {weights.tolist()} in the {len(weights)} groups of positive weight: expected at least two, and "
            "more than ddof without any of them; give fewer groups (sampling_errors)"
        )
    divisor = weights.sum() - population.ddof
    full = _covariance(moments, population, None)
    without = np.stack([_covariance(moments, population, g) for g in range(len(weights))])
    values = np.diag(full).copy()
    if population.scaling:
        changes = [scale_changes(moments, population, g) for g in range(len(weights))]
        rescaled = np.stack([(population.axes * change) @ population.axes.T for change in changes])  # V E Vᵀ
        without -= (rescaled * values + values[:, None] * rescaled) / 2
    eigenvalues = np.sqrt(jackknife_variance(values, np.einsum("gii->gi", without), weights) / population.freedom)
    effective_n = np.maximum(effective_n_samples(moments) * population.freedom, 1.0)
    rows = max(1.0, moments.weights[:, 0].sum() ** 2 / moments.weights[:, 1].sum() * population.freedom)
    north_n = np.where(np.isnan(effective_n), rows, effective_n)
    return SamplingErrors(
        estimates=population.eigenvalues,
        eigenvalues=population.factor * eigenvalues,
        shares=_share_errors(moments, population, values, without),
        angles=_angles(moments, population, values, full, without, divisor),
        north=population.eigenvalues * np.sqrt(2 / north_n),
        effective_n_samples=effective_n,
        method=method,
        n_blocks=len(weights),
    )


def effective_n_samples(moments: GroupMoments) -> FloatArray:
    """Return N (1 − r²) / (1 + r²) for the autocorrelation r of the scores at lag one, ``(k,)``, and N = (Σ w)² / Σ w².

    That is the number of independent samples from which a variance has the same error as from the series, if it is a first-order
    autoregressive process (Bretherton et al. 1999, for quadratic statistics). NaN where the products of neighbours are not known.
    """
    total, squares = moments.weights.sum(axis=0)
    sums = np.einsum("gii->i", moments.products)
    r = np.divide(moments.lagged, sums, out=np.zeros_like(sums), where=sums > 0)
    number: FloatArray = total**2 / squares * (1 - r**2) / (1 + r**2)
    return np.maximum(number, 1.0)


def _covariance(moments: GroupMoments, population: Population, left_out: int | None) -> FloatArray:
    """Return the covariance of the scores of all rows but those of a group, ``(k, k)``."""
    products, sums = moments.products.sum(axis=0), moments.sums.sum(axis=0)
    weight = moments.weights[:, 0].sum()
    if left_out is not None:
        products, sums = products - moments.products[left_out], sums - moments.sums[left_out]
        weight = weight - moments.weights[left_out, 0]
    if population.center:
        products = products - np.outer(sums, sums) / weight
    covariance: FloatArray = products / (weight - population.ddof)
    return covariance


def scale_changes(moments: GroupMoments, population: Population, left_out: int) -> FloatArray:
    """Return by how much the squares of the divisors of features change without a group, relative to them, ``(n_features,)``."""
    squares, weight = moments.features.sum(axis=0), moments.weights[:, 0].sum()
    squares, others = map(population.scaling.summed, (squares, squares - moments.features[left_out]))
    ratio = np.divide(others, squares, out=np.ones_like(squares), where=squares > 0)
    ratio *= (weight - population.ddof) / (weight - moments.weights[left_out, 0] - population.ddof)
    return np.where(squares == 0, 0.0, population.scaling.change(ratio))


def _share_errors(moments: GroupMoments, population: Population, values: FloatArray, without: FloatArray) -> FloatArray:
    """Return the standard errors of the shares; the mean of the directions outside is taken as that of all rows.

    Where the lengths of the rows are not known, the variance outside is that of all rows without any group.
    """
    weights = moments.weights[:, 0]
    values_without = np.einsum("gii->gi", without)
    if population.total <= 0:
        return np.zeros_like(values)
    if population.scaling.fixes_total:
        totals, total = np.full(len(weights), population.total), population.total
    else:
        total = population.total
        outside = max(0.0, total - float(values.sum()))
        if np.isfinite(moments.lengths).all():
            left = moments.lengths - np.einsum("gii->g", moments.products)
            scale = outside * (weights.sum() - population.ddof) / left.sum() if left.sum() > 0 else 0.0
            outside_without = scale * (left.sum() - left) / (weights.sum() - weights - population.ddof)
        else:
            outside_without = np.full(len(weights), outside)
        totals = values_without.sum(axis=1) + outside_without
        total = float(values.sum()) + outside
    shares = values_without / np.maximum(totals, np.finfo(float).tiny)[:, None]
    return np.sqrt(jackknife_variance(values / total, shares, weights) / population.freedom)


def _angles(
    moments: GroupMoments,
    population: Population,
    values: FloatArray,
    full: FloatArray,
    without: FloatArray,
    divisor: float,
) -> FloatArray:
    """Return the root mean square angles of the components with those of the population, at most π/2."""
    gaps = values[:, None] - values
    turns = np.sqrt(jackknife_variance(full, without, moments.weights[:, 0]))
    np.fill_diagonal(turns, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.where(turns > 0, np.square(turns / gaps), 0.0).sum(axis=1)
        residual = max(0.0, population.total - float(values.sum()))
        others, shares = _outside(population, residual)
        inverse = (shares / np.square(values[:, None] - others)).sum(axis=1)
        outside = moments.outside
        if not np.isfinite(outside).all():  # as of a normal distribution
            outside = divisor * values * residual
        beyond = np.where(outside > 0, outside / divisor**2 * inverse, 0.0)
    beyond = np.where(residual > 0, beyond if population.outside is None else population.outside, 0.0)
    squares = np.nan_to_num(inside + beyond, nan=np.inf) / population.freedom
    angles: FloatArray = np.minimum(np.sqrt(squares), np.pi / 2)
    return angles


def _outside(population: Population, residual: float) -> tuple[FloatArray, FloatArray]:
    """Return variances λⱼ of directions outside and their shares of all variance there, ``(m,)``, for means over these.

    Where only power sums are known, they are the nodes and weights of the quadrature that is right for them: 0 and θ₃/θ₂ with the
    weight θ₂²/(θ₁θ₃) (Gauss and Radau), or θ₂/θ₁ alone (Gauss; Golub & Meurant 2010, chapter 6). The mean of 1/(λᵢ − λ)², all derivatives of
    which are positive, is never too large by them.
    """
    values, moments = population.others, population.moments
    if values is not None and values.sum() > 0:
        return values, values / values.sum()
    if len(moments) > 1:
        upper = min(1.0, moments[0] ** 2 / moments[1])
        return np.array([0.0, residual * moments[1] / moments[0]]), np.array([1 - upper, upper])
    mean = moments[0] if moments else 1 / population.n_outside if population.n_outside > 0 else 0.0
    return np.array([residual * mean]), np.ones(1)


@storable
@dataclass(frozen=True)
class GroupMoments:
    """Sums over the rows of m consecutive groups; w is a row's weight, t its k centred scores, z the row itself.

    z is centred and scaled, as the fit takes it, and q = ‖z‖² − ‖t‖² is the part of it that the components leave.
    """

    first: int
    """Number of the first group, from 0."""
    start: int
    """First row."""
    stop: int
    """Row after the last."""
    weights: FloatArray
    """Σ w and Σ w², ``(m, 2)``."""
    sums: FloatArray
    """Σ w t, ``(m, k)``."""
    products: FloatArray
    """Σ w t tᵀ, ``(m, k, k)``."""
    lengths: FloatArray
    """Σ w ‖z‖², ``(m,)``; NaN where it is not known."""
    outside: FloatArray
    """Σ w t² q over all rows, ``(k,)``; NaN where it is not known."""
    lagged: FloatArray
    """Σ √(w w') t t' over all pairs of neighbouring rows, ``(k,)``."""
    ends: FloatArray
    """√w t of the first and the last row, ``(2, k)``."""
    features: FloatArray
    """Σ w z² of each feature where features were scaled, ``(m, n_features)``, else ``(m, 0)``."""

    @classmethod
    def empty(cls, k: int, n_features: int) -> GroupMoments:
        """Return the sums of no rows."""
        return cls(
            first=0,
            start=0,
            stop=0,
            weights=np.zeros((0, 2)),
            sums=np.zeros((0, k)),
            products=np.zeros((0, k, k)),
            lengths=np.zeros(0),
            outside=np.zeros(k),
            lagged=np.zeros(k),
            ends=np.zeros((2, k)),
            features=np.zeros((0, n_features)),
        )

    @classmethod
    def of(
        cls,
        group: int,
        start: int,
        scores: Array,
        lengths: FloatArray | None,
        weights: FloatArray | None,
        features: FloatArray,
    ) -> GroupMoments:
        """Return the sums of consecutive rows of one group.

        Parameters
        ----------
        group : int
            Number of the group.
        start : int
            First row.
        scores : array, shape (n_rows, k)
            Centred scores, not whitened; at least one row.
        lengths : array, shape (n_rows,), or None
            ‖z‖² of the rows.
        weights : array, shape (n_rows,), or None
            Weights of the rows; None = all 1.
        features : array, shape (n_features,) or (0,)
            Σ w z².
        """
        n_rows = len(scores)
        rooted = scores if weights is None else scores * np.sqrt(weights)[:, None].astype(scores.dtype)
        w = np.ones(n_rows) if weights is None else weights
        squares = np.square(scores, dtype=np.float64)
        carried = squares @ np.ones(scores.shape[1])
        unknown = np.full(scores.shape[1], np.nan)
        left = None if lengths is None else w * np.maximum(lengths - carried, 0.0)
        return cls(
            first=group,
            start=start,
            stop=start + n_rows,
            weights=np.array([[w.sum(), w @ w]]),
            sums=(w @ scores)[None].astype(np.float64),
            products=(rooted.T @ rooted)[None].astype(np.float64),
            lengths=np.array([np.nan if lengths is None else w @ lengths]),
            outside=unknown if left is None else left @ squares,
            lagged=np.einsum("ij,ij->j", rooted[:-1], rooted[1:], dtype=np.float64),
            ends=rooted[[0, -1]].astype(np.float64),
            features=features[None],
        )

    def absorb(self, other: GroupMoments) -> GroupMoments:
        """Return the sums of the rows of both; products of neighbouring rows are complete if one follows the other."""
        if not len(self.weights):
            return other
        if not len(other.weights):
            return self
        if other.start < self.start:
            return other.absorb(self)
        first = min(self.first, other.first)
        size = max(self.first + len(self.weights), other.first + len(other.weights)) - first
        summed = {}
        for name in _OF_GROUPS:
            mine, theirs = getattr(self, name), getattr(other, name)
            total = np.zeros((size, *mine.shape[1:]))
            total[self.first - first :][: len(mine)] += mine
            total[other.first - first :][: len(theirs)] += theirs
            summed[name] = total
        border = self.ends[1] * other.ends[0] if self.stop == other.start else 0.0
        return GroupMoments(
            first=first,
            start=self.start,
            stop=max(self.stop, other.stop),
            outside=self.outside + other.outside,
            lagged=self.lagged + other.lagged + border,
            ends=np.stack([self.ends[0], (other if other.stop >= self.stop else self).ends[1]]),
            **summed,
        )
