"""Kernel principal component analysis as a scikit-learn estimator over arrays and stores of any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from streampca.accumulators.centring import refuse_not_finite
from streampca.errors import ParameterError
from streampca.estimators.base import Floats, StreamEstimator, held
from streampca.estimators.inputs import is_array_like
from streampca.estimators.interface import Fitted, check_is_fitted
from streampca.estimators.persistence import record_of_fitted
from streampca.execution.distributed.active_client import active_client
from streampca.kernels import Kernel, Standardised, kernel_of
from streampca.linalg.selection import Frobenius, Threshold, from_plain
from streampca.models.certificates import KernelCertificate
from streampca.models.kernel import KernelModel
from streampca.models.rows import scores_of
from streampca.models.state import FitRecord
from streampca.parameters import KERNEL_PCA_PARAMETERS, checked, documented
from streampca.parameters.statement import Auto, KernelName, Method, Recovery, Sampling, Sketch
from streampca.planning.plan import Plan
from streampca.solvers.choosing import METHODS
from streampca.solvers.kernel.base import SAMPLINGS, KernelParameters, given_landmarks
from streampca.sources import Source
from streampca.sources.arrays import is_sparse
from streampca.sources.base import require_unmasked
from streampca.typing import Array, FloatArray, IntArray, Json

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr
    from sklearn.utils import Tags

    from streampca.estimators.inputs import Input
    from streampca.execution.progress import ProgressCallback


@documented(KERNEL_PCA_PARAMETERS)
@dataclass(eq=False, repr=False)
class KernelPCA(StreamEstimator):
    """Kernel PCA of data of any size: exact if the n × n kernel matrix fits in memory, otherwise from landmarks.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    eigenvalues_ : array, shape (k,)
        Eigenvalues of the (centred) kernel matrix of the training rows, largest first.
    eigenvectors_ : array, shape (n_samples, k)
        Eigenvectors of the same matrix: scores / √eigenvalues. Available after a fit by "exact" or "empirical_map",
        and after `fit_transform`. For rows in an array they are computed on first access. For a store, divide the
        output of `transform_to` by √eigenvalues_.
    explained_variance_ratio_ : array, shape (k,)
        Shares of the trace of the kernel matrix.
    landmarks_, landmark_indices_ : arrays, shapes (m, n_features) and (m,)
        The rows that new rows are compared with, and their row numbers (None if landmarks were given as rows). If the
        rows of an "empirical_map" do not fit in memory (``plan_.rows_on_disk``), a zarr array on disk. It lies in a
        temporary directory that is deleted with the estimator and this array, or in the saved model after loading.
    n_components_, n_samples_seen_, n_features_in_ : int
    method_, sampling_, plan_, n_passes_, bytes_read_
        Method and sampling used, the plan, passes of `fit`, and decoded bytes that they read.
    kernel_ : Kernel
        The kernel with the values of all its parameters.
    error_, certificate_ : KernelCertificate
        Certificate of the numerical errors of the result, an object of `streampca.models.certificates` with one
        attribute per figure. It is also a read-only mapping: ``error_["statement"]`` is ``error_.statement``, and
        ``print(error_)`` prints the statement.
    sampling_error_ : SamplingErrors
        Sampling errors, after a fit with `sampling_errors`: an object of `streampca.models.sampling_errors` with the
        standard errors of ``eigenvalues``, ``shares`` and ``angles``, ``north`` and ``interval(level)``. Raises
        `NotAvailableError` after other fits.
    labels_ : Labels or None
        Dimensions, coordinates, variables and mask of the features of a labelled table (see `streampca.open`), and
        the dimensions of its samples, without their coordinates. None if the data had no labels.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(500, 3))
    >>> kpca = sp.KernelPCA(2, kernel="rbf", gamma=0.1, n_landmarks=50, method="nystrom").fit(rows)
    >>> kpca.transform(rows).shape, kpca.landmarks_.shape
    ((500, 2), (50, 3))
    """

    _solvers = METHODS

    n_components: int | float | Threshold | None = None
    _: KW_ONLY
    kernel: KernelName | Kernel | Callable[..., Array] = "rbf"
    gamma: float | None = None
    degree: float = 3
    coef0: float = 1
    kernel_params: Json | None = None
    method: Method = "auto"
    n_landmarks: int = 1000
    sampling: Sampling | ArrayLike = "auto"
    sketch: Sketch = "gaussian"
    sketch_size: int | Auto = "auto"
    n_hashes: int = 4
    recovery: Recovery = "nystrom"
    center: bool = True
    scale: bool = False
    missing_value: float | None = None
    fit_inverse_transform: bool = False
    alpha: float = 1.0
    sampling_errors: int = 0
    memory: int | str | None = None
    device: str = "cpu"
    random_state: int = 0
    checkpoint: str | Path | None = None
    progress: ProgressCallback | None = None

    if TYPE_CHECKING:
        _model: KernelModel = field(init=False)

    _rows = cast("Source | None", None)
    eigenvalues_ = Fitted[FloatArray](lambda model: model.eigenvalues)
    explained_variance_ratio_ = Fitted[FloatArray](lambda model: model.explained_variance_ratio)
    landmarks_ = Fitted[Array](lambda model: held(model.landmarks))
    landmark_indices_ = Fitted[IntArray | None](lambda model: model.landmark_indices)
    kernel_ = Fitted[Kernel](lambda model: model.kernel)
    method_ = Fitted[str](lambda model: model.method)
    sampling_ = Fitted[str](lambda model: model.sampling)
    eigenvectors_ = Fitted[FloatArray]()
    certificate_ = Fitted[KernelCertificate](lambda model: model.certificate)
    error_ = Fitted[KernelCertificate](lambda model: model.certificate)

    def plan(self, X: Input) -> Plan:
        """Return what `fit` would do with `X`; reads metadata only.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Anything that `fit` accepts.

        Returns
        -------
        Plan
            Passes, memory and bytes read, flops and expected seconds, also of the other methods.

        Raises
        ------
        ParameterError, PlanError
            As `fit`.
        """
        source = self._open(X)
        return self._plan_source(source, self._parameters(), client=active_client(source), alternatives=True)

    def fit(self, X: Input, y: object = None) -> Self:
        """Find the kernel principal components of `X`.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            numpy array or anything that scikit-learn accepts, scipy sparse matrix or array, memory map, Dask array,
            zarr array, or the path of a zarr array or an ``.npy`` file.
        y : ignored

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ParameterError
            If a parameter is outside its domain.
        OutputError
            If `checkpoint` is not a checkpoint, belongs to another fit, or is in use.
        PlanError
            If the work does not fit in `memory`; states what would fit.
        DataError
            If the data is missing, damaged, or not finite.

        Warns
        -----
        UserWarning
            If fewer eigenvalues are positive than components were requested: "exact" pads with zeros, as scikit-learn
            does, and the other methods return fewer components. If rounding of the kernel values exceeds a hundredth
            of the first eigenvalue.
        """
        return self._fit(self._open(X), self._parameters())

    def _scores_of_fit(self, X: Input) -> Floats | da.Array | xr.DataArray:
        if is_array_like(X) and self.method_ == "exact":
            dtype = self._model.score_dtype(np.dtype(self.plan_.dtype))
            return (self.eigenvectors_ * np.sqrt(self.eigenvalues_)).astype(dtype, copy=False)
        return self.transform(X)

    def kernel_distance(self, X: ArrayLike, Y: ArrayLike | None = None) -> FloatArray:
        """Return distances in kernel space, √(κ(x, x) − 2 κ(x, y) + κ(y, y)).

        Negative squares, from rounding or from a kernel that is not positive semi-definite, count as 0.

        Parameters
        ----------
        X : array-like, shape (n_rows, n_features)
            Rows in memory.
        Y : array-like, shape (n_others, n_features), optional
            Rows in memory; None = the landmarks (all rows of the fit for ``method="exact"``).

        Returns
        -------
        ndarray of float64, shape (n_rows, n_others)
            Distances.

        Raises
        ------
        ParameterError
            If rows are sparse.
        DataError
            If rows are a masked array with masked values.
        NotFiniteError
            If rows contain NaN or infinity.
        """
        check_is_fitted(self)
        for each in (X, Y):
            require_unmasked(each, "the array of rows")
            if is_sparse(each):
                raise ParameterError("kernel_distance takes dense rows, and these are sparse: give rows.toarray()")
        rows = np.asarray(X, dtype=np.float64)
        others = np.asarray(self._model.landmarks if Y is None else Y, dtype=np.float64)
        for each in (rows, others):
            refuse_not_finite(each, 0)
        squares = self.kernel_(rows, others)
        squares *= -2
        squares += self.kernel_.diagonal(rows)[:, None]
        squares += self.kernel_.diagonal(others)
        distances: FloatArray = np.sqrt(np.maximum(squares, 0, out=squares), out=squares)
        return distances

    def _to_save(self) -> tuple[KernelModel, FitRecord]:
        self._parameters()  # checks them
        return self._model, record_of_fitted(self)

    def __getattr__(self, name: str) -> Any:
        if name == "eigenvectors_" and self._rows is not None:
            scores = scores_of(self._model, self._rows.read(0, self._rows.shape[0])[0]).astype(np.float64)
            roots = np.sqrt(self.eigenvalues_)
            vectors = np.divide(scores, roots, out=np.zeros_like(scores), where=roots > 0)
            self._keep(eigenvectors_=vectors)
            return vectors
        raise self._absent(name)

    def __getstate__(self) -> Json:
        state = dict(vars(self))
        state.pop("_rows", None)  # the training rows are the user's; a copy of the estimator does not take them along
        return state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.sparse = True
        return tags

    def _parameters(self, threads: int | None = None) -> KernelParameters:
        """Return the checked parameters of a fit."""
        named = checked(KERNEL_PCA_PARAMETERS, vars(self))
        named["n_components"] = from_plain(named["n_components"])
        if isinstance(named["n_components"], Frobenius | str):
            raise ParameterError(
                f"n_components={self.n_components!r} is for PCA only: expected an int, a float in (0, 1) (a share of the trace), "
                "streampca.Threshold(eps) or None"
            )
        if self.scale not in (True, False):
            raise ParameterError(f"scale={self.scale!r} is for PCA only: expected True or False")
        given = None if isinstance(self.sampling, str) else given_landmarks(self.sampling)
        if given is None and self.sampling not in SAMPLINGS:
            raise ParameterError(f"sampling={self.sampling!r}: expected one of {', '.join(SAMPLINGS)}")
        kernel = kernel_of(self.kernel, self.gamma, self.degree, self.coef0, self.kernel_params)
        return KernelParameters(
            **named,
            kernel=Standardised(kernel) if self.scale else kernel,
            sampling=str(self.sampling) if given is None else "given",
            given=given,
            threads=threads,
        )

    def _take(self, result: Any, source: Source) -> None:
        super()._take(result, source)
        self._rows = None if source.buffered else source
        vars(self).pop("eigenvectors_", None)
        if result.eigenvectors is not None:
            self._keep(eigenvectors_=result.eigenvectors)
