"""Models on disk: a zarr group of plain numeric arrays and JSON attributes, checked when it is read; never pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from streampca.errors import ModelError
from streampca.models.fit_record import ARRAYS as FIT_ARRAYS
from streampca.models.fit_record import FitRecord, arrays_of_names, names_from, record_from, without_names
from streampca.models.pca import PCAModel
from streampca.models.persistence.reading import (
    names_of,
    open_strictly,
    read_array,
    require,
    require_array,
    require_sealed,
    write_attributes,
)
from streampca.models.stored_components import Components, StoredComponents, Survey, slab_features, survey
from streampca.models.validity import require_valid
from streampca.storage.directories import AtomicDirectory
from streampca.system.process import available_bytes

FORMAT = "streampca-model"
FORMAT_VERSION = 2
_VERSIONS = (1, 2)
"""Versions that are read: 1 is that of streampca 0.1, which has no record of the fit and names of features as attributes."""
_ARRAYS = ("components", "explained_variance", "mean", "scale", "constant_features", "feature_weight", "fill")
_SLABS_FROM = 2**30
"""Size of components from which they are saved as slabs of features, as those on disk are."""
_ON_DISK_SHARE = 0.25
"""Share of the available memory beyond which components that were saved as slabs stay on disk."""
_PLAIN = ("total_variance", "n_samples", "ddof", "center", "whiten", "numerical_rank", "certificate", "source")
_LATER = ("sample_weight", "missing", "missing_scores")
_TYPES: dict[str, tuple[type, ...]] = {
    "total_variance": (int, float),
    "n_samples": (int,),
    "ddof": (int,),
    "center": (bool,),
    "whiten": (bool,),
    "numerical_rank": (int,),
    "certificate": (dict,),
    "source": (dict,),
    "sample_weight": (int, float, type(None)),
    "missing": (str,),
    "missing_scores": (str,),
}


def write_array(group: zarr.Group, name: str, values: NDArray[Any]) -> None:
    """Write an array as chunks of up to 8 MiB with zstd and a CRC-32C that is checked on reading."""
    rows = (
        max(1, min(values.shape[0], 8 * 2**20 // max(1, values.nbytes // max(1, values.shape[0]))))
        if values.size
        else 1
    )
    array = group.create_array(
        name,
        shape=values.shape,
        chunks=(rows, *(max(1, n) for n in values.shape[1:])),
        dtype=values.dtype,
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
        config={"write_empty_chunks": True},
    )
    for start in range(0, len(values), rows):  # one chunk at a time: all at once would be copied at once
        array[start : start + rows] = values[start : start + rows]


def save_model(
    model: PCAModel,
    path: str | Path,
    *,
    overwrite: bool = False,
    beside: Callable[[Path], None] | None = None,
    fit: FitRecord | None = None,
) -> Path:
    """Write `model` to a zarr group at `path`, and what `beside` writes into the same group: whole or not at all.

    `fit` is what is known of the fit beside the model.

    Raises
    ------
    ModelError
        If its numbers are not finite or do not agree with each other, so that it could not be loaded.
    OutputError
        If something is there that is not a model, or is one and `overwrite` is not set.
    """
    with AtomicDirectory(Path(path), "model", overwrite=overwrite) as aside:
        write_model(model, aside, fit)
        if beside is not None:
            beside(aside)
    return Path(path)


def write_model(model: PCAModel, path: Path, fit: FitRecord | None = None) -> None:
    """Write the group of `model` to the empty directory `path`; `ModelError` if it could not be loaded from there."""
    group = zarr.open_group(path, mode="a", zarr_format=3)
    looked = _write_components(group, model.components)
    with not_saved():
        require_valid(model, looked, path)
    arrays = {name: getattr(model, name) for name in _ARRAYS if name != "components"}
    source, names = without_names(model.source)
    digests = {"components": looked.digest} | write_arrays(group, arrays | arrays_of_names(names) | _arrays_of(fit))
    attributes = {name: getattr(model, name) for name in (*_PLAIN, *_LATER)} | {"source": source}
    header = {"format": FORMAT, "version": FORMAT_VERSION, "kind": "pca", "sha256": digests}
    with not_saved():
        write_attributes(group, header | attributes | {"fit": None if fit is None else fit.to_attributes()})


def write_arrays(group: zarr.Group, arrays: Mapping[str, NDArray[Any] | None]) -> dict[str, str]:
    """Write the arrays that are not None and return their digests."""
    present = {name: values for name, values in arrays.items() if values is not None}
    for name, values in present.items():
        write_array(group, name, values)
    return {name: digest(values) for name, values in present.items()}


@contextmanager
def not_saved() -> Iterator[None]:
    """Let a `ModelError` about a model that is being written say that it is not saved."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"the model is not saved: {str(error).rpartition(' is not a usable model: ')[2]}") from error


def _arrays_of(fit: FitRecord | None) -> dict[str, NDArray[Any]]:
    return {} if fit is None else fit.arrays


def _write_components(group: zarr.Group, components: Components) -> Survey:
    """Write components and return their survey: as whole rows, or slab by slab where they are on disk or large."""
    if not isinstance(components, StoredComponents) and components.nbytes <= _SLABS_FROM:
        write_array(group, "components", components)
        return survey(components)
    width = components.width if isinstance(components, StoredComponents) else slab_features(len(components))
    array = group.create_array(
        "components",
        shape=components.shape,
        chunks=(len(components), min(width, components.shape[1])),
        dtype=components.dtype,
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
        config={"write_empty_chunks": True},
    )
    return survey(components, lambda part, slab: array.set_basic_selection((slice(None), part), slab))


def load_model(path: str | Path) -> PCAModel:
    """Read the model at `path`; see `load_saved`."""
    return load_saved(path)[0]


def load_saved(path: str | Path) -> tuple[PCAModel, FitRecord | None]:
    """Read the model at `path`, and what is known of its fit; None where streampca 0.1 wrote it.

    Components of more than a quarter of the available memory stay on disk. (Unless they were saved as whole rows, as those of
    less than 1 GiB are.)

    Raises
    ------
    ModelError
        If there is none, or it is damaged: arrays are checked for shape, finiteness, order, orthonormality and SHA-256.
    """
    path = Path(path)
    if not path.exists():
        raise ModelError(f"{path}: no such model")
    try:
        group = open_strictly(path)
        attributes: dict[str, Any] = dict(group.attrs)
        require(
            attributes.get("format") == FORMAT and attributes.get("kind") == "pca", path, "it is not a streampca model"
        )
        require_version(attributes, path)
        arrays = {name: _read(group, name, path) for name in (*_ARRAYS, *FIT_ARRAYS) if name in group}
    except ModelError:
        raise
    except (FileNotFoundError, zarr.errors.ContainsArrayError) as error:
        raise ModelError(
            f"{path} is not a streampca model: expected the model.zarr of a run, or what save wrote"
        ) from error
    except Exception as error:
        raise ModelError(
            f"{path} cannot be read as a model: {' '.join(str(error).split())[:200] or type(error).__name__}"
        ) from error
    looked = _survey(arrays, path)
    _require_digests(arrays, attributes.get("sha256"), looked, path)
    model = _model_of(arrays, attributes, path)
    require_valid(model, looked, path)
    require_sealed(attributes, path)
    return model, record_from(attributes, arrays, path)


def require_version(attributes: dict[str, Any], path: Path) -> None:
    """Raise `ModelError` unless the version of the format is one that is read here."""
    version, fit = attributes.get("version"), attributes.get("fit")
    by = fit.get("written_by") if isinstance(fit, dict) else None
    known = type(version) is int and version in _VERSIONS
    later = type(version) is int and version > _VERSIONS[-1]
    hint = f": streampca {by or 'of a later version'} wrote it; load it with that version" if later else ""
    expected = " or ".join(map(str, _VERSIONS))
    require(known, path, f"it has format version {version!r}, expected {expected}{hint}")


def _require_digests(arrays: dict[str, Any], digests: Any, looked: Survey, path: Path) -> None:
    require(isinstance(digests, dict) and set(digests) == set(arrays), path, "its arrays are not those that were saved")
    for name, values in arrays.items():
        by_rows = name == "components" and str(digests[name]).startswith("rows:")  # not in models of early versions
        found = looked.digest if by_rows else digest(values)
        require(digests[name] == found, path, f"array {name} does not have the SHA-256 that was saved with it")


def _model_of(arrays: dict[str, Any], attributes: dict[str, Any], path: Path) -> PCAModel:
    """Return the model of arrays and attributes, whose types are checked here and whose values are not."""
    needed = {"components", "explained_variance", "mean", "constant_features"}
    require(needed <= set(arrays), path, "arrays are missing")
    plain: dict[str, Any] = {name: attributes.get(name) for name in (*_PLAIN, "sample_weight")}
    plain["missing"] = attributes.get("missing", "error")
    plain["missing_scores"] = attributes.get("missing_scores", "mean")  # of version 0.1
    for name, kinds in _TYPES.items():
        require(type(plain[name]) in kinds, path, f"attribute {name} is {plain[name]!r}")
    n_features = arrays["components"].shape[1]
    names_of(plain["source"], n_features, path)  # in models of version 1
    names = names_from(arrays, n_features, path)
    plain["source"] = plain["source"] | ({} if names is None else {"feature_names": names})
    values: dict[str, Any] = {name: arrays.get(name) for name in _ARRAYS}
    return PCAModel(**values, **plain)


def _survey(arrays: dict[str, Any], path: Path) -> Survey:
    require("components" in arrays, path, "arrays are missing")
    components = arrays["components"]
    usable = len(components.shape) == 2 and 0 < components.shape[0] <= components.shape[1]
    require(usable, path, "its shapes do not agree")
    return survey(components)


def _read(group: zarr.Group, name: str, path: Path) -> Any:
    array, label = group[name], f"{path} is not a usable model: array {name}"
    kind = FIT_ARRAYS.get(name, "i" if name == "constant_features" else "f")
    require_array(array, kind, label, in_memory=False)
    if name == "components" and _stays_on_disk(array):
        return StoredComponents.open(path / name)
    return read_array(array, kind, label)


def _stays_on_disk(array: Any) -> bool:
    if len(array.shape) != 2 or not array.chunks[0] >= array.shape[0] > 0 or array.dtype != np.float64:
        return False
    in_slabs = 8 * array.chunks[0] * array.chunks[1] <= array.nbytes // 2
    return bool(in_slabs and array.nbytes > _ON_DISK_SHARE * available_bytes())


def digest(values: NDArray[Any]) -> str:
    """Return the SHA-256 of the values in C order."""
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()
