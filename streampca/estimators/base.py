"""What PCA and kernel PCA share: input of any kind, scores, rows from scores, and the certificate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from streampca.errors import ParameterError
from streampca.estimators.containers import require_lazy_output
from streampca.estimators.inputs import _is_array_like, _is_dask, _lazy_rows, _map_rows
from streampca.execution.write import write_scores
from streampca.planning.scores import plan_scores
from streampca.sources import Source, open_source
from streampca.storage.directories import AtomicDirectory, require_apart
from streampca.typing import Array

if TYPE_CHECKING:
    import dask.array as da
    import zarr

    from streampca.execution.progress import ProgressCallback

    Lazy: TypeAlias = da.Array | zarr.Array[Any] | str | Path | Source
    """Input whose scores are a lazy Dask array."""

Floats: TypeAlias = NDArray[np.floating[Any]]
"""Scores or rows, float32 or float64."""


class StreamEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator of scikit-learn whose input may also be a store, a lazy array or a sparse matrix."""

    if TYPE_CHECKING:
        _model: Any
        memory: int | str | None
        progress: ProgressCallback | None
        n_components_: int
        n_features_in_: int
        n_samples_seen_: int
        feature_names_in_: Array

    @property
    def error_(self) -> Mapping[str, Any]:
        """The values of `certificate_` by name, as they are stored; read-only."""
        return MappingProxyType(self._model.certificate)

    @overload
    def fit_transform(self, X: Lazy, y: Any = None, **params: Any) -> da.Array: ...

    @overload
    def fit_transform(self, X: ArrayLike, y: Any = None, **params: Any) -> Floats: ...

    @overload
    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Any: ...

    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Fit `X` and return its scores: what `fit` and `transform` do."""
        if not _is_array_like(X) and not isinstance(X, np.ndarray):
            require_lazy_output(self)  # before the fit, not after it
        return super().fit_transform(X, y, **params)

    @overload
    def transform(self, X: Lazy) -> da.Array: ...  # type: ignore[overload-overlap]

    @overload
    def transform(self, X: ArrayLike) -> Floats: ...

    @overload
    def transform(self, X: Any) -> Any: ...

    def transform(self, X: Any) -> Any:
        """Return the scores of `X`, shape (n_samples, k): numpy for arrays, a lazy Dask array for Dask arrays and stores."""
        check_is_fitted(self)
        if _is_array_like(X):
            return self._model.transform(self._validated(X))
        if not isinstance(X, np.ndarray):
            require_lazy_output(self)
        source = self._open_fitted(X)
        if isinstance(X, np.ndarray) or (source.sparse and not _is_dask(X)):
            return self._model.transform(source.read(0, source.shape[0])[0])
        lazy = X if _is_dask(X) else _lazy_rows(source)
        if lazy.numblocks[1] > 1:
            lazy = lazy.rechunk({1: -1})
        return _map_rows(self._model.transform, lazy, self.n_components_, self._model.score_dtype(source.dtype))

    def transform_to(self, X: Any, path: str | Path, *, overwrite: bool = False) -> Path:
        """Stream the scores of `X` to the array ``scores`` of a zarr group at `path`: whole or not at all.

        Reads `X` once, within `memory`. The array has shape (n_samples, k), float32 for float16 and float32 input and
        float64 else.

        `OutputError` if something is there that is not scores of ours, or is and `overwrite` is not set; `NoSpaceError`,
        before anything is read, if there is less room than the scores take.
        """
        check_is_fitted(self)
        source = self._open_fitted(X)
        require_apart(Path(path), source.description)
        plan = plan_scores(source, self._model, self.memory)
        with AtomicDirectory(Path(path), "scores", overwrite=overwrite) as aside:
            write_scores(source, self._model, plan, aside, progress=self.progress)
        return Path(path)

    @overload
    def inverse_transform(self, X: da.Array) -> da.Array: ...

    @overload
    def inverse_transform(self, X: ArrayLike) -> Floats: ...

    def inverse_transform(self, X: Any) -> Any:
        """Return rows, shape (n_samples, n_features), for scores `X`, shape (n_samples, k).

        numpy for numpy, a lazy Dask array for Dask; float32 for float32 scores, else float64. `PCA` returns the rows of the
        space of the components, in the units of the data; `KernelPCA` pre-images by kernel ridge regression, and raises
        `ParameterError` unless it was fitted with ``fit_inverse_transform=True``.
        """
        check_is_fitted(self)
        if _is_dask(X):
            return _map_rows(self._model.inverse_transform, X.rechunk({1: -1}), self.n_features_in_, X.dtype)
        X = np.asarray(X)
        if X.ndim != 2 or X.shape[1] != self.n_components_:
            raise ParameterError(f"scores of shape {X.shape}: expected (n_samples, {self.n_components_})")
        return self._model.inverse_transform(X)

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def _open(self, X: Any) -> Source:
        """Return a reader of `X`; finiteness is checked while the rows are read, so the data is not scanned twice."""
        if _is_array_like(X):
            X = validate_data(self, X, accept_sparse="csr", ensure_all_finite=False)
        return open_source(X)

    def _validated(self, X: Any) -> Any:
        """Return rows to be transformed, checked by scikit-learn; NaN is let through where it has a meaning."""
        finite = "allow-nan" if self._model.missing != "error" else True
        return validate_data(self, X, reset=False, accept_sparse="csr", ensure_all_finite=finite)

    def _open_fitted(self, X: Any) -> Source:
        """Return a reader of `X`, which has as many features as the rows of the fit."""
        source = open_source(self._validated(X)) if _is_array_like(X) else self._open(X)
        if source.shape[1] != self.n_features_in_:
            raise ParameterError(
                f"X has {source.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            )
        return source

    def _remember_features(self, source: Source) -> None:
        self.n_features_in_ = source.shape[1]
        self.__dict__.pop("feature_names_in_", None)
        if source.feature_names is not None:
            self.feature_names_in_ = np.array(source.feature_names, dtype=object)
