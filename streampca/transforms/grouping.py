"""Grouping of adjacent features, or of square blocks of pixels, into their sum over the square root of their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
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
from streampca.typing import Array, DType, FloatArray, IntArray, Rows

_PANEL_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Grouping(SparseTransform):
    """Ω with the entry 1/√m for each of the m features of a group, so that its columns are orthonormal.

    A group is a run of adjacent features (the first runs are one longer where the numbers do not divide) or, by
    `Grouping.of_pictures`, a square block of the pixels of one channel (smaller at the lower and the right edge where
    the sides do not divide). The map is not random: ⟨xΩ, yΩ⟩ is the dot product of the projections of x and y onto
    vectors that are constant in each group, at most ‖x‖ ‖y‖, and close to ⟨x, y⟩ only for smooth data. For pictures it
    is resizing, up to the scale √m.

    Raises
    ------
    ParameterError
        If a count is not a whole number or less than 1, there are more groups than features, or `picture`, `factor` and
        the counts contradict each other.

    References
    ----------
    Marukatat (2023), Tutorial on PCA and approximate PCA and approximate kernel PCA, algorithm 3.
    """

    n_features: int
    """Number of features, d."""
    size: int
    """Number of groups, q."""
    picture: tuple[int, ...] | None = None
    """Height, width and channels of the picture that a row holds in C order; None for plain vectors."""
    factor: int | None = None
    """Side of a block of pixels; None for plain vectors."""

    def __post_init__(self) -> None:
        check_fields(self, seed=False)
        if self.size > self.n_features:
            raise ParameterError(
                f"size={self.size} groups of {self.n_features} features: expected at most as many groups"
            )
        if (self.picture is None) != (self.factor is None):
            raise ParameterError("picture and factor go together: give both, by Grouping.of_pictures, or neither")
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
        """Return the grouping of pictures, (h, w) or (h, w, channels), by blocks of factor × factor pixels."""
        picture = _picture_shape(shape, factor)
        return cls(prod(picture), prod(_blocks(picture, factor)), picture, factor)

    @property
    def key(self) -> str:
        """Return the hash that identifies Ω."""
        return key_of(self, self.picture, self.factor)

    def group_sizes(self) -> IntArray:
        """Return the number of features of each group, shape ``(size,)``."""
        if self.picture is None:
            return np.diff(self._edges, append=self.n_features)
        height, width, channels = self.picture
        down, right = (np.diff(self._steps(side), append=side) for side in (height, width))
        return np.repeat(np.outer(down, right).ravel(), channels)

    def groups(self, start: int = 0, stop: int | None = None) -> IntArray:
        """Return the group of each of the features `start` to `stop`, shape ``(stop - start,)``."""
        start, stop = bounds(self.n_features, start, stop)
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
        if issparse(block):
            return super().transform(block)
        table = np.asarray(table_of_features(block, self.n_features))
        out = np.empty((len(table), self.size), dtype=product_dtype(table.dtype))
        step = max(1, _PANEL_BYTES // (8 * self.n_features))
        for start in range(0, len(table), step):
            out[start : start + step] = self._sums(table[start : start + step], out.dtype)
        out *= self._scales.astype(out.dtype)
        return out

    def _sums(self, rows: Array, dtype: DType) -> Array:
        if self.picture is None:
            return np.add.reduceat(rows, self._edges, axis=1, dtype=dtype)
        height, width, _ = self.picture
        bands = np.add.reduceat(rows.reshape(len(rows), *self.picture), self._steps(height), axis=1, dtype=dtype)
        return np.add.reduceat(bands, self._steps(width), axis=2).reshape(len(rows), self.size)

    def _steps(self, side: int) -> IntArray:
        """Return where the blocks along a side of a picture begin."""
        return np.arange(0, side, self.factor)

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
