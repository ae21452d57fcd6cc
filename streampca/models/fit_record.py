"""The record of a fit that is saved with its model, parameters, plan and reads, the names of the features, and texts as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from streampca.errors import ModelError
from streampca.models.plain import hints_of, values_of
from streampca.typing import Array, Json

if TYPE_CHECKING:
    from streampca.models.persistence.groups import StoredGroup


def text_arrays(texts: Iterable[object]) -> tuple[Array, Array]:
    """Return bytes, ``uint8``, and ends, ``int64``, of some texts."""
    encoded = [str(text).encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends


def texts_of(data: Array, ends: Array) -> list[str]:
    """Return the texts that `text_arrays` has written; `ValueError` if they are damaged."""
    if data.ndim != 1 or ends.ndim != 1 or data.dtype != np.uint8:
        raise ValueError("the arrays of texts are no vectors")
    starts = np.concatenate([[0], ends[:-1]])
    if not bool((starts <= ends).all()) or (int(ends[-1]) if len(ends) else 0) != len(data):
        raise ValueError("the ends of texts are not in order")
    text, pairs = data.tobytes(), zip(starts.tolist(), ends.tolist(), strict=True)
    return [text[start:end].decode("utf-8", "surrogatepass") for start, end in pairs]


ARRAYS = {
    "feature_name_bytes": "u",
    "feature_name_ends": "i",
    "plan_edges": "i",
    "sampling": "if",
    "eigenvectors": "f",
}
"""Arrays beside those of the model, and the kinds of their data types."""
_NAMES = ("feature_name_bytes", "feature_name_ends")


@dataclass(frozen=True)
class FitRecord:
    """Parameters, plan and reads of a fit, as plain data."""

    parameters: Json
    """Constructor parameters by name; one that is an array is ``{"array": name}``."""
    plan: Json | None = None
    """The plan as `Plan.to_dict` gives it, without its edges; None where nothing was read by a fit."""
    n_passes: int | None = None
    """Readings of the source by the fit."""
    bytes_read: int | None = None
    """Decoded bytes of these readings."""
    written_by: str = ""
    """Version of streampca that wrote it."""
    arrays: dict[str, Array] = field(default_factory=dict)
    """``plan_edges``, ``sampling`` and ``eigenvectors``, if the fit has them; see `ARRAYS`."""

    def to_attributes(self) -> Json:
        """Return the fields that are stored as attributes of the model's group."""
        names = ("parameters", "plan", "n_passes", "bytes_read", "written_by")
        return {name: getattr(self, name) for name in names}


def record_from(group: StoredGroup) -> FitRecord | None:
    """Return the record in a stored model, None in models of version 1; `ModelError` if a value is not of its type."""
    written = group.stored_attributes.get("fit")
    if written is None:
        return None
    group.require(isinstance(written, dict), "the record of its fit is damaged")
    hints = {name: hint for name, hint in hints_of(FitRecord).items() if name != "arrays"}
    try:
        named = values_of(hints, written, "the record of its fit is")
    except ModelError as error:
        raise group.form.unusable(group.path, str(error)) from error
    good = all((named[name] or 0) >= 0 for name in ("n_passes", "bytes_read"))
    group.require(good, "the record of its fit is damaged")
    arrays = {name: group.array(name) for name in ARRAYS if name in group and name not in _NAMES}
    return FitRecord(**named, arrays=arrays)


def arrays_of_names(names: list[str] | None) -> dict[str, Array]:
    """Return names of features as two arrays: their concatenated UTF-8 bytes, and the end of each name in them."""
    if names is None:
        return {}
    return dict(zip(_NAMES, text_arrays(names), strict=True))


def source_of(group: StoredGroup, n_features: int) -> Json:
    """Return the description of the source in a stored model, with the names of its features.

    Raises
    ------
    ModelError
        If the names are not `n_features` strings.
    """
    source: Json = group.attributes["source"]
    message = f"its feature names are not {n_features:,} texts"
    stored = source.get("feature_names")  # of models of version 1
    is_list = isinstance(stored, list) and len(stored) == n_features and all(isinstance(name, str) for name in stored)
    group.require(stored is None or is_list, message)
    if not any(name in group for name in _NAMES):
        return source
    group.require(all(name in group for name in _NAMES), "the arrays of its feature names are incomplete")
    data, ends = (group.array(name) for name in _NAMES)
    group.require(ends.shape == (n_features,), message)
    try:
        names = texts_of(data, ends)
    except ValueError as error:
        raise group.form.unusable(group.path, message) from error
    return source | {"feature_names": names}


def without_names(source: Json) -> tuple[Json, list[str] | None]:
    """Return the description of a source without the names of its features, and these names."""
    names = source.get("feature_names")
    return {key: value for key, value in source.items() if key != "feature_names"}, names or None
