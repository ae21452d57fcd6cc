"""What is saved beside the numbers of a model: parameters, plan and reads of its fit, and the names of its features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.models.persistence.reading import require

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
    """What an estimator knows of its fit beside the model, as plain data."""

    parameters: dict[str, Any]
    """Constructor parameters by name; one that is an array is ``{"array": name}``."""
    plan: dict[str, Any] | None = None
    """The plan as `Plan.to_dict` gives it, without its edges; None where nothing was read by a fit."""
    n_passes: int | None = None
    """Readings of the source by the fit."""
    bytes_read: int | None = None
    """Decoded bytes of these readings."""
    written_by: str = ""
    """Version of streampca that wrote it."""
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    """``plan_edges``, ``sampling`` and ``eigenvectors``, where there are such; see `ARRAYS`."""

    def to_attributes(self) -> dict[str, Any]:
        """Return what goes into the attributes of the group of the model."""
        names = ("parameters", "plan", "n_passes", "bytes_read", "written_by")
        return {name: getattr(self, name) for name in names}


def record_from(attributes: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], path: Path) -> FitRecord | None:
    """Return the record in the attributes and arrays of a model, None in models of version 1.

    Raises
    ------
    ModelError
        If a value is not of its type.
    """
    written: Any = attributes.get("fit")
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
    require(good, path, "what it says of its fit is damaged")
    return FitRecord(**written, arrays={n: v for n, v in arrays.items() if n in ARRAYS and n not in _NAMES})


def arrays_of_names(names: list[str] | None) -> dict[str, NDArray[Any]]:
    """Return names of features as arrays: their UTF-8 bytes one after the other, and where each of them ends."""
    if names is None:
        return {}
    encoded = [str(name).encode("utf-8", "surrogatepass") for name in names]
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    return dict(zip(_NAMES, (np.frombuffer(b"".join(encoded), dtype=np.uint8), ends), strict=True))


def names_from(arrays: Mapping[str, NDArray[Any]], n_features: int, path: Path) -> list[str] | None:
    """Return the names that `arrays_of_names` made arrays of, None if there are none.

    Raises
    ------
    ModelError
        If they are not `n_features` texts.
    """
    if not any(name in arrays for name in _NAMES):
        return None
    good = all(name in arrays and arrays[name].ndim == 1 for name in _NAMES)
    require(good, path, "the arrays of its feature names are incomplete")
    data, ends = (arrays[name] for name in _NAMES)
    starts = np.concatenate([[0], ends[:-1]])
    good = data.dtype == np.uint8 and len(ends) == n_features and bool((starts <= ends).all()) and ends[-1] == len(data)
    require(good, path, f"its feature names are not {n_features:,} texts")
    whole = data.tobytes()
    try:
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return [whole[start:end].decode("utf-8", "surrogatepass") for start, end in pairs]
    except UnicodeDecodeError:
        require(False, path, f"its feature names are not {n_features:,} texts")
        raise


def without_names(source: dict[str, Any]) -> tuple[dict[str, Any], list[str] | None]:
    """Return what is known of a source without the names of its features, and these names."""
    names = source.get("feature_names")
    return {key: value for key, value in source.items() if key != "feature_names"}, names or None
