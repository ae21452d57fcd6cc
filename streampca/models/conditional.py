"""Scores of rows with missing values: their conditional mean given the observed features, under the probabilistic model.

In the model of Tipping & Bishop (1999), a centred, scaled and weighted row z has the covariance C = V S Vᵀ + σ² I, with
S = Λ − σ² and components V in columns here. With o the observed and m the missing features, E[z_m | z_o] = C_mo C_oo⁻¹ z_o, so
that the scores s = Vᵀ z have the conditional mean

    ŝ = b + (I − A) t,   t = S^½ (σ² I + S^½ A S^½)⁻¹ S^½ b,   A = V_oᵀ V_o,   b = V_oᵀ z_o:

a k × k system for each pattern of holes: holes of a row are its missing values, and their pattern which features these are. All
rows with one pattern share the system. Without holes A = I and ŝ = b. Without noise
(σ² = 0) it is the least-squares fit of the observed features, of smallest norm in S^−½ t where they do not determine it. A
row without any observed feature has b = 0 and the mean of the prior, ŝ = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streampca.linalg.control_limits import normal_quantile
from streampca.models.stored import Components
from streampca.typing import BoolArray, FloatArray, IntArray

_BATCH_VALUES = 2**16
"""Entries of the k × k matrices that are solved at once."""
_EPS = float(np.finfo(np.float64).eps)
_NOISE_FLOOR = 1e-10
"""Share of the largest S above which σ² makes the system safe for a Cholesky-like solution."""


class ProbabilisticModel(Protocol):
    """The attributes of a fitted PCA model that conditional means follow from."""

    @property
    def components(self) -> Components:
        """Principal axes, ``(k, n_features)``."""

    @property
    def n_components(self) -> int:
        """Number of components k."""

    @property
    def explained_variance(self) -> FloatArray:
        """Eigenvalues of the covariance matrix, ``(k,)``."""

    @property
    def noise_variance(self) -> float:
        """Mean of the eigenvalues that the model omits."""

    @property
    def whiten(self) -> bool:
        """Whether scores are divided by `deviations`."""

    @property
    def deviations(self) -> FloatArray:
        """Standard deviations of the scores, ``(k,)``."""


def fill_in(model: ProbabilisticModel, rows: NDArray[np.floating], scores: NDArray[np.floating]) -> None:
    """Replace the scores of rows with NaN, computed with 0 for missing values, by conditional means, in place.

    Parameters
    ----------
    model : ProbabilisticModel
        Its components are in memory.
    rows : array, shape (n_rows, n_features)
        The rows, with NaN for missing values.
    scores : array, shape (n_rows, k)
        Scores V_oᵀ z_o, whitened if the model whitens.
    """
    missing = np.isnan(rows)
    holes = np.flatnonzero(missing.any(axis=1))
    if not len(holes):
        return
    groups = [(holes[first], holes[members]) for first, members in patterns_of(missing[holes])]
    components = np.asarray(model.components)

    def products(row: int) -> FloatArray:
        absent: FloatArray = components[:, missing[row]]
        product: FloatArray = absent @ absent.T
        return product

    _apply(model, scores, groups, products, whitened=model.whiten)


def patterns_of(missing: BoolArray) -> list[tuple[int, IntArray]]:
    """Return for each pattern of holes the first row that has it and all rows that have it; `missing` is ``(n_rows, d)``."""
    packed = np.ascontiguousarray(np.packbits(missing, axis=1))
    keys = packed.view(np.dtype((np.void, packed.shape[1])))[:, 0]
    _, first, pattern = np.unique(keys, return_index=True, return_inverse=True)
    ends = np.cumsum(np.bincount(np.ravel(pattern), minlength=len(first)))
    members = np.split(np.argsort(np.ravel(pattern), kind="stable"), ends[:-1])
    return [(int(row), rows) for row, rows in zip(first, members, strict=True)]


def fill_in_from(model: ProbabilisticModel, lost: FloatArray, scores: NDArray[np.floating]) -> None:
    """As `fill_in`, for scores without whitening, from the products V_mᵀ V_m of each row, ``(n_rows, k (k + 1) / 2)``.

    For readings by features, in which the patterns of holes are never seen as a whole; see `add_lost`.
    """
    holes = np.flatnonzero(lost.any(axis=1))
    upper = np.triu_indices(model.n_components)

    def products(row: int) -> FloatArray:
        return unpacked(lost[row], upper)

    _apply(model, scores, [(int(row), holes[i : i + 1]) for i, row in enumerate(holes)], products, whitened=False)


def n_packed(n_components: int) -> int:
    """Return the number of products of a row: k (k + 1) / 2."""
    return n_components * (n_components + 1) // 2


def add_lost(missing: BoolArray, slab: FloatArray, lost: FloatArray) -> None:
    """Add to `lost`, ``(n_rows, k (k + 1) / 2)``, the products of the components of missing features.

    Parameters
    ----------
    missing : array of bool, shape (n_rows, n_some)
        Which values are missing.
    slab : array, shape (k, n_some)
        Components for these features.
    """
    rows = np.flatnonzero(missing.any(axis=1))
    upper = np.triu_indices(len(slab))
    for row in rows:
        absent = slab[:, missing[row]]
        lost[row] += (absent @ absent.T)[upper]


def scratch_bytes(n_components: int) -> int:
    """Return the scratch memory in bytes that `fill_in` takes beside a mask of the rows: some k × k matrices."""
    return 8 * (6 * max(_BATCH_VALUES, n_components**2) + 4 * n_components**2)


def posterior(
    spread: FloatArray, noise: float, observed: FloatArray, eps: float = _EPS
) -> tuple[FloatArray, FloatArray]:
    """Return S^½ (σ² I + S^½ A S^½)⁻¹ S^½ and the logarithm of the determinant of σ² I + S^½ A S^½, for a stack of A.

    Parameters
    ----------
    spread : array, shape (k,)
        S, not negative.
    noise : float
        σ².
    observed : array, shape (n, k, k)
        The matrices A.
    eps : float
        Relative rounding of the scores: where there is next to no noise, directions of which the observed features show
        less than 4 k eps of the largest variance count as not observed.
    """
    root = np.sqrt(spread)
    largest = float(spread.max(initial=0.0))
    if largest == 0:
        return np.zeros_like(observed), np.full(len(observed), len(spread) * np.log(max(noise, np.finfo(float).tiny)))
    # Relative to the largest variance, so that nothing leaves the range of float64.
    unit, own = root / np.sqrt(largest), noise / largest
    system = unit[:, None] * observed * unit
    system.reshape(len(system), -1)[:, :: len(unit) + 1] += own
    with np.errstate(divide="ignore"):
        if own > _NOISE_FLOOR:
            inverse = np.linalg.inv(system)
            logarithm = np.linalg.slogdet(system)[1]
        else:
            values, vectors = np.linalg.eigh(system)
            floor = 4 * len(unit) * eps
            inverted = np.divide(1.0, values, out=np.zeros_like(values), where=values > floor)
            inverse = (vectors * inverted[:, None]) @ vectors.transpose(0, 2, 1)
            logarithm = np.log(np.maximum(values, floor)).sum(axis=1)
    return unit[:, None] * inverse * unit, logarithm + len(unit) * np.log(largest)


def gains(model: ProbabilisticModel, observed: FloatArray) -> FloatArray:
    """Return the matrices K = I + (I − A) P with ŝ = K V_o z_o, for a stack of A, ``(n, k, k)``."""
    spread = np.maximum(np.asarray(model.explained_variance, dtype=np.float64) - model.noise_variance, 0.0)
    unit = np.eye(model.n_components)
    gain: FloatArray = unit + (unit - observed) @ posterior(spread, model.noise_variance, observed)[0]
    return gain


def residual_factors(
    model: ProbabilisticModel, observed: FloatArray, n_observed: IntArray, n_complete: int
) -> FloatArray:
    """Return what the squared residuals of rows with holes are multiplied by to have the limit of complete rows, ``(n,)``.

    In the probabilistic model the residual z_o − V_oᵀ ŝ = (I − V_oᵀ K V_o) z_o of the observed features, with ŝ = K V_o z_o, has the
    covariance σ² I + V_oᵀ G V_o, G = (I − KA) S (I − KA)ᵀ − σ² (K + Kᵀ − K A Kᵀ). Its squared norm has the mean E = tr and
    the variance 2 tr(·²), hence ν = E² / tr(·²) degrees of freedom, and by Wilson & Hilferty (1931) the quantile
    E (1 − c + z √c)³ with c = 2 / (9ν). The factor is the quantile of complete rows, E = σ² (d − k) and ν = d − k, over that of the
    observed features, both at 0.99. It is 1 for rows without holes, and where there is no noise.

    Parameters
    ----------
    model : ProbabilisticModel
        Its components, variances and noise.
    observed : array, shape (n, k, k)
        The matrices A of patterns of holes.
    n_observed : array of int, shape (n,)
        Numbers of observed features.
    n_complete : int
        Number of features d of a row without holes.
    """
    k, noise = model.n_components, model.noise_variance
    spread = np.maximum(np.asarray(model.explained_variance, dtype=np.float64) - noise, 0.0)
    if n_complete <= k or noise <= _NOISE_FLOOR * float(spread.max(initial=0.0)):
        return np.ones(len(observed))
    spread, unit = spread / noise, np.eye(k)
    gain = gains(model, observed)
    left = unit - gain @ observed
    turned = gain.transpose(0, 2, 1)
    inner = (left * spread) @ left.transpose(0, 2, 1) - gain - turned + gain @ observed @ turned
    product = inner @ observed
    trace = np.trace(product, axis1=1, axis2=2)
    mean = n_observed + trace
    squares = n_observed + 2 * trace + np.einsum("nij,nji->n", product, product)
    factors: FloatArray = np.ones(len(observed))
    some = (n_observed > 0) & (mean > 0) & (squares > 0)
    freedom = np.divide(mean**2, squares, out=np.ones_like(mean), where=some)
    complete = float(n_complete - k)
    np.divide(complete * _quantile(complete), mean * _quantile(freedom), out=factors, where=some)
    return factors


def _quantile(freedom: FloatArray | float) -> FloatArray | float:
    """Return the quantile at 0.99 of χ²(ν) / ν by Wilson & Hilferty (1931)."""
    variance = 2 / (9 * np.asarray(freedom))
    quantile: FloatArray = (1 - variance + normal_quantile(0.99) * np.sqrt(variance)) ** 3
    return quantile


def _apply(
    model: ProbabilisticModel,
    scores: NDArray[np.floating],
    groups: list[tuple[int, IntArray]],
    products: Callable[[int], FloatArray],
    *,
    whitened: bool,
) -> None:
    """Apply the map of each of `groups`, a row with its pattern of holes and all rows with it, to the scores of its rows."""
    k, eps = model.n_components, float(np.finfo(scores.dtype).eps)
    spread = np.maximum(np.asarray(model.explained_variance, dtype=np.float64) - model.noise_variance, 0.0)
    unwhiten = np.where(np.isfinite(model.deviations), model.deviations, 0.0) if whitened else np.ones(k)
    ahead = np.divide(1.0, unwhiten, out=np.zeros(k), where=unwhiten > 0)
    size = max(1, _BATCH_VALUES // k**2)
    for start in range(0, len(groups), size):
        batch = groups[start : start + size]
        lost = np.stack([products(row) for row, _ in batch])
        inverse, _ = posterior(spread, model.noise_variance, np.eye(k) - lost, eps)
        for (_, rows), own in zip(batch, np.eye(k) + lost @ inverse, strict=True):
            # A product for each row, so that its bits do not depend on the rows beside it.
            made = np.matmul(own, (scores[rows] * unwhiten)[:, :, None])[:, :, 0]
            scores[rows] = made * ahead


def unpacked(numbers: FloatArray, upper: tuple[IntArray, IntArray]) -> FloatArray:
    """Return the symmetric matrix of the numbers of its upper triangle, at the places `upper`."""
    k = int(upper[0][-1]) + 1
    matrix = np.zeros((k, k))
    matrix[upper] = numbers
    matrix.T[upper] = numbers
    return matrix
