"""The record of a fit that is saved with its model: parameters, plan and reads, and the names of the features."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streampca.models.persistence.texts import text_arrays, texts_of
from streampca.typing import Array, Json

if TYPE_CHECKING:
    from streampca.models.persistence.groups import StoredGroup

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
    types: dict[str, tuple[type, ...]] = {
        "parameters": (dict,),
        "plan": (dict, type(None)),
        "n_passes": (int, type(None)),
        "bytes_read": (int, type(None)),
        "written_by": (str,),
    }
    good = isinstance(written, dict) and set(written) == set(types)
    good = good and all(type(written[name]) in kinds for name, kinds in types.items())
    good = good and all((written[name] or 0) >= 0 for name in ("n_passes", "bytes_read"))
    group.require(good, "the record of its fit is damaged")
    arrays = {name: group.array(name) for name in ARRAYS if name in group and name not in _NAMES}
    return FitRecord(**written, arrays=arrays)


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
