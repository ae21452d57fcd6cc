"""Two tables with the same samples: maximum covariance analysis and canonical correlation analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import NotAvailableError, ParameterError
from streampca.estimators.from_states import StateEstimator
from streampca.estimators.inputs import names_of
from streampca.estimators.interface import check_is_fitted, clone
from streampca.estimators.labelled import dataset_of
from streampca.estimators.pca import PCA
from streampca.estimators.transforming import Transforming
from streampca.labels import Labels
from streampca.models.pca import PCAModel
from streampca.models.reduced import joined_model, scores_of_rows
from streampca.models.state import FittedState
from streampca.parameters import documented
from streampca.parameters.analyses import COUPLED_PARAMETERS, SHARED
from streampca.parameters.choices import Missing, ScaleName
from streampca.solvers.analyses import Analysis, CanonicalCorrelation, MaximumCovariance, sides_of
from streampca.sources import Source
from streampca.sources.subsets import with_features
from streampca.sources.table import side_by_side
from streampca.typing import FloatArray

if TYPE_CHECKING:
    import xarray as xr

    from streampca.estimators.inputs import Input
    from streampca.execution.progress import ProgressCallback


class Coupled(StateEstimator):
    """What the analyses of two tables share."""

    _stated = COUPLED_PARAMETERS
    _kind: ClassVar[type[MaximumCovariance] | type[CanonicalCorrelation]]
    _solved_names = StateEstimator._solved_names | {
        f"{side}_{name}_" for side in "xy" for name in ("components", "patterns", "explained_variance")
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        first: int | str | Sequence[str] | None = None,
        n_pca: int | PCA | None = None,
        center: bool = True,
        scale: bool | ScaleName = False,
        missing: Missing = "error",
        missing_value: float | None = None,
        feature_weight: ArrayLike | str | None = None,
        remove: Mapping[str, Any] | None = None,
        ddof: int = 1,
        forgetting: float = 1.0,
        sampling_errors: int = 0,
        memory: int | str | None = None,
        random_state: int = 0,
        checkpoint: str | Path | None = None,
        progress: ProgressCallback | None = None,
    ):
        self.n_components = n_components
        self.first = first
        self.n_pca = n_pca
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
        x_components_: FloatArray
        y_components_: FloatArray
        x_patterns_: FloatArray
        y_patterns_: FloatArray
        x_explained_variance_: FloatArray
        y_explained_variance_: FloatArray
        x_pca_: PCA
        y_pca_: PCA

    def fit(self, X: Input, Y: Input | None = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to two tables with the same samples, which are read once.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features_x)
            The first table, everything that `PCA.fit` takes; or both side by side, such as two variables of a store
            (``streampca.open("x.zarr", variables=["sst", "precip"])``).
        Y : array-like, shape (n_samples, n_features_y), optional
            The second table, in the order of the same samples; coordinates of samples that both have must be equal.
        sample_weight : array-like, shape (n_samples,), optional
            Weights of the samples, as in `PCA.fit`.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ParameterError, PlanError, DataError
            As `PCA.fit`, and if the tables do not have the same samples.
        """
        self._n_first = None
        for name in ("x_pca_", "y_pca_"):
            self.__dict__.pop(name, None)
        if self.n_pca is None:
            return super().fit(X, Y, sample_weight=sample_weight)
        return self._fit_reduced(self._table(X, Y), sample_weight)

    def transform(self, X: Input, Y: Input | None = None, *, remove: Any = None) -> Any:
        """Return the scores of rows of the first table, of both, or of a table of both side by side.

        Parameters
        ----------
        X : array-like
            Rows of the first table, or of both side by side; everything that `fit` takes.
        Y : array-like, optional
            Rows of the second table.
        remove : mapping, optional
            As in `PCA.transform`.

        Returns
        -------
        array, shape (n_samples, k), or tuple of two
            Scores of the first table where it alone is given, else those of the first and of the second: numpy, Dask or xarray as
            `PCA.transform` returns them.

        Raises
        ------
        ParameterError
            If `X` or `Y` do not have the features of the fit.
        """
        check_is_fitted(self)
        one, two = self._sides()
        if Y is not None:
            return Transforming.transform(one, X, remove=remove), Transforming.transform(two, Y, remove=remove)
        width = PCA(missing_value=self.missing_value)._open(X).shape[1]
        if width == one.n_features_in_:
            return Transforming.transform(one, X, remove=remove)
        scores, k = Transforming.transform(self, X, remove=remove), self.n_components_ // 2
        return scores[:, :k], scores[:, k:]

    def fit_transform(self, X: Input, Y: Input | None = None, **params: Any) -> Any:  # type: ignore[override]
        """Fit, and return the scores of both tables: what `fit` and `transform` do."""
        return self.fit(X, Y, **params).transform(X, Y)

    def predict(self, X: Input) -> FloatArray | Any:
        """Return what the scores of rows of the first table say of the second: its regression on them, in its units.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features_x)
            Rows of the first table.

        Returns
        -------
        array, shape (n_samples, n_features_y)
            Of CCA that is reduced-rank regression on the canonical variates, of MCA on the leading pairs.

        Raises
        ------
        NotAvailableError
            If the model has no state in memory: after ``n_pca``, or loaded without one.
        """
        check_is_fitted(self)
        fitted: FittedState | None = self.__dict__.get("_fitted_state")
        if fitted is None:
            raise NotAvailableError(
                "predict needs the covariance of the fit, which this one does not keep: fit without n_pca and remove, or save it with state=True"
            )
        from streampca.solvers.covariance_model import operator_of

        matrix, (one, two) = operator_of(fitted), self._model.sides
        n_first, weights = one.n_features, np.asarray(one.components)
        whole = np.zeros((matrix.side, len(weights)))
        whole[:n_first] = weights.T
        product = matrix.multiply(whole)
        coefficients = np.linalg.solve(weights @ product[:n_first], product[n_first:].T)
        scores = self.transform(X)
        factors = two.inverse_weights_of(slice(0, two.n_features))
        return np.asarray(scores) @ (coefficients if factors is None else coefficients * factors) + two.mean

    def to_xarray(self) -> tuple[xr.Dataset, xr.Dataset]:  # type: ignore[override]
        """Return the models of the first and of the second table as Datasets, as `PCA.to_xarray` returns one.

        Returns
        -------
        tuple of xarray.Dataset
            With ``components``, ``patterns``, and the singular values or correlations by ``mode``, from 1 on.

        Raises
        ------
        NotAvailableError
            If xarray is not installed.
        """
        check_is_fitted(self)
        one, two = (dataset_of(side) for side in self._model.sides)
        return one, two

    def _table(self, X: Input, Y: Input | None = None) -> Source:
        if Y is None:
            return self._open(X)
        openers = [PCA(missing_value=self.missing_value) for _ in range(2)]
        one, two = (opener._open(each) for opener, each in zip(openers, (X, Y), strict=True))
        names = [names_of(opener) for opener in openers]
        self.__dict__.pop("feature_names_in_", None)
        if names[0] is not None and names[1] is not None:
            self.feature_names_in_ = np.array([*names[0], *names[1]], dtype=object)
        self._n_first = one.shape[1]
        joint = side_by_side(one, two)
        if self.first is not None and self._features_of_first(joint.labels) != one.shape[1]:
            raise ParameterError(
                f"first={self.first!r}, and X has {one.shape[1]:,} features: expected one of them, fit(X, Y) or first"
            )
        return joint

    def partial_fit(self, X: Input, Y: Any = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Add rows of both tables to those of the fit; see `PCA.partial_fit`."""
        if self.n_pca is not None:
            raise NotAvailableError("n_pca keeps no state that rows could be added to: the components would be others")
        return super().partial_fit(self._table(X, Y), sample_weight=sample_weight)

    def partial_unfit(self, X: Input, Y: Any = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Take rows of both tables out of those of the fit; see `PCA.partial_unfit`."""
        return super().partial_unfit(self._table(X, Y), sample_weight=sample_weight)

    def _sides(self) -> tuple[Self, Self]:
        """Return estimators of the first and of the second table alone, which give its scores."""
        each, names, start = [], names_of(self), 0
        for model in self._model.sides:
            side = copy(self)
            side._model, side.n_components_, side.n_features_in_ = model, model.n_components, model.n_features
            side.__dict__.pop("feature_names_in_", None)
            if names is not None:
                side.feature_names_in_ = np.array(names[start : start + model.n_features], dtype=object)
            start += model.n_features
            each.append(side)
        return each[0], each[1]

    def _analysis(self, source: Source | FittedState) -> Analysis:
        n_features = source.n_features if isinstance(source, FittedState) else source.shape[1]
        n_first = self._features_of_first(source.labels)
        return self._kind(self.n_components, n_first=sides_of(n_first, n_features))

    def _features_of_first(self, labels: Labels | None) -> int | None:
        """Return how many features of the joint table are those of the first; None where nothing says so."""
        if isinstance(self.first, int | np.integer) and not isinstance(self.first, bool):
            return int(self.first)
        stops = {} if labels is None else {variable.name: at.stop for variable, at, _ in labels.places()}
        if self.first is None:
            if self._n_first is None and len(stops) == 2:
                return int(next(iter(stops.values())))
            return self._n_first
        given: Any = self.first
        names = [given] if isinstance(given, str) else list(given)
        known = list(stops)
        if not names or known[: len(names)] != names:
            raise ParameterError(
                f"first={self.first!r}: expected the variables that come first, of {', '.join(map(str, known)) or 'a table without variables'}"
            )
        return int(stops[names[-1]])

    def _fit_reduced(self, source: Source, sample_weight: ArrayLike | None) -> Self:
        """Fit by the principal components of each table."""
        n_first = sides_of(self._features_of_first(source.labels), source.shape[1])
        used = np.arange(source.shape[1]) < n_first
        shared = {
            each.name: getattr(self, each.name) for each in SHARED if each.name not in ("sampling_errors", "checkpoint")
        }
        weight = self.feature_weight
        by_side = [weight, weight]
        if weight is not None and not isinstance(weight, str):
            by_side = [np.asarray(weight)[:n_first], np.asarray(weight)[n_first:]]
        sides, tables = [], []
        for mask, own in ((used, by_side[0]), (~used, by_side[1])):
            table = with_features(source, mask)
            pca: PCA = clone(self.n_pca) if isinstance(self.n_pca, PCA) else PCA(self.n_pca)
            pca.set_params(**{**shared, "feature_weight": own, "missing_scores": "mean", "whiten": False})
            sides.append(pca.fit(table, sample_weight=sample_weight))
            tables.append(scores_of_rows(table, pca._model))
        joint: Any = clone(self)  # whose rows are scores: centred, unscaled and whole
        as_they_are = {
            "scale": False,
            "missing": "error",
            "missing_value": None,
            "feature_weight": None,
            "remove": None,
        }
        joint.set_params(first=None, n_pca=None, **as_they_are)
        scores = side_by_side(*tables)
        joint._n_first = tables[0].shape[1]
        joint = StateEstimator.fit(joint, scores, sample_weight=sample_weight)
        one, two = (side._model for side in sides)
        self._set_model(joined_model(joint._model, one, two, source))
        self._remember_features(source)
        self._fitted_state, self._n_first = None, n_first
        self.x_pca_, self.y_pca_ = sides
        self.plan_, self.solver_ = joint.plan_, joint.solver_
        self.n_passes_ = joint.n_passes_ + max(side.n_passes_ for side in sides)
        self.bytes_read_ = joint.bytes_read_ + sum(side.bytes_read_ for side in sides)
        return self

    def _set_model(self, model: PCAModel) -> None:
        super()._set_model(model)
        one, two = self._model.sides
        self._n_first = self._model.n_first
        self.x_components_, self.y_components_ = np.asarray(one.components), np.asarray(two.components)
        self.x_patterns_, self.y_patterns_ = one.patterns, two.patterns
        self.x_explained_variance_, self.y_explained_variance_ = one.explained_variance, two.explained_variance


@documented(COUPLED_PARAMETERS)
class MCA(Coupled):
    """Maximum covariance analysis: pairs of orthonormal patterns of two tables whose scores have the largest covariances.

    The singular vectors of the cross-covariance C₁₂ of the tables (Bretherton, Smith & Wallace 1992, J. Climate 5:541), which the
    covariance of both side by side holds: rows are read once, states are merged and continued, and a state of `PCA` does: `from_state`.
    With ``scale=True`` the components are the weights of scikit-learn's `PLSSVD`.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    singular_values_ : array, shape (k,)
        Covariances of the scores of the pairs, largest first.
    squared_covariance_fraction_ : array, shape (k,)
        Their squares over ‖C₁₂‖²_F.
    x_components_, y_components_ : array, shape (k, n_features_x) and (k, n_features_y)
        Orthonormal rows; the entry of largest modulus of the first is positive.
    x_patterns_, y_patterns_ : array
        What scores give of a row: the components.
    x_explained_variance_, y_explained_variance_ : array, shape (k,)
        Variances of the scores.
    sampling_error_ : StrengthErrors
        Sampling errors of the singular values, if `sampling_errors` is set.
    x_pca_, y_pca_ : PCA
        The components that the tables were reduced to, if `n_pca` is set.
    mean_, scale_, total_variance_, n_samples_seen_, n_features_in_, constant_features_, plan_, n_passes_, bytes_read_
        As those of `PCA`, of both tables side by side.
    error_, certificate_ : ExactCertificate
        What can be said of the numerical error.

    Examples
    --------
    >>> import numpy as np, streampca as sp
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(500, 6))
    >>> y = x[:, :3] + rng.normal(size=(500, 3))
    >>> mca = sp.MCA(2).fit(x, y)
    >>> mca.x_components_.shape, mca.y_components_.shape
    ((2, 6), (2, 3))
    """

    _kind = MaximumCovariance
    _solved_names = Coupled._solved_names | {"squared_covariance_fraction_"}

    if TYPE_CHECKING:
        singular_values_: FloatArray
        squared_covariance_fraction_: FloatArray

    def _set_model(self, model: PCAModel) -> None:
        super()._set_model(model)
        self.singular_values_ = self._model.strengths
        self.squared_covariance_fraction_ = np.array(self._model.figures["squared_covariance_fraction"])


@documented(COUPLED_PARAMETERS)
class CCA(Coupled):
    """Canonical correlation analysis: pairs of weights of two tables whose scores have the largest correlations.

    From the covariance of both tables side by side (Hotelling 1936, Biometrika 28:321; Björck & Golub 1973): rows are read once, states are
    merged and continued, and a state of `PCA` does: `from_state`. Both tables have together to have fewer directions of variance than the
    rows degrees of freedom; else reduce them first (`n_pca`), as in climate studies (Bretherton, Smith & Wallace 1992).

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    correlations_ : array, shape (k,)
        Canonical correlations, largest first.
    x_components_, y_components_ : array, shape (k, n_features_x) and (k, n_features_y)
        Weights of centred, scaled and weighted features: scores are products with them and have variance 1.
    x_patterns_, y_patterns_ : array
        Regressions of the features on the scores: covariances of both.
    x_explained_variance_, y_explained_variance_ : array, shape (k,)
        Variances of the scores, 1.
    sampling_error_ : StrengthErrors
        Sampling errors of the correlations, if `sampling_errors` is set.
    x_pca_, y_pca_ : PCA
        The components that the tables were reduced to, if `n_pca` is set.
    mean_, scale_, total_variance_, n_samples_seen_, n_features_in_, constant_features_, plan_, n_passes_, bytes_read_
        As those of `PCA`, of both tables side by side.
    error_, certificate_ : ExactCertificate
        What can be said of the numerical error.

    Examples
    --------
    >>> import numpy as np, streampca as sp
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(500, 6))
    >>> y = x[:, :3] + rng.normal(size=(500, 3))
    >>> sp.CCA(2).fit(x, y).correlations_.shape
    (2,)
    """

    _kind = CanonicalCorrelation
    _solved_names = Coupled._solved_names | {"correlations_"}

    if TYPE_CHECKING:
        correlations_: FloatArray

    def _set_model(self, model: PCAModel) -> None:
        super()._set_model(model)
        self.correlations_ = self._model.strengths
