"""Principal component analysis as a scikit-learn estimator over arrays and stores of any size."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import ArrayLike

from streampca.estimators.base import held
from streampca.estimators.continuing import Continuing
from streampca.estimators.groups import GroupModels, fit_of_groups
from streampca.estimators.interface import Fitted, check_is_fitted
from streampca.estimators.rotated import Rotating
from streampca.estimators.row_diagnostics import RowDiagnostics
from streampca.execution.distributed.active_client import active_client
from streampca.linalg.component_rules import ComponentRules
from streampca.linalg.selection import NComponents, from_plain
from streampca.models.certificates import ApproximateCertificate, ExactCertificate
from streampca.models.pca import PCAModel
from streampca.models.shrinkage import projection_shrinkage_of
from streampca.parameters import PCA_PARAMETERS, Parameters, checked, documented
from streampca.parameters.choices import Auto, Missing, MissingScores, Recovery, ScaleName, Sketch, Solver
from streampca.planning.checks import as_weights
from streampca.planning.columns import with_columns, with_sample_weight
from streampca.planning.cost import warn_of_probe
from streampca.planning.plan import Plan
from streampca.regressors import removal_of
from streampca.solvers.fit import fit as fit_source
from streampca.solvers.fit import plan_fit, readings_of_fit
from streampca.solvers.registry import SOLVERS
from streampca.solvers.state import with_eigenvalues
from streampca.sources.alignment import is_placed
from streampca.typing import FloatArray

if TYPE_CHECKING:
    from streampca.estimators.inputs import Input
    from streampca.execution.progress import ProgressCallback


@documented(PCA_PARAMETERS)
@dataclass(eq=False, repr=False)
class PCA(Continuing, RowDiagnostics, Rotating):
    """Principal component analysis of data of any size, read once or as often as allowed, within a memory ceiling.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    components_ : array, shape (k, n_features)
        Orthonormal rows, largest variance first, the entry of largest modulus positive. Where the components of wide data do not fit in `memory`
        (``plan_.components_on_disk``) it is the zarr array on disk, in chunks of all components for some features, ``components_[:, start:stop]``: in a
        temporary directory that goes with the estimator and this array, or, once loaded, in the saved model.
    explained_variance_, explained_variance_ratio_, singular_values_ : array, shape (k,)
        Variances (divisor n − ddof), shares of `total_variance_`, singular values of the centred (and scaled) data.
    mean_ : array, shape (n_features,)
        Mean of each feature; zeros without centring.
    scale_ : array, shape (n_features,), or None
        Standard deviation of each feature, 1 where it never varies.
    noise_variance_, total_variance_ : float
        Mean variance of the directions that are left out; sum of the variances of all features after scaling.
    n_components_, n_samples_seen_, n_features_in_, numerical_rank_ : int
        The last is how many of the eigenvalues stand above rounding.
    n_passes_, bytes_read_, plan_ : int, int, Plan
        Readings by `fit`, decoded bytes of them, and what was planned.
    constant_features_ : array of int
        Indices of features that never vary.
    solver_ : str
    error_, certificate_ : ExactCertificate or ApproximateCertificate
        What can be said of the numerical error of this answer, an object of `streampca.models.certificates` with an attribute for every
        figure. It is a read-only mapping, too: ``error_["statement"]`` is ``error_.statement``, and ``print(error_)`` prints it.
    sampling_error_ : SamplingErrors
        Statistical errors of eigenvalues, shares and angles (`streampca.models.sampling_errors`), if `sampling_errors` is set.
    labels_ : Labels or None
        Dimensions, coordinates, variables and mask of the features of a labelled table (see `streampca.open`), and the dimensions of its samples
        without coordinates; None where the data had none.

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
        """What every rule for the number of components says of this fit: a table that prints, and a mapping by rule.

        Rules that need all eigenvalues have them of exact fits of up to 512 features (or of samples, for wide data), of long tables, and where
        the state is kept and has up to 1,536 features (the first access computes them); else ask for ``n_components="gavish_donoho"``.
        """
        return self._with_eigenvalues().component_rules

    def projection_shrinkage(self) -> FloatArray:
        """Return the factors by which scores of new rows are smaller than those of the rows of the fit, where features are many and rows few.

        The rms of the scores that `transform` gives for rows of the same population that were not in the fit is ρ times √`explained_variance_`, that of
        the rows of the fit; ``pca.transform(new) / pca.projection_shrinkage()`` puts both on one scale. The factors are those of many rows and features, for
        independent rows, a few large components, and noise of any covariance where all eigenvalues are known (see `component_rules_`); where
        they are not, for white noise of an effective number of features. `streampca.linalg.random_matrix` has formulas and sources.

        Returns
        -------
        array, shape (k,)
            ρ, in (0, 1]; NaN for components that do not stand out of the noise, and so are not directions of the population.

        Raises
        ------
        NotComputedError
            If rows have weights, ``missing="pairwise"``, or sums of powers of the other eigenvalues are not known.
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
            Everything that `fit` takes.
        probe : bool
            Ignored with a `FutureWarning`, and ends with the next minor version: the expected time follows from nominal rates.

        Returns
        -------
        Plan
            Passes, memory and reads in bytes, flops and expected seconds, and the same of the other solvers.

        Raises
        ------
        ParameterError, PlanError
            As `fit`.
        """
        if probe:
            warn_of_probe()
        source = self._open(X)
        return plan_fit(source, self._parameters(), client=active_client(source), alternatives=True)

    def fit(self, X: Input, y: object = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Find the components of `X`, which is read once, or as often as `plan` says.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            numpy array or anything scikit-learn takes, scipy sparse matrix or array, memory map, Dask array (of numpy or
            scipy sparse blocks), zarr array, or the path of a zarr array or an ``.npy`` file.
        y : ignored
        sample_weight : array-like, shape (n_samples,), optional
            How many times each row counts: a weight of 2 is the row given twice, 0 leaves it out, fractions are allowed.
            The divisor of variances is the sum of the weights − `ddof`, so weights that add up to 1 need ``ddof=0``. Weights with labels
            (a Series of pandas, a DataArray) are put in the order of the rows by these, as all values that are given for rows and
            features; they are refused if the labels are others, or the rows have none (a Series numbered 0, 1, 2, … counts as without).

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ParameterError
            If weights are negative, not finite, all zero, or not one for each row.
        PlanError
            If the work does not fit in `memory`.
        DataError
            If the data is missing, damaged, or not finite, or integers beyond 2**53 vary by no more than float64 rounds them.

        Warns
        -----
        UserWarning
            If shares of the variance sum to more than 1, as those of ``recovery="conversion"`` may, or if rounding of integers beyond
            2**53 changes eigenvalues by more than 1e-10 of the first.
        """
        parameters = with_sample_weight(self._parameters(), sample_weight)
        source = self._open(X)
        result = self._fit_or_resume(source, with_columns(parameters, source))
        self._take(result, source)
        for concern in result.model.concerns:
            warnings.warn(concern, UserWarning, stacklevel=2)
        return self

    def fit_groups(
        self, X: Input, labels: ArrayLike | str, *, sample_weight: ArrayLike | None = None
    ) -> GroupModels[Self]:
        """Return a PCA with these parameters for each group of rows of `X`, all from one reading; this estimator is not fitted.

        The result is a mapping: labels of groups to fits of the rows of each, equal to separate fits up to rounding, with as
        many components as its rows can give; ``"pooled"``, the fit of the covariance within groups, Σ S / (n − G·ddof) for the scatters S of G
        groups; ``"between"``, the fit of the group means, Σ nᵢ (mᵢ − m)(mᵢ − m)ᵀ / (n − ddof). With `scale`, each of these
        divides by its own standard deviations. Cost: one reading, n d² flops, and a d × d matrix for each group, whose eigenproblem
        waits for the first use of its model.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features), path, lazy array or table
            Everything that `fit` takes.
        labels : array-like, shape (n_samples,), or str
            Label of each row: numbers, times or text. Or the name of a coordinate along samples, of a part of its times such as
            ``"time.month"``, of a column of ``obs`` of AnnData, or of a column of a data frame or of Parquet files, which is no
            feature then.
        sample_weight : array-like, shape (n_samples,), optional
            Weights of the rows, as in `fit`.

        Returns
        -------
        GroupModels
            Mapping of labels, ``"pooled"`` and ``"between"`` to fitted estimators.

        Raises
        ------
        ParameterError
            If labels are missing or not one for each row, or there is no such coordinate or column.
        NotAvailableError
            For `solver` other than "covariance", `missing` "mean" or "pairwise", `remove` and `forgetting`.
        DataError
            If a group has not more than `ddof` rows, or the data is missing, damaged, or not finite.
        PlanError
            If the matrices of all groups do not fit in `memory`, with how many would.
        """
        return fit_of_groups(self, X, labels, sample_weight)

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

    _plan_source = staticmethod(plan_fit)
    _fit_source = staticmethod(fit_source)
    _readings_of_fit = staticmethod(readings_of_fit)
