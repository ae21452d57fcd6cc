"""Models of every kind on disk: the types of their fields determine the stored form; one function saves and one loads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
import zarr

from streampca.errors import ModelError, ParameterError
from streampca.formatting import shortened
from streampca.kernels import Kernel, Standardised, kernel_from_dict
from streampca.models.analysis import OWN_ARRAYS, AnalysisModel, settings_from
from streampca.models.certificates import any_certificate_of
from streampca.models.kernel import KernelModel, PreimageMap
from streampca.models.pca import SLABS_FROM, Model, PCAModel
from streampca.models.persistence.groups import (
    GroupFormat,
    StoredGroup,
    create_array,
    digest,
    kind_of,
    read_group,
    write_array,
    write_group,
)
from streampca.models.persistence.labels import NAMES as LABELS
from streampca.models.persistence.labels import arrays_of_labels, labels_from
from streampca.models.persistence.state import load_state
from streampca.models.plain import hints_of, plain, values_of, without_alias
from streampca.models.rotated import RotatedModel, Rotation, rotated_model
from streampca.models.sampling_errors import SamplingErrors
from streampca.models.state import ARRAYS as FIT_ARRAYS
from streampca.models.state import FitRecord, FittedState, arrays_of_names, record_from, source_of, without_names
from streampca.models.stored import (
    BAND_ROWS,
    Components,
    StoredComponents,
    StoredRows,
    Survey,
    slab_features,
    survey,
    survey_rows,
)
from streampca.parameters.statement import Method, Missing
from streampca.regressors import Basis, FittedRegression, RowRegressors
from streampca.storage.directories import RECORD, AtomicDirectory, read_record, read_unreplaced
from streampca.system.process import available_bytes
from streampca.typing import Array, FloatArray, Json

FORMAT = "streampca-model"
VERSIONS = (1, 2)
"""Version 1 is that of streampca 0.1, which has no record of the fit, and names of features among the attributes."""
_AXES = ("mode", "feature")
_PREIMAGE = ("way_back_scores", "way_back_dual")
_MOMENTS = ("feature_mean", "feature_factor")
_REMOVAL_BYTES = 256 * 2**20
"""Largest size in bytes of the regressors of the rows of a fit that are saved."""
_ON_DISK_SHARE = 0.25
"""Share of the available memory beyond which components that were saved as slabs, and landmarks in bands, stay on disk."""
_T = TypeVar("_T")
_NOT_USABLE = " is not a usable model: "
_PLAIN: dict[object, tuple[type, ...]] = {
    NoneType: (NoneType,),
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    tuple: (list,),
}
"""Types of JSON by those of fields; all others are mappings."""


def _form(
    model: type,
    kind: str,
    title: str,
    *,
    axes: Mapping[str, tuple[str, ...]],
    arrays: Mapping[str, str],
    attributes: tuple[str, ...] = (),
) -> GroupFormat:
    """Return the format of the models of a class: fields that are arrays are arrays, and all others attributes.

    `arrays` and `attributes`, which are mappings or None, are further ones, of what is stored in several parts.
    """
    own: dict[str, str] = {}
    types: dict[str, tuple[type, ...]] = {}
    hints = get_type_hints(model, localns={"Kernel": Kernel})
    stored = [field for field in fields(model) if field.metadata.get("stored", True)]
    optional = {field.name: plain(field.default) for field in stored if field.default is not MISSING}
    for field in stored:
        hint = hints[field.name]
        options = tuple(map(without_alias, get_args(hint) if get_origin(hint) is UnionType else (hint,)))
        array = next((each for each in options if get_origin(each) is np.ndarray), None)
        if array is not None:
            (number,) = get_args(get_args(array)[1])
            own[field.name] = "f" if number is Any else np.dtype(number).kind
        elif PreimageMap not in options:
            types[field.name] = tuple(t for each in options for t in _PLAIN.get(get_origin(each) or each, (dict,)))
    return GroupFormat(
        format=FORMAT,
        title=title,
        noun="model",
        versions=VERSIONS,
        kind=kind,
        arrays={**own, **arrays, **FIT_ARRAYS},
        axes={"feature_name_ends": ("feature",), **axes},
        further=LABELS,
        required=frozenset(own.keys() - {name for name in own if NoneType in get_args(hints[name])}),
        attributes=types | dict.fromkeys(attributes, (dict, NoneType)),
        defaults={name: value for name, value in optional.items() if name in types} | dict.fromkeys(attributes),
    )


PCA = _form(
    PCAModel,
    "pca",
    "streampca model",
    arrays={
        **dict.fromkeys(OWN_ARRAYS, "f"),
        "rotation": "f",
        "removal_coefficients": "f",
        "removal_groups": "i",
        "removal_columns": "f",
    },
    attributes=("analysis", "rotation"),
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
        "rotation": ("mode", "rotated_mode"),
        "patterns": _AXES,
        "uniquenesses": ("feature",),
        "prediction": ("pair", "second_feature"),
        "removal_coefficients": ("regressor", "feature"),
        "removal_groups": ("row",),
        "removal_columns": ("row", "regressor_column"),
    },
)
KERNEL = _form(
    KernelModel,
    "kernel_pca",
    "streampca kernel model",
    arrays=dict.fromkeys((*_PREIMAGE, *_MOMENTS), "f"),
    axes={
        "landmarks": ("landmark", "feature"),
        "coefficients": ("landmark", "mode"),
        "centre": ("landmark",),
        "eigenvalues": ("mode",),
        "landmark_indices": ("landmark",),
        "feature_mean": ("feature",),
        "feature_factor": ("feature",),
        "way_back_scores": ("landmark", "mode"),
        "way_back_dual": ("landmark", "feature"),
        "eigenvectors": ("sample", "mode"),
    },
)


def save_model(
    model: Model,
    path: str | Path,
    *,
    overwrite: bool = False,
    beside: Callable[[Path], None] | None = None,
    fit: FitRecord | None = None,
) -> Path:
    """Write `model`, and the record of its `fit`, to a zarr group at `path` that is complete or absent.

    `beside` is called with the directory before it is complete and may write more groups into it.

    Raises
    ------
    ModelError
        If its numbers are not finite or do not agree, or its kernel is a callable, so that it could not be loaded.
    OutputError
        If something else than a model is at `path`, or a model is and `overwrite` is not set.
    """
    with AtomicDirectory(Path(path), "model", overwrite=overwrite) as directory:
        write_model(model, directory, fit)
        if beside is not None:
            beside(directory)
    return Path(path)


def write_model(model: Model, path: Path, fit: FitRecord | None = None) -> None:
    """Write `model` and the record of its `fit` to the empty directory `path`; `ModelError` if it could not be loaded."""
    group = zarr.open_group(path, mode="a", zarr_format=3)
    form, stored = (KERNEL, model) if model.linear is None else (PCA, model.linear.before_rotation)
    named = {field.name: getattr(stored, field.name) for field in fields(cast(Any, stored))}
    try:
        attributes: Json = {
            name: value.to_dict() if hasattr(value, "to_dict") else plain(value)
            for name, value in named.items()
            if name in form.attributes
        }
        arrays = {name: value for name, value in named.items() if name in form.arrays and name not in attributes}
        if model.linear is None:
            digests = _parts_of_kernel(cast(KernelModel, model), arrays, group, path)
        else:
            digests = _parts_of_pca(model.linear, arrays, attributes, group, path)
    except ParameterError as error:
        raise ModelError(f"the model is not saved: {error}") from error
    except ModelError as error:
        raise ModelError(f"the model is not saved: {str(error).rpartition(_NOT_USABLE)[2]}") from error
    source, names = without_names(model.source)
    coordinates, labels, axes = arrays_of_labels(model.labels)
    arrays |= arrays_of_names(names) | ({} if fit is None else fit.arrays) | coordinates
    attributes |= {"source": source, "labels": labels, "fit": None if fit is None else fit.to_attributes()}
    write_group(group, form, arrays, attributes, digests, axes)


def _parts_of_pca(
    model: PCAModel, arrays: dict[str, Array | None], attributes: Json, group: zarr.Group, path: Path
) -> dict[str, str]:
    """Write the components to `group` and return their digest; add what is stored in several parts to arrays and attributes."""
    rotation = model.rotation if isinstance(model, RotatedModel) else None
    analysis = model if isinstance(model, AnalysisModel) else None
    model = model.before_rotation
    surveyed = _write_components(group, model.components)
    require_valid(model, surveyed, path)
    removal, rows = attributes.pop("removal"), None if model.removal is None else model.removal.rows
    del arrays["components"]
    attributes["analysis"] = None if analysis is None else analysis.settings()
    attributes["rotation"] = None if rotation is None else rotation.to_dict()
    attributes["removal"] = removal
    arrays["rotation"] = None if rotation is None else rotation.matrix
    arrays["removal_coefficients"] = None if model.removal is None else model.removal.coefficients
    if rows is not None and rows.codes.nbytes + rows.columns.nbytes <= _REMOVAL_BYTES:
        arrays |= {"removal_groups": rows.codes, "removal_columns": rows.columns if rows.columns.size else None}
    return {"components": surveyed.digest}


def _parts_of_kernel(
    model: KernelModel, arrays: dict[str, Array | None], group: zarr.Group, path: Path
) -> dict[str, str]:
    """Copy landmarks on disk to `group` and return their digest; add what is stored in several parts to arrays."""
    require_valid_kernel(model, path)
    if model.preimage is not None:
        arrays |= dict(zip(_PREIMAGE, (model.preimage.scores, model.preimage.dual), strict=True))
    if isinstance(model.kernel, Standardised):
        arrays |= dict(zip(_MOMENTS, model.kernel.moments(), strict=True))
    rows = model.landmarks
    if not isinstance(rows, StoredRows):
        return {}
    del arrays["landmarks"]
    array = create_array(group, "landmarks", rows, (BAND_ROWS, rows.shape[1]), KERNEL.axes["landmarks"])
    finite, found = survey_rows(rows, lambda band, values: array.set_basic_selection(band, values))
    require(finite, path, "it holds numbers that are not finite (landmarks)")
    return {"landmarks": found}


def _write_components(group: zarr.Group, components: Components) -> Survey:
    """Write components and return their survey: as whole rows, or slab by slab where they are on disk or large."""
    if isinstance(components, np.ndarray) and components.nbytes <= SLABS_FROM:
        write_array(group, "components", components, _AXES)
        return survey(components)
    width = components.width if isinstance(components, StoredComponents) else slab_features(len(components))
    array = create_array(group, "components", components, (len(components), min(width, components.shape[1])), _AXES)
    return survey(components, lambda features, slab: array.set_basic_selection((slice(None), features), slab))


def load_model(path: str | Path) -> PCAModel:
    """Read the PCA model at `path`; see `load_saved`."""
    model = load_saved(path)[0].linear
    if model is None:
        raise PCA.unusable(Path(path), f"it is not a {PCA.title}")
    return model


def load_saved(path: str | Path) -> tuple[Model, FitRecord | None]:
    """Read the model at `path` and the record of its fit, which is None where streampca 0.1 wrote it.

    Components that were saved as slabs of features, as those from 1 GiB on are, and landmarks that were on disk stay on disk if they
    take more than a quarter of the available memory.

    Raises
    ------
    ModelError
        If there is none, or it is damaged: arrays are checked for shape, type, finiteness, order, orthonormality and SHA-256.
    """
    if not Path(path).exists():
        raise ModelError(f"{path}: no such model")
    return read_stored(Path(path), lambda group: (build(group), record_from(group)))


def read_stored(path: Path, read: Callable[[StoredGroup], _T]) -> _T:
    """Return what `read` makes of the stored model at `path`, of either kind; `ModelError` if it is damaged."""
    kernel = kind_of(path) == (KERNEL.format, KERNEL.kind)
    return read_group(path, KERNEL if kernel else PCA, read)


def model_place(path: str | Path) -> Path:
    """Return where the model at `path`, a model or the directory of a run, lies.

    Raises
    ------
    ModelError
        If there is none, or nothing says that it is complete.
    """
    given = Path(path)
    place = given / "model.zarr" if os.path.isdir(given / "model.zarr") else given
    if not os.path.exists(place):  # which is false of names that are too long, too
        raise ModelError(f"{given}: no such model")
    if not place.is_dir():
        raise ModelError(f"{given} is a file: expected a model or the directory of a run")
    if (read_record(given) or {}).get("format") in ("streampca-models", "streampca-groups"):
        names = ", ".join(sorted(str(each) for each in (given / "models").iterdir()))
        raise ModelError(f"{given} holds several models: expected the directory of one of them, {names}")
    record, around = ((read_record(each) or {}).get("format") for each in (place, place.absolute().parent))
    if record == FORMAT or (place.name == "model.zarr" and around == "streampca-run"):
        return place
    if kind_of(place)[0] != FORMAT:
        raise ModelError(f"{given} is not a streampca model: expected the model.zarr of a run, or what save wrote")
    raise ModelError(
        f"{given} has no commit record ({RECORD}), so it may be incomplete: expected a model that save has written or a finished "
        "run, copied with all of its files"
    )


def load_state_with_labels(path: str | Path) -> tuple[PCAModel, FittedState | None]:
    """Read the model at `path`, a model or the directory of a run, and its state with the labels of the model, None if it has none.

    Raises
    ------
    ModelError
        If there is none, or it is damaged.
    """

    def read() -> tuple[PCAModel, FittedState | None]:
        place = model_place(path)
        model = load_model(place)
        return model, load_state(place, model)

    return read_unreplaced(Path(path), read)


def build(group: StoredGroup, *, slabs_on_disk: bool = False) -> Model:
    """Return the model that `group` holds; `ModelError` if its values are not those of a model.

    With `slabs_on_disk`, components that were saved as slabs of features are not loaded, however small they are.
    """
    apart = ("components", "landmarks", "rotation", *FIT_ARRAYS)
    names = (name for name in group.form.arrays if name not in apart and not name.startswith("removal_"))
    arrays: Json = {name: group.array(name) if name in group else None for name in names}
    if group.form is KERNEL:
        return _kernel_model(group, arrays)
    return _pca_model(group, arrays, _components_of(group, slabs_on_disk))


def _described(group: StoredGroup, n_features: int, n_components: int) -> Json:
    """Return the attributes of a stored model as the values of its fields."""

    def errors(written: Json | None) -> SamplingErrors | None:
        return None if written is None else SamplingErrors.from_dict(written, n_components)

    return group.attributes | {
        "source": source_of(group, n_features),
        "labels": labels_from(group, n_features),
        "certificate": group.part("certificate", any_certificate_of),
        "sampling_errors": group.part("sampling_errors", errors),
    }


def _pca_model(group: StoredGroup, arrays: Json, components: Components) -> PCAModel:
    """Return the model of components and other arrays that `group` holds."""
    usable = len(components.shape) == 2 and 0 < components.shape[0] <= components.shape[1]
    group.require(usable, "its shapes do not agree")
    surveyed = survey(components)
    by_rows = str(group.digests.get("components")).startswith("rows:")  # not in models of early versions
    group.require_digest("components", surveyed.digest if by_rows else digest(np.asarray(components)))
    named = _described(group, components.shape[1], len(components))
    moments, turned, analysis = named["residual_moments"], named.pop("rotation"), named.pop("analysis")
    group.require(all(type(each) is float for each in moments), "its residual_moments are damaged")
    named |= {"removal": _removal_of(group, arrays["mean"]), "residual_moments": tuple(moments)}
    further = {name: arrays.pop(name) for name in OWN_ARRAYS}
    named |= {"components": components, **arrays}
    model = PCAModel(**named) if analysis is None else _analysis_of(group, named, further)
    require_valid(model, surveyed, group.path)
    group.require((turned is None) == ("rotation" not in group), "its rotation is incomplete")
    return model if turned is None else rotated_model(model, _rotation_of(group, model))


def _kernel_model(group: StoredGroup, arrays: Json) -> KernelModel:
    """Return the model of landmarks and other arrays that `group` holds."""
    landmarks = _landmarks_of(group)
    preimage, moments = ([arrays.pop(name) for name in names] for names in (_PREIMAGE, _MOMENTS))
    whole = (preimage[0] is None) == (preimage[1] is None)
    group.require(whole and landmarks.ndim == 2, "its shapes do not agree")
    n_features = landmarks.shape[1]
    try:
        kernel = kernel_from_dict(group.attributes["kernel"])
    except ParameterError as error:
        raise group.form.unusable(group.path, str(error)) from error
    scaled = isinstance(kernel, Standardised)
    usable = all(scaled == (each is not None) for each in moments)
    usable = usable and (not scaled or all(_is_finite(each, (n_features,)) for each in moments))
    group.require(usable, "its means and deviations of features do not agree with its kernel")
    kernel = kernel.with_moments(*moments) if isinstance(kernel, Standardised) else kernel
    named = _described(group, n_features, len(arrays["eigenvalues"])) | arrays
    named |= {"kernel": kernel, "landmarks": landmarks}
    model = KernelModel(**named, preimage=None if preimage[0] is None else PreimageMap(*preimage))
    require_valid_kernel(model, group.path)
    return model


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
    good = _is_finite(coefficients, (basis.n_groups + basis.n_columns, len(mean)))
    group.require(good, "the coefficients of what it removes are damaged")
    if "removal_groups" in group:
        codes = group.array("removal_groups")
        columns = group.array("removal_columns") if "removal_columns" in group else np.empty((len(codes), 0))
        good = codes.ndim == 1 and _is_finite(columns, (len(codes), basis.n_columns))
        good = good and bool(((codes >= 0) & (codes < basis.n_groups)).all())
        group.require(good, "the regressors of what it removes are damaged")
        rows = RowRegressors(codes, columns, basis.n_groups)
    rank, n_samples = written.get("rank"), group.attributes.get("n_samples")
    # Within groups of rows there are the means of these, too.
    most = max(len(coefficients), n_samples if type(n_samples) is int else 0)
    group.require(rank is None or (type(rank) is int and 0 < rank <= most), "the rank of what it removes is damaged")
    return FittedRegression(basis, coefficients, mean, rows, rank)


def _analysis_of(group: StoredGroup, named: Json, further: Json) -> AnalysisModel:
    """Return the stored model of an analysis; `ModelError` if its arrays and settings do not agree."""
    m, d = named["components"].shape
    settings = group.part("analysis", lambda written: settings_from(written, m, d))
    patterns, unique, prediction = further.values()
    good = patterns is not None and _is_finite(patterns, (m, d)) and (unique is None or _is_finite(unique, (d,)))
    good = good and (prediction is None or _is_finite(prediction, (m // 2, d - (settings["n_first"] or d))))
    group.require(good, "the arrays of its analysis are damaged")
    return AnalysisModel(**named, **further, **settings)


def _rotation_of(group: StoredGroup, model: PCAModel) -> Rotation:
    """Return the rotation of the stored model; `ModelError` if its matrix and its settings are not those of one."""
    matrix, hints = group.array("rotation"), {**hints_of(Rotation)}
    del hints["matrix"]
    settings = group.part("rotation", lambda written: values_of(hints, written, "its rotation is"))
    good = matrix.ndim == 2 and 0 < len(matrix) <= model.numerical_rank and _is_finite(matrix, (len(matrix),) * 2)
    good = good and isinstance(model.components, np.ndarray) and bool(np.linalg.cond(matrix) < 1e12)
    group.require(good, "its rotation is damaged")
    return Rotation(**settings, matrix=matrix)


def _components_of(group: StoredGroup, slabs_on_disk: bool) -> Components:
    """Return the components, in memory or on disk; their digest is not checked here."""
    array = group.zarr_array("components", in_memory=False)
    whole_columns = len(array.shape) == 2 and array.chunks[0] >= array.shape[0] > 0 and array.dtype == np.float64
    in_slabs = whole_columns and 8 * array.chunks[0] * array.chunks[1] <= array.nbytes // 2
    if in_slabs and (slabs_on_disk or array.nbytes > _ON_DISK_SHARE * available_bytes()):
        return StoredComponents.open(group.path / "components")
    return group.values(group.zarr_array("components"))


def _landmarks_of(group: StoredGroup) -> Array | StoredRows:
    """Return the landmarks: on disk if they were saved in bands and take more than a quarter of the available memory."""
    array = group.zarr_array("landmarks", in_memory=False)
    banded = len(array.shape) == 2 and array.chunks == (BAND_ROWS, array.shape[1])
    if not banded or array.nbytes <= _ON_DISK_SHARE * available_bytes():
        return group.array("landmarks")
    rows = StoredRows.open(group.path / "landmarks")
    finite, found = survey_rows(rows)
    group.require_digest("landmarks", found)
    group.require(finite, "it holds numbers that are not finite (landmarks)")
    return rows


def _is_finite(values: Array, shape: tuple[int, ...]) -> bool:
    return values.shape == shape and bool(np.isfinite(values).all())


_MISSING = get_args(Missing)
_METHODS = set(get_args(Method)) - {"auto"}


def require(condition: bool, path: Path, reason: str) -> None:
    """Raise `ModelError` with `reason` about the model at `path` unless `condition` is true."""
    if not condition:
        raise ModelError(f"{path} is not a usable model: {shortened(reason)}")


def require_valid(model: PCAModel, components: Survey, path: Path) -> None:
    """Raise `ModelError` unless the arrays and numbers of `model` agree with each other; `components` is their survey.

    Saving and loading call this one function, so that a model that was saved can be loaded.
    """
    d, values = model.components.shape[1], model.explained_variance
    require(values.shape == (len(model.components),), path, "its shapes do not agree")
    vectors = {name: getattr(model, name) for name in ("mean", "scale", "feature_weight", "fill")}
    for name, vector in vectors.items():
        require(vector is None or vector.shape == (d,), path, f"the shape of {name} does not agree")
    others = [vector for vector in (values, *vectors.values()) if vector is not None]
    finite = components.finite and all(np.isfinite(vector).all() for vector in others)
    require(finite, path, "it holds numbers that are not finite")
    ordered = bool((values >= 0).all()) and (not model.has_spectrum or bool((np.diff(values) <= 0).all()))
    require(ordered, path, "its variances are not in descending order")
    every = model.eigenvalues
    if every is not None:
        ordered = every.ndim == 1 and len(values) <= len(every) <= d and bool(np.isfinite(every).all())
        ordered = ordered and bool((every >= 0).all() and (np.diff(every) <= 0).all())
        require(ordered, path, "its eigenvalues are not all in descending order")
    errors = model.prediction_errors
    if errors is not None:
        good = errors.ndim == 1 and 0 < len(errors) <= d and bool(np.isfinite(errors).all() and (errors >= 0).all())
        require(good, path, "its prediction_errors are damaged")
    error = components.orthonormality
    tolerance = 1e-8 if model.components.dtype == np.float64 else 1e-5
    require(error <= tolerance or not model.has_spectrum, path, f"its components are not orthonormal (by {error:.1e})")
    constant, weight, share = model.constant_features, model.sample_weight, model.feature_weight
    # Eigenvalues of approximate solvers may exceed the total in sum: those of the conversion are not below those of the covariance.
    total, exact = model.total_variance, model.certificate.kind == "exact" and model.has_spectrum
    ranges = {
        "total_variance": bool(np.isfinite(total)) and (not exact or total * (1 + 1e-6) >= float(values.sum())),
        "n_samples": model.n_samples > 0,
        "sample_weight": weight is None or (bool(np.isfinite(weight)) and weight > 0),
        "missing": model.missing in _MISSING,
        "missing_scores": model.missing_scores in ("conditional", "mean"),
        "fill": (model.fill is not None) == (model.missing in ("mean", "pairwise")),
        "feature_weight": share is None or bool((share >= 0).all()),
        # Weights may add up to more than ddof in a single row, so that only unweighted rows are counted.
        "ddof": model.ddof >= 0 and (weight is not None or model.ddof < model.n_samples),
        "numerical_rank": 0 <= model.numerical_rank <= len(values),
        "residual_moments": len(model.residual_moments) <= 2 and all(0 < each <= 1 for each in model.residual_moments),
        "constant_features": bool(((constant >= 0) & (constant < d)).all()),
    }
    for name, valid in ranges.items():
        value = getattr(model, name)
        shown = value if not isinstance(value, np.ndarray) else f"{len(value)} values"
        require(valid, path, f"{name} is out of range: {shown}")


def require_valid_kernel(model: KernelModel, path: Path) -> None:
    """Raise `ModelError` unless the arrays and numbers of `model` agree with each other, as `require_valid` does."""
    arrays = {name: getattr(model, name) for name in ("landmarks", "coefficients", "centre", "eigenvalues")}
    if isinstance(model.landmarks, StoredRows):
        del arrays["landmarks"]  # examined while they are read for their digest
    if model.preimage is not None:
        arrays |= {"way_back_scores": model.preimage.scores, "way_back_dual": model.preimage.dual}
    unusable = [name for name, values in arrays.items() if not np.isfinite(values).all()]
    require(not unusable, path, f"it holds numbers that are not finite ({', '.join(unusable)})")
    landmarks, values, indices = model.landmarks, model.eigenvalues, model.landmark_indices
    usable = landmarks.ndim == 2 and landmarks.size > 0 and values.ndim == 1 and len(values) > 0
    require(usable, path, "its shapes do not agree")
    (m, d), k = landmarks.shape, len(values)
    shapes = {"coefficients": (m, k), "centre": (m,), "way_back_scores": (m, k), "way_back_dual": (m, d)}
    agree = all(arrays[name].shape == shape for name, shape in shapes.items() if name in arrays)
    require(agree and (indices is None or indices.shape == (m,)), path, "its shapes do not agree")
    ordered = bool((values >= 0).all() and (np.diff(values) <= 0).all())
    require(ordered, path, "its eigenvalues are not in descending order")
    rows_exist = indices is None or bool(((indices >= 0) & (indices < model.n_samples)).all())
    ranges: dict[str, tuple[bool, object]] = {
        "landmark_indices": (rows_exist, "rows that do not exist"),
        "n_samples": (model.n_samples > 0, model.n_samples),
        "method": (model.method in _METHODS, model.method),
        "total": (bool(np.isfinite(model.total)), model.total),
    }
    for name, (valid, shown) in ranges.items():
        require(valid, path, f"{name} is out of range: {shown!r}")
