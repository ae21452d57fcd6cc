"""Labels of a model on disk: names and sizes in an attribute, coordinates and the mask as arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

import numpy as np

from streampca.errors import ModelError
from streampca.labels import Dimension, Labels, Variable
from streampca.models.persistence.groups import StoredGroup
from streampca.models.state import text_arrays, texts_of
from streampca.typing import Array, Json, JsonValue

NAMES = re.compile(r"label_[A-Za-z0-9_]+")
"""Names of the arrays of labels."""
_MASK = "label_0_mask"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,80}(?<!_ends)")


def arrays_of_labels(labels: Labels | None) -> tuple[dict[str, Array], Json | None, dict[str, tuple[str, ...]]]:
    """Return coordinates and mask as arrays of numbers, everything else as plain data, and the dimensions of arrays."""
    if labels is None:
        return {}, None, {}
    arrays: dict[str, Array] = {}
    axes: dict[str, tuple[str, ...]] = {}
    document: Json = labels.to_dict()
    for index, (dimension, entry) in enumerate(zip(labels.features, document["features"], strict=True)):
        if dimension.alleles is not None:
            entry["alleles"] = name = f"label_{index}_alleles"
            arrays |= zip((name, f"{name}_ends"), text_arrays(dimension.alleles.tolist()), strict=True)
            axes[f"{name}_ends"] = (dimension.name,)
        if dimension.coordinate is None:
            continue
        name = f"label_{dimension.name if _PLAIN.fullmatch(dimension.name) else index}"
        stored, entry["type"] = _as_numbers(name, dimension.coordinate)
        entry["coordinate"] = name
        arrays |= stored
        axes |= dict.fromkeys(stored if entry["type"] != "text" else [f"{name}_ends"], (dimension.name,))
    if labels.mask is not None:
        arrays[_MASK] = labels.mask
    return arrays, document, axes


def labels_from(group: StoredGroup, n_features: int) -> Labels | None:
    """Return the labels of a stored model of `n_features` features, None if it has none; `ModelError` if they are damaged."""
    document = group.attributes["labels"]
    if document is None:
        return None
    try:
        samples = tuple(_dimension(group, entry) for entry in document["samples"])
        features = tuple(_dimension(group, entry) for entry in document["features"])
        variables = tuple(_variable(entry) for entry in document["variables"])
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise group.form.unusable(group.path, "its labels are damaged") from error
    mask = group.array(_MASK, "b") if _MASK in group else None
    labels = Labels(samples, features, variables, mask)
    sizes = {dimension.name: dimension.size for dimension in features}
    known = all(sizes.get(name) == size for v in variables for name, size in zip(v.dims, v.shape, strict=True))
    distinct = len({d.name for d in (*samples, *features)}) == len(samples) + len(features)
    whole = mask is None or mask.shape == (sum(v.size for v in variables),)
    fits = known and distinct and whole and len(samples) > 0 and len(variables) > 0
    group.require(fits and labels.n_features == n_features, "its labels are not those of its features")
    return labels


def _as_numbers(name: str, coordinate: Array) -> tuple[dict[str, Array], str | None]:
    """Return a coordinate as one array of numbers, or texts as two, and the type that they stand for."""
    kind = coordinate.dtype.kind
    if kind in "mM":
        return {name: coordinate.view(np.int64)}, str(coordinate.dtype)
    if kind in "iub":
        return {name: coordinate}, None
    if kind == "f":
        return {name: coordinate.astype(np.float64 if coordinate.dtype.itemsize > 4 else np.float32)}, None
    return dict(zip((name, f"{name}_ends"), text_arrays(coordinate.tolist()), strict=True)), "text"


def _dimension(group: StoredGroup, entry: Mapping[str, object]) -> Dimension:
    """Return a dimension with its coordinate; errors of Python if the entry is damaged."""
    name, size, attributes = entry["name"], entry["size"], entry["attributes"]
    if type(name) is not str or type(size) is not int or size < 0 or not isinstance(attributes, dict):
        raise ValueError(name)
    array, kind = entry.get("coordinate"), entry.get("type")
    values: Array | None = None
    if array is not None:
        if type(array) is not str or not NAMES.fullmatch(array) or array not in group:
            raise ValueError(name)
        if kind == "text":
            values = np.array(texts_of(group.array(array, "u"), group.array(f"{array}_ends", "i")))
        else:
            values = group.array(array, "iufb")
            if kind is not None:
                dtype = np.dtype(cast(str, kind))
                if dtype.kind not in "mM" or values.dtype != np.int64:
                    raise ValueError(kind)
                values = values.view(dtype)
        if values.shape != (size,):
            raise ValueError(name)
    alleles: Array | None = None
    if (array := entry.get("alleles")) is not None:  # models before these were saved have none
        if type(array) is not str or not NAMES.fullmatch(array) or array not in group:
            raise ValueError(name)
        alleles = np.array(texts_of(group.array(array, "u"), group.array(f"{array}_ends", "i")))
        if alleles.shape != (size,):
            raise ValueError(name)
    return Dimension(name, size, values, cast("dict[str, JsonValue]", attributes), alleles=alleles)


def _variable(entry: Mapping[str, object]) -> Variable:
    """Return a variable; errors of Python if the entry is damaged."""
    name, dims, shape, attributes = (entry[key] for key in ("name", "dims", "shape", "attributes"))
    texts = isinstance(dims, list) and all(type(dim) is str for dim in dims)
    counts = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not (texts and counts and isinstance(attributes, dict) and (name is None or type(name) is str)):
        raise ValueError(name)
    return Variable(name, tuple(cast("list[str]", dims)), tuple(cast("list[int]", shape)), attributes)
