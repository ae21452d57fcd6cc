"""Contributions of missing values, and of the rounding of packed values and integers, to a certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import DataError
from streampca.formatting import plural
from streampca.kernels.base import Standardised
from streampca.linalg.scaling import UNSCALED, Scaling
from streampca.models import certificate_sentences as sentences
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.stored import StoredRows
from streampca.typing import DType, FloatArray, IntArray

if TYPE_CHECKING:
    from streampca.accumulators import CovarianceState, PairwiseState, SketchState
    from streampca.accumulators.gram import GramOperator


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


_PER_VALUE = 3.0
"""Units of |v| + |o| that a value v = n s + o loses at most: |n s| for the product, |v| for the sum, |n s| + |o| for s and o."""


def rounding_of_decoding(
    model: PCAModel,
    mean: FloatArray,
    variance: FloatArray | float = 0.0,
    scaling: Scaling = UNSCALED,
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
    scaling : Scaling
        How features were scaled; not at all for factors that do not depend on the data.
    removed : float array, shape (n_features,)
        Mean squares of what regression removed from the rows.
    """
    described: Any = model.source
    arrays = described.get("variables") if isinstance(described.get("variables"), list) else [described]
    packed = [array["packing"] for array in arrays if array.get("decoded") and array.get("packing")]
    packed = [each for each in packed if "scale_factor" in each or "add_offset" in each]
    if described.get("normalize"):  # whose rows are of another size than what was decoded
        return 0.0
    if not packed and "scale" not in (described.get("quantization") or {}):
        return 0.0
    offset = max((abs(float(np.ravel(each.get("add_offset", 0.0))[0])) for each in packed), default=0.0)
    weights = np.ones_like(mean) if model.weights is None else model.weights
    unit = _PER_VALUE * float(np.finfo(described["dtype"]).eps) / 2
    per_divisor = model.n_samples / max(1, model.n_samples - model.ddof)
    means = mean**2 * per_divisor
    about_zero = means + (offset**2 + removed) * per_divisor
    squares = float((weights**2 * about_zero).sum()) + model.total_variance
    moved = unit * float(np.sqrt(2 * squares))
    if not scaling or (model.center and not scaling.of_means):
        return moved
    lost = unit * np.sqrt(2 * (about_zero + variance))
    change = scaling.moved(mean, variance, lost)
    spread = (0.0 if model.center else means) + (variance if scaling.of_means else 0.0)
    used = weights > 0
    return moved + float(np.sqrt((weights**2 * spread * change**2)[used].sum()))


def with_decoding(
    model: PCAModel,
    mean: FloatArray,
    variance: FloatArray | float = 0.0,
    scaling: Scaling = UNSCALED,
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
    return replace(model, certificate=certificate.widened(moved * first))


_WHOLE = 2.0**53
"""Largest number up to which float64 holds every integer."""


def with_integer_rounding(model: PCAModel) -> PCAModel:
    """Return `model` with the rounding of integers beyond 2**53 in its certificate, where its rows are such.

    A feature with a mean m beyond that is rounded by up to δ = ulp(m), so that rows move by up to ‖δ‖, in the units of the
    matrix, and a singular value by ε = ‖δ‖ √(W / (W − ddof)) / √λ₁ of the first (Weyl), an eigenvalue by 2 ε + ε². Integers beyond it
    about a smaller mean vary by so much that their rounding is that of any float64 number. Where a part of the rows is removed, m is
    the largest number that is fitted to a row; the mean of groups far from zero may be zero.

    Raises
    ------
    DataError
        If that is as much as the first eigenvalue.
    """
    dtype = np.dtype(model.source.get("dtype", "float64"))
    if dtype.kind not in "iu" or dtype.itemsize < 8:
        return model
    level = _level(model)
    far = np.flatnonzero(level > _WHOLE)
    if not len(far):
        return model
    step = np.spacing(level)
    factors = np.ones(len(step)) if model.weights is None else model.weights.copy()
    if model.scale is not None:  # what is constant after rounding may have varied by as much
        constant = np.intersect1d(model.constant_features, far)
        factors[constant] = 1 / step[constant]
    length = float(np.linalg.norm((step * factors)[far])) * np.sqrt(model.weight / (model.weight - model.ddof))
    first = float(model.explained_variance[0])
    share = length / np.sqrt(first) if first > 0 else np.inf
    change = float(2 * share + share**2)
    if change >= 1:
        raise _as_much_as_varies(far, level, step)
    given = model.certificate
    squared = given.eigen_solver != "lapack svd"
    trusted = given.trusted_above + change if squared else max(given.trusted_above, share**2)
    certificate = given.saying(sentences.integers_rounded(change), integer_rounding=change, trusted_above=trusted)
    rank = int(np.count_nonzero(model.explained_variance > trusted * first))
    rank = min(rank, model.numerical_rank)
    return replace(model, certificate=certificate.widened(change * first), numerical_rank=rank)


def with_rounded_integers(model: KernelModel, dtype: DType) -> KernelModel:
    """Return the kernel `model` of rows of `dtype` with the rounding of integers beyond 2**53 in its certificate.

    Kernel values depend on rows in as many ways as there are kernels, so the figure is of rows: by what part of the root mean square
    distance of the landmarks from their mean, in the units of the kernel, rounding may move one.

    Raises
    ------
    DataError
        If that is so much that a variance along a direction may double, and the kernel matrix is centred.
    """
    if dtype.kind not in "iu" or dtype.itemsize < 8 or len(model.landmarks) < 2:
        return model
    rows = model.landmarks
    bands = [band for _, band in rows.bands()] if isinstance(rows, StoredRows) else [rows]
    origin = np.asarray(bands[0][0], dtype=np.float64)
    sums = sum((band.astype(np.float64) - origin).sum(axis=0) for band in bands)
    offset = sums / len(rows)
    level = np.abs(origin + offset)
    far = np.flatnonzero(level > _WHOLE)
    if not len(far):
        return model
    variance = sum(np.square(band.astype(np.float64) - origin - offset).sum(axis=0) for band in bands) / len(rows)
    step, factors = np.spacing(level), np.ones(len(level))
    if isinstance(model.kernel, Standardised):
        factors = np.divide(1.0, np.sqrt(variance), out=np.zeros(len(level)), where=variance > 0)
    spread = float(np.sqrt(np.square(factors) @ variance))
    share = float(np.linalg.norm((step * factors)[far])) / spread if spread > 0 else np.inf
    if 2 * share + share**2 >= 1 and model.center:
        raise _as_much_as_varies(far, level, step)
    certificate = model.certificate.saying(sentences.integers_rounded_of_rows(share), integer_rounding=share)
    return replace(model, certificate=certificate)


def _as_much_as_varies(far: IntArray, level: FloatArray, step: FloatArray) -> DataError:
    return DataError(
        f"{plural(len(far), 'feature holds', 'features hold')} integers near {float(level[far[0]]):.3g} (first: feature {far[0]}), which float64 rounds by up to "
        f"{step[far[0]]:g}: as much as they vary. Subtract a whole number near its mean from each feature first, as in X - X[0]"
    )


def _level(model: PCAModel) -> FloatArray:
    """Return the largest modulus that the mean, and what is removed with it, have in a row of each feature, ``(n_features,)``."""
    removal = model.removal
    if removal is None:
        return np.abs(model.mean)
    columns = 0.0
    n_groups = len(removal.coefficients) if removal.rows is None else removal.rows.n_groups
    if removal.rows is not None and removal.rows.columns.shape[1]:
        largest = np.abs(removal.rows.columns).max(axis=0)
        columns = largest @ np.abs(removal.coefficients[n_groups:])
    groups = np.abs(removal.mean + removal.coefficients[:n_groups]).max(axis=0, initial=0.0)
    level: FloatArray = np.maximum(np.abs(removal.mean), groups) + columns
    return level
