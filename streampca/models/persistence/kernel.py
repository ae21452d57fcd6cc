"""Fields of a kernel PCA model on disk: how they are taken from a model, and a model is built from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

from streampca.errors import ModelError, ParameterError
from streampca.kernels import Standardised, kernel_from_dict
from streampca.models.certificates import KernelCertificate
from streampca.models.fit_record import ARRAYS as FIT_ARRAYS
from streampca.models.fit_record import source_of
from streampca.models.kernel import KernelModel, PreimageMap
from streampca.models.persistence.groups import GroupFormat, StoredGroup, create_array
from streampca.models.persistence.labels import NAMES as LABELS
from streampca.models.persistence.labels import labels_from
from streampca.models.persistence.pca import FORMAT, VERSIONS, sampling_errors_of
from streampca.models.stored_rows import BAND_ROWS, StoredRows, survey_rows
from streampca.models.validity import require, require_valid_kernel
from streampca.system.process import available_bytes
from streampca.typing import Array, Json

_REQUIRED = ("landmarks", "coefficients", "centre", "eigenvalues")
_PREIMAGE = ("way_back_scores", "way_back_dual")
_MOMENTS = ("feature_mean", "feature_factor")
_ON_DISK_SHARE = 0.25
"""Share of the available memory above which landmarks that were saved in bands stay on disk."""
_ARRAYS = dict.fromkeys(_REQUIRED, "f") | {"landmark_indices": "i"} | dict.fromkeys((*_PREIMAGE, *_MOMENTS), "f")
FORM = GroupFormat(
    format=FORMAT,
    title="streampca kernel model",
    noun="model",
    versions=VERSIONS,
    kind="kernel_pca",
    arrays=_ARRAYS | FIT_ARRAYS,
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
        "feature_name_ends": ("feature",),
    },
    further=LABELS,
    required=frozenset(_REQUIRED),
    attributes={
        "total": (int, float),
        "n_samples": (int,),
        "method": (str,),
        "center": (bool,),
        "sampling": (str,),
        "certificate": (dict,),
        "kernel": (dict,),
        "source": (dict,),
        "labels": (dict, type(None)),
        "sampling_errors": (dict, type(None)),
    },
    defaults={"sampling_errors": None},
)


def fields_of(
    model: KernelModel, group: zarr.Group, path: Path
) -> tuple[dict[str, Array | None], Json, dict[str, str]]:
    """Return the arrays and attributes of `model`, and the digests of landmarks on disk, which are copied to `group`.

    Raises
    ------
    ModelError
        If the kernel is a callable, or arrays and numbers do not agree with each other.
    """
    try:
        kernel = model.kernel.to_dict()
    except ParameterError as error:
        raise ModelError(str(error)) from error
    require_valid_kernel(model, path)
    arrays: dict[str, Array | None] = {name: getattr(model, name) for name in (*_REQUIRED, "landmark_indices")}
    digests = {}
    if isinstance(model.landmarks, StoredRows):
        del arrays["landmarks"]
        digests["landmarks"] = _copy_landmarks(model.landmarks, group, path)
    if model.preimage is not None:
        arrays |= dict(zip(_PREIMAGE, (model.preimage.scores, model.preimage.dual), strict=True))
    if isinstance(model.kernel, Standardised):
        arrays |= dict(zip(_MOMENTS, model.kernel.moments(), strict=True))
    errors = None if model.sampling_errors is None else model.sampling_errors.to_dict()
    attributes = {name: getattr(model, name) for name in FORM.attributes} | {
        "kernel": kernel,
        "certificate": model.certificate.to_dict(),
        "sampling_errors": errors,
    }
    return arrays, attributes, digests


def _copy_landmarks(rows: StoredRows, group: zarr.Group, path: Path) -> str:
    """Write `rows` to `group`, a band at a time, and return their digest; `ModelError` if they are not finite."""
    array = create_array(group, "landmarks", rows, (BAND_ROWS, rows.shape[1]), FORM.axes["landmarks"])
    finite, found = survey_rows(rows, lambda band, values: array.set_basic_selection(band, values))
    require(finite, path, "it holds numbers that are not finite (landmarks)")
    return found


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


def build(group: StoredGroup) -> KernelModel:
    """Return the model that `group` holds; `ModelError` if its values are not those of a model."""
    arrays: Json = {name: group.array(name) for name in _ARRAYS if name in group and name != "landmarks"}
    arrays["landmarks"] = _landmarks_of(group)
    preimage = [arrays.pop(name) for name in _PREIMAGE if name in arrays]
    group.require(len(preimage) != 1 and arrays["landmarks"].ndim == 2, "its shapes do not agree")
    moments = [arrays.pop(name) for name in _MOMENTS if name in arrays]
    try:
        kernel = kernel_from_dict(group.attributes["kernel"])
    except ParameterError as error:
        raise group.form.unusable(group.path, str(error)) from error
    values: Json = {name: arrays.get(name) for name in (*_REQUIRED, "landmark_indices")}
    n_features = arrays["landmarks"].shape[1]
    scaled = isinstance(kernel, Standardised)
    usable = all(each.shape == (n_features,) and np.isfinite(each).all() for each in moments)
    group.require(
        usable and len(moments) == 2 * scaled, "its means and deviations of features do not agree with its kernel"
    )
    kernel = kernel.with_moments(*moments) if isinstance(kernel, Standardised) else kernel
    described: Json = {"source": source_of(group, n_features), "labels": labels_from(group, n_features)}
    described["certificate"] = group.part("certificate", KernelCertificate.of)
    described["sampling_errors"] = sampling_errors_of(group, len(arrays["eigenvalues"]))
    attributes = group.attributes | {"kernel": kernel} | described
    model = KernelModel(**values, **attributes, preimage=PreimageMap(*preimage) if preimage else None)
    require_valid_kernel(model, group.path)
    return model
