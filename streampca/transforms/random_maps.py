"""Random linear maps: Gaussian, of sparse signs, and count sketches, which hash features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray
from scipy.sparse import csr_array

from streampca.errors import ParameterError
from streampca.random import generator, hashes
from streampca.suggestions import SuggestsKeywords
from streampca.transforms.base import SparseTransform, bounds, buckets, check_fields, compressed, key_of, multiply
from streampca.typing import Array, FloatArray, Rows

_RUN_FEATURES = 64  # for each random generator; a change would change Ω
_SLAB_BYTES = 16 * 2**20
_SLAB_RUNS = 32
_PANEL_ROWS = 1024


@dataclass(frozen=True)
class CountSketch(SparseTransform):
    """Ω with one entry ± 1/√n_hashes per row in the columns of each hash function, which gives E⟨xΩ, yΩ⟩ = ⟨x, y⟩.

    The hash functions share the columns, in numbers that differ by at most one. Bucket and sign of a feature are bits
    of xxhash64 of its index or, with `names`, of its name: a feature keeps its bucket when columns are reordered,
    added or dropped. With s_h columns for hash function h of l the variance of ⟨xΩ, yΩ⟩ is (Σ_h 1/s_h) / l² · (‖x‖²
    ‖y‖² + ⟨x, y⟩² − 2 Σᵢ xᵢ² yᵢ²), about that of a Gaussian projection of the same size.

    Entries ± 1/n_hashes, as published for concatenated hashes, make dot products n_hashes times too small in
    expectation; entries ± 1/√n_hashes preserve them. With one hash function, two features share a column with
    probability 1 / size and are then indistinguishable. If a few single features carry the variance, use 4 or more
    hash functions, or `SparseSign`.

    Raises
    ------
    ParameterError
        If a parameter is not a whole number, a count is less than 1, `size` is less than `n_hashes`, or `names` are not
        n_features different strings.

    References
    ----------
    Charikar, Chen & Farach-Colton (2002), Finding frequent items in data streams; Weinberger, Dasgupta, Langford, Smola
    & Attenberg (2009), Feature hashing for large scale multitask learning.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> transform = sp.transforms.CountSketch(n_features=1000, size=100, n_hashes=4, seed=0)
    >>> transform.transform(np.ones((5, 1000))).shape
    (5, 100)
    """

    n_features: int
    """Number of features, d."""
    size: int
    """Number of columns of all hash functions together, q."""
    n_hashes: int = 4
    """Number of hash functions, l."""
    seed: int = 0
    """Seed of all hash functions."""
    names: Sequence[str] | None = None
    """Names of the features, stored as a tuple; None to hash their indices."""

    def __post_init__(self) -> None:
        check_fields(self, "n_hashes")
        if self.size < self.n_hashes:
            raise ParameterError(
                f"size={self.size} columns for n_hashes={self.n_hashes}: expected a column for each hash function; "
                "raise size or lower n_hashes"
            )
        if self.names is not None:
            object.__setattr__(self, "names", _checked_names(self.names, self.n_features))

    @property
    def key(self) -> str:
        """Return the hash that identifies Ω, names included."""
        return key_of(self, self.n_hashes, self.seed, self.names)

    def sparse(self, start: int = 0, stop: int | None = None) -> csr_array:
        """Return the rows of Ω of features `start` to `stop` in compressed row form, n_hashes entries in each.

        `ParameterError` unless 0 ≤ start ≤ stop ≤ n_features.
        """
        start, stop = bounds(self.n_features, start, stop)
        features = self._features(start, stop)
        columns = np.empty((stop - start, self.n_hashes), dtype=np.int64)
        values = np.empty(columns.shape)
        scale = 1.0 / np.sqrt(self.n_hashes)
        edges = self.size * np.arange(self.n_hashes + 1) // self.n_hashes
        for index in range(self.n_hashes):
            bits = hashes(features, self.seed, "count sketch", index)
            columns[:, index] = edges[index] + buckets(bits, int(edges[index + 1] - edges[index]))
            values[:, index] = np.where(bits & np.uint64(1), scale, -scale)
        return compressed(columns, values, self.size)

    def _features(self, start: int, stop: int) -> NDArray[np.uint64]:
        """Return the hashed number of each feature: its index, or xxhash64 of its name."""
        if self.names is None:
            return np.arange(start, stop, dtype=np.uint64)
        digests = (xxhash.xxh64_intdigest(name.encode("utf-8", "surrogatepass")) for name in self.names[start:stop])
        return np.fromiter(digests, dtype=np.uint64, count=stop - start)


def _checked_names(names: Sequence[str], n_features: int) -> tuple[str, ...]:
    """Return `names` as a tuple of plain strings; `ParameterError` unless they are n_features different ones."""
    if isinstance(names, str):
        raise ParameterError(f"names={names!r}: expected a sequence of {n_features} strings, not one string")
    checked = tuple(names)
    if len(checked) != n_features:
        raise ParameterError(f"{len(checked)} names for {n_features} features: expected one for each")
    other = next((name for name in checked if not isinstance(name, str)), None)
    if other is not None:
        raise ParameterError(f"the name {other!r} is not a string: expected strings")
    checked = tuple(str(name) for name in checked)
    if len(set(checked)) < n_features:
        seen: set[str] = set()
        repeated = next(name for name in checked if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ParameterError(f"the name {repeated!r} stands for two features: expected names that differ")
    return checked


@dataclass(frozen=True)
class GaussianProjection(SuggestsKeywords):
    """Ω with independent entries N(0, 1 / size), which give E⟨xΩ, yΩ⟩ = ⟨x, y⟩.

    The variance of ⟨xΩ, yΩ⟩ is (‖x‖² ‖y‖² + ⟨x, y⟩²) / size for any x and y, so no data are unfavourable. Features
    are drawn in fixed runs of 64, each with a separate generator. A product with n rows takes 2 n d q flops. Every
    call of `transform` draws the numbers of Ω again, so pass many rows at once.

    Raises
    ------
    ParameterError
        If a parameter is not a whole number, or a count is less than 1.

    References
    ----------
    Johnson & Lindenstrauss (1984), Extensions of Lipschitz mappings into a Hilbert space; Dasgupta (2000), Experiments
    with random projection.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> transform = sp.transforms.GaussianProjection(n_features=1000, size=100, seed=0)
    >>> transform.transform(np.ones((5, 1000))).shape
    (5, 100)
    """

    n_features: int
    """Number of features, d."""
    size: int
    """Number of columns, q."""
    seed: int = 0
    """Seed of all runs."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def key(self) -> str:
        """Return the hash that identifies Ω."""
        return key_of(self, self.seed)

    def matrix(self, start: int = 0, stop: int | None = None) -> FloatArray:
        """Return the rows of Ω of features `start` to `stop`, shape ``(stop - start, size)``.

        It takes 12 to 20 ns per number. Raises `ParameterError` unless 0 ≤ start ≤ stop ≤ n_features.
        """
        start, stop = bounds(self.n_features, start, stop)
        rows, scale = np.empty((stop - start, self.size)), 1.0 / np.sqrt(self.size)
        for run in range(start // _RUN_FEATURES, -(-stop // _RUN_FEATURES)):
            first = run * _RUN_FEATURES
            low, high = max(start, first), min(stop, first + _RUN_FEATURES)
            if low >= high:
                continue
            draws = generator(self.seed, "gaussian projection", run)
            if low > first:
                draws.standard_normal((low - first, self.size))
            run_rows = rows[low - start : high - start]
            draws.standard_normal(out=run_rows)
            run_rows *= scale
        return rows

    def transform(self, block: Rows) -> Array:
        """Return block @ Ω, float32 for float16 and float32 rows, else float64, shape ``(n_rows, size)``.

        Parameters
        ----------
        block : array or scipy sparse, shape (n_rows, n_features)
            Rows of any real type. Slabs of Ω of at most 16 MiB are drawn and discarded in every call, which takes about
            as long as the products with 300 rows.

        Raises
        ------
        ParameterError
            If the block has another number of columns, or is not of real numbers.
        """
        runs = min(max(_SLAB_BYTES // (8 * self.size * _RUN_FEATURES), 1), _SLAB_RUNS)
        return multiply(block, self.n_features, self.size, self.matrix, runs * _RUN_FEATURES, _PANEL_ROWS)


@dataclass(frozen=True)
class SparseSign(SparseTransform):
    """Ω with entries ± 1/√n_nonzeros in n_nonzeros different columns of each row, which give E⟨xΩ, yΩ⟩ = ⟨x, y⟩.

    The columns of a feature are a uniform random subset (Floyd's algorithm, one xxhash64 of the feature's index for
    each column). The variance of ⟨xΩ, yΩ⟩ is (‖x‖² ‖y‖² + ⟨x, y⟩² − 2 Σᵢ xᵢ² yᵢ²) / size for any n_nonzeros; a larger
    n_nonzeros makes it unlikely that two features share all columns.

    Raises
    ------
    ParameterError
        If a parameter is not a whole number, a count is less than 1, or `n_nonzeros` exceeds `size`.

    References
    ----------
    Kane & Nelson (2014), Sparser Johnson-Lindenstrauss transforms; Tropp, Yurtsever, Udell & Cevher (2019), Streaming
    low-rank matrix approximation with an application to scientific simulation, for 8 entries; Bentley & Floyd (1987), A
    sample of brilliance.

    Examples
    --------
    >>> import streampca as sp
    >>> transform = sp.transforms.SparseSign(n_features=1000, size=100, seed=0)
    >>> transform.matrix(0, 10).shape
    (10, 100)
    """

    n_features: int
    """Number of features, d."""
    size: int
    """Number of columns, q."""
    n_nonzeros: int = 8
    """Number of entries in each row of Ω, ζ."""
    seed: int = 0
    """Seed of all rows."""

    def __post_init__(self) -> None:
        check_fields(self, "n_nonzeros")
        if self.n_nonzeros > self.size:
            raise ParameterError(
                f"n_nonzeros={self.n_nonzeros} entries in size={self.size} columns: expected at most one for each; "
                "raise size or lower n_nonzeros"
            )

    @property
    def key(self) -> str:
        """Return the hash that identifies Ω."""
        return key_of(self, self.n_nonzeros, self.seed)

    def sparse(self, start: int = 0, stop: int | None = None) -> csr_array:
        """Return the rows of Ω of features `start` to `stop` in compressed row form, n_nonzeros entries in each.

        `ParameterError` unless 0 ≤ start ≤ stop ≤ n_features.
        """
        start, stop = bounds(self.n_features, start, stop)
        features = np.arange(start, stop, dtype=np.uint64)
        # Twice the column, plus one for a positive sign, so that columns and signs are sorted together.
        codes = np.empty((self.n_nonzeros, stop - start), dtype=np.int64)
        for index in range(self.n_nonzeros):
            last = self.size - self.n_nonzeros + index
            bits = hashes(features, self.seed, "sparse sign", index)
            drawn = buckets(bits, last + 1)
            taken = ((codes[:index] >> 1) == drawn).any(axis=0)
            codes[index] = 2 * np.where(taken, last, drawn) + (bits & np.uint64(1)).astype(np.int64)
        rows = np.sort(codes.T, axis=1)
        scale = 1.0 / np.sqrt(self.n_nonzeros)
        return compressed(rows >> 1, np.where(rows & 1, scale, -scale), self.size)
