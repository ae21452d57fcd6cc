"""Laws of the accumulators for kinds of rows: weighted, with holes, sparse, of 8-bit integers.

The rows of the law suite are plain, so each accumulator is given them through an adapter that makes holes, weights or
sparse blocks of them, always the same ones for the same row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tolerances
from facade import Block, as_block
from numpy.typing import NDArray
from scipy.sparse import csr_array

from streampca.accumulators import (
    CompleteRows,
    Covariance,
    ExactIntegerCovariance,
    PairwiseCovariance,
    SparseCovariance,
)

Change = Callable[[Block], Block]


def weights_of(start: int, n_rows: int) -> NDArray[np.float64]:
    """Return weights 0, 1, 2, 3 of rows by their number."""
    return (np.arange(start, start + n_rows) * 7 % 4).astype(np.float64)


def holes_in(rows: NDArray[Any], start: int) -> NDArray[Any]:
    """Return rows as floating point numbers with NaN in a fifth of the rows; the first two rows stay complete."""
    out = rows.astype(rows.dtype if rows.dtype.kind == "f" else np.float64)
    number = np.arange(start, start + len(rows))[:, None]
    column = np.arange(rows.shape[1])
    out[(number * 3 + column * 5) % 11 + np.where(number < 2, 99, 0) < 2] = np.nan
    return out


def weighted(block: Block) -> Block:
    return Block(block.values, block.start, weights_of(block.start, len(block)))


def holed(block: Block) -> Block:
    return Block(holes_in(block.values, block.start), block.start)


def sparse(block: Block) -> Block:
    values = block.values.astype(block.values.dtype.newbyteorder("="))
    return Block(csr_array(values if values.dtype != np.float16 else values.astype(np.float32)), block.start)


def eight_bit(block: Block) -> Block:
    return Block(to_eight_bit(block.values), block.start)


def to_eight_bit(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return some uint8 that depend on the rows."""
    return np.nan_to_num(rows.astype(np.float64) * 16 % 256).astype(np.uint8)


@dataclass(frozen=True)
class Adapted:
    """An accumulator whose blocks are changed before they reach it; all else is its own."""

    inner: Any
    change: Change

    def update(self, state: Any, block: Any) -> Any:
        return self.inner.update(state, self.change(as_block(block)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def kinds_of_rows(law: Any, same: Any, right: Any, assert_within: Any) -> list[Any]:
    """Return the rows of the table of laws; `same` and `right` are those of `Covariance`."""

    def right_weighted(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
        repeated = rows.repeat(weights_of(0, len(rows)).astype(int), axis=0)
        if len(repeated) > 1:
            counted = int((weights_of(0, len(rows)) > 0).sum())
            assert (state.n_samples, state.weight) == (counted, len(repeated))
            error = tolerances.scatter(rows) * 4 / (len(repeated) - 1)
            assert_within(accumulator.finalize(state).dense(), _covariance(repeated), error)

    def same_rows_kept(accumulator: Any, left: Any, other: Any, rows: NDArray[Any]) -> None:
        assert left.n_left_out == other.n_left_out
        same(accumulator, left.rows, other.rows, rows)

    def right_rows_kept(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
        whole = ~np.isnan(holes_in(rows, 0)).any(axis=1)
        assert state.n_left_out == len(rows) - whole.sum()
        right(accumulator.accumulator, state.rows, holes_in(rows, 0)[whole])

    def same_pairs(accumulator: Any, left: Any, other: Any, rows: NDArray[Any]) -> None:
        assert (left.n_samples, left.n_missing, left.complete) == (other.n_samples, other.n_missing, other.complete)
        np.testing.assert_array_equal(left.observed, other.observed)
        assert_within(left.mean, other.mean, 4 * tolerances.mean(rows))
        if len(rows) > 3 and left.n_samples:
            one, two = (_finalized(accumulator, state) for state in (left, other))
            if one is not None and two is not None:
                assert_within(one, two, 8 * tolerances.scatter(rows))

    def right_pairs(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
        found, values = _finalized(accumulator, state), holes_in(rows, 0).astype(np.float64)
        if found is None or len(rows) < 2:
            return
        expected = imputed(values) if accumulator.impute else by_pairs(values)
        assert_within(found, expected, 8 * tolerances.scatter(rows))

    def same_integers(_: Any, left: Any, other: Any, rows: NDArray[Any]) -> None:
        assert left.n_samples == other.n_samples
        assert left.total.tobytes() == other.total.tobytes()
        assert left.products.tobytes() == other.products.tobytes()

    def right_integers(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
        values = to_eight_bit(rows)
        right(accumulator.covariance, accumulator.to_covariance(state), values)

    def pairs(name: str, **parameters: Any) -> Any:
        return law(
            f"pairwise {name}", lambda _: Adapted(PairwiseCovariance(**parameters), holed), same_pairs, right_pairs
        )

    return [
        law("covariance of weighted rows", lambda _: Adapted(Covariance(), weighted), same, right_weighted),
        law(
            "complete rows",
            lambda _: Adapted(CompleteRows(Covariance(tile_size=3)), holed),
            same_rows_kept,
            right_rows_kept,
        ),
        pairs("in tiles", tile_size=2, n_threads=2),
        pairs("imputed", impute=True),
        pairs("imputed in tiles", impute=True, tile_size=3),
        law("sparse rows as dense panels", lambda _: Adapted(SparseCovariance(dense_from=0), sparse), same, right),
        law("sparse products", lambda _: Adapted(SparseCovariance(tile_size=3, dense_from=2), sparse), same, right),
        law("integers", lambda _: Adapted(ExactIntegerCovariance(128), eight_bit), same_integers, right_integers),
        law(
            "integers in tiles",
            lambda _: Adapted(ExactIntegerCovariance(0, Covariance(tile_size=2)), eight_bit),
            same_integers,
            right_integers,
        ),
    ]


def imputed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the covariance of the rows with the means of the observed values in place of NaN."""
    values = values - values[0]  # the first row is complete
    return _covariance(np.where(np.isnan(values), np.nanmean(values, axis=0), values))


def by_pairs(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the covariance of every pair of features over the rows in which both were observed."""
    values = values - values[0]
    d = values.shape[1]
    out = np.empty((d, d))
    for i, j in np.ndindex(d, d):
        both = values[~np.isnan(values[:, [i, j]]).any(axis=1)][:, [i, j]]
        out[i, j] = _covariance(both)[0, 1] if i != j else _covariance(both)[0, 0]
    return out


def _covariance(rows: NDArray[Any]) -> NDArray[np.float64]:
    rest = rows.astype(np.float64) - rows[0].astype(np.float64)
    rest = rest - rest.mean(axis=0)
    return np.asarray(rest.T @ rest / (len(rows) - 1))


def _finalized(accumulator: Any, state: Any) -> NDArray[np.float64] | None:
    """Return the matrix, None where there are too few rows for one: blocks may be empty or hold one row."""
    from streampca.errors import DataError

    try:
        return np.asarray(accumulator.finalize(state).dense())
    except DataError:
        return None
