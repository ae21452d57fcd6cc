"""Two tables with the same samples: maximum covariance analysis and canonical correlation analysis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import NotAvailableError, ParameterError
from streampca.estimators.analyses import StateEstimator
from streampca.estimators.base import Floats, StreamEstimator
from streampca.estimators.inputs import is_array_like, is_dask, require_lazy_output
from streampca.estimators.interface import Fitted, check_is_fitted, clone, in_container
from streampca.estimators.labelled import MODE, dataset_of, is_data_array
from streampca.estimators.pca import PCA, loadings_of
from streampca.formatting import as_text
from streampca.labels import Labels
from streampca.linalg.selection import is_count
from streampca.models.analysis import AnalysisModel, joined_model, scores_of_rows
from streampca.models.rows import Given
from streampca.models.state import FittedState
from streampca.parameters import Parameters, documented
from streampca.parameters.analyses import COUPLED_PARAMETERS, SHARED
from streampca.parameters.statement import Missing, ScaleName
from streampca.planning.plan import Plan
from streampca.solvers.analyses import Analysis, CanonicalCorrelation, MaximumCovariance, sides_of
from streampca.sources import Source
from streampca.sources.files.paths import is_paths
from streampca.sources.table import side_by_side, with_features
from streampca.system.optional import package_of
from streampca.typing import FloatArray

if TYPE_CHECKING:
    import dask.array as da
    import pandas as pd
    import xarray as xr

    from streampca.estimators.inputs import InMemory, Input, Lazy
    from streampca.execution.progress import ProgressCallback


@dataclass(eq=False, repr=False)
class Coupled(StateEstimator):
    """Base class of the analyses of two tables."""

    _stated = COUPLED_PARAMETERS
    _kind: ClassVar[type[MaximumCovariance] | type[CanonicalCorrelation]]

    n_components: int = 2
    _: KW_ONLY
    first: int | str | Sequence[str] | None = None
    n_pca: int | PCA | None = None
    center: bool = True
    scale: bool | ScaleName = False
    missing: Missing = "error"
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

    n_components_ = Fitted[int](lambda model: model.n_requested)
    x_components_ = Fitted[FloatArray](lambda model: model.sides[0].components)
    y_components_ = Fitted[FloatArray](lambda model: model.sides[1].components)
    x_patterns_ = Fitted[FloatArray](lambda model: model.sides[0].patterns)
    y_patterns_ = Fitted[FloatArray](lambda model: model.sides[1].patterns)
    x_explained_variance_ = Fitted[FloatArray](lambda model: model.sides[0].explained_variance)
    y_explained_variance_ = Fitted[FloatArray](lambda model: model.sides[1].explained_variance)
    x_pca_ = Fitted[PCA]()
    y_pca_ = Fitted[PCA]()

    def fit(self, X: Input, Y: Input | None = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to two tables with the same samples, in one pass.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features_x)
            The first table, anything that `PCA.fit` accepts; or both side by side, such as two variables of a store
            (``streampca.open("x.zarr", variables=["sst", "precip"])``).
        Y : array-like, shape (n_samples, n_features_y) or (n_samples,), optional
            The second table, with the samples in the same order. Sample coordinates that both tables have must be
            equal. A one-dimensional array is one column.
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
            vars(self).pop(name, None)
        if self.n_pca is None:
            return super().fit(X, Y, sample_weight=sample_weight)
        return self._fit_reduced(self._table(X, Y), sample_weight)

    @overload
    def transform(self, X: InMemory, Y: InMemory, *, remove: Given | None = None) -> tuple[Floats, Floats]: ...

    @overload
    def transform(self, X: None, Y: InMemory, *, remove: Given | None = None) -> Floats: ...

    @overload
    def transform(self, X: Lazy, Y: Lazy, *, remove: Given | None = None) -> tuple[da.Array, da.Array]: ...

    @overload
    def transform(
        self, X: xr.DataArray | xr.Dataset, Y: xr.DataArray | xr.Dataset, *, remove: Given | None = None
    ) -> tuple[xr.DataArray, xr.DataArray]: ...

    @overload
    def transform(self, X: Input | None, Y: Input | None = None, *, remove: Given | None = None) -> Any: ...

    def transform(self, X: Input | None, Y: Input | None = None, *, remove: Given | None = None) -> Any:
        """Return the scores of rows of the first table, of both, or of a table of both side by side.

        Parameters
        ----------
        X : array-like or None
            Rows of the first table, or of both side by side: anything that `fit` accepts. None for the second table
            alone.
        Y : array-like, optional
            Rows of the second table; a one-dimensional array is one column.
        remove : mapping, optional
            As in `PCA.transform`.

        Returns
        -------
        array, shape (n_samples, k), or tuple of two
            Scores of the first and of the second table, or of the only table given, as numpy, Dask or xarray objects
            like those of `PCA.transform`. The attribute ``table`` of a DataArray, ``"x"`` or ``"y"``, names the
            table.

        Raises
        ------
        ParameterError
            If `X` or `Y` do not have the features of the fit, or both are None.
        """
        check_is_fitted(self)
        one, two = self._sides()
        if X is None and Y is None:
            raise ParameterError("transform: expected rows of the first table (X), of the second (Y), or of both")
        if X is None:
            return _marked(StreamEstimator.transform(two, _as_columns(Y), remove=remove), "y")
        if Y is not None:
            scores = StreamEstimator.transform(one, X, remove=remove)
            return _marked(scores, "x"), _marked(StreamEstimator.transform(two, _as_columns(Y), remove=remove), "y")
        if PCA(missing_value=self.missing_value)._open(X).shape[1] == one._model.n_features:
            return _marked(StreamEstimator.transform(one, X, remove=remove), "x")
        require_lazy_output(self, X)
        both, k = StreamEstimator.transform(self._whole(), X, remove=remove), self.n_components_
        if is_data_array(both):
            first, second = both.isel({MODE: slice(0, k)}), both.isel({MODE: slice(k, None)})
            return _marked(first, "x"), _marked(second.assign_coords({MODE: first[MODE]}), "y")
        return in_container(self, X, both[:, :k]), in_container(self, X, both[:, k:])

    @overload  # type: ignore[override]
    def fit_transform(self, X: InMemory, Y: InMemory, **params: Any) -> tuple[Floats, Floats]: ...

    @overload
    def fit_transform(self, X: Input, Y: Input | None = None, **params: Any) -> Any: ...

    def fit_transform(self, X: Input, Y: Input | None = None, **params: Any) -> Any:
        """Fit to both tables and return their scores, as `fit` followed by `transform` does."""
        return self.fit(X, Y, **params).transform(X, Y)

    @overload
    def inverse_transform(self, X: InMemory, Y: InMemory, *, remove: Given | None = None) -> tuple[Floats, Floats]: ...

    @overload
    def inverse_transform(self, X: InMemory, Y: None = None, *, remove: Given | None = None) -> Floats: ...

    @overload
    def inverse_transform(self, X: None, Y: InMemory, *, remove: Given | None = None) -> Floats: ...

    @overload
    def inverse_transform(self, X: Any = None, Y: Any = None, *, remove: Given | None = None) -> Any: ...

    def inverse_transform(self, X: Any = None, Y: Any = None, *, remove: Given | None = None) -> Any:
        """Return the rows for given scores, in the units of the data: patterns times scores, plus the mean.

        Parameters
        ----------
        X : array-like, Dask array or DataArray, shape (n_samples, k), optional
            Scores of the first table, or with 2 k columns, of both side by side. A DataArray that `transform`
            returned for the second table counts as scores of the second.
        Y : array-like, Dask array or DataArray, shape (n_samples, k), optional
            Scores of the second table; ``inverse_transform(None, y_scores)`` takes these alone.
        remove : mapping, optional
            As in `PCA.inverse_transform`.

        Returns
        -------
        array, or tuple of two
            Rows of each table whose scores are given, ``(n_samples, n_features_x)`` or ``(n_samples, n_features_y)``;
            for scores with 2 k columns, rows of both side by side. The types are those of `PCA.inverse_transform`.

        Raises
        ------
        ParameterError
            If no scores are given, their shape does not match, or a DataArray has the scores of the other table.
        """
        check_is_fitted(self)
        if Y is None and _table_of(X) == "y":
            X, Y = None, X
        given = {"x": X, "y": Y}
        for name, scores in given.items():
            if _table_of(scores) not in (None, name):
                raise ParameterError(
                    f"{name.upper()} has the scores of table {_table_of(scores)!r}: expected inverse_transform(x_scores, y_scores), "
                    "inverse_transform(x_scores) or inverse_transform(None, y_scores)"
                )
        if X is None and Y is None:
            raise ParameterError(
                "inverse_transform: expected scores of the first table (X), of the second (Y), or both"
            )
        k = self.n_components_
        named = is_data_array(X) and MODE in X.coords
        both = bool((np.asarray(X[MODE]) > k).any()) if named else np.shape(X)[-1:] == (2 * k,)
        if Y is None and both:
            return StreamEstimator.inverse_transform(self._whole(), X, remove=remove)
        rows = [
            StreamEstimator.inverse_transform(side, scores, remove=remove)
            for side, scores in zip(self._sides(), given.values(), strict=True)
            if scores is not None
        ]
        return rows[0] if len(rows) == 1 else tuple(rows)

    def inverse_transform_to(self, X: Any, path: str | Path, *, side: Literal["x", "y"] = "x", **options: Any) -> Path:
        """Stream the rows of one table for given scores to a zarr group; see `PCA.inverse_transform_to`.

        Parameters
        ----------
        X : array-like, path, zarr array, Dask array or DataArray, shape (n_samples, k)
            Scores of the first table, or of the second with ``side="y"``.
        path : str or Path
            Directory of the group.
        side : {"x", "y"}
            Table of the scores and of the rows that are written.
        **options
            ``dtype``, ``clip``, ``overwrite`` and ``remove``, as in `PCA.inverse_transform_to`.

        Returns
        -------
        Path
            `path`.

        Raises
        ------
        ParameterError
            If `side` is neither of these, or the scores belong to the other table; and as `PCA.inverse_transform_to`.
        """
        check_is_fitted(self)
        if side not in ("x", "y"):
            raise ParameterError(f"side={side!r}: expected 'x' or 'y'")
        if _table_of(X) not in (None, side):
            raise ParameterError(
                f"the scores are those of table {_table_of(X)!r}, and side={side!r}: give the other side"
            )
        return StreamEstimator.inverse_transform_to(self._sides()[side == "y"], X, path, **options)

    @overload
    def predict(self, X: InMemory, *, remove: Given | None = None) -> Floats: ...

    @overload
    def predict(self, X: Lazy, *, remove: Given | None = None) -> da.Array: ...

    @overload
    def predict(self, X: xr.DataArray | xr.Dataset, *, remove: Given | None = None) -> xr.DataArray | xr.Dataset: ...

    @overload
    def predict(self, X: Input, *, remove: Given | None = None) -> Any: ...

    def predict(self, X: Input, *, remove: Given | None = None) -> Any:
        """Predict rows of the second table, in its units, by regression on the scores of rows of the first.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features_x)
            Rows of the first table.
        remove : mapping, optional
            As in `PCA.transform`, for these rows. The effects that the fit removed from the second table are added to
            the prediction.

        Returns
        -------
        array, shape (n_samples, n_features_y)
            `CCA` regresses on the canonical variates (reduced-rank regression), `MCA` on the scores of the leading
            pairs. After ``n_pca`` the principal components of the second table are predicted. Scores that are
            linearly dependent up to rounding add nothing. A numpy array, a lazy Dask array or a DataArray, as from
            `inverse_transform` of the scores of `X`, or a data frame if `set_output` asked for one.

        Raises
        ------
        NotAvailableError
            If an earlier version of streampca saved the model, without coefficients.
        """
        check_is_fitted(self)
        one, two = self._sides()
        coefficients = self._model.prediction
        if coefficients is None:
            raise NotAvailableError(
                "predict: the model has no coefficients of the regression, since an earlier version saved it: fit again, or use "
                "from_state if it was saved with state=True"
            )
        require_lazy_output(self, X)
        one.set_output(transform="default")
        two._model = replace(two._model, patterns=coefficients)
        scores = StreamEstimator.transform(one, X, remove=remove)
        rows = StreamEstimator.inverse_transform(two, scores, remove=remove)
        names = two._model.source.get("feature_names")
        return in_container(self, X, rows, names or [f"y{i}" for i in range(two._model.n_features)])

    def loadings(self) -> pd.DataFrame:
        """Return the loadings: the change of the scaled and weighted features per standard deviation of a score of their table.

        Returns
        -------
        pandas.DataFrame
            One row per feature of both tables, and the columns ``x_mca0, …, y_mca0, …`` (``x_cca0, …``), which are 0
            for features of the other table. With ``scale=True`` the loadings of `CCA` are the correlations of
            features and variates.

        Raises
        ------
        NotAvailableError
            If pandas is not installed.
        """
        return loadings_of(self)

    def to_xarray(self) -> tuple[xr.Dataset, xr.Dataset]:  # type: ignore[override]
        """Return the models of the first and of the second table as Datasets; see `PCA.to_xarray`.

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
        pca = PCA(missing_value=self.missing_value)
        one, two = pca._open(X), pca._open(_as_columns(Y))
        self._n_first = one.shape[1]
        joint = side_by_side(one, two)
        if is_array_like(X) and is_array_like(Y) and one.feature_names and two.feature_names:
            joint.feature_names = (*one.feature_names, *two.feature_names)
        if self.first is not None and self._features_of_first(joint.labels) != one.shape[1]:
            raise ParameterError(
                f"first={self.first!r}, and X has {one.shape[1]:,} features: give one of them, fit(X, Y) or first"
            )
        return joint

    def partial_fit(self, X: Input, Y: Any = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Add rows of both tables to the fit; see `PCA.partial_fit`."""
        if self.n_pca is not None:
            raise NotAvailableError("n_pca keeps no state to add rows to: new rows would change the components")
        return super().partial_fit(self._table(X, Y), sample_weight=sample_weight)

    def partial_unfit(self, X: Input, Y: Any = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Remove rows of both tables from the fit; see `PCA.partial_unfit`."""
        return super().partial_unfit(self._table(X, Y), sample_weight=sample_weight)

    def _sides(self) -> tuple[Self, Self]:
        """Return estimators of the first and of the second table alone, which give its scores."""
        one, two = (self._applying(model) for model in self._model.sides)
        return one, two

    def _whole(self) -> Self:
        """Return an estimator of both tables side by side, with 2 k scores."""
        return self._applying(self._model).set_output(transform="default")

    def _applying(self, model: AnalysisModel) -> Self:
        """Return an estimator that applies `model` and holds no state."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._fitted_state, twin._model = None, model
        return twin

    def _analysis(self, source: Source | FittedState) -> Analysis:
        n_features = source.n_features if isinstance(source, FittedState) else source.shape[1]
        n_first = self._features_of_first(source.labels)
        analysis = self._kind(self.n_components, n_first=n_first)
        analysis.require_pairs(n_features)
        return analysis

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

    def _plan_source(self, source: Source, parameters: Parameters, **options: Any) -> Plan:
        """Plan a fit of a source with checked parameters; with `n_pca`, that of both tables and of the scores."""
        if self.n_pca is None:
            return super()._plan_source(source, parameters, **options)
        plans, tables = [], []
        for pca, table in self._reductions(source):
            plan = pca.plan(table)
            plans.append(plan)
            tables.append(scores_of_rows(table, None, plan.n_components or min(table.shape)))
        joint, scores = self._of_scores(tables)
        return _plan_of_reduced(plans[0], plans[1], joint.plan(scores), source)

    def _fit_reduced(self, source: Source, sample_weight: ArrayLike | None) -> Self:
        """Fit by the principal components of each table."""
        sides, tables = [], []
        for pca, table in self._reductions(source):
            sides.append(pca.fit(table, sample_weight=sample_weight))
            tables.append(scores_of_rows(table, pca._model))
        joint, scores = self._of_scores(tables)
        joint = StateEstimator.fit(joint, scores, sample_weight=sample_weight)
        one, two = (side._model for side in sides)
        self._model, self._fitted_state = joined_model(joint._model, one, two, source), None
        self._n_first = self._model.n_first
        self._keep(
            x_pca_=sides[0],
            y_pca_=sides[1],
            plan_=_plan_of_reduced(sides[0].plan_, sides[1].plan_, joint.plan_, source),
            solver_=joint.solver_,
            n_passes_=joint.n_passes_ + max(side.n_passes_ for side in sides),
            bytes_read_=joint.bytes_read_ + sum(side.bytes_read_ for side in sides),
        )
        return self

    def _reductions(self, source: Source) -> Iterator[tuple[PCA, Source]]:
        """Yield the unfitted components of each table, and the table."""
        n_first = sides_of(self._analysis(source).n_first, source.shape[1])
        used, weight = np.arange(source.shape[1]) < n_first, self.feature_weight
        shared = {
            each.name: getattr(self, each.name) for each in SHARED if each.name not in ("sampling_errors", "checkpoint")
        }
        for mask in (used, ~used):
            own = weight if weight is None or isinstance(weight, str) else np.asarray(weight)[mask]
            pca: PCA = clone(self.n_pca) if isinstance(self.n_pca, PCA) else PCA(self.n_pca)
            if is_count(pca.n_components) and pca.n_components < self.n_components:
                raise ParameterError(
                    f"n_pca={pca.n_components} is less than n_components={self.n_components}: expected at least as many components of "
                    "each table as pairs"
                )
            pca.set_params(**{**shared, "feature_weight": own, "missing_scores": "mean", "whiten": False})
            yield pca, with_features(source, mask)

    def _of_scores(self, tables: Sequence[Source]) -> tuple[Self, Source]:
        """Return the estimator of the scores of both tables, which are centred, unscaled and whole, and these side by side."""
        joint: Self = clone(self)
        as_they_are = {
            "scale": False,
            "missing": "error",
            "missing_value": None,
            "feature_weight": None,
            "remove": None,
        }
        joint.set_params(first=None, n_pca=None, **as_they_are)
        joint._n_first = tables[0].shape[1]
        return joint, side_by_side(*tables)


def _plan_of_reduced(one: Plan, two: Plan, joint: Plan, source: Source) -> Plan:
    """Return the plan of a fit to both tables of `source` by their components: of the fits of each, and of that of their `joint` scores.

    Blocks, leaves and threads are those of the reading of the scores; passes, reads and work are sums, and memory is that of the step
    that takes most. Its notes say what each step takes.
    """
    steps = {"components of the first table": one, "components of the second table": two, "scores of both": joint}
    most = max(steps.values(), key=lambda step: step.projected_bytes)
    seconds = [step.expected_seconds for step in steps.values()]
    said = (
        f"{name}: {step.solver}, {step.passes} pass{'es' if step.passes > 1 else ''}, {as_text(step.bytes_to_read)} decoded, "
        f"{as_text(step.projected_bytes)} projected"
        for name, step in steps.items()
    )
    notes = dict.fromkeys(note for step in steps.values() for note in step.notes)
    return replace(
        joint,
        reason=f"the scores of {one.n_components} and {two.n_components} principal components of each table, which are fitted first",
        n_features=source.shape[1],
        dtype=str(source.dtype),
        budget=most.budget,
        passes=joint.passes + max(one.passes, two.passes),
        bytes_to_read=sum(step.bytes_to_read for step in steps.values()),
        flops=sum(step.flops for step in steps.values()),
        expected_seconds=None if None in seconds else sum(each for each in seconds if each is not None),
        disk_bytes=max(step.disk_bytes for step in steps.values()),
        notes=(*said, *notes),
        alternatives=(),
    )


def _as_columns(Y: Any) -> Any:
    """Return a second table; values of one dimension, one for each row, as its only column."""
    if package_of(Y) in ("pandas", "polars"):
        return Y.to_frame() if hasattr(Y, "to_frame") else Y  # of a Series
    if is_data_array(Y):
        return Y.expand_dims("feature", axis=1) if Y.ndim == 1 else Y
    converted = hasattr(Y, "__array__") and not hasattr(Y, "ndim")
    if converted or (isinstance(Y, Sequence) and not is_paths(Y)):
        Y = np.asarray(Y)
    return Y[:, None] if (isinstance(Y, np.ndarray) or is_dask(Y)) and Y.ndim == 1 else Y


def _table_of(scores: object) -> str | None:
    """Return whose scores a DataArray has, ``"x"`` or ``"y"``, as `transform` wrote it; None where nothing tells."""
    return scores.attrs.get("table") if is_data_array(scores) else None


def _marked(scores: Any, table: str) -> Any:
    """Return scores of that table, of which a DataArray says so."""
    return scores.assign_attrs(table=table) if is_data_array(scores) else scores


@documented(COUPLED_PARAMETERS)
class MCA(Coupled):
    """Maximum covariance analysis: pairs of orthonormal patterns of two tables whose scores have the largest covariances.

    The components are the singular vectors of the cross-covariance C₁₂ of the tables (Bretherton, Smith & Wallace
    1992, J. Climate 5:541), a block of the covariance of both side by side. So one pass is enough, states can be
    merged and continued, and `from_state` also accepts a state of `PCA`. With ``scale=True`` the components are the
    weights of scikit-learn's `PLSSVD`.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    singular_values_ : array, shape (k,)
        Covariances of the scores of the pairs, largest first.
    squared_covariance_fraction_ : array, shape (k,)
        Squares of the singular values over ‖C₁₂‖²_F.
    x_components_, y_components_ : array, shape (k, n_features_x) and (k, n_features_y)
        Orthonormal rows; the entry of largest modulus of the first is positive.
    x_patterns_, y_patterns_ : array
        Patterns, which times scores give rows: equal to the components.
    x_explained_variance_, y_explained_variance_ : array, shape (k,)
        Variances of the scores.
    sampling_error_ : StrengthErrors
        Sampling errors of the singular values, if `sampling_errors` is set.
    x_pca_, y_pca_ : PCA
        The fits that reduced the tables, if `n_pca` is set.
    mean_, scale_, total_variance_, n_samples_seen_, n_features_in_, constant_features_, plan_, n_passes_, bytes_read_
        As for `PCA`, for both tables side by side.
    error_, certificate_ : ExactCertificate
        Certificate of the numerical errors.

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
    singular_values_ = Fitted[FloatArray](lambda model: model.strengths)
    squared_covariance_fraction_ = Fitted[FloatArray](
        lambda model: np.array(model.figures["squared_covariance_fraction"])
    )


@documented(COUPLED_PARAMETERS)
class CCA(Coupled):
    """Canonical correlation analysis: pairs of weights of two tables whose scores have the largest correlations.

    It is solved from the covariance of both tables side by side (Hotelling 1936, Biometrika 28:321; Björck & Golub
    1973). So one pass is enough, states can be merged and continued, and `from_state` also accepts a state of `PCA`.
    Both tables together must have fewer directions of variance than the rows have degrees of freedom; otherwise
    reduce them first (`n_pca`), as in climate studies (Bretherton, Smith & Wallace 1992).

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
        Regression coefficients of the features on the scores: their covariances.
    x_explained_variance_, y_explained_variance_ : array, shape (k,)
        Variances of the scores, 1.
    sampling_error_ : StrengthErrors
        Sampling errors of the correlations, if `sampling_errors` is set.
    x_pca_, y_pca_ : PCA
        The fits that reduced the tables, if `n_pca` is set.
    mean_, scale_, total_variance_, n_samples_seen_, n_features_in_, constant_features_, plan_, n_passes_, bytes_read_
        As for `PCA`, for both tables side by side.
    error_, certificate_ : ExactCertificate
        Certificate of the numerical errors.

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
    correlations_ = Fitted[FloatArray](lambda model: model.strengths)
