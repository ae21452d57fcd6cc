"""Maximum-likelihood factor analysis as an estimator of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from streampca.estimators.from_states import StateEstimator
from streampca.estimators.interface import check_is_fitted
from streampca.models.pca import PCAModel
from streampca.models.state import FittedState
from streampca.parameters import documented
from streampca.parameters.analyses import FACTOR_PARAMETERS
from streampca.parameters.choices import Missing, ScaleName
from streampca.solvers.analyses import Analysis, Factors
from streampca.sources import Source
from streampca.typing import FloatArray

if TYPE_CHECKING:
    from streampca.execution.progress import ProgressCallback


@documented(FACTOR_PARAMETERS)
class FactorAnalysis(StateEstimator):
    """Factor analysis by maximum likelihood: features are linear functions of k factors and, each, of noise of its own.

    With loadings W and uniquenesses ψ the covariance is W Wᵀ + diag(ψ). They follow from the accumulated covariance alone
    (Jöreskog 1967), so that rows are read once, states are merged and continued, and a state of `PCA` does: `from_state`. The same
    result as scikit-learn's `FactorAnalysis`, which iterates over the rows. Cost after the reading: some tens of times the k leading
    eigenpairs of a d × d matrix.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    components_ : array, shape (k, n_features)
        Loadings Wᵀ of centred, scaled and weighted features, most communal variance first as the likelihood gives them; each is
        determined up to a rotation of all. The entry of largest modulus is positive.
    noise_variance_ : array, shape (n_features,)
        Uniquenesses ψ, 0 for features that never vary.
    log_likelihood_ : float
        Mean log-likelihood of a row under the model.
    n_iter_ : int
        Evaluations of the likelihood.
    heywood_features_ : list of int
        Features whose uniqueness is at its bound, 1e-6 of their variance: the factors explain them wholly.
    mean_, scale_, total_variance_, n_samples_seen_, n_features_in_, constant_features_, plan_, n_passes_, bytes_read_
        As those of `PCA`.
    error_, certificate_ : ExactCertificate
        How well the maximum was reached.

    Examples
    --------
    >>> import numpy as np, streampca as sp
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(1000, 2)) @ rng.normal(size=(2, 8)) + rng.normal(size=(1000, 8))
    >>> sp.FactorAnalysis(2).fit(rows).components_.shape
    (2, 8)
    """

    _stated = FACTOR_PARAMETERS
    _solved_names = StateEstimator._solved_names | {"log_likelihood_", "n_iter_", "heywood_features_"}

    def __init__(
        self,
        n_components: int = 2,
        *,
        center: bool = True,
        scale: bool | ScaleName = False,
        missing: Missing = "error",
        missing_value: float | None = None,
        feature_weight: ArrayLike | str | None = None,
        remove: Mapping[str, Any] | None = None,
        ddof: int = 0,
        forgetting: float = 1.0,
        sampling_errors: int = 0,
        memory: int | str | None = None,
        random_state: int = 0,
        checkpoint: str | Path | None = None,
        progress: ProgressCallback | None = None,
    ):
        self.n_components = n_components
        self.center = center
        self.scale = scale
        self.missing = missing
        self.missing_value = missing_value
        self.feature_weight = feature_weight
        self.remove = remove
        self.ddof = ddof
        self.forgetting = forgetting
        self.sampling_errors = sampling_errors
        self.memory = memory
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.progress = progress

    if TYPE_CHECKING:
        components_: FloatArray
        noise_variance_: FloatArray
        log_likelihood_: float
        n_iter_: int
        heywood_features_: list[int]

    def _analysis(self, source: Source | FittedState) -> Analysis:
        return Factors(self.n_components)

    def get_covariance(self) -> FloatArray:
        """Return the covariance of the model, W Wᵀ + diag(ψ), ``(n_features, n_features)``: 8 d² bytes, which no plan counts."""
        check_is_fitted(self)
        covariance: FloatArray = self.components_.T @ self.components_
        covariance.flat[:: len(covariance) + 1] += self.noise_variance_
        return covariance

    def _set_model(self, model: PCAModel) -> None:
        super()._set_model(model)
        figures = self._model.figures
        self.components_ = self._model.patterns
        self.noise_variance_ = np.zeros(0) if self._model.uniquenesses is None else self._model.uniquenesses
        self.log_likelihood_ = float(figures["log_likelihood"])
        self.n_iter_, self.heywood_features_ = int(figures["n_iterations"]), list(figures["heywood_features"])
