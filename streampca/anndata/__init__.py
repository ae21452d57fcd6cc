"""PCA of AnnData with the interface of scanpy, which writes results to ``obsm``, ``varm`` and ``uns`` of the object, store or file."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from streampca.anndata.genes import GeneChoice, choose_genes
from streampca.anndata.results import RUN_ID, Keys, Results, stored_scores
from streampca.anndata.slots import require_features_of_var, require_free, slots_at
from streampca.counts import NORMALIZE
from streampca.errors import DataError, ParameterError
from streampca.estimators.pca import PCA
from streampca.sources import Source, open_source
from streampca.sources.cells import is_anndata
from streampca.sources.cells.description import CellsTable
from streampca.suggestions import suggests_keywords

__all__ = ["pca"]

_SCANPY_COMPONENTS = 50


def __dir__() -> list[str]:
    return sorted(__all__)


@suggests_keywords
def pca(
    adata: Any,
    n_comps: int | None = 50,
    *,
    layer: str | None = None,
    mask_var: str | ArrayLike | None = None,
    zero_center: bool = True,
    key_added: str | None = None,
    normalize: Mapping[str, Any] | None = None,
    residuals: str | None = None,
    hvg: Mapping[str, Any] | None = None,
    missing_chunks: str = "error",
    memory: int | str | None = None,
    overwrite: bool = False,
) -> PCA:
    """Fit PCA to AnnData, write the results into it, and return the fitted estimator.

    The results have the places that `scanpy.pp.pca` uses: scores in ``obsm["X_pca"]``, components in ``varm["PCs"]``
    (zero for unused features), and ``variance``, ``variance_ratio`` and ``params`` in ``uns["pca"]``. Data in a store
    or file are read in blocks of rows. Either all results are written there or none, even if the process is killed;
    the next call completes results that a killed process had committed.

    Parameters
    ----------
    adata : AnnData, str or Path
        Object in memory or backed, ``.zarr`` store, or ``.h5ad`` file. A file is rewritten, which needs its size in
        free disk space.
    n_comps : int or None
        Number of components. None follows scanpy: 50, or if the smaller of the numbers of cells and used features is
        at most 50, one less than that.
    layer : str, optional
        Layer to read in place of X.
    mask_var : str or array-like of bool, optional
        Features to use: a boolean column of ``var``, such as ``highly_variable``, or the values themselves; all by
        default.
    zero_center : bool
        Whether to subtract means. If False, variances of scores and features are sums of squares over n − 1, whereas
        scanpy takes variances of scores about their means.
    key_added : str, optional
        Name for all three results in place of ``X_pca``, ``PCs`` and ``pca``.
    normalize : dict, optional
        Normalisation of counts while they are read, ``{"target_sum": 1e4, "log1p": True}``; see `streampca.open`.
    residuals : {"pearson"}, optional
        The key ``residuals`` of `normalize`: analytic Pearson residuals of the counts.
    hvg : dict, optional
        Select highly variable genes first and use only these, with scanpy's defaults ``{"n": 2000, "flavor":
        "seurat_v3", "batch": None, "span": 0.3}``. ``seurat_v3`` ranks counts, in two passes; ``cell_ranger`` ranks
        normalised logarithms, in one. ``batch`` is a column of ``obs``. The selected genes, and the columns written
        to ``var``, are those of ``scanpy.pp.highly_variable_genes``.
    missing_chunks : {"error", "fill_labels", "fill"}
        Whether chunks missing from a ``.zarr`` store are read as the fill value; see `streampca.open`.
    memory : int or str, optional
        Ceiling for the memory of the process, such as ``"2GiB"``.
    overwrite : bool
        Whether to replace existing results.

    Raises
    ------
    ParameterError
        If `hvg` is given together with `mask_var`, or has other keys or values.
    OutputError
        If results exist and `overwrite` is not set, or if the store is not writable.
    DataError
        If `adata` is not AnnData, or if its matrix is damaged.
    NotAvailableError
        If `layer` is ``raw/X``, and if anndata is not installed.
    """
    require_features_of_var(layer)
    wanted = None if hvg is None else GeneChoice.of(hvg)
    keys, run_id = Keys.of(key_added, () if wanted is None else wanted.places), secrets.token_hex(8)
    estimator = PCA(n_comps, center=zero_center, memory=memory)
    named = mask_var is None or isinstance(mask_var, str)
    used: Any = {"mask_var": mask_var} if named else {"mask": mask_var}
    cure = "overwrite=True replaces it, key_added=… gives other names"
    if residuals is not None:
        normalize = {**(normalize or {}), "residuals": residuals}
    if wanted is not None and mask_var is not None:
        raise ParameterError("hvg and mask_var both choose the genes: leave one out")
    of_genes: tuple[Any, ...] = ()

    def fitted(data: Any) -> Source:
        nonlocal of_genes
        options: dict[str, Any] = {"layer": layer, "missing_chunks": missing_chunks}
        if wanted is None:
            source = open_source(data, normalize=normalize, **options, **used)
        else:
            of_genes, source = _chosen(data, wanted, normalize or {}, memory, **options)
        if n_comps is None:
            smaller = min(source.shape)
            estimator.set_params(
                n_components=_SCANPY_COMPONENTS if smaller > _SCANPY_COMPONENTS else max(1, smaller - 1)
            )
        estimator.fit(source)
        return source

    if is_anndata(adata):
        taken = [slot for slot in keys.paths if slot.partition("/")[2] in getattr(adata, slot.partition("/")[0])]
        require_free([] if overwrite else taken, "the AnnData object", cure)
        scores = np.asarray(estimator.transform(fitted(adata)))
        results = Results.of(estimator._model, keys, run_id, of_genes)
        parameters = {name: value for name, value in results.parameters.items() if name != RUN_ID}
        for place, value in zip(keys.of_genes, of_genes, strict=True):
            mapping, _, key = place.partition("/")
            getattr(adata, mapping)[key] = value
        adata.obsm[keys.scores], adata.varm[keys.components] = scores, results.loadings
        figures = {"params": parameters, "variance": results.variance, "variance_ratio": results.variance_ratio}
        adata.uns[keys.figures] = figures
        return estimator
    if not isinstance(adata, str | Path):
        raise ParameterError(
            f"adata is {type(adata).__name__}: expected an AnnData object, or the path of a store or file"
        )
    with slots_at(str(adata), run_id) as slots:
        require_free([] if overwrite else slots.taken(keys), adata, cure)
        source = fitted(adata)
        stored = stored_scores(estimator.transform_to(source, slots.directory() / "scores"))
        results = Results.of(estimator._model, keys, run_id, of_genes)
        slots.write(results, stored, replace=overwrite)
    return estimator


def _chosen(
    data: Any, wanted: GeneChoice, normalize: Mapping[str, Any], memory: int | str | None, **options: Any
) -> tuple[tuple[Any, ...], Source]:
    """Return what is written of the chosen genes, and the cells with these alone, normalised by the figures that were read for them.

    Genes are chosen after the steps of `normalize` that keep zeros.
    """
    dense = {key.name for key in NORMALIZE if key.dense or key.of_used}
    sparse = {name: value for name, value in normalize.items() if name not in dense}
    table = open_source(data, normalize=sparse, **options)
    if not isinstance(table, CellsTable):
        raise DataError(f"{table.description}: hvg is only for AnnData, and this is not AnnData")
    columns = choose_genes(table, wanted, memory)
    known = {} if table.normalization is None else table.normalization.to_dict()
    known |= {name: value for name, value in normalize.items() if name in dense}
    source = table.of_genes(np.asarray(columns["highly_variable"], dtype=bool), known)
    return (*columns.values(), {"flavor": wanted.flavor}), source
