"""Masked arrays of numpy: what is stored below a mask is never taken for data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse

import streampca as sp
from streampca.errors import DataError, ParameterError

ROWS = np.random.default_rng(0).normal(size=(60, 4))
BELOW = np.where(ROWS > 1.5, 1e20, ROWS)
MASKED = np.ma.masked_greater(BELOW, 1e19)
LAZY = da.from_array(MASKED, chunks=(20, 2), asarray=False)
FITTED = sp.PCA(4).fit(ROWS)
KERNEL = sp.KernelPCA(4).fit(ROWS)

USES: dict[str, Callable[[], Any]] = {
    "fit": lambda: sp.PCA(2).fit(MASKED),
    "fit lazy": lambda: sp.PCA(2).fit(LAZY),
    "fit kernel": lambda: sp.KernelPCA(2).fit(MASKED),
    "partial_fit": lambda: sp.PCA(2).partial_fit(MASKED),
    "open": lambda: sp.open(MASKED),
    "missing values": lambda: sp.PCA(2, missing="drop_rows").fit(MASKED),
    "transform": lambda: FITTED.transform(MASKED),
    "transform lazy": lambda: FITTED.transform(LAZY).compute(),
    "inverse_transform": lambda: FITTED.inverse_transform(MASKED),
    "inverse_transform lazy": lambda: FITTED.inverse_transform(LAZY).compute(),
    "kernel_distance": lambda: KERNEL.kernel_distance(MASKED),
    "kernel_distance of others": lambda: KERNEL.kernel_distance(ROWS, MASKED),
}


@pytest.mark.parametrize("use", USES)
def test_masked_values_are_refused(use: str) -> None:
    with pytest.raises(DataError, match=r"has \d+ masked values: .*filled\(numpy\.nan\)"):
        USES[use]()


NUMBERS = np.ma.masked_greater(np.r_[1e20, np.ones(59)], 1e19)


@pytest.mark.parametrize(
    "use",
    [
        lambda: sp.PCA(1).fit(ROWS, sample_weight=NUMBERS),
        lambda: sp.PCA(1, feature_weight=NUMBERS[:4]).fit(ROWS),
        lambda: sp.PCA(1, remove={"covariates": NUMBERS}).fit(ROWS),
        lambda: sp.PCA(1, remove={"trend": 1}).fit(ROWS).transform(ROWS[:10], remove={"trend": NUMBERS[:10]}),
        lambda: sp.PCA(1, remove={"groups": ROWS[:, 0] > 0}).fit(ROWS).transform(ROWS, remove={"groups": NUMBERS}),
    ],
)
def test_masked_weights_covariates_and_positions_are_refused(use: Callable[[], Any]) -> None:
    with pytest.raises(ParameterError, match=r"masked values|missing labels"):
        use()


def test_masks_without_masked_values_change_nothing() -> None:
    rows = np.ma.array(ROWS, mask=False)
    np.testing.assert_array_equal(sp.PCA(2).fit(rows).components_, sp.PCA(2).fit(ROWS).components_)
    np.testing.assert_array_equal(FITTED.transform(rows), FITTED.transform(ROWS))
    filled = sp.PCA(2, missing="drop_rows").fit(MASKED.filled(np.nan))
    whole = sp.PCA(2).fit(ROWS[~MASKED.mask.any(axis=1)])
    np.testing.assert_allclose(filled.explained_variance_, whole.explained_variance_)


@pytest.mark.parametrize(
    "scores", [ROWS + 1j, ROWS[:, :3], ROWS[0], da.ones((60, 9), chunks=20), da.ones(9), da.from_array(ROWS + 1j)]
)
def test_scores_of_another_shape_or_type_are_refused_at_once(scores: Any) -> None:
    with pytest.raises(ParameterError, match=r"expected real numbers of shape \(n_samples, 4\)"):
        FITTED.inverse_transform(scores)


def test_distances_of_sparse_rows_are_refused() -> None:
    with pytest.raises(ParameterError, match="dense rows"):
        KERNEL.kernel_distance(scipy.sparse.csr_array(ROWS))
