"""Estimators that are solved from an accumulated covariance in place of PCA: what they share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import ModelError, NotAvailableError, NotComputedError, ParameterError
from streampca.estimators.continuing import Continuing
from streampca.estimators.interface import Fitted
from streampca.estimators.pca import PCA
from streampca.estimators.persistence import record_of_fitted
from streampca.execution.distributed.active_client import active_client
from streampca.execution.readings import Readings
from streampca.models.analysis import AnalysisModel, StrengthErrors
from streampca.models.certificates import ExactCertificate
from streampca.models.fit_record import FitRecord
from streampca.models.pca import PCAModel
from streampca.models.state import FittedState
from streampca.parameters import Parameter, Parameters, checked
from streampca.parameters.analyses import SHARED
from streampca.planning.columns import with_columns, with_sample_weight
from streampca.planning.cost import warn_of_probe
from streampca.planning.plan import Plan
from streampca.solvers.analyses import Analysis
from streampca.solvers.fit import Fit, fit, plan_fit, readings_of_fit
from streampca.solvers.registry import SOLVERS
from streampca.solvers.state import solve
from streampca.sources import Source

if TYPE_CHECKING:
    from streampca.estimators.inputs import Input


class StateEstimator(Continuing):
    """An estimator whose result is another function of the covariance than its eigenvectors.

    The covariance is read, merged, resumed, continued and saved as that of `PCA`, with the same parameters.
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

    def _analysis(self, source: Source | FittedState) -> Analysis:
        """Return what is solved from the state of these rows."""
        raise NotImplementedError

    @property
    def sampling_error_(self) -> StrengthErrors:  # type: ignore[override]
        """The sampling errors of singular values, correlations or communal variances, with their intervals.

        They are statistical, and apart from `error_`. `NotComputedError` if the fit computed none.
        """
        errors = self._model.strength_errors
        if errors is None:
            raise NotComputedError(
                "there are no sampling errors: they are computed by a fit of all rows with sampling_errors=20, not from a state"
            )
        return errors

    def plan(self, X: Input, Y: Input | None = None, *, probe: bool = False) -> Plan:
        """Return what `fit` would do, as `PCA.plan` does; reads metadata only."""
        if probe:
            warn_of_probe()
        source, parameters = self._table(X, Y), self._parameters()
        return self._plan_source(source, parameters, client=active_client(source), alternatives=True)

    def fit(self, X: Input, Y: Input | None = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to `X`, or to two tables with the same samples, which are read once.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Everything that `PCA.fit` takes.
        Y : array-like, shape (n_samples, n_features_y), optional
            The second table, for estimators of two.
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
        result = self._fit_or_resume(source, with_columns(parameters, source))
        self._take(result, source)
        return self

    def from_state(self, saved: Continuing | str | Path) -> Self:
        """Become the fit of the rows behind a state, without reading them.

        Parameters
        ----------
        saved : fitted estimator, str or Path
            A fit by ``solver="covariance"`` of this or another estimator, a model that was saved with ``state=True``, or a run with
            ``output.state: true``.

        Returns
        -------
        self
            The fitted estimator, with the parameters of the state in place of its own where these enter a covariance.

        Raises
        ------
        NotAvailableError
            If there is no state, or that of another solver.
        """
        if isinstance(saved, str | Path):
            from streampca.models.persistence.models import load_state_with_labels  # here, because it imports zarr

            model, fitted = load_state_with_labels(saved)
            n_first = model.n_first if isinstance(model, AnalysisModel) else None
            if fitted is not None and model.source.get("feature_names"):
                fitted = replace(fitted, source=fitted.source | {"feature_names": model.source["feature_names"]})
        else:
            fitted = saved._fitted_state if isinstance(saved, Continuing) else None
            n_first = saved._n_first if isinstance(saved, StateEstimator) else None
        if fitted is None or fitted.solver != "covariance":
            found = "none" if fitted is None else f"that of solver={fitted.solver!r}"
            raise NotAvailableError(
                f"expected the state of a fit by solver='covariance', found {found}: fit with it, and save it with state=True"
            )
        for each in SHARED:
            if each.of_states:
                value = getattr(fitted.parameters, each.name)
                setattr(self, each.name, "block" if isinstance(value, tuple) else value)
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

    def _plan_source(self, source: Source, parameters: Parameters, **options: Any) -> Plan:
        """Plan a fit of a source with checked parameters."""
        return plan_fit(source, parameters, analysis=self._analysis(source), **options)

    def _fit_source(self, source: Source, parameters: Parameters, plan: Plan | None = None, **options: Any) -> Fit:
        """Fit a source by a plan."""
        return fit(source, parameters, plan, analysis=self._analysis(source), **options)

    def _readings_of_fit(self, source: Source, parameters: Parameters, plan: Plan, **options: Any) -> Readings[Fit]:
        """Ask for the readings of such a fit, to share them."""
        return readings_of_fit(source, parameters, plan, analysis=self._analysis(source), **options)

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

    def _to_save(self) -> tuple[PCAModel, FitRecord]:
        weight, known = self.feature_weight, self._model.feature_weight
        if not isinstance(weight, str) and not np.array_equal(
            [] if weight is None else np.asarray(weight).ravel(), [] if known is None else known
        ):
            raise ModelError(
                "feature_weight was changed after the fit: fit again, or set the weights of the fit to save it"
            )
        return self._model, record_of_fitted(self)
