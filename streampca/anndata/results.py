"""Results of a fit in AnnData, with the names and the form of scanpy."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from streampca.errors import ParameterError
from streampca.models.pca import PCAModel
from streampca.sources.cells.stored import anndata_module
from streampca.sources.zarr.strictness import strict
from streampca.typing import Array, FloatArray

if TYPE_CHECKING:
    import dask.array as da

RUN_ID = "streampca_run"
"""Name of the entry of the parameters that identifies the call or run that wrote the results."""
_BAND_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Keys:
    """Names of the places that results are written to: three, and those of genes where they are chosen."""

    scores: str = "X_pca"
    """Key in ``obsm``."""
    components: str = "PCs"
    """Key in ``varm``."""
    figures: str = "pca"
    """Key in ``uns``."""
    of_genes: tuple[str, ...] = ()
    """Further places, of what is written about genes: columns of ``var``, and entries of ``uns``."""

    @classmethod
    def of(cls, key_added: str | None, of_genes: tuple[str, ...] = ()) -> Keys:
        """Return scanpy's names, or `key_added` for the three of the fit."""
        if key_added is None:
            return cls(of_genes=of_genes)
        if not key_added or not key_added.isprintable() or "/" in key_added or key_added.startswith("."):
            raise ParameterError(
                f"key_added={key_added[:60]!r}: expected a name without slashes that does not begin with a dot"
            )
        return cls(key_added, key_added, key_added, of_genes)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the places in a store, in the order in which they are written; the last one says that all are complete."""
        return f"obsm/{self.scores}", f"varm/{self.components}", *self.of_genes, f"uns/{self.figures}"


@dataclass(frozen=True)
class Results:
    """Results of a fit as AnnData holds them."""

    keys: Keys
    """Where they go."""
    loadings: FloatArray
    """Components by features, ``(n_vars, k)``; zero where features were not used."""
    variance: FloatArray
    """Variance along each component, ``(k,)``."""
    variance_ratio: FloatArray
    """Its share of the total, ``(k,)``."""
    parameters: dict[str, bool | str]
    """What the fit was asked for."""
    of_genes: tuple[Any, ...] = ()
    """What is written to the places of genes."""

    @classmethod
    def of(cls, model: PCAModel, keys: Keys, run_id: str, of_genes: tuple[Any, ...] = ()) -> Results:
        """Return the results of `model`, whose source was AnnData."""
        stored = model.components
        components = stored if isinstance(stored, np.ndarray) else stored.in_memory()
        mask = None if model.labels is None else model.labels.mask
        loadings = np.zeros((components.shape[1] if mask is None else len(mask), len(components)))
        loadings[slice(None) if mask is None else mask] = components.T
        mask_var, layer = model.source.get("mask_var"), model.source.get("layer")
        parameters: dict[str, bool | str] = {
            "zero_center": bool(model.center),
            "use_highly_variable": mask_var == "highly_variable",
        }
        parameters |= {key: str(value) for key, value in (("mask_var", mask_var), ("layer", layer)) if value}
        variance = np.asarray(model.explained_variance, dtype=np.float64)
        ratio = variance / model.total_variance if model.total_variance > 0 else np.zeros_like(variance)
        return cls(keys, loadings, variance, ratio, parameters | {RUN_ID: run_id}, of_genes)


def stored_scores(path: Path) -> Array | da.Array:
    """Return scores that `write_scores` wrote to the group at `path`: in memory if they are few, else bands of rows that are read strictly."""
    array = strict(zarr.open_array(path / "scores", mode="r"))
    if array.nbytes <= _BAND_BYTES:
        return np.asarray(array[...])
    import dask.array as da  # here, because writing such arrays takes a second of imports

    rows = max(1, _BAND_BYTES // (array.shape[1] * array.dtype.itemsize))
    return da.from_array(array, chunks=(rows, array.shape[1]), name=False)  # type: ignore[no-untyped-call, no-any-return]


def write_elements(root: Any, results: Results, scores: Array | da.Array, of_arrays: Mapping[str, Any]) -> None:
    """Write results into a group of zarr or h5py as elements of AnnData, in the place of those that are there.

    Parameters
    ----------
    root : zarr.Group or h5py.File
        Root of the AnnData.
    scores : array or dask.array.Array
        Scores, of which one block is in memory at a time if they are many.
    of_arrays : mapping
        What their array is created with, beside shape and data type.
    """
    import dask

    write = anndata_module("io").write_elem
    figures = {"variance": results.variance, "variance_ratio": results.variance_ratio, "params": results.parameters}
    values = (scores, results.loadings, *results.of_genes, figures)
    with (
        warnings.catch_warnings(action="ignore"),
        dask.config.set(num_workers=1),
        zarr.config.set({"array.write_empty_chunks": True}),
    ):
        for place, value in zip(results.keys.paths, values, strict=True):
            mapping, _, key = place.partition("/")
            if mapping not in root:
                write(root, mapping, {})
            write(root[mapping], key, value, dataset_kwargs=of_arrays if value is values[0] else {})


def with_columns(order: Any, places: Iterable[str]) -> list[str]:
    """Return the names of the columns of ``var``, in their `order`, with those at `places` that are new."""
    known = [str(name) for name in order]
    columns = [place.partition("/")[2] for place in places if place.startswith("var/")]
    return known + [name for name in columns if name not in known]
