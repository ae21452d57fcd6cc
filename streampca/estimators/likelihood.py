"""What probabilistic PCA says of rows: the model covariance, its inverse, and log-likelihoods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import NotAvailableError
from streampca.estimators.interface import Fitted, check_is_fitted
from streampca.estimators.patterns import Patterns
from streampca.models.conditional import patterns_of, posterior
from streampca.models.removal import Given
from streampca.typing import BoolArray, FloatArray

if TYPE_CHECKING:
    from streampca.models.pca import PCAModel


class Likelihood(Patterns):
    """The part of `PCA` that rests on the probabilistic model of Tipping & Bishop (1999)."""

    if TYPE_CHECKING:
        _model: PCAModel
        components_: Fitted[FloatArray]
        explained_variance_: Fitted[FloatArray]
        noise_variance_: Fitted[float]

    def get_covariance(self) -> FloatArray:
        """Return the model covariance V (Λ − σ²) Vᵀ + σ² I of the centred, scaled features (Tipping & Bishop 1999).

        Returns
        -------
        ndarray of float64, shape (n_features, n_features)
            8 d² bytes, which no plan counts.

        Raises
        ------
        NotAvailableError
            If the components are on disk.
        """
        self._require_in_memory("get_covariance")
        spread = np.maximum(self.explained_variance_ - self.noise_variance_, 0.0)
        covariance: FloatArray = (self.components_.T * spread) @ self.components_
        covariance.flat[:: len(covariance) + 1] += self.noise_variance_
        return covariance

    def get_precision(self) -> FloatArray:
        """Return the inverse of `get_covariance`; directions without any variance count as the smallest there is.

        Returns
        -------
        ndarray of float64, shape (n_features, n_features)
            8 d² bytes, which no plan counts.

        Raises
        ------
        NotAvailableError
            If the components are on disk.
        """
        self._require_in_memory("get_precision")
        noise, variance = self._floored()
        precision: FloatArray = (self.components_.T * (1 / variance - 1 / noise)) @ self.components_
        precision.flat[:: len(precision) + 1] += 1 / noise
        return precision

    def score_samples(self, X: ArrayLike, *, remove: Given | None = None) -> FloatArray:
        """Return the log-likelihood of each row under the probabilistic PCA model (Tipping & Bishop 1999).

        For a row with missing values that of its observed values, or with ``missing_scores="mean"`` of the row filled with
        means; a row without any observed value has 0.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Rows in memory.
        remove : mapping, optional
            As in `transform`.

        Returns
        -------
        ndarray of float64, shape (n_samples,)
            Natural logarithms of densities.

        Raises
        ------
        NotAvailableError
            If the components are on disk.
        """
        self._require_in_memory("score")
        rows, missing = self._as_decomposed(X, remove)
        noise, variance = self._floored()
        projected = rows @ self.components_.T
        left = np.maximum(np.einsum("ij,ij->i", rows, rows) - np.einsum("ij,ij->i", projected, projected), 0.0)
        k, d = self.components_.shape
        logarithm = np.log(variance).sum() + (d - k) * np.log(noise) + d * np.log(2 * np.pi)
        likelihood: FloatArray = -0.5 * (projected**2 @ (1 / variance) + left / noise + logarithm)
        if self._model.conditional and missing.any():
            holes = missing.any(axis=1)
            likelihood[holes] = self._of_observed(rows[holes], missing[holes])
        return likelihood

    def _of_observed(self, rows: FloatArray, missing: BoolArray) -> FloatArray:
        """Return the log-likelihood of the observed values alone of `rows`, in which others are 0, ``(n_rows,)``."""
        noise, variance = self._floored()
        spread, likelihood = np.maximum(variance - noise, 0.0), np.empty(len(rows))
        for first, members in patterns_of(missing):
            seen = ~missing[first]
            axes = self.components_[:, seen]
            inverse, logarithm = posterior(spread, noise, (axes @ axes.T)[None])
            projected = rows[members][:, seen] @ axes.T
            squares = np.einsum("ij,ij->i", rows[members], rows[members])
            left = np.maximum(squares - np.einsum("ij,jk,ik->i", projected, inverse[0], projected), 0.0)
            n_seen = int(seen.sum())
            constant = logarithm[0] + (n_seen - len(axes)) * np.log(noise) + n_seen * np.log(2 * np.pi)
            likelihood[members] = -0.5 * (left / noise + constant) if n_seen else 0.0
        return likelihood

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return the mean of `score_samples`.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Rows in memory.
        y : ignored

        Returns
        -------
        float
            Mean log-likelihood of the rows.
        """
        return float(self.score_samples(X).mean())

    def _require_in_memory(self, what: str) -> None:
        """Raise `NotFittedError`, or `NotAvailableError` if the components are on disk."""
        check_is_fitted(self)
        components = self._model.components
        if not isinstance(components, np.ndarray):
            k, d = components.shape
            raise NotAvailableError(
                f"{what} needs the components in memory, and {k} x {d:,} of them are on disk because they did not fit: use transform, or fit "
                f"with fewer components or more memory (they take {8 * k * d:,} bytes)"
            )

    def _floored(self) -> tuple[float, FloatArray]:
        """Return noise variance and variances, none of them below what float64 can tell from 0."""
        floor = max(
            float(self.explained_variance_.max()) * np.finfo(np.float64).eps * self.n_features_in_,
            np.finfo(np.float64).tiny,
        )
        noise = self.noise_variance_
        if noise <= floor:
            noise = float(max(self.explained_variance_.min(), floor))
        return noise, np.maximum(self.explained_variance_, floor)
