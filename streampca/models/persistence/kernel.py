"""Kernel models on disk: a zarr group of plain numeric arrays and JSON attributes, checked when it is read; never pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zarr
from numpy.typing import NDArray

from streampca.errors import ModelError, ParameterError
from streampca.models.fit_record import ARRAYS as FIT_ARRAYS
from streampca.models.fit_record import FitRecord, arrays_of_names, names_from, record_from, without_names
from streampca.models.kernel import KernelModel, PreimageMap
from streampca.models.persistence.pca import FORMAT, FORMAT_VERSION, digest, not_saved, require_version, write_arrays
from streampca.models.persistence.reading import (
    in_short,
    names_of,
    open_strictly,
    read_array,
    require,
    require_sealed,
    write_attributes,
)
from streampca.models.validity import require_valid_kernel
from streampca.sources.zarr.metadata import read_document
from streampca.storage.directories import AtomicDirectory

KIND = "kernel_pca"
_KINDS = {
    "landmarks": "f",
    "coefficients": "f",
    "centre": "f",
    "eigenvalues": "f",
    "landmark_indices": "i",
    "way_back_scores": "f",
    "way_back_dual": "f",
}
_REQUIRED = ("landmarks", "coefficients", "centre", "eigenvalues")
_TYPES: dict[str, Any] = {
    "total": (int, float),
    "n_samples": int,
    "method": str,
    "center": bool,
    "sampling": str,
    "certificate": dict,
    "source": dict,
    "kernel": dict,
}


def save_kernel_model(
    model: KernelModel,
    path: str | Path,
    *,
    overwrite: bool = False,
    feature_names: list[str] | None = None,
    fit: FitRecord | None = None,
) -> Path:
    """Write `model`, and what is known of its `fit`, to a zarr group at `path`: whole or not at all.

    Raises
    ------
    ModelError
        If the kernel is a callable, or numbers are not finite or do not agree, so that it could not be loaded.
    OutputError
        If something is there that is not a model, or is one and `overwrite` is not set.
    """
    with AtomicDirectory(Path(path), "model", overwrite=overwrite) as aside:
        write_kernel_model(model, aside, feature_names, fit)
    return Path(path)


def write_kernel_model(
    model: KernelModel, path: Path, feature_names: list[str] | None = None, fit: FitRecord | None = None
) -> None:
    """Write the group of `model` to the empty directory `path`; `ModelError` if it could not be loaded from there."""
    try:
        kernel = model.kernel.to_dict()
    except ParameterError as error:
        raise ModelError(f"the model is not saved: {error}") from error
    with not_saved():
        require_valid_kernel(model, path)
    group = zarr.open_group(path, mode="a", zarr_format=3)
    source, known = without_names(model.source)
    more = arrays_of_names(known or feature_names) | ({} if fit is None else fit.arrays)
    digests = write_arrays(group, _arrays(model) | more)
    own = {name: getattr(model, name) for name in _TYPES if name not in ("kernel", "source")}
    header = {"format": FORMAT, "version": FORMAT_VERSION, "kind": KIND, "sha256": digests}
    told = {"kernel": kernel, "source": source, "fit": None if fit is None else fit.to_attributes()}
    with not_saved():
        write_attributes(group, header | own | told)


def _arrays(model: KernelModel) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {name: getattr(model, name) for name in _REQUIRED}
    if model.landmark_indices is not None:
        arrays["landmark_indices"] = model.landmark_indices
    if model.preimage is not None:
        arrays |= {"way_back_scores": model.preimage.scores, "way_back_dual": model.preimage.dual}
    return arrays


def is_kernel_model(path: Path) -> bool:
    """Tell whether the metadata at `path` say that a kernel model is there."""
    try:
        attributes = read_document(path / "zarr.json")["attributes"]
        return bool(attributes["format"] == FORMAT and attributes["kind"] == KIND)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load_kernel_model(path: str | Path) -> KernelModel:
    """Read the kernel model at `path`; see `load_saved_kernel`."""
    return load_saved_kernel(path)[0]


def load_saved_kernel(path: str | Path) -> tuple[KernelModel, FitRecord | None]:
    """Read the kernel model at `path`, and what is known of its fit; None where streampca 0.1 wrote it.

    Raises
    ------
    ModelError
        If there is none, or it is damaged: arrays are checked for type, shape, finiteness, order and SHA-256.
    """
    path = Path(path)
    try:
        group = open_strictly(path)
        attributes: dict[str, Any] = dict(group.attrs)
        fits = attributes.get("format") == FORMAT and attributes.get("kind") == KIND
        require(fits, path, "it is not a streampca kernel model")
        require_version(attributes, path)
        arrays = {name: _read(group, name, path) for name in (*_KINDS, *FIT_ARRAYS) if name in group}
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{path} cannot be read as a model: {' '.join(str(error).split())[:200] or type(error).__name__}"
        ) from error
    digests: Any = attributes.get("sha256")
    agree = isinstance(digests, dict) and set(digests) == set(arrays) and set(_REQUIRED) <= set(arrays)
    require(agree, path, "its arrays are not those that were saved")
    for name, values in arrays.items():
        require(digests[name] == digest(values), path, f"array {name} does not have the SHA-256 that was saved with it")
    model = _model_of(arrays, attributes, path)
    require_valid_kernel(model, path)
    require_sealed(attributes, path)
    return model, record_from(attributes, arrays, path)


def _model_of(arrays: dict[str, NDArray[Any]], attributes: dict[str, Any], path: Path) -> KernelModel:
    """Return the model of arrays and attributes, whose types are checked here and whose values are not."""
    from streampca.kernels import kernel_from_dict

    for name, kind in _TYPES.items():
        exact = isinstance(attributes.get(name), kind) and (kind is bool or not isinstance(attributes.get(name), bool))
        require(exact, path, f"attribute {name} is {attributes.get(name)!r}")
    require(("way_back_scores" in arrays) == ("way_back_dual" in arrays), path, "its shapes do not agree")
    require(arrays["landmarks"].ndim == 2, path, "its shapes do not agree")
    try:
        kernel = kernel_from_dict(attributes["kernel"])
    except ParameterError as error:
        raise ModelError(f"{path} is not a usable model: {in_short(str(error))}") from error
    n_features = arrays["landmarks"].shape[1]
    plain = {name: attributes[name] for name in _TYPES if name != "kernel"}
    names_of(plain["source"], n_features, path)  # in models of version 1
    names = names_from(arrays, n_features, path)
    plain["source"] = plain["source"] | ({} if names is None else {"feature_names": names})
    preimage = None
    if "way_back_dual" in arrays:
        preimage = PreimageMap(arrays["way_back_scores"], arrays["way_back_dual"])
    values: dict[str, Any] = {name: arrays.get(name) for name in (*_REQUIRED, "landmark_indices")}
    return KernelModel(kernel=kernel, preimage=preimage, **values, **plain)


def _read(group: zarr.Group, name: str, path: Path) -> NDArray[Any]:
    return read_array(group[name], (_KINDS | FIT_ARRAYS)[name], f"{path} is not a usable model: array {name}")
