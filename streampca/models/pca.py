"""Fitted models: the interface of all models, and principal components, which map rows to scores and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import numpy as np
from typing_extensions import override

from streampca.block import Block
from streampca.errors import NotAvailableError
from streampca.formatting import plural
from streampca.labels import Labels
from streampca.linalg.component_rules import ComponentRules, Eigenvalues, component_rules, sample_of
from streampca.linalg.eigen import Spectrum
from streampca.linalg.scaling import Scaling, reciprocals
from streampca.linalg.selection import smallest_count
from streampca.models import certificate_sentences as sentences
from streampca.models import conditional
from streampca.models.certificates import AnyCertificate, ExactCertificate
from streampca.models.noise import noise_edge
from streampca.models.sampling_errors import Population, SamplingErrors
from streampca.models.stored import SLAB_BYTES, Components, StoredComponents, slabs_of
from streampca.parameters import KINDS, ModelKind, Parameters
from streampca.regressors import FittedRegression
from streampca.system.device import HOST, multiply_on
from streampca.typing import Array, DType, FloatArray, IntArray, Json

if TYPE_CHECKING:
    from streampca.models.noise import Moments

_SAFE_FACTORS = (1e-30, 1e30)
"""Between these, products of float32 with factors of features or components keep their digits."""

_KNOWN_IN_FLOAT32 = 4e-7
"""Share of the first eigenvalue down to which float32 products leave scores digits."""

SLABS_FROM = 2**30
"""Size in bytes of components from which they are saved as slabs of features, as those on disk are."""

_NEAR_MEAN = 16.0
"""Standard deviations of a score up to which the terms of the mean are summed with those of the row: rounding them to float32 is 1e-6 of one."""


EncodingPurpose = Literal["axes", "scores", "conditional means"]
"""What scores of a block of rows take memory for."""


class Model(Protocol):
    """A map of rows to scores and, where there is one, back: what every fitted model answers.

    Whoever writes, draws, saves or checks models asks this. `linear` has the members of those alone whose scores are products of
    rows with weights.
    """

    n_samples: int
    """Rows the model was fitted on: those of positive weight."""
    center: bool
    """Whether a mean is subtracted."""
    certificate: AnyCertificate
    """Bounds of the numerical errors."""
    source: Json
    """Where the data came from."""
    labels: Labels | None
    """Dimensions, coordinates and variables of the features, and names of the samples; None where the data had none."""
    sampling_errors: SamplingErrors | None
    """Sampling errors of the result; None where they were not computed."""
    missing: str
    """What NaN means."""
    removal: FittedRegression | None
    """What is to be subtracted from rows before `encode`, and added to rows after `decode`; None = nothing."""

    by_features: ClassVar[bool] = False
    """Whether scores are sums over features, of which some can be added after others."""
    not_diagnosed: ClassVar[str] = ""
    """Why there are no T² and Q of rows; empty where there are."""

    @property
    def conditional(self) -> bool:
        """Return whether scores of rows with NaN are conditional means given the observed features."""
        return False

    @property
    def on_disk(self) -> bool:
        """Return whether components stay on disk."""
        return False

    @property
    def in_slabs(self) -> bool:
        """Return whether components are saved as slabs of features, not as whole rows: those on disk, and large ones."""
        return False

    @property
    def kind(self) -> ModelKind:
        """Return what distinguishes its kind in names and in words."""
        return KINDS["pca"]

    @property
    def statement(self) -> str:
        """Return how far the numbers hold, in words."""
        return self.certificate.statement

    @property
    def linear(self) -> PCAModel | None:
        """Return the model itself where scores are products of centred rows with weights, else None."""
        return None

    @property
    def n_components(self) -> int:
        """Return the number of components."""
        return len(self.spectrum)

    @property
    def n_features(self) -> int:
        """Return the number of features of a row."""

    @property
    def spectrum(self) -> FloatArray:
        """Return the values of the components that a chart shows, largest first, ``(k,)``."""

    @property
    def score_variances(self) -> FloatArray:
        """Return the variances of scores without whitening, ``(k,)``."""

    @property
    def explained_variance_ratio(self) -> FloatArray:
        """Return the share of the total along each component, ``(k,)``."""

    @property
    def score_attributes(self) -> Json:
        """Return the attributes of stored scores."""
        return {self.kind.strengths: np.asarray(self.spectrum).tolist()}

    @property
    def attributes(self) -> Json:
        """Return further numbers and texts of a data set of the model, which every file format holds."""

    @property
    def by_feature(self) -> dict[str, FloatArray]:
        """Return values of the features by name, of which those of two dimensions are by component; `NotAvailableError` if on disk."""
        return {}

    @property
    def by_component(self) -> dict[str, FloatArray]:
        """Return the values of the components by name."""
        return {
            self.kind.strengths: self.spectrum,
            "explained_variance_ratio": self.explained_variance_ratio,
        }

    @property
    def correlations(self) -> dict[str, FloatArray]:
        """Return correlations of the scores by name, each ``(k, k)``; empty where all are 0."""
        return {}

    def score_names(self, prefix: str) -> list[str]:
        """Return the names of the scores, which start with that of the estimator."""
        return [f"{prefix}{i}" for i in range(self.n_components)]

    def score_title(self, component: int) -> str:
        """Return the title of the axis of a chart on which the scores of a component stand, from 0."""
        return f"{self.kind.noun} {component + 1} ({100 * float(self.explained_variance_ratio[component]):.1f} %)"

    @staticmethod
    def score_dtype(dtype: DType) -> DType:
        """Return the data type of the scores of rows of `dtype`: float32 for float16 and float32, else float64."""
        return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64)

    def encode(self, rows: Any, out: Array | None = None) -> Array:
        """Return the scores, ``(n_rows, k)``, of `rows`, ``(n_rows, n_features)``; `out` may be given to be filled."""

    def decode(self, scores: Array) -> Array:
        """Return rows, ``(n_rows, n_features)``, that have these `scores`, ``(n_rows, k)``."""

    def require_decoder(self) -> None:
        """Raise `ParameterError` unless rows can be made of scores."""
        return

    def require_finite(self, rows: Any, start: int) -> None:
        """Raise `NotFiniteError` if `rows`, from row `start` on, are not finite and their scores may be finite."""
        return

    def count_landmarks(self, block: Block) -> int:
        """Return how many of the rows of `block` are rows that the model compares others with."""
        return 0

    def loadings(self) -> FloatArray:
        """Return what one standard deviation of each score gives of scaled and weighted features, ``(k, n_features)``."""

    def encoding_bytes(self, rows: int, dtype: DType) -> dict[EncodingPurpose, int]:
        """Return the memory by purpose that scores of a block of `rows` rows of `dtype` take, beside the block."""

    def encoding_flops(self) -> float:
        """Return the floating point operations of the scores of a row."""

    def decoding_bytes(self, rows: int, dtype: DType) -> int:
        """Return the memory that making a block of `rows` rows of `dtype` takes, beside the block."""

    def population(self, unit: float, scaling: Scaling) -> Population:
        """Return what sampling errors need of the fit, with variances divided by `unit`."""

    def summary(self) -> Json:
        """Return the result as plain data."""

    def notes(self) -> list[str]:
        """Return sentences about the data."""
        return []

    @property
    def concerns(self) -> list[str]:
        """Return sentences about figures that are not what their names say, which fits warn of."""
        return []

    def on_device(self, name: str) -> Self:
        """Return the model whose `encode` multiplies on the device of that name; itself where it has no products for one."""
        return self

    def changed(self, **fields: Any) -> Self:
        """Return the model with other values of some fields."""
        model: Self = replace(self, **fields)  # type: ignore[type-var]  # models are dataclasses
        return model


@dataclass(frozen=True, kw_only=True)
class PCAModel(Model):
    """Principal components of one data set."""

    by_features = True
    has_spectrum: ClassVar[bool] = True
    """Whether components are orthonormal, with variances in descending order."""

    components: Components
    """Orthonormal rows, largest variance first, the entry of largest modulus positive; ``(k, n_features)``, in memory or on disk."""
    explained_variance: FloatArray
    """Variance along each component, divisor n − ddof; ``(k,)``."""
    mean: FloatArray
    """Mean of each feature; zeros if the data was not centred; ``(n_features,)``."""
    scale: FloatArray | None
    """What centred features are divided by, ``(n_features,)``: their standard deviations, or of all features of a variable the
    root of its total variance; 1 where these are 0, and None if features were not scaled."""
    total_variance: float
    """Sum of the variances of all features after scaling: the trace of the matrix that was decomposed."""
    n_samples: int
    """Rows the model was fitted on: those of positive weight."""
    ddof: int
    """Divisor of variances is n − ddof."""
    center: bool
    """Whether the mean is subtracted."""
    whiten: bool
    """Whether scores are divided by the standard deviation of their component."""
    numerical_rank: int
    """Number of eigenvalues above the rounding of the accumulation."""
    constant_features: IntArray
    """Features that never vary; with scaling their weight is 0."""
    certificate: ExactCertificate
    """Bounds of the numerical errors."""
    source: Json = field(default_factory=dict)
    """Where the data came from."""
    sample_weight: float | None = None
    """Sum of the weights of the rows; None where all are 1, so that it is `n_samples`."""
    feature_weight: FloatArray | None = None
    """Weight of each feature: centred and scaled features were multiplied by its square root; ``(n_features,)`` or None."""
    missing: str = "error"
    """What NaN means: an error; rows that have no scores (``"drop_rows"``); or the feature's mean (the others)."""
    fill: FloatArray | None = None
    """Mean of the observed values of each feature where NaN has a meaning, ``(n_features,)``, else None."""
    missing_scores: str = "mean"
    """Scores of rows with NaN: ``"conditional"``, the conditional mean given the observed features, or with `fill` for NaN."""
    labels: Labels | None = None
    """Dimensions, coordinates and variables of the features, and names of the samples; None where the data had none."""
    eigenvalues: FloatArray | None = None
    """All eigenvalues, of which `explained_variance` are the first, where the solver computed them; ``(min(n_samples, n_features),)``."""
    noise_edge: float | None = None
    """Upper end of the law of the eigenvalues of independent features with the same variances (`streampca.models.noise`)."""
    residual_moments: tuple[float, ...] = ()
    """Power sums of the eigenvalues left out, without units, for limits of Q; see `linalg.control_limits`. Empty = not known."""
    sampling_errors: SamplingErrors | None = None
    """Sampling errors of the result; None where they were not computed."""
    removal: FittedRegression | None = None
    """What is to be subtracted from rows before `encode`, and added to rows after `decode`; None = nothing."""
    device: str = field(default=HOST, metadata={"stored": False}, compare=False)
    """Where `encode` multiplies rows with components."""
    prediction_errors: FloatArray | None = None
    """Errors of predicting values that were left out, for 0, 1, … components (`linalg.cross_validation`); None where not asked for."""

    @classmethod
    def of_spectrum(
        cls,
        spectrum: Spectrum,
        matrix: Moments,
        parameters: Parameters,
        *,
        precision: float,
        source: Json,
        sample_weight: float | None,
    ) -> PCAModel:
        """Return the model of the eigenpairs of an accumulated matrix, whose eigenvalues have the relative `precision`."""
        constant = np.flatnonzero(matrix.variance == 0)
        return cls(
            components=spectrum.vectors,
            explained_variance=spectrum.values,
            mean=matrix.mean if parameters.center else np.zeros_like(matrix.mean),
            scale=parameters.scaling.divisors(matrix.variance, matrix.mean),
            total_variance=spectrum.total,
            n_samples=matrix.n_samples,
            ddof=parameters.ddof,
            center=parameters.center,
            whiten=parameters.whiten,
            numerical_rank=spectrum.numerical_rank,
            constant_features=constant.astype(np.int64),
            certificate=_certificate(spectrum, precision),
            source=source,
            feature_weight=parameters.feature_weight,
            sample_weight=sample_weight,
            residual_moments=spectrum.residual_moments,
            eigenvalues=spectrum.every,
            noise_edge=noise_edge(matrix, parameters),
        )

    @property
    @override
    def linear(self) -> PCAModel:
        return self

    @override
    def on_device(self, name: str) -> Self:
        return replace(self, device=name)

    @property
    @override
    def on_disk(self) -> bool:
        return isinstance(self.components, StoredComponents)

    @property
    def width(self) -> int:
        """Return how many features of all components are in memory at once: a slab of those on disk."""
        return self.components.width if isinstance(self.components, StoredComponents) else self.components.shape[1]

    @property
    @override
    def in_slabs(self) -> bool:
        return self.on_disk or self.components.nbytes > SLABS_FROM

    @property
    @override
    def n_components(self) -> int:
        return len(self.components)

    @property
    @override
    def spectrum(self) -> FloatArray:
        return self.explained_variance

    @property
    @override
    def score_variances(self) -> FloatArray:
        return self.explained_variance

    @property
    def n_first(self) -> int | None:
        """Return the number of features of the first table where two lie side by side; None where there is one table."""
        return None

    @property
    def uniquenesses(self) -> FloatArray | None:
        """Return the variances that factors leave of the features, ``(n_features,)``; None where there are no factors."""
        return None

    @property
    def rotated_by(self) -> str | None:
        """Return the criterion by which components or factors are rotated; None where they are not."""
        return None

    @property
    def n_requested(self) -> int:
        """Return the parameter `n_components` of a fit that gives as many: of pairs of components, how many pairs."""
        return len(self.spectrum)

    @property
    @override
    def n_features(self) -> int:
        return len(self.mean)

    @property
    @override
    def attributes(self) -> Json:
        certificate = self.certificate
        known = () if certificate.kind == "none" else ("relative_residual", "captured_variance")
        return {name: float(getattr(certificate, name)) for name in known} | {
            "solver": str(self.source.get("solver", "")),
            "total_variance": self.total_variance,
            "noise_variance": self.noise_variance,
            "ddof": self.ddof,
            "whiten": int(self.whiten),
        }

    @property
    @override
    def by_feature(self) -> dict[str, FloatArray]:
        values = {"components": self.in_memory(), "mean": self.mean}
        others = {"scale": self.scale, "feature_weight": self.feature_weight}
        return values | {name: each for name, each in others.items() if each is not None}

    @property
    @override
    def by_component(self) -> dict[str, FloatArray]:
        return super().by_component | {"singular_values": self.singular_values}

    @property
    @override
    def explained_variance_ratio(self) -> FloatArray:
        return (
            self.explained_variance / self.total_variance
            if self.total_variance > 0
            else np.zeros_like(self.explained_variance)
        )

    @property
    def singular_values(self) -> FloatArray:
        """Return the singular values of the centred (and scaled) data, ``(k,)``."""
        variance, divisor = self.explained_variance, max(0.0, self.weight - self.ddof)
        with np.errstate(over="ignore"):
            squares = variance * divisor
        return np.where(np.isfinite(squares), np.sqrt(squares), np.sqrt(variance) * np.sqrt(divisor))

    @property
    def weight(self) -> float:
        """Return the sum of the weights of the rows."""
        return float(self.n_samples) if self.sample_weight is None else self.sample_weight

    @property
    def centre(self) -> FloatArray:
        """Return what is subtracted from the rows that the model is given: nothing where `removal` has taken the mean out before."""
        return self.mean if self.removal is None else np.zeros_like(self.mean)

    @property
    def n_means(self) -> int:
        """Return how many means and slopes were fitted to each feature and subtracted."""
        return (
            int(self.center if (means := self.certificate.group_means) is None else means)
            if self.removal is None
            else self.removal.n_means
        )

    @property
    def noise_variance(self) -> float:
        """Return the mean variance of the directions that are left out (Tipping & Bishop 1999, eq. 8)."""
        k, d = self.components.shape
        n_omitted = min(self.n_samples, d) - k
        return (
            max(0.0, (self.total_variance - float(self.explained_variance.sum())) / n_omitted) if n_omitted > 0 else 0.0
        )

    @property
    def noise_of_features(self) -> FloatArray:
        """Return the variance that scores leave of each scaled and weighted feature under the model, ``(n_features,)`` or ``()``."""
        return np.asarray(self.noise_variance, dtype=np.float64)

    @property
    def weights(self) -> FloatArray | None:
        """Return the factors of centred features: √feature_weight / scale, 0 for a constant feature; None for 1."""
        return self.weights_of(slice(0, len(self.mean)))

    def weights_of(self, features: slice) -> FloatArray | None:
        """Return the `weights` of consecutive features alone."""
        return self._factors(features, np.reciprocal, np.sqrt)

    def inverse_weights_of(self, features: slice) -> FloatArray | None:
        """Return the factors of consecutive reconstructed features before the mean is added, ``(n_some,)``; None for 1.

        scale / √feature_weight; 0 for a constant feature, which components beyond the rank have in foreign units.
        """
        return self._factors(features, np.copy, lambda weight: reciprocals(np.sqrt(weight)))

    def _factors(
        self,
        features: slice,
        of_scale: Callable[[FloatArray], FloatArray],
        of_weight: Callable[[FloatArray], FloatArray],
    ) -> FloatArray | None:
        """Return functions of the scales and the weights of consecutive features, multiplied, and 0 for constant ones; None for 1."""
        root = None if self.feature_weight is None else of_weight(self.feature_weight[features])
        if self.scale is None:
            return root
        factors, constant = of_scale(self.scale[features]), self.constant_features
        factors[constant[(constant >= features.start) & (constant < features.stop)] - features.start] = 0.0
        return factors if root is None else factors * root

    def _reconstructed(self, features: slice, slab: FloatArray, scores: Array) -> Array:
        """Return consecutive features of the rows that have these `scores`, in their data type; `slab` are the components there.

        Components are scaled before they are rounded to that type: their entries may be below its range.
        """
        factors = self.inverse_weights_of(features)
        axes = slab if factors is None else slab * factors
        rows: Array = scores @ axes.astype(scores.dtype)
        rows += self.centre[features].astype(scores.dtype)
        return rows

    @property
    def deviations(self) -> FloatArray:
        """Return the divisors of whitened scores, ``(k,)``; infinity for components of noise, whose scores become 0."""
        deviation = np.sqrt(self.explained_variance)
        deviation[self.numerical_rank :] = np.inf
        return deviation

    @property
    @override
    def conditional(self) -> bool:
        return self.fill is not None and self.missing_scores == "conditional"

    @property
    def stand_in(self) -> FloatArray | None:
        """Return the values that replace NaN before rows are projected, None if NaN is an error or drops the row."""
        return self.mean if self.conditional else self.fill

    def product_dtype(self, dtype: DType) -> DType:
        """Return the data type in which scores of `dtype` are computed.

        float64 where factors leave the range of float32, or components count whose scores rounding of float32 products would cover.
        """
        variances = self.explained_variance[: self.numerical_rank]
        if len(variances) and variances[-1] < _KNOWN_IN_FLOAT32 * variances[0]:
            return np.dtype(np.float64)
        factors = [np.sqrt(self.explained_variance[:1])]
        factors += [] if self.weights is None else [self.weights]
        factors += [self.deviations[np.isfinite(self.deviations)]] if self.whiten else []
        low, high = _SAFE_FACTORS
        safe = all(((factor == 0) | ((factor > low) & (factor < high))).all() for factor in factors)
        return dtype if safe else np.dtype(np.float64)

    @override
    def encode(self, rows: Any, out: Array | None = None) -> Array:
        """Return the scores, ``(n_rows, k)``, of `rows`, ``(n_rows, n_features)``; cost 2 d k flops a row.

        `out`, of the shape and `score_dtype` of the result, may be given to be filled. A mean that is far relative to the spread (see
        `_is_near`) is subtracted before the product, so that it costs no digits; the product of a near one is subtracted from
        the scores, without a copy of the rows, and so it is from those of sparse rows, which a mean would fill. Where the model was fitted with
        ``missing="mean"`` or ``"pairwise"``, rows with NaN have scores as `missing_scores` says, which for conditional means
        takes about k³ flops more for each pattern of holes; with ``"drop_rows"`` such rows have scores of NaN.
        """
        dtype = self.score_dtype(rows.dtype)
        n_rows = int(rows.shape[0])
        out = np.empty((n_rows, len(self.components)), dtype=dtype) if out is None else out
        if isinstance(self.components, StoredComponents):
            return self._encode_by_slabs(self.components, rows, out)
        dtype = self.product_dtype(dtype)
        axes = self.components if self.weights is None else self.components * self.weights
        axes = axes.T.astype(dtype)
        if self.whiten:
            axes /= self.deviations.astype(dtype)
        if not isinstance(rows, np.ndarray):  # sparse: what is not stored is never made
            np.subtract(rows @ axes, self.centre @ axes, out=out, casting="same_kind")
            return out
        mean, filled = self.centre, self.stand_in is not None and dtype.kind == rows.dtype.kind
        # What rounding the mean to `dtype` left of it, projected.
        remainder = ((mean - mean.astype(dtype)) @ axes).astype(dtype)
        if not filled and rows.dtype == dtype == out.dtype and self._is_near(axes):
            multiply_on(self.device, rows, axes, out)
            out -= (mean @ axes).astype(dtype)
            return out
        for panel, centred in self._centred(rows, slice(0, len(mean)), dtype):
            scores = out[panel] if dtype == out.dtype else np.empty((len(centred), axes.shape[1]), dtype)
            multiply_on(self.device, centred, axes, scores)
            scores -= remainder
            if filled and self.conditional:
                conditional.fill_in(self, rows[panel], scores)
            if dtype != out.dtype:
                out[panel] = scores
        return out

    def _centred(self, rows: Array, features: slice, dtype: DType) -> Iterator[tuple[slice, Array]]:
        """Yield panels of `rows`, which have values of some features, less their mean in `dtype`, with what stands in for NaN."""
        centre, fill = self.centre[features].astype(dtype), None
        if self.stand_in is not None and rows.dtype.kind == dtype.kind:
            fill = (self.stand_in[features] - centre).astype(dtype)
        step = max(1, SLAB_BYTES // (max(1, len(centre)) * dtype.itemsize))
        for start in range(0, len(rows), step):
            panel = slice(start, start + step)
            centred = np.subtract(rows[panel], centre, dtype=dtype)
            if fill is not None:
                np.copyto(centred, fill, where=np.isnan(centred))
            yield panel, centred

    def _is_near(self, axes: Array) -> bool:
        """Return whether the mean is so near that scores keep their digits if its product with `axes` is subtracted after that of the rows.

        Σ |mean_j axis_j| bounds what the mean adds to every partial sum of a score (Higham 2002, section 3.1), and may be `_NEAR_MEAN` of
        its standard deviations. Components below rounding, of no known deviation, need a mean of zeros.
        """
        deviations = np.sqrt(np.maximum(self.explained_variance, 0.0))
        deviations[self.numerical_rank :] = 0.0
        if self.whiten:
            deviations[: self.numerical_rank] = 1.0
        return bool((np.abs(self.centre) @ np.abs(axes) <= _NEAR_MEAN * deviations).all())

    @override
    def decode(self, scores: Array) -> Array:
        """Return the rows in the original space, ``(n_rows, n_features)``, that have these `scores`, ``(n_rows, k)``."""
        given = self.score_dtype(scores.dtype)
        dtype = self.product_dtype(given)
        scores = np.asarray(scores, dtype=dtype)
        if self.whiten:
            scores = scores * np.sqrt(self.explained_variance).astype(dtype)
        if not isinstance(self.components, StoredComponents):
            whole = slice(0, len(self.mean))
            return self._reconstructed(whole, self.components, scores).astype(given, copy=False)
        rows = np.empty((len(scores), len(self.mean)), dtype=given)
        for features, slab in self.components.slabs():
            rows[:, features] = self._reconstructed(features, slab, scores)
        return rows

    def slabs(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield runs of features and their components: all at once in memory, slab by slab from disk."""
        if isinstance(self.components, StoredComponents):
            yield from self.components.slabs()
        else:
            yield slice(0, self.n_features), self.components

    def encoder(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield runs of features and their weights E, ``(k, n_some)``: scores are centred, scaled and weighted rows times Eᵀ."""
        for features, slab in slabs_of(self.components):
            yield features, slab / self.deviations[:, None] if self.whiten else slab

    def decoder(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield runs of features and what scores give of them, D, ``(k, n_some)``: scores times D are centred, scaled and weighted rows."""
        roots = np.sqrt(self.explained_variance)[:, None]
        for features, slab in slabs_of(self.components):
            yield features, slab * roots if self.whiten else slab

    @override
    def loadings(self) -> FloatArray:
        """Return components times standard deviations of their scores, ``(k, n_features)``, of scaled and weighted features.

        Raises
        ------
        NotAvailableError
            If the components are on disk.
        """
        return np.asarray(self.in_memory() * np.sqrt(np.maximum(self.explained_variance, 0.0))[:, None])

    def in_memory(self) -> FloatArray:
        """Return the components; `NotAvailableError` if they are on disk."""
        if isinstance(self.components, StoredComponents):
            raise NotAvailableError(
                "the components do not fit in memory and stay on disk: fit fewer components or allow more memory"
            )
        return self.components

    def maps(self) -> FloatArray:
        """Return the `loadings` in the units of the data, ``(k, n_features)``: of the features before scaling and weighting.

        0 for features that are constant under scaling, NaN for features of weight 0.

        Raises
        ------
        NotAvailableError
            If the components are on disk.
        """
        maps = self.loadings()
        if self.scale is not None:
            maps *= self.scale
            maps[:, self.constant_features] = 0
        if self.feature_weight is not None:
            root = np.sqrt(self.feature_weight)
            maps *= np.divide(1.0, root, out=np.full_like(root, np.nan), where=root > 0)
        return maps

    def _encode_by_slabs(self, stored: StoredComponents, rows: Any, out: Array) -> Array:
        """Write the scores of `rows` to `out`, with sums over slabs of features in float64; reads all components once."""
        scores = np.zeros(out.shape)
        lost = None
        if self.conditional and isinstance(rows, np.ndarray) and rows.dtype.kind == "f":
            lost = np.zeros((len(rows), conditional.n_packed(self.n_components)))
        for columns, slab in stored.slabs():
            self.add_scores(columns, slab, rows[:, columns], out.dtype, scores)
            if lost is not None:
                conditional.add_lost(np.isnan(rows[:, columns]), slab, lost)
        if lost is not None:
            conditional.fill_in_from(self, lost, scores)
        if self.whiten:
            scores /= self.deviations
        out[...] = scores
        return out

    def add_scores(self, features: slice, slab: FloatArray, rows: Any, dtype: DType, scores: FloatArray) -> None:
        """Add the contribution of some features to `scores`, ``(n_rows, k)``, without whitening and conditional means.

        Parameters
        ----------
        features : slice
            Which features.
        slab : array, shape (k, n_some)
            Components for them.
        rows : array or sparse matrix, shape (n_rows, n_some)
            Values of them.
        dtype : dtype
            In which products are taken.
        scores : array, shape (n_rows, k)
            Is added to.
        """
        dtype = self.product_dtype(dtype)
        weights, mean = self.weights_of(features), self.centre[features]
        axes = (slab if weights is None else slab * weights).T.astype(dtype)
        if not isinstance(rows, np.ndarray):  # sparse: what is not stored is never made
            scores += rows @ axes
            scores -= mean @ axes
            return
        scores -= (mean - mean.astype(dtype)) @ axes
        for panel, centred in self._centred(rows, features, dtype):
            scores[panel] += centred @ axes

    @override
    def encoding_bytes(self, rows: int, dtype: DType) -> dict[EncodingPurpose, int]:
        """Return what scores by components take beside a block, in each of L leaves.

        Axes: L k d (8 + e); scores: L (2 · max(8 MiB, d e) + 6 b k e). Of components on disk, a slab of c' features: L k c' (24 + e)
        and L (2 · max(8 MiB, c' e) + b k (6 e + 16)). Conditional means: L times the k × k matrices of `fill_in` and two masks.
        """
        k, d, itemsize = self.n_components, self.n_features, self.score_dtype(dtype).itemsize
        stored, width = self.on_disk, self.width
        needs: dict[EncodingPurpose, int] = {
            "axes": k * width * ((24 if stored else 8) + itemsize),
            "scores": 2 * max(SLAB_BYTES, width * itemsize) + rows * k * (6 * itemsize + (16 if stored else 0)),
        }
        if self.conditional:
            means = conditional.scratch_bytes(k) + 2 * max(SLAB_BYTES, d)
            needs["conditional means"] = means + (8 * rows * conditional.n_packed(k) if stored else 0)
        return needs

    @override
    def encoding_flops(self) -> float:
        return 2.0 * self.n_features * self.n_components

    @override
    def decoding_bytes(self, rows: int, dtype: DType) -> int:
        return 24 * self.n_components * self.width

    @override
    def population(self, unit: float, scaling: Scaling) -> Population:
        n, k = self.n_samples, self.n_components
        varying = len(self.mean) - len(self.constant_features)
        return Population(
            eigenvalues=self.explained_variance / unit,
            ddof=self.ddof,
            center=self.center,
            total=self.total_variance / unit,
            n_outside=max(0, min(n - self.n_means, varying) - k),
            others=None if self.eigenvalues is None else self.eigenvalues[k:] / unit,
            moments=self.residual_moments,
            axes=np.zeros((0, 0)) if not scaling else np.asarray(self.components),
            scaling=scaling,
            freedom=1.0 if self.removal is None else (n - self.n_means) / (n - 1),
        )

    @override
    def summary(self) -> Json:
        return {
            "n_components": len(self.components),
            "total_variance": self.total_variance,
            "explained_variance": self.explained_variance.tolist(),
            "explained_variance_ratio": self.explained_variance_ratio.tolist(),
            "constant_features": self.constant_features.tolist(),
            "components_for": {str(share): self.components_for(share) for share in (0.9, 0.95, 0.99)},
            "component_rules": self.component_rules.to_dict(),
        } | ({} if self.sampling_errors is None else {"sampling_errors": self.sampling_errors.to_dict()})

    @property
    def before_rotation(self) -> PCAModel:
        """Return the model whose components are eigenvectors: this one, or that which was rotated."""
        return self

    @cached_property
    def component_rules(self) -> ComponentRules:
        """Return what every rule for the number of components says of these eigenvalues."""
        k, d = self.components.shape
        values = self.explained_variance if self.eigenvalues is None else self.eigenvalues
        complete = self.eigenvalues is not None or k == min(self.n_samples, d)
        sample = sample_of(
            (self.n_samples, d),
            self.weight,
            self.ddof,
            n_means=self.n_means,
            weighted=self.sample_weight is not None,
            n_constant=len(self.constant_features),
            n_missing=self.certificate.missing_values or 0,
            feature_weight=self.feature_weight,
            edge=self.noise_edge,
        )
        sample = replace(sample, prediction_errors=self.prediction_errors)
        return component_rules(Eigenvalues(values, self.total_variance, complete, self.rounding), sample)

    @property
    @override
    def concerns(self) -> list[str]:
        return sentences.concerns_of_pca(self.certificate, float(self.explained_variance_ratio.sum()))

    @override
    def notes(self) -> list[str]:
        """Return sentences about constant features and missing values."""
        notes = []
        constant = self.constant_features.tolist()
        if constant and self.scale is not None:
            known = [None if self.labels is None else self.labels.known_name(index) for index in constant[:10]]
            named = [f"{index} [{name}]" if name else str(index) for index, name in zip(constant, known, strict=False)]
            first = ", ".join(named) + (", …" if len(constant) > 10 else "")
            never = plural(len(constant), "feature never varies and was", "features never vary and were")
            notes.append(f"{never} given weight 0: {first}")
        notes += sentences.notes_of_missing(self.certificate, conditional=self.conditional)
        return notes

    def components_for(self, share: float) -> int | None:
        """Return how many components carry `share` of the total variance, up to rounding; None if more than there are."""
        return smallest_count(self.explained_variance, self.total_variance, share, self.rounding)

    @property
    def rounding(self) -> float:
        """Return the relative rounding error of the eigenvalues that the solver assumed."""
        trusted = self.certificate.trusted_above
        # A solver that squares nothing has errors of √trusted in singular values, and twice that in their squares.
        return 2 * np.sqrt(trusted) if self.certificate.eigen_solver == "lapack svd" else trusted


def _certificate(spectrum: Spectrum, precision: float) -> ExactCertificate:
    """Return the certificate of an exact solver whose eigenvalues have the relative `precision`."""
    vectors = spectrum.vectors
    captured = min(1.0, float(spectrum.values.sum()) / spectrum.total) if spectrum.total > 0 else 0.0
    return ExactCertificate(
        kind="exact",
        statement=sentences.exact(precision),
        eigen_residual=spectrum.residual,
        orthonormality=float(np.abs(vectors @ vectors.T - np.eye(len(vectors))).max()),
        relative_residual=1.0 - captured,
        relative_residual_interval=(max(0.0, 1.0 - captured - precision), min(1.0, 1.0 - captured + precision)),
        captured_variance=captured,
        component_errors=(0.0,) * len(spectrum.values),
        numerical_rank=spectrum.numerical_rank,
        trusted_above=precision,
        eigen_solver=spectrum.method,
    )
