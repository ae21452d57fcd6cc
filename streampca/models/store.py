"""Models on disk: a zarr group of plain numeric arrays and JSON attributes, checked when it is read; never pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from streampca.engine.memory import available_bytes
from streampca.engine.output import Aside
from streampca.errors import ModelError
from streampca.models.pca import PCAModel
from streampca.models.reading import (
    names_of,
    open_strictly,
    read_array,
    require,
    require_array,
    require_sealed,
    write_attributes,
)
from streampca.models.stored_components import Components, StoredComponents, Survey, slab_features, slabs_of, survey

FORMAT = "streampca-model"
FORMAT_VERSION = 1
_ARRAYS = ("components", "explained_variance", "mean", "scale", "constant_features", "feature_weight", "fill")
_SLABS_FROM = 2**30
"""Size of components from which they are saved as slabs of features, as those on disk are."""
_ON_DISK_SHARE = 0.25
"""Share of the available memory beyond which components that were saved as slabs stay on disk."""
_PLAIN = ("total_variance", "n_samples", "ddof", "center", "whiten", "numerical_rank", "certificate", "source")


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
    model: PCAModel, path: str | Path, *, overwrite: bool = False, beside: Callable[[Path], None] | None = None
) -> Path:
    """Write `model` to a zarr group at `path`, and what `beside` writes into the same group: whole or not at all.

    Raises
    ------
    OutputError
        If something is there that is not a model, or is one and `overwrite` is not set.
    """
    finite = all(np.isfinite(slab).all() for _, slab in slabs_of(model.components))
    if not finite or not np.isfinite(model.explained_variance).all():
        raise ModelError("the model holds numbers that are not finite and is not saved")
    with Aside(Path(path), "model", overwrite=overwrite) as aside:
        write_model(model, aside)
        if beside is not None:
            beside(aside)
    return Path(path)


def write_model(model: PCAModel, path: Path) -> None:
    """Write the group of `model` to the empty directory `path`."""
    group = zarr.open_group(path, mode="a", zarr_format=3)
    digests = {}
    for name in _ARRAYS:
        values = getattr(model, name)
        if name == "components":
            digests[name] = _write_components(group, values)
        elif values is not None:
            write_array(group, name, values)
            digests[name] = digest(values)
    attributes = {name: getattr(model, name) for name in (*_PLAIN, "sample_weight", "missing", "missing_scores")}
    write_attributes(
        group, {"format": FORMAT, "version": FORMAT_VERSION, "kind": "pca", "sha256": digests, **attributes}
    )


def _write_components(group: zarr.Group, components: Components) -> str:
    """Write components and return their digest: as whole rows, or slab by slab where they are on disk or large."""
    if not isinstance(components, StoredComponents) and components.nbytes <= _SLABS_FROM:
        write_array(group, "components", components)
        return survey(components).digest
    width = components.width if isinstance(components, StoredComponents) else slab_features(len(components))
    array = group.create_array(
        "components",
        shape=components.shape,
        chunks=(len(components), min(width, components.shape[1])),
        dtype=components.dtype,
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
        config={"write_empty_chunks": True},
    )
    return survey(components, lambda part, slab: array.set_basic_selection((slice(None), part), slab)).digest


def load_model(path: str | Path) -> PCAModel:
    """Read the model at `path`; components of more than a quarter of the available memory stay on disk.

    (Unless they were saved as whole rows, as those of less than 1 GiB are.)

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
        require(
            attributes.get("version") == FORMAT_VERSION,
            path,
            f"it has format version {attributes.get('version')!r}, expected {FORMAT_VERSION}",
        )
        arrays = {name: _read(group, name, path) for name in _ARRAYS if name in group}
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
    digests: Any = attributes.get("sha256")
    require(isinstance(digests, dict) and set(digests) == set(arrays), path, "its arrays are not those that were saved")
    looked = _survey(arrays, path)
    for name, values in arrays.items():
        by_rows = name == "components" and str(digests[name]).startswith("rows:")  # not in models of early versions
        found = looked.digest if by_rows else digest(values)
        require(digests[name] == found, path, f"array {name} does not have the SHA-256 that was saved with it")
    plain: dict[str, Any] = {name: attributes.get(name) for name in _PLAIN}
    plain["sample_weight"] = attributes.get("sample_weight")
    plain["missing"] = attributes.get("missing", "error")
    plain["missing_scores"] = attributes.get("missing_scores", "mean")  # of version 0.1
    _check(arrays, plain, looked, path)
    require_sealed(attributes, path)
    names_of(plain["source"], arrays["components"].shape[1], path)
    return PCAModel(
        components=arrays["components"],
        explained_variance=arrays["explained_variance"],
        mean=arrays["mean"],
        scale=arrays.get("scale"),
        feature_weight=arrays.get("feature_weight"),
        fill=arrays.get("fill"),
        constant_features=arrays["constant_features"],
        **plain,
    )


def _survey(arrays: dict[str, Any], path: Path) -> Survey:
    require("components" in arrays, path, "arrays are missing")
    components = arrays["components"]
    usable = len(components.shape) == 2 and 0 < components.shape[0] <= components.shape[1]
    require(usable, path, "its shapes do not agree")
    return survey(components)


def _read(group: zarr.Group, name: str, path: Path) -> Any:
    array, label = group[name], f"{path} is not a usable model: array {name}"
    kind = "i" if name == "constant_features" else "f"
    require_array(array, kind, label, in_memory=False)
    if name == "components" and _stays_on_disk(array):
        return StoredComponents.open(path / name)
    return read_array(array, kind, label)


def _stays_on_disk(array: Any) -> bool:
    if len(array.shape) != 2 or not array.chunks[0] >= array.shape[0] > 0 or array.dtype != np.float64:
        return False
    in_slabs = 8 * array.chunks[0] * array.chunks[1] <= array.nbytes // 2
    return bool(in_slabs and array.nbytes > _ON_DISK_SHARE * available_bytes())


def _check(arrays: dict[str, Any], plain: dict[str, Any], looked: Survey, path: Path) -> None:
    require(
        {"components", "explained_variance", "mean", "constant_features"} <= set(arrays), path, "arrays are missing"
    )
    components, values = arrays["components"], arrays["explained_variance"]
    require(
        values.shape == components.shape[:1] and len(values) > 0,
        path,
        "its shapes do not agree",
    )
    for name in ("mean", "scale", "feature_weight", "fill"):
        require(
            name not in arrays or arrays[name].shape == components.shape[1:],
            path,
            f"the shape of {name} does not agree",
        )
    finite = looked.finite and all(np.isfinite(a).all() for name, a in arrays.items() if name != "components")
    require(finite, path, "it holds numbers that are not finite")
    require(
        bool((values >= 0).all() and (np.diff(values) <= 0).all()), path, "its variances are not in descending order"
    )
    error = looked.orthonormality
    tolerance = 1e-8 if components.dtype == np.float64 else 1e-5
    require(error <= tolerance, path, f"its components are not orthonormal (by {error:.1e})")
    types: dict[str, Any] = {
        "total_variance": (int, float),
        "n_samples": int,
        "ddof": int,
        "center": bool,
        "whiten": bool,
        "numerical_rank": int,
    }
    for name, kind in types.items():
        exact = isinstance(plain[name], kind) and (kind is bool or not isinstance(plain[name], bool))
        require(exact, path, f"attribute {name} is {plain[name]!r}")
    d, n = components.shape[1], plain["n_samples"]
    weight, missing = plain["sample_weight"], plain["missing"]
    ranges = {
        "total_variance": bool(np.isfinite(plain["total_variance"]))
        and plain["total_variance"] * (1 + 1e-6) >= float(values.sum()),
        "n_samples": n > 0,
        "sample_weight": weight is None or (type(weight) in (int, float) and bool(np.isfinite(weight)) and weight > 0),
        "missing": missing in ("error", "drop_rows", "mean", "pairwise"),
        "missing_scores": plain["missing_scores"] in ("conditional", "mean"),
        "fill": ("fill" in arrays) == (missing in ("mean", "pairwise")),
        "feature_weight": bool((arrays.get("feature_weight", np.ones(1)) >= 0).all()),
        "ddof": 0 <= plain["ddof"] < max(n, 1),
        "numerical_rank": 0 <= plain["numerical_rank"] <= len(values),
        "constant_features": bool(((arrays["constant_features"] >= 0) & (arrays["constant_features"] < d)).all()),
    }
    for name, within in ranges.items():
        require(within, path, f"{name} is out of range: {plain.get(name, 'features that do not exist')}")
    require(
        isinstance(plain["certificate"], dict) and isinstance(plain["source"], dict),
        path,
        "its attributes are incomplete",
    )


def digest(values: NDArray[Any]) -> str:
    """Return the SHA-256 of the values in C order."""
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()
