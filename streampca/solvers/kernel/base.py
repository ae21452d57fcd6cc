"""Base class of the methods of kernel PCA: a fit of one table, and the steps from eigenpairs to a model."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import override

from streampca.accumulators.centring import work_dtype
from streampca.errors import DataError, NotFiniteError, ParameterError
from streampca.kernels import Kernel
from streampca.linalg.scaling import UNSCALED, Scaling
from streampca.linalg.selection import Count, NComponents, Selection, as_selection, is_count
from streampca.models import certificate_sentences as sentences
from streampca.models.kernel import KernelModel, panel_rows, preimage_of
from streampca.models.rounding import with_rounded_integers
from streampca.models.stored import StoredRows
from streampca.planning.memory import Phase
from streampca.planning.plan import KernelDetail, Plan
from streampca.planning.shape import WorkShape
from streampca.planning.work import Companion, Resources, Work
from streampca.solvers.base import NOTHING_PLANNED, Solver
from streampca.solvers.result import FitResult
from streampca.sources.frames import is_indexed, is_xarray
from streampca.typing import Array, DType, FloatArray, Json

if TYPE_CHECKING:
    from streampca.kernels import Kernel


SAMPLINGS = ("auto", "uniform", "diagonal", "column_norm", "rpcholesky")
"""What `sampling` may be, beside row indices and landmarks."""
AFTER: tuple[Phase, ...] = ("solving", "scores", "report")
"""Phases in which the model is in memory."""
ROUNDING = {"float32": 2e-7, "float64": 1e-12}
"""Share of the first eigenvalue below which one is rounding, as scikit-learn has it."""
SAMPLE = 256
"""Rows on which rounding of kernel values is measured."""
_VALUE_ROUNDINGS = 4
_MOST_LOST = 1e-3
_LEAST_VALUE = 1e-290  # float64 has all its digits down to 2e-308; sums of squares of smaller values do not


@dataclass(frozen=True)
class KernelParameters:
    """What of a fit is decided by the user, beside the data."""

    kernel: Kernel
    """The kernel, which may still leave gamma to the number of features."""
    n_components: NComponents = None
    """Count, share, `Threshold` or None."""
    method: str = "auto"
    """``"auto"`` or the name of a method."""
    n_landmarks: int = 1000
    """Landmarks that are drawn."""
    sampling: str = "auto"
    """One of `SAMPLINGS`, where landmarks are not given."""
    given: Array | None = None
    """Row indices ``(m,)`` or landmarks ``(m, n_features)`` in place of a drawing."""
    sketch: str = "gaussian"
    """The transform of the empirical kernel map: ``"auto"``, ``"gaussian"``, ``"count_sketch"``, ``"sparse_sign"`` or ``"grouping"``."""
    sketch_size: int | str = "auto"
    """Its columns, or ``"auto"``."""
    n_hashes: int = 4
    """Hash functions of a count sketch."""
    recovery: str = "nystrom"
    """``"nystrom"`` or ``"conversion"``."""
    center: bool = True
    """Centre in kernel space."""
    inverse: bool = False
    """Learn the map from scores back to features."""
    alpha: float = 1.0
    """Ridge penalty of the map from scores back to features."""
    sampling_errors: int = 0
    """Groups of rows of the jackknife; 0 = none."""
    seed: int = 0
    """Seed of everything that is drawn."""
    memory: int | str | None = None
    """Ceiling for the process."""
    device: str = "cpu"
    """Where products of kernel values are made."""
    threads: int | None = None
    """Threads to share; None = all cores this process may use."""
    read_ahead: int | None = None
    """Most bytes for reading ahead from a remote store; None = 128 MiB, where the ceiling leaves them."""

    # What parameters of PCA say, and kernel PCA does not do.
    ddof: ClassVar[int] = 1
    missing: ClassVar[str] = "error"
    remove: ClassVar[None] = None
    sample_weight: ClassVar[None] = None
    scaling: ClassVar[Scaling] = UNSCALED

    @property
    def solver(self) -> str:
        """Return the name of the method, or ``"auto"``."""
        return self.method

    def n_wanted(self, n_samples: int) -> int:
        """Return how many landmarks there will be of `n_samples` rows."""
        return len(self.given) if self.given is not None else min(self.n_landmarks, n_samples)

    def require_at_most(self, limit: int, of: str) -> None:
        """Raise `ParameterError` if more components are asked for than `limit`, the number `of` something that the plan knows."""
        k = self.n_components
        if is_count(k) and not 1 <= k <= limit:
            raise ParameterError(f"n_components={k!r}: expected between 1 and {limit}, the number of {of}")

    def selection(self, limit: int) -> Selection:
        """Return the rule for how many of the `limit` components that exist are taken; a larger count takes all of them."""
        k = self.n_components
        if is_count(k):
            return Count(min(int(k), limit))
        return as_selection(k, limit)

    def components_missing(self, n_found: int) -> Json:
        """Return what a certificate says if `n_found` positive eigenvalues are fewer than were asked for; else nothing."""
        k = self.n_components
        asked = int(k) if is_count(k) else n_found
        return {"components_missing": asked - n_found, "components_found": n_found} if n_found < asked else {}

    def count(self, limit: int) -> int | None:
        """Return the number of components where it is known beforehand, at most `limit`; None where the data decides."""
        k = self.n_components
        if k is None:
            return limit
        if is_count(k) and k < 1:
            raise ParameterError(f"n_components={k!r}: expected at least 1")
        selection = as_selection(k, max(limit, 2**62))
        return min(limit, selection.n_components or limit) if isinstance(selection, Count) else None


def given_landmarks(sampling: ArrayLike) -> Array:
    """Return row indices, ``(m,)``, or landmarks, ``(m, n_features)``; raise `ParameterError` if it is neither."""
    given = np.asarray(sampling)
    if given.ndim == 2 and (is_indexed(sampling) or is_xarray(sampling)):
        raise ParameterError(
            "sampling has labelled landmarks, but labels are not used here: give .to_numpy() of landmarks whose features are "
            "in the order of the data"
        )
    indices = given.ndim == 1 and given.dtype.kind in "iu" and len(given) and given.min() >= 0
    points = given.ndim == 2 and given.dtype.kind in "iuf" and given.size and bool(np.isfinite(given).all())
    if not (indices or points):
        raise ParameterError(
            f"sampling of shape {given.shape} and type {given.dtype}: expected one of {', '.join(SAMPLINGS)}, row indices of "
            "at least 0, or finite landmarks of shape (m, n_features)"
        )
    if indices and len(np.unique(given)) < len(given):
        raise ParameterError("sampling names a row twice: expected each row index once")
    return given


def settings_of(plan: Plan) -> KernelDetail:
    """Return the settings of the method of kernel PCA that `plan` is of."""
    if not isinstance(plan.detail, KernelDetail):
        raise TypeError(f"the solver {plan.solver} is not a method of kernel PCA")
    return plan.detail


@dataclass(frozen=True, kw_only=True)
class KernelFit(FitResult):
    """A finished fit of kernel PCA."""

    model: KernelModel
    """The model."""
    plan: Plan
    """The plan that was carried out."""
    eigenvectors: FloatArray | None = None
    """Eigenvectors of the kernel matrix of all rows where the method has them in memory, ``(n_samples, k)``."""

    def warnings(self) -> list[str]:
        """Return sentences about what limits the use of the result, or makes it other than was asked for."""
        warnings = [sentences.indefinite(self.model.method)] if self.model.certificate.definite is False else []
        return warnings + self.model.concerns


@dataclass(frozen=True)
class KernelMethod(Work, Solver[KernelParameters, KernelFit]):
    """A fit of kernel PCA by one method."""

    n_components: int | None = None
    resources: Resources = NOTHING_PLANNED
    settings = KernelDetail

    @override
    @property
    def work_dtype(self) -> str:
        return str(self.dtype)

    @property
    def dtype(self) -> DType:
        """Return the data type of the products."""
        return work_dtype(self.source.dtype)

    @cached_property
    def kernel(self) -> Kernel:
        """Return the kernel for so many features."""
        return self.parameters.kernel.bound(self.source.shape[1])

    @property
    @abstractmethod
    def m(self) -> int:
        """Return the number of landmarks; all rows for the methods that compare all pairs."""

    @property
    @abstractmethod
    def k(self) -> int:
        """Return the number of components."""

    @override
    def edges(self, shape: WorkShape) -> tuple[int, ...] | None:
        return super().edges(shape) if shape.n_leaves > 1 else None

    def scores_bytes(self, rows: int, m: int) -> int:
        """Return what the scores of a block take beside it, in one leaf, with `m` landmarks in memory.

        p (m + 2 k) w for a panel of p ≤ b rows, what the kernel takes, 8 m (d + k + 2) for the model, and 48 b k.
        """
        k, d = self.k, self.source.shape[1]
        values = min(rows, panel_rows(m, self.dtype)) * (m + 2 * k) * self.dtype.itemsize
        of_kernel = self.kernel.scratch_bytes(m, d) + self.kernel.prepared_bytes(m, d)
        return values + of_kernel + 8 * m * (d + k + 2) + 6 * 8 * rows * k

    @override
    @classmethod
    def model_bytes(cls, plan: Plan, n_components: int) -> int:
        """Return the size of a saved model: landmarks, their coefficients, and two vectors."""
        return 8 * settings_of(plan).n_landmarks * (plan.n_features + n_components + 2)

    @override
    @classmethod
    def seconds(cls, plan: Plan, companions: Iterable[Companion] = ()) -> float:
        rate = (60e9 if plan.work_dtype == "float32" else 30e9) * plan.threads
        return 0.05 + plan.flops / rate + (plan.bytes_to_read + settings_of(plan).disk_readings * plan.disk_bytes) / 1e9

    @override
    def finished(self, fit: KernelFit) -> KernelFit:
        """Return the fit with what rounding of integers may change; raise `NotFiniteError` where numbers leave their range."""
        model, source = fit.model, self.source
        numbers = (model.eigenvalues, model.coefficients, model.centre, np.array(model.total))
        if not all(np.isfinite(each).all() for each in numbers):
            raise NotFiniteError("kernel values or their products overflow float64: rescale the data first")
        limits, longest = np.finfo(model.score_dtype(source.dtype)), float(np.sqrt(model.eigenvalues[0]))
        smallest = float(limits.tiny) * model.n_samples**0.5 / float(limits.eps)
        if longest and not smallest <= longest <= float(limits.max):
            raise NotFiniteError(
                f"scores of length {longest:.3g} leave the range of {limits.dtype}, in which scores of {source.dtype} rows are "
                "returned: rescale the data first, or convert it to float64"
            )
        return replace(fit, model=with_rounded_integers(model, source.dtype))


@dataclass(frozen=True)
class DenseMatrix:
    """A symmetric matrix in memory."""

    values: Array
    """The matrix, ``(side, side)``."""
    n_threads: int = field(default=1, kw_only=True)
    """Threads for products."""

    @property
    def side(self) -> int:
        """Return the side of the matrix."""
        return len(self.values)

    @property
    def rank_limit(self) -> int:
        """Return the largest possible number of eigenpairs."""
        return len(self.values)

    @property
    def diagonal(self) -> FloatArray:
        """Return the diagonal, ``(side,)``."""
        return self.values.diagonal().copy()

    def multiply(self, vectors: FloatArray) -> FloatArray:
        """Return the matrix times `vectors`, ``(side, n_vectors)``."""
        return self.values @ vectors

    def dense(self) -> FloatArray:
        """Return the matrix as a new array."""
        return self.values.copy()


def signs_of(columns: FloatArray) -> FloatArray:
    """Return 1 or −1 for each column, so that its entry of largest modulus (the first of several) becomes positive, ``(k,)``."""
    largest = np.abs(columns).argmax(axis=0)
    return np.where(columns[largest, np.arange(columns.shape[1])] < 0, -1.0, 1.0)


def inverse_roots(values: FloatArray, precision: float) -> FloatArray:
    """Return 1/√λ, and 0 for eigenvalues that are rounding beside the first, ``(k,)``."""
    large = values > precision * max(float(values[0]), 0.0) if len(values) else values > 0
    return np.divide(
        1.0, np.sqrt(values, where=large, out=np.ones_like(values)), where=large, out=np.zeros_like(values)
    )


def share_of(part: float, whole: float) -> float:
    """Return `part` / `whole`, 0 where there is nothing."""
    return part / whole if whole > 0 else 0.0


def shares(values: FloatArray, total: float, residual: float) -> Json:
    """Return how much of the trace the components carry, and the interval of what they leave."""
    captured = min(1.0, float(values.sum()) / total) if total > 0 else 0.0
    return {
        "captured_variance": captured,
        "relative_residual": 1.0 - captured,
        "relative_residual_interval": (
            max(0.0, 1.0 - captured - residual / total) if total > 0 else 0.0,
            1.0 - captured,
        ),
    }


def with_preimage(model: KernelModel, parameters: KernelParameters, vectors: FloatArray | None = None) -> KernelModel:
    """Return `model` with the map from scores back to features if that was asked for; `vectors` are those of the landmarks."""
    if not parameters.inverse:
        return model
    points = np.asarray(model.landmarks, dtype=np.float64)
    scores = model.encode(points) if vectors is None else vectors * np.sqrt(model.eigenvalues)
    return replace(model, preimage=preimage_of(model.kernel, points, scores, parameters.alpha))


def value_rounding(kernel: Kernel, points: Array) -> float:
    """Return ρ, the largest error of kernel values in the type of `points` relative to √(κ(x, x) κ(z, z)).

    Measured on at most 256 of the landmarks `points`, ``(m, n_features)``, with all of them: against float64, and in
    float64 by values that are made about another origin (half of the landmarks) and with themselves; at least four
    units of rounding. Infinite where values overflow.
    """
    chosen = points[:: -(-len(points) // SAMPLE)]
    wide, every, half = chosen.astype(np.float64), points.astype(np.float64), -(-len(points) // 2)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        diagonal = np.maximum(kernel.diagonal(wide), 0.0)
        scale = np.sqrt(diagonal)[:, None] * np.sqrt(np.maximum(kernel.diagonal(every), 0.0))
        exact = kernel(wide, every)
        narrow = np.abs(kernel.prepare(points, points.dtype)(chosen) - exact)
        moved = 2 * np.abs(kernel(wide, every[:half]) - exact[:, :half])
        itself = np.abs(np.diagonal(kernel(wide, wide)) - diagonal)
        worst = max(_ratio(narrow, scale), _ratio(moved, scale[:, :half]), _ratio(itself, diagonal))
    return max(_VALUE_ROUNDINGS * float(np.finfo(points.dtype).eps), worst) if np.isfinite(worst) else math.inf


def _ratio(gaps: Array, scale: FloatArray) -> float:
    """Return the largest of `gaps` / `scale` where `scale` is positive."""
    shares = np.divide(gaps, scale, out=np.zeros(gaps.shape), where=scale > 0)
    return float(shares.max(initial=0.0))


def suitable_dtype(kernel: Kernel, rows: Array | StoredRows, dtype: DType, *, center: bool) -> DType:
    """Return `dtype`, or float64 where float32 would take more than a thousandth of what kernel values vary by.

    That is so where rows are far from zero beside their spread (kernels that are not radial), where a kernel is nearly
    constant, and where values leave the range of float32. Told by at most 256 of `rows`, ``(n_rows, n_features)``.

    Raises
    ------
    DataError
        If kernel values underflow float64; NotFiniteError if they overflow it.
    """
    chosen = np.ascontiguousarray(rows[:: -(-len(rows) // SAMPLE)])
    wide = chosen.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        values = kernel(wide, wide)
    largest = float(np.abs(values).max(initial=0.0))
    if largest < _LEAST_VALUE and (largest > 0 or _vanished(kernel, wide)):
        raise DataError(
            f"kernel values are at most {largest:.3g}, where float64 has lost their digits: rescale the features first"
        )
    if not np.isfinite(largest):
        raise NotFiniteError("kernel values overflow float64: rescale the data first")
    if dtype == np.float64:
        return dtype
    trace = float(values.trace())
    varies = trace - len(values) * float(values.mean()) if center else trace
    rho = value_rounding(kernel, chosen.astype(dtype))
    return dtype if rho * abs(trace) <= _MOST_LOST * varies else np.dtype(np.float64)


def _vanished(kernel: Kernel, rows: FloatArray) -> bool:
    """Tell whether kernel values of `rows`, all of which are 0, are not when the rows are brought to length 1."""
    peak = float(np.abs(rows).max(initial=0.0))
    if not peak:
        return False
    with np.errstate(over="ignore"):
        scaled = rows / peak
    return bool(kernel(scaled, scaled).any())
