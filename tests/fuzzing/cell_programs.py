"""Random programs on AnnData: written by anndata or by earlier forms of it, read, normalised, fitted, written into, and compared with numpy."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sparse
import zarr
from judging import Verdict, Wrong, last_line
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import OutputError, StreamPCAError

CONTAINERS = ("zarr2", "zarr3", "h5ad", "h5ad", "several h5ad", "several zarr3", "object", "backed")
DTYPES = ("f4", "f4", "f8", "i2", "i4", "i8", "u1", "u2", "bool")
_WRITABLE = ("zarr2", "zarr3", "h5ad")


@dataclass(frozen=True)
class CellCase:
    """One program."""

    seed: int
    """What decides everything else."""
    counts: NDArray[Any]
    """The counts, ``(n_cells, n_genes)``."""
    form: str
    """``csr``, ``csc`` or ``dense``."""
    container: str
    """How they are handed over."""
    place: str
    """``X``, ``layers/counts`` or ``raw/X``."""
    old: bool
    """Whether frames and sparse matrices have the forms of anndata 0.6 and 0.7."""
    chunks: int
    """Length of chunks."""
    mask: NDArray[np.bool_] | None
    """Genes that are used."""
    mask_kind: str
    """``bool`` or ``nullable`` for a column of ``var``, ``array`` for an array."""
    normalize: dict[str, Any] | None
    """The option of that name."""
    left_out: bool
    """Whether chunks of zeros are left out of stores, as anndata does, and read as zeros."""
    damage: str
    """``none``, ``chunk`` for a file of a store that is removed, or ``cut`` for a file that is cut short."""

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of `streampca.open`."""
        options: dict[str, Any] = {"normalize": self.normalize}
        if self.left_out and self.container not in ("object", "backed"):
            options["missing_chunks"] = "fill"
        if self.place != "X":
            options["layer"] = "raw/X" if self.place == "raw/X" else "counts"
        if self.mask is not None:
            options |= {"mask": self.mask} if self.mask_kind == "array" else {"mask_var": "used"}
        return options

    def line(self) -> str:
        """Return the case in words."""
        n, d = self.counts.shape
        return (
            f"{self.container} {self.form} {n}x{d} {self.counts.dtype} at {self.place}{' old' if self.old else ''} "
            f"chunks {self.chunks} damage {self.damage} left out {self.left_out} {self.mask_kind if self.mask is not None else 'all'} {self.normalize}"
        )


def draw(seed: int) -> CellCase:
    """Return the case that `seed` stands for."""
    rng = np.random.default_rng([seed, 20261125])
    n, d, dtype = int(rng.integers(3, 70)), int(rng.integers(1, 16)), np.dtype(str(rng.choice(DTYPES)))
    share = float(rng.choice([0.0, 0.1, 0.4, 1.0]))
    counts = (rng.poisson(3.0, (n, d)) * (rng.random((n, d)) < share)).astype(dtype)
    if dtype.kind == "f" and rng.random() < 0.3:
        counts = counts * dtype.type(0.37)
    container, form = str(rng.choice(CONTAINERS)), str(rng.choice(["csr", "csr", "csc", "dense"]))
    mask = None
    if rng.random() < 0.5:
        mask = rng.random(d) < 0.6
        mask[int(rng.integers(d))] = True
    normalize: dict[str, Any] = {}
    if rng.random() < 0.5:
        normalize["target_sum"] = float(rng.choice([1.0, 100.0, 1e4]))
    if rng.random() < 0.5:
        normalize["log1p"] = True
    stored = container not in ("object", "backed")
    damage = "none"
    if rng.random() < 0.15:
        damage = "chunk" if container in ("zarr2", "zarr3") else "cut" if container == "h5ad" else "none"
    return CellCase(
        seed,
        counts,
        form,
        container,
        str(rng.choice(["X", "X", "layers/counts", "raw/X"])),
        stored and bool(rng.random() < 0.25),
        int(rng.integers(1, 60)),
        mask,
        str(rng.choice(["bool", "nullable", "array"])),
        normalize or None,
        damage == "none" and bool(rng.random() < 0.3),
        damage,
    )


def expected(case: CellCase) -> NDArray[Any]:
    """Return the rows by the formulas of `scanpy.pp.normalize_total` and `log1p`, with the type that the documentation gives."""
    counts, normalize = case.counts, case.normalize or {}
    used = slice(None) if case.mask is None else case.mask
    if not normalize:
        return counts[:, used]
    rows = counts.astype(np.float64)
    if "target_sum" in normalize:
        totals = rows.sum(axis=1, keepdims=True)
        rows = rows * (normalize["target_sum"] / np.where(totals == 0, normalize["target_sum"], totals))
    rows = np.log1p(rows) if normalize.get("log1p") else rows
    narrow = counts.dtype.itemsize <= (4 if counts.dtype.kind == "f" else 2)
    return rows[:, used].astype(np.float32 if narrow else np.float64)


def frames(case: CellCase) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return ``obs``, with a column of each kind, and ``var``."""
    n, d = case.counts.shape
    at = np.arange(n)
    obs = pd.DataFrame({"batch": pd.Categorical(np.array(["b", "a", "é"])[at % 3]), "depth": at * 0.5, "n": at})
    if not case.old:
        obs["nullable"] = pd.array(at, dtype="Int32")
        obs["flag"] = pd.array(at % 2 == 0, dtype="boolean")
    obs["text"] = [f"plate {i % 4}" for i in at]
    obs.index = pd.Index([f"cell{i}" for i in at])
    var = pd.DataFrame(index=pd.Index([f"gene{j}" for j in range(d)]))
    if case.mask is not None and case.mask_kind != "array":
        var["used"] = case.mask if case.mask_kind == "bool" or case.old else pd.array(case.mask, dtype="boolean")
    return obs, var


def matrix_of(case: CellCase, rows: slice) -> Any:
    """Return some of the counts in their form."""
    dense = case.counts[rows]
    return dense if case.form == "dense" else getattr(sparse, f"{case.form}_matrix")(dense)


def build(case: CellCase, rows: slice) -> anndata.AnnData:
    """Return an object with some of the cells; elsewhere than at its place it has other numbers."""
    obs, var = frames(case)
    obs, matrix = obs[rows], matrix_of(case, rows)
    other = sparse.csr_matrix(np.full(matrix.shape, 7, dtype="f4"))
    if case.place == "raw/X":
        data = anndata.AnnData(matrix, obs=obs, var=var)
        data.raw = data
        data = data[:, : max(1, matrix.shape[1] // 2)].copy()
        data.X = other[:, : data.shape[1]]
        return data
    if case.place == "X":
        return anndata.AnnData(matrix, obs=obs, var=var)
    data = anndata.AnnData(other, obs=obs, var=var)
    data.layers["counts"] = matrix
    return data


def write(case: CellCase, path: Path, rows: slice) -> None:
    """Write some of the cells, with the chunks of the case, in the form of anndata or an earlier one."""
    zarr.config.set({"array.write_empty_chunks": not case.left_out})
    data, matrix = build(case, rows), matrix_of(case, rows)
    if path.suffix == ".h5ad":
        data.write_h5ad(path)
        root: Any = h5py.File(path, "r+")
    else:
        anndata.settings.zarr_write_format = 2 if case.container == "zarr2" else 3
        data.write_zarr(path)
        (path / ".zmetadata").unlink(missing_ok=True)
        root = zarr.open_group(path, mode="r+", use_consolidated=False)
    sizes = (case.chunks, max(1, case.chunks // 3)) if case.form == "dense" else (case.chunks,)
    parts = (matrix,) if case.form == "dense" else (matrix.data, matrix.indptr)
    fits = path.suffix != ".h5ad" or all(size <= n for part in parts for size, n in zip(sizes, part.shape, strict=True))
    parent, _, name = case.place.rpartition("/")
    group = root[parent] if parent else root
    anndata.io.write_elem(group, name, matrix, dataset_kwargs={"chunks": sizes} if fits else {})
    if case.old:
        _age(root, root["obs"], frames(case)[0][rows])
        if path.suffix == ".h5ad" and case.form != "dense":
            node = group[name]
            node.attrs["h5sparse_format"], node.attrs["h5sparse_shape"] = case.form, matrix.shape
            for attribute in ("encoding-type", "encoding-version", "shape"):
                del node.attrs[attribute]
        if path.suffix == ".h5ad" and case.place == "raw/X":
            for each in ("X", "var"):
                root.move(f"raw/{each}", f"raw.{each}")
            del root["raw"]
    if path.suffix == ".h5ad":
        root.close()
    else:
        zarr.consolidate_metadata(path, zarr_format=2 if case.container == "zarr2" else 3)


def _age(root: Any, frame: Any, obs: pd.DataFrame) -> None:
    """Write the categories of a column beside the columns, as anndata 0.7 did."""
    del frame["batch"]
    column = obs["batch"].array
    anndata.io.write_elem(frame, "batch", np.asarray(column.codes))
    anndata.io.write_elem(frame, "__categories", {"batch": np.asarray(column.categories, dtype=object)})
    is_file = isinstance(root, h5py.File)
    frame["batch"].attrs["categories"] = frame["__categories/batch"].ref if is_file else "__categories/batch"
    frame.attrs["encoding-version"] = "0.1.0"


def judge(case: CellCase) -> Verdict:
    """Run `case` and say what became of it."""
    place = Path(tempfile.mkdtemp(prefix="cells-"))
    before = anndata.settings.zarr_write_format
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _run(case, place)
        except Wrong as wrong:
            return Verdict("wrong", str(wrong))
        except StreamPCAError as error:
            text = f"{type(error).__name__}: {error}"
            expects = case.damage != "none" or "no variance" in text
            return Verdict("refused" if expects else "wrong", text if expects else last_line(error))
        except Exception as error:  # noqa: BLE001 whatever was raised is what was looked for
            return Verdict("bare", last_line(error))
        finally:
            anndata.settings.zarr_write_format = before
            zarr.config.set({"array.write_empty_chunks": False})
            shutil.rmtree(place)
    return Verdict("right", "")


def _run(case: CellCase, place: Path) -> None:
    rng, n = np.random.default_rng([case.seed, 1]), len(case.counts)
    if case.container == "object":
        data: Any = build(case, slice(None))
    elif case.container.startswith("several"):
        edges = [
            0,
            *sorted(rng.choice(np.arange(1, n), min(n - 1, int(rng.integers(1, 3))), replace=False).tolist()),
            n,
        ]
        end = case.container.split()[1].removesuffix("3")
        data = [place / f"{index}.{end}" for index in range(len(edges) - 1)]
        for path, low, high in zip(data, edges, edges[1:], strict=False):
            write(case, path, slice(low, high))
    else:
        data = place / ("a.zarr" if case.container.startswith("zarr") else "a.h5ad")
        write(case, data, slice(None))
        data = anndata.read_h5ad(data, backed="r") if case.container == "backed" else data
    if case.damage == "cut":
        data.write_bytes(data.read_bytes()[: int(rng.integers(data.stat().st_size))])
    elif case.damage == "chunk":
        chunks = [file for file in data.rglob("*") if file.is_file() and file.name.replace(".", "").isdigit()]
        chunks[int(rng.integers(len(chunks)))].unlink()
    _require_rows(case, sp.open(data, **case.options), rng)
    _require_fit(case, data)
    if case.container in _WRITABLE and case.place != "raw/X" and case.damage == "none":
        _require_written(case, data)


def _blocks(n: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Yield edges of blocks in order, and of two blocks anywhere."""
    at = 0
    while at < n:
        stop = min(n, at + int(rng.integers(1, 30)))
        yield at, stop
        at = stop
    for _ in range(2):
        start = int(rng.integers(n))
        yield start, int(rng.integers(start, n)) + 1


def _require_rows(case: CellCase, table: Any, rng: np.random.Generator) -> None:
    """Raise `Wrong` unless rows, names and columns are those of the case."""
    rows = expected(case)
    if (table.shape, table.dtype) != (rows.shape, rows.dtype):
        raise Wrong(f"{table.shape} {table.dtype}, expected {rows.shape} {rows.dtype}")
    if table.sparse != (case.form != "dense"):
        raise Wrong(f"sparse: {table.sparse}")
    # A sum of d counts that are not negative is rounded by d - 1 eps in any order, on both sides; the result by eps of its type.
    sums = 2 * (case.counts.shape[1] + 4) * float(np.finfo(np.float64).eps)
    tolerance = float(np.finfo(rows.dtype).eps) + sums if case.normalize else 0.0
    for start, stop in _blocks(len(rows), rng):
        block = table.read(start, stop)[0]
        block = block.toarray() if table.sparse else block
        if not np.allclose(block, rows[start:stop], rtol=tolerance, atol=0):
            raise Wrong(f"rows {start} to {stop - 1} differ")
    used = np.arange(case.counts.shape[1]) if case.mask is None else np.flatnonzero(case.mask)
    if table.feature_names != tuple(f"gene{j}" for j in used):
        raise Wrong(f"names of genes: {table.feature_names}")
    last = len(rows) - 1
    if table.labels.sample_name(last) != f"obs_names=cell{last}":
        raise Wrong(f"names of cells: {table.labels.sample_name(last)}")
    for name, column in frames(case)[0].items():
        found = table.sample_columns.values(name)
        if found is None or found.tolist() != column.tolist():
            raise Wrong(f"obs/{name}: {found}")


def _spectrum(rows: NDArray[Any]) -> NDArray[np.float64]:
    wide = rows.astype(np.float64)
    return np.linalg.svd(wide - wide.mean(axis=0), compute_uv=False) ** 2 / (len(rows) - 1)


def _require_fit(case: CellCase, data: Any) -> None:
    """Raise `Wrong` unless variances are those of LAPACK."""
    rows = expected(case)
    k = min(3, *rows.shape)
    found, variances = sp.PCA(k).fit(sp.open(data, **case.options)).explained_variance_, _spectrum(rows)[:k]
    if not np.allclose(found, variances, rtol=1e-5, atol=1e-5 * float(variances[0]) + 1e-12):
        raise Wrong(f"explained_variance_ {found}, expected {variances}")


def _require_written(case: CellCase, path: Path) -> None:
    """Raise `Wrong` unless results are written in scanpy's form, once, and nothing else is changed."""
    options, read = case.options, anndata.read_h5ad if path.suffix == ".h5ad" else anndata.read_zarr
    before = None if case.old else read(path)
    mask = options.get("mask", options.get("mask_var"))
    rows, k = expected(case), min(2, *expected(case).shape)
    chunks = options.get("missing_chunks", "error")
    sp.anndata.pca(path, k, layer=options.get("layer"), mask_var=mask, normalize=case.normalize, missing_chunks=chunks)
    try:
        sp.anndata.pca(path, k)
        raise Wrong("results were replaced")
    except OutputError:
        pass
    if case.old:
        return
    after = read(path)
    used = slice(None) if case.mask is None else case.mask
    loadings = np.asarray(after.varm["PCs"])
    if case.mask is not None and loadings[~case.mask].any():
        raise Wrong("loadings of genes that were not used")
    scores = (rows - rows.mean(axis=0, dtype=np.float64)) @ loadings[used]
    if not np.allclose(after.obsm["X_pca"], scores, atol=1e-4 * (1 + float(np.abs(scores).max(initial=0)))):
        raise Wrong("X_pca")
    if not np.allclose(
        after.uns["pca"]["variance"], _spectrum(rows)[:k], rtol=1e-4, atol=1e-6 * (1 + float(np.abs(rows).max()) ** 2)
    ):
        raise Wrong("variance")
    assert before is not None
    dense = [each.X.toarray() if sparse.issparse(each.X) else each.X for each in (before, after)]
    if not np.array_equal(*dense) or not before.obs.equals(after.obs) or not before.var.equals(after.var):
        raise Wrong("X, obs or var were changed")
