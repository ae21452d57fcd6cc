"""What the components of a fit mean for its features: maps in the units of the data, and loadings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from streampca.estimators.base import StreamEstimator
from streampca.estimators.interface import check_is_fitted
from streampca.estimators.labelled import labelled_maps
from streampca.estimators.plots import ComponentPlots
from streampca.models.removal import Given
from streampca.parameters import Parameters
from streampca.solvers.result import Fit
from streampca.system.optional import is_installed, optional_module
from streampca.typing import BoolArray, FloatArray

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from streampca.models.pca import PCAModel


class Patterns(StreamEstimator[Parameters, Fit]):
    """The part of `PCA`, `RotatedPCA` and `FactorAnalysis` that says how much each feature changes with each score."""

    if TYPE_CHECKING:
        _model: PCAModel

    def _as_decomposed(self, X: ArrayLike, remove: Given | None) -> tuple[FloatArray, BoolArray]:
        """Return rows in memory as they are decomposed, centred, scaled and weighted, and which of their values are missing.

        Missing values are what stands in for them, or NaN where rows with them have no scores.
        """
        checked = self._validated(X)
        dense = getattr(checked, "toarray", lambda: checked)()
        model = self._model
        rows = np.asarray(self._without_removed(dense, X, remove), dtype=np.float64) - model.centre
        missing = np.isnan(rows)
        if model.stand_in is not None:
            np.copyto(rows, model.stand_in - model.mean, where=missing)
        if model.weights is not None:
            rows *= model.weights
        return rows, missing

    @property
    def plot(self) -> ComponentPlots:
        """Charts of this fit: ``plot.scree()``, ``plot.components()``, ``plot.scores(X)`` and ``plot.biplot(X)`` return axes of matplotlib."""
        return ComponentPlots(self)

    def maps(self) -> FloatArray | xr.DataArray | xr.Dataset:
        """Return the components in the units of the data: by how much a feature changes with one standard deviation of a score.

        These are the coefficients of the regression of the data, without weights and scaling, on the standardised scores of the
        fit: √λⱼ vⱼ · scale / √feature_weight. `components_ * np.sqrt(explained_variance_)` are those of the scaled and weighted features.
        A row is its mean (and what `remove` names) plus the maps, each times its standardised score, plus what the other components hold.

        Returns
        -------
        ndarray of float64, DataArray or Dataset
            ``(k, n_features)``; for a table with names, where xarray is installed, ``(mode, …)`` with the dimensions and coordinates
            of the features, NaN where they are masked, a Dataset of several variables. 0 for features that are constant under
            scaling; NaN for features of weight 0, of which the model knows nothing.

        Raises
        ------
        NotAvailableError
            If the components are on disk.

        Notes
        -----
        Without centring the regression has no intercept, and scores are divided by the root of their sum of squares over n − ddof. Weights of rows count
        as in the fit. Scores that are correlated (promax) are regressors together. Where NaN has a meaning, covariances are
        those of the fit: a hole counts as the mean with ``missing="mean"``. Maps of approximate solvers have the
        errors of their components.

        Examples
        --------
        >>> import numpy as np
        >>> import streampca as sp
        >>> height = np.array([1.5, 1.6, 1.7, 1.8])  # metres
        >>> rows = np.column_stack([height, 100 * height])
        >>> pca = sp.PCA(1, scale=True).fit(rows)
        >>> pca.maps().round(3)
        array([[ 0.129, 12.91 ]])
        """
        check_is_fitted(self)
        labels = self._model.labels
        if labels is None or not labels.named or not is_installed("xarray"):
            return self._model.maps()
        return labelled_maps(self._model, labels)

    def loadings(self) -> pd.DataFrame:
        """Return the loadings, components times standard deviations of their scores, as a data frame of pandas.

        They are those of the features as they are decomposed, scaled and weighted: with ``scale=True`` alone the correlations of features and
        scores, of `FactorAnalysis` of features and factors. `maps` has them in the units of the data.

        Returns
        -------
        pandas.DataFrame
            A row for each feature, by its name where the data had names, and a column for each component, by its name in
            `get_feature_names_out`: pca0, pca1, ….

        Raises
        ------
        NotAvailableError
            If pandas is not installed, or the components are on disk.

        Examples
        --------
        >>> import streampca as sp
        >>> sp.PCA(2, scale=True).fit("builtin:iris").loadings().shape
        (4, 2)
        """
        return loadings_of(self)


def loadings_of(estimator: StreamEstimator[Any, Any]) -> pd.DataFrame:
    """Return the loadings of a fitted estimator with the names of its features and of the scores."""
    check_is_fitted(estimator)
    pandas = optional_module("pandas", "a data frame of loadings", "xarray")
    model: Any = estimator._model
    names = model.source.get("feature_names")
    features = np.arange(model.n_features) if names is None else names
    columns = model.score_names(type(estimator).__name__.lower())
    return pandas.DataFrame(model.loadings().T, index=pandas.Index(features, name="feature"), columns=columns)
