"""Export of fitted estimators, with the format from the file name."""

from __future__ import annotations

from pathlib import Path

from streampca.errors import ParameterError
from streampca.estimators.base import StreamEstimator
from streampca.estimators.labelled import dataset_of
from streampca.export.formats import SUFFIXES, Exported


def export(estimator: StreamEstimator, path: str | Path, *, overwrite: bool = False) -> Exported:
    """Write a fitted estimator in the format that the end of `path` names: .onnx, .faiss, .npz, .nc, or .csv for the loadings.

    Raises
    ------
    ParameterError
        If it names none of these.
    """
    from streampca.export.arrays import write_loadings, write_netcdf, write_npz

    place = Path(path)
    kind = SUFFIXES.get(place.suffix.lower())
    if kind is None:
        raise ParameterError(f"{place} names no format: expected a name that ends with {', '.join(SUFFIXES)}")
    if kind == "ONNX":
        return estimator.to_onnx(place, overwrite=overwrite)
    if kind == "faiss":
        return estimator.to_faiss(place, overwrite=overwrite)
    model = estimator._model
    if kind == "npz":
        return write_npz(model, place, names=estimator._known_names(), memory=estimator.memory, overwrite=overwrite)
    if kind == "CSV":
        prefix, names = type(estimator).__name__.lower(), estimator._known_names()
        return write_loadings(model, place, prefix, names=names, memory=estimator.memory, overwrite=overwrite)
    shape = (model.n_features, model.n_components)
    return write_netcdf(dataset_of(model), place, shape, overwrite=overwrite)
