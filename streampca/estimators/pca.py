"""Principal component analysis as a scikit-learn estimator over arrays and stores of any size, and its rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import NotAvailableError, ParameterError
from streampca.estimators.base import StreamEstimator, held
from streampca.estimators.continuing import Continuing
from streampca.estimators.groups import GroupModels, fit_of_groups
from streampca.estimators.interface import Fitted, check_is_fitted, clone
from streampca.estimators.labelled import labelled_maps
from streampca.estimators.persistence import record_of_fitted
from streampca.estimators.plots import ComponentPlots
from streampca.execution.distributed.active_client import active_client
from streampca.linalg.component_rules import ComponentRules
from streampca.linalg.control_limits import Distribution
from streampca.linalg.selection import NComponents, from_plain
from streampca.models.certificates import ApproximateCertificate, ExactCertificate
from streampca.models.conditional import patterns_of, posterior
from streampca.models.diagnostics import (
    Contributions,
    contributions_of,
    projection_shrinkage_of,
    q_limit_of,
    t2_limit_of,
)
from streampca.models.pca import PCAModel
from streampca.models.rotated import RotatedModel, rotate
from streampca.models.rows import Given
from streampca.models.state import FitRecord
from streampca.parameters import PCA_PARAMETERS, Parameters, checked, documented
from streampca.parameters.statement import Auto, Missing, MissingScores, Recovery, ScaleName, Sketch, Solver
from streampca.parameters.statement import Rotation as Method
from streampca.planning.columns import as_weights, with_columns, with_sample_weight
from streampca.planning.plan import Plan, warn_of_probe
from streampca.regressors import removal_of
from streampca.solvers.choosing import SOLVERS
from streampca.solvers.state import with_eigenvalues
from streampca.sources.alignment import is_placed
from streampca.sources.arrays import is_sparse
from streampca.system.optional import is_installed, optional_module
from streampca.typing import Array, BoolArray, FloatArray

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from sklearn.utils import Tags

    from streampca.estimators.inputs import Input
    from streampca.execution.progress import ProgressCallback


class Patterns(StreamEstimator):
    """Maps and loadings of the features, shared by `PCA`, `RotatedPCA` and `FactorAnalysis`."""

    if TYPE_CHECKING:
        _model: PCAModel

    def _as_decomposed(self, X: ArrayLike, remove: Given | None) -> tuple[FloatArray, BoolArray]:
        """Return rows in memory as they are decomposed, centred, scaled and weighted, and which of their values are missing.

        Missing values are what stands in for them, or NaN where rows with them have no scores.
        """
        model = self._model
        rows = np.asarray(self._dense(X, remove), dtype=np.float64) - model.centre
        missing = np.isnan(rows)
        if model.stand_in is not None:
            np.copyto(rows, model.stand_in - model.mean, where=missing)
        if model.weights is not None:
            rows *= model.weights
        return rows, missing

    def _dense(self, X: ArrayLike, remove: Given | None) -> Array:
        """Return rows in memory as an array, without what the model removes."""
        rows: Any = self._validated(X)
        return np.asarray(self._without_removed(rows.toarray() if is_sparse(rows) else rows, X, remove))

    @property
    def plot(self) -> ComponentPlots:
        """Charts of this fit: ``plot.scree()``, ``plot.components()``, ``plot.scores(X)`` and ``plot.biplot(X)`` return axes of matplotlib."""
        return ComponentPlots(self)

    def maps(self) -> FloatArray | xr.DataArray | xr.Dataset:
        """Return the components in the units of the data: the change of each feature per standard deviation of a score.

        The maps are the coefficients of a regression of the data, unweighted and unscaled, on the standardised scores
        of the fit: √λⱼ vⱼ · scale / √feature_weight. For the scaled and weighted features, use `components_ *
        np.sqrt(explained_variance_)`. A row is the mean (plus the effects that `remove` fitted), plus each map times
        its standardised score, plus the contribution of the components that were left out.

        Returns
        -------
        ndarray of float64, DataArray or Dataset
            An array ``(k, n_features)``. For a labelled table, if xarray is installed, a DataArray ``(mode, …)`` with
            the dimensions and coordinates of the features and NaN at masked ones, or a Dataset for several variables.
            With scaling, constant features get 0. Features of weight 0 get NaN, since the model has no information on
            them.

        Raises
        ------
        NotAvailableError
            If the components are on disk.

        Notes
        -----
        Without centring, the regression has no intercept, and scores are divided by the square root of their sum of
        squares over n − ddof. Row weights count as in the fit. Correlated scores (promax) enter one joint regression.
        If NaN is allowed, covariances are those of the fit: with ``missing="mean"`` a missing value counts as the
        mean. Maps of approximate solvers inherit the errors of their components.

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

        Loadings refer to the features as decomposed, that is scaled and weighted. With ``scale=True`` and no weights
        they are the correlations of features and scores (of features and factors for `FactorAnalysis`). `maps`
        returns them in the units of the data.

        Returns
        -------
        pandas.DataFrame
            One row per feature, with its name if the data had names, and one column per component, named as in
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


def loadings_of(estimator: StreamEstimator) -> pd.DataFrame:
    """Return the loadings of a fitted estimator with the names of its features and of the scores."""
    check_is_fitted(estimator)
    pandas = optional_module("pandas", "a data frame of loadings", "xarray")
    model: Any = estimator._model
    names = model.source.get("feature_names")
    features = np.arange(model.n_features) if names is None else names
    columns = model.score_names(type(estimator).__name__.lower())
    return pandas.DataFrame(model.loadings().T, index=pandas.Index(features, name="feature"), columns=columns)


@documented(PCA_PARAMETERS)
@dataclass(eq=False, repr=False)
class PCA(Continuing, Patterns):
    """Principal component analysis of data of any size within a memory ceiling, in one pass or as many as allowed.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    components_ : array, shape (k, n_features)
        Orthonormal rows, largest variance first. The entry of largest modulus is positive. If the components of wide
        data do not fit in `memory` (``plan_.components_on_disk``), this is a zarr array on disk. Its chunks hold all
        components of some features, ``components_[:, start:stop]``. It lies in a temporary directory that is deleted
        with the estimator and this array, or in the saved model after loading.
    explained_variance_, explained_variance_ratio_, singular_values_ : array, shape (k,)
        Variances (divisor n − ddof), shares of `total_variance_`, singular values of the centred (and scaled) data.
    mean_ : array, shape (n_features,)
        Mean of each feature; zeros without centring.
    scale_ : array, shape (n_features,), or None
        Standard deviation of each feature, 1 where it never varies.
    noise_variance_, total_variance_ : float
        Mean variance of the directions left out; sum of the variances of all features after scaling.
    n_components_, n_samples_seen_, n_features_in_, numerical_rank_ : int
        `numerical_rank_` is the number of eigenvalues above rounding.
    n_passes_, bytes_read_, plan_ : int, int, Plan
        Passes of `fit`, decoded bytes that they read, and the plan.
    constant_features_ : array of int
        Indices of features that never vary.
    solver_ : str
    error_, certificate_ : ExactCertificate or ApproximateCertificate
        Certificate of the numerical errors of the result, an object of `streampca.models.certificates` with one
        attribute per figure. It is also a read-only mapping: ``error_["statement"]`` is ``error_.statement``, and
        ``print(error_)`` prints the statement.
    sampling_error_ : SamplingErrors
        Statistical errors of eigenvalues, shares and angles (`streampca.models.sampling_errors`), if `sampling_errors` is set.
    labels_ : Labels or None
        Dimensions, coordinates, variables and mask of the features of a labelled table (see `streampca.open`), and
        the dimensions of its samples, without their coordinates. None if the data had no labels.

    Examples
    --------
    >>> import numpy as np, streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 20)) * np.arange(20, 0, -1)
    >>> pca = sp.PCA(2, memory="1GiB").fit(rows)
    >>> pca.components_.shape, pca.solver_, pca.n_passes_
    ((2, 20), 'covariance', 1)
    """

    _solvers = SOLVERS

    n_components: NComponents = None
    _: KW_ONLY
    solver: Solver = "auto"
    sketch: Sketch = "auto"
    sketch_size: int | Auto = "auto"
    n_hashes: int = 4
    recovery: Recovery = "nystrom"
    pilot: int | Auto = "auto"
    max_passes: int | Auto = "auto"
    tolerance: float | None = None
    center: bool = True
    scale: bool | ScaleName = False
    whiten: bool = False
    missing: Missing = "error"
    missing_scores: MissingScores = "conditional"
    missing_value: float | None = None
    feature_weight: ArrayLike | str | None = None
    remove: Mapping[str, Any] | None = None
    ddof: int = 1
    forgetting: float = 1.0
    sampling_errors: int = 0
    memory: int | str | None = None
    device: str = "cpu"
    random_state: int = 0
    checkpoint: str | Path | None = None
    progress: ProgressCallback | None = None

    components_ = Fitted[FloatArray](
        lambda model: held(model.components)
    )  # where they do not fit in memory an array of zarr
    explained_variance_ = Fitted[FloatArray](lambda model: model.explained_variance)
    explained_variance_ratio_ = Fitted[FloatArray](lambda model: model.explained_variance_ratio)
    singular_values_ = Fitted[FloatArray](lambda model: model.singular_values)
    noise_variance_ = Fitted[float](lambda model: model.noise_variance)
    numerical_rank_ = Fitted[int](lambda model: model.numerical_rank)
    certificate_ = Fitted[ExactCertificate | ApproximateCertificate](lambda model: model.certificate)
    error_ = Fitted[ExactCertificate | ApproximateCertificate](lambda model: model.certificate)

    @property
    def component_rules_(self) -> ComponentRules:
        """Numbers of components by every rule: a mapping from rules, which prints as a table.

        Rules that need all eigenvalues apply to exact fits of up to 512 features (or samples, for wide data), to long
        tables, and to fits of up to 1,536 features that keep their state (the first access computes the eigenvalues).
        For other fits set ``n_components="gavish_donoho"``.
        """
        return self._with_eigenvalues().component_rules

    def projection_shrinkage(self) -> FloatArray:
        """Return the factors by which scores of new rows are smaller than scores of the rows of the fit, for many features and few rows.

        Scores of the rows of the fit have a root mean square of √`explained_variance_`. Scores of new rows of the
        same population have ρ times that. ``pca.transform(new) / pca.projection_shrinkage()`` puts both on one scale.
        The factors hold for many rows and features, independent rows and a few large components. If all eigenvalues
        are known (see `component_rules_`), the noise may have any covariance; otherwise the factors assume white
        noise of an effective number of features. `streampca.linalg.random_matrix` has formulas and references.

        Returns
        -------
        array, shape (k,)
            ρ, in (0, 1]; NaN for components that do not rise above the noise, and so are not directions of the
            population.

        Raises
        ------
        NotComputedError
            If rows have weights, if ``missing="pairwise"``, or if sums of powers of the other eigenvalues are
            unknown.
        """
        check_is_fitted(self)
        return projection_shrinkage_of(self._with_eigenvalues())

    def _with_eigenvalues(self) -> PCAModel:
        """Return the model with all eigenvalues, where they are known or follow from the state."""
        if self._fitted_state is not None:
            self._model = with_eigenvalues(self._model, self._fitted_state)
        return self._model

    def plan(self, X: Input, *, probe: bool = False) -> Plan:
        """Return what `fit` would do with `X`; reads metadata only.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Anything that `fit` accepts.
        probe : bool
            Ignored with a `FutureWarning`, and removed in the next minor version: the expected time follows from
            nominal rates.

        Returns
        -------
        Plan
            Passes, memory and bytes read, flops and expected seconds, also of the other solvers.

        Raises
        ------
        ParameterError, PlanError
            As `fit`.
        """
        if probe:
            warn_of_probe()
        source = self._open(X)
        return self._plan_source(source, self._parameters(), client=active_client(source), alternatives=True)

    def fit(self, X: Input, y: object = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Find the components of `X` in one pass, or in as many as `plan` states.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            numpy array or anything that scikit-learn accepts, scipy sparse matrix or array, memory map, Dask array
            (of numpy or scipy sparse blocks), zarr array, or the path of a zarr array or an ``.npy`` file.
        y : ignored
        sample_weight : array-like, shape (n_samples,), optional
            How many times each row counts: a weight of 2 equals giving the row twice, 0 leaves it out, and fractions
            are allowed. Variances are divided by the sum of the weights − `ddof`, so weights that sum to 1 need
            ``ddof=0``. Labelled weights (a pandas Series, a DataArray) are aligned with the rows by label, like all
            values given for rows or features. They are refused if the labels differ or the rows have none (a Series
            indexed 0, 1, 2, … counts as unlabelled).

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ParameterError
            If weights are negative, not finite or all zero, or if their number differs from that of the rows.
        PlanError
            If the work does not fit in `memory`.
        DataError
            If the data is missing, damaged, or not finite, or if integers beyond 2**53 vary by no more than the
            rounding of float64.

        Warns
        -----
        UserWarning
            If shares of the variance sum to more than 1, which ``recovery="conversion"`` can cause, or if rounding of
            integers beyond 2**53 changes eigenvalues by more than 1e-10 of the first.
        """
        parameters = with_sample_weight(self._parameters(), sample_weight)
        source = self._open(X)
        return self._fit(source, with_columns(parameters, source))

    def fit_groups(
        self, X: Input, labels: ArrayLike | str, *, sample_weight: ArrayLike | None = None
    ) -> GroupModels[Self]:
        """Return a PCA with these parameters for each group of rows of `X`, all from one pass; this estimator itself is not fitted.

        The result maps the label of each group to the fit of its rows. This fit equals a separate one up to rounding,
        with fewer components if the group has too few rows. ``"pooled"`` is the fit of the covariance within groups,
        Σ S / (n − G·ddof) for the scatters S of G groups. ``"between"`` is the fit of the group means, Σ nᵢ (mᵢ −
        m)(mᵢ − m)ᵀ / (n − ddof). With `scale`, each fit divides by its own standard deviations. Cost: one pass, n d²
        flops, and one d × d matrix per group, whose eigenproblem is solved when its model is first used.

        With `remove`, an extra first pass fits the regression to all rows, and each group is fitted to its residuals,
        about its own mean. All models then remove the same effects, trends and slopes, and none can be continued. For
        separate coefficients of a group, fit its rows alone, ``sp.open(path, where="time.season == 'DJF'")``.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features), path, lazy array or table
            Anything that `fit` accepts.
        labels : array-like, shape (n_samples,), or str
            Label of each row: numbers, times or text. Or the name of a sample coordinate, a part of its times such as
            ``"time.month"``, a column of ``obs`` of AnnData, or a column of a data frame or of Parquet files. That
            column is then not a feature.
        sample_weight : array-like, shape (n_samples,), optional
            Weights of the rows, as in `fit`.

        Returns
        -------
        GroupModels
            Mapping of labels, ``"pooled"`` and ``"between"`` to fitted estimators.

        Raises
        ------
        ParameterError
            If labels are missing, their number differs from that of the rows, or no such coordinate or column exists.
        NotAvailableError
            For `solver` other than "covariance", `missing` "mean" or "pairwise", and `forgetting`.
        DataError
            If a group has `ddof` rows or fewer, or the data is missing, damaged, or not finite.
        PlanError
            If the matrices of all groups do not fit in `memory`; states how many would.
        """
        return fit_of_groups(self, X, labels, sample_weight)

    def get_covariance(self) -> FloatArray:
        """Return the model covariance V (Λ − σ²) Vᵀ + σ² I of the centred, scaled features (Tipping & Bishop 1999).

        Returns
        -------
        ndarray of float64, shape (n_features, n_features)
            8 d² bytes, which plans do not count.

        Raises
        ------
        NotAvailableError
            If the components are on disk.
        """
        self._require_in_memory("get_covariance")
        spread = np.maximum(self.explained_variance_ - self.noise_variance_, 0.0)
        covariance: FloatArray = (self.components_.T * spread) @ self.components_
        covariance.flat[:: len(covariance) + 1] += self.noise_variance_
        return covariance

    def get_precision(self) -> FloatArray:
        """Return the inverse of `get_covariance`; directions without variance get the smallest variance of the model.

        Returns
        -------
        ndarray of float64, shape (n_features, n_features)
            8 d² bytes, which plans do not count.

        Raises
        ------
        NotAvailableError
            If the components are on disk.
        """
        self._require_in_memory("get_precision")
        noise, variance = self._floored()
        precision: FloatArray = (self.components_.T * (1 / variance - 1 / noise)) @ self.components_
        precision.flat[:: len(precision) + 1] += 1 / noise
        return precision

    def score_samples(self, X: ArrayLike, *, remove: Given | None = None) -> FloatArray:
        """Return the log-likelihood of each row under the probabilistic PCA model (Tipping & Bishop 1999).

        A row with missing values gets the log-likelihood of its observed values, or with ``missing_scores="mean"``
        that of the row filled with means. A row without observed values gets 0.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Rows in memory.
        remove : mapping, optional
            As in `transform`.

        Returns
        -------
        ndarray of float64, shape (n_samples,)
            Natural logarithms of densities.

        Raises
        ------
        NotAvailableError
            If the components are on disk.
        """
        self._require_in_memory("score")
        rows, missing = self._as_decomposed(X, remove)
        noise, variance = self._floored()
        projected = rows @ self.components_.T
        left = np.maximum(np.einsum("ij,ij->i", rows, rows) - np.einsum("ij,ij->i", projected, projected), 0.0)
        k, d = self.components_.shape
        logarithm = np.log(variance).sum() + (d - k) * np.log(noise) + d * np.log(2 * np.pi)
        likelihood: FloatArray = -0.5 * (projected**2 @ (1 / variance) + left / noise + logarithm)
        if self._model.conditional and missing.any():
            holes = missing.any(axis=1)
            likelihood[holes] = self._of_observed(rows[holes], missing[holes])
        return likelihood

    def _of_observed(self, rows: FloatArray, missing: BoolArray) -> FloatArray:
        """Return the log-likelihood of the observed values alone of `rows`, in which others are 0, ``(n_rows,)``."""
        noise, variance = self._floored()
        spread, likelihood = np.maximum(variance - noise, 0.0), np.empty(len(rows))
        for first, members in patterns_of(missing):
            seen = ~missing[first]
            axes = self.components_[:, seen]
            inverse, logarithm = posterior(spread, noise, (axes @ axes.T)[None])
            projected = rows[members][:, seen] @ axes.T
            squares = np.einsum("ij,ij->i", rows[members], rows[members])
            left = np.maximum(squares - np.einsum("ij,jk,ik->i", projected, inverse[0], projected), 0.0)
            n_seen = int(seen.sum())
            constant = logarithm[0] + (n_seen - len(axes)) * np.log(noise) + n_seen * np.log(2 * np.pi)
            likelihood[members] = -0.5 * (left / noise + constant) if n_seen else 0.0
        return likelihood

    def score(self: Any, X: ArrayLike, y: object = None) -> float:
        """Return the mean of `score_samples`.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Rows in memory.
        y : ignored

        Returns
        -------
        float
            Mean log-likelihood of the rows.
        """
        return float(self.score_samples(X).mean())

    def _require_in_memory(self, what: str) -> None:
        """Raise `NotFittedError`, or `NotAvailableError` if the components are on disk."""
        check_is_fitted(self)
        if self._model.on_disk:
            k, d = self._model.components.shape
            raise NotAvailableError(
                f"{what} needs the components in memory, and {k} x {d:,} of them are on disk because they did not fit: use transform, or fit "
                f"with fewer components or more memory (they take {8 * k * d:,} bytes)"
            )

    def _floored(self) -> tuple[float, FloatArray]:
        """Return noise variance and variances, none of them below what float64 can tell from 0."""
        floor = max(
            float(self.explained_variance_.max()) * np.finfo(np.float64).eps * self.n_features_in_,
            np.finfo(np.float64).tiny,
        )
        noise = self.noise_variance_
        if noise <= floor:
            noise = float(max(self.explained_variance_.min(), floor))
        return noise, np.maximum(self.explained_variance_, floor)

    def t2_limit(self, probability: float = 0.99, *, distribution: Distribution = "f") -> float:
        """Return the value that Hotelling's T² of normally distributed rows exceeds with probability 1 − `probability`.

        Parameters
        ----------
        probability : float
            Share of rows that are not above the limit, in (0, 1).
        distribution : {"f", "beta", "chi2"}
            ``"f"``: for new rows, k (n² − 1) / (n (n − k)) · F(k, n − k). ``"beta"``: for the rows of the fit, (n −
            1)² / n · Beta(k/2, (n − k − 1)/2), which is smaller (Tracy, Young & Mason 1992). Both are exact for
            normal rows if all components are kept. ``"chi2"``: the limit of both for many rows, χ²(k). n is the sum
            of the weights; with `remove`, each fitted mean and slope takes one degree of freedom. k counts the
            components above rounding.

        Returns
        -------
        float
            The limit.

        Raises
        ------
        NotAvailableError
            If no component is above rounding, or if ``"f"`` or ``"beta"`` has too few rows.
        """
        check_is_fitted(self)
        return t2_limit_of(self._model, probability, distribution)

    def q_limit(self, probability: float = 0.99) -> float:
        """Return the value that Q, the squared prediction error, of normally distributed rows exceeds with probability 1 − `probability`.

        Exact solvers use the formula of Jackson & Mudholkar (1979) with sums of the first three powers of the
        eigenvalues left out. Approximate solvers use that of Box (1954), g χ²(h), with sums of the first two,
        estimated from held-out columns.

        Parameters
        ----------
        probability : float
            Share of rows that are not above the limit, in (0, 1).

        Returns
        -------
        float
            The limit, in squared units of the centred, scaled and weighted rows.

        Raises
        ------
        NotAvailableError
            If these sums are unknown, as for models of earlier versions, or if nothing is left out.
        """
        check_is_fitted(self)
        return q_limit_of(self._model, probability)[0]

    def contributions(self, rows: ArrayLike, *, remove: Given | None = None) -> Contributions:
        """Return the contribution of each feature to T² and Q of rows.

        Parameters
        ----------
        rows : array-like or sparse, shape (n_rows, n_features)
            Rows in memory. Pass only rows that stand out: the result takes 16 bytes per value, which no plan counts.
        remove : mapping, optional
            As in `transform`.

        Returns
        -------
        Contributions
            Two arrays of shape (n_rows, n_features).

        Raises
        ------
        NotAvailableError
            If the components are on disk.
        """
        self._require_in_memory("contributions")
        dense = self._dense(rows, remove)
        names = self._known_names()
        return contributions_of(self._model, dense, None if names is None else tuple(names))

    def rotate(
        self, k: int | None = None, *, method: Method = "varimax", normalize: bool = True, power: float = 4
    ) -> RotatedPCA:
        """Return a fitted estimator of the first `k` components (None = all), rotated so that each has few large loadings.

        Its `transform` returns the scores of the rotated components. Its `inverse_transform` returns the same rows as
        the first k components before the rotation. Memory holds three copies of the loadings (components times
        standard deviations).

        Parameters
        ----------
        k : int or None
            Number of components; their variances must be above rounding.
        method : {"varimax", "promax"}
            Orthogonal rotation (Kaiser 1958) with scores that stay uncorrelated, or oblique (Hendrickson & White 1964).
        normalize : bool
            Whether the criterion scales the loadings of each feature to length 1 (Kaiser's normalisation).
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
        return estimator._become(self)

    def _parameters(self, threads: int | None = None) -> Parameters:
        """Return the checked parameters of a fit."""
        named = checked(PCA_PARAMETERS, vars(self))
        named["n_components"] = from_plain(named["n_components"])
        named["remove"], given = removal_of(self.remove), dict[str, object]()
        if self.remove is not None and any(map(is_placed, self.remove.values())):
            given["remove"] = self.remove
        if isinstance(self.feature_weight, str) or is_placed(self.feature_weight):
            given["feature_weight"] = self.feature_weight
        else:
            named["feature_weight"] = as_weights("feature_weight", self.feature_weight)
        return Parameters(**named, given=given, threads=threads)


@dataclass(eq=False, repr=False)
class RotatedPCA(Patterns):
    """Principal components rotated towards simple structure, so that each has few large loadings.

    `PCA.rotate` makes one from a fit; `fit` fits a clone of `pca` and rotates it. For the loadings L = V Λ^½ of the k
    leading components, the rotated pattern is A = L M, with M from `streampca.linalg.factors`.

    Parameters
    ----------
    pca : PCA
        The estimator to fit and rotate.
    k : int or None
        Number of leading components to rotate; None = all.
    method : {"varimax", "promax"}
        Orthogonal M, which leaves the scores uncorrelated (Kaiser 1958), or an oblique one (Hendrickson & White 1964).
    normalize : bool
        Kaiser's normalisation: all features count equally in the criterion, whatever share of their variance the
        components explain.
    power : float
        Exponent of promax.
    memory : int, str or None
        Ceiling for the memory of the process; None = that of `pca` in `fit`.
    progress : callable, optional
        As for `PCA`; None = that of `pca` in `fit`.

    Attributes
    ----------
    components_ : array, shape (k, n_features)
        Rows of unit length: the columns of A divided by their lengths, largest first. The entry of largest modulus is
        positive. They are not orthogonal: their pseudo-inverse gives the scores of centred, scaled and weighted rows.
    explained_variance_ : array, shape (k,)
        Variances of the scores (without whitening): sums of squares of the columns of A. For varimax they add up to
        the variance of the components before the rotation.
    explained_variance_ratio_ : array, shape (k,)
        diag(Φ AᵀA) over the total variance. For both methods these add up to the share before the rotation.
    correlation_ : array, shape (k, k)
        Correlations Φ = (MᵀM)⁻¹ of the scores; the identity for varimax.
    rotation_ : array, shape (k, k)
        M.
    pca_ : PCA
        The fit before the rotation. Its certificate bounds the errors of the components that were rotated.
    mean_, scale_, noise_variance_, total_variance_, n_components_, n_samples_seen_, n_features_in_
        As for `PCA`.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 6))
    >>> rotated = sp.PCA(4).fit(rows).rotate(3, method="varimax")
    >>> rotated.components_.shape
    (3, 6)
    """

    pca: PCA
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
    pca_ = Fitted[PCA]()

    def fit(self, X: Input, y: object = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Fit a clone of `pca` to `X`, read as `PCA.fit` reads it, and rotate its components.

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
            As `PCA.fit` and `PCA.rotate`.
        """
        return self._become(self._before().fit(X, sample_weight=sample_weight))

    def plan(self, X: Input, *, probe: bool = False) -> Plan:
        """Return what `fit` would do: the plan of `pca`, since the rotation reads no data."""
        if probe:
            warn_of_probe()
        planned: Plan = self._before().plan(X)
        return planned

    def _before(self) -> Any:
        """Return the estimator that is fitted before the rotation: a clone of `pca` with the ceiling and callback of this one."""
        if not isinstance(self.pca, PCA):
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

    def _become(self, fitted: PCA, model: RotatedModel | None = None) -> Self:
        """Become the rotation of `fitted`, or the `model` of it that was made before."""
        if model is None:
            model = rotate(fitted._model, self.k, method=self.method, normalize=self.normalize, power=self.power)
        self._model = model
        self._keep(pca_=fitted)
        return self
