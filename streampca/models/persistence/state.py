"""States on disk: the group ``state`` of a saved model, from which adding rows and merging go on."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from streampca.accumulators import Covariance, PairwiseCovariance, QRFactor, Sketch
from streampca.errors import ModelError, ParameterError
from streampca.linalg.selection import Threshold
from streampca.models.fit_record import without_names
from streampca.models.persistence.pca import digest, write_array
from streampca.models.persistence.reading import open_strictly, read_array, require, require_sealed, write_attributes
from streampca.models.state import AGREE, CONTINUED, FittedState
from streampca.parameters import Parameters

GROUP = "state"
FORMAT = "streampca-state"
FORMAT_VERSION = 1
_ACCUMULATORS: dict[str, type] = {
    "Covariance": Covariance,
    "Pairwise": PairwiseCovariance,
    "Sketch": Sketch,
    "Triangle": QRFactor,
}
"""Accumulators whose states are saved, by the names that files have for them since version 0.1."""
_NAMES = {cls: name for name, cls in _ACCUMULATORS.items()}


def has_state(path: str | Path) -> bool:
    """Tell whether the saved model at `path` holds a state."""
    return (Path(path) / GROUP / "zarr.json").is_file()


def describe_state(path: str | Path) -> str:
    """Return in words whether the saved model at `path` holds a state; reads metadata only."""
    if not has_state(path):
        return (
            "none: rows can be added and models merged only where the state was saved (state=True, output.state: true)"
        )
    try:
        attributes: dict[str, Any] = dict(open_strictly(Path(path) / GROUP).attrs)
        rows, name = int(attributes["numbers"]["n_samples"]), str(attributes["accumulator"])
    except Exception as error:
        raise ModelError(f"{path} holds a state that cannot be read: {type(error).__name__}") from error
    return f"{name} of {rows:,} rows: rows can be added, and models merged"


def state_bytes(kept: FittedState) -> int:
    """Return the size of the arrays of a state."""
    return sum(value.nbytes for value in _values_of(kept.state).values() if isinstance(value, np.ndarray))


def write_state(kept: FittedState, path: Path) -> None:
    """Write the state beside the arrays of the model at `path`, in the tiles it is kept in."""
    group = zarr.open_group(path / GROUP, mode="a", zarr_format=3)
    values = _values_of(kept.state)
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    weight = kept.parameters.feature_weight
    if weight is not None:
        arrays["feature_weight"] = weight
    arrays |= {f.name: getattr(kept.accumulator, f.name) for f in _configuration(kept.accumulator, arrays=True)}
    for name, array in arrays.items():
        write_array(group, name, array)
    parameters = {name: _plain(getattr(kept.parameters, name)) for name in (*AGREE, "seed") if name != "feature_weight"}
    write_attributes(
        group,
        {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "accumulator": _NAMES[type(kept.accumulator)],
            "configuration": {
                f.name: _plain(getattr(kept.accumulator, f.name)) for f in _configuration(kept.accumulator)
            },
            "numbers": {name: _plain(value) for name, value in values.items() if name not in arrays},
            "parameters": {**parameters, "solver": kept.parameters.solver},
            "solver": kept.solver,
            "work_dtype": kept.work_dtype,
            "source": without_names(kept.source)[0],
            "magnified": float(kept.error_growth),
            "exact": kept.exact,
            "n_left_out": int(kept.n_left_out),
            "sha256": {name: digest(array) for name, array in arrays.items()},
        },
    )


def load_state(path: str | Path, n_features: int) -> FittedState | None:
    """Read the state of the saved model at `path`, which has `n_features` features; None if it was saved without one.

    Raises
    ------
    ModelError
        If it is damaged, of another version, or not the state of such a model.
    """
    if not has_state(path):
        return None
    try:
        return _read_state(Path(path) / GROUP, n_features)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{path} holds a state that cannot be read: {' '.join(str(error).split())[:200] or type(error).__name__}"
        ) from error


def _read_state(path: Path, n_features: int) -> FittedState:
    group = open_strictly(path)
    attributes: dict[str, Any] = dict(group.attrs)
    found = (attributes.get("format"), attributes.get("version"))
    _require(found == (FORMAT, FORMAT_VERSION), path, f"its format is {found!r}, expected {(FORMAT, FORMAT_VERSION)!r}")
    name, solver = attributes.get("accumulator"), attributes.get("solver")
    _require(name in _ACCUMULATORS, path, f"accumulator {name!r} is not known")
    _require(solver in CONTINUED, path, f"solver {solver!r} is not known")
    configuration: Any = attributes["configuration"]
    _require(
        all(type(value) in (bool, int, float, str) for value in configuration.values()),
        path,
        "its configuration is damaged",
    )
    _require(configuration.get("tile_size", 1) >= 1, path, "its tile_size is not positive")
    if name == "Sketch":
        test = read_array(group["test"], "f", f"{path} is not a usable state: array test")
        _require(
            test.ndim == 2 and len(test) == n_features and test.dtype in (np.float32, np.float64),
            path,
            "its test matrix does not fit",
        )
        key, configuration = configuration["key"], configuration | {"test": test, "key": ""}
    accumulator = _ACCUMULATORS[str(name)](**configuration)
    _require(name != "Sketch" or accumulator.key == key, path, "its test matrix is not the one that was saved")
    empty = accumulator.init(n_features)
    values = {name: _read(group, name, value, attributes, path) for name, value in _values_of(empty).items()}
    parameters = _parameters(group, attributes, path)
    require_sealed(attributes, path)
    return FittedState(
        solver=str(solver),
        accumulator=accumulator,
        state=type(empty)(**values),
        parameters=parameters,
        work_dtype=str(np.dtype(attributes["work_dtype"])),
        source=dict(attributes["source"]),
        error_growth=float(attributes["magnified"]),
        exact=attributes["exact"] is True,
        n_left_out=int(attributes["n_left_out"]),
    )


def _read(group: zarr.Group, name: str, empty: Any, attributes: dict[str, Any], path: Path) -> Any:
    """Return one value of a state, of the type and shape that `empty` has in the state of no rows."""
    if not isinstance(empty, np.ndarray):
        value = attributes["numbers"][name]
        if isinstance(empty, str):
            _require(value == empty, path, f"{name} is {value!r}, expected {empty!r}")
            return value
        good = type(value) in (int, float) and np.isfinite(value) and value >= 0
        _require(good, path, f"{name} is {value!r}, expected a number of at least 0")
        return type(empty)(value)
    array = group[name]
    if not isinstance(array, zarr.Array) or array.shape != empty.shape or array.dtype != empty.dtype:
        raise ModelError(f"{path}: array {name} is not of shape {empty.shape} and type {empty.dtype}")
    out = np.empty_like(empty)  # in the memory order that the accumulator works in
    out[...] = read_array(array, array.dtype.kind, f"{path} is not a usable state: array {name}")
    _require(
        attributes["sha256"].get(name) == digest(out), path, f"array {name} does not have the SHA-256 saved with it"
    )
    _require(bool(np.isfinite(out).all()), path, f"array {name} holds numbers that are not finite")
    return out


def _parameters(group: zarr.Group, attributes: dict[str, Any], path: Path) -> Parameters:
    plain: dict[str, Any] = dict(attributes["parameters"])
    if plain.get("missing") in ("mean", "pairwise"):
        plain.setdefault("missing_scores", "mean")  # of version 0.1
    if isinstance(plain.get("n_components"), dict):
        try:
            plain["n_components"] = Threshold(plain["n_components"]["threshold"])
        except ParameterError as error:
            raise ModelError(f"{path}: {error}") from error
    if "feature_weight" in group:
        weight = read_array(group["feature_weight"], "f", f"{path} is not a usable state: array feature_weight")
        good = attributes["sha256"].get("feature_weight") == digest(weight)
        _require(good, path, "array feature_weight does not have the SHA-256 saved with it")
        plain["feature_weight"] = weight
    _require(set(plain) <= {f.name for f in fields(Parameters)}, path, "its parameters are not those of this version")
    return Parameters(**plain)


def _values_of(state: Any) -> dict[str, Any]:
    return {f.name: getattr(state, f.name) for f in fields(state)}


def _configuration(accumulator: Any, *, arrays: bool = False) -> list[Any]:
    """Return the fields that enter the state, those that are arrays or the others; what is left out changes the time only."""
    entering = [f for f in fields(accumulator) if f.compare]
    return [f for f in entering if isinstance(getattr(accumulator, f.name), np.ndarray) == arrays]


def _plain(value: Any) -> Any:
    """Return what JSON holds of a parameter."""
    if isinstance(value, Threshold):
        return {"threshold": float(value.eps)}
    return value.item() if isinstance(value, np.generic) else value


def _require(holds: bool, path: Path, otherwise: str) -> None:
    require(holds, path, otherwise, "state")
