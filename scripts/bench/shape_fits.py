"""What `shapes.py` runs in fresh processes: a fit of streampca, and what users of other systems called, for one case each.

Every function returns what `timed` returns; ``note`` says what the answer was, where that is the point of a case.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _bench import Row, timed


def streampca(path: str, k: str, memory: str, solver: str = "auto") -> Row:
    """Fit `streampca.PCA` to a store below a ceiling."""
    sp = _imported()

    pca = sp.PCA(int(k), solver=solver, memory=f"{memory}MiB")
    measured = timed(lambda: pca.fit(path) and None)
    return measured | {"note": _said(pca)}


def streampca_field(path: str, k: str, memory: str) -> Row:
    """Fit a field whose samples are its first dimension."""
    sp = _imported()

    pca = sp.PCA(int(k), memory=f"{memory}MiB")
    measured = timed(lambda: pca.fit(sp.open(path, array="field", samples="time")) and None)
    return measured | {"note": _said(pca)}


def streampca_missing(path: str, k: str, memory: str) -> Row:
    """Fit rows with missing values by imputed means."""
    sp = _imported()

    pca = sp.PCA(int(k), missing="mean", memory=f"{memory}MiB")
    measured = timed(lambda: pca.fit(path) and None)
    return measured | {"note": _said(pca)}


def streampca_sparse(path: str, k: str, memory: str) -> Row:
    """Fit sparse rows of a file of scipy."""
    import scipy.sparse

    sp = _imported()

    rows = scipy.sparse.load_npz(path)
    pca = sp.PCA(int(k), memory=f"{memory}MiB")
    measured = timed(lambda: pca.fit(rows) and None)
    return measured | {"note": _said(pca)}


def streampca_kernel(path: str, k: str, memory: str) -> Row:
    """Fit `streampca.KernelPCA` through 1,000 landmarks."""
    sp = _imported()

    kernel = sp.KernelPCA(int(k), kernel="rbf", gamma=1e-3, memory=f"{memory}MiB", n_landmarks=1000)
    measured = timed(lambda: kernel.fit(path) and None)
    share = float(kernel.error_["residual_trace"]) / kernel.n_samples_seen_
    return measured | {"note": f"nystrom; the landmarks miss {share:.1e} of the trace"}


def streampca_whiten(path: str, k: str, memory: str) -> Row:
    """Whiten rows of rank below the number of features, and say how large scores become."""
    sp = _imported()

    rows = np.load(path)

    def work() -> Row:
        return {"note": _largest(sp.PCA(int(k), whiten=True, memory=f"{memory}MiB").fit(rows).transform(rows))}

    return timed(work)


def streampca_offset(path: str, k: str, memory: str) -> Row:
    """Fit two float32 rows that are far from 0, and say how well the component is met."""
    sp = _imported()

    rows = np.load(path)
    return timed(lambda: {"note": _met(sp.PCA(int(k), memory=f"{memory}MiB").fit(rows).components_[0])})


def streampca_batches(path: str, k: str, memory: str) -> Row:
    """Give the rows in batches of which the first has fewer rows than there are components."""
    sp = _imported()

    rows = np.load(path)

    def work() -> Row:
        pca = sp.PCA(int(k), memory=f"{memory}MiB")
        for batch in np.split(rows, [3, 50]):
            pca.partial_fit(batch)
        exact = np.linalg.eigvalsh(np.cov(rows.T))[::-1][: int(k)]
        return {"note": f"eigenvalues differ by {np.abs(pca.explained_variance_ / exact - 1).max():.0e}"}

    return timed(work)


def dask_compressed(path: str, k: str) -> Row:
    """Centre the rows and call `dask.array.linalg.svd_compressed`."""
    import dask
    import dask.array as da

    rows = da.from_zarr(path)
    return timed(lambda: dask.compute(*da.linalg.svd_compressed(rows - rows.mean(axis=0), int(k), seed=0)[1:]) and None)


def dask_svd(path: str, k: str) -> Row:
    """Centre the rows and call `dask.array.linalg.svd`."""
    import dask
    import dask.array as da

    rows = da.from_zarr(path)
    return timed(lambda: dask.compute(*da.linalg.svd(rows - rows.mean(axis=0))[1:]) and None)


def dask_ml_truncated(path: str, k: str) -> Row:
    """Call `dask_ml.decomposition.TruncatedSVD` with its randomized algorithm."""
    import dask.array as da
    from dask_ml.decomposition import TruncatedSVD

    rows = da.from_zarr(path)
    return timed(lambda: TruncatedSVD(int(k), algorithm="randomized", random_state=0).fit(rows) and None)


def dask_ml_pca(path: str, k: str) -> Row:
    """Call `dask_ml.decomposition.PCA` with its randomized solver."""
    import dask.array as da
    from dask_ml.decomposition import PCA

    rows = da.from_zarr(path)
    return timed(lambda: PCA(int(k), svd_solver="randomized", random_state=0).fit(rows) and None)


def xeofs_eof(path: str, k: str) -> Row:
    """Call `xeofs.single.EOF` for a field that Dask reads."""
    import xarray
    import xeofs

    field = xarray.open_zarr(path, consolidated=False)["field"]
    return timed(
        lambda: (
            xeofs.single.EOF(n_modes=int(k), random_state=0).fit(field, dim="time").explained_variance().compute()
            is None
            or None
        )
    )


def sklearn_pca(path: str, k: str, svd_solver: str = "auto") -> Row:
    """Read all rows and call `sklearn.decomposition.PCA`."""
    import zarr
    from sklearn.decomposition import PCA

    def work() -> None:
        PCA(int(k), svd_solver=svd_solver, random_state=0).fit(zarr.open_array(path, mode="r")[...])

    return timed(work)


def sklearn_truncated(path: str, k: str) -> Row:
    """Call `sklearn.decomposition.TruncatedSVD` for sparse rows."""
    import scipy.sparse
    from sklearn.decomposition import TruncatedSVD

    rows = scipy.sparse.load_npz(path)
    return timed(lambda: TruncatedSVD(int(k), random_state=0).fit(rows) and None)


def sklearn_kernel(path: str, k: str) -> Row:
    """Call `sklearn.decomposition.KernelPCA`."""
    import zarr
    from sklearn.decomposition import KernelPCA

    rows = zarr.open_array(path, mode="r")[...]
    kernel = KernelPCA(int(k), kernel="rbf", gamma=1e-3, eigen_solver="randomized", random_state=0)
    return timed(lambda: kernel.fit(rows) and None)


def sklearn_whiten(path: str, k: str) -> Row:
    """Whiten by `PCA` with the solver of the report."""
    from sklearn.decomposition import PCA

    rows = np.load(path)

    def work() -> Row:
        scores = PCA(int(k), whiten=True, svd_solver="covariance_eigh").fit_transform(rows)
        return {"note": _largest(scores)}

    return timed(work)


def sklearn_incremental(path: str, k: str) -> Row:
    """Give batches to `IncrementalPCA`."""
    from sklearn.decomposition import IncrementalPCA

    rows = np.load(path)

    def work() -> None:
        pca = IncrementalPCA(int(k))
        for batch in np.split(rows, [3, 50]):
            pca.partial_fit(batch)

    return timed(work)


def faiss_matrix(path: str, k: str) -> Row:
    """Train `faiss.PCAMatrix`."""
    import faiss

    rows = np.load(path)

    def work() -> Row:
        matrix = faiss.PCAMatrix(rows.shape[1], int(k))
        matrix.train(rows)
        return {"note": _met(faiss.vector_to_array(matrix.A)[: rows.shape[1]])}

    return timed(work)


def _imported() -> Any:
    """Return streampca with all modules that a fit imports, which belong to no measured time."""
    import streampca as sp

    sp.PCA(1, memory="1GiB").fit(np.eye(4, 2))
    return sp


def _said(pca: Any) -> str:
    kind = "exact" if pca.error_["kind"] == "exact" else pca.error_["kind"]
    return f"{pca.solver_}, {kind}"


def _largest(scores: np.ndarray[Any, Any]) -> str:
    return f"largest whitened score {np.abs(scores).max():.3g}"


def _met(component: np.ndarray[Any, Any]) -> str:
    cosine = abs(component[0] - component[1]) / np.sqrt(2) / max(float(np.linalg.norm(component)), 1e-300)
    return f"|cosine| with the exact component {cosine:.6f}"
