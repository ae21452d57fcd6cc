"""Steps that have to know something of all rows: read once before, the same on every way, kept by models for new rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cells
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

import streampca as sp
from streampca.errors import NotFittedError, ParameterError

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*:zarr.errors.ZarrUserWarning", "ignore:.*:zarr.errors.UnstableSpecificationWarning"
)
COUNTS = cells.make_counts()
USED = np.arange(40) % 3 != 1
Rows = NDArray[np.float64]


def median_of_totals(rows: Rows) -> Rows:
    totals = rows.sum(axis=1, keepdims=True)
    return np.divide(rows * np.median(totals[totals > 0]), totals, out=np.zeros_like(rows), where=totals > 0)


def tf_idf(rows: Rows) -> Rows:
    """Signac's RunTFIDF with method 1: log(1 + 1e4 · TF · IDF)."""
    totals = np.maximum(rows.sum(axis=1, keepdims=True), 1e-300)
    return np.log1p(rows / totals * 1e4 * len(rows) / rows.sum(axis=0))


def pearson(rows: Rows, theta: float = 100) -> Rows:
    """Lause, Berens & Kobak 2021, as in scanpy.experimental.pp.normalize_pearson_residuals."""
    mu = rows.sum(axis=1, keepdims=True) * rows.sum(axis=0) / rows.sum()
    with np.errstate(invalid="ignore"):
        residuals = (rows - mu) / np.sqrt(mu + mu**2 / theta)
    return np.clip(np.nan_to_num(residuals), -math.sqrt(len(rows)), math.sqrt(len(rows)))


def clipped(rows: Rows, most: float) -> Rows:
    """As scanpy.pp.scale(max_value=…)."""
    return np.clip((rows - rows.mean(axis=0)) / rows.std(axis=0, ddof=1), -most, most)


CASES: dict[str, tuple[dict[str, Any], Any, bool]] = {
    "median": ({"target_sum": "median"}, median_of_totals, False),
    "median log1p": ({"target_sum": "median", "log1p": True}, lambda rows: np.log1p(median_of_totals(rows)), False),
    "tf-idf": ({"target_sum": 1e4, "idf": True, "log1p": True}, tf_idf, False),
    "pearson": ({"residuals": "pearson"}, pearson, True),
    "clipped": ({"log1p": True, "max_value": 2}, lambda rows: clipped(np.log1p(rows), 2), True),
    "two readings": (
        {"target_sum": "median", "log1p": True, "max_value": 3},
        lambda rows: clipped(np.log1p(median_of_totals(rows)), 3),
        True,
    ),
}
"""Option, numpy's formula, and whether it is of the features that are used alone."""


def of_used(name: str, used: NDArray[np.bool_] | None) -> tuple[dict[str, Any], Rows]:
    normalize, formula, of_used_alone = CASES[name]
    rows = COUNTS.toarray().astype(np.float64)
    if used is None:
        return normalize, formula(rows)
    return normalize, formula(rows[:, used]) if of_used_alone and name == "pearson" else formula(rows)[:, used]


def stored(path: Path) -> Path:
    return cells.write_cells(path, COUNTS, layers={"dense": COUNTS.toarray()}, var={"used": USED})


@pytest.mark.parametrize("layer", [None, "dense"])
@pytest.mark.parametrize("mask_var", [None, "used"])
@pytest.mark.parametrize("name", CASES)
def test_rows_and_components_are_those_of_numpy(
    tmp_path: Path, name: str, mask_var: str | None, layer: str | None
) -> None:
    normalize, expected = of_used(name, None if mask_var is None else USED)
    path = stored(tmp_path / "a.zarr")
    table = sp.open(path, layer=layer, mask_var=mask_var, normalize=normalize)
    dense = layer is not None or name not in ("median", "median log1p", "tf-idf")
    assert (table.shape, table.dtype, table.sparse) == (expected.shape, np.float32, not dense)
    n_readings = len(table.unfitted)
    plan = sp.PCA(3).plan(table)
    pca = sp.PCA(3).fit(table)
    assert pca.n_passes_ == plan.passes == 1 + n_readings
    assert pca.bytes_read_ >= plan.bytes_to_read * 0.9
    found = table.read(0, 300)[0]
    found = found.toarray() if table.sparse else found
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    vectors, variances = cells.components(expected, 3)
    np.testing.assert_allclose(pca.explained_variance_, variances, rtol=1e-5)
    assert np.abs(np.sum(pca.components_ * vectors, axis=1)).min() >= 1 - 1e-6
    assert sp.PCA(3).fit(table).n_passes_ == 1, "figures are read once"


@pytest.mark.parametrize("name", CASES)
def test_new_rows_are_normalised_by_the_figures_of_the_fit(tmp_path: Path, name: str) -> None:
    normalize, expected = of_used(name, USED)
    path = stored(tmp_path / "a.zarr")
    pca = sp.PCA(3).fit(sp.open(path, mask_var="used", normalize=normalize))
    few = cells.write_cells(tmp_path / "few.zarr", COUNTS[40:90])
    pca.save(tmp_path / "model.zarr")
    for model in (pca, sp.load(tmp_path / "model.zarr")):
        scores = np.asarray(model.transform(few))
        wanted = (expected - expected.mean(axis=0))[40:90] @ pca.components_.T
        np.testing.assert_allclose(scores, wanted, atol=2e-5 * np.abs(wanted).max())
    other = cells.write_cells(tmp_path / "other.zarr", COUNTS[:, :39])
    with pytest.raises(sp.StreamPCAError, match="expected"):
        pca.transform(other)


@pytest.mark.parametrize("solver", ["covariance", "gram", "sketch", "qr", "adaptive"])
def test_every_solver_takes_them(tmp_path: Path, solver: str) -> None:
    normalize, expected = of_used("two readings", None)
    table = sp.open(stored(tmp_path / "a.zarr"), normalize=normalize)
    pca = sp.PCA(3, solver=solver, max_passes=4).fit(table)  # type: ignore[arg-type]
    tolerance = 0.05 if solver in ("sketch", "adaptive") else 1e-5  # which are approximate
    np.testing.assert_allclose(pca.explained_variance_, cells.components(expected, 3)[1], rtol=tolerance)


def test_groups_batches_kernels_and_lazy_scores_read_them_first(tmp_path: Path) -> None:
    normalize, expected = of_used("pearson", None)
    path = stored(tmp_path / "a.zarr")
    labels = np.arange(300) % 2
    groups = sp.PCA(2).fit_groups(sp.open(path, normalize=normalize), labels)
    np.testing.assert_allclose(groups[0].explained_variance_, cells.components(expected[::2], 2)[1], rtol=1e-5)
    batch = sp.PCA(2, solver="covariance").partial_fit(sp.open(path, normalize=normalize))
    np.testing.assert_allclose(batch.explained_variance_, cells.components(expected, 2)[1], rtol=1e-5)
    table = sp.open(path, normalize=normalize)
    with pytest.raises(NotFittedError, match="PearsonResiduals needs figures of all rows"):
        table.read(0, 10)
    kernel = sp.KernelPCA(2, kernel="linear").fit(table)
    assert kernel.n_components_ == 2
    np.testing.assert_allclose(table.to_dask().compute(), expected, rtol=1e-6, atol=1e-6)


def test_a_stopped_fit_goes_on(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.zarr")
    normalize, _ = of_used("two readings", None)

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    plain = sp.PCA(2).fit(sp.open(path, normalize=normalize))
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        sp.PCA(2, checkpoint=checkpoint, progress=stop).fit(sp.open(path, normalize=normalize))
    resumed = sp.PCA(2, checkpoint=checkpoint).fit(sp.open(path, normalize=normalize))
    assert (resumed.components_ == plain.components_).all()


@pytest.mark.parametrize(
    ("normalize", "message"),
    [
        ({"target_sum": "mean"}, "target_sum='mean': expected a number above 0, median, or None"),
        ({"residuals": "deviance"}, "residuals='deviance': expected pearson, or None"),
        ({"residuals": "pearson", "log1p": True}, "residuals needs unchanged counts: leave out log1p"),
        ({"max_value": 0}, "max_value='0': expected a number above 0, or None"),
        ({"idf": 3}, "idf='3': expected True or False"),
    ],
)
def test_other_values_are_refused(tmp_path: Path, normalize: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as error:
        sp.open(stored(tmp_path / "a.zarr"), normalize=normalize)
    assert message in str(error.value)


def test_objects_with_empty_cells_are_read(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    counts = csr_array(COUNTS[:60])
    table = sp.open(anndata.AnnData(counts), normalize={"target_sum": "median"})
    sp.PCA(1).fit(table)
    np.testing.assert_allclose(
        table.read(0, 60)[0].toarray(), median_of_totals(counts.toarray().astype(float)), rtol=1e-6
    )
