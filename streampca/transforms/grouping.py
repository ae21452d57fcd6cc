"""Grouping of features into their sum over the square root of their number: neighbours, blocks of pixels, or any sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse

from streampca.errors import ParameterError
from streampca.transforms.base import (
    SparseTransform,
    bounds,
    check_fields,
    compressed,
    key_of,
    product_dtype,
    table_of_features,
    whole,
)
from streampca.typing import Array, FloatArray, IntArray, Rows

_PANEL_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Grouping(SparseTransform):
    """Ω with the entry 1/√m for each of the m features of a group, which makes its columns orthonormal.

    By default a group is a run of adjacent features (the first runs are one longer if the numbers do not divide).
    `Grouping.of_pictures` groups square blocks of pixels of one channel (smaller at the lower and right edges if the
    sides do not divide). `Grouping.by_correlation` and `membership` group any sets of features. The map is not
    random: ⟨xΩ, yΩ⟩ is the dot product of the projections of x and y onto vectors that are constant in each group. It
    is at most ‖x‖ ‖y‖, and close to ⟨x, y⟩ only for smooth data. For pictures the map is resizing, up to the scale
    √m.

    Raises
    ------
    ParameterError
        If a count is less than 1 or not a whole number, if there are more groups than features, or if `picture`,
        `factor`, `membership` and the counts contradict each other.

    References
    ----------
    Marukatat (2023), Tutorial on PCA and approximate PCA and approximate kernel PCA, algorithm 3.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> pairs = sp.transforms.Grouping(n_features=4, size=2)
    >>> rows = np.array([[1.0, 3.0, 5.0, 7.0]])
    >>> pairs.inverse_transform(pairs.transform(rows))
    array([[2., 2., 6., 6.]])
    >>> sp.transforms.Grouping.of_pictures((4, 4), factor=2).groups().reshape(4, 4)
    array([[0, 0, 1, 1],
           [0, 0, 1, 1],
           [2, 2, 3, 3],
           [2, 2, 3, 3]])
    """

    n_features: int
    """Number of features, d."""
    size: int
    """Number of groups, q."""
    picture: tuple[int, ...] | None = None
    """Height, width and channels of the picture that a row holds in C order; None for plain vectors."""
    factor: int | None = None
    """Side of a block of pixels; None for plain vectors."""
    membership: tuple[int, ...] | None = None
    """The group of every feature, 0 to size − 1; None for runs of features and for pictures."""

    def __post_init__(self) -> None:
        check_fields(self, seed=False)
        if self.size > self.n_features:
            raise ParameterError(
                f"size={self.size} groups of {self.n_features} features: expected at most as many groups"
            )
        if (self.picture is None) != (self.factor is None):
            raise ParameterError("picture and factor belong together: give both, by Grouping.of_pictures, or neither")
        if self.membership is not None:
            given = np.asarray(self.membership)
            if self.picture is not None or given.shape != (self.n_features,) or given.dtype.kind not in "iu":
                raise ParameterError(
                    f"membership of shape {given.shape}: expected a whole number for each of {self.n_features} features, and no picture"
                )
            if not np.array_equal(np.unique(given), np.arange(self.size)):
                raise ParameterError(
                    f"membership: expected every group from 0 to {self.size - 1} to have a feature, and no others"
                )
            object.__setattr__(self, "membership", tuple(given.tolist()))
        if self.picture is not None:
            shape = _picture_shape(self.picture, self.factor)
            object.__setattr__(self, "picture", shape)
            object.__setattr__(self, "factor", int(self.factor or 1))
            expected = prod(shape), prod(_blocks(shape, self.factor or 1))
            if (self.n_features, self.size) != expected:
                raise ParameterError(
                    f"n_features={self.n_features} and size={self.size} for pictures of shape {shape} in blocks of "
                    f"{self.factor}: expected {expected[0]} and {expected[1]}, which Grouping.of_pictures fills in"
                )

    @classmethod
    def of_pictures(cls, shape: Sequence[int], factor: int) -> Grouping:
        """Return the grouping of pictures by blocks of factor × factor pixels.

        Parameters
        ----------
        shape : sequence of int
            (height, width) or (height, width, channels) of the picture that a row holds in C order.
        factor : int
            Side of a block in pixels.

        Raises
        ------
        ParameterError
            If `shape` has another length, or a number is not a whole number of at least 1.
        """
        picture = _picture_shape(shape, factor)
        return cls(prod(picture), prod(_blocks(picture, factor)), picture, factor)

    @classmethod
    def by_correlation(cls, covariance: ArrayLike, size: int) -> Grouping:
        """Return a grouping of features that vary together into `size` groups, for features without an order.

        It merges the two groups that add the least to tr((1 − P) C (1 − P)), the total loss of all eigenvalues
        (Ward's method on the columns of the data, computed from the covariance). `metrics.grouping_bound` bounds the
        change of any one eigenvalue. It takes O(d²) memory and time in addition to C.

        Parameters
        ----------
        covariance : array, shape (n_features, n_features)
            Covariance of the features, or their correlation for data that is scaled. Negatively correlated features
            are not grouped, since their sum would vanish.
        size : int
            Number of groups; at most n_features are made.

        Raises
        ------
        ParameterError
            If `covariance` is not a square matrix of finite numbers, or `size` is not a whole number of at least 1.

        References
        ----------
        Marukatat (2023), Tutorial on PCA and approximate PCA and approximate kernel PCA, section 4.2: features may be grouped
        where they are highly correlated; Ward (1963).

        Examples
        --------
        >>> import streampca as sp
        >>> sp.transforms.Grouping.by_correlation([[1, 0, 0.9], [0, 1, 0], [0.9, 0, 1]], size=2).membership
        (0, 1, 0)
        """
        matrix = np.asarray(covariance, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
            raise ParameterError(f"a covariance of shape {matrix.shape}: expected a square matrix of finite numbers")
        (size,) = whole(1, size=size)
        return cls(len(matrix), size, membership=tuple(_ward(matrix, min(size, len(matrix))).tolist()))

    @property
    def key(self) -> str:
        """Return the hash that identifies Ω."""
        return key_of(self, self.picture, self.factor, *(() if self.membership is None else (self.membership,)))

    def group_sizes(self) -> IntArray:
        """Return the number of features of each group, shape ``(size,)``."""
        return np.bincount(self.groups(), minlength=self.size)

    def groups(self, start: int = 0, stop: int | None = None) -> IntArray:
        """Return the group of each of the features `start` to `stop`, shape ``(stop - start,)``."""
        start, stop = bounds(self.n_features, start, stop)
        if self.membership is not None:
            return np.asarray(self.membership[start:stop], dtype=np.int64)
        features = np.arange(start, stop)
        if self.picture is None or self.factor is None:
            runs: IntArray = np.searchsorted(self._edges, features, side="right") - 1
            return runs
        _, width, channels = self.picture
        pixel, channel = np.divmod(features, channels)
        down, right = np.divmod(pixel, width)
        across = -(-width // self.factor)
        blocks: IntArray = (down // self.factor * across + right // self.factor) * channels + channel
        return blocks

    def sparse(self, start: int = 0, stop: int | None = None) -> csr_array:
        """Return the rows of Ω of features `start` to `stop` in compressed row form, one entry in each.

        `ParameterError` unless 0 ≤ start ≤ stop ≤ n_features.
        """
        groups = self.groups(start, stop)[:, np.newaxis]
        return compressed(groups, self._scales[groups], self.size)

    def transform(self, block: Rows) -> Array:
        """Return block @ Ω as the base class does; dense rows are summed in place, one addition for each of their entries."""
        if issparse(block) or self.membership is not None:
            return super().transform(block)
        table = np.asarray(table_of_features(block, self.n_features))
        out = np.empty((len(table), self.size), dtype=product_dtype(table.dtype))
        step = max(1, _PANEL_BYTES // (8 * self.n_features))
        for start in range(0, len(table), step):
            rows = table[start : start + step]
            if self.picture is None:
                sums = np.add.reduceat(rows, self._edges, axis=1, dtype=out.dtype)
            else:
                down, right = (np.arange(0, side, self.factor) for side in self.picture[:2])
                bands = np.add.reduceat(rows.reshape(len(rows), *self.picture), down, axis=1, dtype=out.dtype)
                sums = np.add.reduceat(bands, right, axis=2).reshape(len(rows), self.size)
            out[start : start + step] = sums
        out *= self._scales.astype(out.dtype)
        return out

    def inverse_transform(self, block: ArrayLike) -> Array:
        """Return block @ Ωᵀ, shape ``(n_rows, n_features)``: rows of features, with equal values within each group.

        Parameters
        ----------
        block : array, shape (n_rows, size)
            Rows as `transform` returns them. Each feature of a group of m gets the entry of the group over √m. Rows
            of data thus return with every feature replaced by the mean of its group, and eigenvectors of grouped rows
            become vectors of the same length over the features.

        Raises
        ------
        ParameterError
            If the block has another number of columns, or is not of real numbers.
        """
        table = np.asarray(table_of_features(np.asarray(block), self.size))
        scaled = table * self._scales.astype(product_dtype(table.dtype))
        return np.asarray(scaled[:, self.groups()])

    @property
    def _edges(self) -> IntArray:
        """Return where the runs of a plain vector begin."""
        short, longer = divmod(self.n_features, self.size)
        index = np.arange(self.size)
        return index * short + np.minimum(index, longer)

    @property
    def _scales(self) -> FloatArray:
        scales: FloatArray = 1.0 / np.sqrt(self.group_sizes())
        return scales


def _ward(covariance: FloatArray, size: int) -> IntArray:
    """Return the group of every feature, numbered by their first features, after Ward's merges to `size` groups."""
    from scipy.cluster.hierarchy import ward  # here, because it takes a moment to import
    from scipy.spatial.distance import squareform

    d = len(covariance)
    groups: IntArray = np.arange(d)
    if d == size:
        return groups
    squares = covariance.diagonal()[:, np.newaxis] + covariance.diagonal() - covariance - covariance.T
    np.fill_diagonal(squares, 0.0)
    merges = ward(squareform(np.sqrt(np.maximum(squares, 0.0)), checks=False))
    parent = np.arange(2 * d - 1)
    for index, (left, right) in enumerate(merges[: d - size, :2].astype(np.int64)):
        parent[[left, right]] = d + index
    for _ in range(d):  # later merges have higher numbers, so every step brings all nearer to their roots
        above = parent[parent]
        if np.array_equal(above, parent):
            break
        parent = above
    _, first, members = np.unique(parent[:d], return_index=True, return_inverse=True)
    ranks: IntArray = np.argsort(np.argsort(first))
    return ranks[members]


def _picture_shape(shape: Sequence[int], factor: int | None) -> tuple[int, int, int]:
    """Return height, width and channels; `ParameterError` if these and `factor` are not whole numbers of at least 1."""
    if factor is None or len(shape) not in (2, 3):
        raise ParameterError(
            f"pictures of shape {tuple(shape)} in blocks of {factor}: expected (h, w) or (h, w, channels)"
        )
    height, width, channels = (*shape, 1)[:3]
    height, width, channels, _ = whole(1, height=height, width=width, channels=channels, factor=factor)
    return height, width, channels


def _blocks(picture: tuple[int, int, int], factor: int) -> tuple[int, int, int]:
    """Return the number of blocks down and across, and of channels."""
    return -(-picture[0] // factor), -(-picture[1] // factor), picture[2]
