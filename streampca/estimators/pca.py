"""Principal component analysis as a scikit-learn estimator over arrays and stores of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from streampca.engine.fit import Fit, Parameters, fit, plan_fit
from streampca.engine.output import Aside, require_apart
from streampca.engine.plan import Plan
from streampca.errors import NotAvailableError, ParameterError
from streampca.models.pca import PCAModel
from streampca.models.store import load_model, save_model
from streampca.sources import Source, open_source

if TYPE_CHECKING:
    from streampca.engine.execute import ProgressCallback

FloatArray = NDArray[np.float64]

_SOLVERS = ("auto", "covariance", "gram", "sketch", "adaptive")
_MISSING = ("error", "drop_rows", "mean", "pairwise")


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal component analysis of data of any size, read once, within a memory ceiling.

    Parameters
    ----------
    n_components : int, float in (0, 1), Threshold or None
        How many components: a count; the smallest number that carries this share of the total variance; all with
        λᵢ ≥ eps·λ₁; or min(n_samples, n_features).
    solver : {"auto", "covariance"}
        The exact solver accumulates the covariance matrix. ("gram", "sketch" and "adaptive" are names of later versions.)
    center, scale : bool
        Subtract the mean; divide by the standard deviation (z-scores, with the same `ddof` as the covariance, so that
        the eigenvalues sum to the number of features that vary). Features that never vary get weight 0.
    whiten : bool
        Divide scores by the standard deviation of their component. Components below rounding get scores of 0.
    ddof : int
        Variances are divided by n − ddof.
    memory : int, str or None
        Ceiling for the resident memory of the whole process, such as ``"2GiB"``; None = a safe share of what the
        machine has. A plan that does not fit is refused with `PlanError` before the data is read.
    random_state : int
        Seed of everything that is drawn; the same seed gives the same bits.
    progress : callable, optional
        Called with a `Progress` as blocks finish, from any thread.
    sketch, sketch_size, n_hashes, recovery, pilot, max_passes, tolerance, missing, feature_weight, checkpoint
        Parameters of the public contract that this version accepts at their defaults only.

    Attributes
    ----------
    components_ : array, shape (k, n_features)
    explained_variance_, explained_variance_ratio_, singular_values_ : array, shape (k,)
    mean_ : array, shape (n_features,)
    scale_ : array, shape (n_features,), or None
    noise_variance_, total_variance_ : float
    n_components_, n_samples_seen_, n_features_in_, n_passes_, bytes_read_, numerical_rank_ : int
    constant_features_ : array of int
    solver_ : str
    plan_ : Plan
    error_ : dict
        What can be said of the error of this answer; for the exact solver, ``kind: exact`` and its rounding.
    """

    def __init__(
        self,
        n_components: Any = None,
        *,
        solver: str = "auto",
        sketch: str = "auto",
        sketch_size: int | str = "auto",
        n_hashes: int = 4,
        recovery: str = "nystrom",
        pilot: int | str = "auto",
        max_passes: int = 2,
        tolerance: float | None = None,
        center: bool = True,
        scale: bool = False,
        whiten: bool = False,
        missing: str = "error",
        feature_weight: ArrayLike | None = None,
        ddof: int = 1,
        memory: int | str | None = None,
        random_state: int = 0,
        checkpoint: Any = None,
        progress: ProgressCallback | None = None,
    ):
        self.n_components = n_components
        self.solver = solver
        self.sketch = sketch
        self.sketch_size = sketch_size
        self.n_hashes = n_hashes
        self.recovery = recovery
        self.pilot = pilot
        self.max_passes = max_passes
        self.tolerance = tolerance
        self.center = center
        self.scale = scale
        self.whiten = whiten
        self.missing = missing
        self.feature_weight = feature_weight
        self.ddof = ddof
        self.memory = memory
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.progress = progress

    def plan(self, X: Any) -> Plan:
        """Return what `fit` would do with `X`: passes, memory, bytes, flops. Reads metadata only."""
        return plan_fit(self._open(X), self._parameters())

    def fit(self, X: Any, y: Any = None, **unavailable: Any) -> Self:
        """Find the components of `X`, which is read once.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            numpy array or anything scikit-learn takes, memory map, Dask array, zarr array, or the path of a zarr array
            or an ``.npy`` file.
        y : ignored

        Raises
        ------
        PlanError
            If the work does not fit in `memory`.
        DataError
            If the data is missing, damaged, or not finite.
        """
        for name, value in unavailable.items():
            if value is not None:
                raise NotAvailableError(f"fit(…, {name}=…) is not available in this version of streampca: only None is")
        parameters = self._parameters()
        source = self._open(X)
        self._take(fit(source, parameters, progress=self.progress), parameters)
        if not _is_array_like(X):
            self.n_features_in_ = source.shape[1]
            self.__dict__.pop("feature_names_in_", None)
            if source.feature_names is not None:
                self.feature_names_in_ = np.array(source.feature_names, dtype=object)
        return self

    def transform(self, X: Any) -> Any:
        """Return the scores of `X`, shape (n_samples, k): numpy for arrays, a lazy Dask array for Dask arrays and stores."""
        check_is_fitted(self)
        if _is_array_like(X):
            return self._model.transform(validate_data(self, X, reset=False, ensure_all_finite=True))
        source = self._open_fitted(X)
        if isinstance(X, np.ndarray):
            return self._model.transform(source.read(0, source.shape[0])[0])
        lazy = X if _is_dask(X) else source.to_dask(max(1, _rows_per_task(source)))
        if lazy.numblocks[1] > 1:
            lazy = lazy.rechunk({1: -1})
        k, dtype = len(self.components_), self._model.score_dtype(source.dtype)
        return _map_rows(self._model.transform, lazy, k, dtype)

    def transform_to(self, X: Any, path: str | Path, *, overwrite: bool = False) -> Path:
        """Stream the scores of `X` to the array ``scores`` of a zarr group at `path`; bounded memory, whole or not at all."""
        from streampca.engine.write import write_scores

        check_is_fitted(self)
        source = self._open_fitted(X)
        require_apart(Path(path), source.description)
        parameters = self._parameters()
        plan = plan_fit(source, Parameters(len(self.components_), ddof=0, memory=parameters.memory), scores=True)
        with Aside(Path(path), "scores", overwrite=overwrite) as aside:
            write_scores(source, self._model, plan, aside, progress=self.progress)
        return Path(path)

    def inverse_transform(self, X: Any) -> Any:
        """Return the rows whose scores are `X`, in the original space: numpy for numpy, a lazy Dask array for Dask."""
        check_is_fitted(self)
        if _is_dask(X):
            return _map_rows(self._model.inverse_transform, X.rechunk({1: -1}), self.n_features_in_, X.dtype)
        X = np.asarray(X)
        if X.ndim != 2 or X.shape[1] != len(self.components_):
            raise ParameterError(f"scores of shape {X.shape}: expected (n_samples, {len(self.components_)})")
        return self._model.inverse_transform(X)

    def get_covariance(self) -> FloatArray:
        """Return the model covariance V (Λ − σ²) Vᵀ + σ² I of the centred, scaled features (Tipping & Bishop 1999)."""
        check_is_fitted(self)
        spread = np.maximum(self.explained_variance_ - self.noise_variance_, 0.0)
        covariance: FloatArray = (self.components_.T * spread) @ self.components_
        covariance.flat[:: len(covariance) + 1] += self.noise_variance_
        return covariance

    def get_precision(self) -> FloatArray:
        """Return the inverse of `get_covariance`; directions without any variance count as the smallest there is."""
        check_is_fitted(self)
        noise, variance = self._floored()
        precision: FloatArray = (self.components_.T * (1 / variance - 1 / noise)) @ self.components_
        precision.flat[:: len(precision) + 1] += 1 / noise
        return precision

    def score_samples(self, X: Any) -> FloatArray:
        """Return the log-likelihood of each row under the probabilistic PCA model (Tipping & Bishop 1999)."""
        check_is_fitted(self)
        rows = np.asarray(validate_data(self, X, reset=False), dtype=np.float64) - self._model.mean
        if self._model.weights is not None:
            rows *= self._model.weights
        noise, variance = self._floored()
        projected = rows @ self.components_.T
        left = np.maximum(np.einsum("ij,ij->i", rows, rows) - np.einsum("ij,ij->i", projected, projected), 0.0)
        k, d = self.components_.shape
        logarithm = np.log(variance).sum() + (d - k) * np.log(noise) + d * np.log(2 * np.pi)
        likelihood: FloatArray = -0.5 * (projected**2 @ (1 / variance) + left / noise + logarithm)
        return likelihood

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of the rows."""
        return float(self.score_samples(X).mean())

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model to a zarr group at `path`: plain arrays and JSON, whole or not at all."""
        check_is_fitted(self)
        return save_model(self._model, path, overwrite=overwrite)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _parameters(self, threads: int | None = None) -> Parameters:
        """Return the checked parameters of a fit."""
        _require_choice("solver", self.solver, _SOLVERS)
        _require_choice("missing", self.missing, _MISSING)
        if self.solver not in ("auto", "covariance"):
            raise NotAvailableError(
                f"solver={self.solver!r} is not available in this version of streampca: use 'auto' or 'covariance'"
            )
        for name, default in (("missing", "error"), ("feature_weight", None), ("checkpoint", None)):
            if getattr(self, name) is not default and getattr(self, name) != default:
                raise NotAvailableError(
                    f"{name}={getattr(self, name)!r} is not available in this version of streampca: only {default!r} is"
                )
        for name in ("center", "scale", "whiten"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ParameterError(f"{name}={getattr(self, name)!r}: expected True or False")
        if isinstance(self.ddof, bool) or not isinstance(self.ddof, int | np.integer) or self.ddof < 0:
            raise ParameterError(f"ddof={self.ddof!r}: expected an integer of at least 0")
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, int | np.integer):
            raise ParameterError(
                f"random_state={self.random_state!r}: expected an integer, so that a run can be repeated"
            )
        return Parameters(
            n_components=self.n_components,
            solver=self.solver,
            center=bool(self.center),
            scale=bool(self.scale),
            whiten=bool(self.whiten),
            ddof=int(self.ddof),
            seed=int(self.random_state),
            memory=self.memory,
            threads=threads,
        )

    def _open(self, X: Any) -> Source:
        if _is_array_like(X):
            # Finiteness is checked while the rows are read, so the data is not scanned twice.
            X = validate_data(self, X, ensure_all_finite=False)
        return open_source(X)

    def _open_fitted(self, X: Any) -> Source:
        source = self._open(X) if not _is_array_like(X) else open_source(validate_data(self, X, reset=False))
        if source.shape[1] != self.n_features_in_:
            raise ParameterError(
                f"X has {source.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            )
        return source

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

    def _take(self, result: Fit, parameters: Parameters) -> None:
        self._set_model(result.model)
        self._state, self._fitted_parameters = result.state, parameters
        self.plan_, self.solver_ = result.plan, result.plan.solver
        self.n_passes_, self.bytes_read_ = result.plan.passes, result.count.bytes

    def _set_model(self, model: PCAModel) -> None:
        self._model = model
        self.components_ = model.components
        self.explained_variance_ = model.explained_variance
        self.explained_variance_ratio_ = model.explained_variance_ratio
        self.singular_values_ = model.singular_values
        self.mean_ = model.mean
        self.scale_ = model.scale
        self.noise_variance_ = model.noise_variance
        self.total_variance_ = model.total_variance
        self.n_components_ = len(model.components)
        self.n_samples_seen_ = model.n_samples
        self.n_features_in_ = model.components.shape[1]
        self.numerical_rank_ = model.numerical_rank
        self.constant_features_ = model.constant_features
        self.error_ = model.certificate


def load(path: str | Path) -> PCA:
    """Return the fitted estimator that was saved at `path`, a model or the directory of a run.

    Raises
    ------
    ModelError
        If there is none, or it is damaged.
    """
    path = Path(path)
    model = load_model(path / "model.zarr" if (path / "model.zarr").is_dir() else path)
    estimator = PCA(
        len(model.components), center=model.center, scale=model.scale is not None, whiten=model.whiten, ddof=model.ddof
    )
    estimator._set_model(model)
    estimator.solver_ = "covariance"
    names = model.source.get("feature_names")
    if isinstance(names, list):
        estimator.feature_names_in_ = np.array(names, dtype=object)
    return estimator


def merge(models: Sequence[PCA]) -> PCA:
    """Return the model of all rows behind `models`, fitted on disjoint rows with the same parameters."""
    raise NotAvailableError("merge is not available in this version of streampca: fit all rows in one go")


def _is_array_like(X: Any) -> bool:
    """Tell whether scikit-learn checks and converts `X`; stores, lazy arrays and memory maps are opened by our own readers."""
    if isinstance(X, np.memmap | str | Path | Source):
        return False
    module = type(X).__module__
    return not module.startswith(("zarr.", "dask.", "xarray.", "anndata."))


def _map_rows(function: Callable[..., NDArray[Any]], lazy: Any, n_columns: int, dtype: np.dtype[Any]) -> Any:
    """Return the lazy array of `function` applied to every block of rows, `n_columns` wide."""
    meta = np.empty((0, 0), dtype=dtype)
    return lazy.map_blocks(function, dtype=dtype, chunks=(lazy.chunks[0], (n_columns,)), meta=meta)


def _is_dask(X: Any) -> bool:
    return type(X).__module__.startswith("dask.array")


def _rows_per_task(source: Source) -> int:
    """Return rows of about 32 MiB in whole chunks."""
    rows = max(1, 2**25 // source.row_bytes)
    return max(source.chunk_rows, rows // source.chunk_rows * source.chunk_rows)


def _require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ParameterError(f"{name}={value!r}: expected one of {', '.join(choices)}")
