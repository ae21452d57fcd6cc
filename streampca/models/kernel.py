"""A fitted kernel principal component model: its landmark rows, and the coefficients of their kernel values."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from streampca.accumulators.centring import refuse_not_finite, work_dtype
from streampca.block import Block
from streampca.errors import NotAvailableError, ParameterError
from streampca.kernels.base import Standardised
from streampca.labels import Labels
from streampca.linalg.scaling import Scaling
from streampca.linalg.selection import smallest_count
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import KernelCertificate
from streampca.models.pca import EncodingPurpose, Model
from streampca.models.sampling_errors import Population, SamplingErrors
from streampca.models.stored import BAND_ROWS, StoredRows
from streampca.parameters import KINDS, ModelKind
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray, IntArray, Json

if TYPE_CHECKING:
    from streampca.kernels import Kernel


_PANEL_BYTES = 16 * 2**20
_PANEL_ROWS = (64, 8192)
_SLAB_ROWS = 256
"""Rows that are examined at once, to limit the memory."""
_MOST_ROUNDING = 1e-5
"""Share of the largest scores that rounding of float32 may take; components of small eigenvalues amplify it."""


@dataclass(frozen=True)
class PreimageMap:
    """Kernel ridge regression from scores to rows (Bakır, Weston & Schölkopf 2004; scikit-learn's `KernelPCA`)."""

    scores: FloatArray
    """Scores of the landmarks, ``(m, k)``."""
    dual: FloatArray
    """(κ(scores, scores) + α 1)⁻¹ landmarks, ``(m, n_features)``."""

    def __post_init__(self) -> None:
        in_row_order(self, "scores", "dual")


@dataclass(frozen=True, kw_only=True)
class KernelModel(Model):
    """Kernel principal components of one data set: scores are (k(x) − k̄)ᵀ B with the kernel values k(x) of the landmarks."""

    landmarks: Array | StoredRows
    """The rows that new rows are compared with, in the type of the products, ``(m, n_features)``; in memory or on disk."""
    coefficients: FloatArray
    """B, which turns centred kernel values into scores, ``(m, k)``."""
    centre: FloatArray
    """k̄: the mean kernel values of the training rows; zeros if they were not centred; ``(m,)``."""
    eigenvalues: FloatArray
    """Eigenvalues of the (centred) kernel matrix of the training rows, largest first, ``(k,)``."""
    total: float
    """Trace of the (centred) kernel matrix: see `certificate.trace` for what of it is exact."""
    n_samples: int
    """Rows the model was fitted on."""
    method: str
    """``"exact"``, ``"nystrom"``, ``"nystrom_extension"`` or ``"empirical_map"``."""
    center: bool
    """Whether the kernel matrix was centred."""
    sampling: str = "given"
    """How the landmarks were chosen."""
    certificate: KernelCertificate
    """Bounds of the numerical errors."""
    kernel: Kernel
    """The kernel, with every parameter settled."""
    landmark_indices: IntArray | None = None
    """Row numbers of the landmarks within the training rows, ``(m,)``; None where landmarks were given as rows."""
    preimage: PreimageMap | None = None
    """What `decode` needs; None where it was not asked for."""
    source: Json = field(default_factory=dict)
    """Where the data came from."""
    labels: Labels | None = None
    """Dimensions, coordinates and variables of the features, and names of the samples; None where the data had none."""
    sampling_errors: SamplingErrors | None = None
    """Sampling errors of the result; None where they were not computed."""

    not_diagnosed = "diagnostics (T² and Q of rows) are for PCA: kernel PCA has none"
    missing = "error"
    removal = None

    def __post_init__(self) -> None:
        in_row_order(self, "coefficients", *(() if isinstance(self.landmarks, StoredRows) else ("landmarks",)))

    @property
    @override
    def kind(self) -> ModelKind:
        return KINDS["kernel_pca"]

    @property
    @override
    def attributes(self) -> Json:
        return {"method": self.method, "total": self.total}

    @property
    @override
    def concerns(self) -> list[str]:
        """Return what a user should know of the eigenvalues before using them, a sentence each."""
        return sentences.concerns_of_kernel_pca(self.certificate, self.n_components, center=self.center)

    @property
    @override
    def spectrum(self) -> FloatArray:
        """Return the eigenvalues, largest first, ``(k,)``."""
        return self.eigenvalues

    @property
    @override
    def score_variances(self) -> FloatArray:
        return self.eigenvalues / self.n_samples

    @property
    @override
    def n_features(self) -> int:
        return int(self.landmarks.shape[1])

    @property
    @override
    def explained_variance_ratio(self) -> FloatArray:
        """Return the share of the trace along each component, ``(k,)``."""
        return self.eigenvalues / self.total if self.total > 0 else np.zeros_like(self.eigenvalues)

    def kernel_dtype(self, dtype: DType) -> DType:
        """Return the type of kernel values for rows of `dtype`: float32 where landmarks and rows are no wider, and it suffices.

        Rounding u of kernel values, whose size is κ̄ = rms of the centre + trace / n, gives component j errors of u κ̄ ‖bⱼ‖
        (coefficients bⱼ, about 1 / √λⱼ); the largest scores are about √(λ₁ / n).
        """
        narrow = np.promote_types(self.landmarks.dtype, work_dtype(dtype))
        size = float(np.sqrt(np.mean(np.square(self.centre)))) + abs(self.total) / self.n_samples
        longest = float(np.sqrt(np.einsum("ij,ij->j", self.coefficients, self.coefficients).max(initial=0.0)))
        rounding = float(np.finfo(narrow).eps) * size * longest
        suffices = rounding <= _MOST_ROUNDING * float(np.sqrt(self.eigenvalues[0] / self.n_samples))
        return narrow if suffices else np.dtype(np.float64)

    @override
    def encode(self, rows: Any, out: Array | None = None) -> Array:
        """Return the scores, ``(n_rows, k)``, of `rows`, ``(n_rows, n_features)``; cost 2 m (d + k) flops and m kernel values a row.

        `out`, of the shape and `score_dtype` of the result, may be given to be filled. The mean kernel values are
        subtracted before the product. Takes a panel of rows at a time, so memory does not grow with the rows. Landmarks on
        disk are read once for each panel of at least 2,048 rows.

        Raises
        ------
        ModelError
            If landmarks on disk are gone or damaged.
        """
        dtype = self.kernel_dtype(rows.dtype)
        n_rows, m = int(rows.shape[0]), len(self.landmarks)
        out = np.empty((n_rows, self.n_components), self.score_dtype(rows.dtype)) if out is None else out
        if isinstance(self.landmarks, StoredRows):
            return self._encode_by_bands(self.landmarks, rows, out)
        prepared = self.kernel.prepare(self.landmarks, dtype)
        coefficients, centre = self.coefficients.astype(dtype), self.centre.astype(dtype)
        # What rounding the centre to `dtype` left of it, projected.
        remainder = ((self.centre - centre) @ self.coefficients).astype(dtype)
        step = panel_rows(m, dtype)
        for start in range(0, n_rows, step):
            panel = rows[start : start + step]
            values = prepared(panel, out=borrow("kernel values", (int(panel.shape[0]), m), dtype))
            if self.center:
                values -= centre
            np.subtract(values @ coefficients, remainder, out=out[start : start + step], casting="same_kind")
        return out

    def _encode_by_bands(self, stored: StoredRows, rows: Any, out: Array) -> Array:
        """Fill `out` with the scores of `rows`; the landmarks are read band by band, and products are added in float64."""
        dtype, step = self.kernel_dtype(rows.dtype), panel_rows(BAND_ROWS, self.kernel_dtype(rows.dtype))
        for start in range(0, len(out), step):
            panel = rows[start : start + step]
            scores = np.zeros((int(panel.shape[0]), self.n_components))
            for band, landmarks in stored.bands():
                prepared = self.kernel.prepare(landmarks, dtype)
                values = prepared(panel, out=borrow("kernel values", (len(scores), len(landmarks)), dtype))
                if self.center:
                    values -= self.centre[band].astype(dtype)
                scores += values @ self.coefficients[band].astype(dtype)
            if self.center:
                scores -= (self.centre - self.centre.astype(dtype)) @ self.coefficients
            np.copyto(out[start : start + step], scores, casting="same_kind")
        return out

    @override
    def require_decoder(self) -> None:
        if self.preimage is None:
            raise ParameterError(
                "inverse_transform is not available: the map from scores back to features was not learned; fit with fit_inverse_transform=True"
            )

    @override
    def require_finite(self, rows: Any, start: int) -> None:
        # exp(-inf) = 0: scores are finite where rows are not.
        dense = isinstance(rows, np.ndarray)
        if not (dense and all(np.isfinite(rows[at : at + _SLAB_ROWS]).all() for at in range(0, len(rows), _SLAB_ROWS))):
            refuse_not_finite(rows, start)

    @override
    def count_landmarks(self, block: Block) -> int:
        index = self.landmark_indices
        if index is None:
            return 0
        here = np.flatnonzero((index >= block.start) & (index < block.start + len(block)))
        rows = block.where(index[here] - block.start).dense().values.astype(self.landmarks.dtype)
        return int((rows == self.landmarks[here]).all(axis=1).sum())

    @override
    def loadings(self) -> FloatArray:
        raise NotAvailableError(
            "kernel PCA has no loadings: its scores are kernel values of landmarks, not a linear map of features"
        )

    @override
    def decode(self, scores: Array) -> Array:
        """Return rows in the original space, ``(n_rows, n_features)``, for `scores`, ``(n_rows, k)``: κ(scores, ·) times the dual.

        Raises
        ------
        ParameterError
            If the map from scores back to features was not learned.
        """
        self.require_decoder()
        assert self.preimage is not None  # noqa: S101 for the type checker: required above
        scores = np.asarray(scores)
        out = np.empty((len(scores), self.n_features), self.score_dtype(scores.dtype))
        kernel = self.kernel
        prepared = _plain(kernel).prepare(self.preimage.scores, np.float64)
        step = panel_rows(len(self.preimage.scores), np.dtype(np.float64))
        for start in range(0, len(scores), step):
            panel = np.ascontiguousarray(scores[start : start + step], dtype=np.float64)
            found = prepared(panel) @ self.preimage.dual
            out[start : start + step] = kernel.restore(found) if isinstance(kernel, Standardised) else found
        return out

    @override
    def encoding_bytes(self, rows: int, dtype: DType) -> dict[EncodingPurpose, int]:
        """Return what scores of kernel PCA take beside a block, in each of L leaves.

        Axes: L (8 m d + 8 m (k + 2)) and what the kernel prepares; scores: L (8 p (m + 2 k) + 6 b k e) for a panel of p ≤ b rows, and
        the scratch of the kernel. Of landmarks on disk, a band of them instead of m d, with panels for its rows, and 16 bytes of
        each of its values while it is read.
        """
        k, d, m = self.n_components, self.n_features, len(self.landmarks)
        stored = isinstance(self.landmarks, StoredRows)
        at_once = min(m, BAND_ROWS) if stored else m
        axes = self.kernel.prepared_bytes(at_once, d) + (24 if stored else 8) * at_once * d + 8 * m * (k + 2)
        values = min(rows, panel_rows(at_once, work_dtype(dtype))) * (at_once + 2 * k) * 8
        written = 6 * rows * k * self.score_dtype(dtype).itemsize
        return {"axes": axes, "scores": values + self.kernel.scratch_bytes(at_once, d) + written}

    @override
    def encoding_flops(self) -> float:
        return len(self.landmarks) * (self.kernel.needs(self.n_features).flops + 2 * self.n_components)

    @override
    def decoding_bytes(self, rows: int, dtype: DType) -> int:
        m = 0 if self.preimage is None else len(self.preimage.scores)
        panel = 8 * min(rows, panel_rows(m, work_dtype(dtype))) * (m + self.n_features)
        return self.kernel.prepared_bytes(m, self.n_components) + panel

    @override
    def population(self, unit: float, scaling: Scaling) -> Population:
        n = self.n_samples
        outside = max(0, n - int(self.center) - self.n_components)
        return Population(self.eigenvalues / unit, 0, self.center, self.total / unit / n, outside, float(n))

    @override
    def summary(self) -> Json:
        return {
            "n_components": self.n_components,
            "method": self.method,
            "kernel": self.kernel.to_dict(),
            "sampling": self.sampling,
            "n_landmarks": len(self.landmarks),
            "landmark_indices": None if self.landmark_indices is None else self.landmark_indices[:1000].tolist(),
            "trace": self.total,
            "eigenvalues": self.eigenvalues.tolist(),
            "explained_variance_ratio": self.explained_variance_ratio.tolist(),
            "components_for": {str(share): self.components_for(share) for share in (0.9, 0.95, 0.99)},
        } | ({} if self.sampling_errors is None else {"sampling_errors": self.sampling_errors.to_dict()})

    def components_for(self, share: float) -> int | None:
        """Return how many components carry `share` of the trace, up to rounding; None if more than there are."""
        return smallest_count(self.eigenvalues, self.total, share)


def in_row_order(fitted: object, *names: str) -> None:
    """Store the named arrays of `fitted` row by row, as files hold them: products of others are rounded otherwise."""
    for name in names:
        object.__setattr__(fitted, name, np.ascontiguousarray(getattr(fitted, name)))


def panel_rows(n_landmarks: int, dtype: DType) -> int:
    """Return how many rows are compared with `n_landmarks` rows at once: 16 MiB of kernel values, 64 to 8,192 rows."""
    low, high = _PANEL_ROWS
    return max(low, min(high, _PANEL_BYTES // max(1, n_landmarks * dtype.itemsize)))


def _plain(kernel: Kernel) -> Kernel:
    """Return the kernel of scores, which are not standardised."""
    return kernel.kernel if isinstance(kernel, Standardised) else kernel


def preimage_of(kernel: Kernel, landmarks: Array, scores: FloatArray, alpha: float) -> PreimageMap:
    """Return the kernel ridge regression of `landmarks` on their `scores`, in m³/3 flops.

    The dual coefficients solve (κ(scores, scores) + α 1) A = landmarks, as scikit-learn defines the pre-image of kernel
    PCA; all training rows are landmarks there. For a kernel of z-scores the targets are those of the landmarks.

    Raises
    ------
    ParameterError
        If the system is singular: α is too small for a kernel that is not positive definite.
    """
    from scipy.linalg import LinAlgError, LinAlgWarning, pinvh, solve

    matrix = np.asarray(_plain(kernel)(scores, scores), dtype=np.float64)
    matrix.flat[:: len(matrix) + 1] += alpha
    targets = landmarks.astype(np.float64)
    if isinstance(kernel, Standardised):
        targets = kernel.standardise(targets)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", LinAlgWarning)
            dual = solve(matrix, targets, assume_a="pos" if kernel.definite else "sym")
    except (LinAlgWarning, LinAlgError) as error:
        if isinstance(error, LinAlgError) and not kernel.definite:
            raise ParameterError(
                f"fit_inverse_transform with alpha={alpha}: {error}; expected a larger alpha"
            ) from error
        dual = pinvh(matrix) @ targets  # leaves out directions that α does not lift above the rounding of the largest
    return PreimageMap(scores, np.asarray(dual))
