"""The attributes of a fitted model from which scores are computed, as a protocol without a dependency on the model's class."""

from __future__ import annotations

from typing import Any, Protocol

from streampca.typing import DType, FloatArray


class ScoringModel(Protocol):
    """The arrays of a fitted PCA model that scores are computed from, and rows from scores."""

    @property
    def mean(self) -> FloatArray:
        """Mean of each feature, ``(n_features,)``."""
        ...

    @property
    def scale(self) -> FloatArray | None:
        """Standard deviation of each feature; None without scaling."""
        ...

    @property
    def feature_weight(self) -> FloatArray | None:
        """Weight of each feature; None without weights."""
        ...

    @property
    def fill(self) -> FloatArray | None:
        """Values that replace NaN, ``(n_features,)``; None where NaN is an error."""
        ...

    @property
    def whiten(self) -> bool:
        """Whether scores are divided by their standard deviations."""
        ...

    @property
    def deviations(self) -> FloatArray:
        """Standard deviations of the scores, ``(k,)``."""
        ...

    def weights_of(self, features: slice) -> FloatArray | None:
        """Return the factors of centred features; None for 1."""
        ...

    @property
    def components(self) -> Any:
        """Principal axes, ``(k, n_features)``, in memory or on disk."""
        ...

    @property
    def n_components(self) -> int:
        """Number of components k."""
        ...

    @property
    def explained_variance(self) -> FloatArray:
        """Eigenvalues of the covariance matrix, ``(k,)``."""
        ...

    @property
    def noise_variance(self) -> float:
        """Mean of the eigenvalues that the model omits, the noise of the probabilistic model."""
        ...

    @property
    def conditional(self) -> bool:
        """Whether scores of rows with NaN are conditional means given the observed features."""
        ...

    @property
    def stand_in(self) -> FloatArray | None:
        """Values that replace NaN before products are formed, ``(n_features,)``; None where NaN is an error."""
        ...

    def product_dtype(self, dtype: DType) -> DType:
        """Return the type in which rows of type `dtype` are multiplied."""
        ...
