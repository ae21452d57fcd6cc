"""A principal component model whose leading components are rotated towards simple structure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self, get_args

import numpy as np
from typing_extensions import override

from streampca.errors import NotAvailableError, ParameterError
from streampca.linalg.component_rules import ComponentRules
from streampca.linalg.factors import ordered, promax, varimax
from streampca.linalg.selection import is_count, is_number
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import ExactCertificate
from streampca.models.pca import PCAModel
from streampca.models.stored import StoredComponents
from streampca.parameters.statement import Rotation as Method
from streampca.typing import Array, FloatArray, Json

METHODS = get_args(Method)


@dataclass(frozen=True)
class Rotation:
    """How components are rotated: the pattern of the loadings L of the first k components is L M."""

    method: Method
    """Criterion."""
    normalize: bool
    """Whether loadings of each feature were divided by the root of its communality for the criterion."""
    power: float
    """Exponent of promax."""
    matrix: FloatArray
    """M, ``(k, k)``; orthogonal for varimax."""

    def to_dict(self) -> Json:
        """Return the settings as plain data, without the matrix."""
        return {"method": self.method, "normalize": self.normalize, "power": self.power}


@dataclass(frozen=True, kw_only=True)
class RotatedModel(PCAModel):
    """Rotated components of a model: unit rows, not orthogonal; scores are their least-squares coefficients.

    Made by `rotated_model`. Of the fields of `PCAModel`, components and variances are those after the rotation; everything
    else is that of `unrotated`.
    """

    by_features = False
    has_spectrum: ClassVar[bool] = False

    unrotated: PCAModel
    """The model whose first components are rotated."""
    rotation: Rotation
    """How they are."""

    not_diagnosed = "diagnostics (T² and Q of rows) are those of the fit before the rotation: take them from pca_"

    @property
    @override
    def rotated_by(self) -> str:
        return self.rotation.method

    @property
    @override
    def attributes(self) -> Json:
        return {"rotation": json.dumps(self.rotation.to_dict())} | super().attributes

    @property
    @override
    def correlations(self) -> dict[str, FloatArray]:
        return {"score_correlation": self.correlation}

    @property
    def before_rotation(self) -> PCAModel:
        """Return the model whose first components are rotated."""
        return self.unrotated

    @property
    def correlation(self) -> FloatArray:
        """Return the correlations Φ = (Mᵀ M)⁻¹ of the scores, ``(k, k)``."""
        inverse = np.linalg.inv(self.rotation.matrix)  # of M, not of MᵀM, which has the square of its condition
        return np.asarray(inverse @ inverse.T, dtype=np.float64)

    @property
    def explained_variance_ratio(self) -> FloatArray:
        """Return diag(Φ AᵀA) / total variance, ``(k,)``: shares that add up to those of the components before the rotation.

        Φ AᵀA is M⁻¹ Λ M, whose rounding errors grow with the condition of M and not with its square.
        """
        matrix = self.rotation.matrix
        parts: FloatArray = np.einsum("ij,j,ji->i", np.linalg.inv(matrix), self._values, matrix)
        return np.asarray(parts / self.total_variance)

    @property
    def noise_variance(self) -> float:
        """Return the mean variance of the directions that the model before the rotation leaves out."""
        return self.unrotated.noise_variance

    @property
    def _values(self) -> FloatArray:
        """Return the variances of the components before the rotation, ``(k,)``."""
        return np.asarray(self.unrotated.explained_variance[: len(self.rotation.matrix)])

    @cached_property
    def component_rules(self) -> ComponentRules:
        """Return what the rules say of the eigenvalues, which are those before the rotation."""
        return self.unrotated.component_rules

    def summary(self) -> Json:
        """Return the result as plain data, with the settings of the rotation."""
        return super().summary() | {"rotation": self.rotation.to_dict()}

    @cached_property
    def turn(self) -> FloatArray:
        """Return the matrix T of scores = unrotated scores · T, ``(k, k)``: Λ^−½ M⁻ᵀ S, for whitened ones M⁻ᵀ."""
        back: FloatArray = np.asarray(np.linalg.inv(self.rotation.matrix).T, dtype=np.float64)
        if self.whiten:
            return back
        turned: FloatArray = back / np.sqrt(self._values)[:, None] * np.sqrt(self.explained_variance)
        return turned

    @cached_property
    def turn_back(self) -> FloatArray:
        """Return the inverse of `turn`: S⁻¹ Mᵀ Λ^½, for whitened scores Mᵀ."""
        forth = self.rotation.matrix.T
        if self.whiten:
            return forth
        turned: FloatArray = forth * np.sqrt(self._values) / np.sqrt(self.explained_variance)[:, None]
        return turned

    def encoder(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the weights of the unrotated components, turned; see `PCAModel.encoder`."""
        for features, slab in self.unrotated.encoder():
            yield features, self.turn.T @ slab[: self.n_components]

    def decoder(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield what the unrotated components give, turned back; see `PCAModel.decoder`."""
        for features, slab in self.unrotated.decoder():
            yield features, self.turn_back @ slab[: self.n_components]

    @override
    def on_device(self, name: str) -> Self:
        return replace(self, unrotated=self.unrotated.on_device(name))

    def encode(self, rows: Any, out: Array | None = None) -> Array:
        """Return the scores, ``(n_rows, k)``, of `rows`: the unrotated ones, turned; see `PCAModel.encode`."""
        scores = self.unrotated.encode(rows)[:, : self.n_components]
        return np.matmul(scores, self.turn.astype(scores.dtype), out=out)

    def decode(self, scores: Array) -> Array:
        """Return the rows that have these `scores`, ``(n_rows, k)``: those of the first k unrotated components."""
        dtype = self.score_dtype(scores.dtype)
        turned = np.zeros((len(scores), self.unrotated.n_components), dtype)
        np.matmul(scores, self.turn_back.astype(dtype), out=turned[:, : self.n_components], casting="same_kind")
        return self.unrotated.decode(turned)


def rotated_model(model: PCAModel, rotation: Rotation) -> RotatedModel:
    """Return `model` with its first components rotated."""
    matrix = rotation.matrix
    pattern = matrix.T @ model.loadings()[: len(matrix)]
    variances = np.einsum("ij,ij->i", pattern, pattern)
    components = pattern / np.sqrt(variances)[:, None]
    known = {each.name: getattr(model, each.name) for each in fields(PCAModel)}
    known |= {
        "components": components,
        "explained_variance": variances,
        "numerical_rank": len(matrix),
        "certificate": _before_rotation(model, components),
        "residual_moments": (),
        "eigenvalues": None,
        "sampling_errors": None,
    }
    return RotatedModel(**known, unrotated=model, rotation=rotation)


def _before_rotation(model: PCAModel, components: FloatArray) -> ExactCertificate:
    """Return the certificate of rotated `components` of `model`.

    They span what its first components span, and leave out as much. Of the errors of each nothing is known but what the certificate
    of `model` says of those before.
    """
    k, given = len(components), model.certificate
    captured, interval = given.captured_variance, given.relative_residual_interval
    if k < model.n_components:
        captured, rounding = min(1.0, float(model.explained_variance_ratio[:k].sum())), given.trusted_above
        interval = (0.0, 1.0)  # of approximate components, of which nothing bounds the first k alone
        if given.kind == "exact":
            interval = (max(0.0, 1.0 - captured - rounding), min(1.0, 1.0 - captured + rounding))
    return ExactCertificate(
        kind="none",
        statement=sentences.before_rotation(given),
        captured_variance=captured,
        relative_residual=1.0 - captured,
        relative_residual_interval=interval,
        eigen_residual=None,
        orthonormality=float(np.abs(components @ components.T - np.eye(k)).max()),
        component_errors=(None,) * k,
        numerical_rank=k,
        trusted_above=0.0,
        eigen_solver=given.eigen_solver,
    )


def rotate(
    model: PCAModel, k: int | None = None, *, method: Method = "varimax", normalize: bool = True, power: float = 4
) -> RotatedModel:
    """Return `model` with its first `k` components rotated; see `streampca.PCA.rotate`.

    Raises
    ------
    ParameterError
        If a parameter is outside its domain, or not all of the components have variance above rounding.
    DataError
        If varimax does not converge.
    NotAvailableError
        If the components are on disk, or rotated already.
    """
    if method not in METHODS:
        raise ParameterError(f"method={method!r}: expected one of {', '.join(METHODS)}")
    if not is_number(power) or not 1 < power < np.inf:
        raise ParameterError(f"power={power!r}: expected a number above 1, such as 4")
    if isinstance(model, RotatedModel):
        raise NotAvailableError("rotate: the components are rotated already: rotate those of pca_")
    if isinstance(model.components, StoredComponents):
        raise NotAvailableError(
            "rotate: the components do not fit in memory and stay on disk: fit fewer components or allow more memory"
        )
    k = model.n_components if k is None else k
    most = min(model.n_components, model.numerical_rank)
    if not is_count(k) or not 1 <= k <= most:
        raise ParameterError(f"k={k!r}: expected 1 to {most}, the number of components with variance above rounding")
    loadings = model.loadings()[: int(k)]
    matrix = varimax(loadings, normalize=normalize)
    if method == "promax":
        matrix = promax(loadings, matrix, power=float(power))
    return rotated_model(model, Rotation(method, normalize, float(power), ordered(matrix, loadings)))
