"""Highly variable genes: the choice and the columns of scanpy's formulas, by batch, in stores, files and objects, and components of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cells
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix
from stores import Command

import streampca as sp
from streampca.anndata.genes import fitted_by_loess
from streampca.errors import DataError, NotAvailableError, OutputError, ParameterError

pytestmark = pytest.mark.filterwarnings(
    "ignore:Writing zarr v2 data:UserWarning",
    "ignore:.*:zarr.errors.ZarrUserWarning",
    "ignore:.*:zarr.errors.UnstableSpecificationWarning",
)
Rows = NDArray[np.float64]
N_GENES, N_CELLS, N = 120, 900, 30
BATCH = np.array(["left", "right", "middle"])[np.random.default_rng(5).integers(0, 3, N_CELLS)]


def counts() -> NDArray[np.float32]:
    """Return counts of genes of which a third varies more than its mean tells, one has none, and one is in a single cell."""
    rng = np.random.default_rng(4)
    mean = rng.gamma(0.6, 2.0, N_GENES)
    size = np.where(np.arange(N_GENES) % 3 == 0, 1.0, 20.0)
    values = rng.poisson(rng.gamma(size, mean / size, (N_CELLS, N_GENES)) * (1 + 0.5 * (BATCH == "left"))[:, None])
    values[:, 7] = values[:, 8] = 0
    values[11, 8] = 900  # is clipped
    return values.astype(np.float32)


COUNTS = counts()


def seurat_v3(rows: Rows, span: float = 0.3) -> dict[str, Any]:
    """Return mean, variance and variance of clipped standardised counts of one batch (scanpy's flavor seurat_v3)."""
    n, mean, variance = len(rows), rows.mean(axis=0), rows.var(axis=0, ddof=1)
    varies, deviation = variance > 0, np.ones(rows.shape[1])
    expected = fitted_by_loess(np.log10(mean[varies]), np.log10(variance[varies]), span)
    deviation[varies] = np.sqrt(10**expected)
    clipped = np.minimum(rows, deviation * np.sqrt(n) + mean)
    norm = (n * mean**2 + (clipped**2).sum(axis=0) - 2 * clipped.sum(axis=0) * mean) / ((n - 1) * deviation**2)
    return {"means": mean, "variances": variance, "variances_norm": norm}


def cell_ranger(rows: Rows) -> dict[str, Any]:
    """Return mean, dispersion and normalised dispersion of one batch (scanpy's flavor cell_ranger)."""
    pd = pytest.importorskip("pandas")
    mean, variance = rows.mean(axis=0), rows.var(axis=0, ddof=1)
    mean[mean == 0] = 1e-12
    dispersion = variance / mean
    bins = pd.cut(mean, np.r_[-np.inf, np.percentile(mean, np.arange(10, 105, 5)), np.inf])
    groups = pd.Series(dispersion).groupby(bins, observed=True)
    centre = groups.transform("median")
    spread = groups.transform(lambda each: np.median(np.abs(each - np.median(each)))) / 0.6744897501960817
    return {"means": mean, "dispersions": dispersion, "dispersions_norm": ((dispersion - centre) / spread).to_numpy()}


def normalised(rows: Rows) -> Rows:
    totals = rows.sum(axis=1, keepdims=True)
    return np.asarray(np.log1p(rows * np.median(totals) / totals))


def adata(kind: str = "sparse") -> Any:
    anndata, pd = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    obs = pd.DataFrame({"batch": pd.Categorical(BATCH)}, index=[f"cell{i}" for i in range(N_CELLS)])
    return anndata.AnnData(csr_matrix(COUNTS) if kind == "sparse" else COUNTS.copy(), obs=obs)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_seurat_v3_ranks_counts(kind: str) -> None:
    data, expected = adata(kind), seurat_v3(COUNTS.astype(float))
    pca = sp.anndata.pca(data, 4, hvg={"n": N}, normalize={"target_sum": "median", "log1p": True})
    for name, values in expected.items():
        np.testing.assert_allclose(data.var[name], values, rtol=1e-9, err_msg=name)
    ranks = np.argsort(np.argsort(-expected["variances_norm"]))
    np.testing.assert_array_equal(data.var["highly_variable"], ranks < N)
    np.testing.assert_array_equal(data.var["highly_variable_rank"], np.where(ranks < N, ranks, np.nan))
    assert "highly_variable_nbatches" not in data.var
    assert data.uns["hvg"] == {"flavor": "seurat_v3"}
    vectors, variances = cells.components(normalised(COUNTS.astype(float))[:, ranks < N], 4)
    np.testing.assert_allclose(pca.explained_variance_, variances, rtol=1e-5)
    assert np.abs(np.sum(data.varm["PCs"][ranks < N].T * vectors, axis=1)).min() >= 1 - 1e-5
    assert data.uns["pca"]["params"]["mask_var"] == "highly_variable"


def test_genes_with_the_same_counts_are_in_the_order_of_the_table() -> None:
    data, rng = adata("dense"), np.random.default_rng(6)
    for gene in (41, 42, 90):
        data.X[:, gene] = rng.permutation(data.X[:, 40])
    sp.anndata.pca(data, 2, hvg={"n": N_GENES})
    ranks = data.var["highly_variable_rank"].to_numpy()[[40, 41, 42, 90]]
    np.testing.assert_array_equal(np.diff(ranks), 1)


def test_cell_ranger_ranks_normalised_logarithms() -> None:
    data, expected = adata(), cell_ranger(normalised(COUNTS.astype(float)))
    sp.anndata.pca(data, 4, hvg={"n": N, "flavor": "cell_ranger"}, normalize={"target_sum": "median", "log1p": True})
    for name, values in expected.items():
        np.testing.assert_allclose(data.var[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    least = np.sort(expected["dispersions_norm"])[::-1][N - 1]
    np.testing.assert_array_equal(data.var["highly_variable"], expected["dispersions_norm"] >= least)


def test_ranks_of_batches_are_joined_by_their_median() -> None:
    data = adata()
    sp.anndata.pca(data, 4, hvg={"n": N, "batch": "batch"}, normalize={"log1p": True})
    norm = np.array([seurat_v3(COUNTS[name == BATCH].astype(float))["variances_norm"] for name in np.unique(BATCH)])
    ranks = np.argsort(np.argsort(-norm, axis=1), axis=1).astype(float)
    ranks[ranks >= N] = np.nan
    n_batches = np.isfinite(ranks).sum(axis=0)
    with np.errstate(all="ignore"):
        median = np.array([np.median(r[np.isfinite(r)]) if np.isfinite(r).any() else np.nan for r in ranks.T])
    chosen = sorted(range(N_GENES), key=lambda i: (np.nan_to_num(median[i], nan=np.inf), -n_batches[i]))[:N]
    np.testing.assert_array_equal(np.flatnonzero(data.var["highly_variable"]), np.sort(chosen))
    np.testing.assert_array_equal(data.var["highly_variable_rank"], median)
    np.testing.assert_array_equal(data.var["highly_variable_nbatches"], n_batches)
    np.testing.assert_allclose(data.var["variances_norm"], norm.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(data.var["variances"], COUNTS.astype(float).var(axis=0, ddof=1), rtol=1e-9)


def test_dispersions_of_batches_are_joined_by_how_often_a_gene_is_chosen() -> None:
    data, rows = adata(), normalised(COUNTS.astype(float))
    sp.anndata.pca(
        data,
        4,
        hvg={"n": N, "flavor": "cell_ranger", "batch": "batch"},
        normalize={"target_sum": "median", "log1p": True},
    )
    norm, chosen = np.zeros((3, N_GENES)), np.zeros((3, N_GENES), dtype=bool)
    for i, name in enumerate(np.unique(BATCH)):
        expressed = rows[name == BATCH].sum(axis=0) > 0
        norm[i, expressed] = cell_ranger(rows[name == BATCH][:, expressed])["dispersions_norm"]
        chosen[i, expressed] = norm[i, expressed] >= np.sort(norm[i, expressed])[::-1][N - 1]
    order = np.lexsort((-norm.mean(axis=0), -chosen.sum(axis=0)))[:N]
    np.testing.assert_array_equal(np.flatnonzero(data.var["highly_variable"]), np.sort(order))
    np.testing.assert_array_equal(data.var["highly_variable_nbatches"], chosen.sum(axis=0))
    np.testing.assert_array_equal(data.var["highly_variable_intersection"], chosen.all(axis=0))


@pytest.mark.parametrize("form", [".zarr", ".h5ad"])
def test_pearson_residuals_of_chosen_genes_in_stores_and_files(tmp_path: Path, form: str) -> None:
    path, data = tmp_path / f"a{form}", adata()
    (data.write_zarr if form == ".zarr" else data.write_h5ad)(path)
    pca = sp.anndata.pca(path, 4, hvg={"n": N}, residuals="pearson")
    used = np.argsort(np.argsort(-seurat_v3(COUNTS.astype(float))["variances_norm"])) < N
    rows = COUNTS[:, used].astype(float)
    mu = rows.sum(axis=1, keepdims=True) * rows.sum(axis=0) / rows.sum()
    residuals = np.clip((rows - mu) / np.sqrt(mu + mu**2 / 100), -np.sqrt(N_CELLS), np.sqrt(N_CELLS))
    np.testing.assert_allclose(pca.explained_variance_, cells.components(residuals, 4)[1], rtol=1e-5)
    assert pca.labels_ is not None
    np.testing.assert_array_equal(pca.labels_.mask, used)
    anndata = pytest.importorskip("anndata")
    found = (anndata.read_zarr if form == ".zarr" else anndata.read_h5ad)(path)
    np.testing.assert_array_equal(found.var["highly_variable"], used)
    np.testing.assert_allclose(found.var["variances"], COUNTS.astype(float).var(axis=0, ddof=1), rtol=1e-9)
    assert found.uns["hvg"]["flavor"] == "seurat_v3"
    assert not found.varm["PCs"][~used].any()
    with pytest.raises(OutputError, match="var/highly_variable, var/highly_variable_rank"):
        sp.anndata.pca(path, 4, hvg={"n": N}, key_added="other")
    sp.anndata.pca(path, 4, hvg={"n": 5}, overwrite=True)
    found = (anndata.read_zarr if form == ".zarr" else anndata.read_h5ad)(path)
    assert found.var["highly_variable"].sum() == 5
    assert list(found.var.columns).count("highly_variable") == 1


@pytest.mark.parametrize(
    ("hvg", "message"),
    [
        ({"n": 0}, "n='0': expected a whole number above 0"),
        ({"flavor": "seurat"}, "flavor='seurat': expected seurat_v3 or cell_ranger"),
        ({"number": 3}, "expected a mapping with n, flavor, batch, span"),
        ({"batch": "plate"}, "obs has no column 'plate': expected one of batch"),
        ({"span": 2}, "span='2': expected a number above 0, at most 1"),
    ],
)
def test_other_choices_are_refused(hvg: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as error:
        sp.anndata.pca(adata(), 4, hvg=hvg)
    assert message in str(error.value)
    with pytest.raises(ParameterError, match="leave one out"):
        sp.anndata.pca(adata(), 4, hvg={}, mask_var="highly_variable")


def test_a_batch_of_one_cell_is_refused() -> None:
    data = adata()
    data.obs["alone"] = np.where(np.arange(N_CELLS) == 5, "one", "others")
    with pytest.raises(DataError, match="batch one of obs/alone has one cell"):
        sp.anndata.pca(data, 4, hvg={"batch": "alone"})


def test_a_run_reads_the_median_first_and_is_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cells.write_cells(tmp_path / "a.zarr", csr_array(COUNTS))
    (tmp_path / "c.yaml").write_text(
        "source: {path: a.zarr, normalize: {target_sum: median, log1p: true}}\nmodel: {kind: pca, n_components: 3}\noutput: {directory: out}\n"
    )
    command = Command(capsys)
    assert command.quietly("run", "c.yaml").status == 0
    found = sp.load(tmp_path / "out" / "model.zarr").explained_variance_
    np.testing.assert_allclose(found, cells.components(normalised(COUNTS.astype(float)), 3)[1], rtol=1e-5)
    assert command.quietly("verify", "out").status == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["source"]["normalize"]["target_sum"] == np.median(COUNTS.sum(axis=1))


def test_batches_with_other_figures_are_not_joined(tmp_path: Path) -> None:
    path = cells.write_cells(tmp_path / "a.zarr", csr_array(COUNTS))
    pca = sp.PCA(2, solver="covariance").partial_fit(sp.open(path, normalize={"target_sum": "median"}))
    with pytest.raises(NotAvailableError, match="give numbers to normalize"):
        pca.partial_fit(sp.open(path, normalize={"target_sum": "median"}))
    pca.partial_fit(sp.open(path, normalize={"target_sum": float(np.median(COUNTS.sum(axis=1)))}))
    assert pca.n_samples_seen_ == 2 * N_CELLS


def test_values_that_are_no_counts_are_told(tmp_path: Path) -> None:
    logged = cells.write_cells(tmp_path / "logged.zarr", csr_matrix(np.log1p(COUNTS)))
    with pytest.warns(
        UserWarning, match="sums of 119 genes are not whole numbers, and flavor='seurat_v3' is for counts"
    ):
        sp.anndata.pca(logged, 2, hvg={"n": N})
    centred = cells.write_cells(tmp_path / "centred.zarr", csr_matrix(COUNTS - COUNTS.mean(axis=0) - 1))
    with pytest.raises(DataError, match=r"genes have negative means, first: feature 0: expected counts"):
        sp.anndata.pca(centred, 2, hvg={"n": N})
