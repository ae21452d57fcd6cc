"""Fields of a state on disk: the group ``state`` of a saved model, to which rows can be added and other models merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import zarr

from streampca.accumulators import Covariance, PairwiseCovariance, QRFactor, Sketch
from streampca.accumulators.base import AnyAccumulator
from streampca.errors import DataError, ModelError, ParameterError
from streampca.linalg.scaling import Scale, stored_scale
from streampca.linalg.selection import from_plain, to_plain
from streampca.models.persistence.groups import GroupFormat, StoredGroup, open_strictly, read_group, write_group
from streampca.models.state import AGREE, FittedState, text_arrays, texts_of, without_names
from streampca.parameters import Parameters
from streampca.sources.files.records import Fragment
from streampca.sources.zarr.digests import DOCUMENT, StoreRecord, arrays_of_record, record_from
from streampca.typing import Array, Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from streampca.models.pca import PCAModel


GROUP = "state"
FORM = GroupFormat(
    format="streampca-state",
    title="streampca state",
    noun="state",
    versions=(1,),
    attributes={
        "accumulator": (str,),
        "configuration": (dict,),
        "numbers": (dict,),
        "parameters": (dict,),
        "solver": (str,),
        "work_dtype": (str,),
        "source": (dict,),
        "magnified": (int, float),
        "exact": (bool,),
        "weighted": (bool,),
        "n_left_out": (int,),
    },
    defaults={"weighted": False},
)
_ACCUMULATORS: dict[str, type] = {
    "Covariance": Covariance,
    "Pairwise": PairwiseCovariance,
    "Sketch": Sketch,
    "Triangle": QRFactor,
}
"""Accumulators whose states are saved, by the names that files have for them since version 0.1."""
_NAMES = {cls: name for name, cls in _ACCUMULATORS.items()}


def has_state(path: str | Path) -> bool:
    """Return whether the saved model at `path` holds a state."""
    return (Path(path) / GROUP / "zarr.json").is_file()


def describe_state(path: str | Path) -> str:
    """Return a sentence about the state of the saved model at `path`; reads metadata only."""
    if not has_state(path):
        return (
            "none: rows can be added and models merged only where the state was saved (state=True, output.state: true)"
        )
    try:
        attributes: Json = dict(open_strictly(Path(path) / GROUP).attrs)
        rows, name = int(attributes["numbers"]["n_samples"]), str(attributes["accumulator"])
    except Exception as error:
        raise ModelError(f"{path} holds a state that cannot be read: {type(error).__name__}") from error
    return f"{name} of {rows:,} rows: rows can be added, and models merged"


def state_bytes(fitted: FittedState) -> int:
    """Return the size of the arrays of a state."""
    return sum(value.nbytes for value in _values_of(fitted.state).values() if isinstance(value, np.ndarray))


def write_state(fitted: FittedState, path: Path) -> None:
    """Write the state, in the tiles that it is held in, beside the arrays of the model at `path`."""
    values, accumulator, parameters = _values_of(fitted.state), fitted.accumulator, fitted.parameters
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    numbers = {name: _plain(value) for name, value in values.items() if name not in arrays}
    arrays |= {f.name: getattr(accumulator, f.name) for f in _configuration(accumulator, arrays=True)}
    arrays |= arrays_of_fragments(fitted.fragments) | arrays_of_record(fitted.stored)
    attributes = {
        "accumulator": _NAMES[type(accumulator)],
        "configuration": {f.name: _plain(getattr(accumulator, f.name)) for f in _configuration(accumulator)},
        "numbers": numbers,
        "parameters": {
            name: _plain(getattr(parameters, name)) for name in (*AGREE, "seed", "solver") if name != "feature_weight"
        },
        "solver": fitted.solver,
        "work_dtype": fitted.work_dtype,
        "source": without_names(fitted.source)[0],
        "magnified": float(fitted.error_growth),
        "exact": fitted.exact,
        "weighted": fitted.weighted,
        "n_left_out": int(fitted.n_left_out),
    }
    group = zarr.open_group(path / GROUP, mode="a", zarr_format=3)
    write_group(group, FORM, arrays | {"feature_weight": parameters.feature_weight}, attributes)


def load_record(path: str | Path) -> StoreRecord | None:
    """Read the record of chunks of the saved model at `path`; None without one, `ModelError` if it is damaged."""
    return read_group(Path(path) / GROUP, FORM, _record) if has_state(path) else None


def load_state(path: str | Path, model: PCAModel) -> FittedState | None:
    """Read the state of the saved `model` at `path`, with the names and labels of its features; None if it was saved without one.

    Raises
    ------
    ModelError
        If it is damaged, of another version, or not the state of such a model.
    """
    if not has_state(path):
        return None
    return read_group(Path(path) / GROUP, FORM, lambda group: _build(group, model))


def _build(group: StoredGroup, model: PCAModel) -> FittedState:
    attributes, n_features = group.attributes, model.n_features
    names = model.source.get("feature_names")
    group.require(isinstance(attributes["solver"], str), f"solver {attributes['solver']!r} is not known")
    accumulator = _accumulator_of(group, n_features)
    empty = accumulator.init(n_features)
    values = {name: _value_of(group, name, value) for name, value in _values_of(empty).items()}
    return FittedState(
        solver=attributes["solver"],
        accumulator=accumulator,
        state=type(empty)(**values),
        parameters=_parameters_of(group, n_features),
        work_dtype=str(np.dtype(attributes["work_dtype"])),
        source=attributes["source"] | ({} if names is None else {"feature_names": names}),
        error_growth=float(attributes["magnified"]),
        exact=attributes["exact"],
        weighted=attributes["weighted"],
        n_left_out=attributes["n_left_out"],
        labels=model.labels,
        fragments=fragments_from(group),
        stored=_record(group),
    )


def _record(group: StoredGroup) -> StoreRecord | None:
    """Return the record of the chunks whose rows are in the state, None where the group has none."""
    if DOCUMENT not in group:
        group.require(DOCUMENT not in group.digests, "the record of its chunks is missing")
        return None
    try:
        return record_from(lambda name: group.array(name, "u"))
    except DataError as error:
        raise ModelError(f"{group.path}: the record of its chunks is damaged: {error}") from error


def _accumulator_of(group: StoredGroup, n_features: int) -> AnyAccumulator:
    """Return the accumulator of the state, made from its stored configuration."""
    name, configuration = group.attributes["accumulator"], dict(group.attributes["configuration"])
    group.require(name in _ACCUMULATORS, f"accumulator {name!r} is not known")
    configuration["scale"] = _scale(group, configuration, n_features)
    plain = all(type(value) in (bool, int, float, str) for name, value in configuration.items() if name != "scale")
    group.require(plain, "its configuration is damaged")
    group.require(configuration.get("tile_size", 1) >= 1, "its tile_size is not positive")
    if name != "Sketch":
        accumulator: AnyAccumulator = _ACCUMULATORS[name](**configuration)
        return accumulator
    test = group.array("test", "f")
    fits = test.ndim == 2 and len(test) == n_features and test.dtype in (np.float32, np.float64)
    group.require(fits, "its test matrix does not fit")
    sketch = Sketch(**(configuration | {"test": test, "key": ""}))
    group.require(sketch.key == configuration["key"], "its test matrix is not the one that was saved")
    return sketch


def _scale(group: StoredGroup, stored: Json, n_features: int) -> Scale:
    """Return the parameter `scale`, or the edges of variables, from JSON data."""
    try:
        return stored_scale(stored.get("scale", False), n_features)
    except ValueError as error:
        raise group.form.unusable(group.path, str(error)) from error


def _value_of(group: StoredGroup, name: str, empty: object) -> object:
    """Return one value of a state, of the type and shape that `empty` has in the state of no rows."""
    if isinstance(empty, np.ndarray):
        return group.array_like(name, empty)
    value = group.attributes["numbers"][name]
    if isinstance(empty, str):
        group.require(value == empty, f"{name} is {value!r}, expected {empty!r}")
        return value
    good = type(value) in (int, float) and np.isfinite(value) and value >= 0
    group.require(good, f"{name} is {value!r}, expected a number of at least 0")
    return int(value) if isinstance(empty, int) else float(value)


def _parameters_of(group: StoredGroup, n_features: int) -> Parameters:
    stored: Json = dict(group.attributes["parameters"])
    stored["scale"] = _scale(group, stored, n_features)
    if stored.get("missing") in ("mean", "pairwise"):
        stored.setdefault("missing_scores", "mean")  # of version 0.1
    if isinstance(stored.get("n_components"), dict):
        try:
            stored["n_components"] = from_plain(stored["n_components"])
        except ParameterError as error:
            raise ModelError(f"{group.path}: {error}") from error
    if "feature_weight" in group:
        stored["feature_weight"] = group.array("feature_weight", "f")
    known = {f.name for f in fields(Parameters)}
    group.require(set(stored) <= known, "its parameters are not those of this version")
    return Parameters(**stored)


def _values_of(state: DataclassInstance) -> Json:
    return {f.name: getattr(state, f.name) for f in fields(state)}


def _configuration(accumulator: DataclassInstance, *, arrays: bool = False) -> list[Field[object]]:
    """Return the fields of an accumulator on which its state depends: the arrays among them, or the others."""
    entering = [f for f in fields(accumulator) if f.compare]
    return [f for f in entering if isinstance(getattr(accumulator, f.name), np.ndarray) == arrays]


def _plain(value: object) -> object:
    """Return a parameter as JSON data."""
    return value.item() if isinstance(value, np.generic) else to_plain(value)


_TEXTS = ("name", "fingerprint")
_NUMBERS = ("n_rows", "n_bytes", "modified")
_FIELDS = tuple(field.name for field in fields(Fragment))


def arrays_of_fragments(fragments: Sequence[Fragment]) -> dict[str, Array]:
    """Return the records as arrays of numbers with an entry for each file; none without files."""
    if not fragments:
        return {}
    arrays: dict[str, Array] = {
        f"fragment_{field}": np.array([getattr(each, field) for each in fragments], dtype=np.int64)
        for field in _NUMBERS
    }
    for field in _TEXTS:
        texts, ends = text_arrays(getattr(each, field) for each in fragments)
        arrays |= {f"fragment_{field}": texts, f"fragment_{field}_ends": ends}
    return arrays


def fragments_from(group: StoredGroup) -> tuple[Fragment, ...]:
    """Return the records that `arrays_of_fragments` made; none where the group has none, `ModelError` if they are damaged."""
    if "fragment_n_rows" not in group:
        group.require("fragment_n_rows" not in group.digests, "the records of its files are missing")
        return ()
    try:
        values = {field: group.array(f"fragment_{field}", "i").tolist() for field in _NUMBERS}
        for field in _TEXTS:
            name = f"fragment_{field}"
            values[field] = texts_of(group.array(name, "u"), group.array(f"{name}_ends", "i"))
        return tuple(Fragment(*entry) for entry in zip(*(values[f] for f in _FIELDS), strict=True))
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{group.path}: the records of its files are damaged: {error}") from error
