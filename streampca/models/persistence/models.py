"""Models of every kind on disk: one function saves them and one loads them, by the fields that each kind describes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import zarr

from streampca.errors import ModelError
from streampca.models.fit_record import FitRecord, arrays_of_names, record_from, without_names
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.persistence import kernel, pca
from streampca.models.persistence.groups import StoredGroup, kind_of, read_group, write_group
from streampca.models.persistence.labels import arrays_of_labels
from streampca.storage.directories import AtomicDirectory

_Model = TypeVar("_Model", PCAModel, KernelModel)
_NOT_USABLE = " is not a usable model: "


def save_model(
    model: PCAModel | KernelModel,
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


def write_model(model: PCAModel | KernelModel, path: Path, fit: FitRecord | None = None) -> None:
    """Write `model` and the record of its `fit` to the empty directory `path`; `ModelError` if it could not be loaded."""
    group = zarr.open_group(path, mode="a", zarr_format=3)
    try:
        if isinstance(model, PCAModel):
            form, (arrays, attributes, digests) = pca.FORM, pca.fields_of(model, group, path)
        else:
            form, (arrays, attributes, digests) = kernel.FORM, kernel.fields_of(model, group, path)
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


def _with_record(build: Callable[[StoredGroup], _Model], group: StoredGroup) -> tuple[_Model, FitRecord | None]:
    return build(group), record_from(group)
