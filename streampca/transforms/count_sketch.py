"""Count sketch, or feature hashing: each feature goes to one column of each hash function, with a random sign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray
from scipy.sparse import csr_array

from streampca.errors import ParameterError
from streampca.random import hashes
from streampca.transforms.base import SparseTransform, bounds, buckets, check_fields, compressed, key_of


@dataclass(frozen=True)
class CountSketch(SparseTransform):
    """Ω with one entry ± 1/√n_hashes in the columns of each hash function, so that E⟨xΩ, yΩ⟩ = ⟨x, y⟩.

    The columns are divided among the hash functions, in numbers that differ by one at most. Bucket and sign of a
    feature are bits of xxhash64 of its index or, where there are names, of its name: a feature keeps its bucket when
    columns are reordered, added or dropped. With s_h columns for hash function h of l the variance of ⟨xΩ, yΩ⟩ is
    (Σ_h 1/s_h) / l² · (‖x‖² ‖y‖² + ⟨x, y⟩² − 2 Σᵢ xᵢ² yᵢ²), about that of a Gaussian projection of the same size.

    Entries ± 1/n_hashes, which were published for concatenated hashes, make every dot product n_hashes times too small
    in expectation; entries ± 1/√n_hashes preserve it. With one hash function two features share a column with
    probability 1 / size and are then indistinguishable; where a few single features carry the variance, use 4 or more
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
