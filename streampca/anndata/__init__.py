"""PCA of AnnData with the interface of scanpy: results go to ``obsm``, ``varm`` and ``uns`` of the object, store or file."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from streampca.anndata.results import RUN_ID, Keys, Results, stored_scores
from streampca.anndata.writing import require_features_of_var, require_free, slots_at
from streampca.errors import ParameterError
from streampca.estimators.pca import PCA
from streampca.sources import Source, open_source
from streampca.sources.cells.objects import is_anndata

__all__ = ["pca"]

_SCANPY_COMPONENTS = 50


def pca(
    adata: Any,
    n_comps: int | None = 50,
    *,
    layer: str | None = None,
    mask_var: str | ArrayLike | None = None,
    zero_center: bool = True,
    key_added: str | None = None,
    normalize: Mapping[str, Any] | None = None,
    missing_chunks: str = "error",
    memory: int | str | None = None,
    overwrite: bool = False,
) -> PCA:
    """Fit PCA to AnnData, write the results into it, and return the fitted estimator.

    ``obsm["X_pca"]`` are the scores, ``varm["PCs"]`` the components, zero for features that are not used, and ``uns["pca"]`` has
    ``variance``, ``variance_ratio`` and ``params``, as `scanpy.pp.pca` writes them. Data in a store or a file are read by blocks of
    rows, and all three results are written there or none, also if the process is killed; the next call finishes what a killed
    one had committed.

    Parameters
    ----------
    adata : AnnData, str or Path
        Object, in memory or backed; ``.zarr`` store; or ``.h5ad`` file, which is written anew, so that its size must be free.
    n_comps : int or None
        Number of components. None is scanpy's rule: 50, or one less than the number of cells or of features that are used
        where the smaller of them is at most 50.
    layer : str, optional
        Layer that is read in place of X.
    mask_var : str or array-like of bool, optional
        Column of truth values in ``var``, such as ``highly_variable``, or these values: features that are used; all by default.
    zero_center : bool
        Whether means are subtracted. If not, variances are sums of squares over n − 1, of scores and of features; those of scanpy are of the scores
        about their means.
    key_added : str, optional
        Name for all three results in place of ``X_pca``, ``PCs`` and ``pca``.
    normalize : dict, optional
        Normalisation of counts while they are read, ``{"target_sum": 1e4, "log1p": True}``; see `streampca.open`.
    missing_chunks : {"error", "fill_labels", "fill"}
        Whether chunks of a ``.zarr`` store that its writer left out are read as the fill value; see `streampca.open`.
    memory : int or str, optional
        Ceiling for the memory of the process, such as ``"2GiB"``.
    overwrite : bool
        Whether results that are there already are replaced.

    Raises
    ------
    OutputError
        If there are results already and `overwrite` is not set, or the store cannot be written to.
    DataError
        If it is no AnnData, or its matrix is damaged.
    NotAvailableError
        If `layer` is ``raw/X``, and if anndata is not installed.
    """
    require_features_of_var(layer)
    keys, run_id = Keys.of(key_added), secrets.token_hex(8)
    estimator = PCA(n_comps, center=zero_center, memory=memory)
    named = mask_var is None or isinstance(mask_var, str)
    used: Any = {"mask_var": mask_var} if named else {"mask": mask_var}
    cure = "overwrite=True replaces it, key_added=… gives other names"

    def fitted(data: Any) -> Source:
        source = open_source(data, layer=layer, normalize=normalize, missing_chunks=missing_chunks, **used)
        if n_comps is None:
            smaller = min(source.shape)
            estimator.set_params(
                n_components=_SCANPY_COMPONENTS if smaller > _SCANPY_COMPONENTS else max(1, smaller - 1)
            )
        estimator.fit(source)
        return source

    if is_anndata(adata):
        mappings = dict(zip(keys.paths, (adata.obsm, adata.varm, adata.uns), strict=True))
        taken = [slot for slot, mapping in mappings.items() if slot.partition("/")[2] in mapping]
        require_free([] if overwrite else taken, "the AnnData object", cure)
        scores = np.asarray(estimator.transform(fitted(adata)))
        _assign(adata, Results.of(estimator._model, keys, run_id), scores)
        return estimator
    if not isinstance(adata, str | Path):
        raise ParameterError(
            f"adata is {type(adata).__name__}: expected an AnnData object, or the path of a store or file"
        )
    with slots_at(str(adata), run_id) as slots:
        require_free([] if overwrite else slots.taken(keys), adata, cure)
        source = fitted(adata)
        stored = stored_scores(estimator.transform_to(source, slots.directory() / "scores"))
        slots.write(Results.of(estimator._model, keys, run_id), stored, replace=overwrite)
    return estimator


def _assign(adata: Any, results: Results, scores: Any) -> None:
    """Put results into an object in memory."""
    parameters = {name: value for name, value in results.parameters.items() if name != RUN_ID}
    figures = {"params": parameters, "variance": results.variance, "variance_ratio": results.variance_ratio}
    adata.obsm[results.keys.scores] = scores
    adata.varm[results.keys.components] = results.loadings
    adata.uns[results.keys.figures] = figures
