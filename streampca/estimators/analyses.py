"""Estimators that analyse an accumulated covariance by methods other than PCA: their base class, and factor analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import NotAvailableError, NotComputedError, ParameterError
from streampca.estimators.continuing import Continuing
from streampca.estimators.interface import Fitted, check_is_fitted
from streampca.estimators.pca import PCA, Patterns
from streampca.execution.distributed.active_client import active_client
from streampca.models.analysis import AnalysisModel, StrengthErrors
from streampca.models.certificates import ExactCertificate
from streampca.models.pca import PCAModel
from streampca.models.rows import Given
from streampca.models.state import FittedState
from streampca.parameters import Parameter, Parameters, checked, documented
from streampca.parameters.analyses import FACTOR_PARAMETERS, SHARED
from streampca.parameters.statement import Missing, Rotation, ScaleName
from streampca.planning.columns import with_columns, with_sample_weight
from streampca.planning.plan import Plan, warn_of_probe
from streampca.solvers.analyses import Analysis, Factors
from streampca.solvers.choosing import SOLVERS
from streampca.solvers.fit import Fit
from streampca.solvers.state import solve
from streampca.sources import Source
from streampca.typing import FloatArray, IntArray

if TYPE_CHECKING:
    from streampca.estimators.inputs import Input
    from streampca.execution.progress import ProgressCallback


class StateEstimator(Continuing):
    """Base class of estimators that are solved from the covariance, but not for its eigenvectors.

    The covariance is accumulated, merged, resumed, continued and saved as for `PCA`, with the same parameters.
    """

    solver = "covariance"
    _solvers = SOLVERS
    _stated: ClassVar[tuple[Parameter, ...]]
    """Statements of all parameters."""
    _n_first: int | None = None
    """Features of the first of two tables, where the fit or the state knows."""
    certificate_ = Fitted[ExactCertificate](lambda model: model.certificate)
    error_ = Fitted[ExactCertificate](lambda model: model.certificate)

    if TYPE_CHECKING:
        _model: AnalysisModel
        n_components: int
        scale: bool | ScaleName

    def _analysis(self, source: Source | FittedState) -> Analysis:
        """Return what is solved from the state of these rows."""
        raise NotImplementedError

    @property
    def sampling_error_(self) -> StrengthErrors:  # type: ignore[override]
        """The sampling errors of singular values, correlations or communal variances, with their intervals.

        They are statistical errors, separate from `error_`. Raises `NotComputedError` if the fit computed none.
        """
        errors = self._model.strength_errors
        if errors is None:
            raise NotComputedError(
                "there are no sampling errors: they need a fit of all rows with sampling_errors=20, not a state"
            )
        return errors

    def plan(self, X: Input, Y: Input | None = None, *, probe: bool = False) -> Plan:
        """Return what `fit` would do, as `PCA.plan` does; reads metadata only."""
        if probe:
            warn_of_probe()
        source, parameters = self._table(X, Y), self._parameters()
        return self._plan_source(source, parameters, client=active_client(source), alternatives=True)

    def fit(self, X: Input, Y: Input | None = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to `X`, or to two tables with the same samples, in one pass.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Anything that `PCA.fit` accepts.
        Y : array-like, shape (n_samples, n_features_y), optional
            The second table, for estimators of two tables.
        sample_weight : array-like, shape (n_samples,), optional
            Weights of the rows, as in `PCA.fit`.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ParameterError, PlanError, DataError
            As `PCA.fit`.
        """
        source = self._table(X, Y)
        parameters = with_sample_weight(self._parameters(), sample_weight)
        return self._fit(source, with_columns(parameters, source))

    def from_state(self, saved: Continuing | str | Path) -> Self:
        """Fit to the rows of a saved state, without reading them again.

        Parameters
        ----------
        saved : fitted estimator, str or Path
            A fit of this or another estimator by ``solver="covariance"``, a model saved with ``state=True``, or a run
            with ``output.state: true``.

        Returns
        -------
        self
            The fitted estimator. Its parameters that enter a covariance become those of the state.

        Raises
        ------
        NotAvailableError
            If there is no state, or if it is of another solver.
        """
        if isinstance(saved, str | Path):
            from streampca.models.persistence.models import load_state_with_labels  # here, because it imports zarr

            model, fitted = load_state_with_labels(saved)
            n_first = model.n_first
        else:
            fitted = saved._fitted_state if isinstance(saved, Continuing) else None
            n_first = saved._n_first if isinstance(saved, StateEstimator) else None
        if fitted is None or fitted.solver != self.solver:
            found = "none" if fitted is None else f"that of solver={fitted.solver!r}"
            raise NotAvailableError(
                f"expected the state of a fit by solver='covariance', found {found}: fit with it, and save it with state=True"
            )
        for each in SHARED:
            if each.of_states:
                setattr(self, each.name, getattr(fitted.parameters, each.name))
        self.scale = fitted.parameters.scaling.given
        self._n_first = n_first
        self._hold(fitted)
        return self

    def _table(self, X: Input, Y: Input | None = None) -> Source:
        """Return the table that is read."""
        if Y is not None:
            raise ParameterError(f"Y: {type(self).__name__} takes one table")
        return self._open(X)

    def _parameters(self, threads: int | None = None) -> Parameters:
        """Return the checked parameters of a fit: those of PCA by the covariance matrix."""
        named = checked(self._stated, vars(self))
        shared = {each.name: getattr(self, each.name) for each in SHARED}
        pca = PCA(named["n_components"], solver="covariance", missing_scores="mean", **shared)
        return pca._parameters(threads)

    def _solved(self, fitted: FittedState) -> PCAModel:
        return solve(self._of_state(fitted), self._analysis(fitted))

    def _of_state(self, fitted: FittedState) -> FittedState:
        """Return a state, of whatever estimator, with the parameters that are no part of it."""
        parameters = replace(fitted.parameters, n_components=self.n_components, whiten=False, missing_scores="mean")
        return replace(fitted, parameters=parameters)

    def _hold(self, fitted: FittedState) -> None:
        super()._hold(self._of_state(fitted))

    def _take(self, result: Fit, source: Source) -> None:
        super()._take(result, source)
        self._n_first = self._model.n_first


@documented(FACTOR_PARAMETERS)
@dataclass(eq=False, repr=False)
class FactorAnalysis(StateEstimator, Patterns):  # type: ignore[misc]
    """Factor analysis by maximum likelihood: each feature is a linear function of k factors plus independent noise.

    With loadings W, correlations Φ of the factors and uniquenesses ψ, the covariance is Wᵀ Φ W + diag(ψ). The fit
    needs only the accumulated covariance (Jöreskog 1967). So one pass is enough, states can be merged and continued,
    and `from_state` also accepts a state of `PCA`. The result is that of scikit-learn's `FactorAnalysis`, which
    iterates over the rows. The likelihood may have several maxima: the fit tries eight starts (two above 128
    features), five of them drawn with `random_state`, and keeps the highest. Cost after the pass: a few hundred
    computations of the k leading eigenpairs of a d × d matrix.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    components_ : array, shape (k, n_features)
        Loadings W of centred, scaled and weighted features, in descending order of communal variance. Without
        `rotation` they are the principal axes of Ψ^−½ (C − Ψ) Ψ^−½; every rotation of them has the same likelihood.
        The entry of largest modulus is positive.
    correlation_ : array, shape (k, k)
        Correlations Φ of the factors; the identity unless ``rotation="promax"``.
    noise_variance_ : array, shape (n_features,)
        Uniquenesses ψ, 0 for features that never vary.
    log_likelihood_ : float
        Mean log-likelihood of a row under the model.
    n_iter_ : int
        Evaluations of the likelihood, over all starts.
    heywood_features_ : list of int
        Features whose uniqueness is at its lower bound, 1e-6 of their variance: the factors explain them completely.
    mean_, scale_, total_variance_, n_samples_seen_, n_features_in_, constant_features_, plan_, n_passes_, bytes_read_
        As for `PCA`.
    error_, certificate_ : ExactCertificate
        How closely the maximum was reached, and from how many starts.

    Examples
    --------
    >>> import numpy as np, streampca as sp
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(1000, 2)) @ rng.normal(size=(2, 8)) + rng.normal(size=(1000, 8))
    >>> fa = sp.FactorAnalysis(2, rotation="varimax").fit(rows)
    >>> fa.components_.shape, fa.loadings().shape
    ((2, 8), (8, 2))
    """

    _stated = FACTOR_PARAMETERS
    components_ = Fitted[FloatArray](lambda model: model.patterns)
    correlation_ = Fitted[FloatArray](lambda model: model.factor_correlation)
    noise_variance_ = Fitted[FloatArray](lambda model: model.uniquenesses)
    log_likelihood_ = Fitted[float](lambda model: float(model.figures["log_likelihood"]))
    n_iter_ = Fitted[int](lambda model: int(model.figures["n_iterations"]))
    heywood_features_ = Fitted[list[int]](lambda model: list(model.figures["heywood_features"]))

    n_components: int = 2
    _: KW_ONLY
    rotation: Rotation | None = None
    center: bool = True
    scale: bool | ScaleName = False
    missing: Missing = "error"
    missing_value: float | None = None
    feature_weight: ArrayLike | str | None = None
    remove: Mapping[str, Any] | None = None
    ddof: int = 0
    forgetting: float = 1.0
    sampling_errors: int = 0
    memory: int | str | None = None
    device: str = "cpu"
    random_state: int = 0
    checkpoint: str | Path | None = None
    progress: ProgressCallback | None = None

    def _analysis(self, source: Source | FittedState) -> Analysis:
        return Factors(self.n_components, rotation=self.rotation)

    def fit(self, X: Input, y: object = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to `X` in one pass.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Anything that `PCA.fit` accepts.
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
            As `PCA.fit`; also if there are as many factors as features that vary, or more, or if no maximum of the
            likelihood is reached.
        """
        return super().fit(X, sample_weight=sample_weight)

    def get_covariance(self) -> FloatArray:
        """Return the covariance Wᵀ Φ W + diag(ψ) of the centred, scaled and weighted features.

        Returns
        -------
        ndarray of float64, shape (n_features, n_features)
            8 d² bytes, which plans do not count.
        """
        check_is_fitted(self)
        covariance: FloatArray = self.components_.T @ self.correlation_ @ self.components_
        covariance.flat[:: len(covariance) + 1] += self.noise_variance_
        return covariance

    def get_precision(self) -> FloatArray:
        """Return the inverse of `get_covariance`; 0 for features that never vary.

        Returns
        -------
        ndarray of float64, shape (n_features, n_features)
            8 d² bytes, which plans do not count.
        """
        check_is_fitted(self)
        varying, loadings, unique = self._of_varying()
        scaled = loadings / unique
        inside = np.linalg.inv(self.correlation_) + scaled @ loadings.T
        own = -scaled.T @ np.linalg.solve(inside, scaled)
        own.flat[:: len(own) + 1] += 1 / unique
        precision = np.zeros((self.n_features_in_,) * 2)
        precision[np.ix_(varying, varying)] = own
        return precision

    def score_samples(self, X: ArrayLike, *, remove: Given | None = None) -> FloatArray:
        """Return the log-likelihood of each row under the model: a normal distribution with the covariance `get_covariance`.

        Features that never varied in the fit do not count. Missing values are treated as in `transform`.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Rows in memory.
        remove : mapping, optional
            As in `transform`.

        Returns
        -------
        ndarray of float64, shape (n_samples,)
            Natural logarithms of densities of centred, scaled and weighted rows; NaN for rows that have no scores.
        """
        check_is_fitted(self)
        varying, loadings, unique = self._of_varying()
        rows, _ = self._as_decomposed(X, remove)
        root = np.sqrt(unique)
        rows, scaled = rows[:, varying] / root, loadings / root
        prior = np.linalg.inv(self.correlation_)
        inside = prior + scaled @ scaled.T
        factors = np.linalg.solve(
            inside, scaled @ rows.T
        ).T  # conditional means, of which the squares below cancel nothing
        squares = np.square(rows - factors @ scaled).sum(axis=1) + ((factors @ prior) * factors).sum(axis=1)
        logarithm = np.log(unique).sum() + np.linalg.slogdet(inside)[1] - np.linalg.slogdet(prior)[1]
        return np.asarray(-0.5 * (squares + logarithm + len(unique) * np.log(2 * np.pi)))

    score = PCA.score

    def _of_varying(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return which features vary, their loadings and their uniquenesses."""
        varying = np.flatnonzero(self.noise_variance_ > 0)
        return varying, self.components_[:, varying], self.noise_variance_[varying]

    def _absent(self, name: str) -> AttributeError:
        if name == "rotate":
            return NotComputedError(
                "rotate: the fit rotates factors: use FactorAnalysis(k, rotation='varimax'), or its from_state(fitted), which reads "
                "no rows"
            )
        return super()._absent(name)
