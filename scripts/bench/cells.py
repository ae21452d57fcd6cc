"""Components of normalised cells of an AnnData store or file against scanpy: time, memory and equality, all in one run.

All read the same counts from disk, scale cells to 10,000 counts, take log(1 + x), and give components and scores. ``fit`` is
`streampca.anndata.pca`, which also writes its results into the store. ``scanpy_memory`` loads the store; ``scanpy_dask`` reads it
lazily with Dask; ``crest`` is crest-sc, which reads files alone. Contenders take turns; times are medians, and ratios are medians of
pairs. Opening, reading and normalising are in the times; imports, and compilation in a first small fit, are not. A file is written by
anndata from the store.

With ``--genes N`` each chooses N highly variable genes first: flavor seurat_v3 of the counts, cell_ranger for scanpy with Dask, which
has no other. Then ``cold_cpu_seconds`` is the processor time of a process that does it once, imports and compilation with it, and the
peak is that of this process; the other times are those of doing it again.

    .venv/bin/python scripts/make_data.py data/cells.zarr --kind cells --shape 200000,2000 --depth 6
    .venv/bin/python scripts/bench/cells.py data/cells.zarr
    .venv/bin/python scripts/bench/cells.py data/cells.h5ad --copy-of data/cells.zarr
    .venv/bin/python scripts/bench/cells.py data/cells.h5ad --copy-of data/cells.zarr --genes 1000
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _bench import Contender, Outcome, Row, at_least, at_most, contend, medians, peak_mib, report, timed
from _options import add_contenders, contenders_of, parser_of

CONTENDERS = ("fit", "scanpy_memory", "scanpy_dask", "crest")
"""Functions of this module."""
NORMALIZE = {"target_sum": 1e4, "log1p": True}
_SEPARATED = 1e-3  # relative distance of an eigenvalue from its neighbours


def fit(path: str, k: str, memory: str, out: str, genes: str) -> Row:
    """Run `streampca.anndata.pca`, which reads the cells for the components, reads them again for scores, and writes both."""
    import streampca as sp

    if not genes:
        from scipy.sparse import csr_array

        small = sp.PCA(1).fit(csr_array(_few_cells()))
        del small
        sp.PCA(int(k)).plan(sp.open(path, normalize=NORMALIZE))
    hvg = {"n": int(genes)} if genes else None

    def work() -> Row:
        pca = sp.anndata.pca(path, int(k), normalize=NORMALIZE, hvg=hvg, memory=memory or None, overwrite=True)
        loadings = np.zeros((pca.n_components_, len(pca.labels_.mask))) if genes else pca.components_
        if genes:
            loadings[:, pca.labels_.mask] = pca.components_
        np.savez(out, components=loadings, variance=pca.explained_variance_)
        plan = pca.plan_
        return {"projected_mib": plan.projected_bytes / 2**20, "allowed_mib": plan.allowed_bytes / 2**20}

    return _cold_and_warm(work) if genes else timed(work)


def _cold_and_warm(work: Callable[[], Row]) -> Row:
    """Run `work` twice: what this process took up to the end of the first, and what the second took."""
    work()
    used, peak = os.times(), peak_mib()
    cold = used.user + used.system + used.children_user + used.children_system
    return timed(work) | {"cold_cpu_seconds": cold, "peak_mib": peak}


def scanpy_memory(path: str, k: str, memory: str, out: str, genes: str) -> Row:
    """Load the store with anndata and run scanpy."""
    import anndata
    from scipy.sparse import csr_matrix

    if not genes:
        _scanpy(anndata.AnnData(csr_matrix(_few_cells())), 2)

    def work() -> Row:
        adata = anndata.read_h5ad(path) if path.endswith(".h5ad") else anndata.read_zarr(path)
        return _saved(_scanpy(adata, int(k), genes=genes), out)

    return _cold_and_warm(work) if genes else timed(work)


def crest(path: str, k: str, memory: str, out: str, genes: str) -> Row:
    """Run crest-sc, whose matrix of counts is in memory and whose normalised rows are streamed."""
    import crest as library

    def work() -> Row:
        cells = library.read_h5ad(path)
        if genes:
            library.pp.highly_variable_genes(cells, n_top_genes=int(genes), flavor="seurat_v3")
        library.pp.normalize_total(cells, target_sum=NORMALIZE["target_sum"])
        library.pp.log1p(cells)
        library.tl.pca(cells, n_comps=int(k))
        return _saved(cells, out)

    return _cold_and_warm(work) if genes else timed(work)


def scanpy_dask(path: str, k: str, memory: str, out: str, genes: str) -> Row:
    """Read the store lazily with Dask, of which a worker thread takes a block of rows, and run scanpy."""
    import anndata
    import dask.array as da
    from scipy.sparse import csr_matrix

    if not genes:
        few = da.from_array(_few_cells(), chunks=(32, 20)).map_blocks(csr_matrix)
        _scanpy(anndata.AnnData(few), 2, "covariance_eigh")

    def work() -> Row:
        adata = anndata.AnnData(_lazy_matrix(path))
        adata = _scanpy(adata, int(k), "covariance_eigh", genes, "cell_ranger")
        np.asarray(adata.obsm["X_pca"])
        return _saved(adata, out)

    return _cold_and_warm(work) if genes else timed(work)


def read_by_scanpy(path: str, k: str) -> Row:
    """Read results from the store with anndata, and use them as scanpy's own."""
    import anndata
    import scanpy

    def work() -> Row:
        adata = anndata.read_h5ad(path) if path.endswith(".h5ad") else anndata.read_zarr(path)
        scanpy.pp.normalize_total(adata, target_sum=NORMALIZE["target_sum"])
        scanpy.pp.log1p(adata)
        some = adata[:500].copy()
        scanpy.pp.neighbors(some, n_pcs=int(k))
        loadings, mean = adata.varm["PCs"], np.asarray(adata.X.mean(axis=0))
        expected = np.asarray(some.X @ loadings - mean @ loadings)
        difference = np.abs(some.obsm["X_pca"] - expected).max() / np.abs(expected).max()
        shares = np.asarray(adata.uns["pca"]["variance_ratio"])
        return {
            "difference": float(difference),
            "edges": int(some.obsp["connectivities"].nnz),
            "share": float(shares.sum()),
        }

    return timed(work)


def _lazy_matrix(path: str) -> Any:
    """Return the matrix of a store as a Dask array of sparse blocks, as anndata reads it."""
    import anndata

    if path.endswith(".h5ad"):
        import h5py

        return anndata.experimental.read_elem_lazy(h5py.File(path, "r")["X"])
    import zarr

    return anndata.experimental.read_elem_lazy(zarr.open_group(path, mode="r")["X"])


def _scanpy(adata: Any, k: int, svd_solver: str = "arpack", genes: str = "", flavor: str = "seurat_v3") -> Any:
    """Choose genes, normalise and fit, as tutorials of scanpy do, with its solver for matrices in memory or for Dask."""
    import scanpy

    def choose(own: str) -> None:
        if genes and flavor == own:
            scanpy.pp.highly_variable_genes(adata, n_top_genes=int(genes), flavor=flavor)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        choose("seurat_v3")
        scanpy.pp.normalize_total(adata, target_sum=NORMALIZE["target_sum"])
        scanpy.pp.log1p(adata)
        choose("cell_ranger")
        scanpy.pp.pca(adata, n_comps=k, svd_solver=svd_solver, mask_var="highly_variable" if genes else None)
    return adata


def _saved(adata: Any, out: str) -> Row:
    np.savez(out, components=np.asarray(adata.varm["PCs"]).T, variance=np.asarray(adata.uns["pca"]["variance"]))
    return {}


def _few_cells() -> Any:
    return np.random.default_rng(0).poisson(1.0, (64, 20)).astype(np.float32)


def measure(
    store: str,
    k: int,
    memory: str = "",
    *,
    repeats: int = 3,
    fresh: bool = True,
    names: tuple[str, ...] = CONTENDERS,
    once: tuple[str, ...] = (),
    genes: str = "",
    timeout: float = 1800,
) -> Outcome:
    """Run the contenders in turns; those of `once` a single time."""
    names = tuple(name for name in names if name != "crest" or store.endswith(".h5ad"))
    missing = importlib.util.find_spec("scanpy") is None
    with tempfile.TemporaryDirectory() as folder:
        outs = {name: str(Path(folder, f"{name}.npz")) for name in names}
        entries = [
            Contender(
                name,
                "cells",
                name,
                (store, str(k), memory, outs[name], genes),
                peer=missing and name != "fit",
                once=name in once,
            )
            for name in names
        ]
        rows = medians(entries, repeats=repeats, fresh=fresh, timeout=timeout)
        found = {name: dict(np.load(outs[name])) for name in names if "failed" not in rows[name]}
    ours, ratios = rows["fit"], dict[str, float]()
    if "failed" not in ours:
        ratios["peak over projected"] = ours["peak_mib"] / ours["projected_mib"]
        ratios["peak over the ceiling"] = ours["peak_mib"] / ours["allowed_mib"]
        for name in found:
            if name == "fit":
                continue
            row = rows[name]
            pairs = zip(row["all_seconds"], ours["all_seconds"], strict=False)
            ratios[f"{name} over fit"] = statistics.median(theirs / mine for theirs, mine in pairs)
            ratios[f"processor time of {name} over fit"] = row["cpu_seconds"] / ours["cpu_seconds"]
            ratios[f"memory of {name} over fit"] = row["peak_mib"] / ours["peak_mib"]
            if genes:
                ratios[f"cold processor time of {name} over fit"] = row["cold_cpu_seconds"] / ours["cold_cpu_seconds"]
            if not (genes and name == "scanpy_dask"):  # which has other genes
                ratios |= compared(found["fit"], found[name], name)
    if len(found) > 1 and "fit" in found and not genes:
        reading = contend(Contender("read", "cells", "read_by_scanpy", (store, str(k)), peer=missing), fresh=fresh)
        ratios["difference of the scores in the store from scanpy's"] = reading.get("difference", float("nan"))
    wanted = {name: at_least(1) for name in ratios if name.endswith(" over fit")}
    wanted |= {"scanpy_dask over fit": at_least(2), "memory of scanpy_memory over fit": at_least(3)}
    wanted |= {"peak over projected": at_most(1), "peak over the ceiling": at_most(1)}
    return Outcome(f"Components of {described(store)}, k = {k}", rows, None, ratios, wanted)


def compared(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> dict[str, float]:
    """Return the least cosine between separated components, and the largest relative difference of eigenvalues."""
    values = ours["variance"]
    gaps = np.minimum(np.append(np.inf, -np.diff(values)), np.append(-np.diff(values), 0)) / values
    cosines = np.abs(np.einsum("ij,ij->i", ours["components"], theirs["components"]))[gaps > _SEPARATED]
    chosen = [each["components"].any(axis=0) for each in (ours, theirs)]
    return {
        f"genes that one alone has chosen, {name}": int((chosen[0] != chosen[1]).sum()),
        f"separated components, {name}": len(cosines),
        f"one minus their least cosine, {name}": float(1 - cosines.min()) if len(cosines) else float("nan"),
        f"largest difference of eigenvalues, {name}": float(np.abs(theirs["variance"] / values - 1).max()),
    }


def described(store: str) -> str:
    """Return name, shape and density of the matrix."""
    import streampca as sp

    table = sp.open(store)
    stored = int(table.describe().get("stored_values", table.shape[0] * table.shape[1]))
    n, d = table.shape
    return f"{Path(store).name}: {n:,} x {d:,}, {stored:,} values ({100 * stored / n / d:.1f} %)"


def copy_as_file(store: str, path: str) -> Row:
    """Write the AnnData store `store` as the file `path` with anndata."""
    import anndata

    def work() -> Row:
        adata = anndata.read_zarr(store)
        for mapping, key in ((adata.obsm, "X_pca"), (adata.varm, "PCs"), (adata.uns, "pca")):
            mapping.pop(key, None)
        adata.write_h5ad(path, compression="gzip")
        return {}

    return timed(work)


def main() -> None:
    """Compare and print."""
    parser = parser_of(__doc__)
    parser.add_argument("store", help="an AnnData store, or an .h5ad file")
    parser.add_argument("--copy-of", help="AnnData store that is written as the file first if the file does not exist")
    parser.add_argument(
        "--genes", default="", help="number of highly variable genes that are chosen first (default: all are used)"
    )
    add_contenders(parser, CONTENDERS)
    options = parser.parse_args()
    names = contenders_of(parser, options.contenders, CONTENDERS)
    if options.copy_of and not Path(options.store).exists():
        missing = importlib.util.find_spec("anndata") is None
        contend(Contender("copy", "cells", "copy_as_file", (options.copy_of, options.store), peer=missing))
    outcome = measure(
        options.store,
        options.components,
        options.memory,
        repeats=options.repeats,
        fresh=not options.same_process,
        names=names,
        once=tuple(options.once.split(",")),
        genes=options.genes,
        timeout=options.timeout,
    )
    report(outcome, options.out)


if __name__ == "__main__":
    main()
