"""Fitted estimators in the formats of other programs: the methods, and files by the ends of their names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from streampca.errors import ParameterError
from streampca.estimators.interface import BaseEstimator, check_is_fitted
from streampca.estimators.labelled import dataset_of
from streampca.export.files import SUFFIXES, Exported
from streampca.system.optional import optional_module

if TYPE_CHECKING:
    from sklearn.decomposition import PCA, FactorAnalysis
    from sklearn.pipeline import Pipeline

    from streampca.models.pca import Model


class Exporting(BaseEstimator):
    """The part of an estimator that gives its model to other programs."""

    if TYPE_CHECKING:
        _model: Model
        memory: int | str | None

    def to_sklearn(self) -> PCA | FactorAnalysis | Pipeline:
        """Return the fitted estimator of scikit-learn with the same `transform` and `inverse_transform`.

        A ``sklearn.decomposition.PCA`` with all fitted attributes, or of `FactorAnalysis` its namesake, which has no
        `inverse_transform`; where features are scaled or weighted, a ``Pipeline`` of a
        ``StandardScaler`` (step ``scale``) and it (step ``pca`` or ``factor_analysis``), and where NaN counts as the mean of its feature, one that
        begins with a ``FunctionTransformer`` (step ``fill``). Scores agree to 1e-12 of the largest, for rows in float64; a
        ``PCA`` alone subtracts the mean after the product, which loses the digits that a far mean has before the point.

        Returns
        -------
        sklearn.decomposition.PCA, sklearn.decomposition.FactorAnalysis or sklearn.pipeline.Pipeline
            A fitted estimator that does not need streampca.

        Raises
        ------
        NotAvailableError
            If scikit-learn cannot express a setting: `remove`, conditional scores of rows with NaN, normalised counts, whitened
            components without variance, two tables (`MCA`, `CCA`), or correlated factors.
        """
        check_is_fitted(self)
        optional_module("sklearn", "to_sklearn", "export")
        from streampca.export.scikit_learn import to_sklearn

        return to_sklearn(self._model, self._model.source.get("feature_names"), self.memory)

    def to_onnx(
        self, path: str | Path, *, dtype: Literal["float32", "float64"] = "float32", overwrite: bool = False
    ) -> Exported:
        """Write an ONNX model from rows to scores: whole or not at all, after ``onnx.checker`` has passed it.

        Its input ``X`` has shape (n, n_features), its output ``scores`` (n, k), for any n, both of type `dtype`; opset 17. Two tables
        (`MCA`, `CCA`) lie side by side in the input, and their scores in the output.
        Rows are those that `transform` takes as an array; where counts were normalised while they were read
        (``normalize``), they are the counts. Needs onnx: ``pip install "streampca[export]"``.

        Parameters
        ----------
        path : str or Path
            The file.
        dtype : {"float32", "float64"}
            Type of rows and scores.
        overwrite : bool
            Whether an ONNX model at `path` is replaced.

        Returns
        -------
        Exported
            What was written, with the measured ``error`` of the scores relative to those in float64.

        Raises
        ------
        NotAvailableError
            If ONNX cannot express a setting: `remove`, conditional scores of rows with NaN, normalised counts of a mask of
            features; if float32 cannot hold the model; or if onnx is not installed.
        OutputError
            If a file is at `path` and `overwrite` is not set, or it is no ONNX model.
        """
        from streampca.export.onnx_model import write_onnx

        check_is_fitted(self)
        return write_onnx(
            self._model,
            Path(path),
            dtype=dtype,
            names=self._known_names(),
            memory=self.memory,
            overwrite=overwrite,
        )

    def to_faiss(self, path: str | Path, *, overwrite: bool = False) -> Exported:
        """Write a ``LinearTransform`` of faiss for ``faiss.read_VectorTransform`` and ``IndexPreTransform``, whole or not at all.

        It is in float32, y = A x + b: subtract a mean that is far from 0 from the rows before the fit. The
        ``reverse_transform`` that faiss has for orthonormal A, Aᵀ(y − b), is `inverse_transform` only for all components or
        without centring: else it lacks what of the mean is orthogonal to the components. Needs faiss: ``pip install "streampca[export]"``.

        Parameters
        ----------
        path : str or Path
            The file.
        overwrite : bool
            Whether a transform of faiss at `path` is replaced.

        Returns
        -------
        Exported
            What was written, with the measured ``error`` of the scores relative to those in float64.

        Raises
        ------
        NotAvailableError
            If faiss cannot express a setting: `remove`, scores of rows with NaN, normalised counts; if float32 cannot hold
            the model; or if faiss is not installed.
        OutputError
            If a file is at `path` and `overwrite` is not set, or it is no transform of faiss.
        """
        from streampca.export.faiss_transform import write_faiss

        check_is_fitted(self)
        return write_faiss(self._model, Path(path), memory=self.memory, overwrite=overwrite)

    def _known_names(self) -> list[str] | None:
        """Return the names of the features, else those that their coordinates make, or None."""
        names, labels = self._model.source.get("feature_names"), self._model.labels
        return labels.known_names() if names is None and labels is not None else names


def export(estimator: Exporting, path: str | Path, *, overwrite: bool = False) -> Exported:
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
