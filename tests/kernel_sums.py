"""Laws of the accumulator of kernel values; `test_laws.py` holds the table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tolerances import work_dtype

from streampca.accumulators.kernel_features import KernelFeatures
from streampca.kernels import RBF


def kernel_sums(law: Any) -> list[Any]:
    """Return the rows of the table of laws: kernel values as they are, and linear functions of them."""

    def make(rows: NDArray[Any], matrix: bool = False) -> KernelFeatures:
        work = work_dtype(rows.dtype)
        points = np.ascontiguousarray(rows[:3], dtype=work)
        wide = points.astype(np.float64)
        kernel = RBF(gamma=0.3 / (1.0 + float(np.ptp(rows.astype(np.float64)))))
        origin = kernel(wide, wide).mean(axis=0).astype(work)
        turn = np.array([[1.0, -0.5], [0.25, 1.0], [-1.0, 2.0]])[: len(points)].astype(work) if matrix else None
        return KernelFeatures(kernel.prepare(points, work), kernel, origin, turn)

    def tolerance(rows: NDArray[Any]) -> float:
        # Kernel values lie in [0, 1]; each carries some roundings of products of rows moved to the landmarks' mean.
        spread = float(np.ptp(rows.astype(np.float64)))
        return 64 * len(rows) * float(np.finfo(work_dtype(rows.dtype)).eps) * (1.0 + rows.shape[1] * spread)

    def same(accumulator: Any, left: Any, right: Any, rows: NDArray[Any]) -> None:
        one, other = accumulator.finalize(left), accumulator.finalize(right)
        assert one.n_samples == other.n_samples
        np.testing.assert_allclose(one.mean, other.mean, rtol=0, atol=tolerance(rows))
        np.testing.assert_allclose(one.scatter, other.scatter, rtol=0, atol=tolerance(rows))
        assert abs(one.trace - other.trace) <= tolerance(rows)

    def right(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
        found = accumulator.finalize(state)
        values = rows.astype(np.float64)
        features = accumulator.kernel(values, values[:3])
        if accumulator.matrix is not None:
            features = (features - accumulator.origin) @ accumulator.matrix.astype(np.float64)
        centred = features - features.mean(axis=0)
        np.testing.assert_allclose(found.mean, features.mean(axis=0), rtol=0, atol=tolerance(rows))
        np.testing.assert_allclose(found.scatter, centred.T @ centred, rtol=0, atol=tolerance(rows))
        assert found.n_samples == len(rows)
        assert abs(found.trace - len(rows)) <= tolerance(rows)

    return [
        law("kernel values", make, same, right),
        law("kernel features", lambda rows: make(rows, matrix=True), same, right),
    ]
