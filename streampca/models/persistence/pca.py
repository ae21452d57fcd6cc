"""Fields of a PCA model on disk: how they are taken from a model, and a model is built from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

from streampca.models.analysis import AnalysisModel, settings_from
from streampca.models.certificates import certificate_of
from streampca.models.fit_record import ARRAYS as FIT_ARRAYS
from streampca.models.fit_record import source_of
from streampca.models.pca import PCAModel
from streampca.models.persistence.groups import GroupFormat, StoredGroup, create_array, digest, write_array
from streampca.models.persistence.labels import NAMES as LABELS
from streampca.models.persistence.labels import labels_from
from streampca.models.rotated import METHODS, RotatedModel, Rotation, rotated_model
from streampca.models.sampling_errors import SamplingErrors
from streampca.models.stored_components import Components, StoredComponents, Survey, slab_features, survey
from streampca.models.validity import require_valid
from streampca.regressors import Basis, FittedRegression, RowRegressors
from streampca.storage.zarr_interface import ZarrArray
from streampca.system.process import available_bytes
from streampca.typing import Array, FloatArray, Json

FORMAT = "streampca-model"
VERSIONS = (1, 2)
"""Version 1 is that of streampca 0.1, which has no record of the fit, and names of features among the attributes."""
_ARRAYS = {
    "components": "f",
    "explained_variance": "f",
    "mean": "f",
    "scale": "f",
    "constant_features": "i",
    "feature_weight": "f",
    "fill": "f",
    "eigenvalues": "f",
    "prediction_errors": "f",
}
_AXES = ("mode", "feature")
_REMOVAL_ARRAYS = {"removal_coefficients": "f", "removal_groups": "i", "removal_columns": "f"}
_ROTATION = {"rotation": "f"}
_ANALYSIS = {"patterns": "f", "uniquenesses": "f", "prediction": "f"}
_REMOVAL_BYTES = 256 * 2**20
"""Largest size in bytes of the regressors of the rows of a fit that are saved."""
_SLABS_FROM = 2**30
"""Size in bytes of components from which they are saved as slabs of features, as those on disk are."""
_ON_DISK_SHARE = 0.25
"""Share of the available memory beyond which components that were saved as slabs stay on disk."""
FORM = GroupFormat(
    format=FORMAT,
    title="streampca model",
    noun="model",
    versions=VERSIONS,
    kind="pca",
    arrays=_ARRAYS | _REMOVAL_ARRAYS | _ROTATION | _ANALYSIS | FIT_ARRAYS,
    axes={
        "components": _AXES,
        "explained_variance": ("mode",),
        "mean": ("feature",),
        "scale": ("feature",),
        "constant_features": ("constant_feature",),
        "feature_weight": ("feature",),
        "fill": ("feature",),
        "eigenvalues": ("eigenvalue",),
        "prediction_errors": ("number_of_components",),
        "feature_name_ends": ("feature",),
        "rotation": ("mode", "rotated_mode"),
        "patterns": _AXES,
        "uniquenesses": ("feature",),
        "prediction": ("pair", "second_feature"),
        "removal_coefficients": ("regressor", "feature"),
        "removal_groups": ("row",),
        "removal_columns": ("row", "regressor_column"),
    },
    further=LABELS,
    required=frozenset({"components", "explained_variance", "mean", "constant_features"}),
    attributes={
        "total_variance": (int, float),
        "n_samples": (int,),
        "ddof": (int,),
        "center": (bool,),
        "whiten": (bool,),
        "numerical_rank": (int,),
        "certificate": (dict,),
        "source": (dict,),
        "sample_weight": (int, float, type(None)),
        "missing": (str,),
        "missing_scores": (str,),
        "labels": (dict, type(None)),
        "removal": (dict, type(None)),
        "rotation": (dict, type(None)),
        "analysis": (dict, type(None)),
        "noise_edge": (int, float, type(None)),
        "residual_moments": (list,),
        "sampling_errors": (dict, type(None)),
    },
    defaults={
        "missing": "error",
        "missing_scores": "mean",
        "removal": None,
        "rotation": None,
        "analysis": None,
        "noise_edge": None,
        "residual_moments": [],
        "sampling_errors": None,
    },
)


def fields_of(model: PCAModel, group: zarr.Group, path: Path) -> tuple[dict[str, Array | None], Json, dict[str, str]]:
    """Write the components to `group`; return the other arrays, the attributes, and the digest of the components.

    Raises
    ------
    ModelError
        If arrays and numbers do not agree with each other.
    """
    rotation = model.rotation if isinstance(model, RotatedModel) else None
    model = model.before_rotation
    surveyed = _write_components(group, model.components)
    require_valid(model, surveyed, path)
    arrays = {name: getattr(model, name) for name in _ARRAYS if name != "components"}
    analysis = model if isinstance(model, AnalysisModel) else None
    written = (name for name in FORM.attributes if name not in ("removal", "rotation", "analysis"))
    attributes = {name: getattr(model, name) for name in written}
    attributes["analysis"] = None if analysis is None else analysis.settings()
    for name in _ANALYSIS:
        arrays[name] = None if analysis is None else getattr(analysis, name)
    attributes["certificate"] = model.certificate.to_dict()
    attributes["rotation"] = None if rotation is None else rotation.to_dict()
    attributes["sampling_errors"] = None if model.sampling_errors is None else model.sampling_errors.to_dict()
    removal, rows = model.removal, None if model.removal is None else model.removal.rows
    attributes["removal"] = None if removal is None else removal.basis.to_dict() | {"rank": removal.rank}
    attributes["residual_moments"] = list(model.residual_moments)
    arrays["rotation"] = None if rotation is None else rotation.matrix
    arrays["removal_coefficients"] = None if removal is None else removal.coefficients
    if rows is not None and rows.codes.nbytes + rows.columns.nbytes <= _REMOVAL_BYTES:
        arrays |= {"removal_groups": rows.codes, "removal_columns": rows.columns if rows.columns.size else None}
    return arrays, attributes, {"components": surveyed.digest}


def _removal_of(group: StoredGroup, mean: FloatArray) -> FittedRegression | None:
    """Return what the stored model removes; `ModelError` if its arrays and attributes do not agree."""
    written = group.attributes["removal"]
    group.require((written is None) == ("removal_coefficients" not in group), "what it removes is incomplete")
    if written is None:
        return None
    try:
        basis = Basis.from_dict(written)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise group.form.unusable(group.path, f"what it removes is damaged: {error}") from error
    coefficients, rows = group.array("removal_coefficients"), None
    good = coefficients.shape == (basis.n_groups + basis.n_columns, len(mean)) and bool(np.isfinite(coefficients).all())
    group.require(good, "the coefficients of what it removes are damaged")
    if "removal_groups" in group:
        codes = group.array("removal_groups")
        columns = group.array("removal_columns") if "removal_columns" in group else np.empty((len(codes), 0))
        good = codes.ndim == 1 and columns.shape == (len(codes), basis.n_columns) and bool(np.isfinite(columns).all())
        good = good and bool(((codes >= 0) & (codes < basis.n_groups)).all())
        group.require(good, "the regressors of what it removes are damaged")
        rows = RowRegressors(codes, columns, basis.n_groups)
    rank = written.get("rank")
    group.require(
        rank is None or (type(rank) is int and 0 < rank <= len(coefficients)), "the rank of what it removes is damaged"
    )
    return FittedRegression(basis, coefficients, mean, rows, rank)


def sampling_errors_of(group: StoredGroup, n_components: int) -> SamplingErrors | None:
    """Return the sampling errors that `group` holds for `n_components`, None if there are none; `ModelError` if damaged."""

    def read(written: Json | None) -> SamplingErrors | None:
        return None if written is None else SamplingErrors.from_dict(written, n_components)

    return group.part("sampling_errors", read)


def build(group: StoredGroup, *, slabs_on_disk: bool = False) -> PCAModel:
    """Return the model that `group` holds; `ModelError` if its values are not those of a model.

    With `slabs_on_disk`, components that were saved as slabs of features are not loaded, however small they are.
    """
    arrays: Json = {name: group.array(name) if name in group else None for name in _ARRAYS if name != "components"}
    arrays["components"] = components = _components_of(group, slabs_on_disk)
    usable = len(components.shape) == 2 and 0 < components.shape[0] <= components.shape[1]
    group.require(usable, "its shapes do not agree")
    surveyed = survey(components)
    by_rows = str(group.digests.get("components")).startswith("rows:")  # not in models of early versions
    group.require_digest("components", surveyed.digest if by_rows else digest(np.asarray(components)))
    n_features = components.shape[1]
    described: Json = {"source": source_of(group, n_features), "labels": labels_from(group, n_features)}
    described["removal"] = _removal_of(group, arrays["mean"])
    described["certificate"] = group.part("certificate", certificate_of)
    moments = group.attributes["residual_moments"]
    group.require(all(type(each) is float for each in moments), "its residual_moments are damaged")
    described["residual_moments"] = tuple(moments)
    described["sampling_errors"] = sampling_errors_of(group, len(components))
    written = group.attributes | described
    settings, analysis = written.pop("rotation"), written.pop("analysis")
    model = PCAModel(**arrays, **written) if analysis is None else _analysis_of(group, analysis, arrays, written)
    require_valid(model, surveyed, group.path)
    group.require((settings is None) == ("rotation" not in group), "its rotation is incomplete")
    return model if settings is None else rotated_model(model, _rotation_of(group, settings, model))


def _analysis_of(group: StoredGroup, analysis: Json, arrays: Json, written: Json) -> AnalysisModel:
    """Return the stored model of an analysis; `ModelError` if its arrays and settings do not agree."""
    m, d = arrays["components"].shape
    further: Json = {name: group.array(name) if name in group else None for name in _ANALYSIS}
    patterns, unique = further["patterns"], further["uniquenesses"]
    good = patterns is not None and patterns.shape == (m, d) and bool(np.isfinite(patterns).all())
    good = good and (unique is None or (unique.shape == (d,) and bool(np.isfinite(unique).all())))
    settings, prediction = settings_from(analysis, m, d), further["prediction"]
    if prediction is not None:
        n_first = settings["n_first"] or d
        good = good and prediction.shape == (m // 2, d - n_first) and bool(np.isfinite(prediction).all())
    group.require(good, "the arrays of its analysis are damaged")
    return AnalysisModel(**arrays, **written, **further, **settings)


def _rotation_of(group: StoredGroup, settings: Json, model: PCAModel) -> Rotation:
    """Return the rotation of the stored model; `ModelError` if its matrix and its settings are not those of one."""
    matrix = group.array("rotation")
    types = {"method": (str,), "normalize": (bool,), "power": (int, float)}
    good = set(settings) == set(types) and all(isinstance(settings[name], kinds) for name, kinds in types.items())
    good = good and settings["method"] in METHODS and matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
    good = good and len(matrix) <= model.numerical_rank and bool(np.isfinite(matrix).all())
    good = good and isinstance(model.components, np.ndarray) and bool(np.linalg.cond(matrix) < 1e12)
    group.require(good, "its rotation is damaged")
    return Rotation(**settings, matrix=matrix)


def saved_in_slabs(components: Components) -> bool:
    """Return whether components are saved as slabs of features, not as whole rows: those on disk, and large ones."""
    return isinstance(components, StoredComponents) or components.nbytes > _SLABS_FROM


def _write_components(group: zarr.Group, components: Components) -> Survey:
    """Write components and return their survey: as whole rows, or slab by slab where they are on disk or large."""
    if isinstance(components, np.ndarray) and not saved_in_slabs(components):
        write_array(group, "components", components, _AXES)
        return survey(components)
    width = components.width if isinstance(components, StoredComponents) else slab_features(len(components))
    array = create_array(group, "components", components, (len(components), min(width, components.shape[1])), _AXES)
    return survey(components, lambda features, slab: array.set_basic_selection((slice(None), features), slab))


def _components_of(group: StoredGroup, slabs_on_disk: bool) -> Components:
    """Return the components, in memory or on disk; their digest is not checked here."""
    array = group.zarr_array("components", in_memory=False)
    if _in_slabs(array) and (slabs_on_disk or array.nbytes > _ON_DISK_SHARE * available_bytes()):
        return StoredComponents.open(group.path / "components")
    return group.values(group.zarr_array("components"))


def _in_slabs(array: ZarrArray) -> bool:
    if len(array.shape) != 2 or not array.chunks[0] >= array.shape[0] > 0 or array.dtype != np.float64:
        return False
    return bool(8 * array.chunks[0] * array.chunks[1] <= array.nbytes // 2)
