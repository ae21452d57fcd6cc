"""Kernel models on disk: a zarr group of plain numeric arrays and JSON attributes, checked when it is read; never pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from streampca.engine.output import Aside
from streampca.errors import ModelError, ParameterError
from streampca.models.kernel import KernelModel, WayBack
from streampca.models.reading import (
    in_short,
    names_of,
    open_strictly,
    read_array,
    require,
    require_sealed,
    write_attributes,
)
from streampca.models.store import FORMAT, FORMAT_VERSION, digest, write_array
from streampca.sources.metadata import read_document

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
_METHODS = ("exact", "nystrom", "nystrom_extension", "empirical_map")


def save_kernel_model(
    model: KernelModel, path: str | Path, *, overwrite: bool = False, feature_names: list[str] | None = None
) -> Path:
    """Write `model` to a zarr group at `path`: whole or not at all.

    Raises
    ------
    ModelError
        If the kernel is a callable, or numbers are not finite.
    OutputError
        If something is there that is not a model, or is one and `overwrite` is not set.
    """
    with Aside(Path(path), "model", overwrite=overwrite) as aside:
        write_kernel_model(model, aside, feature_names)
    return Path(path)


def write_kernel_model(model: KernelModel, path: Path, feature_names: list[str] | None = None) -> None:
    """Write the group of `model` to the empty directory `path`; raise `ModelError` if it cannot be written."""
    try:
        kernel = model.kernel.to_dict()
    except ParameterError as error:
        raise ModelError(f"the model is not saved: {error}") from error
    arrays = _arrays(model)
    unusable = [name for name, values in arrays.items() if not np.isfinite(values).all()]
    if unusable:
        raise ModelError(f"the model holds numbers that are not finite ({', '.join(unusable)}) and is not saved")
    group = zarr.open_group(path, mode="a", zarr_format=3)
    for name, values in arrays.items():
        write_array(group, name, values)
    source = model.source
    if feature_names is not None and not source.get("feature_names"):
        source = source | {"feature_names": feature_names}
    own = {name: getattr(model, name) for name in _TYPES if name not in ("kernel", "source")}
    digests = {name: digest(values) for name, values in arrays.items()}
    told = {"format": FORMAT, "version": FORMAT_VERSION, "kind": KIND, "sha256": digests}
    write_attributes(group, told | own | {"kernel": kernel, "source": source})


def _arrays(model: KernelModel) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {name: getattr(model, name) for name in _REQUIRED}
    if model.landmark_indices is not None:
        arrays["landmark_indices"] = model.landmark_indices
    if model.way_back is not None:
        arrays |= {"way_back_scores": model.way_back.scores, "way_back_dual": model.way_back.dual}
    return arrays


def is_kernel_model(path: Path) -> bool:
    """Tell whether the metadata at `path` say that a kernel model is there."""
    try:
        attributes = read_document(path / "zarr.json")["attributes"]
        return bool(attributes["format"] == FORMAT and attributes["kind"] == KIND)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load_kernel_model(path: str | Path) -> KernelModel:
    """Read the kernel model at `path`.

    Raises
    ------
    ModelError
        If there is none, or it is damaged: arrays are checked for type, shape, finiteness, order and SHA-256.
    """
    from streampca.kernels import kernel_from_dict

    path = Path(path)
    try:
        group = open_strictly(path)
        attributes: dict[str, Any] = dict(group.attrs)
        arrays = {name: _read(group, name, path) for name in _KINDS if name in group}
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{path} cannot be read as a model: {' '.join(str(error).split())[:200] or type(error).__name__}"
        ) from error
    fits = attributes.get("format") == FORMAT and attributes.get("kind") == KIND
    require(fits, path, "it is not a streampca kernel model")
    version = attributes.get("version")
    require(version == FORMAT_VERSION, path, f"it has format version {version!r}, expected {FORMAT_VERSION}")
    digests: Any = attributes.get("sha256")
    agree = isinstance(digests, dict) and set(digests) == set(arrays) and set(_REQUIRED) <= set(arrays)
    require(agree, path, "its arrays are not those that were saved")
    for name, values in arrays.items():
        require(digests[name] == digest(values), path, f"array {name} does not have the SHA-256 that was saved with it")
    for name, kind in _TYPES.items():
        exact = isinstance(attributes.get(name), kind) and (kind is bool or not isinstance(attributes.get(name), bool))
        require(exact, path, f"attribute {name} is {attributes.get(name)!r}")
    _check(arrays, attributes, path)
    try:
        kernel = kernel_from_dict(attributes["kernel"])
    except ParameterError as error:
        raise ModelError(f"{path} is not a usable model: {in_short(str(error))}") from error
    require_sealed(attributes, path)
    names_of(attributes["source"], arrays["landmarks"].shape[1], path)
    way_back = None
    if "way_back_dual" in arrays:
        way_back = WayBack(arrays["way_back_scores"], arrays["way_back_dual"])
    plain = {name: attributes[name] for name in _TYPES if name != "kernel"}
    return KernelModel(
        kernel=kernel,
        landmarks=arrays["landmarks"],
        coefficients=arrays["coefficients"],
        centre=arrays["centre"],
        eigenvalues=arrays["eigenvalues"],
        landmark_indices=arrays.get("landmark_indices"),
        way_back=way_back,
        **plain,
    )


def _read(group: zarr.Group, name: str, path: Path) -> NDArray[Any]:
    return read_array(group[name], _KINDS[name], f"{path} is not a usable model: array {name}")


def _check(arrays: dict[str, NDArray[Any]], attributes: dict[str, Any], path: Path) -> None:
    finite = all(np.isfinite(values).all() for values in arrays.values())
    require(finite, path, "it holds numbers that are not finite")
    landmarks, values = arrays["landmarks"], arrays["eigenvalues"]
    usable = landmarks.ndim == 2 and landmarks.size > 0 and values.ndim == 1 and len(values) > 0
    require(usable, path, "its shapes do not agree")
    (m, d), k = landmarks.shape, len(values)
    shapes = {
        "coefficients": (m, k),
        "centre": (m,),
        "landmark_indices": (m,),
        "way_back_scores": (m, k),
        "way_back_dual": (m, d),
    }
    agree = all(arrays[name].shape == shape for name, shape in shapes.items() if name in arrays)
    require(agree and ("way_back_scores" in arrays) == ("way_back_dual" in arrays), path, "its shapes do not agree")
    ordered = bool((values >= 0).all() and (np.diff(values) <= 0).all())
    require(ordered, path, "its eigenvalues are not in descending order")
    indices = arrays.get("landmark_indices", np.zeros(1, dtype=np.int64))
    ranges = {
        "landmark_indices": bool(((indices >= 0) & (indices < attributes["n_samples"])).all()),
        "n_samples": attributes["n_samples"] > 0,
        "method": attributes["method"] in _METHODS,
        "total": bool(np.isfinite(attributes["total"])),
    }
    for name, within in ranges.items():
        require(within, path, f"{name} is out of range: {attributes.get(name, 'rows that do not exist')!r}")
