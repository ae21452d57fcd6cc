"""Protocol of dot-product-preserving transforms, and products with a matrix that is generated in slabs."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, SupportsIndex

import numpy as np
import xxhash
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array, issparse

from streampca.errors import ParameterError
from streampca.suggestions import SuggestsKeywords
from streampca.typing import Array, DType, FloatArray, IntArray, Rows

_SPARSE_SLAB_FEATURES = 8192
_SPARSE_PANEL_ROWS = 256


class Transform(Protocol):
    """Protocol of a fixed matrix Ω, shape ``(n_features, size)``, that maps a row x to xΩ.

    A row of Ω depends only on the parameters and on the index or name of its feature, so every slice, worker and
    order gives the same bits. Ω is never stored: `matrix` generates the requested rows.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> transform = sp.transforms.SparseSign(n_features=1000, size=100, seed=0)
    >>> rows = np.random.default_rng(0).normal(size=(5, 1000))
    >>> bool(np.allclose(transform.transform(rows), rows @ transform.matrix()))
    True
    >>> bool((transform.matrix(10, 20) == transform.matrix()[10:20]).all())
    True
    """

    @property
    def n_features(self) -> int:
        """Number of features, the rows of Ω."""
        ...

    @property
    def size(self) -> int:
        """Number of columns of Ω."""
        ...

    @property
    def key(self) -> str:
        """Hexadecimal hash that identifies Ω; only sums of products with the same Ω may be added."""
        ...

    def matrix(self, start: int = 0, stop: int | None = None) -> FloatArray:
        """Return the rows of Ω of features `start` to `stop`, shape ``(stop - start, size)``, in float64.

        Raises
        ------
        ParameterError
            Unless 0 ≤ start ≤ stop ≤ n_features.
        """
        ...

    def transform(self, block: Rows) -> Array:
        """Return block @ Ω, shape ``(n_rows, size)``, for dense or sparse rows.

        Raises
        ------
        ParameterError
            If the block has another number of columns, or is not of real numbers.
        """
        ...


def whole(least: int | None, **values: SupportsIndex) -> list[int]:
    """Return `values` as plain integers; `ParameterError` unless each is a whole number and at least `least`."""
    numbers = []
    for name, value in values.items():
        try:
            numbers.append(int(operator.index(value)))
        except TypeError:
            raise ParameterError(f"{name}={value!r}: expected a whole number") from None
        if least is not None and numbers[-1] < least:
            raise ParameterError(f"{name}={value}: expected at least {least}")
    return numbers


def check_fields(transform: Transform, *counts: str, seed: bool = True) -> None:
    """Convert shape, `counts` and seed of a new transform to plain integers, which enter its key.

    `ParameterError` unless they are whole numbers and, except the seed, at least 1.
    """
    names = ["n_features", "size", *counts]
    numbers = whole(1, **{name: vars(transform)[name] for name in names})
    if seed:
        names.append("seed")
        numbers += whole(None, seed=vars(transform)["seed"])
    for name, number in zip(names, numbers, strict=True):
        object.__setattr__(transform, name, number)


def bounds(n_features: int, start: int, stop: int | None) -> tuple[int, int]:
    """Return `start` and `stop`, with None replaced by the end; `ParameterError` unless 0 ≤ start ≤ stop ≤ n_features."""
    end = n_features if stop is None else stop
    if not 0 <= start <= end <= n_features:
        raise ParameterError(f"features {start} to {end}: expected 0 <= start <= stop <= {n_features}")
    return start, end


def product_dtype(dtype: DType) -> DType:
    """Return the type of the product with rows of `dtype`: float32 for floats of at most 4 bytes, else float64."""
    return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64)


def table_of_features(block: Rows, n_features: int) -> Array | csc_array:
    """Return dense `block` as an array and sparse `block` by columns.

    Raises
    ------
    ParameterError
        If it is not a table of `n_features` real columns.
    """
    table = block if issparse(block) else np.asarray(block)
    if table.ndim != 2 or table.shape[1] != n_features:
        raise ParameterError(f"a block of shape {table.shape}: expected (n_rows, {n_features})")
    table = csc_array(table) if issparse(table) else table
    if table.dtype.kind not in "fiub":
        raise ParameterError(f"a block of {table.dtype}: expected real numbers")
    return table.astype(product_dtype(table.dtype), copy=False) if issparse(table) else table


def multiply(
    block: Rows, n_features: int, size: int, slab_of: Callable[[int, int], Array | csr_array], slab: int, panel: int
) -> Array:
    """Return block @ Ω for an Ω that `slab_of(start, stop)` generates in slabs of features.

    Parameters
    ----------
    block : array or scipy sparse, shape (n_rows, n_features)
        Rows. Slabs in which sparse rows store no entries are not generated.
    n_features, size : int
        Shape of Ω.
    slab_of : callable
        Function of (start, stop) that returns these rows of Ω, dense or in compressed row form.
    slab, panel : int
        Number of features of a slab, and of dense rows that are converted and multiplied at a time.
    """
    table = table_of_features(block, n_features)
    dtype, n_rows = product_dtype(table.dtype), table.shape[0]
    out = np.zeros((n_rows, size), dtype=dtype)
    for start in range(0, n_features, slab):
        stop = min(start + slab, n_features)
        if n_rows == 0 or (issparse(table) and table.indptr[start] == table.indptr[stop]):
            continue
        omega = slab_of(start, stop).astype(dtype, copy=False)
        if issparse(table):
            product = table[:, start:stop] @ omega
            out += product if isinstance(product, np.ndarray) else product.toarray()
            continue
        for first in range(0, n_rows, panel):
            rows = slice(first, first + panel)
            out[rows] += table[rows, start:stop].astype(dtype, copy=False) @ omega
    return out


class SparseTransform(SuggestsKeywords, ABC):
    """Base class of transforms whose Ω has few entries in each row: `CountSketch`, `SparseSign`, `Grouping`."""

    n_features: int
    size: int

    @property
    @abstractmethod
    def key(self) -> str:
        """Hexadecimal hash that identifies Ω; only sums of products with the same Ω may be added."""

    @abstractmethod
    def sparse(self, start: int = 0, stop: int | None = None) -> csr_array:
        """Return the rows of Ω of features `start` to `stop` in compressed row form."""

    def matrix(self, start: int = 0, stop: int | None = None) -> FloatArray:
        """Return the result of `sparse` as a dense array, shape ``(stop - start, size)``."""
        return np.asarray(self.sparse(start, stop).toarray())

    def transform(self, block: Rows) -> Array:
        """Return block @ Ω, float32 for float16 and float32 rows, else float64, shape ``(n_rows, size)``.

        Parameters
        ----------
        block : array or scipy sparse, shape (n_rows, n_features)
            Rows of any real type. The cost is one product per entry of the rows and entry in a row of Ω.

        Raises
        ------
        ParameterError
            If the block has another number of columns, or is not of real numbers.
        """
        return multiply(block, self.n_features, self.size, self.sparse, _SPARSE_SLAB_FEATURES, _SPARSE_PANEL_ROWS)


def compressed(columns: IntArray, values: FloatArray, size: int) -> csr_array:
    """Return the matrix with `values` in `columns`, both ``(n_rows, n_entries)`` with ascending columns in each row."""
    n_rows, n_entries = columns.shape
    index = np.int32 if max(size, columns.size) < 2**31 else np.int64
    indptr = np.arange(0, columns.size + 1, n_entries, dtype=index)
    return csr_array((values.ravel(), columns.ravel().astype(index), indptr), shape=(n_rows, size))


def buckets(bits: NDArray[np.uint64], count: int) -> IntArray:
    """Return a number below `count` for each of `bits`, from their upper halves; uniform to count / 2³²."""
    return (((bits >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)).astype(np.int64)


def key_of(transform: Transform, *parameters: object) -> str:
    """Return the key of a transform: its class, its shape, `parameters`, and the bits of the first row of its matrix.

    The first row is included because another release of numpy may draw other numbers for the same parameters.
    """
    digest = xxhash.xxh3_128(
        repr((type(transform).__name__, transform.n_features, transform.size, *parameters)).encode()
    )
    digest.update(transform.matrix(0, 1).tobytes())
    return digest.hexdigest()
