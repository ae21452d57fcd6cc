"""What a fit writes into AnnData, under the names and in the form that scanpy gives it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr

from streampca.errors import ParameterError
from streampca.models.pca import PCAModel
from streampca.sources.zarr.strictness import strict
from streampca.typing import Array, FloatArray

RUN_ID = "streampca_run"
"""Name of the entry of the parameters that identifies the call or run that wrote the results."""
_BAND_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Keys:
    """Names of the three places that results are written to."""

    scores: str = "X_pca"
    """Key in ``obsm``."""
    components: str = "PCs"
    """Key in ``varm``."""
    figures: str = "pca"
    """Key in ``uns``."""

    @classmethod
    def of(cls, key_added: str | None) -> Keys:
        """Return scanpy's names, or `key_added` for all three."""
        if key_added is None:
            return cls()
        if not key_added or not key_added.isprintable() or "/" in key_added or key_added.startswith("."):
            raise ParameterError(
                f"key_added={key_added[:60]!r}: expected a name without slashes that does not begin with a dot"
            )
        return cls(key_added, key_added, key_added)

    @property
    def paths(self) -> tuple[str, str, str]:
        """Return the places in a store, in the order in which they are written."""
        return f"obsm/{self.scores}", f"varm/{self.components}", f"uns/{self.figures}"


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

    @classmethod
    def of(cls, model: PCAModel, keys: Keys, run_id: str) -> Results:
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
        return cls(keys, loadings, variance, ratio, parameters | {RUN_ID: run_id})


@dataclass(frozen=True)
class StoredScores:
    """Scores in a group that `write_scores` wrote, read strictly by bands of rows."""

    path: Path
    """Directory of the group."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (number of rows, number of components)."""
        return tuple(int(n) for n in self._array.shape)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Return their data type."""
        return np.dtype(self._array.dtype)

    @property
    def _array(self) -> zarr.Array:  # type: ignore[type-arg]
        return strict(zarr.open_array(self.path / "scores", mode="r"))

    @property
    def band_rows(self) -> int:
        """Return the number of rows of one band."""
        n, k = self.shape
        return max(1, min(n, _BAND_BYTES // (k * self.dtype.itemsize)))

    def bands(self) -> Iterator[tuple[int, Array]]:
        """Yield the first row and the values of one band of rows after another."""
        array, step = self._array, self.band_rows
        for start in range(0, self.shape[0], step):
            yield start, np.asarray(array[start : start + step])
