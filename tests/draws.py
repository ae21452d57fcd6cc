"""Laws of the accumulators that draw landmarks; `test_laws.py` holds the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from streampca.accumulators import ColumnNormLandmarks, RPCholeskyLandmarks, UniformLandmarks, WeightedLandmarks
from streampca.kernels import Polynomial

KERNEL = Polynomial(degree=2)
SEED = 5


def few(rows: NDArray[Any]) -> int:
    """Return a number of landmarks: small enough that 40 rows are several groups, and that 20,000 do not take long."""
    return 3 if len(rows) < 100 else 48


def key(index: int) -> float:
    """Return −log(1 − u) of a row, by the hash of xxhash itself."""
    seed = xxhash.xxh64_intdigest(f"{SEED}/landmarks/0".encode())
    hashed = xxhash.xxh64_intdigest(index.to_bytes(8, "little"), seed=seed)
    return float(-np.log1p(-(hashed + 0.5) / 2**64))


def draws(law: Any) -> list[Any]:
    """Return the rows of the table of laws."""

    def same(accumulator: Any, left: Any, right: Any, rows: NDArray[Any]) -> None:
        one, other = accumulator.finalize(left), accumulator.finalize(right)
        assert one.n_samples == other.n_samples
        np.testing.assert_array_equal(one.index, other.index)
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_allclose(one.weights, other.weights, rtol=1e-12)
        np.testing.assert_allclose(one.weight, other.weight, rtol=1e-12)

    def are_rows(accumulator: Any, found: Any, rows: NDArray[Any]) -> None:
        assert found.n_samples == len(rows)
        assert (np.diff(found.index) > 0).all()
        np.testing.assert_array_equal(found.rows, rows[found.index])
        assert found.rows.dtype.newbyteorder("=") == rows.dtype.newbyteorder("=")

    def right_draw(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
        found = accumulator.finalize(state)
        are_rows(accumulator, found, rows)
        values = rows.astype(np.float64)
        weights = {
            UniformLandmarks: lambda: np.ones(len(rows)),
            WeightedLandmarks: lambda: KERNEL.diagonal(values) ** 2,
            ColumnNormLandmarks: lambda: (
                (KERNEL(values, accumulator.reservoir.astype(np.float64)) ** 2).mean(axis=1) * len(rows)
            ),
        }[type(accumulator)]()
        np.testing.assert_allclose(found.weights, weights[found.index], rtol=1e-9)
        np.testing.assert_allclose(found.weight, weights.sum(), rtol=1e-9)
        keys = np.array([key(i) for i in range(len(rows))]) / weights
        np.testing.assert_array_equal(found.index, np.sort(np.argsort(keys)[: few(rows)]))

    def right_pivots(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
        found = accumulator.finalize(state)
        are_rows(accumulator, found, rows)
        assert 1 <= len(found.index) <= few(rows)
        if len(rows) <= few(rows):
            np.testing.assert_array_equal(found.index, np.arange(len(rows)))
        np.testing.assert_allclose(found.weight, len(rows), rtol=1e-12)
        np.testing.assert_allclose(found.weights.sum(), len(rows), rtol=1e-12)

    def of(kind: Any, *arguments: Any) -> Any:
        return lambda rows: kind(few(rows), *arguments, seed=SEED, dtype=str(rows.dtype))

    def column_norm(rows: NDArray[Any]) -> ColumnNormLandmarks:
        return ColumnNormLandmarks(few(rows), KERNEL, rows[:7], len(rows), SEED, str(rows.dtype))

    return [
        law("uniform landmarks", of(UniformLandmarks), same, right_draw),
        law("landmarks by the diagonal", of(WeightedLandmarks, KERNEL), same, right_draw),
        law("landmarks by column norms", column_norm, same, right_draw),
        law("landmarks by randomly pivoted Cholesky", of(RPCholeskyLandmarks, KERNEL), same, right_pivots),
    ]
