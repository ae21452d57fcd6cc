"""The accumulated state of a fit, with its parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import ModelError
from streampca.labels import Labels
from streampca.models.plain import hints_of, values_of
from streampca.parameters import PCA_PARAMETERS, Parameters
from streampca.sources.files.records import Fragment
from streampca.typing import Array, FloatArray, Json

if TYPE_CHECKING:
    from streampca.models.persistence.groups import StoredGroup
    from streampca.sources.zarr.digests import StoreRecord
ARRAYS = {
    "feature_name_bytes": "u",
    "feature_name_ends": "i",
    "plan_edges": "i",
    "sampling": "if",
    "eigenvectors": "f",
}
"""Arrays beside those of the model, and the kinds of their data types."""
_NAMES = ("feature_name_bytes", "feature_name_ends")
AGREE = tuple(parameter.name for parameter in PCA_PARAMETERS if parameter.of_states)
"""Parameters that enter the state or the model made from it."""


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


@dataclass(frozen=True)
class FittedState:
    """The state of a fit with the configuration that it was made with."""

    solver: str
    """Name of the solver."""
    accumulator: Any
    """Accumulator of the rows."""
    state: Any
    """The accumulated state."""
    parameters: Parameters
    """Parameters of the fit."""
    work_dtype: str
    """Data type of the products."""
    source: Json
    """Description of the source of the first rows."""
    error_growth: float = 1.0
    """Factor by which removed rows have increased the relative rounding of the state."""
    exact: bool = False
    """Whether all rows were small integers, whose products are not rounded in whatever type they are taken."""
    weighted: bool = False
    """Whether rows have weights other than 1."""
    n_left_out: int = 0
    """Rows that were left out because values are missing in them."""
    labels: Labels | None = None
    """Labels of the features, and of as many samples as there are; None where the data had none."""
    fragments: tuple[Fragment, ...] = ()
    """Records of the files whose rows are in the state; none of rows that came from elsewhere."""
    groups: tuple[Any, ...] = ()
    """States of groups of its rows, for cross-validation or sampling errors; empty where no reading kept them."""
    stored: StoreRecord | None = None
    """The record of the zarr arrays whose rows, and no others, are in the state, where one was made."""
    removed: tuple[FloatArray, FloatArray] | None = None
    """Means of the rows, and mean squares of what regression removed of them, ``(n_features,)`` each; None where nothing was removed."""

    @property
    def n_features(self) -> int:
        """Return the number of features."""
        return len(self.state.mean)

    @property
    def solvable(self) -> bool:
        """Return whether there are more rows than `ddof`, so that variances exist."""
        if not self.state.n_samples:
            return False
        return bool(self.accumulator.divisor(self.state) > 0)


def with_writable_state(fitted: FittedState) -> FittedState:
    """Return `fitted` with a state that rows can be added to, which is a copy if one of its arrays is read-only.

    joblib maps the arrays of estimators that it sends to other processes, or loads with ``mmap_mode="r"``, and such maps
    are read-only.
    """
    return fitted if _is_writable(fitted.state) else replace(fitted, state=copy.deepcopy(fitted.state))


def _is_writable(value: object) -> bool:
    """Return whether no array in `value`, a state or a part of one, is read-only."""
    if isinstance(value, np.ndarray):
        return value.flags.writeable
    if isinstance(value, tuple):
        return all(map(_is_writable, value))
    if is_dataclass(value):
        return all(_is_writable(getattr(value, field.name)) for field in fields(value))
    return True
