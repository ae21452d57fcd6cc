"""Rotated principal components as an estimator of scikit-learn."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import ParameterError
from streampca.estimators.interface import Fitted, check_is_fitted, clone
from streampca.estimators.likelihood import Likelihood
from streampca.estimators.patterns import Patterns
from streampca.estimators.persistence import record_of_fitted
from streampca.models.fit_record import FitRecord
from streampca.models.pca import PCAModel
from streampca.models.rotated import RotatedModel, rotate
from streampca.parameters.choices import Rotation as Method
from streampca.planning.cost import warn_of_probe
from streampca.typing import FloatArray

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from streampca.estimators.inputs import Input
    from streampca.execution.progress import ProgressCallback
    from streampca.planning.plan import Plan


@dataclass(eq=False, repr=False)
class RotatedPCA(Patterns):
    """Principal components rotated towards simple structure, so that each has few large loadings.

    Made by `PCA.rotate` from a fit; `fit` fits a clone of `pca` and rotates that. With the loadings L = V Λ^½ of the k leading
    components, the rotated pattern is A = L M for the M of `streampca.linalg.factors`.

    Parameters
    ----------
    pca : PCA
        What is fitted.
    k : int or None
        How many of its components are rotated, the leading ones; None = all.
    method : {"varimax", "promax"}
        Orthogonal M, which leaves the scores uncorrelated (Kaiser 1958), or an oblique one (Hendrickson & White 1964).
    normalize : bool
        Kaiser's normalisation: features count alike in the criterion, however much of their variance the components carry.
    power : float
        Exponent of promax.
    memory : int, str or None
        Ceiling for the memory of the process; None = in `fit` that of `pca`.
    progress : callable, optional
        As for `PCA`; None = in `fit` that of `pca`.

    Attributes
    ----------
    components_ : array, shape (k, n_features)
        Rows of unit length, the columns of A over their lengths, largest first; the entry of largest modulus is positive. They are
        not orthogonal: scores are the coefficients of centred, scaled and weighted rows by their pseudo-inverse.
    explained_variance_ : array, shape (k,)
        Variances of the scores (without whitening): sums of squares of the columns of A. For varimax they add up to the variance of
        the components before the rotation.
    explained_variance_ratio_ : array, shape (k,)
        diag(Φ AᵀA) over the total variance: for both methods these add up to the share before the rotation.
    correlation_ : array, shape (k, k)
        Correlations Φ = (MᵀM)⁻¹ of the scores; the identity for varimax.
    rotation_ : array, shape (k, k)
        M.
    pca_ : PCA
        The fit before the rotation, with its certificate, which bounds the errors of what was rotated.
    mean_, scale_, noise_variance_, total_variance_, n_components_, n_samples_seen_, n_features_in_
        As those of `PCA`.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 6))
    >>> rotated = sp.PCA(4).fit(rows).rotate(3, method="varimax")
    >>> rotated.components_.shape
    (3, 6)
    """

    pca: Likelihood
    k: int | None = None
    _: KW_ONLY
    method: Method = "varimax"
    normalize: bool = True
    power: float = 4
    memory: int | str | None = None
    progress: ProgressCallback | None = None

    components_ = Fitted[FloatArray](lambda model: np.asarray(model.components))
    explained_variance_ = Fitted[FloatArray](lambda model: model.explained_variance)
    explained_variance_ratio_ = Fitted[FloatArray](lambda model: model.explained_variance_ratio)
    correlation_ = Fitted[FloatArray](lambda model: model.correlation)
    rotation_ = Fitted[FloatArray](lambda model: model.rotation.matrix)
    mean_ = Fitted[FloatArray](lambda model: model.mean)
    scale_ = Fitted[FloatArray | None](lambda model: model.scale)
    noise_variance_ = Fitted[float](lambda model: model.noise_variance)
    total_variance_ = Fitted[float](lambda model: model.total_variance)
    pca_ = Fitted[Likelihood]()

    def fit(self, X: Input, y: object = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Fit a clone of `pca` to `X`, read as `PCA.fit` reads it, and rotate its components.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Everything that `PCA.fit` takes.
        y : ignored
        sample_weight : array-like, shape (n_samples,), optional
            Weights of the rows, as in `PCA.fit`.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ParameterError, PlanError, DataError
            As `PCA.fit` and `PCA.rotate`.
        """
        fitted = self._before().fit(X, sample_weight=sample_weight)
        return self._become(fitted, self._rotated(fitted))

    def plan(self, X: Input, *, probe: bool = False) -> Plan:
        """Return what `fit` would do, as `PCA.plan` does for `pca`: the rotation reads nothing."""
        if probe:
            warn_of_probe()
        planned: Plan = self._before().plan(X)
        return planned

    def _before(self) -> Any:
        """Return the estimator that is fitted before the rotation: a clone of `pca` with the ceiling and callback of this one."""
        if not isinstance(self.pca, Likelihood):
            raise ParameterError(f"pca is {type(self.pca).__name__}: expected a PCA")
        given = {"memory": self.memory, "progress": self.progress}
        named = {name: value for name, value in given.items() if value is not None}
        return clone(self.pca).set_params(**named)

    def _to_save(self) -> tuple[PCAModel, FitRecord]:
        return self._model, record_of_fitted(self.pca_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags = self.pca.__sklearn_tags__().input_tags
        return tags

    def _rotated(self, fitted: Likelihood) -> RotatedModel:
        return rotate(fitted._model, self.k, method=self.method, normalize=self.normalize, power=self.power)

    def _become(self, fitted: Likelihood, model: RotatedModel) -> Self:
        """Become the rotation `model` of `fitted`."""
        self._model = model
        self._keep(pca_=fitted)
        return self


class Rotating(Likelihood):
    """The part of `PCA` that rotates components."""

    def rotate(
        self, k: int | None = None, *, method: Method = "varimax", normalize: bool = True, power: float = 4
    ) -> RotatedPCA:
        """Return the first `k` components (None = all), rotated towards few large loadings each, as a fitted estimator.

        Its `transform` gives the scores of the rotated components, and its `inverse_transform` the rows that the first k components
        give before the rotation. The loadings, components times standard deviations, are held in memory three times.

        Parameters
        ----------
        k : int or None
            Number of components; their variances have to be above rounding.
        method : {"varimax", "promax"}
            Orthogonal rotation (Kaiser 1958) with scores that stay uncorrelated, or oblique (Hendrickson & White 1964).
        normalize : bool
            Kaiser's normalisation of the loadings of each feature to length 1 for the criterion.
        power : float
            Exponent of promax.

        Returns
        -------
        RotatedPCA
            A fitted estimator with k components.

        Raises
        ------
        ParameterError
            If a parameter is outside its domain, or `power` leaves contrasts that are linearly dependent.
        DataError
            If varimax does not converge.
        NotAvailableError
            If the components are on disk.
        """
        check_is_fitted(self)
        estimator = RotatedPCA(
            self, k, method=method, normalize=normalize, power=power, memory=self.memory, progress=self.progress
        )
        return estimator._become(self, estimator._rotated(self))


def of_model(pca: Likelihood, model: RotatedModel) -> RotatedPCA:
    """Return the estimator of a model that was loaded, and of the fit before the rotation."""
    settings = model.rotation
    return RotatedPCA(
        pca, model.n_components, method=settings.method, normalize=settings.normalize, power=settings.power
    )._become(pca, model)
