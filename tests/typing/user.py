"""What a user writes, for type checkers: no expression here is of an unknown type."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import dask.array as da
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from numpy.typing import NDArray

import streampca as sp


def fit(rows: NDArray[np.float64]) -> sp.PCA:
    pca = sp.PCA(n_components=3, solver="sketch", missing="error", sketch_size="auto", memory="2GiB", random_state=1)
    plan = pca.plan(rows)
    print(plan.passes, plan.solver, str(plan))
    return pca.fit(rows)


def use(pca: sp.PCA, rows: NDArray[np.float64], lazy: da.Array, path: Path) -> None:
    scores = pca.transform(rows)
    assert_type(scores, NDArray[np.floating])
    assert_type(pca.fit_transform(rows), NDArray[np.floating])
    assert_type(pca.transform(lazy), da.Array)
    assert_type(pca.transform(path), da.Array)
    assert_type(pca.transform("rows.zarr"), da.Array)
    assert_type(pca.inverse_transform(scores), NDArray[np.floating])
    assert_type(pca.explained_variance_, NDArray[np.float64])
    assert_type(pca.n_components_, int)
    print(scores.shape, pca.mean_.shape, pca.components_.shape, pca.noise_variance_ + 1.0)


def labelled(pca: sp.PCA, field: xr.DataArray) -> xr.Dataset:
    table = sp.open(field, samples="time", mask="observed")
    assert_type(pca.fit(table), sp.PCA)
    scores = pca.transform(field)
    assert_type(scores, xr.DataArray)
    assert_type(pca.fit_transform(field), xr.DataArray)
    assert_type(pca.transform(table), da.Array | xr.DataArray)
    assert_type(pca.inverse_transform(scores), xr.DataArray | xr.Dataset)
    return pca.to_xarray()


def certificates(pca: sp.PCA, kernel_pca: sp.KernelPCA) -> None:
    assert_type(pca.certificate_.statement, str)
    assert_type(pca.certificate_.relative_residual_interval, tuple[float, float])
    assert_type(pca.certificate_.trusted_above, float)
    assert_type(kernel_pca.certificate_.sigma, float | None)
    assert_type(pca.error_.statement, str)
    assert_type(kernel_pca.error_.eigenvalue_intervals, tuple[tuple[float, float], ...] | None)
    if pca.error_.kind == "approximate":
        assert_type(pca.error_.largest_relative_width, float | None)
    print(pca.error_["statement"], sorted(pca.error_))


def summaries(pca: sp.PCA, mca: sp.MCA) -> str:
    assert_type(pca.summary().title, str)
    print(mca.summary())
    return str(pca.summary())


def plans(rows: NDArray[np.float32]) -> int:
    try:
        plan = sp.PCA(3, memory=64 * 2**20).plan(rows)
    except sp.errors.PlanError as error:
        assert_type(error.exit_status, int)
        return error.exit_status
    assert_type(plan.notes, tuple[str, ...])
    return plan.projected_bytes


def charts(pca: sp.PCA, kernel_pca: sp.KernelPCA, rows: NDArray[np.float64], ax: Axes) -> None:
    assert_type(pca.plot.scree(ax=ax), Axes)
    assert_type(pca.plot.biplot(rows, labels=["a", "b"]), Axes)
    assert_type(pca.plot.components(2), Axes)
    assert_type(kernel_pca.plot.scores(scores=rows, components=(1, 3)), Axes)


def store(pca: sp.PCA, path: Path) -> sp.PCA | sp.KernelPCA | sp.RotatedPCA | sp.MCA | sp.CCA | sp.FactorAnalysis:
    assert_type(pca.save(path, overwrite=True, state=True), Path)
    assert_type(pca.transform_to("rows.zarr", path), Path)
    assert_type(pca.inverse_transform_to(path, path, dtype="uint16", clip=True), Path)
    return sp.load(path)


def merge(first: sp.PCA, second: sp.PCA, more: NDArray[np.float64]) -> sp.PCA:
    total = sp.merge([first, second])
    assert_type(total, sp.PCA)
    return total.partial_fit(more)


def kernel(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    kernels = sp.kernels.RBF(gamma=1e-4) + 2.0 * sp.kernels.Polynomial(degree=5)
    fitted = sp.KernelPCA(n_components=sp.Threshold(1e-3), kernel=kernels, method="nystrom", sampling="uniform").fit(
        rows
    )
    assert_type(fitted, sp.KernelPCA)
    return fitted.eigenvalues_


def two_tables(
    rows: NDArray[np.float64], lazy: da.Array, field: xr.DataArray
) -> tuple[NDArray[np.float64], NDArray[np.floating]]:
    mca = sp.MCA(2).fit(rows[:, :3], rows[:, 3:])
    x_scores, y_scores = mca.transform(rows[:, :3], rows[:, 3:])
    assert_type(x_scores, NDArray[np.floating])
    assert_type(mca.transform(lazy, lazy), tuple[da.Array, da.Array])
    assert_type(mca.transform(field, field), tuple[xr.DataArray, xr.DataArray])
    assert_type(mca.inverse_transform(x_scores, y_scores), tuple[NDArray[np.floating], NDArray[np.floating]])
    assert_type(mca.inverse_transform(None, y_scores), NDArray[np.floating])
    assert_type(mca.predict(rows[:, :3]), NDArray[np.floating])
    assert_type(mca.predict(lazy), da.Array)
    assert_type(mca.error_.statement, str)
    return mca.singular_values_, mca.fit_transform(rows[:, :3], rows[:, 3:])[0]


def run(config: Path) -> Path:
    finished = sp.run(config)
    assert_type(finished.model, sp.PCA | sp.KernelPCA | sp.RotatedPCA | sp.MCA | sp.CCA | sp.FactorAnalysis)
    assert_type(finished.directory, Path)
    return finished.directory
