"""Products with a stack of a basis and new rows, which is not formed: tile by tile on threads, in the type of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from streampca.linalg.tiles import spread
from streampca.system.workspace import borrow
from streampca.typing import Array, FloatArray

_TILE = 512  # rows or features of one product in one thread
_SMALL_TILE = 64
_FEW_TILES = 8  # number of tiles that keeps several threads busy, unless tiles become too small
_LENGTH = 4096  # terms of a sum in the type of the rows; longer sums are added in float64
_BAND = 1024  # features whose products fit in the cache


@dataclass(frozen=True)
class Stack:
    """The matrix M = [S; c; X − r mᵀ] of p = l + 1 + n rows: a basis S, one row c, and n rows X less their mean m.

    Products are computed in tiles whose sizes follow from the shape, each by one thread in the type of X, and sums of more
    than 4,096 terms are added in float64, so the bits do not depend on the number of threads.
    """

    basis: FloatArray
    """S, shape ``(l, n_features)``."""
    step: FloatArray
    """c, shape ``(n_features,)``."""
    rows: Array
    """X, float32 or float64, shape ``(n, n_features)``."""
    roots: FloatArray
    """r, the square root of the weight of each row, shape ``(n,)``."""
    mean: FloatArray | None
    """m, shape ``(n_features,)``; None for zero."""
    n_threads: int = 1
    """Threads that share the tiles."""

    @property
    def n_rows(self) -> int:
        """Return p."""
        return len(self.basis) + 1 + len(self.rows)

    def times(self, head: Array) -> FloatArray:
        """Return M headᵀ, shape ``(p, h)``, for `head` of the type of X, shape ``(h, n_features)``."""
        n_basis = len(self.basis)
        product = np.empty((self.n_rows, len(head)))

        def tile(item: tuple[Array, slice, int]) -> None:
            source, rows, first = item
            _multiply(product[first + rows.start : first + rows.stop], source[rows], head)

        sources = ((self.basis, 0), (self.rows, n_basis + 1))
        spread(tile, [(a, rows, first) for a, first in sources for rows in tiles(len(a))], self.n_threads)
        product[n_basis] = head @ self.step
        if self.mean is not None:
            product[n_basis + 1 :] -= self.roots[:, None] * (head @ self.mean)
        return product

    def of_rows(self) -> FloatArray:
        """Return M Mᵀ in scratch memory, shape ``(p, p)``; only the lower triangle is written."""
        n_basis, d = self.basis.shape
        top = n_basis + 1
        head = borrow("adaptive images", (n_basis + 2, d), self.rows.dtype)
        head[:n_basis], head[n_basis], head[top] = self.basis, self.step, 0.0 if self.mean is None else self.mean
        products = self.times(head)
        matrix = borrow("adaptive square", (self.n_rows, self.n_rows), np.float64)
        matrix[:, :top] = products[:, :top]
        along, roots = products[top:, top], self.roots
        squares = 0.0 if self.mean is None else float(self.mean @ self.mean)

        def tile(pair: tuple[slice, slice]) -> None:
            i, j = pair
            out = matrix[top:, top:][i, j]
            _multiply(out, self.rows[i], self.rows[j])
            if self.mean is not None:
                # With Z = X − r mᵀ: Z Zᵀ = X Xᵀ − (Zm) rᵀ − r (Zm)ᵀ − (mᵀm) r rᵀ
                out -= along[i, None] * roots[j] + roots[i, None] * (along[j] + squares * roots[j])

        spread(tile, _pairs(tiles(len(self.rows))), self.n_threads)
        return matrix

    def of_features(self) -> FloatArray:
        """Return Mᵀ M in scratch memory, shape ``(n_features, n_features)``; only the lower triangle is written."""
        d = self.basis.shape[1]
        matrix = borrow("adaptive square", (d, d), np.float64)
        weight = float(self.roots @ self.roots)

        def tile(pair: tuple[slice, slice]) -> None:
            i, j = pair
            out = matrix[i, j]
            _multiply(out, self.rows[:, i].T, self.rows[:, j].T)
            out += self.basis[:, i].T @ self.basis[:, j]
            out += self.step[i, None] * self.step[j]
            if self.mean is not None:
                out -= weight * self.mean[i, None] * self.mean[j]

        spread(tile, _pairs(tiles(d)), self.n_threads)
        return matrix

    def project(self, left: FloatArray, out: Array) -> None:
        """Write leftᵀ M to `out`, shape ``(k, n_features)``, for `left` of shape ``(p, k)``; `out` may be the basis.

        The basis is multiplied in the type of `out`, the rows in theirs.
        """
        n_basis, d = self.basis.shape
        upper = np.ascontiguousarray(left[:n_basis].T, dtype=out.dtype)
        lower = np.ascontiguousarray(left[n_basis + 1 :].T, dtype=self.rows.dtype)
        outer = np.stack([left[n_basis], -(self.roots @ left[n_basis + 1 :])], axis=1)
        ends = np.stack([self.step, np.zeros(d) if self.mean is None else self.mean])

        def band(features: slice) -> None:
            shape = (len(upper), features.stop - features.start)
            total = borrow("adaptive sum", shape, out.dtype)
            np.matmul(upper, self.basis[:, features].astype(out.dtype, copy=False), out=total)
            total += outer @ ends[:, features]
            short = borrow("adaptive product", shape, self.rows.dtype)
            for start in range(0, len(self.rows), _LENGTH):
                terms = slice(start, start + _LENGTH)
                total += np.matmul(lower[:, terms], self.rows[terms, features], out=short)
            out[:, features] = total

        spread(band, tiles(d, _BAND), self.n_threads)

    def signed_sums(self, signs: FloatArray, out: Array) -> None:
        """Write signed sums of runs of the rows X − r mᵀ to `out`, shape ``(n_sums, n_features)``; `signs` is ``(n,)``.

        Every row contributes to one sum, so that the sums contain directions of a few rows as well.
        """
        n_rows, n_sums = len(self.rows), len(out)
        typed_signs = signs.astype(self.rows.dtype)

        def run(k: int) -> None:
            rows = slice(n_rows * k // n_sums, n_rows * (k + 1) // n_sums)
            np.matmul(typed_signs[rows], self.rows[rows], out=out[k])
            if self.mean is not None:
                out[k] -= float(signs[rows] @ self.roots[rows]) * self.mean

        spread(run, range(n_sums), self.n_threads)


def of_images(images: Array, n_threads: int) -> FloatArray:
    """Return the Gram matrix of the rows of `images`, ``(q, q)``; only the lower triangle is written."""
    matrix = np.empty((len(images), len(images)))

    def tile(pair: tuple[slice, slice]) -> None:
        _multiply(matrix[pair], images[pair[0]], images[pair[1]])

    spread(tile, _pairs(tiles(len(images))), n_threads)
    return matrix


def combine(left: FloatArray, images: Array, out: FloatArray, n_threads: int) -> None:
    """Write leftᵀ images to `out`, shape ``(k, n_features)``, for `left` of shape ``(q, k)``."""
    short = np.ascontiguousarray(left.T, dtype=images.dtype)

    def band(features: slice) -> None:
        product = borrow("adaptive product", (len(short), features.stop - features.start), images.dtype)
        out[:, features] = np.matmul(short, images[:, features], out=product)

    spread(band, tiles(images.shape[1], _BAND), n_threads)


def tiles(size: int, largest: int = _TILE, wanted: int = _FEW_TILES) -> list[slice]:
    """Return `size` rows or features as `wanted` slices; more if these exceed `largest`, fewer if they are below 64."""
    count = max(-(-size // largest), min(wanted, size // _SMALL_TILE), 1)
    edges = [size * i // count for i in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def tile_bytes(n_wide: int, n_features: int, itemsize: int) -> int:
    """Return the scratch memory in bytes of one thread for products with heads and images of `n_wide` rows."""
    product = max(_TILE * max(n_wide, _TILE), n_wide * _BAND) * itemsize
    cast = min(_LENGTH, n_features) * min(n_wide, _TILE) * 4 if itemsize == 4 else 0
    return product + 2 * n_wide * _BAND * 8 + cast


def _pairs(slices: list[slice]) -> list[tuple[slice, slice]]:
    return [(slices[i], slices[j]) for i in range(len(slices)) for j in range(i + 1)]


def _multiply(out: FloatArray, left: Array, right: Array) -> None:
    """Write left rightᵀ to `out`, with products in the type of `right` and long sums in float64."""
    dtype, length = right.dtype, left.shape[1]
    product = borrow("adaptive product", out.shape, dtype)
    for start in range(0, length, _LENGTH):
        terms = slice(start, start + _LENGTH)
        np.matmul(left[:, terms].astype(dtype, copy=False), right[:, terms].T, out=product)
        if start:
            out += product
        else:
            out[...] = product
    if not length:
        out[...] = 0.0
