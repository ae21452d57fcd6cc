"""Models of every kind on disk: one function saves them and one loads them, by the fields that each kind describes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

import zarr

from streampca.errors import ModelError
from streampca.models.fit_record import FitRecord, arrays_of_names, record_from, without_names
from streampca.models.kernel import KernelModel
from streampca.models.pca import Model, PCAModel
from streampca.models.persistence import kernel, pca
from streampca.models.persistence.groups import StoredGroup, format_of, kind_of, read_group, write_group
from streampca.models.persistence.labels import arrays_of_labels
from streampca.models.persistence.state import load_state
from streampca.models.state import FittedState
from streampca.storage.directories import RECORD, AtomicDirectory, read_record, read_unreplaced

_Model = TypeVar("_Model", PCAModel, KernelModel)
_NOT_USABLE = " is not a usable model: "


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
    try:
        if model.linear is not None:
            form, (arrays, attributes, digests) = pca.FORM, pca.fields_of(model.linear, group, path)
        else:
            form, (arrays, attributes, digests) = kernel.FORM, kernel.fields_of(cast(KernelModel, model), group, path)
    except ModelError as error:
        raise ModelError(f"the model is not saved: {str(error).rpartition(_NOT_USABLE)[2]}") from error
    source, names = without_names(model.source)
    coordinates, labels, axes = arrays_of_labels(model.labels)
    arrays |= arrays_of_names(names) | ({} if fit is None else fit.arrays) | coordinates
    attributes |= {"source": source, "labels": labels, "fit": None if fit is None else fit.to_attributes()}
    write_group(group, form, arrays, attributes, digests, axes)


def load_model(path: str | Path) -> PCAModel:
    """Read the PCA model at `path`; see `load_saved`."""
    return load_saved(path)[0]


def load_kernel_model(path: str | Path) -> KernelModel:
    """Read the kernel PCA model at `path`; see `load_saved`."""
    return load_saved_kernel(path)[0]


def load_saved(path: str | Path) -> tuple[PCAModel, FitRecord | None]:
    """Read the PCA model at `path` and the record of its fit, which is None where streampca 0.1 wrote it.

    Components that were saved as slabs of features, as those from 1 GiB on are, stay on disk if they take more than a
    quarter of the available memory.

    Raises
    ------
    ModelError
        If there is none, or it is damaged: arrays are checked for shape, finiteness, order, orthonormality and SHA-256.
    """
    if not Path(path).exists():
        raise ModelError(f"{path}: no such model")
    return read_group(Path(path), pca.FORM, lambda group: _with_record(pca.build, group))


def load_saved_kernel(path: str | Path) -> tuple[KernelModel, FitRecord | None]:
    """Read the kernel PCA model at `path` and the record of its fit, which is None where streampca 0.1 wrote it.

    Raises
    ------
    ModelError
        If there is none, or it is damaged: arrays are checked for type, shape, finiteness, order and SHA-256.
    """
    return read_group(Path(path), kernel.FORM, lambda group: _with_record(kernel.build, group))


def is_kernel_model(path: Path) -> bool:
    """Return whether the metadata at `path` name a kernel PCA model."""
    return kind_of(path) == (kernel.FORM.format, kernel.FORM.kind)


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
    if record == pca.FORMAT or (place.name == "model.zarr" and around == "streampca-run"):
        return place
    if format_of(place) != pca.FORMAT:
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
        fitted = load_state(place, model.n_features)
        if fitted is None:
            return model, None
        names = model.source.get("feature_names")
        named = {} if names is None else {"feature_names": names}
        return model, replace(fitted, source=fitted.source | named, labels=model.labels)

    return read_unreplaced(Path(path), read)


def _with_record(build: Callable[[StoredGroup], _Model], group: StoredGroup) -> tuple[_Model, FitRecord | None]:
    return build(group), record_from(group)
