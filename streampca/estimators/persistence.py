"""Conversion of estimators to plain data and back: parameters, and the plan and reads of the fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import ModelError, StreamPCAError
from streampca.estimators.interface import BaseEstimator
from streampca.formatting import shortened
from streampca.kernels import Kernel, kernel_from_dict
from streampca.linalg.selection import Frobenius, Threshold, from_plain, to_plain
from streampca.models.state import FitRecord
from streampca.planning.plan import Plan, types_of_entries
from streampca.typing import Array, Json
from streampca.version import __version__

AnyPlan = TypeVar("AnyPlan", bound=Plan)

_NO_DATA = object()
_TYPES_OF_FIELDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
}


def record_of(
    estimator: BaseEstimator,
    *,
    plan: Plan | None,
    n_passes: int | None,
    bytes_read: int | None,
    eigenvectors: Array | None = None,
) -> FitRecord:
    """Return the parameters of `estimator` and the figures of its fit as plain data.

    A parameter that no file can hold, such as the function `progress`, is left out and has its default after loading; so is `device`,
    which is that of a machine.
    """
    arrays: dict[str, Array] = {}
    parameters: Json = {}
    for name, value in estimator.get_params(deep=False).items():
        if name == "feature_weight" and value is not None and not isinstance(value, str):
            parameters[name] = {"array": "feature_weight"}  # the model has it
        elif name == "sampling" and not isinstance(value, str):
            arrays["sampling"] = _landmarks(value)
            parameters[name] = {"array": "sampling"}
        elif name != "device" and (plain := _plain(value)) is not _NO_DATA:
            parameters[name] = plain
    written = None if plan is None else plan.to_dict()
    if written is not None and written["edges"] is not None:
        arrays["plan_edges"] = np.array(written.pop("edges"), dtype=np.int64)
        written["edges"] = None
    if eigenvectors is not None:
        arrays["eigenvectors"] = eigenvectors
    return FitRecord(parameters, written, n_passes, bytes_read, __version__, arrays)


def record_of_fitted(estimator: BaseEstimator) -> FitRecord:
    """Return the record of a fitted estimator, from its attributes."""
    known = estimator.__dict__
    return record_of(
        estimator,
        plan=known.get("plan_"),
        n_passes=known.get("n_passes_"),
        bytes_read=known.get("bytes_read_"),
        eigenvectors=known.get("eigenvectors_"),
    )


def parameters_from(record: FitRecord, arrays: Mapping[str, Array | None], known: set[str]) -> Json:
    """Return constructor parameters as `record_of` wrote them; `arrays` of the model may be among them.

    Raises
    ------
    ModelError
        If one of them is not among the `known` ones, or is damaged.
    """
    unknown = sorted(set(record.parameters) - known)
    if unknown:
        raise ModelError(
            f"it was fitted with the parameter {shortened(unknown[0])!r}, which streampca {__version__} does not have: streampca "
            f"{shortened(record.written_by)} wrote it; load it with that version"
        )
    available = {**arrays, **record.arrays}
    return {name: _value(name, plain, available) for name, plain in record.parameters.items()}


def plan_from(record: FitRecord, kind: type[AnyPlan]) -> AnyPlan | None:
    """Return the plan as `record_of` wrote it; `ModelError` if it is damaged."""
    if record.plan is None:
        return None
    written = record.plan | ({"edges": record.arrays["plan_edges"].tolist()} if "plan_edges" in record.arrays else {})
    for name, annotation in types_of_entries().items():
        types = _TYPES_OF_FIELDS.get(annotation)
        if types is not None and name in written and type(written[name]) not in types:
            raise ModelError(f"{name} of its plan is {shortened(repr(written[name]))}")
    try:
        plan = kind.from_dict(written)
        str(plan)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ModelError(f"its plan is damaged: {shortened(str(error))}") from error
    return plan


def _plain(value: object) -> object:
    """Return a parameter as JSON has it, `_NO_DATA` if it has no such form."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Threshold | Frobenius):
        return to_plain(value)
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, Kernel):
        try:
            return {"kernel": value.to_dict()}
        except StreamPCAError:
            return _NO_DATA
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        inner = {key: _plain(item) for key, item in value.items()}
        return _NO_DATA if _NO_DATA in inner.values() else {"mapping": inner}
    return _NO_DATA


def _value(name: str, plain: object, arrays: Mapping[str, Array | None]) -> object:
    """Return the parameter that `_plain` has written."""
    if not isinstance(plain, dict):
        return plain
    form = next(iter(plain), "")
    try:
        if form == "array":
            return np.array(arrays[plain[form]])
        if form == "mapping":
            return {str(key): _value(str(key), item, arrays) for key, item in plain[form].items()}
        if form == "kernel":
            return kernel_from_dict(plain[form])
        if form == "path":
            return Path(plain[form])
        if form in ("threshold", "frobenius"):
            return from_plain(plain)
    except (StreamPCAError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"parameter {name} is damaged: {shortened(str(error))}") from error
    raise ModelError(f"parameter {name} is {shortened(repr(plain))}, which streampca {__version__} does not know")


def _landmarks(sampling: ArrayLike) -> Array:
    """Return landmarks, or their row numbers, in a type that models on disk have."""
    given = np.asarray(sampling)
    if given.dtype.kind in "iu":
        return given.astype(np.int64)
    return given if given.dtype in (np.float32, np.float64) else given.astype(np.float32)
