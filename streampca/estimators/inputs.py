"""Inputs of estimators: which ones scikit-learn checks, and which stay lazy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampca.block import is_tensor
from streampca.errors import ParameterError
from streampca.estimators.interface import BaseEstimator, transform_output
from streampca.labels import Labels, SampleColumns
from streampca.models.rows import Given, removed_by, rows_of
from streampca.regressors import FittedRegression, RowRegressors
from streampca.sources import Source
from streampca.sources.arrays import is_sparse, widened
from streampca.sources.base import Chosen
from streampca.sources.conventions import with_nan
from streampca.sources.dask import as_declared
from streampca.sources.files.paths import Paths, is_paths
from streampca.sources.frames import is_frame
from streampca.sources.objects import is_in_memory, is_lazy_array
from streampca.sources.steps import subtract_fitted
from streampca.system.optional import package_of
from streampca.typing import Array, DType, IntArray

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr

    from streampca.models.pca import Model
    from streampca.storage.zarr_interface import ZarrArray

    class Table(Protocol):
        """A sparse matrix, a data frame, or an object of a library of labelled arrays."""

        @property
        def shape(self) -> tuple[int, ...]:
            """Numbers of rows and columns."""

    InMemory: TypeAlias = NDArray[Any] | Sequence[Sequence[float]]
    """Rows whose scores are a numpy array, whatever is installed."""
    Lazy: TypeAlias = da.Array | ZarrArray | Paths
    """Input whose scores are a lazy Dask array."""
    Input: TypeAlias = Lazy | Source | xr.DataArray | xr.Dataset | ArrayLike | Table
    """Everything that estimators read rows from."""


def is_array_like(X: Input) -> TypeGuard[ArrayLike]:
    """Tell whether scikit-learn checks and converts `X`; stores, lazy arrays and memory maps are opened by our own readers."""
    if isinstance(X, np.memmap | Source) or is_tensor(X) or is_paths(X) or is_lazy_array(X):
        return False
    if package_of(X) in ("zarr", "dask", "xarray", "anndata"):
        return False
    # All else is refused where it is opened, with what it is: scikit-learn would take it for a scalar.
    return isinstance(X, Sequence) or hasattr(X, "__array__") or is_sparse(X) or is_frame(X)


def is_dask(X: Input) -> TypeGuard[da.Array]:
    """Tell whether `X` is a Dask array."""
    return type(X).__module__.startswith("dask.array")


@dataclass(frozen=True)
class _BlockFunction:
    """A function of a block of rows and of the number of its first row, for `map_blocks`."""

    function: Callable[[Array, int], Array]
    """The function."""
    starts: IntArray
    """First row of each block, ``(n_blocks,)``; 0 where the sizes of blocks are not known."""

    @property
    def __name__(self) -> str:
        """Return the name of the function, with which Dask begins the names of tasks."""
        inner = getattr(self.function, "func", self.function)
        return str(getattr(inner, "__name__", type(inner).__name__))

    def __call__(self, rows: Array, block_id: tuple[int, ...]) -> Array:
        return self.function(rows, int(self.starts[block_id[0]]))


def map_rows(function: Callable[[Array, int], Array], lazy: Any, n_columns: int, dtype: DType) -> da.Array:
    """Return the lazy array, `n_columns` wide, of `function` of every block of rows of the Dask array `lazy` and of its first row."""
    lazy = as_declared(lazy)
    if lazy.numblocks[1] > 1:
        lazy = lazy.rechunk({1: -1})
    meta = np.empty((0, 0), dtype=dtype)
    starts = np.nan_to_num(np.cumsum([0, *lazy.chunks[0][:-1]], dtype=np.float64)).astype(np.int64)
    numbered = _BlockFunction(function, starts)
    mapped: da.Array = lazy.map_blocks(numbered, dtype=dtype, chunks=(lazy.chunks[0], (n_columns,)), meta=meta)
    return mapped


def map_chosen(lazy: Any, chosen: Chosen) -> da.Array:
    """Return the lazy array with the rows of `lazy` at their places in the table of which they are some, NaN at all others."""
    firsts = np.cumsum([0, *lazy.chunks[0][:-1]])
    edges = np.concatenate([[0], chosen.rows[firsts[1:]], [chosen.n_rows]])

    def spread(block: Array, block_info: Any = None) -> Array:
        start, stop = block_info[0]["array-location"][0]
        low, high = block_info[None]["array-location"][0]
        whole = np.full((high - low, block.shape[1]), np.nan, dtype=block.dtype)
        whole[chosen.rows[start:stop] - low] = block
        return whole

    sizes = (tuple(np.diff(edges).tolist()), lazy.chunks[1])
    mapped: da.Array = lazy.map_blocks(spread, dtype=lazy.dtype, chunks=sizes, meta=np.empty((0, 0), dtype=lazy.dtype))
    return mapped


def map_missing(lazy: Any, missing_value: float | None) -> Any:
    """Return the rows of a Dask array with NaN for `missing_value`, None = as they are; bfloat16 as float32."""
    lazy = widened(lazy)
    if missing_value is None:
        return lazy
    dtype = with_nan(np.empty(0, lazy.dtype), missing_value).dtype
    return lazy.map_blocks(with_nan, missing_value, dtype=dtype, meta=np.empty((0, 0), dtype=dtype))


def map_fitted(
    lazy: da.Array,
    model: Model,
    given: Given | None,
    labels: Labels | None = None,
    columns: SampleColumns | None = None,
) -> da.Array:
    """Return lazy rows of `inverse_transform` with what `model` removes added, see `with_fitted`."""
    fitted = removed_by(model, given)
    if fitted is None:
        return lazy
    rows = rows_of(fitted, given, lazy.shape[0], labels=labels, columns=columns, same=True)
    return map_sum(lazy, rows, fitted, lazy.dtype, 1)


def map_sum(lazy: Any, rows: RowRegressors, fitted: FittedRegression, dtype: DType, sign: int) -> da.Array:
    """Return the lazy array whose blocks are those of `lazy` plus or minus what is fitted to them."""
    lazy = as_declared(lazy)
    if lazy.numblocks[1] > 1:
        lazy = lazy.rechunk({1: -1})

    def add(block: Array, block_info: Any = None) -> Array:
        start, stop = block_info[0]["array-location"][0]
        out = np.empty(block.shape, dtype=dtype)
        return subtract_fitted(block, rows.slice(start, stop), fitted, out, sign)

    mapped: da.Array = lazy.map_blocks(add, dtype=dtype, meta=np.empty((0, 0), dtype=dtype))
    return mapped


def wants_frame(estimator: BaseEstimator) -> bool:
    """Return whether scikit-learn makes a data frame of scores."""
    return transform_output(estimator) != "default"


def require_lazy_output(estimator: BaseEstimator, X: Input) -> None:
    """Raise `ParameterError` if scikit-learn would make a data frame, in memory, of the scores of `X`, which is not in memory.

    Called before `X` is read. The setting is that of ``set_output``, or else of ``sklearn.set_config(transform_output=…)``.
    """
    if isinstance(X, np.ndarray) or is_array_like(X) or is_in_memory(X):
        return
    if wants_frame(estimator):
        chosen = transform_output(estimator)
        raise ParameterError(
            f"set_output(transform={chosen!r}) makes a data frame of all scores in memory, whatever the ceiling, but this input is "
            'not in memory: use set_output(transform="default"), which gives a lazy Dask array, or transform_to(X, path)'
        )
